// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of a peer that does not answer, or never posts a receive.
use super::{fails, loaded};
use crate::ffi::qp::{op, state, SendWr};
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, TestResult};

pub(super) fn short_retries(rig: &Rig) -> Result<QpPair, Fail> {
    loaded(
        rig,
        &PairOpts::default().with(|o| (o.conn_a.timeout, o.conn_a.retry_cnt) = (14, 2)),
    )
}

pub(super) fn peer_destroyed(rig: &Rig) -> TestResult {
    let QpPair { a, b } = short_retries(rig)?;
    let mr = b.mr.clone();
    drop(b);
    // `fails` needs a pair, so an unconnected QP takes the place of B.
    let b = QpEndpoint {
        mr,
        ..rig.end(&PairOpts::default())?
    };
    let p = QpPair { a, b };
    let wr = SendWr::new(op::WRITE, 1, &[p.a.mr.sge(0, 8)]).remote(p.b.mr.at(0), p.b.mr.rkey());
    fails(&p, wr, status::RETRY_EXC_ERR)?;
    Ok(())
}

pub(super) fn wrong_qpn(rig: &Rig) -> TestResult {
    let opts = PairOpts::default().with(|o| (o.conn_a.timeout, o.conn_a.retry_cnt) = (14, 1));
    let (a, b) = (rig.end(&opts)?, rig.end(&opts)?);
    connect(&a.qp, rig.gid, 0x00ff_fff0, &opts.conn_a)?;
    for i in 0..3 {
        a.recv(500 + i, 0, 64)?;
    }
    let p = QpPair { a, b };
    fails(
        &p,
        SendWr::new(op::SEND, 1, &[p.a.mr.sge(0, 8)]),
        status::RETRY_EXC_ERR,
    )?;
    Ok(())
}

pub(super) fn peer_in_reset(rig: &Rig) -> TestResult {
    let p = short_retries(rig)?;
    set_state(&p.b.qp, state::RESET)?;
    fails(
        &p,
        SendWr::new(op::SEND, 1, &[p.a.mr.sge(0, 8)]),
        status::RETRY_EXC_ERR,
    )?;
    Ok(())
}

pub(super) fn rnr(rig: &Rig) -> TestResult {
    for rnr_retry in [0, 1, 3] {
        let p = loaded(
            rig,
            &PairOpts::default().with(|o| o.conn_a.rnr_retry = rnr_retry),
        )?;
        fails(
            &p,
            SendWr::new(op::SEND, 1, &[p.a.mr.sge(0, 8)]),
            status::RNR_RETRY_EXC_ERR,
        )
        .at(&format!("rnr_retry {rnr_retry}"))?;
        ensure_eq!(p.b.qp.state()?, state::RTS, "state of the peer");
        rig.expect_no_event(QUIET)?;
    }
    Ok(())
}
