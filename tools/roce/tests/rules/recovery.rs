// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Recovery from loss behind a wire, beyond what the specification has: one packet is sent again to hear where to go on, the time
//! to that is measured, and a responder keeps what comes ahead of a gap.

use super::answered::{ack, answer_part, nak, numbers, positive, requester, rnr, sent};
use super::by_hand::{
    answers, ask, completed, is_ack, is_ack_twice, is_nak, part, psn, psns, put, quiet, read,
    receiving, request, responder, responder_by, send, send_quietly, write, SEND, WRITE_NOTHING,
};
use super::pattern;
use verbena_roce::host::{WcStatus::*, WqeOpcode};
use verbena_roce::packet::{AethSyndrome, Kind, NakCode, Packet};
use verbena_roce::QpState;
use verbena_roce_lab::{Mode, Pair, Post, Setup, Side::*};

/// A requester with a WRITE of so many packets under way.
fn writing(count: u32) -> Pair {
    let mut p = requester(Setup::default());
    let (src, dst) = (
        p.zeros(A, 256 * count as usize),
        p.zeros(B, 256 * count as usize),
    );
    p.post(A, Post::write(1, &[src.sge()], dst));
    assert_eq!(numbers(&mut p), (0..count).collect::<Vec<_>>());
    p
}

#[test]
fn a_gap_brings_one_packet_and_its_answer_tells_where_to_go_on() {
    let mut p = writing(8);
    nak(&mut p, 2, NakCode::Sequence);
    let again = sent(&mut p);
    assert!(again.len() == 1 && again[0].psn == psn(2) && again[0].ack_req);
    // The peer has kept the rest, but for one.
    nak(&mut p, 5, NakCode::Sequence);
    let again: Vec<u32> = sent(&mut p).iter().map(|packet| packet.psn).collect();
    // Nothing else can be sent, so it goes a second time.
    assert_eq!(again, [psn(5), psn(5)]);
    ack(&mut p, 7);
    assert!(numbers(&mut p).is_empty());
    assert_eq!(p.statuses(A), [(1, Success)]);
    assert_eq!(p.qps[0].snapshot().retry_left, 7);
}

#[test]
fn a_peer_that_keeps_nothing_is_sent_all_again() {
    let mut p = writing(8);
    nak(&mut p, 2, NakCode::Sequence);
    assert_eq!(numbers(&mut p), [2]);
    ack(&mut p, 2);
    assert_eq!(numbers(&mut p), [3, 4, 5, 6, 7]);
    // It is known now.
    nak(&mut p, 4, NakCode::Sequence);
    let again = sent(&mut p);
    assert_eq!(again.len(), 4);
    assert!(again[0].psn == psn(4) && again[0].ack_req);
    ack(&mut p, 7);
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn what_sends_nothing_has_no_place_between_what_is_sent_again() {
    let mut p = requester(Setup::default());
    let (src, dst) = (p.zeros(A, 768), p.zeros(B, 768));
    let fresh = p.zeros(A, 8);
    p.world.region(fresh).valid = false;
    let mut register = Post::new(2, WqeOpcode::FastReg, &[]);
    register.wqe.imm = fresh.key.to_le_bytes();
    p.post(A, Post::write(1, &[src.part(0, 8)], dst));
    p.post(A, register);
    p.post(A, Post::write(3, &[src.sge()], dst));
    assert_eq!(numbers(&mut p), [0, 1, 2, 3]);
    nak(&mut p, 0, NakCode::Sequence);
    assert_eq!(numbers(&mut p), [0]);
    ack(&mut p, 0);
    assert_eq!(numbers(&mut p), [1, 2, 3]);
}

#[test]
fn nothing_new_is_sent_before_it_is_known_whether_the_peer_keeps_it() {
    let mut p = writing(8);
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    nak(&mut p, 2, NakCode::Sequence);
    p.post(A, Post::write(2, &[src.sge()], dst));
    assert_eq!(numbers(&mut p), [2]);
    ack(&mut p, 7);
    assert_eq!(numbers(&mut p), [8]);
    // From now on it is.
    p.post(A, Post::write(3, &[src.sge()], dst));
    assert_eq!(numbers(&mut p), [9]);
    p.post(A, Post::write(4, &[src.sge()], dst));
    nak(&mut p, 8, NakCode::Sequence);
    assert_eq!(numbers(&mut p), [8, 10, 8]);
}

#[test]
fn a_probe_is_the_oldest_packet_and_the_next_one_waits_twice_as_long() {
    let mut p = writing(8);
    for at in [100_000, 300_000, 700_000] {
        assert_eq!(p.qps[0].next_deadline(), Some(at));
        p.run_until(at - 1);
        assert!(sent(&mut p).is_empty());
        p.run_until(at);
        let again = sent(&mut p);
        assert!(again.len() == 1 && again[0].psn == psn(0) && again[0].ack_req);
    }
    assert_eq!(p.qps[0].snapshot().retry_left, 7, "it is no retry");
    // Nothing behind it has come either: that goes again in growing parts.
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
    let mut p = requester(Setup {
        min_timeout_ns: 10_000_000,
        ..Setup::default()
    });
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    let mut next = 0;
    let mut trip = |p: &mut Pair, ns: u64| {
        p.post(A, Post::write(next.into(), &[src.sge()], dst));
        sent(p);
        let patience = p.qps[0].next_deadline().map(|at| at - p.now);
        p.run_until(p.now + ns);
        ack(p, next);
        next += 1;
        patience.unwrap()
    };
    // Before any was timed, a millisecond.
    assert_eq!(trip(&mut p, 200_000), 1_000_000);
    // RFC 6298: the first deviates by its half, then by a quarter of what the next ones differ.
    assert_eq!(trip(&mut p, 200_000), 200_000 + 4 * 100_000);
    assert_eq!(trip(&mut p, 280_000), 200_000 + 4 * 75_000);
    assert_eq!(trip(&mut p, 1_000), 210_000 + 4 * 76_250);
    for _ in 0..100 {
        trip(&mut p, 1_000);
    }
    assert_eq!(trip(&mut p, 1_000), 100_000, "no shorter");
}

#[test]
fn of_packets_that_are_made_at_once_the_last_is_timed_which_asks() {
    let mut p = requester(Setup {
        wire_super_packets: 4,
        ..Setup::default()
    });
    let (src, dst) = (p.zeros(A, 1024), p.zeros(B, 1024));
    p.post(A, Post::write(1, &[src.sge()], dst));
    assert_eq!(sent(&mut p).len(), 4);
    // A peer may acknowledge more often than it is asked to.
    p.run_until(10_000);
    ack(&mut p, 0);
    assert_eq!(p.qps[0].snapshot().round_trip, None);
    p.run_until(30_000);
    ack(&mut p, 3);
    assert_eq!(p.qps[0].snapshot().round_trip, Some((30_000, 15_000)));
}

#[test]
fn what_was_sent_again_is_not_timed() {
    let mut p = writing(1);
    // The first measures: 20 us.
    p.run_until(20_000);
    ack(&mut p, 0);
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, Post::write(2, &[src.sge()], dst));
    sent(&mut p);
    p.run_until(420_000);
    assert_eq!(p.qps[0].counters().probes, 2);
    ack(&mut p, 1);
    // 400 us would have made it patient.
    p.post(A, Post::write(3, &[src.sge()], dst));
    sent(&mut p);
    assert_eq!(p.qps[0].next_deadline(), Some(520_000));
}

#[test]
fn responses_of_no_use_tell_that_the_answer_is_still_to_come() {
    let mut p = requester(Setup::default());
    let (back, there) = (p.zeros(A, 1024), p.zeros(B, 1024));
    p.post(A, Post::read(1, &[back.sge()], there));
    sent(&mut p);
    let part = |p: &mut Pair, n, ends| {
        let aeth = (n == 0 || n == 3).then(positive);
        answer_part(p, Kind::ReadResponse(aeth), n, &[1; 256], ends);
    };
    part(&mut p, 0, [true, false]);
    p.run_until(60_000);
    // The second is lost and asked for; what was sent before that comes first.
    part(&mut p, 2, [false, false]);
    assert_eq!(numbers(&mut p), [1]);
    p.run_until(120_000);
    part(&mut p, 3, [false, true]);
    assert_eq!(p.qps[0].next_deadline(), Some(220_000));
    // It does not put off the ACK timer.
    for _ in 0..100 {
        p.run_until(p.now + 90_000);
        part(&mut p, 3, [false, true]);
    }
    assert!(p.qps[0].counters().timeouts > 5);
    assert_eq!(p.qps[0].counters().probes, 0);
}

#[test]
fn after_an_rnr_nak_all_is_sent_again() {
    let mut p = writing(4);
    rnr(&mut p, 1);
    p.run_until(10_000);
    assert_eq!(numbers(&mut p), [1, 2, 3]);
}

#[test]
fn between_local_queue_pairs_there_is_none_of_it() {
    let mut p = Pair::rc(Mode::Local);
    p.link.loss = 100;
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, Post::write(1, &[src.sge()], dst));
    p.run_until(1);
    assert_eq!(p.qps[0].next_deadline(), Some(4_096 << 8));
    let mut p = responder_by(Mode::Local, Setup::default());
    let word = p.zeros(A, 8);
    put(&mut p, request(write(word), 1, &[1; 8]));
    assert_eq!(p.qps[0].counters().kept, 0);
}

#[test]
fn what_comes_ahead_of_a_gap_is_executed_when_it_closes() {
    let mut p = receiving(4);
    assert!(is_nak(&send(&mut p, 1), 0, NakCode::Sequence));
    assert!(send(&mut p, 3).is_empty() && send(&mut p, 2).is_empty());
    assert!(p.statuses(A).is_empty());
    // In order, and acknowledged at once.
    assert!(is_ack(&send(&mut p, 0), 3));
    let got = [(0, Success), (1, Success), (2, Success), (3, Success)];
    assert_eq!(p.statuses(A), got);
    assert_eq!(p.qps[0].counters().kept, 3);
    assert!(is_ack_twice(&send(&mut p, 2), 3), "a duplicate by now");
}

#[test]
fn a_gap_behind_the_gap_is_told_when_that_closes() {
    let mut p = receiving(4);
    assert!(is_nak(&send(&mut p, 1), 0, NakCode::Sequence));
    assert!(send(&mut p, 3).is_empty());
    assert!(is_nak(&send(&mut p, 0), 2, NakCode::Sequence));
    assert!(send(&mut p, 3).is_empty());
    assert!(is_ack(&send(&mut p, 2), 3));
}

#[test]
fn reads_and_atomics_are_kept_too() {
    let mut p = responder(Setup::default());
    let far = p.buffer(A, &pattern(600, 1));
    put(&mut p, request(read(far), 1, &[]));
    let first = ask(&mut p, request(WRITE_NOTHING, 4, &[]));
    assert!(is_nak(&first[..1], 0, NakCode::Sequence));
    let got = ask(&mut p, request(WRITE_NOTHING, 0, &[]));
    assert_eq!(psns(&got), [psn(1), psn(2), psn(3), psn(4)]);
}

#[test]
fn an_acknowledgement_that_waits_outlives_a_nak_that_waits() {
    let mut p = responder(Setup::default());
    let far = p.buffer(A, &pattern(600, 1));
    let write = |n, ack_req| Packet {
        ack_req,
        ..request(WRITE_NOTHING, n, &[])
    };
    put(&mut p, request(read(far), 1, &[]));
    put(&mut p, write(4, true));
    put(&mut p, write(6, false));
    // The READ is executed, and the NAK for the gap behind it waits for its responses. So does what was asked for before.
    put(&mut p, write(0, true));
    put(&mut p, write(5, false));
    let got = answers(&mut p);
    assert_eq!(psns(&got), [psn(0), psn(1), psn(2), psn(3), psn(6)]);
    assert!(is_nak(&got[..1], 0, NakCode::Sequence) && is_ack(&got[4..], 6));
}

#[test]
fn nothing_is_acknowledged_that_a_peer_which_sends_all_again_has_not_sent_again() {
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
    // One that asks on the way is told how far it has come, too.
    let mut p = receiving(4);
    send(&mut p, 1);
    send_quietly(&mut p, 2);
    send_quietly(&mut p, 0);
    assert!(is_ack(&send(&mut p, 1), 1));
    assert_eq!(completed(&mut p), [0, 1]);
}

#[test]
fn what_is_kept_stands_for_what_is_lost_again() {
    let mut p = receiving(8);
    send(&mut p, 1);
    for n in 2..6 {
        send_quietly(&mut p, n);
    }
    send_quietly(&mut p, 0);
    // 1 and 2 are lost again.
    assert!(is_ack(&send_quietly(&mut p, 3), 3), "1 had asked");
    assert_eq!(completed(&mut p), [0, 1, 2, 3]);
    // So it does beyond another gap that comes again.
    assert!(is_nak(&send_quietly(&mut p, 7), 4, NakCode::Sequence));
    assert!(send_quietly(&mut p, 4).is_empty() && send_quietly(&mut p, 5).is_empty());
    assert_eq!(completed(&mut p), [4, 5]);
    assert!(is_nak(&send_quietly(&mut p, 7), 6, NakCode::Sequence));
}

#[test]
fn a_peer_that_asks_for_what_came_late_hears_where_to_go_on() {
    let mut p = receiving(8);
    assert!(is_nak(&send(&mut p, 1), 0, NakCode::Sequence));
    send_quietly(&mut p, 2);
    // It was late only.
    assert!(send_quietly(&mut p, 0).is_empty());
    assert_eq!(completed(&mut p), [0]);
    assert!(is_ack(&send(&mut p, 0), 2));
    assert_eq!(completed(&mut p), [1, 2]);
    // If something else comes first, it is told of what is expected now.
    let mut p = receiving(8);
    assert!(is_nak(&send(&mut p, 1), 0, NakCode::Sequence));
    assert!(send_quietly(&mut p, 0).is_empty());
    assert!(is_nak(&send(&mut p, 3), 1, NakCode::Sequence));
    assert!(is_ack_twice(&send(&mut p, 0), 0), "a duplicate");
    assert!(is_nak(&send(&mut p, 1), 2, NakCode::Sequence));
    assert!(is_ack(&send(&mut p, 2), 3));
    // A READ asks as well.
    let mut p = responder(Setup::default());
    let far = p.buffer(A, &pattern(8, 1));
    let nothing = |n| request(WRITE_NOTHING, n, &[]);
    let late = quiet(request(read(far), 0, &[]));
    assert!(is_nak(&ask(&mut p, nothing(1)), 0, NakCode::Sequence));
    assert_eq!(ask(&mut p, late).len(), 1);
    let got = ask(&mut p, request(read(far), 0, &[]));
    assert_eq!(psns(&got), [psn(0), psn(1)]);
}

#[test]
fn a_peer_that_has_asked_alone_need_not_ask_for_what_came_late() {
    // In the middle of a message it need not ask, so it asks alone.
    let mut p = responder(Setup::default());
    let far = p.zeros(A, 20 * 256);
    let piece = |n: u32, ack_req| {
        let kind = match write(far) {
            Kind::Write { reth, imm } => Kind::Write {
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
        let got = ask(&mut p, piece(n, ack_req));
        let nak = got.len() == 1 && is_nak(&got, n - 1, NakCode::Sequence);
        (p.qps[0].snapshot().expected_psn, got.len(), nak)
    };
    come(0, false);
    assert_eq!(come(2, false), (psn(1), 1, true));
    assert_eq!(come(3, false), (psn(1), 0, false));
    assert_eq!(come(1, true), (psn(4), 1, false));
    assert_eq!(come(5, false), (psn(4), 1, true));
    assert_eq!(come(4, false), (psn(6), 0, false), "late only");
    // A copy of what is behind that tells that it is not so.
    come(5, false);
    assert_eq!(come(7, false), (psn(6), 1, true));
    assert_eq!(come(6, false), (psn(7), 0, false));
    assert_eq!(come(7, false), (psn(8), 0, false));
    // The end of a message asks in any case, so it tells nothing.
    let mut p = receiving(8);
    send(&mut p, 1);
    assert!(is_ack(&send(&mut p, 0), 1));
    send(&mut p, 3);
    assert!(send_quietly(&mut p, 2).is_empty());
    assert_eq!(completed(&mut p), [0, 1, 2]);
}

#[test]
fn behind_what_came_late_another_gap_is_told_when_something_comes() {
    let mut p = receiving(4);
    send(&mut p, 2);
    assert!(send_quietly(&mut p, 0).is_empty());
    assert!(is_nak(&send_quietly(&mut p, 3), 1, NakCode::Sequence));
    // It was told of this one.
    assert!(is_ack_twice(&send(&mut p, 0), 0), "a duplicate");
    assert!(is_ack(&send(&mut p, 1), 3));
}

#[test]
fn a_gap_that_closes_before_it_is_told_is_none() {
    let mut p = responder(Setup::default());
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
fn what_is_kept_dies_with_an_rnr_nak() {
    let mut p = receiving(0);
    assert!(is_nak(&send(&mut p, 1), 0, NakCode::Sequence));
    let got = send(&mut p, 0);
    assert!(
        matches!(got[0].kind, Kind::Ack(aeth) if matches!(aeth.syndrome, AethSyndrome::Rnr { .. }))
    );
    // Nor is anything kept behind it.
    assert!(send(&mut p, 2).is_empty());
    for wr_id in 0..3 {
        p.post_recv(A, wr_id, &[]);
    }
    let buffer = p.zeros(A, 8);
    p.world.end(A).rq[0].sges = vec![buffer.sge()];
    assert!(is_ack(&send(&mut p, 0), 0), "no receive for the second");
    assert_eq!(p.statuses(A), [(0, Success)]);
    // The same where the receive is missing for one that was kept.
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
fn what_is_kept_dies_with_the_connection() {
    let mut p = receiving(4);
    send(&mut p, 1);
    p.reset(A);
    p.connect(A);
    for wr_id in 0..4 {
        let buffer = p.zeros(A, 8);
        p.post_recv(A, wr_id, &[buffer.sge()]);
    }
    assert!(is_ack(&send(&mut p, 0), 0));
    // A refusal that waits behind a READ.
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
fn two_that_differ_in_one_psn_are_both_dropped() {
    let mut p = receiving(4);
    send(&mut p, 2);
    send(&mut p, 1);
    let other = ask(&mut p, request(SEND, 1, &[9; 8]));
    assert!(other.is_empty());
    assert!(is_nak(&send(&mut p, 0), 1, NakCode::Sequence));
    // A copy is no other, whether or not it asks for an acknowledgement.
    let mut copy = request(SEND, 2, &[2; 8]);
    copy.ack_req = false;
    assert!(ask(&mut p, copy).is_empty());
    assert!(is_ack(&send(&mut p, 1), 2));
}

#[test]
fn no_more_is_kept_than_fits() {
    let mut p = receiving(140);
    send(&mut p, 1);
    send(&mut p, 127);
    assert_eq!(p.qps[0].counters().kept, 2);
    send(&mut p, 128);
    send(&mut p, 1 << 22);
    assert_eq!(p.qps[0].counters().kept, 2, "too far ahead");
    let mut p = receiving(4);
    p.restrict(A, 2 * 264);
    for n in 1..4 {
        send(&mut p, n);
    }
    assert_eq!(p.qps[0].counters().kept, 2);
    assert!(is_ack(&send(&mut p, 0), 2));
}

#[test]
fn what_is_kept_is_of_the_owners_account() {
    let mut p = receiving(4);
    let whole = p.restrict(A, 10_000);
    send(&mut p, 1);
    send(&mut p, 2);
    assert_eq!(whole.left(), 10_000 - 2 * 264);
    send(&mut p, 0);
    assert_eq!(whole.left(), 10_000);
    send(&mut p, 4);
    assert_eq!(whole.left(), 10_000 - 264);
    p.modify(A, QpState::Err).unwrap();
    assert_eq!(whole.left(), 10_000);
}
