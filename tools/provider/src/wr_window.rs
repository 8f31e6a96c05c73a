// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The outstanding entries of a work queue.
//!
//! Indexes are free-running. The poster owns the producer index (under the lock of the queue, if
//! the queue has one). A poll of the completion of entry `i` moves the consumer index to `i + 1`.
//! The `wr_id`s are kept here as well as in the ring: when the device is gone the ring is gone too,
//! and only these copies are left to flush.

#[cfg(not(all(test, loom)))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Entries between the consumer index and the producer index.
pub struct WrWindow {
    wr_ids: Box<[AtomicU64]>,
    consumed: AtomicU32,
    /// Producer index, for polls that flush.
    produced: AtomicU32,
    limit: AtomicU32,
}

impl WrWindow {
    /// Returns a window for a ring of `size` entries (a power of two), of which up to `limit` may
    /// be outstanding.
    pub fn new(size: u32, limit: u32) -> Self {
        Self {
            wr_ids: (0..size).map(|_| AtomicU64::new(0)).collect(),
            consumed: AtomicU32::new(0),
            produced: AtomicU32::new(0),
            limit: AtomicU32::new(limit.min(size)),
        }
    }

    /// True if there is room for one more entry at `producer`.
    #[inline(always)]
    pub fn has_room(&self, producer: u32) -> bool {
        producer.wrapping_sub(self.consumed.load(Ordering::Acquire))
            < self.limit.load(Ordering::Relaxed)
    }

    /// Returns a window without places for `wr_id`s: the receives of an SRQ are not flushed in
    /// software.
    pub fn of_shared(limit: u32) -> Self {
        Self {
            limit: AtomicU32::new(limit),
            ..Self::new(0, 0)
        }
    }

    /// Changes the number of entries that may be outstanding. The caller holds the lock of the
    /// queue.
    pub fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Stores the `wr_id` of the entry at `index`.
    #[inline(always)]
    pub fn remember(&self, index: u32, wr_id: u64) {
        let mask = self.wr_ids.len().wrapping_sub(1);
        if let Some(slot) = self.wr_ids.get(index as usize & mask) {
            slot.store(wr_id, Ordering::Relaxed);
        }
    }

    /// Sets the producer index, after the `wr_id`s of all entries before `index` are stored. The
    /// caller holds the lock of the queue.
    #[inline(always)]
    pub fn produce(&self, index: u32) {
        self.produced.store(index, Ordering::Release);
    }

    /// Retires all entries up to and including the one at `index`.
    #[inline(always)]
    pub fn retire(&self, index: u32) {
        self.consumed
            .store(index.wrapping_add(1), Ordering::Release);
    }

    /// Retires entries as [`retire`](Self::retire) does, in a queue of which several threads may
    /// retire entries out of order (an SRQ).
    pub fn retire_shared(&self, index: u32) {
        let next = index.wrapping_add(1);
        // The update fails if the consumer index is already beyond `index`.
        let _ = self
            .consumed
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
                (0 < next.wrapping_sub(now) as i32).then_some(next)
            });
    }

    /// Retires all entries before `index`, which must lie between the consumer index and
    /// `producer`, both included. Any other index is ignored.
    pub fn advance(&self, index: u32, producer: u32) {
        let now = self.consumed.load(Ordering::Acquire);
        if index.wrapping_sub(now) <= producer.wrapping_sub(now) {
            self.retire_shared(index.wrapping_sub(1));
        }
    }

    /// Takes the oldest outstanding entry, in order to flush it in software, and returns its
    /// `wr_id`.
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

    /// Sets both indexes to 0, when the queue pair moves to RESET.
    pub fn reset(&self) {
        self.produced.store(0, Ordering::Release);
        self.consumed.store(0, Ordering::Release);
    }
}

/// Models of the window between a thread that polls and one that posts. See
/// `tools/abi/tests/loom.rs` for how to run them.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use std::sync::Arc;

    /// A poll publishes the consumer index of the CQ, then retires the request. A thread that posts
    /// into that room publishes the producer index. The device, which has seen the producer index,
    /// must see the room in the CQ too: otherwise a CQ that is large enough would overflow.
    #[test]
    fn loom_a_post_into_freed_room_finds_room_in_the_cq() {
        loom::model(|| {
            let window = Arc::new(WrWindow::new(1, 1));
            let words = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
            window.produce(1);
            let poller = {
                let (window, words) = (window.clone(), words.clone());
                thread::spawn(move || {
                    words.0.store(1, Ordering::Release);
                    window.retire(0);
                })
            };
            let poster = {
                let (window, words) = (window.clone(), words.clone());
                thread::spawn(move || {
                    if window.has_room(1) {
                        words.1.store(2, Ordering::Release);
                    }
                })
            };
            if words.1.load(Ordering::Acquire) == 2 {
                let consumed = words.0.load(Ordering::Acquire);
                assert_eq!(consumed, 1, "the CQ has no room for the second request");
            }
            poller.join().unwrap();
            poster.join().unwrap();
        });
    }

    /// A thread posts while another flushes after the device has died: each request is flushed
    /// with its own `wr_id`.
    #[test]
    fn loom_a_flush_finds_the_wr_id() {
        loom::model(|| {
            let window = Arc::new(WrWindow::new(1, 1));
            let poster = {
                let window = window.clone();
                thread::spawn(move || {
                    window.remember(0, 7);
                    window.produce(1);
                })
            };
            if let Some(wr_id) = window.take() {
                assert_eq!(wr_id, 7, "the wr_id is not there yet");
            }
            poster.join().unwrap();
        });
    }
}
