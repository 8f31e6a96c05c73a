// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The last lines of a run that failed: what happened, and where its recording is.
//!
//! `scripts/lib/vm-summary.sh`, which `scripts/vm` uses, has the same rules.

use crate::guest::{Guest, Shared};
use crate::judge::{Verdict, FAILED, TIMED_OUT};
use nix::sys::signal::Signal;
use regex::bytes::Regex;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

const LONGEST: usize = 200;
const LAST_LINES: usize = 40;

static CRASH: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"(?-u)[^ ]+\[[0-9]+\]: segfault at |traps: [^ ]+\[[0-9]+\] |[Oo]ut of memory: Killed process ";
    Regex::new(pattern).expect("the pattern is valid")
});
/// Parts of such a line that say nothing to a user.
static NOISE: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"(?-u)^\[ *[0-9.]+\] (traps: )?| ip:? ?[0-9a-f]+ sp:? ?[0-9a-f]+ error:? ?[0-9a-f]+| likely on CPU.*|, UID.*";
    Regex::new(pattern).expect("the pattern is valid")
});
/// A program that refuses an argument prints its usage after this line.
static REFUSED: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = "(?i-u)(unrecognized|unknown|invalid|illegal|ambiguous|unexpected) (option|argument|command|subcommand)|requires an argument";
    Regex::new(pattern).expect("the pattern is valid")
});

/// What happened in one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Happening {
    /// Nanoseconds since 1970.
    time_ns: u64,
    number: usize,
    has_recorded_error: bool,
    text: String,
}

/// Returns the last lines of a run, or none if nothing failed. The guest that failed first comes
/// first.
pub fn summarize(
    shared: &Shared<'_>,
    guests: &[Guest<'_>],
    verdicts: &[Verdict],
    status: u8,
) -> Vec<String> {
    let failed = if shared.run.is_shell { 0 } else { status };
    let mut happenings: Vec<Happening> = guests
        .iter()
        .zip(verdicts)
        .filter_map(|(guest, verdict)| summarize_guest(shared, guest, verdict, failed))
        .collect();
    happenings.sort_by_key(|happening| (happening.time_ns, happening.number));
    let Some(first) = happenings
        .iter()
        .find(|h| h.has_recorded_error)
        .or(happenings.first())
    else {
        return Vec::new();
    };
    let page = |number: usize| shared.places_of(number).logs.join("flight.html");
    let mut pages: Vec<_> = shared
        .run
        .numbers()
        .map(page)
        .filter(|page| page.exists())
        .collect();
    // The page of the guest that failed first comes first.
    pages.sort_by_key(|found| *found != page(first.number));
    let pages: Vec<String> = pages
        .iter()
        .map(|page| shared.places.on_host(page).display().to_string())
        .collect();
    let texts: Vec<&str> = happenings.iter().map(|h| h.text.as_str()).collect();
    let place = match pages.is_empty() {
        true => format!(
            "where: {}, the logs of the run; there is no recording",
            shared.places.logs_on_host.display()
        ),
        false => format!(
            "where: {}, and beside it flight.pcapng, flight.record",
            pages.join(", ")
        ),
    };
    vec![format!("what happened: {}", texts.join("; ")), place]
}

fn summarize_guest(
    shared: &Shared<'_>,
    guest: &Guest<'_>,
    verdict: &Verdict,
    failed: u8,
) -> Option<Happening> {
    let logs = &guest.places.logs;
    let flight = flight(shared, logs, failed);
    let code = match shared.run.is_shell_of(guest.number) {
        true => 0,
        false => verdict.status,
    };
    let kernel_log = std::fs::read(logs.join("kernel.log")).unwrap_or_default();
    let crash = match code {
        0 => None,
        _ => crash_in(&kernel_log, verdict.excused.as_ref()),
    };
    let outputs =
        ["stderr", "stdout"].map(|name| std::fs::read(logs.join(name)).unwrap_or_default());
    let has_recorded_error = matches!(flight, Some((1.., _)));
    let parts = parts(code, &verdict.reasons, crash, flight.as_ref(), &outputs);
    if parts.is_empty() {
        return None;
    }
    let recorded = flight
        .map(|(time_ns, _)| time_ns)
        .filter(|&time_ns| time_ns > 0);
    let ended = match code {
        0 => None,
        _ => ended_ns(&shared.places.logs, guest.number),
    };
    let who = match shared.run.guests {
        1 => String::new(),
        _ => format!("{}: ", shared.run.name(guest.number)),
    };
    Some(Happening {
        time_ns: [recorded, ended]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or_else(now_ns),
        number: guest.number,
        has_recorded_error,
        text: format!("{who}{}", parts.join("; ")),
    })
}

/// Returns the parts of the sentence about a guest. `flight` is the time of the first recorded error
/// (0: none) and its description.
fn parts(
    code: u8,
    reasons: &[String],
    crash: Option<String>,
    flight: Option<&(u64, String)>,
    outputs: &[Vec<u8>],
) -> Vec<String> {
    let mut parts = Vec::new();
    // 124 and 125 with a reason come from this program, not from the command.
    let is_ours = !reasons.is_empty() && [TIMED_OUT, FAILED].contains(&code);
    if code != 0 && !is_ours {
        parts.push(describe_status(code));
    }
    parts.extend_from_slice(reasons);
    let has_crashed = crash.is_some();
    parts.extend(crash);
    match flight {
        Some((1.., text)) => parts.push(text.clone()),
        _ if code == 0 || has_crashed => {}
        _ => {
            if !(is_ours && code == FAILED) {
                parts.push(match last_words(outputs) {
                    Some(words) => format!("it printed last: {words}"),
                    None => String::from("it printed nothing"),
                });
            }
            parts.extend(flight.map(|(_, text)| text.clone()));
        }
    }
    parts
}

/// Describes an exit status.
fn describe_status(status: u8) -> String {
    let meaning = match status {
        124 => String::from("as timeout(1) ends"),
        126 => String::from("the command cannot be executed"),
        127 => String::from("a command was not found"),
        129..=192 => match Signal::try_from(i32::from(status) - 128) {
            Ok(signal) => signal.to_string(),
            Err(_) => format!("signal {}", status - 128),
        },
        _ => return format!("status {status}"),
    };
    format!("status {status} ({meaning})")
}

/// Returns the first process that the guest's kernel ended after a fault or for lack of memory.
fn crash_in(log: &[u8], excused: Option<&Regex>) -> Option<String> {
    let mut lines = log.split(|&byte| byte == b'\n');
    let line = lines.find(|line| {
        CRASH.is_match(line) && !excused.is_some_and(|excused| excused.is_match(line))
    })?;
    let text = NOISE.replace_all(line, &b""[..]);
    Some(printable(&text).chars().take(LONGEST).collect())
}

/// Returns the last line with a word that the command printed, on standard error if it printed
/// there. Before it comes the line before, which often says more, unless it belongs to a trace. If a
/// line refuses an argument of the command line, that line comes instead.
fn last_words(outputs: &[Vec<u8>]) -> Option<String> {
    outputs.iter().find_map(|output| {
        let lines: Vec<&[u8]> = output.split(|&byte| byte == b'\n').collect();
        let lines = &lines[lines.len().saturating_sub(LAST_LINES + 1)..];
        let lines: Vec<String> = lines
            .iter()
            .map(|line| printable(line))
            .filter(|line| line.chars().any(char::is_alphanumeric))
            .collect();
        let (last, before) = lines.split_last()?;
        let refusal = lines.iter().find(|line| REFUSED.is_match(line.as_bytes()));
        let before = match refusal {
            Some(refusal) if refusal != last => Some(refusal),
            _ => before.last(),
        };
        let is_trace = |line: &&String| line.starts_with("  ") || line.starts_with("Traceback");
        let before = before.filter(|line| !is_trace(line));
        let shown: Vec<String> = before
            .into_iter()
            .chain([last])
            .map(|line| shorten(line))
            .collect();
        Some(shown.join(" / "))
    })
}

fn printable(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line).replace('\r', "");
    line.chars()
        .map(|c| {
            if c == ' ' || c.is_ascii_graphic() {
                c
            } else {
                ' '
            }
        })
        .collect()
}

fn shorten(line: &str) -> String {
    let line = line.trim_start();
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => String::from(line),
    }
}

/// Finishes the recording of a guest: the time of its first error (0: none) and a sentence. `None`
/// without a recording, or if nothing failed.
fn flight(shared: &Shared<'_>, logs: &Path, failed: u8) -> Option<(u64, String)> {
    let recording = logs.join("flight.record");
    let is_empty = |file: &Path| file.metadata().map_or(true, |found| found.len() == 0);
    if is_empty(&recording) {
        // A NIC that could not write its recording at the end may have written one when the device
        // died.
        let early = logs.join("death.record");
        if is_empty(&early) || std::fs::copy(early, &recording).is_err() {
            return None;
        }
    }
    let output = std::process::Command::new(&shared.places.verbenactl)
        .args(["record", "finish"])
        .arg(&recording)
        .args(["--time", "--status", &failed.to_string()])
        .output();
    let text = match output {
        Ok(output) => [output.stdout, output.stderr].concat(),
        Err(e) => return Some((0, format!("verbenactl cannot be started: {e}"))),
    };
    parse_flight(&String::from_utf8_lossy(&text))
}

/// Splits `TIME SENTENCE`.
fn parse_flight(text: &str) -> Option<(u64, String)> {
    let line = text.split_whitespace().collect::<Vec<&str>>().join(" ");
    if line.is_empty() {
        return None;
    }
    let split = line
        .split_once(' ')
        .and_then(|(time, rest)| Some((time.parse().ok()?, rest)));
    let (time_ns, sentence) = split.unwrap_or((0, &line));
    Some((time_ns, String::from(sentence)))
}

/// Returns when a guest ended, if there are several.
fn ended_ns(logs: &Path, number: usize) -> Option<u64> {
    let file = logs.join(format!("together/ended.vm{number}"));
    since_1970(file.metadata().ok()?.modified().ok()?)
}

fn now_ns() -> u64 {
    since_1970(SystemTime::now()).unwrap_or(u64::MAX)
}

fn since_1970(time: SystemTime) -> Option<u64> {
    u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_described() {
        assert_eq!(describe_status(3), "status 3");
        assert_eq!(describe_status(127), "status 127 (a command was not found)");
        assert_eq!(describe_status(139), "status 139 (SIGSEGV)");
        assert_eq!(describe_status(192), "status 192 (signal 64)");
    }

    #[test]
    fn a_crash_is_shown_without_addresses() {
        let log = b"[    9.1] x\n[   10.2] a.out[77]: segfault at 0 ip 00005611 sp 00007ffe error 4 in a.out[5611+1000] likely on CPU 1 (core 0)\r\n[ 11] b[78]: segfault at 1\n";
        assert_eq!(
            crash_in(log, None).unwrap(),
            "a.out[77]: segfault at 0 in a.out[5611+1000]"
        );
        let excused = Regex::new(r"a\.out\[77\]").unwrap();
        assert_eq!(
            crash_in(log, Some(&excused)).unwrap(),
            "b[78]: segfault at 1"
        );
        assert_eq!(crash_in(b"fine\n", None), None);
        let log = b"[ 1.0] Out of memory: Killed process 5 (hog) total-vm:1kB, UID:0 pgtables:1\n";
        assert_eq!(
            crash_in(log, None).unwrap(),
            "Out of memory: Killed process 5 (hog) total-vm:1kB"
        );
    }

    fn words(stderr: &str, stdout: &str) -> Option<String> {
        last_words(&[Vec::from(stderr), Vec::from(stdout)])
    }

    #[test]
    fn the_last_words_of_a_command_are_shown() {
        assert_eq!(words("", ""), None);
        assert_eq!(words("\n---\n", "one\n\n"), Some(String::from("one")));
        assert_eq!(words("why\nso\n", "x\n"), Some(String::from("why / so")));
        let trace = "Traceback (most recent call last):\n  File x\nNameError: y\n";
        assert_eq!(words(trace, ""), Some(String::from("NameError: y")));
        let usage = "p: unrecognized option '--x'\nUsage: p\n  -a\n  -b list\n";
        let shown = words(usage, "").unwrap();
        assert_eq!(shown, "p: unrecognized option '--x' / -b list");
        let long = words(&"x".repeat(300), "").unwrap();
        assert_eq!(long.len(), 203);
    }

    #[test]
    fn each_fact_is_said_once() {
        let reason = [String::from("the NIC exited with 1")];
        let said = |code, reasons: &[String], crash: Option<&str>, flight: Option<(u64, &str)>| {
            let flight = flight.map(|(time, text)| (time, String::from(text)));
            parts(
                code,
                reasons,
                crash.map(String::from),
                flight.as_ref(),
                &[Vec::from("bye\n")],
            )
            .join("; ")
        };
        assert_eq!(said(0, &[], None, None), "");
        assert_eq!(said(3, &[], None, None), "status 3; it printed last: bye");
        assert_eq!(
            said(3, &[], None, Some((0, "no error"))),
            "status 3; it printed last: bye; no error"
        );
        assert_eq!(said(3, &[], None, Some((7, "QP 1"))), "status 3; QP 1");
        assert_eq!(
            said(139, &[], Some("a[1]: segfault"), None),
            "status 139 (SIGSEGV); a[1]: segfault"
        );
        assert_eq!(said(125, &reason, None, None), "the NIC exited with 1");
        assert_eq!(
            said(124, &reason, None, None),
            "the NIC exited with 1; it printed last: bye"
        );
        assert_eq!(said(0, &[], None, Some((7, "QP 1"))), "QP 1");
    }

    #[test]
    fn the_time_of_a_recorded_error_is_split_off() {
        assert_eq!(parse_flight(""), None);
        assert_eq!(
            parse_flight("17 QP 3 is\n in error\n"),
            Some((17, String::from("QP 3 is in error")))
        );
        assert_eq!(
            parse_flight("error: x"),
            Some((0, String::from("error: x")))
        );
    }
}
