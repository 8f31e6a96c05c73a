// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The completion queues, those with new entries, and those whose event is collapsed.

use crate::memory::GuestMemory;
use crate::objects::cq::{Cq, Written};
use crate::slots::Slots;
use std::ops::{Deref, DerefMut};
use verbena_abi::cqe::{Cqe, Tail};
use verbena_transport::sched::TimerWheel;

/// The completion queues by number.
///
/// A CQ is on the list of those with new entries exactly while its flag `written` is set. Only this
/// file changes the flag. The methods of a table ([`Slots`]) find, add and remove CQs.
#[derive(Debug)]
pub struct CompletionQueues {
    table: Slots<Cq>,
    /// CQs with new entries.
    written: Vec<u32>,
    /// Deadlines by which CQs must get their collapsed event.
    moderated: TimerWheel,
}

impl Deref for CompletionQueues {
    type Target = Slots<Cq>;

    fn deref(&self) -> &Slots<Cq> {
        &self.table
    }
}

impl DerefMut for CompletionQueues {
    fn deref_mut(&mut self) -> &mut Slots<Cq> {
        &mut self.table
    }
}

impl CompletionQueues {
    /// Creates an empty table for numbers below `limit`.
    pub fn new(limit: u32) -> Self {
        Self {
            table: Slots::new(limit),
            written: Vec::new(),
            moderated: TimerWheel::new(),
        }
    }

    /// Reserves room in a CQ and writes an entry there. None if there is no such CQ.
    pub fn write<M: GuestMemory>(
        &mut self,
        mem: &M,
        cqn: u32,
        body: &Cqe,
        tail: Tail,
        solicited: bool,
    ) -> Option<Written> {
        let cq = self.table.get_mut(cqn)?;
        let written = match cq.reserve(mem) {
            Ok(room) => room.push(mem, body, tail, solicited),
            Err(none) => none,
        };
        if written == Written::Yes && !cq.written {
            cq.written = true;
            self.written.push(cqn);
        }
        Some(written)
    }

    /// Takes a CQ with new entries. Returns its number, and the number of its entries that the
    /// program has not taken.
    pub fn next_written<M: GuestMemory>(&mut self, mem: &M) -> Option<(u32, u32)> {
        while let Some(cqn) = self.written.pop() {
            if let Some(cq) = self.table.get_mut(cqn) {
                cq.written = false;
                return Some((cqn, cq.untaken(mem)));
            }
        }
        None
    }

    /// Looks at the arm of a CQ. Returns the event queue that has to get an event, and the index of
    /// the last event there. None if the arm asks for no event, or if the event is collapsed.
    pub fn serve<M: GuestMemory>(
        &mut self,
        mem: &M,
        cqn: u32,
        now: u64,
    ) -> Option<(u32, Option<u32>)> {
        let cq = self.table.get_mut(cqn)?;
        let Some(count) = cq.wants_event(mem) else {
            // The program has polled the entries of the collapsed event, so the period begins anew
            // with the next entry.
            cq.collapsed_since = None;
            return None;
        };
        if cq.moderation_period > 0 && count < u32::from(cq.moderation_count) {
            let since = *cq.collapsed_since.get_or_insert(now);
            let due = since + u64::from(cq.moderation_period) * 1000;
            if now < due {
                if self.moderated.deadline(cqn) != Some(due) {
                    self.moderated.set(cqn, due);
                }
                return None;
            }
        }
        cq.serve(mem);
        Some((cq.eq.number(), cq.last_event))
    }

    /// Takes a deadline that has passed. Returns the CQ, and true if its event is still collapsed:
    /// otherwise an event has reported the entries meanwhile.
    pub fn next_moderated(&mut self, now: u64) -> Option<(u32, bool)> {
        let cqn = self.moderated.pop(now)?;
        let collapsed = self.table.get(cqn).and_then(|cq| cq.collapsed_since);
        Some((cqn, collapsed.is_some()))
    }

    /// Returns the time at which a deadline passes at the earliest.
    pub fn next_deadline(&self) -> Option<u64> {
        self.moderated.next_deadline()
    }

    /// Drops the deadline of a CQ that was destroyed.
    pub fn cancel_deadline(&mut self, cqn: u32) {
        self.moderated.cancel(cqn);
    }
}
