// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The fault laboratory of a device: its rules, and the frames that they keep back. A device without rules has none.
//!
//! A rule decides what comes in: it never changes the state of a queue pair (`device/laboratory.rs` has the hooks).

use crate::objects::qp::Env;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{Direction, Effect, Party, Passing, Sequence, Table};
use verbena_roce::host::WcStatus;
use verbena_roce::packet::Kind;
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
    /// Those that are due go on just now.
    releasing: bool,
    /// PSNs that rules have refused, by the queue pairs that would have received them: what comes behind is not for them, until
    /// the requester has begun again there.
    refused: HashMap<u32, u32>,
    /// The port is down.
    cut: Option<Stall>,
    /// The device does nothing.
    rest: Option<Stall>,
    /// Queue pairs that do nothing, by number; each with what no other has, or ever had.
    stalls: HashMap<u32, (u64, Stall)>,
}

/// Something does nothing for a while.
#[derive(Clone, Copy, Debug)]
struct Stall {
    until: u64,
    /// The rule by which it is so.
    rule: u64,
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
        sequence: match packet.kind {
            Kind::Ack(_) | Kind::Cnp => None,
            _ if packet.kind.is_request() => Some(Sequence::Requests),
            _ => Some(Sequence::Responses),
        },
        first: packet.first,
        last: packet.last,
        psns: match &packet.kind {
            // In a frame it is one packet.
            Kind::ReadRequest(reth) => reth.length.div_ceil(env.path_mtu_bytes()).max(1),
            _ => packet.psns,
        },
        mtu: env.path_mtu_bytes(),
        bytes: packet.payload.len(),
    }
}

impl Lab {
    /// Whether there is nothing that it could do any more.
    pub fn is_idle(&self) -> bool {
        self.table.is_empty()
            && self.held.is_empty()
            && self.rest.is_none()
            && self.stalls.is_empty()
    }

    /// The device was reset: nothing is under way.
    pub fn reset(&mut self) {
        self.table.reset();
        self.held.clear();
        self.refused.clear();
        self.cut = None;
        self.rest = None;
        self.stalls.clear();
    }

    /// A queue pair begins anew, or is no more: its PSNs mean others then.
    pub fn forget_qp(&mut self, qpn: u32) {
        self.table.begin_anew(qpn);
        self.refused.remove(&qpn);
    }

    /// A queue pair begins with a send: how that is to fail, if it is.
    #[cold]
    pub fn send(&mut self, now: u64, env: &Env, opcode: u8) -> Option<(WcStatus, Syndrome)> {
        match self.table.send(now, &party(env), opcode)? {
            Effect::Complete(status, cause) => Some((status, cause)),
            Effect::Stall(ns, rule, _) => {
                self.stall(now, ns, rule, env);
                None
            }
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

    /// Frames that are due begin to go on. False: they do already.
    pub fn begin_releasing(&mut self) -> bool {
        !std::mem::replace(&mut self.releasing, true)
    }

    /// They have.
    pub fn end_releasing(&mut self) {
        self.releasing = false;
    }

    /// The next frame that is due.
    pub fn due(&mut self, now: u64) -> Option<Held> {
        let first = self.held.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// When there is something to do next.
    pub fn next_due(&self) -> Option<u64> {
        let held = self.held.first_key_value().map(|((at, _), _)| *at);
        let rest = self.rest.map(|stall| stall.until);
        let stalls = self.stalls.values().map(|(_, stall)| stall.until).min();
        let cut = self.cut.map(|stall| stall.until);
        let cut = cut.filter(|until| *until < u64::MAX);
        let all = [held, self.table.next_due(), rest, stalls, cut];
        all.into_iter().flatten().min()
    }

    /// A rule takes the port down, for so long if it says so. True: it was up as far as rules go.
    pub fn cut(&mut self, now: u64, ns: Option<u64>, rule: u64) -> bool {
        let until = ns.map_or(u64::MAX, |ns| now.saturating_add(ns));
        self.cut.replace(Stall { until, rule }).is_none()
    }

    /// A rule has the port up again.
    pub fn mend(&mut self) {
        self.cut = None;
    }

    /// Whether a rule has taken the port down.
    pub fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// A queue pair does nothing for so long.
    pub fn stall(&mut self, now: u64, ns: u64, rule: u64, env: &Env) {
        let until = now.saturating_add(ns);
        let stall = Stall { until, rule };
        self.stalls.insert(env.qpn(), (env.owner, stall));
    }

    /// The device does nothing for so long.
    pub fn stall_device(&mut self, now: u64, ns: u64, rule: u64) {
        let until = now.saturating_add(ns);
        self.rest = Some(Stall { until, rule });
    }

    /// Until when a queue pair does nothing, if it is to do nothing.
    pub fn stalls(&self, env: &Env) -> Option<u64> {
        let own = self.stalls.get(&env.qpn());
        let own = own.filter(|(owner, _)| *owner == env.owner);
        [own.map(|(_, stall)| *stall), self.rest]
            .into_iter()
            .flatten()
            .map(|stall| stall.until)
            .max()
    }

    /// Until when the device does nothing. None: it works, maybe again.
    pub fn rests(&mut self, now: u64) -> Option<u64> {
        self.rest = self.rest.filter(|stall| now < stall.until);
        self.rest.map(|stall| stall.until)
    }

    /// Queue pairs that go on, because their time is over; so does the port.
    pub fn go_on(&mut self, now: u64) -> Vec<u32> {
        self.cut = self.cut.filter(|stall| stall.until > now);
        let over = self.stalls.iter();
        let over = over.filter(|(_, (_, stall))| stall.until <= now);
        let mut over: Vec<u32> = over.map(|(qpn, _)| *qpn).collect();
        // In an order that comes again.
        over.sort_unstable();
        self.stalls.retain(|_, (_, stall)| stall.until > now);
        over
    }

    /// Rules have gone: what was so because of them is over now.
    pub fn settle(&mut self, now: u64) {
        let table = &self.table;
        self.cut = self.cut.filter(|stall| table.has(stall.rule));
        let stalls = self.stalls.values_mut().map(|(_, stall)| stall);
        for stall in stalls.chain(&mut self.rest) {
            if !table.has(stall.rule) {
                stall.until = stall.until.min(now);
            }
        }
    }

    /// How often the driver is told of an event.
    #[cold]
    pub fn events(&mut self, now: u64, kind: EventType) -> u32 {
        match self.table.event(now, kind.to_raw()) {
            Some(Effect::Withhold) => 0,
            Some(Effect::Repeat(more)) => more.saturating_add(1),
            _ => 1,
        }
    }

    /// Whether an interrupt does not come.
    #[cold]
    pub fn withholds(&mut self, now: u64, vector: u16) -> bool {
        self.table.interrupt(now, vector) == Some(Effect::Withhold)
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
