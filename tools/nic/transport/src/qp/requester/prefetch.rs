// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prefetches of the requester's memory, for [`Qp::prefetch`](crate::Qp::prefetch).

use super::Requester;
use crate::prefetch;

impl Requester {
    /// Prefetches the cache lines of the requester.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch::line(self);
        prefetch::line(&self.una_psn);
        prefetch::line(&self.rewound);
    }

    /// Prefetches the slot that is used next.
    #[inline]
    pub(crate) fn prefetch_work(&self) {
        if let Some(slot) = self.slots.upcoming() {
            prefetch::line(slot);
            prefetch::line(&slot.started);
        }
    }

    /// Prefetches the list of buffers of that slot.
    #[inline]
    pub(crate) fn prefetch_buffers(&self) {
        if let Some(slot) = self.slots.upcoming() {
            prefetch::line(&*slot.gather);
            prefetch::line(&slot.gather.alive);
        }
    }
}
