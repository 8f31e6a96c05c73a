// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Protocols of ring entries, consumer indexes and contexts, as code that both sides run.
//!
//! The memory may be that of a machine that reorders loads and stores (arm64). Each function here
//! has the order that its protocol needs, and each side passes its own access to the memory
//! ([`Words`]), whose offsets count from the entry, the index or the context. Models run the same
//! code over memory that shows every reordering: `tools/abi/tests/loom.rs` and
//! `tools/nic/device/tests/loom_queues.rs`. `Documentation/ordering.md` lists all of them.

use super::cqe::phase;
use super::doorbell::Words;
use super::eqe;

/// Consumer of a ring: copies an entry if the device has written it. `unpack` returns the meaning of
/// the last word of the entry, at offset `tail`, or `None` if the device has not written the entry
/// in this pass over the ring. The device writes that word after all others, and the copy is made
/// after the word was loaded.
#[inline]
pub fn read_entry<W: Words + ?Sized, U, T>(
    entry: &W,
    tail: usize,
    unpack: impl FnOnce(u32) -> Option<U>,
    copy: impl FnOnce(U) -> T,
) -> Option<T> {
    unpack(entry.load_acquire(tail)).map(copy)
}

/// Driver: copies the event with the free-running index `consumer`, if the device has written it.
#[inline]
pub fn read_event<W: Words + ?Sized, T>(
    entry: &W,
    consumer: u32,
    log_size: u8,
    copy: impl FnOnce() -> T,
) -> Option<T> {
    let is_new = |tail: u32| (tail >> 31 != 0) == phase(consumer, log_size);
    let unpack = |tail| is_new(tail).then_some(());
    read_entry(entry, eqe::TAIL_OFFSET, unpack, |()| copy())
}

/// Driver: publishes the consumer index of an event queue, whose word is at offset 0, after it has
/// copied the last entry before that index.
///
/// The full fence comes before the driver handles the event and before it looks for another.
/// Therefore either the device sees the index, and raises the interrupt for its next entry, or the
/// driver sees that entry. The device can also merge an event into an entry that it still sees in
/// the ring, because the handler of that entry sees all completions of both.
#[inline]
pub fn consume_event<W: Words + ?Sized>(index: &W, consumer: u32) {
    index.store_release(0, consumer);
    index.fence();
}

/// Offset of the sequence counter of a context.
const SEQ: usize = 0;

/// Device: publishes a context. `seq` is its sequence counter, which is even before and after.
/// `write` stores all words of the context except the first, in any order.
#[inline]
pub fn write_context<W: Words + ?Sized>(context: &W, seq: &mut u32, write: impl FnOnce()) {
    context.store(SEQ, seq.wrapping_add(1));
    // A reader that sees a new word of the context must also see the odd counter.
    context.fence();
    write();
    *seq = seq.wrapping_add(2);
    context.store_release(SEQ, *seq);
}

/// Driver: copies a context, and returns the copy if the device did not write the context
/// meanwhile. `copy` also gets the sequence counter that the context had before.
#[inline]
pub fn read_context<W: Words + ?Sized, T>(context: &W, copy: impl FnOnce(u32) -> T) -> Option<T> {
    let before = context.load_acquire(SEQ);
    if before % 2 != 0 {
        return None;
    }
    let value = copy(before);
    // The counter is loaded again after all words of the context.
    context.read_fence();
    (context.load(SEQ) == before).then_some(value)
}
