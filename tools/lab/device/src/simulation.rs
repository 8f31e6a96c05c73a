// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device, the program's side of it and the model: their creation, and how the device is run.

use crate::counters::CounterModel;
use crate::memory::{DataMemory, KeyTable, MAX_PAGE, PAGE, PAGES};
use crate::objects::{Cq, PostedSend, Qp, Srq};
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
const SETTLE_NS: u64 = 1_200_000_000;

/// An asynchronous event that has arrived, or that the model expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExpectedEvent {
    /// Raw number of the event type.
    pub kind: u8,
    /// Number of the event's object.
    pub number: u32,
}

/// Obligation of the device to deliver an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventExpectation {
    /// The event has to arrive.
    Must,
    /// The event may arrive.
    May,
}

/// A run of one seed: the device, the program and the model.
pub struct DeviceSimulation {
    /// Seed that the run was drawn from.
    pub seed: u64,
    /// Random number generator of the run.
    pub rng: Rng,
    /// Driver mock, which contains the device.
    pub driver: Driver,
    /// Addresses of the chunks of the QP context table.
    pub contexts: Vec<u64>,
    /// Addresses of the doorbell areas.
    pub areas: [u64; AREAS],
    /// Doorbell writes that the device has not processed, by area.
    pub pending_doorbells: [Cell<u32>; AREAS],
    /// Address of the data memory; a guard page comes before it.
    pub heap: u64,
    /// Data memory as the model expects it.
    pub data: DataMemory,
    /// Memory regions of the program.
    pub keys: KeyTable,
    /// Completion queues of the program.
    pub cqs: Vec<Cq>,
    /// Shared receive queues of the program.
    pub srqs: Vec<Srq>,
    /// Queue pairs of the program.
    pub qps: Vec<Qp>,
    /// Interrupt vectors that were raised and not handled yet, as a bit mask.
    pub raised_vectors: u32,
    /// Number of doorbells that the device was given.
    pub doorbells: u64,
    /// Counter values that the model knows.
    pub counters: CounterModel,
    /// Events since the last comparison, each with the number of its event queue.
    pub arrived_events: Vec<(u32, Event)>,
    /// Asynchronous events that the model expects.
    pub expected_events: BTreeMap<ExpectedEvent, EventExpectation>,
    /// Requests that were flushed or reset; the device may have applied their changes to keys.
    pub flushed_requests: Vec<PostedSend>,
    /// Memory that the device must not write any more, with its contents.
    pub released_memory: Vec<(u64, Vec<u8>)>,
    /// Trace of the run as text; `None` without a trace.
    pub trace: Option<Vec<String>>,
    /// Situations that occurred, with their counts.
    pub coverage: BTreeMap<&'static str, u64>,
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

impl DeviceSimulation {
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
        let data = DataMemory::new(bytes[PAGE as usize..((PAGES + 1) * PAGE) as usize].to_vec());
        let mut lab = Self {
            seed,
            rng,
            driver: d,
            contexts,
            areas,
            pending_doorbells: Default::default(),
            heap,
            data,
            keys: KeyTable {
                all: Vec::new(),
                heap,
            },
            cqs: Vec::new(),
            srqs: Vec::new(),
            qps: Vec::new(),
            raised_vectors: 0,
            doorbells: 0,
            counters: CounterModel::default(),
            arrived_events: Vec::new(),
            expected_events: BTreeMap::new(),
            flushed_requests: Vec::new(),
            released_memory: graves,
            trace: None,
            coverage: BTreeMap::new(),
            next_wr: seed << 20,
            next_key: 7,
            numbers: HashSet::new(),
            places: HashSet::new(),
        };
        lab.set_gids();
        lab.create_objects();
        lab
    }

    /// Counts a situation that occurred.
    pub fn cover(&mut self, what: &'static str) {
        *self.coverage.entry(what).or_default() += 1;
    }

    /// Panics with the seed and the rule that the device has broken.
    pub fn fail_rule(&self, rule: &str) -> ! {
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
                self.fail_rule("a run with more objects than there are slots");
            }
        }
    }

    /// Returns access to the words of a doorbell area.
    pub fn words(&self, uar: u32) -> GuestWords<'_> {
        GuestWords {
            ram: &self.driver.ram,
            base: self.areas[uar as usize],
        }
    }

    /// Writes to the doorbell page of an area. The device notices the write at the next slice.
    pub fn ring_doorbell(&self, uar: u32) {
        let bell = &self.pending_doorbells[uar as usize];
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
            if self.pending_doorbells[uar].replace(0) > 0 {
                self.driver.device.ring(uar as u32);
                self.doorbells += 1;
            }
        }
        let next = self
            .driver
            .device
            .run_slice(&self.driver.ram, self.driver.now);
        let raised = self.driver.device.take_interrupts();
        self.raised_vectors |= raised;
        for vector in (0..32).filter(|v| raised & (1 << v) != 0) {
            *self.driver.interrupts.entry(vector).or_default() += 1;
        }
        (next.busy, next.deadline)
    }

    fn take_events(&mut self) -> bool {
        let before = self.arrived_events.len();
        let raised = std::mem::take(&mut self.raised_vectors);
        // The mock driver handles only event queues with an interrupt. The vector of an event queue
        // is its number.
        for eqn in (0..=COMP_EQS).filter(|eqn| raised & (1 << eqn) != 0) {
            for event in self.driver.events(eqn) {
                note!(self, "  event of EQ {eqn}: {event:?}");
                self.arrived_events.push((eqn, event));
            }
        }
        self.arrived_events.len() != before
    }

    /// Runs the device until it has no work at this time and all events are taken. Returns the time
    /// of the device's next deadline in nanoseconds.
    pub fn run_until_idle(&mut self) -> Option<u64> {
        for _ in 0..20_000 {
            let (busy, deadline) = self.slice();
            if !busy && !self.take_events() {
                if let Some(eqn) = (0..=COMP_EQS).find(|eqn| self.driver.next_event(*eqn).is_some())
                {
                    self.fail_rule(&format!("EQ {eqn}: an event without its interrupt"));
                }
                return deadline;
            }
        }
        self.fail_rule("the device does not come to rest")
    }

    /// Advances the time by [`SETTLE_NS`] and runs the device, so that no work is pending afterwards.
    pub fn run_until_settled(&mut self) {
        let end = self.driver.now + SETTLE_NS;
        for _ in 0..20_000 {
            match self.run_until_idle() {
                Some(at) if at <= end => self.driver.now = self.driver.now.max(at),
                _ => {
                    self.driver.now = end;
                    self.run_until_idle();
                    return;
                }
            }
        }
        self.fail_rule("the timers do not come to rest")
    }

    /// Records that an event has to arrive, or that it may arrive.
    pub fn expect(&mut self, kind: EventType, number: u32, due: EventExpectation) {
        let told = ExpectedEvent {
            kind: kind as u8,
            number,
        };
        let old = self.expected_events.entry(told).or_insert(due);
        if due == EventExpectation::Must {
            *old = due;
        }
    }
}
