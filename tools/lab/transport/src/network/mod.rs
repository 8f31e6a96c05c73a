// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A simulated network: many queue pairs of all services, in one engine or on wires, on a virtual
//! clock, by seed.
//!
//! A seed draws everything: the connections and their attributes, the weather of each direction of
//! each link, the work requests with their times and faults, and the actions of drivers in the
//! middle. Events then happen one after the other. At each event the engine is compared with a
//! model that computes the result:
//!
//! | file | contents |
//! | --- | --- |
//! | `plan.rs` | the draws of a seed at the beginning |
//! | `actor.rs` | programs: they post work requests and receives |
//! | `flaws.rs` | faults of work requests |
//! | `drivers.rs` | drivers, machines, links: they change states, let memory go, begin anew |
//! | `work.rs`, `end.rs` | work requests, receives and ends as the model knows them |
//! | `memory.rs` | all memory twice, as the engine has left it and as the model computes it |
//! | `lab.rs` | the state of the model, and the call in progress |
//! | `host.rs` | the host of a queue pair; `copies.rs`, `completions.rs`: a check of every effect |
//! | `observer.rs` | a check of every packet that is sent |
//! | `calls.rs` | the calls of a queue pair, and the conditions that must hold after each |
//! | `executed.rs` | the conditions on the requests that a call has executed |
//! | `beside.rs` | the reference (`crate::reference`), compared with the engine after each call |
//! | `congestion.rs` | the marks of the links, and the notifications that have to follow |
//! | `air.rs` | the links: loss, doubling, reordering, delay, corruption, forgery |
//! | `cover.rs` | counts of the situations that were met |
//! | `show.rs` | the frames that a tap is shown |
//!
//! A broken rule is a panic. The same seed reproduces it, with a trace on request.

pub mod cover;

mod actor;
mod air;
mod beside;
mod calls;
mod completions;
mod congestion;
mod copies;
mod drivers;
mod end;
mod executed;
mod finish;
mod flaws;
mod forge;
mod host;
mod lab;
mod memory;
mod observer;
mod plan;
mod show;
mod work;

use super::rng::Rng;
use super::tap::Tap;
use air::{Air, What};
use cover::{Coverage, Topic};
use lab::Lab;
use std::rc::Rc;
use verbena_transport::{Gather, Qp};

pub use super::link::Mode;
pub use plan::Climate;

/// A network that runs one seed after the other.
#[derive(Debug)]
pub struct Network {
    lab: Lab,
    qps: Vec<Qp>,
    air: Air,
    /// Draws the actions of programs. The number of draws does not depend on the engine.
    rng: Rng,
    /// Draws the behaviour of the machine: budgets, delays.
    whim: Rng,
    climate: Climate,
    mode: Option<Mode>,
    /// Observer of the frames that are sent.
    pub tap: Option<Box<dyn Tap>>,
    /// Payload data of a sample of packets, to check that no reference to them remains.
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    op: u32,
    gather: Rc<Gather>,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Digest of memory and completions.
    pub digest: u64,
    /// Virtual time in nanoseconds.
    pub time: u64,
}

/// One seed of this number (a multiple of 16) runs in all modes of travel.
const COMPARED: u64 = 64;
/// Number of steps after which a seed is considered not to end.
const MAX_STEPS: u32 = 2_000_000;

impl Default for Network {
    fn default() -> Self {
        Self::new()
    }
}

impl Network {
    /// Returns a network that has run no seed.
    pub fn new() -> Self {
        Self {
            lab: Lab::new(),
            qps: Vec::new(),
            air: Air::new(),
            rng: Rng::new(0),
            whim: Rng::new(0),
            climate: Climate::Fair,
            mode: None,
            tap: None,
            samples: Vec::new(),
        }
    }

    /// Passes each line of the trace to `to`.
    pub fn trace(&mut self, to: fn(&str)) {
        self.lab.trace = Some(to);
    }

    /// Returns the counts of all runs so far.
    pub fn coverage(&self) -> &Coverage {
        &self.lab.cover
    }

    /// Returns the counts and resets them.
    pub fn take_coverage(&mut self) -> Coverage {
        std::mem::take(&mut self.lab.cover)
    }

    /// Adds the counts of another network.
    pub fn add_coverage(&mut self, other: &Coverage) {
        self.lab.cover.merge(other);
    }

    /// Runs a seed. Panics if a rule is broken.
    pub fn run(&mut self, seed: u64) -> Outcome {
        let climate = Climate::of(seed);
        if seed % COMPARED == 1 && self.tap.is_none() {
            // Super-packets, single packets and frames have the same outcome.
            let local = self.run_as(seed, climate, Some(Mode::Local)).digest;
            for mode in [Mode::Split, Mode::Wire] {
                let outcome = self.run_as(seed, climate, Some(mode));
                assert_eq!(
                    outcome.digest, local,
                    "the outcome of {mode:?} differs from that of local packets"
                );
            }
        }
        self.run_as(seed, climate, None)
    }

    /// Runs a seed in a climate, with all packets travelling in one mode.
    pub fn run_as(&mut self, seed: u64, climate: Climate, mode: Option<Mode>) -> Outcome {
        self.lab.clear();
        self.qps.clear();
        self.samples.clear();
        self.air.clear(seed);
        self.rng = Rng::new(seed);
        self.whim = Rng::new(!seed);
        self.climate = climate;
        self.mode = mode;
        if let (Some(trace), Some(mode)) = (self.lab.trace, mode) {
            trace(&format!("all packets travel as {mode:?}:"));
        }
        self.lab.cover.count(Topic::Climate, climate as u8, 0);
        self.plan();
        self.go();
        self.finish();
        self.lab.cover.time += self.lab.now;
        let queues = self.lab.ends.iter().flat_map(|end| end.digest);
        let queues = queues.fold(0u64, |all, queue| all.rotate_left(5) ^ queue);
        Outcome {
            digest: self.lab.memory.digest() ^ queues,
            time: self.lab.now,
        }
    }

    /// Handles events until none is left.
    fn go(&mut self) {
        for _ in 0..MAX_STEPS {
            let Some((at, what)) = self.air.pop() else {
                return;
            };
            assert!(at >= self.lab.now, "time runs backwards");
            self.lab.now = at;
            match what {
                What::Arrival(arrival) => self.arrive(arrival),
                What::Timer(me) => self.expire(me),
                What::Poll(me) => self.poll(me),
                What::Act(me) => self.act(me),
                What::Resume(me) => self.resume(me),
                What::Reconnect(me) => self.reconnect(me),
                What::Connected(me, life) => self.connected(me, life),
                What::Thaw(me) => self.thaw(me),
            }
        }
        panic!("the run does not end");
    }
}

#[cfg(test)]
mod tests;
