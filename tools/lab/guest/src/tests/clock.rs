// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of the device clock, of timestamps of completions, and of CQs whose overrun is ignored.
use crate::ffi::clock::{self, TimestampedWc, IGNORE_OVERRUN, RAW_CLOCK};
use crate::ffi::context::EventType;
use crate::ffi::cq::Cq;
use crate::ffi::qp::{mask, op, state, SendWr};
use crate::ffi::sys::Errno;
use crate::ffi::QpAttr;
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::time::{Instant, SystemTime};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("ops/device-clock", device_clock),
    GuestTest::new("1/timestamps", timestamps),
    GuestTest::new("4/ignored-overrun", ignored_overrun),
];

fn device_clock(rig: &Rig) -> TestResult {
    let mut last = clock::query(&rig.ctx, RAW_CLOCK).at("the clock")?;
    for _ in 0..200 {
        let now = clock::query(&rig.ctx, RAW_CLOCK)?;
        if now <= last {
            return Err(format!("the clock went from {last} to {now}").into());
        }
        last = now;
    }
    // The clock counts nanoseconds, so it advances as fast as the system's clock, except for the
    // time of reading it.
    let (began, first) = (Instant::now(), clock::query(&rig.ctx, RAW_CLOCK)?);
    let least = began.elapsed();
    std::thread::sleep(QUIET);
    let (within, second) = (began.elapsed(), clock::query(&rig.ctx, RAW_CLOCK)?);
    let most = began.elapsed();
    let passed = u128::from(second - first);
    // The clocks of guest and host may differ in rate.
    let (low, high) = (
        (within - least).as_nanos() * 9 / 10,
        most.as_nanos() * 11 / 10,
    );
    if passed < low || passed > high {
        return Err(format!("{passed} ns passed, not {low} to {high}").into());
    }
    match clock::query(&rig.ctx, 1 << 7) {
        Err(Errno::EINVAL) => Ok(()),
        other => Err(format!("an unknown value: {other:?}").into()),
    }
}

/// Polls an extended CQ until `count` completions have arrived.
fn wait_timed(cq: &Cq, count: usize) -> Result<Vec<TimestampedWc>, Fail> {
    let deadline = Instant::now() + event_timeout();
    let mut all = Vec::new();
    while all.len() < count {
        if Instant::now() > deadline {
            return Err(format!("{} of {count} completions", all.len()).into());
        }
        all.extend(clock::drain(cq).at("an extended poll")?);
    }
    Ok(all)
}

fn wall() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |s| s.as_nanos() as u64)
}

fn timestamps(rig: &Rig) -> TestResult {
    const COUNT: u64 = 16;
    let cq = clock::cq(&rig.ctx, 64, 0).at("a CQ with timestamps")?;
    let a = rig.end_on(&PairOpts::default(), cq.clone(), Cq::new(&rig.ctx, 64)?)?;
    let b = rig.end(&PairOpts::default())?;
    connect(&a.qp, rig.gid, b.qp.qpn(), &Conn::default())?;
    connect(&b.qp, rig.gid, a.qp.qpn(), &Conn::default())?;
    let (before, wall_before) = (clock::query(&rig.ctx, RAW_CLOCK)?, wall());
    for wr_id in 0..COUNT {
        let wr = SendWr::new(op::WRITE, wr_id, &[a.mr.sge(0, 64)]);
        a.qp.post_send(&[wr.remote(b.mr.at(0), b.mr.rkey())])
            .at("a post")?;
        if wr_id % 8 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    let all = wait_timed(&cq, COUNT as usize)?;
    let (after, wall_after) = (clock::query(&rig.ctx, RAW_CLOCK)?, wall());
    let mut last = before;
    for (wr_id, one) in (0..).zip(&all) {
        if (one.wr_id, one.status) != (wr_id, status::SUCCESS) {
            return Err(format!("{one:?} in place of {wr_id}").into());
        }
        if one.timestamp < last || one.timestamp > after {
            let time = one.timestamp;
            return Err(format!("{wr_id} completed at {time}, not in {last} to {after}").into());
        }
        last = one.timestamp;
        // The tolerance covers the comparison of two clocks across an emulated bus.
        const SLACK: u64 = 500_000_000;
        if one.wall_clock + SLACK < wall_before || one.wall_clock > wall_after + SLACK {
            let time = one.wall_clock;
            return Err(format!("{time} is not in {wall_before} to {wall_after}").into());
        }
    }
    if all[0].timestamp == last {
        return Err("all have completed at the same time".into());
    }
    Ok(())
}

fn ignored_overrun(rig: &Rig) -> TestResult {
    const SIZE: u64 = 16;
    let cq =
        clock::cq(&rig.ctx, SIZE as u32, IGNORE_OVERRUN).at("a CQ whose overrun is ignored")?;
    let mut senders = Vec::new();
    for _ in 0..3 {
        let b = rig.end(&PairOpts::default())?;
        let a = rig.end_on(&PairOpts::default(), cq.clone(), Cq::new(&rig.ctx, 1)?)?;
        connect(&a.qp, rig.gid, b.qp.qpn(), &Conn::default())?;
        connect(&b.qp, rig.gid, a.qp.qpn(), &Conn::default())?;
        senders.push((a, b));
    }
    let send = |(a, b): &(QpEndpoint, QpEndpoint), wr_id, at| {
        a.qp.post_send(&[
            SendWr::new(op::WRITE, wr_id, &[a.mr.sge(at, 8)]).remote(b.mr.at(at), b.mr.rkey())
        ])
    };
    // If the CQ is polled in time, no completion is lost.
    for first in (0..10).map(|round| round * SIZE) {
        for wr_id in first..first + SIZE {
            send(&senders[0], wr_id, 0).at("a post")?;
        }
        let all = wait_timed(&cq, SIZE as usize)?;
        let expected = first..first + SIZE;
        ensure!(all.iter().map(|one| one.wr_id).eq(expected), "{all:?}");
    }
    // Three times as many requests are posted as the CQ has entries.
    for (sender, wr_id) in senders.iter().flat_map(|s| (0..SIZE).map(move |i| (s, i))) {
        // Only the last request of each QP writes to this place.
        let at = if wr_id == SIZE - 1 { 8 } else { 0 };
        sender.0.mr.buf.write(8, &[1; 8]);
        send(sender, 1000 + wr_id, at).at("a post")?;
    }
    // A request that has not begun when its QP moves to SQD stays in the queue, and a congestion
    // window may delay it. So the test waits until the last request of each QP has been executed.
    for (_, b) in &senders {
        wait_for("the last WRITE is there", || {
            Ok(b.mr.buf.read(8, 8) == [1; 8])
        })?;
    }
    for (a, _) in &senders {
        // After SQ_DRAINED, all requests have completed.
        let attr = QpAttr {
            qp_state: state::SQD,
            en_sqd_async_notify: 1,
            ..QpAttr::default()
        };
        a.qp.modify(&attr, mask::STATE | mask::EN_SQD_ASYNC_NOTIFY)
            .at("SQD")?;
        rig.expect_event(EventType::SQ_DRAINED, a.qp.element())?;
        ensure_eq!(a.qp.state()?, state::SQD, "state");
    }
    // The newest completions are in the CQ, and no error was reported.
    let left = clock::drain(&cq).at("an extended poll")?;
    ensure_eq!(left.len() as u64, SIZE, "completions that are left");
    ensure!(
        left.iter().all(|one| one.status == status::SUCCESS),
        "{left:?}"
    );
    rig.expect_no_event(QUIET)
}
