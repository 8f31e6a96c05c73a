// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Refuses actions that make no sense, or that do not fit their match.

use crate::check::{field_error, wrong_hook_error, CheckResult};
use crate::names::{self, unknown_name_error, Opcodes};
use crate::rule::{
    Action, CompletionFault, Corruption, Direction, HeaderField, IcrcState, Match, RuleHook,
};
use verbena_abi::cqe::WcStatus;
use verbena_abi::wqe::WqeOpcode;
use verbena_transport::wire::opcode::ExtensionHeader;

/// Longest delay, in microseconds.
const MAX_DELAY_US: u64 = 10_000_000;
/// Longest stall, in milliseconds.
const MAX_STALL_MS: u64 = 60_000;
/// Largest number of copies, and of packets by which another is moved.
const MAX_COPIES: u32 = 16;

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
            Action::KillCq => "action.kill_cq",
            Action::StallMs(_) => "action.stall_ms",
            Action::StallDeviceMs(_) => "action.stall_device_ms",
            Action::Withhold => "action.withhold",
            Action::Repeat(_) => "action.repeat",
            Action::Impair(_) => "action.impair",
            Action::Misbehave(_) => "action.misbehave",
        }
    }

    pub(crate) fn check(&self, matches: &Match) -> CheckResult {
        let name = self.field();
        let on: &[RuleHook] = match self {
            Action::Fatal
            | Action::PortDown
            | Action::PortDownMs(_)
            | Action::PortUp
            | Action::Misbehave(_)
            | Action::StallDeviceMs(_) => &[RuleHook::Packet, RuleHook::Command, RuleHook::Time],
            Action::QpError | Action::CqOverflow(_) | Action::KillSrq => {
                &[RuleHook::Packet, RuleHook::Time]
            }
            Action::StallMs(_) => &[RuleHook::Packet, RuleHook::Send, RuleHook::Time],
            Action::Withhold => &[RuleHook::Event, RuleHook::Interrupt],
            Action::Repeat(_) => &[RuleHook::Event],
            Action::KillCq => &[RuleHook::Time],
            Action::Complete(_) => &[RuleHook::Send],
            Action::Errno(_) => &[RuleHook::Command],
            Action::Drop => &[RuleHook::Packet, RuleHook::Local, RuleHook::Uplink],
            Action::DelayUs(_) | Action::Duplicate(_) => &[RuleHook::Packet, RuleHook::Uplink],
            Action::Impair(_) => &[RuleHook::Uplink],
            _ => &[RuleHook::Packet],
        };
        if !on.contains(&matches.on) {
            return field_error(name, wrong_hook_error(matches.on, on));
        }
        let is_whole = matches.qp.is_none() && matches.qp_created.is_none();
        match (self, matches.cq, matches.srq) {
            (Action::KillCq, None, _) => {
                return field_error(
                    name,
                    "applies to a CQ, and the match names none: give match.cq",
                );
            }
            (Action::KillSrq, None, Some(_)) if is_whole => return Ok(()),
            (Action::KillSrq, None, Some(_)) => {
                return field_error(
                    "match.srq",
                    "match.qp names the SRQ already: give only one of the two",
                );
            }
            (Action::KillCq, Some(_), None) if is_whole && matches.peer_qp.is_none() => {
                return Ok(());
            }
            (_, None, None) => {}
            (_, Some(_), _) => {
                return field_error(
                    "match.cq",
                    "only with the action kill_cq and without a queue pair",
                )
            }
            (_, _, Some(_)) => return field_error("match.srq", "only with the action kill_srq"),
        }
        match self {
            Action::DelayUs(us) if !(1..=MAX_DELAY_US).contains(us) => {
                field_error(
                    name,
                    format!("{us} is out of range: 1 to {MAX_DELAY_US}, which is ten seconds"),
                )
            }
            Action::StallMs(ms) | Action::StallDeviceMs(ms) | Action::PortDownMs(ms)
                if !(1..=MAX_STALL_MS).contains(ms) =>
            {
                field_error(
                    name,
                    format!("{ms} is out of range: 1 to {MAX_STALL_MS}, which is a minute"),
                )
            }
            Action::Duplicate(n) | Action::Reorder(n) | Action::Repeat(n)
                if !(1..=MAX_COPIES).contains(n) =>
            {
                field_error(name, format!("{n} is out of range: 1 to {MAX_COPIES}"))
            }
            Action::Corrupt(how) => how.check(matches),
            Action::Misbehave(text) => names::misbehaviour(text)
                .map(|_| ())
                .map_err(|why| (name, why)),
            Action::Impair(how) => how.check().map_err(|why| (name, why)),
            Action::Nak(code) if names::nak_syndrome(code).is_none() => {
                field_error(name, unknown_name_error(code, names::NAKS.iter().copied()))
            }
            Action::Rnr(timer) if timer >> 5 != 0 => {
                field_error(
                    name,
                    format!("{timer} is not a timer code: 0 to 31 (IBTA table 45)"),
                )
            }
            Action::Nak(_) | Action::Rnr(_) => check_nak(name, matches),
            Action::Complete(how) => check_completion(name, how, matches),
            Action::Errno(errno) if names::status_of_errno(errno).is_none() => {
                let all = unknown_name_error(errno, names::ERRNOS.iter().map(|(name, _)| *name));
                field_error(
                    name,
                    format!("{all}; commands of the driver fail with no other errno"),
                )
            }
            Action::QpError | Action::CqOverflow(_) | Action::KillSrq | Action::StallMs(_)
                if matches.on == RuleHook::Time && is_whole =>
            {
                field_error(
                    name,
                    "applies to a queue pair, and the match names none: give match.qp or match.qp_created",
                )
            }
            _ => Ok(()),
        }
    }
}

/// Checks the match of a NAK. Responders send NAKs, so a NAK replaces a request on arrival, or an
/// acknowledgement.
fn check_nak(name: &'static str, matches: &Match) -> CheckResult {
    let opcodes = Opcodes::of(&matches.opcode).unwrap_or_default();
    if matches.opcode.is_empty() {
        return field_error(
            name,
            "needs match.opcode: the requests to refuse, or Acknowledge",
        );
    }
    if opcodes.are_acknowledgements() {
        return Ok(());
    }
    if !opcodes.are_requests() {
        return field_error(
            name,
            "needs a match.opcode that names only requests, or only Acknowledge",
        );
    }
    if matches.packet_direction() == Direction::Out {
        return field_error(
            name,
            "refuses a request when it arrives: set match.direction = \"in\"",
        );
    }
    Ok(())
}

fn check_completion(name: &'static str, how: &CompletionFault, matches: &Match) -> CheckResult {
    if let (CompletionFault::WithCause(error), None) = (how, how.cause()) {
        return field_error(
            "action.complete.vendor_err",
            format!(
                "{:#x} is not a code of this device: `verbenactl explain all` lists the codes",
                error.vendor_err
            ),
        );
    }
    let status = how.status();
    match names::wc_status(status) {
        None => {
            let all = WcStatus::ALL.iter().map(|status| status.verbs_name());
            field_error(name, unknown_name_error(status, all))
        }
        Some(WcStatus::Success) => {
            field_error(name, "IBV_WC_SUCCESS is not an error: name another status")
        }
        Some(WcStatus::WrFlushErr) => field_error(
            name,
            "IBV_WC_WR_FLUSH_ERR only follows another error: name the status of that error",
        ),
        Some(_) => {
            let local = [WqeOpcode::LocalInv, WqeOpcode::FastReg];
            let bits = names::send_opcode_bits(&matches.opcode).unwrap_or_default();
            let only_local = local
                .iter()
                .fold(bits, |bits, op| bits & !(1 << op.to_raw()));
            if only_local == 0 {
                return field_error(
                    "match.opcode",
                    "action.complete does not apply to LOCAL_INV and REG_MR: match another operation, or fail a command with action.errno",
                );
            }
            Ok(())
        }
    }
}

impl Corruption {
    pub(crate) fn check(&self, matches: &Match) -> CheckResult {
        let opcodes = Opcodes::of(&matches.opcode).unwrap_or_default();
        let (field, value) = match (self.field, self.payload) {
            (Some(_), Some(_)) | (None, None) => {
                return field_error(
                    "action.corrupt",
                    "changes one header field or one byte of payload: give field or payload",
                );
            }
            (None, Some(_)) if self.value.is_some_and(|value| value > 0xff) => {
                let value = self.value.unwrap_or_default();
                return field_error(
                    "action.corrupt.value",
                    format!("{value} is too large for a byte: 0 to 255"),
                );
            }
            (None, Some(_)) => {
                if let Some(row) = opcodes
                    .rows()
                    .find(|row| !row.payload && !matches.opcode.is_empty())
                {
                    return field_error(
                        "action.corrupt.payload",
                        format!("{} has no payload: match other packets", row.name),
                    );
                }
                return Ok(());
            }
            (Some(field), None) => (field, self.value),
        };
        let widest = (field.bytes() * 8) as u32;
        let is_too_large = |value: &u64| value.checked_shr(widest).unwrap_or(0) != 0;
        if let Some(value) = value.filter(is_too_large) {
            return field_error(
                "action.corrupt.value",
                format!(
                    "{value:#x} is too large: {} has {widest} bits",
                    field.name()
                ),
            );
        }
        let needs: &[ExtensionHeader] = match field {
            HeaderField::Opcode | HeaderField::Pkey | HeaderField::DestQp | HeaderField::Psn => {
                return Ok(())
            }
            HeaderField::Va | HeaderField::Rkey => {
                &[ExtensionHeader::Reth, ExtensionHeader::AtomicEth]
            }
            HeaderField::DmaLength => &[ExtensionHeader::Reth],
            HeaderField::Syndrome | HeaderField::Msn => &[ExtensionHeader::Aeth],
            HeaderField::OriginalData => &[ExtensionHeader::AtomicAckEth],
            HeaderField::Qkey => return Ok(()),
        };
        let has = |row: &&verbena_transport::wire::opcode::OpcodeRow| {
            row.headers.iter().any(|h| needs.contains(h))
        };
        if matches.opcode.is_empty() || !opcodes.rows().any(|row| has(&row)) {
            return field_error(
                "match.opcode",
                format!("has to name packets that have the field {}", field.name()),
            );
        }
        Ok(())
    }

    /// True if the ICRC matches the packet after the change.
    pub fn has_valid_icrc(&self) -> bool {
        self.icrc == IcrcState::Right
    }
}
