// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is outstanding in a work queue.
//!
//! Indexes are free-running. The poster owns the producer index (under the queue's lock, if it has one); whoever polls a
//! completion of entry `i` moves the consumer index behind it. The `wr_id`s are kept here as well as in the ring, because the ring is
//! gone when the device is: then they are all that is left to flush.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The entries between consumer and producer index.
pub struct Window {
    wr_ids: Box<[AtomicU64]>,
    consumed: AtomicU32,
    /// The producer index, for whoever flushes.
    produced: AtomicU32,
    limit: AtomicU32,
}

impl Window {
    /// For a ring of `size` entries (a power of two), of which `limit` may be outstanding.
    pub fn new(size: u32, limit: u32) -> Self {
        Self {
            wr_ids: (0..size).map(|_| AtomicU64::new(0)).collect(),
            consumed: AtomicU32::new(0),
            produced: AtomicU32::new(0),
            limit: AtomicU32::new(limit.min(size)),
        }
    }

    /// Whether there is room for one more entry at `producer`.
    #[inline(always)]
    pub fn has_room(&self, producer: u32) -> bool {
        producer.wrapping_sub(self.consumed.load(Ordering::Acquire))
            < self.limit.load(Ordering::Relaxed)
    }

    /// Without places for `wr_id`s: of an SRQ nothing is flushed in software.
    pub fn of_shared(limit: u32) -> Self {
        Self {
            limit: AtomicU32::new(limit),
            ..Self::new(0, 0)
        }
    }

    /// Another number of entries may be outstanding. Under the queue's lock.
    pub fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Remembers the `wr_id` of the entry at `index`.
    #[inline(always)]
    pub fn remember(&self, index: u32, wr_id: u64) {
        let mask = self.wr_ids.len().wrapping_sub(1);
        if let Some(slot) = self.wr_ids.get(index as usize & mask) {
            slot.store(wr_id, Ordering::Relaxed);
        }
    }

    /// The entries before `index` are remembered. Under the queue's lock.
    #[inline(always)]
    pub fn produce(&self, index: u32) {
        self.produced.store(index, Ordering::Release);
    }

    /// Everything up to and including the entry at `index` is done.
    #[inline(always)]
    pub fn retire(&self, index: u32) {
        self.consumed
            .store(index.wrapping_add(1), Ordering::Release);
    }

    /// The same for a queue of which several threads may retire entries, out of order (an SRQ's).
    pub fn retire_shared(&self, index: u32) {
        let next = index.wrapping_add(1);
        // Failure means that it is already beyond.
        let _ = self
            .consumed
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
                (0 < next.wrapping_sub(now) as i32).then_some(next)
            });
    }

    /// Everything before the entry at `index` is done, which lies before `producer` or at it. Anything else is ignored.
    pub fn advance(&self, index: u32, producer: u32) {
        let now = self.consumed.load(Ordering::Acquire);
        if index.wrapping_sub(now) <= producer.wrapping_sub(now) {
            self.retire_shared(index.wrapping_sub(1));
        }
    }

    /// Takes the oldest entry, to flush it in software.
    pub fn take(&self) -> Option<u64> {
        let index = self.consumed.load(Ordering::Acquire);
        if index == self.produced.load(Ordering::Acquire) {
            return None;
        }
        let mask = self.wr_ids.len().wrapping_sub(1);
        let wr_id = self
            .wr_ids
            .get(index as usize & mask)?
            .load(Ordering::Relaxed);
        self.retire(index);
        Some(wr_id)
    }

    /// Back to the beginning, when the queue pair moves to RESET.
    pub fn reset(&self) {
        self.produced.store(0, Ordering::Release);
        self.consumed.store(0, Ordering::Release);
    }
}
