// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The states of a queue pair: the work that each permits, flushes, and recovery.

use super::{pattern, MODES};
use verbena_lab_transport::{LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::WcStatus::*;
use verbena_transport::host::{EventType, Syndrome};
use verbena_transport::{Attr, Budget, QpState};

#[test]
fn nothing_is_sent_before_rts() {
    let mut p = QpPair::in_reset(PairSetup::default());
    p.connect(B);
    let (src, dst) = (p.buffer(A, &pattern(8, 1)), p.zeros(B, 8));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    for to in [QpState::Init, QpState::Rtr] {
        p.modify(A, to).unwrap();
        p.settle();
        assert_eq!(p.adapter.bytes(dst), [0; 8]);
    }
    p.modify(A, QpState::Rts).unwrap();
    p.settle();
    assert_eq!(p.adapter.bytes(dst), pattern(8, 1));
}

#[test]
fn a_packet_in_rtr_is_taken_and_reported_once() {
    for mode in MODES {
        let mut p = QpPair::in_reset(PairSetup {
            mode,
            ..PairSetup::default()
        });
        p.connect(A);
        p.modify(B, QpState::Init).unwrap();
        p.modify(B, QpState::Rtr).unwrap();
        let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
        p.post(A, SendPost::write(1, &[src.sge()], dst));
        p.post(A, SendPost::write(2, &[src.sge()], dst));
        p.settle();
        assert_eq!(p.statuses(A), [(1, Success), (2, Success)]);
        assert_eq!(p.events(B), [EventType::CommEst]);
    }
}

#[test]
fn packets_in_init_are_dropped() {
    let mut p = QpPair::in_reset(PairSetup::default());
    p.connect(A);
    p.modify(B, QpState::Init).unwrap();
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    p.settle();
    assert_eq!(p.statuses(A), [(1, RetryExcErr)]);
    assert!(p.events(B).is_empty());
}

#[test]
fn err_flushes_both_queues_once_and_in_order() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (src, dst) = (p.buffer(A, &pattern(3000, 1)), p.zeros(B, 3000));
        for i in 0..40 {
            p.post_recv(A, 100 + i, &[src.part(i as u32, 1)]);
            let post = SendPost::write(i, &[src.sge()], dst);
            p.post(A, if i % 2 == 0 { post } else { post.unsignaled() });
        }
        // Some work requests are sent and not acknowledged, and some have not started.
        p.run_until(500);
        p.modify(A, QpState::Err).unwrap();
        p.settle();
        let (receives, sends): (Vec<_>, Vec<_>) = p
            .completions(A)
            .into_iter()
            .partition(verbena_transport::host::WorkCompletion::is_recv);
        assert!(sends
            .iter()
            .chain(&receives)
            .all(|c| (c.status, c.syndrome) == (WrFlushErr, Some(Syndrome::Flushed))));
        assert!(
            sends.iter().map(|c| c.wr_id).eq(0..40),
            "unsignaled sends are flushed too"
        );
        assert!(receives.iter().map(|c| c.wr_id).eq(100..140));
        assert!(p.events(A).is_empty());
    }
}

#[test]
fn posts_in_err_are_flushed() {
    let mut p = QpPair::rc(LinkMode::Local);
    p.modify(A, QpState::Err).unwrap();
    p.settle();
    for i in 0..3 {
        p.post(A, SendPost::send(i, &[]));
        p.post_recv(A, 10 + i, &[]);
        p.settle();
        assert_eq!(p.statuses(A), [(i, WrFlushErr), (10 + i, WrFlushErr)]);
    }
}

#[test]
fn flushing_keeps_to_its_budget() {
    let mut p = QpPair::rc(LinkMode::Local);
    p.modify(A, QpState::Err).unwrap();
    for i in 0..10 {
        p.post(A, SendPost::send(i, &[]));
        p.post_recv(A, i, &[]);
    }
    let mut budget = Budget::new(4, 1 << 20);
    assert!(p.qps[0].poll(&mut p.adapter.host(A), 0, &mut budget));
    assert_eq!(p.completions(A).len(), 4);
    p.settle();
    assert_eq!(p.completions(A).len(), 16);
}

#[test]
fn packets_in_flight_of_a_flushed_send_are_lost() {
    // The buffer belongs to the program again.
    for mode in [LinkMode::Local, LinkMode::Split] {
        let mut p = QpPair::rc(mode);
        let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
        p.link.delay_ns = 10_000;
        p.post(A, SendPost::write(1, &[src.sge()], dst));
        p.run_until(5_000);
        p.modify(A, QpState::Err).unwrap();
        p.settle();
        assert_eq!(p.statuses(A), [(1, WrFlushErr)]);
        assert_eq!(p.adapter.bytes(dst), [0; 600]);
        assert!(p.qps[1].counters().dead_payloads > 0);
    }
}

#[test]
fn a_receive_in_the_middle_of_a_message_is_flushed_first() {
    let mut p = QpPair::rc(LinkMode::Split);
    let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
    p.post_recv(B, 1, &[dst.sge()]);
    p.post_recv(B, 2, &[dst.sge()]);
    p.link.drop_if = Some(|packet| packet.last);
    p.post(A, SendPost::send(1, &[src.sge()]));
    p.run_until(5_000);
    p.modify(B, QpState::Err).unwrap();
    p.run_until(6_000);
    assert_eq!(p.statuses(B), [(1, WrFlushErr), (2, WrFlushErr)]);
}

#[test]
fn reset_drops_everything_silently() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (src, dst) = (p.buffer(A, &pattern(3000, 1)), p.zeros(B, 3000));
        for i in 0..10 {
            p.post(A, SendPost::write(i, &[src.sge()], dst));
            p.post_recv(A, i, &[src.sge()]);
        }
        p.run_until(500);
        p.modify(A, QpState::Reset).unwrap();
        p.settle();
        assert!(p.completions(A).is_empty() && p.events(A).is_empty());
        assert_eq!(p.qps[0].next_deadline(), None);
    }
}

#[test]
fn a_queue_pair_recovers_from_its_error_by_reset() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
        for life in 0..3 {
            p.post(
                A,
                SendPost::write(1, &[src.sge()], dst).at(dst.addr + 1, dst.key),
            );
            p.post(A, SendPost::write(2, &[src.sge()], dst));
            p.settle();
            assert_eq!(
                p.statuses(A),
                [(1, RemAccessErr), (2, WrFlushErr)],
                "life {life}"
            );
            for side in [A, B] {
                p.reset(side);
                p.connect(side);
            }
            p.post(A, SendPost::write(3, &[src.sge()], dst));
            p.settle();
            assert_eq!(p.statuses(A), [(3, Success)]);
            for side in [A, B] {
                p.reset(side);
                p.connect(side);
            }
        }
    }
}

#[test]
fn sqd_completes_started_work_requests_and_starts_none() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
        p.post(A, SendPost::write(1, &[src.sge()], dst));
        p.run_until(500);
        let attr = verbena_transport::Attr {
            sqd_notify: true,
            ..p.attr(A)
        };
        p.modify_attr(A, QpState::Sqd, &attr).unwrap();
        p.post(A, SendPost::write(2, &[src.sge()], dst));
        assert!(p.qps[0].snapshot().sq_draining);
        assert!(p.events(A).is_empty());
        p.settle();
        assert_eq!(p.statuses(A), [(1, Success)]);
        assert_eq!(p.events(A), [EventType::SqDrained]);
        assert!(!p.qps[0].snapshot().sq_draining);
        // A change of attributes does not report the drained queue again.
        p.modify_attr(A, QpState::Sqd, &attr).unwrap();
        p.settle();
        assert!(p.events(A).is_empty(), "SQ_DRAINED was reported before");
        // The responder still works.
        let mine = p.zeros(A, 600);
        p.post(B, SendPost::write(9, &[dst.sge()], mine));
        p.settle();
        assert_eq!(p.statuses(B), [(9, Success)]);
        p.modify(A, QpState::Rts).unwrap();
        p.settle();
        assert_eq!(p.statuses(A), [(2, Success)]);
        assert!(p.events(A).is_empty(), "once");
    }
}

#[test]
fn sqd_without_notification_is_silent() {
    let mut p = QpPair::rc(LinkMode::Local);
    p.modify(A, QpState::Sqd).unwrap();
    p.settle();
    assert!(p.events(A).is_empty());
}

#[test]
fn illegal_transitions_change_nothing() {
    let mut p = QpPair::rc(LinkMode::Local);
    for to in [QpState::Init, QpState::Rtr, QpState::Sqe] {
        assert_eq!(p.modify(A, to), Err(Syndrome::CmdTransition));
        assert_eq!(p.state(A), QpState::Rts);
    }
    let bad = verbena_transport::Attr {
        path_mtu: 100,
        ..p.attr(A)
    };
    assert_eq!(
        p.modify_attr(A, QpState::Rts, &bad),
        Err(Syndrome::CmdAttribute)
    );
    assert_eq!(p.qps[0].attr().path_mtu, 256);
}

#[test]
fn a_failed_cq_moves_its_queue_pair_to_err_once() {
    let mut p = QpPair::rc(LinkMode::Local);
    p.post(A, SendPost::send(1, &[]));
    for _ in 0..2 {
        p.qps[0].handle_failure(
            &mut p.adapter.host(A),
            p.now_ns,
            Some(EventType::QpFatal),
            Syndrome::CqDied,
        );
    }
    p.run_until(1);
    assert_eq!(p.events(A), [EventType::QpFatal]);
    assert_eq!(p.statuses(A), [(1, WrFlushErr)]);
    assert_eq!(p.qps[0].snapshot().syndrome, Some(Syndrome::CqDied));
}

#[test]
fn the_last_wqe_of_an_srq_is_reported_after_its_completion() {
    let mut p = QpPair::new(PairSetup {
        has_srq: true,
        mode: LinkMode::Split,
        ..PairSetup::default()
    });
    let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
    p.post_recv(B, 1, &[dst.sge()]);
    p.post_recv(B, 2, &[dst.sge()]);
    p.link.drop_if = Some(|packet| packet.last);
    p.post(A, SendPost::send(1, &[src.sge()]));
    p.run_until(5_000);
    p.modify(B, QpState::Err).unwrap();
    assert!(p.events(B).is_empty());
    p.run_until(6_000);
    assert_eq!(
        p.statuses(B),
        [(1, WrFlushErr)],
        "the other receive stays in the SRQ"
    );
    assert_eq!(p.events(B), [EventType::QpLastWqeReached]);
    p.run_until(7_000);
    assert!(p.events(B).is_empty(), "once");
}

#[test]
fn packets_in_flight_of_a_destroyed_queue_pair_are_lost() {
    let mut p = QpPair::rc(LinkMode::Local);
    let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
    p.link.delay_ns = 10_000;
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    p.run_until(5_000);
    let fresh = verbena_transport::Qp::new(verbena_transport::QpConfig::new(
        0x10,
        verbena_transport::QpType::Rc,
        100,
    ));
    drop(std::mem::replace(&mut p.qps[0], fresh));
    p.settle();
    assert_eq!(p.adapter.bytes(dst), [0; 600]);
}

#[test]
fn the_path_mtu_cannot_change_after_rtr() {
    let mut pair = QpPair::rc(LinkMode::Local);
    let attr = pair.attr(A);
    for path_mtu in [512, 4096] {
        let other = Attr { path_mtu, ..attr };
        for to in [QpState::Rts, QpState::Sqd] {
            let result = pair.modify_attr(A, to, &other);
            assert_eq!(result, Err(Syndrome::CmdAttribute), "{to:?}");
        }
    }
    assert_eq!(pair.qp(A).attr().path_mtu, attr.path_mtu);
    assert_eq!(pair.state(A), QpState::Rts);
}
