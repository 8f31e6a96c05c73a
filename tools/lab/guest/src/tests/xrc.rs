// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of extended reliable connections: requests name an SRQ of the target's domain, whichever
//! process has created it.
use crate::ffi::context::EventType;
use crate::ffi::cq::Cq;
use crate::ffi::destroy::Destroy;
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{mask, op, state, Qp, QpInit, RecvWr, SendWr, Srq};
use crate::ffi::sys::Errno;
use crate::ffi::xrc::{XrcTarget, Xrcd};
use crate::ffi::{QpAttr, QpCap};
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::sync::Arc;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("8/xrc-to-two-queues", two_queues),
    GuestTest::new("8/xrc-target-of-two-openers", two_openers),
    GuestTest::new("3/xrc-no-such-queue", no_such_queue),
    GuestTest::new("3/xrc-post-to-a-target", post_to_target),
    GuestTest::new("3/xrc-modify-without-a-state", move_nowhere),
    GuestTest::new("8/xrc-churn", churn).limit(180),
];

const ACCESS: u32 = access::ALL | access::REMOTE_ATOMIC;
/// Type of initiators, `IBV_QPT_XRC_SEND`.
const INITIATOR: u32 = 9;

struct XrcFixture {
    xrcd: Arc<Xrcd>,
    ini: Qp,
    tgt: XrcTarget,
    scq: Arc<Cq>,
    mr: Mr,
}

/// Creates an SRQ with a CQ of its own.
fn queue(rig: &Rig, xrcd: &Arc<Xrcd>) -> Result<(Arc<Srq>, Arc<Cq>), Fail> {
    let cq = Cq::new(&rig.ctx, 64)?;
    let srq = xrcd.srq(&rig.pd, &cq, 64).at("an SRQ")?;
    Ok((srq, cq))
}

fn connect_xrc(
    rig: &Rig,
    modify: &dyn Fn(&QpAttr, u32) -> Result<(), Errno>,
    peer: u32,
    is_target: bool,
) -> TestResult {
    let (rtr, rts) = if is_target {
        (
            0,
            mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC,
        )
    } else {
        (mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER, 0)
    };
    let conn = Conn {
        access: ACCESS,
        ..Conn::default()
    };
    for (to, without) in [(state::INIT, 0), (state::RTR, rtr), (state::RTS, rts)] {
        let attr = QpAttr {
            qp_state: to,
            ..attrs(rig.gid, peer, &conn)
        };
        modify(&attr, mask_to(to) & !without).at(state::NAMES[to as usize])?;
    }
    Ok(())
}

fn initiator(rig: &Rig, scq: &Arc<Cq>) -> Result<Qp, Fail> {
    let init = QpInit {
        send_cq: scq.clone(),
        recv_cq: scq.clone(),
        srq: None,
        cap: QpCap {
            max_send_wr: 64,
            max_send_sge: 2,
            ..QpCap::default()
        },
        sq_sig_all: false,
        qp_type: INITIATOR,
    };
    let qp = Qp::new(&rig.pd, &init).at("an initiator")?;
    ensure_eq!(qp.cap.max_recv_wr, 0, "receives of an initiator");
    Ok(qp)
}

fn set_up(rig: &Rig) -> Result<XrcFixture, Fail> {
    let xrcd = Xrcd::open(&rig.ctx, None).at("a domain")?;
    let scq = Cq::new(&rig.ctx, 64)?;
    let ini = initiator(rig, &scq)?;
    let tgt = xrcd.target().at("a target")?;
    connect_xrc(rig, &|a, m| ini.modify(a, m), tgt.qpn(), false).at("the initiator")?;
    connect_xrc(rig, &|a, m| tgt.modify(a, m), ini.qpn(), true).at("the target")?;
    let mr = Mr::new(&rig.pd, 8192, ACCESS)?;
    Ok(XrcFixture {
        xrcd,
        ini,
        tgt,
        scq,
        mr,
    })
}

fn two_queues(rig: &Rig) -> TestResult {
    let x = set_up(rig)?;
    let (queues, mr) = ([queue(rig, &x.xrcd)?, queue(rig, &x.xrcd)?], &x.mr);
    // The SRQ has fewer entries than there are messages, so that its entries are reused.
    for round in 0..100u64 {
        for (number, (srq, cq)) in queues.iter().enumerate() {
            let id = 2 * round + number as u64;
            srq.post(&[RecvWr::new(id, &[mr.sge(4096, 64)])])
                .map_err(|e| e.errno)?;
            let wr = SendWr::new(op::SEND_IMM, 1000 + id, &[mr.sge(0, 64)]).imm(7);
            x.ini.post_send(&[wr.to_srq(srq)]).map_err(|e| e.errno)?;
            expect_success(&wait_one(&x.scq, "a SEND")?, 1000 + id, wc::SEND)?;
            let done = wait_one(cq, "a receive")?;
            expect_success(&done, id, wc::RECV)?;
            ensure_eq!(done.qp_num, x.tgt.qpn(), "QPN of the completion");
            ensure_eq!(done.byte_len, 64, "bytes");
        }
    }
    let (srq, cq) = &queues[1];
    let (at, key) = (mr.buf.addr(), mr.rkey());
    srq.post(&[RecvWr::new(1, &[])]).map_err(|e| e.errno)?;
    let wrs = [
        SendWr::new(op::WRITE_IMM, 2, &[mr.sge(0, 8)]).remote(at + 512, key),
        SendWr::new(op::READ, 3, &[mr.sge(1024, 8)]).remote(at + 512, key),
        SendWr::new(op::FETCH_ADD, 4, &[mr.sge(2048, 8)]).remote(at + 512, key),
    ];
    for wr in wrs {
        x.ini.post_send(&[wr.to_srq(srq)]).map_err(|e| e.errno)?;
    }
    for (id, done) in (2..5).zip(wait(&x.scq, 3, "RDMA")?) {
        ensure_eq!((done.wr_id, done.status), (id, status::SUCCESS), "RDMA");
    }
    expect_success(
        &wait_one(cq, "a WRITE with immediate")?,
        1,
        wc::RECV_RDMA_WITH_IMM,
    )
}

/// A target exists until its last opener has closed it, and its messages can go to an SRQ of any
/// opener.
fn two_openers(rig: &Rig) -> TestResult {
    let file = std::fs::File::create("/tmp/xrc-domain").map_err(|e| Fail::from(e.to_string()))?;
    let (one, two) = (Rig::new()?, Rig::new()?);
    let first = Xrcd::open(&one.ctx, Some(&file)).at("the domain")?;
    let second = Xrcd::open(&two.ctx, Some(&file)).at("the domain, again")?;
    let tgt = first.target().at("a target")?;
    let again = second.open_target(tgt.qpn()).at("the same target")?;
    ensure_eq!(again.qpn(), tgt.qpn(), "its number");
    let scq = Cq::new(&rig.ctx, 64)?;
    let ini = initiator(rig, &scq)?;
    connect_xrc(rig, &|a, m| ini.modify(a, m), tgt.qpn(), false).at("the initiator")?;
    connect_xrc(rig, &|a, m| tgt.modify(a, m), ini.qpn(), true).at("the target")?;
    // The creator of the target closes it and everything else that it has.
    drop((tgt, first, one));
    let (srq, cq) = queue(&two, &second)?;
    let mr = Mr::new(&two.pd, 4096, access::ALL)?;
    srq.post(&[RecvWr::new(1, &[mr.sge(0, 64)])])
        .map_err(|e| e.errno)?;
    let wr = SendWr::new(op::SEND, 2, &[]);
    ini.post_send(&[wr.to_srq(&srq)]).map_err(|e| e.errno)?;
    expect_success(&wait_one(&scq, "a SEND")?, 2, wc::SEND)?;
    expect_success(&wait_one(&cq, "a receive")?, 1, wc::RECV)
}

fn no_such_queue(rig: &Rig) -> TestResult {
    let x = set_up(rig)?;
    let other = Xrcd::open(&rig.ctx, None).at("another domain")?;
    let (theirs, _cq) = queue(rig, &other)?;
    theirs.post(&[RecvWr::new(1, &[])]).map_err(|e| e.errno)?;
    let (gone, _cq) = queue(rig, &x.xrcd)?;
    let wr = SendWr::new(op::SEND, 5, &[]);
    let to_gone = wr.clone().to_srq(&gone);
    gone.destroy()
        .map_err(|(errno, _)| errno)
        .at("destroying an SRQ")?;
    for wr in [wr.to_srq(&theirs), to_gone] {
        x.ini.post_send(&[wr]).map_err(|e| e.errno)?;
        let done = wait_one(&x.scq, "a SEND")?;
        ensure_eq!(
            (done.wr_id, done.status),
            (5, status::REM_INV_REQ_ERR),
            "a SEND"
        );
        rig.expect_event(EventType::QP_REQ_ERR, x.tgt.element())?;
        rig.expect_event(EventType::QP_LAST_WQE_REACHED, x.tgt.element())?;
        let reset = QpAttr {
            qp_state: state::RESET,
            ..QpAttr::default()
        };
        x.ini.modify(&reset, mask::STATE).at("RESET")?;
        x.tgt.modify(&reset, mask::STATE).at("RESET")?;
        connect_xrc(rig, &|a, m| x.ini.modify(a, m), x.tgt.qpn(), false)?;
        connect_xrc(rig, &|a, m| x.tgt.modify(a, m), x.ini.qpn(), true)?;
    }
    Ok(())
}

fn post_to_target(rig: &Rig) -> TestResult {
    let x = set_up(rig)?;
    ensure_eq!(
        x.tgt.post_recv(&RecvWr::new(1, &[])),
        Err(Errno::EINVAL),
        "a receive of a target"
    );
    let recv = x.ini.post_recv(&[RecvWr::new(1, &[])]).map_err(|e| e.errno);
    ensure_eq!(recv, Err(Errno::ENOMEM), "a receive of an initiator");
    let srq = Srq::new(&rig.pd, 16, 1).at("an SRQ")?;
    let kept = Xrcd::initiator_keeps_attributes(&rig.pd, &x.scq, &srq).at("another initiator")?;
    ensure!(kept, "the program's attributes have changed");
    Ok(())
}

/// The core treats a target as shared between processes and passes every modify on that the states
/// allow.
fn move_nowhere(rig: &Rig) -> TestResult {
    let dead = set_up(rig)?;
    for (name, qp_state) in [("ERR", state::ERR), ("RESET", state::RESET)] {
        let to = QpAttr {
            qp_state,
            ..QpAttr::default()
        };
        dead.tgt.modify(&to, mask::STATE).at(name)?;
        let nowhere = dead.tgt.modify(&QpAttr::default(), 0);
        ensure_eq!(nowhere, Err(Errno::EINVAL), "no change in {name}");
    }
    // The device is still alive.
    let x = set_up(rig)?;
    let (srq, cq) = queue(rig, &x.xrcd)?;
    srq.post(&[RecvWr::new(1, &[])]).map_err(|e| e.errno)?;
    let wr = SendWr::new(op::SEND, 2, &[]).to_srq(&srq);
    x.ini.post_send(&[wr]).map_err(|e| e.errno)?;
    expect_success(&wait_one(&cq, "a receive")?, 1, wc::RECV)
}

/// Creates and destroys all objects repeatedly, in either order.
pub(super) fn churn(rig: &Rig) -> TestResult {
    for round in 0..100 {
        let x = set_up(rig)?;
        let (srq, cq) = queue(rig, &x.xrcd)?;
        srq.post(&[RecvWr::new(1, &[])]).map_err(|e| e.errno)?;
        let wr = SendWr::new(op::SEND, 2, &[]).to_srq(&srq);
        x.ini.post_send(&[wr]).map_err(|e| e.errno)?;
        let XrcFixture { xrcd, ini, tgt, .. } = x;
        if round % 2 == 0 {
            drop((srq, cq, tgt, ini));
        } else {
            drop((ini, tgt, srq, cq));
        }
        xrcd.destroy()
            .map_err(|(errno, _)| errno)
            .at("the domain")?;
    }
    Ok(())
}
