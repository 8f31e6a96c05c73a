// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device, the program's side of it, and the model: how they are made, and how the device is run.

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
use verbena_roce_lab::Rng;

/// Log of the entries of send and receive rings.
pub const LOG_WQ: u8 = 4;
/// Entries of send and receive rings.
pub const WQ: u32 = 1 << LOG_WQ;
/// Log of the stride of send rings.
pub const LOG_SQ_STRIDE: u8 = 9;
/// Log of the stride of receive rings.
pub const LOG_RQ_STRIDE: u8 = 9;
/// Most elements of a send, of a receive, bytes inline.
pub const LIMITS: (u8, u8, u16) = (4, 5, 96);
/// Doorbell areas.
pub const AREAS: usize = 4;
/// Event queues of completions.
pub const COMP_EQS: u32 = 3;
/// QPNs are below this: a look at all of them takes more than one slice.
const MAX_QPN: u32 = 2048;
/// Contexts of queue pairs in a chunk.
pub const QPS_PER_CHUNK: u32 = 128;
/// Time after which all that can happen has happened: all retries are over.
const SETTLED: u64 = 1_200_000_000;

/// An event that came, and one that the model expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Told {
    /// Number of the event's type.
    pub kind: u8,
    /// Number of the object.
    pub number: u32,
}

/// What an event's coming depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// It has to come.
    Must,
    /// It may come.
    May,
}

/// A run of one seed.
pub struct Lab {
    /// The seed.
    pub seed: u64,
    /// Random numbers.
    pub rng: Rng,
    /// The device, and what brings it up.
    pub d: Driver,
    /// Addresses of the chunks of queue pairs' contexts.
    pub contexts: Vec<u64>,
    /// Addresses of the doorbell areas.
    pub areas: [u64; AREAS],
    /// Writes to the doorbell BAR that are under way, by area.
    pub bells: [Cell<u32>; AREAS],
    /// Address of the data memory, behind its guard page.
    pub heap: u64,
    /// The data memory as the model has it.
    pub data: Data,
    /// The keys.
    pub keys: Keys,
    /// Completion queues.
    pub cqs: Vec<Cq>,
    /// Shared receive queues.
    pub srqs: Vec<Srq>,
    /// Queue pairs.
    pub qps: Vec<Qp>,
    /// Vectors that were raised and not looked after yet, a bit each.
    pub raised: u32,
    /// Doorbells that the device was rung for.
    pub rings: u64,
    /// What counters are known to have.
    pub tally: Tally,
    /// Events since the last settling, with the event queue that each came in.
    pub came: Vec<(u32, Event)>,
    /// Events that are due.
    pub due: BTreeMap<Told, Due>,
    /// Requests that were flushed or forgotten: what they do to keys may have been done.
    pub unheard: Vec<Send>,
    /// Memory that nobody writes any more, and what is in it.
    pub graves: Vec<(u64, Vec<u8>)>,
    /// What has happened, as text, where it is wanted.
    pub trace: Option<Vec<String>>,
    /// What was met, with counts.
    pub met: BTreeMap<&'static str, u64>,
    next_wr: u64,
    /// Index of the last key.
    pub next_key: u32,
    numbers: HashSet<(u8, u32)>,
    places: HashSet<(u32, usize)>,
}

/// Notes a line in the trace, if there is one.
macro_rules! note {
    ($lab:expr, $($what:tt)*) => {
        if let Some(trace) = &mut $lab.trace {
            trace.push(format!($($what)*));
        }
    };
}
pub(crate) use note;

impl Lab {
    /// A device that is up, with its objects.
    pub fn new(seed: u64) -> Self {
        Self::prepared(seed, |_| {})
    }

    /// The same, of a device with which something is done first.
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
        // Much else goes on while a command is executed.
        d.watch = u32::MAX;
        // So small that events have to wait for room.
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
        // The data memory begins a large page.
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

    /// Counts something that was met.
    pub fn meet(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    /// Breaks off: a rule is broken.
    pub fn broken(&self, rule: &str) -> ! {
        panic!("seed {}: {rule}", self.seed)
    }

    /// A `wr_id` that no other request has.
    pub fn wr_id(&mut self) -> u64 {
        self.next_wr += 1;
        self.next_wr
    }

    /// A number that no other object of its kind has had. Those of other kinds often have the same.
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

    /// One of two doorbell areas, and a slot in it, of either group.
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

    /// The words of an area.
    pub fn words(&self, uar: u32) -> GuestWords<'_> {
        GuestWords {
            ram: &self.d.ram,
            base: self.areas[uar as usize],
        }
    }

    /// Writes to the doorbell page of an area, which the device notices a little later.
    pub fn bell(&self, uar: u32) {
        let bell = &self.bells[uar as usize];
        bell.set(bell.get() + 1);
    }

    /// Runs a few slices, no more: the device may stop anywhere.
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
        // The driver comes when it is called: each event queue has the vector of its number.
        for eqn in (0..=COMP_EQS).filter(|eqn| raised & (1 << eqn) != 0) {
            for event in self.d.events(eqn) {
                note!(self, "  event of EQ {eqn}: {event:?}");
                self.came.push((eqn, event));
            }
        }
        self.came.len() != before
    }

    /// Runs the device until it has nothing to do at this time, all events taken. When it wants to be called next.
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

    /// Lets so much time pass that nothing is left to happen.
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

    /// An event has to come, or may.
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
