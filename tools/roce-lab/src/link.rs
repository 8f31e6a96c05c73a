// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A link between two ends on a virtual clock: it delays, loses, doubles and reorders by seed.

use super::rng::Rng;
use super::world::Side;
use std::collections::BTreeMap;
use verbena_roce::packet::Packet;

/// How packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As they are: super-packets by reference, as between queue pairs of one engine.
    Local,
    /// Split into single packets, by reference.
    Split,
    /// As frames.
    Wire,
}

/// What is under way.
#[derive(Clone, Debug)]
pub enum Carried {
    /// A packet.
    Packet(Packet),
    /// A frame.
    Frame(Vec<u8>),
}

impl Carried {
    /// Bytes on the link, about.
    fn len(&self) -> u64 {
        match self {
            // Preamble and gap, Ethernet, IPv4, UDP, BTH, ICRC, FCS.
            Carried::Packet(packet) => u64::from(packet.payload.len()) + 82,
            Carried::Frame(bytes) => bytes.len() as u64 + 24,
        }
    }
}

/// The link.
#[derive(Debug)]
pub struct Link {
    /// How packets travel.
    pub mode: Mode,
    /// Time from end to end in nanoseconds.
    pub delay_ns: u64,
    /// More, up to this, at random: reorders when it is more than the distance of packets.
    pub jitter_ns: u64,
    /// Bits per nanosecond in each direction; 0: any number.
    pub rate: u64,
    /// Packets lost, of 100.
    pub loss: u32,
    /// Packets that arrive twice, of 100.
    pub duplication: u32,
    /// Loses the next packets that this says are to be lost.
    pub drop_if: Option<fn(&Packet) -> bool>,
    /// Marks the packets (CE) that this says are to be marked; not those that travel as frames.
    pub mark_if: Option<fn(&Packet) -> bool>,
    /// Packets that went in, by side, when `record` is set.
    pub log: Vec<(Side, Packet)>,
    /// Keeps a log.
    pub record: bool,
    rng: Rng,
    number: u64,
    /// When the last bit that a side has sent is on the link.
    busy_until: [u64; 2],
    /// What is under way, by arrival.
    queue: BTreeMap<(u64, u64), (Side, Carried)>,
}

impl Link {
    /// A link without faults.
    pub fn new(mode: Mode, seed: u64) -> Self {
        Self {
            mode,
            delay_ns: 1_000,
            jitter_ns: 0,
            rate: 0,
            loss: 0,
            duplication: 0,
            drop_if: None,
            mark_if: None,
            log: Vec::new(),
            record: false,
            rng: Rng::new(seed),
            number: 0,
            busy_until: [0; 2],
            queue: BTreeMap::new(),
        }
    }

    /// Whether a packet is to be lost, before it becomes a frame.
    pub fn loses(&mut self, from: Side, packet: &Packet) -> bool {
        if self.record {
            self.log.push((from, packet.clone()));
        }
        self.drop_if.is_some_and(|drop| drop(packet)) || self.rng.chance(self.loss)
    }

    /// Whether a packet is to be marked.
    pub fn marks(&self, packet: &Packet) -> bool {
        self.mark_if.is_some_and(|mark| mark(packet))
    }

    /// Sends something from one side.
    pub fn push(&mut self, now: u64, from: Side, carried: Carried) {
        let copies = if self.rng.chance(self.duplication) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let begin = now.max(self.busy_until[from as usize]);
            let sent = begin + (carried.len() * 8).checked_div(self.rate).unwrap_or(0);
            self.busy_until[from as usize] = sent;
            let at = sent + self.delay_ns + self.rng.below(self.jitter_ns + 1);
            self.number += 1;
            self.queue
                .insert((at, self.number), (from.peer(), carried.clone()));
        }
    }

    /// When the next arrival is.
    pub fn next_arrival(&self) -> Option<u64> {
        self.queue.keys().next().map(|(at, _)| *at)
    }

    /// What arrives next, if that is not after `now`.
    pub fn pop(&mut self, now: u64) -> Option<(Side, Carried)> {
        let first = self.queue.first_entry().filter(|e| e.key().0 <= now)?;
        let (side, carried) = first.remove();
        Some((side, carried))
    }
}
