// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The laboratory of the device model: it runs programs that are drawn from a seed on the whole
//! device (`verbena_device`), and compares the results with an oracle that was written from the
//! specification.
//!
//! A step of a program consumes completions, arms CQs, posts to several queues, rings doorbells in
//! any of the ways in which a driver may, and changes objects. A few slices of the device run in
//! between. Then the device runs until no work is pending, and everything is compared
//! ([`DeviceSimulation::step`]).
//!
//! The oracle knows no packets and no scheduling. Where these decide (which of two QPs takes a
//! receive of their SRQ, how many requests arrive before their QP ends), the oracle follows the
//! device's report and checks that the rules allow the report: completions of one queue have the
//! order of the posts, each status has its cause, bytes are old or new.
//!
//! | file | contents |
//! | --- | --- |
//! | `simulation.rs`, `objects.rs` | the device and its objects, as the program knows them |
//! | `program.rs`, `post.rs` | actions of programs, drawn at random |
//! | `creation.rs` | creation of objects, connection of QPs |
//! | `claims.rs` | memory that pending requests access |
//! | `change.rs` | changes of state, recovery, the end of a run |
//! | `keys.rs` | fast registration, invalidation |
//! | `memory.rs`, `oracle.rs` | data and keys; outcomes of work requests |
//! | `completions.rs`, `uncertain.rs`, `unreliable.rs` | comparison of completions with the oracle |
//! | `paths.rs` | GIDs, and the source information of datagrams |
//! | `comparison.rs` | CQs, events, arms, limits, memory |
//! | `contexts.rs`, `counters.rs` | complete contexts and their listing; counters |
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

mod change;
mod claims;
mod comparison;
mod completions;
mod contexts;
mod counters;
mod creation;
mod keys;
mod memory;
mod objects;
mod oracle;
mod paths;
mod post;
mod program;
mod simulation;
mod uncertain;
mod unreliable;

pub use simulation::DeviceSimulation;

impl DeviceSimulation {
    /// Runs one step of the program and compares its outcome with the model.
    pub fn step(&mut self) {
        for qp in &mut self.qps {
            (
                qp.state_before,
                qp.was_flushed,
                qp.has_failing_request,
                qp.moved_to_err,
            ) = (qp.state, false, false, false);
        }
        self.run_program();
        self.change_states();
        self.run_until_settled();
        self.read_completions();
        self.mark_failed_cqs();
        self.read_states();
        for at in 0..self.qps.len() {
            self.match_completions(at);
        }
        self.apply_cq_failures();
        for at in 0..self.qps.len() {
            self.flush(at);
        }
        self.compare_srqs();
        self.compare_drains();
        self.compare_events();
        self.compare_keys();
        self.compare_memory();
        self.compare_qps();
        self.compare_listing();
        self.recover();
    }
}

/// Result of a seed that broke no rule.
#[derive(Debug)]
pub struct SimulationResult {
    /// Situations that occurred, with their counts.
    pub coverage: BTreeMap<&'static str, u64>,
    /// Virtual time that passed, in nanoseconds.
    pub time_ns: u64,
}

/// Runs a seed. Panics if the device breaks a rule. `trace` is called with each line of the trace.
pub fn run(seed: u64, trace: Option<&mut dyn FnMut(&str)>) -> SimulationResult {
    let mut lab = DeviceSimulation::new(seed);
    let Some(trace) = trace else {
        lab.run_steps();
        return lab.outcome();
    };
    lab.trace = Some(Vec::new());
    let result = catch_unwind(AssertUnwindSafe(|| lab.run_steps()));
    lab.trace.iter().flatten().for_each(|line| trace(line));
    match result {
        Ok(()) => lab.outcome(),
        Err(cause) => resume_unwind(cause),
    }
}

/// Runs a seed and records everything in full. Panics if the device breaks a rule, or if the
/// recording cannot be started.
pub fn run_recorded(seed: u64, wish: verbena_device::FullRecordingRequest) -> SimulationResult {
    let number = wish.number;
    let begin = |d: &mut verbena_device::mock::Driver| {
        if let Err(reason) = d.device.begin_full_recording(wish) {
            panic!("seed {seed}: {reason}");
        }
    };
    let mut lab = DeviceSimulation::prepared(seed, begin);
    lab.run_steps();
    lab.driver
        .device
        .end_full_recording(number, "the seed is over");
    lab.outcome()
}

impl DeviceSimulation {
    fn run_steps(&mut self) {
        for step in 0..10 + self.rng.below(30) {
            simulation::note!(self, "step {step}");
            self.step();
        }
        self.end();
    }

    fn outcome(self) -> SimulationResult {
        SimulationResult {
            coverage: self.coverage,
            time_ns: self.driver.now,
        }
    }
}
