// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What an engine runs: which messages, on how many connections, and how they travel.

use verbena_roce::host::WqeOpcode;
use verbena_roce::QpType;

/// Bytes of a giant message.
pub const GIANT: u32 = 1 << 30;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Transport service.
    pub qp_type: QpType,
    /// What every work request is.
    pub opcode: WqeOpcode,
    /// Bytes of a message.
    pub size: u32,
    /// Payload is in the WQE.
    pub inline: bool,
    /// Connections.
    pub pairs: u32,
    /// Both ends send, not only the first.
    pub both: bool,
    /// Work requests that are outstanding on each queue pair that sends.
    pub depth: u32,
    /// One work request of so many is signaled; divides `depth`.
    pub signal_every: u32,
    /// Every packet goes through the bytes of a frame.
    pub wire: bool,
    /// Path MTU.
    pub path_mtu: u32,
    /// Queue pair 0 sends messages of [`GIANT`] bytes instead.
    pub giant: bool,
}

impl Shape {
    /// One connection, one work request outstanding, packets by reference.
    pub fn new(qp_type: QpType, opcode: WqeOpcode, size: u32) -> Self {
        Self {
            qp_type,
            opcode,
            size,
            inline: false,
            pairs: 1,
            both: false,
            depth: 1,
            signal_every: 1,
            wire: false,
            path_mtu: 4096,
            giant: false,
        }
    }

    /// With many work requests outstanding.
    pub fn pipelined(self) -> Self {
        Self {
            depth: 128,
            signal_every: 32,
            ..self
        }
    }
}
