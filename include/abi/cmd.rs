// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command queue. Device specification, "Commands".
//!
//! The queue is an array of slots in coherent memory of the driver. Each slot has a request and a
//! reply. The driver owns a slot until it writes the slot's index to
//! [`super::regs::CMDQ_DOORBELL`]. After that the device owns the slot until it has stored the
//! request's token in the reply. Slots are independent of each other. The device executes their
//! commands in the order of their doorbells, and raises vector 0 after each.
//!
//! | file | definitions |
//! | --- | --- |
//! | `opcode` | opcodes and statuses of commands |
//! | `frame` | slots, headers, common replies |
//! | `device` | identity, capabilities, context tables |
//! | `port` | counters, GIDs, port attributes, management datagrams, multicast |
//! | `queue` | doorbell areas, event queues, completion queues, shared receive queues |
//! | `memory` | memory regions, device memory, page faults |
//! | `qp` | queue pairs |
//! | `fault` | fault injection |

use super::{Fields, Layout, Le16, Le32, Le64, VisitCode, VisitStruct};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The request of a command, with its opcode and the type of its reply.
pub trait Command: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    /// Opcode of the command.
    const OPCODE: Opcode;
    /// Payload of a successful reply.
    type Reply: FromBytes + IntoBytes + Immutable + KnownLayout + Copy + Default;
}

macro_rules! command {
    ($request:ident, $opcode:ident, $reply:ident) => {
        impl Command for $request {
            const OPCODE: Opcode = Opcode::$opcode;
            type Reply = $reply;
        }
        const _: () = assert!(core::mem::size_of::<$request>() <= PAYLOAD_SIZE);
        const _: () = assert!(core::mem::size_of::<$reply>() <= PAYLOAD_SIZE);
    };
}

macro_rules! object_command {
    ($(#[$doc:meta])* $request:ident, $opcode:ident, $reply:ident) => {
        layout! {
            $(#[$doc])*
            pub struct $request: 8 {
                /// Number of the object.
                0 => id: Le32,
                4 => reserved: Le32,
            }
        }
        command!($request, $opcode, $reply);
    };
}

mod device;
mod fault;
mod frame;
mod memory;
mod opcode;
mod port;
mod qp;
mod queue;

pub use device::*;
pub use fault::*;
pub use frame::*;
pub use memory::*;
pub use opcode::*;
pub use port::*;
pub use qp::*;
pub use queue::*;

pub(super) fn layouts(structure: &mut VisitStruct<'_>, code: &mut VisitCode<'_>) {
    opcode::layouts(structure, code);
    frame::layouts(structure, code);
    device::layouts(structure, code);
    port::layouts(structure, code);
    queue::layouts(structure, code);
    memory::layouts(structure, code);
    qp::layouts(structure, code);
    fault::layouts(structure, code);
}
