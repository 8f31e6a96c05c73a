// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What makes no sense is refused, with the field and the reason.

use crate::names::{self, list, Opcodes};
use crate::rule::{Action, Corrupt, Direction, Field, Icrc, Match, On, Rule, RuleSet, VERSION};
use std::fmt;
use verbena_abi::cmd::Opcode;
use verbena_abi::cqe::WcStatus;
use verbena_abi::wqe::WqeOpcode;
use verbena_roce::wire::opcode::Header;

/// The longest name of a rule, in bytes.
const NAME: usize = 64;
/// The longest delay, in microseconds.
const DELAY: u64 = 10_000_000;
/// The most copies, and packets that another is put behind.
const MANY: u32 = 16;
/// PSNs and QPNs have so many bits.
const BITS: u32 = 24;

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The rule's name, or its place.
    pub rule: String,
    /// The field, as a path.
    pub field: &'static str,
    /// Why.
    pub why: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {:?}: {}: {}", self.rule, self.field, self.why)
    }
}

type Checked = Result<(), (&'static str, String)>;

fn wrong(field: &'static str, why: impl Into<String>) -> Checked {
    Err((field, why.into()))
}

/// Kinds of matches, as rules name them.
fn any_of(on: &[On]) -> String {
    let names: Vec<String> = on
        .iter()
        .map(|on| format!("{on:?}").to_lowercase())
        .collect();
    names.join(" or ")
}

impl RuleSet {
    /// Whether all rules make sense. Errors: the first that does not, and its place.
    ///
    /// # Errors
    ///
    /// The version is another, or a rule is wrong; with the rule's place.
    pub fn check(&self) -> Result<(), (Option<usize>, String)> {
        if self.version != VERSION {
            let why = format!(
                "version: {} is not known, this is version {VERSION}",
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
                    format!("rule {:?}: name: is there twice", rule.name),
                ));
            }
        }
        Ok(())
    }
}

impl Rule {
    /// Whether it makes sense.
    ///
    /// # Errors
    ///
    /// What does not.
    pub fn check(&self) -> Result<(), Wrong> {
        let named = name(&self.name);
        let checked = named
            .and_then(|()| self.matches.check())
            .and_then(|()| self.action.check(&self.matches));
        checked.map_err(|(field, why)| Wrong {
            rule: self.name.clone(),
            field,
            why,
        })
    }
}

fn name(name: &str) -> Checked {
    if name.is_empty() || name.len() > NAME || name.chars().any(char::is_control) {
        return wrong("name", "1 to 64 bytes, none of them control characters");
    }
    Ok(())
}

impl Match {
    fn check(&self) -> Checked {
        self.fields_of_others()?;
        match self.on {
            On::Packet => {
                if let Err(bad) = Opcodes::of(&self.opcode) {
                    let all = list(Opcodes::ALL.rows().map(|row| row.name));
                    return wrong("match.opcode", format!("{bad:?} begins none of {all}, CNP"));
                }
            }
            On::Send => {
                if let Err(bad) = names::sends(&self.opcode) {
                    let all = list(names::SENDS.iter().map(|(name, _)| *name));
                    return wrong("match.opcode", format!("{bad:?} is none of {all}"));
                }
            }
            On::Command => self.check_command()?,
            On::Time if self.after_ms.is_none() => {
                return wrong("match.after_ms", "says when, on = \"time\" needs it");
            }
            On::Time => {}
        }
        self.check_numbers()?;
        self.check_often()
    }

    /// What only other kinds have.
    fn fields_of_others(&self) -> Checked {
        let packets = [
            ("match.direction", self.direction.is_some()),
            ("match.psn", self.psn.is_some()),
            ("match.packet", self.packet.is_some()),
            ("match.message", self.message.is_some()),
            ("match.packet_of_message", self.packet_of_message.is_some()),
        ];
        let others = [
            (
                "match.opcode",
                !self.opcode.is_empty(),
                &[On::Packet, On::Send][..],
            ),
            ("match.command", self.command.is_some(), &[On::Command]),
            (
                "match.qp",
                self.qp.is_some(),
                &[On::Packet, On::Send, On::Time],
            ),
            (
                "match.qp_created",
                self.qp_created.is_some(),
                &[On::Packet, On::Send, On::Time],
            ),
            (
                "match.peer_qp",
                self.peer_qp.is_some(),
                &[On::Packet, On::Send, On::Time],
            ),
            (
                "match.nth",
                self.nth.is_some(),
                &[On::Packet, On::Send, On::Command],
            ),
            (
                "match.every",
                self.every.is_some(),
                &[On::Packet, On::Send, On::Command],
            ),
            (
                "match.probability",
                self.probability.is_some(),
                &[On::Packet, On::Send, On::Command],
            ),
            (
                "match.limit",
                self.limit.is_some(),
                &[On::Packet, On::Send, On::Command],
            ),
            (
                "match.while",
                self.while_rule.is_some(),
                &[On::Packet, On::Send, On::Command],
            ),
        ];
        let packets = packets.map(|(field, said)| (field, said, &[On::Packet][..]));
        for (field, said, on) in packets.into_iter().chain(others) {
            if said && !on.contains(&self.on) {
                return wrong(field, format!("only with on = {}", any_of(on)));
            }
        }
        Ok(())
    }

    fn check_command(&self) -> Checked {
        match &self.command {
            Some(name) if names::command(name).is_none() => {
                let all: Vec<String> = Opcode::ALL.iter().map(|c| names::shout(c.name())).collect();
                wrong(
                    "match.command",
                    format!("{name:?} is none of {}", all.join(", ")),
                )
            }
            _ => Ok(()),
        }
    }

    fn check_numbers(&self) -> Checked {
        for (field, number) in [
            ("match.qp", self.qp),
            ("match.peer_qp", self.peer_qp),
            ("match.psn", self.psn),
        ] {
            if number.is_some_and(|number| number >> BITS != 0) {
                return wrong(field, "has 24 bits");
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
                return wrong(field, "counts from 1");
            }
        }
        if self.qp.is_some() && self.qp_created.is_some() {
            return wrong(
                "match.qp_created",
                "names the queue pair, as match.qp does: give one",
            );
        }
        if self.psn.is_some() && self.packet.is_some() {
            return wrong("match.packet", "names the PSN, as match.psn does: give one");
        }
        Ok(())
    }

    fn check_often(&self) -> Checked {
        let often = [
            ("match.nth", self.nth.is_some()),
            ("match.every", self.every.is_some()),
            ("match.probability", self.probability.is_some()),
        ];
        let mut said = often
            .iter()
            .filter(|(_, said)| *said)
            .map(|(field, _)| field);
        if let (Some(first), Some(second)) = (said.next(), said.next()) {
            return wrong(second, format!("says how often, as {first} does: give one"));
        }
        if self.probability.is_some_and(|p| !(p > 0.0 && p <= 1.0)) {
            return wrong("match.probability", "is above 0 and at most 1");
        }
        if self.nth.is_some() && self.limit.is_some() {
            return wrong("match.limit", "match.nth is once already");
        }
        Ok(())
    }
}

impl Action {
    /// As rules name it.
    fn name(&self) -> &'static str {
        match self {
            Action::Drop => "action.drop",
            Action::DelayUs(_) => "action.delay_us",
            Action::Duplicate(_) => "action.duplicate",
            Action::Reorder(_) => "action.reorder",
            Action::Corrupt(_) => "action.corrupt",
            Action::MarkEcn => "action.mark_ecn",
            Action::Nak(_) => "action.nak",
            Action::Rnr(_) => "action.rnr",
            Action::Complete(_) => "action.complete",
            Action::QpError => "action.qp_error",
            Action::Fatal => "action.fatal",
            Action::Errno(_) => "action.errno",
        }
    }

    fn check(&self, matches: &Match) -> Checked {
        let name = self.name();
        let on: &[On] = match self {
            Action::Fatal => &[On::Packet, On::Command, On::Time],
            Action::QpError => &[On::Packet, On::Time],
            Action::Complete(_) => &[On::Send],
            Action::Errno(_) => &[On::Command],
            _ => &[On::Packet],
        };
        if !on.contains(&matches.on) {
            return wrong(name, format!("happens only to on = {}", any_of(on)));
        }
        let is_whole = matches.qp.is_none() && matches.qp_created.is_none();
        match self {
            Action::DelayUs(us) if !(1..=DELAY).contains(us) => {
                wrong(name, "1 to 10000000, ten seconds")
            }
            Action::Duplicate(n) | Action::Reorder(n) if !(1..=MANY).contains(n) => {
                wrong(name, "1 to 16")
            }
            Action::Corrupt(how) => how.check(matches),
            Action::Nak(code) if names::nak(code).is_none() => {
                let all = list(names::NAKS.iter().copied());
                wrong(name, format!("{code:?} is none of {all}"))
            }
            Action::Rnr(timer) if timer >> 5 != 0 => {
                wrong(name, "a timer code has 5 bits (IBTA table 45)")
            }
            Action::Nak(_) | Action::Rnr(_) => answers(name, matches),
            Action::Complete(status) => complete(name, status, matches),
            Action::Errno(errno) if names::errno(errno).is_none() => {
                let all = list(names::ERRNOS.iter().map(|(name, _)| *name));
                wrong(
                    name,
                    format!("{errno:?} is none of {all}: the driver has no others for commands"),
                )
            }
            Action::QpError if matches.on == On::Time && is_whole => wrong(
                name,
                "says of no queue pair: give match.qp or match.qp_created",
            ),
            _ => Ok(()),
        }
    }
}

/// A NAK is the responder's word: it stands for a request where that arrives, or in the place of an acknowledgement.
fn answers(name: &'static str, matches: &Match) -> Checked {
    let opcodes = Opcodes::of(&matches.opcode).unwrap_or_default();
    if matches.opcode.is_empty() {
        return wrong(
            name,
            "match.opcode has to say which requests are refused, or Acknowledge",
        );
    }
    if opcodes.are_acknowledgements() {
        return Ok(());
    }
    if !opcodes.are_requests() {
        return wrong(name, "match.opcode: requests only, or Acknowledge only");
    }
    if matches.way() == Direction::Out {
        return wrong(
            name,
            "a request is refused where it arrives: match.direction = \"in\"",
        );
    }
    Ok(())
}

fn complete(name: &'static str, status: &str, matches: &Match) -> Checked {
    match names::status(status) {
        None => {
            let all: Vec<String> = WcStatus::ALL
                .iter()
                .map(|s| names::shout(s.name()))
                .collect();
            wrong(name, format!("{status:?} is none of {}", all.join(", ")))
        }
        Some(WcStatus::Success) => wrong(name, "SUCCESS is no fault"),
        Some(WcStatus::WrFlushErr) => wrong(name, "flushing is the end of what has failed already"),
        Some(_) => {
            let local = [WqeOpcode::LocalInv, WqeOpcode::FastReg];
            let bits = names::sends(&matches.opcode).unwrap_or_default();
            let only_local = local
                .iter()
                .fold(bits, |bits, op| bits & !(1 << op.to_raw()));
            if only_local == 0 {
                return wrong(
                    "match.opcode",
                    "what a process cannot post fails by action.errno of its command",
                );
            }
            Ok(())
        }
    }
}

impl Corrupt {
    fn check(&self, matches: &Match) -> Checked {
        let opcodes = Opcodes::of(&matches.opcode).unwrap_or_default();
        let (field, value) = match (self.field, self.payload) {
            (Some(_), Some(_)) | (None, None) => {
                return wrong("action.corrupt", "give field, or payload");
            }
            (None, Some(_)) if self.value.is_some() => {
                return wrong("action.corrupt.value", "of a payload a bit is flipped");
            }
            (None, Some(_)) => {
                if let Some(row) = opcodes
                    .rows()
                    .find(|row| !row.payload && !matches.opcode.is_empty())
                {
                    return wrong("action.corrupt.payload", format!("{} has none", row.name));
                }
                return Ok(());
            }
            (Some(field), None) => (field, self.value),
        };
        let widest = (field.bytes() * 8) as u32;
        if value.is_some_and(|value| value.checked_shr(widest).unwrap_or(0) != 0) {
            return wrong(
                "action.corrupt.value",
                format!("{} has {widest} bits", field.name()),
            );
        }
        let needs: &[Header] = match field {
            Field::Opcode | Field::Pkey | Field::DestQp | Field::Psn => return Ok(()),
            Field::Va | Field::Rkey => &[Header::Reth, Header::AtomicEth],
            Field::DmaLength => &[Header::Reth],
            Field::Syndrome | Field::Msn => &[Header::Aeth],
            Field::Qkey => return Ok(()),
        };
        let has =
            |row: &&verbena_roce::wire::opcode::Row| row.headers.iter().any(|h| needs.contains(h));
        if matches.opcode.is_empty() || !opcodes.rows().any(|row| has(&row)) {
            return wrong(
                "match.opcode",
                format!("has to name packets that have the field {}", field.name()),
            );
        }
        Ok(())
    }

    /// Whether the ICRC is that of what is in the packet afterwards.
    pub fn is_right(&self) -> bool {
        self.icrc == Icrc::Right
    }
}
