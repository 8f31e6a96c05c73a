// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is needed soon, for [`Qp::prefetch`](crate::Qp::prefetch).

use super::Requester;
use crate::prefetch;

impl Requester {
    /// Its cache lines.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch::line(self);
        prefetch::line(&self.una_psn);
        prefetch::line(&self.rewound);
    }

    /// The slot that is used next.
    #[inline]
    pub(crate) fn prefetch_work(&self) {
        if let Some(slot) = self.slots.upcoming() {
            prefetch::line(slot);
            prefetch::line(&slot.started);
        }
    }

    /// Its list of buffers.
    #[inline]
    pub(crate) fn prefetch_buffers(&self) {
        if let Some(slot) = self.slots.upcoming() {
            prefetch::line(&*slot.gather);
            prefetch::line(&slot.gather.alive);
        }
    }
}
