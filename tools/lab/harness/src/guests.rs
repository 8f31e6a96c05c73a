// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A run of guests by `scripts/vm`, as a value.

use crate::step::Step;
use crate::suite::Kernel;

/// The link between the NICs of several guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Unix,
    Udp,
    Tap,
    /// One NIC process for all guests.
    OneProcess,
}

impl Link {
    pub fn name(self) -> &'static str {
        match self {
            Link::Unix => "unix",
            Link::Udp => "udp",
            Link::Tap => "tap",
            Link::OneProcess => "one-process",
        }
    }
}

/// The MAC addresses that a guest may use for RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MacPolicy {
    Any,
    Own,
}

impl MacPolicy {
    pub fn name(self) -> &'static str {
        match self {
            MacPolicy::Any => "any",
            MacPolicy::Own => "own",
        }
    }
}

/// The guest whose command it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    One(u32),
    All,
}

/// One guest or several, and the commands that run in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guests {
    number: u32,
    /// Seconds on the stock kernel.
    timeout: Option<u32>,
    /// MB for each guest.
    memory: Option<u32>,
    link: Option<Link>,
    mac_policy: Option<MacPolicy>,
    infiniband: bool,
    /// Only this kernel has what the suite tests.
    kernel: Option<Kernel>,
    /// The other options of `scripts/vm`.
    options: Vec<String>,
    commands: Vec<(On, String)>,
}

/// A single guest that runs a command, with a limit in seconds on the stock kernel.
pub fn guest(timeout: u32, command: impl Into<String>) -> Guests {
    Guests {
        number: 1,
        memory: None,
        ..pair().timeout(timeout)
    }
    .on(1, command)
}

/// Two guests with 1024 MB each.
pub fn pair() -> Guests {
    Guests {
        number: 2,
        timeout: None,
        memory: Some(1024),
        link: None,
        mac_policy: None,
        infiniband: false,
        kernel: None,
        options: Vec::new(),
        commands: Vec::new(),
    }
}

impl Guests {
    /// Another number of guests.
    pub fn number(mut self, number: u32) -> Self {
        self.number = number;
        self
    }

    /// Ends the guests after this number of seconds on the stock kernel.
    pub fn timeout(mut self, seconds: u32) -> Self {
        self.timeout = Some(seconds);
        self
    }

    /// MB for each guest.
    pub fn memory(mut self, mb: u32) -> Self {
        self.memory = Some(mb);
        self
    }

    pub fn link(mut self, link: Link) -> Self {
        self.link = Some(link);
        self
    }

    pub fn mac_policy(mut self, policy: MacPolicy) -> Self {
        self.mac_policy = Some(policy);
        self
    }

    /// The guests have InfiniBand ports.
    pub fn infiniband(mut self) -> Self {
        self.infiniband = true;
        self
    }

    /// The guests have this kernel in all forms of the suite.
    pub fn kernel(mut self, kernel: Kernel) -> Self {
        self.kernel = Some(kernel);
        self
    }

    /// An option of `scripts/vm` without a value.
    pub fn flag(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// An option of `scripts/vm` with a value.
    pub fn with(mut self, option: &str, value: impl Into<String>) -> Self {
        self.options.push(option.to_owned());
        self.options.push(value.into());
        self
    }

    /// The command of guest K.
    pub fn on(mut self, k: u32, command: impl Into<String>) -> Self {
        self.commands.push((On::One(k), command.into()));
        self
    }

    /// The command of each guest without its own.
    pub fn on_all(mut self, command: impl Into<String>) -> Self {
        self.commands.push((On::All, command.into()));
        self
    }

    /// Returns the seconds after which `scripts/vm` ends these guests, on the kernel of the form.
    pub fn seconds(&self, kernel: Kernel) -> u32 {
        self.timeout.unwrap_or(0) * self.kernel.unwrap_or(kernel).slowness()
    }

    /// Returns the arguments for `scripts/vm`. The programs are built before the suites start.
    pub fn arguments(&self, kernel: Kernel) -> Vec<String> {
        let kernel = self.kernel.unwrap_or(kernel).name();
        let mut words: Vec<String> = ["--no-build", "--kernel", kernel].map(Into::into).into();
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                words.extend([name.to_owned(), value]);
            }
        };
        option("--vms", (self.number > 1).then(|| self.number.to_string()));
        option("--mem", self.memory.map(|mb| mb.to_string()));
        option("--timeout", self.timeout.map(|seconds| seconds.to_string()));
        option("--link", self.link.map(|link| link.name().to_owned()));
        option(
            "--mac-policy",
            self.mac_policy.map(|policy| policy.name().to_owned()),
        );
        option("--link-layer", self.infiniband.then(|| "ib".to_owned()));
        words.extend(self.options.iter().cloned());
        for (on, command) in &self.commands {
            let on = match on {
                On::One(1) if self.number == 1 => {
                    words.extend(["--".to_owned(), command.clone()]);
                    continue;
                }
                On::One(k) => k.to_string(),
                On::All => "all".to_owned(),
            };
            words.extend(["--on".to_owned(), on, command.clone()]);
        }
        words
    }

    /// Makes a step of it. The programs in the guests write records.
    pub fn step(self) -> Step {
        Step::guests(self)
    }
}
