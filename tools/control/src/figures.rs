// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counters, the list of objects, and the status of the device.

use crate::{Context, Question, Request};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All counters: the port's since the last reset of the device, the process's since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// What the process around it counts.
    #[serde(flatten)]
    pub engine: Engine,
    /// The port's, which the driver is told too, by the names of the ABI (`stats.rs`).
    #[serde(flatten)]
    pub port: BTreeMap<String, u64>,
}

/// Counters of the NIC's process. They go on over a reset of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Engine {
    /// Frames of the guest's Ethernet.
    pub ethernet_frames: u64,
    /// Frames for the guest's Ethernet that found no room there, or no guest.
    pub ethernet_dropped: u64,
    /// Frames that the uplink has taken.
    pub uplink_sent: u64,
    /// Frames that the uplink has brought.
    pub uplink_received: u64,
    /// Frames that had to leave although there is no uplink, or no room in it, or no way for their address.
    pub uplink_dropped: u64,
    /// Frames that came faster than the engine took them.
    pub inbox_dropped: u64,
    /// Frames for groups and for addresses that were not known.
    pub switch_flooded: u64,
    /// Frames that spoke in another's name, RoCE in a form that no adapter sends, or no frames at all.
    pub switch_refused: u64,
    /// Frames of which the sender's address found no room in the switch.
    pub switch_unlearned: u64,
    /// Interrupts that could not be raised.
    pub interrupts_lost: u64,
    /// Slices of work.
    pub engine_slices: u64,
    /// How often the engine fell asleep.
    pub engine_sleeps: u64,
}

/// The answer to [`Request::Stats`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The counters.
    pub stats: Stats,
}

impl Question for Told {
    const REQUEST: Request = Request::Stats;
}

/// The objects that there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contexts {
    /// Each as it was when the engine came to it.
    pub contexts: Vec<Context>,
}

impl Question for Contexts {
    const REQUEST: Request = Request::Contexts;
}

/// Whether the device runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the NIC's program.
    pub version: String,
    /// Newest version of the ABI that it speaks.
    pub abi_version: u32,
    /// The command queue is enabled.
    pub ready: bool,
    /// The device is dead until it is reset.
    pub fatal: bool,
    /// A reset is being done.
    pub resetting: bool,
    /// Name of the syndrome of which it died.
    pub fatal_syndrome: Option<String>,
    /// The driver lets it use memory.
    pub bus_master: bool,
    /// Bytes of guest memory that it sees.
    pub guest_ram: u64,
}

impl Question for Status {
    const REQUEST: Request = Request::Status;
}
