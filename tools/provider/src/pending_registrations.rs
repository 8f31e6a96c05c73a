// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs, or SRQs, that a CQ does not know yet. Their creation does not wait for the lock of
//! the CQ, because a poll in several calls may hold it: a poll of the creating thread itself, or of
//! a thread that waits for the creating thread. The CQ registers the pending objects when it finds
//! their first completion.

use crate::ffi::lock::Lock;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Objects of one CQ whose registration is pending. The lock in this structure is taken after the lock of the CQ.
pub struct PendingRegistrations<T> {
    /// True if objects wait for their registration.
    any: AtomicBool,
    inner: Lock<PendingState<T>>,
}

struct PendingState<T> {
    /// Numbers of the objects that wait, and of those that the CQ knows.
    registered: BTreeSet<u32>,
    pending: Vec<Arc<T>>,
}

impl<T> Default for PendingRegistrations<T> {
    fn default() -> Self {
        Self {
            any: AtomicBool::new(false),
            inner: Lock::new(PendingState {
                registered: BTreeSet::new(),
                pending: Vec::new(),
            }),
        }
    }
}

impl<T> PendingRegistrations<T> {
    /// Adds an object that waits for its registration. Returns false, with nothing changed, if
    /// another object still has its number.
    pub fn add(&self, number: u32, object: &Arc<T>) -> bool {
        let mut inner = self.inner.lock();
        let is_new = inner.registered.insert(number);
        if is_new {
            inner.pending.push(Arc::clone(object));
            self.any.store(true, Ordering::Release);
        }
        is_new
    }

    /// Removes and returns the objects that wait. The caller holds the lock of the CQ.
    pub fn take(&self) -> Vec<Arc<T>> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut inner = self.inner.lock();
        self.any.store(false, Ordering::Relaxed);
        core::mem::take(&mut inner.pending)
    }

    /// Records that the CQ knows an object with this number. The caller holds the lock of the CQ.
    pub fn mark_registered(&self, number: u32) {
        self.inner.lock().registered.insert(number);
    }

    /// Records that the CQ does not know an object with this number any more. The caller holds the
    /// lock of the CQ.
    pub fn unregister(&self, number: u32) {
        self.inner.lock().registered.remove(&number);
    }
}
