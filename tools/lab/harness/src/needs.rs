// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes the needs of suites.

use crate::suite::{Kernel, Need, Suite};
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the needs of a suite on this kernel.
pub fn of(suite: &Suite, kernel: Kernel) -> Vec<Need> {
    let mut needs = suite.needs.to_vec();
    if kernel == Kernel::Debug && !needs.contains(&Need::Debug) {
        needs.push(Need::Debug);
    }
    needs
}

/// Makes a need by the scripts of the checkout. Returns whether it is made.
pub fn make(need: Need, top: &Path) -> bool {
    let (script, argument) = match need {
        Need::Tree => ("rootfs", "toolchain"),
        Need::Vm | Need::Arm64 => ("build", "all"),
        Need::Hostile => ("build", "hostile-nic"),
        Need::Installation => ("build", "installation"),
        Need::Debug => ("build", "module-debug"),
    };
    let mut command = Command::new(top.join("scripts").join(script));
    command.arg(argument).current_dir(top).stdin(Stdio::null());
    if need == Need::Arm64 {
        command.env("VERBENA_ARCH", "arm64");
    }
    if need == Need::Tree {
        // The name of the root is for other scripts.
        command.stdout(Stdio::null());
    }
    command.status().is_ok_and(|status| status.success())
}
