// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Ends all processes of a suite.
//!
//! A suite's processes are in many process groups, sessions and PID namespaces, and some of them have
//! lost their parents. What they share is their environment: the harness marks it with the variable
//! [`MARK`], which each of them inherits.

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The variable whose value names the suite of a process and the run.
pub const MARK: &str = "VERBENA_SUITE";
/// Time for scripts to remove their mounts and directories after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for processes to disappear after SIGKILL.
const DEATH_PATIENCE: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Ends all processes whose environment has this mark, and their descendants: first by SIGTERM, and
/// those that are left after ten seconds by SIGKILL. Returns the number of processes that are left.
pub fn end_marked(mark: &str) -> usize {
    signal_until_gone(mark, Signal::SIGTERM, PATIENCE, false);
    signal_until_gone(mark, Signal::SIGKILL, DEATH_PATIENCE, true);
    marked(mark).len()
}

/// Sends a signal to all marked processes, once or, with `again`, until they are gone.
fn signal_until_gone(mark: &str, signal: Signal, patience: Duration, again: bool) {
    let since = Instant::now();
    let mut sent = false;
    loop {
        let processes = marked(mark);
        if processes.is_empty() || since.elapsed() > patience {
            return;
        }
        if again || !sent {
            for process in processes {
                // A process that has ended meanwhile needs no signal.
                let _ = kill(Pid::from_raw(process), signal);
            }
            sent = true;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the marked processes and their descendants that still run.
fn marked(mark: &str) -> Vec<i32> {
    let wanted = format!("{MARK}={mark}").into_bytes();
    let (mut parents, mut found) = (HashMap::new(), Vec::new());
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let Some(parent) = running_parent(process) else {
            continue;
        };
        parents.insert(process, parent);
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment
            .split(|&byte| byte == 0)
            .any(|variable| variable == wanted)
        {
            found.push(process);
        }
    }
    let is_marked = |mut process: i32| loop {
        if found.contains(&process) {
            return true;
        }
        match parents.get(&process) {
            Some(&parent) if parent != process => process = parent,
            _ => return false,
        }
    };
    let mut all: Vec<i32> = parents.keys().copied().collect();
    all.retain(|&process| is_marked(process));
    all
}

/// Returns the parent of a process that runs. A zombie has ended, and waits only for its parent.
fn running_parent(process: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, in parentheses, may have blanks.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (state != "Z").then_some(parent)
}
