// SPDX-License-Identifier: GPL-2.0

//! Work completions, for `poll_cq`.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::{
    bindings,
    device::Operations,
    enums::{
        NetworkType,
        WcFlags,
        WcOpcode,
        WcStatus, //
    },
    qp::Qp, //
};
use core::{
    marker::PhantomData,
    mem::ManuallyDrop, //
};

/// A work completion.
///
/// After an error only `wr_id`, `status`, `qp` and `vendor_err` are valid (IBTA 11.4.2.1).
pub struct Wc<'a, D: Operations> {
    /// The `wr_id` of the work request. For kernel users it may be a pointer that the core calls,
    /// so it must come from the driver's own memory of the request.
    pub wr_id: u64,
    /// Result of the work request.
    pub status: WcStatus,
    /// Operation that has completed.
    pub opcode: WcOpcode,
    /// Error code that the device reports.
    pub vendor_err: u32,
    /// Number of bytes received.
    pub byte_len: u32,
    /// QP of the work request.
    pub qp: &'a Qp<D>,
    /// Immediate data in wire byte order, or the invalidated key.
    pub ex: WcEx,
    /// QPN of the sender (UD).
    pub src_qp: u32,
    /// Flags besides those that follow from `ex` and the optional members, which `push` sets.
    pub flags: WcFlags,
    /// Index of the P_Key (GSI).
    pub pkey_index: u16,
    /// Service level of the packet.
    pub sl: u8,
    /// LID of the sender (UD on InfiniBand).
    pub slid: u16,
    /// Low bits of the LID to which the packet was sent (UD on InfiniBand).
    pub dlid_path_bits: u8,
    /// Port that received the packet, for the GSI.
    pub port_num: u32,
    /// MAC address of the sender (UD).
    pub smac: Option<[u8; 6]>,
    /// VLAN of the packet (UD).
    pub vlan_id: Option<u16>,
    /// Type of the packet's network header (UD).
    pub network_type: Option<NetworkType>,
}

/// Immediate data or invalidated key of a completion.
#[derive(Clone, Copy, Default)]
pub enum WcEx {
    /// The completion has neither.
    #[default]
    None,
    /// Four bytes of immediate data in wire byte order.
    Imm([u8; 4]),
    /// Key that the peer invalidated.
    Invalidate(u32),
}

impl<'a, D: Operations> Wc<'a, D> {
    /// Creates a completion of `qp` without optional members.
    pub fn new(qp: &'a Qp<D>, wr_id: u64, status: WcStatus, opcode: WcOpcode) -> Self {
        Self {
            wr_id,
            status,
            opcode,
            vendor_err: 0,
            byte_len: 0,
            qp,
            ex: WcEx::None,
            src_qp: 0,
            flags: WcFlags::empty(),
            pkey_index: 0,
            sl: 0,
            slid: 0,
            dlid_path_bits: 0,
            port_num: 0,
            smac: None,
            vlan_id: None,
            network_type: None,
        }
    }
}

/// The buffer to which `poll_cq` writes completions.
///
/// # Invariants
///
/// `base` has room for `room` entries for `'a`, of which the first `len` are written. `len` is at
/// most `room`.
pub struct WcSink<'a, D: Operations> {
    base: *mut bindings::ib_wc,
    room: usize,
    len: usize,
    _caller: PhantomData<&'a mut bindings::ib_wc>,
    _driver: PhantomData<fn(&D)>,
}

impl<D: Operations> WcSink<'_, D> {
    /// # Safety
    ///
    /// `base` must have room for `room` entries for the lifetime.
    pub(crate) unsafe fn new(base: *mut bindings::ib_wc, room: usize) -> Self {
        // INVARIANT: The caller promises the room, and no entry is written yet.
        Self {
            base,
            room,
            len: 0,
            _caller: PhantomData,
            _driver: PhantomData,
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True if there is no room for another entry.
    pub fn is_full(&self) -> bool {
        self.len >= self.room
    }

    /// Adds a completion. Returns false, without adding it, if there is no room.
    ///
    /// The driver must check [`is_full`](Self::is_full) before it consumes an entry.
    pub fn push(&mut self, wc: &Wc<'_, D>) -> bool {
        if self.is_full() {
            return false;
        }
        let mut flags = wc.flags;
        let mut raw = bindings::ib_wc {
            status: wc.status.as_raw(),
            opcode: wc.opcode.as_raw(),
            vendor_err: wc.vendor_err,
            byte_len: wc.byte_len,
            qp: wc.qp.as_raw(),
            src_qp: wc.src_qp,
            pkey_index: wc.pkey_index,
            sl: wc.sl,
            slid: wc.slid.into(),
            dlid_path_bits: wc.dlid_path_bits,
            port_num: wc.port_num,
            ..Default::default()
        };
        raw.__bindgen_anon_1.wr_id = ManuallyDrop::new(wc.wr_id);
        match wc.ex {
            WcEx::None => {}
            WcEx::Imm(imm) => {
                flags |= WcFlags::WITH_IMM;
                // The bytes of a `__be32` stay in wire byte order.
                raw.ex.imm_data = ManuallyDrop::new(u32::from_ne_bytes(imm));
            }
            WcEx::Invalidate(rkey) => {
                flags |= WcFlags::WITH_INVALIDATE;
                raw.ex.invalidate_rkey = ManuallyDrop::new(rkey);
            }
        }
        if let Some(smac) = wc.smac {
            flags |= WcFlags::WITH_SMAC;
            raw.smac = smac;
        }
        raw.vlan_id = 0xffff;
        if let Some(vlan_id) = wc.vlan_id {
            flags |= WcFlags::WITH_VLAN;
            raw.vlan_id = vlan_id;
        }
        if let Some(network_type) = wc.network_type {
            flags |= WcFlags::WITH_NETWORK_HDR_TYPE;
            // CAST: The enumeration is small.
            raw.network_hdr_type = network_type.as_raw() as u8;
        }
        // CAST: The value consists of bit flags.
        raw.wc_flags = flags.as_raw() as i32;
        // SAFETY: By the type invariant `base` has room for `room` entries, and `len` is below
        // `room`.
        let entry = unsafe { self.base.add(self.len) };
        // SAFETY: By the type invariant the entry is valid for writes.
        unsafe { entry.write(raw) };
        // INVARIANT: Entry `len` is written, and `len` is at most `room` after the increment.
        self.len += 1;
        true
    }
}
