// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The port, and single queue pairs.

use crate::{Question, Request};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The port as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The driver has it up: what it sends and what comes is delivered.
    pub link_up: bool,
    /// Largest path MTU, in bytes of payload.
    pub mtu: u32,
    /// MAC address.
    pub mac: String,
    /// The entries of the GID table that are set.
    pub gids: Vec<Gid>,
    /// Writable memory of the guest that the NIC cannot reach, large enough to be RAM; none in a VM that is set up well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreachable_ram: Vec<UnreachableRam>,
    /// The GIDs that the driver wanted and did not get, since the last reset of the device: the newest, 64 at most.
    #[serde(default)]
    pub refused: Vec<Refused>,
    /// The multicast groups that have members.
    pub groups: Vec<Group>,
    /// The counters, by the names of the ABI (`stats.rs`), since the last reset of the device.
    pub counters: BTreeMap<String, u64>,
}

/// An entry of the GID table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Its index.
    pub index: u16,
    /// The GID, as an IPv6 address.
    pub gid: String,
    /// Source MAC address of what is sent from it.
    pub mac: String,
    /// VLAN id, if there is one.
    pub vlan: Option<u16>,
}

/// A range of guest memory that the NIC cannot reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreachableRam {
    /// Guest address, as a hexadecimal number.
    pub address: String,
    /// Length in bytes.
    pub bytes: u64,
    /// What is wrong with it.
    pub why: String,
}

/// A GID that the driver wanted and did not get.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The GID, as an IPv6 address.
    pub gid: String,
    /// The MAC address of its net device.
    pub mac: String,
    /// VLAN id, if there is one.
    pub vlan: Option<u16>,
    /// The rule that refused it: the name of a syndrome.
    pub rule: String,
    /// A sentence about that.
    pub why: String,
    /// How often.
    pub times: u64,
}

/// A multicast group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its GID, as an IPv6 address.
    pub gid: String,
    /// How many queue pairs are members.
    pub members: u32,
    /// The first of them.
    pub first: Vec<u32>,
}

/// The answer to [`Request::Port`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldPort {
    /// The port.
    pub port: Port,
}

impl Question for ToldPort {
    const REQUEST: Request = Request::Port;
}

/// A queue pair with its peer and its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePair {
    /// Its number.
    pub number: u32,
    /// Rc, Uc, ...
    #[serde(rename = "type")]
    pub qp_type: String,
    /// Reset, Init, ...
    pub state: String,
    /// Why it is in ERR or SQE: the name of a syndrome.
    pub syndrome: Option<String>,
    /// Number of the queue pair that it is connected to.
    pub dest_qpn: u32,
    /// Own GID, if it is connected.
    pub own_gid: Option<String>,
    /// The peer's.
    pub peer_gid: Option<String>,
    /// The peer is a queue pair of this device.
    pub is_local: bool,
    /// Packets that may be under way.
    pub window: u32,
    /// Packets that are.
    pub in_flight: u32,
    /// Round trip, smoothed, in nanoseconds, if it was measured: with peers behind a wire.
    pub round_trip_ns: Option<u64>,
    /// Its mean deviation.
    pub round_trip_deviation_ns: Option<u64>,
    /// Its counters since it was created: those that the port has too by the names of the ABI, which are mlx5's for the
    /// same, and what else the transport counts.
    pub counters: BTreeMap<String, u64>,
}

/// The answer to [`Request::Qp`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldQp {
    /// The queue pair.
    pub qp: QueuePair,
}
