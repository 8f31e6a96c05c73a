// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Timers and retries, with exact times in nanoseconds.

use super::answered::*;
use verbena_lab_transport::{PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::{EventType, Syndrome, WcStatus::*};
use verbena_transport::packet::NakCode;
use verbena_transport::{Budget, QpState};

/// The ACK timer of the setup: 4.096 us * 2^8.
const TIMEOUT: u64 = 4_096 << 8;

/// Returns a requester with this number of outstanding WRITEs of one packet.
fn writes(setup: PairSetup, count: u64) -> QpPair {
    let mut p = requester(setup);
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    for wr_id in 1..=count {
        p.post(A, SendPost::write(wr_id, &[src.sge()], dst));
    }
    sent(&mut p);
    p
}

/// Returns a requester with an outstanding SEND.
fn send() -> QpPair {
    let mut p = requester(PairSetup::default());
    p.post(A, SendPost::send(1, &[]));
    sent(&mut p);
    p
}

fn timeouts(p: &QpPair) -> u64 {
    p.qps[0].counters().timeouts
}

fn retries(p: &QpPair) -> (u8, u8) {
    let shown = p.qps[0].snapshot();
    (shown.retry_left, shown.rnr_left)
}

#[test]
fn the_ack_timer_has_a_minimum() {
    let mut setup = PairSetup::default();
    setup.attr.timeout = 1; // 8 us; the minimum is 100 us
    let mut p = writes(setup, 1);
    p.run_until(99_999);
    assert_eq!(timeouts(&p), 0);
    p.run_until(100_000);
    assert_eq!(timeouts(&p), 1);
}

#[test]
fn progress_restarts_the_ack_timer() {
    let mut p = writes(PairSetup::default(), 3);
    p.run_until(TIMEOUT - 1);
    ack(&mut p, 0);
    p.run_until(2 * TIMEOUT - 2);
    assert_eq!(timeouts(&p), 0);
    p.run_until(2 * TIMEOUT - 1);
    assert_eq!(timeouts(&p), 1);
}

#[test]
fn the_ack_timer_stops_when_everything_is_acknowledged() {
    let mut p = writes(PairSetup::default(), 2);
    ack(&mut p, 1);
    sent(&mut p);
    assert_eq!(p.qps[0].next_deadline(), None);
}

#[test]
fn a_stale_acknowledgement_does_not_restart_the_timer() {
    let mut p = writes(PairSetup::default(), 2);
    ack(&mut p, 0);
    p.run_until(TIMEOUT - 1);
    ack(&mut p, 0);
    ack(&mut p, 7);
    p.run_until(TIMEOUT);
    assert_eq!(timeouts(&p), 1);
}

#[test]
fn sequence_errors_run_out_of_retries() {
    let setup = PairSetup {
        recovers: false,
        ..PairSetup::default()
    };
    let mut p = writes(setup, 2);
    for left in (0..7).rev() {
        nak(&mut p, 0, NakCode::Sequence);
        assert_eq!(numbers(&mut p), [0, 1]);
        assert_eq!(retries(&p).0, left);
    }
    nak(&mut p, 0, NakCode::Sequence);
    sent(&mut p);
    let got = p.completions(A);
    assert_eq!(
        (got[0].status, got[0].syndrome, got[1].status),
        (
            RetryExcErr,
            Some(Syndrome::SequenceRetryExceeded),
            WrFlushErr
        )
    );
}

#[test]
fn a_second_nak_before_anything_is_sent_is_no_retry() {
    let mut p = writes(PairSetup::default(), 2);
    for _ in 0..20 {
        nak(&mut p, 1, NakCode::Sequence);
    }
    assert_eq!(retries(&p).0, 6);
    assert_eq!(numbers(&mut p), [1]);
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn a_second_rnr_nak_while_waiting_is_no_retry() {
    let mut setup = PairSetup::default();
    setup.attr.rnr_retry = 3;
    let mut p = requester(setup);
    p.post(A, SendPost::send(1, &[]));
    sent(&mut p);
    for _ in 0..20 {
        rnr(&mut p, 0);
    }
    assert_eq!(retries(&p), (7, 2));
    assert_eq!(p.qps[0].counters().rnr_naks_received, 1);
    p.run_until(9_999);
    assert!(numbers(&mut p).is_empty());
    p.run_until(10_000);
    assert_eq!(numbers(&mut p), [0]);
    rnr(&mut p, 0);
    assert_eq!(retries(&p), (7, 1));
}

#[test]
fn the_ack_timer_does_not_run_during_an_rnr_wait() {
    let mut setup = PairSetup::default();
    setup.attr.timeout = 1;
    let mut p = requester(setup);
    p.post(A, SendPost::send(1, &[]));
    sent(&mut p);
    // Timer code 22 is 20.48 ms.
    let kind = verbena_transport::packet::PacketKind::Ack(verbena_transport::packet::Aeth {
        syndrome: verbena_transport::packet::AethSyndrome::Rnr { timer: 22 },
        msn: 0,
    });
    answer(&mut p, kind, 0, &[]);
    p.run_until(20_479_999);
    assert_eq!((timeouts(&p), numbers(&mut p).len()), (0, 0));
    p.run_until(20_480_000);
    assert_eq!((timeouts(&p), numbers(&mut p).len()), (0, 1));
    p.run_until(20_480_000 + 100_000);
    assert_eq!(timeouts(&p), 1, "the ACK timer runs again");
}

#[test]
fn progress_ends_an_rnr_wait() {
    let mut p = requester(PairSetup::default());
    p.post(A, SendPost::send(1, &[]));
    p.post(
        A,
        SendPost::new(2, verbena_transport::host::WqeOpcode::RdmaWrite, &[]),
    );
    assert_eq!(numbers(&mut p), [0, 1]);
    rnr(&mut p, 0);
    assert!(numbers(&mut p).is_empty());
    // A late copy of the SEND has found a receive.
    ack(&mut p, 0);
    assert_eq!(p.statuses(A), [(1, Success)]);
    assert_eq!(numbers(&mut p), [1], "the WRITE is sent again at once");
}

#[test]
fn an_error_ends_an_rnr_wait() {
    let mut p = send();
    rnr(&mut p, 0);
    p.modify(A, QpState::Err).unwrap();
    sent(&mut p);
    assert_eq!(p.statuses(A), [(1, WrFlushErr)]);
    assert_eq!(p.qps[0].next_deadline(), None);

    let mut p = send();
    rnr(&mut p, 0);
    nak(&mut p, 0, NakCode::RemoteOperational);
    sent(&mut p);
    assert_eq!(p.statuses(A), [(1, RemOpErr)]);
    assert_eq!(p.qps[0].next_deadline(), None);

    // After RESET the queue pair does not wait.
    let mut p = send();
    rnr(&mut p, 0);
    p.reset(A);
    p.connect(A);
    p.post(A, SendPost::send(1, &[]));
    assert_eq!(numbers(&mut p), [0]);
}

#[test]
fn a_changed_timeout_takes_effect_at_once() {
    for (timeout, expires) in [(10, Some(4 * TIMEOUT)), (0, None)] {
        let mut p = writes(PairSetup::default(), 1);
        p.modify(A, QpState::Sqd).unwrap();
        let attr = verbena_transport::Attr {
            timeout,
            ..p.attr(A)
        };
        p.modify_attr(A, QpState::Sqd, &attr).unwrap();
        // The new deadline holds without another call.
        let deadline = p.qps[0].next_deadline();
        assert_eq!(deadline.is_some(), expires.is_some());
        p.run_until(p.now_ns);
        assert_eq!(p.qps[0].next_deadline(), deadline);
        match expires {
            Some(at) => {
                p.run_until(at - 1);
                assert_eq!(timeouts(&p), 0);
                p.run_until(at);
                assert_eq!(timeouts(&p), 1);
            }
            None => {
                p.run_until(100 * TIMEOUT);
                assert_eq!((timeouts(&p), p.qps[0].next_deadline()), (0, None));
            }
        }
    }
}

#[test]
fn changed_retry_counts_take_effect_at_once() {
    let mut p = writes(PairSetup::default(), 1);
    p.run_until(2 * TIMEOUT);
    assert_eq!(retries(&p), (5, 7));
    let attr = verbena_transport::Attr {
        retry_cnt: 1,
        rnr_retry: 2,
        ..p.attr(A)
    };
    p.modify(A, QpState::Sqd).unwrap();
    p.modify_attr(A, QpState::Sqd, &attr).unwrap();
    assert_eq!(retries(&p), (1, 2));
    p.run_until(4 * TIMEOUT);
    assert_eq!(p.statuses(A), [(1, RetryExcErr)]);
}

#[test]
fn timeouts_are_retried_in_sqd() {
    let setup = PairSetup {
        recovers: false,
        ..PairSetup::default()
    };
    let mut p = writes(setup, 2);
    p.modify(A, QpState::Sqd).unwrap();
    p.run_until(TIMEOUT);
    assert_eq!(timeouts(&p), 1);
    let again = numbers(&mut p);
    assert_eq!(again[again.len() - 2..], [0, 1]);
    assert!(p.qps[0].snapshot().sq_draining);
    p.link.loss = 0;
    p.settle();
    assert_eq!(p.statuses(A), [(1, Success), (2, Success)]);
    assert!(!p.qps[0].snapshot().sq_draining);
}

#[test]
fn a_changed_rnr_retry_count_alone_takes_effect_at_once() {
    let mut p = send();
    let attr = verbena_transport::Attr {
        rnr_retry: 2,
        ..p.attr(A)
    };
    p.modify(A, QpState::Sqd).unwrap();
    p.modify_attr(A, QpState::Sqd, &attr).unwrap();
    assert_eq!(retries(&p), (7, 2));
}

#[test]
fn a_changed_timeout_does_not_end_an_rnr_wait() {
    for timeout in [0, 1, 31] {
        let mut p = send();
        let at = p.now_ns;
        rnr(&mut p, 0);
        let due = at + verbena_transport::qp::timers::rnr_delay_ns(1);
        let attr = verbena_transport::Attr {
            timeout,
            ..p.attr(A)
        };
        p.modify_attr(A, QpState::Sqd, &attr).unwrap();
        p.run_until(due - 1);
        assert!(sent(&mut p).is_empty(), "timeout {timeout}");
        p.run_until(due);
        assert_eq!(numbers(&mut p), [0]);
    }
}

#[test]
fn a_partly_sent_message_is_not_drained() {
    let mut p = requester(PairSetup {
        window: 2,
        ..PairSetup::default()
    });
    let (src, dst) = (p.zeros(A, 600), p.zeros(B, 600));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    assert_eq!(numbers(&mut p), [0, 1]);
    let attr = verbena_transport::Attr {
        sqd_notify: true,
        ..p.attr(A)
    };
    p.modify_attr(A, QpState::Sqd, &attr).unwrap();
    // All sent packets are acknowledged, and the turn ends before the rest is sent.
    ack(&mut p, 1);
    let (host, now) = (&mut p.adapter.host(A), p.now_ns);
    p.qps[0].poll(host, now, &mut Budget::new(0, 0));
    assert!(p.qps[0].snapshot().sq_draining);
    assert_eq!(p.events(A), []);
    assert_eq!(numbers(&mut p), [2]);
    ack(&mut p, 2);
    sent(&mut p);
    assert_eq!(p.events(A), [EventType::SqDrained]);
}

#[test]
fn in_sqd_a_work_request_that_has_not_started_does_not_fail() {
    let mut p = requester(PairSetup::default());
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    let mut bad = SendPost::write(2, &[src.sge()], dst);
    bad.sges[0].lkey ^= 1;
    p.post(A, bad);
    assert_eq!(numbers(&mut p), [0]);
    p.modify(A, QpState::Sqd).unwrap();
    ack(&mut p, 0);
    sent(&mut p);
    assert_eq!(p.statuses(A), [(1, Success)]);
    assert_eq!(p.state(A), QpState::Sqd);
    p.modify(A, QpState::Rts).unwrap();
    sent(&mut p);
    assert_eq!(p.statuses(A), [(2, LocProtErr)]);
}
