// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of the flush of outstanding requests when a QP moves to ERR, by a modify or by an error.
use crate::ffi::qp::{op, state, SendWr};
use crate::rig::*;
use crate::TestResult;

pub(super) fn flush_both(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    // The peer posts no receive, so the sends stay outstanding.
    for i in 0..10 {
        p.a.recv(100 + i, 0, 64)?;
        let f = if i % 2 == 0 {
            crate::ffi::qp::flag::SIGNALED
        } else {
            0
        };
        p.a.qp
            .post_send(&[SendWr::new(op::SEND, i, &[p.a.mr.sge(0, 8)]).flags(f)])?;
    }
    set_state(&p.a.qp, state::ERR)?;
    // Each outstanding request is flushed exactly once and in order, signaled or not.
    for (i, w) in wait(&p.a.scq, 10, "flushed sends")?.iter().enumerate() {
        expect_error(w, i as u64, status::WR_FLUSH_ERR, &p.a.qp)?;
    }
    for (i, w) in wait(&p.a.rcq, 10, "flushed receives")?.iter().enumerate() {
        expect_error(w, 100 + i as u64, status::WR_FLUSH_ERR, &p.a.qp)?;
    }
    expect_quiet(&p.a.scq, QUIET, "send CQ")?;
    expect_quiet(&p.a.rcq, QUIET, "receive CQ")?;
    // A modify to ERR is not an error, so there is no event.
    rig.expect_no_event(QUIET)
}

pub(super) fn flush_later(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    set_state(&p.a.qp, state::ERR)?;
    // More requests are posted than the queues hold, one by one and in lists.
    for i in 0..60u64 {
        p.a.recv(i, 0, 64)?;
        expect_error(
            &wait_one(&p.a.rcq, "late receive")?,
            i,
            status::WR_FLUSH_ERR,
            &p.a.qp,
        )?;
        p.a.qp
            .post_send(&[SendWr::new(op::SEND, i, &[p.a.mr.sge(0, 8)]).flags(0)])?;
        expect_error(
            &wait_one(&p.a.scq, "late send")?,
            i,
            status::WR_FLUSH_ERR,
            &p.a.qp,
        )?;
    }
    let list: Vec<SendWr> = (0..16)
        .map(|i| SendWr::new(op::WRITE, i, &[p.a.mr.sge(0, 8)]).flags(0))
        .collect();
    p.a.qp.post_send(&list)?;
    for (i, w) in wait(&p.a.scq, 16, "a late list")?.iter().enumerate() {
        expect_error(w, i as u64, status::WR_FLUSH_ERR, &p.a.qp)?;
    }
    expect_quiet(&p.a.scq, QUIET, "send CQ")?;
    expect_quiet(&p.a.rcq, QUIET, "receive CQ")
}

pub(super) fn flush_behind(rig: &Rig) -> TestResult {
    // The list has valid requests, an invalid one, and more valid ones, all but one unsignaled.
    let p = rig.pair(&PairOpts::default())?;
    let remote = (p.b.mr.at(0), p.b.mr.rkey());
    let mut list: Vec<SendWr> = (0..12)
        .map(|i| {
            SendWr::new(op::WRITE, i, &[p.a.mr.sge(0, 64)])
                .remote(remote.0, remote.1)
                .flags(0)
        })
        .collect();
    list[4].sges[0].lkey = 0xdead_beef;
    list[1].flags = crate::ffi::qp::flag::SIGNALED;
    p.a.qp.post_send(&list)?;
    let w = wait(&p.a.scq, 1 + 8, "one success, one error and seven flushed")?;
    expect_success(&w[0], 1, wc::RDMA_WRITE)?;
    expect_error(&w[1], 4, status::LOC_PROT_ERR, &p.a.qp)?;
    for (i, w) in w[2..].iter().enumerate() {
        expect_error(w, 5 + i as u64, status::WR_FLUSH_ERR, &p.a.qp)?;
    }
    expect_quiet(&p.a.scq, QUIET, "send CQ")
}

pub(super) fn flush_from_init(rig: &Rig) -> TestResult {
    let opts = PairOpts::default();
    let a = rig.end(&opts)?;
    move_to(&a.qp, state::INIT, rig.gid, 0, &opts.conn_a)?;
    a.recv(1, 0, 64)?;
    a.recv(2, 0, 64)?;
    set_state(&a.qp, state::ERR)?;
    let w = wait(&a.rcq, 2, "receives of INIT")?;
    expect_error(&w[0], 1, status::WR_FLUSH_ERR, &a.qp)?;
    expect_error(&w[1], 2, status::WR_FLUSH_ERR, &a.qp)?;
    Ok(())
}
