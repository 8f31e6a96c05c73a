// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The laboratory of the device model: it runs programs that are drawn from a seed on the whole
//! device (`verbena_device`), and compares the results with an oracle that was written from the
//! specification.
//!
//! A step of a program consumes completions, arms CQs, posts to several queues, rings doorbells in
//! any of the ways in which a driver may, and changes objects. A few slices of the device run in
//! between. Then the device runs until no work is pending, and everything is compared
//! ([`Lab::step`]).
//!
//! The oracle knows no packets and no scheduling. Where these decide (which of two QPs takes a
//! receive of their SRQ, how many requests arrive before their QP ends), the oracle follows the
//! device's report and checks that the rules allow the report: completions of one queue have the
//! order of the posts, each status has its cause, bytes are old or new.
//!
//! | file | contents |
//! | --- | --- |
//! | `lab.rs`, `things.rs` | the device and its objects, as the program knows them |
//! | `program.rs`, `post.rs` | actions of programs, drawn at random |
//! | `furnish.rs` | creation of objects, connection of QPs |
//! | `change.rs` | changes of state, recovery, the end of a run |
//! | `keys.rs` | fast registration, invalidation |
//! | `memory.rs`, `oracle.rs` | data and keys; outcomes of work requests |
//! | `settle.rs`, `limbo.rs`, `cast.rs` | comparison of completions with the oracle |
//! | `paths.rs` | GIDs, and the source information of datagrams |
//! | `account.rs` | CQs, events, arms, limits, memory |
//! | `contexts.rs`, `counters.rs` | complete contexts and their listing; counters |
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

mod account;
mod cast;
mod change;
mod contexts;
mod counters;
mod furnish;
mod keys;
mod lab;
mod limbo;
mod memory;
mod oracle;
mod paths;
mod post;
mod program;
mod settle;
mod things;

pub use lab::Lab;

impl Lab {
    /// Runs one step of the program and compares its outcome with the model.
    pub fn step(&mut self) {
        for qp in &mut self.qps {
            (qp.was, qp.cut, qp.excused, qp.pushed) = (qp.state, false, false, false);
        }
        self.act();
        self.change();
        self.let_settle();
        self.collect();
        self.bury();
        self.look();
        for at in 0..self.qps.len() {
            self.follow(at);
        }
        self.mourn();
        for at in 0..self.qps.len() {
            self.flush(at);
        }
        self.balance_srqs();
        self.balance_drains();
        self.balance_events();
        self.balance_keys();
        self.balance_memory();
        self.balance_qps();
        self.balance_listing();
        self.recover();
    }
}

/// Result of a seed that broke no rule.
#[derive(Debug)]
pub struct Outcome {
    /// Situations that occurred, with their counts.
    pub met: BTreeMap<&'static str, u64>,
    /// Virtual time that passed, in nanoseconds.
    pub time: u64,
}

/// Runs a seed. Panics if the device breaks a rule. `trace` is called with each line of the trace.
pub fn run(seed: u64, trace: Option<&mut dyn FnMut(&str)>) -> Outcome {
    let mut lab = Lab::new(seed);
    let Some(trace) = trace else {
        lab.live();
        return lab.outcome();
    };
    lab.trace = Some(Vec::new());
    let result = catch_unwind(AssertUnwindSafe(|| lab.live()));
    lab.trace.iter().flatten().for_each(|line| trace(line));
    match result {
        Ok(()) => lab.outcome(),
        Err(cause) => resume_unwind(cause),
    }
}

/// Runs a seed and records everything in full. Panics if the device breaks a rule, or if the
/// recording cannot be started.
pub fn run_recorded(seed: u64, wish: verbena_device::Wish) -> Outcome {
    let number = wish.number;
    let begin = |d: &mut verbena_device::mock::Driver| {
        if let Err(reason) = d.device.record_fully(wish) {
            panic!("seed {seed}: {reason}");
        }
    };
    let mut lab = Lab::prepared(seed, begin);
    lab.live();
    lab.d
        .device
        .record_fully_no_more(number, "the seed is over");
    lab.outcome()
}

impl Lab {
    fn live(&mut self) {
        for step in 0..10 + self.rng.below(30) {
            lab::note!(self, "step {step}");
            self.step();
        }
        self.end();
    }

    fn outcome(self) -> Outcome {
        Outcome {
            met: self.met,
            time: self.d.now,
        }
    }
}
