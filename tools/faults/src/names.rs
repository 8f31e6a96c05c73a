// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names, and what they stand for in the contract and in the table of opcodes.

use crate::near::nearest;
use verbena_abi::cmd::{CmdStatus, Opcode};
use verbena_abi::cqe::WcStatus;
use verbena_abi::eqe::EventType;
use verbena_abi::wqe::WqeOpcode;
use verbena_roce::wire::opcode::{self, Operation, CNP};

/// What people may look for and does not exist, with the reason or what does the same.
pub const NOT_AVAILABLE: [(&str, &str); 6] = [
    (
        "guest",
        "a rule is of the guest whose control socket it came by",
    ),
    (
        "pid",
        "the device does not know processes: name the queue pair by qp_created",
    ),
    (
        "replace",
        "corrupt with a right ICRC changes fields and bytes of a response",
    ),
    ("stall", "stall_ms for a queue pair, stall_device_ms"),
    (
        "gid_change",
        "addresses are the guest's net device's: `ip address add` and `ip address del`",
    ),
    (
        "mtu",
        "the MTU is the guest's net device's: `ip link set mtu`",
    ),
];

/// Why a field or action of this name is not available, if it is one that may come.
pub fn not_available(name: &str) -> Option<&'static str> {
    let found = NOT_AVAILABLE.iter().find(|(known, _)| *known == name);
    found.map(|(_, why)| *why)
}

/// Opcodes: operations, a bit each, and the CNP, which is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Opcodes {
    pub(crate) operations: u32,
    pub(crate) cnp: bool,
}

impl Opcodes {
    /// All of them.
    pub(crate) const ALL: Self = Self {
        operations: u32::MAX,
        cnp: true,
    };

    /// Those that one of these names says. Errors: the name that says none.
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
            let found = rows().filter(|(_, row)| says(name, row.name));
            let bits = found.fold(0, |bits, (operation, _)| bits | 1 << operation);
            if bits == 0 {
                return Err(name);
            }
            all.operations |= bits;
        }
        Ok(all)
    }

    /// Whether an opcode is one of them.
    pub(crate) fn has(self, opcode: u8) -> bool {
        if opcode == CNP {
            self.cnp
        } else {
            self.operations & 1 << (opcode & opcode::OPERATION) != 0
        }
    }

    /// Whether all of them are requests.
    pub(crate) fn are_requests(self) -> bool {
        !self.cnp && self.rows().all(|row| !row.operation.is_response())
    }

    /// Whether all of them are acknowledgements.
    pub(crate) fn are_acknowledgements(self) -> bool {
        !self.cnp
            && self
                .rows()
                .all(|row| row.operation == Operation::Acknowledge)
    }

    /// Its rows of the table.
    pub(crate) fn rows(self) -> impl Iterator<Item = &'static opcode::Row> {
        let of = move |operation: u8| self.operations & 1 << operation != 0;
        rows().filter_map(move |(operation, row)| of(operation).then_some(row))
    }
}

fn rows() -> impl Iterator<Item = (u8, &'static opcode::Row)> {
    let row = |operation| {
        Some((
            operation,
            opcode::lookup(opcode::service::RC | operation)?.1,
        ))
    };
    (0..=opcode::OPERATION).filter_map(row)
}

/// Whether a name is a row's, or what words of it begin with.
fn says(name: &str, row: &str) -> bool {
    let head = row.get(..name.len());
    let rest = row.get(name.len()..).unwrap_or_default();
    head.is_some_and(|head| head.eq_ignore_ascii_case(name))
        && (rest.is_empty() || rest.starts_with(' '))
}

/// `CreateQp` as `CREATE_QP`.
pub(crate) fn shout(name: &str) -> String {
    let mut loud = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !loud.is_empty() {
            loud.push('_');
        }
        loud.push(c.to_ascii_uppercase());
    }
    loud
}

/// A command.
pub(crate) fn command(name: &str) -> Option<Opcode> {
    let all = Opcode::ALL.iter().copied();
    all.into_iter().find(|code| shout(code.name()) == name)
}

/// A completion status, as `IBV_WC_GENERAL_ERR` or `GENERAL_ERR`.
pub(crate) fn status(name: &str) -> Option<WcStatus> {
    let mut all = WcStatus::ALL.iter().copied();
    all.find(|status| is_named(name, "IBV_WC_", status.verbs_name()))
}

/// Whether a name is one of verbs, with its prefix or without.
fn is_named(name: &str, prefix: &str, verbs_name: &str) -> bool {
    name == verbs_name || verbs_name.strip_prefix(prefix) == Some(name)
}

/// How a command fails that fails with an errno.
pub(crate) fn errno(name: &str) -> Option<CmdStatus> {
    ERRNOS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, status)| *status)
}

/// The errnos that the driver has for commands that fail.
pub(crate) const ERRNOS: [(&str, CmdStatus); 6] = [
    ("EINVAL", CmdStatus::Invalid),
    ("EBUSY", CmdStatus::Busy),
    ("EEXIST", CmdStatus::Exists),
    ("ENOMEM", CmdStatus::NoResources),
    ("EOPNOTSUPP", CmdStatus::Unsupported),
    ("EFAULT", CmdStatus::BadAddress),
];

/// A code of a NAK (IBTA 9.7.5.2.7), as the byte of the AETH.
pub(crate) fn nak(name: &str) -> Option<u8> {
    let found = NAKS
        .iter()
        .position(|known| known.eq_ignore_ascii_case(name));
    found.map(|code| 0x60 | code as u8)
}

/// By their codes.
pub(crate) const NAKS: [&str; 5] = [
    "PSN sequence error",
    "invalid request",
    "remote access error",
    "remote operational error",
    "invalid RD request",
];

/// The name of a NAK code.
pub fn nak_name(code: u8) -> Option<&'static str> {
    NAKS.get(usize::from(code)).copied()
}

/// Operations of send work requests, as `enum ibv_wr_opcode` has them.
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

/// The name of the operation of a send work request, by its number.
pub fn send_name(code: u8) -> Option<&'static str> {
    let found = SENDS.iter().find(|(_, op)| op.to_raw() == code);
    found.map(|(name, _)| *name)
}

/// The name of a command, by its number.
pub fn command_name(code: u16) -> Option<String> {
    Opcode::from_raw(code).map(|opcode| shout(opcode.name()))
}

/// Operations of send work requests, a bit each. Errors: the name that is none.
pub(crate) fn sends(names: &[String]) -> Result<u32, &str> {
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

/// What is said of a name that there is not: which of those that there are is near, else all of them.
pub(crate) fn none_of<'a>(bad: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    match nearest(bad, names.clone()) {
        Some(name) => format!("there is no {bad:?}: did you mean {name}?"),
        None => format!("{bad:?} is none of {}", list(names)),
    }
}

/// Names in a sentence.
pub(crate) fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// Events, as `IBV_EVENT_QP_FATAL` or `QP_FATAL`, a bit each; all of them if none is named. Errors: the name that is none.
pub(crate) fn events(names: &[String]) -> Result<u32, &str> {
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
