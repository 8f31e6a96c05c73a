// SPDX-License-Identifier: GPL-2.0

//! Work completions, for `poll_cq`.

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

/// A completion.
///
/// On error only `wr_id`, `status`, `qp` and `vendor_err` mean anything (IBTA 11.4.2.1).
pub struct Wc<'a, D: Operations> {
    /// The work request's `wr_id`, which for kernel users may be a pointer that the core calls: it
    /// must come from the driver's own memory of the request.
    pub wr_id: u64,
    /// The outcome.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// The device's reason.
    pub vendor_err: u32,
    /// Bytes received.
    pub byte_len: u32,
    /// The queue pair.
    pub qp: &'a Qp<D>,
    /// Immediate data, as it was on the wire, or the invalidated key.
    pub ex: WcEx,
    /// QPN of the sender (UD).
    pub src_qp: u32,
    /// More flags; those of `ex` are set here by themselves.
    pub flags: WcFlags,
    /// Index of the P_Key (GSI).
    pub pkey_index: u16,
    /// Service level.
    pub sl: u8,
    /// Port, for the GSI.
    pub port_num: u32,
    /// Sender's MAC (UD).
    pub smac: Option<[u8; 6]>,
    /// VLAN of the packet (UD).
    pub vlan_id: Option<u16>,
    /// Network header of the packet (UD).
    pub network_type: Option<NetworkType>,
}

/// Immediate data or invalidated key.
#[derive(Clone, Copy, Default)]
pub enum WcEx {
    /// Neither.
    #[default]
    None,
    /// Immediate data: four bytes, as on the wire.
    Imm([u8; 4]),
    /// Invalidated key.
    Invalidate(u32),
}

impl<'a, D: Operations> Wc<'a, D> {
    /// A completion of `qp` with nothing else set.
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
            port_num: 0,
            smac: None,
            vlan_id: None,
            network_type: None,
        }
    }
}

/// Where `poll_cq` puts completions.
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
        Self {
            base,
            room,
            len: 0,
            _caller: PhantomData,
            _driver: PhantomData,
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there is no more room.
    pub fn is_full(&self) -> bool {
        self.len >= self.room
    }

    /// Adds a completion; `false`, and nothing is added, if there is no room.
    ///
    /// Look before an entry is consumed: [`is_full`](Self::is_full).
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
            port_num: wc.port_num,
            ..Default::default()
        };
        raw.__bindgen_anon_1.wr_id = ManuallyDrop::new(wc.wr_id);
        match wc.ex {
            WcEx::None => {}
            WcEx::Imm(imm) => {
                flags |= WcFlags::WITH_IMM;
                // `__be32`: the bytes stay in their order.
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
            // CAST: A small enumeration.
            raw.network_hdr_type = network_type.as_raw() as u8;
        }
        // CAST: Bit flags.
        raw.wc_flags = flags.as_raw() as i32;
        // SAFETY: `len` is below `room`.
        unsafe { self.base.add(self.len).write(raw) };
        self.len += 1;
        true
    }
}
