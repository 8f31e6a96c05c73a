// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Section 3: every completion status of RC, provoked through public verbs.
//!
//! Each failing pair is also checked for what belongs to the status: the state of both QPs, the
//! flush of what else was posted, the event at the responder, and a `vendor_err` of its own.
use crate::ffi::context::EventType;
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{op, state, RecvWr, SendWr};
use crate::ffi::{Sge, Wc};
use crate::outcome::Context as _;
use crate::pattern;
use crate::rig::*;
use crate::{Fail, Test, TestResult};

pub static TESTS: &[Test] = &[
    Test::new("3.1/receive-too-small", recv_too_small),
    Test::new("3.1/message-longer-than-max-msg-sz", over_max_msg_sz),
    Test::new("3.4/unknown-lkey", lkey_unknown),
    Test::new("3.4/foreign-pd-lkey", lkey_foreign),
    Test::new("3.4/lkey-out-of-bounds", lkey_bounds),
    Test::new("3.4/read-into-mr-without-local-write", read_no_local_write),
    Test::new("3.4/deregistered-lkey", lkey_stale),
    Test::new("3.4/receive-sge", recv_prot),
    Test::new("3.4/distinct-vendor-err-per-cause", distinct_local),
    Test::new("3.5/flush-both-queues-in-order", flush_both),
    Test::new("3.5/posts-after-err-flush-too", flush_later),
    Test::new("3.5/flush-behind-a-failed-send", flush_behind),
    Test::new("3.5/err-from-init-flushes-receives", flush_from_init),
    Test::new("3.9/write-not-enabled", write_not_enabled),
    Test::new("3.9/read-not-enabled", read_not_enabled),
    Test::new("3.10/write-unknown-rkey", |r| {
        rem(r, op::WRITE, Cause::Unknown).map(drop)
    }),
    Test::new("3.10/read-unknown-rkey", |r| {
        rem(r, op::READ, Cause::Unknown).map(drop)
    }),
    Test::new("3.10/write-foreign-pd", |r| {
        rem(r, op::WRITE, Cause::Foreign).map(drop)
    }),
    Test::new("3.10/read-foreign-pd", |r| {
        rem(r, op::READ, Cause::Foreign).map(drop)
    }),
    Test::new("3.10/write-out-of-bounds", |r| {
        rem(r, op::WRITE, Cause::Bounds).map(drop)
    }),
    Test::new("3.10/read-out-of-bounds", |r| {
        rem(r, op::READ, Cause::Bounds).map(drop)
    }),
    Test::new("3.10/write-address-wraps", |r| {
        rem(r, op::WRITE, Cause::Wrap).map(drop)
    }),
    Test::new("3.10/write-no-permission", |r| {
        rem(r, op::WRITE, Cause::Permission).map(drop)
    }),
    Test::new("3.10/read-no-permission", |r| {
        rem(r, op::READ, Cause::Permission).map(drop)
    }),
    Test::new("3.10/write-deregistered-rkey", |r| {
        rem(r, op::WRITE, Cause::Stale).map(drop)
    }),
    Test::new("3.10/multi-packet-write-writes-nothing-outside", write_edge),
    Test::new("3.11/bad-sge-at-the-responder", rem_op),
    Test::new("3.12/peer-destroyed", peer_destroyed),
    Test::new("3.12/wrong-qpn", wrong_qpn),
    Test::new("3.12/peer-in-reset", peer_in_reset),
    Test::new("3.13/peer-never-posts", rnr),
    Test::new("3/distinct-vendor-err-per-status", distinct_statuses).limit(120),
];

/// A pair with three more sends behind the failing one and receives at both ends.
fn loaded(rig: &Rig, opts: &PairOpts) -> Result<Pair, Fail> {
    let p = rig.pair(opts)?;
    for i in 0..3 {
        p.a.recv(500 + i, 0, 64)?;
    }
    Ok(p)
}

/// Posts a request that fails at the requester, and two more behind it; checks its status, that
/// all else flushes in order, and that the QP is in ERR. Returns `vendor_err`.
fn fails(p: &Pair, wr: SendWr, want: u32) -> Result<u32, Fail> {
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
    let w = wait(&p.a.scq, 3, "the failing request and two behind it")?;
    let vendor_err = err(&w[0], wr_id, want, &p.a.qp)?;
    err(&w[1], 301, status::WR_FLUSH_ERR, &p.a.qp)?;
    err(&w[2], 302, status::WR_FLUSH_ERR, &p.a.qp)?;
    wait_state(&p.a.qp, state::ERR)?;
    for (i, w) in wait(&p.a.rcq, 3, "flushed receives")?.iter().enumerate() {
        err(w, 500 + i as u64, status::WR_FLUSH_ERR, &p.a.qp)?;
    }
    expect_quiet(&p.a.scq, QUIET, "send CQ after the flush")?;
    expect_quiet(&p.a.rcq, QUIET, "receive CQ after the flush")?;
    Ok(vendor_err)
}

fn recv_too_small(rig: &Rig) -> TestResult {
    for (buffer, message) in [(64, 65), (64, 1024), (1024, 1025), (0, 1), (3000, 10_000)] {
        let p = loaded(rig, &PairOpts::default())?;
        p.b.recv(1, 0, buffer)?;
        p.b.recv(2, 0, 64)?;
        p.b.mr.buf.fill(0, 20_000, 0x77);
        let wr = SendWr::new(op::SEND, 3, &[p.a.mr.sge(0, message)]);
        fails(&p, wr, status::REM_INV_REQ_ERR).at(&format!("SEND of {message} into {buffer}"))?;
        let w = wait(&p.b.rcq, 2, "receives")?;
        err(&w[0], 1, status::LOC_LEN_ERR, &p.b.qp)?;
        err(&w[1], 2, status::WR_FLUSH_ERR, &p.b.qp)?;
        wait_state(&p.b.qp, state::ERR)?;
        let beyond = p.b.mr.buf.read(buffer, 20_000 - buffer);
        ensure!(
            beyond.iter().all(|&b| b == 0x77),
            "written beyond the receive buffer"
        );
        // The receive carries the error, so there is no event.
        rig.expect_no_event(QUIET)?;
    }
    Ok(())
}

fn over_max_msg_sz(rig: &Rig) -> TestResult {
    let max = rig.ctx.query_port(1)?.max_msg_sz;
    if max == u32::MAX {
        return Err(Fail::Skipped("max_msg_sz is 2^32 - 1".into()));
    }
    let p = loaded(rig, &PairOpts::default())?;
    // SGEs are checked for their sum before any of them is used.
    let half = Sge {
        length: max / 2 + 1,
        ..p.a.mr.sge(0, 8)
    };
    let wr = SendWr::new(op::WRITE, 1, &[half, half]).remote(p.b.mr.at(0), p.b.mr.rkey());
    fails(&p, wr, status::LOC_LEN_ERR)?;
    Ok(())
}

fn local(rig: &Rig, sge: impl FnOnce(&Pair) -> Result<Sge, Fail>) -> Result<u32, Fail> {
    let p = loaded(rig, &PairOpts::default())?;
    let bad = sge(&p)?;
    let wr = SendWr::new(op::WRITE, 1, &[bad]).remote(p.b.mr.at(0), p.b.mr.rkey());
    let v = fails(&p, wr, status::LOC_PROT_ERR)?;
    ensure_eq!(
        p.b.qp.state()?,
        state::RTS,
        "state of the peer, which saw nothing"
    );
    Ok(v)
}

fn lkey_unknown(rig: &Rig) -> TestResult {
    local(rig, |p| {
        Ok(Sge {
            lkey: !p.a.mr.lkey(),
            ..p.a.mr.sge(0, 8)
        })
    })?;
    // Only the tag is wrong.
    local(rig, |p| {
        Ok(Sge {
            lkey: p.a.mr.lkey() ^ 1,
            ..p.a.mr.sge(0, 8)
        })
    })
    .at("wrong tag")?;
    // The second SGE.
    let p = loaded(rig, &PairOpts::default())?;
    let bad = Sge {
        lkey: 0xdead_beef,
        ..p.a.mr.sge(0, 8)
    };
    let wr = SendWr::new(op::SEND, 1, &[p.a.mr.sge(0, 8), bad]);
    fails(&p, wr, status::LOC_PROT_ERR).at("second SGE")?;
    Ok(())
}

fn foreign(rig: &Rig) -> Result<Mr, Fail> {
    let pd = rig.ctx.alloc_pd()?;
    Ok(Mr::new(&pd, 4096, access::ALL)?)
}

fn lkey_foreign(rig: &Rig) -> TestResult {
    let other = foreign(rig)?;
    local(rig, |_| Ok(other.sge(0, 8)))?;
    Ok(())
}

fn lkey_bounds(rig: &Rig) -> TestResult {
    let len = PairOpts::default().buf;
    local(rig, |p| Ok(p.a.mr.sge(len - 7, 8))).at("one byte beyond the end")?;
    local(rig, |p| {
        Ok(Sge {
            addr: p.a.mr.at(0) - 1,
            ..p.a.mr.sge(0, 8)
        })
    })
    .at("before the start")?;
    local(rig, |p| {
        Ok(Sge {
            addr: u64::MAX - 3,
            ..p.a.mr.sge(0, 8)
        })
    })
    .at("around the end")?;
    local(rig, |p| Ok(p.a.mr.sge(0, len + 1))).at("longer than the region")?;
    Ok(())
}

fn read_no_local_write(rig: &Rig) -> TestResult {
    let p = loaded(rig, &PairOpts::default())?;
    let ro = Mr::new(&rig.pd, 4096, access::NONE)?;
    ro.buf.fill(0, 64, 0x11);
    let wr = SendWr::new(op::READ, 1, &[ro.sge(0, 8)]).remote(p.b.mr.at(0), p.b.mr.rkey());
    fails(&p, wr, status::LOC_PROT_ERR)?;
    ensure_eq!(
        ro.buf.read(0, 64),
        vec![0x11; 64],
        "memory without local write"
    );
    Ok(())
}

fn lkey_stale(rig: &Rig) -> TestResult {
    let mr = Mr::new(&rig.pd, 4096, access::ALL)?;
    let sge = mr.sge(0, 8);
    drop(mr);
    local(rig, |_| Ok(sge))?;
    Ok(())
}

/// A receive whose SGE is bad: it completes with LOC_PROT_ERR, the sender sees REM_OP_ERR.
fn bad_recv(rig: &Rig, sge: impl FnOnce(&Pair) -> Result<Sge, Fail>) -> Result<(u32, u32), Fail> {
    let p = loaded(rig, &PairOpts::default())?;
    let bad = sge(&p)?;
    p.b.qp.post_recv(&[RecvWr::new(1, &[bad])])?;
    p.b.recv(2, 0, 64)?;
    let remote = fails(
        &p,
        SendWr::new(op::SEND, 3, &[p.a.mr.sge(0, 8)]),
        status::REM_OP_ERR,
    )?;
    let w = wait(&p.b.rcq, 2, "receives")?;
    let local = err(&w[0], 1, status::LOC_PROT_ERR, &p.b.qp)?;
    err(&w[1], 2, status::WR_FLUSH_ERR, &p.b.qp)?;
    wait_state(&p.b.qp, state::ERR)?;
    rig.expect_no_event(QUIET)?;
    Ok((local, remote))
}

fn recv_prot(rig: &Rig) -> TestResult {
    let ro = Mr::new(&rig.pd, 4096, access::NONE)?;
    bad_recv(rig, |_| Ok(ro.sge(0, 64))).at("without local write")?;
    let other = foreign(rig)?;
    bad_recv(rig, |_| Ok(other.sge(0, 64))).at("foreign PD")?;
    bad_recv(rig, |p| {
        Ok(Sge {
            lkey: 0xdead_beef,
            ..p.b.mr.sge(0, 64)
        })
    })
    .at("unknown")?;
    Ok(())
}

fn rem_op(rig: &Rig) -> TestResult {
    let len = PairOpts::default().buf;
    bad_recv(rig, |p| Ok(p.b.mr.sge(len - 4, 64)))?;
    Ok(())
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

fn distinct_local(rig: &Rig) -> TestResult {
    let other = foreign(rig)?;
    let unknown = local(rig, |p| {
        Ok(Sge {
            lkey: !p.a.mr.lkey(),
            ..p.a.mr.sge(0, 8)
        })
    })?;
    let foreign = local(rig, |_| Ok(other.sge(0, 8)))?;
    let bounds = local(rig, |p| Ok(p.a.mr.sge(1 << 16, 8)))?;
    distinct(
        "LOC_PROT_ERR",
        &[
            ("unknown", unknown),
            ("foreign", foreign),
            ("bounds", bounds),
        ],
    )
}

fn flush_both(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    // The peer posts no receive: the sends are outstanding for ever.
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
    // Signaled or not: each outstanding one is flushed, exactly once, in order.
    for (i, w) in wait(&p.a.scq, 10, "flushed sends")?.iter().enumerate() {
        err(w, i as u64, status::WR_FLUSH_ERR, &p.a.qp)?;
    }
    for (i, w) in wait(&p.a.rcq, 10, "flushed receives")?.iter().enumerate() {
        err(w, 100 + i as u64, status::WR_FLUSH_ERR, &p.a.qp)?;
    }
    expect_quiet(&p.a.scq, QUIET, "send CQ")?;
    expect_quiet(&p.a.rcq, QUIET, "receive CQ")?;
    // Moving to ERR by hand is nobody's error: no event.
    rig.expect_no_event(QUIET)
}

fn flush_later(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    set_state(&p.a.qp, state::ERR)?;
    // More than the queues hold at once, one by one and in lists.
    for i in 0..60u64 {
        p.a.recv(i, 0, 64)?;
        err(
            &wait_one(&p.a.rcq, "late receive")?,
            i,
            status::WR_FLUSH_ERR,
            &p.a.qp,
        )?;
        p.a.qp
            .post_send(&[SendWr::new(op::SEND, i, &[p.a.mr.sge(0, 8)]).flags(0)])?;
        err(
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
        err(w, i as u64, status::WR_FLUSH_ERR, &p.a.qp)?;
    }
    expect_quiet(&p.a.scq, QUIET, "send CQ")?;
    expect_quiet(&p.a.rcq, QUIET, "receive CQ")
}

fn flush_behind(rig: &Rig) -> TestResult {
    // Good ones, a bad one, and more, unsignaled, posted as one list.
    let p = rig.pair(&PairOpts::default())?;
    let there = (p.b.mr.at(0), p.b.mr.rkey());
    let mut list: Vec<SendWr> = (0..12)
        .map(|i| {
            SendWr::new(op::WRITE, i, &[p.a.mr.sge(0, 64)])
                .remote(there.0, there.1)
                .flags(0)
        })
        .collect();
    list[4].sges[0].lkey = 0xdead_beef;
    list[1].flags = crate::ffi::qp::flag::SIGNALED;
    p.a.qp.post_send(&list)?;
    let w = wait(&p.a.scq, 1 + 8, "one success, one error and seven flushed")?;
    ok(&w[0], 1, wc::RDMA_WRITE)?;
    err(&w[1], 4, status::LOC_PROT_ERR, &p.a.qp)?;
    for (i, w) in w[2..].iter().enumerate() {
        err(w, 5 + i as u64, status::WR_FLUSH_ERR, &p.a.qp)?;
    }
    expect_quiet(&p.a.scq, QUIET, "send CQ")
}

fn flush_from_init(rig: &Rig) -> TestResult {
    let opts = PairOpts::default();
    let a = rig.end(&opts)?;
    move_to(&a.qp, state::INIT, rig.gid, 0, &opts.conn_a)?;
    a.recv(1, 0, 64)?;
    a.recv(2, 0, 64)?;
    set_state(&a.qp, state::ERR)?;
    let w = wait(&a.rcq, 2, "receives of INIT")?;
    err(&w[0], 1, status::WR_FLUSH_ERR, &a.qp)?;
    err(&w[1], 2, status::WR_FLUSH_ERR, &a.qp)?;
    Ok(())
}

/// The responder refused: its QP is in ERR, its receives flushed, and its handler told.
fn responder_error(rig: &Rig, p: &Pair, kind: EventType) -> TestResult {
    drop(rig.expect_event(kind, p.b.qp.element())?);
    wait_state(&p.b.qp, state::ERR)?;
    err(
        &wait_one(&p.b.rcq, "receive of the responder")?,
        2,
        status::WR_FLUSH_ERR,
        &p.b.qp,
    )?;
    rig.expect_no_event(QUIET)
}

fn not_enabled(rig: &Rig, opcode: u32, granted: u32) -> Result<u32, Fail> {
    let opts = PairOpts::default().with(|o| o.conn_b.access = granted);
    let p = loaded(rig, &opts)?;
    p.b.recv(2, 0, 64)?;
    p.b.mr.buf.fill(0, 64, 0x55);
    let wr = SendWr::new(opcode, 1, &[p.a.mr.sge(0, 8)]).remote(p.b.mr.at(0), p.b.mr.rkey());
    let v = fails(&p, wr, status::REM_INV_REQ_ERR)?;
    ensure_eq!(
        p.b.mr.buf.read(0, 64),
        vec![0x55; 64],
        "memory of the responder"
    );
    responder_error(rig, &p, EventType::QP_REQ_ERR)?;
    Ok(v)
}

fn write_not_enabled(rig: &Rig) -> TestResult {
    not_enabled(rig, op::WRITE, access::LOCAL_WRITE | access::REMOTE_READ)?;
    Ok(())
}

fn read_not_enabled(rig: &Rig) -> TestResult {
    not_enabled(rig, op::READ, access::LOCAL_WRITE | access::REMOTE_WRITE)?;
    Ok(())
}

#[derive(Clone, Copy)]
enum Cause {
    Unknown,
    Foreign,
    Bounds,
    Wrap,
    Permission,
    Stale,
}

/// A WRITE or READ that the responder's memory protection refuses. Returns `vendor_err`.
fn rem(rig: &Rig, opcode: u32, cause: Cause) -> Result<u32, Fail> {
    let p = loaded(rig, &PairOpts::default())?;
    p.b.recv(2, 0, 64)?;
    let other = match cause {
        Cause::Foreign => Some(foreign(rig)?),
        // The other permission, so that exactly the needed one is missing.
        Cause::Permission if opcode == op::READ => Some(Mr::new(
            &rig.pd,
            4096,
            access::LOCAL_WRITE | access::REMOTE_WRITE,
        )?),
        Cause::Permission => Some(Mr::new(
            &rig.pd,
            4096,
            access::LOCAL_WRITE | access::REMOTE_READ,
        )?),
        _ => None,
    };
    let (addr, rkey) = match (cause, &other) {
        (Cause::Unknown, _) => (p.b.mr.at(0), !p.b.mr.rkey()),
        (Cause::Bounds, _) => (p.b.mr.at(PairOpts::default().buf - 4), p.b.mr.rkey()),
        (Cause::Wrap, _) => (u64::MAX - 3, p.b.mr.rkey()),
        (Cause::Stale, _) => {
            let mr = Mr::new(&rig.pd, 4096, access::ALL)?;
            (mr.at(0), mr.rkey())
        }
        (_, Some(mr)) => (mr.at(0), mr.rkey()),
        (_, None) => return Err("no region for this cause".into()),
    };
    p.a.mr.buf.write(0, &pattern::bytes(1, 64));
    let wr = SendWr::new(opcode, 1, &[p.a.mr.sge(0, 64)]).remote(addr, rkey);
    let v = fails(&p, wr, status::REM_ACCESS_ERR)?;
    responder_error(rig, &p, EventType::QP_ACCESS_ERR)?;
    if let Some(mr) = &other {
        ensure_eq!(mr.buf.read(0, 64), vec![0; 64], "memory of the responder");
    }
    ensure_eq!(
        p.a.mr.buf.read(0, 64),
        pattern::bytes(1, 64),
        "memory of the requester"
    );
    Ok(v)
}

fn write_edge(rig: &Rig) -> TestResult {
    // Several packets, of which only the last would be out of bounds: the RETH names the whole
    // range, so nothing at all is written.
    let p = loaded(rig, &PairOpts::default())?;
    p.b.recv(2, 0, 64)?;
    let buf = std::sync::Arc::new(crate::ffi::sys::Buf::new(16384)?);
    let mr = Mr::of(&rig.pd, &buf, 0, 8192, access::ALL)?;
    p.a.mr.buf.fill(0, 8200, 0xcc);
    let wr = SendWr::new(op::WRITE, 1, &[p.a.mr.sge(0, 8193)]).remote(mr.at(0), mr.rkey());
    fails(&p, wr, status::REM_ACCESS_ERR)?;
    responder_error(rig, &p, EventType::QP_ACCESS_ERR)?;
    ensure!(
        buf.read(0, 16384).iter().all(|&b| b == 0),
        "something was written"
    );
    Ok(())
}

fn short_retries(rig: &Rig) -> Result<Pair, Fail> {
    loaded(
        rig,
        &PairOpts::default().with(|o| (o.conn_a.timeout, o.conn_a.retry_cnt) = (14, 2)),
    )
}

fn peer_destroyed(rig: &Rig) -> TestResult {
    let Pair { a, b } = short_retries(rig)?;
    let mr = b.mr.clone();
    drop(b);
    // A pair again, for `fails`: B's place is taken by an unconnected QP.
    let b = End {
        mr,
        ..rig.end(&PairOpts::default())?
    };
    let p = Pair { a, b };
    let wr = SendWr::new(op::WRITE, 1, &[p.a.mr.sge(0, 8)]).remote(p.b.mr.at(0), p.b.mr.rkey());
    fails(&p, wr, status::RETRY_EXC_ERR)?;
    Ok(())
}

fn wrong_qpn(rig: &Rig) -> TestResult {
    let opts = PairOpts::default().with(|o| (o.conn_a.timeout, o.conn_a.retry_cnt) = (14, 1));
    let (a, b) = (rig.end(&opts)?, rig.end(&opts)?);
    connect(&a.qp, rig.gid, 0x00ff_fff0, &opts.conn_a)?;
    for i in 0..3 {
        a.recv(500 + i, 0, 64)?;
    }
    let p = Pair { a, b };
    fails(
        &p,
        SendWr::new(op::SEND, 1, &[p.a.mr.sge(0, 8)]),
        status::RETRY_EXC_ERR,
    )?;
    Ok(())
}

fn peer_in_reset(rig: &Rig) -> TestResult {
    let p = short_retries(rig)?;
    set_state(&p.b.qp, state::RESET)?;
    fails(
        &p,
        SendWr::new(op::SEND, 1, &[p.a.mr.sge(0, 8)]),
        status::RETRY_EXC_ERR,
    )?;
    Ok(())
}

fn rnr(rig: &Rig) -> TestResult {
    for rnr_retry in [0, 1, 3] {
        let p = loaded(
            rig,
            &PairOpts::default().with(|o| o.conn_a.rnr_retry = rnr_retry),
        )?;
        fails(
            &p,
            SendWr::new(op::SEND, 1, &[p.a.mr.sge(0, 8)]),
            status::RNR_RETRY_EXC_ERR,
        )
        .at(&format!("rnr_retry {rnr_retry}"))?;
        ensure_eq!(p.b.qp.state()?, state::RTS, "state of the peer");
        rig.expect_no_event(QUIET)?;
    }
    Ok(())
}

fn distinct_statuses(rig: &Rig) -> TestResult {
    let first = |p: &Pair, wr: SendWr| -> Result<Wc, Fail> {
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
        ("REM_ACCESS_ERR", rem(rig, op::WRITE, Cause::Unknown)?),
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
    codes.push(("RETRY_EXC_ERR", err(&w, 1, status::RETRY_EXC_ERR, &p.a.qp)?));
    p.a.qp.post_send(&[SendWr::new(op::SEND, 2, &[])])?;
    let w = wait_one(&p.a.scq, "flushed")?;
    codes.push(("WR_FLUSH_ERR", err(&w, 2, status::WR_FLUSH_ERR, &p.a.qp)?));
    let p = rig.pair(&PairOpts::default().with(|o| o.conn_a.rnr_retry = 0))?;
    let w = first(&p, SendWr::new(op::SEND, 1, &[p.a.mr.sge(0, 8)]))?;
    codes.push((
        "RNR_RETRY_EXC_ERR",
        err(&w, 1, status::RNR_RETRY_EXC_ERR, &p.a.qp)?,
    ));
    distinct("statuses", &codes)
}
