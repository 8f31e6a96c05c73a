// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks of the machine: architecture, KVM, memory, disk space.

use super::{Finding, Need};
use nix::sys::statvfs::statvfs;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;

const ARCHITECTURE: &str = "x86_64";
const MB: u64 = 1 << 20;
/// What QEMU and the NIC of a guest use besides the guest's memory.
const OVERHEAD_MB: u64 = 150;
/// What a guest uses after its boot, with QEMU and the NIC.
const LEAST_MB: u64 = 512;
/// What a run writes into /tmp.
pub const NEEDED_FOR_SOCKETS: u64 = MB;

/// Checks that this machine executes the programs and the kernel of the installation.
pub fn architecture() -> Finding {
    match nix::sys::utsname::uname() {
        Ok(name) => judge_architecture(&name.machine().to_string_lossy()),
        Err(e) => judge_architecture(&format!("unknown ({e})")),
    }
}

fn judge_architecture(machine: &str) -> Finding {
    match machine {
        ARCHITECTURE => Finding::ok("architecture", machine),
        _ => Finding::missing(
            "architecture",
            format!("this machine is {machine}, and QEMU, NIC and guests are for {ARCHITECTURE}"),
            format!("use a machine with {ARCHITECTURE}"),
        ),
    }
}

/// Checks whether guests run by hardware virtualisation.
pub fn kvm() -> Finding {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let opened = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    judge_kvm(
        opened.map(drop).map_err(|e| e.kind()),
        crate::qemu::has_virtualisation(&cpuinfo),
    )
}

fn judge_kvm(opened: Result<(), io::ErrorKind>, has_virtualisation: bool) -> Finding {
    const COST: &str =
        "the guests' instructions are emulated (TCG): everything works, but more slowly";
    let poor = |found: &str, remedy: &str| Finding::poor("kvm", found, COST, remedy);
    match (opened, has_virtualisation) {
        (Ok(()), true) => Finding::ok("kvm", "/dev/kvm can be used"),
        (_, false) => poor(
            "the processor has no virtualisation (no flag vmx or svm in /proc/cpuinfo)",
            "switch on VT-x or AMD-V in the firmware; if this is a virtual machine, switch on nested virtualisation on its host",
        ),
        (Err(io::ErrorKind::PermissionDenied), true) => poor(
            "you may not open /dev/kvm",
            "let root add you to its group: `usermod -aG kvm USER`, and log in again",
        ),
        (Err(_), true) => poor(
            "there is no /dev/kvm",
            "load the module kvm_intel or kvm_amd; in a container, start it with --device /dev/kvm",
        ),
    }
}

/// Checks the memory for the guests.
pub fn memory(need: Need) -> Finding {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    judge_memory(available(&meminfo, cgroup_limits(&own)), need)
}

/// Memory in MB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    total: u64,
    free: u64,
}

/// Returns the memory that this process may use: that of the machine, or less by its control groups.
fn available(meminfo: &str, limits: Vec<Memory>) -> Memory {
    let field = |name: &str| {
        let mut lines = meminfo.lines().filter_map(|line| line.strip_prefix(name));
        let value = lines.next()?.trim_start_matches(':');
        let kilobytes: u64 = value.split_ascii_whitespace().next()?.parse().ok()?;
        Some(kilobytes / 1024)
    };
    let swap = |name| field(name).unwrap_or(0);
    // Without the file, nothing is known to be missing.
    let machine = Memory {
        total: field("MemTotal").map_or(u64::MAX, |total| total + swap("SwapTotal")),
        free: field("MemAvailable").map_or(u64::MAX, |free| free + swap("SwapFree")),
    };
    limits.into_iter().fold(machine, |least, limit| Memory {
        total: least.total.min(limit.total),
        free: least.free.min(limit.free),
    })
}

/// Returns the limits of the control groups (version 2) that `/proc/self/cgroup` names.
fn cgroup_limits(own: &str) -> Vec<Memory> {
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Vec::new();
    };
    let below = Path::new("/sys/fs/cgroup");
    let group = below.join(path);
    let groups = group
        .ancestors()
        .take_while(|group| group.starts_with(below));
    groups.filter_map(cgroup_limit).collect()
}

fn cgroup_limit(group: &Path) -> Option<Memory> {
    let number = |name: &str| {
        let text = std::fs::read_to_string(group.join(name)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    // The file has the word `max` where there is no limit.
    let total = number("memory.max")? / MB;
    let used = number("memory.current").unwrap_or(0) / MB;
    // Pages of files can be dropped.
    let files = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let files = files.lines().find_map(|line| line.strip_prefix("file "));
    let files: u64 = files.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    Some(Memory {
        total,
        free: total.saturating_sub(used.saturating_sub(files / MB)),
    })
}

fn judge_memory(memory: Memory, need: Need) -> Finding {
    let guests = need.guests as u64;
    let needed = guests * (u64::from(need.memory_mb) + OVERHEAD_MB);
    let least = guests * LEAST_MB;
    let Memory { total, free } = memory;
    let what = format!("{guests} guest(s) with --mem {}", need.memory_mb);
    let less = format!(
        "use a smaller --mem or fewer --nodes: --mem {} is enough for small programs",
        crate::options::LEAST_MEMORY_MB * 2
    );
    if total < needed {
        Finding::missing(
            "memory",
            format!("{what} can use {needed} MB, and there are {total} MB at all"),
            less,
        )
    } else if free < least.min(needed) {
        Finding::missing(
            "memory",
            format!("{free} MB are free, and {guests} booted guest(s) use {least} MB"),
            format!("end other programs, or {less}"),
        )
    } else if free < needed {
        Finding::poor(
            "memory",
            format!("{free} MB are free, and {what} can use {needed} MB"),
            "a guest that uses all of its memory may be killed",
            less,
        )
    } else {
        Finding::ok(
            "memory",
            format!("{free} MB are free; {what} can use {needed} MB"),
        )
    }
}

/// Returns the bytes of the logs of guests whose first root has this many bytes. Each guest has a
/// copy of it while it runs.
pub fn needed_for_logs(initrd: u64, guests: usize) -> u64 {
    guests as u64 * (initrd + 20 * MB)
}

/// Returns the bytes that guests write to their disks while they boot.
pub fn needed_for_overlays(guests: usize) -> u64 {
    guests as u64 * 200 * MB
}

/// Checks the free space of the file system with this directory, which may not exist yet.
pub fn disk(name: &'static str, directory: &Path, needed: u64) -> Finding {
    let existing = directory.ancestors().find(|path| path.exists());
    let existing = existing.unwrap_or(Path::new("/")).to_owned();
    match statvfs(&existing) {
        Ok(found) => {
            let free = found.blocks_available() * found.fragment_size();
            judge_disk(name, directory, free, needed)
        }
        Err(e) => Finding::missing(
            name,
            format!("{}: {e}", directory.display()),
            "make the directory usable",
        ),
    }
}

fn judge_disk(name: &'static str, directory: &Path, free: u64, needed: u64) -> Finding {
    let shown = directory.display();
    let (free, needed) = (free / MB, needed.div_ceil(MB));
    match free >= needed {
        true => Finding::ok(name, format!("{free} MB are free in {shown}; {needed} MB are needed")),
        false => Finding::missing(
            name,
            format!("{free} MB are free in {shown}, and {needed} MB are needed"),
            "make room on this file system: `verbena cache clean` removes what Verbena keeps; the logs of a run can be elsewhere (--run-dir)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    const NEED: Need = Need {
        guests: 2,
        memory_mb: 1000,
    };

    #[test]
    fn only_x86_64_runs_the_guests() {
        assert_eq!(judge_architecture("x86_64").state, State::Ok);
        let arm = judge_architecture("aarch64");
        assert_eq!(arm.state, State::Missing);
        assert!(arm.found.contains("aarch64"), "{arm:?}");
    }

    #[test]
    fn each_lack_of_kvm_has_its_own_next_step() {
        assert_eq!(judge_kvm(Ok(()), true).state, State::Ok);
        let remedy = |opened, has| {
            let finding = judge_kvm(opened, has);
            assert_eq!(finding.state, State::Poor);
            finding.remedy.unwrap()
        };
        use io::ErrorKind::{NotFound, PermissionDenied};
        assert!(remedy(Err(NotFound), false).contains("firmware"));
        assert!(remedy(Ok(()), false).contains("nested"));
        assert!(remedy(Err(NotFound), true).contains("kvm_intel"));
        assert!(remedy(Err(PermissionDenied), true).contains("usermod"));
    }

    #[test]
    fn memory_is_that_of_the_machine_or_of_a_control_group() {
        let text = "MemTotal:  4096000 kB\nMemFree: 1 kB\nMemAvailable: 2048000 kB\nSwapTotal: 1024000 kB\nSwapFree: 0 kB\n";
        let (total, free) = (5000, 2000);
        assert_eq!(available(text, Vec::new()), Memory { total, free });
        let limit = Memory {
            total: 1000,
            free: 3000,
        };
        let both = available(text, vec![limit]);
        assert_eq!((both.total, both.free), (1000, 2000));
        assert_eq!(available("", Vec::new()).free, u64::MAX);
    }

    #[test]
    fn memory_may_be_enough_for_a_boot_only() {
        let state = |total, free| judge_memory(Memory { total, free }, NEED).state;
        assert_eq!(state(2300, 2300), State::Ok);
        assert_eq!(state(2300, 2299), State::Poor);
        assert_eq!(state(9999, 1024), State::Poor);
        assert_eq!(state(9999, 1023), State::Missing);
        assert_eq!(state(2299, 2299), State::Missing);
    }

    #[test]
    fn disk_space_is_that_of_the_next_existing_directory() {
        let free = disk("logs", Path::new("/tmp/no/such/directory"), 1);
        assert_eq!(free.state, State::Ok, "{free:?}");
        let full = disk("logs", Path::new("/tmp"), u64::MAX);
        assert_eq!(full.state, State::Missing);
        assert!(full.remedy.unwrap().contains("cache clean"));
        let needed = needed_for_logs(40 * MB, 2);
        assert_eq!(needed, 120 * MB);
    }
}
