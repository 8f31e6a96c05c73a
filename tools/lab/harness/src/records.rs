// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The records that test programs write, one JSON object on a line, to the file that the variable
//! [`FILE`] names:
//!
//! ```text
//! {"event": "begin", "program": "manners", "process": 41}
//! {"event": "test", "program": "manners", "process": 41, "name": "a", "verdict": "passed", "seconds": 0.1}
//! {"event": "test", "program": "manners", "process": 41, "name": "b", "verdict": "failed", "reason": "why"}
//! {"event": "end", "program": "manners", "process": 41, "tests": 2}
//! ```
//!
//! Several programs may write to the same file. A program in a guest adds `where`, the guest's name.
//! The end has the number of the program's records, so that a lost record, a program that was killed,
//! and a file that was cut off do not look like success.

use crate::results::{TestResult, Verdict};
use serde::Deserialize;
use std::collections::HashMap;

/// The variable that names the file of records.
pub const FILE: &str = "VERBENA_RESULTS";

#[derive(Deserialize)]
struct Record {
    program: String,
    process: u64,
    #[serde(default, rename = "where")]
    place: String,
    #[serde(flatten)]
    event: Event,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Event {
    Begin,
    Test {
        name: String,
        verdict: Verdict,
        #[serde(default)]
        reason: String,
        seconds: Option<f64>,
    },
    End {
        tests: usize,
    },
}

/// A program between its begin and its end.
type Writer = (String, String, u64);

/// The results in a file of records, and what is wrong with the file.
#[derive(Debug, Default)]
pub struct Records {
    pub tests: Vec<TestResult>,
    pub problems: Vec<String>,
}

impl Records {
    /// Reads a file of records. A file without a program is a problem.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut records = Records::default();
        let mut open: HashMap<Writer, usize> = HashMap::new();
        let text = String::from_utf8_lossy(bytes);
        if !text.is_empty() && !text.ends_with('\n') {
            records
                .problems
                .push("the file of records was cut off in its last line".to_owned());
        }
        let mut ended = 0;
        for (n, line) in text.lines().enumerate() {
            match serde_json::from_str::<Record>(line) {
                Ok(record) => {
                    ended += usize::from(matches!(record.event, Event::End { .. }));
                    records.take(record, &mut open);
                }
                Err(why) => {
                    let begin: String = line.chars().take(120).collect();
                    records
                        .problems
                        .push(format!("line {} of the records: {why}: {begin}", n + 1));
                }
            }
        }
        for ((program, place, _), tests) in open {
            let program = named(&program, &place);
            records.problems.push(format!(
                "{program} did not report its end, after {tests} tests"
            ));
        }
        if ended == 0 && records.problems.is_empty() {
            records
                .problems
                .push("no program wrote a record".to_owned());
        }
        records
    }

    fn take(&mut self, record: Record, open: &mut HashMap<Writer, usize>) {
        let program = named(&record.program, &record.place);
        let writer = (record.program, record.place, record.process);
        match record.event {
            Event::Begin => {
                // A guest that was reset gives the numbers of its processes again.
                if let Some(tests) = open.insert(writer, 0) {
                    self.problems
                        .push(format!("{program} began again after {tests} tests"));
                }
            }
            Event::Test {
                name,
                verdict,
                reason,
                seconds,
            } => {
                match open.get_mut(&writer) {
                    Some(tests) => *tests += 1,
                    None => self.problems.push(format!(
                        "{program} reported {name} outside its begin and end"
                    )),
                }
                self.tests.push(TestResult {
                    part: program,
                    name,
                    verdict,
                    reason,
                    seconds,
                });
            }
            Event::End { tests } => match open.remove(&writer) {
                Some(found) if found == tests => {}
                Some(found) => {
                    let lost = format!(
                        "{program} reported {tests} tests, of which {found} records arrived"
                    );
                    self.problems.push(lost);
                }
                None => self
                    .problems
                    .push(format!("{program} reported its end without a begin")),
            },
        }
    }
}

/// Returns the name of a program with that of its guest.
fn named(program: &str, place: &str) -> String {
    match place {
        "" => program.to_owned(),
        place => format!("{program} in {place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{"event":"begin","program":"p","process":1}
{"event":"test","program":"p","process":1,"name":"a","verdict":"passed","seconds":0.5}
{"event":"begin","program":"p","process":1,"where":"vm2"}
{"event":"test","program":"p","process":1,"where":"vm2","name":"b","verdict":"failed","reason":"why"}
{"event":"end","program":"p","process":1,"where":"vm2","tests":1}
{"event":"test","program":"p","process":1,"name":"c","verdict":"skipped","reason":"not here"}
{"event":"end","program":"p","process":1,"tests":2}
"#;

    fn problems(text: &str) -> String {
        Records::parse(text.as_bytes()).problems.join("; ")
    }

    #[test]
    fn programs_that_write_to_the_same_file_are_told_apart() {
        let records = Records::parse(WHOLE.as_bytes());
        assert!(records.problems.is_empty(), "{:?}", records.problems);
        let names: Vec<_> = records
            .tests
            .iter()
            .map(|t| (t.part.as_str(), t.name.as_str(), t.verdict))
            .collect();
        let expected = [
            ("p", "a", Verdict::Passed),
            ("p in vm2", "b", Verdict::Failed),
            ("p", "c", Verdict::Skipped),
        ];
        assert_eq!(names, expected);
        assert_eq!(
            (records.tests[0].seconds, records.tests[1].reason.as_str()),
            (Some(0.5), "why")
        );
    }

    #[test]
    fn each_lost_line_is_a_problem() {
        let lines: Vec<&str> = WHOLE.lines().collect();
        for lost in 0..lines.len() {
            let rest = lines.iter().enumerate().filter(|(n, _)| *n != lost);
            let lines: Vec<&str> = rest.map(|(_, line)| *line).collect();
            let text = lines.join("\n") + "\n";
            assert!(!problems(&text).is_empty(), "without line {lost}");
        }
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_is_a_problem() {
        for length in 0..WHOLE.len() {
            assert!(!problems(&WHOLE[..length]).is_empty(), "{length} bytes");
        }
    }

    #[test]
    fn a_line_that_is_no_record_is_a_problem() {
        assert!(problems(&format!("{WHOLE}hello\n")).contains("line 8"));
        let unknown = WHOLE.replace("\"failed\"", "\"maybe\"");
        assert!(problems(&unknown).contains("maybe"));
    }

    #[test]
    fn an_empty_file_is_a_problem_and_a_program_without_tests_is_none() {
        assert_eq!(problems(""), "no program wrote a record");
        let begin = r#"{"event":"begin","program":"p","process":1}"#;
        let end = r#"{"event":"end","program":"p","process":1,"tests":0}"#;
        assert_eq!(problems(&format!("{begin}\n{end}\n")), "");
    }

    #[test]
    fn a_program_that_begins_again_is_a_problem() {
        assert!(problems(&WHOLE.repeat(2)).is_empty());
        let first = WHOLE.lines().next().unwrap();
        assert!(problems(&format!("{first}\n{WHOLE}")).contains("began again"));
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        let bytes = WHOLE
            .replace("why", "w\u{1}y")
            .replace('\u{1}', "?")
            .into_bytes();
        let bytes: Vec<u8> = bytes
            .into_iter()
            .map(|b| if b == b'?' { 0xff } else { b })
            .collect();
        let records = Records::parse(&bytes);
        assert_eq!(records.problems, Vec::<String>::new());
        assert_eq!(records.tests[1].reason, "w\u{fffd}y");
    }
}
