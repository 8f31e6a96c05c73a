// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The rules of a device, by the hook at which they apply, with counts of matches and firings.

mod inject;

use crate::effect::{effect, Effect};
use crate::message_tracker::MessageTracker;
use crate::names::{self, Opcodes};
use crate::rule::{Direction, Match, Rule, RuleHook, RuleSet};
use crate::rule_rng::RuleRng;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use verbena_transport::psn;

/// Name of the rule that `verbena-nic --drop` stands for. A rule on local packets with this name
/// draws as the option does.
pub const LOSS_OPTION: &str = "verbena-nic --drop";
/// Largest number of rules of a device.
pub const MAX_RULES: usize = 256;
/// Largest number of message sequences that a rule tracks: one for a QP, two if the QP answers its
/// peer.
const MAX_TRACKERS: usize = 4096;

/// The QP at a hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpIdentity {
    /// Number of the QP.
    pub qpn: u32,
    /// Ordinal of the QP among all QPs that were created.
    pub created: u64,
    /// Number of the peer QP.
    pub peer: u32,
}

/// The sequence of a packet. Requests of a QP and responses to its peer go in the same direction,
/// but their PSNs are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sequence {
    /// Requests, which come from the work requests of the QP.
    Requests,
    /// Responses to a READ, an atomic, an ATOMIC WRITE or a FLUSH.
    Responses,
}

/// A packet at a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketAtHook {
    /// Direction of the packet.
    pub direction: Direction,
    /// QP that sends or receives the packet.
    pub qp: QpIdentity,
    /// BTH opcode of the packet.
    pub opcode: u8,
    /// PSN of the packet.
    pub psn: u32,
    /// First PSN of the QP in the sequence of the packet.
    pub first_psn: u32,
    /// Sequence in which the messages are counted; None for an acknowledgement.
    pub sequence: Option<Sequence>,
    /// True if the packet begins a message.
    pub first: bool,
    /// True if the packet ends a message.
    pub last: bool,
    /// Number of PSNs; a READ request has one for each of its responses.
    pub psns: u32,
    /// Path MTU, in bytes.
    pub mtu: u32,
    /// Bytes of payload in the packet.
    pub bytes: u32,
}

/// A rule with its counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleStatus {
    /// The rule itself.
    #[serde(flatten)]
    pub rule: Rule,
    /// Seed of the file of this rule.
    pub seed: u64,
    /// True if the rule is removed when the connection that added it closes.
    pub while_connected: bool,
    /// Number of matches, regardless of `nth` and the other conditions on when the rule fires.
    pub matched: u64,
    /// Number of firings.
    pub fired: u64,
}

/// A rule of the table.
#[derive(Debug)]
struct RuleEntry {
    rule: Rule,
    /// Number that no other rule of the device has or ever had.
    id: u64,
    seed: u64,
    owner: Option<u64>,
    /// True for a rule of the command INJECT_FAULT. It ends with the object or the device's life.
    injected: bool,
    since_ns: u64,
    created: u64,
    operations: Opcodes,
    /// Bits for opcodes of sends or kinds of events, or the opcode of a command.
    code: u32,
    effect: Effect,
    rng: RuleRng,
    /// Percentage of the matches that fire, if the rule draws as `verbena-nic --drop` does.
    percent: Option<u64>,
    trackers: HashMap<(u32, Sequence), MessageTracker>,
    matched: u64,
    fired: u64,
}

/// The table of the rules of a device.
#[derive(Debug, Default)]
pub struct RuleTable {
    entries: Vec<RuleEntry>,
    /// Indexes of the entries, for each hook.
    hooks: [Vec<usize>; 9],
    /// Index of the entry that fired last.
    last: usize,
    next_id: u64,
}

/// Returns the error about a rule whose name another rule has.
pub fn duplicate_name_error(name: &str) -> String {
    format!("rule {name:?}: name: the device already has a rule with this name: choose another")
}

/// Returns the index in [`RuleTable::hooks`] of the list for rules with this match: there is one
/// list for each place of the device that asks the table.
fn hook(matches: &Match) -> usize {
    match (matches.on, matches.packet_direction()) {
        (RuleHook::Packet, Direction::Out) => 0,
        (RuleHook::Packet, Direction::In) => 1,
        (RuleHook::Send, _) => 2,
        (RuleHook::Command, _) => 3,
        (RuleHook::Time, _) => 4,
        (RuleHook::Event, _) => 5,
        (RuleHook::Interrupt, _) => 6,
        (RuleHook::Local, _) => 7,
        (RuleHook::Uplink, _) => 8,
    }
}

impl PacketAtHook {
    /// True if the packet, as the n-th of its message, carries this byte of the message.
    fn carries(&self, byte: u64, nth: u64) -> bool {
        let begin = nth.saturating_sub(1).saturating_mul(self.mtu.into());
        let at = byte.checked_sub(begin);
        at.is_some_and(|at| at < u64::from(self.bytes))
    }
}

/// Returns the percentage of a rule that draws as `verbena-nic --drop` does.
fn percent(rule: &Rule) -> Option<u64> {
    let is_option = rule.name == LOSS_OPTION && rule.matches.on == RuleHook::Local;
    let probability = rule.matches.probability.filter(|_| is_option)?;
    let percent = (probability * 100.0).round();
    (percent / 100.0 == probability).then_some(percent as u64)
}

/// Returns the random stream of a rule at its beginning.
fn rule_rng(seed: u64, rule: &Rule) -> RuleRng {
    match percent(rule) {
        Some(_) => RuleRng::of_loss_option(seed),
        None => RuleRng::of(seed, &rule.name),
    }
}

impl RuleEntry {
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
            RuleHook::Send => names::send_opcode_bits(names).ok()?,
            RuleHook::Command => match &rule.matches.command {
                Some(name) => names::command_opcode(name)?.to_raw().into(),
                None => 0,
            },
            RuleHook::Event => names::event_bits(&rule.matches.event).ok()?,
            RuleHook::Packet
            | RuleHook::Local
            | RuleHook::Uplink
            | RuleHook::Time
            | RuleHook::Interrupt => 0,
        };
        let operations = match rule.matches.on {
            RuleHook::Packet | RuleHook::Local => Opcodes::of(names).ok()?,
            _ => Opcodes::ALL,
        };
        Some(Self {
            seed,
            owner,
            injected: false,
            since_ns: now,
            created,
            operations,
            code,
            effect: effect(id, rule, created)?,
            id,
            rng: rule_rng(seed, rule),
            percent: percent(rule),
            trackers: HashMap::new(),
            matched: 0,
            fired: 0,
            rule: rule.clone(),
        })
    }

    fn matches_qp(&self, qp: &QpIdentity) -> bool {
        let m = &self.rule.matches;
        m.qp.is_none_or(|qpn| qpn == qp.qpn)
            && m.peer_qp.is_none_or(|qpn| qpn == qp.peer)
            && m.qp_created
                .is_none_or(|n| self.created.saturating_add(n) == qp.created)
    }

    /// True if a packet matches the rule.
    fn matches_packet(&mut self, packet: &PacketAtHook) -> bool {
        let m = &self.rule.matches;
        if !self.matches_qp(&packet.qp) {
            return false;
        }
        if m.message.is_some() || m.packet_of_message.is_some() || m.byte.is_some() {
            let Some(sequence) = packet.sequence else {
                return false;
            };
            let whose = (packet.qp.qpn, sequence);
            if self.trackers.len() >= MAX_TRACKERS && !self.trackers.contains_key(&whose) {
                return false;
            }
            // The tracker also counts messages that the rule does not match.
            let tracker = self.trackers.entry(whose).or_default();
            let Some((message, nth)) = tracker.place(packet) else {
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

    /// Counts a match. Returns true if the rule would fire now.
    fn count_match(&mut self, now: u64, is_allowed: bool) -> bool {
        self.matched += 1;
        let m = &self.rule.matches;
        // A number is drawn for each match, so that the draw does not depend on the outcome of
        // earlier matches.
        let hits = match (self.percent, m.probability) {
            (Some(percent), _) => self.rng.is_hit_percent(percent),
            (None, Some(p)) => self.rng.is_hit(p),
            (None, None) => true,
        };
        hits && is_allowed
            && m.nth.is_none_or(|n| n == self.matched)
            && m.every.is_none_or(|n| self.matched % n == 0)
            && m.limit.is_none_or(|n| self.fired < n)
            && m.after_ms
                .is_none_or(|ms| now.saturating_sub(self.since_ns) >= ms.saturating_mul(1_000_000))
    }

    fn due_ns(&self) -> u64 {
        let ms = self.rule.matches.after_ms.unwrap_or(0);
        self.since_ns.saturating_add(ms.saturating_mul(1_000_000))
    }
}

impl RuleTable {
    /// True if the rule with this number still exists.
    pub fn has(&self, id: u64) -> bool {
        self.entries.iter().any(|entry| entry.id == id)
    }

    /// True if there is a rule with this name.
    pub fn has_name(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.rule.name == name)
    }

    /// Returns the number of rules, without those of INJECT_FAULT.
    pub fn added_count(&self) -> usize {
        self.entries.iter().filter(|entry| !entry.injected).count()
    }

    /// True if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Checks that [`add`](Self::add) would add rules.
    ///
    /// # Errors
    ///
    /// A rule makes no sense, or conflicts with the present rules.
    pub fn check_add(&self, set: &RuleSet) -> Result<(), String> {
        set.check().map_err(|(_, why)| why)?;
        if self.added_count() + set.rule.len() > MAX_RULES {
            return Err(format!(
                "{} rules in addition to {}: a device has at most {MAX_RULES}; remove some",
                set.rule.len(),
                self.added_count()
            ));
        }
        let exists = |name: &str| self.has_name(name);
        for rule in &set.rule {
            if exists(&rule.name) {
                return Err(duplicate_name_error(&rule.name));
            }
            if let Some(other) = &rule.matches.while_rule {
                let is_known = exists(other) || set.rule.iter().any(|rule| rule.name == *other);
                if !is_known || *other == rule.name {
                    return Err(format!(
                        "rule {:?}: match.while: no other rule is called {other:?}",
                        rule.name
                    ));
                }
            }
        }
        Ok(())
    }

    /// Adds rules, all or none. `created` is the number of QPs that were created so far. The rules
    /// of an owner are removed with it.
    ///
    /// # Errors
    ///
    /// A rule makes no sense, or conflicts with the present rules.
    pub fn add(
        &mut self,
        set: &RuleSet,
        owner: Option<u64>,
        now: u64,
        created: u64,
    ) -> Result<(), String> {
        self.check_add(set)?;
        let mut new = Vec::new();
        for rule in &set.rule {
            let id = self.next_id + new.len() as u64;
            let entry = RuleEntry::new(id, rule, set.seed, owner, now, created);
            new.push(
                entry.ok_or_else(|| format!("rule {:?}: a name in it is unknown", rule.name))?,
            );
        }
        self.next_id += new.len() as u64;
        self.entries.append(&mut new);
        self.index_hooks();
        Ok(())
    }

    /// Removes a rule. Returns false if there is no rule with this name.
    pub fn remove(&mut self, name: &str) -> bool {
        self.retain(|entry| entry.rule.name != name)
    }

    /// Removes the rules of an owner.
    pub fn remove_of_owner(&mut self, owner: u64) {
        self.retain(|entry| entry.owner != Some(owner));
    }

    /// Removes all rules.
    pub fn clear(&mut self) {
        self.retain(|_| false);
    }

    /// Removes all rules but the one with this name and those of INJECT_FAULT.
    pub fn clear_all_but(&mut self, name: &str) {
        self.retain(|entry| entry.rule.name == name || entry.injected);
    }

    fn retain(&mut self, is_kept: impl Fn(&RuleEntry) -> bool) -> bool {
        let before = self.entries.len();
        self.entries.retain(is_kept);
        self.index_hooks();
        self.entries.len() < before
    }

    fn index_hooks(&mut self) {
        self.hooks.iter_mut().for_each(Vec::clear);
        for (place, entry) in self.entries.iter().enumerate() {
            if let Some(hook) = self.hooks.get_mut(hook(&entry.rule.matches)) {
                hook.push(place);
            }
        }
    }

    /// Returns the rules with their counts, in order.
    pub fn statuses(&self) -> Vec<RuleStatus> {
        let statuses = self.entries.iter().map(|entry| RuleStatus {
            rule: entry.rule.clone(),
            seed: entry.seed,
            while_connected: entry.owner.is_some(),
            matched: entry.matched,
            fired: entry.fired,
        });
        statuses.collect()
    }

    /// Handles a reset of the device: the numbers of QPs begin again, and so do the stream
    /// and the counts of `verbena-nic --drop`.
    pub fn reset(&mut self) {
        self.retain(|entry| !entry.injected);
        for entry in &mut self.entries {
            entry.trackers.clear();
            entry.created = 0;
            if entry.percent.is_some() {
                entry.rng = rule_rng(entry.seed, &entry.rule);
                (entry.matched, entry.fired) = (0, 0);
            }
            if let Some(effect) = effect(entry.id, &entry.rule, 0) {
                entry.effect = effect;
            }
        }
    }

    /// Handles the end of a QP. The next QP with its number has messages of its own, and the room
    /// is free for others.
    pub fn on_qp_destroyed(&mut self, qpn: u32) {
        for entry in &mut self.entries {
            for sequence in [Sequence::Requests, Sequence::Responses] {
                entry.trackers.remove(&(qpn, sequence));
            }
        }
    }

    /// Handles a QP that begins anew.
    pub fn on_qp_reset(&mut self, qpn: u32) {
        self.retain(|entry| !(entry.injected && entry.rule.matches.qp == Some(qpn)));
        for entry in &mut self.entries {
            for sequence in [Sequence::Requests, Sequence::Responses] {
                if let Some(tracker) = entry.trackers.get_mut(&(qpn, sequence)) {
                    tracker.begin_anew();
                }
            }
        }
    }

    /// True if a rule may match packets of a QP. If none does, the device need not pass single
    /// packets.
    pub fn has_packet_rules_for(&self, direction: Direction, qp: &QpIdentity) -> bool {
        let hook = match direction {
            Direction::Out => &self.hooks[0],
            Direction::In => &self.hooks[1],
        };
        hook.iter()
            .filter_map(|at| self.entries.get(*at))
            .any(|entry| entry.matches_qp(qp))
    }

    /// True if there are rules on packets between QPs of the device.
    #[inline]
    pub fn has_local(&self) -> bool {
        !self.hooks[7].is_empty()
    }

    /// True if a packet between two QPs of the device is lost.
    pub fn on_local_packet(&mut self, now: u64, packet: &PacketAtHook) -> bool {
        self.fire(7, now, |entry| entry.matches_packet(packet))
            .is_some()
    }

    /// Returns the effect on a frame that leaves by an uplink.
    pub fn on_uplink_frame(&mut self, now: u64, uplink: u8) -> Option<Effect> {
        self.fire(8, now, |entry| {
            entry.rule.matches.uplink.is_none_or(|n| n == uplink)
        })
    }

    /// Returns all rules in order, each with its number and its seed.
    pub fn rules(&self) -> impl Iterator<Item = (u64, &Rule, u64)> {
        self.entries
            .iter()
            .map(|entry| (entry.id, &entry.rule, entry.seed))
    }

    /// True if the rule with this name has fired.
    fn is_active(&self, name: &str) -> bool {
        self.entries
            .iter()
            .any(|entry| entry.rule.name == name && entry.fired > 0)
    }

    /// Lets each rule of a hook count the match. Only the first rule that would fire fires.
    fn fire(
        &mut self,
        hook: usize,
        now: u64,
        is_match: impl Fn(&mut RuleEntry) -> bool,
    ) -> Option<Effect> {
        let mut fires = None;
        for n in 0..self.hooks.get(hook)?.len() {
            let at = *self.hooks.get(hook)?.get(n)?;
            let waits_for = self.entries.get(at)?.rule.matches.while_rule.as_deref();
            let is_allowed = waits_for.is_none_or(|name| self.is_active(name));
            let entry = self.entries.get_mut(at)?;
            if is_match(entry) && entry.count_match(now, is_allowed) && fires.is_none() {
                entry.fired += 1;
                fires = Some(entry.effect.clone());
                self.last = at;
            }
        }
        fires
    }

    /// Returns the effect on a packet that passes.
    pub fn on_packet(&mut self, now: u64, packet: &PacketAtHook) -> Option<Effect> {
        let hook = match packet.direction {
            Direction::Out => 0,
            Direction::In => 1,
        };
        self.fire(hook, now, |entry| entry.matches_packet(packet))
    }

    /// Returns the effect on a send work request that the device begins.
    pub fn on_send(&mut self, now: u64, qp: &QpIdentity, opcode: u8) -> Option<Effect> {
        let bit = 1u32.checked_shl(opcode.into()).unwrap_or(0);
        self.fire(2, now, |entry| {
            entry.code & bit != 0 && entry.matches_qp(qp)
        })
    }

    /// Returns the effect on a command that the driver sends.
    pub fn on_command(&mut self, now: u64, opcode: u16) -> Option<Effect> {
        self.fire(3, now, |entry| {
            entry.code == 0 || entry.code == u32::from(opcode)
        })
    }

    /// Returns the rule that fired last, and the number of QPs when it was added. Valid only
    /// directly after the firing.
    pub fn last_fired(&self) -> Option<(&Rule, u64)> {
        let entry = self.entries.get(self.last)?;
        Some((&entry.rule, entry.created))
    }

    /// Returns the effect on an event that the device reports to the driver.
    pub fn on_event(&mut self, now: u64, kind: u8) -> Option<Effect> {
        let bit = 1u32.checked_shl(kind.into()).unwrap_or(0);
        self.fire(5, now, |entry| entry.code & bit != 0)
    }

    /// Returns the effect on an interrupt that the device raises.
    pub fn on_interrupt(&mut self, now: u64, vector: u16) -> Option<Effect> {
        let is_it = |entry: &mut RuleEntry| entry.rule.matches.vector.is_none_or(|n| n == vector);
        self.fire(6, now, is_it)
    }

    /// Returns the time at which [`RuleTable::take_due`] has an effect next.
    pub fn next_due(&self) -> Option<u64> {
        let timed = self.hooks[4].iter().filter_map(|at| self.entries.get(*at));
        timed
            .filter(|entry| entry.fired == 0)
            .map(RuleEntry::due_ns)
            .min()
    }

    /// Returns the effect of a rule on time that is due. Each such rule fires once.
    pub fn take_due(&mut self, now: u64) -> Option<Effect> {
        self.take_due_of(now, |_| true)
    }

    /// Returns the effect of a rule on time that is due, among some effects.
    pub fn take_due_of(&mut self, now: u64, is_wanted: impl Fn(&Effect) -> bool) -> Option<Effect> {
        for at in &self.hooks[4] {
            if let Some(entry) = self.entries.get_mut(*at) {
                if entry.fired == 0 && entry.due_ns() <= now && is_wanted(&entry.effect) {
                    (entry.matched, entry.fired) = (1, 1);
                    self.last = *at;
                    return Some(entry.effect.clone());
                }
            }
        }
        None
    }
}
