// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Section 3: every completion status of RC, provoked through public verbs.
//!
//! Each failing pair is also checked for the other effects of the status: the state of both QPs,
//! the flush of all other requests, the event at the responder, and a `vendor_err` that is specific
//! to the cause.
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{op, state, SendWr};
use crate::ffi::{Sge, Wc};
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use flush::{flush_behind, flush_both, flush_from_init, flush_later};
use local::{
    bad_recv, distinct_local, lkey_bounds, lkey_foreign, lkey_stale, lkey_unknown, local,
    over_max_msg_sz, read_no_local_write, recv_prot, recv_too_small, rem_op,
};
use remote::{
    expect_remote_error, imm_refused, none_accepted, not_enabled, read_not_enabled, write_edge,
    write_not_enabled, KeyViolation,
};
use retries::{peer_destroyed, peer_in_reset, rnr, short_retries, wrong_qpn};

mod flush;
mod local;
mod remote;
mod retries;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("3.1/receive-too-small", recv_too_small),
    GuestTest::new("3.1/message-longer-than-max-msg-sz", over_max_msg_sz),
    GuestTest::new("3.4/unknown-lkey", lkey_unknown),
    GuestTest::new("3.4/foreign-pd-lkey", lkey_foreign),
    GuestTest::new("3.4/lkey-out-of-bounds", lkey_bounds),
    GuestTest::new("3.4/read-into-mr-without-local-write", read_no_local_write),
    GuestTest::new("3.4/deregistered-lkey", lkey_stale),
    GuestTest::new("3.4/receive-sge", recv_prot),
    GuestTest::new("3.4/distinct-vendor-err-per-cause", distinct_local),
    GuestTest::new("3.5/flush-both-queues-in-order", flush_both),
    GuestTest::new("3.5/posts-after-err-flush-too", flush_later),
    GuestTest::new("3.5/flush-after-a-failed-send", flush_behind),
    GuestTest::new("3.5/err-from-init-flushes-receives", flush_from_init),
    GuestTest::new("3.9/write-not-enabled", write_not_enabled),
    GuestTest::new("3.9/read-not-enabled", read_not_enabled),
    GuestTest::new("3.9/peer-that-accepts-no-read", none_accepted),
    GuestTest::new("3.8/write-imm-that-took-a-receive", imm_refused),
    GuestTest::new("3.10/write-unknown-rkey", |r| {
        expect_remote_error(r, op::WRITE, KeyViolation::Unknown).map(drop)
    }),
    GuestTest::new("3.10/read-unknown-rkey", |r| {
        expect_remote_error(r, op::READ, KeyViolation::Unknown).map(drop)
    }),
    GuestTest::new("3.10/write-foreign-pd", |r| {
        expect_remote_error(r, op::WRITE, KeyViolation::Foreign).map(drop)
    }),
    GuestTest::new("3.10/read-foreign-pd", |r| {
        expect_remote_error(r, op::READ, KeyViolation::Foreign).map(drop)
    }),
    GuestTest::new("3.10/write-out-of-bounds", |r| {
        expect_remote_error(r, op::WRITE, KeyViolation::Bounds).map(drop)
    }),
    GuestTest::new("3.10/read-out-of-bounds", |r| {
        expect_remote_error(r, op::READ, KeyViolation::Bounds).map(drop)
    }),
    GuestTest::new("3.10/write-address-wraps", |r| {
        expect_remote_error(r, op::WRITE, KeyViolation::Wrap).map(drop)
    }),
    GuestTest::new("3.10/write-no-permission", |r| {
        expect_remote_error(r, op::WRITE, KeyViolation::Permission).map(drop)
    }),
    GuestTest::new("3.10/read-no-permission", |r| {
        expect_remote_error(r, op::READ, KeyViolation::Permission).map(drop)
    }),
    GuestTest::new("3.10/write-deregistered-rkey", |r| {
        expect_remote_error(r, op::WRITE, KeyViolation::Stale).map(drop)
    }),
    GuestTest::new("3.10/multi-packet-write-writes-nothing-outside", write_edge),
    GuestTest::new("3.11/bad-sge-at-the-responder", rem_op),
    GuestTest::new("3.12/peer-destroyed", peer_destroyed),
    GuestTest::new("3.12/wrong-qpn", wrong_qpn),
    GuestTest::new("3.12/peer-in-reset", peer_in_reset),
    GuestTest::new("3.13/peer-never-posts", rnr),
    GuestTest::new("3/distinct-vendor-err-per-status", distinct_statuses).limit(120),
];

/// Creates a pair with three receives at A.
fn loaded(rig: &Rig, opts: &PairOpts) -> Result<QpPair, Fail> {
    let p = rig.pair(opts)?;
    for i in 0..3 {
        p.a.recv(500 + i, 0, 64)?;
    }
    Ok(p)
}

/// Posts a request that fails at the requester, and two more after it. Checks the status of the
/// first, that all other requests are flushed in order, and that the QP is in ERR. Returns
/// `vendor_err`.
fn fails(p: &QpPair, wr: SendWr, want: u32) -> Result<u32, Fail> {
    let after =
        SendWr::new(op::WRITE, 301, &[p.a.mr.sge(0, 8)]).remote(p.b.mr.at(0), p.b.mr.rkey());
    let wr_id = wr.wr_id;
    p.a.qp.post_send(&[
        wr,
        after.clone().flags(0),
        SendWr {
            wr_id: 302,
            ..after
        },
    ])?;
    let w = wait(&p.a.scq, 3, "the failing request and two after it")?;
    let vendor_err = expect_error(&w[0], wr_id, want, &p.a.qp)?;
    expect_error(&w[1], 301, status::WR_FLUSH_ERR, &p.a.qp)?;
    expect_error(&w[2], 302, status::WR_FLUSH_ERR, &p.a.qp)?;
    wait_state(&p.a.qp, state::ERR)?;
    for (i, w) in wait(&p.a.rcq, 3, "flushed receives")?.iter().enumerate() {
        expect_error(w, 500 + i as u64, status::WR_FLUSH_ERR, &p.a.qp)?;
    }
    expect_quiet(&p.a.scq, QUIET, "send CQ after the flush")?;
    expect_quiet(&p.a.rcq, QUIET, "receive CQ after the flush")?;
    Ok(vendor_err)
}

fn foreign(rig: &Rig) -> Result<Mr, Fail> {
    let pd = rig.ctx.alloc_pd()?;
    Ok(Mr::new(&pd, 4096, access::ALL)?)
}

fn distinct(what: &str, codes: &[(&str, u32)]) -> TestResult {
    for (i, (a, x)) in codes.iter().enumerate() {
        for (b, y) in &codes[i + 1..] {
            ensure!(
                x != y,
                "{what}: {a} and {b} have the same vendor_err {x:#x}"
            );
        }
    }
    Ok(())
}

fn distinct_statuses(rig: &Rig) -> TestResult {
    let first = |p: &QpPair, wr: SendWr| -> Result<Wc, Fail> {
        p.a.qp.post_send(&[wr])?;
        wait_one(&p.a.scq, "error")
    };
    let mut codes = vec![
        (
            "LOC_PROT_ERR",
            local(rig, |p| {
                Ok(Sge {
                    lkey: !p.a.mr.lkey(),
                    ..p.a.mr.sge(0, 8)
                })
            })?,
        ),
        (
            "REM_INV_REQ_ERR",
            not_enabled(rig, op::WRITE, access::LOCAL_WRITE)?,
        ),
        (
            "REM_ACCESS_ERR",
            expect_remote_error(rig, op::WRITE, KeyViolation::Unknown)?,
        ),
        (
            "REM_OP_ERR",
            bad_recv(rig, |p| {
                Ok(Sge {
                    lkey: 1,
                    ..p.b.mr.sge(0, 64)
                })
            })?
            .1,
        ),
    ];
    let p = short_retries(rig)?;
    set_state(&p.b.qp, state::RESET)?;
    let w = first(&p, SendWr::new(op::SEND, 1, &[p.a.mr.sge(0, 8)]))?;
    codes.push((
        "RETRY_EXC_ERR",
        expect_error(&w, 1, status::RETRY_EXC_ERR, &p.a.qp)?,
    ));
    p.a.qp.post_send(&[SendWr::new(op::SEND, 2, &[])])?;
    let w = wait_one(&p.a.scq, "flushed")?;
    codes.push((
        "WR_FLUSH_ERR",
        expect_error(&w, 2, status::WR_FLUSH_ERR, &p.a.qp)?,
    ));
    let p = rig.pair(&PairOpts::default().with(|o| o.conn_a.rnr_retry = 0))?;
    let w = first(&p, SendWr::new(op::SEND, 1, &[p.a.mr.sge(0, 8)]))?;
    codes.push((
        "RNR_RETRY_EXC_ERR",
        expect_error(&w, 1, status::RNR_RETRY_EXC_ERR, &p.a.qp)?,
    ));
    distinct("statuses", &codes)
}
