// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Section 6: the state machine. Every illegal transition, and every missing or surplus attribute,
//! fails with EINVAL and changes nothing.
use super::events::checked_exchange;
use crate::ffi::mr::access;
use crate::ffi::qp::{mask, op, state, Qp, SendWr};
use crate::ffi::sys::Errno;
use crate::ffi::{Gid, QpAttr};
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("6/illegal-transitions", illegal),
    GuestTest::new("6/missing-attributes", missing),
    GuestTest::new("6/surplus-attributes", surplus),
    GuestTest::new("6/wrong-values", wrong_values),
    GuestTest::new("6/wrong-cur-state", wrong_cur_state),
    GuestTest::new("6/any-state-to-reset-and-err", to_reset_and_err),
    GuestTest::new("6/query-returns-what-was-set", query),
    GuestTest::new("6/rtr-receives-before-rts", rtr_receives),
    GuestTest::new("6/rnr-waits-then-delivers", rnr_delivers),
    GuestTest::new("6/data-in-order", data_in_order),
    GuestTest::new("6/psn-wraps", psn_wraps),
    GuestTest::new("6/path-mtu", path_mtu),
    GuestTest::new("6/timeout-zero-waits-for-ever", timeout_zero),
    GuestTest::new("6/many-reads-beyond-max-rd-atomic", rd_atomic),
    GuestTest::new("6/rtr-to-rts-changes-access-flags", change_access),
];

/// No order is guaranteed for a whole message, although its last bytes arrive last
/// (`1/last-bytes-come-last`).
fn data_in_order(rig: &Rig) -> TestResult {
    let pair = rig.pair(&PairOpts::default())?;
    for opcode in [op::WRITE, op::SEND, op::READ] {
        for flags in [0, 1] {
            let answer = pair.a.qp.data_in_order(opcode, flags);
            ensure_eq!(answer, 0, "operation {opcode}, flags {flags}");
        }
    }
    Ok(())
}

/// Creates a QP and moves it to a state.
fn at_state(rig: &Rig, to: u32) -> Result<QpEndpoint, Fail> {
    let opts = PairOpts::default();
    let e = rig.end(&opts)?;
    let path: &[u32] = match to {
        state::RESET => &[],
        state::INIT => &[state::INIT],
        state::RTR => &[state::INIT, state::RTR],
        state::RTS => &[state::INIT, state::RTR, state::RTS],
        state::SQD => &[state::INIT, state::RTR, state::RTS, state::SQD],
        _ => &[state::INIT, state::RTR, state::RTS, state::ERR],
    };
    for &s in path {
        move_to(&e.qp, s, rig.gid, e.qp.qpn(), &opts.conn_a)
            .at(&format!("to {}", state::NAMES[s as usize]))?;
    }
    ensure_eq!(e.qp.state()?, to, "state after the valid transitions");
    Ok(e)
}

fn full(rig: &Rig, e: &QpEndpoint, to: u32) -> QpAttr {
    QpAttr {
        qp_state: to,
        ..attrs(rig.gid, e.qp.qpn(), &Conn::default())
    }
}

fn refused(qp: &Qp, attr: &QpAttr, m: u32, at: u32, what: &str) -> TestResult {
    ensure_eq!(qp.modify(attr, m), Err(Errno::EINVAL), "{what}");
    ensure_eq!(
        state::NAMES.get(qp.state()? as usize),
        state::NAMES.get(at as usize),
        "state after the refused modify: {what}"
    );
    Ok(())
}

fn illegal(rig: &Rig) -> TestResult {
    use state::*;
    let legal = |from, to| {
        to == RESET
            || (to == ERR && from != RESET)
            || matches!(
                (from, to),
                (RESET, INIT) | (INIT, INIT | RTR) | (RTR | RTS | SQD, RTS | SQD)
            ) && (from, to) != (RTR, SQD)
    };
    for from in [RESET, INIT, RTR, RTS, SQD, ERR] {
        let e = at_state(rig, from)?;
        for to in [RESET, INIT, RTR, RTS, SQD, SQE, ERR, 7, 200] {
            if legal(from, to) {
                continue;
            }
            // The transition is tried with the attributes that the target state requires, and with
            // none.
            let what = format!(
                "{} to {}",
                NAMES[from as usize],
                NAMES.get(to as usize).unwrap_or(&"?")
            );
            refused(&e.qp, &full(rig, &e, to), mask_to(to), from, &what)?;
            refused(&e.qp, &full(rig, &e, to), mask::STATE, from, &what)?;
        }
    }
    Ok(())
}

fn bits(m: u32) -> impl Iterator<Item = u32> {
    (0..26).map(|i| 1u32 << i).filter(move |b| m & b != 0)
}

const STEPS: [(u32, u32); 3] = [
    (state::RESET, state::INIT),
    (state::INIT, state::RTR),
    (state::RTR, state::RTS),
];

fn missing(rig: &Rig) -> TestResult {
    for (from, to) in STEPS {
        let e = at_state(rig, from)?;
        for bit in bits(mask_to(to) & !mask::STATE) {
            let what = format!(
                "to {} without attribute {bit:#x}",
                state::NAMES[to as usize]
            );
            refused(&e.qp, &full(rig, &e, to), mask_to(to) & !bit, from, &what)?;
        }
        // The refused calls changed nothing, so the complete set of attributes is accepted.
        e.qp.modify(&full(rig, &e, to), mask_to(to))
            .at("the complete set afterwards")?;
    }
    Ok(())
}

fn surplus(rig: &Rig) -> TestResult {
    // Attributes that a transition may have in addition to the required ones (IBTA table 11.2.5 for
    // RC).
    let optional = |to| match to {
        state::INIT => 0,
        state::RTR => mask::ALT_PATH | mask::ACCESS_FLAGS | mask::PKEY_INDEX,
        _ => {
            mask::CUR_STATE
                | mask::ALT_PATH
                | mask::ACCESS_FLAGS
                | mask::MIN_RNR_TIMER
                | mask::PATH_MIG_STATE
        }
    };
    // libibverbs itself masks some bits; the rate limit (bit 25) is left out.
    let all = (1 << 21) - 1;
    for (from, to) in STEPS {
        let e = at_state(rig, from)?;
        for bit in bits(all & !mask_to(to) & !optional(to)) {
            let what = format!("to {} with attribute {bit:#x}", state::NAMES[to as usize]);
            refused(&e.qp, &full(rig, &e, to), mask_to(to) | bit, from, &what)?;
        }
        e.qp.modify(&full(rig, &e, to), mask_to(to))
            .at("the exact set afterwards")?;
    }
    for to in [state::RESET, state::ERR] {
        let e = at_state(rig, state::RTS)?;
        for bit in bits(all & !mask::STATE & !mask::CUR_STATE) {
            let what = format!("to {} with attribute {bit:#x}", state::NAMES[to as usize]);
            refused(
                &e.qp,
                &full(rig, &e, to),
                mask::STATE | bit,
                state::RTS,
                &what,
            )?;
        }
    }
    Ok(())
}

/// A description of an invalid value, and the function that puts it into valid attributes.
type WrongValue = (&'static str, fn(&mut QpAttr));

const WRONG_TO_INIT: &[WrongValue] = &[
    ("port 0", |attr| attr.port_num = 0),
    ("port 9", |attr| attr.port_num = 9),
    ("P_Key index 9999", |attr| attr.pkey_index = 9999),
];
const WRONG_TO_RTR: &[WrongValue] = &[
    ("path MTU 0", |attr| attr.path_mtu = 0),
    ("path MTU 6", |attr| attr.path_mtu = 6),
    ("max_dest_rd_atomic 255", |attr| {
        attr.max_dest_rd_atomic = 255
    }),
    ("min_rnr_timer 32", |attr| attr.min_rnr_timer = 32),
    ("RoCE without a GRH", |attr| attr.ah_attr.is_global = 0),
];
const WRONG_TO_RTS: &[WrongValue] = &[
    ("retry_cnt 8", |attr| attr.retry_cnt = 8),
    ("rnr_retry 8", |attr| attr.rnr_retry = 8),
    ("timeout 32", |attr| attr.timeout = 32),
    ("max_rd_atomic 255", |attr| attr.max_rd_atomic = 255),
];

fn wrong_values(rig: &Rig) -> TestResult {
    let e = at_state(rig, state::RESET)?;
    for ((from, to), wrong) in STEPS
        .into_iter()
        .zip([WRONG_TO_INIT, WRONG_TO_RTR, WRONG_TO_RTS])
    {
        let (good, m) = (full(rig, &e, to), mask_to(to));
        for (what, spoil) in wrong {
            let mut attr = good;
            spoil(&mut attr);
            refused(&e.qp, &attr, m, from, what)?;
        }
        if to == state::RTR {
            wrong_path(rig, &e, &good)?;
        }
        e.qp.modify(&good, m).at(state::NAMES[to as usize])?;
    }
    Ok(())
}

/// Tries values of the path to RTR that are invalid for this port.
fn wrong_path(rig: &Rig, e: &QpEndpoint, good: &QpAttr) -> TestResult {
    let m = mask_to(state::RTR);
    let active = rig.ctx.query_port(1)?.active_mtu;
    if active < 5 {
        let attr = QpAttr {
            path_mtu: active + 1,
            ..*good
        };
        refused(&e.qp, &attr, m, state::INIT, "a path MTU over the port's")?;
    }
    // The core chooses the errno for an empty GID entry.
    let mut gid = *good;
    gid.ah_attr.grh.sgid_index = 250;
    ensure!(e.qp.modify(&gid, m).is_err(), "sgid_index 250 was taken");
    ensure_eq!(e.qp.state()?, state::INIT, "state after sgid_index 250");
    Ok(())
}

fn wrong_cur_state(rig: &Rig) -> TestResult {
    let e = at_state(rig, state::RTR)?;
    let attr = QpAttr {
        cur_qp_state: state::INIT,
        ..full(rig, &e, state::RTS)
    };
    let m = mask_to(state::RTS) | mask::CUR_STATE;
    refused(&e.qp, &attr, m, state::RTR, "CUR_STATE INIT in RTR")?;
    e.qp.modify(
        &QpAttr {
            cur_qp_state: state::RTR,
            ..attr
        },
        m,
    )
    .at("CUR_STATE RTR in RTR")?;
    Ok(())
}

fn to_reset_and_err(rig: &Rig) -> TestResult {
    for from in [
        state::RESET,
        state::INIT,
        state::RTR,
        state::RTS,
        state::ERR,
    ] {
        for to in [state::RESET, state::ERR] {
            if (from, to) == (state::RESET, state::ERR) {
                // RESET is the only state without a transition to ERR (IBTA 10.3.1).
                continue;
            }
            let e = at_state(rig, from)?;
            let what = format!(
                "{} to {}",
                state::NAMES[from as usize],
                state::NAMES[to as usize]
            );
            set_state(&e.qp, to).at(&what)?;
            ensure_eq!(e.qp.state()?, to, "{what}");
        }
    }
    Ok(())
}

fn query(rig: &Rig) -> TestResult {
    let opts = PairOpts::default();
    let (a, b) = (rig.end(&opts)?, rig.end(&opts)?);
    let conn = Conn {
        access: access::LOCAL_WRITE | access::REMOTE_READ,
        mtu: 2,
        timeout: 17,
        retry_cnt: 5,
        rnr_retry: 3,
        min_rnr_timer: 12,
        rd_atomic: 2,
        dest_rd_atomic: Some(3),
        sq_psn: 0xab_cdef,
        rq_psn: 0x65_4321,
    };
    connect(&a.qp, rig.gid, b.qp.qpn(), &conn)?;
    let (q, cap) = a.qp.query()?;
    ensure_eq!(q.qp_state, state::RTS, "qp_state");
    ensure_eq!(
        q.qp_access_flags & access::ALL,
        conn.access,
        "qp_access_flags"
    );
    ensure_eq!(q.path_mtu, conn.mtu, "path_mtu");
    ensure_eq!(q.timeout, conn.timeout, "timeout");
    ensure_eq!(q.retry_cnt, conn.retry_cnt, "retry_cnt");
    ensure_eq!(q.rnr_retry, conn.rnr_retry, "rnr_retry");
    ensure_eq!(q.min_rnr_timer, conn.min_rnr_timer, "min_rnr_timer");
    ensure_eq!(q.max_rd_atomic, conn.rd_atomic, "max_rd_atomic");
    ensure_eq!(q.max_dest_rd_atomic, 3, "max_dest_rd_atomic");
    ensure_eq!(q.sq_psn, conn.sq_psn, "sq_psn");
    ensure_eq!(q.rq_psn, conn.rq_psn, "rq_psn");
    ensure_eq!(q.dest_qp_num, b.qp.qpn(), "dest_qp_num");
    ensure_eq!(q.port_num, 1, "port_num");
    ensure_eq!(q.ah_attr.is_global, 1, "is_global");
    ensure_eq!(Gid::from(q.ah_attr.grh.dgid), rig.gid, "dgid");
    ensure_eq!(
        u32::from(q.ah_attr.grh.sgid_index),
        env().gid_index,
        "sgid_index"
    );
    ensure_eq!(cap.max_send_wr, a.qp.cap.max_send_wr, "cap.max_send_wr");
    ensure_eq!(cap.max_recv_wr, a.qp.cap.max_recv_wr, "cap.max_recv_wr");
    ensure_eq!(q.sq_draining, 0, "sq_draining");
    Ok(())
}

fn rtr_receives(rig: &Rig) -> TestResult {
    let opts = PairOpts::default();
    let (a, b) = (rig.end(&opts)?, rig.end(&opts)?);
    connect(&a.qp, rig.gid, b.qp.qpn(), &opts.conn_a)?;
    move_to(&b.qp, state::INIT, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    b.recv(1, 0, 64)?;
    move_to(&b.qp, state::RTR, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    a.qp.post_send(&[SendWr::new(op::SEND, 2, &[a.mr.sge(0, 8)])])?;
    expect_success(&wait_one(&b.rcq, "receive in RTR")?, 1, wc::RECV)?;
    expect_success(&wait_one(&a.scq, "send to a peer in RTR")?, 2, wc::SEND)?;
    // COMM_EST arrives once.
    drop(rig.expect_event(crate::ffi::context::EventType::COMM_EST, b.qp.element())?);
    a.qp.post_send(&[SendWr::new(op::WRITE, 3, &[]).remote(0, 0)])?;
    expect_success(&wait_one(&a.scq, "second")?, 3, wc::RDMA_WRITE)?;
    rig.expect_no_event(QUIET)
}

fn rnr_delivers(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default())?;
    for round in 0..10u64 {
        for i in 0..4 {
            p.a.qp
                .post_send(&[SendWr::new(op::SEND, i, &[p.a.mr.sge(0, 3000)])])?;
        }
        std::thread::sleep(std::time::Duration::from_millis(round));
        for i in 0..4 {
            p.b.recv(i, 0, 4096)?;
        }
        for i in 0..4 {
            expect_success(&wait_one(&p.b.rcq, "late receive")?, i, wc::RECV)?;
            expect_success(&wait_one(&p.a.scq, "waiting send")?, i, wc::SEND)?;
        }
    }
    Ok(())
}

fn psn_wraps(rig: &Rig) -> TestResult {
    for psn in [0xff_fff0, 0xff_ffff, 0x7f_fff8, 0] {
        let opts = PairOpts {
            buf: 1 << 17,
            ..PairOpts::default()
        };
        let opts = opts.conn(|c| (c.sq_psn, c.rq_psn, c.mtu) = (psn, psn, 1));
        let p = rig.pair(&opts)?;
        for i in 0..6 {
            checked_exchange(&p, i).at(&format!("PSN from {psn:#x}"))?;
        }
    }
    Ok(())
}

fn path_mtu(rig: &Rig) -> TestResult {
    let active = rig.ctx.query_port(1)?.active_mtu;
    for mtu in 1..=active.min(5) {
        let opts = PairOpts {
            buf: 1 << 17,
            ..PairOpts::default()
        }
        .conn(|c| c.mtu = mtu);
        let p = rig.pair(&opts)?;
        for i in 0..4 {
            checked_exchange(&p, i).at(&format!("path MTU {}", 128 << mtu))?;
        }
    }
    Ok(())
}

fn timeout_zero(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default().with(|o| o.conn_a.timeout = 0))?;
    set_state(&p.b.qp, state::RESET)?;
    p.a.qp
        .post_send(&[SendWr::new(op::SEND, 1, &[p.a.mr.sge(0, 8)])])?;
    expect_quiet(
        &p.a.scq,
        std::time::Duration::from_millis(1500),
        "timeout 0 is no timeout",
    )?;
    set_state(&p.a.qp, state::ERR)?;
    expect_error(
        &wait_one(&p.a.scq, "flushed")?,
        1,
        status::WR_FLUSH_ERR,
        &p.a.qp,
    )?;
    Ok(())
}

fn rd_atomic(rig: &Rig) -> TestResult {
    // More READs are posted than may be outstanding, and the requester delays them itself.
    for n in [1, 2] {
        let p = rig.pair(&PairOpts::default().conn(|c| c.rd_atomic = n))?;
        for i in 0..16 {
            let wr = SendWr::new(op::READ, i, &[p.a.mr.sge(0, 2000)]);
            p.a.qp
                .post_send(&[wr.remote(p.b.mr.at(0), p.b.mr.rkey())])?;
        }
        for (i, w) in wait(&p.a.scq, 16, "reads")?.iter().enumerate() {
            expect_success(w, i as u64, wc::RDMA_READ).at(&format!("max_rd_atomic {n}"))?;
        }
    }
    Ok(())
}

fn change_access(rig: &Rig) -> TestResult {
    let p = rig.pair(&PairOpts::default().with(|o| o.conn_b.access = access::LOCAL_WRITE))?;
    let attr = QpAttr {
        qp_state: state::RTS,
        qp_access_flags: access::ALL,
        ..QpAttr::default()
    };
    p.b.qp
        .modify(&attr, mask::STATE | mask::ACCESS_FLAGS)
        .at("RTS to RTS")?;
    let wr = SendWr::new(op::WRITE, 1, &[p.a.mr.sge(0, 8)]);
    p.a.qp
        .post_send(&[wr.remote(p.b.mr.at(0), p.b.mr.rkey())])?;
    expect_success(
        &wait_one(&p.a.scq, "write after it was enabled")?,
        1,
        wc::RDMA_WRITE,
    )
}
