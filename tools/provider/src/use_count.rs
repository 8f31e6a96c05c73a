// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts the objects on a domain where the kernel does not: parent domains and thread domains
//! exist in the process only. The objects that were created on them must be counted here, so that
//! the domain is not freed before them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// Number of objects on a domain.
#[derive(Default)]
pub struct UseCount(Arc<AtomicUsize>);

impl UseCount {
    /// Counts an object on the domain until the result is dropped.
    pub fn begin(&self) -> UseGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        UseGuard(self.0.clone())
    }

    /// True if there are objects on the domain.
    pub fn is_in_use(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }
}

/// One object that is counted on a domain: see [`Users::begin`].
pub struct UseGuard(Arc<AtomicUsize>);

impl Drop for UseGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}
