// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Test of parent domains with a thread domain: objects on a parent domain work as on a protection
//! domain, and keep both domains alive.
use super::events::checked_exchange;
use crate::ffi::destroy::Destroy;
use crate::ffi::domains::{self, Td};
use crate::ffi::mr::{access, Mr};
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{GuestTest, TestResult};

pub static TESTS: &[GuestTest] = &[GuestTest::new("res/parent-domain", parent)];

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
    let p = QpPair { a, b };
    for round in 0..10 {
        checked_exchange(&p, round).at(&format!("round {round}"))?;
    }
    // Each domain is in use by the objects on it.
    parent.expect_busy()?;
    td.expect_busy()?;
    rig.pd.expect_busy()?;
    drop(p);
    // Keys and QPs of the parent domain are those of the protection domain, so a pair with one end
    // on each works.
    let (a, b) = (on.end(&opts)?, rig.end(&opts)?);
    connect(&a.qp, rig.gid, b.qp.qpn(), &opts.conn_a)?;
    connect(&b.qp, rig.gid, a.qp.qpn(), &opts.conn_b)?;
    checked_exchange(&QpPair { a, b }, 11).at("with the protection domain")?;
    // After a region has moved to the protection domain, the parent domain can be freed.
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
