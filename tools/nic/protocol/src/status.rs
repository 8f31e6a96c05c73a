// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counters and the status of the device.

use crate::{ControlRequest, QueryReply};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All counters: those of the port since the last reset of the device, those of the process since
/// its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicStats {
    /// Counters of the process around the device.
    #[serde(flatten)]
    pub engine: EngineCounters,
    /// Counters of the port, which the driver can read too, by their ABI names (`stats.rs`).
    #[serde(flatten)]
    pub port: BTreeMap<String, u64>,
}

/// Counters of the NIC process. A reset of the device does not clear them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineCounters {
    /// Frames of the guest's Ethernet.
    pub ethernet_frames: u64,
    /// Frames for the guest's Ethernet that were dropped because there was no room or no guest.
    pub ethernet_dropped: u64,
    /// Frames that were sent by the uplink.
    pub uplink_sent: u64,
    /// Frames that were received from the uplink.
    pub uplink_received: u64,
    /// Outgoing frames that were dropped: there was no uplink, no room in it, or no route to the
    /// address.
    pub uplink_dropped: u64,
    /// Frames that were dropped because they came faster than the engine took them.
    pub inbox_dropped: u64,
    /// Frames for groups and for addresses that the switch did not know.
    pub switch_flooded: u64,
    /// Frames that the switch refused: a forged source, RoCE in a form that no adapter sends, or a
    /// malformed frame.
    pub switch_refused: u64,
    /// Frames whose source address found no room in the table of the switch.
    pub switch_unlearned: u64,
    /// Packets that the InfiniBand subnet refused: SMPs of guests that must not manage the subnet,
    /// packets that a guest sent in its Ethernet, and malformed or unexpected frames of uplinks.
    pub subnet_refused: u64,
    /// Interrupts that could not be raised.
    pub interrupts_lost: u64,
    /// Slices of work that the engine did.
    pub engine_slices: u64,
    /// Number of times that the engine went to sleep.
    pub engine_sleeps: u64,
}

/// The answer to [`ControlRequest::Stats`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsReply {
    /// Counters of the port and of the process.
    pub stats: NicStats,
}

impl QueryReply for StatsReply {
    const REQUEST: ControlRequest = ControlRequest::Stats;
}

/// The status of the device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReply {
    /// Version of the NIC program.
    pub version: String,
    /// Newest version of the ABI that the NIC supports.
    pub abi_version: u32,
    /// True if the command queue is enabled.
    pub ready: bool,
    /// True if the device is dead until it is reset.
    pub fatal: bool,
    /// True during a reset.
    pub resetting: bool,
    /// Name of the syndrome of the fatal error.
    pub fatal_syndrome: Option<String>,
    /// True if the driver has enabled bus mastering.
    pub bus_master: bool,
    /// Bytes of guest memory that the NIC can access.
    pub guest_ram: u64,
}

impl QueryReply for StatusReply {
    const REQUEST: ControlRequest = ControlRequest::Status;
}
