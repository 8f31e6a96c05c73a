// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Doorbell areas, event queues, completion queues, shared receive queues.

use super::super::ctx::Translation;
use super::{Command, Empty, Le16, Le32, Le64, Opcode, Quiesced, PAYLOAD_SIZE};

layout! {
    /// Creates a doorbell area.
    pub struct CreateUar: 24 {
        /// Index of the area, which is the index of its page in the doorbell BAR.
        0 => uar: Le32,
        /// The context whose area it is: 0 the kernel's, else a number that the areas of one process share.
        4 => context: Le32,
        /// DMA address of the area: [`super::super::doorbell::AREA_SIZE`] zeroed bytes, aligned to 4096.
        8 => addr: Le64,
        16 => reserved: Le64,
    }
}
command!(CreateUar, CreateUar, Empty);
object_command!(
    /// Destroys a doorbell area that nothing uses.
    DestroyUar, DestroyUar, Empty
);

codes! {
    /// What an event queue tells of.
    pub enum EqKind: u8 {
        /// Completions and what happens to objects: entries of [`super::super::eqe::EQE_SIZE`] bytes.
        Event = 0,
        /// Page faults.
        PageFault = 1,
    }
}

layout! {
    /// Creates an event queue.
    pub struct CreateEq: 48 {
        0 => eqn: Le32,
        /// MSI-X vector that it raises.
        4 => vector: Le16,
        /// The ring has 2^log_size entries.
        6 => log_size: u8,
        7 => reserved: u8,
        /// The ring, zeroed.
        8 => ring: Translation,
        /// DMA address of the consumer index, a [`Le32`] that the driver writes before it handles an entry.
        24 => ci_addr: Le64,
        /// [`EqKind`].
        32 => kind: u8,
        /// An entry has 2^log_entry_size bytes.
        33 => log_entry_size: u8,
        34 => reserved1: [u8; 6],
        40 => reserved2: Le64,
    }
}
command!(CreateEq, CreateEq, Empty);
object_command!(
    /// Destroys an event queue that nothing uses.
    DestroyEq, DestroyEq, Empty
);

/// The event queue of asynchronous events. It has to be created first.
pub const ASYNC_EQN: u32 = 0;

layout! {
    /// Creates a completion queue.
    pub struct CreateCq: 48 {
        0 => cqn: Le32,
        /// Event queue of its completion events.
        4 => eqn: Le32,
        /// Doorbell area, and slot in it, of consumer index and arm word.
        8 => uar: Le32,
        12 => slot: Le16,
        /// The ring has 2^log_size entries, and all of them can be used.
        14 => log_size: u8,
        15 => reserved0: u8,
        /// The ring, zeroed.
        16 => ring: Translation,
        /// Collapse events until this many completions ... (0 and 1: off)
        32 => moderation_count: Le16,
        /// ... or this many microseconds after the first.
        34 => moderation_period: Le16,
        /// [`cq_flags`].
        36 => flags: Le32,
        40 => reserved2: Le64,
    }
}
command!(CreateCq, CreateCq, Empty);

/// [`CreateCq::flags`]; others are refused.
pub mod cq_flags {
    /// There is no overflow: whoever polls sees to it that there is always room. Entries that find none overwrite others.
    pub const IGNORE_OVERRUN: u32 = 1 << 0;
}

object_command!(
    /// Destroys a completion queue that no queue pair uses.
    DestroyCq, DestroyCq, Quiesced
);
object_command!(
    /// Publishes a completion queue's context.
    QueryCq, QueryCq, Empty
);

layout! {
    /// Sets the moderation of a completion queue.
    pub struct ModifyCq: 16 {
        0 => cqn: Le32,
        4 => moderation_count: Le16,
        6 => moderation_period: Le16,
        8 => reserved: Le64,
    }
}
command!(ModifyCq, ModifyCq, Empty);

layout! {
    /// Moves a completion queue to another ring, which is zeroed. Entries keep their indexes, and with them the consumer
    /// index and arms. Entry `i` of the new ring lies where `i - base` lies in one of its size, and has the phase of that,
    /// `base` being the consumer index when the command was issued: nothing is polled until the reply.
    pub struct ResizeCq: 32 {
        0 => cqn: Le32,
        4 => log_size: u8,
        5 => reserved0: u8,
        6 => reserved1: Le16,
        8 => ring: Translation,
        24 => reserved2: Le64,
    }
}
command!(ResizeCq, ResizeCq, Empty);

layout! {
    /// Creates a shared receive queue.
    pub struct CreateSrq: 64 {
        0 => srqn: Le32,
        4 => pdn: Le32,
        /// Doorbell area, and slot among those of queue pairs, of the producer index.
        8 => uar: Le32,
        12 => slot: Le16,
        /// The ring has 2^log_size entries ...
        14 => log_size: u8,
        /// ... of 2^log_stride bytes each.
        15 => log_stride: u8,
        16 => ring: Translation,
        /// `enum ib_srq_type`: 0 is basic, 1 for extended connections.
        32 => srq_type: u8,
        33 => reserved0: u8,
        34 => reserved1: Le16,
        /// Initial limit; 0: not armed.
        36 => limit: Le32,
        /// XRC: the CQ of its receives, and its XRC domain; else 0.
        40 => cqn: Le32,
        44 => xrcdn: Le32,
        48 => reserved2: [Le64; 2],
    }
}
command!(CreateSrq, CreateSrq, Empty);
object_command!(
    /// Destroys a shared receive queue that no queue pair uses. Requests of extended connections do not keep it.
    DestroySrq, DestroySrq, Quiesced
);
object_command!(
    /// Publishes a shared receive queue's context.
    QuerySrq, QuerySrq, Empty
);

layout! {
    /// Arms the limit of a shared receive queue.
    pub struct ModifySrq: 16 {
        0 => srqn: Le32,
        4 => limit: Le32,
        8 => reserved: Le64,
    }
}
command!(ModifySrq, ModifySrq, Empty);

layout! {
    /// Moves a shared receive queue to another ring, in which the entries that are not taken lie already: entry `i` at
    /// `i` mod its size. Entries have the size that they had. Nothing is posted until the reply.
    pub struct ResizeSrq: 32 {
        0 => srqn: Le32,
        4 => log_size: u8,
        5 => reserved0: u8,
        6 => reserved1: Le16,
        8 => ring: Translation,
        24 => reserved2: Le64,
    }
}
command!(ResizeSrq, ResizeSrq, Empty);

layouts! {
    structs: [
        CreateUar, DestroyUar, CreateEq, DestroyEq, CreateCq, DestroyCq, QueryCq, ModifyCq, ResizeCq, CreateSrq, DestroySrq,
        QuerySrq, ModifySrq, ResizeSrq,
    ],
    codes: [EqKind]
}
