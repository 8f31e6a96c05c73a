// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Whose turn it is, and whose time has come: a fair queue of what is ready, and a wheel of timers.
//!
//! Both are indexed by a small number that the owner gives each queue pair (its *slot*). They keep an entry of a few bytes
//! for each slot up to the highest that was ever used, so memory is allocated when a queue pair is new and never later, and
//! every operation takes constant time however many queue pairs there are.
//!
//! # Fairness
//!
//! [`Ready`] hands out slots in turn, group by group, so a group with many slots has as many turns as one with few. In its
//! turn a queue pair gets a [`Budget`](crate::Budget), of which the bytes bound what a large message can hold up: the next
//! turn is the next one's. With n queue pairs ready in one group, each has its turn again after n - 1 others, so a message
//! of one packet waits for at most `(n - 1) * TURN_BYTES` bytes, even if all the others send messages of 1 GiB. A
//! queue pair that has more to do after its turn goes to the end of the queue.
//!
//! # Timers
//!
//! [`Wheel`] keeps one deadline for each slot. A deadline is never early and late by less than [`wheel::GRANULARITY_NS`]; any
//! time that fits 64 bits of nanoseconds can be asked for.

mod ready;
pub mod wheel;

pub use ready::Ready;
pub use wheel::Wheel;

/// No slot.
const NONE: u32 = u32::MAX;

/// Packets (a super-packet is one) that a queue pair sends in its turn.
pub const TURN_PACKETS: u32 = 16;
/// Payload bytes after which a turn ends: what one message may hold up all others.
pub const TURN_BYTES: u64 = 256 << 10;

/// What a queue pair may do in its turn.
pub const fn turn() -> crate::Budget {
    crate::Budget::new(TURN_PACKETS, TURN_BYTES)
}

#[cfg(test)]
mod tests;
