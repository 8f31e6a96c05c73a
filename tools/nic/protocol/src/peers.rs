// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The peers of all QPs, and the quality of the connections to them.

use crate::{ControlRequest, QueryReply};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Largest number of peers in an answer.
pub const MAX_PEERS: usize = 1024;

/// A peer: all QPs that are connected to one GID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSummary {
    /// GID of the peer. None for QPs without a peer, which send datagrams or are not connected yet.
    pub gid: Option<String>,
    /// True if the GID belongs to this device.
    pub is_local: bool,
    /// Number of QPs that are connected to the peer.
    pub qps: u32,
    /// Number of those QPs in ERR or SQE.
    pub in_error: u32,
    /// Packets that were sent to the peer and are not acknowledged.
    pub in_flight: u64,
    /// Mean of the round trips that QPs have measured, in nanoseconds, if there is one.
    pub round_trip_ns: Option<u64>,
    /// Longest of these round trips, in nanoseconds.
    pub round_trip_max_ns: Option<u64>,
    /// Sums of the counters of the QPs, by the names of QP counters.
    pub counters: BTreeMap<String, u64>,
}

/// The answer to [`ControlRequest::Peers`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeersReply {
    /// Up to [`MAX_PEERS`] peers, sorted by GID.
    pub peers: Vec<PeerSummary>,
    /// Number of QPs whose peers are not in the list.
    pub left_out: u32,
}

impl QueryReply for PeersReply {
    const REQUEST: ControlRequest = ControlRequest::Peers;
}
