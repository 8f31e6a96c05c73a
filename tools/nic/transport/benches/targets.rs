// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Measures the figures for which the engine has targets, and prints each as a ratio to its target.
//!
//! Two figures to compare are measured in turns, in slices of two milliseconds. Each figure is the
//! 90th percentile of its slices, so occasional load of the machine does not disturb it. Writes
//! JSON as well if `VERBENA_TARGETS` names a file.

use std::fmt::Write;
use std::time::{Duration, Instant};
use verbena_lab_transport::engine::{BenchEngine, EngineLoad};
use verbena_transport::host::WqeOpcode;
use verbena_transport::QpType;

const ROUNDS: usize = 200;
const SLICE: Duration = Duration::from_millis(2);

/// Work that takes at least [`SLICE`]: `run` called with `count` repetitions.
struct TargetBench<'a> {
    run: Box<dyn FnMut(u64) + 'a>,
    count: u64,
}

impl<'a> TargetBench<'a> {
    fn new(mut run: impl FnMut(u64) + 'a) -> Self {
        let mut count = 1;
        loop {
            // The shortest of five runs, because other load makes a run longer.
            let took = (0..5).map(|_| {
                let start = Instant::now();
                run(count);
                start.elapsed()
            });
            if took.min() >= Some(SLICE) {
                return Self {
                    run: Box::new(run),
                    count,
                };
            }
            count *= 2;
        }
    }

    /// Returns the number of repetitions per second.
    fn rate(&mut self) -> f64 {
        let start = Instant::now();
        (self.run)(self.count);
        self.count as f64 / start.elapsed().as_secs_f64()
    }
}

/// Returns the 90th percentile.
fn best(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() * 9 / 10]
}

/// Returns both rates, and the ratio of the first to the second.
fn compare(mut a: TargetBench<'_>, mut b: TargetBench<'_>) -> (f64, f64, f64) {
    let (a, b): (Vec<f64>, Vec<f64>) = (0..ROUNDS).map(|_| (a.rate(), b.rate())).unzip();
    let (a, b) = (best(a), best(b));
    (a, b, a / b)
}

fn rate(mut work: TargetBench<'_>) -> f64 {
    best((0..ROUNDS).map(|_| work.rate()).collect())
}

struct TargetReport {
    table: String,
    json: Vec<String>,
}

impl TargetReport {
    /// Adds a figure and its ratio to the target. A ratio of at least 1 is good.
    fn add(&mut self, name: &str, value: f64, unit: &str, target: f64) {
        let reached = value / target;
        let mark = if reached >= 1.0 { "" } else { "  not reached" };
        let _ = writeln!(
            self.table,
            "{name:<46} {value:>8.2} {unit:<6} target {target:>5.2}  ratio {reached:>5.2}{mark}"
        );
        self.json.push(format!(
            r#"{{"name": "{name}", "value": {value:.4}, "unit": "{unit}", "target": {target}, "ratio": {reached:.4}}}"#
        ));
    }

    fn note(&mut self, name: &str, value: f64, unit: &str) {
        let _ = writeln!(self.table, "{name:<46} {value:>8.2} {unit}");
        self.json.push(format!(
            r#"{{"name": "{name}", "value": {value:.4}, "unit": "{unit}"}}"#
        ));
    }
}

/// WRITEs of one size on one connection.
fn write(size: u32) -> EngineLoad {
    EngineLoad::new(QpType::Rc, WqeOpcode::RdmaWrite, size)
}

/// Returns an engine with this number of pairs, in which every queue pair has `depth` work requests
/// outstanding.
fn many(pairs: u32, depth: u32) -> BenchEngine {
    let mut engine = BenchEngine::new(EngineLoad {
        pairs,
        both: pairs > 1,
        depth,
        signal_every: depth,
        ..write(8)
    });
    engine.run(u64::from(2 * pairs * depth));
    engine
}

fn main() {
    // `cargo test --benches` passes `--test`; this program has nothing to test.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let mut report = TargetReport {
        table: String::new(),
        json: Vec::new(),
    };
    let mut engine = BenchEngine::new(write(8).pipelined());
    let small = rate(TargetBench::new(|n| engine.run(n)));
    report.add("8 B WRITE", small / 1e6, "M/s", 3.0);
    let mut engine = BenchEngine::new(EngineLoad::new(QpType::Rc, WqeOpcode::Send, 8).pipelined());
    let small = rate(TargetBench::new(|n| engine.run(n)));
    report.note("8 B SEND", small / 1e6, "M/s");
    for (size, name) in [(64 << 10, "64 KiB"), (8 << 20, "8 MiB")] {
        let shape = EngineLoad {
            depth: 16,
            signal_every: 1,
            ..write(size)
        };
        let (mut engine, mut buffers) = (BenchEngine::new(shape), BenchEngine::new(shape));
        let (wrote, copied, ratio) = compare(
            TargetBench::new(|n| engine.run(n)),
            TargetBench::new(|n| buffers.memcpy(n)),
        );
        let gigabytes = f64::from(size) / 1e9;
        let title = format!("{name} WRITE, of memcpy");
        if size == 64 << 10 {
            report.add(&title, ratio, "", 0.75);
        } else {
            report.note(&title, ratio, "");
        }
        report.note(&format!("{name} WRITE"), wrote * gigabytes, "GB/s");
        report.note(&format!("{name} memcpy"), copied * gigabytes, "GB/s");
    }
    for (title, pairs, depth, target) in [
        ("10,000 QPs, one WR each, of one pair", 5_000, 1, Some(0.8)),
        ("20,000 QPs, one WR each, of one pair", 10_000, 1, None),
        ("10,000 QPs, 16 WRs each, of one pair", 5_000, 16, None),
    ] {
        let (mut all, mut one) = (many(pairs, depth), many(1, depth));
        let (rate, single, ratio) = compare(
            TargetBench::new(|n| all.run(n)),
            TargetBench::new(|n| one.run(n)),
        );
        match target {
            Some(target) => report.add(title, ratio, "", target),
            None => report.note(title, ratio, ""),
        }
        report.note("  messages", rate / 1e6, "M/s");
        report.note("  messages of one pair", single / 1e6, "M/s");
    }
    print!("{}", report.table);
    if let Some(file) = std::env::var_os("VERBENA_TARGETS") {
        let text = format!("[\n  {}\n]\n", report.json.join(",\n  "));
        if let Err(error) = std::fs::write(&file, text) {
            eprintln!("{file:?} (VERBENA_TARGETS) cannot be written: {error}");
            std::process::exit(1);
        }
    }
}
