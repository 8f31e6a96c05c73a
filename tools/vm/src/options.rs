// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The options of a run, and the rules that they must obey.

use regex::bytes::{Regex, RegexBuilder};
use std::fmt;
use std::path::{Path, PathBuf};

/// Most guests in a run.
pub const MAX_GUESTS: usize = 4;
/// With less memory, in MB, the guest's kernel panics while it boots, or kills processes.
pub const LEAST_MEMORY_MB: u32 = 192;
/// Most guests that have rxe0 beside verbena0.
const MOST_WITH_RXE: usize = 2;
/// Most virtual CPUs of a guest: that of QEMU's machine `q35`.
pub const MAX_CPUS: u32 = 255;

/// The link between the NICs of several guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Datagram sockets of this host.
    Unix,
    /// Tunnels over the loopback network.
    Udp,
    /// One NIC process for all guests.
    OneProcess,
}

/// The link layer of the RDMA ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// RoCE v2.
    Ethernet,
    /// InfiniBand ports. opensm runs in vm1.
    InfiniBand,
}

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// QEMU's emulator.
    Tcg,
    /// Hardware virtualisation.
    Kvm,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcg => "tcg",
            Self::Kvm => "kvm",
        })
    }
}

/// The options of a run. [`RunOptions::check`] makes a [`Run`] of them.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Number of guests.
    pub guests: usize,
    /// Command of each guest for `sh -c`. A guest without a command stays until the others end.
    pub commands: Vec<Option<String>>,
    /// True if vm1 has an interactive shell instead of a command.
    pub is_shell: bool,
    /// True if the guests stay until they are asked to end, and take commands meanwhile.
    pub stays: bool,
    /// Host directories, which guests mount at the same paths, writable.
    pub shares: Vec<PathBuf>,
    /// Working directory of the commands: a path below one of `shares`, or `None` for `/root`.
    pub directory: Option<PathBuf>,
    /// Link between the guests, or `None` for the default of the link layer.
    pub link: Option<LinkKind>,
    /// Link layer of the RDMA ports.
    pub link_layer: LinkLayer,
    /// True if vm2 and up have the kernel's soft RoCE (rxe) instead of Verbena.
    pub is_peer_rxe: bool,
    /// True if each guest has rxe0, too, on a network card of its own. At most two guests.
    pub has_rxe: bool,
    /// MTU of the guests' Ethernet in bytes, or `None` for 1500.
    pub mtu: Option<u32>,
    /// Virtual CPUs of each guest.
    pub cpus: u32,
    /// Memory of each guest in MB.
    pub memory_mb: u32,
    /// Accelerator, or `None` for the best that this machine has.
    pub accelerator: Option<Accelerator>,
    /// More arguments for the kernel of the guests.
    pub kernel_args: Vec<String>,
    /// More arguments for the NIC.
    pub nic_args: Vec<String>,
    /// True if the flight recorder is on.
    pub is_recorded: bool,
    /// True if all RDMA packets are captured into `rdma.pcapng`.
    pub is_captured: bool,
    /// Seconds from power-on after which a guest is ended.
    pub timeout_s: Option<u64>,
    /// Seconds without a line of the kernel log, while a guest boots, after which it is ended.
    pub silence_s: u64,
    /// Lines of the kernel log that are no complaints.
    pub expected: Option<String>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            guests: 1,
            commands: Vec::new(),
            is_shell: false,
            stays: false,
            shares: Vec::new(),
            directory: None,
            link: None,
            link_layer: LinkLayer::Ethernet,
            is_peer_rxe: false,
            has_rxe: false,
            mtu: None,
            cpus: 2,
            memory_mb: 2048,
            accelerator: None,
            kernel_args: Vec::new(),
            nic_args: Vec::new(),
            is_recorded: true,
            is_captured: false,
            timeout_s: None,
            silence_s: 60,
            expected: None,
        }
    }
}

/// Options that obey all rules.
#[derive(Clone, Debug)]
pub struct Run {
    options: RunOptions,
    link: LinkKind,
    expected: Option<Regex>,
}

impl std::ops::Deref for Run {
    type Target = RunOptions;

    fn deref(&self) -> &RunOptions {
        &self.options
    }
}

impl Run {
    /// Returns the link between the guests.
    pub fn link(&self) -> LinkKind {
        self.link
    }

    /// Returns the pattern of lines of the kernel log that are no complaints.
    pub fn expected(&self) -> Option<&Regex> {
        self.expected.as_ref()
    }

    /// Returns the numbers of the guests, from 1.
    pub fn numbers(&self) -> std::ops::RangeInclusive<usize> {
        1..=self.guests
    }

    /// Returns the name of a guest in messages.
    pub fn name(&self, number: usize) -> String {
        format!("vm{number}")
    }

    /// True if one NIC process serves all guests.
    pub fn has_shared_nic(&self) -> bool {
        self.guests > 1 && self.link == LinkKind::OneProcess
    }

    /// True if this guest has an interactive shell.
    pub fn is_shell_of(&self, number: usize) -> bool {
        self.is_shell && number == 1
    }
}

impl RunOptions {
    /// Checks the options against the rules, and sets the defaults that depend on other options.
    ///
    /// # Errors
    ///
    /// An option breaks a rule. The text names the option as the command line does.
    pub fn check(mut self) -> Result<Run, String> {
        let guests = self.guests;
        if !(1..=MAX_GUESTS).contains(&guests) {
            return Err(format!("--nodes is 1 to {MAX_GUESTS}, not {guests}"));
        }
        if let Some(number) = (guests..self.commands.len()).find(|&n| self.commands[n].is_some()) {
            let number = number + 1;
            return Err(format!(
                "--on {number}: there is no guest vm{number}, because --nodes is {guests}: use --nodes {number}"
            ));
        }
        self.commands.resize(guests, None);
        if guests == 1 && self.is_peer_rxe {
            return Err(String::from("--peer needs a second guest: add --nodes 2"));
        }
        if guests == 1 && self.link.is_some() {
            return Err(String::from("--link needs a second guest: add --nodes 2"));
        }
        if guests > MOST_WITH_RXE && self.has_rxe {
            return Err(format!(
                "--rxe is for one guest or two, not {guests} (--nodes): QEMU's network between the devices rxe0 has two ends"
            ));
        }
        if self.link_layer == LinkLayer::InfiniBand && self.is_peer_rxe {
            return Err(String::from(
                "--peer rxe: rxe has no InfiniBand ports: leave out --link-layer ib",
            ));
        }
        if self.memory_mb < LEAST_MEMORY_MB {
            return Err(format!(
                "--mem {}: a guest needs {LEAST_MEMORY_MB} MB at least",
                self.memory_mb
            ));
        }
        if !(1..=MAX_CPUS).contains(&self.cpus) {
            return Err(format!("--cpus is 1 to {MAX_CPUS}, not {}", self.cpus));
        }
        let mut shares: Vec<PathBuf> = Vec::new();
        for share in std::mem::take(&mut self.shares) {
            check_share(&share)?;
            if !shares.contains(&share) {
                shares.push(share);
            }
        }
        // A directory is mounted before those below it.
        shares.sort();
        self.shares = shares;
        let expected = self.expected.as_deref().map(|pattern| {
            RegexBuilder::new(pattern)
                .unicode(false)
                .build()
                .map_err(|e| {
                    format!("--expected: {pattern:?} is not a valid regular expression: {e}")
                })
        });
        let default = match self.link_layer {
            LinkLayer::Ethernet => LinkKind::Unix,
            LinkLayer::InfiniBand => LinkKind::OneProcess,
        };
        Ok(Run {
            link: self.link.unwrap_or(default),
            expected: expected.transpose()?,
            options: self,
        })
    }
}

/// Directories of the guest that a directory of the host must not replace, since the guest needs its
/// own to boot, to log in by ssh or for its programs.
const OF_THE_GUEST: [&str; 16] = [
    "/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/mnt", "/proc", "/root", "/run",
    "/sbin", "/sys", "/tmp", "/usr", "/var",
];

/// Checks that a guest can mount a directory of the host at its own path.
fn check_share(share: &Path) -> Result<(), String> {
    let shown = share.display();
    if !share.is_absolute() {
        return Err(format!("{shown} is not an absolute path"));
    }
    let below = |top: &str| share.starts_with(top);
    if OF_THE_GUEST.iter().any(|own| share == Path::new(own))
        || ["/dev", "/proc", "/run", "/sys", "/usr/lib", "/usr/bin"]
            .into_iter()
            .any(below)
    {
        return Err(format!(
            "a guest cannot mount the directory {shown} of the host at the same path, because it needs its own {shown}: use another directory, for example one in your home directory"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(change: impl FnOnce(&mut RunOptions)) -> String {
        let mut options = RunOptions::default();
        change(&mut options);
        options.check().unwrap_err()
    }

    #[test]
    fn the_defaults_are_valid() {
        let run = RunOptions::default().check().unwrap();
        assert_eq!((run.guests, run.commands.len()), (1, 1));
        assert_eq!(run.link(), LinkKind::Unix);
        assert!(!run.has_shared_nic());
    }

    #[test]
    fn infiniband_guests_share_a_nic_process() {
        let options = RunOptions {
            guests: 3,
            link_layer: LinkLayer::InfiniBand,
            ..RunOptions::default()
        };
        let run = options.check().unwrap();
        assert_eq!(run.link(), LinkKind::OneProcess);
        assert!(run.has_shared_nic());
    }

    #[test]
    fn errors_name_the_option_and_the_next_step() {
        assert_eq!(error(|o| o.guests = 0), "--nodes is 1 to 4, not 0");
        assert_eq!(error(|o| o.guests = 5), "--nodes is 1 to 4, not 5");
        assert!(error(|o| o.is_peer_rxe = true).ends_with("add --nodes 2"));
        assert!(error(|o| o.link = Some(LinkKind::Udp)).contains("--link"));
        let text = error(|o| (o.guests, o.has_rxe) = (3, true));
        assert!(
            text.starts_with("--rxe is for one guest or two, not 3"),
            "{text}"
        );
        assert!(error(|o| o.memory_mb = 191).contains("192 MB"));
        assert!(error(|o| o.cpus = 0).contains("1 to 255"));
        assert!(error(|o| o.expected = Some(String::from("("))).contains("regular expression"));
        let commands = vec![None, None, Some(String::from("true"))];
        let text = error(|o| {
            o.guests = 2;
            o.commands = commands;
        });
        assert!(
            text.contains("vm3") && text.ends_with("use --nodes 3"),
            "{text}"
        );
        let text = error(|o| {
            o.guests = 2;
            o.is_peer_rxe = true;
            o.link_layer = LinkLayer::InfiniBand;
        });
        assert!(text.contains("InfiniBand"), "{text}");
    }

    #[test]
    fn directories_that_a_guest_needs_are_not_replaced() {
        for bad in [
            "/",
            "/root",
            "/tmp",
            "/etc",
            "/proc/1",
            "/usr/lib/x",
            "/run/x",
        ] {
            let text = error(|o| o.shares = vec![PathBuf::from(bad)]);
            assert!(text.contains(bad), "{text}");
        }
        assert!(error(|o| o.shares = vec![PathBuf::from("x")]).contains("absolute"));
        let options = RunOptions {
            shares: ["/home/a/b", "/home/a", "/tmp/x", "/home/a/b"]
                .map(PathBuf::from)
                .to_vec(),
            ..RunOptions::default()
        };
        let run = options.check().unwrap();
        assert_eq!(
            run.shares,
            ["/home/a", "/home/a/b", "/tmp/x"].map(PathBuf::from)
        );
    }
}
