// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbena bench`: measures Verbena and rxe by perftest in guests, and writes a page that can be
//! posted.
//!
//! [`plan`] has the tests, [`figures`] the medians and what is missing, [`picture`] and [`page`] make
//! the page.

mod figures;
mod page;
mod picture;
mod plan;

use crate::args::AcceleratorName;
use crate::guest_run::{without_guest, GuestEvent, GuestRun, GuestRunEnd};
use crate::host::{GuestFacts, HostFacts};
use crate::nodes::{print, warn};
use crate::progress::StatusLine;
use clap::Args;
use figures::{three_digits, Figure, Missing, Samples, Values};
use plan::{Scene, Test, DEVICES};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use verbena_vm::run_directory::{new_logs, writable_runs};
use verbena_vm::signals::Signals;
use verbena_vm::Installation;

/// Exit status after SIGINT.
const INTERRUPTED: u8 = 130;
/// Exit status if figures are missing.
const INCOMPLETE: u8 = 1;

/// The command line of `verbena bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Where to write the page
    #[arg(long, value_name = "FILE", default_value = "verbena-bench.html")]
    report: PathBuf,
    /// Write the results as JSON, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fewer tests, sizes and rounds: some minutes without KVM
    #[arg(long)]
    short: bool,
    /// Rounds, in which the devices alternate [default: 3; 2 with --short]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Least time of a measurement in seconds [default: 1; 0.3 with --short]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Only tests whose name and size contain this text, as in `write_bw_65536`
    #[arg(long, value_name = "TEXT", value_parser = parse_only, default_value = "", hide_default_value = true)]
    only: String,
    /// Virtual CPUs of each guest
    #[arg(long, value_name = "N", default_value_t = 2)]
    cpus: u32,
    /// Memory of each guest in MB
    #[arg(long, value_name = "MB", default_value_t = 1024)]
    mem: u32,
    /// What executes the guests' instructions [default: kvm where it works, else tcg]
    #[arg(long, value_name = "KIND")]
    accel: Option<AcceleratorName>,
    /// More arguments for the NIC (verbena-nic), split at blanks. May be repeated
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true)]
    nic_args: Vec<String>,
    /// Directory for the logs [default: a new one, which errors name]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s| (0.05..=60.0).contains(s));
    seconds.ok_or_else(|| String::from("a measurement takes 0.05 to 60 seconds"))
}

fn parse_only(text: &str) -> Result<String, String> {
    let exists = plan::SCENES
        .iter()
        .any(|scene| !scene.tests(false, text).is_empty());
    match exists {
        true => Ok(String::from(text)),
        false => Err(String::from(
            "no test has such a name: names are like write_bw_65536",
        )),
    }
}

/// All results.
#[derive(Debug, Serialize)]
pub struct BenchReport {
    /// Version of this format.
    pub format: u32,
    /// Day and time, UTC.
    pub date: String,
    /// The machine.
    pub host: HostFacts,
    /// The guests.
    pub guest: GuestFacts,
    /// Virtual CPUs of each guest.
    pub cpus: u32,
    /// Memory of each guest in MB.
    pub memory_mb: u32,
    /// True for the short form.
    pub is_short: bool,
    /// Rounds of each test.
    pub rounds: u32,
    /// Least time of a measurement in seconds.
    pub seconds: f64,
    /// The results.
    pub figures: Vec<Figure>,
    /// Measurements without a result.
    pub missing: Vec<Missing>,
    /// The scenes that have run.
    #[serde(skip)]
    pub scenes: Vec<Scene>,
}

/// Measures, prints the figures, and writes the page. Returns 0, 1 if figures are missing, and 130
/// after a signal.
///
/// # Errors
///
/// No guest can run, or a file cannot be written.
pub fn run(args: &BenchArgs) -> Result<u8, String> {
    let accelerator = args.accel.map(AcceleratorName::kind);
    let source = verbena_vm::make_parts(accelerator)?;
    let installation = Installation::read(&source.file())?;
    let mut report = BenchReport {
        format: 1,
        date: date_of(seconds_since_1970()),
        host: HostFacts::collect(&installation, accelerator)?,
        guest: GuestFacts::default(),
        cpus: args.cpus,
        memory_mb: args.mem,
        is_short: args.short,
        rounds: args.rounds.unwrap_or(if args.short { 2 } else { 3 }),
        seconds: args.seconds.unwrap_or(if args.short { 0.3 } else { 1.0 }),
        figures: Vec::new(),
        missing: Vec::new(),
        scenes: Vec::new(),
    };
    // A file that cannot be written is an error before the measurements, not after them.
    for file in std::iter::once(&args.report).chain(&args.json) {
        write(file, "")?;
    }
    let logs = match &args.run_dir {
        Some(logs) => logs.clone(),
        None => new_logs(&writable_runs(&installation.runs)?)?,
    };
    let signals = Signals::catch()?;
    for scene in plan::scenes(args.short) {
        let tests = scene.tests(args.short, &args.only);
        if tests.is_empty() {
            continue;
        }
        let guests = Guests {
            args,
            installation: &source.file(),
            logs: &logs.join(scene.name),
            signals: &signals,
        };
        let Some(samples) = guests.measure(scene, &tests, &mut report)? else {
            return Ok(INTERRUPTED);
        };
        let (figures, missing) = samples.figures(scene, &tests, report.rounds as usize);
        print(&table(scene, &figures))?;
        missing.iter().for_each(|one| warn(&one.describe()));
        report.figures.extend(figures);
        report.missing.extend(missing);
        report.scenes.push(scene);
    }
    finish(args, &report, &logs)
}

/// Writes the files, and returns the exit status.
fn finish(args: &BenchArgs, report: &BenchReport, logs: &Path) -> Result<u8, String> {
    let json =
        serde_json::to_string_pretty(report).map_err(|e| format!("the results: {e}"))? + "\n";
    write(&args.report, &page::page(report, &json))?;
    if let Some(file) = &args.json {
        write(file, &json)?;
    }
    print(&format!("written: {}\n", args.report.display()))?;
    if report.missing.is_empty() {
        return Ok(0);
    }
    warn(&format!(
        "error: {} figures are missing, see above; the logs are in {}",
        report.missing.len(),
        logs.display()
    ));
    Ok(INCOMPLETE)
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    std::fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))
}

/// The guests of a scene.
struct Guests<'a> {
    args: &'a BenchArgs,
    installation: &'a Path,
    logs: &'a Path,
    signals: &'a Signals,
}

impl Guests<'_> {
    /// Runs the tests of a scene. Returns `None` if a signal has ended the guests.
    fn measure(
        &self,
        scene: Scene,
        tests: &[Test],
        report: &mut BenchReport,
    ) -> Result<Option<Samples>, String> {
        let all = tests.len() * DEVICES.len() * report.rounds as usize;
        let mut arguments = vec![
            format!("--cpus={}", self.args.cpus),
            format!("--mem={}", self.args.mem),
        ];
        if let Some(accelerator) = self.args.accel {
            arguments.push(format!("--accel={}", accelerator.kind()));
        }
        let nic = self.args.nic_args.iter();
        arguments.extend(nic.map(|value| format!("--nic-args={value}")));
        arguments.extend(scene.arguments(tests, report.rounds, report.seconds));
        let guests = GuestRun {
            installation: self.installation,
            logs: self.logs,
            arguments: arguments.into_iter().map(Into::into).collect(),
        };
        let (began, mut done) = (Instant::now(), 0);
        let (mut samples, mut status_line) = (Samples::default(), StatusLine::default());
        let ended = guests.run(self.signals, |event| {
            match event {
                GuestEvent::Output(line) => {
                    let line = without_guest(line);
                    done += usize::from(samples.take(line));
                    report.guest.take(line);
                }
                GuestEvent::Error(line) => {
                    samples.take_error(without_guest(line));
                }
                GuestEvent::Tick => {}
            }
            let seconds = began.elapsed().as_secs();
            status_line.show(&format!(
                "{}: {done} of {all} measurements ({seconds} s)",
                scene.name
            ));
        });
        status_line.show("");
        match ended? {
            GuestRunEnd::Ended(0) => {}
            GuestRunEnd::Ended(status) => {
                let why = samples.first_error().unwrap_or("see its logs");
                samples.trouble = Some(format!("the guests ended with {status}: {why}"));
            }
            GuestRunEnd::Interrupted(_) => return Ok(None),
        }
        Ok(Some(samples))
    }
}

/// Returns a scene's figures for a terminal.
fn table(scene: Scene, figures: &[Figure]) -> String {
    let mut text = format!(
        "\n{}\n\n  {:14}{:>8}{:>20}{:>20}{:>9}\n",
        scene.title, "test", "size", "Verbena", "rxe", "ratio"
    );
    for figure in figures {
        let cell = |values: &Option<Values>| match values {
            Some(values) => values.describe(figure.unit),
            None => String::from("missing"),
        };
        let ratio = figure
            .ratio
            .map_or_else(|| String::from("missing"), three_digits);
        text += &format!(
            "  {:14}{:>8}{:>20}{:>20}{ratio:>9}\n",
            figure.test.test,
            figures::size_name(figure.test.size),
            cell(&figure.verbena),
            cell(&figure.rxe)
        );
    }
    text
}

fn seconds_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Returns the day and the time (UTC) of a number of seconds since 1970.
fn date_of(seconds: u64) -> String {
    let is_leap = |year: u64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let (mut days, mut year, mut month) = (seconds / 86400, 1970, 0);
    let length = |year| if is_leap(year) { 366 } else { 365 };
    while days >= length(year) {
        days -= length(year);
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    while days >= months[month] {
        days -= months[month];
        month += 1;
    }
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!(
        "{year}-{:02}-{:02} {hour:02}:{minute:02} UTC",
        month + 1,
        days + 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct TestArgs {
        #[command(flatten)]
        bench: BenchArgs,
    }

    #[test]
    fn names_of_tests_and_times_are_checked() {
        let parse = |line: &[&str]| {
            let words = std::iter::once("bench").chain(line.iter().copied());
            TestArgs::try_parse_from(words).map(|args| args.bench)
        };
        assert!(parse(&["--only", "write_bw_65536"]).is_ok());
        for bad in [
            ["--only", "x"],
            ["--seconds", "0"],
            ["--seconds", "nan"],
            ["--rounds", "0"],
        ] {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
        assert_eq!(parse(&[]).unwrap().report, Path::new("verbena-bench.html"));
    }

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(date_of(0), "1970-01-01 00:00 UTC");
        assert_eq!(date_of(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(date_of(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date_of(1_796_083_200), "2026-12-01 00:00 UTC");
        assert_eq!(date_of(4_107_542_400), "2100-03-01 00:00 UTC");
    }

    #[test]
    fn the_page_has_the_results_and_refers_to_nothing_else() {
        let scene = plan::SCENES[0];
        let tests = figures::tests::tests();
        let (figures, missing) = figures::tests::samples().figures(scene, &tests, 3);
        let text = table(scene, &figures);
        assert!(
            text.contains("12.0 us ±42%") && text.contains("missing"),
            "{text}"
        );
        let report = BenchReport {
            format: 1,
            date: date_of(0),
            host: crate::host::tests::facts("a CPU </script><b>"),
            guest: GuestFacts::default(),
            cpus: 2,
            memory_mb: 1024,
            is_short: true,
            rounds: 3,
            seconds: 1.0,
            figures,
            missing,
            scenes: vec![scene],
        };
        let json = serde_json::to_string_pretty(&report).unwrap() + "\n";
        let page = page::page(&report, &json);
        for part in [
            "<th>accelerator</th><td>tcg",
            "4.00x",
            "Missing figures",
            "a CPU &lt;/script&gt;",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
        let lower = page.to_lowercase();
        for reference in ["http:", "https:", "src=", "href=", "url(", "@import"] {
            assert!(!lower.contains(reference), "{reference}");
        }
        let (_, rest) = page.split_once("id=\"verbena-bench\">").unwrap();
        let (data, _) = rest.split_once("</script>").unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["host"]["cpu"], "a CPU </script><b>");
        assert_eq!(data["figures"][0]["ratio"], 4.0);
        assert_eq!(data["missing"].as_array().unwrap().len(), 2);
    }
}
