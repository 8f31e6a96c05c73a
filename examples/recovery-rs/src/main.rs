// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The recovery flows of Documentation/recovery.md over libibverbs, without `unsafe`:
//! `verbena-recovery FLOW careless|careful`.
//!
//! A flow has the name of the C scenario that fails by the same rule (`examples/FLOW/rule.toml`).
//! All flows do the same work: they move pieces of memory from one queue pair to another of the
//! same process, and compare each byte at the end. Without the rule, both forms do all of the work.
//! With the rule, the careful form does it, and the careless form, which has no recovery, does not.
//!
//! The exit status is 0 if all of the work is done, 1 if not, and 2 if a verb refuses an operation.
mod flows;
mod verbs;

use std::process::ExitCode;

const USAGE: &str = "usage: verbena-recovery FLOW careless|careful";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (name, recovers) = match args[..] {
        [name, "careless"] => (name, false),
        [name, "careful"] => (name, true),
        _ => ("", false),
    };
    let Some((_, flow)) = flows::ALL.iter().find(|(known, _)| *known == name) else {
        let names: Vec<&str> = flows::ALL.iter().map(|(known, _)| *known).collect();
        eprintln!("{USAGE}\nFLOW is one of: {}", names.join(", "));
        return ExitCode::from(2);
    };
    match flow(recovers) {
        Ok(true) => {
            println!("all work is done");
            ExitCode::SUCCESS
        }
        Ok(false) => {
            println!("the work has failed");
            ExitCode::from(1)
        }
        Err(refused) => {
            println!("{refused}");
            ExitCode::from(2)
        }
    }
}
