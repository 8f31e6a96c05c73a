// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The verbs that are tried. Each function sets up the objects it needs, runs one verb through
//! [`InjectedCall::run_verb`] or [`InjectedCall::destroy`], and destroys everything, which must
//! succeed.
use super::inject::{self, InjectedCall};
use super::open;
use crate::ffi::cq::{Channel, Cq};
use crate::ffi::mr::{access, Mr};
use crate::ffi::mw::{mw_type, Mw};
use crate::ffi::qp::{mask, state, Ah, Qp, QpInit, Srq};
use crate::ffi::sys::{Buf, Errno};
use crate::ffi::xrc::Xrcd;
use crate::ffi::{AhAttr, QpAttr, QpCap};
use crate::outcome::ErrorContext as _;
use crate::rig::{self, Conn, Rig};
use crate::{Fail, TestResult};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A verb and the function that tries it.
pub struct InjectedVerb {
    pub name: &'static str,
    pub run: fn(&mut InjectedCall<'_>) -> TestResult,
}

const RC: u32 = 2;
const UC: u32 = 3;
const UD: u32 = 4;
const XRC_INITIATOR: u32 = 9;
const QKEY: u32 = 0x1111_1111;

macro_rules! verbs {
    ($($name:literal: $run:expr),* $(,)?) => {
        pub static VERBS: &[InjectedVerb] = &[$(InjectedVerb { name: $name, run: $run }),*];
    };
}

verbs! {
    "open-device": |call| {
        let _ctx = open(|open| Ok(call.run_verb(open)))?;
        Ok(())
    },
    "query-device": |call| query(call, |rig| rig.ctx.query_device().map(|_| ())),
    "query-port": |call| query(call, |rig| rig.ctx.query_port(1).map(|_| ())),
    "query-gid": |call| query(call, |rig| rig.ctx.query_gid(1, rig::env().gid_index).map(|_| ())),
    "alloc-pd": |call| {
        let rig = Rig::new()?;
        let _pd = call.run_verb(|| rig.ctx.alloc_pd());
        Ok(())
    },
    "dealloc-pd": |call| {
        let rig = Rig::new()?;
        let pd = rig.ctx.alloc_pd()?;
        call.destroy(pd)
    },
    "reg-mr": |call| {
        let rig = Rig::new()?;
        let buf = buffer()?;
        let _mr = call.run_verb(|| Mr::of(&rig.pd, &buf, 0, buf.len(), access::ALL));
        Ok(())
    },
    "dereg-mr": |call| {
        let rig = Rig::new()?;
        let buf = buffer()?;
        let mr = Mr::of(&rig.pd, &buf, 0, buf.len(), access::ALL)?;
        call.destroy(mr)
    },
    "rereg-mr": |call| {
        let rig = Rig::new()?;
        let buf = buffer()?;
        let mr = Mr::of(&rig.pd, &buf, 0, buf.len(), access::ALL)?;
        let other = buffer()?;
        call.run_verb(|| mr.change(Some(&other), None, None));
        Ok(())
    },
    "alloc-mw": |call| {
        let rig = Rig::new()?;
        let _mw = call.run_verb(|| Mw::new(&rig.pd, mw_type::TYPE_2));
        Ok(())
    },
    "dealloc-mw": |call| {
        let rig = Rig::new()?;
        let mw = Mw::new(&rig.pd, mw_type::TYPE_1)?;
        call.destroy(mw)
    },
    "create-comp-channel": |call| {
        let rig = Rig::new()?;
        let _channel = call.run_verb(|| Channel::new(&rig.ctx));
        Ok(())
    },
    "destroy-comp-channel": |call| {
        let rig = Rig::new()?;
        let channel = Channel::new(&rig.ctx)?;
        call.destroy(channel)
    },
    "create-cq": |call| {
        let rig = Rig::new()?;
        let channel = Channel::new(&rig.ctx)?;
        let _cq = call.run_verb(|| Cq::with_channel(&rig.ctx, 100, Some(&channel), 0));
        Ok(())
    },
    "resize-cq": |call| {
        let rig = Rig::new()?;
        let cq = Cq::new(&rig.ctx, 100)?;
        call.run_verb(|| cq.resize(500));
        Ok(())
    },
    "destroy-cq": |call| {
        let rig = Rig::new()?;
        let channel = Channel::new(&rig.ctx)?;
        let cq = Cq::with_channel(&rig.ctx, 100, Some(&channel), 0)?;
        call.destroy(cq)
    },
    "create-srq": |call| {
        let rig = Rig::new()?;
        let _srq = call.run_verb(|| Srq::new(&rig.pd, 100, 2));
        Ok(())
    },
    "modify-srq": |call| {
        let rig = Rig::new()?;
        let srq = Srq::new(&rig.pd, 100, 2)?;
        call.run_verb(|| srq.set_limit(5));
        Ok(())
    },
    "resize-srq": |call| {
        let rig = Rig::new()?;
        let srq = Srq::new(&rig.pd, 100, 2)?;
        call.run_verb(|| srq.resize(500));
        Ok(())
    },
    "query-srq": |call| {
        let rig = Rig::new()?;
        let srq = Srq::new(&rig.pd, 100, 2)?;
        call.run_verb(|| srq.query());
        Ok(())
    },
    "open-xrcd": |call| {
        let rig = Rig::new()?;
        let _xrcd = call.run_verb(|| Xrcd::open(&rig.ctx, None));
        Ok(())
    },
    "close-xrcd": |call| {
        let rig = Rig::new()?;
        let xrcd = Xrcd::open(&rig.ctx, None)?;
        call.destroy(xrcd)
    },
    "create-srq-xrc": |call| {
        let rig = Rig::new()?;
        let (xrcd, cq) = (Xrcd::open(&rig.ctx, None)?, Cq::new(&rig.ctx, 100)?);
        let _srq = call.run_verb(|| xrcd.srq(&rig.pd, &cq, 100));
        Ok(())
    },
    "create-qp-xrc-target": |call| {
        let rig = Rig::new()?;
        let xrcd = Xrcd::open(&rig.ctx, None)?;
        // If an allocation of the core fails after the driver's part, the core never releases the
        // domain, so only the driver's allocations fail here.
        let _target = inject::only_of("verbena", || call.run_verb(|| xrcd.target()))?;
        Ok(())
    },
    "open-qp": |call| {
        let rig = Rig::new()?;
        let xrcd = Xrcd::open(&rig.ctx, None)?;
        let target = xrcd.target()?;
        let _again = call.run_verb(|| xrcd.open_target(target.qpn()));
        Ok(())
    },
    "destroy-qp-xrc-target": |call| {
        let rig = Rig::new()?;
        let xrcd = Xrcd::open(&rig.ctx, None)?;
        let target = xrcd.target()?;
        call.destroy(target)
    },
    "destroy-srq": |call| {
        let rig = Rig::new()?;
        let srq = Srq::new(&rig.pd, 100, 2)?;
        call.destroy(srq)
    },
    "create-qp-rc": |call| create_qp(call, RC),
    "create-qp-uc": |call| create_qp(call, UC),
    "create-qp-ud": |call| create_qp(call, UD),
    "create-qp-xrc-initiator": |call| create_qp(call, XRC_INITIATOR),
    "create-qp-srq": |call| {
        let rig = Rig::new()?;
        let srq = Srq::new(&rig.pd, 100, 2)?;
        let init = QpInit { srq: Some(srq), ..qp_init(&rig, RC)? };
        let _qp = call.run_verb(|| Qp::new(&rig.pd, &init));
        Ok(())
    },
    "rc-reset-to-init": |call| modify(call, RC, state::RESET, state::INIT),
    "rc-init-to-rtr": |call| modify(call, RC, state::INIT, state::RTR),
    "rc-rtr-to-rts": |call| modify(call, RC, state::RTR, state::RTS),
    "rc-rts-to-sqd": |call| modify(call, RC, state::RTS, state::SQD),
    "rc-rts-to-err": |call| modify(call, RC, state::RTS, state::ERR),
    "rc-rts-to-reset": |call| modify(call, RC, state::RTS, state::RESET),
    "uc-reset-to-init": |call| modify(call, UC, state::RESET, state::INIT),
    "uc-init-to-rtr": |call| modify(call, UC, state::INIT, state::RTR),
    "uc-rtr-to-rts": |call| modify(call, UC, state::RTR, state::RTS),
    "ud-reset-to-init": |call| modify(call, UD, state::RESET, state::INIT),
    "ud-init-to-rtr": |call| modify(call, UD, state::INIT, state::RTR),
    "ud-rtr-to-rts": |call| modify(call, UD, state::RTR, state::RTS),
    "ud-rts-to-err": |call| modify(call, UD, state::RTS, state::ERR),
    "query-qp": |call| {
        let rig = Rig::new()?;
        let qp = qp_in(&rig, RC, state::RTS)?;
        call.run_verb(|| qp.query().map(|_| ()));
        Ok(())
    },
    "destroy-qp-reset": |call| destroy_qp(call, RC, state::RESET),
    "destroy-qp-rts": |call| destroy_qp(call, RC, state::RTS),
    "destroy-qp-uc": |call| destroy_qp(call, UC, state::RTS),
    "destroy-qp-ud": |call| destroy_qp(call, UD, state::RTS),
    "create-ah": |call| {
        let rig = Rig::new()?;
        let _ah = call.run_verb(|| Ah::new(&rig.pd, &ah_attr(&rig)));
        Ok(())
    },
    "destroy-ah": |call| {
        let rig = Rig::new()?;
        let ah = Ah::new(&rig.pd, &ah_attr(&rig))?;
        call.destroy(ah)
    },
    "close-device": |call| {
        let mut ctx = Some(open(|open| open())?);
        call.run_verb(|| {
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

fn query(call: &mut InjectedCall<'_>, verb: fn(&Rig) -> Result<(), Errno>) -> TestResult {
    let rig = Rig::new()?;
    call.run_verb(|| verb(&rig));
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

fn create_qp(call: &mut InjectedCall<'_>, qp_type: u32) -> TestResult {
    let rig = Rig::new()?;
    drop(qp(&rig, qp_type)?);
    let init = qp_init(&rig, qp_type)?;
    let _qp = call.run_verb(|| Qp::new(&rig.pd, &init));
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

fn modify(call: &mut InjectedCall<'_>, qp_type: u32, from: u32, to: u32) -> TestResult {
    let rig = Rig::new()?;
    let qp = qp_in(&rig, qp_type, from)?;
    let moved = call.run_verb(|| step(&rig, &qp, to)).is_some();
    let now = qp.state()?;
    ensure_eq!(
        state::NAMES[now as usize],
        state::NAMES[if moved { to } else { from } as usize],
        "state after modify"
    );
    Ok(())
}

fn destroy_qp(call: &mut InjectedCall<'_>, qp_type: u32, in_state: u32) -> TestResult {
    let rig = Rig::new()?;
    let qp = qp_in(&rig, qp_type, in_state)?;
    call.destroy(qp)
}

fn ah_attr(rig: &Rig) -> AhAttr {
    rig::attrs(rig.gid, 0, &Conn::default()).ah_attr
}

/// One object of each kind; the fields are in the order in which they are destroyed.
pub struct AllObjects {
    _rc: Qp,
    _ud: Qp,
    _on_srq: Qp,
    _ah: Ah,
    _mr: Mr,
    _cq: Arc<Cq>,
}

impl AllObjects {
    pub fn new(rig: &Rig) -> Result<AllObjects, Fail> {
        let (cq, _channel) = rig.cq_with_events(100)?;
        let srq = Srq::new(&rig.pd, 100, 2)?;
        let init = QpInit {
            srq: Some(srq),
            ..qp_init(rig, RC)?
        };
        Ok(AllObjects {
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
fn close(call: &mut InjectedCall<'_>) -> TestResult {
    let status = Command::new("/proc/self/exe")
        .args(["--close", &call.n().to_string()])
        .status()?;
    let injected = match status.code() {
        Some(CLOSED) => false,
        Some(code) if code == CLOSED + 1 => true,
        _ => return Err(format!("the child: {status}").into()),
    };
    call.record(injected, None);
    Ok(())
}

/// Creates, connects and destroys kernel queues by the self-test module, if that is loaded.
fn kernel_users(call: &mut InjectedCall<'_>) -> TestResult {
    let trigger = Path::new("/sys/module/verbena_selftest/parameters/connect");
    if !trigger.exists() {
        return Err(Fail::Skipped("verbena_selftest is not loaded".into()));
    }
    write(call, trigger, "1");
    Ok(())
}

/// Writes to a file whose write triggers an action.
fn write(call: &mut InjectedCall<'_>, path: &Path, text: &str) -> Option<()> {
    use std::io::Write;
    let mut file = fs::File::options().write(true).open(path).ok()?;
    call.run_verb(|| {
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

fn bind(call: &mut InjectedCall<'_>) -> TestResult {
    let (driver, address) = pci()?;
    fs::write(driver.join("unbind"), &address)
        .map_err(Fail::from)
        .at("unbind")?;
    let bound = write(call, &driver.join("bind"), &address);
    if bound.is_none() || !driver.join(&address).exists() {
        fs::write(driver.join("bind"), &address)
            .map_err(Fail::from)
            .at("bind again after a failure")?;
    }
    back()
}

fn unbind(call: &mut InjectedCall<'_>) -> TestResult {
    let (driver, address) = pci()?;
    if write(call, &driver.join("unbind"), &address).is_none() {
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
