// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests that add, list and remove the rules of fault injection.

use crate::{ControlRequest, QueryReply};
use serde::{Deserialize, Serialize};
use verbena_faults::RuleStatus;

/// The answer to all requests about rules: the rules that exist afterwards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RulesReply {
    /// The rules, in their order.
    pub rules: Vec<RuleStatus>,
}

impl QueryReply for RulesReply {
    const REQUEST: ControlRequest = ControlRequest::Faults;
}

impl RulesReply {
    /// Returns the rules that never fired although they are not optional.
    pub fn never_fired(&self) -> impl Iterator<Item = &RuleStatus> {
        let idle = |rule: &&RuleStatus| rule.fired == 0 && !rule.rule.optional;
        self.rules.iter().filter(idle)
    }
}
