// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `verbena-guest-death KIND[=NUMBER]...`: the device fails under a process that is at work.
//!
//! The program posts work, then makes the NIC misbehave in the given ways (`misbehave` in the
//! guest). Whatever the ways are, the driver has to detect the failure without help: everything
//! that was posted completes exactly once, within [`limit()`], DEVICE_FATAL arrives once, and
//! posting is still accepted and flushed. Then the process ends with its old context.
//!
//! `verbena-guest-death --refused`: see [`refused`].
//!
//! `verbena-guest-death --queries SECONDS`: queries a QP that another thread modifies, for a NIC
//! that is slow between the two stores of a context's sequence counter. A query may return EBUSY;
//! the device stays alive.
use crate::ffi::context::EventType;
use crate::ffi::qp::{mask, op, state, SendWr};
use crate::ffi::sys::Errno;
use crate::ffi::QpAttr;
use crate::outcome::ErrorContext as _;
use crate::refused;
use crate::rig::{self, Conn, PairOpts, QpEndpoint, Rig};
use crate::tests::checked_exchange;
use crate::{runner, Fail, TestResult};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Returns the time within which everything is flushed.
fn flush_limit() -> Duration {
    Duration::from_secs(20 * rig::slowness())
}

/// Bytes that a request moves, enough to keep a device that still works busy.
const LENGTH: usize = 1 << 16;

/// Number of requests of each kind.
const REQUESTS: u64 = 8;

/// Runs the program `verbena-guest-death`.
pub fn main() -> ExitCode {
    let kinds: Vec<String> = std::env::args().skip(1).collect();
    let seconds = match kinds.as_slice() {
        [option, n] if option == "--queries" => n.parse().ok(),
        _ => None,
    };
    let refusals = kinds == ["--refused"];
    if kinds.is_empty() || kinds[0].starts_with('-') && seconds.is_none() && !refusals {
        eprintln!("usage: verbena-guest-death KIND[=NUMBER]... | --queries SECONDS | --refused");
        return ExitCode::from(2);
    }
    if let Err(why) = runner::set_env(std::env::var("VERBENA_DEVICE").ok(), None) {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    let result = match seconds {
        Some(n) => queries(Duration::from_secs(n)),
        None if refusals => refused::run(),
        None => run(&kinds),
    };
    runner::report("death", result.map(|()| 1))
}

fn run(kinds: &[String]) -> TestResult {
    let rig = Rig::new()?;
    let p = rig.pair(&PairOpts {
        buf: LENGTH * 2 * REQUESTS as usize,
        cqe: 64,
        ..PairOpts::default()
    })?;
    checked_exchange(&p, 1).at("before the death")?;

    // Post sends and receives before the failure.
    for w in 0..REQUESTS {
        p.a.recv(100 + w, 0, 64)?;
        p.b.qp
            .post_send(&[SendWr::new(op::WRITE, w, &[p.b.mr.sge(0, LENGTH)])
                .remote(p.a.mr.at(LENGTH), p.a.mr.rkey())])?;
    }
    let ctx = rig.ctx.clone();
    let reader = std::thread::spawn(move || {
        let limit = flush_limit().as_millis() as i32;
        let first = ctx.async_event(limit).map(|e| e.kind());
        let second = ctx.async_event(1000).map(|e| e.kind());
        (first, second)
    });
    let status = Command::new("misbehave").args(kinds).status()?;
    ensure!(status.success(), "misbehave {kinds:?}: {status}");
    let began = Instant::now();
    // These requests are posted to a device that does not process any more.
    for w in 0..REQUESTS {
        p.a.qp
            .post_send(&[SendWr::new(op::WRITE, 200 + w, &[p.a.mr.sge(0, LENGTH)])
                .remote(p.b.mr.at(LENGTH), p.b.mr.rkey())])?;
    }
    // Requests that the device completed before it stopped are successful; the rest is flushed. The
    // completions are in order, one for each request.
    let writes: Vec<u64> = (0..REQUESTS).collect();
    expect_completions(&p.b, false, &writes, began).at("writes posted before")?;
    let late: Vec<u64> = (200..200 + REQUESTS).collect();
    expect_completions(&p.a, false, &late, began).at("writes posted after")?;
    let receives: Vec<u64> = (100..100 + REQUESTS).collect();
    expect_completions(&p.a, true, &receives, began).at("receives")?;
    println!("all completed after {:.1} s", began.elapsed().as_secs_f32());

    let (first, second) = reader.join().map_err(|_| "the event reader panicked")?;
    ensure_eq!(first, Some(EventType::DEVICE_FATAL), "first event");
    ensure_eq!(second, None, "second event");
    for w in 0..REQUESTS {
        p.a.recv(300 + w, 0, 64).at("posting to a dead device")?;
        let flushed = rig::wait_one(&p.a.rcq, "a late receive")?;
        rig::expect_error(&flushed, 300 + w, rig::status::WR_FLUSH_ERR, &p.a.qp)?;
    }
    for cq in [&p.a.scq, &p.a.rcq, &p.b.scq, &p.b.rcq] {
        rig::expect_quiet(cq, Duration::from_millis(50), "everything completed once")?;
    }
    Ok(())
}

fn queries(time: Duration) -> TestResult {
    let rig = Rig::new()?;
    let p = rig.pair(&PairOpts::default())?;
    let qp = &p.a.qp;
    let end = Instant::now() + time;
    let modify = || {
        let mut count = 0u64;
        while Instant::now() < end {
            // The loop alternates a modify that is refused with modifies that are accepted, for
            // which the device writes the context.
            let rtr = QpAttr {
                qp_state: state::RTR,
                ..QpAttr::default()
            };
            let refused = qp.modify(&rtr, mask::STATE);
            ensure!(refused.is_err(), "to RTR without attributes");
            rig::set_state(qp, state::ERR).at("to ERR")?;
            rig::set_state(qp, state::RESET).at("to RESET")?;
            rig::connect(qp, rig.gid, p.b.qp.qpn(), &Conn::default()).at("to RTS")?;
            count += 1;
        }
        Ok::<_, Fail>(count)
    };
    let query = || {
        let (mut answered, mut busy) = (0u64, 0u64);
        while Instant::now() < end {
            match qp.query() {
                Ok(_) => answered += 1,
                Err(Errno::EBUSY) => busy += 1,
                Err(e) => return Err(Fail::from(e)),
            }
        }
        Ok((answered, busy))
    };
    let (modified, queried) = std::thread::scope(|scope| {
        let modifier = scope.spawn(modify);
        let queried = query();
        (modifier.join(), queried)
    });
    let modified = modified.map_err(|_| "the modifier panicked")??;
    let (answered, busy) = queried?;
    println!("{answered} queries answered, {busy} busy, {modified} times modified");
    ensure!(
        answered > 0 && modified > 0,
        "no query was answered, or no modify succeeded"
    );
    ensure!(
        rig.ctx.async_event(0).is_none(),
        "an event although nothing happened"
    );
    let other = rig.pair(&PairOpts {
        buf: 1 << 17,
        ..PairOpts::default()
    })?;
    checked_exchange(&other, 1).at("afterwards")
}

/// Polls the completions of `ids` from one CQ and checks them: in order, first successful, then
/// flushed.
fn expect_completions(end: &QpEndpoint, receives: bool, ids: &[u64], began: Instant) -> TestResult {
    let cq = if receives { &end.rcq } else { &end.scq };
    let mut flushed = false;
    let mut done = 0;
    while done < ids.len() {
        ensure!(
            began.elapsed() < flush_limit(),
            "{done} of {} completed within {:?}",
            ids.len(),
            flush_limit()
        );
        for c in cq.poll(16).at("poll_cq")? {
            ensure!(done < ids.len(), "more completions than requests");
            ensure_eq!(c.wr_id, ids[done], "wr_id");
            match c.status {
                rig::status::SUCCESS if !flushed => {}
                rig::status::WR_FLUSH_ERR => flushed = true,
                other => return Err(rig::status::name(other).into()),
            }
            done += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
