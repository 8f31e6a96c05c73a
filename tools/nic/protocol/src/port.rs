// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The port, and single QPs.

use crate::{ControlRequest, QueryReply};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The present state of the port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// True if the driver has enabled the port, so that frames are sent and received.
    pub link_up: bool,
    /// Largest path MTU, in bytes of payload.
    pub mtu: u32,
    /// MAC address of the port.
    pub mac: String,
    /// Entries of the GID table that are set.
    pub gids: Vec<GidTableEntry>,
    /// Writable guest memory that the NIC cannot reach and that is large enough to be RAM. A VM
    /// that is set up correctly has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreachable_ram: Vec<UnreachableRam>,
    /// GIDs that the driver requested and did not get since the last reset of the device: up to 64,
    /// the newest ones.
    #[serde(default)]
    pub refused: Vec<RefusedGid>,
    /// Multicast groups that have members.
    pub groups: Vec<MulticastGroup>,
    /// Counters since the last reset of the device, by their ABI names (`stats.rs`).
    pub counters: BTreeMap<String, u64>,
}

/// An entry of the GID table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidTableEntry {
    /// Index of the entry.
    pub index: u16,
    /// GID in the notation of IPv6.
    pub gid: String,
    /// Source MAC address of packets from this GID.
    pub mac: String,
    /// VLAN ID, if there is one.
    pub vlan: Option<u16>,
}

/// A range of guest memory that the NIC cannot reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreachableRam {
    /// Guest address, as a hexadecimal number.
    pub address: String,
    /// Length of the range in bytes.
    pub bytes: u64,
    /// Reason why the NIC cannot reach it.
    pub why: String,
}

/// A GID that the driver requested and did not get.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedGid {
    /// GID in the notation of IPv6.
    pub gid: String,
    /// MAC address of the net device of this GID.
    pub mac: String,
    /// VLAN ID, if there is one.
    pub vlan: Option<u16>,
    /// Rule that refused the GID: the name of a syndrome.
    pub rule: String,
    /// Sentence about that rule.
    pub why: String,
    /// Number of refused requests.
    pub times: u64,
}

/// A multicast group with members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MulticastGroup {
    /// GID of the group in the notation of IPv6.
    pub gid: String,
    /// Number of QPs that are members.
    pub members: u32,
    /// QPNs of the first members.
    pub first: Vec<u32>,
}

/// The answer to [`ControlRequest::Port`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReply {
    /// Present state of the port.
    pub port: PortStatus,
}

impl QueryReply for PortReply {
    const REQUEST: ControlRequest = ControlRequest::Port;
}

/// A QP with its peer and its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpDetails {
    /// Number of this QP.
    pub number: u32,
    /// Type of the QP: Rc, Uc, ...
    #[serde(rename = "type")]
    pub qp_type: String,
    /// State of the QP: Reset, Init, ...
    pub state: String,
    /// Cause of the state ERR or SQE: the name of a syndrome.
    pub syndrome: Option<String>,
    /// QPN to which the QP is connected.
    pub dest_qpn: u32,
    /// Own GID, if the QP is connected.
    pub own_gid: Option<String>,
    /// GID of the peer, if the QP is connected.
    pub peer_gid: Option<String>,
    /// True if the peer belongs to this device.
    pub is_local: bool,
    /// Largest number of packets in flight.
    pub window: u32,
    /// Packets that are in flight.
    pub in_flight: u32,
    /// Smoothed round trip in nanoseconds, if it was measured, which needs a peer outside of this
    /// device.
    pub round_trip_ns: Option<u64>,
    /// Mean deviation of the round trip, in nanoseconds.
    pub round_trip_deviation_ns: Option<u64>,
    /// Counters since the creation of the QP. Counters that the port has too have their ABI names,
    /// which are those of mlx5 for the same event; the other counters are those of the transport.
    pub counters: BTreeMap<String, u64>,
}

/// The answer to [`ControlRequest::Qp`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpReply {
    /// The QP that was asked for.
    pub qp: QpDetails,
}
