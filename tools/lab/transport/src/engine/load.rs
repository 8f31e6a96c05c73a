// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The load of an engine: the messages, the number of connections, and the mode of travel.

use verbena_transport::host::WqeOpcode;
use verbena_transport::QpType;

/// Length of a giant message in bytes.
pub const GIANT: u32 = 1 << 30;

/// The load of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineLoad {
    /// Transport service of the queue pairs.
    pub qp_type: QpType,
    /// Operation of every work request.
    pub opcode: WqeOpcode,
    /// Length of a message in bytes.
    pub size: u32,
    /// True if the payload is in the WQE.
    pub inline: bool,
    /// Number of connections.
    pub pairs: u32,
    /// True if both ends send, and not only the first.
    pub both: bool,
    /// Number of work requests outstanding on each queue pair that sends.
    pub depth: u32,
    /// Distance between signaled work requests; divides `depth`.
    pub signal_every: u32,
    /// True if every packet goes through the bytes of a frame.
    pub wire: bool,
    /// Path MTU in bytes.
    pub path_mtu: u32,
    /// True if queue pair 0 sends messages of [`GIANT`] bytes instead.
    pub giant: bool,
}

impl EngineLoad {
    /// Returns a load with one connection, one work request outstanding, and packets by reference.
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

    /// Returns the load with many work requests outstanding.
    pub fn pipelined(self) -> Self {
        Self {
            depth: 128,
            signal_every: 32,
            ..self
        }
    }
}
