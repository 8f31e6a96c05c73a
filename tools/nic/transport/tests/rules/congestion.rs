// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Congestion control over a wire (annex A17.9). A responder answers packets that routers have
//! marked by CNPs. A requester that receives CNPs, or whose round trips become longer, has fewer
//! packets in flight.

use super::answered::{ack, answer, numbers, requester, requester_by};
use super::by_hand::{answers, exchange, put, request, responder, responder_by};
use verbena_lab_transport::{LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::packet::{Packet, PacketKind, Reth};
use verbena_transport::qp::cnp::CNP_INTERVAL_NS;
use verbena_transport::qp::QpState;

const WINDOW: u32 = 16;

fn marked(packet: Packet) -> Packet {
    Packet {
        marked: true,
        ..packet
    }
}

fn cnps(packets: &[Packet]) -> usize {
    packets.iter().filter(|p| p.kind == PacketKind::Cnp).count()
}

/// Returns a WRITE of no bytes.
fn write(n: u32) -> Packet {
    let reth = Some(Reth {
        addr: 0,
        rkey: 0,
        length: 0,
    });
    request(PacketKind::Write { reth, imm: None }, n, &[])
}

#[test]
fn a_marked_request_is_answered_by_a_cnp() {
    let mut p = responder(PairSetup::default());
    let got = exchange(&mut p, marked(write(0)));
    assert_eq!(cnps(&got), 1);
    let cnp = got.iter().find(|p| p.kind == PacketKind::Cnp).unwrap();
    assert_eq!((cnp.psn, cnp.psns, cnp.dst_qpn), (0, 1, 0x11));
    assert!(cnp.payload.is_empty() && !cnp.marked);
    let counters = p.qps[0].congestion();
    assert_eq!(counters.np_cnp_sent, 1);
    assert_eq!(counters.np_ecn_marked_roce_packets, 1);
    assert_eq!(cnps(&exchange(&mut p, write(1))), 0);
}

#[test]
fn cnps_have_a_minimum_interval() {
    let mut p = responder(PairSetup::default());
    assert_eq!(cnps(&exchange(&mut p, marked(write(0)))), 1);
    p.now_ns += CNP_INTERVAL_NS - 1;
    assert_eq!(cnps(&exchange(&mut p, marked(write(1)))), 0);
    p.now_ns += 1;
    assert_eq!(cnps(&exchange(&mut p, marked(write(2)))), 1);
    assert_eq!(p.qps[0].congestion().np_ecn_marked_roce_packets, 3);
}

/// The packet has met a queue whether or not it is executed.
#[test]
fn a_marked_request_that_is_not_executed_is_answered_by_a_cnp() {
    for n in [5, 0xff_ff00] {
        let mut p = responder(PairSetup::default());
        assert_eq!(cnps(&exchange(&mut p, marked(write(n)))), 1, "{n:#x}");
    }
}

#[test]
fn without_congestion_control_and_between_local_peers_there_is_no_cnp() {
    let mut p = responder_by(LinkMode::Local, PairSetup::default());
    put(&mut p, marked(write(0)));
    assert_eq!(cnps(&answers(&mut p)), 0);
    let mut p = responder(PairSetup {
        congestion_control: false,
        ..PairSetup::default()
    });
    put(&mut p, marked(write(0)));
    assert_eq!(cnps(&answers(&mut p)), 0);
    assert_eq!(p.qps[0].congestion().np_ecn_marked_roce_packets, 1);
}

/// Returns a requester with a message that is longer than its window.
fn long(setup: PairSetup) -> QpPair {
    longer(setup, 4000)
}

/// Returns a requester with a message of this number of packets.
fn longer(setup: PairSetup, packets: usize) -> QpPair {
    let mut p = requester(PairSetup {
        window: WINDOW,
        ..setup
    });
    let (src, there) = (p.zeros(A, 256 * packets), p.zeros(B, 256 * packets));
    p.post(A, SendPost::write(1, &[src.sge()], there));
    assert_eq!(numbers(&mut p).len(), WINDOW as usize);
    p
}

/// Delivers a CNP to A.
fn notify(p: &mut QpPair) {
    answer(p, PacketKind::Cnp, 0, &[]);
}

/// Acknowledges all packets in flight after `trip` nanoseconds, and returns the number of packets
/// that A sends then.
fn next_round(p: &mut QpPair, next: &mut u32, under_way: u32, trip: u64) -> u32 {
    p.now_ns += trip;
    *next += under_way;
    ack(p, *next - 1);
    numbers(p).len() as u32
}

/// Returns the window after acknowledgements, in 1024ths of a packet. In a round trip it grows by
/// three quarters of a packet.
fn grown(window: u32, acknowledged: u32) -> u32 {
    window + acknowledged * 1024 * 1024 * 3 / 4 / window
}

#[test]
fn a_cnp_shrinks_the_window_once_in_a_round_trip() {
    let mut p = long(PairSetup::default());
    let mut next = 0;
    let under_way = next_round(&mut p, &mut next, WINDOW, 20_000);
    assert_eq!(under_way, WINDOW);
    p.now_ns += 20_000;
    notify(&mut p);
    notify(&mut p);
    assert_eq!(p.qps[0].congestion().rp_cnp_handled, 2);
    // The window is a quarter smaller. Another CNP for the packets of the same round trip does not
    // shrink it again.
    let mut window = grown(WINDOW * 1024 * 3 / 4, under_way - 1);
    next += under_way - 1;
    ack(&mut p, next - 1);
    let mut under_way = numbers(&mut p).len() as u32 + 1;
    assert_eq!(under_way, window / 1024);
    notify(&mut p);
    for _ in 0..8 {
        window = grown(window, under_way).min(WINDOW * 1024);
        under_way = next_round(&mut p, &mut next, under_way, 20_000);
        assert_eq!(under_way, window / 1024);
    }
    assert_eq!(under_way, WINDOW);
    notify(&mut p);
    assert!(next_round(&mut p, &mut next, under_way, 20_000) < WINDOW);
}

#[test]
fn longer_round_trips_shrink_the_window() {
    let mut p = long(PairSetup::default());
    let mut next = 0;
    let mut under_way = WINDOW;
    for _ in 0..8 {
        under_way = next_round(&mut p, &mut next, under_way, 20_000);
    }
    assert_eq!(under_way, WINDOW);
    // A single long round trip may be due to a busy host.
    under_way = next_round(&mut p, &mut next, under_way, 90_000);
    assert_eq!(under_way, WINDOW);
    for _ in 0..4 {
        under_way = next_round(&mut p, &mut next, under_way, 20_000);
    }
    for _ in 0..12 {
        under_way = next_round(&mut p, &mut next, under_way, 400_000);
    }
    assert!(under_way > 0 && under_way < WINDOW / 2, "{under_way}");
    // However long the delay is, the window allows at least one packet.
    for _ in 0..40 {
        under_way = next_round(&mut p, &mut next, under_way, 400_000);
        assert!(under_way > 0);
    }
}

/// No round trip was nearly as short as the first for a while, although none was too long. So the
/// requester has only one packet in flight for three round trips, to measure the minimum RTT, and
/// then as many as before.
#[test]
fn a_look_for_the_minimum_rtt_takes_a_few_round_trips() {
    const TRIP: u64 = 100_000;
    let mut p = longer(PairSetup::default(), 6000);
    let mut next = 0;
    let mut under_way = next_round(&mut p, &mut next, WINDOW, 20_000);
    let mut rounds = 0;
    while under_way > 1 {
        assert_eq!(under_way, WINDOW);
        under_way = next_round(&mut p, &mut next, under_way, TRIP);
        rounds += 1;
    }
    assert!(
        (250..260).contains(&rounds),
        "begins after {rounds} round trips"
    );
    rounds = 0;
    while under_way == 1 {
        under_way = next_round(&mut p, &mut next, under_way, TRIP);
        rounds += 1;
    }
    assert!((3..=4).contains(&rounds), "ends after {rounds} round trips");
    assert_eq!(under_way, WINDOW);
}

#[test]
fn loss_alone_does_not_shrink_the_window() {
    let mut p = long(PairSetup::default());
    let mut next = 0;
    for _ in 0..4 {
        assert_eq!(next_round(&mut p, &mut next, WINDOW, 20_000), WINDOW);
    }
    super::answered::nak(&mut p, next, verbena_transport::packet::NakCode::Sequence);
    assert_eq!(numbers(&mut p), [next], "one packet alone");
    p.now_ns += 20_000;
    ack(&mut p, next + WINDOW - 1);
    assert_eq!(numbers(&mut p).len(), WINDOW as usize);
}

/// The probe was spurious: the first copy of the packet was not lost, so two answers arrive.
#[test]
fn a_spurious_probe_stops_retransmission_and_doubles_the_timeout() {
    let mut p = long(PairSetup::default());
    let mut next = 0;
    for _ in 0..4 {
        next_round(&mut p, &mut next, WINDOW, 20_000);
    }
    let patience = p.qps[0].next_deadline().unwrap() - p.now_ns;
    p.now_ns += patience;
    assert_eq!(numbers(&mut p), [next]);
    // The first answer acknowledges a single packet, so the packets after it may be lost.
    ack(&mut p, next);
    numbers(&mut p);
    ack(&mut p, next);
    let before = p.qps[0].counters().retransmitted;
    for n in 1..4 {
        ack(&mut p, next + n);
        numbers(&mut p);
    }
    assert_eq!(p.qps[0].counters().retransmitted, before);
    assert_eq!(p.qps[0].congestion().spurious_retransmits, 1);
    let longer = p.qps[0].next_deadline().unwrap() - p.now_ns;
    assert_eq!(longer, 2 * patience);
    // RESET forgets the path, but keeps the counter.
    for _ in 0..2 {
        p.modify(A, QpState::Reset).unwrap();
        assert_eq!(p.qps[0].congestion().spurious_retransmits, 1);
    }
}

/// The window shrinks to no less than one packet, and that packet is sent.
#[test]
fn any_number_of_cnps_leaves_one_packet_in_flight() {
    let mut p = long(PairSetup::default());
    let mut next = 0;
    let mut under_way = WINDOW;
    for _ in 0..60 {
        notify(&mut p);
        under_way = next_round(&mut p, &mut next, under_way, 20_000);
        assert!(under_way > 0);
    }
    assert!(under_way <= 4, "{under_way}");
}

#[test]
fn a_cnp_without_congestion_control_is_counted() {
    for (mode, congestion_control) in [(LinkMode::Local, true), (LinkMode::Split, false)] {
        let mut p = requester_by(
            mode,
            PairSetup {
                congestion_control,
                ..PairSetup::default()
            },
        );
        notify(&mut p);
        let counters = p.qps[0].congestion();
        assert_eq!((counters.rp_cnp_handled, counters.rp_cnp_ignored), (0, 1));
    }
}

#[test]
fn marked_responses_shrink_the_parts_of_reads() {
    let mut p = QpPair::new(PairSetup {
        mode: LinkMode::Split,
        window: 64,
        ..PairSetup::default()
    });
    p.link.record = true;
    let (there, mine) = (p.zeros(B, 256 * 400), p.zeros(A, 256 * 400));
    let parts = |p: &mut QpPair| {
        p.settle();
        let log = std::mem::take(&mut p.link.log);
        let lengths = log.iter().filter_map(|(_, packet)| match packet.kind {
            PacketKind::ReadRequest(reth) => Some(reth.length / 256),
            _ => None,
        });
        lengths.max().unwrap()
    };
    p.post(A, SendPost::read(1, &[mine.sge()], there));
    assert_eq!(parts(&mut p), 32);
    p.link.mark_if = Some(|packet| matches!(packet.kind, PacketKind::ReadResponse(_)));
    p.post(A, SendPost::read(2, &[mine.sge()], there));
    p.settle();
    p.link.log.clear();
    p.post(A, SendPost::read(3, &[mine.sge()], there));
    assert_eq!(parts(&mut p), 8);
    assert_eq!(p.statuses(A).len(), 3);
    // The requester sees the marks itself, so no CNP is sent.
    assert_eq!(p.qps[0].congestion().np_cnp_sent, 0);
}

#[test]
fn marks_change_only_the_number_of_packets_in_flight() {
    let mut p = QpPair::rc(LinkMode::Split);
    p.link.mark_if = Some(|_| true);
    let bytes = super::pattern(256 * 300, 1);
    let (src, there) = (p.buffer(A, &bytes), p.zeros(B, bytes.len()));
    for wr_id in 0..4 {
        p.post_recv(B, wr_id, &[there.sge()]);
        p.post(A, SendPost::send(wr_id, &[src.sge()]));
    }
    p.settle();
    assert_eq!(p.statuses(A).len(), 4);
    assert_eq!(p.adapter.bytes(there), bytes);
    assert!(p.qps[0].congestion().rp_cnp_handled > 0);
    assert_eq!(p.qps[0].counters().retransmitted, 0);
}
