// SPDX-License-Identifier: GPL-2.0 OR MIT

//! State that all VMs of the process share: the clock, the engine's sleep, and counts of the
//! uplinks and the switch.

use crate::impairments::Impairments;
use crate::waker::Waker;
use std::io;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// Counts of frames of all VMs, by the way in which they were handled.
#[derive(Default)]
pub struct FrameCounters {
    /// Frames that an uplink has accepted.
    pub uplink_sent: AtomicU64,
    /// Frames that an uplink has delivered.
    pub uplink_received: AtomicU64,
    /// Frames for an uplink that were dropped: there was no uplink, no room in it, or no route for
    /// their address.
    pub uplink_dropped: AtomicU64,
    /// Frames that were flooded, because they were for groups or for unknown addresses.
    pub switch_flooded: AtomicU64,
    /// Frames that were refused: they had another sender's address, carried RoCE in a form that no
    /// adapter sends, or were no valid frames at all.
    pub switch_refused: AtomicU64,
    /// Frames with a sender's address for which the switch had no room.
    pub switch_unlearned: AtomicU64,
    /// Packets that the InfiniBand subnet refused: SMPs of guests that must not manage the subnet,
    /// packets that a guest sent in its Ethernet, and frames of uplinks that are malformed or do not
    /// come from the peer.
    pub subnet_refused: AtomicU64,
}

/// State that all VMs of the process share. See the [module](self).
pub struct ProcessState {
    power_on: Instant,
    /// The engine's sleep, and the means to end it.
    pub waker: Waker,
    /// Impairments of the uplinks; there are none until a client sets one.
    pub impairments: Impairments,
    /// Counts of frames of all VMs.
    pub counters: FrameCounters,
}

impl ProcessState {
    /// Returns the state of a process that begins now.
    ///
    /// # Errors
    ///
    /// The process cannot get another descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            power_on: Instant::now(),
            waker: Waker::new()?,
            impairments: Impairments::default(),
            counters: FrameCounters::default(),
        })
    }

    /// Returns the device clock: nanoseconds since power-on. No reset sets it back.
    pub fn now(&self) -> u64 {
        self.power_on.elapsed().as_nanos() as u64
    }
}
