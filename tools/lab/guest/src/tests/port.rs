// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests that the port follows its net device: link state, addresses and MTU.
use super::events::checked_exchange;
use crate::ffi::context::EventType;
use crate::ffi::qp::state;
use crate::ffi::qp::{op, SendWr};
use crate::outcome::ErrorContext as _;
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::process::Command;
use std::time::Instant;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("4/port-err-and-active", link)
        .limit(120)
        .alone(),
    GuestTest::new("4/gid-change", address).limit(120).alone(),
    GuestTest::new("6/path-mtu-at-once", grown)
        .limit(120)
        .alone(),
    GuestTest::new("3.12/link-down", unreachable)
        .limit(120)
        .alone(),
];

/// Returns the net device of port 1.
pub(super) fn netdev() -> Result<String, Fail> {
    let ports = format!("/sys/class/infiniband/{}/ports/1", env().device);
    let name =
        std::fs::read_to_string(format!("{ports}/gid_attrs/ndevs/0")).at("the net device")?;
    Ok(name.trim().to_owned())
}

pub(super) fn ip(args: &[&str]) -> TestResult {
    let out = Command::new("ip").args(args).output()?;
    let text = String::from_utf8_lossy(&out.stderr);
    ensure!(
        out.status.success(),
        "ip {}: {}",
        args.join(" "),
        text.trim()
    );
    Ok(())
}

/// Takes events until one of this kind arrives, and checks that no second one follows.
pub(super) fn until(rig: &Rig, kind: EventType) -> TestResult {
    let deadline = Instant::now() + event_timeout();
    let mut count = 0;
    while count == 0 {
        ensure!(Instant::now() < deadline, "no {kind:?}");
        if let Some(event) = rig.ctx.async_event(QUIET.as_millis() as i32) {
            count += u32::from(event.kind() == kind);
        }
    }
    while let Some(event) = rig.ctx.async_event(QUIET.as_millis() as i32) {
        count += u32::from(event.kind() == kind);
    }
    ensure_eq!(count, 1, "number of events {kind:?}");
    Ok(())
}

fn state(rig: &Rig) -> Result<u32, Fail> {
    Ok(rig.ctx.query_port(1)?.state)
}

fn link(rig: &Rig) -> TestResult {
    const DOWN: u32 = 1;
    const ACTIVE: u32 = 4;
    let netdev = netdev()?;
    for round in 0..3 {
        let p = rig.pair(&PairOpts {
            buf: 1 << 17,
            ..PairOpts::default()
        })?;
        checked_exchange(&p, round).at("before")?;
        ip(&["link", "set", &netdev, "down"])?;
        until(rig, EventType::PORT_ERR).at(&format!("round {round}"))?;
        ensure_eq!(state(rig)?, DOWN, "state of the port");
        ip(&["link", "set", &netdev, "up"])?;
        until(rig, EventType::PORT_ACTIVE).at(&format!("round {round}"))?;
        ensure_eq!(state(rig)?, ACTIVE, "state of the port");
        // The QPs were idle while the link was down, and continue to work.
        checked_exchange(&p, round + 100).at("after")?;
    }
    Ok(())
}

/// A request that is posted while the link is down exhausts its retries, although the peer is on
/// the same device.
fn unreachable(rig: &Rig) -> TestResult {
    let netdev = netdev()?;
    let opts = PairOpts::default().with(|o| (o.conn_a.timeout, o.conn_a.retry_cnt) = (14, 2));
    let p = rig.pair(&opts)?;
    let run = || -> TestResult {
        let wr = SendWr::new(op::WRITE, 1, &[p.a.mr.sge(0, 8)]);
        p.a.qp
            .post_send(&[wr.remote(p.b.mr.at(0), p.b.mr.rkey())])?;
        let one = wait_one(&p.a.scq, "a WRITE with the link down")?;
        expect_error(&one, 1, status::RETRY_EXC_ERR, &p.a.qp).map(drop)
    };
    ip(&["link", "set", &netdev, "down"])?;
    let ran = until(rig, EventType::PORT_ERR).and_then(|()| run());
    ip(&["link", "set", &netdev, "up"])?;
    ran?;
    until(rig, EventType::PORT_ACTIVE)
}

fn gids(rig: &Rig) -> Vec<[u8; 16]> {
    let all = (0..256).map_while(|i| rig.ctx.query_gid(1, i).ok());
    all.map(|entry| entry.gid.raw).collect()
}

fn address(rig: &Rig) -> TestResult {
    const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 77, 0, 1];
    let netdev = netdev()?;
    ensure!(!gids(rig).contains(&GID), "the address exists already");
    ip(&["address", "add", "10.77.0.1/24", "dev", &netdev])?;
    let added = until(rig, EventType::GID_CHANGE).and_then(|()| {
        ensure!(gids(rig).contains(&GID), "no GID of the new address");
        Ok(())
    });
    ip(&["address", "del", "10.77.0.1/24", "dev", &netdev])?;
    added?;
    until(rig, EventType::GID_CHANGE)?;
    ensure!(
        !gids(rig).contains(&GID),
        "the GID stays without its address"
    );
    Ok(())
}

/// After a query has shown a larger MTU of the port, a QP may use it at once, because the device
/// knows it, too.
fn grown(rig: &Rig) -> TestResult {
    const ROUNDS: usize = 20;
    let netdev = netdev()?;
    let mtu = std::fs::read_to_string(format!("/sys/class/net/{netdev}/mtu")).at("the MTU")?;
    let set = |netdev: &str, mtu: &str| ip(&["link", "set", netdev, "mtu", mtu]);
    let (small, large) = (mtu.trim(), "4300");
    let before = rig.ctx.query_port(1)?.active_mtu;
    let round = || -> TestResult {
        let e = rig.end(&PairOpts::default())?;
        let mut conn = Conn {
            mtu: before,
            ..Conn::default()
        };
        move_to(&e.qp, state::INIT, rig.gid, e.qp.qpn(), &conn).at("INIT")?;
        let grows = std::thread::spawn({
            let netdev = netdev.clone();
            move || set(&netdev, large)
        });
        let deadline = Instant::now() + event_timeout();
        while conn.mtu <= before {
            ensure!(Instant::now() < deadline, "the port's MTU does not grow");
            conn.mtu = rig.ctx.query_port(1)?.active_mtu;
        }
        let moved = move_to(&e.qp, state::RTR, rig.gid, e.qp.qpn(), &conn);
        ensure!(grows.join().is_ok_and(|set| set.is_ok()), "ip link set mtu");
        moved.at("RTR with the port's MTU")
    };
    for n in 0..ROUNDS {
        let ran = round().at(&format!("round {n}"));
        set(&netdev, small)?;
        ran?;
    }
    Ok(())
}
