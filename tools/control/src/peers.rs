// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The peers: whom queue pairs are connected to, and how that goes.

use crate::{Question, Request};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most peers that are told of.
pub const MAX_PEERS: usize = 1024;

/// A peer: all queue pairs that are connected to one GID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its GID. None: queue pairs without a peer, since they send datagrams or are not connected yet.
    pub gid: Option<String>,
    /// It is a GID of this device.
    pub is_local: bool,
    /// How many queue pairs are connected to it.
    pub qps: u32,
    /// How many of them are in ERR or SQE.
    pub in_error: u32,
    /// Packets that were sent to it and are not acknowledged.
    pub in_flight: u64,
    /// Round trip in nanoseconds, the mean of what queue pairs have measured, if any has.
    pub round_trip_ns: Option<u64>,
    /// The longest that one of them has.
    pub round_trip_max_ns: Option<u64>,
    /// The sums of their counters, by the names that they have for a queue pair.
    pub counters: BTreeMap<String, u64>,
}

/// The answer to [`Request::Peers`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToldPeers {
    /// At most [`MAX_PEERS`], by their GIDs.
    pub peers: Vec<Peer>,
    /// Queue pairs of peers that found no room among them.
    pub left_out: u32,
}

impl Question for ToldPeers {
    const REQUEST: Request = Request::Peers;
}
