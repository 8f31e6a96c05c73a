// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `scripts/test`: runs test suites.

use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use verbena_lab_harness::console::{self, Console};
use verbena_lab_harness::libtest;
use verbena_lab_harness::needs;
use verbena_lab_harness::options::{self, Options};
use verbena_lab_harness::results::RunResult;
use verbena_lab_harness::run::Run;
use verbena_lab_harness::skips::Skips;
use verbena_lab_harness::suite::Form;
use verbena_lab_harness::table;

/// Memory for a suite with a guest, in kB.
const MEMORY_OF_SUITE: usize = 3_000_000;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == libtest::COMMAND) {
        return libtest::run(&words[1..]);
    }
    let options = Options::parse();
    let table = table::suites();
    if options.list || options.markdown {
        print!(
            "{}",
            if options.markdown {
                options::markdown(&table)
            } else {
                options::list(&table)
            }
        );
        return ExitCode::SUCCESS;
    }
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the chosen suites. Returns whether all passed.
fn run(options: &Options) -> Result<bool, String> {
    let chosen = options.select(&table::suites())?;
    let of_script = |name: &str| {
        let value = std::env::var_os(name).map(PathBuf::from);
        value.ok_or_else(|| format!("{name} is not set: start this program by scripts/test"))
    };
    let top = of_script("VERBENA_TOP")?;
    let logs = of_script("VERBENA_LOGS")?;
    let began = std::env::var("VERBENA_STARTED").ok();
    let console = Console {
        began: began.and_then(|seconds| seconds.parse().ok()).unwrap_or(0),
    };
    std::fs::create_dir_all(&logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let run = Run {
        form: Form {
            long: options.long || options.debug,
            kernel: options.kernel(),
            top: top.clone(),
        },
        console,
        logs: logs.clone(),
        jobs: options.jobs.map_or_else(usual_jobs, usize::from),
        skips: Skips::read(&top.join("scripts/lib/skips"))?,
        make: &|need| needs::make(need, &top),
    };
    let results = run.suites(&chosen)?;
    summarise(&results, &console, &logs);
    Ok(results.failed == 0)
}

/// Prints the failures once more, at the end where readers look first, and the numbers.
fn summarise(results: &RunResult, console: &Console, logs: &Path) {
    let broken = results.suites.iter().filter(|suite| suite.failed != 0);
    let mut names = Vec::new();
    for suite in broken {
        print!("{}", console::verdict(suite));
        names.push(suite.name.as_str());
    }
    if !names.is_empty() {
        let names = names.join(" ");
        console.say(&format!(
            "failed: {names} (logs: {}/test-NAME.log)",
            logs.display()
        ));
    }
    if results.skipped != 0 {
        let skipped = results.skipped;
        console.say(&format!(
            "{skipped} tests were skipped, as scripts/lib/skips lists"
        ));
    }
    console.say(&format!(
        "results: {0}/results.json, {0}/junit.xml",
        logs.display()
    ));
    println!("{} passed, {} failed", results.passed, results.failed);
}

/// At least two suites at a time, because a guest is idle half of the time; fewer if memory is scarce.
fn usual_jobs() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| {
        let number = line
            .strip_prefix("MemAvailable:")?
            .trim()
            .strip_suffix(" kB")?;
        number.parse::<usize>().ok()
    });
    let enough_for = available.map_or(usize::MAX, |kb| kb / MEMORY_OF_SUITE);
    (processors / 2).max(2).min(enough_for).max(1)
}
