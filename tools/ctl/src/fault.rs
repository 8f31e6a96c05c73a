// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbenactl fault`: rules of what is to go wrong.

use crate::client;
use clap::Subcommand;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{self, BufRead, Read, Write as _};
use std::path::{Path, PathBuf};
use verbena_control::{read_rules, Request, ToldRules, MAX_REQUEST};
use verbena_faults::RuleSet;

/// The longest file of rules. As a request it may be no longer than [`MAX_REQUEST`]; comments do not get there.
const MAX_FILE: u64 = 16 * MAX_REQUEST;

/// What is asked for.
#[derive(Subcommand, Debug)]
pub enum Fault {
    /// Add the rules of a file, all or none
    Add {
        /// TOML, or JSON if it begins with a brace; - is standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Wait, and have the rules go when this ends, however it does
        #[arg(long)]
        while_connected: bool,
    },
    /// The rules, with how often each matched and fired
    List,
    /// Remove a rule
    Remove {
        /// Its name
        name: String,
    },
    /// Remove all rules
    Clear,
    /// Fail if a rule never fired that is not optional
    Check,
}

/// The rules of a file.
fn read(file: &Path) -> Result<RuleSet, String> {
    let mut bytes = Vec::new();
    let open = || -> io::Result<Box<dyn Read>> {
        if file == Path::new("-") {
            return Ok(Box::new(io::stdin()));
        }
        Ok(Box::new(std::fs::File::open(file)?))
    };
    let got = open().and_then(|from| from.take(MAX_FILE + 1).read_to_end(&mut bytes));
    let named = |e: String| format!("{}: {e}", file.display());
    got.map_err(|e| named(e.to_string()))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(named(format!("is longer than {MAX_FILE} bytes")));
    }
    read_rules(&bytes).map_err(named)
}

/// Does it, and says what rules there are then.
///
/// # Errors
///
/// A file is wrong, the NIC does not want the rules, or the check fails.
pub fn run(
    socket: &Path,
    fault: &Fault,
    show: impl Fn(&ToldRules) -> Result<String, String>,
) -> Result<String, String> {
    let request = match fault {
        Fault::Add {
            file,
            while_connected,
        } => {
            let request = Request::FaultAdd {
                set: read(file)?,
                while_connected: *while_connected,
            };
            if *while_connected {
                return hold(socket, request, show);
            }
            request
        }
        Fault::List | Fault::Check => Request::Faults,
        Fault::Remove { name } => Request::FaultRemove { name: name.clone() },
        Fault::Clear => Request::FaultClear,
    };
    let told: ToldRules = client::ask_for(socket, request)?;
    let text = show(&told)?;
    if matches!(fault, Fault::Check) {
        let idle: Vec<&str> = told.idle().map(|told| told.rule.name.as_str()).collect();
        if !idle.is_empty() {
            return Err(format!("never fired: {}\n{text}", idle.join(", ")));
        }
    }
    Ok(text)
}

/// Adds rules and waits until the NIC goes. Whoever wants them to go earlier ends this process.
fn hold(
    socket: &Path,
    request: Request,
    show: impl Fn(&ToldRules) -> Result<String, String>,
) -> Result<String, String> {
    let (told, mut reader) = client::open_for::<ToldRules>(socket, request)?;
    let mut out = io::stdout();
    let said = out
        .write_all(show(&told)?.as_bytes())
        .and_then(|()| out.flush());
    said.map_err(|e| e.to_string())?;
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|length| length > 0) {}
    Err(String::from("the NIC has gone"))
}

/// Rules for people.
pub fn table(told: &Value) -> String {
    let mut out = String::new();
    let rules = told["rules"].as_array();
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rules_are_told_in_a_line_each() {
        let told = json!({ "rules": [
            { "name": "x", "matched": 5, "fired": 1, "action": "drop", "match": { "nth": 3 } },
        ] });
        assert_eq!(
            table(&told),
            "x: matched 5, fired 1: \"drop\" of {\"nth\":3}\n"
        );
        assert_eq!(table(&json!({ "rules": [] })), "there are no rules\n");
    }

    #[test]
    fn a_file_is_named_by_what_is_wrong_with_it() {
        let error = read(Path::new("/nonexistent")).unwrap_err();
        assert!(error.starts_with("/nonexistent: "), "{error}");
        let endless = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(endless, "/dev/zero: is longer than 1048576 bytes");
    }
}
