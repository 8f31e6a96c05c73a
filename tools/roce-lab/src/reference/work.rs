// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A work request as the requester of the reference knows it.

use verbena_roce::host::WqeOpcode;

/// A work request.
#[derive(Clone, Debug)]
pub struct Work {
    /// Operation.
    pub opcode: WqeOpcode,
    /// Bytes.
    pub length: u32,
    /// It has a completion.
    pub signaled: bool,
    /// It waits for READs and atomics before it.
    pub fence: bool,
    /// First PSN, once it has been sent.
    pub(super) first: u64,
    /// One after the last PSN.
    pub(super) end: u64,
    /// READ, atomic: PSN of the next response.
    pub(super) due: u64,
    /// READ: requests that were sent, first PSN and one after the last.
    pub(super) asked: Vec<(u64, u64)>,
    /// It sends nothing, and it was executed.
    pub(super) executed: bool,
    /// It is complete.
    pub(super) over: bool,
    /// It was begun without a credit.
    pub(super) trusted: bool,
}

impl Work {
    /// A work request that was posted.
    pub fn new(opcode: WqeOpcode, length: u32, signaled: bool, fence: bool) -> Self {
        Self {
            opcode,
            length,
            signaled,
            fence,
            first: 0,
            end: 0,
            due: 0,
            asked: Vec::new(),
            executed: false,
            over: false,
            trusted: false,
        }
    }

    pub(super) fn is_atomic(&self) -> bool {
        matches!(self.opcode, WqeOpcode::CompareSwap | WqeOpcode::FetchAdd)
    }

    /// Whether it is answered by a READ response of no bytes.
    pub(super) fn is_placed(&self) -> bool {
        matches!(self.opcode, WqeOpcode::AtomicWrite | WqeOpcode::Flush)
    }

    pub(super) fn responds(&self) -> bool {
        self.is_atomic() || self.is_placed() || self.opcode == WqeOpcode::RdmaRead
    }

    pub(super) fn is_silent(&self) -> bool {
        matches!(self.opcode, WqeOpcode::LocalInv | WqeOpcode::FastReg)
    }

    /// Whether it takes a receive.
    pub(super) fn takes(&self) -> bool {
        self.is_send() || self.opcode == WqeOpcode::RdmaWriteImm
    }

    pub(super) fn is_send(&self) -> bool {
        matches!(
            self.opcode,
            WqeOpcode::Send | WqeOpcode::SendImm | WqeOpcode::SendInv
        )
    }
}
