// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a run prints: progress on the standard error, with the seconds since the command began, and
//! results on the standard output.

use crate::results::{SuiteResult, TestResult, Verdict};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The number of failed tests that the verdict on a suite shows.
const MOST_FAILURES: usize = 20;
/// The number of lines of a log that are shown after a failure.
const LAST_LINES: usize = 25;
/// The number of characters of a log's last line that a line of progress shows.
const SHORT_LINE: usize = 100;

/// Prints progress.
#[derive(Clone, Copy, Debug)]
pub struct Console {
    /// When the command began, in seconds since 1970.
    pub began: u64,
}

impl Console {
    /// Prints a line of progress.
    pub fn say(&self, line: &str) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let seconds = now.as_secs().saturating_sub(self.began);
        eprintln!("[{seconds:4}s] {line}");
    }
}

/// Returns the lines of the verdict on a suite: its numbers, and its failures.
pub fn verdict(suite: &SuiteResult) -> String {
    let mut text = format!(
        "{}: {} passed, {} failed",
        suite.name, suite.passed, suite.failed
    );
    if suite.skipped != 0 {
        let _ = write!(text, ", {} skipped as listed", suite.skipped);
    }
    let _ = writeln!(text, " ({:.0} s)", suite.seconds);
    let failed: Vec<&TestResult> = suite
        .tests
        .iter()
        .filter(|test| test.verdict == Verdict::Failed)
        .collect();
    for test in failed.iter().take(MOST_FAILURES) {
        let _ = writeln!(text, "  FAILED {}", described(test));
    }
    if failed.len() > MOST_FAILURES {
        let _ = writeln!(text, "  and {} more failures", failed.len() - MOST_FAILURES);
    }
    text
}

fn described(test: &TestResult) -> String {
    let reason = test.reason.lines().next().unwrap_or_default();
    match (test.part.as_str(), reason) {
        ("", "") => test.name.clone(),
        ("", reason) => format!("{}: {reason}", test.name),
        (part, "") => format!("{} ({part})", test.name),
        (part, reason) => format!("{} ({part}): {reason}", test.name),
    }
}

/// Returns the lines after a failed step: the failures in its output, and the end of the log.
pub fn failed_step(text: &str, how: &str, output: &[u8], log: &Path) -> String {
    let mut shown = format!("\nFAILED: {text} ({how})\n");
    for line in crate::text::failures(output) {
        let _ = writeln!(shown, "  | {line}");
    }
    shown += "The end of its log:\n";
    let output = String::from_utf8_lossy(output);
    let lines: Vec<&str> = output.lines().collect();
    for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
        let _ = writeln!(shown, "  | {line}");
    }
    let _ = writeln!(shown, "The whole log: {}", log.display());
    shown
}

/// Returns the last line of a log that is not blank, shortened.
pub fn last_line(log: &Path) -> String {
    let Ok(mut file) = File::open(log) else {
        return String::new();
    };
    let mut end = Vec::new();
    let length = file.metadata().map(|about| about.len()).unwrap_or(0);
    let sought = file.seek(SeekFrom::Start(length.saturating_sub(300)));
    if sought.and_then(|_| file.read_to_end(&mut end)).is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&end).replace('\r', "\n");
    let last = text
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default();
    last.chars().take(SHORT_LINE).collect()
}

/// Returns a time as UTC in the format of RFC 3339, to the second.
pub fn rfc3339(time: SystemTime) -> String {
    const DAY: u64 = 24 * 60 * 60;
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (year, month, day) = date(seconds / DAY);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns year, month and day of a number of days since 1970.
fn date(mut days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_format_of_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            let time = UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            assert_eq!(rfc3339(time), text);
        }
    }

    #[test]
    fn a_verdict_has_numbers_and_failures() {
        let test = |name: &str, verdict, reason: &str| TestResult {
            part: String::new(),
            name: name.into(),
            verdict,
            reason: reason.into(),
            seconds: None,
        };
        let mut suite = SuiteResult {
            name: "s".into(),
            about: String::new(),
            started: String::new(),
            seconds: 61.4,
            passed: 1,
            failed: 1,
            skipped: 0,
            log: String::new(),
            tests: vec![
                test("a", Verdict::Passed, ""),
                test("b", Verdict::Failed, "why\nmore"),
            ],
        };
        assert_eq!(
            verdict(&suite),
            "s: 1 passed, 1 failed (61 s)\n  FAILED b: why\n"
        );
        suite.skipped = 2;
        assert!(verdict(&suite).starts_with("s: 1 passed, 1 failed, 2 skipped as listed (61 s)\n"));
        suite.tests = vec![test("b", Verdict::Failed, ""); 25];
        assert!(verdict(&suite).ends_with("  and 5 more failures\n"));
    }
}
