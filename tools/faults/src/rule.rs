// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rules as they are written down and sent. Names are the InfiniBand specification's.

use serde::{Deserialize, Serialize};
use verbena_abi::syndrome::Syndrome;

/// Version of the format.
pub const VERSION: u32 = 1;

/// A file of rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSet {
    /// [`VERSION`].
    pub version: u32,
    /// Seed of all chance. Each rule has a stream of its own out of it.
    #[serde(default)]
    pub seed: u64,
    /// The rules, in order.
    #[serde(default)]
    pub rule: Vec<Rule>,
}

/// A rule: what happens to what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Its name, which no other rule of the device has.
    pub name: String,
    /// It may never fire, and the run is still good.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
    /// To what.
    #[serde(default, rename = "match")]
    pub matches: Match,
    /// What happens.
    pub action: Action,
}

/// Where a rule applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum On {
    /// A packet that a queue pair sends or receives.
    #[default]
    Packet,
    /// A send work request that the device begins with.
    Send,
    /// A command of the driver.
    Command,
    /// A moment.
    Time,
    /// An event that the device tells the driver of.
    Event,
    /// An interrupt that it raises.
    Interrupt,
}

/// Direction of a packet, as its queue pair sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    #[default]
    Out,
}

/// What a rule applies to. All that is said has to be so; what is not said may be anything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Match {
    /// The kind of thing.
    pub on: On,
    /// Packets: the way of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// The queue pair's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qp: Option<u32>,
    /// The n-th queue pair that is created after the rule was added, from 1 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qp_created: Option<u64>,
    /// The number of the queue pair that it is connected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_qp: Option<u32>,
    /// Packets: names of the table of opcodes, like `RDMA WRITE First`, or what they begin with, like `RDMA WRITE`. Sends: names of
    /// operations.
    #[serde(skip_serializing_if = "Vec::is_empty", with = "one_or_many")]
    pub opcode: Vec<String>,
    /// Packets: the PSN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psn: Option<u32>,
    /// Packets: the number of the PSN, counted from the first of the queue pair, which is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet: Option<u32>,
    /// Packets: the n-th message of the queue pair in this direction since the rule was added, from 1 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<u64>,
    /// Packets: the n-th packet of its message, from 1 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_of_message: Option<u64>,
    /// Packets: the one that carries this byte of its message, from 0 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub byte: Option<u64>,
    /// Commands: the name, like `CREATE_QP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Events: names, like `CQ_ERR`.
    #[serde(skip_serializing_if = "Vec::is_empty", with = "one_or_many")]
    pub event: Vec<String>,
    /// Interrupts: the vector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vector: Option<u16>,
    /// Only the n-th of all that is so, from 1 on, counted since the rule was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nth: Option<u64>,
    /// Only each n-th.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// Only by chance: above 0, at most 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// So often at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Only after so many milliseconds since the rule was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
    /// Only while the rule of this name has fired and is still there.
    #[serde(rename = "while", skip_serializing_if = "Option::is_none")]
    pub while_rule: Option<String>,
}

impl Match {
    /// The way of the packets, which is out unless it is said.
    pub fn way(&self) -> Direction {
        self.direction.unwrap_or_default()
    }
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The packet is lost.
    Drop,
    /// The packet comes so many microseconds later.
    DelayUs(u64),
    /// So many copies of the packet come behind it.
    Duplicate(u32),
    /// The packet comes behind so many of those that follow it; after 10 ms if there are not as many.
    Reorder(u32),
    /// Bits of the packet are changed.
    Corrupt(Corrupt),
    /// A router has marked the packet: congestion experienced.
    MarkEcn,
    /// The request is answered by a NAK with this code instead of being received; or an acknowledgement becomes one.
    Nak(String),
    /// The same with an RNR NAK with this timer code.
    Rnr(u8),
    /// The work request completes with this status.
    Complete(Complete),
    /// The queue pair is in error.
    QpError,
    /// The device is dead until reset.
    Fatal,
    /// The command fails with this errno.
    Errno(String),
    /// The port carries nothing, in neither direction, until a rule has it up again or this one goes.
    PortDown,
    /// The same for so many milliseconds.
    PortDownMs(u64),
    /// The end of that.
    PortUp,
    /// A CQ of the queue pair has no room for its next completion.
    CqOverflow(Queue),
    /// The SRQ of the queue pair is in error when the next receive is taken from it.
    KillSrq,
    /// The queue pair does nothing for so many milliseconds: what it would send, answer or receive waits.
    StallMs(u64),
    /// The same of the whole device.
    StallDeviceMs(u64),
    /// The event or interrupt does not come.
    Withhold,
    /// The event comes so many times more.
    Repeat(u32),
}

/// How a work request completes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a status, or status and vendor_err")]
pub enum Complete {
    /// With this status.
    Status(String),
    /// With this status and cause.
    Because(Because),
}

/// See [`Complete`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Because {
    /// The status.
    pub status: String,
    /// The cause, as `verbena_abi::syndrome::Syndrome` has it.
    pub vendor_err: u32,
}

impl Complete {
    /// The status.
    pub fn status(&self) -> &str {
        match self {
            Complete::Status(status) => status,
            Complete::Because(because) => &because.status,
        }
    }

    /// The cause: that of all that rules complete, unless it is said. None: there is no such cause.
    pub fn cause(&self) -> Option<Syndrome> {
        match self {
            Complete::Status(_) => Some(Syndrome::Injected),
            Complete::Because(because) => {
                Syndrome::from_raw(u16::try_from(because.vendor_err).ok()?)
            }
        }
    }
}

/// Whose completions a CQ of a queue pair has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Queue {
    /// Sends.
    Send,
    /// Receives.
    Recv,
}

/// What is changed in a packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Corrupt {
    /// A field of its headers. Nothing: a byte of its payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<Field>,
    /// What the field, or the byte, becomes. Nothing: its lowest bit is flipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<u64>,
    /// Which byte of the payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<u32>,
    /// The ICRC afterwards.
    pub icrc: Icrc,
}

/// The ICRC of a changed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Icrc {
    /// As of what is in the packet now: it is received.
    Right,
    /// As it was: the receiver drops the packet.
    Wrong,
}

/// Fields of headers behind the UDP header (IBTA 9.2, 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// BTH: opcode.
    Opcode,
    /// BTH: P_Key.
    Pkey,
    /// BTH: destination QP.
    DestQp,
    /// BTH: PSN.
    Psn,
    /// RETH, AtomicETH: virtual address.
    Va,
    /// RETH, AtomicETH: R_Key.
    Rkey,
    /// RETH: DMA length.
    DmaLength,
    /// AETH: syndrome.
    Syndrome,
    /// AETH: MSN.
    Msn,
    /// DETH: Q_Key.
    Qkey,
    /// AtomicAckETH: original remote data.
    OriginalData,
}

impl Field {
    /// As rules name it.
    pub fn name(self) -> &'static str {
        match self {
            Field::Opcode => "opcode",
            Field::Pkey => "pkey",
            Field::DestQp => "dest_qp",
            Field::Psn => "psn",
            Field::Va => "va",
            Field::Rkey => "rkey",
            Field::DmaLength => "dma_length",
            Field::Syndrome => "syndrome",
            Field::Msn => "msn",
            Field::Qkey => "qkey",
            Field::OriginalData => "original_data",
        }
    }

    /// Its width in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Field::Opcode | Field::Syndrome => 1,
            Field::Pkey => 2,
            Field::DestQp | Field::Psn | Field::Msn => 3,
            Field::Rkey | Field::DmaLength | Field::Qkey => 4,
            Field::Va | Field::OriginalData => 8,
        }
    }
}

/// A name, or a list of names.
mod one_or_many {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a name or a list of names")]
    enum Names {
        One(String),
        Many(Vec<String>),
    }

    pub fn serialize<S: Serializer>(names: &[String], to: S) -> Result<S::Ok, S::Error> {
        names.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
        Ok(match Names::deserialize(from)? {
            Names::One(name) => vec![name],
            Names::Many(names) => names,
        })
    }
}
