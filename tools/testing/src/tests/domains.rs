// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Parent domains with a thread domain: what stands on them works as on a protection domain, and keeps them.
use super::events::checked_exchange;
use crate::ffi::destroy::Destroy;
use crate::ffi::domains::{self, Td};
use crate::ffi::mr::{access, Mr};
use crate::outcome::Context as _;
use crate::rig::*;
use crate::{Test, TestResult};

pub static TESTS: &[Test] = &[Test::new("res/parent-domain", parent)];

fn parent(rig: &Rig) -> TestResult {
    let td = Td::new(&rig.ctx).at("a thread domain")?;
    let parent = td.parent(&rig.pd).at("a parent domain")?;
    let on = Rig {
        ctx: rig.ctx.clone(),
        pd: parent.clone(),
        gid: rig.gid,
    };
    let opts = PairOpts {
        buf: 1 << 17,
        ..PairOpts::default()
    };
    let end = || {
        let cq = || domains::cq(&parent, 64).at("a CQ on the parent domain");
        on.end_on(&opts, cq()?, cq()?)
    };
    let (a, b) = (end()?, end()?);
    connect(&a.qp, rig.gid, b.qp.qpn(), &opts.conn_a)?;
    connect(&b.qp, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    let p = Pair { a, b };
    for round in 0..10 {
        checked_exchange(&p, round).at(&format!("round {round}"))?;
    }
    // Each is kept by what stands on it.
    parent.expect_busy()?;
    td.expect_busy()?;
    rig.pd.expect_busy()?;
    drop(p);
    // Of the protection domain itself, keys and queue pairs are the same: one end on each.
    let (a, b) = (on.end(&opts)?, rig.end(&opts)?);
    connect(&a.qp, rig.gid, b.qp.qpn(), &opts.conn_a)?;
    connect(&b.qp, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    checked_exchange(&Pair { a, b }, 11).at("with the protection domain")?;
    // A region that moves to the protection domain leaves the parent domain free.
    let mr = Mr::new(&parent, 4096, access::ALL).at("a region")?;
    mr.change(None, Some(&rig.pd), None)
        .at("to the protection domain")?;
    drop(on);
    td.expect_busy()?;
    parent
        .destroy()
        .map_err(|(e, _)| e)
        .at("freeing the parent domain")?;
    td.destroy()
        .map_err(|(e, _)| e)
        .at("freeing the thread domain")
}
