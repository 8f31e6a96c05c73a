// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The results of `verbena selftest` as text for people, as JSON and as JUnit XML.

use super::outcome::{SuiteOutcome, TestOutcome, Verdict};
use crate::host::{GuestFacts, HostFacts};
use serde_json::json;
use std::fmt::Write;
use std::path::PathBuf;

/// Most failing tests of a suite that the block for a post describes.
const MOST_DESCRIBED: usize = 20;
/// Most characters of a line in that block.
const LONGEST_LINE: usize = 300;

/// The results so far.
#[derive(Debug)]
pub struct Report {
    /// Facts about the machine.
    pub host: HostFacts,
    /// Facts about the guests.
    pub guest: GuestFacts,
    /// Directory of the logs.
    pub logs: PathBuf,
    /// The suites that have ended.
    pub outcomes: Vec<SuiteOutcome>,
}

/// Returns the line about a suite.
pub fn line(outcome: &SuiteOutcome) -> String {
    let word = match outcome.is_passed() {
        true => "ok",
        false => "FAILED",
    };
    let mut line = format!(
        "{word:6}  {:6}  {} ({} s)",
        outcome.suite.name(),
        outcome.counts(),
        outcome.took.as_secs()
    );
    if let Some(trouble) = &outcome.trouble {
        let _ = write!(line, ": {}", shortened(trouble));
    }
    line + "\n"
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST_LINE) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => String::from(text),
    }
}

impl Report {
    /// Returns a report without results.
    pub fn new(host: HostFacts, logs: PathBuf) -> Self {
        Self {
            host,
            guest: GuestFacts::default(),
            logs,
            outcomes: Vec::new(),
        }
    }

    /// True if all suites passed.
    pub fn is_passed(&self) -> bool {
        self.outcomes.iter().all(SuiteOutcome::is_passed)
    }

    /// Returns the last lines: where the logs are, and after a failure a block for a post.
    pub fn conclusion(&self) -> String {
        if self.is_passed() {
            return format!("all tests passed ({})\n", self.host.accelerator);
        }
        format!(
            "\nPost the block below. The logs are in {}\n\n{}",
            self.logs.display(),
            self.block()
        )
    }

    /// Returns the block for a post: versions, machine, failing tests with their last lines. The
    /// fences are longer than those that a line of a test may have.
    fn block(&self) -> String {
        let mut text = String::from("~~~~~~text\nverbena selftest: FAILED\n");
        let mut add = |line: &str| {
            text += &shortened(line);
            text.push('\n');
        };
        for fact in self.host.lines(&self.guest) {
            add(&fact);
        }
        for outcome in &self.outcomes {
            add("");
            add(line(outcome).trim_end());
            let failed = outcome
                .tests
                .iter()
                .filter(|test| test.verdict == Verdict::Failed);
            for test in failed.clone().take(MOST_DESCRIBED) {
                add(&format!("  FAILED {}: {}", test.name, test.reason));
                test.lines
                    .iter()
                    .for_each(|line| add(&format!("    | {line}")));
            }
            match failed.count().saturating_sub(MOST_DESCRIBED) {
                0 => {}
                more => add(&format!("  and {more} more tests failed")),
            }
            if !outcome.is_passed() {
                outcome
                    .errors
                    .iter()
                    .for_each(|line| add(&format!("  stderr | {line}")));
                add(&format!("  logs: {}", outcome.logs.display()));
            }
        }
        text + "~~~~~~\n"
    }

    /// Returns the results as JSON.
    pub fn json(&self) -> String {
        let suites: Vec<_> = self.outcomes.iter().map(suite_json).collect();
        let all = json!({
            "passed": self.is_passed(),
            "host": self.host,
            "guest": self.guest,
            "logs": self.logs,
            "suites": suites,
        });
        format!("{all:#}\n")
    }

    /// Returns the results as JUnit XML. What was wrong besides a test is a test of its own, `suite`.
    pub fn junit(&self) -> String {
        let mut text = String::from(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"verbena selftest\">\n",
        );
        for outcome in &self.outcomes {
            text += &suite_junit(outcome);
        }
        text + "</testsuites>\n"
    }
}

fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Failed => "failed",
        Verdict::Skipped => "skipped",
    }
}

fn suite_json(outcome: &SuiteOutcome) -> serde_json::Value {
    let test = |test: &TestOutcome| {
        json!({
            "name": test.name,
            "result": verdict_name(test.verdict),
            "reason": test.reason,
            "lines": test.lines,
        })
    };
    json!({
        "name": outcome.suite.name(),
        "passed": outcome.is_passed(),
        "trouble": outcome.trouble,
        "seconds": outcome.took.as_secs_f64(),
        "logs": outcome.logs,
        "stderr": outcome.errors,
        "tests": outcome.tests.iter().map(test).collect::<Vec<_>>(),
    })
}

fn suite_junit(outcome: &SuiteOutcome) -> String {
    let name = outcome.suite.name();
    let mut cases = String::new();
    for test in &outcome.tests {
        let (case, reason) = (escape(&test.name), escape(&test.reason));
        let inside = match test.verdict {
            Verdict::Passed => String::new(),
            Verdict::Skipped => format!("<skipped message=\"{reason}\"/>"),
            Verdict::Failed => {
                let lines = escape(&test.lines.join("\n"));
                format!("<failure message=\"{reason}\">{lines}</failure>")
            }
        };
        let _ = writeln!(
            cases,
            "    <testcase classname=\"verbena.{name}\" name=\"{case}\">{inside}</testcase>"
        );
    }
    if let Some(trouble) = &outcome.trouble {
        let (trouble, lines) = (escape(trouble), escape(&outcome.errors.join("\n")));
        let _ = writeln!(
            cases,
            "    <testcase classname=\"verbena.{name}\" name=\"suite\"><error message=\"{trouble}\">{lines}</error></testcase>"
        );
    }
    let errors = usize::from(outcome.trouble.is_some());
    format!(
        "  <testsuite name=\"{name}\" tests=\"{}\" failures=\"{}\" errors=\"{errors}\" skipped=\"{}\" time=\"{:.3}\">\n{cases}  </testsuite>\n",
        outcome.tests.len() + errors,
        outcome.number(Verdict::Failed),
        outcome.number(Verdict::Skipped),
        outcome.took.as_secs_f64(),
    )
}

/// Escapes text for XML. Control characters, which XML 1.0 does not allow, become U+FFFD.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\n' => escaped += "&#10;",
            '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                escaped.push(char::REPLACEMENT_CHARACTER);
            }
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::outcome::Outcome;
    use super::super::suites::Suite;
    use super::*;
    use crate::host::tests::facts;
    use std::time::Duration;

    fn report(output: &str, status: u8) -> Report {
        let mut report = Report::new(facts("a CPU"), PathBuf::from("/logs"));
        let mut outcome = Outcome::default();
        output.lines().for_each(|line| outcome.take(line));
        outcome.take_error("what happened: status 1");
        let took = Duration::from_millis(1500);
        let logs = PathBuf::from("/logs/guest");
        report
            .outcomes
            .push(outcome.finish((Suite::Guest, 1), status, took, logs));
        report
    }

    #[test]
    fn the_block_has_all_that_a_reader_needs() {
        let report = report(
            "ok a\nnear\nFAILED b: 1 < 2 & \"3\"\n1 passed, 1 failed\n",
            1,
        );
        let text = report.conclusion();
        for part in [
            "verbena: 0.1.0",
            "accelerator: tcg (there is no /dev/kvm)",
            "host CPU: a CPU, 2 cores, itself a virtual machine",
            "QEMU: 11.1.3",
            "guest: Linux unknown, rdma-core unknown",
            "FAILED  guest   1 passed, 1 failed (1 s)",
            "  FAILED b: 1 < 2 & \"3\"\n    | near\n  stderr | what happened: status 1\n  logs: /logs/guest",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let junit = report.junit();
        assert!(
            junit.contains("tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"0\" time=\"1.500\""),
            "{junit}"
        );
        assert!(
            junit.contains(
                "name=\"b\"><failure message=\"1 &lt; 2 &amp; &quot;3&quot;\">near</failure>"
            ),
            "{junit}"
        );
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["suites"][0]["tests"][1]["result"], "failed");
        assert_eq!(json["passed"], false);
    }

    #[test]
    fn a_suite_that_passed_needs_no_block() {
        let report = report("ok a\n1 passed, 0 failed\n", 0);
        assert_eq!(report.conclusion(), "all tests passed (tcg)\n");
        assert!(!report.junit().contains("error message"));
    }

    #[test]
    fn a_suite_that_did_not_end_is_an_error_of_its_own() {
        let report = report("ok a\n", 124);
        let junit = report.junit();
        assert!(
            junit.contains("tests=\"2\" failures=\"0\" errors=\"1\""),
            "{junit}"
        );
        assert!(
            junit.contains("name=\"suite\"><error message=\"the suite did not end within"),
            "{junit}"
        );
    }

    #[test]
    fn long_lines_and_many_failures_are_cut() {
        let mut output = String::new();
        for n in 0..25 {
            output += &format!("FAILED t{n}: {}\n", "é".repeat(400));
        }
        let text = report(&(output + "0 passed, 25 failed\n"), 1).conclusion();
        assert!(text.contains("and 5 more tests failed") && !text.contains("t20"));
        assert!(text
            .lines()
            .all(|line| line.chars().count() <= LONGEST_LINE + 3));
    }

    #[test]
    fn xml_has_no_control_characters() {
        assert_eq!(escape("a\u{1b}[0m<\n"), "a\u{fffd}[0m&lt;&#10;");
    }
}
