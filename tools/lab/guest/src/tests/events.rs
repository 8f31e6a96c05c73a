// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Section 4: asynchronous events, their recipients, their number and their objects.
use crate::ffi::context::EventType;
use crate::ffi::cq::Cq;
use crate::ffi::destroy::Destroy as _;
use crate::ffi::mr::access;
use crate::ffi::qp::{flag, op, state, RecvWr, SendWr};
use crate::outcome::ErrorContext as _;
use crate::pattern;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("4/cq-err-on-a-receive-cq", |r| cq_err(r, CqSide::Receive)),
    GuestTest::new("4/cq-err-on-a-send-cq", |r| cq_err(r, CqSide::Send)),
    GuestTest::new("4/cq-err-does-not-affect-others", cq_err_bystander).limit(120),
    GuestTest::new("4/cq-err-flushes-to-the-healthy-cq-only", cq_err_healthy),
    GuestTest::new("4/cq-err-recovery", cq_err_recovery).limit(90),
    GuestTest::new("4/cq-exactly-full-is-no-error", cq_full),
    GuestTest::new("4/polled-cq-never-overflows", cq_polled).limit(120),
    GuestTest::new("4/qp-fatal-after-cq-err", qp_fatal),
    GuestTest::new("4/qp-req-err", req_err),
    GuestTest::new("4/qp-access-err", access_err),
    GuestTest::new("4/destroy-qp-waits-for-the-ack", destroy_waits),
    GuestTest::new("4/destroy-cq-waits-for-the-ack", destroy_cq_waits),
    GuestTest::new("4/no-event-for-a-destroyed-object", none_for_destroyed),
    GuestTest::new("4/an-event-goes-to-its-own-context", own_context),
];

enum CqSide {
    Send,
    Receive,
}

/// A pair whose end B has a small CQ on one side and a healthy CQ on the other.
struct OverflowPair {
    a: QpEndpoint,
    b: QpEndpoint,
    small_cq: Arc<Cq>,
}

/// Creates the pair and overflows the small CQ of B by `surplus` completions. Returns the number of
/// completions that were provoked.
fn overflow(rig: &Rig, side: &CqSide, surplus: u64) -> Result<(OverflowPair, u64), Fail> {
    let opts = PairOpts::default().with(|o| {
        o.cap.max_send_wr = 256;
        o.cap.max_recv_wr = 256;
        o.cqe = 600;
        // The requester must detect soon that its peer has failed.
        if surplus > 0 {
            (o.conn_a.timeout, o.conn_a.retry_cnt) = (14, 1);
        }
    });
    let a = rig.end(&opts)?;
    let small_cq = Cq::new(&rig.ctx, 8)?;
    let other = Cq::new(&rig.ctx, 600)?;
    let b = match side {
        CqSide::Receive => rig.end_on(&opts, other, small_cq.clone())?,
        CqSide::Send => rig.end_on(&opts, small_cq.clone(), other)?,
    };
    connect(&a.qp, rig.gid, b.qp.qpn(), &opts.conn_a)?;
    connect(&b.qp, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    let n = small_cq.cqe() as u64 + surplus;
    ensure!(
        n <= 250,
        "a CQ of 8 entries was rounded up to {}",
        small_cq.cqe()
    );
    for i in 0..n {
        match side {
            CqSide::Receive => {
                b.recv(i, 0, 64)?;
                let wr = SendWr::new(op::SEND, i, &[a.mr.sge(0, 8)]).flags(0);
                a.qp.post_send(&[wr])?;
            }
            CqSide::Send => {
                let wr = SendWr::new(op::WRITE, i, &[b.mr.sge(0, 8)]);
                b.qp.post_send(&[wr.remote(a.mr.at(0), a.mr.rkey())])?;
            }
        }
    }
    Ok((OverflowPair { a, b, small_cq }, n))
}

/// Takes the CQ_ERR and the QP_FATAL events of an overflow, in any order, and checks that there are
/// no others.
fn take_events(rig: &Rig, cq: &Cq, qps: &[&QpEndpoint]) -> TestResult {
    let mut cq_err = 0;
    let mut fatal = vec![0; qps.len()];
    for _ in 0..1 + qps.len() {
        let e = rig.event("CQ_ERR and QP_FATAL of an overflow")?;
        match e.kind() {
            EventType::CQ_ERR => {
                ensure_eq!(e.element(), cq.element(), "object of CQ_ERR");
                cq_err += 1;
            }
            EventType::QP_FATAL => {
                let i = qps.iter().position(|q| q.qp.element() == e.element());
                fatal[i.ok_or("QP_FATAL for a QP that is not attached")?] += 1;
            }
            other => return Err(format!("event {other:?} at an overflow").into()),
        }
    }
    ensure_eq!(cq_err, 1, "number of CQ_ERR");
    ensure!(
        fatal.iter().all(|&n| n == 1),
        "QP_FATAL per attached QP: {fatal:?}"
    );
    rig.expect_no_event(Duration::from_secs(1))
}

fn cq_err(rig: &Rig, side: CqSide) -> TestResult {
    let (v, _) = overflow(rig, &side, 5)?;
    take_events(rig, &v.small_cq, &[&v.b])?;
    wait_state(&v.b.qp, state::ERR)?;
    // The CQ has exactly the entries before the overflow, in order and none overwritten, and gets
    // no more.
    let n = v.small_cq.cqe();
    for (i, w) in wait(&v.small_cq, n, "the completions before the overflow")?
        .iter()
        .enumerate()
    {
        let opcode = if let CqSide::Send = side {
            wc::RDMA_WRITE
        } else {
            wc::RECV
        };
        expect_success(w, i as u64, opcode)?;
    }
    expect_quiet(&v.small_cq, Duration::from_secs(1), "a CQ in error")?;
    // Polling does not repair the CQ.
    v.b.qp
        .post_recv(&[RecvWr::new(9, &[v.b.mr.sge(0, 8)])])
        .at("posting to a QP in ERR")?;
    expect_quiet(&v.small_cq, QUIET, "a CQ in error that was drained")?;
    rig.expect_no_event(QUIET)
}

fn cq_err_healthy(rig: &Rig) -> TestResult {
    let (v, n) = overflow(rig, &CqSide::Receive, 5)?;
    for i in 0..3 {
        let wr = SendWr::new(op::SEND, 700 + i, &[v.b.mr.sge(0, 8)]).flags(0);
        v.b.qp
            .post_send(&[wr])
            .at("posting a send to the QP of the overflowing CQ")?;
    }
    take_events(rig, &v.small_cq, &[&v.b])?;
    // The sends of B (A has no receive) are flushed to the healthy CQ; the receives have no CQ to
    // complete in.
    for (i, w) in wait(&v.b.scq, 3, "flushed sends")?.iter().enumerate() {
        expect_error(w, 700 + i as u64, status::WR_FLUSH_ERR, &v.b.qp)?;
    }
    expect_quiet(&v.b.scq, QUIET, "the healthy CQ")?;
    // The requester detects that its peer is silent, and each of its requests completes or is
    // flushed.
    wait_state(&v.a.qp, state::ERR).at("the sender, whose peer is in ERR")?;
    let first = wait_one(&v.a.scq, "first failed send")?;
    ensure!(
        first.status != status::SUCCESS,
        "an unsignaled send completed in success"
    );
    // The first failed send may have been received: a responder that moved to ERR does not
    // acknowledge any more.
    let rest = wait(
        &v.a.scq,
        (n - first.wr_id - 1) as usize,
        "flushed sends of the peer",
    )?;
    for (i, w) in rest.iter().enumerate() {
        expect_error(w, first.wr_id + 1 + i as u64, status::WR_FLUSH_ERR, &v.a.qp)?;
    }
    Ok(())
}

fn cq_err_bystander(rig: &Rig) -> TestResult {
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let load = s.spawn(|| -> Result<u64, Fail> {
            let p = rig.pair(&PairOpts {
                buf: 1 << 17,
                ..PairOpts::default()
            })?;
            let mut round = 0u64;
            while !stop.load(Ordering::Relaxed) {
                checked_exchange(&p, round).at(&format!("bystander, round {round}"))?;
                round += 1;
            }
            Ok(round)
        });
        let result = (|| {
            for i in 0..6 {
                let side = if i % 2 == 0 {
                    CqSide::Receive
                } else {
                    CqSide::Send
                };
                let (v, _) = overflow(rig, &side, 3)?;
                take_events(rig, &v.small_cq, &[&v.b])?;
                ensure_eq!(v.b.qp.state()?, state::ERR, "state of the attached QP");
                ensure_eq!(
                    wait(&v.small_cq, v.small_cq.cqe(), "entries")?.len(),
                    v.small_cq.cqe(),
                    "entries"
                );
                expect_quiet(&v.small_cq, QUIET, "a CQ in error")?;
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        let rounds = load.join().map_err(|_| "the bystander panicked")??;
        ensure!(rounds > 0, "the bystander completed no round");
        result
    })
}

/// Executes a WRITE, a READ and a SEND, with every byte compared.
pub fn checked_exchange(p: &QpPair, seed: u64) -> TestResult {
    let len = 1 + (pattern::PatternRng::new(seed).below(30_000)) as usize;
    let data = pattern::bytes(seed, len);
    let (a, b) = (&p.a, &p.b);
    a.mr.buf.write(0, &data);
    b.recv(1, 65536, 32768)?;
    let remote = (b.mr.at(0), b.mr.rkey());
    a.qp.post_send(&[
        SendWr::new(op::WRITE, 2, &[a.mr.sge(0, len)])
            .remote(remote.0, remote.1)
            .flags(0),
        SendWr::new(op::READ, 3, &[a.mr.sge(65536, len)])
            .remote(remote.0, remote.1)
            .flags(0),
        SendWr::new(op::SEND, 4, &[a.mr.sge(0, len)]).flags(flag::SIGNALED | flag::FENCE),
    ])?;
    if std::sync::Arc::ptr_eq(&a.scq, &b.rcq) {
        let mut both = wait(&a.scq, 2, "exchange")?;
        both.sort_by_key(|w| w.wr_id);
        expect_success(&both[0], 1, wc::RECV)?;
        expect_success(&both[1], 4, wc::SEND)?;
    } else {
        expect_success(&wait_one(&a.scq, "exchange")?, 4, wc::SEND)?;
        expect_success(&wait_one(&b.rcq, "exchange")?, 1, wc::RECV)?;
    }
    pattern::compare("written", &b.mr.buf.read(0, len), &data)?;
    pattern::compare("read", &a.mr.buf.read(65536, len), &data)?;
    pattern::compare("sent", &b.mr.buf.read(65536, len), &data)?;
    Ok(())
}

fn cq_err_recovery(rig: &Rig) -> TestResult {
    for i in 0..10 {
        let side = if i % 2 == 0 {
            CqSide::Receive
        } else {
            CqSide::Send
        };
        let (v, _) = overflow(rig, &side, 1 + i)?;
        take_events(rig, &v.small_cq, &[&v.b])?;
        let OverflowPair { a, b, small_cq } = v;
        drop((a, b));
        let destroyed = small_cq.destroy().map_err(|(errno, _)| errno);
        destroyed.at("destroying the CQ in error")?;
        // A new pair with new CQs works.
        let p = rig.pair(&PairOpts {
            buf: 1 << 17,
            ..PairOpts::default()
        })?;
        checked_exchange(&p, i).at("after the recovery")?;
    }
    Ok(())
}

fn cq_full(rig: &Rig) -> TestResult {
    let (v, n) = overflow(rig, &CqSide::Receive, 0)?;
    // The WRITE after the sends completes only at the sender, after the peer has executed all the
    // sends. By then the CQ is full and has not been polled.
    let wr = SendWr::new(op::WRITE, 800, &[v.a.mr.sge(0, 8)]).remote(v.b.mr.at(64), v.b.mr.rkey());
    v.a.qp.post_send(&[wr])?;
    expect_success(
        &wait_one(&v.a.scq, "the write after the sends")?,
        800,
        wc::RDMA_WRITE,
    )?;
    rig.expect_no_event(Duration::from_secs(1))?;
    ensure_eq!(v.b.qp.state()?, state::RTS, "state of the QP of a full CQ");
    let written = v.small_cq.poll(n as usize + 1)?;
    ensure_eq!(written.len(), n as usize, "completions in a full CQ");
    for (i, w) in written.iter().enumerate() {
        expect_success(w, i as u64, wc::RECV)?;
    }
    v.b.recv(900, 0, 64)?;
    v.a.qp
        .post_send(&[SendWr::new(op::SEND, 901, &[v.a.mr.sge(0, 8)])])?;
    expect_success(
        &wait_one(&v.small_cq, "one more after polling")?,
        900,
        wc::RECV,
    )
}

fn cq_polled(rig: &Rig) -> TestResult {
    // A CQ that is polled between posts holds at most the outstanding requests, so it never
    // overflows, even if the device has an old value of the consumer index.
    let cq = Cq::new(&rig.ctx, 4)?;
    let opts = PairOpts {
        cq: Some(cq.clone()),
        ..PairOpts::default()
    };
    let p = rig.pair(&opts)?;
    let depth = cq.cqe().min(16) as u64;
    let mut next = 0;
    for posted in 0..20_000u64 {
        let wr = SendWr::new(op::WRITE, posted, &[p.a.mr.sge(0, 8)]);
        p.a.qp
            .post_send(&[wr.remote(p.b.mr.at(0), p.b.mr.rkey())])?;
        while posted + 1 - next >= depth {
            expect_success(&wait_one(&cq, "write")?, next, wc::RDMA_WRITE)?;
            next += 1;
        }
    }
    while next < 20_000 {
        expect_success(&wait_one(&cq, "write")?, next, wc::RDMA_WRITE)?;
        next += 1;
    }
    rig.expect_no_event(QUIET)
}

fn qp_fatal(rig: &Rig) -> TestResult {
    // Two QPs use the CQ that overflows, and only one of them causes the overflow.
    let opts = PairOpts::default();
    let small_cq = Cq::new(&rig.ctx, 8)?;
    let idle = rig.end_on(&opts, small_cq.clone(), small_cq.clone())?;
    let idle_peer = rig.end(&opts)?;
    connect(&idle.qp, rig.gid, idle_peer.qp.qpn(), &opts.conn_a)?;
    let b = rig.end_on(&opts, small_cq.clone(), small_cq.clone())?;
    let a = rig.end(&opts)?;
    connect(&a.qp, rig.gid, b.qp.qpn(), &opts.conn_a)?;
    connect(&b.qp, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    for i in 0..small_cq.cqe() as u64 + 2 {
        let wr = SendWr::new(op::WRITE, i, &[b.mr.sge(0, 8)]);
        wait_for("the send queue has room", || {
            Ok(b.qp
                .post_send(&[wr.clone().remote(a.mr.at(0), a.mr.rkey())])
                .is_ok())
        })?;
    }
    take_events(rig, &small_cq, &[&idle, &b])?;
    wait_state(&b.qp, state::ERR)?;
    wait_state(&idle.qp, state::ERR)
}

/// Provokes QP_ACCESS_ERR at B of a new pair.
fn provoke_access(rig: &Rig) -> Result<QpPair, Fail> {
    let p = rig.pair(&PairOpts::default())?;
    let wr = SendWr::new(op::WRITE, 1, &[p.a.mr.sge(0, 8)]).remote(p.b.mr.at(0), !p.b.mr.rkey());
    p.a.qp.post_send(&[wr])?;
    expect_error(
        &wait_one(&p.a.scq, "the refused write")?,
        1,
        status::REM_ACCESS_ERR,
        &p.a.qp,
    )?;
    Ok(p)
}

fn access_err(rig: &Rig) -> TestResult {
    let p = provoke_access(rig)?;
    drop(rig.expect_event(EventType::QP_ACCESS_ERR, p.b.qp.element())?);
    ensure_eq!(p.b.qp.state()?, state::ERR, "state of the responder");
    rig.expect_no_event(Duration::from_secs(1))
}

fn req_err(rig: &Rig) -> TestResult {
    let opts = PairOpts::default().with(|o| o.conn_b.access = access::LOCAL_WRITE);
    let p = rig.pair(&opts)?;
    let wr = SendWr::new(op::READ, 1, &[p.a.mr.sge(0, 8)]).remote(p.b.mr.at(0), p.b.mr.rkey());
    p.a.qp.post_send(&[wr])?;
    expect_error(
        &wait_one(&p.a.scq, "the refused read")?,
        1,
        status::REM_INV_REQ_ERR,
        &p.a.qp,
    )?;
    drop(rig.expect_event(EventType::QP_REQ_ERR, p.b.qp.element())?);
    ensure_eq!(p.b.qp.state()?, state::ERR, "state of the responder");
    rig.expect_no_event(Duration::from_secs(1))
}

/// Runs `destroy` in a thread and checks that the call waits until `event` is dropped.
fn waits_for_ack(
    event: crate::ffi::context::AsyncEvent,
    destroy: impl FnOnce() + Send,
) -> TestResult {
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            destroy();
            done.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(QUIET);
        let early = done.load(Ordering::SeqCst);
        drop(event);
        ensure!(!early, "destroying did not wait for the acknowledgement");
        Ok(())
    })
}

fn destroy_waits(rig: &Rig) -> TestResult {
    let QpPair { a: _a, b } = provoke_access(rig)?;
    let event = rig.expect_event(EventType::QP_ACCESS_ERR, b.qp.element())?;
    waits_for_ack(event, move || drop(b.qp))
}

fn destroy_cq_waits(rig: &Rig) -> TestResult {
    let (v, _) = overflow(rig, &CqSide::Receive, 1)?;
    let mut kept = None;
    for _ in 0..2 {
        let e = rig.event("CQ_ERR and QP_FATAL")?;
        if e.kind() == EventType::CQ_ERR {
            kept = Some(e);
        }
    }
    let event = kept.ok_or("no CQ_ERR")?;
    let OverflowPair { a, b, small_cq } = v;
    drop((a, b));
    waits_for_ack(event, move || drop(small_cq))
}

fn none_for_destroyed(rig: &Rig) -> TestResult {
    for _ in 0..30 {
        // When the QP is destroyed, the event is not yet delivered, or is queued and unread.
        drop(provoke_access(rig)?);
    }
    rig.expect_no_event(Duration::from_secs(1))
}

fn own_context(rig: &Rig) -> TestResult {
    let other = Rig::new()?;
    let p = provoke_access(&other)?;
    rig.expect_no_event(QUIET)?;
    drop(other.expect_event(EventType::QP_ACCESS_ERR, p.b.qp.element())?);
    Ok(())
}
