// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Results of programs that write no records, from the lines that they print for readers.
//!
//! This is the only place where the harness reads text for results. The programs are to write records
//! ([`crate::records`]) one day; until then these lines are their interface:
//!
//! ```text
//! ok NAME                     test NAME ... ok
//! FAILED NAME: why            test NAME ... FAILED
//! skipped NAME: why           test NAME ... ignored
//! N passed, N failed          test result: ok. N passed; N failed; ...
//! ```
//!
//! The numbers decide. Tests whose names are not among the lines get names that say so. With several
//! guests, each line begins with the name of its guest.

use crate::results::{TestResult, Verdict};
use crate::step::Counts;

/// The number of lines that a report of failures has.
const MOST_FAILURES: usize = 20;

/// Returns the results that a step has printed. `part` is the step.
pub fn results(bytes: &[u8], counts: Counts, part: &str) -> Vec<TestResult> {
    let text = String::from_utf8_lossy(bytes);
    let (mut named, mut sum, mut last) = (Vec::new(), (0, 0), (0, 0));
    for (guest, line) in text.lines().map(split_guest) {
        if let Some((verdict, name, reason)) = named_test(line) {
            let part = match guest {
                "" => part.to_owned(),
                guest => format!("{part} in {guest}"),
            };
            named.push(TestResult {
                part,
                name: name.to_owned(),
                verdict,
                reason: reason.to_owned(),
                seconds: None,
            });
        }
        let is_part = line.starts_with("part: ");
        if let Some((passed, failed)) = cargo_counts(line) {
            sum = (sum.0 + passed, sum.1 + failed);
        } else if let Some((passed, failed)) =
            plain_counts(line.strip_prefix("part: ").unwrap_or(line))
        {
            match counts {
                Counts::Last if !is_part => last = (passed, failed),
                _ => sum = (sum.0 + passed, sum.1 + failed),
            }
        }
    }
    let (passed, failed) = (sum.0 + last.0, sum.1 + last.1);
    let mut all = exactly(passed, Verdict::Passed, &named, part);
    all.extend(exactly(failed, Verdict::Failed, &named, part));
    all.extend(
        named
            .into_iter()
            .filter(|test| test.verdict == Verdict::Skipped),
    );
    all
}

/// Returns the first lines that report failures, for readers.
pub fn failures(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let reports = |line: &&str| {
        let line = split_guest(line).1;
        line.starts_with("FAILED")
            || line.starts_with("test ") && line.contains(" FAILED")
            || line.starts_with("error[")
            || line.starts_with("error:")
            || line.starts_with("thread ") && line.contains(" panicked")
    };
    text.lines()
        .filter(reports)
        .take(MOST_FAILURES)
        .map(str::to_owned)
        .collect()
}

/// Splits the name of the guest from a line of several guests' output.
fn split_guest(line: &str) -> (&str, &str) {
    match line.split_once("| ") {
        Some((guest, rest)) if matches!(guest, "vm1" | "vm2" | "vm3" | "vm4") => (guest, rest),
        _ => ("", line),
    }
}

/// Returns verdict, name and reason of a line that reports a test.
fn named_test(line: &str) -> Option<(Verdict, &str, &str)> {
    if let Some((name, how)) = line
        .strip_prefix("test ")
        .and_then(|rest| rest.rsplit_once(" ... "))
    {
        let verdict = match how {
            how if how.starts_with("ok") => Verdict::Passed,
            how if how.starts_with("FAILED") => Verdict::Failed,
            how if how.starts_with("ignored") => Verdict::Skipped,
            _ => return None,
        };
        return Some((verdict, name, ""));
    }
    let (verdict, rest) = [
        ("ok ", Verdict::Passed),
        ("FAILED ", Verdict::Failed),
        ("skipped ", Verdict::Skipped),
    ]
    .into_iter()
    .find_map(|(word, verdict)| Some((verdict, line.strip_prefix(word)?)))?;
    let (name, reason) = match verdict {
        // Names of skipped tests have neither blank nor colon.
        Verdict::Skipped => rest.split_once([' ', ':']).unwrap_or((rest, "")),
        Verdict::Failed => rest.split_once(": ").unwrap_or((rest, "")),
        Verdict::Passed => (rest, ""),
    };
    (!name.is_empty()).then_some((verdict, name, reason.trim()))
}

/// Returns the numbers of a line `N passed, N failed`, behind which more may stand.
fn plain_counts(line: &str) -> Option<(usize, usize)> {
    let (passed, rest) = line.split_once(" passed, ")?;
    let (failed, _) = rest.split_once(" failed")?;
    Some((passed.parse().ok()?, failed.parse().ok()?))
}

/// Returns the numbers of the line with which Rust's tests end.
fn cargo_counts(line: &str) -> Option<(usize, usize)> {
    let (_, rest) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let (passed, rest) = rest.split_once(" passed; ")?;
    let (failed, _) = rest.split_once(" failed")?;
    Some((passed.parse().ok()?, failed.parse().ok()?))
}

/// Returns as many tests of a verdict as the numbers say: those with names first.
fn exactly(number: usize, verdict: Verdict, named: &[TestResult], part: &str) -> Vec<TestResult> {
    let with_names = named.iter().filter(|test| test.verdict == verdict);
    let mut tests: Vec<TestResult> = with_names.take(number).cloned().collect();
    for n in tests.len()..number {
        tests.push(TestResult {
            part: part.to_owned(),
            name: format!("unnamed/{}", n + 1),
            verdict,
            reason: String::new(),
            seconds: None,
        });
    }
    tests
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &str, counts: Counts) -> (usize, usize, usize) {
        let tests = results(text.as_bytes(), counts, "step");
        let number = |verdict| tests.iter().filter(|test| test.verdict == verdict).count();
        (
            number(Verdict::Passed),
            number(Verdict::Failed),
            number(Verdict::Skipped),
        )
    }

    #[test]
    fn the_last_line_counts_or_each_does() {
        let text = "1 passed, 0 failed\nok x\n3 passed, 2 failed, 1 skipped\n";
        assert_eq!(counted(text, Counts::Last), (3, 2, 0));
        assert_eq!(counted(text, Counts::Each), (4, 2, 0));
        let text = "part: 4 passed, 1 failed\n5 passed, 0 failed\n6 passed, 0 failed\n";
        assert_eq!(counted(text, Counts::Last), (10, 1, 0));
    }

    #[test]
    fn rust_tests_are_added_up() {
        let text = "test a::b ... ok\ntest c ... ignored, slow\ntest d ... FAILED\n\
            test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured\n\
            test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured\n";
        assert_eq!(counted(text, Counts::Last), (6, 1, 1));
    }

    #[test]
    fn lines_of_several_guests_name_their_guest() {
        let text =
            "vm1| ok a\nvm2| FAILED b: why\nvm1| 1 passed, 0 failed\nvm2| 0 passed, 1 failed\n";
        let tests = results(text.as_bytes(), Counts::Each, "pair");
        let shown: Vec<_> = tests
            .iter()
            .map(|t| (t.part.as_str(), t.name.as_str(), t.reason.as_str()))
            .collect();
        assert_eq!(
            shown,
            [("pair in vm1", "a", ""), ("pair in vm2", "b", "why")]
        );
        assert_eq!(failures(text.as_bytes()), ["vm2| FAILED b: why"]);
    }

    #[test]
    fn the_numbers_decide_and_not_the_lines() {
        assert_eq!(counted("ok a\nok b\nFAILED c\n", Counts::Last), (0, 0, 0));
        assert_eq!(counted("2 passed, 1 failed\n", Counts::Last), (2, 1, 0));
        assert_eq!(
            counted("FAILED as expected\n1 passed, 0 failed\n", Counts::Last),
            (1, 0, 0)
        );
        assert_eq!(counted("x passed, y failed\n", Counts::Last), (0, 0, 0));
    }

    #[test]
    fn skipped_tests_have_names_and_reasons() {
        let tests = results(b"skipped t.x: no device\nskipped u\n", Counts::Last, "s");
        let shown: Vec<_> = tests
            .iter()
            .map(|t| (t.name.as_str(), t.reason.as_str()))
            .collect();
        assert_eq!(shown, [("t.x", "no device"), ("u", "")]);
    }
}
