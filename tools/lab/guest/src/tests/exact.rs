// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of limits at exactly N: N is granted and works, N + 1 is refused, and a refused call takes
//! no resources.
use super::objects::counts;
use crate::ffi::cq::Cq;
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{op, PostError, Qp, QpInit, RecvWr, SendWr, Srq};
use crate::ffi::sys::{Buf, Errno};
use crate::ffi::{QpCap, Sge};
use crate::outcome::ErrorContext as _;
use crate::pattern;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::sync::Arc;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("res/work-requests-at-the-limit", work_requests),
    GuestTest::new("res/most-work-requests", most_work_requests).limit(120),
    GuestTest::new("res/sges-at-the-limit", sges),
    GuestTest::new("res/inline-data-at-the-limit", inline),
    GuestTest::new("res/srq-at-the-limit", srq),
    GuestTest::new("long/objects-at-the-limit", objects)
        .alone()
        .limit(1200)
        .long(),
];

fn refused(result: Result<(), PostError>, what: &str) -> TestResult {
    let answer = result.map_err(|e| (e.errno, e.bad_wr));
    ensure_eq!(answer, Err((Errno::ENOMEM, Some(0))), "{what}");
    Ok(())
}

fn with(cap: QpCap) -> PairOpts {
    PairOpts::default().with(|o| {
        o.cap = cap;
        o.cqe = (2 * (cap.max_send_wr + cap.max_recv_wr) + 16) as i32;
    })
}

/// A queue must accept as many requests as it granted and no more, repeatedly, so that the ring
/// wraps.
fn fill_and_empty(rig: &Rig, cap: QpCap, rounds: u64) -> TestResult {
    let p = rig.pair(&with(cap))?;
    let granted = (p.a.qp.cap.max_send_wr, p.b.qp.cap.max_recv_wr);
    ensure!(
        granted.0 >= cap.max_send_wr && granted.1 >= cap.max_recv_wr,
        "{cap:?} granted {granted:?}"
    );
    let both = granted.0.min(granted.1);
    let mut id = 0u64;
    for round in 0..rounds {
        let at = format!("round {round} of {granted:?}");
        let first = id;
        for n in 0..granted.1 {
            p.b.recv(first + u64::from(n), 0, 0).at(&at)?;
        }
        let more = p.b.qp.post_recv(&[RecvWr::new(0, &[])]);
        refused(more, &format!("{at}: one receive more"))?;
        for n in 0..both {
            let wr = SendWr::new(op::SEND, first + u64::from(n), &[]);
            p.a.qp.post_send(&[wr]).at(&at)?;
        }
        // No completion has been polled, so all requests still occupy the queue.
        for n in both..granted.0 {
            let wr = SendWr::new(op::WRITE, first + u64::from(n), &[]);
            let wr = wr.remote(p.b.mr.at(0), p.b.mr.rkey());
            p.a.qp.post_send(&[wr]).at(&at)?;
        }
        let more = p.a.qp.post_send(&[SendWr::new(op::SEND, 0, &[])]);
        refused(more, &format!("{at}: one send more"))?;
        let sent = wait(&p.a.scq, granted.0 as usize, &at)?;
        for (n, one) in sent.iter().enumerate() {
            let opcode = if n < both as usize {
                wc::SEND
            } else {
                wc::RDMA_WRITE
            };
            expect_success(one, first + n as u64, opcode).at(&at)?;
        }
        let received = wait(&p.b.rcq, both as usize, &at)?;
        for (one, wr_id) in received.iter().zip(first..) {
            expect_success(one, wr_id, wc::RECV).at(&at)?;
        }
        // The remaining receives get their messages.
        for n in both..granted.1 {
            p.a.qp.post_send(&[SendWr::new(op::SEND, 5, &[])]).at(&at)?;
            wait_one(&p.a.scq, &at)?;
            expect_success(&wait_one(&p.b.rcq, &at)?, first + u64::from(n), wc::RECV)?;
        }
        id += u64::from(granted.0.max(granted.1));
    }
    Ok(())
}

fn work_requests(rig: &Rig) -> TestResult {
    for (max_send_wr, max_recv_wr) in [(1, 1), (2, 1), (1, 3), (5, 8), (64, 64), (65, 63)] {
        let cap = QpCap {
            max_send_wr,
            max_recv_wr,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        fill_and_empty(rig, cap, 5)?;
    }
    Ok(())
}

fn most_work_requests(rig: &Rig) -> TestResult {
    let most = rig.ctx.query_device()?.max_qp_wr as u32;
    let cap = QpCap {
        max_send_wr: most,
        max_recv_wr: most,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    fill_and_empty(rig, cap, 1)
}

/// Returns SGEs of different lengths, separated by one byte in memory, and the sum of the lengths.
fn pieces(mr: &Mr, from: usize, count: usize) -> (Vec<Sge>, usize) {
    let mut at = from;
    let all: Vec<_> = (0..count)
        .map(|n| {
            let sge = mr.sge(at, n % 7 + 1);
            at += n % 7 + 2;
            sge
        })
        .collect();
    let length = all.iter().map(|sge| sge.length as usize).sum();
    (all, length)
}

fn gathered(mr: &Mr, sges: &[Sge]) -> Vec<u8> {
    let at = |sge: &Sge| (sge.addr - mr.buf.addr()) as usize;
    let bytes = sges.iter().map(|s| mr.buf.read(at(s), s.length as usize));
    bytes.flatten().collect()
}

fn sges(rig: &Rig) -> TestResult {
    let most = rig.ctx.query_device()?.max_sge as u32;
    for n in [1, 2, 3, most - 1, most] {
        let cap = QpCap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: n,
            max_recv_sge: n,
            max_inline_data: 0,
        };
        let p = rig.pair(&with(cap))?;
        let granted = (p.a.qp.cap.max_send_sge, p.b.qp.cap.max_recv_sge);
        ensure!(granted.0 >= n && granted.1 >= n, "{n} granted {granted:?}");
        for round in 0..6u64 {
            let at = format!("{n} elements, round {round}");
            let data = pattern::bytes(round, 4096);
            p.a.mr.buf.write(0, &data);
            let (from, length) = pieces(&p.a.mr, 3, granted.0 as usize);
            let (to, room) = pieces(&p.b.mr, 5, granted.1 as usize);
            ensure_eq!(length, room, "{at}: lengths of both lists");
            for (count, long) in [(granted.0 + 1, true), (granted.1 + 1, false)] {
                let (list, _) = pieces(&p.a.mr, 0, count as usize);
                let answer = if long {
                    p.a.qp.post_send(&[SendWr::new(op::SEND, 1, &list)])
                } else {
                    p.b.qp.post_recv(&[RecvWr::new(1, &list)])
                };
                ensure!(answer.is_err(), "{at}: {count} elements were accepted");
            }
            p.b.qp.post_recv(&[RecvWr::new(round, &to)]).at(&at)?;
            p.a.qp
                .post_send(&[SendWr::new(op::SEND, round, &from)])
                .at(&at)?;
            expect_success(&wait_one(&p.a.scq, &at)?, round, wc::SEND)?;
            expect_success(&wait_one(&p.b.rcq, &at)?, round, wc::RECV)?;
            let sent = gathered(&p.a.mr, &from);
            pattern::compare(&at, &gathered(&p.b.mr, &to), &sent)?;
        }
    }
    Ok(())
}

fn inline(rig: &Rig) -> TestResult {
    for wanted in [0, 1, 12, 28, 44, 60, 64, 100, 200, 400] {
        let cap = QpCap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: wanted,
        };
        let Ok(p) = rig.pair(&with(cap)) else {
            // The request exceeds the maximum, which is the size that was granted last.
            continue;
        };
        let granted = p.a.qp.cap.max_inline_data as usize;
        ensure!(granted >= wanted as usize, "{wanted} granted {granted}");
        let data = pattern::bytes(u64::from(wanted), granted + 1);
        let more = SendWr::new(op::SEND, 1, &[]).inline(&[&data]);
        let answer = p.a.qp.post_send(&[more]);
        ensure!(
            answer.is_err(),
            "{} bytes where {granted} were granted",
            granted + 1
        );
        for length in [granted, granted.saturating_sub(1)] {
            let at = format!("{length} bytes of {granted}");
            p.b.recv(2, 0, 1024)?;
            let halves = data[..length].split_at(length / 3);
            let wr = SendWr::new(op::SEND, 2, &[]).inline(&[halves.0, halves.1]);
            // Two pieces may need more space than one: if the post of two halves fails, the whole
            // is posted as one piece.
            p.a.qp.post_send(&[wr]).at(&at).or_else(|_| {
                let wr = SendWr::new(op::SEND, 2, &[]).inline(&[&data[..length]]);
                p.a.qp.post_send(&[wr]).at(&at)
            })?;
            expect_success(&wait_one(&p.a.scq, &at)?, 2, wc::SEND)?;
            let got = wait_one(&p.b.rcq, &at)?;
            expect_success(&got, 2, wc::RECV)?;
            ensure_eq!(got.byte_len as usize, length, "{at}: byte_len");
            pattern::compare(&at, &p.b.mr.buf.read(0, length), &data[..length])?;
        }
    }
    Ok(())
}

/// Checks that an SRQ accepts as many receives as granted, a limit of exactly that number, and the
/// maximum size.
fn srq(rig: &Rig) -> TestResult {
    let most = rig.ctx.query_device()?.max_srq_wr as u32;
    for wanted in [1, 2, 3, 17, most] {
        let srq = Srq::new(&rig.pd, wanted, 1).at(&format!("an SRQ of {wanted}"))?;
        let size = srq.query()?.max_wr;
        ensure!(size >= wanted, "{wanted} granted {size}");
        for id in 0..u64::from(size) {
            srq.post(&[RecvWr::new(id, &[])]).at("a receive")?;
        }
        refused(srq.post(&[RecvWr::new(0, &[])]), "one receive more")?;
        // All receives are waiting, so the limit is armed and not reached.
        srq.set_limit(size).at("a limit of all")?;
        ensure_eq!(srq.query()?.srq_limit, size, "the limit");
        let answer = srq.set_limit(size + 1);
        ensure_eq!(answer, Err(Errno::EINVAL), "a limit of more than all");
        ensure_eq!(srq.query()?.srq_limit, size, "the limit after a refusal");
        rig.expect_no_event(std::time::Duration::from_millis(20))?;
    }
    let answer = Srq::new(&rig.pd, most + 1, 1).err();
    ensure_eq!(answer, Some(Errno::EINVAL), "more receives than max_srq_wr");
    Ok(())
}

/// Returns the number of objects of a kind, as `rdma resource` shows it.
fn object_count(rig: &Rig, kind: &str) -> Result<u64, Fail> {
    let all = counts(rig)?;
    let of = all.iter().find(|(name, _)| name == kind);
    Ok(of.map_or(0, |(_, count)| *count))
}

/// Creates objects of a kind until the device has no more. Their number must be the announced
/// maximum, plus `beside` objects that do not count. Destroying one object makes room for one.
fn fill<T>(
    rig: &Rig,
    kind: &str,
    announced: i32,
    beside: u64,
    make: impl Fn() -> Result<T, Errno>,
) -> TestResult {
    let most = announced as u64 + beside;
    let mut all = Vec::new();
    let last = loop {
        match make() {
            Ok(one) => all.push(one),
            Err(errno) => break errno,
        }
        ensure!(
            all.len() <= announced as usize,
            "{} of kind {kind}",
            all.len()
        );
    };
    ensure_eq!(last, Errno::ENOMEM, "one {kind} more");
    ensure_eq!(object_count(rig, kind)?, most, "objects of kind {kind}");
    for _ in 0..3 {
        all.pop();
        all.push(make().at(&format!("a new {kind} after one was destroyed"))?);
        ensure_eq!(make().err(), Some(Errno::ENOMEM), "one {kind} more, again");
    }
    ensure_eq!(object_count(rig, kind)?, most, "objects of kind {kind}");
    println!("{} of kind {kind}", all.len());
    Ok(())
}

fn objects(rig: &Rig) -> TestResult {
    let d = rig.ctx.query_device()?;
    let cq = Cq::new(&rig.ctx, 1)?;
    let init = QpInit {
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        cap: QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        sq_sig_all: false,
        qp_type: 2,
    };
    let buf = Arc::new(Buf::new(4096)?);
    let before = counts(rig)?;
    fill(rig, "srq", d.max_srq, 0, || Srq::new(&rig.pd, 1, 1))?;
    fill(rig, "mr", d.max_mr, 0, || {
        Mr::of(&rig.pd, &buf, 0, 64, access::ALL)
    })?;
    fill(rig, "cq", d.max_cq, 0, || Cq::new(&rig.ctx, 1))?;
    // The QP of the core's management agent has a number that is reserved for it.
    fill(rig, "qp", d.max_qp, 1, || Qp::new(&rig.pd, &init))?;
    super::objects::counts_return(rig, &before)
}
