// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of COMPARE SWAP and FETCH ADD.
use crate::ffi::context::EventType;
use crate::ffi::mr::access;
use crate::ffi::qp::{op, SendWr};
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("ops/atomics", results),
    GuestTest::new("ops/atomic-with-the-most-sges", scattered),
    GuestTest::new("3.1/atomic-whose-buffer-is-not-8-bytes", wrong_length),
    GuestTest::new("3.9/atomic-misaligned", |rig| {
        refused(
            rig,
            ALL,
            ALL,
            4,
            status::REM_INV_REQ_ERR,
            EventType::QP_REQ_ERR,
        )
    }),
    GuestTest::new("3.9/atomic-not-enabled", |rig| {
        refused(
            rig,
            ALL,
            access::ALL,
            0,
            status::REM_INV_REQ_ERR,
            EventType::QP_REQ_ERR,
        )
    }),
    GuestTest::new("3.10/atomic-no-permission", |rig| {
        refused(
            rig,
            access::ALL,
            ALL,
            0,
            status::REM_ACCESS_ERR,
            EventType::QP_ACCESS_ERR,
        )
    }),
];

const ALL: u32 = access::ALL | access::REMOTE_ATOMIC;
const FETCH_ADD: u32 = 4;
const COMP_SWAP: u32 = 3;

fn pair(rig: &Rig, mr_access: u32, qp_access: u32) -> Result<QpPair, Fail> {
    let opts = PairOpts {
        mr_access,
        ..PairOpts::default()
    };
    rig.pair(&opts.conn(|conn| conn.access = qp_access))
}

fn atomic(p: &QpPair, opcode: u32, at: usize, len: usize, compare_add: u64, swap: u64) -> SendWr {
    let wr = SendWr::new(opcode, 1, &[p.a.mr.sge(0, len)]);
    SendWr {
        compare_add,
        swap,
        ..wr.remote(p.b.mr.at(at), p.b.mr.rkey())
    }
}

/// The previous value arrives in the maximum number of pieces.
fn scattered(rig: &Rig) -> TestResult {
    let value = 0x0102_0304_0506_0708_u64.to_be_bytes();
    for lengths in [&[2, 2, 2, 2][..], &[2, 2, 2, 1, 1]] {
        let mut opts = PairOpts {
            mr_access: ALL,
            ..PairOpts::default()
        };
        opts.cap.max_send_sge = lengths.len() as u32;
        let p = rig.pair(&opts.conn(|conn| conn.access = ALL))?;
        p.b.mr.buf.write(4096, &value);
        let mut wr = atomic(&p, op::FETCH_ADD, 4096, 8, 1, 0);
        let pieces = || std::iter::zip((0..).step_by(64), lengths);
        wr.sges = pieces()
            .map(|(at, &length)| p.a.mr.sge(at, length))
            .collect();
        p.a.qp.post_send(&[wr]).at("a FETCH ADD")?;
        expect_success(&wait_one(&p.a.scq, "a FETCH ADD")?, 1, FETCH_ADD)?;
        let got: Vec<u8> = pieces()
            .flat_map(|(at, &length)| p.a.mr.buf.read(at, length))
            .collect();
        ensure_eq!(got, value, "the value before");
    }
    Ok(())
}

fn results(rig: &Rig) -> TestResult {
    let p = pair(rig, ALL, ALL)?;
    let mut value = 0xffff_ffff_ffff_fff0_u64;
    p.b.mr.buf.write(4096, &value.to_ne_bytes());
    for (opcode, compare_add, swap) in [
        (op::FETCH_ADD, 0x20, 0),
        (op::CMP_SWP, 0x10, 77),
        (op::CMP_SWP, 0x10, 78),
        (op::FETCH_ADD, u64::MAX, 0),
    ] {
        let wr = atomic(&p, opcode, 4096, 8, compare_add, swap);
        p.a.qp.post_send(&[wr]).at("an atomic")?;
        let one = wait_one(&p.a.scq, "an atomic")?;
        let done = if opcode == op::CMP_SWP {
            COMP_SWAP
        } else {
            FETCH_ADD
        };
        expect_success(&one, 1, done)?;
        ensure_eq!(one.byte_len, 8, "length");
        ensure!(
            p.a.mr.buf.read(0, 8) == value.to_ne_bytes(),
            "the value before"
        );
        value = match opcode {
            op::FETCH_ADD => value.wrapping_add(compare_add),
            _ if value == compare_add => swap,
            _ => value,
        };
        ensure!(
            p.b.mr.buf.read(4096, 8) == value.to_ne_bytes(),
            "the value after"
        );
    }
    Ok(())
}

fn wrong_length(rig: &Rig) -> TestResult {
    for len in [4, 7, 9, 16] {
        let p = pair(rig, ALL, ALL)?;
        let wr = atomic(&p, op::FETCH_ADD, 0, len, 1, 0);
        p.a.qp.post_send(&[wr]).at("an atomic")?;
        let one = wait_one(&p.a.scq, "an atomic")?;
        expect_error(&one, 1, status::LOC_LEN_ERR, &p.a.qp).at(&format!("{len} bytes"))?;
        ensure_eq!(p.b.mr.buf.read(0, 8), [0; 8], "the unchanged target");
    }
    Ok(())
}

fn refused(
    rig: &Rig,
    mr_access: u32,
    qp_access: u32,
    at: usize,
    want: u32,
    event: EventType,
) -> TestResult {
    for opcode in [op::FETCH_ADD, op::CMP_SWP] {
        let p = pair(rig, mr_access, qp_access)?;
        p.a.qp
            .post_send(&[atomic(&p, opcode, at, 8, 0, 5)])
            .at("an atomic")?;
        let one = wait_one(&p.a.scq, "an atomic")?;
        // If the NAK is lost, the requester can only see that its retries are exhausted.
        let want = if is_lossy() && one.status == status::RETRY_EXC_ERR {
            status::RETRY_EXC_ERR
        } else {
            want
        };
        expect_error(&one, 1, want, &p.a.qp)?;
        drop(rig.expect_event(event, p.b.qp.element())?);
        ensure_eq!(p.b.mr.buf.read(0, 16), [0; 16], "the unchanged target");
    }
    rig.expect_no_event(QUIET)
}
