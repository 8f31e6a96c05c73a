// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds out what guests lack on this machine: what is missing, what that costs, how to get it.
//!
//! [`machine`] checks the machine, [`parts`] the files of the installation, and [`probe`] tries in
//! child processes what only an attempt can show.

pub mod machine;
pub mod parts;
pub mod probe;

use crate::installation::{Installation, Source};
use crate::run_directory::writable_runs;
use serde::Serialize;
use std::path::Path;

/// How a requirement is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is met.
    Ok,
    /// Guests run without it, at a cost.
    Poor,
    /// Guests cannot run.
    Missing,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the requirement.
    pub name: &'static str,
    /// How it is met.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What the lack costs, if it is not met.
    pub cost: Option<String>,
    /// How to get it, if it is not met.
    pub remedy: Option<String>,
}

impl Finding {
    /// Returns the result of a check that found all that is needed.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            state: State::Ok,
            found: found.into(),
            cost: None,
            remedy: None,
        }
    }

    /// Returns the result of a check that found less.
    pub fn poor(
        name: &'static str,
        found: impl Into<String>,
        cost: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name,
            state: State::Poor,
            found: found.into(),
            cost: Some(cost.into()),
            remedy: Some(remedy.into()),
        }
    }

    /// Returns the result of a check without whose requirement no guest runs.
    pub fn missing(
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Missing,
            ..Self::poor(name, found, "no guest can run", remedy)
        }
    }
}

/// The guests for which the machine is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Number of guests.
    pub guests: usize,
    /// Memory of each guest in MB.
    pub memory_mb: u32,
}

/// Checks everything. Builds nothing.
pub fn examine(need: Need) -> Vec<Finding> {
    let source = Source::of_this_program();
    let installation = source.and_then(|source| Installation::read(&source.file()));
    let mut findings = vec![
        machine::architecture(),
        machine::kvm(),
        machine::memory(need),
        match &installation {
            Ok(parts) if parts.is_in_place() => Finding::ok(
                "namespaces",
                "not needed: QEMU is installed on this machine itself",
            ),
            _ => probe::namespaces(),
        },
    ];
    match installation {
        Ok(parts) => {
            findings.push(Finding::ok("installation", "all parts exist"));
            findings.extend(parts::check(&parts));
            findings.push(probe::qemu(&parts.qemu_root));
            findings.extend(disk(&parts, need));
        }
        Err(e) => findings.push(missing_installation(e)),
    }
    findings
}

/// Says what to do about an installation that cannot be read. In a checkout, root's next run builds
/// it.
fn missing_installation(error: String) -> Finding {
    let remedy = match error.contains("scripts/build") {
        true => "the error above names the command",
        false => "let root run `scripts/build installation` in a checkout of Verbena, or name an installation by VERBENA_INSTALLATION",
    };
    Finding::missing("installation", error, remedy)
}

/// Checks the file systems on which a run writes.
fn disk(parts: &Installation, need: Need) -> Vec<Finding> {
    let initrd = std::fs::metadata(&parts.initrd).map_or(0, |found| found.len());
    let logs = match writable_runs(&parts.runs) {
        Ok(runs) => machine::disk("logs", &runs, machine::needed_for_logs(initrd, need.guests)),
        Err(e) => Finding::missing("logs", e, "set HOME, or use --run-dir DIR"),
    };
    let overlay = machine::needed_for_overlays(need.guests);
    vec![
        logs,
        machine::disk("disk of guests", Path::new("/var/tmp"), overlay),
        machine::disk("sockets", Path::new("/tmp"), machine::NEEDED_FOR_SOCKETS),
    ]
}

/// True if guests can run.
pub fn works(findings: &[Finding]) -> bool {
    findings
        .iter()
        .all(|finding| finding.state != State::Missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_run_unless_something_is_missing() {
        let ok = Finding::ok("a", "x");
        let poor = Finding::poor("b", "x", "slow", "buy one");
        let missing = Finding::missing("c", "x", "buy one");
        assert!(works(&[ok.clone(), poor.clone()]));
        assert!(!works(&[ok, poor, missing.clone()]));
        assert_eq!(missing.cost.as_deref(), Some("no guest can run"));
    }

    #[test]
    fn a_missing_installation_has_a_next_step() {
        let of = |error: &str| missing_installation(String::from(error)).remedy.unwrap();
        assert!(of("x cannot be read").contains("scripts/build installation"));
        assert!(of("root makes it by `scripts/build installation`").contains("above"));
    }
}
