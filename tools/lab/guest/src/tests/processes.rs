// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests with two processes, which have contexts, doorbell pages and protection domains of their
//! own.
use super::events::checked_exchange;
use crate::ffi::mr::access;
use crate::ffi::qp::{op, state, SendWr};
use crate::ffi::sys::{DeviceMapping, Errno, ForkedChild};
use crate::outcome::ErrorContext as _;
use crate::pattern;
use crate::peer::{parse_numbers, ParentProcess, PeerProcess, PeerRole};
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("ops/two-processes", two_processes).limit(120),
    GuestTest::new("3.10/rkey-of-another-process", foreign_process),
    GuestTest::new("3.12/peer-process-killed", killed).limit(90),
    GuestTest::new("ops/fork-with-posted-work", forked).limit(120),
    GuestTest::new("res/killed-process-leaves-nothing", leaves_nothing)
        .alone()
        .limit(120),
    GuestTest::new("res/memory-that-the-device-writes-is-read-only", read_only),
];

pub static ROLES: &[PeerRole] = &[
    PeerRole {
        name: "bystander",
        run: bystander,
    },
    PeerRole {
        name: "echo",
        run: echo,
    },
    PeerRole {
        name: "region",
        run: region,
    },
];

/// A process must not be able to write to its mappings of the words that the device writes, or of
/// its CQ rings.
fn read_only(rig: &Rig) -> TestResult {
    let pair = rig.pair(&PairOpts {
        buf: 1 << 17,
        ..PairOpts::default()
    })?;
    let mappings = DeviceMapping::find("/uverbs");
    let read: Vec<_> = mappings.iter().filter(|m| !m.writable).collect();
    ensure!(
        read.len() >= 2,
        "{} mappings can only be read: {mappings:?}",
        read.len()
    );
    for mapping in read {
        ensure_eq!(
            mapping.make_writable(),
            Err(Errno::EACCES),
            "write access to {mapping:?}"
        );
    }
    checked_exchange(&pair, 1)
}

/// Receives messages, inverts every byte and sends them back.
fn echo(rig: &Rig, parent: &mut ParentProcess) -> TestResult {
    let opts = PairOpts {
        buf: 1 << 20,
        ..PairOpts::default()
    };
    let e = rig.end(&opts)?;
    parent.send_line(&format!("{} {} {}", e.qp.qpn(), e.mr.at(0), e.mr.rkey()))?;
    let Some(line) = parent.read_line()? else {
        return Ok(());
    };
    let qpn = *parse_numbers(&line)?.first().ok_or("no QPN")? as u32;
    connect(&e.qp, rig.gid, qpn, &opts.conn_b)?;
    parent.send_line("ready")?;
    while let Some(line) = parent.read_line()? {
        let len = parse_numbers(&line)?[0] as usize;
        e.recv(1, 0, len)?;
        parent.send_line("posted")?;
        let w = wait_one(&e.rcq, "message from the other process")?;
        expect_success(&w, 1, wc::RECV)?;
        let data: Vec<u8> =
            e.mr.buf
                .read(0, w.byte_len as usize)
                .iter()
                .map(|b| !b)
                .collect();
        e.mr.buf.write(500_000, &data);
        e.qp.post_send(&[SendWr::new(op::SEND, 2, &[e.mr.sge(500_000, data.len())])])?;
        expect_success(&wait_one(&e.scq, "answer")?, 2, wc::SEND)?;
    }
    Ok(())
}

/// Moves data between two QPs of its own until the parent stops it, with every byte compared.
fn bystander(rig: &Rig, parent: &mut ParentProcess) -> TestResult {
    let p = rig.pair(&PairOpts {
        buf: 1 << 17,
        ..PairOpts::default()
    })?;
    parent.send_line("ready")?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        let load = s.spawn(|| -> Result<u64, Fail> {
            let mut round = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                checked_exchange(&p, round).at(&format!("bystander, round {round}"))?;
                round += 1;
            }
            Ok(round)
        });
        parent.read_line()?;
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let rounds = load.join().map_err(|_| "the bystander panicked")??;
        rig.expect_no_event(QUIET)?;
        parent.send_line(&rounds.to_string())
    })
}

/// Registers memory, and reports its address and key.
fn region(rig: &Rig, parent: &mut ParentProcess) -> TestResult {
    let mr = crate::ffi::mr::Mr::new(&rig.pd, 4096, access::ALL)?;
    mr.buf.fill(0, 4096, 0x33);
    parent.send_line(&format!("{} {}", mr.at(0), mr.rkey()))?;
    while parent.read_line()?.is_some() {}
    ensure!(
        mr.buf.read(0, 4096).iter().all(|&b| b == 0x33),
        "another process has written to this one"
    );
    Ok(())
}

/// A process that forks while receives are posted must keep its own pages and not get copies, both
/// while the child lives and after the child has ended and unmapped its queues and doorbells.
fn forked(rig: &Rig) -> TestResult {
    const LEN: usize = 10_000;
    let p = rig.pair(&PairOpts {
        buf: 1 << 17,
        ..PairOpts::default()
    })?;
    for round in 0..4u8 {
        p.b.recv(1, 20_000, LEN)?;
        let child_copy = ForkedChild::new().at("fork")?;
        // After a fork, the first write to a page copies the page for one of the two processes.
        let data: Vec<u8> = (0..LEN)
            .map(|i| (i as u8).wrapping_mul(7) ^ round)
            .collect();
        p.b.mr.buf.fill(20_000, LEN, 0);
        p.a.mr.buf.write(0, &data);
        let send = SendWr::new(op::SEND, 2, &[p.a.mr.sge(0, LEN)]);
        p.a.qp.post_send(&[send])?;
        expect_success(&wait_one(&p.b.rcq, "a message")?, 1, wc::RECV)?;
        expect_success(&wait_one(&p.a.scq, "its send")?, 2, wc::SEND)?;
        ensure!(
            p.b.mr.buf.read(20_000, LEN) == data,
            "the bytes, with a child"
        );
        drop(child_copy);
        checked_exchange(&p, round.into()).at("after the child has ended")?;
    }
    Ok(())
}

/// Starts an echo process and connects to it.
fn connect_echo(rig: &Rig, conn: &Conn) -> Result<(PeerProcess, QpEndpoint, u64, u32), Fail> {
    let mut peer = PeerProcess::start("echo")?;
    let n = peer.read_numbers()?;
    ensure!(n.len() == 3, "the peer's numbers are {n:?}");
    let e = rig.end(&PairOpts {
        buf: 1 << 20,
        ..PairOpts::default()
    })?;
    connect(&e.qp, rig.gid, n[0] as u32, conn)?;
    peer.send_line(&e.qp.qpn().to_string())?;
    ensure_eq!(peer.read_line()?, "ready", "the peer's answer");
    Ok((peer, e, n[1], n[2] as u32))
}

fn two_processes(rig: &Rig) -> TestResult {
    let (mut peer, e, addr, rkey) = connect_echo(rig, &Conn::default())?;
    for i in 0..30u64 {
        let len = 1 + (i as usize * 7919) % 200_000;
        let data = pattern::bytes(i, len);
        e.mr.buf.write(0, &data);
        peer.send_line(&len.to_string())?;
        ensure_eq!(peer.read_line()?, "posted", "the peer's answer");
        e.recv(i, 500_000, len)?;
        e.qp.post_send(&[SendWr::new(op::SEND, i, &[e.mr.sge(0, len)])])?;
        expect_success(&wait_one(&e.scq, "send to another process")?, i, wc::SEND)?;
        expect_success(&wait_one(&e.rcq, "answer of another process")?, i, wc::RECV)?;
        let want: Vec<u8> = data.iter().map(|b| !b).collect();
        pattern::compare("answer", &e.mr.buf.read(500_000, len), &want)?;
        // A READ from the other process needs no action there.
        let wr = SendWr::new(op::READ, i, &[e.mr.sge(0, len)]).remote(addr + 500_000, rkey);
        e.qp.post_send(&[wr])?;
        expect_success(
            &wait_one(&e.scq, "read from another process")?,
            i,
            wc::RDMA_READ,
        )?;
        pattern::compare("read", &e.mr.buf.read(0, len), &want)?;
    }
    peer.finish()
}

fn foreign_process(rig: &Rig) -> TestResult {
    let mut peer = PeerProcess::start("region")?;
    let n = peer.read_numbers()?;
    let (addr, key) = (n[0], n[1] as u32);
    // The key is used as an rkey: the responder's QP is of another PD.
    let p = rig.pair(&PairOpts::default())?;
    let wr = SendWr::new(op::WRITE, 1, &[p.a.mr.sge(0, 8)]).remote(addr, key);
    p.a.qp.post_send(&[wr])?;
    expect_error(
        &wait_one(&p.a.scq, "write")?,
        1,
        status::REM_ACCESS_ERR,
        &p.a.qp,
    )?;
    drop(rig.event("QP_ACCESS_ERR")?);
    // The key is used as an lkey.
    let p = rig.pair(&PairOpts::default())?;
    let sge = crate::ffi::Sge {
        addr,
        length: 8,
        lkey: key,
    };
    p.a.qp.post_send(&[SendWr::new(op::SEND, 2, &[sge])])?;
    expect_error(
        &wait_one(&p.a.scq, "send")?,
        2,
        status::LOC_PROT_ERR,
        &p.a.qp,
    )?;
    peer.finish()
}

fn killed(rig: &Rig) -> TestResult {
    let conn = Conn {
        retry_cnt: 2,
        ..Conn::default()
    };
    let (mut peer, e, addr, rkey) = connect_echo(rig, &conn)?;
    // The peer is killed in the middle of a stream of WRITEs.
    for i in 0..8 {
        let wr = SendWr::new(op::WRITE, i, &[e.mr.sge(0, 1 << 18)]).remote(addr, rkey);
        e.qp.post_send(&[wr])?;
    }
    peer.kill();
    let mut next = 0u64;
    let mut failed = false;
    while next < 8 {
        let w = wait_one(&e.scq, "writes to a killed process")?;
        if !failed && w.status == status::SUCCESS {
            expect_success(&w, next, wc::RDMA_WRITE)?;
        } else if !failed {
            // The kernel may destroy the peer's QP before or after its memory region.
            ensure!(
                matches!(w.status, status::RETRY_EXC_ERR | status::REM_ACCESS_ERR),
                "status {}",
                status::name(w.status)
            );
            ensure_eq!(w.wr_id, next, "wr_id");
            failed = true;
        } else {
            expect_error(&w, next, status::WR_FLUSH_ERR, &e.qp)?;
        }
        next += 1;
    }
    if !failed {
        e.qp.post_send(&[SendWr::new(op::SEND, 9, &[])])?;
        expect_error(
            &wait_one(&e.scq, "send to a killed process")?,
            9,
            status::RETRY_EXC_ERR,
            &e.qp,
        )?;
    }
    wait_state(&e.qp, state::ERR)?;
    // Other connections still work.
    let p = rig.pair(&PairOpts {
        buf: 1 << 17,
        ..PairOpts::default()
    })?;
    checked_exchange(&p, 1)
}

fn leaves_nothing(rig: &Rig) -> TestResult {
    let before = super::objects::counts(rig)?;
    for _ in 0..15 {
        let (mut peer, e, addr, rkey) = connect_echo(
            rig,
            &Conn {
                retry_cnt: 1,
                ..Conn::default()
            },
        )?;
        let wr = SendWr::new(op::WRITE, 1, &[e.mr.sge(0, 1 << 18)]).remote(addr, rkey);
        e.qp.post_send(&[wr]).at("write")?;
        peer.kill();
    }
    super::objects::counts_return(rig, &before)
}
