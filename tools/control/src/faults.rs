// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The fault laboratory's rules: added, listed, removed.

use crate::{Question, Request};
use serde::{Deserialize, Serialize};
use verbena_faults::Told;

/// The answer to all requests about rules: those that there are then.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToldRules {
    /// In order.
    pub rules: Vec<Told>,
}

impl Question for ToldRules {
    const REQUEST: Request = Request::Faults;
}

impl ToldRules {
    /// Those that never fired although they are not optional.
    pub fn idle(&self) -> impl Iterator<Item = &Told> {
        let idle = |told: &&Told| told.fired == 0 && !told.rule.optional;
        self.rules.iter().filter(idle)
    }
}
