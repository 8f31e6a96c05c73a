// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The verbs that are tried. Each function sets up the objects it needs, runs one verb through
//! [`Shot::fire`] or [`Shot::destroy`], and destroys everything, which must succeed.
use super::inject::{self, Shot};
use super::open;
use crate::ffi::cq::{Channel, Cq};
use crate::ffi::mr::{access, Mr};
use crate::ffi::mw::{mw_type, Mw};
use crate::ffi::qp::{mask, state, Ah, Qp, QpInit, Srq};
use crate::ffi::sys::{Buf, Errno};
use crate::ffi::xrc::Xrcd;
use crate::ffi::{AhAttr, QpAttr, QpCap};
use crate::outcome::Context as _;
use crate::rig::{self, Conn, Rig};
use crate::{Fail, TestResult};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A verb and the function that tries it.
pub struct Verb {
    pub name: &'static str,
    pub run: fn(&mut Shot<'_>) -> TestResult,
}

const RC: u32 = 2;
const UC: u32 = 3;
const UD: u32 = 4;
const XRC_INITIATOR: u32 = 9;
const QKEY: u32 = 0x1111_1111;

macro_rules! verbs {
    ($($name:literal: $run:expr),* $(,)?) => {
        pub static VERBS: &[Verb] = &[$(Verb { name: $name, run: $run }),*];
    };
}

verbs! {
    "open-device": |shot| {
        let _ctx = open(|open| Ok(shot.fire(open)))?;
        Ok(())
    },
    "query-device": |shot| query(shot, |rig| rig.ctx.query_device().map(|_| ())),
    "query-port": |shot| query(shot, |rig| rig.ctx.query_port(1).map(|_| ())),
    "query-gid": |shot| query(shot, |rig| rig.ctx.query_gid(1, rig::env().gid_index).map(|_| ())),
    "alloc-pd": |shot| {
        let rig = Rig::new()?;
        let _pd = shot.fire(|| rig.ctx.alloc_pd());
        Ok(())
    },
    "dealloc-pd": |shot| {
        let rig = Rig::new()?;
        let pd = rig.ctx.alloc_pd()?;
        shot.destroy(pd)
    },
    "reg-mr": |shot| {
        let rig = Rig::new()?;
        let buf = buffer()?;
        let _mr = shot.fire(|| Mr::of(&rig.pd, &buf, 0, buf.len(), access::ALL));
        Ok(())
    },
    "dereg-mr": |shot| {
        let rig = Rig::new()?;
        let buf = buffer()?;
        let mr = Mr::of(&rig.pd, &buf, 0, buf.len(), access::ALL)?;
        shot.destroy(mr)
    },
    "rereg-mr": |shot| {
        let rig = Rig::new()?;
        let buf = buffer()?;
        let mr = Mr::of(&rig.pd, &buf, 0, buf.len(), access::ALL)?;
        let other = buffer()?;
        shot.fire(|| mr.change(Some(&other), None, None));
        Ok(())
    },
    "alloc-mw": |shot| {
        let rig = Rig::new()?;
        let _mw = shot.fire(|| Mw::new(&rig.pd, mw_type::TYPE_2));
        Ok(())
    },
    "dealloc-mw": |shot| {
        let rig = Rig::new()?;
        let mw = Mw::new(&rig.pd, mw_type::TYPE_1)?;
        shot.destroy(mw)
    },
    "create-comp-channel": |shot| {
        let rig = Rig::new()?;
        let _channel = shot.fire(|| Channel::new(&rig.ctx));
        Ok(())
    },
    "destroy-comp-channel": |shot| {
        let rig = Rig::new()?;
        let channel = Channel::new(&rig.ctx)?;
        shot.destroy(channel)
    },
    "create-cq": |shot| {
        let rig = Rig::new()?;
        let channel = Channel::new(&rig.ctx)?;
        let _cq = shot.fire(|| Cq::with_channel(&rig.ctx, 100, Some(&channel), 0));
        Ok(())
    },
    "resize-cq": |shot| {
        let rig = Rig::new()?;
        let cq = Cq::new(&rig.ctx, 100)?;
        shot.fire(|| cq.resize(500));
        Ok(())
    },
    "destroy-cq": |shot| {
        let rig = Rig::new()?;
        let channel = Channel::new(&rig.ctx)?;
        let cq = Cq::with_channel(&rig.ctx, 100, Some(&channel), 0)?;
        shot.destroy(cq)
    },
    "create-srq": |shot| {
        let rig = Rig::new()?;
        let _srq = shot.fire(|| Srq::new(&rig.pd, 100, 2));
        Ok(())
    },
    "modify-srq": |shot| {
        let rig = Rig::new()?;
        let srq = Srq::new(&rig.pd, 100, 2)?;
        shot.fire(|| srq.set_limit(5));
        Ok(())
    },
    "resize-srq": |shot| {
        let rig = Rig::new()?;
        let srq = Srq::new(&rig.pd, 100, 2)?;
        shot.fire(|| srq.resize(500));
        Ok(())
    },
    "query-srq": |shot| {
        let rig = Rig::new()?;
        let srq = Srq::new(&rig.pd, 100, 2)?;
        shot.fire(|| srq.query());
        Ok(())
    },
    "open-xrcd": |shot| {
        let rig = Rig::new()?;
        let _xrcd = shot.fire(|| Xrcd::open(&rig.ctx, None));
        Ok(())
    },
    "close-xrcd": |shot| {
        let rig = Rig::new()?;
        let xrcd = Xrcd::open(&rig.ctx, None)?;
        shot.destroy(xrcd)
    },
    "create-srq-xrc": |shot| {
        let rig = Rig::new()?;
        let (xrcd, cq) = (Xrcd::open(&rig.ctx, None)?, Cq::new(&rig.ctx, 100)?);
        let _srq = shot.fire(|| xrcd.srq(&rig.pd, &cq, 100));
        Ok(())
    },
    "create-qp-xrc-target": |shot| {
        let rig = Rig::new()?;
        let xrcd = Xrcd::open(&rig.ctx, None)?;
        // If an allocation of the core fails after the driver's part, the core never releases the
        // domain, so only the driver's allocations fail here.
        let _target = inject::only_of("verbena", || shot.fire(|| xrcd.target()))?;
        Ok(())
    },
    "open-qp": |shot| {
        let rig = Rig::new()?;
        let xrcd = Xrcd::open(&rig.ctx, None)?;
        let target = xrcd.target()?;
        let _again = shot.fire(|| xrcd.open_target(target.qpn()));
        Ok(())
    },
    "destroy-qp-xrc-target": |shot| {
        let rig = Rig::new()?;
        let xrcd = Xrcd::open(&rig.ctx, None)?;
        let target = xrcd.target()?;
        shot.destroy(target)
    },
    "destroy-srq": |shot| {
        let rig = Rig::new()?;
        let srq = Srq::new(&rig.pd, 100, 2)?;
        shot.destroy(srq)
    },
    "create-qp-rc": |shot| create_qp(shot, RC),
    "create-qp-uc": |shot| create_qp(shot, UC),
    "create-qp-ud": |shot| create_qp(shot, UD),
    "create-qp-xrc-initiator": |shot| create_qp(shot, XRC_INITIATOR),
    "create-qp-srq": |shot| {
        let rig = Rig::new()?;
        let srq = Srq::new(&rig.pd, 100, 2)?;
        let init = QpInit { srq: Some(srq), ..qp_init(&rig, RC)? };
        let _qp = shot.fire(|| Qp::new(&rig.pd, &init));
        Ok(())
    },
    "rc-reset-to-init": |shot| modify(shot, RC, state::RESET, state::INIT),
    "rc-init-to-rtr": |shot| modify(shot, RC, state::INIT, state::RTR),
    "rc-rtr-to-rts": |shot| modify(shot, RC, state::RTR, state::RTS),
    "rc-rts-to-sqd": |shot| modify(shot, RC, state::RTS, state::SQD),
    "rc-rts-to-err": |shot| modify(shot, RC, state::RTS, state::ERR),
    "rc-rts-to-reset": |shot| modify(shot, RC, state::RTS, state::RESET),
    "uc-reset-to-init": |shot| modify(shot, UC, state::RESET, state::INIT),
    "uc-init-to-rtr": |shot| modify(shot, UC, state::INIT, state::RTR),
    "uc-rtr-to-rts": |shot| modify(shot, UC, state::RTR, state::RTS),
    "ud-reset-to-init": |shot| modify(shot, UD, state::RESET, state::INIT),
    "ud-init-to-rtr": |shot| modify(shot, UD, state::INIT, state::RTR),
    "ud-rtr-to-rts": |shot| modify(shot, UD, state::RTR, state::RTS),
    "ud-rts-to-err": |shot| modify(shot, UD, state::RTS, state::ERR),
    "query-qp": |shot| {
        let rig = Rig::new()?;
        let qp = qp_in(&rig, RC, state::RTS)?;
        shot.fire(|| qp.query().map(|_| ()));
        Ok(())
    },
    "destroy-qp-reset": |shot| destroy_qp(shot, RC, state::RESET),
    "destroy-qp-rts": |shot| destroy_qp(shot, RC, state::RTS),
    "destroy-qp-uc": |shot| destroy_qp(shot, UC, state::RTS),
    "destroy-qp-ud": |shot| destroy_qp(shot, UD, state::RTS),
    "create-ah": |shot| {
        let rig = Rig::new()?;
        let _ah = shot.fire(|| Ah::new(&rig.pd, &ah_attr(&rig)));
        Ok(())
    },
    "destroy-ah": |shot| {
        let rig = Rig::new()?;
        let ah = Ah::new(&rig.pd, &ah_attr(&rig))?;
        shot.destroy(ah)
    },
    "close-device": |shot| {
        let mut ctx = Some(open(|open| open())?);
        shot.fire(|| {
            ctx.take();
            Ok(())
        });
        Ok(())
    },
    "close-under-all": close,
    "kernel-users": kernel_users,
    "bind": bind,
    "unbind": unbind,
}

/// Verbs with many allocations, each of which takes seconds.
pub const LONG: &[&str] = &["bind", "unbind"];

fn query(shot: &mut Shot<'_>, verb: fn(&Rig) -> Result<(), Errno>) -> TestResult {
    let rig = Rig::new()?;
    shot.fire(|| verb(&rig));
    Ok(())
}

/// Returns a buffer of several pages, all of them populated, so that only allocations of the kernel
/// can fail.
fn buffer() -> Result<Arc<Buf>, Errno> {
    let buf = Buf::new(1 << 18)?;
    buf.fill(0, buf.len(), 1);
    Ok(Arc::new(buf))
}

fn qp_init(rig: &Rig, qp_type: u32) -> Result<QpInit, Fail> {
    Ok(QpInit {
        send_cq: Cq::new(&rig.ctx, 100)?,
        recv_cq: Cq::new(&rig.ctx, 100)?,
        srq: None,
        cap: QpCap {
            max_send_wr: 100,
            max_recv_wr: 100,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 0,
        },
        sq_sig_all: false,
        qp_type,
    })
}

/// Creates a QP, or skips the test if the device does not support the type.
fn qp(rig: &Rig, qp_type: u32) -> Result<Qp, Fail> {
    Qp::new(&rig.pd, &qp_init(rig, qp_type)?).map_err(|errno| match errno {
        Errno::EOPNOTSUPP => Fail::Skipped("the device has no such type".into()),
        errno => Fail::from(errno),
    })
}

fn create_qp(shot: &mut Shot<'_>, qp_type: u32) -> TestResult {
    let rig = Rig::new()?;
    drop(qp(&rig, qp_type)?);
    let init = qp_init(&rig, qp_type)?;
    let _qp = shot.fire(|| Qp::new(&rig.pd, &init));
    Ok(())
}

/// Makes one state transition of a QP.
fn step(rig: &Rig, qp: &Qp, to: u32) -> Result<(), Errno> {
    let conn = Conn::default();
    let attr = QpAttr {
        qp_state: to,
        qkey: QKEY,
        ..rig::attrs(rig.gid, qp.qpn(), &conn)
    };
    let uc_rtr = rig::RTR_MASK & !(mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER);
    let mask = match (qp.init.qp_type, to) {
        (UD, state::INIT) => mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::QKEY,
        (UC, state::RTR) => uc_rtr,
        (UC | UD, state::RTS) => mask::STATE | mask::SQ_PSN,
        (UD, _) => mask::STATE,
        _ => rig::mask_to(to),
    };
    qp.modify(&attr, mask)
}

fn qp_in(rig: &Rig, qp_type: u32, in_state: u32) -> Result<Qp, Fail> {
    let qp = qp(rig, qp_type)?;
    for to in [state::INIT, state::RTR, state::RTS] {
        if in_state >= to {
            step(rig, &qp, to).at(state::NAMES[to as usize])?;
        }
    }
    Ok(qp)
}

fn modify(shot: &mut Shot<'_>, qp_type: u32, from: u32, to: u32) -> TestResult {
    let rig = Rig::new()?;
    let qp = qp_in(&rig, qp_type, from)?;
    let moved = shot.fire(|| step(&rig, &qp, to)).is_some();
    let now = qp.state()?;
    ensure_eq!(
        state::NAMES[now as usize],
        state::NAMES[if moved { to } else { from } as usize],
        "state after modify"
    );
    Ok(())
}

fn destroy_qp(shot: &mut Shot<'_>, qp_type: u32, in_state: u32) -> TestResult {
    let rig = Rig::new()?;
    let qp = qp_in(&rig, qp_type, in_state)?;
    shot.destroy(qp)
}

fn ah_attr(rig: &Rig) -> AhAttr {
    rig::attrs(rig.gid, 0, &Conn::default()).ah_attr
}

/// One object of each kind; the fields are in the order in which they are destroyed.
pub struct Everything {
    _rc: Qp,
    _ud: Qp,
    _on_srq: Qp,
    _ah: Ah,
    _mr: Mr,
    _cq: Arc<Cq>,
}

impl Everything {
    pub fn new(rig: &Rig) -> Result<Everything, Fail> {
        let (cq, _channel) = rig.cq_with_events(100)?;
        let srq = Srq::new(&rig.pd, 100, 2)?;
        let init = QpInit {
            srq: Some(srq),
            ..qp_init(rig, RC)?
        };
        Ok(Everything {
            _rc: qp_in(rig, RC, state::RTS)?,
            _ud: qp_in(rig, UD, state::RTS)?,
            _on_srq: Qp::new(&rig.pd, &init)?,
            _ah: Ah::new(&rig.pd, &ah_attr(rig))?,
            _mr: Mr::of(&rig.pd, &buffer()?, 0, 1 << 18, access::ALL)?,
            _cq: cq,
        })
    }
}

/// Exit status of the child that closed without having reached the failure; [`CLOSED`] + 1 if it
/// did.
pub const CLOSED: i32 = 100;

/// Closes the device's file while an object of each kind exists, so that the kernel has to destroy
/// the objects.
fn close(shot: &mut Shot<'_>) -> TestResult {
    let status = Command::new("/proc/self/exe")
        .args(["--close", &shot.n().to_string()])
        .status()?;
    let fired = match status.code() {
        Some(CLOSED) => false,
        Some(code) if code == CLOSED + 1 => true,
        _ => return Err(format!("the child: {status}").into()),
    };
    shot.ended(fired, None);
    Ok(())
}

/// Creates, connects and destroys kernel queues by the self-test module, if that is loaded.
fn kernel_users(shot: &mut Shot<'_>) -> TestResult {
    let trigger = Path::new("/sys/module/verbena_selftest/parameters/connect");
    if !trigger.exists() {
        return Err(Fail::Skipped("verbena_selftest is not loaded".into()));
    }
    write(shot, trigger, "1");
    Ok(())
}

/// Writes to a file whose write triggers an action.
fn write(shot: &mut Shot<'_>, path: &Path, text: &str) -> Option<()> {
    use std::io::Write;
    let mut file = fs::File::options().write(true).open(path).ok()?;
    shot.fire(|| {
        file.write_all(text.as_bytes())
            .map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))
    })
}

/// Returns the folder of the driver and the PCI address of the device.
fn pci() -> Result<(PathBuf, String), Fail> {
    let device = fs::canonicalize(
        Path::new("/sys/class/infiniband")
            .join(&rig::env().device)
            .join("device"),
    )?;
    let address = device.file_name().and_then(|n| n.to_str());
    let address = address.ok_or("no PCI address")?.to_owned();
    Ok((fs::canonicalize(device.join("driver"))?, address))
}

fn bind(shot: &mut Shot<'_>) -> TestResult {
    let (driver, address) = pci()?;
    fs::write(driver.join("unbind"), &address)
        .map_err(Fail::from)
        .at("unbind")?;
    let bound = write(shot, &driver.join("bind"), &address);
    if bound.is_none() || !driver.join(&address).exists() {
        fs::write(driver.join("bind"), &address)
            .map_err(Fail::from)
            .at("bind again after a failure")?;
    }
    back()
}

fn unbind(shot: &mut Shot<'_>) -> TestResult {
    let (driver, address) = pci()?;
    if write(shot, &driver.join("unbind"), &address).is_none() {
        fs::write(driver.join("unbind"), &address)
            .map_err(Fail::from)
            .at("unbind again after a failure")?;
    }
    fs::write(driver.join("bind"), &address)
        .map_err(Fail::from)
        .at("bind")?;
    back()
}

/// Waits until the device exists again and has its address.
fn back() -> TestResult {
    rig::wait_for("the device is back", || {
        Ok(Rig::new().is_ok_and(|r| r.gid.raw != [0; 16]))
    })
}
