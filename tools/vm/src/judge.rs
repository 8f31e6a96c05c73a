// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Judges a guest after its end: its status, its kernel log, its NIC.

use crate::complaints::{excused_crashes, first_complaint};
use crate::guest::{Guest, GuestEnd, Shared};
use crate::root::Places;
use regex::bytes::Regex;
use std::path::{Path, PathBuf};

/// Exit status of a run that failed although the command did not.
pub const FAILED: u8 = 125;
/// Exit status of a run that was ended after its time limit.
pub const TIMED_OUT: u8 = 124;
const SHOWN_LINES: usize = 15;

/// The judgement of a guest.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Exit status of this guest.
    pub status: u8,
    /// What the host found wrong: sentences without an end.
    pub reasons: Vec<String>,
    /// Lines for standard error.
    pub errors: Vec<String>,
    /// Crashes of processes that a test has declared to be bugs of the program.
    pub excused: Option<Regex>,
}

/// What is known of a guest that has ended.
struct Facts<'a> {
    /// Exit status of the command, if the guest reported one.
    status: Option<u8>,
    end: &'a GuestEnd,
    is_shell: bool,
    timeout_s: u64,
    /// The complaint of the kernel, and what was wrong with the NIC.
    troubles: Vec<String>,
}

/// The conclusion from [`Facts`].
#[derive(Debug, PartialEq, Eq)]
struct Conclusion {
    status: u8,
    reasons: Vec<String>,
    /// True if the logs may say why the guest has no status.
    needs_logs: bool,
    /// True if the user switched off the guest from its shell.
    is_switched_off: bool,
}

impl Facts<'_> {
    fn conclude(self) -> Conclusion {
        let Self {
            status,
            end,
            is_shell,
            timeout_s,
            troubles: mut reasons,
        } = self;
        let is_switched_off =
            is_shell && status.is_none() && *end == GuestEnd::Ended(0) && reasons.is_empty();
        match end {
            _ if is_switched_off => {}
            GuestEnd::Failed(reason) => reasons.push(reason.clone()),
            GuestEnd::TimedOut => {
                reasons.push(format!(
                    "the guest did not end within {timeout_s} s (--timeout)"
                ));
            }
            GuestEnd::Ended(code) if status.is_none() => {
                reasons.push(format!(
                    "the guest ended without a status (QEMU exit {code})"
                ));
            }
            GuestEnd::Ended(_) => {}
        }
        let is_timed_out = *end == GuestEnd::TimedOut;
        let code = match status {
            _ if is_timed_out => TIMED_OUT,
            Some(status @ 1..) => status,
            Some(0) if reasons.is_empty() => 0,
            _ => FAILED,
        };
        Conclusion {
            status: code,
            needs_logs: status.is_none() && !is_timed_out && !is_switched_off,
            reasons,
            is_switched_off,
        }
    }
}

/// Judges a guest that has ended. `nic_failure` is what was wrong with the end of its NIC.
pub fn judge(shared: &Shared<'_>, guest: &Guest<'_>, nic_failure: Option<String>) -> Verdict {
    let logs = &guest.places.logs;
    let kernel_log_path = logs.join("kernel.log");
    let kernel_log = std::fs::read(&kernel_log_path).unwrap_or_default();
    let nic_log = nic_log(shared, guest);
    let excused = excused_crashes(&kernel_log);
    let excuses: Vec<&Regex> = shared.run.expected().into_iter().chain(&excused).collect();
    let complaint = first_complaint(&kernel_log, &excuses);
    let mut troubles = Vec::new();
    troubles.extend(complaint.map(|line| format!("the guest's kernel complained: {line}")));
    troubles.extend(nic_failure.map(|failure| {
        format!(
            "the NIC {failure}, see {}",
            shared.places.on_host(&nic_log).display()
        )
    }));
    let unknown = GuestEnd::Ended(FAILED);
    let facts = Facts {
        status: reported_status(&logs.join("status")),
        end: guest.end.as_ref().unwrap_or(&unknown),
        is_shell: shared.run.is_shell_of(guest.number),
        timeout_s: shared.run.timeout_s.unwrap_or_default(),
        troubles,
    };
    let conclusion = facts.conclude();
    let who = match shared.run.guests {
        1 => String::new(),
        _ => format!("{}: ", shared.run.name(guest.number)),
    };
    let kernel_log_on_host = shared.places.on_host(&kernel_log_path);
    let mut errors: Vec<String> = conclusion
        .reasons
        .iter()
        .map(|reason| format!("error: {who}{reason}"))
        .collect();
    if conclusion.is_switched_off {
        errors.push(format!(
            "{who}the guest was switched off from the terminal (Ctrl-A x), so its shell has no exit status"
        ));
    } else if conclusion.needs_logs {
        for log in [logs.join("qemu.log"), nic_log, kernel_log_path] {
            errors.extend(Some(end_of_log(shared.places, &log)).filter(|text| !text.is_empty()));
        }
    }
    if !errors.is_empty() {
        errors.push(format!("kernel log: {}", kernel_log_on_host.display()));
    }
    Verdict {
        status: conclusion.status,
        reasons: conclusion.reasons,
        errors,
        excused,
    }
}

fn nic_log(shared: &Shared<'_>, guest: &Guest<'_>) -> PathBuf {
    match shared.run.has_shared_nic() {
        true => shared.places.logs.join("nic.log"),
        false => guest.places.logs.join("nic.log"),
    }
}

/// Returns the exit status that the guest has written.
fn reported_status(file: &Path) -> Option<u8> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns the last lines of a log for an error message.
pub fn end_of_log(places: &Places, log: &Path) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).replace('\r', "");
    let lines: Vec<&str> = text.lines().collect();
    if lines.is_empty() {
        return String::new();
    }
    let last = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
    let mut shown = format!("  the end of {}:", places.on_host(log).display());
    for line in last {
        shown += &format!("\n  | {line}");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn conclude(status: Option<u8>, end: &GuestEnd, troubles: &[&str]) -> Conclusion {
        let facts = Facts {
            status,
            end,
            is_shell: false,
            timeout_s: 9,
            troubles: troubles.iter().map(|&text| String::from(text)).collect(),
        };
        facts.conclude()
    }

    const ENDED: GuestEnd = GuestEnd::Ended(0);

    #[test]
    fn the_status_of_the_command_is_passed_on() {
        assert_eq!(conclude(Some(0), &ENDED, &[]).status, 0);
        assert_eq!(conclude(Some(3), &ENDED, &[]).status, 3);
        // The command has failed anyway.
        assert_eq!(conclude(Some(3), &ENDED, &["an oops"]).status, 3);
        assert_eq!(conclude(Some(0), &ENDED, &["an oops"]).status, FAILED);
    }

    #[test]
    fn a_timeout_comes_before_all_else() {
        let late = conclude(Some(3), &GuestEnd::TimedOut, &["an oops"]);
        assert_eq!((late.status, late.needs_logs), (TIMED_OUT, false));
        assert_eq!(
            late.reasons[1],
            "the guest did not end within 9 s (--timeout)"
        );
    }

    #[test]
    fn a_guest_without_a_status_shows_its_logs() {
        let crashed = conclude(None, &GuestEnd::Ended(1), &[]);
        assert_eq!((crashed.status, crashed.needs_logs), (FAILED, true));
        assert_eq!(
            crashed.reasons,
            ["the guest ended without a status (QEMU exit 1)"]
        );
        let silent = GuestEnd::Failed(String::from("the guest does not boot"));
        let silent = conclude(None, &silent, &[]);
        assert_eq!((silent.status, silent.needs_logs), (FAILED, true));
        assert_eq!(silent.reasons, ["the guest does not boot"]);
    }

    #[test]
    fn a_shell_can_be_switched_off() {
        let facts = |troubles: Vec<String>| Facts {
            status: None,
            end: &ENDED,
            is_shell: true,
            timeout_s: 0,
            troubles,
        };
        let off = facts(Vec::new()).conclude();
        assert!(off.is_switched_off && off.reasons.is_empty() && !off.needs_logs);
        assert_eq!(off.status, FAILED);
        assert!(
            !facts(vec![String::from("an oops")])
                .conclude()
                .is_switched_off
        );
    }

    #[test]
    fn the_end_of_a_log_is_shown_with_its_path_on_the_host() {
        let scratch = Scratch::new("end-of-log");
        let file = scratch.0.join("log");
        let lines: Vec<String> = (1..=20).map(|n| format!("line {n}\r\n")).collect();
        std::fs::write(&file, lines.concat()).unwrap();
        let places = Places::new(PathBuf::from("/host"), 0);
        let shown = end_of_log(&places, &file);
        assert!(
            !shown.contains("| line 5\n") && shown.ends_with("| line 19\n  | line 20"),
            "{shown}"
        );
        std::fs::remove_file(&file).unwrap();
        assert_eq!(end_of_log(&places, &file), "");
    }
}
