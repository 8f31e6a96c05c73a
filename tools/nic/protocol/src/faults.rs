// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests that add, list and remove the rules of the fault laboratory.

use crate::{Question, Request};
use serde::{Deserialize, Serialize};
use verbena_faults::Told;

/// The answer to all requests about rules: the rules that exist afterwards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToldRules {
    /// The rules, in their order.
    pub rules: Vec<Told>,
}

impl Question for ToldRules {
    const REQUEST: Request = Request::Faults;
}

impl ToldRules {
    /// Returns the rules that never fired although they are not optional.
    pub fn idle(&self) -> impl Iterator<Item = &Told> {
        let idle = |told: &&Told| told.fired == 0 && !told.rule.optional;
        self.rules.iter().filter(idle)
    }
}
