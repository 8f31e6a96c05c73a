// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A link between two ends on a virtual clock. The link delays, loses, doubles and reorders by
//! seed.

use super::mock_adapter::PairSide;
use super::rng::Rng;
use std::collections::BTreeMap;
use verbena_transport::packet::Packet;

/// The form in which packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkMode {
    /// Super-packets by reference, as between queue pairs of one engine.
    Local,
    /// Single packets by reference.
    Split,
    /// Frames with bytes of their own.
    Wire,
}

/// A packet or frame on its way.
#[derive(Clone, Debug)]
pub enum LinkItem {
    /// A packet by reference.
    Packet(Packet),
    /// The bytes of a frame.
    Frame(Vec<u8>),
}

impl LinkItem {
    /// Returns the approximate number of bytes on the link.
    fn len(&self) -> u64 {
        match self {
            // Preamble and gap, Ethernet, IPv4, UDP, BTH, ICRC, FCS.
            LinkItem::Packet(packet) => u64::from(packet.payload.len()) + 82,
            LinkItem::Frame(bytes) => bytes.len() as u64 + 24,
        }
    }
}

/// A link between two ends.
#[derive(Debug)]
pub struct LinkModel {
    /// Form in which packets travel.
    pub mode: LinkMode,
    /// Time from end to end in nanoseconds.
    pub delay_ns: u64,
    /// Largest additional random delay in nanoseconds, which reorders packets if it exceeds their
    /// distance.
    pub jitter_ns: u64,
    /// Bits per nanosecond in each direction; 0 if there is no limit.
    pub bits_per_ns: u64,
    /// Percentage of packets that are lost.
    pub loss: u32,
    /// Percentage of packets that arrive twice.
    pub duplication: u32,
    /// Predicate that selects packets to lose.
    pub drop_if: Option<fn(&Packet) -> bool>,
    /// Predicate that selects packets to mark (CE), except those that travel as frames.
    pub mark_if: Option<fn(&Packet) -> bool>,
    /// Packets that went in, by side, while `record` is set.
    pub log: Vec<(PairSide, Packet)>,
    /// True if the link keeps the log.
    pub record: bool,
    rng: Rng,
    number: u64,
    /// Time in ns at which the last bit of each side is on the link.
    busy_until_ns: [u64; 2],
    /// Packets and frames on their way, by arrival.
    queue: BTreeMap<(u64, u64), (PairSide, LinkItem)>,
}

impl LinkModel {
    /// Returns a link without faults.
    pub fn new(mode: LinkMode, seed: u64) -> Self {
        Self {
            mode,
            delay_ns: 1_000,
            jitter_ns: 0,
            bits_per_ns: 0,
            loss: 0,
            duplication: 0,
            drop_if: None,
            mark_if: None,
            log: Vec::new(),
            record: false,
            rng: Rng::new(seed),
            number: 0,
            busy_until_ns: [0; 2],
            queue: BTreeMap::new(),
        }
    }

    /// True if a packet is to be lost, before it becomes a frame.
    pub fn is_lost(&mut self, from: PairSide, packet: &Packet) -> bool {
        if self.record {
            self.log.push((from, packet.clone()));
        }
        self.drop_if.is_some_and(|drop| drop(packet)) || self.rng.chance(self.loss)
    }

    /// True if a packet is to be marked.
    pub fn is_marked(&self, packet: &Packet) -> bool {
        self.mark_if.is_some_and(|mark| mark(packet))
    }

    /// Sends a packet or frame from one side.
    pub fn push(&mut self, now: u64, from: PairSide, carried: LinkItem) {
        let copies = if self.rng.chance(self.duplication) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let begin = now.max(self.busy_until_ns[from as usize]);
            let sent = begin
                + (carried.len() * 8)
                    .checked_div(self.bits_per_ns)
                    .unwrap_or(0);
            self.busy_until_ns[from as usize] = sent;
            let at = sent + self.delay_ns + self.rng.below(self.jitter_ns + 1);
            self.number += 1;
            self.queue
                .insert((at, self.number), (from.peer(), carried.clone()));
        }
    }

    /// Returns the time of the next arrival in nanoseconds.
    pub fn next_arrival_ns(&self) -> Option<u64> {
        self.queue.keys().next().map(|(at, _)| *at)
    }

    /// Removes and returns the next arrival, if it is not after `now`.
    pub fn pop(&mut self, now: u64) -> Option<(PairSide, LinkItem)> {
        let first = self.queue.first_entry().filter(|e| e.key().0 <= now)?;
        let (side, carried) = first.remove();
        Some((side, carried))
    }
}
