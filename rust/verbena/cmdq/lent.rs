// SPDX-License-Identifier: GPL-2.0

//! Memory that the device was told of.
//!
//! Rings, tables, doorbell areas and pinned pages are the device's to read and write from the
//! command that names them until the device says that it lets go, or is silent. [`Lent`] is such
//! memory: its address comes from [`Lent::lend`] only, and that only while
//! [`CommandQueue::give`](crate::cmdq::CommandQueue::give) makes a command, which is executed next.
//! It is freed when it is dropped *and* has
//! come back, by a [`LetGo`] from the device or because the device is silent for the rest of its
//! life. While a dead device is being silenced, dropping waits. If it cannot be silenced the memory
//! is abandoned: it stays allocated, or pinned, for ever.

use crate::{
    cmdq::{
        Lender,
        LetGo, //
    },
    health::Health, //
};
use core::ops::Deref;
use kernel::sync::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    Arc, //
};
use rdma::{
    base::dma::Chunk,
    umem::Umem, //
};

/// Memory that can be left allocated for ever.
pub(crate) trait Abandon {
    /// Sees to it that dropping `self` frees nothing. Returns how many bytes that are.
    fn abandon(&self) -> usize;
}

impl Abandon for Arc<Chunk> {
    fn abandon(&self) -> usize {
        Chunk::abandon(self);
        self.size()
    }
}

impl Abandon for Arc<Umem> {
    fn abandon(&self) -> usize {
        Umem::abandon(self);
        self.length()
    }
}

impl<T: Abandon> Abandon for Option<T> {
    fn abandon(&self) -> usize {
        self.as_ref().map_or(0, T::abandon)
    }
}

/// What a device can give back.
pub(crate) trait Borrowed {
    /// The device has let go of it.
    fn returned(&self, proof: &LetGo);
}

/// Memory that can be lent to the device. See the [module](self).
pub(crate) struct Lent<T: Abandon> {
    memory: T,
    health: Arc<Health>,
    away: Atomic<bool>,
}

/// Memory that is lent: what tells its address.
pub(crate) struct Loan<'a, T>(&'a T);

impl<T> Deref for Loan<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

impl<T: Abandon> Lent<T> {
    /// Memory that the device does not know yet.
    pub(crate) fn new(memory: T, health: &Arc<Health>) -> Self {
        Self {
            memory,
            health: health.clone(),
            away: Atomic::new(false),
        }
    }

    /// Lends it: from here on the device may use it. Only for a command that is executed next, so that
    /// nothing that fails before keeps the memory away.
    pub(crate) fn lend(&self, _to: &Lender) -> Loan<'_, T> {
        self.away.store(true, Relaxed);
        Loan(&self.memory)
    }

    /// What the device has already.
    pub(crate) fn loan(&self) -> Option<Loan<'_, T>> {
        self.away.load(Relaxed).then_some(Loan(&self.memory))
    }
}

impl<T: Abandon> Borrowed for Lent<T> {
    fn returned(&self, _proof: &LetGo) {
        self.away.store(false, Relaxed);
    }
}

impl<T: Borrowed> Borrowed for Option<T> {
    fn returned(&self, proof: &LetGo) {
        if let Some(lent) = self {
            lent.returned(proof);
        }
    }
}

impl<T: Abandon> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.memory
    }
}

impl<T: Abandon> Drop for Lent<T> {
    fn drop(&mut self) {
        if self.away.load(Relaxed) && !self.health.wait_silent() {
            self.health.abandoned(self.memory.abandon());
        }
    }
}

/// The DMA address of a chunk.
impl Loan<'_, Arc<Chunk>> {
    pub(crate) fn addr(&self) -> u64 {
        self.0.dma_addr()
    }
}
