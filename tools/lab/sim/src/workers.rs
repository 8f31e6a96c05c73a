// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Threads that divide the seeds among themselves.

use crate::progress::SimProgress;
use crate::replay;
use crate::subject::Subject;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use verbena_lab_transport::network::coverage::Coverage;

/// Number of seeds that a thread takes at a time.
const BLOCK_SEEDS: u64 = 200;
/// Time between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// A seed that broke a rule.
#[derive(Debug)]
pub struct SeedFailure {
    /// The seed itself.
    pub seed: u64,
    /// Message of the panic, with its place.
    pub message: String,
}

struct WorkerReport {
    first: u64,
    end: u64,
    coverage: Coverage,
    failures: Vec<SeedFailure>,
}

/// Runs the seeds below `seeds` that were not run yet, until all are done, one fails, or `stop` is
/// set. Failures are in no particular order; the seeds after a failure are run only if `all` is
/// set.
pub fn run<S: Subject>(
    state: &mut SimProgress,
    seeds: u64,
    jobs: usize,
    all: bool,
    stop: &AtomicBool,
    mut note: impl FnMut(&SimProgress),
) -> Vec<SeedFailure> {
    let blocks: VecDeque<(u64, u64)> = state.missing(seeds, BLOCK_SEEDS).into();
    let blocks = Mutex::new(blocks);
    let mut failures = Vec::new();
    let mut noted = Instant::now();
    let (sender, reports) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let (sender, blocks) = (sender.clone(), &blocks);
            scope.spawn(move || work::<S>(blocks, all, stop, &sender));
        }
        drop(sender);
        for report in reports {
            state.add(report.first, report.end, &report.coverage);
            if !all && !report.failures.is_empty() {
                stop.store(true, Ordering::Relaxed);
            }
            failures.extend(report.failures);
            if noted.elapsed() > PROGRESS_INTERVAL {
                noted = Instant::now();
                note(state);
            }
        }
    });
    failures
}

fn work<S: Subject>(
    blocks: &Mutex<VecDeque<(u64, u64)>>,
    all: bool,
    stop: &AtomicBool,
    sender: &mpsc::Sender<WorkerReport>,
) {
    let mut subject = S::new_subject();
    loop {
        let block = blocks.lock().map(|mut blocks| blocks.pop_front());
        let Ok(Some((first, last))) = block else {
            return;
        };
        let mut failures = Vec::new();
        let mut end = first;
        while end < last && !stop.load(Ordering::Relaxed) && (all || failures.is_empty()) {
            if let Err(message) = replay::run_caught(&mut subject, end) {
                failures.push(SeedFailure { seed: end, message });
                let coverage = subject.take_coverage();
                subject = S::new_subject();
                subject.add_coverage(&coverage);
            }
            end += 1;
        }
        // A seed that failed does not count as done.
        if let (false, Some(failure)) = (all, failures.first()) {
            end = failure.seed;
        }
        let failed = !all && !failures.is_empty();
        let report = WorkerReport {
            first,
            end,
            coverage: subject.take_coverage(),
            failures,
        };
        if sender.send(report).is_err() || failed {
            return;
        }
    }
}
