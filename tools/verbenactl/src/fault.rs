// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbenactl fault`: rules that inject faults.

use crate::{client, toml, why};
use clap::Subcommand;
use serde_json::Value;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};
use verbena_faults::RuleSet;
use verbena_protocol::{read_rules, ControlRequest, RulesReply, MAX_REQUEST_BYTES};

/// Largest file of rules, in bytes. The request with the rules is limited by [`MAX_REQUEST_BYTES`], but
/// it does not contain the comments of the file.
const MAX_FILE_BYTES: u64 = 16 * MAX_REQUEST_BYTES;

/// A command about rules.
#[derive(Subcommand, Debug)]
pub enum FaultCommand {
    /// Add all rules of a file, or none if one of them is refused
    Add {
        /// File in TOML, or in JSON if it begins with a brace; - for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Wait, and remove the rules when this command ends, for whatever reason
        #[arg(long)]
        while_connected: bool,
    },
    /// Print the rules, and how often each matched and fired
    List,
    /// Remove a rule
    Remove {
        /// Name of the rule
        name: String,
    },
    /// Remove all rules
    Clear,
    /// Print the summary, and fail if a rule that is not optional never fired
    Check,
    /// Print the seed, the rules with all defaults, how often each fired, and the commands that add the same rules again
    Summary,
    /// Print why a queue pair is in its state, with the rules that contributed (as `verbenactl why`)
    Why {
        /// Number of the queue pair, in decimal or 0x...
        #[arg(value_name = "QPN", value_parser = crate::parse_number)]
        number: u32,
    },
}

/// Reads the rules of a file.
fn read(file: &Path) -> Result<RuleSet, String> {
    let mut bytes = Vec::new();
    let open = || -> io::Result<Box<dyn Read>> {
        if file == Path::new("-") {
            return Ok(Box::new(io::stdin()));
        }
        Ok(Box::new(std::fs::File::open(file)?))
    };
    let got = open().and_then(|from| from.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
    let named = |e: String| format!("{}: {e}", file.display());
    got.map_err(|e| named(e.to_string()))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(named(format!(
            "is longer than {MAX_FILE_BYTES} bytes, the limit for a file of rules"
        )));
    }
    read_rules(&bytes).map_err(named)
}

/// Runs the command and returns the rules that the NIC has afterwards.
///
/// # Errors
///
/// A file is wrong, the NIC refuses the rules, or the check fails.
pub fn run(
    socket: &Path,
    fault: &FaultCommand,
    json: bool,
    show: impl Fn(&RulesReply) -> Result<String, String>,
) -> Result<String, String> {
    let request = match fault {
        FaultCommand::Add {
            file,
            while_connected,
        } => {
            let request = ControlRequest::FaultAdd {
                set: read(file)?,
                while_connected: *while_connected,
            };
            if *while_connected {
                return add_while_connected(socket, request, show);
            }
            request
        }
        FaultCommand::List | FaultCommand::Check | FaultCommand::Summary => ControlRequest::Faults,
        FaultCommand::Remove { name } => ControlRequest::FaultRemove { name: name.clone() },
        FaultCommand::Clear => ControlRequest::FaultClear,
        FaultCommand::Why { number } => {
            return why::explain_qp(&why::load_history(Some(socket), None)?, *number, json);
        }
    };
    let reply: RulesReply = client::request(socket, request)?;
    let text = show(&reply)?;
    if matches!(fault, FaultCommand::Check) {
        if reply.rules.is_empty() {
            return Err(
                "there are no rules to check: `verbenactl fault add FILE` adds them".into(),
            );
        }
        let idle: Vec<&str> = reply
            .never_fired()
            .map(|status| status.rule.name.as_str())
            .collect();
        if !idle.is_empty() {
            crate::print(&text)?;
            return Err(format!("never fired: {}", idle.join(", ")));
        }
    }
    Ok(text)
}

/// Adds rules and waits until the NIC closes the connection. A user who wants to remove the rules
/// earlier ends this process.
fn add_while_connected(
    socket: &Path,
    request: ControlRequest,
    show: impl Fn(&RulesReply) -> Result<String, String>,
) -> Result<String, String> {
    let (reply, mut reader) = client::request_stream::<RulesReply>(socket, request)?;
    crate::print(&show(&reply)?)?;
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|length| length > 0) {}
    Err(String::from(
        "the NIC closed the connection, and the rules ended with it",
    ))
}

/// Formats rules for people.
pub fn table(reply: &Value) -> String {
    let mut out = String::new();
    let rules = reply["rules"].as_array();
    for rule in rules.into_iter().flatten() {
        let name = rule["name"].as_str().unwrap_or("?");
        let _ = writeln!(
            out,
            "{name}: matched {}, fired {}: {} of {}",
            rule["matched"], rule["fired"], rule["action"], rule["match"]
        );
    }
    if out.is_empty() {
        out.push_str("there are no rules\n");
    }
    out
}

/// Returns the formatter for the answer to a command.
pub fn formatter(command: &FaultCommand) -> fn(&Value) -> String {
    match command {
        FaultCommand::Check | FaultCommand::Summary => summary,
        _ => table,
    }
}

/// Formats the result of a run, and the commands that add its rules again. The rules of each seed
/// are a file of their own.
fn summary(reply: &Value) -> String {
    let reply: RulesReply = match serde_json::from_value(reply.clone()) {
        Ok(reply) => reply,
        Err(e) => return format!("{e}\n"),
    };
    let mut seeds: Vec<u64> = reply.rules.iter().map(|status| status.seed).collect();
    seeds.dedup();
    let mut out = String::new();
    let mut again = String::from("\nThe same rules again:\n");
    let mut seen = HashSet::new();
    for seed in seeds.into_iter().filter(|seed| seen.insert(*seed)) {
        let _ = writeln!(out, "seed {seed}");
        let of_seed = || reply.rules.iter().filter(|status| status.seed == seed);
        for status in of_seed() {
            let must = match status.rule.optional {
                true => "it need not fire",
                false => "it has to fire",
            };
            let often = status.rule.describe_frequency();
            let (name, matched, fired) = (&status.rule.name, status.matched, status.fired);
            let _ = writeln!(
                out,
                "{name}: matched {matched}, fired {fired}; fires on {often}; {must}"
            );
        }
        let set = RuleSet {
            version: verbena_faults::VERSION,
            seed,
            rule: of_seed().map(|status| status.rule.expanded()).collect(),
        };
        match toml::rules(&set) {
            Ok(file) => {
                let _ = write!(again, "verbenactl fault add - <<'RULES'\n{file}RULES\n");
            }
            Err(e) => return format!("{e}\n"),
        }
    }
    match out.is_empty() {
        true => table(&Value::Null),
        false => out + &again,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use verbena_protocol::read_toml as parse;

    #[test]
    fn each_rule_has_a_line() {
        let reply = json!({ "rules": [
            { "name": "x", "matched": 5, "fired": 1, "action": "drop", "match": { "nth": 3 } },
        ] });
        assert_eq!(
            table(&reply),
            "x: matched 5, fired 1: \"drop\" of {\"nth\":3}\n"
        );
        assert_eq!(table(&json!({ "rules": [] })), "there are no rules\n");
    }

    #[test]
    fn a_summary_has_the_rules_of_each_seed_as_a_file() {
        let rule = |name: &str, seed: u64, fired: u64| {
            json!({ "name": name, "match": { "opcode": "SEND Last", "nth": 3 }, "action": "drop",
                "seed": seed, "while_connected": false, "matched": 9, "fired": fired })
        };
        let reply = json!({ "rules": [rule("a", 7, 1), rule("b", 0, 0), rule("c", 7, 1)] });
        let text = summary(&reply);
        let (seven, zero) = (
            text.find(
                "seed 7\na: matched 9, fired 1; fires on match number 3, once; it has to fire\nc: ",
            ),
            text.find("seed 0\nb: "),
        );
        assert!(seven < zero && seven.is_some(), "{text}");
        let files: Vec<&str> = text.split("<<'RULES'\n").skip(1).collect();
        let files: Vec<RuleSet> = files
            .iter()
            .map(|file| parse(file.split("RULES\n").next().unwrap()).unwrap())
            .collect();
        let names = |set: &RuleSet| -> Vec<String> {
            set.rule.iter().map(|rule| rule.name.clone()).collect()
        };
        assert_eq!(
            (files[0].seed, names(&files[0])),
            (7, vec!["a".into(), "c".into()])
        );
        assert_eq!((files[1].seed, names(&files[1])), (0, vec!["b".into()]));
        let matches = &files[0].rule[0].matches;
        assert!(
            matches.direction.is_some() && matches.nth == Some(3),
            "{matches:?}"
        );
        assert_eq!(matches.opcode[0], "SEND Last");
        assert_eq!(summary(&json!({ "rules": [] })), "there are no rules\n");
    }

    #[test]
    fn an_error_names_the_file() {
        let error = read(Path::new("/nonexistent")).unwrap_err();
        assert!(error.starts_with("/nonexistent: "), "{error}");
        let endless = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(
            endless,
            "/dev/zero: is longer than 1048576 bytes, the limit for a file of rules"
        );
    }
}
