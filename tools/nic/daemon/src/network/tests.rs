// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Frames that leave by uplinks, with and without impairments.

mod infiniband;
mod sequences;

use super::*;
use crate::uplink::Batch;
use rustix::event::{eventfd, EventfdFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use verbena_protocol::Impairment;

type SentFrames = Arc<Mutex<Vec<Vec<u8>>>>;

/// An uplink that keeps the frames that it sends.
struct RecordingUplink {
    fd: OwnedFd,
    sent: SentFrames,
}

impl Uplink for RecordingUplink {
    fn send(&self, frames: &[&[u8]]) -> usize {
        let mut sent = self.sent.lock().unwrap();
        sent.extend(frames.iter().map(|frame| frame.to_vec()));
        frames.len()
    }

    fn receive(&self, _: &mut Batch) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn mtu(&self) -> usize {
        1500
    }
}

fn network(uplinks: usize) -> (Network, Arc<VmState>, Vec<SentFrames>) {
    let shared = Arc::new(VmState::new().unwrap());
    let sent: Vec<SentFrames> = (0..uplinks).map(|_| SentFrames::default()).collect();
    let wires = sent.iter().map(|sent| -> Box<dyn Uplink> {
        Box::new(RecordingUplink {
            fd: eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
            sent: sent.clone(),
        })
    });
    let network = Network::new(
        &shared.process,
        &[(shared.clone(), [2, 0, 0, 0, 0, 1])],
        wires.collect(),
    );
    (network, shared, sent)
}

/// A broadcast of the guest.
fn broadcast() -> Vec<u8> {
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 0x88, 0xb5], &[7; 50]].concat()
}

#[test]
fn an_impairment_applies_to_frames_of_the_guest_and_of_the_engine() {
    let (network, shared, sent) = network(2);
    let how = |loss_ppm| {
        Some(Impairment {
            loss_ppm,
            ..Impairment::default()
        })
    };
    let count = |n: usize| sent[n].lock().unwrap().len();
    network.from_guest(0, &broadcast());
    assert_eq!((count(0), count(1), network.next_release()), (1, 1, None));
    shared
        .process
        .impairments
        .set(Some(1), how(1_000_000))
        .unwrap();
    network.from_guest(0, &broadcast());
    assert_eq!(network.send(1, &[&[1; 60], &[2; 60]]), 2);
    network.release();
    assert_eq!((count(0), count(1)), (2, 1));
    let counters = shared.process.impairments.report().uplinks[1]
        .counters
        .unwrap();
    assert_eq!((counters.frames, counters.lost), (3, 3));
    // An impairment without loss holds frames until the engine releases them.
    shared.process.impairments.set(Some(1), how(0)).unwrap();
    network.from_guest(0, &broadcast());
    assert!(network.next_release().is_some() && count(1) == 1);
    network.release();
    assert_eq!(count(1), 2);
    let counted = shared.process.counters.uplink_sent.load(Ordering::Relaxed);
    assert_eq!(counted as usize, count(0) + count(1));
    shared.process.impairments.set(None, None).unwrap();
    network.release();
    network.from_guest(0, &broadcast());
    assert_eq!((count(0), count(1)), (4, 3));
}

#[test]
fn a_delayed_frame_wakes_the_engine() {
    let (network, shared, _) = network(1);
    let how = Impairment {
        delay_ns: 1,
        ..Impairment::default()
    };
    shared.process.impairments.set(None, Some(how)).unwrap();
    let sleeps = std::thread::spawn(move || {
        let nothing = std::iter::empty();
        shared
            .process
            .waker
            .park(Duration::from_secs(20), || false, nothing)
    });
    while !sleeps.is_finished() {
        network.send(0, &[&[0; 60]]);
        std::thread::yield_now();
    }
    assert!(sleeps.join().unwrap(), "the engine was not woken");
}

#[test]
fn a_frame_that_is_too_long_for_an_uplink_is_dropped_before_the_impairment() {
    let (network, shared, sent) = network(1);
    let how = Impairment {
        delay_ns: 1,
        ..Impairment::default()
    };
    shared.process.impairments.set(None, Some(how)).unwrap();
    assert_eq!(network.send(0, &[&[0; 1501]]), 1);
    assert_eq!(network.next_release(), None);
    assert!(sent[0].lock().unwrap().is_empty());
}

#[test]
fn the_switch_decides_once_for_frames_of_one_path_in_a_row() {
    use verbena_transport::packet::{PacketKind, Payload};
    use verbena_transport::{packet, Packet};
    // A frame between two stations. A number is the last byte of a station's MAC and IP address.
    let between = |from: u8, to: u8, psn: u32| {
        let path = Path {
            smac: [2, 0, 0, 0, 0, from],
            dmac: [2, 0, 0, 0, 0, to],
            sgid: verbena_transport::wire::ipv4_to_gid([10, 0, 0, from]),
            dgid: verbena_transport::wire::ipv4_to_gid([10, 0, 0, to]),
            udp_sport: 0xc000,
            ..Path::default()
        };
        let packet = Packet {
            transport: packet::Transport::Rc,
            kind: PacketKind::Send(packet::SendTail::None),
            first: true,
            last: true,
            solicited: false,
            ack_req: false,
            pkey: 0xffff,
            dst_qpn: 1,
            src_qpn: 2,
            psn,
            psns: 1,
            srqn: 0,
            marked: false,
            datagram: None,
            payload: Payload::None,
        };
        let mut bytes = vec![];
        let emitted: Result<(), ()> = frame::emit(&path, &packet, &mut bytes, |_| Ok(()));
        emitted.unwrap();
        bytes
    };
    let frame = |to, psn| between(1, to, psn);
    let (network, _shared, _sent) = network(2);
    let flooded = || network.counters().switch_flooded.load(Ordering::Relaxed);
    let refused = || network.counters().switch_refused.load(Ordering::Relaxed);
    let mut cache = ForwardingCache::default();
    let mut to = |frame: &[u8]| network.from_engine(0, frame, &mut cache);
    let everywhere = to(&frame(9, 0));
    assert_eq!(everywhere.wires().count(), 2);
    // The next frame of the path goes there too, without another decision.
    assert!(to(&frame(9, 7)) == everywhere && flooded() == 1);
    // After an answer of the station, new decisions send frames to its uplink alone.
    let answer = between(9, 1, 0);
    network.from_wire(1, &answer, &mut ForwardingCache::default());
    let mut cache = ForwardingCache::default();
    let mut to = |frame: &[u8]| network.from_engine(0, frame, &mut cache);
    let one = to(&frame(9, 8));
    assert_eq!(one.wires().collect::<Vec<_>>(), [1]);
    // A frame for another station, then one for the first station again.
    assert!(to(&frame(8, 9)) == everywhere && to(&frame(9, 10)) == one);
    // Each forged frame is refused and counted, although its path is the last one of another port.
    let forged = frame(9, 11);
    for n in 1..3 {
        assert!(network.from_wire(0, &forged, &mut cache).is_empty());
        assert_eq!(refused(), n);
    }
}

#[test]
fn a_gid_that_a_guest_may_not_use_is_refused_and_the_refusal_is_listed() {
    let process = Arc::new(ProcessState::new().unwrap());
    let vms = [1, 2].map(|n| {
        let shared = VmState::with_process(&process, Default::default());
        (Arc::new(shared), [2, 0, 0, 0, 0, n])
    });
    let network = Network::new(&process, &vms, vec![]);
    let entry = |mac, last| Entry {
        gid: verbena_transport::wire::ipv4_to_gid([10, 0, 0, last]),
        mac: [2, 0, 0, 0, 0, mac],
        vlan: None,
    };
    let refused = |vm: usize| {
        let all = vms[vm].0.refusals.all();
        all.iter().map(|one| one.describe()).collect::<Vec<_>>()
    };
    assert_eq!(network.claim(0, &entry(1, 1)), Ok(()));
    let in_use = Err(Syndrome::GidInUse);
    assert_eq!(network.claim(1, &entry(2, 1)), in_use);
    assert_eq!(network.claim(1, &entry(2, 1)), in_use);
    let not_allowed = Err(Syndrome::GidMacNotAllowed);
    assert_eq!(network.claim(1, &entry(9, 2)), not_allowed);
    assert_eq!(refused(0), [""; 0]);
    let [first, second] = refused(1).try_into().unwrap();
    assert!(first.contains("10.0.0.1 with MAC address 02:00:00:00:00:02: GidInUse"));
    assert!(second.contains("10.0.0.2 with MAC address 02:00:00:00:00:09: GidMacNotAllowed"));
    // The first guest clears the GID.
    network.set_addresses(0, &Addresses::default());
    assert_eq!(network.claim(1, &entry(2, 1)), Ok(()));
    assert_eq!(refused(1).len(), 1);
}
