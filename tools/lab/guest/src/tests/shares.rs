// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of a user's share of common resources: memory for queues, contexts, numbers of objects.
//! Other users can always start.
use super::limits::{run, KERNEL_AREAS};
use super::objects;
use crate::ffi::context::Context;
use crate::ffi::cq::Cq;
use crate::ffi::mw::{mw_type, Mw};
use crate::ffi::qp::{Qp, QpInit};
use crate::ffi::sys::Errno;
use crate::outcome::ErrorContext as _;
use crate::peer::{ParentProcess, PeerProcess, PeerRole};
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use verbena_abi::cqe::CQE_SIZE;
use verbena_abi::regs::NUM_UARS;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("res/queues-are-charged-to-their-process", one_process)
        .alone()
        .limit(120),
    GuestTest::new("res/hogs-leave-room-for-others", some_hogs)
        .alone()
        .limit(240),
    GuestTest::new("long/a-hundred-hogs", hundred_hogs)
        .long()
        .alone()
        .limit(1200),
    GuestTest::new("long/thousands-of-contexts", thousands_of_contexts)
        .long()
        .alone()
        .limit(600),
];

pub static ROLES: &[PeerRole] = &[PeerRole {
    name: "hog",
    run: hog,
}];

/// UID of the hogs; `OTHER` and `THIRD` are other ordinary users.
const HOG: u32 = 65534;
const OTHER: u32 = 65533;
const THIRD: u32 = 65532;
/// RLIMIT_MEMLOCK of `ulimit -l 64`, in bytes.
const MEMLOCK: u64 = 64 << 10;
/// Bytes of queues that each process has free of RLIMIT_MEMLOCK (rust/base/share.rs).
const FREE: u64 = 8 << 20;

/// The kinds of resources that a hog takes, a letter for each. A hog takes them in the order of its
/// command.
const KINDS: &str = "mcqwpx";

/// Takes the requested resources until there are no more, reports the numbers and the last errno,
/// and holds the resources.
fn hog(rig: &Rig, parent: &mut ParentProcess) -> TestResult {
    let (mut cqs, mut qps, mut windows, mut pds, mut contexts) =
        (vec![], vec![], vec![], vec![], vec![]);
    let mut errno = 0;
    let mut note = |error: Errno| errno = error.0;
    let mut bytes = 0u64;
    let max_cqe = rig.ctx.query_device().at("query_device")?.max_cqe;
    // The CQ for the QPs is created before no CQ is left.
    let cq = Cq::new(&rig.ctx, 1).at("the first queue")?;
    let mut cap = PairOpts::default().cap;
    (cap.max_send_wr, cap.max_recv_wr) = (1, 1);
    let init = QpInit {
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq: None,
        cap,
        sq_sig_all: true,
        qp_type: 2,
    };
    parent.send_line("ready")?;
    let Some(kinds) = parent.read_line()? else {
        return Ok(());
    };
    for kind in kinds.chars() {
        match kind {
            'm' => {
                let mut entries = max_cqe;
                // The hog halves the size after each error, down to a page.
                while entries as usize * CQE_SIZE >= 4096 {
                    match Cq::new(&rig.ctx, entries) {
                        Ok(cq) => {
                            bytes += entries as u64 * CQE_SIZE as u64;
                            cqs.push(cq);
                        }
                        Err(error) => {
                            note(error);
                            entries /= 2;
                        }
                    }
                }
            }
            'c' => allocate_all(&mut cqs, &mut note, || Cq::new(&rig.ctx, 1)),
            'q' => allocate_all(&mut qps, &mut note, || Qp::new(&rig.pd, &init)),
            'w' => allocate_all(&mut windows, &mut note, || {
                Mw::new(&rig.pd, mw_type::TYPE_1)
            }),
            'p' => allocate_all(&mut pds, &mut note, || rig.ctx.alloc_pd()),
            _ => allocate_all(&mut contexts, &mut note, || Context::open(&rig.ctx.name)),
        }
    }
    let counts = [
        bytes,
        cqs.len() as u64,
        qps.len() as u64,
        windows.len() as u64,
        pds.len() as u64,
        contexts.len() as u64,
        errno as u64,
    ];
    parent.send_line(&counts.map(|n| n.to_string()).join(" "))?;
    parent.read_line()?;
    Ok(())
}

fn allocate_all<T>(
    list: &mut Vec<T>,
    note: &mut impl FnMut(Errno),
    make: impl Fn() -> Result<T, Errno>,
) {
    loop {
        match make() {
            Ok(one) => list.push(one),
            Err(error) => return note(error),
        }
    }
}

/// The resources that a hog has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct HogUsage {
    bytes: u64,
    cqs: u64,
    qps: u64,
    windows: u64,
    pds: u64,
    contexts: u64,
}

impl HogUsage {
    fn add(&mut self, more: HogUsage) {
        self.bytes += more.bytes;
        self.cqs += more.cqs;
        self.qps += more.qps;
        self.windows += more.windows;
        self.pds += more.pds;
        self.contexts += more.contexts;
    }

    fn show(&self, name: &str) {
        println!(
            "figure: {name}: {} KiB of queues by size, {} CQs, {} QPs, {} memory windows, {} PDs, {} contexts",
            self.bytes >> 10,
            self.cqs,
            self.qps,
            self.windows,
            self.pds,
            self.contexts
        );
    }
}

/// Starts a hog, which waits for the command with the resources to take.
fn start(memlock: u64) -> Result<PeerProcess, Fail> {
    start_as(HOG, memlock)
}

/// Starts a hog of another user.
fn start_as(uid: u32, memlock: u64) -> Result<PeerProcess, Fail> {
    let mut peer = PeerProcess::start_as("hog", Some(uid)).at("a hog")?;
    ensure_eq!(peer.read_line()?, "ready", "the hog's first message");
    let (pid, memlock) = (
        peer.pid().to_string(),
        format!("--memlock={memlock}:{memlock}"),
    );
    run(
        "prlimit",
        &["--pid", &pid, "--nofile=16384:16384", &memlock],
    )?;
    Ok(peer)
}

/// Returns the resources of a hog that gets no more. The last error must be ENOMEM.
fn read_usage(peer: &mut PeerProcess) -> Result<HogUsage, Fail> {
    let n = peer.read_numbers()?;
    ensure_eq!(n.len(), 7, "numbers of a hog");
    ensure_eq!(n[6] as i32, Errno::ENOMEM.0, "errno of a hog");
    Ok(HogUsage {
        bytes: n[0],
        cqs: n[1],
        qps: n[2],
        windows: n[3],
        pds: n[4],
        contexts: n[5],
    })
}

/// A child process that is killed when this value is dropped.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `ibv_rc_pingpong` between two processes of a user, whose RLIMIT_MEMLOCK is that of the poor
/// hogs unless the user is root.
fn pingpong(rig: &Rig, uid: u32, port: u16) -> TestResult {
    let (gid, port) = (env().gid_index.to_string(), port.to_string());
    let line = ["-d", &rig.ctx.name, "-g", &gid, "-n", "20", "-p", &port];
    let limit = if uid == 0 { "unlimited" } else { "65536:65536" };
    let command = || {
        let mut command = Command::new("prlimit");
        command.arg(format!("--memlock={limit}"));
        command.arg("ibv_rc_pingpong").args(line);
        if uid != 0 {
            command.uid(uid).gid(uid);
        }
        command
    };
    let server = command()
        .stdout(Stdio::null())
        .spawn()
        .at("ibv_rc_pingpong")?;
    let mut server = KilledOnDrop(server);
    let begun = Instant::now();
    loop {
        let client = command().arg("localhost").output().at("its client")?;
        if client.status.success() {
            break;
        }
        let said = String::from_utf8_lossy(&client.stderr).into_owned();
        ensure!(
            said.contains("Couldn't connect") && begun.elapsed() < event_timeout(),
            "ibv_rc_pingpong of user {uid}: {}",
            said.trim()
        );
        if let Some(status) = server.0.try_wait()? {
            return Err(format!("the server of user {uid} does not start: {status}").into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = server.0.wait()?;
    ensure!(status.success(), "the server of user {uid}: {status}");
    Ok(())
}

/// For one process of an ordinary user, the first queues are free, and further queues count as
/// pinned memory.
fn one_process(_rig: &Rig) -> TestResult {
    let mut poor = start(MEMLOCK)?;
    poor.send_line("m")?;
    let had = read_usage(&mut poor)?;
    had.show("one process with RLIMIT_MEMLOCK 64 KiB");
    ensure!(
        (FREE..=FREE + MEMLOCK).contains(&had.bytes),
        "{} bytes of queues",
        had.bytes
    );
    // The bytes beyond the free ones are shown as pinned.
    let status = std::fs::read_to_string(format!("/proc/{}/status", poor.pid()))?;
    let pinned = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let pinned: u64 = pinned
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .ok_or("no VmPin")?;
    ensure!(
        pinned > 0 && pinned << 10 <= MEMLOCK,
        "{pinned} KiB are pinned"
    );
    // The user's next process has its own free bytes, and a larger limit allows as many more bytes.
    let mut rich = start(4 << 20)?;
    rich.send_line("m")?;
    let more = read_usage(&mut rich)?;
    more.show("another with RLIMIT_MEMLOCK 4 MiB");
    ensure!(
        (FREE + (3 << 20)..=FREE + (4 << 20)).contains(&more.bytes),
        "{} bytes of queues with 4 MiB to pin",
        more.bytes
    );
    poor.finish()?;
    rich.finish()
}

/// Starts hogs of one user, of which the n-th takes the n-th of `kinds`, cyclically, checks that
/// other users are not affected, and checks that everything is released at the end. Returns the sum
/// of all that the hogs had.
fn hogs(rig: &Rig, count: usize, kinds: &[&str]) -> Result<HogUsage, Fail> {
    let before = objects::counts(rig)?;
    let mut port = 20_000;
    let mut start_others = |when: &str| {
        port += 2;
        pingpong(rig, 0, port).at(when)?;
        pingpong(rig, OTHER, port + 1).at(when)
    };
    let mut peers = Vec::new();
    // All hogs are started before one takes anything, because a process gets no context after its
    // user has used up the share of contexts.
    for n in 0..count {
        // Every second hog has no limit on pinned memory, so the user's share is its limit.
        peers.push(start(if n % 2 == 0 { MEMLOCK } else { u32::MAX.into() })?);
    }
    for (n, (peer, kind)) in (0..).zip(peers.iter_mut().zip(kinds.iter().cycle())) {
        peer.send_line(kind)?;
        if n % 20 == 3 {
            start_others("while the hogs start")?;
        }
    }
    start_others("while the hogs allocate")?;
    let mut all = HogUsage::default();
    for peer in &mut peers {
        all.add(read_usage(peer)?);
    }
    all.show(&format!("{count} processes of one user"));
    for _ in 0..3 {
        start_others("after the hogs have reached their limits")?;
    }
    for peer in &mut peers {
        peer.kill();
    }
    drop(peers);
    objects::counts_return(rig, &before)?;
    // All resources are released: one process gets as much as only an unused share allows.
    let mut next_hog = start(u32::MAX.into())?;
    next_hog.send_line("m")?;
    let had = read_usage(&mut next_hog)?;
    had.show("one process without RLIMIT_MEMLOCK, afterwards");
    ensure!(had.bytes >= 8 * FREE, "only {} bytes afterwards", had.bytes);
    start_others("while the last hog runs")?;
    next_hog.finish()?;
    Ok(all)
}

fn some_hogs(rig: &Rig) -> TestResult {
    let all = hogs(rig, 8, &["m", "m", "x", "x", "c", "q", "q", "c"])?;
    // This is the number of contexts, and thus of processes, that other devices support.
    ensure!(all.contexts >= 3000, "only {} contexts", all.contexts);
    Ok(())
}

/// The processes of three users hold more than 4000 contexts at the same time. The first user gets
/// at most half of the contexts of ordinary users, each further user at most half of the rest.
/// Other users can still start.
fn thousands_of_contexts(rig: &Rig) -> TestResult {
    let before = objects::counts(rig)?;
    let most = (NUM_UARS - KERNEL_AREAS) as u64 / 8 * 7;
    let mut peers = Vec::new();
    let mut all = HogUsage::default();
    for uid in [HOG, OTHER, THIRD] {
        let mut of_user = HogUsage::default();
        let mut processes = [start_as(uid, MEMLOCK)?, start_as(uid, MEMLOCK)?];
        for peer in &mut processes {
            peer.send_line("x")?;
        }
        for peer in &mut processes {
            of_user.add(read_usage(peer)?);
        }
        peers.extend(processes);
        of_user.show(&format!("two processes of user {uid}"));
        // Each process has one more context, with which it began.
        let had = of_user.contexts + 2;
        let left = most - all.contexts;
        ensure!(had <= left / 2 + 1, "{had} contexts of {left}");
        ensure!(had >= left / 3, "only {had} contexts of {left}");
        all.contexts += had;
    }
    ensure!(all.contexts >= 4000, "only {} contexts", all.contexts);
    pingpong(rig, 0, 20_100).at("of root")?;
    pingpong(rig, THIRD - 1, 20_101).at("of a fourth user")?;
    for peer in &mut peers {
        peer.kill();
    }
    drop(peers);
    objects::counts_return(rig, &before)
}

fn hundred_hogs(rig: &Rig) -> TestResult {
    // Each hog begins with another kind.
    let orders: Vec<String> = (0..KINDS.len())
        .map(|n| KINDS[n..].to_owned() + &KINDS[..n])
        .collect();
    let orders: Vec<&str> = orders.iter().map(String::as_str).collect();
    hogs(rig, 100, &orders).map(drop)
}
