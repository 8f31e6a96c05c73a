// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counts of the situations that the simulation has met. They show how much a run of many seeds has
//! covered.

use super::work::PlannedFault;
use std::collections::BTreeMap;
use verbena_transport::host::{EventType, WcOpcode, WcStatus, WqeOpcode};

/// The topics of the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Topic {
    /// Completions: opcode and status.
    Completion = 0,
    /// Sends: operation and status.
    Send = 1,
    /// Receives: fault and status.
    Receive = 2,
    /// Sends: fault and status.
    Fault = 3,
    /// Events: event type.
    Event = 4,
    /// Packets: BTH opcode.
    Packet = 5,
    /// Acknowledgements: byte of the AETH.
    Aeth = 6,
    /// Effects of the link on packets.
    Link = 7,
    /// Connections: service and path MTU over 256.
    Connection = 8,
    /// Seeds: scenario.
    Scenario = 9,
    /// Actions of the driver.
    Turmoil = 10,
    /// Counters of queue pairs that were not zero.
    Counter = 11,
}

impl Topic {
    const ALL: [Topic; 12] = [
        Topic::Completion,
        Topic::Send,
        Topic::Receive,
        Topic::Fault,
        Topic::Event,
        Topic::Packet,
        Topic::Aeth,
        Topic::Link,
        Topic::Connection,
        Topic::Scenario,
        Topic::Turmoil,
        Topic::Counter,
    ];
}

/// Names of the effects of a link.
pub const LINK_EFFECTS: [&str; 9] = [
    "delivered",
    "lost",
    "doubled",
    "corrupted",
    "corruption that ICRC does not cover",
    "cut",
    "forged",
    "payload died",
    "marked",
];

/// Names of the actions of drivers.
pub const DRIVER_ACTIONS: [&str; 12] = [
    "SQD",
    "SQD to RTS",
    "ERR",
    "RESET and a new connection",
    "CQ died",
    "SRQ died",
    "memory gone",
    "link cut",
    "machine frozen",
    "SQE to RTS",
    "RESET",
    "packet of an earlier life",
];

/// The counts of all topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<[u8; 3], u64>,
    /// Virtual time in nanoseconds.
    pub time_ns: u64,
}

impl Coverage {
    /// Counts one occurrence.
    pub fn count(&mut self, topic: Topic, a: u8, b: u8) {
        self.add(topic, a, b, 1);
    }

    /// Counts several occurrences.
    pub fn add(&mut self, topic: Topic, a: u8, b: u8, count: u64) {
        *self.counts.entry([topic as u8, a, b]).or_default() += count;
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &Coverage) {
        for (key, count) in &other.counts {
            *self.counts.entry(*key).or_default() += count;
        }
        self.time_ns = self.time_ns.saturating_add(other.time_ns);
    }

    /// Returns the count of one key.
    pub fn of(&self, topic: Topic, a: u8, b: u8) -> u64 {
        self.counts
            .get(&[topic as u8, a, b])
            .copied()
            .unwrap_or_default()
    }

    /// True if a topic has a count with `a`.
    pub fn has(&self, topic: Topic, a: u8) -> bool {
        let from = [topic as u8, a, 0];
        self.counts
            .range(from..=[topic as u8, a, 255])
            .next()
            .is_some()
    }

    /// Returns keys and counts, to be stored.
    pub fn raw(&self) -> impl Iterator<Item = ([u8; 3], u64)> + '_ {
        self.counts.iter().map(|(key, count)| (*key, *count))
    }

    /// Adds a stored count.
    pub fn add_raw(&mut self, key: [u8; 3], count: u64) {
        *self.counts.entry(key).or_default() += count;
    }

    /// Returns a line for each count.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.counts
            .iter()
            .map(|(key, count)| format!("{count:>14}  {}", name(*key)))
    }
}

fn name([topic, a, b]: [u8; 3]) -> String {
    let Some(topic) = Topic::ALL.get(usize::from(topic)) else {
        return String::new();
    };
    let status = |raw| WcStatus::from_raw(raw).map_or("?", |s: WcStatus| s.name());
    let fault = |raw| {
        PlannedFault::ALL
            .get(usize::from(raw))
            .copied()
            .unwrap_or_default()
    };
    match topic {
        Topic::Completion => {
            let opcode = WcOpcode::from_raw(a).map_or("?", |o| o.name());
            format!("completion {opcode} {}", status(b))
        }
        Topic::Send => {
            let opcode = WqeOpcode::from_raw(a).map_or("?", |o| o.name());
            format!("send {opcode} {}", status(b))
        }
        Topic::Receive => format!("receive with {:?} {}", fault(a), status(b)),
        Topic::Fault => format!("send with {:?} {}", fault(a), status(b)),
        Topic::Event => format!("event {}", EventType::from_raw(a).map_or("?", |e| e.name())),
        Topic::Packet => format!("packet with opcode {a:#04x}"),
        Topic::Aeth => format!("AETH with syndrome {a:#04x}"),
        Topic::Link => format!(
            "packets {}",
            LINK_EFFECTS.get(usize::from(a)).unwrap_or(&"?")
        ),
        Topic::Connection => format!("connection {} with MTU {}", service(a), u32::from(b) << 8),
        Topic::Scenario => format!("seeds {}", SCENARIOS.get(usize::from(a)).unwrap_or(&"?")),
        Topic::Turmoil => format!(
            "driver: {}",
            DRIVER_ACTIONS.get(usize::from(a)).unwrap_or(&"?")
        ),
        Topic::Counter => {
            let names = verbena_transport::Counters::default();
            let name = names
                .each()
                .nth(usize::from(a))
                .map_or("?", |(name, _)| name);
            format!("counter {name}")
        }
    }
}

/// Names of the scenarios.
pub const SCENARIOS: [&str; 5] = ["fair", "weather", "mistakes", "turmoil", "hostile"];

fn service(raw: u8) -> &'static str {
    match raw {
        0 => "RC",
        1 => "UC",
        _ => "UD",
    }
}
