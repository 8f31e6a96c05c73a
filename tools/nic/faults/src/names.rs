// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names in rules, and the values behind them in the ABI and in the table of opcodes.

use crate::spelling::most_similar_name;
use verbena_abi::cmd::{CmdStatus, Opcode};
use verbena_abi::cqe::WcStatus;
use verbena_abi::eqe::EventType;
use verbena_abi::wqe::WqeOpcode;
use verbena_transport::wire::opcode::{self, Operation, CNP};

/// Names that users may look for and that do not exist, with the reason or the replacement.
pub const NOT_AVAILABLE: [(&str, &str); 6] = [
    (
        "guest",
        "a rule applies to the guest whose control socket received it",
    ),
    (
        "pid",
        "the device does not know processes: name the queue pair by qp_created",
    ),
    (
        "replace",
        "use corrupt with icrc = \"right\" to change fields and bytes of a response",
    ),
    ("stall", "use stall_ms for a queue pair, or stall_device_ms"),
    (
        "gid_change",
        "the guest's net device sets the addresses: use `ip address add` and `ip address del`",
    ),
    (
        "mtu",
        "the guest's net device sets the MTU: use `ip link set mtu`",
    ),
];

/// Returns the reason why a field or action with this name is not available, if the name is in the
/// list.
pub fn not_available(name: &str) -> Option<&'static str> {
    let found = NOT_AVAILABLE.iter().find(|(known, _)| *known == name);
    found.map(|(_, why)| *why)
}

/// A set of opcodes: operations, with a bit for each, and the CNP, which is not an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Opcodes {
    pub(crate) operations: u32,
    pub(crate) cnp: bool,
}

impl Opcodes {
    /// The set of all opcodes.
    pub(crate) const ALL: Self = Self {
        operations: u32::MAX,
        cnp: true,
    };

    /// Returns the opcodes that have one of these names. The error is the name without an opcode.
    pub(crate) fn of(names: &[String]) -> Result<Self, &str> {
        if names.is_empty() {
            return Ok(Self::ALL);
        }
        let mut all = Self::default();
        for name in names {
            if name.eq_ignore_ascii_case("CNP") {
                all.cnp = true;
                continue;
            }
            let found = rows().filter(|(_, row)| is_name_of_row(name, row.name));
            let bits = found.fold(0, |bits, (operation, _)| bits | 1 << operation);
            if bits == 0 {
                return Err(name);
            }
            all.operations |= bits;
        }
        Ok(all)
    }

    /// True if an opcode is in the set.
    pub(crate) fn has(self, opcode: u8) -> bool {
        if opcode == CNP {
            self.cnp
        } else {
            self.operations & 1 << (opcode & opcode::OPERATION) != 0
        }
    }

    /// True if all opcodes of the set are requests.
    pub(crate) fn are_requests(self) -> bool {
        !self.cnp && self.rows().all(|row| !row.operation.is_response())
    }

    /// True if all opcodes of the set are acknowledgements.
    pub(crate) fn are_acknowledgements(self) -> bool {
        !self.cnp
            && self
                .rows()
                .all(|row| row.operation == Operation::Acknowledge)
    }

    /// Returns the rows of the table for this set.
    pub(crate) fn rows(self) -> impl Iterator<Item = &'static opcode::OpcodeRow> {
        let of = move |operation: u8| self.operations & 1 << operation != 0;
        rows().filter_map(move |(operation, row)| of(operation).then_some(row))
    }
}

fn rows() -> impl Iterator<Item = (u8, &'static opcode::OpcodeRow)> {
    let row = |operation| {
        Some((
            operation,
            opcode::lookup(opcode::service::RC | operation)?.1,
        ))
    };
    (0..=opcode::OPERATION).filter_map(row)
}

/// True if a name is that of a row, or consists of its first words.
fn is_name_of_row(name: &str, row: &str) -> bool {
    let head = row.get(..name.len());
    let rest = row.get(name.len()..).unwrap_or_default();
    head.is_some_and(|head| head.eq_ignore_ascii_case(name))
        && (rest.is_empty() || rest.starts_with(' '))
}

/// Converts `CreateQp` to `CREATE_QP`.
pub(crate) fn to_upper_snake_case(name: &str) -> String {
    let mut loud = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !loud.is_empty() {
            loud.push('_');
        }
        loud.push(c.to_ascii_uppercase());
    }
    loud
}

/// Returns the command with a name.
pub(crate) fn command_opcode(name: &str) -> Option<Opcode> {
    let all = Opcode::ALL.iter().copied();
    all.into_iter()
        .find(|code| to_upper_snake_case(code.name()) == name)
}

/// Returns the completion status with a name like `IBV_WC_GENERAL_ERR` or `GENERAL_ERR`.
pub(crate) fn wc_status(name: &str) -> Option<WcStatus> {
    let mut all = WcStatus::ALL.iter().copied();
    all.find(|status| is_named(name, "IBV_WC_", status.verbs_name()))
}

/// True if a name is that of the verbs, with or without its prefix.
fn is_named(name: &str, prefix: &str, verbs_name: &str) -> bool {
    name == verbs_name || verbs_name.strip_prefix(prefix) == Some(name)
}

/// Returns the command status that leads to an errno.
pub(crate) fn status_of_errno(name: &str) -> Option<CmdStatus> {
    ERRNOS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, status)| *status)
}

/// Errnos that the driver returns for failed commands.
pub(crate) const ERRNOS: [(&str, CmdStatus); 6] = [
    ("EINVAL", CmdStatus::Invalid),
    ("EBUSY", CmdStatus::Busy),
    ("EEXIST", CmdStatus::Exists),
    ("ENOMEM", CmdStatus::NoResources),
    ("EOPNOTSUPP", CmdStatus::Unsupported),
    ("EFAULT", CmdStatus::BadAddress),
];

/// Returns the NAK code with a name (IBTA 9.7.5.2.7), as the syndrome byte of the AETH.
pub(crate) fn nak_syndrome(name: &str) -> Option<u8> {
    let found = NAKS
        .iter()
        .position(|known| known.eq_ignore_ascii_case(name));
    found.map(|code| 0x60 | code as u8)
}

/// Names of NAK codes, by code.
pub(crate) const NAKS: [&str; 5] = [
    "PSN sequence error",
    "invalid request",
    "remote access error",
    "remote operational error",
    "invalid RD request",
];

/// Returns the name of a NAK code.
pub fn nak_name(code: u8) -> Option<&'static str> {
    NAKS.get(usize::from(code)).copied()
}

/// Operations of send work requests, with the names of `enum ibv_wr_opcode`.
pub(crate) const SENDS: [(&str, WqeOpcode); 13] = [
    ("RDMA_WRITE", WqeOpcode::RdmaWrite),
    ("RDMA_WRITE_WITH_IMM", WqeOpcode::RdmaWriteImm),
    ("SEND", WqeOpcode::Send),
    ("SEND_WITH_IMM", WqeOpcode::SendImm),
    ("RDMA_READ", WqeOpcode::RdmaRead),
    ("ATOMIC_CMP_AND_SWP", WqeOpcode::CompareSwap),
    ("ATOMIC_FETCH_AND_ADD", WqeOpcode::FetchAdd),
    ("LOCAL_INV", WqeOpcode::LocalInv),
    ("SEND_WITH_INV", WqeOpcode::SendInv),
    ("REG_MR", WqeOpcode::FastReg),
    ("BIND_MW", WqeOpcode::BindMw),
    ("ATOMIC_WRITE", WqeOpcode::AtomicWrite),
    ("FLUSH", WqeOpcode::Flush),
];

/// Returns the name of the operation of a send work request.
pub fn send_name(code: u8) -> Option<&'static str> {
    let found = SENDS.iter().find(|(_, op)| op.to_raw() == code);
    found.map(|(name, _)| *name)
}

/// Returns the name of a command.
pub fn command_name(code: u16) -> Option<String> {
    Opcode::from_raw(code).map(|opcode| to_upper_snake_case(opcode.name()))
}

/// Returns bits for operations of send work requests. The error is the name without an operation.
pub(crate) fn send_opcode_bits(names: &[String]) -> Result<u32, &str> {
    if names.is_empty() {
        return Ok(u32::MAX);
    }
    let mut bits = 0;
    for name in names {
        let plain = name.trim_start_matches("IBV_WR_");
        let found = SENDS.iter().find(|(known, _)| *known == plain);
        bits |= 1 << found.ok_or(name.as_str())?.1.to_raw();
    }
    Ok(bits)
}

/// Returns the text about an unknown name: the nearest known name, or else all known names.
pub(crate) fn unknown_name_error<'a>(
    bad: &str,
    names: impl Iterator<Item = &'a str> + Clone,
) -> String {
    match most_similar_name(bad, names.clone()) {
        Some(name) => format!("there is no {bad:?}: did you mean {name}?"),
        None => format!("{bad:?} is none of {}", join_names(names)),
    }
}

/// Joins names for a sentence.
pub(crate) fn join_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// Returns bits for events like `IBV_EVENT_QP_FATAL` or `QP_FATAL`, or for all events if there are
/// no names. The error is the name without an event.
pub(crate) fn event_bits(names: &[String]) -> Result<u32, &str> {
    if names.is_empty() {
        return Ok(u32::MAX);
    }
    let mut bits = 0;
    for name in names {
        let mut all = EventType::ALL.iter();
        let found = all.find(|event| is_named(name, "IBV_EVENT_", event.verbs_name()));
        bits |= 1 << found.ok_or(name.as_str())?.to_raw();
    }
    Ok(bits)
}

/// Names of the ways in which a NIC of the feature `misbehave` fails on purpose.
pub const MISBEHAVIOURS: [&str; 15] = [
    "swallow-commands",
    "mute-commands",
    "late-command",
    "stall-at-command",
    "only-opcode",
    "stall",
    "no-interrupts",
    "seq-sleep",
    "panic",
    "engine-dies",
    "reset-unconfirmed",
    "bus-master-stuck",
    "refuse-commands",
    "events-ahead",
    "newest-version",
];

/// Returns the name and the number of a misbehaviour that is written as `KIND`, `KIND=NUMBER` or
/// `KIND=always`, which is the largest number. The error is the reason.
pub(crate) fn misbehaviour(text: &str) -> Result<(&'static str, u32), String> {
    let (name, number) = text.split_once('=').unwrap_or((text, "1"));
    let known = MISBEHAVIOURS.iter().find(|known| **known == name);
    let known = known.ok_or_else(|| unknown_name_error(name, MISBEHAVIOURS.iter().copied()))?;
    let number = match number {
        "always" => u32::MAX,
        _ => number
            .parse()
            .map_err(|_| format!("{number:?} is neither a 32-bit number nor \"always\""))?,
    };
    Ok((known, number))
}
