// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The results of a run, in the structure of `results.json` (Documentation/testing.md).

use serde::{Deserialize, Serialize};

/// The version of the format of `results.json`.
pub const VERSION: u32 = 1;

/// The verdict on a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// The result of a test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestResult {
    /// The step of the suite, or the program with the guest in which it ran.
    pub part: String,
    pub name: String,
    pub verdict: Verdict,
    /// Why the test failed or was skipped; else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// How long the test took, if its program says that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

impl TestResult {
    /// A failure that the harness itself found.
    pub fn of_harness(part: &str, name: &str, reason: impl Into<String>) -> Self {
        Self {
            part: part.to_owned(),
            name: format!("harness/{name}"),
            verdict: Verdict::Failed,
            reason: reason.into(),
            seconds: None,
        }
    }

    /// True if the harness itself found the failure.
    pub fn is_of_harness(&self) -> bool {
        self.name.starts_with("harness/")
    }
}

/// The results of a suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SuiteResult {
    pub name: String,
    pub about: String,
    /// When the suite began, as UTC in the format of RFC 3339.
    pub started: String,
    pub seconds: f64,
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    /// The log beside this file.
    pub log: String,
    pub tests: Vec<TestResult>,
}

impl SuiteResult {
    /// Returns the number of tests with this verdict.
    pub fn count(tests: &[TestResult], verdict: Verdict) -> usize {
        tests.iter().filter(|test| test.verdict == verdict).count()
    }
}

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    pub version: u32,
    /// False while suites run. A run that was interrupted leaves a file that says so.
    pub complete: bool,
    /// The suites ran in full.
    pub long: bool,
    /// `stock` or `debug`.
    pub kernel: String,
    pub seconds: f64,
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    pub suites: Vec<SuiteResult>,
}

impl RunResult {
    /// Returns the results of a run with these suites.
    pub fn of(
        suites: Vec<SuiteResult>,
        long: bool,
        kernel: &str,
        seconds: f64,
        complete: bool,
    ) -> Self {
        let sum = |count: fn(&SuiteResult) -> usize| suites.iter().map(count).sum();
        Self {
            version: VERSION,
            complete,
            long,
            kernel: kernel.to_owned(),
            seconds,
            passed: sum(|suite| suite.passed),
            failed: sum(|suite| suite.failed),
            skipped: sum(|suite| suite.skipped),
            suites,
        }
    }
}
