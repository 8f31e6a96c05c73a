// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of requests that the responder refuses: operations that are not enabled, and violations of
//! its memory protection.
use super::{fails, foreign, loaded};
use crate::ffi::context::EventType;
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{op, state, SendWr};
use crate::rig::*;
use crate::{pattern, Fail, TestResult};

/// Checks that the responder has refused a request: its QP is in ERR, its receives are flushed, and
/// there was one event.
fn responder_error(rig: &Rig, p: &QpPair, kind: EventType) -> TestResult {
    drop(rig.expect_event(kind, p.b.qp.element())?);
    wait_state(&p.b.qp, state::ERR)?;
    expect_error(
        &wait_one(&p.b.rcq, "receive of the responder")?,
        2,
        status::WR_FLUSH_ERR,
        &p.b.qp,
    )?;
    rig.expect_no_event(QUIET)
}

pub(super) fn not_enabled(rig: &Rig, opcode: u32, granted: u32) -> Result<u32, Fail> {
    let opts = PairOpts::default().with(|o| o.conn_b.access = granted);
    let p = loaded(rig, &opts)?;
    p.b.recv(2, 0, 64)?;
    p.b.mr.buf.fill(0, 64, 0x55);
    let wr = SendWr::new(opcode, 1, &[p.a.mr.sge(0, 8)]).remote(p.b.mr.at(0), p.b.mr.rkey());
    let v = fails(&p, wr, status::REM_INV_REQ_ERR)?;
    ensure_eq!(
        p.b.mr.buf.read(0, 64),
        vec![0x55; 64],
        "memory of the responder"
    );
    responder_error(rig, &p, EventType::QP_REQ_ERR)?;
    Ok(v)
}

pub(super) fn write_not_enabled(rig: &Rig) -> TestResult {
    not_enabled(rig, op::WRITE, access::LOCAL_WRITE | access::REMOTE_READ)?;
    Ok(())
}

pub(super) fn read_not_enabled(rig: &Rig) -> TestResult {
    not_enabled(rig, op::READ, access::LOCAL_WRITE | access::REMOTE_WRITE)?;
    Ok(())
}

/// A peer with `max_dest_rd_atomic` 0 accepts no READ, whatever number its requester may have
/// outstanding.
pub(super) fn none_accepted(rig: &Rig) -> TestResult {
    let opts = PairOpts::default().with(|o| o.conn_b.rd_atomic = 0);
    let p = loaded(rig, &opts)?;
    p.b.recv(2, 0, 64)?;
    let wr = SendWr::new(op::READ, 1, &[p.a.mr.sge(0, 8)]).remote(p.b.mr.at(0), p.b.mr.rkey());
    fails(&p, wr, status::REM_INV_REQ_ERR)?;
    responder_error(rig, &p, EventType::QP_REQ_ERR)
}

/// The immediate has taken the receive, so the receive reports the error, and there is no event.
pub(super) fn imm_refused(rig: &Rig) -> TestResult {
    let p = loaded(rig, &PairOpts::default())?;
    p.b.recv(1, 0, 64)?;
    p.b.recv(2, 0, 64)?;
    let wr = SendWr::new(op::WRITE_IMM, 3, &[p.a.mr.sge(0, 8)]).imm(7);
    let wr = wr.remote(p.b.mr.at(0), !p.b.mr.rkey());
    fails(&p, wr, status::REM_ACCESS_ERR)?;
    let w = wait(&p.b.rcq, 2, "receives")?;
    expect_error(&w[0], 1, status::LOC_ACCESS_ERR, &p.b.qp)?;
    expect_error(&w[1], 2, status::WR_FLUSH_ERR, &p.b.qp)?;
    wait_state(&p.b.qp, state::ERR)?;
    rig.expect_no_event(QUIET)
}

#[derive(Clone, Copy)]
pub(super) enum KeyViolation {
    Unknown,
    Foreign,
    Bounds,
    Wrap,
    Permission,
    Stale,
}

/// Posts a WRITE or READ that the responder's memory protection refuses. Returns `vendor_err`.
pub(super) fn expect_remote_error(
    rig: &Rig,
    opcode: u32,
    cause: KeyViolation,
) -> Result<u32, Fail> {
    let p = loaded(rig, &PairOpts::default())?;
    p.b.recv(2, 0, 64)?;
    let other = match cause {
        KeyViolation::Foreign => Some(foreign(rig)?),
        // The region has the other permission, so that exactly the required one is missing.
        KeyViolation::Permission if opcode == op::READ => Some(Mr::new(
            &rig.pd,
            4096,
            access::LOCAL_WRITE | access::REMOTE_WRITE,
        )?),
        KeyViolation::Permission => Some(Mr::new(
            &rig.pd,
            4096,
            access::LOCAL_WRITE | access::REMOTE_READ,
        )?),
        _ => None,
    };
    let (addr, rkey) = match (cause, &other) {
        (KeyViolation::Unknown, _) => (p.b.mr.at(0), !p.b.mr.rkey()),
        (KeyViolation::Bounds, _) => (p.b.mr.at(PairOpts::default().buf - 4), p.b.mr.rkey()),
        (KeyViolation::Wrap, _) => (u64::MAX - 3, p.b.mr.rkey()),
        (KeyViolation::Stale, _) => {
            let mr = Mr::new(&rig.pd, 4096, access::ALL)?;
            (mr.at(0), mr.rkey())
        }
        (_, Some(mr)) => (mr.at(0), mr.rkey()),
        (_, None) => return Err("no region for this cause".into()),
    };
    p.a.mr.buf.write(0, &pattern::bytes(1, 64));
    let wr = SendWr::new(opcode, 1, &[p.a.mr.sge(0, 64)]).remote(addr, rkey);
    let v = fails(&p, wr, status::REM_ACCESS_ERR)?;
    responder_error(rig, &p, EventType::QP_ACCESS_ERR)?;
    if let Some(mr) = &other {
        ensure_eq!(mr.buf.read(0, 64), vec![0; 64], "memory of the responder");
    }
    ensure_eq!(
        p.a.mr.buf.read(0, 64),
        pattern::bytes(1, 64),
        "memory of the requester"
    );
    Ok(v)
}

pub(super) fn write_edge(rig: &Rig) -> TestResult {
    // Of several packets only the last is out of bounds. The RETH has the whole range, so nothing
    // at all is written.
    let p = loaded(rig, &PairOpts::default())?;
    p.b.recv(2, 0, 64)?;
    let buf = std::sync::Arc::new(crate::ffi::sys::Buf::new(16384)?);
    let mr = Mr::of(&rig.pd, &buf, 0, 8192, access::ALL)?;
    p.a.mr.buf.fill(0, 8200, 0xcc);
    let wr = SendWr::new(op::WRITE, 1, &[p.a.mr.sge(0, 8193)]).remote(mr.at(0), mr.rkey());
    fails(&p, wr, status::REM_ACCESS_ERR)?;
    responder_error(rig, &p, EventType::QP_ACCESS_ERR)?;
    ensure!(
        buf.read(0, 16384).iter().all(|&b| b == 0),
        "something was written"
    );
    Ok(())
}
