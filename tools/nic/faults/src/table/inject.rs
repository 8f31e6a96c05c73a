// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rules of the command INJECT_FAULT. Such a rule ends with the object that it names, or with a
//! reset of the device.

use super::{RuleEntry, RuleTable, MAX_RULES};
use crate::effect::Effect;
use crate::rule::{Rule, RuleHook};

impl RuleTable {
    /// Returns the name of a rule of INJECT_FAULT.
    pub fn injected_name(&self) -> Option<&str> {
        let entry = self.entries.iter().find(|entry| entry.injected);
        entry.map(|entry| entry.rule.name.as_str())
    }

    /// Adds the rule of a fault that the driver injects, in the place of an earlier one of the same
    /// name. A rule on time has fired then, and its effect is returned. False if too many faults
    /// wait for a send.
    pub fn inject(&mut self, rule: &Rule, now: u64) -> (bool, Option<Effect>) {
        self.retain(|entry| !(entry.injected && entry.rule.name == rule.name));
        let injected = self.entries.iter().filter(|entry| entry.injected).count();
        if injected >= MAX_RULES {
            let done = |entry: &RuleEntry| entry.injected && entry.fired > 0;
            let Some(oldest) = self.entries.iter().position(done) else {
                return (false, None);
            };
            self.entries.remove(oldest);
        }
        let Some(entry) = RuleEntry::new(self.next_id, rule, 0, None, now, 0) else {
            return (false, None);
        };
        self.next_id += 1;
        // It fires before rules of users.
        let entry = RuleEntry {
            injected: true,
            ..entry
        };
        let effect = (rule.matches.on == RuleHook::Time).then(|| entry.effect.clone());
        self.entries.insert(0, entry);
        if let (Some(_), Some(entry)) = (&effect, self.entries.first_mut()) {
            (entry.matched, entry.fired) = (1, 1);
        }
        self.last = 0;
        self.index_hooks();
        (true, effect)
    }
}
