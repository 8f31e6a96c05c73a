// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The rules of a device, by the hook at which they apply, and how often each has matched and fired.

use crate::dice::Dice;
use crate::names::{self, Opcodes};
use crate::rule::{Action, Corrupt, Direction, Match, On, Queue, Rule, RuleSet};
use crate::track::Track;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use verbena_abi::cmd::CmdStatus;
use verbena_abi::cqe::WcStatus;
use verbena_abi::syndrome::Syndrome;
use verbena_roce::psn;

/// The most rules of a device.
pub const MAX_RULES: usize = 256;
/// Queue pairs whose messages a rule knows apart; those that answer their peers count twice.
const TRACKED: usize = 4096;

/// The queue pair at a hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Party {
    /// Its number.
    pub qpn: u32,
    /// So many were created up to it, itself among them.
    pub created: u64,
    /// The number of its peer.
    pub peer: u32,
}

/// Requests of a queue pair and responses to its peer go the same way, each in PSNs of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sequence {
    /// What it asks for, by its own work requests.
    Requests,
    /// What it answers a READ, an atomic, an ATOMIC WRITE or a FLUSH with.
    Responses,
}

/// A packet at a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passing {
    /// Its way.
    pub way: Direction,
    /// The queue pair that sends or receives it.
    pub party: Party,
    /// BTH opcode.
    pub opcode: u8,
    /// PSN.
    pub psn: u32,
    /// The first PSN of the queue pair in the sequence that the packet is of.
    pub first_psn: u32,
    /// What the messages are counted in that it is of; of an acknowledgement there are none.
    pub sequence: Option<Sequence>,
    /// It begins a message.
    pub first: bool,
    /// It ends one.
    pub last: bool,
    /// The PSNs that it takes: a READ request as many as its responses have.
    pub psns: u32,
    /// Path MTU, in bytes.
    pub mtu: u32,
    /// Bytes of its payload.
    pub bytes: u32,
}

/// Whom something happens to at a moment: where there is a packet or a send, its queue pair is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whom {
    /// By its number ...
    pub qp: Option<u32>,
    /// ... or by [`Party::created`].
    pub created: Option<u64>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// See [`Action::Drop`].
    Drop,
    /// See [`Action::DelayUs`]; in nanoseconds.
    Delay(u64),
    /// See [`Action::Duplicate`].
    Duplicate(u32),
    /// See [`Action::Reorder`].
    Reorder(u32),
    /// See [`Action::Corrupt`].
    Corrupt(Corrupt),
    /// See [`Action::MarkEcn`].
    MarkEcn,
    /// See [`Action::Nak`] and [`Action::Rnr`]: the byte of the AETH.
    Nak(u8),
    /// See [`Action::Complete`].
    Complete(WcStatus, Syndrome),
    /// See [`Action::QpError`].
    QpError(Whom),
    /// See [`Action::Fatal`].
    Fatal,
    /// See [`Action::Errno`].
    Fail(CmdStatus),
    /// See [`Action::PortDown`]: it is so while there is this rule ([`Table::has`]), and for so many nanoseconds, if it is told.
    PortDown(Option<u64>, u64),
    /// See [`Action::PortUp`].
    PortUp,
    /// See [`Action::CqOverflow`].
    CqOverflow(Queue, Whom),
    /// See [`Action::KillSrq`].
    KillSrq(Whom),
    /// See [`Action::StallMs`]: for so many nanoseconds, while there is this rule.
    Stall(u64, u64, Whom),
    /// See [`Action::StallDeviceMs`]; the same.
    StallDevice(u64, u64),
    /// See [`Action::Withhold`].
    Withhold,
    /// See [`Action::Repeat`].
    Repeat(u32),
}

/// A rule and how it went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// The rule.
    #[serde(flatten)]
    pub rule: Rule,
    /// The seed that it came with.
    pub seed: u64,
    /// It goes when the connection goes that added it.
    pub while_connected: bool,
    /// What it names came so often; `nth` and the like are not asked then.
    pub matched: u64,
    /// It fired so often.
    pub fired: u64,
}

/// A rule at work.
#[derive(Debug)]
struct Entry {
    rule: Rule,
    /// No other rule of the device has, or ever had, the same.
    id: u64,
    seed: u64,
    owner: Option<u64>,
    since: u64,
    created: u64,
    operations: Opcodes,
    /// Opcodes of sends or kinds of events, a bit each, or the opcode of commands.
    code: u32,
    effect: Effect,
    dice: Dice,
    tracks: HashMap<(u32, Sequence), Track>,
    matched: u64,
    fired: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Table {
    entries: Vec<Entry>,
    /// Their places, for each hook.
    hooks: [Vec<usize>; 7],
    /// The place of the one that fired last.
    last: usize,
    next_id: u64,
}

/// A hook's place.
fn hook(matches: &Match) -> usize {
    match (matches.on, matches.way()) {
        (On::Packet, Direction::Out) => 0,
        (On::Packet, Direction::In) => 1,
        (On::Send, _) => 2,
        (On::Command, _) => 3,
        (On::Time, _) => 4,
        (On::Event, _) => 5,
        (On::Interrupt, _) => 6,
    }
}

impl Passing {
    /// Whether it carries this byte of its message, being the n-th packet of it.
    fn carries(&self, byte: u64, nth: u64) -> bool {
        let begin = nth.saturating_sub(1).saturating_mul(self.mtu.into());
        let at = byte.checked_sub(begin);
        at.is_some_and(|at| at < u64::from(self.bytes))
    }
}

impl Entry {
    fn new(
        id: u64,
        rule: &Rule,
        seed: u64,
        owner: Option<u64>,
        now: u64,
        created: u64,
    ) -> Option<Self> {
        let names = &rule.matches.opcode;
        let code = match rule.matches.on {
            On::Send => names::sends(names).ok()?,
            On::Command => match &rule.matches.command {
                Some(name) => names::command(name)?.to_raw().into(),
                None => 0,
            },
            On::Event => names::events(&rule.matches.event).ok()?,
            On::Packet | On::Time | On::Interrupt => 0,
        };
        let operations = match rule.matches.on {
            On::Packet => Opcodes::of(names).ok()?,
            _ => Opcodes::ALL,
        };
        Some(Self {
            seed,
            owner,
            since: now,
            created,
            operations,
            code,
            effect: effect(id, rule, created)?,
            id,
            dice: Dice::of(seed, &rule.name),
            tracks: HashMap::new(),
            matched: 0,
            fired: 0,
            rule: rule.clone(),
        })
    }

    fn is_of(&self, party: &Party) -> bool {
        let m = &self.rule.matches;
        m.qp.is_none_or(|qpn| qpn == party.qpn)
            && m.peer_qp.is_none_or(|qpn| qpn == party.peer)
            && m.qp_created
                .is_none_or(|n| self.created.saturating_add(n) == party.created)
    }

    /// Whether a packet is one that it names.
    fn names(&mut self, packet: &Passing) -> bool {
        let m = &self.rule.matches;
        if !self.is_of(&packet.party) {
            return false;
        }
        if m.message.is_some() || m.packet_of_message.is_some() || m.byte.is_some() {
            let Some(sequence) = packet.sequence else {
                return false;
            };
            let whose = (packet.party.qpn, sequence);
            if self.tracks.len() >= TRACKED && !self.tracks.contains_key(&whose) {
                return false;
            }
            // Also of messages that it does not name: it counts them.
            let track = self.tracks.entry(whose).or_default();
            let Some((message, nth)) = track.place(packet) else {
                return false;
            };
            if m.message.is_some_and(|n| n != message)
                || m.packet_of_message.is_some_and(|n| n != nth)
                || m.byte.is_some_and(|byte| !packet.carries(byte, nth))
            {
                return false;
            }
        }
        let number = || psn::ahead(packet.psn, packet.first_psn) + 1;
        self.operations.has(packet.opcode)
            && m.psn.is_none_or(|psn| psn == packet.psn)
            && m.packet.is_none_or(|n| n == number())
    }

    /// Something that it names has come. Whether it would fire now.
    fn comes(&mut self, now: u64, is_allowed: bool) -> bool {
        self.matched += 1;
        let m = &self.rule.matches;
        // Drawn each time, so that one match is the same whatever came of those before it.
        let hits = m.probability.is_none_or(|p| self.dice.hits(p));
        hits && is_allowed
            && m.nth.is_none_or(|n| n == self.matched)
            && m.every.is_none_or(|n| self.matched % n == 0)
            && m.limit.is_none_or(|n| self.fired < n)
            && m.after_ms
                .is_none_or(|ms| now.saturating_sub(self.since) >= ms.saturating_mul(1_000_000))
    }

    fn due(&self) -> u64 {
        let ms = self.rule.matches.after_ms.unwrap_or(0);
        self.since.saturating_add(ms.saturating_mul(1_000_000))
    }
}

fn effect(id: u64, rule: &Rule, created: u64) -> Option<Effect> {
    let m = &rule.matches;
    let whom = Whom {
        qp: m.qp,
        created: m.qp_created.map(|n| created.saturating_add(n)),
    };
    let ns = |ms: &u64| ms.saturating_mul(1_000_000);
    Some(match &rule.action {
        Action::Drop => Effect::Drop,
        Action::DelayUs(us) => Effect::Delay(us.saturating_mul(1000)),
        Action::Duplicate(n) => Effect::Duplicate(*n),
        Action::Reorder(n) => Effect::Reorder(*n),
        Action::Corrupt(how) => Effect::Corrupt(how.clone()),
        Action::MarkEcn => Effect::MarkEcn,
        Action::Nak(code) => Effect::Nak(names::nak(code)?),
        Action::Rnr(timer) => Effect::Nak(0x20 | timer & 0x1f),
        Action::Complete(how) => Effect::Complete(names::status(how.status())?, how.cause()?),
        Action::QpError => Effect::QpError(whom),
        Action::Fatal => Effect::Fatal,
        Action::Errno(errno) => Effect::Fail(names::errno(errno)?),
        Action::PortDown => Effect::PortDown(None, id),
        Action::PortDownMs(ms) => Effect::PortDown(Some(ns(ms)), id),
        Action::PortUp => Effect::PortUp,
        Action::CqOverflow(queue) => Effect::CqOverflow(*queue, whom),
        Action::KillSrq => Effect::KillSrq(whom),
        Action::StallMs(ms) => Effect::Stall(ns(ms), id, whom),
        Action::StallDeviceMs(ms) => Effect::StallDevice(ns(ms), id),
        Action::Withhold => Effect::Withhold,
        Action::Repeat(n) => Effect::Repeat(*n),
    })
}

impl Table {
    /// Whether there is still a rule.
    pub fn has(&self, id: u64) -> bool {
        self.entries.iter().any(|entry| entry.id == id)
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds rules, all or none. `created` queue pairs there were so far; what has an owner goes with it.
    ///
    /// # Errors
    ///
    /// A rule makes no sense, or not beside those that are there.
    pub fn add(
        &mut self,
        set: &RuleSet,
        owner: Option<u64>,
        now: u64,
        created: u64,
    ) -> Result<(), String> {
        set.check().map_err(|(_, why)| why)?;
        if self.entries.len() + set.rule.len() > MAX_RULES {
            return Err(format!("more than {MAX_RULES} rules"));
        }
        let is_there = |name: &str| self.entries.iter().any(|entry| entry.rule.name == name);
        let mut new = Vec::new();
        for rule in &set.rule {
            if is_there(&rule.name) {
                return Err(format!(
                    "rule {:?}: name: such a rule is there already",
                    rule.name
                ));
            }
            if let Some(other) = &rule.matches.while_rule {
                let is_known = is_there(other) || set.rule.iter().any(|rule| rule.name == *other);
                if !is_known || *other == rule.name {
                    return Err(format!(
                        "rule {:?}: match.while: no other rule is called {other:?}",
                        rule.name
                    ));
                }
            }
            let id = self.next_id + new.len() as u64;
            let entry = Entry::new(id, rule, set.seed, owner, now, created);
            new.push(entry.ok_or_else(|| format!("rule {:?}: a name is not known", rule.name))?);
        }
        self.next_id += new.len() as u64;
        self.entries.append(&mut new);
        self.sort();
        Ok(())
    }

    /// Removes a rule. False: there is none of that name.
    pub fn remove(&mut self, name: &str) -> bool {
        self.keep(|entry| entry.rule.name != name)
    }

    /// Removes those of an owner.
    pub fn gone(&mut self, owner: u64) {
        self.keep(|entry| entry.owner != Some(owner));
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.keep(|_| false);
    }

    fn keep(&mut self, keeps: impl Fn(&Entry) -> bool) -> bool {
        let before = self.entries.len();
        self.entries.retain(keeps);
        self.sort();
        self.entries.len() < before
    }

    fn sort(&mut self) {
        self.hooks.iter_mut().for_each(Vec::clear);
        for (place, entry) in self.entries.iter().enumerate() {
            if let Some(hook) = self.hooks.get_mut(hook(&entry.rule.matches)) {
                hook.push(place);
            }
        }
    }

    /// The rules, in order.
    pub fn told(&self) -> Vec<Told> {
        let told = self.entries.iter().map(|entry| Told {
            rule: entry.rule.clone(),
            seed: entry.seed,
            while_connected: entry.owner.is_some(),
            matched: entry.matched,
            fired: entry.fired,
        });
        told.collect()
    }

    /// The device was reset: numbers of queue pairs begin again.
    pub fn reset(&mut self) {
        for entry in &mut self.entries {
            entry.tracks.clear();
            entry.created = 0;
            if let Some(effect) = effect(entry.id, &entry.rule, 0) {
                entry.effect = effect;
            }
        }
    }

    /// A queue pair is no more: the next one of its number has messages of its own, and there is room for others.
    pub fn forget(&mut self, qpn: u32) {
        for entry in &mut self.entries {
            for sequence in [Sequence::Requests, Sequence::Responses] {
                entry.tracks.remove(&(qpn, sequence));
            }
        }
    }

    /// A queue pair begins anew.
    pub fn begin_anew(&mut self, qpn: u32) {
        for entry in &mut self.entries {
            for sequence in [Sequence::Requests, Sequence::Responses] {
                if let Some(track) = entry.tracks.get_mut(&(qpn, sequence)) {
                    track.begin_anew();
                }
            }
        }
    }

    /// Whether a rule may name a packet of a queue pair: if none does, its packets are not looked at one by one.
    pub fn concerns(&self, way: Direction, party: &Party) -> bool {
        let hook = match way {
            Direction::Out => &self.hooks[0],
            Direction::In => &self.hooks[1],
        };
        hook.iter()
            .filter_map(|at| self.entries.get(*at))
            .any(|entry| entry.is_of(party))
    }

    /// Whether the rule of this name has fired.
    fn is_active(&self, name: &str) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.rule.name == name && entry.fired > 0)
    }

    /// Each rule of a hook sees what passes; the first that would fire does.
    fn pass(
        &mut self,
        hook: usize,
        now: u64,
        names: impl Fn(&mut Entry) -> bool,
    ) -> Option<Effect> {
        let mut fires = None;
        for n in 0..self.hooks.get(hook)?.len() {
            let at = *self.hooks.get(hook)?.get(n)?;
            let waits_for = self.entries.get(at)?.rule.matches.while_rule.as_deref();
            let is_allowed = waits_for.is_none_or(|name| self.is_active(name));
            let entry = self.entries.get_mut(at)?;
            if names(entry) && entry.comes(now, is_allowed) && fires.is_none() {
                entry.fired += 1;
                fires = Some(entry.effect.clone());
                self.last = at;
            }
        }
        fires
    }

    /// A packet passes.
    pub fn packet(&mut self, now: u64, packet: &Passing) -> Option<Effect> {
        let hook = match packet.way {
            Direction::Out => 0,
            Direction::In => 1,
        };
        self.pass(hook, now, |entry| entry.names(packet))
    }

    /// The device begins with a send work request.
    pub fn send(&mut self, now: u64, party: &Party, opcode: u8) -> Option<Effect> {
        let bit = 1u32.checked_shl(opcode.into()).unwrap_or(0);
        self.pass(2, now, |entry| entry.code & bit != 0 && entry.is_of(party))
    }

    /// The driver sends a command.
    pub fn command(&mut self, now: u64, opcode: u16) -> Option<Effect> {
        self.pass(3, now, |entry| {
            entry.code == 0 || entry.code == u32::from(opcode)
        })
    }

    /// The rule that fired last, and how many queue pairs there were when it was added. To be asked right then.
    pub fn last_fired(&self) -> Option<(&Rule, u64)> {
        let entry = self.entries.get(self.last)?;
        Some((&entry.rule, entry.created))
    }

    /// The device tells the driver of an event.
    pub fn event(&mut self, now: u64, kind: u8) -> Option<Effect> {
        let bit = 1u32.checked_shl(kind.into()).unwrap_or(0);
        self.pass(5, now, |entry| entry.code & bit != 0)
    }

    /// The device raises an interrupt.
    pub fn interrupt(&mut self, now: u64, vector: u16) -> Option<Effect> {
        let is_it = |entry: &mut Entry| entry.rule.matches.vector.is_none_or(|n| n == vector);
        self.pass(6, now, is_it)
    }

    /// When [`Table::due`] has something to do next.
    pub fn next_due(&self) -> Option<u64> {
        let timed = self.hooks[4].iter().filter_map(|at| self.entries.get(*at));
        timed.filter(|entry| entry.fired == 0).map(Entry::due).min()
    }

    /// A moment that has come. Each comes once.
    pub fn due(&mut self, now: u64) -> Option<Effect> {
        for at in &self.hooks[4] {
            if let Some(entry) = self.entries.get_mut(*at) {
                if entry.fired == 0 && entry.due() <= now {
                    (entry.matched, entry.fired) = (1, 1);
                    self.last = *at;
                    return Some(entry.effect.clone());
                }
            }
        }
        None
    }
}
