// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Injection of faults, so that the driver and its users can test how they handle errors.

use super::{Command, Empty, Le16, Le32, Le64, Opcode, PAYLOAD_SIZE};

codes! {
    /// Kinds of faults.
    pub enum FaultKind: u8 {
        /// The next send that the queue pair begins completes with the requested status.
        Send = 0,
        /// When the next receive is taken from the SRQ, the SRQ goes to ERR.
        Srq = 1,
        /// The next entry of the CQ cannot be written, and the CQ goes to ERR.
        Cq = 2,
        /// The device fails immediately.
        Device = 3,
    }
}

layout! {
    /// Injects a fault. The object keeps the fault until it takes effect. If the object is
    /// destroyed or the queue pair moves to RESET before that, the fault is discarded.
    pub struct InjectFault: 16 {
        /// [`FaultKind`].
        0 => kind: u8,
        /// [`FaultKind::Send`]: any [`super::super::cqe::WcStatus`] of an error except
        /// `WrFlushErr`. Other kinds: 0.
        1 => status: u8,
        2 => reserved0: Le16,
        /// QPN, SRQN or CQN; 0 for the device.
        4 => number: Le32,
        8 => reserved1: Le64,
    }
}
command!(InjectFault, InjectFault, Empty);

layouts! {
    structs: [InjectFault],
    codes: [FaultKind]
}
