// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of resizing SRQs: posted receives stay, and no receive completes twice.
use crate::ffi::context::EventType;
use crate::ffi::qp::{op, RecvWr, SendWr, Srq};
use crate::ffi::sys::Errno;
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("1/srq-resize-keeps-receives", resize_keeps_receives),
    GuestTest::new("1/srq-resize-refuses-too-few-entries", too_small),
    GuestTest::new("1/srq-resize-sets-the-limit-too", with_limit),
    GuestTest::new("1/srq-resize-under-traffic", under_traffic).limit(180),
];

fn pair_of(rig: &Rig, max_wr: u32) -> Result<(QpPair, Arc<Srq>), Fail> {
    let srq = Srq::new(&rig.pd, max_wr, 1).at("an SRQ")?;
    let pair = rig.pair(&PairOpts {
        srq: Some(srq.clone()),
        ..PairOpts::default()
    })?;
    Ok((pair, srq))
}

fn post(srq: &Srq, id: u64) -> Result<(), Errno> {
    srq.post(&[RecvWr::new(id, &[])]).map_err(|e| e.errno)
}

/// Sends `count` messages from A and checks that the receives of B complete in order.
fn exchange(pair: &QpPair, first: u64, count: u64) -> TestResult {
    for id in first..first + count {
        pair.a
            .qp
            .post_send(&[SendWr::new(op::SEND, id, &[])])
            .at("a SEND")?;
        expect_success(&wait_one(&pair.a.scq, "a SEND")?, id, wc::SEND)?;
        expect_success(&wait_one(&pair.b.rcq, "a receive")?, id, wc::RECV)?;
    }
    Ok(())
}

fn resize_keeps_receives(rig: &Rig) -> TestResult {
    let (pair, srq) = pair_of(rig, 16)?;
    let (mut posted, mut done) = (0, 0);
    for (round, (waiting, size)) in [(10, 200), (150, 500), (3, 4), (4, 4), (2, 64)]
        .into_iter()
        .enumerate()
    {
        let at = format!("round {round}, to {size} work requests");
        while posted < done + waiting {
            post(&srq, posted).at(&at)?;
            posted += 1;
        }
        srq.resize(size).at(&at)?;
        ensure!(srq.query()?.max_wr >= size, "{at}: max_wr");
        exchange(&pair, done, waiting).at(&at)?;
        done += waiting;
        // All entries of the new size can be used, and no more.
        let all = u64::from(srq.query()?.max_wr);
        for _ in 0..all {
            post(&srq, posted).at(&at)?;
            posted += 1;
        }
        ensure_eq!(post(&srq, 0), Err(Errno::ENOMEM), "{at}: one more");
        exchange(&pair, done, all).at(&at)?;
        done += all;
    }
    Ok(())
}

fn too_small(rig: &Rig) -> TestResult {
    let (pair, srq) = pair_of(rig, 64)?;
    for id in 0..20 {
        post(&srq, id)?;
    }
    let most = rig.ctx.query_device()?.max_srq_wr as u32;
    for size in [16, 0, most + 1, u32::MAX] {
        ensure_eq!(srq.resize(size), Err(Errno::EINVAL), "to {size}, 20 posted");
        ensure_eq!(srq.query()?.max_wr, 64, "max_wr after a refused resize");
    }
    exchange(&pair, 0, 20)
}

/// A call sets both attributes (ibv_modify_srq(3)), or neither.
fn with_limit(rig: &Rig) -> TestResult {
    let (pair, srq) = pair_of(rig, 64)?;
    for id in 0..20 {
        post(&srq, id)?;
    }
    let refused = [(256, 257), (16, 8), (u32::MAX, 8)];
    for (max_wr, limit) in refused {
        let result = srq.modify(Some(max_wr), Some(limit));
        ensure_eq!(result, Err(Errno::EINVAL), "{max_wr} and {limit}");
        let now = srq.query()?;
        ensure_eq!((now.max_wr, now.srq_limit), (64, 0), "after a refusal");
    }
    srq.modify(Some(256), Some(19)).at("256 and 19")?;
    let now = srq.query()?;
    ensure_eq!((now.max_wr, now.srq_limit), (256, 19), "both");
    exchange(&pair, 0, 2)?;
    drop(rig.expect_event(EventType::SRQ_LIMIT_REACHED, srq.element())?);
    exchange(&pair, 2, 18)
}

/// One thread posts and sends while another thread resizes the SRQ. Each receive must complete once
/// and in order.
pub(super) fn under_traffic(rig: &Rig) -> TestResult {
    const TOTAL: u64 = 20_000;
    let (pair, srq) = pair_of(rig, 64)?;
    let done = AtomicBool::new(false);
    let moved = std::thread::scope(|s| {
        let mover = s.spawn(|| -> Result<u32, Fail> {
            let mut moves = 0;
            while !done.load(Ordering::Relaxed) {
                // Each size has room for all posted receives.
                let size = [64, 1000, 128, 500][moves as usize % 4];
                srq.resize(size).at(&format!("to {size} work requests"))?;
                moves += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(moves)
        });
        let run = || -> TestResult {
            let mut posted = 0;
            for next in 0..TOTAL {
                while posted < TOTAL && posted - next < 40 {
                    post(&srq, posted).at("a receive")?;
                    posted += 1;
                }
                exchange(&pair, next, 1)?;
            }
            Ok(())
        };
        let ran = run();
        done.store(true, Ordering::Relaxed);
        let moved = mover.join().map_err(|_| Fail::from("the mover panicked"))?;
        ran.and(moved)
    })?;
    ensure!(moved > 10, "only {moved} moves");
    Ok(())
}
