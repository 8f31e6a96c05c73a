// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Section 5: after an error, a QP is reset and works again with the same CQs.
use super::events::checked_exchange;
use crate::ffi::cq::Cq;
use crate::ffi::qp::{op, state, SendWr};
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{GuestTest, TestResult};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("5/reset-to-rts-without-a-stale-cqe", no_stale),
    GuestTest::new("5/reset-keeps-other-qps-cqes", keeps_others),
    GuestTest::new("5/error-to-rts-many-times", many_times).limit(120),
    GuestTest::new("5/reset-with-work-in-flight", in_flight).limit(120),
    GuestTest::new("5/destroy-removes-its-cqes", destroy_removes),
    GuestTest::new("5/posting-and-draining-in-err", drain),
];

fn reconnect(rig: &Rig, p: &QpPair) -> TestResult {
    let conn = Conn::default();
    for qp in [&p.a.qp, &p.b.qp] {
        set_state(qp, state::RESET).at("to RESET")?;
    }
    connect(&p.a.qp, rig.gid, p.b.qp.qpn(), &conn).at("A again")?;
    connect(&p.b.qp, rig.gid, p.a.qp.qpn(), &conn).at("B again")
}

fn no_stale(rig: &Rig) -> TestResult {
    let cq = Cq::new(&rig.ctx, 256)?;
    let p = rig.pair(&PairOpts {
        cq: Some(cq.clone()),
        buf: 1 << 17,
        ..PairOpts::default()
    })?;
    for round in 0..10 {
        // Before the reset, completions of every kind are in the CQ and not polled.
        for i in 0..8 {
            p.b.recv(1000 + i, 0, 64)?;
            p.a.recv(2000 + i, 0, 64)?;
        }
        for i in 0..4 {
            p.a.qp
                .post_send(&[SendWr::new(op::SEND, 3000 + i, &[p.a.mr.sge(0, 8)])])?;
        }
        let wr = SendWr::new(op::WRITE, 4000, &[p.a.mr.sge(0, 8)]);
        p.a.qp
            .post_send(&[wr.remote(p.b.mr.at(0), !p.b.mr.rkey())])?;
        wait_state(&p.a.qp, state::ERR)?;
        drop(rig.event("QP_ACCESS_ERR")?);
        reconnect(rig, &p)?;
        // After the reset, no completion from before the reset may appear.
        expect_quiet(&cq, QUIET, &format!("round {round}, after RESET"))?;
        checked_exchange(&p, round).at(&format!("round {round}, after the reset"))?;
        expect_quiet(&cq, QUIET, &format!("round {round}, after the exchange"))?;
    }
    Ok(())
}

/// Waits until the completions of everything that A has posted are in the CQ, without polling it.
/// The data of an unsignaled READ arrives with a response that acknowledges all earlier requests. A
/// device that answers a query has processed everything before it.
fn all_completed(p: &QpPair, round: u64) -> TestResult {
    const MARK: usize = 4096;
    let mark = !round;
    p.b.mr.buf.write(MARK, &mark.to_le_bytes());
    let wr = SendWr::new(op::READ, 99, &[p.a.mr.sge(MARK, 8)]).flags(0);
    p.a.qp
        .post_send(&[wr.remote(p.b.mr.at(MARK), p.b.mr.rkey())])?;
    wait_for("the data of the READ", || {
        Ok(p.a.mr.buf.read(MARK, 8) == mark.to_le_bytes())
    })?;
    ensure_eq!(p.a.qp.state()?, state::RTS, "state after the READ");
    Ok(())
}

fn keeps_others(rig: &Rig) -> TestResult {
    let cq = Cq::new(&rig.ctx, 256)?;
    let opts = PairOpts {
        cq: Some(cq.clone()),
        ..PairOpts::default()
    };
    let pairs = [rig.pair(&opts)?, rig.pair(&opts)?, rig.pair(&opts)?];
    for round in 0..20u64 {
        // The completions of three QPs are interleaved, and the middle QP is reset.
        for i in 0..6 {
            for (k, p) in pairs.iter().enumerate() {
                let wr = SendWr::new(op::WRITE, (k as u64) << 32 | i, &[p.a.mr.sge(0, 8)]);
                p.a.qp
                    .post_send(&[wr.remote(p.b.mr.at(0), p.b.mr.rkey())])?;
            }
        }
        for p in &pairs {
            all_completed(p, round)?;
        }
        // Some completions are polled before the reset.
        let first = cq.poll((round % 5) as usize).at("poll_cq")?;
        reconnect(rig, &pairs[1])?;
        let mut counts = [0u64; 3];
        for w in &first {
            counts[(w.wr_id >> 32) as usize] += 1;
        }
        let stale = counts[1];
        let deadline = std::time::Instant::now() + event_timeout();
        while counts[0] < 6 || counts[2] < 6 {
            for w in cq.poll(16).at("poll_cq")? {
                let k = (w.wr_id >> 32) as usize;
                ensure!(k < 3, "wr_id {:#x}", w.wr_id);
                expect_success(&w, (k as u64) << 32 | counts[k], wc::RDMA_WRITE)?;
                counts[k] += 1;
            }
            ensure!(
                std::time::Instant::now() < deadline,
                "completions of other QPs are lost: {counts:?} of 6"
            );
        }
        ensure_eq!(counts[1], stale, "completions of the QP that was reset");
        expect_quiet(&cq, std::time::Duration::from_millis(30), "after a reset")?;
    }
    Ok(())
}

fn many_times(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts {
        buf: 1 << 17,
        ..PairOpts::default()
    })?;
    for round in 0..40 {
        // The program polls the completion of a local error before the reset.
        let mut bad = p.a.mr.sge(0, 8);
        bad.lkey = !bad.lkey;
        p.a.qp.post_send(&[SendWr::new(op::SEND, 1, &[bad])])?;
        expect_error(
            &wait_one(&p.a.scq, "error")?,
            1,
            status::LOC_PROT_ERR,
            &p.a.qp,
        )?;
        reconnect(rig, &p)?;
        checked_exchange(&p, round).at(&format!("round {round}"))?;
    }
    Ok(())
}

fn in_flight(rig: &Rig) -> TestResult {
    let opts = PairOpts {
        buf: 1 << 20,
        ..PairOpts::default()
    };
    let p = rig.pair(&opts)?;
    for round in 0..30u64 {
        for i in 0..8 {
            let wr = SendWr::new(op::WRITE, i, &[p.a.mr.sge(0, 1 << 20)]);
            let wr = if i % 2 == 0 {
                wr
            } else {
                SendWr {
                    opcode: op::READ,
                    ..wr
                }
            };
            p.a.qp
                .post_send(&[wr.remote(p.b.mr.at(0), p.b.mr.rkey())])?;
        }
        if round % 3 == 1 {
            std::thread::sleep(std::time::Duration::from_micros(200 * round));
        }
        reconnect(rig, &p)?;
        expect_quiet(
            &p.a.scq,
            std::time::Duration::from_millis(20),
            "after RESET",
        )?;
        // The device must not write to memory for requests from before the reset.
        p.a.mr.buf.fill(0, 1 << 20, 0x41);
        p.b.mr.buf.fill(0, 1 << 20, 0x42);
        std::thread::sleep(std::time::Duration::from_millis(10));
        ensure!(
            p.a.mr.buf.read(0, 1 << 20).iter().all(|&b| b == 0x41),
            "late DMA at A"
        );
        ensure!(
            p.b.mr.buf.read(0, 1 << 20).iter().all(|&b| b == 0x42),
            "late DMA at B"
        );
        checked_exchange(&p, round).at(&format!("round {round}"))?;
    }
    Ok(())
}

fn destroy_removes(rig: &Rig) -> TestResult {
    let cq = Cq::new(&rig.ctx, 256)?;
    let opts = PairOpts {
        cq: Some(cq.clone()),
        ..PairOpts::default()
    };
    for _ in 0..10 {
        let p = rig.pair(&opts)?;
        for i in 0..8 {
            let wr = SendWr::new(op::WRITE, i, &[p.a.mr.sge(0, 8)]);
            p.a.qp
                .post_send(&[wr.remote(p.b.mr.at(0), p.b.mr.rkey())])?;
        }
        expect_success(&wait_one(&cq, "first")?, 0, wc::RDMA_WRITE)?;
        drop(p);
        expect_quiet(
            &cq,
            std::time::Duration::from_millis(50),
            "CQEs of a destroyed QP",
        )?;
    }
    Ok(())
}

fn drain(rig: &Rig) -> TestResult {
    // A program drains by moving the QP to ERR and posting a marker to each queue; both markers
    // complete after all other requests.
    let p = rig.pair(&PairOpts::default())?;
    for i in 0..5 {
        p.a.recv(i, 0, 64)?;
        p.a.qp
            .post_send(&[SendWr::new(op::SEND, 10 + i, &[p.a.mr.sge(0, 8)])])?;
    }
    set_state(&p.a.qp, state::ERR)?;
    p.a.recv(100, 0, 0)?;
    p.a.qp.post_send(&[SendWr::new(op::WRITE, 101, &[])])?;
    let w = wait(&p.a.rcq, 6, "receives and their marker")?;
    expect_error(&w[5], 100, status::WR_FLUSH_ERR, &p.a.qp)?;
    let w = wait(&p.a.scq, 6, "sends and their marker")?;
    expect_error(&w[5], 101, status::WR_FLUSH_ERR, &p.a.qp)?;
    Ok(())
}
