// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The laboratory of the device model: programs drawn by seed run on the whole device (`verbena_device`), and an oracle
//! written from the specification tells what has to come of them.
//!
//! A step of a program consumes completions, arms CQs, posts to several queues, rings in any of the ways in which a
//! driver may, and changes objects, with a few slices of the device in between. Then the device runs until nothing is
//! left to happen, and everything is compared ([`Lab::step`]).
//!
//! The oracle knows no packets and no scheduling. Where these decide (which of two queue pairs takes a receive of their
//! SRQ, how far requests came before their queue pair ended), it follows what the device says, and checks that it may
//! say so: completions of one queue have the order of the posts, each status has its cause, bytes are old or new.
//!
//! | file | what |
//! | --- | --- |
//! | `lab.rs`, `things.rs` | the device and its objects, as the program knows them |
//! | `program.rs`, `post.rs` | what programs do, drawn by lot |
//! | `furnish.rs` | creating objects, connecting |
//! | `change.rs` | changes of state, recovery, the end |
//! | `keys.rs` | fast registration, invalidation |
//! | `memory.rs`, `oracle.rs` | data and keys; what becomes of a work request |
//! | `settle.rs`, `limbo.rs`, `cast.rs` | matching completions with the oracle |
//! | `paths.rs` | GIDs, and what datagrams tell of them |
//! | `account.rs` | CQs, events, arms, limits, memory |
//! | `contexts.rs`, `counters.rs` | contexts in whole, their listing; counters |
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
    /// One step of the program, and its outcome.
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

/// What became of a seed that broke no rule.
#[derive(Debug)]
pub struct Outcome {
    /// What was met, with counts.
    pub met: BTreeMap<&'static str, u64>,
    /// Virtual time that passed, in nanoseconds.
    pub time: u64,
}

/// Runs a seed. Panics when a rule is broken. `trace` takes what happens, line by line.
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

/// Runs a seed of which all is recorded in full. Panics when a rule is broken, or it cannot be recorded.
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
