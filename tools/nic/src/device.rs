// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device.

use crate::mem::GuestMemory;
use crate::{Config, Registers};
use std::sync::Arc;
use verbena_abi::syndrome::Syndrome;

/// What is to be done after a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Next {
    /// There is more to do: call again at once.
    pub busy: bool,
    /// Call again at this time at the latest.
    pub deadline: Option<u64>,
}

/// A context, for people.
#[derive(Clone, Debug)]
pub struct ContextInfo {
    /// Kind of object: "qp", "cq", ...
    pub kind: &'static str,
    /// Its number.
    pub number: u32,
    /// Fields by name.
    pub fields: Vec<(&'static str, String)>,
}

/// The device.
#[derive(Debug)]
pub struct Device {
    config: Config,
    regs: Arc<Registers>,
}

impl Device {
    /// A device as after power-on.
    pub fn new(config: Config, regs: Arc<Registers>) -> Self {
        Self { config, regs }
    }
    /// Drops everything; the state after power-on.
    pub fn reset(&mut self) {
        self.regs.reset();
    }
    /// CMDQ_ENABLE was written.
    pub fn enable_cmdq<M: GuestMemory>(&mut self, _mem: &M) {}
    /// A slot was rung.
    pub fn command(&mut self, _slot: u32) {}
    /// The page of an area in the doorbell BAR was written.
    pub fn ring(&mut self, _uar: u32) {}
    /// Counts writes to the doorbell BAR that were collapsed into one call of [`Device::ring`].
    pub fn count_doorbells(&mut self, _more: u64) {}
    /// Works for a bounded time.
    pub fn run_slice<M: GuestMemory>(&mut self, _mem: &M, _now: u64) -> Next {
        Next::default()
    }
    /// Declares itself asleep for all areas. False: something came up, go on.
    pub fn fall_asleep<M: GuestMemory>(&mut self, _mem: &M) -> bool {
        true
    }
    /// Wakes all areas at the next slice.
    pub fn wake(&mut self) {}
    /// The vectors to raise since the last call.
    pub fn take_interrupts(&mut self) -> u32 {
        0
    }
    /// The next frame for the uplink.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        None
    }
    /// Whether a frame is for the RDMA engine.
    pub fn wants_frame(&self, _frame: &[u8]) -> bool {
        let _ = self.config.mac;
        false
    }
    /// A frame from the uplink.
    pub fn receive_frame<M: GuestMemory>(&mut self, _mem: &M, _frame: &[u8], _now: u64) {}
    /// The engine failed: dead until reset.
    pub fn fail<M: GuestMemory>(&mut self, _mem: &M, cause: Syndrome) {
        self.regs.set_fatal(cause);
    }
    /// Counters by `stats::Counter`.
    pub fn stats(&self) -> [u64; 30] {
        [0; 30]
    }
    /// All contexts.
    pub fn contexts(&self) -> Vec<ContextInfo> {
        Vec::new()
    }
}
