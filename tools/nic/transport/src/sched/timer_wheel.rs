// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A hierarchical timer wheel: one deadline for each slot.
//!
//! Time is counted in ticks. Level 0 has a bucket for each of the 64 ticks that differ from the
//! present tick in at most the lowest 6 bits; likewise, level n has a bucket for each 64^n ticks.
//! So the highest bit in which a deadline differs from the present determines its level, every
//! deadline of a level comes before those of the next level, and one word of bits for each level
//! finds the first deadline. When the present reaches a bucket of a higher level, the slots of the
//! bucket move down. A slot moves down at most once for each level, in practice through the few
//! levels that cover its distance from the present.

use super::NONE;
use crate::prefetch;
use alloc::vec::Vec;

/// Nanoseconds of a tick. The shortest timer of the protocol is the RNR timer of 10 us.
pub const GRANULARITY_NS: u64 = 1 << LOG_TICK;

const LOG_TICK: u32 = 13;
const LOG_BUCKETS: u32 = 6;
const BUCKETS: usize = 1 << LOG_BUCKETS;
/// Number of levels that covers the whole of a 64-bit clock.
const LEVELS: usize = (u64::BITS - LOG_TICK).div_ceil(LOG_BUCKETS) as usize;

#[derive(Clone, Copy, Debug)]
struct TimerEntry {
    /// Deadline that the owner set, in nanoseconds.
    deadline_ns: u64,
    next: u32,
    prev: u32,
    /// Level and bucket of the slot, or [`NONE`] if it has no deadline.
    place: u32,
}

const UNSET: TimerEntry = TimerEntry {
    deadline_ns: 0,
    next: NONE,
    prev: NONE,
    place: NONE,
};

/// A timer wheel with one deadline for each slot.
#[derive(Debug)]
pub struct TimerWheel {
    entries: Vec<TimerEntry>,
    heads: [[u32; BUCKETS]; LEVELS],
    occupied: [u64; LEVELS],
    /// Present time in ticks: [`TimerWheel::pop`] has returned every slot with an earlier deadline.
    tick: u64,
}

impl Default for TimerWheel {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the first tick at which a deadline has passed.
fn tick_of(at: u64) -> u64 {
    at.div_ceil(GRANULARITY_NS)
}

impl TimerWheel {
    /// Returns an empty wheel, at time 0.
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
            heads: [[NONE; BUCKETS]; LEVELS],
            occupied: [0; LEVELS],
            tick: 0,
        }
    }

    /// Makes room for the slots below this number, so that [`TimerWheel::set`] allocates nothing for
    /// them.
    pub fn reserve(&mut self, slots: u32) {
        if self.entries.len() < slots as usize {
            self.entries.resize(slots as usize, UNSET);
        }
    }

    /// Returns the deadline of a slot in nanoseconds, if it has one.
    #[inline]
    pub fn deadline(&self, slot: u32) -> Option<u64> {
        let entry = self.entries.get(slot as usize)?;
        (entry.place != NONE).then_some(entry.deadline_ns)
    }

    /// Prefetches the memory of a slot.
    #[inline]
    pub fn prefetch(&self, slot: u32) {
        prefetch::element(&self.entries, slot as usize);
    }

    /// Sets the deadline of a slot in nanoseconds, and replaces an earlier deadline.
    pub fn set(&mut self, slot: u32, at: u64) {
        if slot == NONE {
            return;
        }
        self.reserve(slot.saturating_add(1));
        self.cancel(slot);
        if let Some(entry) = self.entries.get_mut(slot as usize) {
            entry.deadline_ns = at;
        }
        self.link(slot, tick_of(at));
    }

    /// Removes the deadline of a slot.
    pub fn cancel(&mut self, slot: u32) {
        let Some(entry) = self.entries.get_mut(slot as usize) else {
            return;
        };
        let TimerEntry {
            next, prev, place, ..
        } = *entry;
        if place == NONE {
            return;
        }
        entry.place = NONE;
        if let Some(after) = self.entries.get_mut(next as usize) {
            after.prev = prev;
        }
        if let Some(before) = self.entries.get_mut(prev as usize) {
            before.next = next;
            return;
        }
        let (level, bucket) = (place as usize / BUCKETS, place as usize % BUCKETS);
        if let Some(head) = self.heads.get_mut(level).and_then(|l| l.get_mut(bucket)) {
            *head = next;
        }
        if next == NONE {
            if let Some(occupied) = self.occupied.get_mut(level) {
                *occupied &= !(1 << bucket);
            }
        }
    }

    /// Returns a slot whose deadline has passed at `now`, and removes the deadline. Slots with
    /// deadlines in one tick come in no particular order.
    pub fn pop(&mut self, now: u64) -> Option<u32> {
        let now = now / GRANULARITY_NS;
        loop {
            let Some((level, bucket, tick)) = self.first().filter(|(.., tick)| *tick <= now) else {
                self.tick = self.tick.max(now);
                return None;
            };
            self.tick = self.tick.max(tick);
            let head = *self.heads.get(level)?.get(bucket)?;
            if level == 0 {
                self.cancel(head);
                return Some(head);
            }
            // The present has reached a bucket of a higher level, so the slots of the bucket move
            // down.
            let mut slot = head;
            while let Some(entry) = self.entries.get(slot as usize) {
                let (next, at) = (entry.next, entry.deadline_ns);
                self.cancel(slot);
                self.link(slot, tick_of(at));
                slot = next;
            }
        }
    }

    /// Returns the time at which [`TimerWheel::pop`] is to be called again, in nanoseconds. It is not
    /// after the tick of the first deadline. It may be before that tick a few times, when slots
    /// have to move down.
    pub fn next_deadline(&self) -> Option<u64> {
        let (.., tick) = self.first()?;
        Some(tick.saturating_mul(GRANULARITY_NS))
    }

    /// Returns level and number of the first bucket with a slot, and the tick at which the bucket
    /// begins.
    fn first(&self) -> Option<(usize, usize, u64)> {
        let (level, occupied) = self
            .occupied
            .iter()
            .enumerate()
            .find(|(_, occupied)| **occupied != 0)?;
        // [`TimerWheel::pop`] has emptied the earlier buckets of the level, so all occupied buckets are
        // at or after the present one.
        let bucket = occupied.trailing_zeros();
        let shift = LOG_BUCKETS * level as u32;
        let above = self.tick.checked_shr(shift + LOG_BUCKETS).unwrap_or(0);
        let tick = (above << LOG_BUCKETS | u64::from(bucket)) << shift;
        Some((level, bucket as usize, tick))
    }

    /// Puts a slot that is in no bucket into the bucket of a tick.
    fn link(&mut self, slot: u32, tick: u64) {
        let tick = tick.max(self.tick);
        let highest = 63 - ((tick ^ self.tick) | 1).leading_zeros();
        let level = (highest / LOG_BUCKETS) as usize;
        let bucket = (tick >> (LOG_BUCKETS * level as u32)) as usize % BUCKETS;
        let Some(head) = self.heads.get_mut(level).and_then(|l| l.get_mut(bucket)) else {
            return;
        };
        let next = *head;
        *head = slot;
        if let Some(occupied) = self.occupied.get_mut(level) {
            *occupied |= 1 << bucket;
        }
        if let Some(after) = self.entries.get_mut(next as usize) {
            after.prev = slot;
        }
        if let Some(entry) = self.entries.get_mut(slot as usize) {
            entry.next = next;
            entry.prev = NONE;
            entry.place = (level * BUCKETS + bucket) as u32;
        }
    }
}
