// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of errors that only a failing device causes. The driver accepts faults in debugfs, and
//! each fault looks like a real one.
use crate::ffi::context::EventType;
use crate::ffi::cq::Cq;
use crate::ffi::destroy::Destroy;
use crate::ffi::qp::{op, state, RecvWr, SendWr, Srq};
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::tests::checked_exchange;
use crate::{Fail, GuestTest, TestResult};
use std::path::PathBuf;
use std::process::Command;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("3/bad-resp-err", |rig| send_fails(rig, BAD_RESP_ERR)),
    GuestTest::new("3/fatal-err", |rig| send_fails(rig, FATAL_ERR)),
    GuestTest::new("3/resp-timeout-err", |rig| {
        send_fails(rig, RESP_TIMEOUT_ERR)
    }),
    GuestTest::new("3/general-err", |rig| send_fails(rig, GENERAL_ERR)),
    GuestTest::new("4/srq-err", srq_err),
    GuestTest::new("4/cq-err-unwritable", cq_unwritable),
    GuestTest::new("4/device-fatal", |rig| {
        device_fatal(rig, || inject("device"), || Ok(()))
    })
    .limit(90)
    .alone(),
    GuestTest::new("4/device-fatal-by-unbind", unbound)
        .limit(90)
        .alone(),
    GuestTest::new("4/device-fatal-by-removal", removed)
        .limit(90)
        .alone(),
    GuestTest::new("4/device-fatal-by-function-reset", function_reset)
        .limit(90)
        .alone(),
    GuestTest::new("4/an-invalid-fault-is-refused", refused),
    GuestTest::new("4/hibernation-is-refused", no_hibernation).alone(),
];

const BAD_RESP_ERR: u32 = 7;
const FATAL_ERR: u32 = 19;
const RESP_TIMEOUT_ERR: u32 = 20;
const GENERAL_ERR: u32 = 21;

/// Returns the PCI function of the tested device in sysfs, and its address.
fn function() -> Result<(PathBuf, String), Fail> {
    if !env().device.starts_with("verbena") {
        return Err(Fail::Skipped("the device has no fault injection".into()));
    }
    let device = format!("/sys/class/infiniband/{}/device", env().device);
    let path = std::fs::canonicalize(device).at("the device in sysfs")?;
    let address = path.file_name().unwrap_or_default().to_string_lossy();
    let address = address.into_owned();
    Ok((path, address))
}

/// Returns the path of a file of the tested device in debugfs.
pub fn debugfs(name: &str) -> Result<PathBuf, Fail> {
    let (_, address) = function()?;
    Ok(format!("/sys/kernel/debug/verbena-{address}/{name}").into())
}

/// Returns the path of the file that accepts faults.
fn file() -> Result<PathBuf, Fail> {
    debugfs("inject")
}

pub(super) fn inject(what: &str) -> TestResult {
    std::fs::write(file()?, what).at(what)
}

fn write(end: &QpEndpoint, peer: &QpEndpoint, wr_id: u64) -> TestResult {
    let wr = SendWr::new(op::WRITE, wr_id, &[end.mr.sge(0, 8)]);
    let wr = wr.remote(peer.mr.at(0), peer.mr.rkey());
    end.qp.post_send(&[wr]).at("a post")
}

/// Checks that the send completes with the status `want`, that the sends after it are flushed, and
/// that the peer is not affected.
fn send_fails(rig: &Rig, want: u32) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    p.a.recv(77, 0, 8)?;
    write(&p.a, &p.b, 1)?;
    expect_success(&wait_one(&p.a.scq, "before the fault")?, 1, wc::RDMA_WRITE)?;
    inject(&format!("send {} {want}", p.a.qp.qpn()))?;
    for wr_id in 2..5 {
        write(&p.a, &p.b, wr_id)?;
    }
    let sends = wait(&p.a.scq, 3, "the fault and the flushes")?;
    expect_error(&sends[0], 2, want, &p.a.qp)?;
    for (w, wr_id) in sends[1..].iter().zip(3..) {
        expect_error(w, wr_id, status::WR_FLUSH_ERR, &p.a.qp)?;
    }
    expect_error(
        &wait_one(&p.a.rcq, "the receive")?,
        77,
        status::WR_FLUSH_ERR,
        &p.a.qp,
    )?;
    ensure_eq!(p.a.qp.state()?, state::ERR, "state");
    ensure_eq!(p.b.qp.state()?, state::RTS, "state of the peer");
    expect_quiet(&p.a.scq, QUIET, "after the flushes")?;
    // The same QPs are connected again, with the same CQs.
    for end in [&p.a, &p.b] {
        set_state(&end.qp, state::RESET)?;
    }
    connect(&p.a.qp, rig.gid, p.b.qp.qpn(), &Conn::default())?;
    connect(&p.b.qp, rig.gid, p.a.qp.qpn(), &Conn::default())?;
    write(&p.a, &p.b, 9)?;
    expect_success(
        &wait_one(&p.a.scq, "after the recovery")?,
        9,
        wc::RDMA_WRITE,
    )
}

/// Checks that an SRQ in error raises SRQ_ERR once, and QP_FATAL and LAST_WQE_REACHED of its QP,
/// that the QP's receives do not complete, and that new objects work after both are destroyed.
fn srq_err(rig: &Rig) -> TestResult {
    for round in 0..3 {
        let srq = Srq::new(&rig.pd, 8, 1).at("an SRQ")?;
        let opts = PairOpts {
            srq: Some(srq.clone()),
            ..PairOpts::default()
        };
        let (a, b) = (rig.end(&PairOpts::default())?, rig.end(&opts)?);
        connect(&a.qp, rig.gid, b.qp.qpn(), &Conn::default())?;
        connect(&b.qp, rig.gid, a.qp.qpn(), &Conn::default())?;
        let p = QpPair { a, b };
        for wr_id in 0..4 {
            srq.post(&[RecvWr::new(wr_id, &[])]).at("a receive")?;
        }
        p.a.qp
            .post_send(&[SendWr::new(op::SEND, 1, &[])])
            .at("a SEND")?;
        expect_success(&wait_one(&p.b.rcq, "before the fault")?, 0, wc::RECV)?;
        wait_one(&p.a.scq, "before the fault")?;
        inject(&format!("srq {}", srq.number()))?;
        p.a.qp
            .post_send(&[SendWr::new(op::SEND, 2, &[])])
            .at("a SEND")?;
        let mut kinds = Vec::new();
        for _ in 0..3 {
            let event = rig.event("SRQ_ERR and the event of its queue pair")?;
            if event.kind() == EventType::SRQ_ERR {
                ensure_eq!(event.element(), srq.element(), "object of SRQ_ERR");
            } else {
                ensure_eq!(
                    event.element(),
                    p.b.qp.element(),
                    "object of the other event"
                );
            }
            kinds.push(event.kind());
        }
        for kind in [
            EventType::SRQ_ERR,
            EventType::QP_FATAL,
            EventType::QP_LAST_WQE_REACHED,
        ] {
            ensure!(kinds.contains(&kind), "round {round}: {kinds:?}");
        }
        wait_state(&p.b.qp, state::ERR)?;
        expect_quiet(&p.b.rcq, QUIET, "a receive of an SRQ in error")?;
        rig.expect_no_event(QUIET)?;
        drop((p, opts));
        srq.destroy().map_err(|(e, _)| e).at("destroying the SRQ")?;
    }
    checked_exchange(
        &rig.pair(&PairOpts {
            buf: 1 << 17,
            ..PairOpts::default()
        })?,
        5,
    )
}

/// Returns the CQN of the only CQ of this process.
fn only_cqn() -> Result<u32, Fail> {
    let out = Command::new("rdma")
        .args(["-dd", "resource", "show", "cq"])
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let own = format!("pid {} ", std::process::id());
    // The driver's values are on the next line.
    let mut lines = text.lines().skip_while(|line| !line.contains(&own));
    let line = lines
        .nth(1)
        .ok_or_else(|| format!("no CQ of ours: {text}"))?;
    let others = lines.any(|line| line.contains(&own));
    ensure!(!others, "more than one CQ of ours: {text}");
    let mut words = line.split_whitespace().skip_while(|w| *w != "drv_cqn");
    let number = words.nth(1).and_then(|word| word.parse().ok());
    number.ok_or_else(|| format!("no CQN in {line}").into())
}

/// The effect is that of an overflow: each event arrives once, earlier completions stay, and the QP
/// moves to ERR.
fn cq_unwritable(rig: &Rig) -> TestResult {
    let (dying, channel) = rig.cq_with_events(64)?;
    let cqn = only_cqn()?;
    let a = rig.end_on(&PairOpts::default(), dying.clone(), Cq::new(&rig.ctx, 64)?)?;
    let b = rig.end(&PairOpts::default())?;
    connect(&a.qp, rig.gid, b.qp.qpn(), &Conn::default())?;
    connect(&b.qp, rig.gid, a.qp.qpn(), &Conn::default())?;
    a.recv(77, 0, 8)?;
    dying.arm(false)?;
    write(&a, &b, 1)?;
    let ms = event_timeout().as_millis() as i32;
    ensure!(channel.event(ms).is_some(), "no completion event");
    inject(&format!("cq {cqn}"))?;
    write(&a, &b, 2)?;
    let mut kinds = Vec::new();
    for _ in 0..2 {
        let event = rig.event("CQ_ERR and QP_FATAL")?;
        let of = match event.kind() {
            EventType::CQ_ERR => dying.element(),
            _ => a.qp.element(),
        };
        ensure_eq!(event.element(), of, "object of {:?}", event.kind());
        kinds.push(event.kind());
    }
    for kind in [EventType::CQ_ERR, EventType::QP_FATAL] {
        ensure!(kinds.contains(&kind), "{kinds:?}");
    }
    expect_success(
        &wait_one(&dying, "the completion before the error")?,
        1,
        wc::RDMA_WRITE,
    )?;
    expect_quiet(&dying, QUIET, "an entry of a CQ in error")?;
    let flushed = wait_one(&a.rcq, "the receive")?;
    expect_error(&flushed, 77, status::WR_FLUSH_ERR, &a.qp)?;
    rig.expect_no_event(QUIET)
}

fn unbound(rig: &Rig) -> TestResult {
    let (path, address) = function()?;
    let driver = std::fs::canonicalize(path.join("driver")).at("the driver")?;
    let write = |name: &str| std::fs::write(driver.join(name), &address).at(name);
    device_fatal(rig, || write("unbind"), || write("bind"))
}

fn removed(rig: &Rig) -> TestResult {
    let (path, _) = function()?;
    let end = || std::fs::write(path.join("remove"), "1").at("removing the device");
    let begin = || std::fs::write("/sys/bus/pci/rescan", "1").at("the PCI rescan");
    device_fatal(rig, end, begin)
}

/// Resets the function without the driver's consent. The driver need not wait for a command that
/// has no response.
pub(super) fn function_reset(rig: &Rig) -> TestResult {
    let (path, _) = function()?;
    let end = || std::fs::write(path.join("reset"), "1").at("resetting the device");
    device_fatal(rig, end, || Ok(()))
}

/// Checks that all requests are flushed once, that DEVICE_FATAL arrives once, and that a new
/// context works.
pub(super) fn device_fatal(
    rig: &Rig,
    end: impl Fn() -> TestResult,
    begin: impl Fn() -> TestResult,
) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    for wr_id in 0..4 {
        p.b.recv(100 + wr_id, 0, 8)?;
        // The peer has no receives, so these SENDs cannot complete.
        let wr = SendWr::new(op::SEND, wr_id, &[p.b.mr.sge(0, 8)]);
        p.b.qp.post_send(&[wr]).at("a SEND")?;
    }
    end()?;
    let event = rig.event("DEVICE_FATAL")?;
    ensure_eq!(event.kind(), EventType::DEVICE_FATAL, "event");
    drop(event);
    for (cq, first) in [(&p.b.scq, 0), (&p.b.rcq, 100)] {
        for (w, wr_id) in wait(cq, 4, "flushes of a dead device")?.iter().zip(first..) {
            expect_error(w, wr_id, status::WR_FLUSH_ERR, &p.b.qp)?;
        }
        expect_quiet(cq, QUIET, "flushed twice")?;
    }
    rig.expect_no_event(QUIET)?;
    begin()?;
    wait_for("the device is back", || {
        Ok(Rig::new().is_ok_and(|new| new.gid.raw != [0; 16]))
    })?;
    let new = Rig::new()?;
    let opts = PairOpts {
        buf: 1 << 17,
        ..PairOpts::default()
    };
    checked_exchange(&new.pair(&opts)?, 3).at("after the device is back")?;
    drop(p);
    checked_exchange(&new.pair(&opts)?, 4).at("after the old objects were destroyed")
}

/// The driver must refuse hibernation, because the device does not know the image that would be
/// loaded.
fn no_hibernation(rig: &Rig) -> TestResult {
    function()?;
    // With this level, a hibernation that is not refused only freezes processes.
    let level = "/sys/power/pm_test";
    std::fs::write(level, "freezer").at(level)?;
    let result = std::fs::write("/sys/power/state", "disk");
    std::fs::write(level, "none").at(level)?;
    let errno = result.err().and_then(|e| e.raw_os_error());
    ensure_eq!(errno, Some(libc::EBUSY), "hibernation");
    let opts = PairOpts {
        buf: 1 << 17,
        ..PairOpts::default()
    };
    checked_exchange(&rig.pair(&opts)?, 1)
}

fn refused(_rig: &Rig) -> TestResult {
    let path = file()?;
    for (what, want) in [
        ("send 16777215 7", libc::EINVAL),
        ("send 1", libc::EINVAL),
        ("cq 5 5", libc::EINVAL),
        ("nonsense", libc::EINVAL),
        ("", 0),
    ] {
        let errno = std::fs::write(&path, what).err();
        let errno = errno.and_then(|e| e.raw_os_error()).unwrap_or(0);
        ensure_eq!(errno, want, "{what:?}");
    }
    Ok(())
}
