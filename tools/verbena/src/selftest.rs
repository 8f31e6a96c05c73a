// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbena selftest`: runs the short guest suites on the installed Verbena, and says what failed in a
//! form that can be posted.
//!
//! [`suites`] are the commands in the guests, [`outcome`] reads what they print, and [`report`] makes
//! the texts.

mod outcome;
mod report;
mod suites;

use crate::args::AcceleratorName;
use crate::guest_run::{without_guest, GuestEvent, GuestRun, GuestRunEnd};
use crate::host::{GuestFacts, HostFacts};
use crate::nodes::print;
use crate::progress::StatusLine;
use clap::Args;
use outcome::{Outcome, SuiteOutcome};
use report::Report;
use std::path::{Path, PathBuf};
use std::time::Instant;
use suites::Suite;
use verbena_vm::options::MAX_GUESTS;
use verbena_vm::run_directory::{new_logs, writable_runs};
use verbena_vm::signals::Signals;
use verbena_vm::Installation;

/// The command line of `verbena selftest`.
#[derive(Args, Debug)]
pub struct SelftestArgs {
    /// The suites to run [default: all]
    #[arg(value_name = "SUITE", value_enum)]
    suites: Vec<Suite>,
    /// Guests of the suite `pair`. With 1, the suite is left out
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = parse_nodes)]
    nodes: usize,
    /// Only tests whose name contains this text. Needs one SUITE, `guest` or `pair` (of which then only the
    /// stock programs run). May be repeated
    #[arg(long, value_name = "TEXT")]
    filter: Vec<String>,
    /// Write the results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Virtual CPUs of each guest
    #[arg(long, value_name = "N", default_value_t = 2)]
    cpus: u32,
    /// Memory of each guest in MB
    #[arg(long, value_name = "MB", default_value_t = 2048)]
    mem: u32,
    /// What executes the guests' instructions [default: kvm where it works, else tcg]
    #[arg(long, value_name = "KIND")]
    accel: Option<AcceleratorName>,
    /// End a suite S seconds after the power-on of its guests
    #[arg(long, value_name = "S", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// More arguments for the NIC (verbena-nic), split at blanks. May be repeated
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    nic_args: Vec<String>,
    /// More arguments for the guests' kernel, split at blanks. May be repeated
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    kernel_args: Vec<String>,
    /// Directory for the logs [default: a new one, which the results name]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
}

fn parse_nodes(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| (1..=MAX_GUESTS).contains(n));
    number.ok_or_else(|| format!("there are 1 to {MAX_GUESTS} guests"))
}

impl SelftestArgs {
    fn chosen(&self) -> Result<Vec<Suite>, String> {
        let suites: Vec<Suite> = Suite::ALL
            .into_iter()
            .filter(|suite| self.suites.is_empty() || self.suites.contains(suite))
            .filter(|suite| *suite != Suite::Pair || self.nodes > 1)
            .collect();
        if suites.is_empty() {
            return Err(String::from(
                "the suite pair needs two guests at least: use --nodes 2",
            ));
        }
        match (self.filter.is_empty(), suites.as_slice()) {
            (true, _) | (false, [Suite::Guest | Suite::Pair]) => Ok(suites),
            _ => Err(String::from(
                "--filter needs one suite, guest or pair, as in `verbena selftest guest --filter ops/`",
            )),
        }
    }

    /// Returns the options of `verbena run` that all suites have.
    fn run_options(&self) -> Vec<String> {
        let mut options = vec![
            format!("--cpus={}", self.cpus),
            format!("--mem={}", self.mem),
            format!("--timeout={}", self.timeout),
        ];
        if let Some(accelerator) = self.accel {
            options.push(format!("--accel={}", accelerator.kind()));
        }
        for (name, values) in [("nic", &self.nic_args), ("kernel", &self.kernel_args)] {
            options.extend(values.iter().map(|value| format!("--{name}-args={value}")));
        }
        options
    }
}

/// Runs the suites, and prints their results. Returns 0 if all tests passed, 1 if a test failed or a
/// suite did not end, and 128 plus the number of a signal that has ended the suites.
///
/// # Errors
///
/// No guest can run, or a file cannot be written.
pub fn run(args: &SelftestArgs) -> Result<u8, String> {
    let suites = args.chosen()?;
    let accelerator = args.accel.map(AcceleratorName::kind);
    let source = verbena_vm::make_parts(accelerator)?;
    let installation = Installation::read(&source.file())?;
    let host = HostFacts::collect(&installation, accelerator)?;
    let logs = logs(args.run_dir.as_deref(), &installation)?;
    let signals = Signals::catch()?;
    let mut report = Report::new(host, logs);
    for suite in suites {
        let Some(outcome) = run_suite(args, suite, &source.file(), &mut report, &signals)? else {
            return Ok(INTERRUPTED);
        };
        print(&report::line(&outcome))?;
        report.outcomes.push(outcome);
    }
    for (file, text) in [(&args.json, report.json()), (&args.junit, report.junit())] {
        if let Some(file) = file {
            std::fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))?;
        }
    }
    print(&report.conclusion())?;
    Ok(u8::from(!report.is_passed()))
}

/// Exit status after SIGINT.
const INTERRUPTED: u8 = 130;

fn logs(chosen: Option<&Path>, installation: &Installation) -> Result<PathBuf, String> {
    match chosen {
        None => new_logs(&writable_runs(&installation.runs)?),
        Some(logs) => std::fs::create_dir_all(logs)
            .and_then(|()| std::fs::canonicalize(logs))
            .map_err(|e| format!("--run-dir {}: {e}", logs.display())),
    }
}

/// Runs a suite. Returns `None` if a signal has ended it.
fn run_suite(
    args: &SelftestArgs,
    suite: Suite,
    installation: &Path,
    report: &mut Report,
    signals: &Signals,
) -> Result<Option<SuiteOutcome>, String> {
    let logs = report.logs.join(suite.name());
    let mut arguments = args.run_options();
    arguments.extend(suite.arguments(args.nodes, &args.filter));
    let guests = GuestRun {
        installation,
        logs: &logs,
        arguments: arguments.into_iter().map(Into::into).collect(),
    };
    let began = Instant::now();
    let (mut outcome, mut facts) = (Outcome::default(), GuestFacts::default());
    let mut status_line = StatusLine::default();
    let ended = guests.run(signals, |event| {
        match event {
            GuestEvent::Output(line) => {
                if !facts.take(without_guest(line)) {
                    outcome.take(line);
                }
            }
            GuestEvent::Error(line) => outcome.take_error(line),
            GuestEvent::Tick => {}
        }
        let seconds = began.elapsed().as_secs();
        status_line.show(&format!(
            "{}: {} ({seconds} s)",
            suite.name(),
            outcome.counts()
        ));
    });
    status_line.show("");
    if facts != GuestFacts::default() {
        report.guest = facts;
    }
    Ok(match ended? {
        GuestRunEnd::Ended(status) => {
            let suite = (suite, suite.count_lines(args.nodes, &args.filter));
            Some(outcome.finish(suite, status, began.elapsed(), logs))
        }
        GuestRunEnd::Interrupted(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct TestArgs {
        #[command(flatten)]
        selftest: SelftestArgs,
    }

    fn parse(line: &[&str]) -> SelftestArgs {
        let words = std::iter::once("selftest").chain(line.iter().copied());
        TestArgs::try_parse_from(words).unwrap().selftest
    }

    #[test]
    fn suites_are_chosen_by_name_and_run_in_their_order() {
        let chosen = |line: &[&str]| parse(line).chosen();
        assert_eq!(chosen(&[]).unwrap(), Suite::ALL);
        let two = [Suite::Guest, Suite::Pair];
        assert_eq!(chosen(&["pair", "guest"]).unwrap(), two);
        let single = chosen(&["--nodes", "1"]).unwrap();
        assert_eq!(single, [Suite::Guest, Suite::Kernel]);
        let error = chosen(&["pair", "--nodes", "1"]).unwrap_err();
        assert!(error.ends_with("--nodes 2"), "{error}");
        for bad in [&["--filter", "a"][..], &["kernel", "--filter", "a"]] {
            assert!(chosen(bad)
                .unwrap_err()
                .starts_with("--filter needs one suite"));
        }
        assert!(chosen(&["pair", "--filter", "a"]).is_ok());
    }

    #[test]
    fn options_of_the_guests_are_passed_on() {
        let args = parse(&["--accel", "tcg", "--nic-args", "--wire-local --drop 5"]);
        let options = args.run_options();
        let last = ["--accel=tcg", "--nic-args=--wire-local --drop 5"];
        assert_eq!(options[3..], last);
    }
}
