// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is needed soon, for [`Qp::prefetch`](crate::Qp::prefetch).

use super::Responder;
use crate::prefetch;

impl Responder {
    /// Its cache lines.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch::line(self);
        prefetch::line(&self.end);
    }
}
