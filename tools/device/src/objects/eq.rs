// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Event queues: entries, the interrupt that tells of them, and events that wait for room.
//!
//! The driver takes an entry, stores its consumer index, executes a full fence and looks at the next entry; the device
//! writes entries, executes a full fence and reads the consumer index. So one of the two sees the other, and the
//! interrupt is needed only when the driver had consumed everything that was there before.

use crate::memory::ring::Ring;
use crate::memory::tables::ContextSlot;
use crate::memory::{Access, GuestMemory};
use crate::slots::Held;
use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{fence, Ordering};
use verbena_abi::cqe::phase;
use verbena_abi::ctx::{EqContext, QueueState};
use verbena_abi::eqe::{self, Eqe, EventType};

/// How long until events that wait for room in a ring are tried again, in nanoseconds: for the first time ...
const RETRY_NS: u64 = 100_000;
/// ... and at most, when a driver does not come for what is there.
const RETRY_MAX_NS: u64 = 10_000_000;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventType,
    /// To which object.
    pub number: u32,
    /// Cause, or 0.
    pub syndrome: u32,
}

/// An event queue.
#[derive(Debug)]
pub struct Eq {
    /// Its number.
    pub eqn: u32,
    /// MSI-X vector.
    pub vector: u16,
    /// Entries.
    pub ring: Ring,
    /// Where the driver stores its consumer index.
    pub ci_addr: u64,
    /// Where the context is.
    pub slot: ContextSlot,
    /// CQs that use it.
    users: u32,
    /// Latched in error: nothing can be written.
    failed: bool,
    /// It is on the list of those to flush.
    pub dirty: bool,
    /// When it is looked at again because entries were left in it.
    pub remind_at: Option<u64>,
    pi: u32,
    ci: u32,
    raised: u32,
    /// When room is looked for again, and after how long the time after.
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
    /// An empty queue.
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

    /// Whether a CQ uses it.
    pub fn is_used(&self) -> bool {
        self.users != 0
    }

    /// Producer index, for replies: what the driver can drain to. Events that wait are not in the ring yet; those of an
    /// object that is destroyed are dropped ([`Eq::forget`]).
    pub fn producer_index(&self) -> u32 {
        self.pi
    }

    /// Whether the driver has consumed everything, by the consumer index as last read.
    pub fn is_drained(&self) -> bool {
        self.ci == self.pi
    }

    /// The driver did not come for its entries: raises the interrupt again if nothing has moved since the last call.
    ///
    /// An interrupt can get lost where a vector is being set up, and a handler may stop early to be fair to others.
    pub fn remind<M: GuestMemory>(&mut self, mem: &M) -> Access<bool> {
        let before = self.ci;
        self.read_ci(mem)?;
        Ok(self.ci == before && !self.is_drained())
    }

    /// Whether events wait for room in the ring.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// When to look for room again, now that events wait for it.
    pub fn retry_at(&mut self, now: u64) -> u64 {
        if self.retry_at <= now {
            self.retry_at = now + self.patience;
            self.patience = (self.patience * 2).min(RETRY_MAX_NS);
        }
        self.retry_at
    }

    /// Whether the driver has yet to take the entry with this index.
    pub fn is_unconsumed<M: GuestMemory>(&mut self, mem: &M, index: u32) -> bool {
        fence(Ordering::SeqCst);
        if self.read_ci(mem).is_err() {
            return false;
        }
        index.wrapping_sub(self.ci) < self.pi.wrapping_sub(self.ci)
    }

    /// Adds an event; returns the index of its entry, or none while it waits for room: others that wait may be dropped,
    /// so where it will be is not known before [`Eq::flush`] puts it there. At most one of a kind and object waits.
    pub fn push<M: GuestMemory>(&mut self, mem: &M, event: Event) -> Access<Option<u32>> {
        if self.waiting.is_empty() && self.has_room(mem)? {
            return self.write(mem, event).map(Some);
        }
        if self.waiting_set.insert((event.kind, event.number)) {
            self.waiting.push_back(event);
        }
        Ok(None)
    }

    /// Drops what waits for an object that is gone.
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

    /// Moves waiting events into the ring, not more than the budget has, and tells `placed` of each and of the index of
    /// its entry. Returns whether the interrupt is to be raised.
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
        fence(Ordering::SeqCst);
        self.read_ci(mem)?;
        // Everything before `raised` had its interrupt, or the driver was seen to be still at work on it.
        let behind = self.raised.wrapping_sub(self.ci);
        let busy = behind != 0 && behind <= self.ring.size();
        self.raised = self.pi;
        Ok(!busy && self.ci != self.pi)
    }

    /// The context.
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

    /// Whether it was latched in error.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Latches it in error, and shows that.
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

    /// Writes an entry; returns its index.
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
