// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs, or SRQs, that a CQ does not know yet: whoever creates one does not wait for the CQ's lock, which a poll in
//! several calls may hold, of this very thread or of one that waits for it. They are let in when their first completion is found.

use crate::ffi::lock::Lock;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;
use std::sync::Arc;

/// See above. Its lock comes behind the CQ's.
pub struct Newcomers<T> {
    /// Whether somebody waits.
    any: AtomicBool,
    inner: Lock<Inner<T>>,
}

struct Inner<T> {
    /// The numbers of those who wait, and of those whom the CQ knows.
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
    /// Has one wait; false, and nothing has changed, if its number is another's still.
    pub fn put(&self, number: u32, one: &Arc<T>) -> bool {
        let mut inner = self.inner.lock();
        let is_new = inner.known.insert(number);
        if is_new {
            inner.waiting.push(Arc::clone(one));
            self.any.store(true, Ordering::Release);
        }
        is_new
    }

    /// Those who wait. Under the CQ's lock.
    pub fn take(&self) -> Vec<Arc<T>> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut inner = self.inner.lock();
        self.any.store(false, Ordering::Relaxed);
        core::mem::take(&mut inner.waiting)
    }

    /// The CQ knows one with this number. Under its lock.
    pub fn know(&self, number: u32) {
        self.inner.lock().known.insert(number);
    }

    /// It does not any more. Under its lock.
    pub fn forget(&self, number: u32) {
        self.inner.lock().known.remove(&number);
    }
}
