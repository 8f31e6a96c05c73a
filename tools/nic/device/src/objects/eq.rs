// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Event queues: entries, the interrupt that reports them, and events that wait for room.
//!
//! The driver takes an entry, stores its consumer index, executes a full fence and looks at the
//! next entry. The device writes entries, executes a full fence and reads the consumer index.
//! Therefore at least one of the two sees the other's store, and the interrupt is needed only if
//! the driver had consumed all earlier entries.

use crate::memory::ring::Ring;
use crate::memory::tables::ContextSlot;
use crate::memory::{Access, GuestMemory};
use crate::slots::Held;
use std::collections::{HashSet, VecDeque};
use verbena_abi::cqe::phase;
use verbena_abi::ctx::{EqContext, QueueState};
use verbena_abi::eqe::{self, Eqe, EventType};

/// Time in nanoseconds after which the device first looks for room again for waiting events.
const RETRY_NS: u64 = 100_000;
/// Longest such time in nanoseconds, which the backoff reaches if the driver does not take entries.
const RETRY_MAX_NS: u64 = 10_000_000;

/// An event before it is written to an event queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Kind of the event.
    pub kind: EventType,
    /// Number of the object that the event is about.
    pub number: u32,
    /// Syndrome of the cause, or 0.
    pub syndrome: u32,
}

/// An event queue of the device.
#[derive(Debug)]
pub struct Eq {
    /// Number of the event queue.
    pub eqn: u32,
    /// MSI-X vector of the interrupt.
    pub vector: u16,
    /// Ring of the event queue's entries.
    pub ring: Ring,
    /// DMA address where the driver stores its consumer index.
    pub ci_addr: u64,
    /// Slot in the context table where the context is published.
    pub slot: ContextSlot,
    /// Number of CQs that use the event queue.
    users: u32,
    /// Error state, which is latched: the ring cannot be written.
    failed: bool,
    /// True if the event queue is on the list of those to flush.
    pub dirty: bool,
    /// Time at which the device looks again at entries that the driver has left in the queue.
    pub remind_at: Option<u64>,
    pi: u32,
    ci: u32,
    raised: u32,
    /// Time at which the device looks for room again, followed by the present backoff.
    retry_at: u64,
    patience: u64,
    waiting: VecDeque<Event>,
    waiting_set: HashSet<(EventType, u32)>,
}

impl Held for Eq {
    fn users(&mut self) -> &mut u32 {
        &mut self.users
    }
}

impl Eq {
    /// Creates an empty event queue.
    pub fn new(eqn: u32, vector: u16, ring: Ring, ci_addr: u64, slot: ContextSlot) -> Self {
        Self {
            eqn,
            vector,
            ring,
            ci_addr,
            slot,
            users: 0,
            failed: false,
            dirty: false,
            remind_at: None,
            pi: 0,
            ci: 0,
            raised: 0,
            retry_at: 0,
            patience: RETRY_NS,
            waiting: VecDeque::new(),
            waiting_set: HashSet::new(),
        }
    }

    /// True if a CQ uses the event queue.
    pub fn is_used(&self) -> bool {
        self.users != 0
    }

    /// Returns the producer index for replies: the driver can drain the queue up to this index.
    /// Waiting events are not in the ring yet; those of a destroyed object are dropped
    /// ([`Eq::forget`]).
    pub fn producer_index(&self) -> u32 {
        self.pi
    }

    /// True if the driver has consumed all entries, by the consumer index as last read.
    pub fn is_drained(&self) -> bool {
        self.ci == self.pi
    }

    /// Returns true if the interrupt has to be raised again: the driver has left entries in the
    /// queue and its consumer index has not moved since the last read.
    ///
    /// An interrupt can get lost while its vector is being set up, and a handler may stop early to
    /// be fair to other handlers.
    pub fn remind<M: GuestMemory>(&mut self, mem: &M) -> Access<bool> {
        let before = self.ci;
        self.read_ci(mem)?;
        Ok(self.ci == before && !self.is_drained())
    }

    /// True if events wait for room in the ring.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the time at which the device should look for room again for the waiting events. The
    /// backoff doubles each time.
    pub fn retry_at(&mut self, now: u64) -> u64 {
        if self.retry_at <= now {
            self.retry_at = now + self.patience;
            self.patience = (self.patience * 2).min(RETRY_MAX_NS);
        }
        self.retry_at
    }

    /// True if the driver has yet to take the entry with this index.
    pub fn is_unconsumed<M: GuestMemory>(&mut self, mem: &M, index: u32) -> bool {
        mem.fence();
        if self.read_ci(mem).is_err() {
            return false;
        }
        index.wrapping_sub(self.ci) < self.pi.wrapping_sub(self.ci)
    }

    /// Adds an event. Returns the index of its entry, or none if the event has to wait for room:
    /// earlier waiting events may still be dropped, so the index is only known when [`Eq::flush`]
    /// writes the entry. At most one event for each kind and object waits.
    pub fn push<M: GuestMemory>(&mut self, mem: &M, event: Event) -> Access<Option<u32>> {
        if self.waiting.is_empty() && self.has_room(mem)? {
            return self.write(mem, event).map(Some);
        }
        if self.waiting_set.insert((event.kind, event.number)) {
            self.waiting.push_back(event);
        }
        Ok(None)
    }

    /// Drops the waiting events of these kinds for an object that was destroyed.
    pub fn forget(&mut self, number: u32, kinds: &[EventType]) {
        if self.waiting.is_empty() {
            return;
        }
        for &kind in kinds {
            self.waiting_set.remove(&(kind, number));
        }
        self.waiting
            .retain(|e| e.number != number || !kinds.contains(&e.kind));
    }

    /// Moves waiting events into the ring, up to the budget, and calls `placed` with each event and
    /// the index of its entry. Returns true if the interrupt has to be raised.
    pub fn flush<M: GuestMemory>(
        &mut self,
        mem: &M,
        budget: &mut u32,
        mut placed: impl FnMut(&Event, u32),
    ) -> Access<bool> {
        while *budget != 0 && !self.waiting.is_empty() && self.has_room(mem)? {
            *budget -= 1;
            (self.retry_at, self.patience) = (0, RETRY_NS);
            if let Some(event) = self.waiting.pop_front() {
                self.waiting_set.remove(&(event.kind, event.number));
                let index = self.write(mem, event)?;
                placed(&event, index);
            }
        }
        if self.pi == self.raised {
            return Ok(false);
        }
        mem.fence();
        self.read_ci(mem)?;
        // For everything before `raised` the interrupt was raised, or the device saw that the
        // driver was still consuming entries.
        let behind = self.raised.wrapping_sub(self.ci);
        let busy = behind != 0 && behind <= self.ring.size();
        self.raised = self.pi;
        Ok(!busy && self.ci != self.pi)
    }

    /// Returns the context of the event queue.
    pub fn context(&self) -> EqContext {
        EqContext {
            eqn: self.eqn.into(),
            state: if self.failed {
                QueueState::Err
            } else {
                QueueState::Ok
            }
            .to_raw(),
            log_size: self.ring.log_size(),
            vector: self.vector.into(),
            producer_index: self.pi.into(),
            consumer_index: self.ci.into(),
            waiting: (self.waiting.len() as u32).into(),
            ring: self.ring.raw,
            ci_addr: self.ci_addr.into(),
            ..Default::default()
        }
    }

    /// True if the event queue is in error.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Latches the error state and publishes it in the context.
    pub fn fail<M: GuestMemory>(&mut self, mem: &M) {
        self.failed = true;
        let context = self.context();
        self.slot.publish(mem, &context);
    }

    fn read_ci<M: GuestMemory>(&mut self, mem: &M) -> Access {
        self.ci = mem.load32(self.ci_addr)?;
        Ok(())
    }

    fn has_room<M: GuestMemory>(&mut self, mem: &M) -> Access<bool> {
        if self.pi.wrapping_sub(self.ci) >= self.ring.size() {
            self.read_ci(mem)?;
        }
        Ok(self.pi.wrapping_sub(self.ci) < self.ring.size())
    }

    /// Writes an entry to the ring. Returns the index of the entry.
    fn write<M: GuestMemory>(&mut self, mem: &M, event: Event) -> Access<u32> {
        let entry = self.ring.entry(self.pi);
        let tail = eqe::pack_tail(event.kind, phase(self.pi, self.ring.log_size()));
        let body = Eqe {
            number: event.number.into(),
            syndrome: event.syndrome.into(),
            ..Default::default()
        };
        use zerocopy::IntoBytes;
        mem.write(entry, &body.as_bytes()[..eqe::TAIL_OFFSET])?;
        mem.store32(entry + eqe::TAIL_OFFSET as u64, tail)?;
        let index = self.pi;
        self.pi = index.wrapping_add(1);
        Ok(index)
    }
}
