// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts what stands on a domain, where the kernel does not: parent domains and thread domains exist in the process
//! only, so what was created on them must be counted here for their end to be refused.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// The count that a domain keeps.
#[derive(Default)]
pub struct Users(Arc<AtomicUsize>);

impl Users {
    /// Something stands on the domain until the result is dropped.
    pub fn begin(&self) -> Use {
        self.0.fetch_add(1, Ordering::Relaxed);
        Use(self.0.clone())
    }

    /// Whether anything does.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }
}

/// See [`Users::begin`].
pub struct Use(Arc<AtomicUsize>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}
