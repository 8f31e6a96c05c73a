// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The resources that the queue pairs of a device share: everything that a queue pair sees of the
//! device while it runs, except for its own transport.
//!
//! The state is in parts with private fields. Each part has a file of its own here, in `objects/` or
//! in `memory/`. This file does what needs several parts: events and completions.

mod clock;
mod completions;
mod created;
mod events;
mod interrupts;
mod sent;
mod witnesses;

use crate::config::{self, Config};
use crate::execution::copy::Lookups;
use crate::execution::wqe::Wqe;
use crate::memory::tables::Tables;
use crate::memory::{Area, GuestMemory};
use crate::objects::accounts::Accounts;
use crate::objects::cq::Written;
use crate::objects::eq::{Eq, Event};
use crate::objects::fault_injector::FaultInjector;
use crate::objects::mr::Mr;
use crate::objects::port::Port;
use crate::objects::qp::Env;
use crate::objects::srq::Srq;
use crate::objects::uar::Uar;
use crate::observation::event::{DeviceEvent, DropReason, FiredOn, QpEvent};
use crate::observation::{EventContext, Observers};
use crate::regs::Registers;
use crate::slots::Slots;
use clock::SliceClock;
use completions::CompletionQueues;
use created::Created;
use events::EventQueues;
use interrupts::Interrupts;
use sent::SentPackets;
use std::sync::Arc;
use verbena_abi::cmd::{LinkLayer, ASYNC_EQN};
use verbena_abi::cqe::{Cqe, Tail};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::eqe::EventType;
use verbena_abi::regs::NUM_UARS;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::RuleHook;
use verbena_transport::Pool;
use witnesses::Witnesses;

/// Largest number of deadlines that a slice handles.
pub(crate) const SLICE_DEADLINES: u32 = 1024;

/// Largest number of waiting events that one call writes to the rings.
pub(crate) const FLUSHED_EVENTS: u32 = 1024;

/// The shared resources of a device.
#[derive(Debug)]
pub struct Resources {
    /// Configuration with which the NIC was started. Only `drop_percent` changes later.
    config: Config,
    /// Registers of BAR 0.
    regs: Arc<Registers>,
    /// Time of the present slice.
    pub(crate) clock: SliceClock,
    /// Context tables in guest memory.
    pub(crate) tables: Tables,
    /// Doorbell areas by number.
    pub(crate) uars: Slots<Uar>,
    pub(crate) eqs: EventQueues,
    pub(crate) cqs: CompletionQueues,
    /// Shared receive queues by number.
    pub(crate) srqs: Slots<Srq>,
    /// Memory regions and windows by key index.
    pub(crate) mrs: Slots<Mr>,
    pub(crate) created: Created,
    /// Accounts of the bytes that queue pairs keep of out-of-order packets.
    pub(crate) kept: Accounts,
    /// The port: GID table and netdev state.
    pub(crate) port: Port,
    /// Sinks of the events of the device.
    pub(crate) observers: Observers,
    /// Fault injector, if the device has rules.
    pub(crate) faults: Option<Box<FaultInjector>>,
    pub(crate) interrupts: Interrupts,
    pub(crate) outgoing: SentPackets,
    /// Pool of buffers for frames and copied payloads.
    pub(crate) pool: Pool,
    pub(crate) witnesses: Witnesses,
    /// Page addresses that the present copy looks up.
    pub(crate) lookups: Lookups,
    /// Buffer for the copy of the present WQE.
    pub(crate) wqe: Wqe,
    /// Random source of the wrong answers.
    #[cfg(feature = "hostile")]
    pub(crate) hostile: crate::hostile::Hostile,
}

impl Resources {
    /// Creates the state after power-on.
    pub fn new(config: Config, regs: Arc<Registers>) -> Self {
        let port = match config.link_layer {
            LinkLayer::Ethernet => Port::default(),
            LinkLayer::InfiniBand => Port::infiniband(),
        };
        Self {
            #[cfg(feature = "hostile")]
            hostile: crate::hostile::Hostile::new(config.hostile),
            tables: Tables::new(config.misbehave.clone()),
            observers: Observers::new(config.record),
            config,
            regs,
            clock: SliceClock::default(),
            uars: Slots::new(NUM_UARS),
            eqs: EventQueues::new(config::MAX_EQ),
            cqs: CompletionQueues::new(config::MAX_CQ),
            srqs: Slots::new(config::MAX_SRQ),
            mrs: Slots::new(config::MAX_MR),
            created: Created::default(),
            kept: Accounts::default(),
            port,
            faults: None,
            interrupts: Interrupts::default(),
            outgoing: SentPackets::default(),
            pool: Pool::default(),
            witnesses: Witnesses::default(),
            lookups: Lookups::default(),
            wqe: Wqe::default(),
        }
    }

    /// Returns the configuration with which the NIC was started, and the present `drop_percent`.
    #[inline]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the percentage of local packets that are lost at random. The device begins with it
    /// after a reset.
    pub fn set_drop_percent(&mut self, percent: u8) {
        self.config.drop_percent = percent;
    }

    /// Returns the registers of BAR 0.
    #[inline]
    pub fn regs(&self) -> &Arc<Registers> {
        &self.regs
    }

    /// Reports an event of the device to the sinks.
    #[inline(always)]
    pub(crate) fn report(&mut self, event: DeviceEvent<'_>) {
        let context = EventContext {
            now: self.clock.now(),
            port: &self.port,
            faults: self.faults.as_deref(),
        };
        self.observers.on_event(&event, &context);
    }

    /// Reports an event of a queue pair to the counters of the queue pair and to the sinks.
    #[inline(always)]
    pub(crate) fn report_of_qp(&mut self, env: &mut Env, event: QpEvent<'_>) {
        env.counters.on_qp_event(&event);
        self.report(DeviceEvent::Qp(env, event));
    }

    /// Reports that a packet is dropped.
    pub(crate) fn drop_packet(&mut self, reason: DropReason) {
        self.report(DeviceEvent::PacketDropped(reason));
    }

    /// Raises an interrupt vector, unless a rule withholds it.
    pub fn interrupt(&mut self, vector: u16) {
        if let Some(faults) = &mut self.faults {
            if faults.withholds(self.clock.now(), vector) {
                let fired = FiredOn::other(RuleHook::Interrupt, vector, None);
                self.report(DeviceEvent::RuleFired(fired));
                return;
            }
        }
        self.interrupts.raise(vector);
        self.report(DeviceEvent::InterruptRaised);
    }

    /// Puts the device into the fatal state up to the next reset. Only the first cause is reported;
    /// a NIC whose engine fails again raises vector 0 by itself.
    pub fn fatal<M: GuestMemory>(&mut self, mem: &M, cause: Syndrome) {
        if self.regs.is_fatal() {
            return;
        }
        self.regs.set_fatal(cause);
        self.report(DeviceEvent::Async {
            kind: EventType::DeviceFatal,
            number: 0,
            cause: Some(cause),
        });
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
        self.report(DeviceEvent::Async {
            kind,
            number,
            cause,
        });
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
        if let Some(faults) = &mut self.faults {
            times = faults.events(self.clock.now(), kind);
            if times != 1 {
                let fired = FiredOn::other(RuleHook::Event, kind.to_raw().into(), None);
                self.report(DeviceEvent::RuleFired(fired));
            }
        }
        if times == 0 {
            return None;
        }
        let event = Event {
            kind,
            number,
            syndrome: cause.map_or(0, |s| s.to_raw().into()),
        };
        #[cfg(feature = "hostile")]
        let event = {
            let (event, other) = self.hostile.event(event);
            if let (Some(other), Some(eq)) = (other, self.eqs.get_mut(eqn)) {
                let _ = eq.push(mem, other);
            }
            event
        };
        match self.eqs.push(mem, eqn, event, times) {
            Ok(index) => index,
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
        for eqn in self.eqs.take_dirty() {
            let cqs = &mut self.cqs;
            // This event also reports the later entries of its CQ.
            let placed = |event: &Event, index| match cqs.get_mut(event.number) {
                Some(cq) if event.kind == EventType::Completion => cq.last_event = Some(index),
                _ => {}
            };
            let now = self.clock.now();
            match self.eqs.flush(mem, (eqn, now), &mut budget, placed) {
                Some(Ok(eq)) => {
                    retry = earliest(retry, eq.next);
                    if eq.raise {
                        self.interrupt(eq.vector);
                    }
                }
                Some(Err(_)) => self.fail_eq(mem, eqn),
                None => {}
            }
        }
        retry
    }

    /// Checks event queues in which the driver has left entries, and raises their interrupts again.
    /// Returns the time of the next call.
    pub fn remind_drivers<M: GuestMemory>(&mut self, mem: &M) -> Option<u64> {
        let mut next: Option<u64> = None;
        for eqn in self.eqs.take_reminded() {
            match self.eqs.remind(mem, eqn, self.clock.now()) {
                Some(Ok(eq)) => {
                    next = earliest(next, eq.next);
                    if eq.raise {
                        self.interrupt(eq.vector);
                    }
                }
                Some(Err(_)) => self.fail_eq(mem, eqn),
                None => {}
            }
        }
        next
    }

    /// Writes an entry to a CQ and handles an overflow. [`Resources::notify_written`] raises the
    /// completion event. Returns true if the entry was written.
    pub fn write_cqe<M: GuestMemory>(
        &mut self,
        mem: &M,
        cqn: u32,
        body: &Cqe,
        tail: Tail,
        solicited: bool,
    ) -> bool {
        let qpn = body.qpn.get();
        #[cfg(feature = "hostile")]
        let (ref body, tail, twice) = self.hostile.cqe(*body, tail);
        #[cfg(feature = "hostile")]
        if let (true, Some(cq)) = (twice, self.cqs.get_mut(cqn)) {
            let _ = cq
                .reserve(mem)
                .map(|room| room.push(mem, body, tail, solicited));
        }
        match self.cqs.write(mem, cqn, body, tail, solicited) {
            Some(Written::Yes) => return true,
            Some(Written::Dead) | None => {}
            Some(Written::Died(cause)) => {
                self.publish_cq(mem, cqn);
                self.witnesses.add(qpn);
                self.async_event(mem, EventType::CqErr, cqn, Some(cause));
            }
        }
        false
    }

    #[cold]
    fn publish_cq<M: GuestMemory>(&mut self, mem: &M, cqn: u32) {
        if let Some(cq) = self.cqs.get_mut(cqn) {
            cq.publish(mem);
        }
    }

    /// Raises the completion events for the entries that were written since the last call, with one
    /// read of the arm and one fence before it for all entries of a CQ. Returns the largest number
    /// of entries in one of these CQs that the program has not taken.
    pub fn notify_written<M: GuestMemory>(&mut self, mem: &M) -> u32 {
        let mut untaken = 0;
        while let Some((cqn, left)) = self.cqs.next_written(mem) {
            untaken = untaken.max(left);
            self.notify(mem, cqn);
        }
        untaken
    }

    /// Raises the completion event of a CQ if an arm asks for an entry that the CQ has (device
    /// specification, section 7).
    pub fn notify<M: GuestMemory>(&mut self, mem: &M, cqn: u32) {
        let Some((eqn, last)) = self.cqs.serve(mem, cqn, self.clock.now()) else {
            return;
        };
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
            let Some((cqn, collapsed)) = self.cqs.next_moderated(self.clock.now()) else {
                break;
            };
            if collapsed {
                self.notify(mem, cqn);
            }
        }
        self.cqs.next_deadline()
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

/// Returns the earlier of two times, either of which may be missing.
fn earliest(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}
