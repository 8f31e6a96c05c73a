// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `verbena-guest-death --refused`: a NIC that refuses one kind of command after the other
//! (`misbehave refuse-commands`). Calls that the core does not allow a driver to fail succeed
//! nevertheless. All other calls return an error, and the object of the call works as before.
use crate::ffi::cq::{Channel, Cq};
use crate::ffi::destroy::Destroy;
use crate::ffi::mr::access;
use crate::ffi::qp::{Qp, QpInit, RecvWr, Srq};
use crate::ffi::sys::{readable, Errno};
use crate::ffi::QpCap;
use crate::outcome::ErrorContext as _;
use crate::rig::{PairOpts, Rig};
use crate::tests::checked_exchange;
use crate::TestResult;
use std::process::Command;

/// Multicast group 239.1.2.3, as a GID.
const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3];
/// Type of UD QPs, `IBV_QPT_UD`.
const DATAGRAM: u32 = 4;

// Opcodes of `include/abi/cmd/opcode.rs`.
const MODIFY_MR: u32 = 0x32;
const CREATE_CQ: u32 = 0x40;
const RESIZE_CQ: u32 = 0x44;
const RESIZE_SRQ: u32 = 0x54;
const DETACH_MCAST: u32 = 0x71;

/// Runs `call` while commands of this opcode are refused.
fn refused<T>(opcode: u32, call: impl FnOnce() -> Result<T, Errno>) -> Result<T, crate::Fail> {
    misbehave(&[
        format!("only-opcode={opcode}"),
        "refuse-commands=always".to_owned(),
    ])?;
    let result = call();
    misbehave(&["off".to_owned()])?;
    Ok(result?)
}

fn misbehave(kinds: &[String]) -> TestResult {
    let status = Command::new("misbehave").args(kinds).status()?;
    ensure!(status.success(), "misbehave {kinds:?}: {status}");
    Ok(())
}

pub fn run() -> TestResult {
    let rig = Rig::new()?;
    create_cq_is_refused(&rig).at("events ahead")?;
    detach_is_refused(&rig).at("leaving a group")?;
    resize_is_refused(&rig).at("another size")?;
    rereg_is_refused(&rig).at("other rights")
}

/// The device sends events for a CQ before it refuses to create that CQ. The driver must drop these
/// events: it has no CQ for them, and the core has freed the object that such an event would be
/// linked to (`UVERBS_METHOD_CQ_CREATE`).
fn create_cq_is_refused(rig: &Rig) -> TestResult {
    let channel = Channel::new(&rig.ctx)?;
    misbehave(&["events-ahead=300".to_owned()])?;
    let create = || Cq::with_channel(&rig.ctx, 8, Some(&channel), 0);
    let answer = refused(CREATE_CQ, || Ok(create().err()))?;
    ensure_eq!(answer, Some(Errno::ENOMEM), "ibv_create_cq");
    ensure!(
        !readable(channel.fd(), 0),
        "a completion event without a CQ"
    );
    ensure!(
        !readable(rig.ctx.async_fd(), 0),
        "an error event without a CQ"
    );
    // The same channel serves a CQ that was created.
    let cq = create().at("ibv_create_cq, later")?;
    cq.destroy()
        .map_err(|(errno, _)| errno)
        .at("ibv_destroy_cq")?;
    Ok(())
}

/// Detaching must succeed although the device refuses it, because the core counts the groups of a
/// QP and does not destroy a QP that is in a group.
fn detach_is_refused(rig: &Rig) -> TestResult {
    let cq = Cq::new(&rig.ctx, 8)?;
    let init = QpInit {
        send_cq: cq.clone(),
        recv_cq: cq,
        srq: None,
        cap: QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            ..QpCap::default()
        },
        sq_sig_all: false,
        qp_type: DATAGRAM,
    };
    let qp = Qp::new(&rig.pd, &init)?;
    qp.attach_mcast(GROUP).at("ibv_attach_mcast")?;
    refused(DETACH_MCAST, || qp.detach_mcast(GROUP)).at("ibv_detach_mcast")?;
    qp.destroy()
        .map_err(|(errno, _)| errno)
        .at("ibv_destroy_qp")?;
    Ok(())
}

fn resize_is_refused(rig: &Rig) -> TestResult {
    let cq = Cq::new(&rig.ctx, 8)?;
    let answer = refused(RESIZE_CQ, || Ok(cq.resize(100)))?;
    ensure_eq!(answer, Err(Errno::ENOMEM), "ibv_resize_cq");
    cq.resize(100).at("ibv_resize_cq, later")?;
    let srq = Srq::new(&rig.pd, 8, 1)?;
    let post = |id| srq.post(&[RecvWr::new(id, &[])]).map_err(|e| e.errno);
    for id in 0..8 {
        post(id)?;
    }
    let answer = refused(RESIZE_SRQ, || Ok(srq.resize(100)))?;
    ensure_eq!(answer, Err(Errno::ENOMEM), "ibv_modify_srq");
    ensure_eq!(post(8), Err(Errno::ENOMEM), "one receive more");
    srq.resize(100).at("ibv_modify_srq, later")?;
    Ok(post(8)?)
}

fn rereg_is_refused(rig: &Rig) -> TestResult {
    let pair = rig.pair(&PairOpts {
        buf: 1 << 17,
        ..PairOpts::default()
    })?;
    let change = || Ok(pair.b.mr.change(None, None, Some(access::LOCAL_WRITE)));
    let answer = refused(MODIFY_MR, change)?;
    ensure_eq!(answer, Err(Errno::ENOMEM), "ibv_rereg_mr");
    checked_exchange(&pair, 1)
}
