// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A work request as the requester of the reference knows it.

use verbena_transport::host::WqeOpcode;

/// The reference's state of a work request.
#[derive(Clone, Debug)]
pub struct ReferenceWork {
    /// Operation of the work request.
    pub opcode: WqeOpcode,
    /// Length of the message in bytes.
    pub length: u32,
    /// True if the work request is signaled.
    pub signaled: bool,
    /// True if the work request waits for the READs and atomics before it.
    pub fence: bool,
    /// First PSN, after the work request was sent.
    pub(super) first: u64,
    /// PSN after the last one.
    pub(super) end: u64,
    /// READ, atomic: PSN of the next response.
    pub(super) due: u64,
    /// READ: requests that were sent, each as its first PSN and the PSN after its last.
    pub(super) asked: Vec<(u64, u64)>,
    /// True if the work request sends no packet and was executed.
    pub(super) executed: bool,
    /// True if the work request is complete.
    pub(super) over: bool,
    /// True if the work request was begun without a credit.
    pub(super) trusted: bool,
}

impl ReferenceWork {
    /// Returns a work request that was posted.
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

    /// True if a READ response of no bytes answers the work request.
    pub(super) fn is_placed(&self) -> bool {
        matches!(self.opcode, WqeOpcode::AtomicWrite | WqeOpcode::Flush)
    }

    pub(super) fn responds(&self) -> bool {
        self.is_atomic() || self.is_placed() || self.opcode == WqeOpcode::RdmaRead
    }

    pub(super) fn is_silent(&self) -> bool {
        matches!(self.opcode, WqeOpcode::LocalInv | WqeOpcode::FastReg)
    }

    /// True if the message takes a receive at the peer.
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
