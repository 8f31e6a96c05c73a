// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs suites side by side.

use crate::console::{self, Console};
use crate::files;
use crate::needs;
use crate::processes::{self, MARK};
use crate::records;
use crate::results::{RunResult, SuiteResult, TestResult, Verdict};
use crate::skips::Skips;
use crate::step::{Reports, Step};
use crate::suite::{Form, Need, Suite};
use crate::verdict::{self, End, Outcome};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

const POLL_INTERVAL: Duration = Duration::from_millis(100);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// A run of suites.
pub struct Run<'a> {
    pub form: Form,
    pub console: Console,
    /// The directory of logs and results.
    pub logs: PathBuf,
    /// The number of suites that run at the same time.
    pub jobs: usize,
    pub skips: Skips,
    /// Makes a need, and returns whether it is made.
    pub make: &'a (dyn Fn(Need) -> bool + Sync),
}

impl Run<'_> {
    /// Runs the suites, and returns their results in the same order. Prints the verdict on each, and
    /// writes the results into the directory of logs after each.
    ///
    /// # Errors
    ///
    /// The results cannot be written.
    pub fn suites(&self, suites: &[Suite]) -> Result<RunResult, String> {
        let began = Instant::now();
        let results: Mutex<Vec<Option<SuiteResult>>> = Mutex::new(vec![None; suites.len()]);
        let write = |complete| {
            // The lock is held until the files are written, because another suite may end meanwhile.
            let all = locked(&results);
            let finished: Vec<SuiteResult> = all.iter().flatten().cloned().collect();
            let kernel = self.form.kernel.name();
            let seconds = began.elapsed().as_secs_f64();
            let run = RunResult::of(finished, self.form.long, kernel, seconds, complete);
            files::write(&run, &self.logs).map(|()| run)
        };
        let mut ready = Vec::new();
        for (n, (suite, lacks)) in suites.iter().zip(self.lacking(suites)).enumerate() {
            match lacks {
                None => ready.push(n),
                Some(need) => locked(&results)[n] = Some(self.without(suite, need)),
            }
        }
        let next = AtomicUsize::new(0);
        let failed_to_write = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.min(ready.len()) {
                scope.spawn(|| {
                    while let Some(&n) = ready.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let result = self.suite(&suites[n]);
                        locked(&results)[n] = Some(result);
                        if let Err(why) = write(false) {
                            *locked(&failed_to_write) = Some(why);
                        }
                    }
                });
            }
        });
        match failed_to_write.into_inner() {
            Ok(Some(why)) => Err(why),
            _ => write(true),
        }
    }

    /// Makes all needs first. Returns for each suite the need that could not be made. Such a suite
    /// fails without running, because it would run outdated programs.
    fn lacking(&self, suites: &[Suite]) -> Vec<Option<Need>> {
        let mut made = HashMap::new();
        let mut lacking = Vec::new();
        for suite in suites {
            let mut needs = needs::of(suite, self.form.kernel).into_iter();
            lacking.push(
                needs.find(|&need| !*made.entry(need.name()).or_insert_with(|| (self.make)(need))),
            );
        }
        lacking
    }

    fn without(&self, suite: &Suite, need: Need) -> SuiteResult {
        let lacks = format!(
            "a need of the suite ({}) could not be made, see above",
            need.name()
        );
        println!("{}: 0 passed, 1 failed: {lacks}", suite.name);
        let tests = vec![TestResult::of_harness("", "need", lacks)];
        self.result(suite, tests, SystemTime::now(), Duration::ZERO)
    }

    fn suite(&self, suite: &Suite) -> SuiteResult {
        let (started, began) = (SystemTime::now(), Instant::now());
        self.console
            .say(&format!("{}: {} ...", suite.name, suite.about));
        let tests = match SuiteRun::new(self, suite) {
            Ok(mut running) => running.steps(),
            Err(why) => vec![TestResult::of_harness("", "log", why)],
        };
        let tests = verdict::of_suite(suite.name, tests, &self.skips);
        let result = self.result(suite, tests, started, began.elapsed());
        print!("{}", console::verdict(&result));
        result
    }

    fn result(
        &self,
        suite: &Suite,
        tests: Vec<TestResult>,
        started: SystemTime,
        took: Duration,
    ) -> SuiteResult {
        SuiteResult {
            name: suite.name.to_owned(),
            about: suite.about.to_owned(),
            started: crate::console::rfc3339(started),
            seconds: took.as_secs_f64(),
            passed: SuiteResult::count(&tests, Verdict::Passed),
            failed: SuiteResult::count(&tests, Verdict::Failed),
            skipped: SuiteResult::count(&tests, Verdict::Skipped),
            log: format!("test-{}.log", suite.name),
            tests,
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A suite that runs.
struct SuiteRun<'a> {
    run: &'a Run<'a>,
    suite: &'a Suite,
    log: PathBuf,
    /// The value of [`MARK`] in the environment of all processes of the suite.
    mark: String,
    began: Instant,
    limit: Duration,
}

impl<'a> SuiteRun<'a> {
    fn new(run: &'a Run<'a>, suite: &'a Suite) -> Result<Self, String> {
        let log = run.logs.join(format!("test-{}.log", suite.name));
        let created = std::fs::create_dir_all(&run.logs).and_then(|()| File::create(&log));
        created.map_err(|e| format!("{}: {e}", log.display()))?;
        link_newest(&run.logs, suite.name);
        Ok(Self {
            run,
            suite,
            mark: log.display().to_string(),
            log,
            began: Instant::now(),
            limit: suite.limit_on(run.form.kernel),
        })
    }

    /// Runs the steps one after the other, until one fails or is skipped.
    fn steps(&mut self) -> Vec<TestResult> {
        let steps = (self.suite.steps)(&self.run.form);
        let mut all = Vec::new();
        for (n, step) in steps.iter().enumerate() {
            let part = part_name(step, n, steps.len());
            let tests = self.step(step, n, &part);
            let stops = tests
                .iter()
                .any(|test| test.verdict == Verdict::Failed && !step.goes_on)
                || step.skip.is_some() && tests.iter().any(|test| test.verdict == Verdict::Skipped);
            all.extend(tests);
            if stops || self.began.elapsed() >= self.limit {
                break;
            }
        }
        all
    }

    fn step(&self, step: &Step, n: usize, part: &str) -> Vec<TestResult> {
        let records = self.log.with_extension(format!("{}.jsonl", n + 1));
        let begin = self.write_title(part);
        let end = match step.command_line(&self.run.form) {
            Ok(words) => self.run_command(step, &words, &records),
            Err(why) => End::NotStarted(why),
        };
        let outcome = Outcome {
            end,
            output: read_from(&self.log, begin),
            records: read_from(&records, 0),
        };
        let tests = verdict::of_step(step, part, &outcome);
        let how = match &outcome.end {
            End::Status(0) => return tests,
            End::Status(status) => format!("exit status {status}"),
            End::Limit { seconds } => format!("still running after {seconds} s"),
            End::NotStarted(why) => why.clone(),
        };
        if tests.iter().any(|test| test.verdict == Verdict::Failed) {
            let text = format!("{}: {}", self.suite.name, self.suite.about);
            eprint!(
                "{}",
                console::failed_step(&text, &how, &outcome.output, &self.log)
            );
        }
        tests
    }

    /// Writes the name of the step into the log. Returns the length of the log.
    fn write_title(&self, part: &str) -> u64 {
        let Ok(mut log) = OpenOptions::new().append(true).open(&self.log) else {
            return 0;
        };
        // A log that lacks the title is still complete.
        let _ = if part.is_empty() {
            Ok(())
        } else {
            writeln!(log, "--- {part}")
        };
        log.metadata().map(|about| about.len()).unwrap_or(0)
    }

    fn run_command(&self, step: &Step, words: &[String], records: &Path) -> End {
        match self.spawn(step, words, records) {
            Ok(child) => self.wait(child),
            Err(e) => End::NotStarted(format!("{} cannot start: {e}", words[0])),
        }
    }

    fn spawn(&self, step: &Step, words: &[String], records: &Path) -> std::io::Result<Child> {
        let log = OpenOptions::new().append(true).open(&self.log)?;
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .current_dir(&self.run.form.top)
            .stdin(Stdio::null())
            .stderr(log.try_clone()?)
            .stdout(log)
            .env(MARK, &self.mark)
            .env_remove(records::FILE);
        if step.reports == Reports::Records {
            File::create(records)?;
            command.env(records::FILE, records);
        }
        command.envs(step.environment.iter().map(|(name, value)| (name, value)));
        command.spawn()
    }

    /// Waits until the process has ended or the suite exceeds its limit, and shows progress meanwhile.
    fn wait(&self, mut child: Child) -> End {
        let mut shown = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => {
                    let signal = status.signal().map_or(-1, |signal| 128 + signal);
                    return End::Status(status.code().unwrap_or(signal));
                }
                Ok(None) if self.began.elapsed() >= self.limit => return self.end_processes(child),
                Ok(None) => std::thread::sleep(POLL_INTERVAL),
                Err(e) => return End::NotStarted(format!("cannot wait for the process: {e}")),
            }
            if shown.elapsed() >= PROGRESS_INTERVAL {
                shown = Instant::now();
                self.show_progress();
            }
        }
    }

    fn end_processes(&self, mut child: Child) -> End {
        // The parent must take the status of the process, which otherwise stays as a zombie.
        let reaper = std::thread::spawn(move || child.wait());
        let left = processes::end_marked(&self.mark);
        if left == 0 {
            // The process has ended, so this does not block.
            let _ = reaper.join();
        } else {
            self.run
                .console
                .say(&format!("{}: {left} processes are left", self.suite.name));
        }
        End::Limit {
            seconds: self.limit.as_secs(),
        }
    }

    fn show_progress(&self) {
        let last = console::last_line(&self.log);
        let colon = if last.is_empty() { "" } else { ": " };
        let seconds = self.began.elapsed().as_secs();
        let line = format!("  {}: {seconds} s so far{colon}{last}", self.suite.name);
        self.run.console.say(&line);
    }
}

/// Returns the name of a step. A suite with a single step needs none.
fn part_name(step: &Step, n: usize, of: usize) -> String {
    match &step.title {
        Some(title) => title.clone(),
        None if of == 1 => String::new(),
        None => format!("step {}", n + 1),
    }
}

/// Makes `build/log/test-SUITE.log` a link to this log, the newest of the suite.
fn link_newest(logs: &Path, suite: &str) {
    let (Some(all), Some(run)) = (logs.parent(), logs.file_name()) else {
        return;
    };
    let name = format!("test-{suite}.log");
    let new = logs.join("newest");
    // Without the link the log is still there.
    let _ = std::fs::remove_file(&new);
    let linked = std::os::unix::fs::symlink(Path::new(run).join(&name), &new);
    let _ = linked.and_then(|()| std::fs::rename(&new, all.join(&name)));
}

/// Returns the bytes of a file from a position on, or none if there is no such file.
fn read_from(path: &Path, begin: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::Start(begin))?;
        file.read_to_end(&mut bytes)
    });
    match read {
        Ok(_) => bytes,
        Err(_) => Vec::new(),
    }
}
