// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs tests, each in its own process with a time limit, and counts the results.
use crate::ffi::{context, sys};
use crate::rig::{self, Rig, RunEnv};
use crate::{peer, tests, Fail, GuestTest};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use verbena_lab_records::{Records, Verdict};

/// The name of this program in the records of its results.
const PROGRAM: &str = "guest-tests";
const EXIT_FAILED: u8 = 1;
const EXIT_USAGE: u8 = 2;
const EXIT_SKIPPED: u8 = 77;

const HELP: &str = "\
usage: verbena-guest-tests [options]

  --list             print the names of the tests and end
  --filter SUBSTR    only tests whose name contains SUBSTR (may be given several times)
  --skip SUBSTR      not the tests whose name contains SUBSTR (may be given several times)
  --long             also the tests that take minutes
  --device NAME      RDMA device (default verbena0)
  --gid N            GID index (default $VERBENA_GID, else the first RoCEv2 IPv4 entry)
  --jobs N           run N tests at a time (default 1)
  --times            print how long each test took

Prints `ok NAME`, `FAILED NAME: reason` or `skipped NAME: reason`, and at the end the line
`N passed, N failed[, N skipped]`. The exit status is 0 if nothing failed, 2 if the options select no test.";

#[derive(Default)]
struct Options {
    list: bool,
    filters: Vec<String>,
    skips: Vec<String>,
    long: bool,
    device: Option<String>,
    gid: Option<u32>,
    jobs: usize,
    times: bool,
    one: Option<String>,
    peer: Option<String>,
}

fn parse(args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut o = Options {
        jobs: 1,
        ..Options::default()
    };
    let mut args = args;
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--list" => o.list = true,
            "--long" => o.long = true,
            "--times" => o.times = true,
            "--filter" => o.filters.push(value()?),
            "--skip" => o.skips.push(value()?),
            "--device" => o.device = Some(value()?),
            "--gid" => o.gid = Some(value()?.parse().map_err(|_| "--gid needs a number")?),
            "--jobs" => o.jobs = value()?.parse().map_err(|_| "--jobs needs a number")?,
            "--one" => o.one = Some(value()?),
            "--peer" => o.peer = Some(value()?),
            "--help" | "-h" => return Err(String::new()),
            _ => return Err(format!("unknown option {arg}")),
        }
    }
    o.jobs = o.jobs.clamp(1, 64);
    Ok(o)
}

/// Returns the index of the first RoCEv2 entry of port 1 that holds an IPv4 address.
fn find_gid(device: &str) -> Option<u32> {
    const ROCE_V2: u32 = 2;
    let ctx = context::Context::open(device).ok()?;
    (0..256).find(|&i| match ctx.query_gid(1, i) {
        Ok(e) => {
            e.gid_type == ROCE_V2 && e.gid.raw[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255]
        }
        Err(_) => false,
    })
}

/// Resolves device and GID index from options and environment, and sets them for all tests.
pub fn set_env(device: Option<String>, gid: Option<u32>) -> Result<(), String> {
    let device = device.unwrap_or_else(|| "verbena0".into());
    let from_env = || {
        std::env::var("VERBENA_GID")
            .ok()
            .and_then(|v| v.trim().parse().ok())
    };
    let gid = gid.or_else(from_env).or_else(|| find_gid(&device));
    let Some(gid_index) = gid else {
        return Err(format!(
            "no RoCEv2 IPv4 GID on {device}; libibverbs sees: {:?}",
            context::device_names()
        ));
    };
    rig::set_env(RunEnv { device, gid_index });
    Ok(())
}

/// Runs the program `verbena-guest-tests`.
pub fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(o) => o,
        Err(why) => {
            eprintln!("{why}\n{HELP}");
            return ExitCode::from(if why.is_empty() { 0 } else { EXIT_USAGE });
        }
    };
    if options.list {
        tests::all().for_each(|t| println!("{}", t.name));
        return ExitCode::SUCCESS;
    }
    let chosen = match selected(&options) {
        Ok(chosen) => chosen,
        Err(why) => {
            eprintln!("{why}");
            println!("0 passed, 1 failed");
            report_failure("options", &why);
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if let Err(why) = set_env(options.device.clone(), options.gid) {
        eprintln!("{why}");
        println!("0 passed, 1 failed");
        report_failure("device", &why);
        return ExitCode::from(EXIT_FAILED);
    }
    if let Some(role) = &options.peer {
        return finish(peer::run_role(role));
    }
    if let Some(name) = &options.one {
        return finish(run_here(name));
    }
    run_all(&options, chosen)
}

/// Reports a program that is one test, or several tests of one kind. Returns its exit status.
pub fn report(name: &str, result: Result<u64, Fail>) -> ExitCode {
    let mut records = Records::begin(name);
    let code = match result {
        Ok(tests) => {
            for n in 1..=tests {
                let test = match tests {
                    1 => name.to_owned(),
                    _ => format!("{name}/{n}"),
                };
                records.test(&test, Verdict::Passed, "", None);
            }
            println!("{tests} passed, 0 failed");
            ExitCode::SUCCESS
        }
        Err(why) => {
            let why = format!("{why:?}");
            records.test(name, Verdict::Failed, &why, None);
            println!("FAILED {name}: {why}\n0 passed, 1 failed");
            ExitCode::FAILURE
        }
    };
    records.end();
    code
}

fn finish(result: crate::TestResult) -> ExitCode {
    let (code, why) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Fail::Failed(why)) => (EXIT_FAILED, why),
        Err(Fail::Skipped(why)) => (EXIT_SKIPPED, why),
    };
    println!("reason: {}", why.replace('\n', " "));
    let _ = std::io::stdout().flush();
    ExitCode::from(code)
}

/// Runs one test in this process.
fn run_here(name: &str) -> crate::TestResult {
    let test = tests::all()
        .find(|t| t.name == name)
        .ok_or("there is no test of that name; --list prints the names")?;
    let rig = Rig::new()?;
    (test.run)(&rig)?;
    drop(rig);
    match sys::drop_failures() {
        0 => Ok(()),
        n => Err(format!("{n} objects could not be destroyed after the test").into()),
    }
}

struct RunningTest {
    test: &'static GuestTest,
    child: Child,
    log: PathBuf,
    /// Time after which the test counts as hung. The limit is longer if packets are lost on
    /// purpose or if the kernel is slow.
    limit: Duration,
    started: Instant,
}

fn start(test: &'static GuestTest) -> std::io::Result<RunningTest> {
    let env = rig::env();
    let log = std::env::temp_dir().join(format!(
        "verbena-test-{}-{}.log",
        std::process::id(),
        test.name.replace('/', "_")
    ));
    let out = File::create(&log)?;
    let child = Command::new("/proc/self/exe")
        .args(["--one", test.name, "--device", &env.device])
        .args(["--gid", &env.gid_index.to_string()])
        // This process reports the results of its tests.
        .env_remove(verbena_lab_records::FILE)
        .stdin(Stdio::null())
        .stderr(out.try_clone()?)
        .stdout(out)
        .process_group(0)
        .spawn()?;
    Ok(RunningTest {
        test,
        child,
        log,
        limit: test.limit * rig::slowness() as u32 * if rig::is_lossy() { 3 } else { 1 },
        started: Instant::now(),
    })
}

enum TestOutcome {
    Passed,
    Failed(String),
    Skipped(String),
}

impl RunningTest {
    /// Returns the outcome of a test that has ended or was killed after its limit.
    fn poll(&mut self) -> Option<TestOutcome> {
        match self.child.try_wait() {
            Ok(Some(status)) => {
                // Peers of a test that ended early must not keep running.
                sys::kill_group(self.child.id());
                Some(self.classify(status))
            }
            Ok(None) if self.started.elapsed() < self.limit => None,
            Ok(None) => {
                sys::kill_group(self.child.id());
                let deadline = Instant::now() + Duration::from_secs(10);
                while Instant::now() < deadline && !matches!(self.child.try_wait(), Ok(Some(_))) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                let dead = matches!(self.child.try_wait(), Ok(Some(_)));
                let note = if dead {
                    ""
                } else {
                    ", and SIGKILL does not end it"
                };
                Some(TestOutcome::Failed(format!(
                    "hangs: not finished after {} s{note}",
                    self.limit.as_secs()
                )))
            }
            Err(e) => Some(TestOutcome::Failed(format!(
                "cannot wait for the process: {e}"
            ))),
        }
    }

    fn classify(&self, status: ExitStatus) -> TestOutcome {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let reason = text.lines().rev().find_map(|l| l.strip_prefix("reason: "));
        match status.code() {
            Some(0) => TestOutcome::Passed,
            Some(code) if code == i32::from(EXIT_SKIPPED) => {
                TestOutcome::Skipped(reason.unwrap_or("not supported").to_owned())
            }
            _ => {
                let last = text.lines().rev().find(|l| !l.trim().is_empty());
                let why = reason.or(last).unwrap_or("no reason printed").to_owned();
                match reason {
                    Some(_) => TestOutcome::Failed(why),
                    None => TestOutcome::Failed(format!("{status}: {why}")),
                }
            }
        }
    }
}

/// Returns the tests to run. A filter that matches no test is an error, because it is probably
/// misspelt and running nothing would look like success.
fn selected(o: &Options) -> Result<Vec<&'static GuestTest>, String> {
    let named = |filter: &str| tests::all().any(|t| t.name.contains(filter));
    if let Some(filter) = o.filters.iter().find(|f| !named(f)) {
        return Err(format!(
            "no test has '{filter}' in its name; --list prints the names"
        ));
    }
    let chosen: Vec<_> = tests::all()
        .filter(|t| o.filters.is_empty() || o.filters.iter().any(|f| t.name.contains(f.as_str())))
        .filter(|t| !o.skips.iter().any(|f| t.name.contains(f.as_str())))
        .filter(|t| !t.long || o.long || o.filters.iter().any(|f| f == t.name))
        .collect();
    if chosen.is_empty() {
        return Err("the options select no test: see --filter, --skip and --long".into());
    }
    Ok(chosen)
}

/// Reports that no test can run.
fn report_failure(name: &str, why: &str) {
    let mut records = Records::begin(PROGRAM);
    records.test(name, Verdict::Failed, why, None);
    records.end();
}

fn run_all(options: &Options, chosen: Vec<&'static GuestTest>) -> ExitCode {
    let mut queue = chosen.into_iter().peekable();
    let mut running: Vec<RunningTest> = Vec::new();
    let (mut passed, mut failed, mut skipped) = (0u32, 0u32, 0u32);
    let mut records = Records::begin(PROGRAM);
    loop {
        while running.len() < options.jobs {
            let crowded = |t: &&GuestTest| {
                !running.is_empty() && (t.alone || running.iter().any(|r| r.test.alone))
            };
            if queue.peek().is_some_and(crowded) {
                break;
            }
            let Some(test) = queue.next() else { break };
            match start(test) {
                Ok(r) => running.push(r),
                Err(e) => {
                    println!("FAILED {}: cannot start: {e}", test.name);
                    let why = format!("cannot start: {e}");
                    records.test(test.name, Verdict::Failed, &why, None);
                    failed += 1;
                }
            }
        }
        if running.is_empty() {
            break;
        }
        let mut i = 0;
        while i < running.len() {
            let Some(outcome) = running[i].poll() else {
                i += 1;
                continue;
            };
            let done = running.swap_remove(i);
            let name = done.test.name;
            let elapsed = done.started.elapsed();
            let took = if options.times {
                format!(" ({:.1} s)", elapsed.as_secs_f64())
            } else {
                String::new()
            };
            match outcome {
                TestOutcome::Passed => {
                    println!("ok {name}{took}");
                    records.test(name, Verdict::Passed, "", Some(elapsed));
                    // A passed test prints its measurements as figures.
                    let text = std::fs::read_to_string(&done.log).unwrap_or_default();
                    for figure in text.lines().filter_map(|l| l.strip_prefix("figure: ")) {
                        println!("  {figure}");
                    }
                    passed += 1;
                }
                TestOutcome::Failed(why) => {
                    println!("FAILED {name}: {why}{took}");
                    records.test(name, Verdict::Failed, &why, Some(elapsed));
                    failed += 1;
                }
                TestOutcome::Skipped(why) => {
                    println!("skipped {name}: {why}");
                    records.test(name, Verdict::Skipped, &why, Some(elapsed));
                    skipped += 1;
                }
            }
            let _ = std::io::stdout().flush();
            let _ = std::fs::remove_file(&done.log);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    records.end();
    let tail = if skipped > 0 {
        format!(", {skipped} skipped")
    } else {
        String::new()
    };
    println!("{passed} passed, {failed} failed{tail}");
    ExitCode::from(if failed == 0 { 0 } else { EXIT_FAILED })
}

#[cfg(test)]
mod tests_of_the_runner {
    use super::*;

    fn choose(args: &[&str]) -> Result<usize, String> {
        let options = parse(args.iter().map(|a| (*a).to_owned()))?;
        selected(&options).map(|chosen| chosen.len())
    }

    #[test]
    fn a_filter_that_matches_nothing_is_an_error() {
        let all = choose(&[]).unwrap();
        assert!(choose(&["--long"]).unwrap() > all);
        assert!((1..all).contains(&choose(&["--filter", "4/"]).unwrap()));
        let why = choose(&["--filter", "4/", "--filter", "4/cq-errr"]).unwrap_err();
        assert!(why.contains("'4/cq-errr'"), "{why}");
        assert!(choose(&["--filter", "4/cq-err", "--skip", "4/"]).is_err());
        // A filter selects a long test only by its whole name.
        assert!(choose(&["--filter", "byte-checked"]).is_err());
        assert_eq!(choose(&["--filter", "long/byte-checked-load"]), Ok(1));
    }
}
