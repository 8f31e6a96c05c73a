// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of the resources that one process can use up, and of those that it must not.
use crate::ffi::context::Context;
use crate::ffi::cq::Cq;
use crate::ffi::qp::state;
use crate::ffi::sys::Errno;
use crate::outcome::ErrorContext as _;
use crate::peer::{ParentProcess, PeerProcess, PeerRole};
use crate::rig::*;
use crate::{Fail, GuestTest, TestResult};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use verbena_abi::regs::NUM_UARS;
use verbena_abi::ABI_VERSION;

pub static TESTS: &[GuestTest] = &[
    GuestTest::new("res/more-than-a-thousand-contexts", some_contexts)
        .alone()
        .limit(120),
    GuestTest::new("long/contexts-leave-areas-to-the-kernel", all_contexts)
        .long()
        .alone()
        .limit(600),
    GuestTest::new("res/rings-are-charged-to-the-cgroup", charged)
        .alone()
        .limit(120),
    GuestTest::new("res/refused-commands-silence-no-other-process", refusals)
        .alone()
        .limit(120),
    GuestTest::new("res/reserved-words-of-a-context-are-zero", reserved),
    GuestTest::new("res/version-is-the-negotiated-one", version),
];

pub static ROLES: &[PeerRole] = &[
    PeerRole {
        name: "hoarder",
        run: hoarder,
    },
    PeerRole {
        name: "refused",
        run: refused,
    },
];

/// Number of contexts of a process that earlier releases did not support.
const SOME: usize = 1100;
/// Number of doorbell areas that no process gets.
pub(super) const KERNEL_AREAS: u32 = 128;

/// Runs a program and returns its output, or an error if the program fails.
pub(super) fn run(program: &str, args: &[&str]) -> Result<String, Fail> {
    let out = Command::new(program).args(args).output().at(program)?;
    ensure!(
        out.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&out.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Runs a test of the kernel's self-test module and checks that it passes.
fn kernel_test(name: &str) -> TestResult {
    let passes = || {
        Ok::<_, Fail>(
            run("dmesg", &[])?
                .matches(&format!("verbena_selftest: ok {name}"))
                .count(),
        )
    };
    let before = passes()?;
    run("modprobe", &["verbena_selftest", &format!("only={name}")])?;
    let after = passes();
    run("rmmod", &["verbena_selftest"])?;
    ensure_eq!(after?, before + 1, "passes of the kernel's {name}");
    Ok(())
}

/// A process opens [`SOME`] contexts, and the kernel still has doorbell areas of its own.
fn some_contexts(rig: &Rig) -> TestResult {
    may_open_many()?;
    let open: Result<Vec<_>, _> = (0..SOME).map(|_| Context::open(&rig.ctx.name)).collect();
    let open = open.at("a context of many")?;
    kernel_test("many-cqs")?;
    drop(open);
    Ok(())
}

/// A process of root opens as many contexts as it can.
fn all_contexts(rig: &Rig) -> TestResult {
    may_open_many()?;
    let mut open = Vec::new();
    let error = loop {
        ensure!(
            open.len() < NUM_UARS as usize,
            "the number of contexts has no limit"
        );
        match Context::open(&rig.ctx.name) {
            Ok(context) => open.push(context),
            Err(error) => break error,
        }
    };
    ensure_eq!(error, Errno::ENOMEM, "error");
    // The rig's own context has an area too.
    ensure!(
        open.len() < (NUM_UARS - KERNEL_AREAS) as usize,
        "{} contexts: the kernel has fewer than {KERNEL_AREAS} areas left",
        open.len() + 1
    );
    ensure!(open.len() >= 4000, "only {} contexts", open.len());
    refused_contexts_hold_no_task(rig)?;
    // The kernel can use its areas: its first area does not have room for the many CQs of this
    // test.
    kernel_test("many-cqs")?;
    open.pop();
    drop(Context::open(&rig.ctx.name).at("a context after one was closed")?);
    Ok(())
}

/// Raises the limit of open files, because each context takes a few descriptors.
fn may_open_many() -> TestResult {
    let me = std::process::id().to_string();
    run("prlimit", &["--pid", &me, "--nofile=65536:65536"]).map(drop)
}

/// Returns the number of tasks that the kernel has allocated.
fn tasks() -> Result<usize, Fail> {
    let slabs = fs::read_to_string("/proc/slabinfo").at("/proc/slabinfo")?;
    let line = slabs.lines().find(|line| line.starts_with("task_struct "));
    let count = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    count.ok_or_else(|| Fail::from("no task_struct in /proc/slabinfo"))
}

/// Threads that are refused a context and end must leave no task allocated. (The core does not
/// release the reference that it took to each of them.)
fn refused_contexts_hold_no_task(rig: &Rig) -> TestResult {
    const THREADS: usize = 400;
    let before = tasks()?;
    for _ in 0..THREADS {
        let name = rig.ctx.name.clone();
        let refused = std::thread::spawn(move || Context::open(&name).is_err()).join();
        ensure!(
            refused.unwrap_or(false),
            "a context beyond the limit was opened"
        );
    }
    // A kernel with KASAN keeps freed memory in quarantine, where it still counts; kmemleak finds
    // leaks there.
    if Path::new("/sys/kernel/debug/kmemleak").exists() {
        return Ok(());
    }
    // The kernel frees a task some time after the end of the task.
    let mut after = tasks()?;
    for _ in 0..50 {
        if after < before + THREADS / 2 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(200));
        after = tasks()?;
    }
    Err(Fail::from(format!(
        "{THREADS} threads that were refused a context have left {} tasks allocated",
        after - before
    )))
}

/// Bytes of each ring of the hoarder.
const RING: usize = 1 << 20;
/// Memory limit of the hoarder's cgroup, in bytes.
const CGROUP_LIMIT: usize = 64 << 20;

/// Creates CQs until it gets no more, or until they have twice the limit of its cgroup besides the
/// memory that is charged to no cgroup.
fn hoarder(rig: &Rig, parent: &mut ParentProcess) -> TestResult {
    parent.read_line()?;
    let entries = (RING / verbena_abi::cqe::CQE_SIZE) as i32;
    let mut cqs = Vec::new();
    let mut errno = 0;
    let most = (2 * CGROUP_LIMIT + free_contiguous()?) / RING;
    while cqs.len() < most {
        match Cq::new(&rig.ctx, entries) {
            Ok(cq) => cqs.push(cq),
            Err(error) => {
                errno = error.0;
                break;
            }
        }
    }
    parent.send_line(&format!("{} {errno}", cqs.len()))?;
    parent.read_line()?;
    Ok(())
}

/// A memory cgroup, which is removed when this value is dropped.
struct MemoryCgroup(PathBuf);

impl MemoryCgroup {
    fn new(limit: usize) -> Result<MemoryCgroup, Fail> {
        let root = Path::new("/run/verbena-cgroup");
        if !root.join("cgroup.procs").exists() {
            fs::create_dir_all(root)?;
            run(
                "mount",
                &["-t", "cgroup2", "none", &root.display().to_string()],
            )?;
        }
        fs::write(root.join("cgroup.subtree_control"), "+memory").at("+memory")?;
        let group = MemoryCgroup(root.join("hoarder"));
        fs::create_dir_all(&group.0)?;
        fs::write(group.0.join("memory.max"), limit.to_string()).at("memory.max")?;
        Ok(group)
    }

    fn add(&self, pid: u32) -> TestResult {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).at("cgroup.procs")
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Returns the bytes that are free in the kernel's contiguous memory area (CMA). A kernel for arm64
/// takes DMA memory of several pages from this area first, and charges it to no cgroup.
fn free_contiguous() -> Result<usize, Fail> {
    let memory = fs::read_to_string("/proc/meminfo").at("/proc/meminfo")?;
    let free = memory
        .lines()
        .find_map(|line| line.strip_prefix("CmaFree:")?.strip_suffix("kB"));
    let Some(kib) = free else { return Ok(0) };
    let kib: usize = kib.trim().parse().map_err(|_| format!("CmaFree:{kib}kB"))?;
    Ok(kib << 10)
}

fn charged(rig: &Rig) -> TestResult {
    let group = MemoryCgroup::new(CGROUP_LIMIT)?;
    let mut peer = PeerProcess::start("hoarder")?;
    group.add(peer.pid())?;
    let before = free_contiguous()?;
    peer.send_line("go")?;
    let numbers = peer.read_numbers()?;
    ensure!(numbers.len() == 2, "the peer's numbers are {numbers:?}");
    let uncharged = before.saturating_sub(free_contiguous()?) / RING;
    // The process has other memory too, but that is less than half of the limit.
    ensure!(
        (CGROUP_LIMIT / RING / 2..=CGROUP_LIMIT / RING)
            .contains(&(numbers[0] as usize).saturating_sub(uncharged)),
        "{} rings of {RING} bytes in a group of {CGROUP_LIMIT}, {uncharged} of them in the contiguous area",
        numbers[0]
    );
    ensure_eq!(numbers[1] as i32, Errno::ENOMEM.0, "errno");
    // Other processes can still create CQs.
    drop(Cq::new(&rig.ctx, 16384).at("a queue of another process")?);
    // The peer got an error and was not killed.
    peer.finish()
}

/// Makes the device refuse a command, by a P_Key index that does not exist.
fn provoke_refusal(rig: &Rig) -> TestResult {
    let end = rig.end(&PairOpts::default())?;
    let mut attr = attrs(rig.gid, 0, &Conn::default());
    attr.qp_state = state::INIT;
    attr.pkey_index = 7;
    ensure_eq!(
        end.qp.modify(&attr, mask_to(state::INIT)).err(),
        Some(Errno::EINVAL),
        "modify_qp with P_Key index 7"
    );
    Ok(())
}

fn refused(rig: &Rig, parent: &mut ParentProcess) -> TestResult {
    for _ in 0..50 {
        provoke_refusal(rig)?;
    }
    parent.send_line("done")
}

/// Returns the number of messages about failed commands in the log.
fn count_refusal_messages() -> Result<usize, Fail> {
    let log = run("dmesg", &[])?;
    Ok(log
        .lines()
        .filter(|line| {
            line.contains("verbena") && line.contains("command ") && line.contains(" failed")
        })
        .count())
}

fn refusals(rig: &Rig) -> TestResult {
    let before = count_refusal_messages()?;
    let mut peer = PeerProcess::start("refused")?;
    ensure_eq!(peer.read_line()?, "done", "the peer's answer");
    peer.finish()?;
    let after_one = count_refusal_messages()?;
    ensure!(
        (before + 1..before + 20).contains(&after_one),
        "50 refused commands of a process: {} messages",
        after_one - before
    );
    provoke_refusal(rig)?;
    ensure_eq!(
        count_refusal_messages()?,
        after_one + 1,
        "messages after another process' one"
    );
    Ok(())
}

/// Sends GET_CONTEXT as a provider that supports any version, with `word` in the reserved field.
/// Returns the version that the driver answers, or the driver's error.
fn get_context(rig: &Rig, word: u32) -> Result<Result<u16, Errno>, Fail> {
    const GET_CONTEXT: u32 = 0;
    let node = fs::read_dir("/sys/class/infiniband_verbs")?
        .flatten()
        .find(|entry| {
            fs::read_to_string(entry.path().join("ibdev"))
                .is_ok_and(|name| name.trim() == rig.ctx.name)
        })
        .ok_or("no uverbs node")?;
    let path = Path::new("/dev/infiniband").join(node.file_name());
    let mut response = [0u64; 32];
    let mut request = Vec::new();
    let words = (8 + 8 + 8) / 4u16;
    let room = (response.len() * 2) as u16;
    request.extend(GET_CONTEXT.to_ne_bytes());
    request.extend(words.to_ne_bytes());
    request.extend(room.to_ne_bytes());
    request.extend((response.as_mut_ptr() as u64).to_ne_bytes());
    // The newest version of the provider is higher than that of any driver.
    request.extend(u16::MAX.to_le_bytes());
    request.extend(0u16.to_le_bytes());
    request.extend(word.to_le_bytes());
    let mut file = fs::OpenOptions::new().read(true).write(true).open(&path)?;
    match file.write(&request) {
        Ok(taken) => ensure_eq!(taken, request.len(), "bytes taken"),
        Err(error) => return Ok(Err(Errno(error.raw_os_error().unwrap_or(0)))),
    }
    // The core's own part is one 64-bit word; the driver's part begins with the version.
    Ok(Ok(response[1] as u16))
}

/// The driver must refuse reserved words that are not zero, which the provider never sends.
fn reserved(rig: &Rig) -> TestResult {
    get_context(rig, 0)?.at("get_context")?;
    for word in [1, 1 << 31] {
        let errno = get_context(rig, word)?.err();
        ensure_eq!(errno, Some(Errno::EINVAL), "reserved word {word:#x}");
    }
    Ok(())
}

/// A process gets the version on which driver and device have agreed. For an older device,
/// `VERBENA_ABI` has that version.
fn version(rig: &Rig) -> TestResult {
    let agreed = match std::env::var("VERBENA_ABI") {
        Ok(version) => version.parse().map_err(|_| "VERBENA_ABI is no number")?,
        Err(_) => ABI_VERSION,
    };
    ensure_eq!(get_context(rig, 0)?.at("get_context")?, agreed, "version");
    Ok(())
}
