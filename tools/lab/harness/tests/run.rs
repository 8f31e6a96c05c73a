// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs of planted suites: what must not look like success, and what must.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::Duration;
use verbena_lab_harness::console::Console;
use verbena_lab_harness::results::{RunResult, SuiteResult, Verdict};
use verbena_lab_harness::run::Run;
use verbena_lab_harness::skips::Skips;
use verbena_lab_harness::step::Step;
use verbena_lab_harness::suite::{minutes, Form, Kernel, Need, Suite};

/// A directory for the logs of a test, which is removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("verbena-harness-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(path.join("run")).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn suite(name: &'static str, steps: fn(&Form) -> Vec<Step>) -> Suite {
    Suite {
        name,
        runs: &[],
        needs: &[Need::Tree],
        limit: minutes(10),
        about: "planted",
        steps,
    }
}

fn shell(command: &str) -> Step {
    Step::host(["sh", "-c", command])
}

/// Runs suites whose needs can all be made but the hostile NIC.
fn run_in(scratch: &Path, suites: &[Suite], skips: &str) -> RunResult {
    let run = Run {
        form: Form {
            long: false,
            kernel: Kernel::Stock,
            top: scratch.to_path_buf(),
        },
        console: Console { began: 0 },
        logs: scratch.join("run"),
        jobs: 2,
        skips: Skips::parse(skips).unwrap(),
        make: &|need| need != Need::Hostile,
    };
    run.suites(suites).unwrap()
}

fn run(suites: &[Suite]) -> RunResult {
    run_in(&Scratch::new().0, suites, "")
}

fn failures(suite: &SuiteResult) -> Vec<String> {
    let failed = suite
        .tests
        .iter()
        .filter(|test| test.verdict == Verdict::Failed);
    failed
        .map(|test| format!("{}: {}", test.name, test.reason))
        .collect()
}

fn counts(run: &RunResult) -> (usize, usize, usize) {
    (run.passed, run.failed, run.skipped)
}

#[test]
fn a_suite_with_one_passed_test_passes() {
    let a = suite("a", |_| vec![shell("echo ok t; echo 1 passed, 0 failed")]);
    let result = run(&[a]);
    assert_eq!(counts(&result), (1, 0, 0));
    assert_eq!(result.suites[0].tests[0].name, "t");
}

#[test]
fn a_skipped_test_fails_unless_it_is_listed() {
    let skips = || {
        suite("b", |_| {
            vec![shell(
                "echo skipped t: why; echo 1 passed, 0 failed, 1 skipped",
            )]
        })
    };
    let result = run(&[skips()]);
    assert_eq!(counts(&result), (1, 1, 0));
    assert!(failures(&result.suites[0])[0].starts_with("t: skipped, and not listed"));
    let scratch = Scratch::new();
    let result = run_in(&scratch.0, &[skips()], "b t # for this test\n");
    assert_eq!(counts(&result), (1, 0, 1));
}

#[test]
fn a_suite_without_a_test_fails() {
    let c = suite("c", |_| vec![shell("echo 0 passed, 0 failed")]);
    let none = suite("none", |_| vec![shell("exit 0").prepares()]);
    assert_eq!(counts(&run(&[c, none])), (0, 2, 0));
}

#[test]
fn a_suite_whose_needs_cannot_be_made_fails_without_running() {
    let d = Suite {
        needs: &[Need::Tree, Need::Hostile],
        ..suite("d", |_| vec![shell("echo 1 passed, 0 failed")])
    };
    let good = suite("good", |_| vec![shell("echo 1 passed, 0 failed")]);
    let result = run(&[d, good]);
    assert_eq!(counts(&result), (1, 1, 0));
    assert!(failures(&result.suites[0])[0].contains("(hostile) could not be made"));
}

#[test]
fn each_need_is_made_once() {
    let made = Mutex::new(Vec::new());
    let scratch = Scratch::new();
    let run = Run {
        form: Form {
            long: false,
            kernel: Kernel::Debug,
            top: scratch.0.clone(),
        },
        console: Console { began: 0 },
        logs: scratch.0.join("run"),
        jobs: 1,
        skips: Skips::default(),
        make: &|need| {
            made.lock().unwrap().push(need);
            true
        },
    };
    let good = || suite("good", |_| vec![shell("echo 1 passed, 0 failed")]);
    run.suites(&[good(), good()]).unwrap();
    assert_eq!(*made.lock().unwrap(), [Need::Tree, Need::Debug]);
}

#[test]
fn a_step_that_fails_ends_its_suite_unless_the_suite_goes_on() {
    let stops = suite("stops", |_| {
        vec![
            shell("echo FAILED x: why; echo 0 passed, 1 failed; exit 1"),
            shell("echo 1 passed, 0 failed"),
        ]
    });
    let goes_on = suite("goes-on", |_| {
        vec![
            shell("echo 0 passed, 1 failed; exit 1").goes_on(),
            shell("echo 1 passed, 0 failed"),
        ]
    });
    let result = run(&[stops, goes_on]);
    assert_eq!((result.suites[0].passed, result.suites[0].failed), (0, 1));
    assert_eq!(failures(&result.suites[0]), ["x: why"]);
    assert_eq!((result.suites[1].passed, result.suites[1].failed), (1, 1));
}

#[test]
fn an_exit_status_without_a_failed_test_fails() {
    let bad = suite("bad", |_| vec![shell("echo 5 passed, 0 failed; exit 7")]);
    let result = run(&[bad]);
    assert_eq!(counts(&result), (5, 1, 0));
    assert!(failures(&result.suites[0])[0].contains("exit status 7"));
    let killed = suite("killed", |_| {
        vec![shell("echo 1 passed, 0 failed; kill -KILL $$")]
    });
    assert!(failures(&run(&[killed]).suites[0])[0].contains("exit status 137"));
}

#[test]
fn a_command_that_cannot_start_fails() {
    let missing = suite("missing", |_| vec![Step::host(["/nonexistent"])]);
    let impossible = suite("impossible", |_| vec![Step::impossible("no sources")]);
    let result = run(&[missing, impossible]);
    assert_eq!(counts(&result), (0, 2, 0));
    assert!(failures(&result.suites[1])[0].contains("no sources"));
}

/// Writes a file of records that the shell can copy.
const BEGIN: &str = r#"{"event":"begin","program":"p","process":1}"#;
const TEST: &str = r#"{"event":"test","program":"p","process":1,"name":"t","verdict":"passed"}"#;
const END: &str = r#"{"event":"end","program":"p","process":1,"tests":1}"#;

#[test]
fn records_are_results_and_the_text_is_not() {
    let whole = suite("whole", |_| {
        let print = format!(
            "printf '%s\\n' '{BEGIN}' '{TEST}' '{END}' >$VERBENA_RESULTS; echo 9 passed, 9 failed"
        );
        vec![shell(&print).records()]
    });
    assert_eq!(counts(&run(&[whole])), (1, 0, 0));
}

#[test]
fn lost_records_do_not_look_like_success() {
    let without_end = suite("without-end", |_| {
        vec![shell(&format!(
            "printf '%s\\n' '{BEGIN}' '{TEST}' >$VERBENA_RESULTS"
        ))
        .records()]
    });
    let without_test = suite("without-test", |_| {
        vec![shell(&format!(
            "printf '%s\\n' '{BEGIN}' '{END}' >$VERBENA_RESULTS"
        ))
        .records()]
    });
    let cut_off = suite("cut-off", |_| {
        let print = format!(
            "printf '%s\\n%s\\n%s' '{BEGIN}' '{TEST}' '{END}' | head -c -5 >$VERBENA_RESULTS"
        );
        vec![shell(&print).records()]
    });
    let none = suite("none", |_| vec![shell("echo 1 passed, 0 failed").records()]);
    let removed = suite("removed", |_| {
        let print = format!(
            "printf '%s\\n' '{BEGIN}' '{TEST}' '{END}' >$VERBENA_RESULTS; rm $VERBENA_RESULTS"
        );
        vec![shell(&print).records()]
    });
    let result = run(&[without_end, without_test, cut_off, none, removed]);
    for suite in &result.suites {
        assert_ne!(suite.failed, 0, "{}", suite.name);
        assert!(
            failures(suite)[0].starts_with("harness/records: "),
            "{:?}",
            failures(suite)
        );
    }
}

#[test]
fn a_suite_that_exceeds_its_limit_is_ended_with_all_of_its_processes() {
    let scratch = Scratch::new();
    let hangs = Suite {
        limit: Duration::from_secs(1),
        ..suite("hangs", |form| {
            // A session of its own, an ignored SIGTERM, and a parent that is gone.
            let marker = form.top.join("alive");
            let inner = format!(
                "trap \"\" TERM; echo $$ >{}; while :; do sleep 0.1; done",
                marker.display()
            );
            vec![shell(&format!(
                "echo part: 1 passed, 0 failed; (setsid sh -c '{inner}' &); sleep 1000"
            ))]
        })
    };
    let result = run_in(&scratch.0, &[hangs], "");
    assert_eq!(counts(&result), (1, 1, 0));
    assert!(failures(&result.suites[0])[0].starts_with("harness/limit: "));
    let process = std::fs::read_to_string(scratch.0.join("alive")).unwrap();
    let stat =
        std::fs::read_to_string(format!("/proc/{}/stat", process.trim())).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
}

#[test]
fn the_results_are_in_both_files() {
    let scratch = Scratch::new();
    let a = suite("a", |_| {
        vec![shell("echo 'ok <x> & \"y\"'; echo 1 passed, 0 failed")]
    });
    let b = suite("b", |_| {
        vec![shell(
            "echo 'FAILED z: 1 < 2'; echo 0 passed, 1 failed; exit 1",
        )]
    });
    let result = run_in(&scratch.0, &[a, b], "");
    let json = std::fs::read(scratch.0.join("run/results.json")).unwrap();
    let read: RunResult = serde_json::from_slice(&json).unwrap();
    assert_eq!(read, result);
    assert!(read.complete);
    let junit = std::fs::read_to_string(scratch.0.join("run/junit.xml")).unwrap();
    assert!(
        junit.contains("&lt;x&gt; &amp; &quot;y&quot;") && junit.contains("1 &lt; 2"),
        "{junit}"
    );
    let log = std::fs::read_to_string(scratch.0.join("test-b.log")).unwrap();
    assert!(log.contains("FAILED z"));
}

#[test]
fn suites_that_end_at_the_same_time_write_their_results_one_after_the_other() {
    let scratch = Scratch::new();
    let one = |n| {
        let name = format!("suite-{n}").leak();
        suite(name, |_| vec![shell("echo 1 passed, 0 failed")])
    };
    let many: Vec<Suite> = (0..40).map(one).collect();
    assert_eq!(counts(&run_in(&scratch.0, &many, "")), (40, 0, 0));
}

#[test]
fn two_runs_at_the_same_time_do_not_disturb_each_other() {
    let both: Vec<RunResult> = std::thread::scope(|scope| {
        let one = || {
            let a = suite("a", |_| vec![shell("sleep 0.2; echo 1 passed, 0 failed")]);
            run(&[a])
        };
        let threads = [scope.spawn(one), scope.spawn(one)];
        threads.map(|thread| thread.join().unwrap()).into()
    });
    assert!(both.iter().all(|run| counts(run) == (1, 0, 0)));
}
