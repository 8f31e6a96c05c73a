// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Posting receives, to a queue pair's own queue or to an SRQ.

use crate::errno::Errno;
use crate::ffi::lock::{Lock, Sharing};
use crate::ffi::memory::{Area, Ring};
use crate::ffi::wr::RecvWr;
use crate::window::Window;
use core::mem::{offset_of, size_of};
use std::sync::Arc;
use verbena_abi::doorbell::{self, Words};
use verbena_abi::wqe::{self, RecvWqe};

/// Smallest stride of a receive ring.
pub const MIN: usize = 1 << wqe::LOG_RQ_STRIDE.0;

/// What a receive queue is made with.
pub struct RecvConfig {
    pub max_wr: u32,
    pub max_sge: u32,
    /// Slot in the doorbell area.
    pub slot: usize,
    /// It is an SRQ.
    pub shared: bool,
    /// Who may post.
    pub sharing: Sharing,
}

/// A receive queue.
pub struct RecvQueue {
    area: Arc<Area>,
    config: RecvConfig,
    window: Window,
    producer: Lock<Producer>,
}

/// What the poster changes.
struct Producer {
    ring: Ring<MIN>,
    /// The producer index.
    index: u32,
}

const _: () = {
    assert!(offset_of!(RecvWqe, wr_id) % 8 == 0 && offset_of!(RecvWqe, num_sge) % 8 == 0);
    // All behind the number of SGEs is reserved.
    assert!(offset_of!(RecvWqe, num_sge) + 8 == size_of::<RecvWqe>());
};

impl RecvQueue {
    pub fn new(ring: Ring<MIN>, area: Arc<Area>, config: RecvConfig) -> Self {
        let window = match config.shared {
            true => Window::of_shared(config.max_wr.min(ring.size())),
            false => Window::new(ring.size(), config.max_wr),
        };
        let sharing = config.sharing;
        Self {
            area,
            config,
            window,
            producer: Lock::shared_by(sharing, Producer { ring, index: 0 }),
        }
    }

    /// Size of an entry, as a power of two.
    pub fn log_stride(&self) -> u8 {
        self.producer.lock().ring.log_stride()
    }

    #[cfg(test)]
    pub fn bytes(&self, index: u32, length: usize) -> Vec<u8> {
        self.producer.lock().ring.bytes(index, 0, length)
    }

    /// What is outstanding.
    #[inline(always)]
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Posts a list, if `may` still says so under the lock. On an error, the request that caused it: nothing was posted
    /// from there on, all before it was.
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
        let alive = self.area.alive();
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

    /// A full SRQ may have entries whose receives will never complete, because their queue pair is gone. The device has
    /// taken them, so their places are free.
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

    /// Moves an SRQ to the ring that `make` makes, for so many work requests, when `move_to` says so. Nothing is posted meanwhile.
    ///
    /// # Errors
    ///
    /// What either says, or that there are more entries than the new ring takes; then nothing has changed.
    pub fn resize(
        &self,
        make: impl FnOnce() -> Result<(Ring<MIN>, u32), Errno>,
        move_to: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut producer = self.producer.lock_long();
        let (ring, max_wr) = make()?;
        // The device goes on taking entries: those from here on are all that it may still read.
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

    /// Takes the oldest outstanding receive, to flush it in software. Under the lock of the CQ where it completes.
    pub fn flush_one(&self) -> Option<u64> {
        self.window.take()
    }

    /// Back to the beginning, when the queue pair is in RESET. Under the lock of the CQ where its receives complete.
    pub fn reset(&self) {
        let mut producer = self.producer.lock();
        producer.index = 0;
        self.window.reset();
        if self.area.alive() {
            self.area
                .store_release(doorbell::rq_producer(self.config.slot), 0);
        }
    }
}
