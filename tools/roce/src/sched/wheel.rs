// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A hierarchical timer wheel: one deadline for each slot.
//!
//! Time is counted in ticks. Level 0 has a bucket for each of the 64 ticks that share all but their lowest 6 bits with the
//! present one; level n has a bucket for each 64^n ticks likewise. So the level of a deadline is where its highest bit that
//! differs from the present lies, every deadline of a level comes before those of the next, and a word of bits
//! for each level finds the first. When the present reaches a bucket of a higher level, its slots move down; each moves
//! down at most once for each level, and in practice the few levels between "now" and its distance.

use super::NONE;
use crate::prefetch;
use alloc::vec::Vec;

/// Nanoseconds of a tick. The shortest timer of the protocol is the RNR timer of 10 us.
pub const GRANULARITY_NS: u64 = 1 << LOG_TICK;

const LOG_TICK: u32 = 13;
const LOG_BUCKETS: u32 = 6;
const BUCKETS: usize = 1 << LOG_BUCKETS;
/// Enough for all of a 64-bit clock.
const LEVELS: usize = (u64::BITS - LOG_TICK).div_ceil(LOG_BUCKETS) as usize;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The deadline as asked for.
    at: u64,
    next: u32,
    prev: u32,
    /// Level and bucket, or [`NONE`]: not set.
    place: u32,
}

const UNSET: Entry = Entry {
    at: 0,
    next: NONE,
    prev: NONE,
    place: NONE,
};

/// The wheel.
#[derive(Debug)]
pub struct Wheel {
    entries: Vec<Entry>,
    heads: [[u32; BUCKETS]; LEVELS],
    occupied: [u64; LEVELS],
    /// The present, in ticks: every deadline before it has been handed out.
    tick: u64,
}

impl Default for Wheel {
    fn default() -> Self {
        Self::new()
    }
}

/// The tick at which a deadline has passed.
fn tick_of(at: u64) -> u64 {
    at.div_ceil(GRANULARITY_NS)
}

impl Wheel {
    /// An empty wheel, at time 0.
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
            heads: [[NONE; BUCKETS]; LEVELS],
            occupied: [0; LEVELS],
            tick: 0,
        }
    }

    /// Makes room for the slots below this number, so that no [`Wheel::set`] of them allocates.
    pub fn reserve(&mut self, slots: u32) {
        if self.entries.len() < slots as usize {
            self.entries.resize(slots as usize, UNSET);
        }
    }

    /// The deadline of a slot, if it has one.
    #[inline]
    pub fn deadline(&self, slot: u32) -> Option<u64> {
        let entry = self.entries.get(slot as usize)?;
        (entry.place != NONE).then_some(entry.at)
    }

    /// Has the memory of a slot fetched.
    #[inline]
    pub fn prefetch(&self, slot: u32) {
        prefetch::element(&self.entries, slot as usize);
    }

    /// Sets the deadline of a slot, in place of the one it had.
    pub fn set(&mut self, slot: u32, at: u64) {
        if slot == NONE {
            return;
        }
        self.reserve(slot.saturating_add(1));
        self.cancel(slot);
        if let Some(entry) = self.entries.get_mut(slot as usize) {
            entry.at = at;
        }
        self.link(slot, tick_of(at));
    }

    /// A slot has no deadline any more.
    pub fn cancel(&mut self, slot: u32) {
        let Some(entry) = self.entries.get_mut(slot as usize) else {
            return;
        };
        let Entry {
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

    /// A slot whose deadline has passed; it has none from then on. Those of one tick come in no particular order.
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
            // The bucket's time has begun: its slots move down.
            let mut slot = head;
            while let Some(entry) = self.entries.get(slot as usize) {
                let (next, at) = (entry.next, entry.at);
                self.cancel(slot);
                self.link(slot, tick_of(at));
                slot = next;
            }
        }
    }

    /// When [`Wheel::pop`] is to be called again: not after the first deadline's tick, and at most a few times before it.
    pub fn next_deadline(&self) -> Option<u64> {
        let (.., tick) = self.first()?;
        Some(tick.saturating_mul(GRANULARITY_NS))
    }

    /// The first bucket that has something, and the tick at which it begins.
    fn first(&self) -> Option<(usize, usize, u64)> {
        let (level, occupied) = self
            .occupied
            .iter()
            .enumerate()
            .find(|(_, occupied)| **occupied != 0)?;
        // All buckets of a level that have something are ahead of the present one: those behind were emptied.
        let bucket = occupied.trailing_zeros();
        let shift = LOG_BUCKETS * level as u32;
        let above = self.tick.checked_shr(shift + LOG_BUCKETS).unwrap_or(0);
        let tick = (above << LOG_BUCKETS | u64::from(bucket)) << shift;
        Some((level, bucket as usize, tick))
    }

    /// Puts a slot that is in no bucket into the one of a tick.
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
