// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recovery from loss over a wire, beyond the specification. The requester sends one packet again
//! to learn where to go on, after the round trip that it has measured. The responder keeps requests
//! ahead of a gap.

use super::answered::{ack, answer_part, nak, numbers, positive, requester, rnr, sent};
use super::by_hand::{
    answers, completed, exchange, is_ack, is_ack_twice, is_nak, part, psn, psns, put, quiet, read,
    receiving, request, responder, responder_by, send, send_quietly, write, SEND, WRITE_NOTHING,
};
use super::pattern;
use verbena_lab_transport::{LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::{WcStatus::*, WqeOpcode};
use verbena_transport::packet::{AethSyndrome, NakCode, Packet, PacketKind};
use verbena_transport::QpState;

/// Returns a requester with a WRITE of this number of packets in flight.
fn writing(count: u32) -> QpPair {
    let mut p = requester(PairSetup::default());
    let (src, dst) = (
        p.zeros(A, 256 * count as usize),
        p.zeros(B, 256 * count as usize),
    );
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    assert_eq!(numbers(&mut p), (0..count).collect::<Vec<_>>());
    p
}

#[test]
fn a_nak_causes_one_retransmission_whose_answer_shows_the_next() {
    let mut p = writing(8);
    nak(&mut p, 2, NakCode::Sequence);
    let again = sent(&mut p);
    assert!(again.len() == 1 && again[0].psn == psn(2) && again[0].ack_req);
    // The peer has kept all later packets but one.
    nak(&mut p, 5, NakCode::Sequence);
    let again: Vec<u32> = sent(&mut p).iter().map(|packet| packet.psn).collect();
    // Nothing else can be sent, so the packet is sent twice.
    assert_eq!(again, [psn(5), psn(5)]);
    ack(&mut p, 7);
    assert!(numbers(&mut p).is_empty());
    assert_eq!(p.statuses(A), [(1, Success)]);
    assert_eq!(p.qps[0].snapshot().retry_left, 7);
}

#[test]
fn everything_is_sent_again_to_a_peer_that_keeps_nothing() {
    let mut p = writing(8);
    nak(&mut p, 2, NakCode::Sequence);
    assert_eq!(numbers(&mut p), [2]);
    ack(&mut p, 2);
    assert_eq!(numbers(&mut p), [3, 4, 5, 6, 7]);
    // The requester knows now that the peer keeps nothing.
    nak(&mut p, 4, NakCode::Sequence);
    let again = sent(&mut p);
    assert_eq!(again.len(), 4);
    assert!(again[0].psn == psn(4) && again[0].ack_req);
    ack(&mut p, 7);
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn a_work_request_without_packets_is_skipped_in_a_retransmission() {
    let mut p = requester(PairSetup::default());
    let (src, dst) = (p.zeros(A, 768), p.zeros(B, 768));
    let fresh = p.zeros(A, 8);
    p.adapter.region(fresh).valid = false;
    let mut register = SendPost::new(2, WqeOpcode::FastReg, &[]);
    register.wqe.imm = fresh.key.to_le_bytes();
    p.post(A, SendPost::write(1, &[src.part(0, 8)], dst));
    p.post(A, register);
    p.post(A, SendPost::write(3, &[src.sge()], dst));
    assert_eq!(numbers(&mut p), [0, 1, 2, 3]);
    nak(&mut p, 0, NakCode::Sequence);
    assert_eq!(numbers(&mut p), [0]);
    ack(&mut p, 0);
    assert_eq!(numbers(&mut p), [1, 2, 3]);
}

#[test]
fn nothing_new_is_sent_until_the_peer_is_known_to_keep_packets() {
    let mut p = writing(8);
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    nak(&mut p, 2, NakCode::Sequence);
    p.post(A, SendPost::write(2, &[src.sge()], dst));
    assert_eq!(numbers(&mut p), [2]);
    ack(&mut p, 7);
    assert_eq!(numbers(&mut p), [8]);
    // The requester knows now that the peer keeps packets.
    p.post(A, SendPost::write(3, &[src.sge()], dst));
    assert_eq!(numbers(&mut p), [9]);
    p.post(A, SendPost::write(4, &[src.sge()], dst));
    nak(&mut p, 8, NakCode::Sequence);
    assert_eq!(numbers(&mut p), [8, 10, 8]);
}

#[test]
fn probes_send_the_oldest_packet_with_doubling_delays() {
    let mut p = writing(8);
    for at in [100_000, 300_000, 700_000] {
        assert_eq!(p.qps[0].next_deadline(), Some(at));
        p.run_until(at - 1);
        assert!(sent(&mut p).is_empty());
        p.run_until(at);
        let again = sent(&mut p);
        assert!(again.len() == 1 && again[0].psn == psn(0) && again[0].ack_req);
    }
    assert_eq!(p.qps[0].snapshot().retry_left, 7, "a probe is no retry");
    // The packets after it did not arrive either, so they are sent again in growing parts.
    ack(&mut p, 0);
    assert_eq!(numbers(&mut p), [1, 2]);
    ack(&mut p, 1);
    assert!(numbers(&mut p).is_empty());
    ack(&mut p, 2);
    assert_eq!(numbers(&mut p), [3, 4, 5, 6]);
    ack(&mut p, 7);
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn the_probe_timer_is_the_round_trip_and_four_deviations() {
    let mut p = requester(PairSetup {
        min_timeout_ns: 10_000_000,
        ..PairSetup::default()
    });
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    let mut next = 0;
    let mut trip = |p: &mut QpPair, ns: u64| {
        p.post(A, SendPost::write(next.into(), &[src.sge()], dst));
        sent(p);
        let patience = p.qps[0].next_deadline().map(|at| at - p.now_ns);
        p.run_until(p.now_ns + ns);
        ack(p, next);
        next += 1;
        patience.unwrap()
    };
    // The timeout is 1 ms before the first round trip is measured.
    assert_eq!(trip(&mut p, 200_000), 1_000_000);
    // RFC 6298: the first deviation is half of the round trip. It then moves by a quarter of the
    // difference.
    assert_eq!(trip(&mut p, 200_000), 200_000 + 4 * 100_000);
    assert_eq!(trip(&mut p, 280_000), 200_000 + 4 * 75_000);
    assert_eq!(trip(&mut p, 1_000), 210_000 + 4 * 76_250);
    for _ in 0..100 {
        trip(&mut p, 1_000);
    }
    assert_eq!(trip(&mut p, 1_000), 100_000, "the minimum");
}

#[test]
fn the_last_packet_of_a_super_packet_is_timed() {
    let mut p = requester(PairSetup {
        wire_super_packets: 4,
        ..PairSetup::default()
    });
    let (src, dst) = (p.zeros(A, 1024), p.zeros(B, 1024));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    assert_eq!(sent(&mut p).len(), 4);
    // The peer acknowledges the first packet, which has no AckReq.
    p.run_until(10_000);
    ack(&mut p, 0);
    assert_eq!(p.qps[0].snapshot().round_trip_ns, None);
    p.run_until(30_000);
    ack(&mut p, 3);
    assert_eq!(p.qps[0].snapshot().round_trip_ns, Some((30_000, 15_000)));
}

#[test]
fn a_packet_that_was_sent_again_is_not_timed() {
    let mut p = writing(1);
    // The first packet measures a round trip of 20 us.
    p.run_until(20_000);
    ack(&mut p, 0);
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, SendPost::write(2, &[src.sge()], dst));
    sent(&mut p);
    p.run_until(420_000);
    assert_eq!(p.qps[0].counters().probes, 2);
    ack(&mut p, 1);
    // A measured round trip of 400 us would have made the timeout longer.
    p.post(A, SendPost::write(3, &[src.sge()], dst));
    sent(&mut p);
    assert_eq!(p.qps[0].next_deadline(), Some(520_000));
}

#[test]
fn responses_without_progress_defer_the_probe() {
    let mut p = requester(PairSetup::default());
    let (back, there) = (p.zeros(A, 1024), p.zeros(B, 1024));
    p.post(A, SendPost::read(1, &[back.sge()], there));
    sent(&mut p);
    let part = |p: &mut QpPair, n, ends| {
        let aeth = (n == 0 || n == 3).then(positive);
        answer_part(p, PacketKind::ReadResponse(aeth), n, &[1; 256], ends);
    };
    part(&mut p, 0, [true, false]);
    p.run_until(60_000);
    // The second response is lost and requested again. Responses that were sent before arrive
    // first.
    part(&mut p, 2, [false, false]);
    assert_eq!(numbers(&mut p), [1]);
    p.run_until(120_000);
    part(&mut p, 3, [false, true]);
    assert_eq!(p.qps[0].next_deadline(), Some(220_000));
    // These responses do not defer the ACK timer.
    for _ in 0..100 {
        p.run_until(p.now_ns + 90_000);
        part(&mut p, 3, [false, true]);
    }
    assert!(p.qps[0].counters().timeouts > 5);
    assert_eq!(p.qps[0].counters().probes, 0);
}

#[test]
fn after_an_rnr_nak_everything_is_sent_again() {
    let mut p = writing(4);
    rnr(&mut p, 1);
    p.run_until(10_000);
    assert_eq!(numbers(&mut p), [1, 2, 3]);
}

#[test]
fn local_queue_pairs_neither_probe_nor_keep_packets() {
    let mut p = QpPair::rc(LinkMode::Local);
    p.link.loss = 100;
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    p.run_until(1);
    assert_eq!(p.qps[0].next_deadline(), Some(4_096 << 8));
    let mut p = responder_by(LinkMode::Local, PairSetup::default());
    let word = p.zeros(A, 8);
    put(&mut p, request(write(word), 1, &[1; 8]));
    assert_eq!(p.qps[0].counters().kept, 0);
}

#[test]
fn requests_ahead_of_a_gap_are_executed_when_it_closes() {
    let mut p = receiving(4);
    assert!(is_nak(&send(&mut p, 1), 0, NakCode::Sequence));
    assert!(send(&mut p, 3).is_empty() && send(&mut p, 2).is_empty());
    assert!(p.statuses(A).is_empty());
    // The kept requests are executed in order, and one acknowledgement covers them.
    assert!(is_ack(&send(&mut p, 0), 3));
    let got = [(0, Success), (1, Success), (2, Success), (3, Success)];
    assert_eq!(p.statuses(A), got);
    assert_eq!(p.qps[0].counters().kept, 3);
    assert!(
        is_ack_twice(&send(&mut p, 2), 3),
        "request 2 is a duplicate now"
    );
}

#[test]
fn a_second_gap_is_reported_when_the_first_closes() {
    let mut p = receiving(4);
    assert!(is_nak(&send(&mut p, 1), 0, NakCode::Sequence));
    assert!(send(&mut p, 3).is_empty());
    assert!(is_nak(&send(&mut p, 0), 2, NakCode::Sequence));
    assert!(send(&mut p, 3).is_empty());
    assert!(is_ack(&send(&mut p, 2), 3));
}

#[test]
fn reads_and_atomics_are_kept_too() {
    let mut p = responder(PairSetup::default());
    let far = p.buffer(A, &pattern(600, 1));
    put(&mut p, request(read(far), 1, &[]));
    let first = exchange(&mut p, request(WRITE_NOTHING, 4, &[]));
    assert!(is_nak(&first[..1], 0, NakCode::Sequence));
    let got = exchange(&mut p, request(WRITE_NOTHING, 0, &[]));
    assert_eq!(psns(&got), [psn(1), psn(2), psn(3), psn(4)]);
}

#[test]
fn a_pending_nak_does_not_drop_a_pending_acknowledgement() {
    let mut p = responder(PairSetup::default());
    let far = p.buffer(A, &pattern(600, 1));
    let write = |n, ack_req| Packet {
        ack_req,
        ..request(WRITE_NOTHING, n, &[])
    };
    put(&mut p, request(read(far), 1, &[]));
    put(&mut p, write(4, true));
    put(&mut p, write(6, false));
    // The READ is executed, and the NAK for the gap after it waits for its responses. So does the
    // acknowledgement that was requested before.
    put(&mut p, write(0, true));
    put(&mut p, write(5, false));
    let got = answers(&mut p);
    assert_eq!(psns(&got), [psn(0), psn(1), psn(2), psn(3), psn(6)]);
    assert!(is_nak(&got[..1], 0, NakCode::Sequence) && is_ack(&got[4..], 6));
}

#[test]
fn only_packets_that_the_peer_has_sent_again_are_acknowledged() {
    let mut p = receiving(6);
    assert!(is_nak(&send(&mut p, 1), 0, NakCode::Sequence));
    for n in 2..5 {
        assert!(send(&mut p, n).is_empty());
    }
    for n in 0..4 {
        assert!(send_quietly(&mut p, n).is_empty());
        assert_eq!(completed(&mut p), [u64::from(n)]);
    }
    assert!(is_ack(&send(&mut p, 4), 4));
    assert!(is_ack(&send(&mut p, 5), 5));
    assert_eq!(p.qps[0].counters().duplicates, 0);
    // A peer that sets AckReq in between gets an acknowledgement up to that packet.
    let mut p = receiving(4);
    send(&mut p, 1);
    send_quietly(&mut p, 2);
    send_quietly(&mut p, 0);
    assert!(is_ack(&send(&mut p, 1), 1));
    assert_eq!(completed(&mut p), [0, 1]);
}

#[test]
fn a_kept_request_replaces_a_second_copy_that_is_lost() {
    let mut p = receiving(8);
    send(&mut p, 1);
    for n in 2..6 {
        send_quietly(&mut p, n);
    }
    send_quietly(&mut p, 0);
    // The second copies of 1 and 2 are lost.
    assert!(
        is_ack(&send_quietly(&mut p, 3), 3),
        "the first copy of 1 had AckReq"
    );
    assert_eq!(completed(&mut p), [0, 1, 2, 3]);
    // A request beyond the kept ones causes a NAK for the PSN expected.
    assert!(is_nak(&send_quietly(&mut p, 7), 4, NakCode::Sequence));
    assert!(send_quietly(&mut p, 4).is_empty() && send_quietly(&mut p, 5).is_empty());
    assert_eq!(completed(&mut p), [4, 5]);
    assert!(is_nak(&send_quietly(&mut p, 7), 6, NakCode::Sequence));
}

#[test]
fn a_copy_of_a_late_packet_with_ackreq_executes_the_kept_requests() {
    let mut p = receiving(8);
    assert!(is_nak(&send(&mut p, 1), 0, NakCode::Sequence));
    send_quietly(&mut p, 2);
    // Packet 0 was only late, so it has no AckReq.
    assert!(send_quietly(&mut p, 0).is_empty());
    assert_eq!(completed(&mut p), [0]);
    assert!(is_ack(&send(&mut p, 0), 2));
    assert_eq!(completed(&mut p), [1, 2]);
    // If another request arrives first, the NAK has the PSN expected now.
    let mut p = receiving(8);
    assert!(is_nak(&send(&mut p, 1), 0, NakCode::Sequence));
    assert!(send_quietly(&mut p, 0).is_empty());
    assert!(is_nak(&send(&mut p, 3), 1, NakCode::Sequence));
    assert!(
        is_ack_twice(&send(&mut p, 0), 0),
        "request 0 is a duplicate"
    );
    assert!(is_nak(&send(&mut p, 1), 2, NakCode::Sequence));
    assert!(is_ack(&send(&mut p, 2), 3));
    // A copy of a READ executes the kept requests too.
    let mut p = responder(PairSetup::default());
    let far = p.buffer(A, &pattern(8, 1));
    let nothing = |n| request(WRITE_NOTHING, n, &[]);
    let late = quiet(request(read(far), 0, &[]));
    assert!(is_nak(&exchange(&mut p, nothing(1)), 0, NakCode::Sequence));
    assert_eq!(exchange(&mut p, late).len(), 1);
    let got = exchange(&mut p, request(read(far), 0, &[]));
    assert_eq!(psns(&got), [psn(0), psn(1)]);
}

#[test]
fn after_one_retransmission_alone_a_late_packet_needs_no_ackreq() {
    // In the middle of a message AckReq is not needed. A peer that sets it there sends only missing
    // packets again.
    let mut p = responder(PairSetup::default());
    let far = p.zeros(A, 20 * 256);
    let piece = |n: u32, ack_req| {
        let kind = match write(far) {
            PacketKind::Write { reth, imm } => PacketKind::Write {
                reth: reth.filter(|_| n == 0),
                imm,
            },
            other => other,
        };
        Packet {
            ack_req,
            ..part(n == 0, n == 19, request(kind, n, &[n as u8; 256]))
        }
    };
    let mut come = |n, ack_req| {
        let got = exchange(&mut p, piece(n, ack_req));
        let nak = got.len() == 1 && is_nak(&got, n - 1, NakCode::Sequence);
        (p.qps[0].snapshot().expected_psn, got.len(), nak)
    };
    come(0, false);
    assert_eq!(come(2, false), (psn(1), 1, true));
    assert_eq!(come(3, false), (psn(1), 0, false));
    assert_eq!(come(1, true), (psn(4), 1, false));
    assert_eq!(come(5, false), (psn(4), 1, true));
    assert_eq!(come(4, false), (psn(6), 0, false), "packet 4 was only late");
    // A copy of packet 5 shows that the peer sends everything again.
    come(5, false);
    assert_eq!(come(7, false), (psn(6), 1, true));
    assert_eq!(come(6, false), (psn(7), 0, false));
    assert_eq!(come(7, false), (psn(8), 0, false));
    // The end of a message always has AckReq, so it shows nothing about the peer.
    let mut p = receiving(8);
    send(&mut p, 1);
    assert!(is_ack(&send(&mut p, 0), 1));
    send(&mut p, 3);
    assert!(send_quietly(&mut p, 2).is_empty());
    assert_eq!(completed(&mut p), [0, 1, 2]);
}

#[test]
fn the_next_gap_after_a_late_packet_is_reported_at_the_next_arrival() {
    let mut p = receiving(4);
    send(&mut p, 2);
    assert!(send_quietly(&mut p, 0).is_empty());
    assert!(is_nak(&send_quietly(&mut p, 3), 1, NakCode::Sequence));
    // The gap at 1 was reported, so the duplicate executes nothing.
    assert!(
        is_ack_twice(&send(&mut p, 0), 0),
        "request 0 is a duplicate"
    );
    assert!(is_ack(&send(&mut p, 1), 3));
}

#[test]
fn a_gap_that_closes_before_its_nak_is_sent_is_not_reported() {
    let mut p = responder(PairSetup::default());
    let far = p.buffer(A, &pattern(600, 1));
    let write = |n| Packet {
        ack_req: n == 5,
        ..request(WRITE_NOTHING, n, &[])
    };
    put(&mut p, request(read(far), 0, &[]));
    for n in [4, 5, 3] {
        put(&mut p, write(n));
    }
    let got = answers(&mut p);
    assert_eq!(psns(&got), [psn(0), psn(1), psn(2), psn(5)]);
    assert!(is_ack(&got[3..], 5));
}

#[test]
fn an_rnr_nak_discards_kept_requests() {
    let mut p = receiving(0);
    assert!(is_nak(&send(&mut p, 1), 0, NakCode::Sequence));
    let got = send(&mut p, 0);
    assert!(
        matches!(got[0].kind, PacketKind::Ack(aeth) if matches!(aeth.syndrome, AethSyndrome::Rnr { .. }))
    );
    // Requests after the RNR NAK are not kept either.
    assert!(send(&mut p, 2).is_empty());
    for wr_id in 0..3 {
        p.post_recv(A, wr_id, &[]);
    }
    let buffer = p.zeros(A, 8);
    p.adapter.queues(A).rq[0].sges = vec![buffer.sge()];
    assert!(is_ack(&send(&mut p, 0), 0), "request 1 was discarded");
    assert_eq!(p.statuses(A), [(0, Success)]);
    // The same if the receive is missing for a kept request.
    let mut p = receiving(1);
    send(&mut p, 1);
    send(&mut p, 2);
    send(&mut p, 0);
    assert_eq!(p.qps[0].counters().rnr_naks_sent, 1);
    for wr_id in 1..4 {
        let buffer = p.zeros(A, 8);
        p.post_recv(A, wr_id, &[buffer.sge()]);
    }
    assert!(is_ack(&send(&mut p, 1), 1));
    assert!(is_ack(&send(&mut p, 2), 2));
}

#[test]
fn reset_and_a_refusal_discard_kept_requests() {
    let mut p = receiving(4);
    send(&mut p, 1);
    p.reset(A);
    p.connect(A);
    for wr_id in 0..4 {
        let buffer = p.zeros(A, 8);
        p.post_recv(A, wr_id, &[buffer.sge()]);
    }
    assert!(is_ack(&send(&mut p, 0), 0));
    // A refusal that waits for READ responses.
    let far = p.buffer(A, &pattern(600, 1));
    put(&mut p, request(read(far), 1, &[]));
    put(&mut p, request(SEND, 5, &[1; 8]));
    put(&mut p, part(false, true, request(SEND, 4, &[1])));
    let got = answers(&mut p);
    assert!(is_nak(&got[3..], 4, NakCode::InvalidRequest));
    assert_eq!(p.state(A), QpState::Err);
    assert_eq!(p.statuses(A).first(), Some(&(0, Success)));
}

#[test]
fn two_different_requests_with_one_psn_are_both_dropped() {
    let mut p = receiving(4);
    send(&mut p, 2);
    send(&mut p, 1);
    let other = exchange(&mut p, request(SEND, 1, &[9; 8]));
    assert!(other.is_empty());
    assert!(is_nak(&send(&mut p, 0), 1, NakCode::Sequence));
    // A copy counts as the same request with and without AckReq.
    let mut copy = request(SEND, 2, &[2; 8]);
    copy.ack_req = false;
    assert!(exchange(&mut p, copy).is_empty());
    assert!(is_ack(&send(&mut p, 1), 2));
}

#[test]
fn kept_requests_are_limited_by_distance_and_bytes() {
    let mut p = receiving(140);
    send(&mut p, 1);
    send(&mut p, 127);
    assert_eq!(p.qps[0].counters().kept, 2);
    send(&mut p, 128);
    send(&mut p, 1 << 22);
    assert_eq!(
        p.qps[0].counters().kept,
        2,
        "packets too far ahead are not kept"
    );
    let mut p = receiving(4);
    p.restrict(A, 2 * 264);
    for n in 1..4 {
        send(&mut p, n);
    }
    assert_eq!(p.qps[0].counters().kept, 2);
    assert!(is_ack(&send(&mut p, 0), 2));
}

#[test]
fn kept_requests_are_charged_to_the_account() {
    let mut p = receiving(4);
    let whole = p.restrict(A, 10_000);
    send(&mut p, 1);
    send(&mut p, 2);
    assert_eq!(whole.available(), 10_000 - 2 * 264);
    send(&mut p, 0);
    assert_eq!(whole.available(), 10_000);
    send(&mut p, 4);
    assert_eq!(whole.available(), 10_000 - 264);
    p.modify(A, QpState::Err).unwrap();
    assert_eq!(whole.available(), 10_000);
}
