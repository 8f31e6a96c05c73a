// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory that will be needed soon is fetched while something else is done.
//!
//! With thousands of queue pairs nothing of the next one is in a near cache: each of its cache lines would be waited for,
//! one after the other. A NIC knows whose turns come ([`Ready::ahead`](crate::sched::Ready::ahead)), so it can say so a few
//! turns before. These are hints: they change nothing but the time, and without the feature `std` they are nothing.

/// Has the cache line fetched in which a value begins.
#[inline(always)]
pub fn line<T>(value: &T) {
    #[cfg(feature = "std")]
    prefetch_index::prefetch_index(core::slice::from_ref(value), 0);
    #[cfg(not(feature = "std"))]
    let _ = value;
}

/// The same for an element of a slice, if it is there.
#[inline(always)]
pub fn element<T>(slice: &[T], index: usize) {
    if let Some(value) = slice.get(index) {
        line(value);
    }
}
