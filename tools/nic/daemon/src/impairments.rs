// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The rules on frames that leave by an uplink, of which `verbenactl impair` makes some: the
//! control socket adds them, and all frames that leave by an uplink pass through them, on any
//! thread. The engine sends the delayed frames when they are due. Without such rules the cost is
//! one load of a word.

mod impairment_queue;

use crate::switch::MAX_WIRES;
use impairment_queue::ImpairmentQueue;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use verbena_faults::{
    Action, Effect, Match, Rule, RuleHook, RuleSet, RuleStatus, RuleTable, VERSION,
};
use verbena_protocol::{Impairment, ImpairmentsReply, UplinkImpairment};

/// An uplink with rules.
#[derive(Debug)]
struct UplinkSlot {
    queue: ImpairmentQueue,
    /// Number of the rule that impairs the uplink, if there is one.
    rule: Option<u64>,
    /// True if the rules were removed, and the uplink only sends its delayed frames.
    is_draining: bool,
}

/// The rules and the uplinks.
#[derive(Debug, Default)]
struct UplinkRules {
    table: RuleTable,
    /// Each uplink that has rules or delayed frames.
    slots: Vec<Option<UplinkSlot>>,
}

/// The rules on all uplinks. See the [module](self).
#[derive(Debug, Default)]
pub struct Impairments {
    any: AtomicBool,
    state: Mutex<UplinkRules>,
    changes: Mutex<()>,
}

fn is_for(rule: &Rule, uplink: usize) -> bool {
    rule.matches.uplink.is_none_or(|n| usize::from(n) == uplink)
}

/// Returns the name of the rule that `verbenactl impair` makes for an uplink.
fn name(uplink: usize) -> String {
    format!("verbenactl impair {uplink}")
}

impl UplinkRules {
    /// Returns the rule that impairs an uplink, with its number.
    fn impairment(&self, uplink: usize) -> Option<(u64, Impairment)> {
        self.table
            .rules()
            .find_map(|(id, rule, seed)| match rule.action {
                Action::Impair(how) if is_for(rule, uplink) => {
                    Some((id, Impairment::of(how, seed)))
                }
                _ => None,
            })
    }

    /// Returns the numbers of the uplinks that a rule or a command is for.
    fn select_uplinks(&self, uplink: Option<u8>) -> Result<Range<usize>, String> {
        let count = self.slots.len();
        if count == 0 {
            return Err(String::from(
                "the NIC has no uplink to impair: start verbena-nic with --uplink, or with --drop to lose local packets",
            ));
        }
        match uplink.map(usize::from) {
            None => Ok(0..count),
            Some(n) if n < count => Ok(n..n + 1),
            Some(n) => Err(format!(
                "there is no uplink {n}: there are {count}, numbered from 0"
            )),
        }
    }

    /// Checks that rules can be added: their uplinks exist, and an uplink has one impairment.
    fn check(&self, set: &RuleSet) -> Result<(), String> {
        let mut impairs: Vec<(String, usize)> = Vec::new();
        for (_, rule, _) in self.table.rules() {
            let uplinks = (0..self.slots.len()).filter(|n| is_for(rule, *n));
            if matches!(rule.action, Action::Impair(_)) {
                impairs.extend(uplinks.map(|n| (rule.name.clone(), n)));
            }
        }
        for rule in &set.rule {
            let named = |why: String| format!("rule {:?}: match.uplink: {why}", rule.name);
            let uplinks = self.select_uplinks(rule.matches.uplink).map_err(named)?;
            if !matches!(rule.action, Action::Impair(_)) {
                continue;
            }
            if let Some((other, n)) = impairs.iter().find(|(_, n)| uplinks.contains(n)) {
                return Err(named(format!(
                    "uplink {n} already has the impairment of rule {other:?}: remove that rule first"
                )));
            }
            impairs.extend(uplinks.map(|n| (rule.name.clone(), n)));
        }
        Ok(())
    }

    /// Brings the uplinks in line with the rules, after the rules have changed. The uplinks of
    /// `flushed` send all that waits at once in any case, the others if they have another
    /// impairment.
    fn update_uplinks(&mut self, flushed: Range<usize>) {
        for n in 0..self.slots.len() {
            let how = self.impairment(n);
            let has_rules = self.table.rules().any(|(_, rule, _)| is_for(rule, n));
            let Some(slot_entry) = self.slots.get_mut(n) else {
                return;
            };
            let rule = how.map(|(id, _)| id);
            match slot_entry {
                None if !has_rules => continue,
                Some(slot)
                    if slot.rule == rule
                        && slot.is_draining != has_rules
                        && !flushed.contains(&n) =>
                {
                    continue
                }
                _ => {}
            }
            let before = slot_entry.take().map(|slot| slot.queue);
            let how = how.map(|(_, how)| how).unwrap_or_default();
            *slot_entry = Some(UplinkSlot {
                queue: ImpairmentQueue::replacing(before, how),
                rule,
                is_draining: !has_rules,
            });
        }
    }
}

impl Impairments {
    fn state(&self) -> MutexGuard<'_, UplinkRules> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Applies changed rules to the uplinks, see [`UplinkRules::update_uplinks`].
    fn apply(&self, state: &mut UplinkRules, flushed: Range<usize>) {
        state.update_uplinks(flushed);
        self.store_any(state);
    }

    fn store_any(&self, state: &UplinkRules) {
        let any = state.slots.iter().any(Option::is_some);
        self.any.store(any, Ordering::Release);
    }

    /// Locks the rules of uplinks against changes by other connections, while a file is added that
    /// also has rules of a device. Frames are not held up.
    pub fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the number of uplinks, none of which has rules.
    pub fn set_uplinks(&self, count: usize) {
        let mut state = self.state();
        *state = UplinkRules::default();
        state
            .slots
            .resize_with(count.min(MAX_WIRES.into()), || None);
        self.store_any(&state);
    }

    /// Sets the impairment of an uplink or, for `None`, of all uplinks, by a rule for each; removes
    /// all rules of the uplink if `how` is `None`. Frames that an earlier rule has delayed become
    /// due at once.
    ///
    /// # Errors
    ///
    /// There is no such uplink, or the impairment is not valid, or a rule is for this uplink and
    /// others; then nothing has changed.
    pub fn set(&self, uplink: Option<u8>, how: Option<Impairment>) -> Result<(), String> {
        how.map_or(Ok(()), |how| how.check())?;
        let mut state = self.state();
        let chosen = state.select_uplinks(uplink)?;
        let shared = state
            .table
            .rules()
            .find(|(_, rule, _)| rule.matches.uplink.is_none());
        if let (Some((_, rule, _)), Some(_)) = (shared, uplink) {
            return Err(format!(
                "rule {0:?} is for all uplinks: remove it first with `verbenactl fault remove {0:?}`",
                rule.name
            ));
        }
        let removed = state.table.rules().filter(|(_, rule, _)| {
            let mut chosen = chosen.clone();
            chosen.any(|n| is_for(rule, n) || rule.name == name(n))
        });
        let removed: Vec<String> = removed.map(|(_, rule, _)| rule.name.clone()).collect();
        for name in removed {
            state.table.remove(&name);
        }
        if let Some(how) = how {
            let rule = chosen.clone().map(|n| Rule {
                name: name(n),
                optional: true,
                matches: Match {
                    on: RuleHook::Uplink,
                    uplink: u8::try_from(n).ok(),
                    ..Match::default()
                },
                action: Action::Impair(how.action()),
            });
            let set = RuleSet {
                version: VERSION,
                seed: how.seed,
                rule: rule.collect(),
            };
            state.table.add(&set, None, 0, 0)?;
        }
        self.apply(&mut state, chosen);
        Ok(())
    }

    /// Checks that [`add_rules`](Self::add_rules) would add rules.
    ///
    /// # Errors
    ///
    /// There is no such uplink, or a rule conflicts with the rules that are there.
    pub fn check_rules(&self, set: &RuleSet) -> Result<(), String> {
        let state = self.state();
        state.check(set)?;
        state.table.check_add(set)
    }

    /// Adds all rules of a set or none. Rules with an owner are removed with it.
    ///
    /// # Errors
    ///
    /// There is no such uplink, or a rule conflicts with the rules that are there.
    pub fn add_rules(&self, set: &RuleSet, owner: Option<u64>, now: u64) -> Result<(), String> {
        let mut state = self.state();
        state.check(set)?;
        state.table.add(set, owner, now, 0)?;
        self.apply(&mut state, 0..0);
        Ok(())
    }

    /// Removes a rule. Returns false if there is no rule with this name.
    pub fn remove_rule(&self, name: &str) -> bool {
        self.remove(|table| table.remove(name))
    }

    /// Removes all rules of an owner.
    pub fn remove_rules_of(&self, owner: u64) {
        self.remove(|table| table.remove_of_owner(owner));
    }

    /// Removes all rules.
    pub fn clear_rules(&self) {
        self.remove(RuleTable::clear);
    }

    fn remove<T>(&self, remove: impl FnOnce(&mut RuleTable) -> T) -> T {
        let mut state = self.state();
        let removed = remove(&mut state.table);
        self.apply(&mut state, 0..0);
        removed
    }

    /// Returns the rules with their counts, in order.
    pub fn rules(&self) -> Vec<RuleStatus> {
        self.state().table.statuses()
    }

    /// Returns the impairments of all uplinks.
    pub fn report(&self) -> ImpairmentsReply {
        let state = self.state();
        let uplinks = (0u8..).zip(state.slots.iter()).map(|(uplink, slot)| {
            let queue = slot.as_ref().filter(|slot| slot.rule.is_some());
            let queue = queue.map(|slot| &slot.queue);
            UplinkImpairment {
                uplink,
                impairment: queue.map(ImpairmentQueue::impairment),
                counters: queue.map(ImpairmentQueue::counters),
            }
        });
        ImpairmentsReply {
            uplinks: uplinks.collect(),
        }
    }

    /// Takes frames that are to leave by an uplink. Returns false if the uplink has no rules, and
    /// takes no frame then.
    pub fn impair(&self, uplink: usize, frames: &[&[u8]], now: u64) -> bool {
        if !self.has_any() {
            return false;
        }
        let mut state = self.state();
        let UplinkRules { table, slots } = &mut *state;
        let Some(Some(slot)) = slots.get_mut(uplink) else {
            return false;
        };
        let number = u8::try_from(uplink).unwrap_or(u8::MAX);
        for frame in frames {
            match table.on_uplink_frame(now, number) {
                Some(Effect::Impair) => slot.queue.impair(frame, now),
                Some(Effect::Drop) => {}
                Some(Effect::Delay(ns)) => slot.queue.delay(frame, now, ns),
                Some(Effect::Duplicate(n)) => {
                    (0..=n).for_each(|_| slot.queue.delay(frame, now, 0));
                }
                _ => slot.queue.delay(frame, now, 0),
            }
        }
        true
    }

    /// Returns the time at which [`Impairments::release`] has a frame to send.
    pub fn next_due(&self) -> Option<u64> {
        if !self.has_any() {
            return None;
        }
        let state = self.state();
        let due = state
            .slots
            .iter()
            .flatten()
            .map(|slot| slot.queue.next_due());
        due.flatten().min()
    }

    /// Sends the frames that are due, at most `most` by each uplink. `send` returns how many frames
    /// the uplink has accepted.
    pub fn release(&self, now: u64, most: usize, mut send: impl FnMut(usize, &[&[u8]]) -> usize) {
        if !self.has_any() {
            return;
        }
        let mut state = self.state();
        for (uplink, slot_entry) in state.slots.iter_mut().enumerate() {
            let Some(slot) = slot_entry else {
                continue;
            };
            slot.queue.release(now, most, |frames| send(uplink, frames));
            if slot.is_draining && slot.queue.next_due().is_none() {
                *slot_entry = None;
            }
        }
        self.store_any(&state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delay(delay_ns: u64) -> Option<Impairment> {
        Some(Impairment {
            delay_ns,
            ..Impairment::default()
        })
    }

    fn released(all: &Impairments, now: u64) -> Vec<(usize, u8)> {
        let mut left = vec![];
        all.release(now, 9, |uplink, frames| {
            left.extend(frames.iter().map(|frame| (uplink, frame[0])));
            frames.len()
        });
        left
    }

    #[test]
    fn each_uplink_has_its_own_impairment() {
        let all = Impairments::default();
        assert!(all.set(None, delay(5)).unwrap_err().contains("--uplink"));
        all.set_uplinks(3);
        assert!(!all.impair(1, &[&[1]], 0) && all.next_due().is_none());
        all.set(Some(1), delay(5)).unwrap();
        assert!(!all.impair(0, &[&[1]], 0) && !all.impair(9, &[&[1]], 0));
        assert!(all.impair(1, &[&[1], &[2]], 10));
        assert_eq!((released(&all, 14), all.next_due()), (vec![], Some(15)));
        assert_eq!(released(&all, 15), [(1, 1), (1, 2)]);
        let report = all.report().uplinks;
        let impaired: Vec<_> = report.iter().map(|u| u.impairment.is_some()).collect();
        assert_eq!(impaired, [false, true, false]);
        assert_eq!(report[1].counters.unwrap().frames, 2);
        let error = all.set(Some(3), delay(5)).unwrap_err();
        assert!(
            error.contains("uplink 3") && error.contains("are 3"),
            "{error}"
        );
        let nonsense = Some(Impairment {
            loss_ppm: u32::MAX,
            ..Impairment::default()
        });
        assert!(all.set(None, nonsense).is_err());
        assert_eq!(all.report().uplinks, report);
    }

    #[test]
    fn after_an_impairment_is_off_waiting_frames_leave_first_and_later_ones_directly() {
        let all = Impairments::default();
        all.set_uplinks(2);
        all.set(None, delay(1000)).unwrap();
        all.impair(0, &[&[1], &[2]], 0);
        all.impair(1, &[&[3]], 0);
        all.set(Some(0), delay(2000)).unwrap();
        assert_eq!(released(&all, 1), [(0, 1), (0, 2)]);
        all.impair(0, &[&[4]], 1);
        all.set(None, None).unwrap();
        assert!(all.report().uplinks.iter().all(|u| u.impairment.is_none()));
        // A frame waits after the frames before it, until these have left.
        assert!(all.impair(0, &[&[5]], 2));
        assert_eq!(released(&all, 2), [(0, 4), (0, 5), (1, 3)]);
        assert!(!all.has_any() && !all.impair(0, &[&[6]], 3));
    }

    fn file(rules: &str) -> RuleSet {
        verbena_protocol::read_toml(&format!("version = 1\nseed = 7\n{rules}")).unwrap()
    }

    fn rule(name: &str, matches: &str, action: &str) -> String {
        format!("[[rule]]\nname = {name:?}\nmatch = {{ on = \"uplink\"{matches} }}\naction = {action}\n")
    }

    #[test]
    fn the_command_is_a_rule_for_each_uplink_and_a_rule_is_reported_as_the_command() {
        let all = Impairments::default();
        all.set_uplinks(2);
        let how = Impairment {
            loss_ppm: 500_000,
            delay_ns: 5,
            seed: 7,
            ..Impairment::default()
        };
        all.set(None, Some(how)).unwrap();
        let statuses = all.rules();
        assert_eq!(statuses.len(), 2);
        for (n, status) in statuses.iter().enumerate() {
            assert_eq!((&status.rule.name, status.seed), (&name(n), 7));
            assert!(status.rule.optional && status.rule.check().is_ok());
        }
        // The same rule from a file has the same effects.
        let other = Impairments::default();
        other.set_uplinks(2);
        let impair = "{ impair = { loss_ppm = 500000, delay_ns = 5 } }";
        other
            .add_rules(&file(&rule("x", "", impair)), None, 0)
            .unwrap();
        for all in [&all, &other] {
            for n in 0..100 {
                assert!(all.impair(1, &[&[n; 20]], 0) && all.impair(0, &[&[n; 20]], 0));
            }
        }
        assert_eq!(all.report(), other.report());
        assert_eq!(released(&all, 5), released(&other, 5));
        let statuses = [all.rules(), other.rules()].concat();
        let counts = statuses.iter().map(|status| (status.matched, status.fired));
        assert_eq!(
            counts.collect::<Vec<_>>(),
            [(100, 100), (100, 100), (200, 200)]
        );
        // A rule can be removed by its name, and the rest of the command stays.
        assert!(all.remove_rule(&name(0)) && !all.remove_rule(&name(0)));
        let report = all.report().uplinks;
        assert!(report[0].impairment.is_none() && report[1].impairment == Some(how));
    }

    #[test]
    fn rules_count_as_all_others_and_end_with_their_owner() {
        let all = Impairments::default();
        all.set_uplinks(2);
        let drop = rule("lost", ", uplink = 0, every = 3", "\"drop\"");
        let late = rule("late", ", nth = 2", "{ delay_us = 1 }");
        let twice = rule("twice", ", uplink = 1, limit = 1", "{ duplicate = 2 }");
        all.add_rules(&file(&(drop + &late + &twice)), Some(4), 0)
            .unwrap();
        for n in 1..=4 {
            assert!(all.impair(0, &[&[n]], 0));
        }
        assert!(all.impair(1, &[&[5], &[6]], 0));
        let at_once = [(0, 1), (0, 4), (1, 5), (1, 5), (1, 5), (1, 6)];
        assert_eq!(released(&all, 0), at_once);
        assert_eq!(released(&all, 1000), [(0, 2)]);
        let statuses = all.rules();
        let counts = statuses.iter().map(|status| (status.matched, status.fired));
        assert_eq!(counts.collect::<Vec<_>>(), [(4, 1), (6, 1), (2, 1)]);
        assert!(statuses.iter().all(|status| status.while_connected));
        // These rules are not impairments, but the command removes them, too.
        assert!(all
            .report()
            .uplinks
            .iter()
            .all(|one| one.impairment.is_none()));
        let error = all.set(Some(0), None).unwrap_err();
        assert!(
            error.contains("rule \"late\" is for all uplinks"),
            "{error}"
        );
        all.remove_rules_of(5);
        assert_eq!(all.rules().len(), 3);
        all.remove_rules_of(4);
        assert!(all.rules().is_empty());
        released(&all, 2000);
        assert!(!all.has_any());
        all.add_rules(&file(&rule("lost", "", "\"drop\"")), None, 0)
            .unwrap();
        all.set(None, None).unwrap();
        assert!(all.rules().is_empty());
    }

    #[test]
    fn rules_that_conflict_are_refused_and_change_nothing() {
        let all = Impairments::default();
        let impair = "{ impair = { loss_ppm = 1 } }";
        let whole = file(&rule("x", "", impair));
        assert!(all
            .add_rules(&whole, None, 0)
            .unwrap_err()
            .contains("--uplink"));
        all.set_uplinks(2);
        all.set(Some(1), delay(5)).unwrap();
        let report = all.report();
        for (rules, wanted) in [
            (rule("x", ", uplink = 2", impair), "there is no uplink 2"),
            (
                rule("x", "", impair),
                "impairment of rule \"verbenactl impair 1\"",
            ),
            (
                rule("x", ", uplink = 0", impair) + &rule("y", ", uplink = 0", impair),
                "impairment of rule \"x\"",
            ),
            (
                rule(&name(1), ", uplink = 0", "\"drop\""),
                "already has a rule with this name",
            ),
        ] {
            let rules = file(&rules);
            let error = all.check_rules(&rules).unwrap_err();
            assert!(error.contains(wanted), "{error}");
            assert_eq!(all.add_rules(&rules, None, 0).unwrap_err(), error);
            assert_eq!((all.report(), all.rules().len()), (report.clone(), 1));
        }
        // A further rule does not change the counts of the impairment.
        assert!(all.impair(1, &[&[1]], 0));
        all.add_rules(&file(&rule("y", "", "\"drop\"")), None, 0)
            .unwrap();
        assert_eq!(all.report().uplinks[1].counters.unwrap().frames, 1);
    }
}
