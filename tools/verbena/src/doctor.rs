// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbena doctor`: prints what guests lack on this machine.

use crate::guest_run::{GuestEvent, GuestRun, GuestRunEnd};
use crate::nodes::print;
use crate::progress::StatusLine;
use clap::Args;
use std::time::Instant;
use verbena_vm::doctor::{examine, works, Finding, Need, State};
use verbena_vm::installation::{Installation, Source};
use verbena_vm::run_directory::{new_logs, writable_runs};
use verbena_vm::signals::Signals;

/// Seconds from power-on in which a guest boots on any machine.
const BOOT_LIMIT_S: u32 = 300;

/// The command line of `verbena doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Number of guests that have to run
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_nodes)]
    nodes: usize,
    /// Memory of each guest in MB
    #[arg(long, value_name = "MB", default_value_t = 2048)]
    mem: u32,
    /// Also boot a guest once, which finds parts that exist and do not work
    #[arg(long)]
    deep: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

fn parse_nodes(text: &str) -> Result<usize, String> {
    let most = verbena_vm::options::MAX_GUESTS;
    let number = text.parse().ok().filter(|n| (1..=most).contains(n));
    number.ok_or_else(|| format!("there are 1 to {most} guests"))
}

/// Prints the findings. Returns 0 if `verbena run` will work, else 1.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn run(args: &DoctorArgs) -> Result<u8, String> {
    let mut findings = examine(Need {
        guests: args.nodes,
        memory_mb: args.mem,
    });
    if args.deep && works(&findings) {
        findings.push(boot(args.mem).unwrap_or_else(|e| missing_guest(&[e])));
    }
    let can_run = works(&findings);
    let text = match args.json {
        true => {
            let object = serde_json::json!({ "works": can_run, "findings": findings });
            format!("{object:#}\n")
        }
        false => describe(&findings),
    };
    print(&text)?;
    Ok(if can_run { 0 } else { 1 })
}

/// Boots a guest, and looks for its device.
fn boot(memory_mb: u32) -> Result<Finding, String> {
    let source = Source::of_this_program()?;
    let logs = new_logs(&writable_runs(&Installation::read(&source.file())?.runs)?)?;
    let arguments = [
        format!("--mem={memory_mb}"),
        format!("--timeout={BOOT_LIMIT_S}"),
        String::from("--"),
        String::from("ibv_devinfo -d verbena0 >/dev/null"),
    ];
    let guest = GuestRun {
        installation: &source.file(),
        logs: &logs,
        arguments: arguments.map(Into::into).to_vec(),
    };
    let (began, mut lines, mut status) = (Instant::now(), Vec::new(), StatusLine::default());
    let ended = guest.run(&Signals::catch()?, |event| match event {
        GuestEvent::Error(line) => lines.push(String::from(line)),
        GuestEvent::Output(_) => {}
        GuestEvent::Tick => {
            status.show(&format!("a guest boots: {} s", began.elapsed().as_secs()));
        }
    });
    status.show("");
    let seconds = began.elapsed().as_secs();
    Ok(match ended? {
        GuestRunEnd::Ended(0) => Finding::ok(
            "guest",
            format!("a guest has booted and has used its device, in {seconds} s"),
        ),
        GuestRunEnd::Ended(_) => {
            lines.push(format!("logs: {}", logs.display()));
            missing_guest(&lines)
        }
        GuestRunEnd::Interrupted(signal) => missing_guest(&[format!("ended by {signal}")]),
    })
}

fn missing_guest(lines: &[String]) -> Finding {
    Finding::missing(
        "guest",
        format!("a guest does not run: {}", lines.join("; ")),
        "make the installation again: in a checkout by `scripts/build installation`, else by installing the package again",
    )
}

fn describe(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.name.len()).max();
    let width = width.unwrap_or(0);
    let mut text = String::new();
    for Finding {
        name,
        state,
        found,
        cost,
        remedy,
    } in findings
    {
        let state = match state {
            State::Ok => "ok",
            State::Poor => "poor",
            State::Missing => "missing",
        };
        text += &format!("{state:7}  {name:width$}  {found}\n");
        for (label, more) in [("cost", cost), ("to do", remedy)] {
            if let Some(more) = more {
                text += &format!("{:7}  {:width$}  {label}: {more}\n", "", "");
            }
        }
    }
    text += match works(findings) {
        true => "`verbena run` will work\n",
        false => "`verbena run` will not work\n",
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lack_has_its_cost_and_what_to_do() {
        let findings = [
            Finding::ok("a", "there"),
            Finding::poor("long", "less", "slow", "buy"),
        ];
        let expected = "\
ok       a     there
poor     long  less
               cost: slow
               to do: buy
`verbena run` will work
";
        assert_eq!(describe(&findings), expected);
        let text = describe(&[Finding::missing("c", "none", "buy")]);
        assert!(text.ends_with("will not work\n"), "{text}");
    }
}
