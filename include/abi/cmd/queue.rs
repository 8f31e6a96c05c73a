// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Doorbell areas, event queues, completion queues, shared receive queues.

use super::super::ctx::Translation;
use super::{Command, Empty, Le16, Le32, Le64, Opcode, Quiesced, PAYLOAD_SIZE};

layout! {
    /// Creates a doorbell area.
    pub struct CreateUar: 24 {
        /// Index of the area, which is the index of its page in the doorbell BAR.
        0 => uar: Le32,
        /// Context of the area: 0 for the kernel, else a number that is the same for all areas of a
        /// process.
        4 => context: Le32,
        /// DMA address of the area: [`super::super::doorbell::AREA_SIZE`] zeroed bytes, aligned to
        /// 4096.
        8 => addr: Le64,
        16 => reserved: Le64,
    }
}
command!(CreateUar, CreateUar, Empty);
object_command!(
    /// Destroys an unused doorbell area.
    DestroyUar, DestroyUar, Empty
);

codes! {
    /// Kinds of event queues.
    pub enum EqKind: u8 {
        /// Completion events and asynchronous events. Entries have [`super::super::eqe::EQE_SIZE`]
        /// bytes.
        Event = 0,
        /// Page faults.
        PageFault = 1,
    }
}

layout! {
    /// Creates an event queue.
    pub struct CreateEq: 48 {
        0 => eqn: Le32,
        /// MSI-X vector that the event queue raises.
        4 => vector: Le16,
        /// The ring has 2^log_size entries.
        6 => log_size: u8,
        7 => reserved: u8,
        /// The ring, zeroed.
        8 => ring: Translation,
        /// DMA address of the consumer index, a [`Le32`]. The driver stores it before it handles an
        /// entry.
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
    /// Destroys an unused event queue.
    DestroyEq, DestroyEq, Empty
);

/// Number of the event queue for asynchronous events. The driver must create it first.
pub const ASYNC_EQN: u32 = 0;

layout! {
    /// Creates a completion queue.
    pub struct CreateCq: 48 {
        0 => cqn: Le32,
        /// Event queue for the completion events.
        4 => eqn: Le32,
        /// Doorbell area of the consumer index and the arm word. The next field is their slot in
        /// the area.
        8 => uar: Le32,
        12 => slot: Le16,
        /// The ring has 2^log_size entries, all of which can be used.
        14 => log_size: u8,
        15 => reserved0: u8,
        /// The ring, zeroed.
        16 => ring: Translation,
        /// Number of completions for which the device waits before it raises an event. 0 and 1
        /// disable moderation.
        32 => moderation_count: Le16,
        /// Longest time in microseconds, from the first of these completions, that the device
        /// waits. 0 disables moderation.
        34 => moderation_period: Le16,
        /// [`cq_flags`].
        36 => flags: Le32,
        40 => reserved2: Le64,
    }
}
command!(CreateCq, CreateCq, Empty);

/// Flags in [`CreateCq::flags`]. The device refuses others.
pub mod cq_flags {
    /// The CQ cannot overflow: an entry without room overwrites the oldest entry, and the device
    /// does not report that. The program must ensure that there is room.
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
    /// Moves a completion queue to another ring, which is zeroed. Entries, the consumer index and
    /// arms keep their indexes. In the new ring, entry `i` lies at `i - base` mod the ring's size,
    /// and has the phase of the index `i - base`. `base` is the consumer index when the command is
    /// issued. The guest must not poll before the reply.
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
        /// Doorbell area of the producer index. The next field is its slot in the area, which is
        /// one of those for queue pairs.
        8 => uar: Le32,
        12 => slot: Le16,
        /// The ring has 2^log_size entries of 2^log_stride bytes.
        14 => log_size: u8,
        15 => log_stride: u8,
        16 => ring: Translation,
        /// `enum ib_srq_type`: 0 for basic SRQs, 1 for XRC SRQs.
        32 => srq_type: u8,
        33 => reserved0: u8,
        34 => reserved1: Le16,
        /// Limit at creation; 0 if it is not armed.
        36 => limit: Le32,
        /// XRC SRQs: CQ of the receives; else 0. The next field is the XRC domain, or 0.
        40 => cqn: Le32,
        44 => xrcdn: Le32,
        48 => reserved2: [Le64; 2],
    }
}
command!(CreateSrq, CreateSrq, Empty);
object_command!(
    /// Destroys a shared receive queue that no queue pair uses. XRC targets do not count as users.
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
    /// Moves a shared receive queue to another ring. The guest has already copied the entries that
    /// the device has not taken: entry `i` lies at `i` mod the new ring's size. The size of an
    /// entry does not change. The guest must not post before the reply.
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
