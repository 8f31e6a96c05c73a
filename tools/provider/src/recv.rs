// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Posting receives, to a queue pair's own queue or to an SRQ.

use crate::errno::Errno;
use crate::ffi::lock::{Lock, Sharing};
use crate::ffi::memory::{DoorbellMapping, MappedRing};
use crate::ffi::wr::RecvWr;
use crate::wr_window::WrWindow;
use core::mem::{offset_of, size_of};
use std::sync::Arc;
use verbena_abi::doorbell::{self, Words};
use verbena_abi::wqe::{self, RecvWqe};

/// Smallest stride of a receive ring, in bytes.
pub const MIN: usize = 1 << wqe::LOG_RQ_STRIDE.0;

/// Properties of a new receive queue.
pub struct RecvConfig {
    pub max_wr: u32,
    pub max_sge: u32,
    /// Slot of the queue in the doorbell area.
    pub slot: usize,
    /// True if the queue is an SRQ.
    pub shared: bool,
    /// Threads that may post to the queue.
    pub sharing: Sharing,
}

/// A receive queue.
pub struct RecvQueue {
    area: Arc<DoorbellMapping>,
    config: RecvConfig,
    window: WrWindow,
    producer: Lock<RecvProducer>,
}

/// State of a receive queue that its lock protects.
struct RecvProducer {
    ring: MappedRing<MIN>,
    /// Producer index of the queue, free-running.
    index: u32,
}

const _: () = {
    assert!(offset_of!(RecvWqe, wr_id) % 8 == 0 && offset_of!(RecvWqe, num_sge) % 8 == 0);
    // The bytes after the number of SGEs are reserved.
    assert!(offset_of!(RecvWqe, num_sge) + 8 == size_of::<RecvWqe>());
};

impl RecvQueue {
    pub fn new(ring: MappedRing<MIN>, area: Arc<DoorbellMapping>, config: RecvConfig) -> Self {
        let window = match config.shared {
            true => WrWindow::of_shared(config.max_wr.min(ring.size())),
            false => WrWindow::new(ring.size(), config.max_wr),
        };
        let sharing = config.sharing;
        Self {
            area,
            config,
            window,
            producer: Lock::shared_by(sharing, RecvProducer { ring, index: 0 }),
        }
    }

    /// Returns the size of an entry in bytes, as a power of two.
    pub fn log_stride(&self) -> u8 {
        self.producer.lock().ring.log_stride()
    }

    #[cfg(test)]
    pub fn bytes(&self, index: u32, length: usize) -> Vec<u8> {
        self.producer.lock().ring.bytes(index, 0, length)
    }

    /// Returns the window of outstanding requests.
    #[inline(always)]
    pub fn window(&self) -> &WrWindow {
        &self.window
    }

    /// Posts a list, if `may` still returns true under the lock.
    ///
    /// # Errors
    ///
    /// Returns the error and the request that caused it. All requests before it were posted; it and
    /// the requests after it were not.
    #[inline(always)]
    pub fn post<'a>(
        &self,
        first: RecvWr<'a>,
        may: impl FnOnce() -> bool,
    ) -> Result<(), (Errno, RecvWr<'a>)> {
        let mut guard = self.producer.lock();
        if !may() {
            return Err((Errno::INVAL, first));
        }
        let start = guard.index;
        let mut producer = start;
        let alive = self.area.is_alive();
        let mut wr = first;
        let result = loop {
            if !self.window.has_room(producer) && !self.makes_room(producer) {
                break Err((Errno::NOMEM, wr));
            }
            if wr.num_sge() > self.config.max_sge {
                break Err((Errno::INVAL, wr));
            }
            if alive {
                let entry = guard.ring.entry(producer);
                if !wr.copy_sges(entry, size_of::<RecvWqe>()) {
                    break Err((Errno::INVAL, wr));
                }
                entry.put::<{ offset_of!(RecvWqe, wr_id) }>(wr.wr_id());
                entry.put::<{ offset_of!(RecvWqe, num_sge) }>(wr.num_sge().into());
            }
            self.window.remember(producer, wr.wr_id());
            producer = producer.wrapping_add(1);
            match wr.next() {
                Some(next) => wr = next,
                None => break Ok(()),
            }
        };
        if producer != start {
            guard.index = producer;
            self.window.produce(producer);
            if alive {
                doorbell::post_recv(&*self.area, self.config.slot, producer, || self.area.ring());
            }
        }
        result
    }

    /// Frees the entries that the device has taken from an SRQ, and returns true if there is room
    /// then. The receives of some of these entries never complete, because their queue pair is
    /// gone.
    #[cold]
    #[inline(never)]
    fn makes_room(&self, producer: u32) -> bool {
        if !self.config.shared {
            return false;
        }
        let word = doorbell::srq_consumer(self.config.slot);
        self.window.advance(self.area.load_acquire(word), producer);
        self.window.has_room(producer)
    }

    /// Moves an SRQ to the ring that `make` returns, together with the new limit of outstanding
    /// work requests. `move_to` has the device take entries from that ring. Nothing is posted
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// Returns the error of either function, EINVAL if more receives wait than the new ring takes,
    /// or EIO if its entries have another size. Nothing has changed then.
    pub fn resize(
        &self,
        make: impl FnOnce() -> Result<(MappedRing<MIN>, u32), Errno>,
        move_to: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut producer = self.producer.lock_long();
        let (ring, max_wr) = make()?;
        // The device goes on taking entries. From this index on it may still read them.
        let taken = self
            .area
            .load_acquire(doorbell::srq_consumer(self.config.slot));
        let waiting = producer.index.wrapping_sub(taken);
        if waiting > max_wr.min(ring.size()) {
            return Err(Errno::INVAL);
        }
        for index in (0..waiting).map(|ahead| taken.wrapping_add(ahead)) {
            if !ring.entry(index).copy_from(producer.ring.entry(index)) {
                return Err(Errno::IO);
            }
        }
        move_to()?;
        producer.ring = ring;
        self.window.set_limit(max_wr);
        Ok(())
    }

    /// Takes the oldest outstanding receive, in order to flush it in software. The caller holds the
    /// lock of the CQ where the receive completes.
    pub fn flush_one(&self) -> Option<u64> {
        self.window.take()
    }

    /// Resets the queue when the queue pair is in RESET. The caller holds the lock of the CQ where
    /// the receives complete.
    pub fn reset(&self) {
        let mut producer = self.producer.lock();
        producer.index = 0;
        self.window.reset();
        if self.area.is_alive() {
            self.area
                .store_release(doorbell::rq_producer(self.config.slot), 0);
        }
    }
}
