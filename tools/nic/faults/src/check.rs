// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Refuses rules that make no sense, with the field and the reason.

use crate::names::{self, unknown_name_error, Opcodes};
use crate::rule::{Match, Rule, RuleHook, RuleSet, VERSION};
use std::fmt;
use verbena_abi::cmd::Opcode;
use verbena_abi::eqe::EventType;

/// Longest name of a rule, in bytes.
const MAX_NAME_BYTES: usize = 64;
/// Number of bits of PSNs and QPNs.
const PSN_AND_QPN_BITS: u32 = 24;

/// The error in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// Name of the rule, or its place.
    pub rule: String,
    /// Path of the wrong field.
    pub field: &'static str,
    /// Reason why the field is wrong.
    pub why: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {:?}: {}: {}", self.rule, self.field, self.why)
    }
}

pub(crate) type CheckResult = Result<(), (&'static str, String)>;

pub(crate) fn field_error(field: &'static str, why: impl Into<String>) -> CheckResult {
    Err((field, why.into()))
}

/// Returns the error of a field or action that is not possible with this kind of match.
pub(crate) fn wrong_hook_error(given: RuleHook, possible: &[RuleHook]) -> String {
    format!(
        "is not possible with on = {}: use on = {}",
        join_hooks(&[given]),
        join_hooks(possible)
    )
}

/// Formats kinds of matches as rules name them.
fn join_hooks(on: &[RuleHook]) -> String {
    let names: Vec<String> = on
        .iter()
        .map(|on| format!("{on:?}").to_lowercase())
        .collect();
    names.join(" or ")
}

impl RuleSet {
    /// Checks that all rules make sense.
    ///
    /// # Errors
    ///
    /// The version is not known, or a rule is wrong. The error has the place of the first wrong
    /// rule.
    pub fn check(&self) -> Result<(), (Option<usize>, String)> {
        if self.version != VERSION {
            let why = format!(
                "version: {} is not known: this program reads version {VERSION}",
                self.version
            );
            return Err((None, why));
        }
        for (n, rule) in self.rule.iter().enumerate() {
            rule.check().map_err(|wrong| (Some(n), wrong.to_string()))?;
            let before = self.rule.iter().take(n);
            if before.into_iter().any(|other| other.name == rule.name) {
                return Err((
                    Some(n),
                    format!(
                        "rule {:?}: name: an earlier rule has this name: choose another",
                        rule.name
                    ),
                ));
            }
        }
        Ok(())
    }
}

impl Rule {
    /// Checks that the rule makes sense.
    ///
    /// # Errors
    ///
    /// The error names the wrong field and the reason.
    pub fn check(&self) -> Result<(), RuleError> {
        let named = name(&self.name);
        let checked = named
            .and_then(|()| self.matches.check())
            .and_then(|()| self.action.check(&self.matches));
        checked.map_err(|(field, why)| RuleError {
            rule: self.name.clone(),
            field,
            why,
        })
    }
}

fn name(name: &str) -> CheckResult {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        return field_error(
            "name",
            format!(
                "is not valid: a name has 1 to {MAX_NAME_BYTES} bytes and no control characters"
            ),
        );
    }
    Ok(())
}

impl Match {
    fn check(&self) -> CheckResult {
        self.check_fields()?;
        match self.on {
            RuleHook::Packet | RuleHook::Local => {
                if let Err(bad) = Opcodes::of(&self.opcode) {
                    let all: Vec<_> = Opcodes::ALL.rows().map(|row| row.name).collect();
                    let all = all.into_iter().chain(["CNP"]);
                    return field_error("match.opcode", unknown_name_error(bad, all));
                }
            }
            RuleHook::Send => {
                if let Err(bad) = names::send_opcode_bits(&self.opcode) {
                    let all = names::SENDS.iter().map(|(name, _)| *name);
                    return field_error("match.opcode", unknown_name_error(bad, all));
                }
            }
            RuleHook::Command => self.check_command()?,
            RuleHook::Event => {
                if let Err(bad) = names::event_bits(&self.event) {
                    let all = EventType::ALL.iter().map(|event| event.verbs_name());
                    return field_error("match.event", unknown_name_error(bad, all));
                }
            }
            RuleHook::Time if self.after_ms.is_none() => {
                return field_error(
                    "match.after_ms",
                    "is missing: on = \"time\" needs the time of the action",
                );
            }
            RuleHook::Time | RuleHook::Interrupt | RuleHook::Uplink => {}
        }
        self.check_numbers()?;
        self.check_frequency()
    }

    /// Refuses fields that belong to other kinds of matches.
    fn check_fields(&self) -> CheckResult {
        let packets = [
            ("match.psn", self.psn.is_some()),
            ("match.packet", self.packet.is_some()),
            ("match.message", self.message.is_some()),
            ("match.packet_of_message", self.packet_of_message.is_some()),
            ("match.byte", self.byte.is_some()),
        ];
        let queue_pairs = &[
            RuleHook::Packet,
            RuleHook::Local,
            RuleHook::Send,
            RuleHook::Time,
        ][..];
        let all_but_time = &[
            RuleHook::Packet,
            RuleHook::Local,
            RuleHook::Send,
            RuleHook::Command,
            RuleHook::Event,
            RuleHook::Interrupt,
            RuleHook::Uplink,
        ][..];
        let opcode = !self.opcode.is_empty();
        let others = [
            (
                "match.opcode",
                opcode,
                &[RuleHook::Packet, RuleHook::Local, RuleHook::Send][..],
            ),
            (
                "match.direction",
                self.direction.is_some(),
                &[RuleHook::Packet],
            ),
            (
                "match.command",
                self.command.is_some(),
                &[RuleHook::Command],
            ),
            ("match.event", !self.event.is_empty(), &[RuleHook::Event]),
            (
                "match.vector",
                self.vector.is_some(),
                &[RuleHook::Interrupt],
            ),
            ("match.uplink", self.uplink.is_some(), &[RuleHook::Uplink]),
            ("match.cq", self.cq.is_some(), &[RuleHook::Time]),
            ("match.srq", self.srq.is_some(), &[RuleHook::Time]),
            ("match.qp", self.qp.is_some(), queue_pairs),
            ("match.qp_created", self.qp_created.is_some(), queue_pairs),
            ("match.peer_qp", self.peer_qp.is_some(), queue_pairs),
            ("match.nth", self.nth.is_some(), all_but_time),
            ("match.every", self.every.is_some(), all_but_time),
            (
                "match.probability",
                self.probability.is_some(),
                all_but_time,
            ),
            ("match.limit", self.limit.is_some(), all_but_time),
            ("match.while", self.while_rule.is_some(), all_but_time),
        ];
        let packets = packets
            .map(|(field, is_given)| (field, is_given, &[RuleHook::Packet, RuleHook::Local][..]));
        for (field, is_given, on) in packets.into_iter().chain(others) {
            if is_given && !on.contains(&self.on) {
                return field_error(field, wrong_hook_error(self.on, on));
            }
        }
        Ok(())
    }

    fn check_command(&self) -> CheckResult {
        match &self.command {
            Some(name) if names::command_opcode(name).is_none() => {
                let all: Vec<String> = Opcode::ALL
                    .iter()
                    .map(|c| names::to_upper_snake_case(c.name()))
                    .collect();
                field_error(
                    "match.command",
                    unknown_name_error(name, all.iter().map(String::as_str)),
                )
            }
            _ => Ok(()),
        }
    }

    fn check_numbers(&self) -> CheckResult {
        for (field, number) in [
            ("match.qp", self.qp),
            ("match.peer_qp", self.peer_qp),
            ("match.psn", self.psn),
        ] {
            if let Some(number) = number.filter(|number| number >> PSN_AND_QPN_BITS != 0) {
                return field_error(
                    field,
                    format!("{number:#x} is too large: the number has {PSN_AND_QPN_BITS} bits"),
                );
            }
        }
        for (field, number) in [
            ("match.qp_created", self.qp_created),
            ("match.packet", self.packet.map(u64::from)),
            ("match.message", self.message),
            ("match.packet_of_message", self.packet_of_message),
            ("match.nth", self.nth),
            ("match.every", self.every),
            ("match.limit", self.limit),
        ] {
            if number == Some(0) {
                return field_error(field, "0 is not valid: counting begins at 1");
            }
        }
        if self.qp.is_some() && self.qp_created.is_some() {
            return field_error(
                "match.qp_created",
                "match.qp names the queue pair already: give only one of the two",
            );
        }
        if self.psn.is_some() && self.packet.is_some() {
            return field_error(
                "match.packet",
                "match.psn names the PSN already: give only one of the two",
            );
        }
        Ok(())
    }

    fn check_frequency(&self) -> CheckResult {
        let often = [
            ("match.nth", self.nth.is_some()),
            ("match.every", self.every.is_some()),
            ("match.probability", self.probability.is_some()),
        ];
        let mut given = often
            .iter()
            .filter(|(_, is_given)| *is_given)
            .map(|(field, _)| field);
        if let (Some(first), Some(second)) = (given.next(), given.next()) {
            return field_error(
                second,
                format!("{first} is given too: give only one of the two"),
            );
        }
        if let Some(p) = self.probability.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
            return field_error(
                "match.probability",
                format!("{p} is out of range: above 0 and at most 1"),
            );
        }
        if self.nth.is_some() && self.limit.is_some() {
            return field_error(
                "match.limit",
                "a rule with match.nth fires once: remove match.limit",
            );
        }
        Ok(())
    }
}
