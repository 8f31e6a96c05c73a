// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs, or SRQs, that a CQ does not know yet. Their creation does not wait for the lock of
//! the CQ, because a poll in several calls may hold it: a poll of the creating thread itself, or of
//! a thread that waits for the creating thread. The CQ registers newcomers when it finds their
//! first completion.

use crate::ffi::lock::Lock;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Newcomers of one CQ. The lock in this structure is taken after the lock of the CQ.
pub struct Newcomers<T> {
    /// True if newcomers wait for their registration.
    any: AtomicBool,
    inner: Lock<Inner<T>>,
}

struct Inner<T> {
    /// Numbers of the objects that wait, and of those that the CQ knows.
    known: BTreeSet<u32>,
    waiting: Vec<Arc<T>>,
}

impl<T> Default for Newcomers<T> {
    fn default() -> Self {
        Self {
            any: AtomicBool::new(false),
            inner: Lock::new(Inner {
                known: BTreeSet::new(),
                waiting: Vec::new(),
            }),
        }
    }
}

impl<T> Newcomers<T> {
    /// Adds a newcomer. Returns false, with nothing changed, if another object still has its
    /// number.
    pub fn put(&self, number: u32, one: &Arc<T>) -> bool {
        let mut inner = self.inner.lock();
        let is_new = inner.known.insert(number);
        if is_new {
            inner.waiting.push(Arc::clone(one));
            self.any.store(true, Ordering::Release);
        }
        is_new
    }

    /// Removes and returns the newcomers that wait. The caller holds the lock of the CQ.
    pub fn take(&self) -> Vec<Arc<T>> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut inner = self.inner.lock();
        self.any.store(false, Ordering::Relaxed);
        core::mem::take(&mut inner.waiting)
    }

    /// Records that the CQ knows an object with this number. The caller holds the lock of the CQ.
    pub fn know(&self, number: u32) {
        self.inner.lock().known.insert(number);
    }

    /// Records that the CQ does not know an object with this number any more. The caller holds the
    /// lock of the CQ.
    pub fn forget(&self, number: u32) {
        self.inner.lock().known.remove(&number);
    }
}
