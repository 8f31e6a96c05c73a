// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The commands for guests that run: exec, cp, down, ps.

use crate::args::command_text;
use crate::node_args::{CopyArgs, CopyPlace, DownArgs, ExecArgs, ListArgs};
use std::io::{self, IsTerminal, Read, Write};
use verbena_vm::copy;
use verbena_vm::node_client::NodeCommand;
use verbena_vm::node_request::NodeState;
use verbena_vm::node_set::{self, NodeSet};
use verbena_vm::signals::Signals;
use verbena_vm::terminal::RawTerminal;

/// Runs a command in a node, and returns its exit status.
///
/// # Errors
///
/// The node cannot run it.
pub fn exec(args: &ExecArgs) -> Result<u8, String> {
    let set = node_set::find(args.nodes.name.as_deref())?;
    let signals = Signals::catch()?;
    let directory = std::env::current_dir().unwrap_or_default();
    let terminal = match args.terminal {
        true => Some(RawTerminal::enter()?),
        false => None,
    };
    let input: Option<Box<dyn Read + Send>> = match io::stdin().is_terminal() && !args.terminal {
        true => None,
        false => Some(Box::new(io::stdin())),
    };
    let command = NodeCommand {
        set: &set,
        node: args.node,
        command: &command_text(&args.command),
        directory: &directory.to_string_lossy(),
        terminal: terminal.as_ref(),
    };
    let warn = |why: &str| warn(&format!("warning: {why}"));
    command.run(input, |to, bytes| to.write(bytes), Some(signals), warn)
}

/// Copies a file or a directory.
///
/// # Errors
///
/// Neither or both are in a node, or it cannot be copied.
pub fn copy(args: &CopyArgs) -> Result<u8, String> {
    let set = || node_set::find(args.nodes.name.as_deref());
    match (&args.source, &args.destination) {
        (CopyPlace::Here(from), CopyPlace::Node { node, path }) => {
            copy::to_node(&set()?, *node, from, path)?;
        }
        (CopyPlace::Node { node, path }, CopyPlace::Here(to)) => {
            copy::from_node(&set()?, *node, path, to)?;
        }
        (CopyPlace::Here(_), CopyPlace::Here(_)) => {
            return Err(String::from(
                "neither SOURCE nor DESTINATION is in a node: write one as NODE:PATH, for example vm1:/tmp",
            ))
        }
        (CopyPlace::Node { .. }, CopyPlace::Node { .. }) => {
            return Err(String::from(
                "SOURCE and DESTINATION are both in nodes: copy to this machine first, or use scp in a node",
            ))
        }
    }
    Ok(0)
}

/// Ends nodes, prints what was wrong with them, and returns the exit status.
///
/// # Errors
///
/// There are no such nodes, or they do not end.
pub fn down(args: &DownArgs) -> Result<u8, String> {
    let sets = match args.all {
        true => node_set::running()
            .into_iter()
            .filter(|set| set.description.stays)
            .collect(),
        false => vec![node_set::find(args.nodes.name.as_deref())?],
    };
    let mut worst = 0;
    for set in sets {
        let (status, lines) = set.down()?;
        for line in &lines {
            warn(line);
        }
        if lines.iter().any(|line| line.starts_with("what happened: ")) {
            warn(&format!("again: {}", set.description.command_line));
        }
        worst = worst.max(status);
    }
    Ok(worst)
}

/// Prints the guests that run.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn list(args: &ListArgs) -> Result<u8, String> {
    let rows: Vec<Row> = node_set::running().iter().flat_map(rows).collect();
    let text = match args.json {
        true => {
            let objects: Vec<_> = rows.iter().map(Row::json).collect();
            format!("{}\n", serde_json::Value::from(objects))
        }
        false => describe_rows(&rows),
    };
    print(&text)?;
    Ok(0)
}

/// Writes a text to standard output. A reader that closes its pipe early is not an error.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn print(text: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {e}"))
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error.
pub fn warn(line: &str) {
    // A reader that is gone needs no line.
    let _ = writeln!(io::stderr(), "{line}");
}

/// A guest that runs, or has ended among nodes that run.
struct Row {
    name: String,
    node: usize,
    state: String,
    age_s: u64,
    trouble: Option<String>,
    logs: String,
}

fn rows(set: &NodeSet) -> Vec<Row> {
    let states = match set.description.stays {
        true => set.states(),
        false => Err(String::new()),
    };
    let numbers = 1..=set.description.guests;
    let row = |node: usize| {
        let (state, trouble) = match &states {
            Ok(states) => match states.get(node - 1) {
                Some(status) => (describe_state(status.state), status.trouble.clone()),
                None => ("unknown", None),
            },
            Err(why) if why.is_empty() => ("run", None),
            Err(why) => ("unknown", Some(why.clone())),
        };
        Row {
            name: set.description.name.clone(),
            node,
            state: String::from(state),
            age_s: set.age_s(),
            trouble,
            logs: set.description.logs.display().to_string(),
        }
    };
    numbers.map(row).collect()
}

fn describe_state(state: NodeState) -> &'static str {
    match state {
        NodeState::Booting => "booting",
        NodeState::Up => "up",
        NodeState::Ended => "ended",
    }
}

impl Row {
    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "name": self.name,
            "node": self.node,
            "state": self.state,
            "age_s": self.age_s,
            "trouble": self.trouble,
            "logs": self.logs,
        })
    }
}

fn describe_rows(rows: &[Row]) -> String {
    let mut lines = vec![["NAME", "NODE", "STATE", "AGE", "TROUBLE"].map(String::from)];
    for row in rows {
        lines.push([
            row.name.clone(),
            format!("vm{}", row.node),
            row.state.clone(),
            age(row.age_s),
            row.trouble.clone().unwrap_or_default(),
        ]);
    }
    table(&lines)
}

/// Returns lines whose cells are below each other.
pub fn table(lines: &[[String; 5]]) -> String {
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].len())
            .max()
            .unwrap_or(0)
    };
    let widths = [0, 1, 2, 3, 4].map(width);
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text += padded.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Describes a time in seconds.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_node() {
        let row = |name: &str, node, trouble: Option<&str>| Row {
            name: String::from(name),
            node,
            state: String::from("up"),
            age_s: 61,
            trouble: trouble.map(String::from),
            logs: String::from("/l"),
        };
        let text = describe_rows(&[
            row("default", 1, None),
            row("a", 2, Some("its NIC exited with 1")),
        ]);
        let expected = "\
NAME     NODE  STATE  AGE    TROUBLE
default  vm1   up     1 min
a        vm2   up     1 min  its NIC exited with 1
";
        assert_eq!(text, expected);
        assert_eq!(row("a", 2, None).json()["node"], 2);
    }

    #[test]
    fn ages_are_short() {
        let ages = [59, 60, 7199, 7200, 172_800].map(age);
        assert_eq!(ages, ["59 s", "1 min", "119 min", "2 h", "2 d"]);
    }
}
