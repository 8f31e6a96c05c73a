// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Duplicate requests: the requester went back, or the network made a copy.

use super::by_hand::*;
use super::pattern;
use verbena_lab_transport::{ArenaBuffer, LinkMode, PairSetup, PairSide::*, QpPair};
use verbena_transport::host::WcStatus::*;
use verbena_transport::packet::{AethSyndrome, NakCode, Packet, PacketKind, Reth};
use verbena_transport::QpState;

fn with_depth(depth: u8) -> QpPair {
    let mut setup = PairSetup::default();
    setup.attr.max_dest_rd_atomic = depth;
    responder(setup)
}

/// Returns the results of atomic responses.
fn values(packets: &[Packet]) -> Vec<u64> {
    packets
        .iter()
        .map(|packet| match packet.kind {
            PacketKind::AtomicResponse(_, value) => value,
            kind => panic!("{kind:?} is not an atomic response"),
        })
        .collect()
}

#[test]
fn a_send_or_write_is_acknowledged_and_not_executed() {
    let mut p = rc();
    let (far, word) = (p.zeros(A, 8), p.zeros(A, 8));
    for i in 0..2 {
        p.post_recv(A, i, &[far.sge()]);
    }
    exchange(&mut p, request(SEND, 0, &[1; 8]));
    exchange(&mut p, request(write(word), 1, &[2; 8]));
    exchange(&mut p, request(write(word), 2, &[3; 8]));
    // The acknowledgement has the PSN of the last request executed, whether or not the first copy
    // had AckReq.
    assert!(is_ack_twice(
        &exchange(&mut p, request(SEND, 0, &[9; 8])),
        2
    ));
    assert!(is_ack_twice(
        &exchange(&mut p, request(write(word), 1, &[9; 8])),
        2
    ));
    // A copy in the middle of a message is acknowledged once.
    let first = part(true, false, request(write(word), 0, &[9; 256]));
    assert!(is_ack(&exchange(&mut p, first), 2));
    let mut quiet = request(write(word), 1, &[9; 8]);
    quiet.ack_req = false;
    assert!(exchange(&mut p, quiet).is_empty());
    assert_eq!(p.adapter.bytes(far), [1; 8]);
    assert_eq!(p.adapter.bytes(word), [3; 8]);
    assert_eq!(p.statuses(A), [(0, Success)]);
    assert_eq!(p.qps[0].counters().duplicates, 4);
    assert_eq!(p.qps[0].snapshot().msn, 3);
}

#[test]
fn a_read_is_executed_again() {
    let mut p = rc();
    let far = p.buffer(A, &pattern(600, 1));
    let first = exchange(&mut p, request(read(far), 0, &[]));
    assert_eq!(psns(&first), [psn(0), psn(1), psn(2)]);
    // The READ is executed again, so it may return data that were written since.
    exchange(&mut p, request(WRITE_NOTHING, 3, &[]));
    let again = exchange(&mut p, request(read(far), 0, &[]));
    assert_eq!(psns(&again), [psn(0), psn(1), psn(2)]);
    assert!(again.iter().all(|packet| packet.payload.is_alive()));
    let lengths: Vec<u32> = again.iter().map(|packet| packet.payload.len()).collect();
    assert_eq!(lengths, [256, 256, 88]);
}

/// Returns a READ of the rest of a whole buffer, from packet `n` on.
fn rest(far: ArenaBuffer, n: u32) -> PacketKind {
    PacketKind::ReadRequest(Reth {
        addr: far.addr + u64::from(256 * n),
        rkey: far.key,
        length: far.len - 256 * n,
    })
}

#[test]
fn a_read_may_ask_for_the_rest() {
    let mut p = rc();
    let far = p.buffer(A, &pattern(1000, 1));
    assert_eq!(exchange(&mut p, request(read(far), 0, &[])).len(), 4);
    for n in [1, 3, 2, 0] {
        let got = exchange(&mut p, request(rest(far, n), n, &[]));
        let all: Vec<u32> = (n..4).map(psn).collect();
        assert_eq!(psns(&got), all);
        assert!(got[0].first && got[got.len() - 1].last);
        assert!(aeth(&got[0]).is_some());
        let bytes: u32 = got.iter().map(|packet| packet.payload.len()).sum();
        assert_eq!(bytes, 1000 - 256 * n);
    }
    assert_eq!(p.qps[0].snapshot().msn, 1, "the READ counts once");
}

#[test]
fn a_read_that_differs_from_the_first_is_dropped() {
    let mut p = rc();
    let (far, other) = (p.zeros(A, 1000), p.zeros(A, 1000));
    exchange(&mut p, request(read(far), 0, &[]));
    let good = reth(far);
    for (n, bad) in [
        (
            0,
            Reth {
                rkey: other.key,
                ..good
            },
        ),
        (0, reth(other)),
        (
            0,
            Reth {
                addr: good.addr + 8,
                ..good
            },
        ),
        (
            0,
            Reth {
                length: 999,
                ..good
            },
        ),
        (
            0,
            Reth {
                length: 256,
                ..good
            },
        ),
        (
            0,
            Reth {
                length: 1001,
                ..good
            },
        ),
        (0, Reth { length: 0, ..good }),
        (
            0,
            Reth {
                length: u32::MAX,
                ..good
            },
        ),
        // The rest of the READ at the wrong PSN, and the whole READ at a later PSN.
        (1, good),
        (
            2,
            Reth {
                addr: good.addr + 256,
                length: 744,
                ..good
            },
        ),
    ] {
        let got = exchange(&mut p, request(PacketKind::ReadRequest(bad), n, &[]));
        assert!(got.is_empty(), "{n} {bad:?}");
    }
    // Another operation with the same PSN.
    assert!(exchange(&mut p, request(fetch_add(far, 1), 0, &[])).is_empty());
    assert_eq!(p.state(A), QpState::Rts);
    assert_eq!(exchange(&mut p, request(read(far), 0, &[])).len(), 4);
}

#[test]
fn an_atomic_gets_its_stored_result() {
    let mut p = rc();
    let word = p.buffer(A, &5u64.to_ne_bytes());
    let first = exchange(&mut p, request(fetch_add(word, 2), 0, &[]));
    let second = exchange(&mut p, request(fetch_add(word, 3), 1, &[]));
    assert_eq!((values(&first), values(&second)), (vec![5], vec![7]));
    for _ in 0..3 {
        let again = exchange(&mut p, request(fetch_add(word, 2), 0, &[]));
        assert_eq!((psns(&again), values(&again)), (vec![psn(0)], vec![5]));
        let again = exchange(&mut p, request(fetch_add(word, 3), 1, &[]));
        assert_eq!((psns(&again), values(&again)), (vec![psn(1)], vec![7]));
    }
    // Another atomic and a READ with the same PSN.
    assert!(exchange(&mut p, request(fetch_add(word, 4), 1, &[])).is_empty());
    assert!(exchange(&mut p, request(read(word), 1, &[])).is_empty());
    assert_eq!(p.adapter.bytes(word), 10u64.to_ne_bytes());
}

#[test]
fn as_many_requests_are_remembered_as_may_be_outstanding() {
    for depth in [1, 2, 4, 16] {
        let mut p = with_depth(depth);
        let word = p.zeros(A, 8);
        let depth = u32::from(depth);
        // READs and atomics count together.
        let kind = |n| {
            if n % 2 == 0 {
                fetch_add(word, 1)
            } else {
                read(word)
            }
        };
        for n in 0..3 * depth {
            assert_eq!(psns(&exchange(&mut p, request(kind(n), n, &[]))), [psn(n)]);
        }
        for n in 0..3 * depth {
            let got = exchange(&mut p, request(kind(n), n, &[]));
            assert_eq!(got.len(), usize::from(n >= 2 * depth), "{n} of {depth}");
        }
    }
}

#[test]
fn of_two_reads_with_one_psn_the_newer_is_repeated() {
    let mut setup = PairSetup::default();
    setup.attr.max_dest_rd_atomic = 8;
    let mut p = responder_by(LinkMode::Local, setup);
    let (old, new) = (p.zeros(A, 8), p.zeros(A, 8));
    // The region claims 1 GiB and has 8 bytes of memory. No payload of these READs is copied.
    let long = p.zeros(A, 8);
    p.adapter.region(long).length = 1 << 30;
    let most = (1 << 30) / 256;
    assert_eq!(exchange(&mut p, request(read(old), 0, &[])).len(), 1);
    // These READs use up all other PSNs.
    let mut n = 1;
    for psns in [most, most, most, most - 1] {
        let whole = Reth {
            length: psns * 256,
            ..reth(long)
        };
        exchange(&mut p, request(PacketKind::ReadRequest(whole), n, &[]));
        n += psns;
    }
    assert_eq!(psn(n), psn(0));
    assert_eq!(exchange(&mut p, request(read(new), 0, &[])).len(), 1);
    assert_eq!(exchange(&mut p, request(read(new), 0, &[])).len(), 1);
    assert_eq!(exchange(&mut p, request(read(old), 0, &[])).len(), 0);
}

#[test]
fn duplicates_that_are_no_longer_remembered_are_dropped() {
    let mut p = with_depth(1);
    let word = p.zeros(A, 8);
    exchange(&mut p, request(fetch_add(word, 1), 0, &[]));
    exchange(&mut p, request(read(word), 1, &[]));
    assert!(exchange(&mut p, request(fetch_add(word, 1), 0, &[])).is_empty());
    assert_eq!(p.adapter.bytes(word), 1u64.to_ne_bytes());
    assert!(p.events(A).is_empty());
    assert_eq!(p.state(A), QpState::Rts);
}

#[test]
fn responses_in_flight_become_invalid_at_reset() {
    let mut p = responder_by(LinkMode::Local, PairSetup::default());
    let far = p.zeros(A, 600);
    let got = exchange(&mut p, request(read(far), 0, &[]));
    let alive = |got: &[Packet]| got.iter().all(|packet| packet.payload.is_alive());
    // In ERR the responses remain valid, because they were sent before.
    p.modify(A, QpState::Err).unwrap();
    assert!(!got.is_empty() && alive(&got));
    p.modify(A, QpState::Reset).unwrap();
    assert!(got.iter().all(|packet| !packet.payload.is_alive()));
}

#[test]
fn a_late_copy_of_a_read_with_an_invalid_key_is_dropped() {
    let mut p = rc();
    let (far, word) = (p.zeros(A, 600), p.zeros(A, 8));
    exchange(&mut p, request(read(far), 0, &[]));
    p.adapter.region(far).valid = false;
    assert!(exchange(&mut p, request(read(far), 0, &[])).is_empty());
    assert!(p.events(A).is_empty());
    assert!(is_ack(
        &exchange(&mut p, request(write(word), 3, &[1; 8])),
        3
    ));
}

#[test]
fn a_response_to_a_late_copy_whose_key_becomes_invalid_is_dropped() {
    let mut p = rc();
    let far = p.zeros(A, 600);
    exchange(&mut p, request(read(far), 0, &[]));
    let again = exchange(&mut p, request(read(far), 0, &[]));
    p.adapter.region(far).valid = false;
    let cause = verbena_transport::host::Syndrome::RkeyUnknown;
    for packet in &again {
        p.qps[0].handle_source_fault(&mut p.adapter.host(A), p.now_ns, packet, cause);
    }
    assert_eq!(p.state(A), QpState::Rts);
    assert!(p.events(A).is_empty());
}

#[test]
fn a_response_to_a_late_copy_that_is_no_longer_remembered_is_dropped() {
    let mut p = with_depth(1);
    let (far, other) = (p.zeros(A, 600), p.zeros(A, 600));
    exchange(&mut p, request(read(far), 0, &[]));
    put(&mut p, request(read(far), 0, &[]));
    put(&mut p, request(read(other), 3, &[]));
    let responses = answers(&mut p);
    assert_eq!(psns(&responses)[0], psn(0));
    let cause = verbena_transport::host::Syndrome::RkeyUnknown;
    p.qps[0].handle_source_fault(&mut p.adapter.host(A), p.now_ns, &responses[0], cause);
    assert_eq!(p.state(A), QpState::Rts);
    assert!(p.events(A).is_empty());
}

#[test]
fn a_repeated_read_is_answered_before_the_nak_for_a_later_read() {
    let mut p = rc();
    let (far, gone) = (p.zeros(A, 600), p.zeros(A, 600));
    exchange(&mut p, request(read(far), 0, &[]));
    let responses = exchange(&mut p, request(read(gone), 3, &[]));
    put(&mut p, request(read(far), 0, &[]));
    // The WRITE is executed, but must not be acknowledged: that would acknowledge the READ before
    // it.
    put(&mut p, request(WRITE_NOTHING, 6, &[]));
    let cause = verbena_transport::host::Syndrome::RkeyUnknown;
    p.qps[0].handle_source_fault(&mut p.adapter.host(A), p.now_ns, &responses[1], cause);
    let got = answers(&mut p);
    assert_eq!(psns(&got), [psn(0), psn(1), psn(2), psn(4)]);
    assert!(
        matches!(got[3].kind, PacketKind::Ack(aeth) if aeth.syndrome == AethSyndrome::Nak(NakCode::RemoteAccess))
    );
    assert_eq!(p.state(A), QpState::Err);
    // A NAK that is repeated in ERR counts too.
    let before = p.qps[0].counters().naks_sent;
    exchange(&mut p, request(read(far), 0, &[]));
    assert_eq!(p.qps[0].counters().naks_sent, before + 1);
}

#[test]
fn a_read_whose_memory_is_gone_is_an_event_and_flushes_the_receive() {
    let mut p = rc();
    let (far, buffer) = (p.zeros(A, 600), p.zeros(A, 600));
    p.post_recv(A, 1, &[buffer.sge()]);
    let responses = exchange(&mut p, request(read(far), 0, &[]));
    put(&mut p, part(true, false, request(SEND, 3, &[1; 256])));
    let cause = verbena_transport::host::Syndrome::RkeyUnknown;
    p.qps[0].handle_source_fault(&mut p.adapter.host(A), p.now_ns, &responses[0], cause);
    p.settle();
    assert_eq!(
        p.events(A),
        [verbena_transport::host::EventType::QpAccessErr]
    );
    assert_eq!(p.statuses(A), [(1, WrFlushErr)]);
}

#[test]
fn a_local_read_whose_memory_is_gone_is_an_event_and_flushes_the_receive() {
    let mut p = responder_by(LinkMode::Local, PairSetup::default());
    let (far, buffer) = (p.zeros(A, 600), p.zeros(A, 600));
    p.post_recv(A, 1, &[buffer.sge()]);
    exchange(&mut p, request(read(far), 0, &[]));
    put(&mut p, part(true, false, request(SEND, 3, &[1; 256])));
    p.adapter.region(far).valid = false;
    let got = exchange(&mut p, request(read(far), 0, &[]));
    // The NAK follows the acknowledgement of the first part.
    assert!(is_nak(&got[1..], 0, NakCode::RemoteAccess));
    p.settle();
    assert_eq!(
        p.events(A),
        [verbena_transport::host::EventType::QpAccessErr]
    );
    assert_eq!(p.statuses(A), [(1, WrFlushErr)]);
}

#[test]
fn a_late_copy_does_not_count_among_max_dest_rd_atomic() {
    let mut p = with_depth(2);
    let far = p.zeros(A, 8);
    exchange(&mut p, request(read(far), 0, &[]));
    put(&mut p, request(read(far), 0, &[]));
    put(&mut p, request(read(far), 1, &[]));
    put(&mut p, request(read(far), 2, &[]));
    assert_eq!(psns(&answers(&mut p)), [psn(0), psn(1), psn(2)]);
    assert_eq!(p.state(A), QpState::Rts);
}

#[test]
fn a_pending_answer_is_not_sent_twice() {
    let mut p = rc();
    let far = p.zeros(A, 600);
    for _ in 0..3 {
        put(&mut p, request(read(far), 0, &[]));
        put(&mut p, request(fetch_add(far, 0), 3, &[]));
        put(&mut p, request(rest(far, 1), 1, &[]));
    }
    assert_eq!(psns(&answers(&mut p)), [psn(0), psn(1), psn(2), psn(3)]);
}

#[test]
fn a_duplicate_from_an_earlier_packet_on_includes_a_pending_answer() {
    let mut p = rc();
    let far = p.zeros(A, 600);
    exchange(&mut p, request(read(far), 0, &[]));
    exchange(&mut p, request(fetch_add(far, 0), 3, &[]));
    // The network has reordered the requests.
    put(&mut p, request(rest(far, 2), 2, &[]));
    put(&mut p, request(rest(far, 1), 1, &[]));
    put(&mut p, request(fetch_add(far, 0), 3, &[]));
    assert_eq!(psns(&answers(&mut p)), [psn(1), psn(2), psn(3)]);
}

#[test]
fn pending_answers_after_a_duplicate_are_still_sent() {
    let mut p = rc();
    let far = p.zeros(A, 600);
    exchange(&mut p, request(read(far), 0, &[]));
    put(&mut p, request(read(far), 3, &[]));
    put(&mut p, request(fetch_add(far, 0), 6, &[]));
    // The network delivers a copy of the first request.
    put(&mut p, request(read(far), 0, &[]));
    let all: Vec<u32> = (0..7).map(psn).collect();
    assert_eq!(psns(&answers(&mut p)), all);
}

#[test]
fn a_read_response_sent_in_part_begins_again_at_the_requested_packet() {
    for (asked, expected) in [(0, vec![0, 1, 2, 3]), (1, vec![1, 2, 3]), (3, vec![3])] {
        let mut p = rc();
        let far = p.zeros(A, 1000);
        put(&mut p, request(read(far), 0, &[]));
        put(&mut p, request(fetch_add(far, 0), 4, &[]));
        // Two packets of the READ are sent.
        let mut budget = verbena_transport::Budget::new(2, u64::MAX);
        p.qps[0].poll(&mut p.adapter.host(A), 0, &mut budget);
        put(&mut p, request(rest(far, asked), asked, &[]));
        let sent = psns(&answers(&mut p));
        // Responses that were not sent yet follow in their turn. A repeated request begins again at
        // the requested PSN.
        let after: Vec<u32> = if asked < 2 {
            expected.into_iter().chain([4]).collect()
        } else {
            vec![2, 3, 4]
        };
        let all: Vec<u32> = [0, 1].into_iter().chain(after).map(psn).collect();
        assert_eq!(sent, all, "asked from {asked}");
    }
}

#[test]
fn a_duplicate_before_a_response_sent_in_part_makes_it_begin_again() {
    let mut p = rc();
    let far = p.zeros(A, 600);
    exchange(&mut p, request(fetch_add(far, 0), 0, &[]));
    put(&mut p, request(read(far), 1, &[]));
    let mut budget = verbena_transport::Budget::new(2, u64::MAX);
    p.qps[0].poll(&mut p.adapter.host(A), 0, &mut budget);
    put(&mut p, request(fetch_add(far, 0), 0, &[]));
    let sent = psns(&answers(&mut p));
    let all: Vec<u32> = [1, 2, 0, 1, 2, 3].into_iter().map(psn).collect();
    assert_eq!(sent, all);
}
