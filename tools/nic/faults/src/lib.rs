// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The rules of fault injection: which fault happens to which packet or operation, when, and
//! how often.
//!
//! A rule is data: a match and an action ([`Rule`]). `verbena_protocol` reads rules from files.
//! [`check`](Rule::check) refuses rules that cannot work. A [`Table`] has the rules of a device,
//! sorted by the hook at which they apply. The device passes each packet and operation to the table
//! ([`Passing`]), and the table returns the fault to inject ([`Effect`]). This crate uses no clock,
//! no socket and no packets: the same rules, seed and calls give the same effects.
#![forbid(unsafe_code)]

mod actions;
pub mod alter;
mod check;
mod dice;
mod effect;
mod expand;
mod impair;
mod names;
mod near;
mod rule;
mod table;
mod track;

pub use check::Wrong;
pub use effect::{Effect, Whom};
pub use impair::{Impair, MAX_DELAY, MILLION, MIN_RATE};
pub use names::{command_name, nak_name, not_available, send_name, MISBEHAVIOURS, NOT_AVAILABLE};
pub use near::{near, nearest, plain};
pub use rule::{
    Action, Because, Complete, Corrupt, Direction, Field, Icrc, Injected, Match, On, Queue, Rule,
    RuleSet, VERSION,
};
pub use table::{name_is_taken, Party, Passing, Sequence, Table, Told, LOSS_OPTION, MAX_RULES};
