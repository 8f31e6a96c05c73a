// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `verbena-guest-unbind [CYCLES]`: the driver is unbound from the device under a process that is
//! at work.
//!
//! In each cycle this process has posted work, a thread that waits for asynchronous events, and its
//! mappings of the device; then the driver is unbound. DEVICE_FATAL must arrive exactly once, every
//! posted request must be flushed, posting must still be accepted and flushed, and accesses to the
//! mappings must do no harm. Then the driver is bound again while the old context is still open,
//! and the new device must work at once. Slab memory is compared between an early cycle and the
//! last.
use crate::ffi::context::EventType;
use crate::ffi::qp::{op, SendWr};
use crate::outcome::ErrorContext as _;
use crate::rig::{self, PairOpts, QpPair, Rig};
use crate::tests::checked_exchange;
use crate::{runner, Fail, TestResult};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const SLAB_LIMIT_KB: u64 = 1024;

/// Number of sends, and of receives, that are pending when the driver is unbound.
const PENDING: u64 = 6;

/// Runs the program `verbena-guest-unbind`.
pub fn main() -> ExitCode {
    let cycles = match std::env::args().nth(1).map(|a| a.parse::<u64>()) {
        None => 100,
        Some(Ok(n)) => n,
        Some(Err(_)) => {
            eprintln!("usage: verbena-guest-unbind [CYCLES]");
            return ExitCode::from(2);
        }
    };
    if let Err(why) = runner::set_env(std::env::var("VERBENA_DEVICE").ok(), None) {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    runner::report("unbind", run(cycles).map(|()| cycles))
}

fn run(cycles: u64) -> TestResult {
    let device = Path::new("/sys/class/infiniband")
        .join(&rig::env().device)
        .join("device");
    let device = fs::canonicalize(device)
        .map_err(Fail::from)
        .at("finding the PCI device")?;
    let address = device
        .file_name()
        .and_then(|n| n.to_str())
        .ok_or("no PCI address")?
        .to_owned();
    let driver = fs::canonicalize(device.join("driver"))?;
    let enabled = enable_count(&device)?;
    let early = cycles.div_ceil(10);
    let mut slab_then = 0;
    for i in 1..=cycles {
        cycle(&driver, &address, i).at(&format!("cycle {i}"))?;
        ensure_eq!(
            enable_count(&device)?,
            enabled,
            "enable count of the PCI device"
        );
        if i == early {
            slab_then = slab_kb()?;
        }
    }
    let now = slab_kb()?;
    println!("slab after cycle {early}: {slab_then} kB, after cycle {cycles}: {now} kB");
    ensure!(
        // A kernel with checkers keeps freed memory; such a kernel searches for leaks itself.
        now <= slab_then + SLAB_LIMIT_KB || rig::slowness() > 1,
        "slab grew from {slab_then} to {now} kB"
    );
    Ok(())
}

fn cycle(driver: &Path, address: &str, i: u64) -> TestResult {
    let rig = Rig::new()?;
    let p = rig.pair(&PairOpts {
        buf: 1 << 17,
        ..PairOpts::default()
    })?;
    checked_exchange(&p, i).at("before the unbind")?;
    // This work cannot finish: the sends have no receive, and the receives have no send.
    for w in 0..PENDING {
        p.b.qp
            .post_send(&[SendWr::new(op::SEND, w, &[p.b.mr.sge(0, 64)]).flags(0)])?;
        p.b.recv(100 + w, 0, 64)?;
    }
    let ctx = rig.ctx.clone();
    let reader = std::thread::spawn(move || {
        let ms = rig::event_timeout().as_millis() as i32;
        let first = ctx.async_event(ms).map(|e| e.kind());
        let second = ctx.async_event(300).map(|e| e.kind());
        (first, second)
    });
    std::thread::sleep(Duration::from_millis(5 * (i % 4)));
    fs::write(driver.join("unbind"), address)
        .map_err(Fail::from)
        .at("unbind")?;

    let (first, second) = reader.join().map_err(|_| "the event reader panicked")?;
    ensure_eq!(
        first,
        Some(EventType::DEVICE_FATAL),
        "first event after the unbind"
    );
    ensure_eq!(second, None, "second event after the unbind");
    expect_flushed(&p)?;

    // The driver is bound again at once while the old context is still open; in every third cycle
    // the context is closed first.
    let old = if i % 3 == 0 {
        drop(p);
        drop(rig);
        None
    } else {
        Some((p, rig))
    };
    bind(driver, address)?;
    let new = Rig::new()?;
    let q = new.pair(&PairOpts {
        buf: 1 << 17,
        ..PairOpts::default()
    })?;
    checked_exchange(&q, i).at("after the rebind")?;
    drop(old);
    checked_exchange(&q, i).at("after the old context was closed")?;
    drop((q, new));
    match crate::ffi::sys::drop_failures() {
        0 => Ok(()),
        n => Err(format!("{n} objects could not be destroyed").into()),
    }
}

/// Checks that the requests pending at end B are flushed once, and that a dead device accepts and
/// flushes further requests.
fn expect_flushed(p: &QpPair) -> TestResult {
    for (cq, first, what) in [
        (&p.b.scq, 0, "sends of a dead device"),
        (&p.b.rcq, 100, "receives of a dead device"),
    ] {
        for (w, id) in rig::wait(cq, PENDING as usize, what)?.iter().zip(first..) {
            rig::expect_error(w, id, rig::status::WR_FLUSH_ERR, &p.b.qp)?;
        }
    }
    // Posting, arming and polling access rings and doorbells that the device no longer uses.
    for w in 0..40 {
        p.a.recv(w, 0, 64).at("posting to a dead device")?;
        let receive = rig::wait_one(&p.a.rcq, "a late receive")?;
        rig::expect_error(&receive, w, rig::status::WR_FLUSH_ERR, &p.a.qp)?;
        p.a.qp
            .post_send(&[SendWr::new(op::SEND, w, &[p.a.mr.sge(0, 8)])])?;
        let send = rig::wait_one(&p.a.scq, "a late send")?;
        rig::expect_error(&send, w, rig::status::WR_FLUSH_ERR, &p.a.qp)?;
        p.a.scq.arm(false).at("arming on a dead device")?;
    }
    for cq in [&p.a.scq, &p.a.rcq, &p.b.scq, &p.b.rcq] {
        rig::expect_quiet(cq, Duration::from_millis(20), "everything was flushed once")?;
    }
    Ok(())
}

/// Binds the driver, and waits until the device has a GID.
fn bind(driver: &Path, address: &str) -> TestResult {
    fs::write(driver.join("bind"), address)
        .map_err(Fail::from)
        .at("bind")?;
    rig::wait_for("the device is back", || {
        let device = PathBuf::from("/sys/class/infiniband").join(&rig::env().device);
        Ok(device.exists() && Rig::new().is_ok_and(|r| r.gid.raw != [0; 16]))
    })
}

/// Returns the enable count of the PCI device, which is at most one for each driver that is bound.
fn enable_count(device: &Path) -> Result<u32, Fail> {
    let count = fs::read_to_string(device.join("enable"))?;
    count
        .trim()
        .parse()
        .map_err(|_| format!("the enable file contains no number: {count}").into())
}

/// Returns the slab memory in kB, after dropping caches.
fn slab_kb() -> Result<u64, Fail> {
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    std::thread::sleep(Duration::from_secs(1));
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text
        .lines()
        .find(|l| l.starts_with("Slab:"))
        .ok_or("/proc/meminfo has no line Slab")?;
    let kb = line.split_whitespace().nth(1).and_then(|w| w.parse().ok());
    kb.ok_or_else(|| "/proc/meminfo has no number for Slab".into())
}
