// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets between the guests of one process, by reference and as bytes: the effects are the same.

use super::*;
use verbena_abi::cmd::LinkLayer;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::AddressVector;
use verbena_abi::wqe::WqeOpcode;
use verbena_device::memory::GuestMemory;
use verbena_device::mock::{CqHandle, Driver, QpHandle, SendWr};
use verbena_device::Config;
use verbena_fabric::mad::attribute::SwitchInfo;
use verbena_fabric::mad::notice::Notice;
use verbena_fabric::mad::performance::PortCounters;

/// Length of a message of several packets, of which the last has another length.
const LENGTH: u32 = 10_001;

/// A guest's device with a queue pair.
struct End {
    d: Driver,
    cq: CqHandle,
    qp: QpHandle,
}

impl End {
    fn new(subnet: &Subnet, vm: u8, neighbours: bool) -> Self {
        let mut d = Driver::with(Config {
            link_layer: LinkLayer::InfiniBand,
            neighbours,
            ..Config::default()
        });
        d.device.configure_port(subnet.port(vm).unwrap());
        let cq = d.create_cq(6);
        let qp = d.create_qp(&cq, &cq);
        Self { d, cq, qp }
    }

    fn connect(&mut self, peer: u32, dlid: u16) {
        let av = AddressVector {
            dlid: dlid.into(),
            port_num: 1,
            ..AddressVector::default()
        };
        self.d.to_init(self.qp.qpn).unwrap();
        self.d.to_rtr(self.qp.qpn, peer, av).unwrap();
        self.d.to_rts(self.qp.qpn).unwrap();
    }
}

/// A subnet of two guests with the LIDs 1 and 2, whose ports are active.
struct Two {
    subnet: Subnet,
    ends: [End; 2],
    /// Number of packets that went by reference.
    by_reference: usize,
}

impl Two {
    fn new(neighbours: bool) -> Self {
        let mut subnet = active();
        let mut ends = [0, 1].map(|vm| End::new(&subnet, vm, neighbours));
        let qpns = ends.each_ref().map(|end| end.qp.qpn);
        ends[0].connect(qpns[1], 2);
        ends[1].connect(qpns[0], 1);
        while subnet.next_delivery().is_some() {}
        Self {
            subnet,
            ends,
            by_reference: 0,
        }
    }

    /// Runs both devices until no packet is left.
    fn run(&mut self) {
        loop {
            let mut any = false;
            for from in [0, 1] {
                self.ends[from].d.run();
                any |= self.pass(from);
            }
            if !any {
                return;
            }
        }
    }

    /// Passes on the packets of a device, as the engine does. Returns true if there were any.
    fn pass(&mut self, from: usize) -> bool {
        let (one, other) = self.ends.split_at_mut(1);
        let (from_end, to_end) = match from {
            0 => (&mut one[0], &mut other[0]),
            _ => (&mut other[0], &mut one[0]),
        };
        let mut crossings = VecDeque::new();
        let mut any = false;
        while let Some(packet) = from_end.d.device.next_crossing() {
            any = true;
            match self.subnet.hand_over(from as u8, &packet) {
                HandOver::Device(to) => {
                    assert_eq!(usize::from(to), 1 - from);
                    crossings.push_back(packet);
                }
                HandOver::Frames => from_end.d.device.make_frames(&from_end.d.ram, packet),
                HandOver::Lost => {}
            }
        }
        self.by_reference += crossings.len();
        while !crossings.is_empty() {
            let sender = from_end.d.device.side(&from_end.d.ram);
            let next = || crossings.pop_front();
            let now = to_end.d.now;
            let to = &mut to_end.d;
            to.device.receive_crossing(&to.ram, sender, now, next);
        }
        while let Some(frame) = from_end.d.device.next_frame() {
            any = true;
            self.subnet.send(from as u8, &frame, NOW);
        }
        while let Some((vm, delivery)) = self.subnet.next_delivery() {
            if let Delivery::Packet(packet) = delivery {
                let to = match usize::from(vm) == from {
                    true => &mut from_end.d,
                    false => &mut to_end.d,
                };
                let packets = std::iter::once(&packet[..]);
                to.device.receive_frames(&to.ram, packets, to.now);
            }
        }
        any
    }

    /// Writes a message to the memory of the second guest. Returns the completions and the message.
    fn write(&mut self) -> (Vec<(u64, WcStatus)>, Vec<u8>) {
        let [a, b] = &mut self.ends;
        let (from, lkey) = a.d.region(LENGTH, 1);
        let (at, rkey) = b.d.region(LENGTH, 2);
        let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, LENGTH, lkey)]);
        a.d.post_send(&mut a.qp, &wr.to(at, rkey));
        self.run();
        let [a, b] = &mut self.ends;
        let mut bytes = vec![0; LENGTH as usize];
        b.d.ram.read(at, &mut bytes).unwrap();
        (a.d.drain(&mut a.cq), bytes)
    }

    /// Returns the counters of the ports of both guests and of the switch.
    fn counters(&mut self) -> Vec<[u64; 4]> {
        let mut all = vec![];
        for node in self.subnet.fabric.nodes() {
            for port in 1..=node.number_of_ports().min(2) {
                let basic = node.port(port).map(|port| *port.counters().basic());
                let field = |field| basic.map_or(0, |basic| basic.get(field));
                all.push([
                    field(PortCounters::PORT_XMIT_DATA),
                    field(PortCounters::PORT_RCV_DATA),
                    field(PortCounters::PORT_XMIT_PKTS),
                    field(PortCounters::PORT_RCV_PKTS),
                ]);
            }
        }
        all
    }
}

/// Returns a subnet in which guest n, counted from 0, has the LID n + 1 and an active port.
fn active() -> Subnet {
    let mut subnet = subnet(2);
    let mut set = |attribute, modifier, ports: &[u8], data| {
        let smp = directed_to(method::SET, attribute, modifier, ports, Some(data));
        subnet.send(0, &smp, NOW);
    };
    let info = SwitchInfo::default().with(SwitchInfo::LINEAR_FDB_TOP, 2);
    set(attribute_id::SWITCH_INFO, 0, &[1], info.0);
    let mut block = [255; SMP_DATA_LEN];
    block[1..3].copy_from_slice(&[1, 2]);
    set(attribute_id::LINEAR_FORWARDING_TABLE, 0, &[1], block);
    for state in [0, port_state::ARMED, port_state::ACTIVE] {
        for port in [1u8, 2] {
            for (ports, modifier, lid) in [(&[1, port][..], 1, port), (&[1], port, 0)] {
                let id = match lid {
                    0 => PortId { node: 0, port },
                    _ => subnet.port_id(port - 1).unwrap(),
                };
                let mut info = subnet.fabric.port_info(id).unwrap();
                info.set(PortInfo::LID, lid.into());
                info.set(PortInfo::MASTER_SM_LID, 1);
                info.set(PortInfo::PORT_STATE, state);
                info.set(PortInfo::PORT_PHYSICAL_STATE, 0);
                info.set(PortInfo::LINK_SPEED_ENABLED, 0);
                info.set(PortInfo::LINK_WIDTH_ENABLED, 0);
                let modifier = u32::from(modifier);
                let attribute = attribute_id::PORT_INFO;
                let smp = directed_to(method::SET, attribute, modifier, ports, Some(info.0));
                subnet.send(0, &smp, NOW);
            }
        }
    }
    for vm in [0, 1] {
        let port = subnet.port(vm).unwrap().attributes;
        assert_eq!(
            (port.state, port.lid.get()),
            (port_state::ACTIVE, u32::from(vm) + 1)
        );
    }
    subnet
}

#[test]
fn a_message_by_reference_has_the_effects_of_one_in_bytes() {
    let [reference, bytes] = [true, false].map(|neighbours| {
        let mut two = Two::new(neighbours);
        let result = two.write();
        assert_eq!(two.by_reference > 0, neighbours);
        (result, two.counters())
    });
    let (completions, written) = &reference.0;
    assert_eq!(*completions, [(1, WcStatus::Success)]);
    assert!(written.iter().any(|byte| *byte != 0));
    assert_eq!(reference, bytes);
}

#[test]
fn violations_of_a_message_by_reference_are_those_of_one_in_bytes() {
    let [reference, bytes] = [true, false].map(|neighbours| {
        let mut two = Two::new(neighbours);
        let mut sender = two.subnet.port(0).unwrap();
        sender.pkeys = vec![0x8001];
        two.ends[0].d.device.configure_port(sender);
        two.write();
        assert_eq!(two.by_reference > 0, neighbours);
        let violations = two.ends[1].d.device.take_key_violations();
        (violations.collect::<Vec<_>>(), two.subnet)
    });
    assert_eq!(reference.0, bytes.0);
    for (violations, mut subnet) in [reference, bytes] {
        for violations in &violations {
            subnet.report_key_violations(1, violations, NOW);
        }
        let port = subnet.port(1).unwrap().attributes;
        let counters = (port.bad_pkey_cntr.get(), port.qkey_viol_cntr.get());
        assert_eq!(counters, (LENGTH.div_ceil(1024), 0));
        let all = deliveries(&mut subnet);
        let [(0, Delivery::Packet(packet)), (1, Delivery::Change(events))] = &all[..] else {
            panic!("{all:?}")
        };
        assert_eq!(*events, []);
        let trap = parse_datagram(packet).unwrap();
        assert_eq!(trap.mad.get(Mad::METHOD), method::TRAP);
        let notice = Notice(trap.mad.data());
        let number = notice.get(Notice::TRAP_NUMBER);
        assert_eq!((number, notice.get(Notice::KEY)), (257, 0x8001));
        let lids = (notice.get(Notice::LIDADDR1), notice.get(Notice::LIDADDR2));
        assert_eq!(lids, (1, 2));
    }
}

#[test]
fn a_route_that_ends_elsewhere_is_not_by_reference() {
    let mut two = Two::new(true);
    // The table of the switch has no port for LID 2 any more.
    let smp = directed_to(
        method::SET,
        attribute_id::LINEAR_FORWARDING_TABLE,
        0,
        &[1],
        Some([255; SMP_DATA_LEN]),
    );
    two.subnet.send(0, &smp, NOW);
    while two.subnet.next_delivery().is_some() {}
    let (completions, _) = two.write();
    assert_eq!((completions, two.by_reference), (vec![], 0));
}
