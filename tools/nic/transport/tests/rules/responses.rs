// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The effects of each answer on a requester.

use super::answered::*;
use super::by_hand;
use super::pattern;
use verbena_lab_transport::{ArenaBuffer, LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::{Syndrome, WcStatus, WcStatus::*, WqeOpcode};
use verbena_transport::packet::{Aeth, AethSyndrome, NakCode, Packet, PacketKind};
use verbena_transport::{Budget, QpState};

/// Returns a requester with a WRITE of 3 packets (PSNs 0 to 2), a READ of 3 responses (3 to 5) and
/// a WRITE (6) outstanding.
fn busy() -> (QpPair, ArenaBuffer) {
    busy_of(PairSetup::default())
}

fn busy_of(setup: PairSetup) -> (QpPair, ArenaBuffer) {
    let mut p = requester(setup);
    let (src, back) = (p.buffer(A, &pattern(600, 1)), p.zeros(A, 600));
    let there = p.zeros(B, 600);
    p.post(A, SendPost::write(1, &[src.sge()], there));
    p.post(A, SendPost::read(2, &[back.sge()], there));
    p.post(A, SendPost::write(3, &[src.part(0, 8)], there));
    assert_eq!(numbers(&mut p), [0, 1, 2, 3, 6]);
    (p, back)
}

fn una(p: &QpPair) -> u32 {
    verbena_transport::psn::ahead(p.qps[0].snapshot().una_psn, psn(0))
}

fn response(first: bool, last: bool) -> PacketKind {
    PacketKind::ReadResponse((first || last).then(positive))
}

#[test]
fn an_ack_in_the_middle_of_a_message_completes_earlier_messages() {
    let mut p = requester(PairSetup::default());
    let (src, dst) = (p.zeros(A, 600), p.zeros(B, 600));
    for wr_id in 1..=3 {
        p.post(A, SendPost::write(wr_id, &[src.sge()], dst));
    }
    sent(&mut p);
    ack(&mut p, 4);
    assert_eq!((p.statuses(A), una(&p)), ([(1, Success)].to_vec(), 5));
    ack(&mut p, 8);
    assert_eq!(p.statuses(A), [(2, Success), (3, Success)]);
    assert_eq!(p.qps[0].next_deadline(), None);
}

#[test]
fn a_read_response_acknowledges_earlier_work_requests() {
    let (mut p, _) = busy();
    answer_part(&mut p, response(true, false), 3, &[7; 256], [true, false]);
    assert_eq!((p.statuses(A), una(&p)), ([(1, Success)].to_vec(), 4));
}

#[test]
fn a_response_of_more_packets_than_requested_is_bad() {
    // Such a super-packet comes from a peer with a smaller path MTU.
    let mut p = requester(PairSetup::default());
    let (back, there) = (p.zeros(A, 256), p.zeros(B, 256));
    p.post(A, SendPost::read(1, &[back.sge()], there));
    assert_eq!(numbers(&mut p), [0]);
    let whole = by_hand::request(response(true, true), 0, &[7; 256]);
    p.deliver(A, Packet { psns: 4, ..whole });
    assert_eq!(p.statuses(A), [(1, BadRespErr)]);
    assert_eq!(p.adapter.bytes(back), [0; 256]);
}

#[test]
fn a_response_with_a_psn_after_the_read_is_bad() {
    // `at` takes each PSN of the WRITE after the READ.
    for (begun, at) in (0..3).flat_map(|begun| (3..6).map(move |at| (begun, at))) {
        let mut p = requester(PairSetup::default());
        let (src, back) = (p.buffer(A, &pattern(600, 1)), p.zeros(A, 600));
        let there = p.zeros(B, 600);
        p.post(A, SendPost::read(1, &[back.sge()], there));
        p.post(A, SendPost::write(2, &[src.sge()], there));
        assert_eq!(numbers(&mut p), [0, 3, 4, 5]);
        for n in 0..begun {
            let ends = [n == 0, false];
            answer_part(&mut p, response(ends[0], false), n, &[7; 256], ends);
        }
        answer_part(&mut p, response(true, true), at, &[7; 256], [true, true]);
        let expected = [(1, BadRespErr), (2, WrFlushErr)];
        p.settle();
        assert_eq!(p.statuses(A), expected, "{begun}, {at}");
        assert_eq!(p.qps[0].counters().implied_naks, 0);
    }
}

#[test]
fn a_nak_acknowledges_earlier_work_requests() {
    for (code, status) in [
        (NakCode::InvalidRequest, RemInvReqErr),
        (NakCode::RemoteAccess, RemAccessErr),
        (NakCode::RemoteOperational, RemOpErr),
    ] {
        let (mut p, _) = busy();
        nak(&mut p, 3, code);
        sent(&mut p);
        assert_eq!(
            p.statuses(A),
            [(1, Success), (2, status), (3, WrFlushErr)],
            "{code:?}"
        );
        assert_eq!(p.state(A), QpState::Err);
    }
}

#[test]
fn an_rnr_nak_of_a_later_psn_acknowledges_earlier_packets() {
    let mut p = requester(PairSetup::default());
    let (src, dst) = (p.zeros(A, 600), p.zeros(B, 600));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    p.post(A, SendPost::write(2, &[src.sge()], dst).imm([0; 4]));
    assert_eq!(numbers(&mut p), [0, 1, 2, 3, 4, 5]);
    rnr(&mut p, 5);
    assert_eq!((p.statuses(A), una(&p)), ([(1, Success)].to_vec(), 5));
    assert!(numbers(&mut p).is_empty(), "the requester waits");
    p.run_until(p.now_ns + 10_000);
    assert_eq!(numbers(&mut p), [5], "from the PSN of the NAK on");
}

#[test]
fn the_rest_of_a_read_has_its_own_address_and_length() {
    let (mut p, back) = busy();
    answer_part(&mut p, response(true, false), 3, &[1; 256], [true, false]);
    // The second response is lost.
    answer_part(&mut p, response(false, true), 5, &[3; 88], [false, true]);
    let again = sent(&mut p);
    let PacketKind::ReadRequest(reth) = again[0].kind else {
        panic!("{:?}", again[0]);
    };
    let whole = p.adapter.queues[0].sq[1].wqe.remote_addr;
    assert_eq!((again[0].psn, reth.length), (psn(4), 600 - 256));
    assert_eq!(reth.addr, whole + 256);
    assert_eq!(again[1].psn, psn(6));
    // The responses to the new request begin with a FIRST again.
    answer_part(&mut p, response(true, false), 4, &[2; 256], [true, false]);
    answer_part(&mut p, response(false, true), 5, &[3; 88], [false, true]);
    assert_eq!(p.statuses(A), [(1, Success), (2, Success)]);
    let bytes = p.adapter.bytes(back);
    assert_eq!((bytes[255], bytes[256], bytes[512]), (1, 2, 3));
}

#[test]
fn a_lost_response_is_requested_once() {
    let (mut p, _) = busy();
    for _ in 0..3 {
        ack(&mut p, 6);
    }
    assert_eq!(numbers(&mut p), [3, 6]);
    assert_eq!(p.qps[0].counters().implied_naks, 1);
    ack(&mut p, 6);
    assert!(numbers(&mut p).is_empty());
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn a_loss_that_is_about_to_be_repaired_costs_no_retry() {
    for by_nak in [false, true] {
        let mut p = requester(PairSetup {
            budget: Budget::new(1, 1 << 20),
            ..PairSetup::default()
        });
        let (back, there) = (p.zeros(A, 8), p.zeros(B, 8));
        for (id, read) in [(1, true), (2, false), (3, true), (4, false)] {
            let post = if read {
                SendPost::read
            } else {
                SendPost::write
            };
            p.post(A, post(id, &[back.sge()], there));
        }
        assert_eq!(numbers(&mut p), [0, 1, 2, 3]);
        // The acknowledgement of the first WRITE overtakes the response of the first READ, so
        // everything is to be sent again.
        ack(&mut p, 1);
        read_only(&mut p, 0, &[1; 8]);
        let mut one = Budget::new(1, 1 << 20);
        p.qps[0].poll(&mut p.adapter.host(A), p.now_ns, &mut one);
        assert_eq!(p.link.log.len(), 0);
        // The next answer shows that the second READ was lost too, and that READ is the next packet
        // to be sent anyway.
        if by_nak {
            ack(&mut p, 1);
            nak(&mut p, 2, NakCode::Sequence);
        } else {
            ack(&mut p, 3);
        }
        let retries = p.qps[0].attr().retry_cnt;
        assert_eq!(p.qps[0].snapshot().retry_left, retries, "{by_nak}");
        assert_eq!(p.statuses(A), [(1, Success), (2, Success)]);
        let next = numbers(&mut p);
        assert_eq!(next, [1, 2, 3]);
    }
}

#[test]
fn answers_to_psns_that_are_not_outstanding_are_ignored() {
    let (mut p, back) = busy();
    ack(&mut p, 2);
    p.statuses(A);
    let before = p.qps[0].snapshot();
    // PSNs that were acknowledged, that were never sent, and half of the PSN space away.
    for n in [2, 1, 0, 7, 100, 1 << 22, 1 << 23, (1 << 24) - 1] {
        ack(&mut p, n);
        rnr(&mut p, n);
        nak(&mut p, n, NakCode::Sequence);
        nak(&mut p, n, NakCode::RemoteAccess);
        read_only(&mut p, n, &[9; 256]);
        answer(&mut p, PacketKind::AtomicResponse(positive(), 9), n, &[]);
        assert_eq!(p.qps[0].snapshot(), before, "{n}");
    }
    assert!(numbers(&mut p).is_empty() && p.statuses(A).is_empty());
    assert_eq!(p.adapter.bytes(back), [0; 600]);
    assert_eq!(p.qps[0].counters().stale_responses, 48);
}

#[test]
fn responses_are_taken_in_rts_and_sqd() {
    let (mut p, _) = busy();
    p.modify(A, QpState::Sqd).unwrap();
    ack(&mut p, 2);
    answer_part(&mut p, response(true, false), 3, &[1; 256], [true, false]);
    assert_eq!((p.statuses(A), una(&p)), ([(1, Success)].to_vec(), 4));
    p.modify(A, QpState::Err).unwrap();
    ack(&mut p, 6);
    assert_eq!(una(&p), 4);
    assert_eq!(p.qps[0].counters().dropped_state, 1);
    sent(&mut p);
    assert_eq!(p.statuses(A), [(2, WrFlushErr), (3, WrFlushErr)]);
}

#[test]
fn a_duplicate_response_changes_nothing() {
    let (mut p, back) = busy();
    answer_part(&mut p, response(true, false), 3, &[1; 256], [true, false]);
    answer_part(&mut p, response(true, false), 3, &[9; 256], [true, false]);
    answer_part(&mut p, response(false, false), 4, &[2; 256], [false, false]);
    answer_part(&mut p, response(false, false), 4, &[9; 256], [false, false]);
    answer_part(&mut p, response(false, true), 5, &[3; 88], [false, true]);
    answer_part(&mut p, response(false, true), 5, &[9; 88], [false, true]);
    assert_eq!(p.statuses(A), [(1, Success), (2, Success)]);
    assert!(!p.adapter.bytes(back).contains(&9));
    assert_eq!(p.qps[0].counters().implied_naks, 0);
}

#[test]
fn responses_from_before_and_after_a_retry_are_both_taken() {
    let (mut p, back) = busy_of(PairSetup {
        recovers: false,
        ..PairSetup::default()
    });
    answer_part(&mut p, response(true, false), 3, &[1; 256], [true, false]);
    // The timer expires, and the requester asks for the rest. Then the responses to the first
    // request arrive, mixed with those to the second.
    p.run_until(p.now_ns + (4_096 << 8));
    assert!(numbers(&mut p).ends_with(&[4, 6]));
    answer_part(&mut p, response(false, false), 4, &[2; 256], [false, false]);
    answer_part(&mut p, response(true, false), 4, &[9; 256], [true, false]);
    answer_part(&mut p, response(false, true), 5, &[3; 88], [false, true]);
    answer_part(&mut p, response(false, true), 5, &[9; 88], [false, true]);
    assert_eq!(p.statuses(A), [(1, Success), (2, Success)]);
    let bytes = p.adapter.bytes(back);
    assert_eq!((bytes[255], bytes[256], bytes[599]), (1, 2, 3));
    ack(&mut p, 6);
    assert_eq!(p.statuses(A), [(3, Success)]);
}

/// Answers a READ of 3 responses by one response that has to end the connection.
fn bad(kind: PacketKind, ends: [bool; 2], n: u32, len: usize) {
    let mut p = requester(PairSetup::default());
    let (back, there) = (p.zeros(A, 600), p.zeros(B, 600));
    p.post(A, SendPost::read(1, &[back.sge()], there));
    p.post(A, SendPost::read(2, &[back.sge()], there));
    sent(&mut p);
    if n > 0 {
        answer_part(&mut p, response(true, false), 0, &[0; 256], [true, false]);
    }
    answer_part(&mut p, kind, n, &pattern(len, 9), ends);
    sent(&mut p);
    assert_eq!(
        p.statuses(A),
        [(1, BadRespErr), (2, WrFlushErr)],
        "{kind:?} {ends:?}"
    );
    assert_eq!(p.adapter.bytes(back), [0; 600]);
    // A response of the right kind, in its place and with a positive AETH, can only have a wrong
    // length.
    let good = matches!(kind, PacketKind::ReadResponse(aeth) if aeth.is_none_or(|a| matches!(a.syndrome, AethSyndrome::Ack { .. })));
    let length = good && ends[0] == (n == 0);
    let cause = if length {
        Syndrome::ResponseLength
    } else {
        Syndrome::ResponseOpcode
    };
    assert_eq!(
        p.qps[0].snapshot().syndrome,
        Some(cause),
        "{kind:?} {ends:?} {len}"
    );
}

/// Between local peers, a response refers to the memory of its responder. After that responder is
/// gone, the response counts as lost.
#[test]
fn a_response_of_an_earlier_connection_counts_as_lost() {
    let mut earlier = by_hand::responder_by(LinkMode::Local, PairSetup::default());
    let there = earlier.zeros(A, 8);
    let request = by_hand::request(by_hand::read(there), 0, &[]);
    let response = by_hand::exchange(&mut earlier, request).remove(0);
    drop(earlier);
    assert!(!response.payload.is_alive());
    let (mut p, _) = busy();
    // The response has the PSN of a WRITE.
    p.deliver(
        A,
        Packet {
            psn: psn(0),
            ..response
        },
    );
    assert!(sent(&mut p).is_empty() && p.statuses(A).is_empty());
    assert_eq!(p.qps[0].counters().dead_payloads, 1);
    ack(&mut p, 2);
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn a_response_out_of_sequence_is_bad() {
    // Responses that begin with a MIDDLE or LAST, that end too early or too late, and a response of
    // an atomic.
    bad(response(false, false), [false, false], 0, 256);
    bad(response(false, true), [false, true], 0, 256);
    bad(response(true, true), [true, true], 0, 256);
    bad(response(false, true), [false, true], 1, 256);
    bad(
        PacketKind::AtomicResponse(positive(), 1),
        [true, true],
        0,
        0,
    );
}

#[test]
fn a_read_response_of_another_length_is_bad() {
    for len in [0, 1, 255] {
        bad(response(true, false), [true, false], 0, len);
        bad(response(false, false), [false, false], 1, len);
    }
}

#[test]
fn a_response_with_a_nak_is_bad() {
    for syndrome in [
        AethSyndrome::Nak(NakCode::RemoteAccess),
        AethSyndrome::Nak(NakCode::Sequence),
        AethSyndrome::Rnr { timer: 3 },
    ] {
        let aeth = Aeth { syndrome, msn: 1 };
        bad(PacketKind::ReadResponse(Some(aeth)), [true, false], 0, 256);
        let mut p = requester(PairSetup::default());
        let (back, there) = (p.zeros(A, 8), p.zeros(B, 8));
        p.post(
            A,
            SendPost::new(1, WqeOpcode::FetchAdd, &[back.sge()]).at(there.addr, there.key),
        );
        sent(&mut p);
        answer(&mut p, PacketKind::AtomicResponse(aeth, 5), 0, &[]);
        assert_eq!(p.statuses(A), [(1, BadRespErr)]);
        assert_eq!(p.adapter.bytes(back), [0; 8]);
    }
}

#[test]
fn a_nak_of_another_service_is_bad() {
    let (mut p, _) = busy();
    nak(&mut p, 1, NakCode::InvalidRd);
    sent(&mut p);
    assert_eq!(
        p.statuses(A),
        [(1, BadRespErr), (2, WrFlushErr), (3, WrFlushErr)]
    );
}

#[test]
fn a_response_to_a_write_is_bad() {
    let (mut p, _) = busy();
    read_only(&mut p, 1, &[0; 256]);
    assert_eq!(p.statuses(A), [(1, BadRespErr)]);
}

#[test]
fn a_response_that_cannot_be_stored() {
    let (mut p, back) = busy();
    p.adapter.region(back).valid = false;
    answer_part(&mut p, response(true, false), 3, &[1; 256], [true, false]);
    sent(&mut p);
    assert_eq!(
        p.statuses(A),
        [(1, Success), (2, LocProtErr), (3, WrFlushErr)]
    );
}

#[test]
fn a_fault_in_the_middle_of_a_message_fails_it_after_earlier_messages() {
    let mut p = requester(PairSetup {
        window: 4,
        ..PairSetup::default()
    });
    let (good, bad, dst) = (p.zeros(A, 256), p.zeros(A, 1000), p.zeros(B, 1000));
    p.post(A, SendPost::write(1, &[good.sge()], dst));
    p.post(A, SendPost::write(2, &[bad.sge()], dst));
    p.post(A, SendPost::write(3, &[good.sge()], dst));
    let packets = sent(&mut p);
    assert_eq!(packets.len(), 4);
    // 3 packets of the second message were sent. The memory of the last cannot be read when its
    // frame is made.
    let fault = Syndrome::LkeyUnknown;
    p.qps[0].handle_source_fault(&mut p.adapter.host(A), p.now_ns, &packets[3], fault);
    // The oldest packet is sent again, and no packet of the failed message.
    assert_eq!(numbers(&mut p), [0]);
    assert!(
        p.statuses(A).is_empty(),
        "the earlier message is not complete"
    );
    ack(&mut p, 2);
    sent(&mut p);
    let got: Vec<(u64, WcStatus)> = p.statuses(A);
    assert_eq!(got, [(1, Success), (2, LocProtErr), (3, WrFlushErr)]);
    assert_eq!(p.state(A), QpState::Err);
}

#[test]
fn a_fault_in_the_first_packet_of_a_message_fails_no_earlier_message() {
    let mut p = requester(PairSetup::default());
    let (good, bad, dst) = (p.zeros(A, 256), p.zeros(A, 256), p.zeros(B, 1000));
    p.post(A, SendPost::write(1, &[good.sge()], dst));
    p.post(A, SendPost::write(2, &[bad.sge()], dst));
    let packets = sent(&mut p);
    let fault = Syndrome::LkeyUnknown;
    p.qps[0].handle_source_fault(&mut p.adapter.host(A), p.now_ns, &packets[1], fault);
    sent(&mut p);
    ack(&mut p, 0);
    sent(&mut p);
    assert_eq!(p.statuses(A), [(1, Success), (2, LocProtErr)]);
}

#[test]
fn an_acknowledgement_arrives_during_a_retransmission() {
    // No timer runs.
    let mut setup = PairSetup {
        recovers: false,
        ..PairSetup::default()
    };
    setup.attr.timeout = 0;
    let mut p = requester(setup);
    let (src, there) = (p.zeros(A, 2560), p.zeros(B, 2560));
    p.post(A, SendPost::write(1, &[src.sge()], there));
    assert_eq!(sent(&mut p).len(), 10);
    nak(&mut p, 0, NakCode::Sequence);
    // Two packets are sent again before the acknowledgement arrives.
    let mut budget = Budget::new(2, u64::MAX);
    p.qps[0].poll(&mut p.adapter.host(A), p.now_ns, &mut budget);
    std::mem::take(&mut p.adapter.queues(A).out);
    ack(&mut p, 5);
    assert_eq!(numbers(&mut p), [6, 7, 8, 9]);
}
