// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Loss, duplicates, and peers that are not ready: one case in each test.

use super::{pattern, MODES};
use verbena_lab_transport::{LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::WcStatus::*;
use verbena_transport::packet::{AethSyndrome, NakCode, Packet, PacketKind};
use verbena_transport::QpState;

fn is_nak(packet: &Packet) -> bool {
    matches!(packet.kind, PacketKind::Ack(aeth) if aeth.syndrome == AethSyndrome::Nak(NakCode::Sequence))
}

/// Sends `count` WRITEs of one packet. The link loses the packets for which `lost` is true in the
/// first 10 us.
fn writes(mode: LinkMode, count: u64, lost: fn(&Packet) -> bool) -> QpPair {
    writes_of(
        PairSetup {
            mode,
            psns: [0, 0],
            ..PairSetup::default()
        },
        count,
        lost,
    )
}

fn writes_of(setup: PairSetup, count: u64, lost: fn(&Packet) -> bool) -> QpPair {
    let mut p = QpPair::new(setup);
    p.link.record = true;
    p.link.drop_if = Some(lost);
    let (src, dst) = (p.buffer(A, &pattern(8, 1)), p.zeros(B, 8));
    for i in 0..count {
        p.post(A, SendPost::write(i, &[src.sge()], dst));
    }
    p.run_until(10_000);
    p.link.drop_if = None;
    p.settle();
    assert_eq!(p.completions(A).len() as u64, count);
    p
}

#[test]
fn a_gap_is_reported_once() {
    for mode in MODES {
        let p = writes(mode, 12, |packet| {
            packet.psn == 3 && packet.kind.is_request()
        });
        assert_eq!(p.qps[1].counters().sequence_naks_sent, 1);
        assert!(p.qps[1].counters().out_of_sequence >= 8);
    }
}

#[test]
fn a_nak_makes_the_requester_go_back_to_its_psn() {
    let setup = PairSetup {
        mode: LinkMode::Split,
        psns: [0, 0],
        recovers: false,
        ..PairSetup::default()
    };
    let p = writes_of(setup, 8, |packet| {
        packet.psn == 3 && packet.kind.is_request()
    });
    // `drop_if` also loses the retransmissions of this PSN for a while, so the timer may have to
    // send it again.
    assert!(p.qps[0].counters().retransmitted >= 5);
    let naks: Vec<u32> = p
        .link
        .log
        .iter()
        .filter(|(_, packet)| is_nak(packet))
        .map(|(_, packet)| packet.psn)
        .collect();
    assert_eq!(naks, [3]);
}

#[test]
fn a_lost_acknowledgement_is_requested_again() {
    let mut p = writes(LinkMode::Local, 4, |packet| {
        matches!(packet.kind, PacketKind::Ack(_))
    });
    assert_eq!(p.qps[0].counters().timeouts, 1);
    assert_eq!(p.qps[1].counters().duplicates, 4);
    // The last packet asked for an acknowledgement. In the retransmission, the first and the last
    // packet ask.
    assert_eq!(p.qps[1].counters().acks_sent, 3);
    assert_eq!(p.state(A), QpState::Rts);
    assert!(p.completions(B).is_empty());
}

#[test]
fn a_duplicate_send_does_not_take_another_receive() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
        p.post_recv(B, 1, &[dst.sge()]);
        p.post_recv(B, 2, &[dst.sge()]);
        p.link.drop_if = Some(|packet| matches!(packet.kind, PacketKind::Ack(_)));
        p.post(A, SendPost::send(1, &[src.sge()]));
        p.run_until(150_000);
        p.link.drop_if = None;
        p.settle();
        assert_eq!(p.statuses(A), [(1, Success)]);
        assert_eq!(p.statuses(B), [(1, Success)]);
    }
}

#[test]
fn a_duplicate_atomic_is_answered_from_its_stored_result() {
    let mut p = QpPair::rc(LinkMode::Wire);
    let (word, back) = (p.zeros(B, 8), p.zeros(A, 8));
    let mut post = SendPost::new(
        1,
        verbena_transport::host::WqeOpcode::FetchAdd,
        &[back.sge()],
    )
    .at(word.addr, word.key);
    post.wqe.compare_add = 5;
    p.link.drop_if = Some(|packet| matches!(packet.kind, PacketKind::AtomicResponse(..)));
    p.post(A, post);
    p.run_until(150_000);
    p.link.drop_if = None;
    p.settle();
    assert_eq!(p.statuses(A), [(1, Success)]);
    assert_eq!(p.adapter.bytes(word), 5u64.to_ne_bytes());
    assert_eq!(p.adapter.bytes(back), [0; 8]);
    assert!(p.qps[1].counters().duplicates > 0);
}

#[test]
fn a_read_is_requested_again_from_its_lost_response_on() {
    let mut p = QpPair::new(PairSetup {
        mode: LinkMode::Wire,
        psns: [0, 0],
        ..PairSetup::default()
    });
    let (back, src) = (p.zeros(A, 2048), p.buffer(B, &pattern(2048, 1)));
    p.link.record = true;
    p.link.drop_if =
        Some(|packet| packet.psn == 3 && matches!(packet.kind, PacketKind::ReadResponse(_)));
    p.post(A, SendPost::read(1, &[back.sge()], src));
    p.run_until(2_500);
    p.link.drop_if = None;
    p.settle();
    assert_eq!(p.adapter.bytes(back), pattern(2048, 1));
    let asked: Vec<(u32, u32)> = p
        .link
        .log
        .iter()
        .filter_map(|(_, packet)| match packet.kind {
            PacketKind::ReadRequest(reth) => Some((packet.psn, reth.length)),
            _ => None,
        })
        .collect();
    assert_eq!(asked, [(0, 2048), (3, 2048 - 3 * 256)]);
    assert_eq!(
        (
            p.qps[0].counters().implied_naks,
            p.qps[0].counters().timeouts
        ),
        (1, 0)
    );
}

#[test]
fn an_acknowledgement_beyond_a_read_implies_that_its_response_was_lost() {
    let mut p = QpPair::new(PairSetup {
        mode: LinkMode::Wire,
        psns: [0, 0],
        ..PairSetup::default()
    });
    let (mine, theirs) = (p.zeros(A, 8), p.buffer(B, &pattern(8, 1)));
    let other = p.zeros(B, 8);
    p.link.drop_if = Some(|packet| matches!(packet.kind, PacketKind::ReadResponse(_)));
    p.post(A, SendPost::read(1, &[mine.sge()], theirs));
    p.post(A, SendPost::write(2, &[mine.sge()], other));
    p.run_until(2_500);
    p.link.drop_if = None;
    p.settle();
    assert_eq!(p.statuses(A), [(1, Success), (2, Success)]);
    assert_eq!(
        (
            p.qps[0].counters().implied_naks,
            p.qps[0].counters().timeouts
        ),
        (1, 0)
    );
}

#[test]
fn a_peer_that_is_gone() {
    for mode in MODES {
        for retries in [0, 3, 7] {
            let mut setup = PairSetup {
                mode,
                ..PairSetup::default()
            };
            setup.attr.retry_cnt = retries;
            let mut p = QpPair::new(setup);
            p.link.loss = 100;
            let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
            p.post(A, SendPost::write(1, &[src.sge()], dst));
            p.post(A, SendPost::read(2, &[src.sge()], dst));
            p.settle();
            assert_eq!(p.statuses(A), [(1, RetryExcErr), (2, WrFlushErr)]);
            assert_eq!(p.state(A), QpState::Err);
            // One timeout for each retry, and one more: 4.096 us * 2^8 each.
            assert_eq!(p.qps[0].counters().timeouts, u64::from(retries) + 1);
            assert_eq!(p.now_ns, (u64::from(retries) + 1) * (4_096 << 8));
        }
    }
}

/// The last message is lost in every transmission, and no later packet shows the gap to the peer.
#[test]
fn requests_executed_before_a_peer_is_gone_complete() {
    for mode in MODES {
        let mut setup = PairSetup {
            mode,
            psns: [0, 0],
            ..PairSetup::default()
        };
        setup.attr.retry_cnt = 2;
        let mut p = QpPair::new(setup);
        p.link.drop_if = Some(|packet| packet.psn == 5 && packet.kind.is_request());
        let (src, dst) = (p.buffer(A, &pattern(8, 1)), p.zeros(B, 8));
        for i in 0..6 {
            p.post(A, SendPost::write(i, &[src.sge()], dst));
        }
        p.settle();
        let mut expected: Vec<_> = (0..5).map(|i| (i, Success)).collect();
        expected.push((5, RetryExcErr));
        assert_eq!(p.statuses(A), expected, "{mode:?}");
    }
}

#[test]
fn timeout_zero_waits_for_ever() {
    let mut setup = PairSetup::default();
    setup.attr.timeout = 0;
    let mut p = QpPair::new(setup);
    p.link.loss = 100;
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    p.settle();
    assert_eq!((p.qps[0].next_deadline(), p.state(A)), (None, QpState::Rts));
}

#[test]
fn progress_restores_all_retries() {
    let mut setup = PairSetup {
        mode: LinkMode::Split,
        window: 1,
        ..PairSetup::default()
    };
    setup.attr.retry_cnt = 1;
    let mut p = QpPair::new(setup);
    let (src, dst) = (p.zeros(A, 256 * 6), p.zeros(B, 256 * 6));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    for _ in 0..6 {
        // The first transmission of each packet is lost.
        p.link.loss = 100;
        p.run_until(p.now_ns + 1_000);
        p.link.loss = 0;
        let sent = p.qps[1].snapshot().expected_psn;
        while p.qps[1].snapshot().expected_psn == sent && p.state(A) == QpState::Rts {
            p.run_until(p.now_ns + 1_000);
        }
    }
    p.settle();
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn rnr_is_retried_after_the_time_in_the_nak() {
    for mode in MODES {
        let mut setup = PairSetup {
            mode,
            ..PairSetup::default()
        };
        setup.attr.min_rnr_timer = 12; // 640 us
        let mut p = QpPair::new(setup);
        let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
        p.post(A, SendPost::send(1, &[src.sge()]));
        p.run_until(300_000);
        p.post_recv(B, 1, &[dst.sge()]);
        p.run_until(600_000);
        assert!(p.statuses(A).is_empty(), "the RNR timer has not expired");
        p.run_until(650_000);
        assert_eq!(p.statuses(A), [(1, Success)], "{mode:?}");
        assert_eq!(p.statuses(B), [(1, Success)]);
        assert_eq!(p.qps[1].counters().rnr_naks_sent, 1);
    }
}

#[test]
fn rnr_retries_run_out() {
    for mode in MODES {
        for retries in [0, 1, 6] {
            let mut setup = PairSetup {
                mode,
                ..PairSetup::default()
            };
            setup.attr.rnr_retry = retries;
            let mut p = QpPair::new(setup);
            let src = p.buffer(A, &pattern(600, 1));
            p.post(A, SendPost::send(1, &[src.sge()]));
            p.post(A, SendPost::send(2, &[src.sge()]));
            p.settle();
            assert_eq!(p.statuses(A), [(1, RnrRetryExcErr), (2, WrFlushErr)]);
            assert_eq!(
                p.qps[0].counters().rnr_naks_received,
                u64::from(retries) + 1
            );
            assert_eq!(p.state(B), QpState::Rts);
        }
    }
}

#[test]
fn rnr_retry_7_is_for_ever() {
    let mut p = QpPair::rc(LinkMode::Local);
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, SendPost::send(1, &[src.sge()]));
    p.run_until(1_000_000_000);
    assert!(p.qps[0].counters().rnr_naks_received > 1_000);
    p.post_recv(B, 1, &[dst.sge()]);
    p.settle();
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn write_with_immediate_waits_for_a_receive_with_its_data_in_place() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (src, dst) = (p.buffer(A, &pattern(1000, 1)), p.zeros(B, 1000));
        p.post(A, SendPost::write(1, &[src.sge()], dst).imm([1; 4]));
        p.run_until(5_000);
        assert!(p.statuses(B).is_empty());
        assert_eq!(p.adapter.bytes(dst)[..768], pattern(1000, 1)[..768]);
        assert_eq!(p.adapter.bytes(dst)[768..], [0; 232]);
        p.post_recv(B, 1, &[]);
        p.settle();
        assert_eq!(p.adapter.bytes(dst), pattern(1000, 1));
        assert_eq!(p.statuses(B), [(1, Success)]);
    }
}

#[test]
fn a_lost_nak_is_repeated_by_a_responder_in_error() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (src, dst) = (p.zeros(A, 600), p.zeros(B, 599));
        p.link.drop_if = Some(|packet| matches!(packet.kind, PacketKind::Ack(_)));
        p.post(A, SendPost::write(1, &[src.sge()], dst));
        p.run_until(150_000);
        assert_eq!(p.state(B), QpState::Err);
        p.link.drop_if = None;
        p.settle();
        assert_eq!(p.statuses(A), [(1, RemAccessErr)]);
    }
}

#[test]
fn a_responder_that_was_moved_to_error_is_silent() {
    let mut p = QpPair::rc(LinkMode::Local);
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    p.modify(B, QpState::Err).unwrap();
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    p.settle();
    assert_eq!(p.statuses(A), [(1, RetryExcErr)]);
}

#[test]
fn answers_before_a_nak_are_sent_first() {
    for mode in MODES {
        let mut p = QpPair::new(PairSetup {
            mode,
            budget: verbena_transport::Budget::new(2, 1 << 20),
            ..PairSetup::default()
        });
        let (back, good) = (p.zeros(A, 4096), p.buffer(B, &pattern(4096, 1)));
        p.post(A, SendPost::read(1, &[back.sge()], good));
        p.post(A, SendPost::read(2, &[back.sge()], good));
        p.post(
            A,
            SendPost::write(3, &[back.sge()], good).at(good.addr + 1, good.key),
        );
        p.settle();
        assert_eq!(
            p.statuses(A),
            [(1, Success), (2, Success), (3, RemAccessErr)],
            "{mode:?}"
        );
        assert_eq!(p.adapter.bytes(back), pattern(4096, 1));
    }
}

#[test]
fn a_super_packet_that_begins_with_duplicates_is_taken_from_its_first_new_packet() {
    let mut p = QpPair::new(PairSetup {
        psns: [0, 0],
        ..PairSetup::default()
    });
    let (src, dst) = (p.buffer(A, &pattern(2048, 1)), p.zeros(B, 2048));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    p.link.record = true;
    p.link.loss = 100;
    p.run_until(1);
    let whole = p.link.log[0].1.clone();
    assert_eq!(whole.psns, 8);
    for first in whole.clone().split(256).take(3) {
        p.deliver(B, first);
    }
    assert_eq!(p.qps[1].snapshot().expected_psn, 3);
    p.deliver(B, whole);
    assert_eq!(p.qps[1].snapshot().expected_psn, 8);
    assert_eq!(p.qps[1].counters().duplicates, 3);
    assert_eq!(p.adapter.bytes(dst), pattern(2048, 1));
    assert_eq!(p.adapter.queues(B).copied, 2048);
}

#[test]
fn an_acknowledgement_arrives_after_the_requester_went_back() {
    // The first packets of a SEND are delayed, and are executed after an RNR NAK has made the
    // requester go back to them. The rest of the message was never sent.
    let mut p = QpPair::new(PairSetup {
        mode: LinkMode::Split,
        psns: [0, 0],
        window: 2,
        ..PairSetup::default()
    });
    let (src, dst) = (p.buffer(A, &pattern(700, 1)), p.zeros(B, 700));
    p.link.record = true;
    p.post(A, SendPost::send(1, &[src.sge()]));
    p.run_until(2_500);
    assert_eq!(p.qps[1].counters().rnr_naks_sent, 1);
    let late: Vec<Packet> = p
        .link
        .log
        .iter()
        .filter(|(side, _)| *side == A)
        .map(|(_, packet)| packet.clone())
        .collect();
    p.post_recv(B, 1, &[dst.sge()]);
    for packet in late {
        p.deliver(B, packet);
    }
    p.settle();
    assert_eq!(p.statuses(A), [(1, Success)]);
    assert_eq!(p.adapter.bytes(dst), pattern(700, 1));
}

#[test]
fn a_packet_that_is_lost_twice_does_not_wait_for_the_ack_timer() {
    let mut p = QpPair::new(PairSetup {
        mode: LinkMode::Wire,
        psns: [0, 0],
        ..PairSetup::default()
    });
    let (src, dst) = (p.buffer(A, &pattern(1000, 1)), p.zeros(B, 1000));
    p.link.drop_if = Some(|packet| packet.psn == 1 && packet.kind.is_request());
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    // The packet is lost, reported, sent again, and lost again.
    p.run_until(50_000);
    assert_eq!(p.qps[0].counters().sequence_naks_received, 1);
    p.link.drop_if = None;
    p.settle();
    assert_eq!(p.statuses(A), [(1, Success)]);
    assert_eq!(
        (p.qps[0].counters().timeouts, p.qps[0].counters().probes),
        (0, 1)
    );
    assert_eq!(p.qps[0].congestion().spurious_retransmits, 0);
    assert!(p.now_ns < 200_000);
}

#[test]
fn probes_are_no_retries() {
    let mut p = QpPair::rc(LinkMode::Wire);
    p.link.loss = 100;
    let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    p.settle();
    assert_eq!(p.statuses(A), [(1, RetryExcErr)]);
    let counters = p.qps[0].counters();
    // Each of the 8 timeouts of 1.05 ms has probes after 0.1, 0.3 and 0.7 ms.
    assert_eq!(
        (counters.timeouts, counters.probes, p.now_ns),
        (8, 24, 8 * (4_096 << 8))
    );
}
