// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The order in which payload becomes visible to a program that polls memory.
//!
//! A program may poll the last bytes of a buffer for an RDMA WRITE, and use the other bytes as soon
//! as the last ones have changed. Therefore [`copy`] stores all bytes except the last [`TAIL`] ones
//! in any order, and then the last ones in ascending order, each store with release order. The
//! stores of a copy become visible after all stores of the previous copy. A message may be copied
//! in parts (packets, pages, slices). Each part is copied in this way and the parts in ascending
//! order, so the last bytes of the message become visible last, even if they lie in two parts. The
//! specification promises less, but adapters do the same (device specification, section 6).
//!
//! This module has the order without pointers, so that a model can run it over memory that shows
//! every reordering (`tests/loom.rs`). The implementations of [`Payload`] have the accesses.

/// Number of bytes at the end of a copy that become visible after all others: a program polls one
/// word.
pub const TAIL: usize = 8;

/// A source and a target of the same length in bytes. The two may overlap.
pub trait Payload {
    /// Makes earlier stores visible before later stores.
    fn fence(&self);

    /// Loads the last `count` bytes of the source, in memory order. `count` is at most [`TAIL`].
    fn last(&self, count: usize) -> [u8; TAIL];

    /// Copies the first `count` bytes, in any order. If source and target overlap, the target gets
    /// the bytes that the source had before the copy.
    fn bulk(&self, count: usize);

    /// Stores `N` bytes at offset `at` of the target with one store, which becomes visible after
    /// all earlier stores. `N` is a power of two that divides the target address of the store.
    fn store<const N: usize>(&self, at: usize, bytes: [u8; N]);
}

/// Copies a payload of `length` bytes to a target whose address is `to`.
#[inline(always)]
pub fn copy(payload: &impl Payload, to: usize, length: usize) {
    if length == 0 {
        return;
    }
    // A program may wait for the end of the previous copy.
    payload.fence();
    let count = length.min(TAIL);
    let mut at = length - count;
    // The last bytes are loaded before the bulk copy, because the bulk of the target may overlap
    // the end of the source. Also, a program that fills the source in ascending order has filled
    // the rest of the source before the bytes that are loaded here.
    let last = payload.last(count);
    payload.bulk(at);
    if count == TAIL && (to.wrapping_add(at)) % TAIL == 0 {
        payload.store::<TAIL>(at, last);
        return;
    }
    let mut rest = &last[..count];
    loop {
        let address = to.wrapping_add(at);
        let stored = match rest {
            [a, b, c, d, ..] if address % 4 == 0 => {
                payload.store(at, [*a, *b, *c, *d]);
                4
            }
            [a, b, ..] if address % 2 == 0 => {
                payload.store(at, [*a, *b]);
                2
            }
            [a, ..] => {
                payload.store(at, [*a]);
                1
            }
            [] => return,
        };
        rest = rest.get(stored..).unwrap_or(&[]);
        at += stored;
    }
}
