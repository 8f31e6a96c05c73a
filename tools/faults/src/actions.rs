// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Refuses actions that make no sense, or that do not fit their match.

use crate::check::{any_of, wrong, Checked};
use crate::names::{self, none_of, Opcodes};
use crate::rule::{Action, Complete, Corrupt, Direction, Field, Icrc, Match, On};
use verbena_abi::cqe::WcStatus;
use verbena_abi::wqe::WqeOpcode;
use verbena_roce::wire::opcode::Header;

/// Longest delay, in microseconds.
const DELAY: u64 = 10_000_000;
/// Longest stall, in milliseconds.
const STALL: u64 = 60_000;
/// Largest number of copies, and of packets by which another is moved.
const MANY: u32 = 16;

impl Action {
    /// Returns the name of the action in rules.
    pub fn name(&self) -> &'static str {
        let field = self.field();
        field.strip_prefix("action.").unwrap_or(field)
    }

    /// Returns the path of the action, for errors.
    fn field(&self) -> &'static str {
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
            Action::PortDown => "action.port_down",
            Action::PortDownMs(_) => "action.port_down_ms",
            Action::PortUp => "action.port_up",
            Action::CqOverflow(_) => "action.cq_overflow",
            Action::KillSrq => "action.kill_srq",
            Action::StallMs(_) => "action.stall_ms",
            Action::StallDeviceMs(_) => "action.stall_device_ms",
            Action::Withhold => "action.withhold",
            Action::Repeat(_) => "action.repeat",
        }
    }

    pub(crate) fn check(&self, matches: &Match) -> Checked {
        let name = self.field();
        let on: &[On] = match self {
            Action::Fatal
            | Action::PortDown
            | Action::PortDownMs(_)
            | Action::PortUp
            | Action::StallDeviceMs(_) => &[On::Packet, On::Command, On::Time],
            Action::QpError | Action::CqOverflow(_) | Action::KillSrq => &[On::Packet, On::Time],
            Action::StallMs(_) => &[On::Packet, On::Send, On::Time],
            Action::Withhold => &[On::Event, On::Interrupt],
            Action::Repeat(_) => &[On::Event],
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
            Action::StallMs(ms) | Action::StallDeviceMs(ms) | Action::PortDownMs(ms)
                if !(1..=STALL).contains(ms) =>
            {
                wrong(name, "1 to 60000, a minute")
            }
            Action::Duplicate(n) | Action::Reorder(n) | Action::Repeat(n)
                if !(1..=MANY).contains(n) =>
            {
                wrong(name, "1 to 16")
            }
            Action::Corrupt(how) => how.check(matches),
            Action::Nak(code) if names::nak(code).is_none() => {
                wrong(name, none_of(code, names::NAKS.iter().copied()))
            }
            Action::Rnr(timer) if timer >> 5 != 0 => {
                wrong(name, "a timer code has 5 bits (IBTA table 45)")
            }
            Action::Nak(_) | Action::Rnr(_) => answers(name, matches),
            Action::Complete(how) => complete(name, how, matches),
            Action::Errno(errno) if names::errno(errno).is_none() => {
                let all = none_of(errno, names::ERRNOS.iter().map(|(name, _)| *name));
                wrong(
                    name,
                    format!("{all}; the driver has no others for commands"),
                )
            }
            Action::QpError | Action::CqOverflow(_) | Action::KillSrq | Action::StallMs(_)
                if matches.on == On::Time && is_whole =>
            {
                wrong(
                    name,
                    "says of no queue pair: give match.qp or match.qp_created",
                )
            }
            _ => Ok(()),
        }
    }
}

/// Checks the match of a NAK. Responders send NAKs, so a NAK replaces a request on arrival, or an
/// acknowledgement.
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

fn complete(name: &'static str, how: &Complete, matches: &Match) -> Checked {
    if how.cause().is_none() {
        return wrong(
            "action.complete.vendor_err",
            "is no code of this device: `verbenactl explain` has them",
        );
    }
    let status = how.status();
    match names::status(status) {
        None => {
            let all = WcStatus::ALL.iter().map(|status| status.verbs_name());
            wrong(name, none_of(status, all))
        }
        Some(WcStatus::Success) => wrong(name, "IBV_WC_SUCCESS is no fault"),
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
    pub(crate) fn check(&self, matches: &Match) -> Checked {
        let opcodes = Opcodes::of(&matches.opcode).unwrap_or_default();
        let (field, value) = match (self.field, self.payload) {
            (Some(_), Some(_)) | (None, None) => {
                return wrong("action.corrupt", "give field, or payload");
            }
            (None, Some(_)) if self.value.is_some_and(|value| value > 0xff) => {
                return wrong("action.corrupt.value", "a byte has 8 bits");
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
            Field::OriginalData => &[Header::AtomicAckEth],
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

    /// True if the ICRC matches the packet after the change.
    pub fn is_right(&self) -> bool {
        self.icrc == Icrc::Right
    }
}
