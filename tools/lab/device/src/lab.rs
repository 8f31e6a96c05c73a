// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device, the program's side of it and the model: their creation, and how the device is run.

use crate::counters::Tally;
use crate::memory::{Data, Keys, MAX_PAGE, PAGE, PAGES};
use crate::things::{Cq, Qp, Send, Srq};
use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use verbena_abi::cmd::*;
use verbena_abi::doorbell::{AREA_SIZE, AREA_SLOTS};
use verbena_abi::eqe::EventType;
use verbena_device::memory::GuestMemory;
use verbena_device::mock::{Driver, GuestWords};
use verbena_device::objects::eq::Event;
use verbena_device::Config;
use verbena_lab_transport::Rng;

/// log2 of the number of entries of send and receive rings.
pub const LOG_WQ: u8 = 4;
/// Number of entries of send and receive rings.
pub const WQ: u32 = 1 << LOG_WQ;
/// log2 of the stride of send rings in bytes.
pub const LOG_SQ_STRIDE: u8 = 9;
/// log2 of the stride of receive rings in bytes.
pub const LOG_RQ_STRIDE: u8 = 9;
/// Limits: data segments of a send, data segments of a receive, bytes of inline data.
pub const LIMITS: (u8, u8, u16) = (4, 5, 96);
/// Number of doorbell areas.
pub const AREAS: usize = 4;
/// Number of event queues for completion events.
pub const COMP_EQS: u32 = 3;
/// Upper limit of QPNs. The device needs more than one slice to scan all of them.
const MAX_QPN: u32 = 2048;
/// Number of QP contexts in a chunk of the context table.
pub const QPS_PER_CHUNK: u32 = 128;
/// Time in nanoseconds after which all retries are over and no event is pending.
const SETTLED: u64 = 1_200_000_000;

/// An asynchronous event that has arrived, or that the model expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Told {
    /// Raw number of the event type.
    pub kind: u8,
    /// Number of the event's object.
    pub number: u32,
}

/// Obligation of the device to deliver an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The event has to arrive.
    Must,
    /// The event may arrive.
    May,
}

/// A run of one seed: the device, the program and the model.
pub struct Lab {
    /// Seed that the run was drawn from.
    pub seed: u64,
    /// Random number generator of the run.
    pub rng: Rng,
    /// Driver mock, which contains the device.
    pub d: Driver,
    /// Addresses of the chunks of the QP context table.
    pub contexts: Vec<u64>,
    /// Addresses of the doorbell areas.
    pub areas: [u64; AREAS],
    /// Doorbell writes that the device has not processed, by area.
    pub bells: [Cell<u32>; AREAS],
    /// Address of the data memory; a guard page comes before it.
    pub heap: u64,
    /// Data memory as the model expects it.
    pub data: Data,
    /// Memory regions of the program.
    pub keys: Keys,
    /// Completion queues of the program.
    pub cqs: Vec<Cq>,
    /// Shared receive queues of the program.
    pub srqs: Vec<Srq>,
    /// Queue pairs of the program.
    pub qps: Vec<Qp>,
    /// Interrupt vectors that were raised and not handled yet, as a bit mask.
    pub raised: u32,
    /// Number of doorbells that the device was given.
    pub rings: u64,
    /// Counter values that the model knows.
    pub tally: Tally,
    /// Events since the last comparison, each with the number of its event queue.
    pub came: Vec<(u32, Event)>,
    /// Asynchronous events that the model expects.
    pub due: BTreeMap<Told, Due>,
    /// Requests that were flushed or reset; the device may have applied their changes to keys.
    pub unheard: Vec<Send>,
    /// Memory that the device must not write any more, with its contents.
    pub graves: Vec<(u64, Vec<u8>)>,
    /// Trace of the run as text; `None` without a trace.
    pub trace: Option<Vec<String>>,
    /// Situations that occurred, with their counts.
    pub met: BTreeMap<&'static str, u64>,
    next_wr: u64,
    /// Index of the last key that was created.
    pub next_key: u32,
    numbers: HashSet<(u8, u32)>,
    places: HashSet<(u32, usize)>,
}

/// Adds a line to the trace, if there is one.
macro_rules! note {
    ($lab:expr, $($what:tt)*) => {
        if let Some(trace) = &mut $lab.trace {
            trace.push(format!($($what)*));
        }
    };
}
pub(crate) use note;

impl Lab {
    /// Returns a run whose device is up and has its objects.
    pub fn new(seed: u64) -> Self {
        Self::prepared(seed, |_| {})
    }

    /// Does the same, but calls `prepare` before the device is brought up.
    pub fn prepared(seed: u64, prepare: impl FnOnce(&mut Driver)) -> Self {
        let mut rng = Rng::new(seed);
        let config = Config {
            wire_local: rng.chance(25),
            credits: rng.chance(80),
            seed,
            ..Config::default()
        };
        let mut d = Driver::cold(config);
        prepare(&mut d);
        // Doorbells and timers change objects while a command is executed, so the driver mock
        // cannot check that a command that fails changes nothing.
        d.watch = u32::MAX;
        // Some event queues are so small that events have to wait for room.
        d.log_eq = [1, 2, 4, 4][rng.below(4) as usize];
        d.bring_up();
        let mut contexts = vec![d.table(Table::Qpc)];
        contexts.extend((1..MAX_QPN / QPS_PER_CHUNK).map(|chunk| d.give_chunk(Table::Qpc, chunk)));
        for eqn in 2..=COMP_EQS {
            d.create_eq(eqn).expect("an event queue");
        }
        let mut areas = [d.area; AREAS];
        for (uar, area) in areas.iter_mut().enumerate().skip(1) {
            *area = d.alloc(AREA_SIZE as u64);
            d.must(&CreateUar {
                uar: (uar as u32).into(),
                context: 5.into(),
                addr: (*area).into(),
                ..Default::default()
            });
        }
        // The data memory starts on a boundary of the largest page size.
        let guard = d.alloc(2 * MAX_PAGE);
        let whole = (guard + PAGE).next_multiple_of(MAX_PAGE) - PAGE;
        d.alloc((PAGES + 2) * PAGE);
        let bytes: Vec<u8> = (0..(PAGES + 2) * PAGE)
            .map(|i| (i * 31 + i / 251) as u8)
            .collect();
        d.ram.write(whole, &bytes).expect("data memory");
        let heap = whole + PAGE;
        let graves = vec![
            (whole, bytes[..PAGE as usize].to_vec()),
            (
                heap + PAGES * PAGE,
                bytes[((PAGES + 1) * PAGE) as usize..].to_vec(),
            ),
        ];
        let data = Data::new(bytes[PAGE as usize..((PAGES + 1) * PAGE) as usize].to_vec());
        let mut lab = Self {
            seed,
            rng,
            d,
            contexts,
            areas,
            bells: Default::default(),
            heap,
            data,
            keys: Keys {
                all: Vec::new(),
                heap,
            },
            cqs: Vec::new(),
            srqs: Vec::new(),
            qps: Vec::new(),
            raised: 0,
            rings: 0,
            tally: Tally::default(),
            came: Vec::new(),
            due: BTreeMap::new(),
            unheard: Vec::new(),
            graves,
            trace: None,
            met: BTreeMap::new(),
            next_wr: seed << 20,
            next_key: 7,
            numbers: HashSet::new(),
            places: HashSet::new(),
        };
        lab.set_gids();
        lab.furnish();
        lab
    }

    /// Counts a situation that occurred.
    pub fn meet(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    /// Panics with the seed and the rule that the device has broken.
    pub fn broken(&self, rule: &str) -> ! {
        panic!("seed {}: {rule}", self.seed)
    }

    /// Returns a `wr_id` that no other request has.
    pub fn wr_id(&mut self) -> u64 {
        self.next_wr += 1;
        self.next_wr
    }

    /// Returns a number that no other object of this table has had. Objects of other tables often
    /// have the same number.
    pub fn number(&mut self, kind: Table) -> u32 {
        let (first, most) = match kind {
            Table::Qpc => (FIRST_QPN, MAX_QPN),
            _ => (0, 500),
        };
        loop {
            let below = match self.rng.below(10) {
                0..=5 => first + 24,
                6..=8 => 300,
                _ => most,
            };
            let number = first + self.rng.below((below - first).into()) as u32;
            if self.numbers.insert((kind.to_raw(), number)) {
                return number;
            }
        }
    }

    /// Returns a doorbell area and a slot in either of its groups that no other object has had.
    pub fn place(&mut self) -> (u32, usize) {
        loop {
            let place = (
                self.rng.below(AREAS as u64) as u32,
                self.rng.below(AREA_SLOTS as u64) as usize,
            );
            if self.places.insert(place) {
                return place;
            }
            if self.places.len() >= AREAS * AREA_SLOTS - 16 {
                self.broken("a run with more objects than there are slots");
            }
        }
    }

    /// Returns access to the words of a doorbell area.
    pub fn words(&self, uar: u32) -> GuestWords<'_> {
        GuestWords {
            ram: &self.d.ram,
            base: self.areas[uar as usize],
        }
    }

    /// Writes to the doorbell page of an area. The device notices the write at the next slice.
    pub fn bell(&self, uar: u32) {
        let bell = &self.bells[uar as usize];
        bell.set(bell.get() + 1);
    }

    /// Runs exactly `count` slices, so that the device may stop at any point.
    pub fn slices(&mut self, count: u64) {
        for _ in 0..count {
            self.slice();
        }
    }

    fn slice(&mut self) -> (bool, Option<u64>) {
        for uar in 0..AREAS {
            if self.bells[uar].replace(0) > 0 {
                self.d.device.ring(uar as u32);
                self.rings += 1;
            }
        }
        let next = self.d.device.run_slice(&self.d.ram, self.d.now);
        let raised = self.d.device.take_interrupts();
        self.raised |= raised;
        for vector in (0..32).filter(|v| raised & (1 << v) != 0) {
            *self.d.interrupts.entry(vector).or_default() += 1;
        }
        (next.busy, next.deadline)
    }

    fn take_events(&mut self) -> bool {
        let before = self.came.len();
        let raised = std::mem::take(&mut self.raised);
        // The mock driver handles only event queues with an interrupt. The vector of an event queue
        // is its number.
        for eqn in (0..=COMP_EQS).filter(|eqn| raised & (1 << eqn) != 0) {
            for event in self.d.events(eqn) {
                note!(self, "  event of EQ {eqn}: {event:?}");
                self.came.push((eqn, event));
            }
        }
        self.came.len() != before
    }

    /// Runs the device until it has no work at this time and all events are taken. Returns the time
    /// of the device's next deadline in nanoseconds.
    pub fn rest(&mut self) -> Option<u64> {
        for _ in 0..20_000 {
            let (busy, deadline) = self.slice();
            if !busy && !self.take_events() {
                if let Some(eqn) = (0..=COMP_EQS).find(|eqn| self.d.next_event(*eqn).is_some()) {
                    self.broken(&format!("EQ {eqn}: an event without its interrupt"));
                }
                return deadline;
            }
        }
        self.broken("the device does not come to rest")
    }

    /// Advances the time by [`SETTLED`] and runs the device, so that no work is pending afterwards.
    pub fn let_settle(&mut self) {
        let end = self.d.now + SETTLED;
        for _ in 0..20_000 {
            match self.rest() {
                Some(at) if at <= end => self.d.now = self.d.now.max(at),
                _ => {
                    self.d.now = end;
                    self.rest();
                    return;
                }
            }
        }
        self.broken("the timers do not come to rest")
    }

    /// Records that an event has to arrive, or that it may arrive.
    pub fn expect(&mut self, kind: EventType, number: u32, due: Due) {
        let told = Told {
            kind: kind as u8,
            number,
        };
        let old = self.due.entry(told).or_insert(due);
        if due == Due::Must {
            *old = due;
        }
    }
}
