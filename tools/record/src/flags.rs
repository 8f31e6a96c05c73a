// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Flags of packets and completions in entries.

/// A flag of a packet: it begins a message.
pub const FIRST: u8 = 1;
/// A flag of a packet: it ends a message.
pub const LAST: u8 = 2;
/// A flag of a packet that passed: it was lost by `verbena-nic --drop`.
pub const LOST: u8 = 4;
/// A flag of a packet that passed: at the lot of `verbena-nic --drop`, which comes behind the rules.
pub const LOT: u8 = 8;
/// A flag of a completion: of a receive.
pub const RECV: u8 = 1;
/// A flag of a completion: it is in the CQ, which had room for it.
pub const WRITTEN: u8 = 2;
