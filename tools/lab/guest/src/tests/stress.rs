// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests under load, most of which take minutes.
use super::events::checked_exchange;
use super::{changes, srq, windows, xrc};
use crate::ffi::qp::{op, SendWr};
use crate::outcome::ErrorContext as _;
use crate::pattern::PatternRng;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("1.7/single-posts-at-random-gaps-short", |r| {
        single_posts(r, 3000)
    })
    .limit(120),
    GuestTest::new("long/single-posts-at-random-gaps", |r| {
        single_posts(r, 100_000)
    })
    .limit(900)
    .long(),
    GuestTest::new("long/byte-checked-load", load)
        .limit(300)
        .long(),
    GuestTest::new("long/changes-under-traffic", all_changes)
        .limit(1200)
        .long(),
];

const THREADS: u64 = 4;

/// Posts single requests, each to an idle queue, with gaps around the time after which a device
/// goes to sleep. Two threads share a context. The other two have one each, where no other thread's
/// doorbell can make the device notice a post that it missed: such a post waits until the test's
/// patience ends. The longest wait is printed and has no limit.
fn single_posts(rig: &Rig, total: u64) -> TestResult {
    let longest = AtomicU64::new(0);
    std::thread::scope(|s| {
        let all: Vec<_> = (0..THREADS)
            .map(|t| {
                let longest = &longest;
                s.spawn(move || -> TestResult {
                    let own = if t < 2 { None } else { Some(Rig::new()?) };
                    let p = own.as_ref().unwrap_or(rig).pair(&PairOpts::default())?;
                    let mut rng = PatternRng::new(t);
                    for i in 0..total / THREADS {
                        let wr = SendWr::new(op::WRITE, i, &[p.a.mr.sge(0, 8)]);
                        let start = Instant::now();
                        p.a.qp
                            .post_send(&[wr.remote(p.b.mr.at(0), p.b.mr.rkey())])?;
                        let w = wait_one(&p.a.scq, "a single post").at(&format!("post {i}"))?;
                        expect_success(&w, i, wc::RDMA_WRITE)?;
                        longest.fetch_max(start.elapsed().as_micros() as u64, Ordering::Relaxed);
                        // The thread spins in half of the gaps and sleeps in the others, as
                        // programs do.
                        let gap = Duration::from_micros(rng.below(2000));
                        if i % 2 == 0 {
                            std::thread::sleep(gap);
                        } else {
                            let until = Instant::now() + gap;
                            while Instant::now() < until {
                                std::hint::spin_loop();
                            }
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        all.into_iter()
            .try_for_each(|t| t.join().map_err(|_| Fail::from("a thread panicked"))?)
    })?;
    println!("longest wait {} us", longest.load(Ordering::Relaxed));
    Ok(())
}

fn load(rig: &Rig) -> TestResult {
    let until = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|s| {
        let all: Vec<_> = (0..THREADS)
            .map(|t| {
                s.spawn(move || -> TestResult {
                    let p = rig.pair(&PairOpts {
                        buf: 1 << 17,
                        ..PairOpts::default()
                    })?;
                    let mut i = 0;
                    while Instant::now() < until {
                        checked_exchange(&p, t << 40 | i).at(&format!("exchange {i}"))?;
                        i += 1;
                    }
                    Ok(())
                })
            })
            .collect();
        all.into_iter()
            .try_for_each(|t| t.join().map_err(|_| Fail::from("a thread panicked"))?)
    })
}

/// For ten minutes and at the same time, CQs and SRQs are resized, regions are registered again,
/// windows are bound and invalidated, and extended connections are created and destroyed, all under
/// traffic of which each completion is checked.
fn all_changes(_rig: &Rig) -> TestResult {
    type Change = fn(&Rig) -> TestResult;
    const CHANGES: &[(&str, Change)] = &[
        ("CQ resize", changes::resize_under_traffic),
        ("SRQ resize", srq::under_traffic),
        ("rereg", changes::rereg_under_traffic),
        ("windows", windows::churn),
        ("extended connections", xrc::churn),
    ];
    let until = Instant::now() + Duration::from_secs(600);
    std::thread::scope(|s| {
        let all: Vec<_> = CHANGES
            .iter()
            .map(|&(name, change)| {
                s.spawn(move || -> TestResult {
                    let mut rounds = 0;
                    while Instant::now() < until {
                        // Each round has a context of its own, because events belong to the
                        // context.
                        change(&Rig::new()?).at(&format!("{name}, round {rounds}"))?;
                        rounds += 1;
                    }
                    println!("{name}: {rounds} rounds");
                    Ok(())
                })
            })
            .collect();
        all.into_iter()
            .try_for_each(|t| t.join().map_err(|_| Fail::from("a thread panicked"))?)
    })
}
