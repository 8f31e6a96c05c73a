// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rules as they are written in files and sent. Names are those of the InfiniBand specification.

use crate::frame_impairment::FrameImpairment;
use crate::table::LOSS_OPTION;
use serde::{Deserialize, Serialize};
use verbena_abi::cqe::WcStatus;
use verbena_abi::syndrome::Syndrome;

/// Version of the file format.
pub const VERSION: u32 = 1;

/// A file of rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSet {
    /// Version of the format ([`VERSION`]).
    pub version: u32,
    /// Seed of all random decisions. Each rule derives its own random stream from it.
    #[serde(default)]
    pub seed: u64,
    /// The rules, in order.
    #[serde(default)]
    pub rule: Vec<Rule>,
}

/// A rule: a match and an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name of the rule, unique among the rules of the device.
    pub name: String,
    /// True if a run is successful even if the rule never fires.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
    /// Events to which the rule applies.
    #[serde(default, rename = "match")]
    pub matches: Match,
    /// Action of the rule.
    pub action: Action,
}

/// Hook at which a rule applies: a kind of event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleHook {
    /// A packet that a QP sends or receives.
    #[default]
    Packet,
    /// A send work request that the device begins.
    Send,
    /// A command of the driver.
    Command,
    /// A moment in time.
    Time,
    /// An event that the device reports to the driver.
    Event,
    /// An interrupt that the device raises.
    Interrupt,
    /// A packet on its way between two QPs of the device, after the rules of both QPs.
    Local,
    /// A frame that leaves the NIC by an uplink.
    Uplink,
}

/// Direction of a packet, as its QP sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The QP receives the packet.
    In,
    /// The QP sends the packet.
    #[default]
    Out,
}

/// Conditions of a rule. All conditions that are set have to hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Match {
    /// Kind of event.
    pub on: RuleHook,
    /// Packets: direction of the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// Number of the QP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qp: Option<u32>,
    /// Ordinal of the QP, from 1, among the QPs created after the rule was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qp_created: Option<u64>,
    /// Number of the QP to which the QP is connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_qp: Option<u32>,
    /// Packets: names in the table of opcodes, like `RDMA WRITE First`, or their first words, like
    /// `RDMA WRITE`. Sends: names of operations.
    #[serde(skip_serializing_if = "Vec::is_empty", with = "one_or_many")]
    pub opcode: Vec<String>,
    /// Packets: PSN of the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psn: Option<u32>,
    /// Packets: number of the PSN, counted from the first PSN of the QP, which is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet: Option<u32>,
    /// Packets: ordinal of the message, from 1, among the messages of the QP in this direction
    /// since the rule was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<u64>,
    /// Packets: ordinal of the packet within its message, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_of_message: Option<u64>,
    /// Packets: the packet that carries this byte of its message, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub byte: Option<u64>,
    /// Times: number of the CQ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cq: Option<u32>,
    /// Times: number of the SRQ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub srq: Option<u32>,
    /// Commands: name of the command, like `CREATE_QP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Events: names of the events, like `CQ_ERR`.
    #[serde(skip_serializing_if = "Vec::is_empty", with = "one_or_many")]
    pub event: Vec<String>,
    /// Interrupts: number of the vector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vector: Option<u16>,
    /// Uplinks: number of the uplink.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplink: Option<u8>,
    /// Fires only for the n-th match, from 1, since the rule was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nth: Option<u64>,
    /// Fires only for each n-th match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// Probability of firing, above 0 and at most 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// Largest number of firings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Milliseconds since the rule was added, before which the rule does not fire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
    /// Fires only after the rule with this name has fired, and while that rule exists.
    #[serde(rename = "while", skip_serializing_if = "Option::is_none")]
    pub while_rule: Option<String>,
}

impl Rule {
    /// Returns the rule that `verbena-nic --drop PERCENT` stands for.
    pub fn of_loss(percent: u8) -> Self {
        Self {
            name: LOSS_OPTION.into(),
            optional: true,
            matches: Match {
                on: RuleHook::Local,
                probability: Some(f64::from(percent) / 100.0),
                ..Match::default()
            },
            action: Action::Drop,
        }
    }
}

impl Rule {
    /// Returns the rule that a misbehaviour of the NIC stands for.
    pub fn of_misbehaviour(kind: &str, number: u32) -> Self {
        let number = match number {
            u32::MAX => String::from("always"),
            number => number.to_string(),
        };
        Self {
            name: format!("misbehave {kind}"),
            optional: true,
            matches: Match {
                on: RuleHook::Time,
                after_ms: Some(0),
                ..Match::default()
            },
            action: Action::Misbehave(format!("{kind}={number}")),
        }
    }
}

impl Rule {
    /// Returns the rule that the command INJECT_FAULT stands for.
    pub fn injected(what: InjectedFault) -> Self {
        let at_once = Match {
            on: RuleHook::Time,
            after_ms: Some(0),
            ..Match::default()
        };
        let (name, matches, action) = match what {
            InjectedFault::Send(qpn, status) => (
                format!("send {qpn}"),
                Match {
                    on: RuleHook::Send,
                    qp: Some(qpn),
                    limit: Some(1),
                    ..Match::default()
                },
                Action::Complete(CompletionFault::Status(status.verbs_name().into())),
            ),
            InjectedFault::Srq(number) => (
                format!("srq {number}"),
                Match {
                    srq: Some(number),
                    ..at_once
                },
                Action::KillSrq,
            ),
            InjectedFault::Cq(number) => (
                format!("cq {number}"),
                Match {
                    cq: Some(number),
                    ..at_once
                },
                Action::KillCq,
            ),
            InjectedFault::Device => (String::from("device"), at_once, Action::Fatal),
        };
        Self {
            name: format!("{INJECTED}{name}"),
            optional: true,
            matches,
            action,
        }
    }

    /// True if the rule has the name of one that INJECT_FAULT stands for.
    pub fn is_injected(&self) -> bool {
        self.name.starts_with(INJECTED)
    }
}

/// Beginning of the names of rules that INJECT_FAULT stands for; the line of debugfs follows.
const INJECTED: &str = "inject ";

/// A fault that the driver injects by the command INJECT_FAULT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// The next send that a QP begins completes with this status.
    Send(u32, WcStatus),
    /// An SRQ goes to ERR when the next receive is taken from it.
    Srq(u32),
    /// A CQ goes to ERR with its next entry.
    Cq(u32),
    /// The device fails.
    Device,
}

impl Match {
    /// Returns the direction of packets, which is out by default.
    pub fn packet_direction(&self) -> Direction {
        self.direction.unwrap_or_default()
    }
}

/// The action of a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Drops the packet.
    Drop,
    /// Delays the packet by this number of microseconds.
    DelayUs(u64),
    /// Sends this number of copies after the packet.
    Duplicate(u32),
    /// Moves the packet after this number of later packets. If there are fewer, the packet follows
    /// after 10 ms.
    Reorder(u32),
    /// Changes bits of the packet.
    Corrupt(Corruption),
    /// Marks the packet as a router does: congestion experienced.
    MarkEcn,
    /// Answers the request with a NAK with this code, instead of receiving it, or turns an
    /// acknowledgement into such a NAK.
    Nak(String),
    /// Does the same with an RNR NAK with this timer code.
    Rnr(u8),
    /// Completes the work request with this status.
    Complete(CompletionFault),
    /// Moves the QP to its error state.
    QpError,
    /// Makes the device dead until it is reset.
    Fatal,
    /// Fails the command with this errno.
    Errno(String),
    /// Stops the port in both directions until a rule has it up again or this rule is removed.
    PortDown,
    /// Stops the port for this number of milliseconds.
    PortDownMs(u64),
    /// Ends a stop of the port.
    PortUp,
    /// Makes a CQ of the QP overflow at its next completion.
    CqOverflow(QpQueue),
    /// Puts the SRQ of the QP, or that of the match, into error when the next receive is taken from
    /// it.
    KillSrq,
    /// Puts the CQ of the match into error when its next completion is written.
    KillCq,
    /// Stops the QP for this number of milliseconds. Requests, responses and received packets wait.
    StallMs(u64),
    /// Stops the whole device for this number of milliseconds.
    StallDeviceMs(u64),
    /// Suppresses the event or interrupt.
    Withhold,
    /// Repeats the event this number of times.
    Repeat(u32),
    /// Makes the NIC misbehave from now on, as `verbena-nic --misbehave` does: `KIND`, `KIND=NUMBER`
    /// or `KIND=always`. Only a NIC that was built with the feature `misbehave` accepts this action.
    Misbehave(String),
    /// Impairs the frame: loss, duplication, corruption, delay and rate together.
    Impair(FrameImpairment),
}

/// The completion of a work request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a status, or status and vendor_err")]
pub enum CompletionFault {
    /// Completes with this status.
    Status(String),
    /// Completes with this status and cause.
    WithCause(CompletionError),
}

/// The status and the cause of a [`CompletionFault`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompletionError {
    /// Name of the completion status.
    pub status: String,
    /// Cause, as a number of `verbena_abi::syndrome::Syndrome`.
    pub vendor_err: u32,
}

impl CompletionFault {
    /// Returns the name of the status.
    pub fn status(&self) -> &str {
        match self {
            CompletionFault::Status(status) => status,
            CompletionFault::WithCause(error) => &error.status,
        }
    }

    /// Returns the cause, by default the one of all completions by rules. None if the number is not
    /// a known cause.
    pub fn cause(&self) -> Option<Syndrome> {
        match self {
            CompletionFault::Status(_) => Some(Syndrome::Injected),
            CompletionFault::WithCause(error) => {
                Syndrome::from_raw(u16::try_from(error.vendor_err).ok()?)
            }
        }
    }
}

/// Selects a CQ of a QP by the queue whose completions it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QpQueue {
    /// The CQ of sends.
    Send,
    /// The CQ of receives.
    Recv,
}

/// The change to a packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Corruption {
    /// Header field to change; None for a byte of the payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<HeaderField>,
    /// New value of the field or byte; None flips its lowest bit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<u64>,
    /// Offset of the byte in the payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<u32>,
    /// State of the ICRC after the change.
    pub icrc: IcrcState,
}

/// The ICRC of a changed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IcrcState {
    /// The ICRC matches the changed packet, so the packet is received.
    Right,
    /// The ICRC stays as it was, so the receiver drops the packet.
    Wrong,
}

/// Header fields that follow the UDP header (IBTA 9.2, 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeaderField {
    /// BTH: opcode of the packet.
    Opcode,
    /// BTH: P_Key of the packet.
    Pkey,
    /// BTH: destination QP of the packet.
    DestQp,
    /// BTH: PSN of the packet.
    Psn,
    /// RETH, AtomicETH: virtual address.
    Va,
    /// RETH, AtomicETH: R_Key of the request.
    Rkey,
    /// RETH: DMA length of the request.
    DmaLength,
    /// AETH: syndrome of the acknowledgement.
    Syndrome,
    /// AETH: MSN of the acknowledgement.
    Msn,
    /// DETH: Q_Key of the datagram.
    Qkey,
    /// AtomicAckETH: original remote data.
    OriginalData,
}

impl HeaderField {
    /// Returns the name of the field in rules.
    pub fn name(self) -> &'static str {
        match self {
            HeaderField::Opcode => "opcode",
            HeaderField::Pkey => "pkey",
            HeaderField::DestQp => "dest_qp",
            HeaderField::Psn => "psn",
            HeaderField::Va => "va",
            HeaderField::Rkey => "rkey",
            HeaderField::DmaLength => "dma_length",
            HeaderField::Syndrome => "syndrome",
            HeaderField::Msn => "msn",
            HeaderField::Qkey => "qkey",
            HeaderField::OriginalData => "original_data",
        }
    }

    /// Returns the width of the field in bytes.
    pub fn bytes(self) -> usize {
        match self {
            HeaderField::Opcode | HeaderField::Syndrome => 1,
            HeaderField::Pkey => 2,
            HeaderField::DestQp | HeaderField::Psn | HeaderField::Msn => 3,
            HeaderField::Rkey | HeaderField::DmaLength | HeaderField::Qkey => 4,
            HeaderField::Va | HeaderField::OriginalData => 8,
        }
    }
}

/// Serialization of a list of names, in which a single name needs no list.
mod one_or_many {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a name or a list of names")]
    enum NameList {
        One(String),
        Many(Vec<String>),
    }

    pub fn serialize<S: Serializer>(names: &[String], to: S) -> Result<S::Ok, S::Error> {
        names.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
        Ok(match NameList::deserialize(from)? {
            NameList::One(name) => vec![name],
            NameList::Many(names) => names,
        })
    }
}
