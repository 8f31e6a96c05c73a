// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prefetches memory that will be needed soon, while the program does other work.
//!
//! With thousands of queue pairs, the state of the next queue pair is in no near cache: the program
//! would wait for each of its cache lines, one after the other. A NIC knows the next turns
//! ([`ReadyQueue::ahead`](crate::sched::ReadyQueue::ahead)), so it can prefetch a few turns before.
//! Prefetches are hints that change nothing but the time, and without the feature `std` they do
//! nothing.

/// Prefetches the first cache line of a value.
#[inline(always)]
pub fn line<T>(value: &T) {
    #[cfg(feature = "std")]
    prefetch_index::prefetch_index(core::slice::from_ref(value), 0);
    #[cfg(not(feature = "std"))]
    let _ = value;
}

/// Prefetches the first cache line of an element of a slice, if the index is in range.
#[inline(always)]
pub fn element<T>(slice: &[T], index: usize) {
    if let Some(value) = slice.get(index) {
        line(value);
    }
}
