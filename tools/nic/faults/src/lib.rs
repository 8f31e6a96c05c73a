// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The rules of fault injection: which fault happens to which packet or operation, when, and
//! how often.
//!
//! A rule is data: a match and an action ([`Rule`]). `verbena_protocol` reads rules from files.
//! [`check`](Rule::check) refuses rules that cannot work. A [`RuleTable`] has the rules of a
//! device, sorted by the hook at which they apply. The device passes each packet and operation to
//! the table ([`PacketAtHook`]), and the table returns the fault to inject ([`Effect`]). This crate
//! uses no clock, no socket and no packets: the same rules, seed and calls give the same effects.
#![forbid(unsafe_code)]

mod actions;
pub mod alter;
mod check;
mod effect;
mod expand;
mod frame_impairment;
mod message_tracker;
mod names;
mod rule;
mod rule_rng;
mod spelling;
mod table;

pub use check::RuleError;
pub use effect::{ActionTarget, Effect};
pub use frame_impairment::{FrameImpairment, MAX_DELAY_NS, MILLION, MIN_RATE_BPS};
pub use names::{command_name, nak_name, not_available, send_name, MISBEHAVIOURS, NOT_AVAILABLE};
pub use rule::{
    Action, CompletionError, CompletionFault, Corruption, Direction, HeaderField, IcrcState,
    InjectedFault, Match, QpQueue, Rule, RuleHook, RuleSet, VERSION,
};
pub use spelling::{most_similar_name, normalized, similar_names};
pub use table::{
    duplicate_name_error, PacketAtHook, QpIdentity, RuleStatus, RuleTable, Sequence, LOSS_OPTION,
    MAX_RULES,
};
