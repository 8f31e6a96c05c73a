// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Base transport header.

use crate::packet::Packet;

/// The opcode of a packet.
pub fn opcode_of(_packet: &Packet) -> u8 {
    0
}
