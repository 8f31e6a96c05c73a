// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads what a suite prints: a line `ok NAME`, `FAILED NAME: reason` or `skipped NAME: reason` for
//! each test, and lines `N passed, N failed` at the ends of its programs.

use super::suites::Suite;
use crate::guest_run::without_guest;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

/// Most lines that are kept of the output before a failure, and of standard error.
const KEPT_LINES: usize = 8;

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The test passed.
    Passed,
    /// The test failed.
    Failed,
    /// The test does not apply here.
    Skipped,
}

/// A test that has run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestOutcome {
    /// Its name.
    pub name: String,
    /// Its result.
    pub verdict: Verdict,
    /// Why it failed, or was skipped.
    pub reason: String,
    /// What the suite printed between the test before and a failure.
    pub lines: Vec<String>,
}

/// What a suite has printed so far.
#[derive(Debug, Default)]
pub struct Outcome {
    tests: Vec<TestOutcome>,
    /// The sums of the lines `N passed, N failed`, and the number of these lines.
    counted: (usize, usize),
    count_lines: usize,
    recent: VecDeque<String>,
    errors: VecDeque<String>,
}

/// A suite that has ended.
#[derive(Debug)]
pub struct SuiteOutcome {
    /// The suite.
    pub suite: Suite,
    /// Its tests.
    pub tests: Vec<TestOutcome>,
    /// What was wrong besides the tests that failed.
    pub trouble: Option<String>,
    /// The last lines of standard error, if something failed.
    pub errors: Vec<String>,
    /// How long it took, with the boot of the guests.
    pub took: Duration,
    /// Where its logs are.
    pub logs: PathBuf,
}

fn keep(lines: &mut VecDeque<String>, line: &str) {
    if lines.len() == KEPT_LINES {
        lines.pop_front();
    }
    lines.push_back(String::from(line));
}

/// Parses `N passed, N failed`, which more words may follow.
fn counts(line: &str) -> Option<(usize, usize)> {
    let (passed, rest) = line.split_once(" passed, ")?;
    let (failed, _) = rest.split_once(" failed")?;
    Some((passed.parse().ok()?, failed.parse().ok()?))
}

impl Outcome {
    /// Takes a line of standard output.
    pub fn take(&mut self, line: &str) {
        let line = without_guest(line);
        let begins = [
            ("ok ", Verdict::Passed),
            ("FAILED ", Verdict::Failed),
            ("skipped ", Verdict::Skipped),
        ];
        let found = begins
            .into_iter()
            .find_map(|(begin, verdict)| Some((line.strip_prefix(begin)?, verdict)));
        if let Some((passed, failed)) = counts(line) {
            self.counted = (self.counted.0 + passed, self.counted.1 + failed);
            self.count_lines += 1;
        } else if let Some((rest, verdict)) = found {
            self.add(rest, verdict);
        } else {
            keep(&mut self.recent, line);
        }
    }

    fn add(&mut self, rest: &str, verdict: Verdict) {
        let (name, reason) = match verdict {
            // Figures, as the time that a test took, are no part of its name.
            Verdict::Passed => (rest.split(' ').next().unwrap_or(rest), ""),
            _ => rest.split_once(": ").unwrap_or((rest, "")),
        };
        let lines = self.recent.drain(..);
        self.tests.push(TestOutcome {
            name: String::from(name),
            verdict,
            reason: String::from(reason),
            lines: match verdict {
                Verdict::Failed => lines.collect(),
                _ => Vec::new(),
            },
        });
    }

    /// Takes a line of standard error.
    pub fn take_error(&mut self, line: &str) {
        keep(&mut self.errors, line);
    }

    /// Describes the tests so far.
    pub fn counts(&self) -> String {
        describe(&self.tests)
    }

    /// Judges the suite, whose guests have ended with this exit status. `count_lines` is the number
    /// of lines `N passed, N failed` that it prints.
    pub fn finish(
        self,
        (suite, count_lines): (Suite, usize),
        status: u8,
        took: Duration,
        logs: PathBuf,
    ) -> SuiteOutcome {
        let trouble = self.trouble(count_lines, status);
        let has_failed = trouble.is_some() || number(&self.tests, Verdict::Failed) > 0;
        SuiteOutcome {
            suite,
            tests: self.tests,
            trouble,
            errors: match has_failed {
                true => self.errors.into(),
                false => Vec::new(),
            },
            took,
            logs,
        }
    }

    /// Returns what is wrong besides the tests that failed.
    fn trouble(&self, count_lines: usize, status: u8) -> Option<String> {
        let seen = [Verdict::Passed, Verdict::Failed].map(|verdict| number(&self.tests, verdict));
        if status == TIMED_OUT {
            return Some(String::from("the suite did not end within its time limit"));
        }
        if status == NOT_THE_COMMAND {
            return Some(match self.errors.iter().find(|line| is_cause(line)) {
                Some(line) => line.clone(),
                None => String::from("the guests failed, see the lines below"),
            });
        }
        if self.count_lines != count_lines {
            return Some(format!(
                "the suite ended with {status} before its last test"
            ));
        }
        if self.counted != (seen[0], seen[1]) && seen[1] == 0 {
            let (passed, failed) = self.counted;
            return Some(format!(
                "the suite counts {passed} passed and {failed} failed tests, and has printed {} and {}",
                seen[0], seen[1]
            ));
        }
        if seen[0] + seen[1] == 0 {
            return Some(String::from("no test ran"));
        }
        (status != 0 && seen[1] == 0).then(|| format!("the suite ended with {status}"))
    }
}

/// Exit statuses of `verbena run`.
const TIMED_OUT: u8 = 124;
const NOT_THE_COMMAND: u8 = 125;

/// True for a line by which `verbena run` names a cause.
fn is_cause(line: &str) -> bool {
    line.starts_with("what happened: ") || line.starts_with("error: ")
}

fn number(tests: &[TestOutcome], verdict: Verdict) -> usize {
    tests.iter().filter(|test| test.verdict == verdict).count()
}

fn describe(tests: &[TestOutcome]) -> String {
    let mut text = format!("{} passed", number(tests, Verdict::Passed));
    for (verdict, name) in [(Verdict::Failed, "failed"), (Verdict::Skipped, "skipped")] {
        match number(tests, verdict) {
            0 => {}
            n => text += &format!(", {n} {name}"),
        }
    }
    text
}

impl SuiteOutcome {
    /// True if no test failed, and nothing else was wrong.
    pub fn is_passed(&self) -> bool {
        self.trouble.is_none() && self.number(Verdict::Failed) == 0
    }

    /// Returns the number of tests with this result.
    pub fn number(&self, verdict: Verdict) -> usize {
        number(&self.tests, verdict)
    }

    /// Describes the numbers of tests.
    pub fn counts(&self) -> String {
        describe(&self.tests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finish(text: &str, status: u8, count_lines: usize) -> SuiteOutcome {
        let mut outcome = Outcome::default();
        text.lines().for_each(|line| outcome.take(line));
        outcome.take_error("an error");
        let suite = (Suite::Guest, count_lines);
        outcome.finish(suite, status, Duration::ZERO, PathBuf::new())
    }

    #[test]
    fn tests_are_read_with_the_lines_before_a_failure() {
        let text = "before\nok a (0.1 s)\nvm1| more\nvm1| FAILED b/c: why: so\nskipped d: none\n1 passed, 1 failed, 1 skipped\n";
        let outcome = finish(text, 1, 1);
        let names: Vec<&str> = outcome
            .tests
            .iter()
            .map(|test| test.name.as_str())
            .collect();
        assert_eq!(names, ["a", "b/c", "d"]);
        let failed = &outcome.tests[1];
        assert_eq!(failed.reason, "why: so");
        assert_eq!(failed.lines, ["more"]);
        assert_eq!(outcome.counts(), "1 passed, 1 failed, 1 skipped");
        assert_eq!(
            (outcome.trouble.as_deref(), outcome.is_passed()),
            (None, false)
        );
        assert_eq!(outcome.errors, ["an error"]);
    }

    #[test]
    fn a_suite_passes_only_as_a_whole() {
        let passed = finish("ok a\n1 passed, 0 failed\nok b\n1 passed, 0 failed\n", 0, 2);
        assert!(passed.is_passed() && passed.errors.is_empty());
        let trouble = |text, status, lines| finish(text, status, lines).trouble.unwrap_or_default();
        assert!(trouble("ok a\n", 0, 1).contains("before its last test"));
        assert!(trouble("ok a\n1 passed, 0 failed\n", 0, 2).contains("before its last test"));
        assert!(trouble("ok a\n2 passed, 0 failed\n", 0, 1).contains("counts 2 passed"));
        assert!(trouble("ok a\n0 passed, 1 failed\n", 1, 1).contains("counts 0 passed"));
        assert!(trouble("ok a\n1 passed, 0 failed\n", 3, 1).ends_with("ended with 3"));
        assert!(trouble("skipped a\n0 passed, 0 failed\n", 0, 1).contains("no test ran"));
        assert!(trouble("ok a\n1 passed, 0 failed\n", 124, 1).contains("time limit"));
        assert!(trouble("ok a\n1 passed, 0 failed\n", 125, 1).contains("guests failed"));
    }

    #[test]
    fn the_cause_of_a_failed_run_is_its_trouble() {
        let mut outcome = Outcome::default();
        outcome.take_error("what happened: its kernel complained");
        outcome.take_error("where: there");
        let ended = outcome.finish((Suite::Kernel, 1), 125, Duration::ZERO, PathBuf::new());
        assert_eq!(
            ended.trouble.unwrap(),
            "what happened: its kernel complained"
        );
    }
}
