// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `verbena-sim`: runs the transport's simulated network ([`verbena_lab_transport::SimNetwork`]), or
//! programs on the whole device ([`verbena_lab_device`]), seed after seed, on all cores. The run
//! can be stopped at any time, and the next one continues with the remaining seeds. A seed that
//! breaks a rule is printed with the command that replays it.

use clap::Parser;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::Instant;
use verbena_lab_sim::subject::Subject;
use verbena_lab_sim::{progress::SimProgress, replay, workers};
use verbena_lab_transport::SimNetwork;

/// Runs the simulation of the transport, or that of the device.
#[derive(Parser)]
#[command(name = "verbena-sim")]
struct SimArgs {
    /// Run programs on the whole device rather than the transport on a network.
    #[cfg(feature = "device")]
    #[arg(long, conflicts_with_all = ["capture", "coverage"])]
    device: bool,
    /// Run seeds 0 to N - 1, without those that were run before with the same source.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    seeds: u64,
    /// Replay one seed with a trace.
    #[arg(long, value_name = "K", conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Capture the packets of that seed for Wireshark (pcapng).
    #[arg(long, value_name = "FILE", requires = "seed")]
    capture: Option<PathBuf>,
    /// Report only if that seed keeps all rules, without a trace.
    #[arg(long, requires = "seed")]
    quiet: bool,
    /// Number of threads [default: number of cores].
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
    /// File for the progress.
    #[arg(long, value_name = "FILE", default_value = "build/sim/state")]
    state: PathBuf,
    /// Identification of the source. Progress with another source is discarded.
    #[arg(long, value_name = "HASH", default_value = "unknown")]
    source: String,
    /// Do not stop at the first seed that breaks a rule.
    #[arg(long)]
    all: bool,
    /// Print the features that were met, with counts.
    #[arg(long)]
    coverage: bool,
    /// Append to a file a line about all seeds that were run with this source.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = SimArgs::parse();
    if let Some(seed) = args.seed {
        return match replay_seed(&args, seed) {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                eprintln!("seed {seed} breaks a rule: {message}");
                ExitCode::FAILURE
            }
        };
    }
    #[cfg(feature = "device")]
    if args.device {
        return run_all::<verbena_lab_sim::subject::DeviceSubject>(&args);
    }
    run_all::<SimNetwork>(&args)
}

fn replay_seed(args: &SimArgs, seed: u64) -> Result<(), String> {
    #[cfg(feature = "device")]
    if args.device {
        return replay::replay_device(seed, !args.quiet);
    }
    replay::replay_network(seed, !args.quiet, args.capture.as_deref())
}

fn run_all<S: Subject>(args: &SimArgs) -> ExitCode {
    let mut state = SimProgress::load(&args.state, &args.source);
    let jobs = args
        .jobs
        .or_else(|| std::thread::available_parallelism().ok().map(usize::from))
        .unwrap_or(1);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&stop)) {
            eprintln!("warning: no handler for ^C and SIGTERM, which will lose the progress since the last report: {error}");
        }
    }
    let before = state.completed_seeds();
    let started = Instant::now();
    let mut failures = workers::run::<S>(&mut state, args.seeds, jobs, args.all, &stop, |state| {
        if let Err(error) = state.store(&args.state) {
            eprintln!(
                "warning: the progress cannot be stored in {}: {error}",
                args.state.display()
            );
        }
        let seconds = started.elapsed().as_secs_f64();
        let rate = (state.completed_seeds() - before) as f64 / seconds.max(0.001);
        eprintln!(
            "[{seconds:4.0}s] {} seeds, {rate:.0} per second",
            state.completed_seeds()
        );
    });
    if let Err(error) = state.store(&args.state) {
        eprintln!(
            "error: the progress cannot be stored in {}: {error}",
            args.state.display()
        );
        return ExitCode::FAILURE;
    }
    if args.coverage {
        state.coverage.lines().for_each(|line| println!("{line}"));
    }
    failures.sort_by_key(|failure| failure.seed);
    for failure in &failures {
        println!("seed {} breaks a rule: {}", failure.seed, failure.message);
        println!("replay: {}{}", S::REPLAY, failure.seed);
    }
    if !failures.is_empty() {
        return ExitCode::FAILURE;
    }
    println!("{}", state.summary());
    if let Some(record) = &args.record {
        let line = format!("| {} | {} |\n", args.source, state.summary());
        let file = OpenOptions::new().append(true).create(true).open(record);
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            eprintln!(
                "error: the line for the record cannot be written to {}: {error}",
                record.display()
            );
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
