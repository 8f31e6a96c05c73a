// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of events that do not report an error.
use crate::ffi::context::EventType;
use crate::ffi::qp::{mask, op, state, RecvWr, SendWr, Srq};
use crate::ffi::QpAttr;
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::sync::Arc;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("4/comm-est", comm_est),
    GuestTest::new("4/sq-drained", sq_drained),
    GuestTest::new("4/srq-limit-reached", srq_limit),
    GuestTest::new("4/qp-last-wqe-reached", last_wqe),
];

fn send(end: &QpEndpoint, wr_id: u64) -> TestResult {
    let wr = SendWr::new(op::SEND, wr_id, &[end.mr.sge(0, 8)]);
    end.qp.post_send(&[wr]).at("a SEND")
}

/// COMM_EST arrives once, when a packet arrives at a QP in RTR.
fn comm_est(rig: &Rig) -> TestResult {
    let (a, b) = (
        rig.end(&PairOpts::default())?,
        rig.end(&PairOpts::default())?,
    );
    let conn = Conn::default();
    for to in [state::INIT, state::RTR] {
        move_to(&b.qp, to, rig.gid, a.qp.qpn(), &conn)?;
    }
    connect(&a.qp, rig.gid, b.qp.qpn(), &conn)?;
    for wr_id in 0..3 {
        b.recv(10 + wr_id, 0, 8)?;
        send(&a, wr_id)?;
        expect_success(&wait_one(&a.scq, "a SEND")?, wr_id, wc::SEND)?;
        expect_success(&wait_one(&b.rcq, "a receive")?, 10 + wr_id, wc::RECV)?;
        if wr_id == 0 {
            drop(rig.expect_event(EventType::COMM_EST, b.qp.element())?);
        }
    }
    rig.expect_no_event(QUIET)?;
    move_to(&b.qp, state::RTS, rig.gid, a.qp.qpn(), &conn)?;
    b.recv(20, 0, 8)?;
    send(&a, 9)?;
    expect_success(&wait_one(&b.rcq, "a receive in RTS")?, 20, wc::RECV)?;
    rig.expect_no_event(QUIET)
}

/// Requests in progress complete before the event, which arrives once; requests that are posted
/// after that wait for RTS.
fn sq_drained(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    for round in 0..3 {
        for wr_id in 0..4 {
            let wr = SendWr::new(op::WRITE, wr_id, &[p.a.mr.sge(0, 4096)]);
            let wr = wr.remote(p.b.mr.at(0), p.b.mr.rkey());
            p.a.qp.post_send(&[wr]).at("a WRITE")?;
        }
        let attr = QpAttr {
            qp_state: state::SQD,
            en_sqd_async_notify: 1,
            ..QpAttr::default()
        };
        p.a.qp
            .modify(&attr, mask::STATE | mask::EN_SQD_ASYNC_NOTIFY)
            .at("SQD")?;
        drop(rig.expect_event(EventType::SQ_DRAINED, p.a.qp.element())?);
        // Requests that had begun are complete; all others wait, like those that are posted now.
        let done = p.a.scq.poll(16)?;
        for (one, wr_id) in done.iter().zip(0..) {
            expect_success(one, wr_id, wc::RDMA_WRITE)?;
        }
        let wr = SendWr::new(op::WRITE, 4, &[p.a.mr.sge(0, 8)]);
        p.a.qp
            .post_send(&[wr.remote(p.b.mr.at(0), p.b.mr.rkey())])
            .at("a WRITE in SQD")?;
        expect_quiet(&p.a.scq, QUIET, "a send in SQD")?;
        let rts = QpAttr {
            qp_state: state::RTS,
            ..QpAttr::default()
        };
        p.a.qp.modify(&rts, mask::STATE).at("RTS")?;
        let left = 5 - done.len();
        let rest = wait(&p.a.scq, left, "the sends that waited")?;
        for (one, wr_id) in rest.iter().zip(done.len() as u64..) {
            expect_success(one, wr_id, wc::RDMA_WRITE)?;
        }
        rig.expect_no_event(QUIET).at(&format!("round {round}"))?;
    }
    Ok(())
}

/// Creates a pair in which B takes its receives from an SRQ.
fn on_srq(rig: &Rig) -> Result<(QpPair, Arc<Srq>), Fail> {
    let srq = Srq::new(&rig.pd, 16, 1).at("an SRQ")?;
    let opts = PairOpts {
        srq: Some(srq.clone()),
        ..PairOpts::default()
    };
    let (a, b) = (rig.end(&PairOpts::default())?, rig.end(&opts)?);
    connect(&a.qp, rig.gid, b.qp.qpn(), &Conn::default())?;
    connect(&b.qp, rig.gid, a.qp.qpn(), &Conn::default())?;
    Ok((QpPair { a, b }, srq))
}

fn srq_limit(rig: &Rig) -> TestResult {
    // The limit is ignored at creation (ibv_create_srq(3)).
    for irrelevant in [8, 0xdead_beef] {
        let srq = Srq::with_limit(&rig.pd, 16, 1, irrelevant).at("an SRQ with a limit")?;
        ensure_eq!(srq.query()?.srq_limit, 0, "limit of a new SRQ");
        rig.expect_no_event(QUIET).at("a limit at creation")?;
    }
    let (p, srq) = on_srq(rig)?;
    let post = |wr_id| {
        let wr = RecvWr::new(wr_id, &[p.b.mr.sge(0, 64)]);
        srq.post(&[wr]).at("a receive")
    };
    (0..8).try_for_each(post)?;
    srq.set_limit(5).at("a limit of 5")?;
    ensure_eq!(srq.query()?.srq_limit, 5, "limit");
    let take = |wr_id| -> TestResult {
        send(&p.a, wr_id)?;
        expect_success(&wait_one(&p.b.rcq, "a receive")?, wr_id, wc::RECV)
    };
    // Five receives are left, which is not below the limit.
    (0..3).try_for_each(take)?;
    rig.expect_no_event(QUIET)?;
    take(3)?;
    let event = rig.event("SRQ_LIMIT_REACHED")?;
    ensure_eq!(event.kind(), EventType::SRQ_LIMIT_REACHED, "event");
    ensure_eq!(event.element(), srq.element(), "object");
    drop(event);
    ensure_eq!(srq.query()?.srq_limit, 0, "limit after it was reached");
    take(4)?;
    rig.expect_no_event(QUIET)
        .at("the limit event is raised once")?;
    // Three receives are left, so a limit above that raises the event at once.
    srq.set_limit(4).at("a limit of 4")?;
    let event = rig.event("a limit above the number of posted receives")?;
    ensure_eq!(event.kind(), EventType::SRQ_LIMIT_REACHED, "event");
    drop(event);
    ensure_eq!(srq.query()?.srq_limit, 0, "limit");
    rig.expect_no_event(QUIET)
}

/// The event arrives once for each transition to ERR, whether the QP had taken a receive or not.
fn last_wqe(rig: &Rig) -> TestResult {
    let (p, srq) = on_srq(rig)?;
    srq.post(&[RecvWr::new(1, &[p.b.mr.sge(0, 64)])])
        .at("a receive")?;
    for round in 0..3 {
        set_state(&p.b.qp, state::ERR)?;
        drop(rig.expect_event(EventType::QP_LAST_WQE_REACHED, p.b.qp.element())?);
        set_state(&p.b.qp, state::ERR)?;
        rig.expect_no_event(QUIET).at(&format!("round {round}"))?;
        // The receive still belongs to the SRQ.
        expect_quiet(&p.b.rcq, QUIET, "a receive of an SRQ is not flushed")?;
        for end in [&p.a, &p.b] {
            set_state(&end.qp, state::RESET)?;
        }
        connect(&p.a.qp, rig.gid, p.b.qp.qpn(), &Conn::default())?;
        connect(&p.b.qp, rig.gid, p.a.qp.qpn(), &Conn::default())?;
    }
    send(&p.a, 5)?;
    expect_success(&wait_one(&p.b.rcq, "a receive")?, 1, wc::RECV)?;
    set_state(&p.b.qp, state::ERR)?;
    drop(rig.expect_event(EventType::QP_LAST_WQE_REACHED, p.b.qp.element())?);
    rig.expect_no_event(QUIET)
}
