// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The bytes of packets of guests, from the LRH to the VCRC, on their way through the subnet of the
//! NIC's process.

use crate::subnet::{configuration, lid, Key, GROUP};
use std::time::Duration;
use verbena_device::{AgentReply, AgentRequest, InfiniBandPort};
use verbena_fabric::mad::{attribute_id, method, Fields, Mad, PERMISSIVE_LID};
use verbena_fabric::{Datagram, Topology};
use verbena_lab_transport::fuzz::FuzzInput;
use verbena_nic::subnet::{default_topology, emit_datagram, parse_datagram, Delivery, Subnet};
use verbena_transport::wire::bth::MULTICAST_QPN;
use verbena_transport::wire::lrh::NextHeader;
use verbena_transport::wire::{icrc, vcrc};

/// Guests of the subnet. The last one must not manage it.
const GUESTS: u8 = 3;
const FORBIDDEN: u8 = GUESTS - 1;
/// Most packets that come of one: a response, a packet for each guest, and five traps of each
/// managed port.
const MOST_PACKETS: usize = 24;

/// Bits of the byte that selects the shape of a packet.
mod shape {
    /// The packet consists of arbitrary bytes.
    pub const ANY: u8 = 1 << 0;
    /// The packet has a GRH.
    pub const GRH: u8 = 1 << 1;
    /// Some bytes of the packet are changed.
    pub const SPOIL: u8 = 1 << 2;
    /// The checksums are right nevertheless.
    pub const SUM: u8 = 1 << 3;
    /// The end of the packet is missing.
    pub const CUT: u8 = 1 << 4;
}

/// The subnet during a run.
pub struct Packets {
    subnet: Subnet,
    now: Duration,
}

impl Packets {
    /// Returns a subnet with active ports, which the first guest has configured.
    pub fn new() -> Self {
        let guids: Vec<u64> = (1..=GUESTS).map(|n| u64::from(n) << 8).collect();
        let topology = Topology::parse(&default_topology(&guids)).expect("a topology");
        let mut subnet = Subnet::new(&topology, GUESTS.into()).expect("a subnet");
        subnet.forbid_management(FORBIDDEN);
        let adapters: Vec<usize> = topology.adapters().collect();
        for mad in configuration(&topology, adapters[0], &adapters, &Key::default()) {
            if mad.get(Mad::HOP_COUNT) == 0 {
                let request = AgentRequest::Mad {
                    mad: Box::new(mad.0),
                    checks_m_key: true,
                };
                let reply = subnet.answer(0, &request, Duration::ZERO);
                assert!(matches!(reply, AgentReply::Response(_)));
            } else {
                let smp = Datagram::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad);
                subnet.send(0, &emit_datagram(&smp), Duration::ZERO);
            }
        }
        while subnet.next_delivery().is_some() {}
        let now = Duration::from_secs(1);
        Self { subnet, now }
    }

    /// Sends the next packet of the input.
    pub fn step(&mut self, input: &mut FuzzInput<'_>) {
        // One of the VMs does not exist.
        let vm = input.u8() % (GUESTS + 1);
        let how = input.u8();
        let mut packet = match how & shape::ANY {
            0 => packet(input, how),
            _ => take(input),
        };
        spoil(input, how, &mut packet);
        self.now += Duration::from_millis(u64::from(how >> 6) * 40);
        // Traps that are sent again.
        self.subnet.poll(self.now);
        while self.subnet.next_delivery().is_some() {}
        let before = self.ports();
        self.subnet.send(vm, &packet, self.now);
        let deliveries: Vec<_> = std::iter::from_fn(|| self.subnet.next_delivery()).collect();
        let may_change = vm < FORBIDDEN;
        assert!(
            may_change || self.ports() == before,
            "guest {vm} changes ports"
        );
        let packets = deliveries
            .iter()
            .filter_map(|(to, delivery)| match delivery {
                Delivery::Packet(packet) => Some((*to, packet)),
                Delivery::Change(_) => {
                    assert!(may_change, "guest {vm} changes ports");
                    None
                }
            });
        let mut count = 0;
        for (to, delivered) in packets {
            count += 1;
            check(vm, &packet, to, delivered);
        }
        assert!(count <= MOST_PACKETS, "{count} packets of one");
        self.subnet.poll(self.now);
        assert!(self.subnet.next_delivery().is_none(), "a trap is late");
    }

    fn ports(&self) -> Vec<Option<InfiniBandPort>> {
        (0..GUESTS).map(|vm| self.subnet.port(vm)).collect()
    }
}

/// Checks a packet that a guest receives after guest `from` has sent one.
fn check(from: u8, sent: &[u8], to: u8, delivered: &[u8]) {
    assert!(to < GUESTS && from < GUESTS);
    // An agent answers the queue pair of the request, which may be any.
    let is_management = |d: &Datagram| d.destination_qp <= 1 || delivered != sent;
    let Some(datagram) = parse_datagram(delivered).filter(is_management) else {
        assert_eq!(delivered, sent, "data has changed on its way");
        return;
    };
    assert_eq!(emit_datagram(&datagram), delivered);
    let is_trap = datagram.mad.get(Mad::METHOD) == method::TRAP;
    let cause = parse_datagram(sent);
    // A guest that must not manage the subnet sends no SMPs.
    let cause = cause.filter(|cause| from != FORBIDDEN || !cause.mad.is_smp());
    assert!(is_trap || cause.is_some(), "{datagram:?} has no cause");
}

/// Takes arbitrary bytes.
fn take(input: &mut FuzzInput<'_>) -> Vec<u8> {
    let length = usize::from(input.u8()).min(input.rest().len());
    (0..length).map(|_| input.u8()).collect()
}

/// Returns a MAD with a few fields of the input.
fn mad(input: &mut FuzzInput<'_>) -> Mad {
    let class = input.pick(&[0x81, 0x81, 1, 4, 3]);
    let method = input.pick(&[
        method::GET,
        method::SET,
        method::GET_RESPONSE,
        method::TRAP_REPRESS,
    ]);
    let attributes = [
        attribute_id::NODE_INFO,
        attribute_id::PORT_INFO,
        attribute_id::SWITCH_INFO,
        attribute_id::LINEAR_FORWARDING_TABLE,
        attribute_id::PORT_COUNTERS,
        attribute_id::SM_INFO,
    ];
    let mut mad = Mad::smp(class, method, input.pick(&attributes), input.u8().into());
    mad.set(Mad::TRANSACTION_ID, input.u8().into());
    let route = [1, 1 + input.u8() % GUESTS];
    mad.set_initial_path(&route[..1 + usize::from(input.u8() & 1)]);
    mad.set(Mad::HOP_POINTER, 1);
    let fill = [input.u8(), input.u8()];
    for (byte, value) in mad.0[64..128].iter_mut().zip(fill.iter().cycle()) {
        *byte = *value;
    }
    mad
}

/// Returns a valid packet: a datagram to QP0 or QP1, or data.
fn packet(input: &mut FuzzInput<'_>, how: u8) -> Vec<u8> {
    let mad = mad(input);
    let qpn = input.pick(&[0, 0, 0, 1, 1, 5, MULTICAST_QPN]);
    let lids = [
        PERMISSIVE_LID,
        PERMISSIVE_LID,
        lid(0),
        lid(1),
        lid(2),
        lid(3),
        GROUP,
        0,
    ];
    let (slid, dlid) = (input.pick(&lids), input.pick(&lids));
    let has_grh = how & shape::GRH != 0 || qpn == MULTICAST_QPN;
    emit_datagram(&Datagram {
        source_lid: slid,
        destination_lid: dlid,
        sl: input.u8() & 15,
        p_key: input.pick(&[0xffff, 0x7fff, 0x8001]),
        source_qp: input.pick(&[0, 0, 1, 5]),
        destination_qp: qpn,
        q_key: input.pick(&[0x8001_0000, 0]),
        grh: has_grh.then_some([0; 40]),
        mad: Box::new(mad),
    })
}

/// Changes bytes of a packet, cuts it, and corrects its checksums, as the shape says.
fn spoil(input: &mut FuzzInput<'_>, how: u8, packet: &mut Vec<u8>) {
    if how & shape::SPOIL != 0 {
        for _ in 0..1 + input.u8() % 3 {
            let at = usize::from(input.u16() % 320);
            if let Some(byte) = packet.get_mut(at) {
                *byte = input.u8();
            }
        }
    }
    if how & shape::CUT != 0 {
        packet.truncate(usize::from(input.u16() % 320));
    }
    let ends = (
        packet.len().checked_sub(vcrc::LEN + icrc::LEN),
        packet.get(1),
    );
    if let (true, (Some(end), Some(second))) = (how & shape::SUM != 0, ends) {
        let next_header = match second & 3 {
            3 => NextHeader::Grh,
            _ => NextHeader::Bth,
        };
        let crc = icrc::compute_infiniband(next_header, &packet[..end]);
        packet[end..end + icrc::LEN].copy_from_slice(&crc);
        let crc = vcrc::compute(&packet[..end + icrc::LEN]);
        packet[end + icrc::LEN..].copy_from_slice(&crc);
    }
}
