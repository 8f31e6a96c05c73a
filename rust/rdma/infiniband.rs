// SPDX-License-Identifier: GPL-2.0

//! Ports whose link layer is InfiniBand: their GIDs, the attributes that consumers change, and the
//! management datagrams (MADs) for the agents of the device.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! C: `query_gid`, `modify_port`, `modify_device` and `process_mad` of `struct ib_device_ops`. Only
//! a device that is registered with [`LinkLayer::Infiniband`](crate::enums::LinkLayer::Infiniband)
//! has these ops.

use crate::{
    bindings,
    device::{
        Device,
        Operations, //
    },
    enums::{
        MadFlags,
        PortCaps,
        WcFlags, //
    },
    ops::Adapter,
    Unsupported, //
};
use base::errno::eopnotsupp;
use core::mem::ManuallyDrop;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// Size of a management datagram in bytes (IBTA 13.4.2).
pub const MAD_SIZE: usize = 256;

/// Size of a global route header in bytes.
pub const GRH_SIZE: usize = 40;

/// Size of the description of a node in bytes.
// CAST: The constant is small.
pub const NODE_DESCRIPTION_SIZE: usize = bindings::IB_DEVICE_NODE_DESC_MAX as usize;

const _: () = {
    assert!(size_of::<bindings::ib_mad>() == MAD_SIZE);
    assert!(size_of::<bindings::ib_grh>() == GRH_SIZE);
};

/// Attribute SMInfo of the subnet management classes, for which the C header has a constant only in
/// network byte order.
const SM_INFO: u16 = 0x0020;

/// Attribute ID of NodeDescription.
const NODE_DESCRIPTION: u16 = 0x0010;

/// ClassVersion of subnet management (IBTA 14.2.1.1).
const SMP_CLASS_VERSION: u8 = 1;

/// Offset of the attribute in a subnet management packet.
const SMP_DATA_AT: usize = 64;

/// Returns the description of the node in the response to
/// [`MadRequest::for_node_description`].
pub fn node_description_in(response: &[u8; MAD_SIZE]) -> [u8; NODE_DESCRIPTION_SIZE] {
    let mut description = [0; NODE_DESCRIPTION_SIZE];
    description.copy_from_slice(&response[SMP_DATA_AT..][..NODE_DESCRIPTION_SIZE]);
    description
}

/// Addresses with which a management datagram has arrived.
#[derive(Clone, Copy, Debug)]
pub struct MadSource {
    /// QPN of the sender.
    pub src_qp: u32,
    /// LID of the sender.
    pub slid: u16,
    /// Service level of the packet.
    pub sl: u8,
    /// Low bits of the LID to which the packet was sent.
    pub dlid_path_bits: u8,
    /// Index of the packet's P_Key.
    pub pkey_index: u16,
}

/// A management datagram for the agents of the device.
pub struct MadRequest {
    /// Port that has received the datagram.
    pub port_num: u32,
    /// Checks that the agents leave out.
    pub flags: MadFlags,
    /// Addresses, or `None` if the kernel itself has made the datagram.
    pub source: Option<MadSource>,
    /// Global route header of the packet, if it had one.
    pub grh: Option<[u8; GRH_SIZE]>,
    /// The datagram.
    pub mad: [u8; MAD_SIZE],
}

impl MadRequest {
    /// Returns the request that the kernel itself makes for the description of the node
    /// (NodeDescription, IBTA 14.2.5.2).
    pub fn for_node_description(port_num: u32) -> Self {
        let mut mad = [0; MAD_SIZE];
        // CAST: Each of these values has one byte.
        mad[0] = bindings::IB_MGMT_BASE_VERSION as u8;
        mad[1] = bindings::IB_MGMT_CLASS_SUBN_LID_ROUTED as u8;
        mad[2] = SMP_CLASS_VERSION;
        mad[3] = bindings::IB_MGMT_METHOD_GET as u8;
        [mad[16], mad[17]] = NODE_DESCRIPTION.to_be_bytes();
        Self {
            port_num,
            flags: MadFlags::IGNORE_MKEY | MadFlags::IGNORE_BKEY,
            source: None,
            grh: None,
            mad,
        }
    }

    fn attribute(&self) -> u16 {
        u16::from_be_bytes([self.mad[16], self.mad[17]])
    }

    /// True if the datagram is for the agent of subnet management or that of performance
    /// management. All other datagrams are for agents of the kernel and of processes. They include
    /// SMInfo, which a subnet manager answers.
    fn is_for_device(&self) -> bool {
        let method = u32::from(self.mad[3]);
        let is_get_or_set = matches!(
            method,
            bindings::IB_MGMT_METHOD_GET | bindings::IB_MGMT_METHOD_SET
        );
        match u32::from(self.mad[1]) {
            bindings::IB_MGMT_CLASS_SUBN_LID_ROUTED
            | bindings::IB_MGMT_CLASS_SUBN_DIRECTED_ROUTE => {
                (is_get_or_set || method == bindings::IB_MGMT_METHOD_TRAP_REPRESS)
                    && self.attribute() != SM_INFO
            }
            bindings::IB_MGMT_CLASS_PERF_MGMT => is_get_or_set,
            _ => false,
        }
    }

    /// True for a trap without a source LID, which a node without a LID has sent, and which nobody
    /// can acknowledge.
    fn is_trap_without_source(&self) -> bool {
        u32::from(self.mad[3]) == bindings::IB_MGMT_METHOD_TRAP
            && self.source.is_some_and(|source| source.slid == 0)
    }
}

/// Result of a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadOutcome {
    /// The datagram is not for the agents of the device. The core gives it to the others.
    NotMine,
    /// An agent has processed the datagram. The response is sent back.
    Reply,
    /// An agent has processed the datagram, which has no response.
    Consumed,
}

impl MadOutcome {
    const fn as_raw(self) -> c_int {
        // CAST: The flags are small.
        const SUCCESS: c_int = bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS as c_int;
        match self {
            Self::NotMine => SUCCESS,
            // CAST: The flags are small.
            Self::Reply => SUCCESS | bindings::ib_mad_result_IB_MAD_RESULT_REPLY as c_int,
            Self::Consumed => SUCCESS | bindings::ib_mad_result_IB_MAD_RESULT_CONSUMED as c_int,
        }
    }
}

/// Change of a port that a consumer requests.
#[derive(Clone, Copy, Debug)]
pub struct PortChange {
    /// Flags of `enum ib_port_modify_flags`.
    pub mask: u32,
    /// Capabilities to announce.
    pub set_caps: PortCaps,
    /// Capabilities that are no longer announced.
    pub clear_caps: PortCaps,
}

/// The operations of InfiniBand ports. For a driver without such ports the type is
/// [`Unsupported`].
///
/// # Examples
///
/// A driver whose device has one GID and answers no management datagrams:
///
/// ```
/// use base::errno::eopnotsupp;
/// use rdma::{
///     device::{
///         Device,
///         Operations, //
///     },
///     infiniband::{
///         InfinibandPort,
///         MadOutcome,
///         MadRequest,
///         PortChange,
///         MAD_SIZE,
///         NODE_DESCRIPTION_SIZE, //
///     }, //
/// };
///
/// struct Port;
///
/// impl<D: Operations> InfinibandPort<D> for Port {
///     fn query_gid(_dev: &Device<D>, _port: u32, _index: u16) -> Result<[u8; 16]> {
///         Ok(*b"\xfe\x80\0\0\0\0\0\0\x02\0\0\0\0\0\0\x01")
///     }
///
///     fn modify_port(_dev: &Device<D>, _port: u32, _change: &PortChange) -> Result {
///         Err(eopnotsupp())
///     }
///
///     fn set_node_description(_dev: &Device<D>, _text: &[u8; NODE_DESCRIPTION_SIZE]) -> Result {
///         Ok(())
///     }
///
///     fn process_mad(
///         _dev: &Device<D>,
///         _request: &MadRequest,
///         _response: &mut [u8; MAD_SIZE],
///     ) -> Result<MadOutcome> {
///         Ok(MadOutcome::NotMine)
///     }
/// }
/// ```
pub trait InfinibandPort<D: Operations> {
    /// False only for [`Unsupported`].
    const SUPPORTED: bool = true;

    /// Returns the GID at `index` of the port's table, in wire byte order, or zeroes if the entry
    /// is free. May sleep.
    fn query_gid(dev: &Device<D>, port: u32, index: u16) -> Result<[u8; 16]>;

    /// Changes the port. The connection manager announces
    /// [`PortCaps::CM`](crate::enums::PortCaps::CM) by this function when the device is registered,
    /// and does not use a port that refuses it. May sleep.
    fn modify_port(dev: &Device<D>, port: u32, change: &PortChange) -> Result;

    /// Sets the description of the node that the agents report. May sleep.
    fn set_node_description(dev: &Device<D>, text: &[u8; NODE_DESCRIPTION_SIZE]) -> Result;

    /// Passes a management datagram to the agents of the device. The core sends `response` back if
    /// the result is [`MadOutcome::Reply`]. This must work when the device is registered, because
    /// the core then reads the counters of the port. May sleep.
    fn process_mad(
        dev: &Device<D>,
        request: &MadRequest,
        response: &mut [u8; MAD_SIZE],
    ) -> Result<MadOutcome>;
}

impl<D: Operations> Adapter<D> {
    /// Replaces the ops of Ethernet ports by those of InfiniBand ports, which the driver must have.
    pub(crate) fn fill_infiniband_ops(ops: &mut bindings::ib_device_ops) {
        ops.query_gid = Some(Self::query_gid);
        ops.modify_port = Some(Self::modify_port);
        ops.modify_device = Some(Self::modify_device);
        ops.process_mad = Some(Self::process_infiniband_mad);
        ops.add_gid = None;
        ops.del_gid = None;
        ops.report_port_event = None;
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a device of `D` and a `gid` to fill.
    unsafe extern "C" fn query_gid(
        dev: *mut bindings::ib_device,
        port: u32,
        index: c_int,
        gid: *mut bindings::ib_gid,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `dev` is a device of `D`, alive during the call.
            let dev = unsafe { Device::from_raw(dev) };
            let value = bindings::ib_gid {
                raw: ManuallyDrop::new(D::Infiniband::query_gid(dev, port, index.try_into()?)?),
            };
            // SAFETY: By the contract of this op `gid` is valid for writes.
            unsafe { gid.write(value) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a device of `D` and a valid `change`.
    unsafe extern "C" fn modify_port(
        dev: *mut bindings::ib_device,
        port: u32,
        mask: c_int,
        change: *mut bindings::ib_port_modify,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `change` is valid during the call, and nothing
            // writes it meanwhile.
            let change = unsafe { &*change };
            // SAFETY: By the contract of this op `dev` is a device of `D`, alive during the call.
            let dev = unsafe { Device::from_raw(dev) };
            let change = PortChange {
                // CAST: The mask consists of bit flags.
                mask: mask as u32,
                set_caps: PortCaps::from_raw(change.set_port_cap_mask),
                clear_caps: PortCaps::from_raw(change.clr_port_cap_mask),
            };
            D::Infiniband::modify_port(dev, port, &change)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a device of `D` and a valid `change`.
    unsafe extern "C" fn modify_device(
        dev: *mut bindings::ib_device,
        mask: c_int,
        change: *mut bindings::ib_device_modify,
    ) -> c_int {
        // CAST: The flag is small.
        const NODE_DESC: c_int =
            bindings::ib_device_modify_flags_IB_DEVICE_MODIFY_NODE_DESC as c_int;
        from_result(|| {
            if mask & !NODE_DESC != 0 {
                return Err(eopnotsupp());
            }
            if mask == 0 {
                return Ok(0);
            }
            // SAFETY: By the contract of this op `change` is valid during the call. Only the
            // address of a field is computed.
            let text = unsafe { &raw const (*change).node_desc };
            // SAFETY: The field is valid, and has as many bytes as the array.
            let text = unsafe { text.cast::<[u8; NODE_DESCRIPTION_SIZE]>().read() };
            // SAFETY: By the contract of this op `dev` is a device of `D`, alive during the call.
            let device = unsafe { Device::from_raw(dev) };
            D::Infiniband::set_node_description(device, &text)?;
            // SAFETY: By the contract of this op `dev` is alive. The function reads
            // IB_DEVICE_NODE_DESC_MAX bytes, which `text` has.
            unsafe { bindings::rdma_helper_set_node_desc(dev, text.as_ptr()) };
            Ok(0)
        })
    }

    /// Returns the request of a call of `process_mad`.
    ///
    /// # Safety
    ///
    /// `wc` and `grh` must be `NULL` or valid, and `mad` must be valid for reads of [`MAD_SIZE`]
    /// bytes.
    unsafe fn request(
        flags: c_int,
        port_num: u32,
        wc: *const bindings::ib_wc,
        grh: *const bindings::ib_grh,
        mad: *const bindings::ib_mad,
    ) -> MadRequest {
        // CAST: The value consists of bit flags.
        let mut flags = MadFlags::from_raw(flags as u32);
        // SAFETY: The caller promises that `wc` is `NULL` or valid.
        let wc = unsafe { wc.as_ref() };
        if wc.is_none() {
            // The agents cannot send a trap about a wrong key of a datagram without a source.
            flags |= MadFlags::IGNORE_MKEY | MadFlags::IGNORE_BKEY;
        }
        let has_grh = wc.is_some_and(|wc| {
            // CAST: The value consists of bit flags.
            WcFlags::from_raw(wc.wc_flags as u32).contains(WcFlags::GRH)
        });
        let grh = (has_grh && !grh.is_null())
            // SAFETY: The caller promises that `grh`, which is not `NULL`, is valid. It has
            // `GRH_SIZE` bytes.
            .then(|| unsafe { grh.cast::<[u8; GRH_SIZE]>().read() });
        MadRequest {
            port_num,
            flags,
            source: wc.map(|wc| MadSource {
                src_qp: wc.src_qp,
                // CAST: A LID of InfiniBand has 16 bits.
                slid: wc.slid as u16,
                sl: wc.sl,
                dlid_path_bits: wc.dlid_path_bits,
                pkey_index: wc.pkey_index,
            }),
            grh,
            // This takes a copy, so that a concurrent write to the datagram cannot change values
            // after they were checked.
            //
            // SAFETY: The caller promises that `mad` is valid for reads of `MAD_SIZE` bytes.
            mad: unsafe { mad.cast::<[u8; MAD_SIZE]>().read_volatile() },
        }
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a device of `D`, `wc` and `grh` that are `NULL` or
    /// valid, a valid request, and a response to fill.
    unsafe extern "C" fn process_infiniband_mad(
        dev: *mut bindings::ib_device,
        flags: c_int,
        port: u32,
        wc: *const bindings::ib_wc,
        grh: *const bindings::ib_grh,
        request: *const bindings::ib_mad,
        response: *mut bindings::ib_mad,
        _size: *mut usize,
        _pkey_index: *mut u16,
    ) -> c_int {
        // SAFETY: By the contract of this op `wc` and `grh` are `NULL` or valid, and `request` is a
        // datagram of at least `MAD_SIZE` bytes.
        let request = unsafe { Self::request(flags, port, wc, grh, request) };
        if request.is_trap_without_source() {
            return MadOutcome::Consumed.as_raw();
        }
        if !request.is_for_device() {
            return MadOutcome::NotMine.as_raw();
        }
        // SAFETY: By the contract of this op `dev` is a device of `D`, alive during the call.
        let dev = unsafe { Device::<D>::from_raw(dev) };
        let mut bytes = [0; MAD_SIZE];
        let Ok(outcome) = D::Infiniband::process_mad(dev, &request, &mut bytes) else {
            // CAST: The flag is small.
            return bindings::ib_mad_result_IB_MAD_RESULT_FAILURE as c_int;
        };
        if outcome == MadOutcome::Reply {
            // SAFETY: By the contract of this op `response` is valid for writes of a datagram of
            // `MAD_SIZE` bytes.
            unsafe { response.cast::<[u8; MAD_SIZE]>().write(bytes) };
        }
        outcome.as_raw()
    }
}

impl<D: Operations> InfinibandPort<D> for Unsupported {
    const SUPPORTED: bool = false;

    fn query_gid(_dev: &Device<D>, _port: u32, _index: u16) -> Result<[u8; 16]> {
        Err(eopnotsupp())
    }

    fn modify_port(_dev: &Device<D>, _port: u32, _change: &PortChange) -> Result {
        Err(eopnotsupp())
    }

    fn set_node_description(_dev: &Device<D>, _text: &[u8; NODE_DESCRIPTION_SIZE]) -> Result {
        Err(eopnotsupp())
    }

    fn process_mad(
        _dev: &Device<D>,
        _request: &MadRequest,
        _response: &mut [u8; MAD_SIZE],
    ) -> Result<MadOutcome> {
        Err(eopnotsupp())
    }
}
