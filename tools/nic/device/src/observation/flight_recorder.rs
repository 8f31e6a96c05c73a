// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The flight recorder of a device (`verbena_recorder`). In a device without a recorder, each entry
//! that would be recorded costs the check of a pointer.

use std::collections::HashMap;
use verbena_faults::Rule;
use verbena_recorder::{EntryKind, EntryRing, NO_RULE};

/// Largest number of rules whose text is kept. For later rules the entries have no number.
const MAX_RULES: usize = 4096;

/// The flight recorder: see the module.
#[derive(Clone, Debug)]
pub struct FlightRecorder {
    /// Ring of the recorded entries.
    pub ring: EntryRing,
    /// Rules that entries refer to, indexed by number. Removed rules stay here.
    pub rules: Vec<Rule>,
    /// Number of the rule that has a name, or had it last.
    numbers: HashMap<String, u16>,
}

impl FlightRecorder {
    /// Creates a recorder with a ring of `entries` entries.
    pub fn new(entries: usize) -> Self {
        Self {
            ring: EntryRing::new(entries),
            rules: Vec::new(),
            numbers: HashMap::new(),
        }
    }

    /// Records that a rule was added, or with `late` that the rule existed before the recorder.
    pub(super) fn add(&mut self, now: u64, rule: &Rule, late: bool) {
        let known = self.rules.iter().position(|known| known == rule);
        let number = match known {
            Some(number) => number,
            None if self.rules.len() < MAX_RULES => {
                self.rules.push(rule.clone());
                self.rules.len() - 1
            }
            None => NO_RULE.into(),
        };
        let number = u16::try_from(number).unwrap_or(NO_RULE);
        // The map has only names of rules that are in `rules`.
        match number {
            NO_RULE => self.numbers.remove(&rule.name),
            _ => self.numbers.insert(rule.name.clone(), number),
        };
        self.ring.push(now, EntryKind::Rule { rule: number, late });
    }

    /// Returns the number of the rule that has this name, or had it last; `NO_RULE` if there is
    /// none.
    pub(super) fn number(&self, name: &str) -> u16 {
        self.numbers.get(name).copied().unwrap_or(NO_RULE)
    }
}
