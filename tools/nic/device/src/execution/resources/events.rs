// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The event queues, those that are to be flushed, and those whose driver has left entries.

use crate::memory::{Access, GuestMemory};
use crate::objects::eq::{Eq, Event};
use crate::slots::Slots;
use std::ops::{Deref, DerefMut};

/// Time in nanoseconds for which the driver may leave entries in an event queue before the device
/// raises the interrupt again.
const EQ_REMIND_NS: u64 = 50_000_000;

/// The event queues by number.
///
/// An event queue is on the list of those to flush exactly while its flag `dirty` is set, and on the
/// list of those to check again while it has a `remind_at`. Only this file changes the two. The
/// methods of a table ([`Slots`]) find, add and remove event queues.
#[derive(Debug)]
pub struct EventQueues {
    table: Slots<Eq>,
    dirty: Vec<u32>,
    /// Event queues in which the driver had left entries at the last check.
    reminded: Vec<u32>,
}

/// What the flush or the check of an event queue leads to.
#[derive(Debug)]
pub struct Attention {
    /// Vector of the interrupt.
    pub vector: u16,
    /// True if the interrupt has to be raised.
    pub raise: bool,
    /// Time of the next call for this event queue.
    pub next: Option<u64>,
}

impl Deref for EventQueues {
    type Target = Slots<Eq>;

    fn deref(&self) -> &Slots<Eq> {
        &self.table
    }
}

impl DerefMut for EventQueues {
    fn deref_mut(&mut self) -> &mut Slots<Eq> {
        &mut self.table
    }
}

impl EventQueues {
    /// Creates an empty table for numbers below `limit`.
    pub fn new(limit: u32) -> Self {
        Self {
            table: Slots::new(limit),
            dirty: Vec::new(),
            reminded: Vec::new(),
        }
    }

    /// Adds an event `times` times to an event queue that exists. Returns the index of its last
    /// entry if there was room for it.
    pub fn push<M: GuestMemory>(
        &mut self,
        mem: &M,
        eqn: u32,
        event: Event,
        times: u32,
    ) -> Access<Option<u32>> {
        let Some(eq) = self.table.get_mut(eqn) else {
            return Ok(None);
        };
        // An error here occurs again at the push below.
        for _ in 1..times {
            let _ = eq.push(mem, event);
        }
        let index = eq.push(mem, event)?;
        if !eq.dirty {
            eq.dirty = true;
            self.dirty.push(eqn);
        }
        Ok(index)
    }

    /// Takes the numbers of the event queues to flush. The caller flushes each of them.
    pub fn take_dirty(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.dirty)
    }

    /// Writes waiting events of an event queue to its ring, as [`Eq::flush`] does. None if there is
    /// no such event queue.
    pub fn flush<M: GuestMemory>(
        &mut self,
        mem: &M,
        (eqn, now): (u32, u64),
        budget: &mut u32,
        placed: impl FnMut(&Event, u32),
    ) -> Option<Access<Attention>> {
        let eq = self.table.get_mut(eqn)?;
        eq.dirty = false;
        let raise = match eq.flush(mem, budget, placed) {
            Ok(raise) => raise,
            Err(e) => return Some(Err(e)),
        };
        if eq.remind_at.is_none() && !eq.is_drained() {
            eq.remind_at = Some(now + EQ_REMIND_NS);
            self.reminded.push(eqn);
        }
        let mut next = None;
        if eq.has_waiting() {
            eq.dirty = true;
            self.dirty.push(eqn);
            next = Some(if *budget == 0 { now } else { eq.retry_at(now) });
        }
        let vector = eq.vector;
        Some(Ok(Attention {
            vector,
            raise,
            next,
        }))
    }

    /// Takes the numbers of the event queues to check. The caller checks each of them.
    pub fn take_reminded(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.reminded)
    }

    /// Checks whether the driver has left entries in an event queue for too long. None if there is
    /// no such event queue.
    pub fn remind<M: GuestMemory>(
        &mut self,
        mem: &M,
        eqn: u32,
        now: u64,
    ) -> Option<Access<Attention>> {
        let eq = self.table.get_mut(eqn)?;
        let mut raise = false;
        if eq.remind_at.unwrap_or(0) <= now {
            raise = match eq.remind(mem) {
                Ok(raise) => raise,
                Err(e) => return Some(Err(e)),
            };
            eq.remind_at = (!eq.is_drained()).then_some(now + EQ_REMIND_NS);
        }
        if eq.remind_at.is_some() {
            self.reminded.push(eqn);
        }
        Some(Ok(Attention {
            vector: eq.vector,
            raise,
            next: eq.remind_at,
        }))
    }
}
