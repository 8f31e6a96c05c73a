// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Facts about this machine and about the parts of Verbena, for texts that users post.

use serde::Serialize;
use std::fs::read_to_string;
use std::path::Path;
use verbena_vm::doctor::{machine, probe, State};
use verbena_vm::qemu::Host;
use verbena_vm::{Accelerator, Installation};

/// What is known before a guest runs.
#[derive(Clone, Debug, Serialize)]
pub struct HostFacts {
    /// Version of this program.
    pub verbena: String,
    /// The processor's name.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// True if this machine is itself a virtual machine.
    pub is_virtual_machine: bool,
    /// The machine's memory in MB.
    pub memory_mb: u64,
    /// Name of the distribution.
    pub distribution: String,
    /// Release of the host's kernel.
    pub kernel: String,
    /// Policy of the processors' frequency, if there is one.
    pub governor: Option<String>,
    /// State of transparent huge pages for shared memory, which the memory of a guest is.
    pub shmem_huge_pages: Option<String>,
    /// Load of the last minute when this program started.
    pub load: String,
    /// Version of QEMU.
    pub qemu: String,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// Why KVM is not used, if it is not.
    pub why_no_kvm: Option<String>,
}

/// What a guest reports about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GuestFacts {
    /// Release of the guests' kernel.
    pub kernel: Option<String>,
    /// Version of rdma-core in the guests.
    pub rdma_core: Option<String>,
}

/// The beginning of the line of [`GUEST_COMMAND`].
const GUEST_LINE: &str = "about-the-guest ";
/// A command by which a guest reports about itself.
pub const GUEST_COMMAND: &str =
    "echo \"about-the-guest $(uname -r) $(dpkg-query -W -f '${Version}' libibverbs1)\"";

impl HostFacts {
    /// Collects the facts.
    ///
    /// # Errors
    ///
    /// KVM is demanded, and this machine has none.
    pub fn collect(
        installation: &Installation,
        demanded: Option<Accelerator>,
    ) -> Result<Self, String> {
        let accelerator = Host::inspect(demanded)?.accelerator;
        let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
        let text = |path: &str| read_to_string(path).unwrap_or_default();
        Ok(Self {
            verbena: String::from(env!("CARGO_PKG_VERSION")),
            cpu: field(&cpuinfo, "model name").unwrap_or_else(unknown),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            is_virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            memory_mb: memory_mb(&text("/proc/meminfo")),
            distribution: distribution(&text("/etc/os-release")),
            kernel: first_line("/proc/sys/kernel/osrelease").unwrap_or_else(unknown),
            governor: first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            shmem_huge_pages: first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
                .map(|line| chosen(&line)),
            load: text("/proc/loadavg")
                .split(' ')
                .next()
                .map_or_else(unknown, String::from),
            qemu: probe::qemu_version(&installation.qemu_root)
                .unwrap_or_else(|e| format!("unknown ({e})")),
            accelerator: accelerator.to_string(),
            why_no_kvm: match (accelerator, demanded) {
                (Accelerator::Kvm, _) => None,
                (Accelerator::Tcg, Some(_)) => Some(String::from("--accel tcg")),
                (Accelerator::Tcg, None) => why_no_kvm(),
            },
        })
    }

    /// Returns a line about each fact, `NAME: VALUE`.
    pub fn lines(&self, guest: &GuestFacts) -> Vec<String> {
        let or_unknown = |text: &Option<String>| text.clone().unwrap_or_else(unknown);
        let accelerator = match &self.why_no_kvm {
            Some(why) => format!("{} ({why})", self.accelerator),
            None => self.accelerator.clone(),
        };
        let kind = match self.is_virtual_machine {
            true => ", itself a virtual machine",
            false => "",
        };
        let mut lines = vec![
            format!("verbena: {}", self.verbena),
            format!("accelerator: {accelerator}"),
            format!("host CPU: {}, {} cores{kind}", self.cpu, self.cores),
            format!(
                "host: {}, Linux {}, {} MB, load {}",
                self.distribution, self.kernel, self.memory_mb, self.load
            ),
            format!("QEMU: {}", self.qemu),
            format!(
                "guest: Linux {}, rdma-core {}",
                or_unknown(&guest.kernel),
                or_unknown(&guest.rdma_core)
            ),
        ];
        let more = [
            ("frequency governor", &self.governor),
            ("huge pages for shared memory", &self.shmem_huge_pages),
        ];
        for (name, value) in more {
            if let Some(value) = value {
                lines.push(format!("{name}: {value}"));
            }
        }
        lines
    }
}

impl GuestFacts {
    /// Takes a line of the guest's output. Returns true if it is that of [`GUEST_COMMAND`].
    pub fn take(&mut self, line: &str) -> bool {
        let Some(rest) = line.strip_prefix(GUEST_LINE) else {
            return false;
        };
        let mut words = rest.split_ascii_whitespace().map(String::from);
        self.kernel = words.next();
        self.rdma_core = words.next();
        true
    }
}

fn unknown() -> String {
    String::from("unknown")
}

fn why_no_kvm() -> Option<String> {
    let finding = machine::kvm();
    (finding.state != State::Ok).then_some(finding.found)
}

fn first_line(path: impl AsRef<Path>) -> Option<String> {
    let text = read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

/// Returns a value of `/proc/cpuinfo`.
fn field(cpuinfo: &str, name: &str) -> Option<String> {
    let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(found, _)| found.trim() == name)?;
    Some(value.trim().to_owned())
}

fn memory_mb(meminfo: &str) -> u64 {
    let line = field(meminfo, "MemTotal").unwrap_or_default();
    let kilobytes: Option<u64> = line.split(' ').next().and_then(|n| n.parse().ok());
    kilobytes.unwrap_or(0) / 1024
}

fn distribution(os_release: &str) -> String {
    let mut lines = os_release.lines();
    let line = lines.find_map(|line| line.strip_prefix("PRETTY_NAME="));
    line.map_or_else(unknown, |name| name.trim_matches('"').to_owned())
}

/// Returns the word in brackets, by which the kernel marks the chosen one.
fn chosen(line: &str) -> String {
    let inside = line
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(line, |(word, _)| word).to_owned()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Facts about a machine with this processor.
    pub fn facts(cpu: &str) -> HostFacts {
        HostFacts {
            verbena: String::from("0.1.0"),
            cpu: String::from(cpu),
            cores: 2,
            is_virtual_machine: true,
            memory_mb: 100,
            distribution: String::from("Debian"),
            kernel: String::from("6.1"),
            governor: None,
            shmem_huge_pages: Some(String::from("never")),
            load: String::from("0.1"),
            qemu: String::from("11.1.3"),
            accelerator: String::from("tcg"),
            why_no_kvm: Some(String::from("there is no /dev/kvm")),
        }
    }

    #[test]
    fn facts_come_from_the_files_of_the_kernel() {
        let cpuinfo = "processor\t: 0\nmodel name\t: A CPU @ 3 GHz\nflags\t\t: fpu hypervisor\n";
        assert_eq!(
            field(cpuinfo, "model name").as_deref(),
            Some("A CPU @ 3 GHz")
        );
        assert_eq!(field(cpuinfo, "model"), None);
        assert_eq!(memory_mb("MemTotal:       2048000 kB\n"), 2000);
        assert_eq!(distribution("ID=x\nPRETTY_NAME=\"X 13\"\n"), "X 13");
        assert_eq!(chosen("always within_size [never] deny"), "never");
        assert_eq!(chosen("odd"), "odd");
    }

    #[test]
    fn the_guest_reports_its_versions() {
        let mut facts = GuestFacts::default();
        assert!(!facts.take("ok about"));
        assert!(facts.take("about-the-guest 7.2.12 56.1-1"));
        assert_eq!(facts.kernel.as_deref(), Some("7.2.12"));
        assert_eq!(facts.rdma_core.as_deref(), Some("56.1-1"));
        assert!(facts.take("about-the-guest 7.2.12"));
        assert_eq!(facts.rdma_core, None);
    }
}
