// SPDX-License-Identifier: GPL-2.0

//! Performance management (specification, chapter 16.1): the counters of a port, for sysfs
//! (`/sys/class/infiniband/*/ports/*/counters`) and for requesters that send a datagram (MAD). Set
//! clears the counters that CounterSelect names, separately for PortCounters and
//! PortCountersExtended.
//!
//! C headers: [`include/rdma/ib_mad.h`](srctree/include/rdma/ib_mad.h),
//! [`include/rdma/ib_pma.h`](srctree/include/rdma/ib_pma.h)
//!
//! C: `process_mad` of `struct ib_device_ops`.

use crate::{
    bindings,
    device::{
        Device,
        Operations, //
    },
    ops::Adapter, //
};
use kernel::prelude::*;

/// Offset of the attribute in the data after a datagram's header, which is byte 64 of the datagram.
const ATTRIBUTE: usize = 40;
/// Length of the attribute in bytes.
const ATTRIBUTE_LEN: usize = 192;

// Attributes of the class, for which the C headers have constants only in network byte order.
const CLASS_PORT_INFO: u16 = 0x0001;
const PORT_COUNTERS: u16 = 0x0012;
const PORT_COUNTERS_EXTENDED: u16 = 0x001d;

/// ClassPortInfo: all ports can be selected, and PortCountersExtended is supported.
const CAPABILITIES: u16 = 1 << 8 | 1 << 9;
/// ClassPortInfo: a response takes up to 4.096 us * 2^18, about a second, the value of most
/// devices.
const RESPONSE_TIME: u32 = 18;

/// Value of PortSelect for all ports, whose sum is the counter of the only port.
const ALL_PORTS: u8 = 0xff;

/// Counters of a port with the units of PortCounters and PortCountersExtended. A counter that
/// exceeds its field is reported as the maximum of the field (16.1.3.5).
#[derive(Clone, Copy, Debug, Default)]
pub struct PortCounters {
    /// Data sent, in units of four bytes.
    pub xmit_data: u64,
    /// Data received, in units of four bytes.
    pub rcv_data: u64,
    /// Number of packets sent.
    pub xmit_packets: u64,
    /// Number of packets received.
    pub rcv_packets: u64,
    /// Number of packets sent that did not go to multicast groups.
    pub unicast_xmit_packets: u64,
    /// Number of packets received that did not go to multicast groups.
    pub unicast_rcv_packets: u64,
    /// Number of packets sent that went to multicast groups.
    pub multicast_xmit_packets: u64,
    /// Number of packets received that went to multicast groups.
    pub multicast_rcv_packets: u64,
    /// Number of times that the link went down.
    pub link_downed: u64,
    /// Number of packets received that had an error.
    pub rcv_errors: u64,
    /// Number of packets that were to be sent but were dropped.
    pub xmit_discards: u64,
}

/// A counter with its bit in CounterSelect.
type Selected = (u16, fn(&mut PortCounters) -> &mut u64);

/// Counters that PortCounters contains.
const BASIC: &[Selected] = &[
    (1 << 2, |c| &mut c.link_downed),
    (1 << 3, |c| &mut c.rcv_errors),
    (1 << 6, |c| &mut c.xmit_discards),
    (1 << 12, |c| &mut c.xmit_data),
    (1 << 13, |c| &mut c.rcv_data),
    (1 << 14, |c| &mut c.xmit_packets),
    (1 << 15, |c| &mut c.rcv_packets),
];

/// Counters that PortCountersExtended contains.
const EXTENDED: &[Selected] = &[
    (1 << 0, |c| &mut c.xmit_data),
    (1 << 1, |c| &mut c.rcv_data),
    (1 << 2, |c| &mut c.xmit_packets),
    (1 << 3, |c| &mut c.rcv_packets),
    (1 << 4, |c| &mut c.unicast_xmit_packets),
    (1 << 5, |c| &mut c.unicast_rcv_packets),
    (1 << 6, |c| &mut c.multicast_xmit_packets),
    (1 << 7, |c| &mut c.multicast_rcv_packets),
];

/// Values of the counters of a port when they were last cleared, for each attribute.
#[derive(Default)]
pub struct Cleared {
    basic: PortCounters,
    extended: PortCounters,
}

impl Cleared {
    fn of(&mut self, attribute: u16) -> (&mut PortCounters, &'static [Selected]) {
        match attribute {
            PORT_COUNTERS => (&mut self.basic, BASIC),
            _ => (&mut self.extended, EXTENDED),
        }
    }
}

fn be16(value: u64) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX).to_be()
}

fn be32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX).to_be()
}

impl PortCounters {
    /// Restarts the selected counters from their values of `now`.
    fn clear(&mut self, mut now: Self, counters: &[Selected], select: u16) {
        for (bit, counter) in counters {
            if select & bit != 0 {
                *counter(self) = *counter(&mut now);
            }
        }
    }

    /// Subtracts the values of `before` from the counters.
    fn since(&mut self, mut before: Self, counters: &[Selected]) {
        for (_, counter) in counters {
            let value = counter(self);
            *value = value.saturating_sub(*counter(&mut before));
        }
    }

    fn basic(&self, port: u8, select: u16) -> bindings::ib_pma_portcounters {
        bindings::ib_pma_portcounters {
            port_select: port,
            counter_select: select.to_be(),
            link_downed_counter: u8::try_from(self.link_downed).unwrap_or(u8::MAX),
            port_rcv_errors: be16(self.rcv_errors),
            port_xmit_discards: be16(self.xmit_discards),
            port_xmit_data: be32(self.xmit_data),
            port_rcv_data: be32(self.rcv_data),
            port_xmit_packets: be32(self.xmit_packets),
            port_rcv_packets: be32(self.rcv_packets),
            ..pin_init::zeroed()
        }
    }

    fn extended(&self, port: u8, select: u16) -> bindings::ib_pma_portcounters_ext {
        bindings::ib_pma_portcounters_ext {
            port_select: port,
            counter_select: select.to_be(),
            port_xmit_data: self.xmit_data.to_be(),
            port_rcv_data: self.rcv_data.to_be(),
            port_xmit_packets: self.xmit_packets.to_be(),
            port_rcv_packets: self.rcv_packets.to_be(),
            port_unicast_xmit_packets: self.unicast_xmit_packets.to_be(),
            port_unicast_rcv_packets: self.unicast_rcv_packets.to_be(),
            port_multicast_xmit_packets: self.multicast_xmit_packets.to_be(),
            port_multicast_rcv_packets: self.multicast_rcv_packets.to_be(),
            ..pin_init::zeroed()
        }
    }
}

fn class_port_info() -> bindings::ib_class_port_info {
    bindings::ib_class_port_info {
        base_version: 1,
        class_version: 1,
        capability_mask: CAPABILITIES.to_be(),
        cap_mask2_resp_time: RESPONSE_TIME.to_be(),
        ..pin_init::zeroed()
    }
}

impl<D: Operations> Adapter<D> {
    /// # Safety
    ///
    /// Only the core may call this op, with a device of `D`, a valid request, and a response to
    /// fill.
    pub(crate) unsafe extern "C" fn process_mad(
        dev: *mut bindings::ib_device,
        _flags: c_int,
        port: u32,
        _wc: *const bindings::ib_wc,
        _grh: *const bindings::ib_grh,
        request: *const bindings::ib_mad,
        response: *mut bindings::ib_mad,
        _size: *mut usize,
        _pkey_index: *mut u16,
    ) -> c_int {
        // CAST: The flags are small.
        const SUCCESS: c_int = bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS as c_int;
        const REPLY: c_int = bindings::ib_mad_result_IB_MAD_RESULT_REPLY as c_int;
        const FAILURE: c_int = bindings::ib_mad_result_IB_MAD_RESULT_FAILURE as c_int;

        // SAFETY: By the contract of this op `request` is a valid datagram of at least 256 bytes.
        // This takes a copy, so that a concurrent write to the datagram cannot change values after
        // they were checked.
        let mut mad = unsafe { request.read_volatile() };
        let header = &mut mad.mad_hdr;
        let is_ours = u32::from(header.mgmt_class) == bindings::IB_MGMT_CLASS_PERF_MGMT
            && matches!(
                u32::from(header.method),
                bindings::IB_MGMT_METHOD_GET | bindings::IB_MGMT_METHOD_SET
            );
        if !is_ours {
            return SUCCESS;
        }
        let asked = &mad.data[ATTRIBUTE..];
        let (select, counters) = (asked[1], u16::from_be_bytes([asked[2], asked[3]]));
        mad.data = [0; _];
        // SAFETY: By the contract of this op `dev` is a device of `D`, alive during the call.
        let dev = unsafe { Device::<D>::from_raw(dev) };
        let is_get = u32::from(header.method) == bindings::IB_MGMT_METHOD_GET;
        let is_port = u32::from(select) == port || select == ALL_PORTS;
        let mut tell = |attribute: &[u8]| {
            mad.data[ATTRIBUTE..][..attribute.len()].copy_from_slice(attribute);
        };
        let status = match u16::from_be(header.attr_id) {
            _ if header.class_version != 1 => bindings::IB_MGMT_MAD_STATUS_BAD_VERSION,
            CLASS_PORT_INFO if is_get => {
                tell(bytes_of(&class_port_info()));
                bindings::IB_MGMT_MAD_STATUS_SUCCESS
            }
            PORT_COUNTERS | PORT_COUNTERS_EXTENDED if !is_port => {
                bindings::IB_MGMT_MAD_STATUS_INVALID_ATTRIB_VALUE
            }
            attribute @ (PORT_COUNTERS | PORT_COUNTERS_EXTENDED) => {
                let Ok(mut now) = D::port_counters(dev, port) else {
                    return FAILURE;
                };
                let mut cleared = D::cleared_counters(dev, port).lock();
                let (before, fields) = cleared.of(attribute);
                if !is_get {
                    before.clear(now, fields, counters);
                }
                now.since(*before, fields);
                if attribute == PORT_COUNTERS {
                    tell(bytes_of(&now.basic(select, counters)));
                } else {
                    tell(bytes_of(&now.extended(select, counters)));
                }
                bindings::IB_MGMT_MAD_STATUS_SUCCESS
            }
            _ => bindings::IB_MGMT_MAD_STATUS_UNSUPPORTED_METHOD_ATTRIB,
        };
        // CAST: The values fit into their fields.
        header.method = bindings::IB_MGMT_METHOD_GET_RESP as u8;
        header.status = (status as u16).to_be();
        // SAFETY: By the contract of this op `response` is valid for writes of a datagram of at
        // least 256 bytes.
        unsafe { response.write(mad) };
        SUCCESS | REPLY
    }
}

/// An attribute with its layout in a datagram.
trait Attribute {}
impl Attribute for bindings::ib_class_port_info {}
impl Attribute for bindings::ib_pma_portcounters {}
impl Attribute for bindings::ib_pma_portcounters_ext {}

fn bytes_of<A: Attribute>(attribute: &A) -> &[u8] {
    const { assert!(size_of::<A>() <= ATTRIBUTE_LEN) };
    // SAFETY: The types that implement `Attribute` consist of integers without padding between
    // them, as they are sent in datagrams, so all bytes are initialized. The slice borrows
    // `attribute`.
    unsafe { core::slice::from_raw_parts((&raw const *attribute).cast(), size_of::<A>()) }
}
