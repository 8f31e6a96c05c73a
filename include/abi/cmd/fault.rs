// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Faults that whoever drives the device asks for, to see what it and its users make of them.

use super::{Command, Empty, Le16, Le32, Le64, Opcode, PAYLOAD_SIZE};

codes! {
    /// What fails.
    pub enum FaultKind: u8 {
        /// The next send of a queue pair that the device begins with: it completes with the status asked for.
        Send = 0,
        /// The next receive that is taken from an SRQ: the SRQ is in error.
        Srq = 1,
        /// The next entry of a CQ: it cannot be written, and the CQ is in error.
        Cq = 2,
        /// The device, now.
        Device = 3,
    }
}

layout! {
    /// Injects a fault. It waits for what it is to hit; the object's end, or a queue pair's RESET, calls it off.
    pub struct InjectFault: 16 {
        /// [`FaultKind`].
        0 => kind: u8,
        /// Send: any [`super::super::cqe::WcStatus`] of an error but that of a flush; else 0.
        1 => status: u8,
        2 => reserved0: Le16,
        /// QPN, SRQN or CQN; 0 of the device.
        4 => number: Le32,
        8 => reserved1: Le64,
    }
}
command!(InjectFault, InjectFault, Empty);

layouts! {
    structs: [InjectFault],
    codes: [FaultKind]
}
