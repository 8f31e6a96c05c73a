// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbena doctor`: prints what guests lack on this machine.

use crate::nodes::print;
use clap::Args;
use verbena_vm::doctor::{examine, works, Finding, Need, State};

/// The command line of `verbena doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Number of guests that have to run
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_nodes)]
    nodes: usize,
    /// Memory of each guest in MB
    #[arg(long, value_name = "MB", default_value_t = 2048)]
    mem: u32,
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
    let findings = examine(Need {
        guests: args.nodes,
        memory_mb: args.mem,
    });
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
