// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Scheduling of queue pairs: a fair queue of ready queue pairs, and a timer wheel of deadlines.
//!
//! Both are indexed by a small number that the owner gives each queue pair (its *slot*). They keep
//! an entry of a few bytes for each slot up to the highest that was ever used. So they allocate
//! memory only for a new queue pair, and every operation takes constant time for any number of
//! queue pairs.
//!
//! # Fairness
//!
//! [`ReadyQueue`] returns slots in turn, group by group, so a group with many slots has as many turns as
//! a group with few. In its turn a queue pair gets a [`Budget`](crate::Budget), whose bytes limit
//! the time for which a large message delays other queue pairs. With n queue pairs ready in one
//! group, each has its next turn after n - 1 others, so a message of one packet waits for at most
//! `(n - 1) * TURN_BYTES` bytes, even if all other queue pairs send messages of 1 GiB. A queue pair
//! that has more to do after its turn goes to the end of the queue.
//!
//! # Timers
//!
//! [`TimerWheel`] keeps one deadline for each slot. A deadline never expires early, and it expires late
//! by less than [`timer_wheel::GRANULARITY_NS`]. A deadline may be any time that fits 64 bits of
//! nanoseconds.

mod ready_queue;
pub mod timer_wheel;

pub use ready_queue::ReadyQueue;
pub use timer_wheel::TimerWheel;

/// Number that stands for no slot or group.
const NONE: u32 = u32::MAX;

/// Number of packets that a queue pair sends in its turn; a super-packet counts as one.
pub const TURN_PACKETS: u32 = 16;
/// Number of payload bytes after which a turn ends, so that one message delays others no longer.
pub const TURN_BYTES: u64 = 256 << 10;

/// Returns the budget of a queue pair for one turn.
pub const fn turn() -> crate::Budget {
    crate::Budget::new(TURN_PACKETS, TURN_BYTES)
}

#[cfg(test)]
mod tests;
