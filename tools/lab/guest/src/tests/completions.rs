// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Rules 1.1 to 1.6: number, time, order and contents of completions.
use crate::ffi::cq::Cq;
use crate::ffi::qp::{flag, op, RecvWr, SendWr};
use crate::ffi::sys;
use crate::outcome::ErrorContext as _;
use crate::pattern;
use crate::rig::*;
use crate::{GuestTest, TestResult};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new(
        "1.1/one-cqe-per-receive-and-per-signaled-send",
        one_cqe_each,
    ),
    GuestTest::new("1.1/unsignaled-send-in-error-completes", unsignaled_error),
    GuestTest::new(
        "1.1/completion-covers-earlier-unsignaled",
        covers_unsignaled,
    ),
    GuestTest::new("1.1/sq-sig-all", sig_all),
    GuestTest::new(
        "1.2/send-completes-only-after-the-peer-acknowledged",
        only_after_ack,
    ),
    GuestTest::new(
        "1.2/buffers-of-completed-requests-stay-untouched",
        untouched,
    ),
    GuestTest::new("1.3/fifo-and-each-completion-once", fifo),
    GuestTest::new("1.3/fewer-than-n-means-empty", fewer_means_empty),
    GuestTest::new("1.4/many-qps-share-a-cq", many_qps),
    GuestTest::new("1.4/cq-in-use-is-busy", busy),
    GuestTest::new("1.5/error-fields-of-every-flush", error_fields),
    GuestTest::new("1.6/opcode-length-immediate", fields),
    GuestTest::new("1.8/poll-without-a-system-call", no_calls),
];

/// A polling thread must make no system call, neither for empty polls nor for completions.
fn no_calls(rig: &Rig) -> TestResult {
    const EMPTY: u32 = 1000;
    const COUNT: u32 = 12;
    let p = rig.pair(&PairOpts::default())?;
    let (ready, done) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (cq, cq_ready, got) = (p.a.scq.clone(), ready.clone(), done.clone());
    // The thread ends by itself or is killed, and is never joined.
    std::thread::spawn(move || {
        sys::without_calls(|| {
            let mut polls = 0;
            while got.load(Ordering::Acquire) < COUNT {
                got.fetch_add(cq.poll_silently(), Ordering::Release);
                polls += 1;
                if polls == EMPTY {
                    cq_ready.store(1, Ordering::Release);
                }
                std::hint::spin_loop();
            }
        })
    });
    wait_for("the empty polls return", || {
        Ok(ready.load(Ordering::Acquire) == 1)
    })?;
    for i in 0..COUNT.into() {
        let wr = SendWr::new(op::WRITE, i, &[p.a.mr.sge(0, 8)]);
        p.a.qp
            .post_send(&[wr.remote(p.b.mr.at(0), p.b.mr.rkey())])?;
    }
    wait_for("the completions are polled", || {
        Ok(done.load(Ordering::Acquire) == COUNT)
    })
}

fn one_cqe_each(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    for i in 0..10 {
        p.b.recv(100 + i, 0, 64)?;
    }
    for i in 0..10u64 {
        let f = if i % 3 == 0 { flag::SIGNALED } else { 0 };
        p.a.qp
            .post_send(&[SendWr::new(op::SEND, i, &[p.a.mr.sge(0, 64)]).flags(f)])?;
    }
    let recvs = wait(&p.b.rcq, 10, "receives")?;
    for (i, w) in recvs.iter().enumerate() {
        expect_success(w, 100 + i as u64, wc::RECV)?;
    }
    let sends = wait(&p.a.scq, 4, "signaled sends")?;
    for (w, id) in sends.iter().zip([0, 3, 6, 9]) {
        expect_success(w, id, wc::SEND)?;
    }
    for cq in [&p.a.scq, &p.a.rcq, &p.b.scq, &p.b.rcq] {
        expect_quiet(cq, QUIET, "after everything completed")?;
    }
    Ok(())
}

fn unsignaled_error(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    let wr = SendWr::new(op::WRITE, 7, &[p.a.mr.sge(0, 64)]).remote(p.b.mr.at(0), !p.b.mr.rkey());
    p.a.qp.post_send(&[wr.flags(0)])?;
    expect_error(
        &wait_one(&p.a.scq, "the failed write")?,
        7,
        status::REM_ACCESS_ERR,
        &p.a.qp,
    )?;
    expect_quiet(&p.a.scq, QUIET, "after the failed write")
}

fn covers_unsignaled(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    for round in 0..20u64 {
        let want = pattern::bytes(round, 12 * 1024);
        p.b.mr.buf.write(0, &want);
        p.a.mr.buf.fill(0, want.len(), 0);
        // The READs go to different parts, and only the last is signaled.
        let wrs: Vec<SendWr> = (0..12usize)
            .map(|i| {
                SendWr::new(op::READ, i as u64, &[p.a.mr.sge(i * 1024, 1024)])
                    .remote(p.b.mr.at(i * 1024), p.b.mr.rkey())
                    .flags(if i == 11 { flag::SIGNALED } else { 0 })
            })
            .collect();
        p.a.qp.post_send(&wrs)?;
        expect_success(&wait_one(&p.a.scq, "the last read")?, 11, wc::RDMA_READ)?;
        pattern::compare("earlier reads", &p.a.mr.buf.read(0, want.len()), &want)?;
    }
    Ok(())
}

fn sig_all(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts {
        sig_all: true,
        ..PairOpts::default()
    })?;
    for i in 0..4 {
        let wr = SendWr::new(op::WRITE, i, &[p.a.mr.sge(0, 8)]).remote(p.b.mr.at(0), p.b.mr.rkey());
        p.a.qp.post_send(&[wr.flags(0)])?;
    }
    for (i, w) in wait(&p.a.scq, 4, "sends of a QP with sq_sig_all")?
        .iter()
        .enumerate()
    {
        expect_success(w, i as u64, wc::RDMA_WRITE)?;
    }
    Ok(())
}

fn only_after_ack(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    p.a.qp
        .post_send(&[SendWr::new(op::SEND, 1, &[p.a.mr.sge(0, 64)])])?;
    // The peer has no receive, so the SEND is not acknowledged and does not complete (rnr_retry 7
    // is unlimited).
    expect_quiet(&p.a.scq, QUIET, "before a receive was posted")?;
    p.b.recv(2, 0, 64)?;
    expect_success(&wait_one(&p.a.scq, "the send")?, 1, wc::SEND)?;
    expect_success(&wait_one(&p.b.rcq, "the receive")?, 2, wc::RECV)
}

fn untouched(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    let mut rng = pattern::PatternRng::new(3);
    for round in 0..200u64 {
        let len = 1 + rng.below(9000) as usize;
        p.b.recv(round, 0, 16384)?;
        p.a.mr.buf.write(0, &pattern::bytes(round, len));
        p.a.qp
            .post_send(&[SendWr::new(op::SEND, round, &[p.a.mr.sge(0, len)])])?;
        // After the send has completed, the program may use its buffer.
        expect_success(&wait_one(&p.a.scq, "send")?, round, wc::SEND)?;
        p.a.mr.buf.fill(0, len, 0xee);
        expect_success(&wait_one(&p.b.rcq, "receive")?, round, wc::RECV)?;
        pattern::compare(
            "received",
            &p.b.mr.buf.read(0, len),
            &pattern::bytes(round, len),
        )?;
        // The same holds for the receiver's buffer.
        p.b.mr.buf.fill(0, 16384, 0xdd);
        if round % 20 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let after = p.b.mr.buf.read(0, 16384);
        ensure!(
            after.iter().all(|&b| b == 0xdd),
            "a completed receive was written again"
        );
    }
    Ok(())
}

fn fifo(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    let mut next = 0u64;
    let mut rng = pattern::PatternRng::new(5);
    let mut posted = 0u64;
    while next < 300 {
        while posted < 300 && posted - next < 16 {
            p.b.recv(posted, 0, 8)?;
            p.a.qp
                .post_send(&[SendWr::new(op::SEND, posted, &[p.a.mr.sge(0, 8)]).flags(0)])?;
            posted += 1;
            if posted % 8 == 0 {
                // A signaled request now and then frees the send queue.
                let wr = SendWr::new(op::WRITE, posted, &[]).remote(0, 0);
                p.a.qp.post_send(&[wr])?;
                expect_success(&wait_one(&p.a.scq, "marker")?, posted, wc::RDMA_WRITE)?;
            }
        }
        for w in p.b.rcq.poll(1 + rng.below(5) as usize).at("poll_cq")? {
            expect_success(&w, next, wc::RECV)?;
            next += 1;
        }
    }
    expect_quiet(&p.b.rcq, QUIET, "after all were polled")
}

fn fewer_means_empty(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    for round in 0..50u64 {
        for i in 0..8 {
            p.b.recv(i, 0, 8)?;
        }
        for i in 0..8u64 {
            p.a.qp
                .post_send(&[SendWr::new(op::SEND, i, &[p.a.mr.sge(0, 8)])])?;
        }
        // After all sends are acknowledged, all receives have completed.
        wait(&p.a.scq, 8, "sends")?;
        let first = p.b.rcq.poll(3).at("poll_cq")?;
        ensure_eq!(first.len(), 3, "round {round}: poll_cq(3) with 8 entries");
        let rest = p.b.rcq.poll(64).at("poll_cq")?;
        ensure_eq!(rest.len(), 5, "round {round}: poll_cq(64) with 5 entries");
        ensure_eq!(
            p.b.rcq.poll(64).at("poll_cq")?.len(),
            0,
            "poll_cq of an empty CQ"
        );
    }
    Ok(())
}

fn many_qps(rig: &Rig) -> TestResult {
    let cq = Cq::new(&rig.ctx, 1024)?;
    let opts = PairOpts {
        cq: Some(cq.clone()),
        buf: 4096,
        ..PairOpts::default()
    };
    let pairs: Vec<QpPair> = (0..16).map(|_| rig.pair(&opts)).collect::<Result<_, _>>()?;
    // The upper half of wr_id is the QP, the lower half the sequence number.
    let mut next_recv = vec![0u64; pairs.len()];
    let mut next_send = vec![0u64; pairs.len()];
    for round in 0..40u64 {
        for (i, p) in pairs.iter().enumerate() {
            p.b.recv((i as u64) << 32 | round, 0, 64)?;
            let wr = SendWr::new(op::SEND, (i as u64) << 32 | round, &[p.a.mr.sge(0, 64)]);
            p.a.qp.post_send(&[wr])?;
        }
        for w in wait(&cq, 2 * pairs.len(), "a round of all QPs")? {
            let i = (w.wr_id >> 32) as usize;
            ensure!(i < pairs.len(), "wr_id {:#x} was never posted", w.wr_id);
            let recv = w.opcode & wc::RECV != 0;
            let (next, qp) = if recv {
                (&mut next_recv, &pairs[i].b.qp)
            } else {
                (&mut next_send, &pairs[i].a.qp)
            };
            ensure_eq!(status::name(w.status), "IBV_WC_SUCCESS", "status");
            ensure_eq!(
                w.wr_id & 0xffff_ffff,
                next[i],
                "order within one work queue"
            );
            ensure_eq!(w.qp_num, qp.qpn(), "qp_num");
            next[i] += 1;
        }
    }
    expect_quiet(&cq, QUIET, "after all rounds")
}

fn busy(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    p.a.scq.expect_busy()?;
    p.a.rcq.expect_busy()?;
    // The CQs still work.
    p.b.recv(1, 0, 8)?;
    p.a.qp
        .post_send(&[SendWr::new(op::SEND, 2, &[p.a.mr.sge(0, 8)])])?;
    expect_success(&wait_one(&p.a.scq, "send after EBUSY")?, 2, wc::SEND)
}

fn error_fields(rig: &Rig) -> TestResult {
    use crate::ffi::qp::state;
    let p = rig.pair(&PairOpts::default())?;
    for i in 0..4 {
        p.a.recv(u64::MAX - i, 0, 64)?;
    }
    set_state(&p.a.qp, state::ERR)?;
    for i in 0..4 {
        p.a.qp
            .post_send(&[SendWr::new(op::SEND, 1 << 63 | i, &[p.a.mr.sge(0, 8)]).flags(0)])?;
    }
    for (i, w) in wait(&p.a.rcq, 4, "flushed receives")?.iter().enumerate() {
        expect_error(w, u64::MAX - i as u64, status::WR_FLUSH_ERR, &p.a.qp)?;
    }
    for (i, w) in wait(&p.a.scq, 4, "flushed sends")?.iter().enumerate() {
        expect_error(w, 1 << 63 | i as u64, status::WR_FLUSH_ERR, &p.a.qp)?;
    }
    Ok(())
}

fn fields(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    let (a, b) = (&p.a, &p.b);
    let imm = 0x1234_5678u32.to_be();
    for len in [0usize, 1, 64, 1024, 1025, 5000] {
        let sge = a.mr.sge(0, len);
        let remote = (b.mr.at(0), b.mr.rkey());

        b.recv(1, 0, 8192)?;
        a.qp.post_send(&[SendWr::new(op::SEND, 2, &[sge])])?;
        let r = wait_one(&b.rcq, "receive of SEND")?;
        expect_success(&r, 1, wc::RECV)?;
        ensure_eq!(r.byte_len as usize, len, "byte_len of SEND");
        ensure_eq!(r.wc_flags & wc::WITH_IMM, 0, "WITH_IMM of SEND");
        ensure_eq!(r.qp_num, b.qp.qpn(), "qp_num of a receive");
        let s = wait_one(&a.scq, "SEND")?;
        expect_success(&s, 2, wc::SEND)?;
        ensure_eq!(s.qp_num, a.qp.qpn(), "qp_num of a send");

        b.recv(3, 0, 8192)?;
        a.qp.post_send(&[SendWr::new(op::SEND_IMM, 4, &[sge]).imm(imm)])?;
        let r = wait_one(&b.rcq, "receive of SEND_IMM")?;
        expect_success(&r, 3, wc::RECV)?;
        ensure_eq!(
            r.byte_len as usize,
            len,
            "byte_len of SEND_IMM (without the immediate)"
        );
        ensure!(
            r.wc_flags & wc::WITH_IMM != 0,
            "WITH_IMM of SEND_IMM is missing"
        );
        ensure_eq!(r.imm_data, imm, "immediate of SEND_IMM");
        expect_success(&wait_one(&a.scq, "SEND_IMM")?, 4, wc::SEND)?;

        b.recv(5, 0, 16)?;
        a.qp.post_send(&[SendWr::new(op::WRITE_IMM, 6, &[sge])
            .imm(imm)
            .remote(remote.0, remote.1)])?;
        let r = wait_one(&b.rcq, "receive of WRITE_IMM")?;
        expect_success(&r, 5, wc::RECV_RDMA_WITH_IMM)?;
        ensure_eq!(r.byte_len as usize, len, "byte_len of WRITE_IMM");
        ensure!(
            r.wc_flags & wc::WITH_IMM != 0,
            "WITH_IMM of WRITE_IMM is missing"
        );
        ensure_eq!(r.imm_data, imm, "immediate of WRITE_IMM");
        expect_success(&wait_one(&a.scq, "WRITE_IMM")?, 6, wc::RDMA_WRITE)?;

        a.qp.post_send(&[SendWr::new(op::READ, 7, &[sge]).remote(remote.0, remote.1)])?;
        let s = wait_one(&a.scq, "READ")?;
        expect_success(&s, 7, wc::RDMA_READ)?;
        ensure_eq!(s.byte_len as usize, len, "byte_len of READ");
    }
    // A receive without any SGE accepts an empty message.
    b.qp.post_recv(&[RecvWr::new(8, &[])])?;
    a.qp.post_send(&[SendWr::new(op::SEND, 9, &[])])?;
    expect_success(&wait_one(&b.rcq, "empty receive")?, 8, wc::RECV)?;
    expect_success(&wait_one(&a.scq, "empty send")?, 9, wc::SEND)
}
