// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The reliable responder: PSN windows, acknowledgements, NAKs.

use super::by_hand::*;
use super::pattern;
use verbena_lab_transport::{ArenaBuffer, LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::{EventType, Syndrome, WcStatus::*};
use verbena_transport::packet::{AethSyndrome, NakCode, PacketKind, SendTail};
use verbena_transport::QpState;

const RNR: AethSyndrome = AethSyndrome::Rnr { timer: 1 };

fn expected(p: &QpPair) -> u32 {
    p.qps[0].snapshot().expected_psn
}

#[test]
fn the_psn_expected_follows_each_request() {
    let mut p = rc();
    let (word, far) = (p.zeros(A, 8), p.zeros(A, 1000));
    p.post_recv(A, 1, &[far.sge()]);
    assert_eq!(expected(&p), psn(0), "the first PSN");
    assert!(is_ack(&exchange(&mut p, request(SEND, 0, &[1; 10])), 0));
    assert!(is_ack(
        &exchange(&mut p, request(write(word), 1, &[2; 8])),
        1
    ));
    assert_eq!(
        psns(&exchange(&mut p, request(fetch_add(word, 1), 2, &[]))),
        [psn(2)]
    );
    // A READ of 1000 bytes has 4 responses, and uses as many PSNs.
    let got = exchange(&mut p, request(read(far), 3, &[]));
    assert_eq!(psns(&got), [psn(3), psn(4), psn(5), psn(6)]);
    assert_eq!(expected(&p), psn(7));
    assert!(is_ack(
        &exchange(&mut p, request(write(word), 7, &[2; 8])),
        7
    ));
}

#[test]
fn duplicates_and_gaps_meet_at_half_of_the_psns() {
    let half = verbena_transport::psn::PSN_WINDOW;
    let mut p = rc();
    let word = p.zeros(A, 8);
    assert!(is_ack(
        &exchange(&mut p, request(write(word), 0, &[1; 8])),
        0
    ));
    // The oldest duplicate is acknowledged. A PSN that is one older counts as far ahead.
    let oldest = half + 1;
    assert!(is_ack_twice(
        &exchange(&mut p, request(write(word), oldest, &[2; 8])),
        0
    ));
    let got = exchange(&mut p, request(write(word), oldest - 1, &[3; 8]));
    assert!(is_nak(&got, 1, NakCode::Sequence));
    assert_eq!(p.adapter.bytes(word), [1; 8]);
}

#[test]
fn a_request_ahead_is_not_executed() {
    let mut p = rc();
    let far = p.buffer(A, &[7; 8]);
    p.post_recv(A, 1, &[far.sge()]);
    for kind in [write(far), SEND] {
        exchange(&mut p, request(kind, 1, &[1; 8]));
    }
    for kind in [fetch_add(far, 1), read(far)] {
        exchange(&mut p, request(kind, 1, &[]));
    }
    assert_eq!(p.adapter.bytes(far), [7; 8]);
    assert_eq!((expected(&p), p.qps[0].snapshot().msn), (psn(0), 0));
    assert!(p.completions(A).is_empty());
}

#[test]
fn requests_are_taken_in_rtr_rts_and_sqd() {
    for state in [QpState::Rtr, QpState::Rts, QpState::Sqd] {
        let mut p = QpPair::in_reset(PairSetup {
            mode: LinkMode::Split,
            psns: [0, FIRST],
            ..PairSetup::default()
        });
        p.link.record = true;
        let word = p.zeros(A, 8);
        for to in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd] {
            p.modify(A, to).unwrap();
            if to == state {
                break;
            }
        }
        let got = exchange(&mut p, request(write(word), 0, &[5; 8]));
        assert!(is_ack(&got, 0), "{state:?}");
        let got = exchange(&mut p, request(read(word), 1, &[]));
        assert_eq!(psns(&got), [psn(1)], "{state:?}");
        assert_eq!(p.adapter.bytes(word), [5; 8]);
    }
}

#[test]
fn a_key_to_invalidate_may_come_with_a_last() {
    let mut p = rc();
    let (window, far) = (p.zeros(A, 8), p.zeros(A, 600));
    p.post_recv(A, 1, &[far.sge()]);
    exchange(&mut p, part(true, false, request(SEND, 0, &[1; 256])));
    assert!(p.adapter.region(window).valid);
    let last = PacketKind::Send(SendTail::Invalidate(window.key));
    let got = exchange(&mut p, part(false, true, request(last, 1, &[2; 10])));
    assert!(is_ack(&got, 1));
    let got = p.completions(A);
    assert_eq!(
        (got[0].invalidated, got[0].byte_len),
        (Some(window.key), 266)
    );
    assert!(!p.adapter.region(window).valid);
}

#[test]
fn an_acknowledgement_waits_for_earlier_reads() {
    let mut p = rc();
    let far = p.buffer(A, &pattern(600, 1));
    put(&mut p, request(read(far), 0, &[]));
    put(&mut p, request(WRITE_NOTHING, 3, &[]));
    put(&mut p, request(fetch_add(far, 0), 4, &[]));
    put(&mut p, request(WRITE_NOTHING, 5, &[]));
    let got = answers(&mut p);
    assert_eq!(psns(&got), [psn(0), psn(1), psn(2), psn(4), psn(5)]);
    assert!(is_ack(&got[4..], 5), "one acknowledgement covers both");
}

#[test]
fn every_aeth_carries_the_msn() {
    let mut p = rc();
    let far = p.zeros(A, 512);
    let small = ArenaBuffer { len: 8, ..far };
    let msn = |packets: &[verbena_transport::Packet]| -> Vec<u32> {
        packets
            .iter()
            .filter_map(aeth)
            .map(|aeth| aeth.msn)
            .collect()
    };
    // The MSN counts a message when it is complete.
    let first = part(true, false, request(write(far), 0, &[1; 256]));
    assert_eq!(msn(&exchange(&mut p, first)), [0]);
    let last = part(false, true, request(WRITE_ON, 1, &[1; 256]));
    assert_eq!(msn(&exchange(&mut p, last)), [1]);
    // The MSN counts a READ when its request is taken.
    assert_eq!(msn(&exchange(&mut p, request(read(far), 2, &[]))), [2, 2]);
    assert_eq!(
        msn(&exchange(&mut p, request(fetch_add(small, 1), 4, &[]))),
        [3]
    );
    // NAKs have the MSN too, and a duplicate does not count again.
    assert_eq!(
        msn(&exchange(&mut p, request(write(small), 9, &[1; 8]))),
        [3]
    );
    assert_eq!(msn(&exchange(&mut p, request(read(far), 2, &[]))), [3, 3]);
    assert_eq!(
        msn(&exchange(&mut p, request(SEND, 5, &[]))),
        [3],
        "RNR NAK"
    );
}

#[test]
fn a_read_response_has_its_aeths_at_its_ends() {
    let mut p = rc();
    let far = p.zeros(A, 1000);
    let got = exchange(&mut p, request(read(far), 0, &[]));
    let has: Vec<bool> = got.iter().map(|packet| aeth(packet).is_some()).collect();
    assert_eq!(has, [true, false, false, true]);
    let places: Vec<_> = got
        .iter()
        .map(|packet| (packet.first, packet.last))
        .collect();
    assert_eq!(
        places,
        [(true, false), (false, false), (false, false), (false, true)]
    );
    assert_eq!(got[3].payload.len(), 1000 - 3 * 256);
}

#[test]
fn a_gap_is_reported_once_and_again_after_progress() {
    let mut p = responder(PairSetup {
        recovers: false,
        ..PairSetup::default()
    });
    let word = p.zeros(A, 8);
    let write = |p: &mut QpPair, n| exchange(p, request(write(word), n, &[1; 8]));
    assert!(is_nak(&write(&mut p, 1), 0, NakCode::Sequence));
    assert!(write(&mut p, 2).is_empty());
    assert!(write(&mut p, 1).is_empty());
    assert!(is_ack(&write(&mut p, 0), 0));
    // The next gap is reported too.
    assert!(is_nak(&write(&mut p, 2), 1, NakCode::Sequence));
    // A duplicate is no progress, so the gap is not reported again.
    assert!(is_ack_twice(&write(&mut p, 0), 0));
    assert!(write(&mut p, 3).is_empty());
    assert_eq!(p.qps[0].counters().sequence_naks_sent, 2);
}

#[test]
fn nothing_is_executed_after_a_refusal() {
    let mut p = rc();
    let far = p.buffer(A, &[7; 300]);
    let small = ArenaBuffer { len: 8, ..far };
    put(&mut p, request(read(far), 0, &[]));
    // The SEND is refused, and its NAK waits for the READ responses.
    put(&mut p, part(false, true, request(SEND, 2, &[1])));
    put(&mut p, request(write(small), 2, &[1; 8]));
    put(&mut p, request(write(small), 3, &[1; 8]));
    put(&mut p, request(read(far), 0, &[]));
    let got = answers(&mut p);
    assert_eq!(psns(&got), [psn(0), psn(1), psn(2)]);
    assert!(is_nak(&got[2..], 2, NakCode::InvalidRequest));
    assert_eq!(p.adapter.bytes(far), [7; 300]);
    assert_eq!(p.events(A), [EventType::QpReqErr]);
    assert_eq!(p.state(A), QpState::Err);
}

#[test]
fn nothing_is_acknowledged_after_a_cq_error() {
    // The requests arrive ahead of a gap, or in order.
    for kept in [true, false] {
        let mut p = rc();
        let word = p.zeros(A, 8);
        for wr_id in 0..4 {
            p.post_recv(A, wr_id, &[word.sge()]);
        }
        p.adapter.queues(A).cq_room = Some(1);
        if kept {
            assert!(is_nak(
                &exchange(&mut p, request(SEND, 1, &[1])),
                0,
                NakCode::Sequence
            ));
            assert!(exchange(&mut p, request(SEND, 2, &[2])).is_empty());
            assert!(exchange(&mut p, request(SEND, 0, &[0])).is_empty());
        } else {
            assert!(is_ack(&exchange(&mut p, request(SEND, 0, &[0])), 0));
            assert!(exchange(&mut p, request(SEND, 1, &[1])).is_empty());
            assert!(exchange(&mut p, request(SEND, 2, &[2])).is_empty());
        }
        assert_eq!(p.statuses(A), [(0, Success)], "kept: {kept}");
        assert_eq!(p.adapter.queues(A).taken, 2, "kept: {kept}");
        // The queue pair does nothing until its owner reports the failure, and then enters ERR
        // once.
        assert_eq!(p.state(A), QpState::Rts);
        p.post(A, SendPost::write(9, &[word.sge()], word));
        assert!(answers(&mut p).is_empty());
        let host = &mut p.adapter.host(A);
        p.qps[0].handle_failure(host, 0, Some(EventType::QpFatal), Syndrome::CqDied);
        answers(&mut p);
        assert_eq!(p.state(A), QpState::Err);
        assert_eq!(p.events(A), [EventType::QpFatal]);
    }
}

#[test]
fn the_last_nak_is_not_repeated_for_ever() {
    let mut p = rc();
    let bad = part(false, true, request(SEND, 0, &[1]));
    assert!(is_nak(
        &exchange(&mut p, bad.clone()),
        0,
        NakCode::InvalidRequest
    ));
    let mut repeated = 0;
    for _ in 0..100 {
        let got = exchange(&mut p, bad.clone());
        if !got.is_empty() {
            assert!(is_nak(&got, 0, NakCode::InvalidRequest));
            repeated += 1;
        }
    }
    assert_eq!(repeated, 16);
}

#[test]
fn the_last_nak_is_repeated_for_requests_that_want_an_answer() {
    let bad = part(false, true, request(SEND, 0, &[1]));
    for ack_req in [false, true] {
        let mut p = rc();
        let far = p.zeros(A, 8);
        exchange(&mut p, bad.clone());
        // READs and atomics are answered with and without AckReq.
        for kind in [SEND, write(far), read(far), fetch_add(far, 1)] {
            let answered =
                ack_req || !matches!(kind, PacketKind::Send(_) | PacketKind::Write { .. });
            let mut again = request(kind, 0, &[]);
            again.ack_req = ack_req;
            let got = exchange(&mut p, again);
            assert_eq!(!got.is_empty(), answered, "{kind:?} {ack_req}");
            assert!(got.is_empty() || is_nak(&got, 0, NakCode::InvalidRequest));
        }
    }
}

#[test]
fn rnr_names_the_request_and_the_timer() {
    let mut setup = PairSetup::default();
    setup.attr.min_rnr_timer = 17;
    let mut p = responder(setup);
    let far = p.zeros(A, 300);
    let rnr = AethSyndrome::Rnr { timer: 17 };
    let got = exchange(&mut p, request(SEND, 0, &[]));
    assert_eq!(acks(&got), [(psn(0), rnr)]);
    // Each copy that finds no receive is answered.
    let got = exchange(&mut p, request(SEND, 0, &[]));
    assert_eq!(acks(&got), [(psn(0), rnr)]);
    p.post_recv(A, 1, &[]);
    assert!(is_ack(&exchange(&mut p, request(SEND, 0, &[])), 0));
    // A WRITE gets the RNR NAK at the packet that needs the receive.
    let first = part(true, false, request(write(far), 1, &[1; 256]));
    assert!(is_ack(&exchange(&mut p, first), 1));
    let last = PacketKind::Write {
        reth: None,
        imm: Some([0; 4]),
    };
    let got = exchange(&mut p, part(false, true, request(last, 2, &[1; 44])));
    assert_eq!(acks(&got), [(psn(2), rnr)]);
    assert_eq!(p.qps[0].counters().rnr_naks_sent, 3);
}

#[test]
fn requests_after_an_rnr_nak_are_dropped_silently() {
    let mut p = rc();
    let word = p.buffer(A, &[7; 8]);
    let got = exchange(&mut p, request(SEND, 0, &[]));
    assert_eq!(acks(&got), [(psn(0), RNR)]);
    for n in 1..5 {
        assert!(exchange(&mut p, request(write(word), n, &[1; 8])).is_empty());
    }
    assert_eq!(p.adapter.bytes(word), [7; 8]);
    p.post_recv(A, 1, &[]);
    assert!(is_ack(&exchange(&mut p, request(SEND, 0, &[])), 0));
    assert!(is_ack(
        &exchange(&mut p, request(write(word), 1, &[1; 8])),
        1
    ));
    // After the SEND was executed, a gap is reported again.
    let got = exchange(&mut p, request(write(word), 4, &[1; 8]));
    assert!(is_nak(&got, 2, NakCode::Sequence));
}

#[test]
fn one_read_more_than_agreed_is_an_invalid_request() {
    let mut setup = PairSetup::default();
    setup.attr.max_dest_rd_atomic = 2;
    let mut p = responder(setup);
    let far = p.zeros(A, 8);
    // Two requests at once are accepted, READs and atomics counted together, and two more after
    // these are answered.
    for n in [0, 2] {
        put(&mut p, request(read(far), n, &[]));
        put(&mut p, request(fetch_add(far, 1), n + 1, &[]));
        assert_eq!(psns(&answers(&mut p)), [psn(n), psn(n + 1)]);
    }
    for n in 4..7 {
        put(&mut p, request(read(far), n, &[]));
    }
    let got = answers(&mut p);
    assert_eq!(psns(&got), [psn(4), psn(5), psn(6)]);
    assert!(is_nak(&got[2..], 6, NakCode::InvalidRequest));
    assert_eq!(p.events(A), [EventType::QpReqErr]);
}

#[test]
fn class_b_faults_are_not_reported() {
    let mut p = rc();
    exchange(&mut p, request(SEND, 3, &[]));
    exchange(&mut p, request(SEND, 0, &[]));
    assert_eq!(p.state(A), QpState::Rts);
    assert!(p.events(A).is_empty() && p.completions(A).is_empty());
}

#[test]
fn communication_is_established_once() {
    let mut p = QpPair::in_reset(PairSetup {
        mode: LinkMode::Split,
        psns: [0, FIRST],
        ..PairSetup::default()
    });
    for life in 0..2 {
        let word = p.zeros(A, 8);
        p.modify(A, QpState::Init).unwrap();
        p.modify(A, QpState::Rtr).unwrap();
        for n in 0..2 {
            put(&mut p, request(write(word), n, &[1; 8]));
        }
        assert_eq!(p.events(A), [EventType::CommEst], "life {life}");
        p.modify(A, QpState::Rts).unwrap();
        put(&mut p, request(write(word), 2, &[1; 8]));
        assert!(p.events(A).is_empty());
        p.reset(A);
    }
    // A packet that arrives in RTS does not report it.
    p.connect(A);
    put(&mut p, request(SEND, 0, &[]));
    assert!(p.events(A).is_empty());
}

#[test]
fn a_write_with_immediate_may_be_solicited() {
    for solicited in [false, true] {
        let mut p = rc();
        let word = p.zeros(A, 8);
        p.post_recv(A, 1, &[]);
        let kind = PacketKind::Write {
            reth: Some(reth(word)),
            imm: Some([1; 4]),
        };
        let mut packet = request(kind, 0, &[1; 8]);
        packet.solicited = solicited;
        exchange(&mut p, packet);
        let got = p.completions(A);
        assert_eq!((got[0].status, got[0].solicited), (Success, solicited));
    }
}

#[test]
fn a_super_packet_longer_than_the_receive_is_refused_at_the_first_packet_that_does_not_fit() {
    let mut p = rc();
    let far = p.zeros(A, 600);
    p.post_recv(A, 1, &[far.sge()]);
    let mut packet = request(SEND, 0, &[9; 1000]);
    packet.psns = 4;
    let got = exchange(&mut p, packet);
    assert!(is_nak(&got, 2, NakCode::InvalidRequest));
    assert_eq!(p.adapter.bytes(far)[..512], [9; 512]);
    assert_eq!(p.adapter.bytes(far)[512..], vec![0; 88][..]);
    assert_eq!(p.statuses(A), [(1, LocLenErr)]);
}
