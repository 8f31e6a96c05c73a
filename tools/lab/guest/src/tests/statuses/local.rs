// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of errors that the requester or the receive itself detects: lengths and local protection.
use super::{distinct, fails, foreign, loaded};
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{op, state, RecvWr, SendWr};
use crate::ffi::Sge;
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, TestResult};

pub(super) fn recv_too_small(rig: &Rig) -> TestResult {
    for (buffer, message) in [(64, 65), (64, 1024), (1024, 1025), (0, 1), (3000, 10_000)] {
        let p = loaded(rig, &PairOpts::default())?;
        p.b.recv(1, 0, buffer)?;
        p.b.recv(2, 0, 64)?;
        p.b.mr.buf.fill(0, 20_000, 0x77);
        let wr = SendWr::new(op::SEND, 3, &[p.a.mr.sge(0, message)]);
        fails(&p, wr, status::REM_INV_REQ_ERR).at(&format!("SEND of {message} into {buffer}"))?;
        let w = wait(&p.b.rcq, 2, "receives")?;
        expect_error(&w[0], 1, status::LOC_LEN_ERR, &p.b.qp)?;
        expect_error(&w[1], 2, status::WR_FLUSH_ERR, &p.b.qp)?;
        wait_state(&p.b.qp, state::ERR)?;
        let beyond = p.b.mr.buf.read(buffer, 20_000 - buffer);
        ensure!(
            beyond.iter().all(|&b| b == 0x77),
            "written beyond the receive buffer"
        );
        // The receive reports the error, so there is no event.
        rig.expect_no_event(QUIET)?;
    }
    Ok(())
}

pub(super) fn over_max_msg_sz(rig: &Rig) -> TestResult {
    let max = rig.ctx.query_port(1)?.max_msg_sz;
    if max == u32::MAX {
        return Err(Fail::Skipped("max_msg_sz is 2^32 - 1".into()));
    }
    let p = loaded(rig, &PairOpts::default())?;
    // The sum of the SGEs is checked before any of them is used.
    let half = Sge {
        length: max / 2 + 1,
        ..p.a.mr.sge(0, 8)
    };
    let wr = SendWr::new(op::WRITE, 1, &[half, half]).remote(p.b.mr.at(0), p.b.mr.rkey());
    fails(&p, wr, status::LOC_LEN_ERR)?;
    Ok(())
}

pub(super) fn local(
    rig: &Rig,
    sge: impl FnOnce(&QpPair) -> Result<Sge, Fail>,
) -> Result<u32, Fail> {
    let p = loaded(rig, &PairOpts::default())?;
    let bad = sge(&p)?;
    let wr = SendWr::new(op::WRITE, 1, &[bad]).remote(p.b.mr.at(0), p.b.mr.rkey());
    let v = fails(&p, wr, status::LOC_PROT_ERR)?;
    ensure_eq!(
        p.b.qp.state()?,
        state::RTS,
        "state of the peer, which received nothing"
    );
    Ok(v)
}

pub(super) fn lkey_unknown(rig: &Rig) -> TestResult {
    local(rig, |p| {
        Ok(Sge {
            lkey: !p.a.mr.lkey(),
            ..p.a.mr.sge(0, 8)
        })
    })?;
    // Only the tag of the key is wrong.
    local(rig, |p| {
        Ok(Sge {
            lkey: p.a.mr.lkey() ^ 1,
            ..p.a.mr.sge(0, 8)
        })
    })
    .at("wrong tag")?;
    // Only the second SGE is invalid.
    let p = loaded(rig, &PairOpts::default())?;
    let bad = Sge {
        lkey: 0xdead_beef,
        ..p.a.mr.sge(0, 8)
    };
    let wr = SendWr::new(op::SEND, 1, &[p.a.mr.sge(0, 8), bad]);
    fails(&p, wr, status::LOC_PROT_ERR).at("second SGE")?;
    Ok(())
}

pub(super) fn lkey_foreign(rig: &Rig) -> TestResult {
    let other = foreign(rig)?;
    local(rig, |_| Ok(other.sge(0, 8)))?;
    Ok(())
}

pub(super) fn lkey_bounds(rig: &Rig) -> TestResult {
    let len = PairOpts::default().buf;
    local(rig, |p| Ok(p.a.mr.sge(len - 7, 8))).at("one byte beyond the end")?;
    local(rig, |p| {
        Ok(Sge {
            addr: p.a.mr.at(0) - 1,
            ..p.a.mr.sge(0, 8)
        })
    })
    .at("before the start")?;
    local(rig, |p| {
        Ok(Sge {
            addr: u64::MAX - 3,
            ..p.a.mr.sge(0, 8)
        })
    })
    .at("around the end")?;
    local(rig, |p| Ok(p.a.mr.sge(0, len + 1))).at("longer than the region")?;
    Ok(())
}

pub(super) fn read_no_local_write(rig: &Rig) -> TestResult {
    let p = loaded(rig, &PairOpts::default())?;
    let ro = Mr::new(&rig.pd, 4096, access::NONE)?;
    ro.buf.fill(0, 64, 0x11);
    let wr = SendWr::new(op::READ, 1, &[ro.sge(0, 8)]).remote(p.b.mr.at(0), p.b.mr.rkey());
    fails(&p, wr, status::LOC_PROT_ERR)?;
    ensure_eq!(
        ro.buf.read(0, 64),
        vec![0x11; 64],
        "memory without local write"
    );
    Ok(())
}

pub(super) fn lkey_stale(rig: &Rig) -> TestResult {
    let mr = Mr::new(&rig.pd, 4096, access::ALL)?;
    let sge = mr.sge(0, 8);
    drop(mr);
    local(rig, |_| Ok(sge))?;
    Ok(())
}

/// Checks that a receive with an invalid SGE completes with LOC_PROT_ERR, and the SEND with
/// REM_OP_ERR. Returns both `vendor_err`.
pub(super) fn bad_recv(
    rig: &Rig,
    sge: impl FnOnce(&QpPair) -> Result<Sge, Fail>,
) -> Result<(u32, u32), Fail> {
    let p = loaded(rig, &PairOpts::default())?;
    let bad = sge(&p)?;
    p.b.qp.post_recv(&[RecvWr::new(1, &[bad])])?;
    p.b.recv(2, 0, 64)?;
    let remote = fails(
        &p,
        SendWr::new(op::SEND, 3, &[p.a.mr.sge(0, 8)]),
        status::REM_OP_ERR,
    )?;
    let w = wait(&p.b.rcq, 2, "receives")?;
    let local = expect_error(&w[0], 1, status::LOC_PROT_ERR, &p.b.qp)?;
    expect_error(&w[1], 2, status::WR_FLUSH_ERR, &p.b.qp)?;
    wait_state(&p.b.qp, state::ERR)?;
    rig.expect_no_event(QUIET)?;
    Ok((local, remote))
}

pub(super) fn recv_prot(rig: &Rig) -> TestResult {
    let ro = Mr::new(&rig.pd, 4096, access::NONE)?;
    bad_recv(rig, |_| Ok(ro.sge(0, 64))).at("without local write")?;
    let other = foreign(rig)?;
    bad_recv(rig, |_| Ok(other.sge(0, 64))).at("foreign PD")?;
    bad_recv(rig, |p| {
        Ok(Sge {
            lkey: 0xdead_beef,
            ..p.b.mr.sge(0, 64)
        })
    })
    .at("unknown")?;
    Ok(())
}

pub(super) fn rem_op(rig: &Rig) -> TestResult {
    let len = PairOpts::default().buf;
    bad_recv(rig, |p| Ok(p.b.mr.sge(len - 4, 64)))?;
    Ok(())
}

pub(super) fn distinct_local(rig: &Rig) -> TestResult {
    let other = foreign(rig)?;
    let unknown = local(rig, |p| {
        Ok(Sge {
            lkey: !p.a.mr.lkey(),
            ..p.a.mr.sge(0, 8)
        })
    })?;
    let foreign = local(rig, |_| Ok(other.sge(0, 8)))?;
    let bounds = local(rig, |p| Ok(p.a.mr.sge(1 << 16, 8)))?;
    distinct(
        "LOC_PROT_ERR",
        &[
            ("unknown", unknown),
            ("foreign", foreign),
            ("bounds", bounds),
        ],
    )
}
