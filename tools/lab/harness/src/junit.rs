// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `junit.xml`: the results of a run in the format that systems of continuous integration read.
//!
//! Each suite is a `testsuite`, and each test a `testcase` whose class is the suite with the part.

use crate::results::{RunResult, SuiteResult, TestResult, Verdict};
use quick_xml::events::{BytesDecl, BytesEnd, BytesStart, BytesText, Event};
use quick_xml::Writer;

type Xml = Writer<Vec<u8>>;

/// Returns the document.
///
/// # Errors
///
/// The writer of XML refuses a value.
pub fn document(run: &RunResult) -> Result<Vec<u8>, String> {
    let mut xml = Writer::new_with_indent(Vec::new(), b' ', 1);
    write_run(&mut xml, run).map_err(|e| format!("junit.xml: {e}"))?;
    let mut bytes = xml.into_inner();
    bytes.push(b'\n');
    Ok(bytes)
}

fn write_run(xml: &mut Xml, run: &RunResult) -> std::io::Result<()> {
    xml.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    let counts = [run.passed, run.failed, run.skipped];
    let mut all = BytesStart::new("testsuites");
    all.push_attribute(("name", "verbena"));
    counted(&mut all, counts, run.seconds);
    xml.write_event(Event::Start(all))?;
    for suite in &run.suites {
        write_suite(xml, suite)?;
    }
    xml.write_event(Event::End(BytesEnd::new("testsuites")))
}

fn write_suite(xml: &mut Xml, suite: &SuiteResult) -> std::io::Result<()> {
    let counts = [suite.passed, suite.failed, suite.skipped];
    let mut start = BytesStart::new("testsuite");
    start.push_attribute(("name", clean(&suite.name).as_str()));
    counted(&mut start, counts, suite.seconds);
    start.push_attribute(("skipped", suite.skipped.to_string().as_str()));
    start.push_attribute(("timestamp", suite.started.trim_end_matches('Z')));
    xml.write_event(Event::Start(start))?;
    for test in &suite.tests {
        write_test(xml, suite, test)?;
    }
    xml.write_event(Event::End(BytesEnd::new("testsuite")))
}

fn write_test(xml: &mut Xml, suite: &SuiteResult, test: &TestResult) -> std::io::Result<()> {
    let class = match test.part.as_str() {
        "" => suite.name.clone(),
        part => format!("{}.{part}", suite.name),
    };
    let mut start = BytesStart::new("testcase");
    start.push_attribute(("classname", clean(&class).as_str()));
    start.push_attribute(("name", clean(&test.name).as_str()));
    start.push_attribute(("time", seconds(test.seconds.unwrap_or(0.0)).as_str()));
    let element = match test.verdict {
        Verdict::Passed => return xml.write_event(Event::Empty(start)),
        Verdict::Failed => "failure",
        Verdict::Skipped => "skipped",
    };
    xml.write_event(Event::Start(start))?;
    let reason = clean(&test.reason);
    let mut why = BytesStart::new(element);
    why.push_attribute(("message", reason.lines().next().unwrap_or_default()));
    if reason.lines().nth(1).is_some() {
        xml.write_event(Event::Start(why))?;
        xml.write_event(Event::Text(BytesText::new(&reason)))?;
        xml.write_event(Event::End(BytesEnd::new(element)))?;
    } else {
        xml.write_event(Event::Empty(why))?;
    }
    xml.write_event(Event::End(BytesEnd::new("testcase")))
}

/// Adds the numbers of tests and the time.
fn counted(start: &mut BytesStart<'_>, [passed, failed, skipped]: [usize; 3], time: f64) {
    start.push_attribute(("tests", (passed + failed + skipped).to_string().as_str()));
    start.push_attribute(("failures", failed.to_string().as_str()));
    start.push_attribute(("errors", "0"));
    start.push_attribute(("time", seconds(time).as_str()));
}

fn seconds(seconds: f64) -> String {
    format!("{seconds:.3}")
}

/// Replaces the characters that XML 1.0 cannot have, even escaped.
fn clean(text: &str) -> String {
    let allowed = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    text.chars()
        .map(|c| if allowed(c) { c } else { '\u{fffd}' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quick_xml::events::BytesStart;
    use quick_xml::Reader;

    fn test(name: &str, verdict: Verdict, reason: &str) -> TestResult {
        TestResult {
            part: "part".into(),
            name: name.into(),
            verdict,
            reason: reason.into(),
            seconds: None,
        }
    }

    fn run(tests: Vec<TestResult>) -> RunResult {
        let count = |verdict| SuiteResult::count(&tests, verdict);
        let suite = SuiteResult {
            name: "suite".into(),
            about: "<about>".into(),
            started: "2026-12-01T16:00:00Z".into(),
            seconds: 1.5,
            passed: count(Verdict::Passed),
            failed: count(Verdict::Failed),
            skipped: count(Verdict::Skipped),
            log: "test-suite.log".into(),
            tests,
        };
        RunResult::of(vec![suite], false, "stock", 2.0, true)
    }

    fn attribute(start: &BytesStart<'_>, name: &str) -> String {
        let found = start.try_get_attribute(name).unwrap().unwrap();
        found.unescape_value().unwrap().into_owned()
    }

    /// Returns the names of the tests, and the messages of those that did not pass.
    fn read(document: &[u8]) -> (Vec<String>, Vec<(String, String)>) {
        let mut reader = Reader::from_reader(document);
        let (mut names, mut messages, mut buffer) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            match reader.read_event_into(&mut buffer).unwrap() {
                Event::Eof => return (names, messages),
                Event::Start(e) | Event::Empty(e) => match e.name().as_ref() {
                    b"testcase" => names.push(attribute(&e, "name")),
                    b"failure" => messages.push(("failure".to_owned(), attribute(&e, "message"))),
                    b"skipped" => messages.push(("skipped".to_owned(), attribute(&e, "message"))),
                    _ => {}
                },
                _ => {}
            }
        }
    }

    #[test]
    fn names_and_reasons_with_characters_of_xml_are_read_back() {
        let name = r#"a <b> & "c" 'd' ]]> é"#;
        let tests = vec![
            test(name, Verdict::Failed, "1 < 2 && \"x\""),
            test("fine", Verdict::Passed, ""),
            test("not here", Verdict::Skipped, "no <device>"),
        ];
        let (names, messages) = read(&document(&run(tests)).unwrap());
        assert_eq!(names, [name, "fine", "not here"]);
        let expected = [("failure", "1 < 2 && \"x\""), ("skipped", "no <device>")];
        assert_eq!(
            messages,
            expected.map(|(kind, why)| (kind.to_owned(), why.to_owned()))
        );
    }

    #[test]
    fn characters_that_xml_cannot_have_are_replaced() {
        let tests = vec![test("a\u{1b}[0mb\0", Verdict::Failed, "\u{8}")];
        let (names, messages) = read(&document(&run(tests)).unwrap());
        assert_eq!(names, ["a\u{fffd}[0mb\u{fffd}"]);
        assert_eq!(messages[0].1, "\u{fffd}");
    }

    #[test]
    fn the_numbers_are_those_of_the_tests() {
        let tests = vec![
            test("a", Verdict::Passed, ""),
            test("b", Verdict::Failed, "x\ny"),
        ];
        let text = String::from_utf8(document(&run(tests)).unwrap()).unwrap();
        assert_eq!(
            text.matches(r#"tests="2" failures="1" errors="0""#).count(),
            2,
            "{text}"
        );
        assert!(text.contains("x\ny</failure>"), "{text}");
    }
}
