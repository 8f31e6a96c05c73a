// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs a program of Rust tests, and writes a record for each of its tests.
//!
//! `cargo test` starts each program of tests by this one (the option `runner` of its configuration).
//! The program prints its results as JSON, for which Rust's test library wants RUSTC_BOOTSTRAP=1. Only the
//! program of tests has that variable: with it, Cargo would compile some crates in another way.

use serde::Deserialize;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;
use verbena_lab_records::{Records, Verdict};

/// The first argument by which `verbena-harness` becomes this runner.
pub const COMMAND: &str = "libtest";

/// A line of the test library.
#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    event: String,
    #[serde(default)]
    name: String,
    exec_time: Option<f64>,
    #[serde(default)]
    stdout: String,
    #[serde(default)]
    message: String,
    test_count: Option<usize>,
    #[serde(default)]
    passed: usize,
    #[serde(default)]
    failed: usize,
    #[serde(default)]
    ignored: usize,
}

/// Runs the program with its arguments.
pub fn run(words: &[String]) -> ExitCode {
    let Some((program, arguments)) = words.split_first() else {
        eprintln!("usage: verbena-harness {COMMAND} PROGRAM [ARGUMENT...]");
        return ExitCode::from(2);
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .args([
            "-Z",
            "unstable-options",
            "--format",
            "json",
            "--report-time",
        ])
        .env("RUSTC_BOOTSTRAP", "1")
        .env_remove(verbena_lab_records::FILE)
        .stdout(Stdio::piped());
    let mut records = Records::begin(&name_of(Path::new(program)));
    match follow(&mut command, &mut records) {
        Ok((status, missing)) => {
            // A program that ended before its last test has lost results, so it does not report its end.
            if missing == 0 {
                records.end();
            }
            ExitCode::from(code_of(status))
        }
        Err(why) => {
            eprintln!("{program}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Returns how the program ended, and how many of the tests that it announced have no result.
fn follow(command: &mut Command, records: &mut Records) -> std::io::Result<(ExitStatus, usize)> {
    let mut child = command.spawn()?;
    let (mut announced, mut reported, mut suites) = (0, 0, 0);
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            let Ok(event) = serde_json::from_str::<Event>(&line) else {
                println!("{line}");
                continue;
            };
            announced += event.test_count.unwrap_or(0);
            suites += usize::from(event.kind == "suite" && event.event == "started");
            reported += usize::from(take(&event, records));
        }
    }
    let status = child.wait()?;
    // A program that announced nothing is none of Rust's tests, or did not begin.
    Ok((status, if suites == 0 { 1 } else { announced - reported }))
}

/// Takes an event. Returns whether it is the result of a test.
fn take(event: &Event, records: &mut Records) -> bool {
    let took = event.exec_time.map(Duration::from_secs_f64);
    let (verdict, word, reason) = match (event.kind.as_str(), event.event.as_str()) {
        ("test", "ok") => (Verdict::Passed, "ok", ""),
        ("test", "failed") => (Verdict::Failed, "FAILED", reason_in(event)),
        ("test", "ignored") => (Verdict::Skipped, "ignored", event.message.as_str()),
        ("test", "timeout") => {
            println!("test {} still runs", event.name);
            return false;
        }
        ("suite", "started") => {
            println!("\nrunning {} tests", event.test_count.unwrap_or(0));
            return false;
        }
        ("suite", how) => {
            let (passed, failed, ignored) = (event.passed, event.failed, event.ignored);
            println!("{how}: {passed} tests passed, {failed} failed, {ignored} were ignored");
            return false;
        }
        _ => return false,
    };
    println!("test {} ... {word}", event.name);
    if verdict == Verdict::Failed {
        println!("{}", event.stdout);
    }
    records.test(&event.name, verdict, reason, took);
    true
}

/// Returns the message of a panic, or the last line that the test printed.
fn reason_in(event: &Event) -> &str {
    let mut lines = event.stdout.lines();
    let panic = lines.by_ref().find(|line| line.contains("panicked at"));
    let text = match panic {
        Some(_) => lines.next(),
        None => event
            .stdout
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty()),
    };
    text.unwrap_or(&event.message)
}

/// Returns the name of the program without the hash that Cargo appends.
fn name_of(program: &Path) -> String {
    let name = program
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    match name.rsplit_once('-') {
        Some((name, hash)) if hash.len() == 16 => name.to_owned(),
        _ => name,
    }
}

fn code_of(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(line: &str) -> Event {
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn the_reason_of_a_failure_is_the_message_of_its_panic() {
        let failed = event(
            r#"{"type":"test","name":"a","event":"failed","stdout":"hello\nthread 'a' panicked at x.rs:1:2:\nleft is 1\nnote\n"}"#,
        );
        assert_eq!(reason_in(&failed), "left is 1");
        let silent =
            event(r#"{"type":"test","name":"a","event":"failed","stdout":"x\nError: y\n\n"}"#);
        assert_eq!(reason_in(&silent), "Error: y");
        let none = event(r#"{"type":"test","name":"a","event":"failed","message":"too long"}"#);
        assert_eq!(reason_in(&none), "too long");
    }

    #[test]
    fn the_name_of_a_program_has_no_hash() {
        assert_eq!(
            name_of(Path::new("/x/verbena_nic-0123456789abcdef")),
            "verbena_nic"
        );
        assert_eq!(name_of(Path::new("/x/with-dashes")), "with-dashes");
    }
}
