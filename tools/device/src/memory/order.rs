// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The order in which a program that polls memory sees payload arrive.
//!
//! Programs poll the last bytes of a buffer for an RDMA WRITE, and take its other bytes as soon as the last ones have changed. So
//! [`copy`] stores everything but the last [`TAIL`] bytes, in any order, then those, upwards, each store with release order. And
//! what a copy stores becomes visible after all that the copy before it has stored. Of a message that is copied in parts
//! (packets, pages, slices) each part is copied like that, in ascending order: its last bytes then come last of all, also where
//! they lie in two parts. The specification promises less, and adapters do as much (device specification, section 6).
//!
//! The order is here, without a pointer, so that a model can run it over memory that shows every reordering
//! (`tests/loom.rs`). A memory has the accesses.

/// So many bytes at the end of a copy become visible after all others: a program polls one word.
pub const TAIL: usize = 8;

/// A source and a target of the same length in bytes. They may overlap.
pub trait Payload {
    /// What was stored before becomes visible before what is stored after.
    fn fence(&self);

    /// Loads the source's last `count` bytes, of which there are at most [`TAIL`], in the order of memory.
    fn last(&self, count: usize) -> [u8; TAIL];

    /// Copies the first `count` bytes, in any order. Where source and target overlap the target has what the source had before.
    fn bulk(&self, count: usize);

    /// Stores `N` bytes at the target's offset `at` with one store, which becomes visible after all that was stored before. `N` is a
    /// power of two that divides the target's address there.
    fn store<const N: usize>(&self, at: usize, bytes: [u8; N]);
}

/// Copies a payload of `length` bytes to a target whose address is `to`.
#[inline(always)]
pub fn copy(payload: &impl Payload, to: usize, length: usize) {
    if length == 0 {
        return;
    }
    // The end of the copy before this one may be what a program waits for.
    payload.fence();
    let count = length.min(TAIL);
    let mut at = length - count;
    // Loaded first: the bulk of the target may be where the end of the source is. And whoever fills the source upwards has
    // filled the rest of it before what is loaded here.
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
