// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of ATOMIC WRITE, and of the rights of FLUSH. Only `ibv_wr_flush` can post a FLUSH, which
//! rdma-core's own tests do.
use crate::ffi::context::EventType;
use crate::ffi::mr::{access, Mr};
use crate::ffi::qp::{op, state, SendWr};
use crate::ffi::sys::Errno;
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{GuestTest, TestResult};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("1/atomic-write", atomic_write),
    GuestTest::new("3/atomic-write-errors", errors),
    GuestTest::new("7/flush-rights", flush_rights),
];

/// The data is in memory or inline, which is possible for this operation on a QP without inline
/// data, too.
fn atomic_write(rig: &Rig) -> TestResult {
    let pair = rig.pair(&PairOpts::default())?;
    let (from, to) = (&pair.a.mr, &pair.b.mr);
    for round in 0..64u64 {
        let value = (0x0123_4567_89ab_cdef ^ round).to_ne_bytes();
        let at = 8 * (round % 7) as usize;
        from.buf.write(0, &value);
        let wr = if round % 2 == 0 {
            SendWr::new(op::ATOMIC_WRITE, round, &[from.sge(0, 8)])
        } else {
            SendWr::new(op::ATOMIC_WRITE, round, &[]).inline(&[&value])
        };
        let wr = wr.remote(to.buf.addr() + at as u64, to.rkey());
        pair.a.qp.post_send(&[wr]).at("an ATOMIC WRITE")?;
        expect_success(&wait_one(&pair.a.scq, "it")?, round, wc::ATOMIC_WRITE)?;
        ensure_eq!(to.buf.read(at, 8), value, "round {round}");
    }
    rig.expect_no_event(QUIET)
}

fn errors(rig: &Rig) -> TestResult {
    let pair = rig.pair(&PairOpts::default())?;
    let read_only = Mr::new(&rig.pd, 4096, access::LOCAL_WRITE | access::REMOTE_READ)?;
    let (from, to) = (&pair.a.mr, &pair.b.mr);
    let (addr, key) = (to.buf.addr(), to.rkey());
    let inv = (status::REM_INV_REQ_ERR, EventType::QP_REQ_ERR);
    let refused = (status::REM_ACCESS_ERR, EventType::QP_ACCESS_ERR);
    for (what, addr, key, length, (expected, event)) in [
        ("misaligned", addr + 4, key, 8, inv),
        (
            "without the right",
            read_only.buf.addr(),
            read_only.rkey(),
            8,
            refused,
        ),
        ("of no key", addr, key ^ 1, 8, refused),
        (
            "of 4 bytes",
            addr,
            key,
            4,
            (status::LOC_LEN_ERR, EventType::QP_FATAL),
        ),
    ] {
        let wr = SendWr::new(op::ATOMIC_WRITE, 1, &[from.sge(0, length)]).remote(addr, key);
        pair.a.qp.post_send(&[wr]).at(what)?;
        let done = wait_one(&pair.a.scq, what)?;
        ensure_eq!(done.status, expected, "{what}");
        ensure!(done.vendor_err != 0, "{what}: no vendor_err");
        if expected != status::LOC_LEN_ERR {
            drop(rig.expect_event(event, pair.b.qp.element())?);
        }
        for qp in [&pair.a.qp, &pair.b.qp] {
            set_state(qp, state::RESET)?;
        }
        connect(&pair.a.qp, rig.gid, pair.b.qp.qpn(), &Conn::default())?;
        connect(&pair.b.qp, rig.gid, pair.a.qp.qpn(), &Conn::default())?;
    }
    // A work request in a list has no field for the memory to flush.
    let posted = pair.a.qp.post_send(&[SendWr::new(op::FLUSH, 1, &[])]);
    ensure_eq!(
        posted.map_err(|e| e.errno),
        Err(Errno::EINVAL),
        "a FLUSH in a list"
    );
    rig.expect_no_event(QUIET)
}

/// Regions support global visibility and not persistence; QPs may have both rights.
fn flush_rights(rig: &Rig) -> TestResult {
    let global = access::LOCAL_WRITE | access::FLUSH_GLOBAL;
    drop(Mr::new(&rig.pd, 4096, global).at("global visibility")?);
    for persistent in [access::FLUSH_PERSISTENT, global | access::FLUSH_PERSISTENT] {
        let made = Mr::new(&rig.pd, 4096, persistent).map(drop);
        ensure_eq!(made, Err(Errno::EOPNOTSUPP), "persistence");
    }
    let both = access::ALL | access::FLUSH_GLOBAL | access::FLUSH_PERSISTENT;
    let pair = rig.pair(&PairOpts::default().conn(|c| c.access = both))?;
    let got = pair.a.qp.query()?.0.qp_access_flags;
    ensure_eq!(got & both, both, "rights of the queue pair");
    Ok(())
}
