// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Networks of two processes whose InfiniBand subnets are joined by UNIX sockets.

use super::*;
use crate::bound_sockets::dir::Dir;
use crate::bound_sockets::BoundSockets;
use crate::subnet::tests::directed;
use crate::subnet::{default_topology, Subnet};
use crate::uplink::unix::Unix;
use verbena_fabric::mad::attribute::NodeInfo;
use verbena_fabric::mad::{attribute_id, method, Fields, Mad};
use verbena_fabric::Topology;

/// A process with one guest.
struct Process {
    network: Network,
    shared: Arc<VmState>,
    guid: u64,
    sockets: BoundSockets,
}

impl Process {
    /// Starts a process whose guest's MAC address ends with `number`, and whose uplink joins two
    /// sockets of a directory.
    fn start(dir: &Dir, number: u8, [own, peer]: [&str; 2]) -> Self {
        let mac = [0x52, 0x54, 0, 0, 0, number];
        let guid = u64::from_be_bytes(verbena_device::config::node_guid(mac));
        let topology = Topology::parse(&default_topology(&[guid])).unwrap();
        let mut subnet = Subnet::new(&topology, 1).unwrap();
        subnet.add_uplinks(&topology, 1, mac).unwrap();
        let shared = Arc::new(VmState::new().unwrap());
        let sockets = BoundSockets::default();
        let uplink = Unix::open(&sockets, &dir.0.join(own), &dir.0.join(peer)).unwrap();
        let vms = [(shared.clone(), mac)];
        let network = Network::new(&shared.process, &vms, vec![Box::new(uplink)]);
        Self {
            network: network.with_subnet(Some(subnet)),
            shared,
            guid,
            sockets,
        }
    }

    /// Takes the frames of the uplink. Returns true if there were any, and the packets for the
    /// guest among them.
    fn receive(&self, batch: &mut Batch) -> (bool, Vec<Vec<u8>>) {
        let mut packets = vec![];
        let mut any = false;
        for (n, wire) in self.network.wires().enumerate() {
            wire.receive(batch);
            for frame in batch.frames().filter(|frame| !frame.is_empty()) {
                any = true;
                let (to, packet) = self.network.from_infiniband_wire(n, frame).unwrap();
                packets.extend(to.engines().map(|_| packet.to_vec()));
            }
        }
        (any, packets)
    }
}

/// Exchanges frames until there are no more. Returns the packets of data for the guests.
fn exchange(processes: [&Process; 2]) -> Vec<Vec<u8>> {
    let mut batch = Batch::default();
    let mut packets = vec![];
    for _ in 0..1000 {
        let both = processes.map(|process| process.receive(&mut batch));
        let is_over = both.iter().all(|(any, _)| !any);
        packets.extend(both.into_iter().flat_map(|(_, packets)| packets));
        if is_over {
            return packets;
        }
    }
    panic!("the frames have no end");
}

fn maintain(processes: [&Process; 2]) {
    for _ in 0..2 {
        for process in processes {
            process.network.wires().for_each(Uplink::maintain);
            process.network.maintain_subnet();
        }
        exchange(processes);
    }
}

/// Returns the GUID of the node at the end of a directed route from the first process.
fn node_guid(processes: [&Process; 2], ports: &[u8]) -> Option<u64> {
    let [first, _] = processes;
    let smp = directed(method::GET, attribute_id::NODE_INFO, ports, None);
    for (uplink, frame) in first.network.from_infiniband_port(0, &smp) {
        assert_eq!(first.network.send(uplink, &[&frame]), 1);
    }
    exchange(processes);
    let mail = first.shared.take_mail(usize::MAX, false);
    let response = frame::parse_infiniband(mail.frames.first()?).ok()?.packet;
    let verbena_transport::packet::Payload::Bytes { bytes, offset, .. } = response.payload else {
        return None;
    };
    let mad = Mad(bytes[offset as usize..][..256].try_into().unwrap());
    Some(NodeInfo(mad.data()).get(NodeInfo::NODE_GUID))
}

const TO_PEER: [u8; 3] = [1, 36, 1];

#[test]
fn two_processes_are_one_subnet_and_an_impairment_applies_to_the_link() {
    let dir = Dir::new("network-infiniband");
    let [a, b] = [
        Process::start(&dir, 1, ["a", "b"]),
        Process::start(&dir, 2, ["b", "a"]),
    ];
    let both = [&a, &b];
    maintain(both);
    assert_eq!(node_guid(both, &TO_PEER), Some(b.guid));
    let lossy = Impairment {
        loss_ppm: 1_000_000,
        ..Impairment::default()
    };
    let impairments = &b.shared.process.impairments;
    impairments.set(None, Some(lossy)).unwrap();
    assert_eq!(node_guid(both, &TO_PEER), None);
    impairments.set(None, None).unwrap();
    b.network.release();
    assert_eq!(node_guid(both, &TO_PEER), Some(b.guid));
    // Another process comes in the place of the second one.
    b.sockets.remove_all();
    drop(b);
    let c = Process::start(&dir, 2, ["b", "a"]);
    let both = [&a, &c];
    maintain(both);
    maintain(both);
    assert_eq!(node_guid(both, &TO_PEER), Some(c.guid));
    a.sockets.remove_all();
    c.sockets.remove_all();
}

#[test]
fn a_guest_sends_no_frames_of_the_link_over_its_ethernet() {
    let dir = Dir::new("network-infiniband-forged");
    let [a, b] = [
        Process::start(&dir, 1, ["a", "b"]),
        Process::start(&dir, 2, ["b", "a"]),
    ];
    maintain([&a, &b]);
    let sent = |frame: &[u8]| {
        a.network.from_guest(0, frame);
        let mut batch = Batch::default();
        b.network.wires().for_each(|wire| wire.receive(&mut batch));
        batch.frames().filter(|frame| !frame.is_empty()).count()
    };
    let frame = |contents: &[u8]| {
        let addresses = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x52, 0x54, 0, 0, 0, 1];
        [&addresses[..], contents, &[0; 50]].concat()
    };
    let refused = || a.network.counters().subnet_refused.load(Ordering::Relaxed);
    assert_eq!((sent(&frame(&[8, 6])), refused()), (1, 0));
    assert_eq!((sent(&frame(&[0x88, 0xb5])), refused()), (0, 1));
    let tagged = frame(&[0x81, 0, 0, 0, 0x88, 0xb5]);
    assert_eq!((sent(&tagged), refused()), (0, 2));
    a.sockets.remove_all();
    b.sockets.remove_all();
}
