// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device except for the transports of its queue pairs: everything that a queue pair sees of
//! the device while it runs.

use crate::config::{self, Config};
use crate::execution::copy::Lookups;
use crate::execution::wqe::Wqe;
use crate::memory::tables::Tables;
use crate::memory::{Area, GuestMemory};
use crate::objects::accounts::Accounts;
use crate::objects::counters::Counters;
use crate::objects::cq::{Cq, Written};
use crate::objects::eq::{Eq, Event};
use crate::objects::lab::Lab;
use crate::objects::mr::Mr;
use crate::objects::port::{Outgoing, Port};
use crate::objects::recorder::Recorder;
use crate::objects::srq::Srq;
use crate::objects::uar::Uar;
use crate::regs::Registers;
use crate::slots::Slots;
use crate::tap::{Seen, Tap};
use std::collections::VecDeque;
use std::sync::Arc;
use verbena_abi::cmd::ASYNC_EQN;
use verbena_abi::cqe::{Cqe, Tail};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::eqe::EventType;
use verbena_abi::regs::NUM_UARS;
use verbena_abi::stats::Counter;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::On;
use verbena_transport::sched::TimerWheel;
use verbena_transport::Pool;

/// Largest number of deadlines that a slice handles.
pub(crate) const SLICE_DEADLINES: u32 = 1024;

/// Time in nanoseconds for which the driver may leave entries in an event queue before the device
/// raises the interrupt again.
const EQ_REMIND_NS: u64 = 50_000_000;

/// Largest number of waiting events that one call writes to the rings.
pub(crate) const FLUSHED_EVENTS: u32 = 1024;

/// The state of the device around its queue pairs.
#[derive(Debug)]
pub struct Shared {
    /// Configuration with which the NIC was started.
    pub config: Config,
    /// Registers of BAR 0.
    pub regs: Arc<Registers>,
    /// Time at the beginning of the present slice, in nanoseconds.
    pub now: u64,
    /// Context tables in guest memory.
    pub tables: Tables,
    /// Doorbell areas by number.
    pub uars: Slots<Uar>,
    /// Event queues by number.
    pub eqs: Slots<Eq>,
    /// Completion queues by number.
    pub cqs: Slots<Cq>,
    /// Shared receive queues by number.
    pub srqs: Slots<Srq>,
    /// Memory regions and windows by key index.
    pub mrs: Slots<Mr>,
    /// Number of queue pairs that were created so far; the source of their `owner` values.
    pub owners: u64,
    /// Number of SRQs that were created so far; the source of their `life` values.
    pub srq_lives: u64,
    /// Accounts of the bytes that queue pairs keep of out-of-order packets.
    pub kept: Accounts,
    /// The port: GID table and netdev state.
    pub port: Port,
    /// Counters of the device itself, and the sum of the counters of destroyed queue pairs.
    pub counters: Counters,
    /// Tap on the port, if a reader watches it.
    pub tap: Option<Box<Tap>>,
    /// The frame that the tap is shown next, kept back while a note may be added to it.
    pub shown: Option<Seen>,
    /// Text for the note of the next frame (see `shown`).
    pub remark: Option<String>,
    /// Fault laboratory, if the device has rules.
    pub lab: Option<Box<Lab>>,
    /// Flight recorder, if the device records.
    pub recorder: Option<Box<Recorder>>,
    /// Bit mask of the vectors to raise.
    pub interrupts: u32,
    /// Packets that were sent and are not delivered yet.
    pub outgoing: VecDeque<Outgoing>,
    /// Pool of buffers for frames and copied payloads.
    pub pool: Pool,
    /// Queue pairs that noticed the death of a CQ or an SRQ in a call, since the device last took
    /// them.
    pub witnesses: Vec<u32>,
    /// Deadlines by which CQs must get their collapsed event.
    pub moderated: TimerWheel,
    /// Page addresses that the present copy looks up.
    pub lookups: Lookups,
    /// Buffer for the copy of the present WQE.
    pub wqe: Wqe,
    /// Random source of the wrong answers.
    #[cfg(feature = "hostile")]
    pub hostile: crate::hostile::Hostile,
    dirty_eqs: Vec<u32>,
    /// Completion queues with new entries.
    written_cqs: Vec<u32>,
    /// Event queues in which the driver had left entries at the last check.
    reminded_eqs: Vec<u32>,
}

impl Shared {
    /// Creates the state after power-on.
    pub fn new(config: Config, regs: Arc<Registers>) -> Self {
        let port = Port::default();
        let recorder = (config.record > 0).then(|| Box::new(Recorder::new(config.record)));
        Self {
            #[cfg(feature = "hostile")]
            hostile: crate::hostile::Hostile::new(config.hostile),
            tables: Tables::new(config.misbehave.clone()),
            config,
            regs,
            now: 0,
            uars: Slots::new(NUM_UARS),
            eqs: Slots::new(config::MAX_EQ),
            cqs: Slots::new(config::MAX_CQ),
            srqs: Slots::new(config::MAX_SRQ),
            mrs: Slots::new(config::MAX_MR),
            owners: 0,
            srq_lives: 0,
            kept: Accounts::default(),
            port,
            counters: Counters::default(),
            tap: None,
            shown: None,
            remark: None,
            lab: None,
            recorder,
            interrupts: 0,
            outgoing: VecDeque::new(),
            pool: Pool::default(),
            witnesses: Vec::new(),
            moderated: TimerWheel::new(),
            lookups: Lookups::default(),
            wqe: Wqe::default(),
            dirty_eqs: Vec::new(),
            written_cqs: Vec::new(),
            reminded_eqs: Vec::new(),
        }
    }

    /// Raises an interrupt vector, unless a rule withholds it.
    pub fn interrupt(&mut self, vector: u16) {
        if let Some(lab) = &mut self.lab {
            if lab.withholds(self.now, vector) {
                self.note_fired(On::Interrupt, vector, None);
                return;
            }
        }
        self.interrupts |= 1u32.checked_shl(vector.into()).unwrap_or(0);
        self.counters.add(Counter::Interrupts, 1);
    }

    /// Puts the device into the fatal state up to the next reset. Only the first cause is reported;
    /// a NIC whose engine fails again raises vector 0 by itself.
    pub fn fatal<M: GuestMemory>(&mut self, mem: &M, cause: Syndrome) {
        if self.regs.is_fatal() {
            return;
        }
        self.regs.set_fatal(cause);
        self.note_event(EventType::DeviceFatal, 0, Some(cause));
        // No area is served from now on. The programs notice that from this word.
        for (_, uar) in self.uars.iter() {
            Area::new(mem, uar.base).store_release(doorbell::ALIVE, 0);
        }
        self.push_event(mem, ASYNC_EQN, EventType::DeviceFatal, 0, Some(cause));
        self.flush_events(mem);
        self.interrupt(0);
    }

    /// Handles an event queue that cannot be reached: latches its error and makes the device fatal.
    fn fail_eq<M: GuestMemory>(&mut self, mem: &M, eqn: u32) {
        if let Some(eq) = self.eqs.get_mut(eqn) {
            eq.fail(mem);
        }
        self.fatal(mem, Syndrome::EqUnwritable);
    }

    /// Reports an asynchronous event to the driver.
    pub fn async_event<M: GuestMemory>(
        &mut self,
        mem: &M,
        kind: EventType,
        number: u32,
        cause: Option<Syndrome>,
    ) {
        self.note_event(kind, number, cause);
        self.push_event(mem, ASYNC_EQN, kind, number, cause);
    }

    /// Adds an event to an event queue. Returns the index of its entry if there was room for it.
    pub(crate) fn push_event<M: GuestMemory>(
        &mut self,
        mem: &M,
        eqn: u32,
        kind: EventType,
        number: u32,
        cause: Option<Syndrome>,
    ) -> Option<u32> {
        self.eqs.get(eqn).filter(|eq| !eq.has_failed())?;
        let mut times = 1;
        if let Some(lab) = &mut self.lab {
            times = lab.events(self.now, kind);
            if times != 1 {
                self.note_fired(On::Event, kind.to_raw().into(), None);
            }
        }
        if times == 0 {
            return None;
        }
        let eq = self.eqs.get_mut(eqn)?;
        let event = Event {
            kind,
            number,
            syndrome: cause.map_or(0, |s| s.to_raw().into()),
        };
        #[cfg(feature = "hostile")]
        let event = {
            let (event, other) = self.hostile.event(event);
            if let Some(other) = other {
                let _ = eq.push(mem, other);
            }
            event
        };
        // An error here occurs again at the push below.
        for _ in 1..times {
            let _ = eq.push(mem, event);
        }
        match eq.push(mem, event) {
            Ok(index) => {
                if !eq.dirty {
                    eq.dirty = true;
                    self.dirty_eqs.push(eqn);
                }
                index
            }
            Err(_) => {
                self.fail_eq(mem, eqn);
                None
            }
        }
    }

    /// Writes waiting events to the rings and raises the interrupts of all events since the last
    /// call. Returns the time of the next call, if events still wait for room.
    pub fn flush_events<M: GuestMemory>(&mut self, mem: &M) -> Option<u64> {
        let mut retry: Option<u64> = None;
        let mut budget = FLUSHED_EVENTS;
        for eqn in std::mem::take(&mut self.dirty_eqs) {
            let Some(eq) = self.eqs.get_mut(eqn) else {
                continue;
            };
            eq.dirty = false;
            let vector = eq.vector;
            let cqs = &mut self.cqs;
            // This event also reports the later entries of its CQ.
            let placed = |event: &Event, index| match cqs.get_mut(event.number) {
                Some(cq) if event.kind == EventType::Completion => cq.last_event = Some(index),
                _ => {}
            };
            match eq.flush(mem, &mut budget, placed) {
                Ok(raise) => {
                    if eq.remind_at.is_none() && !eq.is_drained() {
                        eq.remind_at = Some(self.now + EQ_REMIND_NS);
                        self.reminded_eqs.push(eqn);
                    }
                    if eq.has_waiting() {
                        eq.dirty = true;
                        self.dirty_eqs.push(eqn);
                        let at = if budget == 0 {
                            self.now
                        } else {
                            eq.retry_at(self.now)
                        };
                        retry = Some(retry.map_or(at, |r| r.min(at)));
                    }
                    if raise {
                        self.interrupt(vector);
                    }
                }
                Err(_) => self.fail_eq(mem, eqn),
            }
        }
        retry
    }

    /// Checks event queues in which the driver has left entries, and raises their interrupts again.
    /// Returns the time of the next call.
    pub fn remind_drivers<M: GuestMemory>(&mut self, mem: &M) -> Option<u64> {
        let mut next: Option<u64> = None;
        for eqn in std::mem::take(&mut self.reminded_eqs) {
            let Some(eq) = self.eqs.get_mut(eqn) else {
                continue;
            };
            let due = eq.remind_at.unwrap_or(0);
            let mut raise = false;
            if due <= self.now {
                let Ok(lazy) = eq.remind(mem) else {
                    self.fail_eq(mem, eqn);
                    continue;
                };
                raise = lazy;
                eq.remind_at = (!eq.is_drained()).then_some(self.now + EQ_REMIND_NS);
            }
            let vector = eq.vector;
            if let Some(due) = eq.remind_at {
                self.reminded_eqs.push(eqn);
                next = Some(next.map_or(due, |n| n.min(due)));
            }
            if raise {
                self.interrupt(vector);
            }
        }
        next
    }

    /// Writes an entry to a CQ and handles an overflow. [`Shared::notify_written`] raises the
    /// completion event. Returns true if the entry was written.
    pub fn write_cqe<M: GuestMemory>(
        &mut self,
        mem: &M,
        cqn: u32,
        body: &Cqe,
        tail: Tail,
        solicited: bool,
    ) -> bool {
        let Some(cq) = self.cqs.get_mut(cqn) else {
            return false;
        };
        let qpn = body.qpn.get();
        #[cfg(feature = "hostile")]
        let (ref body, tail, twice) = self.hostile.cqe(*body, tail);
        #[cfg(feature = "hostile")]
        if twice {
            cq.write(mem, body, tail, solicited);
        }
        match cq.write(mem, body, tail, solicited) {
            Written::Yes => {
                if !cq.written {
                    cq.written = true;
                    self.written_cqs.push(cqn);
                }
                return true;
            }
            Written::Dead => {}
            Written::Died(cause) => {
                cq.publish(mem);
                if cause == Syndrome::CqOverflow {
                    self.counters.add(Counter::CqOverflow, 1);
                }
                self.witnesses.push(qpn);
                self.async_event(mem, EventType::CqErr, cqn, Some(cause));
            }
        }
        false
    }

    /// Raises the completion events for the entries that were written since the last call, with one
    /// read of the arm and one fence before it for all entries of a CQ. Returns the largest number
    /// of entries in one of these CQs that the program has not taken.
    pub fn notify_written<M: GuestMemory>(&mut self, mem: &M) -> u32 {
        let mut untaken = 0;
        while let Some(cqn) = self.written_cqs.pop() {
            if let Some(cq) = self.cqs.get_mut(cqn) {
                cq.written = false;
                untaken = untaken.max(cq.untaken(mem));
                self.notify(mem, cqn);
            }
        }
        untaken
    }

    /// Raises the completion event of a CQ if an arm asks for an entry that the CQ has (device
    /// specification, section 7).
    pub fn notify<M: GuestMemory>(&mut self, mem: &M, cqn: u32) {
        let now = self.now;
        let Some(cq) = self.cqs.get_mut(cqn) else {
            return;
        };
        let Some(count) = cq.wants_event(mem) else {
            // The program has polled the entries of the collapsed event, so the period begins anew
            // with the next entry.
            cq.collapsed_since = None;
            return;
        };
        if cq.moderation_period > 0 && count < u32::from(cq.moderation_count) {
            let since = *cq.collapsed_since.get_or_insert(now);
            let due = since + u64::from(cq.moderation_period) * 1000;
            if now < due {
                if self.moderated.deadline(cqn) != Some(due) {
                    self.moderated.set(cqn, due);
                }
                return;
            }
        }
        cq.serve(mem);
        let (eqn, last) = (cq.eq.number(), cq.last_event);
        // An event that the driver has yet to take also reports this entry, because the driver's
        // handler runs later than now.
        let merged = match (last, self.eqs.get_mut(eqn)) {
            (Some(index), Some(eq)) => eq.is_unconsumed(mem, index),
            _ => false,
        };
        if merged {
            return;
        }
        let index = self.push_event(mem, eqn, EventType::Completion, cqn, None);
        if let Some(cq) = self.cqs.get_mut(cqn) {
            cq.last_event = index;
        }
    }

    /// Raises the collapsed events whose deadline has passed. Returns the next deadline.
    pub fn run_moderation<M: GuestMemory>(&mut self, mem: &M) -> Option<u64> {
        for _ in 0..SLICE_DEADLINES {
            let Some(cqn) = self.moderated.pop(self.now) else {
                break;
            };
            // None means that an event has reported the entries meanwhile.
            let collapsed = self.cqs.get(cqn).and_then(|cq| cq.collapsed_since);
            if collapsed.is_some() {
                self.notify(mem, cqn);
            }
        }
        self.moderated.next_deadline()
    }

    /// Drops the waiting events for an object that was destroyed.
    pub fn forget_events(&mut self, eqn: u32, number: u32, kinds: &[EventType]) {
        if let Some(eq) = self.eqs.get_mut(eqn) {
            eq.forget(number, kinds);
        }
    }

    /// Returns the producer index of an event queue.
    pub fn producer_of(&self, eqn: u32) -> u32 {
        self.eqs.get(eqn).map_or(0, Eq::producer_index)
    }
}
