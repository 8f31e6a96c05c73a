// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The fault laboratory of a device: its rules, and the frames that they keep back. A device without rules has none.
//!
//! A rule decides what comes in: it never changes the state of a queue pair (`device/laboratory.rs` has the hooks).

use crate::objects::qp::Env;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use verbena_faults::{Direction, Effect, Party, Passing, Table};
use verbena_roce::host::WcStatus;
use verbena_roce::Packet;

/// The most frames that are kept back; more are lost.
const MAX_HELD: usize = 4096;
/// A frame that is to come behind others comes after so long if there are none.
const PATIENCE: u64 = 10_000_000;

/// A frame that comes later.
#[derive(Clone, Debug)]
pub struct Held {
    /// Its way, as the queue pair sees it at which it was kept back.
    pub way: Direction,
    /// That queue pair.
    pub qpn: u32,
    /// It is for the device itself.
    pub local: bool,
    /// Its bytes.
    pub frame: Rc<Vec<u8>>,
    /// What a rule had happen with it.
    pub note: Option<String>,
    /// It comes behind so many packets of the same queue pair and way.
    behind: u32,
}

impl Held {
    /// A frame.
    pub fn new(way: Direction, qpn: u32, local: bool, frame: Rc<Vec<u8>>) -> Self {
        Self {
            way,
            qpn,
            local,
            frame,
            note: None,
            behind: 0,
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Lab {
    /// The rules.
    pub table: Table,
    /// By when they come, and in order.
    held: BTreeMap<(u64, u64), Held>,
    /// Number of the next of them.
    next: u64,
    /// PSNs that rules have refused, by the queue pairs that would have received them: what comes behind is not for them, until
    /// the requester has begun again there.
    refused: HashMap<u32, u32>,
}

/// What a rule is told of a queue pair.
pub fn party(env: &Env) -> Party {
    Party {
        qpn: env.qpn(),
        created: env.owner,
        peer: env.attr.dest_qpn.get(),
    }
}

/// What a rule is told of a packet at a queue pair.
pub fn passing(env: &Env, way: Direction, packet: &Packet) -> Passing {
    // A response has the PSN of its request.
    let is_own = (way == Direction::Out) == packet.kind.is_request();
    let first_psn = if is_own {
        env.attr.sq_psn
    } else {
        env.attr.rq_psn
    };
    Passing {
        way,
        party: party(env),
        opcode: packet.opcode(),
        psn: packet.psn,
        first_psn: first_psn.get(),
        first: packet.first,
    }
}

impl Lab {
    /// Whether there is nothing that it could do any more.
    pub fn is_idle(&self) -> bool {
        self.table.is_empty() && self.held.is_empty()
    }

    /// The device was reset: nothing is under way.
    pub fn reset(&mut self) {
        self.table.reset();
        self.held.clear();
        self.refused.clear();
    }

    /// A queue pair begins with a send: how that is to fail, if it is.
    #[cold]
    pub fn send(&mut self, now: u64, env: &Env, opcode: u8) -> Option<WcStatus> {
        match self.table.send(now, &party(env), opcode)? {
            Effect::Complete(status) => Some(status),
            _ => None,
        }
    }

    /// Keeps a frame back for so long.
    pub fn delay(&mut self, now: u64, ns: u64, held: Held) {
        if self.held.len() < MAX_HELD {
            self.held.insert((now.saturating_add(ns), self.next), held);
            self.next += 1;
        }
    }

    /// Keeps a frame back until so many others have passed.
    pub fn put_behind(&mut self, now: u64, packets: u32, held: Held) {
        let behind = packets;
        self.delay(now, PATIENCE, Held { behind, ..held });
    }

    /// A packet has passed. What was behind it and comes next now is due at once.
    pub fn passed(&mut self, now: u64, way: Direction, qpn: u32) {
        let mut due = Vec::new();
        for (at, held) in &mut self.held {
            if held.behind > 0 && (held.way, held.qpn) == (way, qpn) {
                held.behind -= 1;
                if held.behind == 0 {
                    due.push(*at);
                }
            }
        }
        for at in due {
            if let Some(held) = self.held.remove(&at) {
                self.held.insert((now, at.1), held);
            }
        }
    }

    /// The next frame that is due.
    pub fn due(&mut self, now: u64) -> Option<Held> {
        let first = self.held.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// When there is something to do next.
    pub fn next_due(&self) -> Option<u64> {
        let held = self.held.first_key_value().map(|((at, _), _)| *at);
        [held, self.table.next_due()].into_iter().flatten().min()
    }

    /// A request was refused in the name of a queue pair.
    pub fn refuse(&mut self, qpn: u32, psn: u32) {
        self.refused.insert(qpn, psn);
    }

    /// Whether a request comes behind one that was refused, at a queue pair that expects this PSN.
    pub fn ignores(&mut self, qpn: u32, psn: u32, expected: u32) -> bool {
        let Some(refused) = self.refused.get(&qpn).copied() else {
            return false;
        };
        let is_behind = refused == expected && refused != psn;
        if !is_behind {
            self.refused.remove(&qpn);
        }
        is_behind
    }
}
