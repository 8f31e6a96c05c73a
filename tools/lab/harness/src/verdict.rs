// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes results of what a step has left: its exit status, its records, its text.

use crate::records::Records;
use crate::results::{TestResult, Verdict};
use crate::skips::Skips;
use crate::step::{Reports, Step};
use crate::text;

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// With this exit status, or by a signal with 128 more than its number.
    Status(i32),
    /// The suite exceeded its limit, and was ended.
    Limit { seconds: u64 },
    /// The step could not start.
    NotStarted(String),
}

/// What a step has left.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub end: End,
    /// Its output.
    pub output: Vec<u8>,
    /// Its file of records.
    pub records: Vec<u8>,
}

/// Returns the results of a step. `part` is its name.
pub fn of_step(step: &Step, part: &str, outcome: &Outcome) -> Vec<TestResult> {
    if let (Some(skip), End::Status(status)) = (&step.skip, &outcome.end) {
        if skip.status == *status {
            let skipped = TestResult {
                verdict: Verdict::Skipped,
                ..named(part, skip.test, skip.reason)
            };
            return vec![skipped];
        }
    }
    let mut tests = reported(step, part, outcome);
    let ended_well = outcome.end == End::Status(0);
    if step.reports != Reports::Nothing && tests.is_empty() && ended_well {
        tests.push(TestResult::of_harness(
            part,
            "no-test",
            "the step reported no test",
        ));
    }
    match &outcome.end {
        End::Limit { seconds } => {
            let why = format!("the suite was ended, because it still ran after {seconds} s");
            tests.push(TestResult::of_harness(part, "limit", why));
        }
        End::NotStarted(why) => tests.push(TestResult::of_harness(part, "start", why)),
        End::Status(status) => {
            // The exit status explains why results are lost, so only a test's own failure hides it.
            let of_test =
                |test: &TestResult| !test.is_of_harness() && test.verdict == Verdict::Failed;
            let failed = tests.iter().any(of_test);
            if *status != 0 && !failed {
                let why = format!("exit status {status}, although no test failed");
                tests.push(TestResult::of_harness(part, "exit-status", why));
            }
        }
    }
    tests
}

fn reported(step: &Step, part: &str, outcome: &Outcome) -> Vec<TestResult> {
    match (&step.reports, &outcome.end) {
        (_, End::NotStarted(_)) | (Reports::Nothing, _) => Vec::new(),
        (Reports::Text(counts), _) => text::results(&outcome.output, *counts, part),
        (Reports::Records, _) => {
            let records = Records::parse(&outcome.records);
            let problem = |why| TestResult::of_harness(part, "records", why);
            let problems = records.problems.into_iter().map(problem);
            records.tests.into_iter().chain(problems).collect()
        }
        (Reports::Status(test), End::Status(0)) => vec![TestResult {
            verdict: Verdict::Passed,
            ..named(part, test, "")
        }],
        (Reports::Status(test), End::Status(status)) => {
            vec![named(part, test, &format!("exit status {status}"))]
        }
        (Reports::Status(_), End::Limit { .. }) => Vec::new(),
    }
}

fn named(part: &str, name: &str, reason: &str) -> TestResult {
    TestResult {
        part: part.to_owned(),
        name: name.to_owned(),
        verdict: Verdict::Failed,
        reason: reason.to_owned(),
        seconds: None,
    }
}

/// Makes failures of the skipped tests that may not be skipped, and of a suite without a result.
pub fn of_suite(suite: &str, mut tests: Vec<TestResult>, skips: &Skips) -> Vec<TestResult> {
    for test in &mut tests {
        if test.verdict == Verdict::Skipped && !skips.allow(suite, &test.name) {
            test.verdict = Verdict::Failed;
            let why = std::mem::take(&mut test.reason);
            let colon = if why.is_empty() { "" } else { ": " };
            test.reason = format!("skipped, and not listed in scripts/lib/skips{colon}{why}");
        }
    }
    if tests.is_empty() {
        tests.push(TestResult::of_harness(
            "",
            "no-test",
            "the suite reported no test",
        ));
    }
    tests
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(status: i32, output: &str) -> Outcome {
        Outcome {
            end: End::Status(status),
            output: output.into(),
            records: Vec::new(),
        }
    }

    fn shown(tests: &[TestResult]) -> Vec<(&str, Verdict)> {
        tests
            .iter()
            .map(|test| (test.name.as_str(), test.verdict))
            .collect()
    }

    #[test]
    fn a_status_without_a_failed_test_is_a_failure() {
        let step = Step::host(["x"]);
        let good = of_step(&step, "p", &outcome(0, "ok a\n1 passed, 0 failed\n"));
        assert_eq!(shown(&good), [("a", Verdict::Passed)]);
        let bad = of_step(&step, "p", &outcome(3, "ok a\n1 passed, 0 failed\n"));
        assert_eq!(
            shown(&bad),
            [
                ("a", Verdict::Passed),
                ("harness/exit-status", Verdict::Failed)
            ]
        );
        let counted = of_step(&step, "p", &outcome(1, "FAILED a\n0 passed, 1 failed\n"));
        assert_eq!(shown(&counted), [("a", Verdict::Failed)]);
    }

    #[test]
    fn a_step_without_a_test_fails_unless_it_only_prepares() {
        let silent = outcome(0, "0 passed, 0 failed\n");
        let step = Step::host(["x"]);
        assert_eq!(
            shown(&of_step(&step, "p", &silent)),
            [("harness/no-test", Verdict::Failed)]
        );
        assert!(of_step(&step.clone().prepares(), "p", &silent).is_empty());
        let failed = of_step(&step.prepares(), "p", &outcome(1, ""));
        assert_eq!(shown(&failed), [("harness/exit-status", Verdict::Failed)]);
    }

    #[test]
    fn lost_records_are_failures_even_if_the_program_succeeds() {
        let step = Step::host(["x"]).records();
        let begin = r#"{"event":"begin","program":"p","process":1}"#;
        let test = r#"{"event":"test","program":"p","process":1,"name":"a","verdict":"passed"}"#;
        let lost = Outcome {
            records: format!("{begin}\n{test}\n").into(),
            ..outcome(0, "1 passed, 0 failed\n")
        };
        let tests = of_step(&step, "p", &lost);
        assert_eq!(
            shown(&tests),
            [("a", Verdict::Passed), ("harness/records", Verdict::Failed)]
        );
        let none = of_step(&step, "p", &outcome(0, "1 passed, 0 failed\n"));
        assert_eq!(shown(&none), [("harness/records", Verdict::Failed)]);
        let no_boot = of_step(&step, "p", &outcome(125, ""));
        let expected = [
            ("harness/records", Verdict::Failed),
            ("harness/exit-status", Verdict::Failed),
        ];
        assert_eq!(shown(&no_boot), expected);
    }

    #[test]
    fn a_limit_is_a_failure_beside_the_results_so_far() {
        let step = Step::host(["x"]);
        let ended = Outcome {
            end: End::Limit { seconds: 60 },
            ..outcome(0, "part: 1 passed, 0 failed\n")
        };
        let tests = of_step(&step, "p", &ended);
        assert_eq!(
            shown(&tests),
            [
                ("unnamed/1", Verdict::Passed),
                ("harness/limit", Verdict::Failed)
            ]
        );
    }

    #[test]
    fn a_status_can_be_the_only_result() {
        let step = Step::host(["x"]).single("module");
        assert_eq!(
            shown(&of_step(&step, "p", &outcome(0, ""))),
            [("module", Verdict::Passed)]
        );
        assert_eq!(
            shown(&of_step(&step, "p", &outcome(2, ""))),
            [("module", Verdict::Failed)]
        );
    }

    #[test]
    fn only_listed_tests_may_be_skipped() {
        let step = Step::host(["x"]).skips_with(3, "t", "not here");
        let tests = of_step(&step, "p", &outcome(3, ""));
        assert_eq!(shown(&tests), [("t", Verdict::Skipped)]);
        let unlisted = of_suite("s", tests.clone(), &Skips::default());
        assert_eq!(
            unlisted[0].reason,
            "skipped, and not listed in scripts/lib/skips: not here"
        );
        assert_eq!(unlisted[0].verdict, Verdict::Failed);
        let listed = Skips::parse("s t # because").unwrap();
        assert_eq!(
            shown(&of_suite("s", tests, &listed)),
            [("t", Verdict::Skipped)]
        );
    }

    #[test]
    fn a_suite_without_a_result_fails() {
        let tests = of_suite("s", Vec::new(), &Skips::default());
        assert_eq!(shown(&tests), [("harness/no-test", Verdict::Failed)]);
    }
}
