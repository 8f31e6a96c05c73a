// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Exports rules that reproduce the faults of a recording, whether rules or random loss caused
//! them. Each firing becomes a rule of its own that matches exactly one event: it names the QP by
//! its order of creation, the packet by its number, and the pass of the packet by its ordinal.

use crate::device_history::{packet_name, work_request_name};
use crate::entry::EntryKind;
use crate::flags::{LOST, RANDOM_DROP};
use crate::flight_recording::FlightRecording;
use std::collections::{HashMap, HashSet};
use verbena_faults::{Action, Direction, Match, Rule, RuleHook, RuleSet};

/// Most bytes of the name of a rule that are kept, so that a number fits after them.
const MAX_NAME_BYTES: usize = 48;

/// The result of an export.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportedRules {
    /// The rules, in the order of the firings.
    pub set: RuleSet,
    /// Firings that could not be exported, each with the reason.
    pub missing: Vec<String>,
}

/// One packet at one hook: QP, true if received, opcode, number.
type PacketKey = (u32, bool, u8, u32);

/// Counts that are kept while the entries are read in order.
#[derive(Default)]
struct OccurrenceCounts {
    /// QPs whose creation was recorded since the last reset of the device.
    created: HashSet<u32>,
    /// Number of QPs that were created before the first QP of `created`.
    before: Option<u32>,
    /// Numbers of times that a packet passed the rules, and the random drop after them. With both
    /// present, a packet that no rule drops passes both.
    packets: HashMap<PacketKey, [u64; 2]>,
    sends: HashMap<(u32, u8), u64>,
    commands: HashMap<u16, u64>,
    /// Numbers of commands so far when a rule was added, by the number of the rule.
    since: HashMap<u16, HashMap<u16, u64>>,
    resets: u64,
}

impl OccurrenceCounts {
    fn count(&mut self, kind: &EntryKind) {
        match *kind {
            EntryKind::Created { owner, .. } => {
                self.created.insert(owner);
                self.before.get_or_insert(owner.saturating_sub(1));
            }
            EntryKind::Passed {
                direction,
                flags,
                opcode,
                owner,
                nth,
                ..
            } => {
                let key = (owner, direction == Direction::In, opcode, nth);
                let [rules, random_drop] = self.packets.entry(key).or_default();
                *(if flags & RANDOM_DROP != 0 {
                    random_drop
                } else {
                    rules
                }) += 1;
            }
            EntryKind::Work { owner, opcode, .. } => {
                *self.sends.entry((owner, opcode)).or_default() += 1;
            }
            EntryKind::Command { opcode, .. } => *self.commands.entry(opcode).or_default() += 1,
            EntryKind::Rule { rule, late: false } => {
                self.since.insert(rule, self.commands.clone());
            }
            EntryKind::Reset => {
                let resets = self.resets + 1;
                let (commands, since) = (
                    std::mem::take(&mut self.commands),
                    std::mem::take(&mut self.since),
                );
                *self = Self {
                    resets,
                    commands,
                    since,
                    before: Some(0),
                    ..Self::default()
                };
            }
            _ => {}
        }
    }

    /// Adds the QP to `m` by its order of creation since the rule was added, which is the same in
    /// the next run.
    fn match_qp(&self, m: &mut Match, owner: u32, base: u32, qpn: u32) -> Result<(), String> {
        if owner <= base {
            return Err(format!(
                "QP {qpn:#x} existed before the rule was added: add rules before the program starts"
            ));
        }
        if !self.created.contains(&owner) {
            return Err(format!(
                "the creation of QP {qpn:#x} is not in the recording: record more entries, or begin to record earlier"
            ));
        }
        m.qp_created = Some(u64::from(owner - base));
        Ok(())
    }
}

fn base_name(rule: &Rule) -> &str {
    let mut end = rule.name.len().min(MAX_NAME_BYTES);
    while !rule.name.is_char_boundary(end) {
        end -= 1;
    }
    rule.name.get(..end).unwrap_or_default()
}

/// Returns the rules that reproduce all firings. `rules` are the rules that entries name, by
/// number.
pub fn export_rules(recording: &FlightRecording, rules: &[Option<Rule>]) -> ExportedRules {
    let mut counts = OccurrenceCounts::default();
    let mut out = ExportedRules {
        set: RuleSet {
            version: verbena_faults::VERSION,
            seed: 0,
            rule: Vec::new(),
        },
        missing: Vec::new(),
    };
    let dropped = Rule {
        name: String::from("lost"),
        optional: false,
        matches: Match::default(),
        action: Action::Drop,
    };
    for (n, entry) in (recording.first..).zip(&recording.entries) {
        counts.count(&entry.kind);
        let exported = match entry.kind {
            EntryKind::Fired { rule, .. } => match rules.get(usize::from(rule)) {
                Some(Some(rule)) => exact_match(&counts, &entry.kind, rule).map(|m| (rule, m)),
                _ => Err(String::from("the recording does not have the rule")),
            },
            EntryKind::Passed {
                direction,
                flags,
                opcode,
                qpn,
                owner,
                nth,
                ..
            } if flags & LOST != 0 => {
                let base = counts.before.unwrap_or(u32::MAX);
                packet_match(&counts, direction, opcode, (qpn, owner, base), nth)
                    .map(|m| (&dropped, m))
            }
            _ => continue,
        };
        let exported =
            exported.and_then(|(rule, exact)| reproducing_rule(rule, exact, &out.set.rule));
        match exported {
            Ok(rule) => out.set.rule.extend(rule),
            Err(why) => out.missing.push(format!("entry {n}: {why}")),
        }
    }
    out
}

/// Returns the rule that reproduces a firing, to be added to `others`. None if `others` have such a
/// rule already.
fn reproducing_rule(
    rule: &Rule,
    exact: Option<Match>,
    others: &[Rule],
) -> Result<Option<Rule>, String> {
    let is_taken = |name: &str| others.iter().any(|other| other.name == name);
    let reproducing = match exact {
        Some(matches) => {
            let mut names = (others.len() + 1..).map(|n| format!("{} {n}", base_name(rule)));
            Rule {
                name: names.find(|name| !is_taken(name)).unwrap_or_default(),
                optional: false,
                matches,
                action: rule.action.clone(),
            }
        }
        // A rule on time is exact as it is, even if it fires often.
        None if others.contains(rule) => return Ok(None),
        None if is_taken(&rule.name) => {
            return Err(format!("two different rules have the name {:?}", rule.name));
        }
        None => rule.clone(),
    };
    reproducing.check().map_err(|wrong| wrong.to_string())?;
    Ok(Some(reproducing))
}

fn packet_match(
    counts: &OccurrenceCounts,
    direction: Direction,
    opcode: u8,
    (qpn, owner, base): (u32, u32, u32),
    nth: u32,
) -> Result<Option<Match>, String> {
    let mut m = Match {
        direction: Some(direction),
        opcode: vec![packet_name(opcode)],
        packet: Some(nth),
        // A rule may have dropped the packet before the random drop counted it.
        nth: counts
            .packets
            .get(&(owner, direction == Direction::In, opcode, nth))
            .map(|&[rules, random_drop]| rules.max(random_drop)),
        ..Match::default()
    };
    counts.match_qp(&mut m, owner, base, qpn)?;
    Ok(Some(m))
}

/// Returns a match for exactly the event on which a rule fired. None if the match of the rule
/// itself is as exact.
fn exact_match(
    counts: &OccurrenceCounts,
    kind: &EntryKind,
    rule: &Rule,
) -> Result<Option<Match>, String> {
    let EntryKind::Fired {
        rule: number,
        on,
        direction,
        opcode,
        qpn,
        owner,
        base,
        nth,
        ..
    } = *kind
    else {
        return Ok(None);
    };
    match (on, rule.matches.on) {
        (RuleHook::Packet, _) => packet_match(counts, direction, opcode as u8, (qpn, owner, base), nth),
        (RuleHook::Send, _) => {
            let mut m = Match {
                on,
                opcode: vec![work_request_name(opcode as u8)],
                nth: counts.sends.get(&(owner, opcode as u8)).copied(),
                ..Match::default()
            };
            counts.match_qp(&mut m, owner, base, qpn)?;
            Ok(Some(m))
        }
        (RuleHook::Command, _) => {
            let since = counts.since.get(&number).ok_or(
                "the recording begins after the rule was added: begin to record before rules are added",
            )?;
            let before = since.get(&opcode).copied().unwrap_or(0);
            let all = counts.commands.get(&opcode).copied().unwrap_or(0);
            Ok(Some(Match {
                on,
                command: Some(
                    verbena_faults::command_name(opcode).ok_or("the command is unknown")?,
                ),
                // The recording has a command only when it is answered, so this one is not counted
                // yet.
                nth: Some(all - before.min(all) + 1),
                ..Match::default()
            }))
        }
        (RuleHook::Time, RuleHook::Time) if rule.is_injected() => Err(String::from(
            "the driver injected this fault into an object, whose number may be another one in the next run",
        )),
        (RuleHook::Time, RuleHook::Time) => Ok(None),
        _ => Err(String::from(
            "this kind of match cannot be repeated exactly",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::FlightEntry;

    fn rule(name: &str) -> Option<Rule> {
        Some(Rule {
            name: name.into(),
            optional: true,
            matches: Match {
                probability: Some(0.5),
                ..Match::default()
            },
            action: Action::Drop,
        })
    }

    fn passed(owner: u32, nth: u32, flags: u8) -> EntryKind {
        EntryKind::Passed {
            direction: Direction::Out,
            flags,
            opcode: 7,
            qpn: 0x11,
            owner,
            psn: 99 + nth,
            nth,
        }
    }

    fn fired_on(rule: u16, on: RuleHook, opcode: u16, (owner, nth): (u32, u32)) -> EntryKind {
        EntryKind::Fired {
            rule,
            on,
            direction: Direction::Out,
            opcode,
            qpn: 0x11,
            owner,
            base: 2,
            psn: 99 + nth,
            nth,
        }
    }

    fn fired(rule: u16, owner: u32, nth: u32) -> EntryKind {
        fired_on(rule, RuleHook::Packet, 7, (owner, nth))
    }

    fn created(owner: u32) -> EntryKind {
        EntryKind::Created {
            qpn: 0x11,
            owner,
            qp_type: 2,
            send_cqn: 1,
            recv_cqn: 1,
        }
    }

    fn of(kinds: &[EntryKind], rules: &[Option<Rule>]) -> ExportedRules {
        let entries = kinds.iter().map(|&kind| FlightEntry { time_ns: 0, kind });
        let recording = FlightRecording {
            entries: entries.collect(),
            ..FlightRecording::default()
        };
        export_rules(&recording, rules)
    }

    #[test]
    fn a_firing_is_exported_by_queue_pair_packet_and_pass() {
        let out = of(
            &[
                created(3),
                passed(3, 5, 0),
                passed(3, 6, 0),
                passed(3, 5, 0),
                fired(0, 3, 5),
            ],
            &[rule("chance")],
        );
        assert!(out.missing.is_empty());
        let only = &out.set.rule[0];
        assert_eq!(only.name, "chance 1");
        assert!(!only.optional && only.matches.probability.is_none());
        let expected = Match {
            direction: Some(Direction::Out),
            qp_created: Some(1),
            opcode: vec![String::from("RDMA WRITE Middle")],
            packet: Some(5),
            nth: Some(2),
            ..Match::default()
        };
        assert_eq!(only.matches, expected);
        out.set.check().unwrap();
    }

    #[test]
    fn a_random_loss_is_exported_as_a_rule() {
        let out = of(&[created(7), passed(7, 1, LOST)], &[]);
        assert_eq!(out.set.rule[0].matches.qp_created, Some(1));
        assert_eq!(out.set.rule[0].matches.nth, Some(1));
    }

    #[test]
    fn firings_that_cannot_be_exported_are_missing_with_the_reason() {
        for (kinds, why) in [
            (vec![passed(3, 1, 0), fired(0, 3, 1)], "creation of QP 0x11"),
            (vec![created(2), fired(0, 2, 1)], "before the rule"),
            (vec![created(3), fired(9, 3, 1)], "does not have the rule"),
            (
                vec![created(3), EntryKind::Reset, fired(0, 3, 1)],
                "creation",
            ),
        ] {
            let out = of(&kinds, &[rule("x")]);
            assert!(out.set.rule.is_empty());
            assert!(out.missing[0].contains(why), "{:?}", out.missing);
        }
    }

    #[test]
    fn a_rule_on_time_is_exported_once_and_an_invalid_rule_is_missing() {
        let later = Some(Rule {
            name: String::from("later"),
            optional: false,
            matches: Match {
                on: RuleHook::Time,
                after_ms: Some(5),
                ..Match::default()
            },
            action: Action::PortDownMs(1),
        });
        let fired_late = fired_on(0, RuleHook::Time, 0, (3, 0));
        let unknown = fired_on(1, RuleHook::Packet, 0x1f, (3, 1));
        let out = of(
            &[fired_late, fired_late, created(3), unknown],
            &[later, rule("x")],
        );
        assert_eq!(out.set.rule.len(), 1);
        out.set.check().unwrap();
        let [why] = &out.missing[..] else {
            panic!("{:?}", out.missing);
        };
        assert!(why.contains("match.opcode"), "{why}");
    }

    #[test]
    fn exported_rules_have_unique_names() {
        let kinds = [created(3), fired(0, 3, 1), fired(1, 3, 2), fired(0, 3, 3)];
        let out = of(&kinds, &[rule("x"), rule("x 3")]);
        assert_eq!(out.set.rule.len(), 3, "{:?}", out.missing);
        out.set.check().unwrap();
    }

    #[test]
    fn sends_and_commands_are_counted() {
        let create = verbena_abi::cmd::Opcode::CreateQp.to_raw();
        let command = EntryKind::Command {
            opcode: create,
            status: 0,
            syndrome: 0,
            port_up: None,
        };
        let work = EntryKind::Work {
            qpn: 0x11,
            owner: 3,
            index: 0,
            opcode: 0,
            wr_id: 0,
        };
        let added = EntryKind::Rule {
            rule: 0,
            late: false,
        };
        let kinds = [
            command,
            added,
            command,
            fired_on(0, RuleHook::Command, create, (3, 0)),
            created(3),
            work,
            work,
            fired_on(1, RuleHook::Send, 0, (3, 0)),
        ];
        let [refuse, fail] = [Action::Errno(String::from("ENOMEM")), Action::StallMs(1)];
        let rules = [refuse, fail].map(|action| rule("x").map(|rule| Rule { action, ..rule }));
        let out = of(&kinds, &rules);
        assert!(out.missing.is_empty(), "{:?}", out.missing);
        let [first, second] = &out.set.rule[..] else {
            panic!("{:?}", out.set.rule);
        };
        assert_eq!(first.matches.command.as_deref(), Some("CREATE_QP"));
        assert_eq!(first.matches.nth, Some(2));
        assert_eq!(second.matches.opcode, ["RDMA_WRITE"]);
        assert_eq!(second.matches.nth, Some(2));
    }
}
