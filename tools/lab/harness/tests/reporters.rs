// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The reporters of shell, Python and Rust programs, whose records the harness must understand.

use std::path::{Path, PathBuf};
use std::process::Command;
use verbena_lab_harness::records::Records;
use verbena_lab_harness::results::Verdict;

/// Runs a program of an interpreter with a file of records, and returns the records.
fn records_of(interpreter: &str, program: &str, name: &str) -> Records {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let file = scratch(name);
    std::fs::write(&file, "").unwrap();
    let mut command = Command::new(interpreter);
    command
        .args(["-c", program, name])
        .current_dir(top)
        .env("VERBENA_RESULTS", &file);
    let output = command.output().unwrap();
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Records::parse(&bytes)
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("verbena-reporters-{}-{name}", std::process::id()))
}

fn shown(records: &Records) -> Vec<(&str, Verdict, &str)> {
    let tests = records.tests.iter();
    tests
        .map(|test| (test.name.as_str(), test.verdict, test.reason.as_str()))
        .collect()
}

const STRANGE: &str = "a <b> \"c\" \\d & $(e) %s";

#[test]
fn shell_programs_report() {
    let program = r#"
        . scripts/guest/records.sh
        records_begin
        record passed 'a <b> "c" \d & $(e) %s'
        record failed two $'first\nsecond\tthird\e'
        record skipped $'three\xff' 'no device'
        # A program that this one starts reports nothing by itself.
        bash -c '. scripts/guest/records.sh; records_begin; record failed inner; records_end'
        reporting bash -c '. scripts/guest/records.sh; records_begin; record passed inner; records_end'
        records_end"#;
    let records = records_of("bash", program, "shell");
    assert_eq!(records.problems, Vec::<String>::new());
    let expected = [
        (STRANGE, Verdict::Passed, ""),
        ("two", Verdict::Failed, "first\nsecond third?"),
        ("three\u{fffd}", Verdict::Skipped, "no device"),
        ("inner", Verdict::Passed, ""),
    ];
    assert_eq!(shown(&records), expected);
}

#[test]
fn a_shell_program_that_is_killed_has_no_end() {
    let program = ". scripts/guest/records.sh; records_begin; record passed a; kill -KILL $$";
    let records = records_of("bash", program, "killed");
    assert_eq!(
        records.problems,
        ["killed did not report its end, after 1 tests"]
    );
}

#[test]
fn a_result_of_a_subshell_is_no_end_of_its_own() {
    // The count of the subshell is lost, which must not look like success.
    let program = ". scripts/guest/records.sh; records_begin; (record passed a); records_end";
    let records = records_of("bash", program, "subshell");
    assert_eq!(
        records.problems,
        ["subshell reported 0 tests, of which 1 records arrived"]
    );
}

#[test]
fn python_programs_report() {
    let program = r#"
import os, subprocess, sys
sys.path.insert(0, "scripts/guest")
from verbena_guest.results import Results
results = Results("python")
def fails():
    raise ValueError("first\nsecond")
results.run('a <b> "c" \\d & $(e) %s', lambda: None)
results.run("two", fails)
results.skipped("three\udcff", "no device")
results.judged("four", ["line", "line"])
assert "VERBENA_RESULTS" not in os.environ
assert results.end() == 1
"#;
    let records = records_of("python3", program, "python");
    assert_eq!(records.problems, Vec::<String>::new());
    let expected = [
        (STRANGE, Verdict::Passed, ""),
        ("two", Verdict::Failed, "ValueError: first\nsecond"),
        ("three?", Verdict::Skipped, "no device"),
        ("four", Verdict::Failed, "line"),
    ];
    assert_eq!(shown(&records), expected);
    assert!(records
        .tests
        .iter()
        .all(|test| test.part == "python" && test.seconds.is_some()));
}

#[test]
fn a_python_program_that_ends_early_has_no_end() {
    let program = r#"
import sys
sys.path.insert(0, "scripts/guest")
from verbena_guest.results import Results
Results("early").passed("a")
sys.exit(0)
"#;
    let records = records_of("python3", program, "early");
    assert_eq!(
        records.problems,
        ["early did not report its end, after 1 tests"]
    );
}

#[test]
fn rust_programs_report() {
    let file = scratch("rust");
    let mut records = verbena_lab_records::Records::begin_in(Some(file.clone()), "rust");
    records.test(STRANGE, verbena_lab_records::Verdict::Passed, "", None);
    records.test(
        "two",
        verbena_lab_records::Verdict::Failed,
        "first\nsecond\u{1b}",
        None,
    );
    records.end();
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let records = Records::parse(&bytes);
    assert_eq!(records.problems, Vec::<String>::new());
    let expected = [
        (STRANGE, Verdict::Passed, ""),
        ("two", Verdict::Failed, "first\nsecond\u{1b}"),
    ];
    assert_eq!(shown(&records), expected);
}
