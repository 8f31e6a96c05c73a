// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A row of the table of suites.

use crate::step::Step;
use std::path::PathBuf;
use std::time::Duration;

/// The commands that run a suite. A suite of no command runs only if it is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    /// `make test`
    Test,
    /// `make test-debug`
    Debug,
    /// `make test-long`, which also runs the suites of `make test`
    Long,
}

impl Runs {
    pub fn name(self) -> &'static str {
        match self {
            Runs::Test => "test",
            Runs::Debug => "debug",
            Runs::Long => "long",
        }
    }
}

/// What is made before the first suite starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The toolchain root.
    Tree,
    /// All that a guest needs.
    Vm,
    /// All that a guest for arm64 needs.
    Arm64,
    /// The NIC that sends the driver false data.
    Hostile,
    /// The installation of the command `verbena`.
    Installation,
    /// The debug kernel and the modules for it.
    Debug,
}

impl Need {
    pub fn name(self) -> &'static str {
        match self {
            Need::Tree => "tree",
            Need::Vm => "vm",
            Need::Arm64 => "arm64",
            Need::Hostile => "hostile",
            Need::Installation => "installation",
            Need::Debug => "debug",
        }
    }
}

/// The guest's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Debian's own.
    Stock,
    /// The kernel with checkers, which is ten times slower.
    Debug,
}

impl Kernel {
    /// Returns the name for `scripts/vm --kernel`.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Stock => "stock",
            Kernel::Debug => "debug",
        }
    }

    /// Returns the factor of all limits.
    pub fn slowness(self) -> u32 {
        match self {
            Kernel::Stock => 1,
            Kernel::Debug => 10,
        }
    }
}

/// How much of each suite runs, and where.
#[derive(Clone, Debug)]
pub struct Form {
    /// The suites run in full.
    pub long: bool,
    pub kernel: Kernel,
    /// The top directory of the checkout.
    pub top: PathBuf,
}

impl Form {
    /// Returns the first value in the short form, and the second in the long form.
    pub fn pick<T>(&self, short: T, long: T) -> T {
        if self.long {
            long
        } else {
            short
        }
    }

    /// Returns a path below the directory of outputs.
    pub fn built(&self, path: &str) -> String {
        self.top.join("build").join(path).display().to_string()
    }
}

/// A suite: tests that run by one name.
#[derive(Clone, Debug)]
pub struct Suite {
    pub name: &'static str,
    pub runs: &'static [Runs],
    pub needs: &'static [Need],
    /// Time after which the long form on the stock kernel counts as hung. It is generous, because
    /// other suites run at the same time: it ends hangs, and asserts no speed.
    pub limit: Duration,
    /// What the suite tests, in at most 120 characters.
    pub about: &'static str,
    pub steps: fn(&Form) -> Vec<Step>,
}

impl Suite {
    /// Returns the limit with this kernel.
    pub fn limit_on(&self, kernel: Kernel) -> Duration {
        self.limit * kernel.slowness()
    }
}

/// Returns a number of minutes.
pub const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}
