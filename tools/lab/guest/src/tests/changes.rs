// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests that change objects in use: CQs are resized and moderated, memory regions are registered
//! again.
use super::events::checked_exchange;
use crate::ffi::context::EventType;
use crate::ffi::cq::Cq;
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{op, state, SendWr};
use crate::ffi::sys::{Buf, Errno};
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("1/resize-keeps-completions", resize_keeps),
    GuestTest::new("1/resize-refuses-too-few-entries", resize_too_small),
    GuestTest::new("1/resize-under-traffic", resize_under_traffic).limit(180),
    GuestTest::new("4/cq-err-at-the-new-size", overflow_at_new_size),
    GuestTest::new("1.7/moderation-by-count-and-by-time", moderation),
    GuestTest::new("7/rereg-changes-access", rereg_access),
    GuestTest::new("7/rereg-changes-memory", rereg_memory),
    GuestTest::new("7/rereg-changes-pd", rereg_pd),
    GuestTest::new("7/rereg-of-rights-keeps-the-pages", rereg_rights),
    GuestTest::new("7/rereg-that-fails-changes-nothing", rereg_refused),
    GuestTest::new("7/rereg-under-traffic", rereg_under_traffic).limit(180),
];

/// Creates a pair whose end A has a send CQ of its own.
fn with_cq(rig: &Rig, cqe: i32, depth: u32) -> Result<(QpPair, Arc<Cq>), Fail> {
    let opts = PairOpts::default().with(|o| {
        o.cap.max_send_wr = depth;
        o.buf = 1 << 17;
        o.cqe = 600;
    });
    let cq = Cq::new(&rig.ctx, cqe)?;
    let a = rig.end_on(&opts, cq.clone(), Cq::new(&rig.ctx, 16)?)?;
    let b = rig.end(&opts)?;
    connect(&a.qp, rig.gid, b.qp.qpn(), &opts.conn_a)?;
    connect(&b.qp, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    Ok((QpPair { a, b }, cq))
}

/// Posts `count` signaled WRITEs and waits, without polling, until the requests are done.
fn write(pair: &QpPair, first: u64, count: u64) -> TestResult {
    for id in first..first + count {
        let wr = SendWr::new(op::WRITE, id, &[pair.a.mr.sge(0, 8)]);
        let wr = wr.remote(pair.b.mr.at(0), pair.b.mr.rkey());
        pair.a.qp.post_send(&[wr]).at(&format!("request {id}"))?;
    }
    let mark = !first;
    pair.b.mr.buf.write(4096, &mark.to_le_bytes());
    let wr = SendWr::new(op::READ, 0, &[pair.a.mr.sge(4096, 8)]).flags(0);
    let wr = wr.remote(pair.b.mr.at(4096), pair.b.mr.rkey());
    pair.a.qp.post_send(&[wr]).at("the READ after them")?;
    wait_for("the data of the READ after them", || {
        Ok(pair.a.mr.buf.read(4096, 8) == mark.to_le_bytes())
    })
}

fn polled(cq: &Cq, first: u64, count: u64) -> TestResult {
    let all = wait(cq, count as usize, "the completions")?;
    for (id, one) in (first..).zip(&all) {
        expect_success(one, id, wc::RDMA_WRITE)?;
    }
    Ok(())
}

/// Resizes a CQ to larger and smaller sizes, with polled and unpolled entries in the ring.
fn resize_keeps(rig: &Rig) -> TestResult {
    let (pair, cq) = with_cq(rig, 64, 256)?;
    let mut next = 0;
    for (round, (written, cqe)) in [(20, 300), (50, 100), (1, 17), (16, 16), (10, 40), (30, 64)]
        .into_iter()
        .enumerate()
    {
        let at = format!("round {round}, to {cqe} entries");
        write(&pair, next, written).at(&at)?;
        let taken = written / 3;
        polled(&cq, next, taken).at(&at)?;
        cq.resize(cqe).at(&at)?;
        ensure!(
            cq.cqe() >= cqe as usize,
            "{at}: the CQ has {} entries",
            cq.cqe()
        );
        polled(&cq, next + taken, written - taken).at(&at)?;
        expect_quiet(&cq, Duration::from_millis(50), &at)?;
        next += written;
        write(&pair, next, 8).at(&at)?;
        polled(&cq, next, 8).at(&at)?;
        next += 8;
    }
    checked_exchange(&pair, 1).at("after all changes")
}

fn resize_too_small(rig: &Rig) -> TestResult {
    let (pair, cq) = with_cq(rig, 64, 256)?;
    write(&pair, 0, 20)?;
    let before = cq.cqe();
    for (cqe, errno) in [
        (16, Errno::EINVAL),
        (0, Errno::EINVAL),
        (i32::MAX, Errno::EINVAL),
    ] {
        ensure_eq!(cq.resize(cqe), Err(errno), "to {cqe} entries, 20 unpolled");
        ensure_eq!(cq.cqe(), before, "entries after a refused resize");
    }
    polled(&cq, 0, 20)?;
    cq.resize(16).at("to 16 entries, all polled")?;
    write(&pair, 20, 16)?;
    polled(&cq, 20, 16)
}

/// Work that a thread repeats during the traffic of another thread. However the threads share the
/// processors, the traffic continues until the work was done a few times.
#[derive(Default)]
struct BackgroundWork {
    rounds: AtomicU64,
    /// Set after a round has failed; no more rounds follow.
    failed: AtomicBool,
    traffic_ended: AtomicBool,
}

impl BackgroundWork {
    const LEAST: u64 = 3;

    /// Runs rounds, numbered from 0, until the traffic has ended or a round fails.
    fn work(&self, mut round: impl FnMut(u64) -> TestResult) -> TestResult {
        while !self.traffic_ended.load(Ordering::Relaxed) {
            let done = self.rounds.load(Ordering::Relaxed);
            round(done).inspect_err(|_| self.failed.store(true, Ordering::Relaxed))?;
            self.rounds.store(done + 1, Ordering::Relaxed);
        }
        println!("{} times", self.rounds.load(Ordering::Relaxed));
        Ok(())
    }

    /// True if more traffic is needed after `count` requests, of which there must be at least
    /// `total`.
    fn needs_more_traffic(&self, count: u64, total: u64) -> bool {
        let enough = self.rounds.load(Ordering::Relaxed) >= Self::LEAST;
        count < total || !enough && !self.failed.load(Ordering::Relaxed)
    }

    fn traffic_ended(&self) {
        self.traffic_ended.store(true, Ordering::Relaxed);
    }
}

/// One thread posts and polls while another thread resizes the CQ. Each request must complete once
/// and in order.
pub(super) fn resize_under_traffic(rig: &Rig) -> TestResult {
    const TOTAL: u64 = 30_000;
    let (pair, cq) = with_cq(rig, 256, 128)?;
    let background = BackgroundWork::default();
    std::thread::scope(|s| {
        let mover = s.spawn(|| {
            background.work(|moves| {
                // Each size has room for all outstanding requests.
                let cqe = [128, 2000, 256, 500][moves as usize % 4];
                cq.resize(cqe).at(&format!("to {cqe} entries"))?;
                std::thread::sleep(Duration::from_millis(2));
                Ok(())
            })
        });
        let (mut posted, mut completed) = (0, 0);
        let mut spins = 0;
        let mut run = || -> TestResult {
            while completed < posted || background.needs_more_traffic(posted, TOTAL) {
                while posted - completed < 120 && background.needs_more_traffic(posted, TOTAL) {
                    let wr = SendWr::new(op::WRITE, posted, &[pair.a.mr.sge(0, 8)]);
                    let wr = wr.remote(pair.b.mr.at(0), pair.b.mr.rkey());
                    pair.a
                        .qp
                        .post_send(&[wr])
                        .at(&format!("request {posted}"))?;
                    posted += 1;
                }
                let got = cq.poll(32).at("poll_cq")?;
                for one in &got {
                    expect_success(one, completed, wc::RDMA_WRITE)?;
                    completed += 1;
                }
                if got.is_empty() {
                    yield_cpu(&mut spins);
                    ensure!(spins < 2_000_000, "only {completed} of {posted} completed");
                } else {
                    spins = 0;
                }
            }
            Ok(())
        };
        let ran = run();
        background.traffic_ended();
        let moved = mover.join().map_err(|_| Fail::from("the mover panicked"))?;
        ran.and(moved)
    })?;
    expect_quiet(&cq, QUIET, "after all changes")
}

/// A CQ that was made smaller overflows at its new size; a CQ that was made larger holds the new
/// number of entries.
fn overflow_at_new_size(rig: &Rig) -> TestResult {
    let (pair, cq) = with_cq(rig, 64, 600)?;
    cq.resize(200).at("to 200 entries")?;
    let room = cq.cqe() as u64;
    write(&pair, 0, room)?;
    rig.expect_no_event(QUIET).at("a CQ that is full")?;
    polled(&cq, 0, room)?;
    cq.resize(8).at("to 8 entries")?;
    let room = cq.cqe() as u64;
    ensure!(room < 64, "a CQ of 8 entries was rounded up to {room}");
    for id in 0..room + 3 {
        let wr = SendWr::new(op::WRITE, id, &[pair.a.mr.sge(0, 8)]);
        let wr = wr.remote(pair.b.mr.at(0), pair.b.mr.rkey());
        pair.a.qp.post_send(&[wr]).at(&format!("request {id}"))?;
    }
    let mut kinds = Vec::new();
    for _ in 0..2 {
        kinds.push(rig.event("CQ_ERR and QP_FATAL")?.kind());
    }
    ensure!(
        kinds.contains(&EventType::CQ_ERR) && kinds.contains(&EventType::QP_FATAL),
        "events {kinds:?}"
    );
    wait_state(&pair.a.qp, state::ERR)?;
    // Resizing does not repair the CQ: no more completions arrive there, and no QP can be created
    // on it.
    let _ = cq.resize(300);
    polled(&cq, 0, room)?;
    let wr = SendWr::new(op::WRITE, 1, &[pair.a.mr.sge(0, 8)]);
    let wr = wr.remote(pair.b.mr.at(0), pair.b.mr.rkey());
    pair.a.qp.post_send(&[wr]).at("a post in ERR")?;
    expect_quiet(&cq, QUIET, "a CQ in error")?;
    let another = rig.end_on(&PairOpts::default(), cq.clone(), cq.clone());
    ensure!(another.is_err(), "a CQ in error took a queue pair");
    rig.expect_no_event(QUIET)
}

fn moderation(rig: &Rig) -> TestResult {
    ensure_eq!(
        rig.ctx.cq_moderation().at("ibv_query_device_ex")?,
        (u16::MAX, u16::MAX),
        "announced moderation"
    );
    let (cq, channel) = rig.cq_with_events(64)?;
    let opts = PairOpts::default();
    let a = rig.end_on(&opts, cq.clone(), Cq::new(&rig.ctx, 16)?)?;
    let b = rig.end(&opts)?;
    connect(&a.qp, rig.gid, b.qp.qpn(), &opts.conn_a)?;
    connect(&b.qp, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    let pair = QpPair { a, b };
    // Moderation by count: the event arrives with the fourth completion.
    cq.moderate(4, u16::MAX).at("4 completions, 65 ms")?;
    cq.arm(false)?;
    write(&pair, 0, 4)?;
    let event_timeout = event_timeout().as_millis() as i32;
    ensure!(
        channel.event(event_timeout) == Some(cq.element()),
        "no event for four completions"
    );
    polled(&cq, 0, 4)?;
    // Moderation by time: a single completion has an event, too.
    cq.arm(false)?;
    write(&pair, 4, 1)?;
    ensure!(
        channel.event(event_timeout) == Some(cq.element()),
        "no event for one completion"
    );
    polled(&cq, 4, 1)?;
    // Moderation is off, so the single completion has its event at once.
    cq.moderate(0, 0).at("no moderation")?;
    cq.arm(false)?;
    write(&pair, 5, 1)?;
    ensure!(
        channel.event(event_timeout) == Some(cq.element()),
        "no event without moderation"
    );
    polled(&cq, 5, 1)?;
    ensure!(channel.event(100).is_none(), "unexpected event");
    Ok(())
}

/// Posts a WRITE of the byte `value` to `addr`, and returns the status of its completion.
fn write_to(pair: &QpPair, value: u8, addr: u64, rkey: u32) -> Result<u32, Fail> {
    pair.a.mr.buf.write(0, &[value]);
    let wr = SendWr::new(op::WRITE, 1, &[pair.a.mr.sge(0, 1)]);
    pair.a.qp.post_send(&[wr.remote(addr, rkey)])?;
    Ok(wait_one(&pair.a.scq, "the WRITE")?.status)
}

/// Moves both QPs to RESET and back to RTS.
fn reset_and_connect(rig: &Rig, pair: &QpPair) -> TestResult {
    let conn = Conn::default();
    for qp in [&pair.a.qp, &pair.b.qp] {
        set_state(qp, state::RESET)?;
    }
    while pair.a.scq.poll(16)?.len() + pair.b.scq.poll(16)?.len() > 0 {}
    connect(&pair.a.qp, rig.gid, pair.b.qp.qpn(), &conn)?;
    connect(&pair.b.qp, rig.gid, pair.a.qp.qpn(), &conn)
}

fn rereg_access(rig: &Rig) -> TestResult {
    let pair = rig.pair(&PairOpts::default())?;
    let mr = Mr::new(&rig.pd, 8192, access::LOCAL_WRITE)?;
    let (keys, addr) = ((mr.lkey(), mr.rkey()), mr.buf.addr());
    ensure_eq!(
        write_to(&pair, 1, addr, keys.1)?,
        status::REM_ACCESS_ERR,
        "before"
    );
    drop(rig.expect_event(EventType::QP_ACCESS_ERR, pair.b.qp.element())?);
    reset_and_connect(rig, &pair)?;
    mr.change(None, None, Some(access::LOCAL_WRITE | access::REMOTE_WRITE))
        .at("allowing RDMA WRITE")?;
    ensure_eq!((mr.lkey(), mr.rkey()), keys, "keys");
    ensure_eq!(
        write_to(&pair, 2, addr, keys.1)?,
        status::SUCCESS,
        "allowed"
    );
    ensure_eq!(mr.buf.read(0, 1), [2], "the byte");
    mr.change(None, None, Some(access::LOCAL_WRITE | access::REMOTE_READ))
        .at("READ only")?;
    ensure_eq!(
        write_to(&pair, 3, addr, keys.1)?,
        status::REM_ACCESS_ERR,
        "after"
    );
    ensure_eq!(mr.buf.read(0, 1), [2], "the byte after a refused WRITE");
    drop(rig.expect_event(EventType::QP_ACCESS_ERR, pair.b.qp.element())?);
    rig.expect_no_event(QUIET)
}

/// A region with remote READ only, whose memory is pinned for reading, becomes writable and then
/// moves to other memory.
fn rereg_memory(rig: &Rig) -> TestResult {
    let pair = rig.pair(&PairOpts::default())?;
    let mr = Mr::new(&rig.pd, 8192, access::REMOTE_READ)?;
    let keys = (mr.lkey(), mr.rkey());
    mr.change(None, None, Some(access::ALL))
        .at("to be written")?;
    ensure_eq!(
        write_to(&pair, 4, mr.buf.addr(), keys.1)?,
        status::SUCCESS,
        "a WRITE to memory that was pinned for reading"
    );
    ensure_eq!(mr.buf.read(0, 1), [4], "the byte");
    let other = Arc::new(Buf::new(3 << 20)?);
    mr.change(Some(&other), None, None).at("to other memory")?;
    ensure_eq!((mr.lkey(), mr.rkey()), keys, "keys");
    let last = other.addr() + other.len() as u64 - 1;
    ensure_eq!(
        write_to(&pair, 5, last, keys.1)?,
        status::SUCCESS,
        "elsewhere"
    );
    ensure_eq!(other.read(other.len() - 1, 1), [5], "the last byte");
    ensure_eq!(mr.buf.read(0, 1), [4], "the former memory");
    // The previous memory is not part of the region any more.
    ensure_eq!(
        write_to(&pair, 6, mr.buf.addr(), keys.1)?,
        status::REM_ACCESS_ERR,
        "where it was"
    );
    drop(rig.expect_event(EventType::QP_ACCESS_ERR, pair.b.qp.element())?);
    rig.expect_no_event(QUIET)
}

/// The process has mapped other memory at the region's address. Changing the rights must not bring
/// that memory into the region.
fn rereg_rights(rig: &Rig) -> TestResult {
    let pair = rig.pair(&PairOpts::default())?;
    let mr = Mr::new(&rig.pd, 8192, access::REMOTE_READ)?;
    mr.buf.write(0, &[7]);
    mr.buf.replace().at("other memory")?;
    let changed = mr.change(None, None, Some(access::ALL));
    ensure_eq!(changed, Err(Errno::EACCES), "rights to write");
    let read = SendWr::new(op::READ, 1, &[pair.a.mr.sge(0, 1)]).remote(mr.buf.addr(), mr.rkey());
    pair.a.qp.post_send(&[read])?;
    let done = wait_one(&pair.a.scq, "a READ")?;
    ensure_eq!(done.status, status::SUCCESS, "a READ");
    ensure_eq!(pair.a.mr.buf.read(0, 1), [7], "what is read");
    ensure_eq!(
        write_to(&pair, 4, mr.buf.addr(), mr.rkey())?,
        status::REM_ACCESS_ERR,
        "a WRITE"
    );
    ensure_eq!(mr.buf.read(0, 1), [0], "the other memory");
    drop(rig.expect_event(EventType::QP_ACCESS_ERR, pair.b.qp.element())?);
    rig.expect_no_event(QUIET)
}

fn rereg_pd(rig: &Rig) -> TestResult {
    let pair = rig.pair(&PairOpts::default())?;
    let pd = rig.ctx.alloc_pd()?;
    let mr = Mr::new(&rig.pd, 4096, access::ALL)?;
    mr.change(None, Some(&pd), None).at("to another domain")?;
    ensure_eq!(
        write_to(&pair, 1, mr.buf.addr(), mr.rkey())?,
        status::REM_ACCESS_ERR,
        "of another domain"
    );
    drop(rig.expect_event(EventType::QP_ACCESS_ERR, pair.b.qp.element())?);
    reset_and_connect(rig, &pair)?;
    mr.change(None, Some(&rig.pd), None).at("and back")?;
    ensure_eq!(
        write_to(&pair, 2, mr.buf.addr(), mr.rkey())?,
        status::SUCCESS,
        "of the same domain"
    );
    // The domain `pd` can be freed, because the region is in the other domain again.
    drop(pd);
    rig.expect_no_event(QUIET)
}

fn rereg_refused(rig: &Rig) -> TestResult {
    let pair = rig.pair(&PairOpts::default())?;
    let mr = Mr::new(&rig.pd, 4096, access::ALL)?;
    let gone = Arc::new(Buf::new(8192)?);
    gone.forbid();
    let refused = mr.change(Some(&gone), None, None);
    ensure!(refused.is_err(), "unmapped memory was registered");
    ensure_eq!(
        mr.change(None, None, Some(access::REMOTE_WRITE)),
        Err(Errno::EINVAL),
        "remote write without local write"
    );
    ensure_eq!(
        write_to(&pair, 7, mr.buf.addr(), mr.rkey())?,
        status::SUCCESS,
        "as before"
    );
    ensure_eq!(mr.buf.read(0, 1), [7], "the byte");
    rig.expect_no_event(QUIET)
}

/// A region is registered again over the same memory all the time while it is the target of WRITEs,
/// none of which may fail or write to other memory. Another region moves between two domains.
pub(super) fn rereg_under_traffic(rig: &Rig) -> TestResult {
    const TOTAL: u64 = 4000;
    let pair = rig.pair(&PairOpts::default())?;
    let mr = Mr::new(&rig.pd, 1 << 20, access::ALL)?;
    let (rkey, addr) = (mr.rkey(), mr.buf.addr());
    let rights = [access::ALL, access::LOCAL_WRITE | access::REMOTE_WRITE];
    let pd = rig.ctx.alloc_pd()?;
    let spare = Mr::new(&pd, 4096, access::ALL)?;
    let background = BackgroundWork::default();
    std::thread::scope(|s| {
        let changer = s.spawn(|| {
            background.work(|changes| {
                let at = changes as usize % 2;
                mr.change(Some(&mr.buf), None, Some(rights[at]))
                    .at("rereg")?;
                let domain = [&rig.pd, &pd][at];
                spare.change(None, Some(domain), None).at("the other")
            })
        });
        let run = || -> TestResult {
            let mut id = 0;
            while background.needs_more_traffic(id, TOTAL) {
                let at = (id * 4099) % (1 << 20);
                pair.a.mr.buf.write(0, &[id as u8]);
                let wr = SendWr::new(op::WRITE, id, &[pair.a.mr.sge(0, 1)]);
                pair.a.qp.post_send(&[wr.remote(addr + at, rkey)])?;
                expect_success(&wait_one(&pair.a.scq, "a WRITE")?, id, wc::RDMA_WRITE)?;
                ensure_eq!(mr.buf.read(at as usize, 1), [id as u8], "byte {at}");
                id += 1;
            }
            Ok(())
        };
        let ran = run();
        background.traffic_ended();
        let changed = changer.join();
        ran.and(changed.map_err(|_| Fail::from("the changer panicked"))?)
    })?;
    rig.expect_no_event(QUIET)
}
