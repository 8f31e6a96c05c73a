// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A simulated network: many queue pairs of all services, in one engine or on wires, on a virtual
//! clock, by seed.
//!
//! A seed draws everything: the connections and their attributes, the conditions of each direction of
//! each link, the work requests with their times and faults, and the actions of drivers in the
//! middle. Events then happen one after the other. At each event the engine is compared with a
//! model that computes the result:
//!
//! | file | contents |
//! | --- | --- |
//! | `plan.rs` | the draws of a seed at the beginning |
//! | `actor.rs` | programs: they post work requests and receives |
//! | `faults.rs` | faults of work requests |
//! | `drivers.rs` | drivers, machines, links: they change states, let memory go, begin anew |
//! | `work.rs`, `qp_model.rs` | work requests, receives and ends as the model knows them |
//! | `memory.rs` | all memory twice, as the engine has left it and as the model computes it |
//! | `model.rs` | the state of the model, and the call in progress |
//! | `host.rs` | the host of a queue pair; `copies.rs`, `completions.rs`: a check of every effect |
//! | `observer.rs`, `requests.rs` | a check of every packet that is sent |
//! | `calls.rs` | the calls of a queue pair, and the conditions that must hold after each |
//! | `executed.rs` | the conditions on the requests that a call has executed |
//! | `reference_run.rs` | the reference (`crate::reference`), compared with the engine after each call |
//! | `cnp_model.rs` | the marks of the links, and the notifications that have to follow |
//! | `event_queue.rs` | the links: loss, doubling, reordering, delay, corruption, forgery |
//! | `coverage.rs` | counts of the situations that were met |
//! | `show.rs` | the frames that a tap is shown |
//!
//! A broken rule is a panic. The same seed reproduces it, with a trace on request.

pub mod coverage;

mod actor;
mod calls;
mod cnp_model;
mod completions;
mod copies;
mod drivers;
mod event_queue;
mod executed;
mod faults;
mod finish;
mod forge;
mod host;
mod memory;
mod model;
mod observer;
mod plan;
mod qp_model;
mod reference_run;
mod requests;
mod show;
mod work;

use super::rng::Rng;
use super::tap::FrameTap;
use coverage::{Coverage, Topic};
use event_queue::{EventQueue, SimEvent};
use model::NetworkModel;
use std::rc::Rc;
use verbena_transport::{Gather, Qp};

pub use super::link_model::LinkMode;
pub use plan::Scenario;

/// A network that runs one seed after the other.
#[derive(Debug)]
pub struct SimNetwork {
    model: NetworkModel,
    qps: Vec<Qp>,
    events: EventQueue,
    /// Draws the actions of programs. The number of draws does not depend on the engine.
    rng: Rng,
    /// Draws the behaviour of the machine: budgets, delays.
    machine_rng: Rng,
    scenario: Scenario,
    mode: Option<LinkMode>,
    /// Observer of the frames that are sent.
    pub tap: Option<Box<dyn FrameTap>>,
    /// Payload data of a sample of packets, to check that no reference to them remains.
    samples: Vec<PayloadSample>,
}

#[derive(Debug)]
struct PayloadSample {
    op: u32,
    gather: Rc<Gather>,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeedResult {
    /// Digest of memory and completions.
    pub digest: u64,
    /// Virtual time in nanoseconds.
    pub time_ns: u64,
}

/// One seed of this number (a multiple of 16) runs in all modes of travel.
const COMPARED: u64 = 64;
/// Number of steps after which a seed is considered not to end.
const MAX_STEPS: u32 = 2_000_000;

impl Default for SimNetwork {
    fn default() -> Self {
        Self::new()
    }
}

impl SimNetwork {
    /// Returns a network that has run no seed.
    pub fn new() -> Self {
        Self {
            model: NetworkModel::new(),
            qps: Vec::new(),
            events: EventQueue::new(),
            rng: Rng::new(0),
            machine_rng: Rng::new(0),
            scenario: Scenario::Fair,
            mode: None,
            tap: None,
            samples: Vec::new(),
        }
    }

    /// Passes each line of the trace to `to`.
    pub fn trace(&mut self, to: fn(&str)) {
        self.model.trace = Some(to);
    }

    /// Returns the counts of all runs so far.
    pub fn coverage(&self) -> &Coverage {
        &self.model.coverage
    }

    /// Returns the counts and resets them.
    pub fn take_coverage(&mut self) -> Coverage {
        std::mem::take(&mut self.model.coverage)
    }

    /// Adds the counts of another network.
    pub fn add_coverage(&mut self, other: &Coverage) {
        self.model.coverage.merge(other);
    }

    /// Runs a seed. Panics if a rule is broken.
    pub fn run(&mut self, seed: u64) -> SeedResult {
        let scenario = Scenario::of(seed);
        if seed % COMPARED == 1 && self.tap.is_none() {
            // Super-packets, single packets and frames have the same outcome.
            let local = self.run_as(seed, scenario, Some(LinkMode::Local)).digest;
            for mode in [LinkMode::Split, LinkMode::Wire] {
                let outcome = self.run_as(seed, scenario, Some(mode));
                assert_eq!(
                    outcome.digest, local,
                    "the outcome of {mode:?} differs from that of local packets"
                );
            }
        }
        self.run_as(seed, scenario, None)
    }

    /// Runs a seed in a scenario, with all packets travelling in one mode.
    pub fn run_as(&mut self, seed: u64, scenario: Scenario, mode: Option<LinkMode>) -> SeedResult {
        self.model.clear();
        self.qps.clear();
        self.samples.clear();
        self.events.clear(seed);
        self.rng = Rng::new(seed);
        self.machine_rng = Rng::new(!seed);
        self.scenario = scenario;
        self.mode = mode;
        if let (Some(trace), Some(mode)) = (self.model.trace, mode) {
            trace(&format!("all packets travel as {mode:?}:"));
        }
        self.model
            .coverage
            .count(Topic::Scenario, scenario as u8, 0);
        self.plan();
        self.run_events();
        self.finish();
        self.model.coverage.time_ns += self.model.now_ns;
        let queues = self.model.qps.iter().flat_map(|end| end.digest);
        let queues = queues.fold(0u64, |all, queue| all.rotate_left(5) ^ queue);
        SeedResult {
            digest: self.model.memory.digest() ^ queues,
            time_ns: self.model.now_ns,
        }
    }

    /// Handles events until none is left.
    fn run_events(&mut self) {
        for _ in 0..MAX_STEPS {
            let Some((at, what)) = self.events.pop() else {
                return;
            };
            assert!(at >= self.model.now_ns, "time runs backwards");
            self.model.now_ns = at;
            match what {
                SimEvent::Arrival(arrival) => self.arrive(arrival),
                SimEvent::Timer(me) => self.expire(me),
                SimEvent::Poll(me) => self.poll(me),
                SimEvent::Act(me) => self.run_program(me),
                SimEvent::Resume(me) => self.resume(me),
                SimEvent::Reconnect(me) => self.reconnect(me),
                SimEvent::Connected(me, life) => self.connected(me, life),
                SimEvent::Thaw(me) => self.unfreeze(me),
            }
        }
        panic!("the run does not end");
    }
}

#[cfg(test)]
mod tests;
