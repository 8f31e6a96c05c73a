// SPDX-License-Identifier: GPL-2.0

//! Memory whose address was given to the device.
//!
//! The device may read and write rings, tables, doorbell areas and pinned pages from the command
//! that names them until the device lets go of them or is silent. [`Lent`] is such memory. Its
//! address comes from [`Lent::lend`] only, and only while
//! [`CommandQueue::give`](crate::cmdq::CommandQueue::give) makes a command, which is executed next.
//! The memory is freed when it has been dropped *and* has come back, either by a [`ReleaseProof`]
//! from the device or because the device is silent for the rest of its life. While the driver
//! silences a dead device, dropping waits. If the device cannot be silenced, the memory is
//! abandoned: it stays allocated, or pinned, for ever.

use crate::{
    cmdq::{
        Lender,
        ReleaseProof, //
    },
    health::Health, //
};
use base::dma::Chunk;
use core::ops::Deref;
use kernel::sync::{
    atomic::{
        Atomic,
        Relaxed, //
    },
    Arc, //
};
use rdma::umem::Umem;

/// Memory that the driver can leave allocated for ever.
pub(crate) trait Abandon {
    /// Prevents dropping `self` from freeing the memory. Returns the size of the memory in bytes.
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

/// Memory that the device can give back.
pub(crate) trait Borrowed {
    /// Marks the memory as back with the driver, because the device has let go of it.
    fn returned(&self, proof: &ReleaseProof);
}

/// Memory that can be lent to the device. See the [module](self).
pub(crate) struct Lent<T: Abandon> {
    memory: T,
    health: Arc<Health>,
    away: Atomic<bool>,
}

/// Reference to memory that is lent to the device, from which its DMA address can be read.
pub(crate) struct Loan<'a, T>(&'a T);

impl<T> Deref for Loan<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

impl<T: Abandon> Lent<T> {
    /// Wraps memory whose address the device does not have yet.
    pub(crate) fn new(memory: T, health: &Arc<Health>) -> Self {
        Self {
            memory,
            health: health.clone(),
            away: Atomic::new(false),
        }
    }

    /// Lends the memory: from now on the device may use it. The caller executes a command with this
    /// address next, so that no failure in between keeps the memory with the device.
    pub(crate) fn lend(&self, _to: &Lender) -> Loan<'_, T> {
        self.away.store(true, Relaxed);
        Loan(&self.memory)
    }

    /// Returns the loan if the device already has the memory.
    pub(crate) fn loan(&self) -> Option<Loan<'_, T>> {
        self.away.load(Relaxed).then_some(Loan(&self.memory))
    }
}

impl<T: Abandon> Borrowed for Lent<T> {
    fn returned(&self, _proof: &ReleaseProof) {
        self.away.store(false, Relaxed);
    }
}

impl<T: Borrowed> Borrowed for Option<T> {
    fn returned(&self, proof: &ReleaseProof) {
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
            self.health.add_abandoned(self.memory.abandon());
        }
    }
}

/// Access to the DMA address of a chunk that is lent.
impl Loan<'_, Arc<Chunk>> {
    pub(crate) fn addr(&self) -> u64 {
        self.0.dma_addr()
    }
}
