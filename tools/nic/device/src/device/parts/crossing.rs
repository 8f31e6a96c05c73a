// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets that wait for the daemon's decision whether their destination is in this process.

use crate::objects::port::Outgoing;
use std::collections::VecDeque;

/// Payload length from which on no further packet is joined to a super-packet.
const JOINED_BYTES: u32 = 256 << 10;

/// The packets in the order in which they were sent. Consecutive packets of a message with one MTU
/// are joined.
#[derive(Debug, Default)]
pub(crate) struct CrossingPackets(VecDeque<Outgoing>);

impl CrossingPackets {
    /// Adds a packet.
    pub(crate) fn push(&mut self, out: Outgoing) {
        if let Some(last) = self.0.back_mut() {
            let fits = last.packet.payload.len() < JOINED_BYTES;
            if fits && last.mtu == out.mtu && last.packet.join(&out.packet, out.mtu) {
                return;
            }
        }
        self.0.push_back(out);
    }

    /// Takes the first packet.
    pub(crate) fn pop(&mut self) -> Option<Outgoing> {
        self.0.pop_front()
    }

    /// Returns the packets, the first one first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Outgoing> {
        self.0.iter()
    }
}
