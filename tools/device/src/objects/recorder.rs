// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The flight recorder of a device (`verbena_record`). A device without one pays a look at a pointer for each thing that it would
//! write down.

use std::collections::HashMap;
use verbena_faults::Rule;
use verbena_record::{Ring, What, NO_RULE};

/// Rules of which more is known than that they fired.
const MAX_RULES: usize = 4096;

/// See the module.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// What happened.
    pub ring: Ring,
    /// The rules that entries name, by number. What was removed stays.
    pub rules: Vec<Rule>,
    /// The number of the rule that has this name, or had it last.
    numbers: HashMap<String, u16>,
}

impl Recorder {
    /// One for so many entries.
    pub fn new(entries: usize) -> Self {
        Self {
            ring: Ring::new(entries),
            rules: Vec::new(),
            numbers: HashMap::new(),
        }
    }

    /// The device was reset.
    pub fn reset(&mut self, now: u64) {
        self.ring.push(now, What::Reset);
    }

    /// A rule was added, or is there already.
    pub fn add(&mut self, now: u64, rule: &Rule, late: bool) {
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
        // Each name is one of `rules`, or is forgotten.
        match number {
            NO_RULE => self.numbers.remove(&rule.name),
            _ => self.numbers.insert(rule.name.clone(), number),
        };
        self.ring.push(now, What::Rule { rule: number, late });
    }

    /// The number of the rule that has this name, or had it last.
    pub fn number(&self, name: &str) -> u16 {
        self.numbers.get(name).copied().unwrap_or(NO_RULE)
    }
}
