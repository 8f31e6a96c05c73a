// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A simulated network: many queue pairs of all services, in one engine or behind wires, on a virtual clock, by seed.
//!
//! A seed draws everything: the connections and their attributes, the weather of each direction of each link, what is
//! posted and when, what is wrong with it, what drivers do in the middle. Then an event after the other happens, and at
//! each the engine is compared with a model that knows what has to come out:
//!
//! | file | what |
//! | --- | --- |
//! | `plan.rs` | what a seed draws at the beginning |
//! | `actor.rs` | programs: they post work requests and receives |
//! | `flaws.rs` | what is wrong with those |
//! | `drivers.rs` | drivers, machines, links: they change states, let memory go, begin anew |
//! | `work.rs`, `end.rs` | work requests, receives and ends as the model knows them |
//! | `memory.rs` | all memory twice, as the engine has left it and as the model says |
//! | `lab.rs` | what the model knows, and which call is going on |
//! | `host.rs` | the host of a queue pair: every effect is judged at once, in `copies.rs` and `completions.rs` |
//! | `observer.rs` | every packet that is sent is judged by itself |
//! | `calls.rs` | the calls of a queue pair, and what must hold after each; `executed.rs`: of what it has executed |
//! | `beside.rs` | the reference (`crate::reference`) beside the engine: told the same packets, compared after each call |
//! | `congestion.rs` | what the links have marked, and what has to follow |
//! | `air.rs` | the links: loss, doubling, reordering, delay, corruption, forgery |
//! | `cover.rs` | what was met, counted |
//! | `show.rs` | what a tap is shown |
//!
//! A broken rule is a panic. The same seed brings it again, with a trace if one is asked for.

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
use verbena_roce::{Gather, Qp};

pub use super::link::Mode;
pub use plan::Climate;

/// A network, to run one seed after the other.
#[derive(Debug)]
pub struct Network {
    lab: Lab,
    qps: Vec<Qp>,
    air: Air,
    /// Draws what programs do. Nothing of the engine decides how often it is asked.
    rng: Rng,
    /// Draws what the machine does: budgets, delays.
    whim: Rng,
    climate: Climate,
    mode: Option<Mode>,
    /// Watches frames.
    pub tap: Option<Box<dyn Tap>>,
    /// Data of packets, by way of sample, to see that nobody keeps them.
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    op: u32,
    gather: Rc<Gather>,
}

/// What a run has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Memory and completions, as a number.
    pub digest: u64,
    /// Virtual time.
    pub time: u64,
}

/// Of so many seeds (a multiple of 16) one runs in all ways of travel.
const COMPARED: u64 = 64;
/// Steps of a seed that are not believed to end.
const MAX_STEPS: u32 = 2_000_000;

impl Default for Network {
    fn default() -> Self {
        Self::new()
    }
}

impl Network {
    /// A network that has run nothing.
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

    /// Has each line of what happens written somewhere.
    pub fn trace(&mut self, to: fn(&str)) {
        self.lab.trace = Some(to);
    }

    /// What was met by all runs so far.
    pub fn coverage(&self) -> &Coverage {
        &self.lab.cover
    }

    /// Forgets what was met.
    pub fn take_coverage(&mut self) -> Coverage {
        std::mem::take(&mut self.lab.cover)
    }

    /// Adds what another network has met.
    pub fn add_coverage(&mut self, other: &Coverage) {
        self.lab.cover.merge(other);
    }

    /// Runs a seed. Panics when a rule is broken.
    pub fn run(&mut self, seed: u64) -> Outcome {
        let climate = Climate::of(seed);
        if seed % COMPARED == 1 && self.tap.is_none() {
            // Super-packets, single packets and frames have the same outcome.
            let local = self.run_as(seed, climate, Some(Mode::Local)).digest;
            for mode in [Mode::Split, Mode::Wire] {
                let outcome = self.run_as(seed, climate, Some(mode));
                assert_eq!(outcome.digest, local, "{mode:?} is not as local");
            }
        }
        self.run_as(seed, climate, None)
    }

    /// Runs a seed in a climate, with all packets travelling in one way.
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

    /// Lets things happen until nothing does any more.
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
        panic!("it does not come to an end");
    }
}

#[cfg(test)]
mod tests;
