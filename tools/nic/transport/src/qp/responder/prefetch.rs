// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prefetches of the responder's memory, for [`Qp::prefetch`](crate::Qp::prefetch).

use super::Responder;
use crate::prefetch;

impl Responder {
    /// Prefetches the cache lines of the responder.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch::line(self);
        prefetch::line(&self.error_state);
    }
}
