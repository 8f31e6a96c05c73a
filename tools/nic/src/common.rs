// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What all VMs of the process have in common: the clock, the engine's sleep, and what is known of the uplinks and the switch.

use crate::impair::Impairments;
use crate::waker::Waker;
use std::io;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

/// What became of frames, whichever VM they were of.
#[derive(Default)]
pub struct Tallies {
    /// Frames that the uplink has taken.
    pub uplink_sent: AtomicU64,
    /// Frames that the uplink has brought.
    pub uplink_received: AtomicU64,
    /// Frames that had to leave although there is no uplink, or no room in it, or no way for their address.
    pub uplink_dropped: AtomicU64,
    /// Frames for groups and for addresses that were not known.
    pub switch_flooded: AtomicU64,
    /// Frames that spoke in another's name, RoCE in a form that no adapter sends, or no frames at all.
    pub switch_refused: AtomicU64,
    /// Frames of which the sender's address found no room in the switch.
    pub switch_unlearned: AtomicU64,
}

/// See the module.
pub struct Common {
    power_on: Instant,
    /// The engine's sleep.
    pub waker: Waker,
    /// What goes wrong on the uplinks: nothing, but where somebody asked for it.
    pub impairments: Impairments,
    /// Counts.
    pub tallies: Tallies,
}

impl Common {
    /// Of a process that begins now.
    ///
    /// # Errors
    ///
    /// No descriptor can be had.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            power_on: Instant::now(),
            waker: Waker::new()?,
            impairments: Impairments::default(),
            tallies: Tallies::default(),
        })
    }

    /// The device clock: nanoseconds since power-on. No reset sets it back.
    pub fn now(&self) -> u64 {
        self.power_on.elapsed().as_nanos() as u64
    }
}
