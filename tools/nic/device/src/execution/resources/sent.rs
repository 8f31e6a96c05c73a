// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets that queue pairs have sent and that are not delivered yet.

use crate::objects::port::Outgoing;
use std::collections::VecDeque;

/// The packets in the order in which they were sent. Each leaves the queue once, for its delivery
/// or because its receiver has begun another life.
#[derive(Debug, Default)]
pub struct SentPackets(VecDeque<Outgoing>);

impl SentPackets {
    /// Adds a packet.
    #[inline]
    pub fn push(&mut self, out: Outgoing) {
        self.0.push_back(out);
    }

    /// Takes the first packet.
    #[inline]
    pub fn pop(&mut self) -> Option<Outgoing> {
        self.0.pop_front()
    }

    /// Takes the first packet if it is for this queue pair of the device.
    #[inline]
    pub fn pop_local_to(&mut self, qpn: u32) -> Option<Outgoing> {
        let first = self.0.front()?;
        if first.local && first.packet.dst_qpn == qpn {
            return self.0.pop_front();
        }
        None
    }

    /// Drops the packets to a queue pair of the device.
    pub fn forget_local_to(&mut self, qpn: u32) {
        self.0
            .retain(|out| !(out.local && out.packet.dst_qpn == qpn));
    }

    /// Returns the number of packets.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is no packet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the packets, the first one first.
    pub fn iter(&self) -> impl Iterator<Item = &Outgoing> {
        self.0.iter()
    }
}
