// SPDX-License-Identifier: GPL-2.0 OR MIT

//! READs over a wire, which are requested in parts of half a window.

use super::answered::*;
use super::by_hand;
use super::pattern;
use std::ops::Range;
use verbena_lab_transport::{ArenaBuffer, LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::{EventType, WcStatus::*};
use verbena_transport::packet::{Aeth, AethSyndrome, NakCode, Packet, PacketKind};
use verbena_transport::qp::credits;
use verbena_transport::QpState;

/// Returns a setup with a window of 8 packets, so parts of 4 responses, and this `max_rd_atomic`.
fn places(count: u8) -> PairSetup {
    let mut setup = PairSetup {
        window: 8,
        ..PairSetup::default()
    };
    setup.attr.max_rd_atomic = count;
    setup
}

/// Returns a requester with a READ of 11 responses in parts of 4, 4 and 3. The last response has
/// 100 bytes.
fn reader(setup: PairSetup) -> (QpPair, ArenaBuffer, ArenaBuffer) {
    let mut p = requester(setup);
    let (back, there) = (p.zeros(A, 2660), p.zeros(B, 2660));
    p.post(A, SendPost::read(1, &[back.sge()], there));
    (p, back, there)
}

/// Returns the PSN of each packet, counted from the first PSN, and for a READ request its offset in
/// `from` and its length.
fn requested_ranges(packets: &[Packet], from: ArenaBuffer) -> Vec<(u32, Option<(u64, u32)>)> {
    let one = |packet: &Packet| {
        let part = match packet.kind {
            PacketKind::ReadRequest(reth) => Some((reth.addr - from.addr, reth.length)),
            _ => None,
        };
        (verbena_transport::psn::ahead(packet.psn, psn(0)), part)
    };
    packets.iter().map(one).collect()
}

/// Delivers the responses `these` to a request for the responses `begin..end`. Each has 256 bytes,
/// except response 10.
fn some(p: &mut QpPair, these: Range<u32>, begin: u32, end: u32, aeth: Aeth) {
    for at in these {
        let ends = [at == begin, at + 1 == end];
        let kind = PacketKind::ReadResponse(ends.contains(&true).then_some(aeth));
        let length = if at == 10 { 100 } else { 256 };
        answer_part(p, kind, at, &vec![at as u8 + 1; length], ends);
    }
}

/// Delivers all responses to a request for the responses `begin..end`.
fn respond(p: &mut QpPair, begin: u32, end: u32) {
    some(p, begin..end, begin, end, positive());
}

/// Returns the oldest PSN that is not acknowledged, counted from the first PSN.
fn una(p: &QpPair) -> u32 {
    verbena_transport::psn::ahead(p.qps[0].snapshot().una_psn, psn(0))
}

const PARTS: [(u32, Option<(u64, u32)>); 3] = [
    (0, Some((0, 1024))),
    (4, Some((1024, 1024))),
    (8, Some((2048, 612))),
];

#[test]
fn a_read_is_requested_in_parts_that_fit_the_window() {
    let (mut p, back, there) = reader(places(4));
    // Two parts fill the window.
    assert_eq!(requested_ranges(&sent(&mut p), there), PARTS[..2]);
    // The third part waits until the window has room for all its responses.
    respond(&mut p, 0, 4);
    assert_eq!(una(&p), 4);
    assert_eq!(requested_ranges(&sent(&mut p), there), PARTS[2..]);
    respond(&mut p, 4, 8);
    assert!(sent(&mut p).is_empty() && p.completions(A).is_empty());
    respond(&mut p, 8, 11);
    let done = p.completions(A);
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].status, done[0].byte_len), (Success, 2660));
    let bytes = p.adapter.bytes(back);
    assert!(bytes
        .iter()
        .enumerate()
        .all(|(at, b)| *b == (at / 256) as u8 + 1));
    assert_eq!(p.qps[0].next_deadline(), None);
}

#[test]
fn packets_in_flight_count_for_the_window_of_a_part() {
    let mut p = requester(places(4));
    let (src, back, there) = (p.zeros(A, 1280), p.zeros(A, 1024), p.zeros(B, 1280));
    p.post(A, SendPost::write(1, &[src.sge()], there));
    p.post(A, SendPost::read(2, &[back.sge()], there));
    // 5 of 8 packets are in flight, so there is no room for 4 responses.
    assert_eq!(numbers(&mut p), [0, 1, 2, 3, 4]);
    ack(&mut p, 0);
    assert_eq!(numbers(&mut p), [5]);
}

#[test]
fn with_max_rd_atomic_1_parts_are_requested_one_after_the_other() {
    let (mut p, _, there) = reader(places(1));
    let src = p.zeros(A, 8);
    p.post(A, SendPost::write(2, &[src.sge()], there));
    for (n, part) in PARTS.into_iter().enumerate() {
        let packets = requested_ranges(&sent(&mut p), there);
        // The WRITE after the READ waits for the last part.
        let write = (n == 2).then_some((11, None));
        assert_eq!(
            packets,
            [Some(part), write]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
        );
        let (begin, end) = (part.0, [4, 8, 11][n]);
        some(&mut p, begin..end - 1, begin, end, positive());
        assert!(sent(&mut p).is_empty(), "the part is not complete");
        some(&mut p, end - 1..end, begin, end, positive());
    }
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn a_read_between_local_peers_is_one_request() {
    let mut p = QpPair::new(PairSetup {
        mode: LinkMode::Local,
        ..places(1)
    });
    p.link.record = true;
    let (back, there) = (p.zeros(A, 2660), p.zeros(B, 2660));
    p.post(A, SendPost::read(1, &[back.sge()], there));
    p.settle();
    let requests = p.link.log.iter().filter(|(side, _)| *side == A);
    assert_eq!(requests.count(), 1);
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn a_lost_response_is_requested_again_with_the_requested_parts_after_it() {
    let (mut p, _, there) = reader(places(4));
    sent(&mut p);
    // The third response is lost, and the fourth shows the loss.
    let part = PacketKind::ReadResponse;
    answer_part(&mut p, part(Some(positive())), 0, &[1; 256], [true, false]);
    answer_part(&mut p, part(None), 1, &[2; 256], [false, false]);
    answer_part(&mut p, part(Some(positive())), 3, &[4; 256], [false, true]);
    // The third part is not requested, because the window has no room for it yet.
    let rest = (2, Some((512, 512)));
    assert_eq!(requested_ranges(&sent(&mut p), there), [rest, PARTS[1]]);
    assert_eq!(p.qps[0].counters().implied_naks, 1);
    respond(&mut p, 2, 4);
    assert_eq!(requested_ranges(&sent(&mut p), there), PARTS[2..]);
    respond(&mut p, 4, 8);
    respond(&mut p, 8, 11);
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn a_timeout_repeats_each_part_and_counts_none_twice() {
    let (mut p, back, there) = reader(PairSetup {
        recovers: false,
        ..places(2)
    });
    sent(&mut p);
    for _ in 0..3 {
        let at = p.qps[0].next_deadline().unwrap();
        p.run_until(at);
        assert_eq!(requested_ranges(&sent(&mut p), there), PARTS[..2]);
    }
    respond(&mut p, 0, 4);
    respond(&mut p, 4, 8);
    assert_eq!(requested_ranges(&sent(&mut p), there), PARTS[2..]);
    respond(&mut p, 8, 11);
    assert_eq!(p.statuses(A), [(1, Success)]);
    // Both places of `max_rd_atomic` are free again, and no more.
    for wr_id in 2..=4 {
        p.post(A, SendPost::read(wr_id, &[back.part(0, 8)], there));
    }
    assert_eq!(numbers(&mut p), [11, 12]);
}

#[test]
fn a_response_with_wrong_ends_of_its_part_is_bad() {
    // Number of responses before, the bad response, and its first and last flags.
    for (before, n, ends) in [
        (3, 3, [false, false]),
        (4, 4, [false, false]),
        (2, 2, [false, true]),
    ] {
        let (mut p, _, _) = reader(places(4));
        sent(&mut p);
        for at in 0..before {
            let part_ends = [at == 0, at == 3];
            let kind = PacketKind::ReadResponse(part_ends.contains(&true).then(positive));
            answer_part(&mut p, kind, at, &[1; 256], part_ends);
        }
        let kind = PacketKind::ReadResponse(ends.contains(&true).then(positive));
        answer_part(&mut p, kind, n, &[1; 256], ends);
        assert_eq!(p.statuses(A), [(1, BadRespErr)], "{n}");
    }
}

#[test]
fn a_part_that_is_refused_ends_the_read() {
    let (mut p, _, _) = reader(places(4));
    sent(&mut p);
    respond(&mut p, 0, 4);
    sent(&mut p);
    nak(&mut p, 4, NakCode::RemoteAccess);
    assert_eq!(p.statuses(A), [(1, RemAccessErr)]);
    assert_eq!(p.state(A), QpState::Err);
}

#[test]
fn a_nak_between_parts_goes_back_to_its_part() {
    let (mut p, _, there) = reader(PairSetup {
        recovers: false,
        ..places(4)
    });
    sent(&mut p);
    respond(&mut p, 0, 4);
    assert_eq!(requested_ranges(&sent(&mut p), there), PARTS[2..]);
    nak(&mut p, 4, NakCode::Sequence);
    assert_eq!(requested_ranges(&sent(&mut p), there), PARTS[1..]);
    respond(&mut p, 4, 8);
    respond(&mut p, 8, 11);
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn sqd_completes_a_read_that_was_requested_in_part() {
    for lowered in [4, 0] {
        let mut setup = places(4);
        setup.attr.sqd_notify = true;
        let (mut p, _, there) = reader(setup);
        p.post(A, SendPost::write(2, &[], there));
        assert_eq!(requested_ranges(&sent(&mut p), there), PARTS[..2]);
        p.modify(A, QpState::Sqd).unwrap();
        let attr = verbena_transport::Attr {
            max_rd_atomic: lowered,
            ..p.attr(A)
        };
        p.modify_attr(A, QpState::Sqd, &attr).unwrap();
        respond(&mut p, 0, 4);
        respond(&mut p, 4, 8);
        assert!(p.events(A).is_empty(), "the READ is not complete");
        assert_eq!(requested_ranges(&sent(&mut p), there), PARTS[2..]);
        assert!(p.qps[0].snapshot().sq_draining);
        respond(&mut p, 8, 11);
        assert!(sent(&mut p).is_empty(), "the WRITE does not start in SQD");
        assert_eq!(p.events(A), [EventType::SqDrained]);
        assert_eq!(p.statuses(A), [(1, Success)]);
    }
}

#[test]
fn a_fence_waits_for_all_parts() {
    let (mut p, _, there) = reader(places(4));
    p.post(A, SendPost::write(2, &[], there).fence());
    sent(&mut p);
    respond(&mut p, 0, 4);
    respond(&mut p, 4, 8);
    assert_eq!(requested_ranges(&sent(&mut p), there), PARTS[2..]);
    respond(&mut p, 8, 11);
    assert_eq!(numbers(&mut p), [11]);
}

#[test]
fn each_part_counts_as_a_message_in_the_peers_msn() {
    let mut p = requester(PairSetup {
        window: 8,
        ..PairSetup::default()
    });
    let (back, there) = (p.zeros(A, 2660), p.zeros(B, 2660));
    p.post(A, SendPost::read(1, &[back.sge()], there));
    for wr_id in 2..=5 {
        p.post(A, SendPost::send(wr_id, &[]));
    }
    let told = |msn, receives| Aeth {
        syndrome: AethSyndrome::Ack {
            credits: credits::encode(receives),
        },
        msn,
    };
    assert_eq!(numbers(&mut p), [0, 4]);
    some(&mut p, 0..4, 0, 4, told(1, 0));
    // One SEND goes without a credit after the last part.
    assert_eq!(numbers(&mut p), [8, 11]);
    some(&mut p, 4..8, 4, 8, told(2, 0));
    assert!(numbers(&mut p).is_empty());
    // That SEND has a receive, and the next one goes without a credit.
    some(&mut p, 8..11, 8, 11, told(3, 1));
    assert_eq!(numbers(&mut p), [12]);
}

#[test]
fn a_read_of_many_parts_returns_its_data_over_any_link() {
    for mode in [LinkMode::Split, LinkMode::Wire] {
        for (loss, places_of) in [(0, 1), (0, 4), (20, 1), (20, 3)] {
            let mut p = QpPair::new(PairSetup {
                mode,
                seed: 3,
                ..places(places_of)
            });
            p.link.loss = loss;
            let bytes = pattern(20_000, 7);
            let (there, back) = (p.buffer(B, &bytes), p.zeros(A, 20_000));
            p.post(A, SendPost::read(1, &[back.sge()], there));
            p.post(A, SendPost::read(2, &[back.part(0, 10)], there));
            p.settle();
            assert_eq!(
                p.statuses(A),
                [(1, Success), (2, Success)],
                "{mode:?} {loss}"
            );
            assert_eq!(p.adapter.bytes(back), bytes);
            // Each part counts as a message: 79 responses are 20 parts, and the second READ is one.
            assert_eq!(p.qps[1].snapshot().msn, 21);
        }
    }
}

#[test]
fn responses_ahead_of_a_lost_one_are_kept_until_it_arrives() {
    let (mut p, back, there) = reader(places(4));
    assert_eq!(requested_ranges(&sent(&mut p), there), PARTS[..2]);
    some(&mut p, 0..1, 0, 4, positive());
    some(&mut p, 2..4, 0, 4, positive());
    some(&mut p, 4..6, 4, 8, positive());
    some(&mut p, 7..8, 4, 8, positive());
    assert_eq!((una(&p), p.qps[0].counters().kept), (1, 5));
    // The missing response was requested once, with all that were requested after it.
    let again = [(1, Some((256, 768))), PARTS[1]];
    assert_eq!(requested_ranges(&sent(&mut p), there), again);
    some(&mut p, 1..2, 1, 4, positive());
    assert_eq!(
        una(&p),
        6,
        "all responses before the next missing one are taken"
    );
    some(&mut p, 6..7, 4, 8, positive());
    assert_eq!(una(&p), 8);
    // The second copies are stale.
    some(&mut p, 2..4, 1, 4, positive());
    assert_eq!(requested_ranges(&sent(&mut p), there), PARTS[2..]);
    respond(&mut p, 8, 11);
    assert_eq!(p.statuses(A), [(1, Success)]);
    let whole: Vec<u8> = (0..2660).map(|at| (at / 256) as u8 + 1).collect();
    assert_eq!(p.adapter.bytes(back), whole);
    assert_eq!(p.qps[0].counters().implied_naks, 1);
}

#[test]
fn a_response_with_invalid_payload_is_not_kept() {
    let mut earlier = by_hand::responder_by(LinkMode::Local, PairSetup::default());
    let far = earlier.zeros(A, 256);
    let request = by_hand::request(by_hand::read(far), 0, &[]);
    let response = by_hand::exchange(&mut earlier, request).remove(0);
    drop(earlier);
    let (mut p, _, _) = reader(places(4));
    sent(&mut p);
    p.deliver(
        A,
        Packet {
            psn: psn(2),
            kind: PacketKind::ReadResponse(None),
            first: false,
            last: false,
            ..response
        },
    );
    assert_eq!(p.qps[0].counters().kept, 0);
}

#[test]
fn kept_responses_are_limited_and_discarded_in_err() {
    let (mut p, _, _) = reader(places(4));
    let whole = p.restrict(A, 2 * 512);
    sent(&mut p);
    some(&mut p, 1..4, 0, 4, positive());
    assert_eq!((whole.available(), p.qps[0].counters().kept), (0, 2));
    some(&mut p, 0..1, 0, 4, positive());
    assert_eq!((whole.available(), una(&p)), (2 * 512, 3));
    some(&mut p, 4..5, 4, 8, positive());
    assert_eq!(whole.available(), 512);
    p.modify(A, QpState::Err).unwrap();
    assert_eq!(whole.available(), 2 * 512);
}

#[test]
fn a_kept_response_is_checked_when_it_is_taken() {
    let (mut p, _, _) = reader(places(4));
    sent(&mut p);
    // The response is too short for its place.
    answer_part(
        &mut p,
        PacketKind::ReadResponse(None),
        2,
        &[3; 100],
        [false; 2],
    );
    some(&mut p, 0..1, 0, 4, positive());
    assert_eq!(p.state(A), QpState::Rts);
    some(&mut p, 1..2, 0, 4, positive());
    assert_eq!(p.state(A), QpState::Err);
    assert_eq!(p.statuses(A), [(1, BadRespErr)]);
}

#[test]
fn a_kept_response_acknowledges_earlier_work_requests() {
    let (mut p, _, there) = reader(places(4));
    let (src, dst) = (p.zeros(A, 256), p.zeros(B, 256));
    sent(&mut p);
    respond(&mut p, 0, 4);
    respond(&mut p, 4, 8);
    assert_eq!(requested_ranges(&sent(&mut p), there), PARTS[2..]);
    p.post(A, SendPost::write(2, &[src.sge()], dst));
    p.post(A, SendPost::read(3, &[src.sge()], there));
    sent(&mut p);
    // The last but one response of the first READ is missing, and the second READ is complete.
    some(&mut p, 8..9, 8, 11, positive());
    some(&mut p, 10..11, 8, 11, positive());
    some(&mut p, 12..13, 12, 13, positive());
    assert_eq!((una(&p), p.statuses(A).len()), (9, 0));
    some(&mut p, 9..10, 9, 11, positive());
    assert_eq!(p.statuses(A), [(1, Success), (2, Success), (3, Success)]);
}
