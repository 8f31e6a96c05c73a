// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two devices of one process: packets go from one to the other by reference. A change of one
//! device has the same effect on the other as it would have over a wire.

use super::srq_ud::{datagram_on, datagram_wqe_by};
use super::*;
use crate::capture::{capture_tap, CaptureDirection};
use crate::device::crossing::Crossing;
use crate::memory::GuestMemory;
use crate::mock::{gid, SendWr};
use crate::Config;
use std::collections::VecDeque;
use verbena_abi::cmd::{DestroyMr, DestroyQp};
use verbena_abi::cqe::WcStatus::{
    self, LocProtErr, RemAccessErr, RetryExcErr, Success, WrFlushErr,
};
use verbena_abi::ctx::{AddressVector, QpState};
use verbena_abi::stats::Counter;
use verbena_abi::wqe::{self, WqeOpcode};
use verbena_transport::frame;

/// A device with a queue pair.
struct End {
    d: Driver,
    qp: QpHandle,
    cq: CqHandle,
}

/// Two devices whose queue pairs are connected.
struct Two {
    a: End,
    b: End,
}

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 0xa], [2, 0, 0, 0, 0, 0xb]];
const IPS: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 3]];

/// Returns the path to a device.
fn to(end: usize) -> AddressVector {
    AddressVector {
        dgid: gid(IPS[end]),
        dmac: MACS[end],
        ..Driver::path(0, 0)
    }
}

/// Delivers the packets that a device has sent to the other device. Returns their number.
fn hand(from: &mut End, to: &mut End) -> usize {
    let mut packets: VecDeque<_> = std::iter::from_fn(|| from.d.device.next_crossing()).collect();
    let count = packets.len();
    while !packets.is_empty() {
        deliver(from, to, &mut packets);
    }
    count
}

fn deliver(from: &End, to: &mut End, packets: &mut VecDeque<Crossing>) {
    let sender = from.d.device.side(&from.d.ram);
    let next = || packets.pop_front();
    to.d.device
        .receive_crossing(&to.d.ram, sender, to.d.now, next);
}

impl End {
    fn new(n: usize, neighbours: bool) -> Self {
        let mut d = Driver::with(Config {
            mac: MACS[n],
            neighbours,
            ..Config::default()
        });
        d.set_gid_of(0, IPS[n], MACS[n]);
        let cq = d.create_cq(6);
        let qp = d.create_qp(&cq, &cq);
        Self { d, qp, cq }
    }

    fn post(&mut self, wr: &SendWr) {
        self.d.post_send(&mut self.qp, wr);
        self.d.run();
    }

    fn done(&mut self) -> Vec<(u64, WcStatus)> {
        self.d.drain(&mut self.cq)
    }

    fn counter(&mut self, counter: Counter) -> u64 {
        self.d.device.stats()[counter as usize]
    }
}

impl Two {
    fn new() -> Self {
        let (mut a, mut b) = (End::new(0, true), End::new(1, true));
        // The mock drivers of both devices set 10.0.0.2 as GID 1, which only one device may have.
        b.d.set_gid(1, [10, 0, 0, 4]);
        let (qp_a, qp_b) = (a.qp.qpn, b.qp.qpn);
        for (me, peer, av) in [(&mut a, qp_b, to(1)), (&mut b, qp_a, to(0))] {
            me.d.to_init(me.qp.qpn).unwrap();
            me.d.to_rtr(me.qp.qpn, peer, av).unwrap();
            me.d.to_rts(me.qp.qpn).unwrap();
        }
        Self { a, b }
    }

    /// Runs both devices until no packet is left. Returns the number of packets from the first
    /// device to the second.
    fn run(&mut self) -> usize {
        let mut there = 0;
        loop {
            self.a.d.run();
            let sent = hand(&mut self.a, &mut self.b);
            self.b.d.run();
            there += sent;
            if hand(&mut self.b, &mut self.a) + sent == 0 {
                return there;
            }
        }
    }

    /// Does the same as [`Two::run`] while 2 s pass.
    fn settle(&mut self) {
        for _ in 0..2000 {
            self.run();
            for end in [&mut self.a, &mut self.b] {
                end.d.pass(1_000_000);
            }
        }
    }
}

/// Posts a WRITE from the first device to the second, of which no packet is delivered yet. Returns
/// the target address and the local key.
fn write(two: &mut Two, bytes: u32) -> (u64, u32) {
    let (from, lkey) = two.a.d.region(bytes, 1);
    let (at, rkey) = two.b.d.region(bytes, 2);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, bytes, lkey)]);
    two.a.post(&wr.to(at, rkey));
    (at, lkey)
}

/// Returns the first bytes of the pattern of a region.
fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    let mut d = Driver::new();
    let (at, _) = d.region(bytes as u32, seed);
    d.bytes(at, bytes)
}

#[test]
fn every_operation_works_between_two_devices() {
    let mut two = Two::new();
    // Both devices have memory at the same addresses with the same keys and other contents, so that
    // the test notices if the device mixes them up.
    let (here, lkey) = two.a.d.region(70_000, 1);
    let (there, rkey) = two.b.d.region(70_000, 2);
    assert_eq!((here, lkey), (there, rkey));
    let sges = [(here, 30_000, lkey)];
    two.b
        .d
        .post_recv(&mut two.b.qp, 21, &[(there, 70_000, rkey)]);
    two.a.post(&SendWr::new(WqeOpcode::Send, 1, &sges));
    assert!(two.run() < 30, "the packets of a message are joined");
    assert_eq!(
        (two.a.done(), two.b.done()),
        (vec![(1, Success)], vec![(21, Success)])
    );
    assert_eq!(two.b.d.bytes(there, 70_000)[..30_000], pattern(1, 30_000));

    let wr = SendWr::new(WqeOpcode::RdmaWriteImm, 2, &[(here + 1, 9_999, lkey)]);
    two.b.d.post_recv(&mut two.b.qp, 22, &[]);
    two.a.post(&wr.to(there + 40_000, rkey));
    two.run();
    assert_eq!(
        (two.a.done(), two.b.done()),
        (vec![(2, Success)], vec![(22, Success)])
    );
    let written = two.b.d.bytes(there + 40_000, 9_999);
    assert_eq!(written, pattern(1, 10_000)[1..]);

    let wr = SendWr::new(WqeOpcode::RdmaRead, 3, &[(here + 30_000, 40_000, lkey)]);
    two.a.post(&wr.to(there + 30_000, rkey));
    two.run();
    assert_eq!(two.a.done(), [(3, Success)]);
    let expected = two.b.d.bytes(there + 30_000, 40_000);
    assert_eq!(two.a.d.bytes(here + 30_000, 40_000), expected);

    two.b.d.ram.store64(there, 40).unwrap();
    let mut wqe = SendWr::new(WqeOpcode::FetchAdd, 4, &[(here, 8, lkey)])
        .to(there, rkey)
        .encode();
    wqe[2] = 1;
    wqe.copy_within(
        wqe::DATA_OFFSET..wqe::DATA_OFFSET + 16,
        wqe::DATA_OFFSET_ATOMIC,
    );
    wqe[wqe::DATA_OFFSET..wqe::DATA_OFFSET_ATOMIC].fill(0);
    wqe[wqe::DATA_OFFSET] = 2;
    two.a.d.post_raw(&mut two.a.qp, &wqe);
    two.a.d.run();
    two.run();
    assert_eq!(two.a.done(), [(4, Success)]);
    assert_eq!(two.b.d.ram.load64(there), Ok(42));
    assert_eq!(two.a.d.ram.load64(here), Ok(40));
    let gone = |end: &mut End| end.counter(Counter::RxNoQp) + end.counter(Counter::RxMalformed);
    assert_eq!((gone(&mut two.a), gone(&mut two.b)), (0, 0));
    assert!(two.a.d.device.next_frame().is_none());
}

#[test]
fn a_region_that_the_sender_destroys_meanwhile_is_the_senders_error() {
    let mut two = Two::new();
    let (at, lkey) = write(&mut two, 5000);
    two.a.d.must(&DestroyMr {
        id: lkey.into(),
        ..Default::default()
    });
    two.run();
    assert_eq!(two.a.done(), [(1, LocProtErr)]);
    assert_eq!(two.b.d.bytes(at, 5000), pattern(2, 5000));
    let state = two.b.d.query_qp(two.b.qp.qpn).attr.qp_state;
    assert_eq!(state, QpState::Rts as u8);
}

#[test]
fn memory_that_is_unmapped_meanwhile_is_not_read() {
    let mut two = Two::new();
    let (at, _) = write(&mut two, 5000);
    two.a.d.ram.hide(at & !0xfff, 8192);
    two.run();
    assert_eq!(two.a.done(), [(1, LocProtErr)]);
    assert_eq!(two.b.d.bytes(at, 5000), pattern(2, 5000));
}

#[test]
fn packets_of_a_destroyed_or_failed_queue_pair_are_lost() {
    for how in 0..3 {
        let mut two = Two::new();
        let (at, _) = write(&mut two, 5000);
        let packets = std::iter::from_fn(|| two.a.d.device.next_crossing());
        let mut packets: VecDeque<_> = packets.collect();
        assert!(!packets.is_empty());
        let qpn = two.a.qp.qpn;
        match how {
            0 => drop(two.a.d.must(&DestroyQp {
                id: qpn.into(),
                ..Default::default()
            })),
            1 => drop(two.a.d.move_to(qpn, QpState::Err).unwrap()),
            _ => two.a.d.device.reset(),
        }
        deliver(&two.a, &mut two.b, &mut packets);
        assert!(packets.is_empty());
        assert_eq!(two.b.d.bytes(at, 5000), pattern(2, 5000), "{how}");
    }
}

#[test]
fn a_message_posted_before_a_queue_pair_stops_is_delivered() {
    let mut two = Two::new();
    let qpn = two.a.qp.qpn;
    let (at, key) = two.a.d.region(5000, 1);
    two.b.d.region(5000, 2);
    let write = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 5000, key)]);
    two.a.d.post_send(&mut two.a.qp, &write.to(at, key));
    two.a
        .d
        .begin_cmd(4, &Driver::move_request(qpn, QpState::Err));
    two.a.d.device.run_slice(&two.a.d.ram, two.a.d.now);
    assert!(!two.a.d.is_answered(4), "its packets are not delivered yet");
    assert!(hand(&mut two.a, &mut two.b) != 0);
    two.run();
    assert!(two.a.d.is_answered(4));
    assert!(two.b.d.bytes(at, 5000) == pattern(1, 5000));
    assert_eq!(two.a.done(), [(1, WrFlushErr)]);
}

#[test]
fn a_refusal_of_the_receiver_reaches_the_sender() {
    let mut two = Two::new();
    let (from, lkey) = two.a.d.region(5000, 1);
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, 5000, lkey)]);
    two.a.post(&wr.to(from, 0x7711));
    two.run();
    assert_eq!(two.a.done(), [(1, RemAccessErr)]);
}

#[test]
fn a_read_of_a_region_that_is_destroyed_meanwhile_is_refused() {
    let mut two = Two::new();
    let (here, lkey) = two.a.d.region(20_000, 1);
    let (there, rkey) = two.b.d.region(20_000, 2);
    let wr = SendWr::new(WqeOpcode::RdmaRead, 1, &[(here, 20_000, lkey)]);
    two.a.post(&wr.to(there, rkey));
    hand(&mut two.a, &mut two.b);
    two.b.d.run();
    // The responses are sent and not delivered yet.
    two.b.d.must(&DestroyMr {
        id: rkey.into(),
        ..Default::default()
    });
    two.settle();
    assert_eq!(two.a.done(), [(1, RemAccessErr)]);
    assert_eq!(two.a.d.bytes(here, 20_000), pattern(1, 20_000));
}

#[test]
fn a_peer_that_does_not_answer_exceeds_the_retries() {
    let mut two = Two::new();
    write(&mut two, 5000);
    for _ in 0..10_000 {
        while two.a.d.device.next_crossing().is_some() {}
        two.a.d.pass(1_000_000);
    }
    assert_eq!(two.a.done(), [(1, RetryExcErr)]);
}

#[test]
fn lost_packets_are_retransmitted() {
    let mut two = Two::new();
    let (at, _) = write(&mut two, 200_000);
    let mut dice = Dice(7);
    for _ in 0..3000 {
        let packets = std::iter::from_fn(|| two.a.d.device.next_crossing());
        let mut packets: VecDeque<_> = packets.filter(|_| dice.roll(3) != 0).collect();
        while !packets.is_empty() {
            deliver(&two.a, &mut two.b, &mut packets);
        }
        two.b.d.run();
        hand(&mut two.b, &mut two.a);
        two.a.d.pass(100_000);
        two.b.d.pass(100_000);
    }
    assert_eq!(two.a.done(), [(1, Success)]);
    assert_eq!(two.b.d.bytes(at, 200_000), pattern(1, 200_000));
}

#[test]
fn a_device_that_is_down_or_has_another_gid_receives_nothing() {
    for how in 0..2 {
        let mut two = Two::new();
        let (at, _) = write(&mut two, 5000);
        match how {
            0 => two.b.d.set_gid(0, [10, 0, 0, 9]),
            _ => two.b.d.set_port(false),
        }
        hand(&mut two.a, &mut two.b);
        assert_eq!(two.b.d.bytes(at, 5000), pattern(2, 5000), "{how}");
    }
}

#[test]
fn packets_over_the_ports_mtu_do_not_cross() {
    let mut two = Two::new();
    two.a.d.must(&verbena_abi::cmd::SetPort {
        up: 1,
        mtu: 2,
        port: 1,
        ..Default::default()
    });
    write(&mut two, 4196);
    assert_eq!(
        hand(&mut two.a, &mut two.b),
        1,
        "all but the last are too long"
    );
    assert_eq!(two.a.counter(Counter::TxOverMtu), 4);
}

#[test]
fn a_datagram_over_the_ports_mtu_does_not_cross() {
    let mut two = Two::new();
    let mut qp = datagram_on(&mut two.a.d, &two.a.cq);
    let (from, lkey) = two.a.d.region(1024, 1);
    let av = AddressVector {
        dest_qpn: two.b.qp.qpn.into(),
        pdn: 7.into(),
        ..to(1)
    };
    let wqe = datagram_wqe_by(&SendWr::new(WqeOpcode::Send, 1, &[(from, 1024, lkey)]), av);
    for (mtu, crosses) in [(5, 1), (2, 0)] {
        two.a.d.must(&verbena_abi::cmd::SetPort {
            up: 1,
            mtu,
            port: 1,
            ..Default::default()
        });
        two.a.d.post_raw(&mut qp, &wqe);
        two.a.d.run();
        assert_eq!(hand(&mut two.a, &mut two.b), crosses, "mtu {mtu}");
    }
    assert_eq!(two.a.counter(Counter::TxOverMtu), 1);
}

#[test]
fn packets_to_other_machines_become_the_usual_frames() {
    let frames = |neighbours| {
        let mut end = End::new(0, neighbours);
        let qpn = end.qp.qpn;
        end.d.to_init(qpn).unwrap();
        end.d.to_rtr(qpn, 77, to(1)).unwrap();
        end.d.to_rts(qpn).unwrap();
        let (from, lkey) = end.d.region(5000, 1);
        let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(from, 5000, lkey)]);
        end.post(&wr.to(0x1000, 5));
        while let Some(packet) = end.d.device.next_crossing() {
            assert_eq!(packet.path().unwrap().dmac, MACS[1]);
            end.d.device.make_frames(&end.d.ram, packet);
        }
        let frames = std::iter::from_fn(|| end.d.device.next_frame());
        frames.map(|frame| frame.to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(frames(true).len(), 5);
    assert_eq!(frames(true), frames(false));
}

#[test]
fn the_taps_of_both_ports_see_the_packets() {
    let mut two = Two::new();
    let watches = [&mut two.a, &mut two.b].map(|end| {
        let (to, watch) = capture_tap(1000, 1 << 20);
        assert!(end.d.device.attach_capture(to));
        watch
    });
    let (at, _) = write(&mut two, 5000);
    while let Some(packet) = two.a.d.device.next_crossing() {
        two.a.d.device.show_crossing(&two.a.d.ram, &packet);
        let mut packets = VecDeque::from([packet]);
        deliver(&two.a, &mut two.b, &mut packets);
    }
    let [sent, received] = watches.map(|watch| {
        let seen = std::iter::from_fn(|| watch.try_next());
        seen.collect::<Vec<_>>()
    });
    assert_eq!((sent.len(), received.len()), (5, 5));
    for (sent, received) in sent.iter().zip(&received) {
        assert_eq!(
            (sent.direction, received.direction),
            (CaptureDirection::Sent, CaptureDirection::Received)
        );
        assert_eq!(sent.frame, received.frame);
        assert!(frame::parse(&sent.frame).is_ok());
        let qpns = [Some(two.a.qp.qpn), Some(two.b.qp.qpn)];
        assert_eq!([received.src_qpn, received.dst_qpn], qpns);
    }
    assert_eq!(two.b.d.bytes(at, 5000), pattern(1, 5000));
}
