// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `verbena-guest-failnth`: every allocation of every verb fails once.
//!
//! A kernel with fault injection makes the n-th allocation of a thread fail when n is written to
//! `/proc/self/fail-nth`. For each [`verbs::Verb`], n grows from 1 until the verb ends without
//! having reached the failure. Each time the verb must end, in success or with an error, and the
//! result must be true: an object that the verb created can be destroyed, and an object that it
//! failed to destroy still exists. After all of its allocations have failed once, there must be as
//! many objects as before. The kernel's own checkers find other leaks and report other errors
//! (`scripts/vm --kernel debug`).
//!
//! Deviations of the core are listed in `Documentation/testing.md`.
mod inject;
mod verbs;

use crate::ffi::context::Context;
use crate::ffi::sys::{self, Errno};
use crate::outcome::ErrorContext as _;
use crate::rig::{self, Rig};
use crate::{runner, Fail};
use inject::{InjectedCall, Injector};
use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use verbena_lab_records::{Records, Verdict};

/// Limit for the allocations of a verb. A greater number means that the counting is wrong.
const MOST: u32 = 5000;

const HELP: &str = "usage: verbena-guest-failnth [--list] [--filter SUBSTR]...

Without a filter, all verbs but binding and unbinding the driver, which take an hour.

Prints `ok VERB N` (N allocations failed, one at a time), `FAILED VERB: reason` or
`skipped VERB: reason`, and at the end `N passed, N failed[, N skipped]`. As root, on a kernel with
fault injection.";

/// Runs the program `verbena-guest-failnth`.
pub fn main() -> ExitCode {
    let mut filters = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match (arg.as_str(), args.next()) {
            ("--list", None) => {
                verbs::VERBS.iter().for_each(|v| println!("{}", v.name));
                return ExitCode::SUCCESS;
            }
            ("--filter", Some(text)) => filters.push(text),
            // This option is for the child process that `verbs` starts.
            ("--close", Some(n)) => return close(n.parse().unwrap_or(0)),
            _ => {
                eprintln!("{HELP}");
                return ExitCode::from(2);
            }
        }
    }
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let mut records = Records::begin("failnth");
    let prepared = runner::set_env(None, None)
        .map_err(Fail::from)
        .and_then(|()| inject::enable().at("switching fault injection on"));
    if let Err(why) = prepared {
        println!("FAILED setup: {why:?}\n0 passed, 1 failed");
        records.test("setup", Verdict::Failed, &format!("{why:?}"), None);
        records.end();
        return ExitCode::FAILURE;
    }
    for verb in verbs::VERBS {
        let wanted = |f: &String| verb.name.contains(f.as_str());
        let chosen = match filters.is_empty() {
            true => !verbs::LONG.contains(&verb.name),
            false => filters.iter().any(wanted),
        };
        if !chosen {
            continue;
        }
        match sweep(verb) {
            Ok(summary) => {
                println!("ok {} {summary}", verb.name);
                records.test(verb.name, Verdict::Passed, "", None);
                passed += 1;
            }
            Err(Fail::Skipped(why)) => {
                println!("skipped {}: {why}", verb.name);
                records.test(verb.name, Verdict::Skipped, &why, None);
                skipped += 1;
            }
            Err(Fail::Failed(why)) => {
                println!("FAILED {}: {why}", verb.name);
                records.test(verb.name, Verdict::Failed, &why, None);
                failed += 1;
            }
        }
    }
    records.end();
    let tail = match skipped {
        0 => String::new(),
        n => format!(", {n} skipped"),
    };
    println!("{passed} passed, {failed} failed{tail}");
    ExitCode::from(u8::from(failed > 0))
}

/// Makes every allocation of a verb fail in turn. Returns the number of allocations and the results
/// of the verb.
fn sweep(verb: &verbs::InjectedVerb) -> Result<String, Fail> {
    sys::keep_freed_memory();
    let mut injector = Injector::new().at("opening fail-nth")?;
    let before = objects()?;
    let mut said: BTreeMap<String, u32> = BTreeMap::new();
    for n in 1..=MOST {
        let mut call = InjectedCall::new(&mut injector, n);
        (verb.run)(&mut call).at(&format!("allocation {n}"))?;
        ensure_eq!(
            sys::drop_failures(),
            0,
            "objects that could not be destroyed, allocation {n}"
        );
        let Some(outcome) = call.outcome() else {
            return Err(format!("the verb was not tried, allocation {n}").into());
        };
        if !outcome.injected {
            ensure_eq!(outcome.error, None, "the verb without a failure");
            ensure_eq!(objects()?, before, "objects that exist, before and after");
            let said: Vec<_> = said.iter().map(|(k, v)| format!("{k} {v}")).collect();
            return Ok(format!("{}: {}", n - 1, said.join(", ")));
        }
        let key = outcome
            .error
            .map_or("success".to_owned(), |e| e.to_string());
        *said.entry(key).or_default() += 1;
    }
    Err(format!("more than {MOST} allocations").into())
}

/// Returns the core's counts of this device's objects: `pd 3 cq 2 ...`.
fn objects() -> Result<String, Fail> {
    let out = Command::new("rdma")
        .args(["resource", "show", &rig::env().device])
        .output()?;
    ensure!(out.status.success(), "rdma resource show: {}", out.status);
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Runs the child of [`verbs::close`]: closes the device's file while objects exist. The exit
/// status shows whether the failure was reached.
fn close(n: u32) -> ExitCode {
    let run = || -> Result<std::convert::Infallible, Fail> {
        runner::set_env(None, None)?;
        let rig = Rig::new()?;
        let _everything = verbs::AllObjects::new(&rig)?;
        let mut injector = Injector::new()?;
        let before = objects()?;
        rig.ctx.close_under_all(|close| {
            let reached = injector.fail_nth(n, close);
            match objects() {
                Ok(after) if after != before => i32::from(reached.1) + verbs::CLOSED,
                after => {
                    eprintln!("objects after the close, as before: {after:?}");
                    1
                }
            }
        })
    };
    let Err(why) = run();
    eprintln!("{why:?}");
    ExitCode::FAILURE
}

/// Opens the device. The search for devices is complete before `by` is called.
fn open<T>(
    by: impl FnOnce(&dyn Fn() -> Result<std::sync::Arc<Context>, Errno>) -> Result<T, Errno>,
) -> Result<T, Fail> {
    Context::open_by(&rig::env().device, by).map_err(Fail::from)
}
