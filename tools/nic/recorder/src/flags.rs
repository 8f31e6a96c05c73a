// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Flags of packets and completions in entries.

/// Flag of a packet that begins a message.
pub const FIRST: u8 = 1;
/// Flag of a packet that ends a message.
pub const LAST: u8 = 2;
/// Flag of a passed packet that `verbena-nic --drop` dropped.
pub const LOST: u8 = 4;
/// Flag of a packet that passed the random drop of `verbena-nic --drop`, which comes after the
/// rules.
pub const RANDOM_DROP: u8 = 8;
/// Flag of the completion of a receive.
pub const RECV: u8 = 1;
/// Flag of a completion for which the CQ had room, so that it was written there.
pub const WRITTEN: u8 = 2;
