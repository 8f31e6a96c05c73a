// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command queue. Device specification, "Commands".
//!
//! The queue is an array of slots in coherent memory of the driver, each with a request and a reply. The driver owns a
//! slot until it writes the slot's index to [`super::regs::CMDQ_DOORBELL`], the device until it has stored the
//! request's token in the reply. Slots are independent of each other; the device executes them in the order of their
//! doorbells and raises vector 0 after each.

use super::{
    ctx::{AddressVector, QpAttr, Translation},
    Le16, Le32, Le64,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a slot in bytes: a request of [`REQUEST_SIZE`], then a reply of [`REPLY_SIZE`].
pub const SLOT_SIZE: usize = 512;
/// Size of a request with its header, in bytes.
pub const REQUEST_SIZE: usize = 256;
/// Size of a reply with its header, in bytes.
pub const REPLY_SIZE: usize = 256;
/// Size of a header in bytes; the payload follows it.
pub const HEADER_SIZE: usize = 16;
/// The most bytes of payload in a request or a reply.
pub const PAYLOAD_SIZE: usize = REQUEST_SIZE - HEADER_SIZE;

layout! {
    /// Begins a request.
    pub struct RequestHeader: 16 {
        /// [`Opcode`].
        0 => opcode: Le16,
        2 => reserved0: Le16,
        /// Never 0, and new for each request of a slot: a late reply cannot be taken for a later one.
        4 => token: Le32,
        8 => reserved1: Le64,
    }
}

layout! {
    /// Begins a reply.
    pub struct ReplyHeader: 16 {
        /// [`CmdStatus`].
        0 => status: Le32,
        /// [`super::syndrome::Syndrome`] of a failure, else 0.
        4 => syndrome: Le32,
        8 => reserved: Le32,
        /// The request's token. Written last, with release order: until then the reply is not there.
        12 => token: Le32,
    }
}

codes! {
    /// What a command does.
    pub enum Opcode: u16 {
        /// Capabilities and identity.
        QueryDevice = 0x01,
        /// Gives the device a chunk of a context table.
        SetTableChunk = 0x02,
        /// Reads the port's counters.
        QueryStats = 0x03,
        /// Sets or clears an entry of the GID table.
        SetGid = 0x04,
        /// Tells the device what the port's netdev is like.
        SetPort = 0x05,
        /// Creates a doorbell area.
        CreateUar = 0x10,
        /// Destroys a doorbell area that nothing uses.
        DestroyUar = 0x11,
        /// Creates an event queue.
        CreateEq = 0x20,
        /// Destroys an event queue that nothing uses.
        DestroyEq = 0x21,
        /// Creates a memory region.
        CreateMr = 0x30,
        /// Destroys a memory region; replies when the device has let go of its pages.
        DestroyMr = 0x31,
        /// Changes translation, PD or access of a memory region in one step.
        ModifyMr = 0x32,
        /// Creates a completion queue.
        CreateCq = 0x40,
        /// Destroys a completion queue that no queue pair uses.
        DestroyCq = 0x41,
        /// Sets the moderation of a completion queue.
        ModifyCq = 0x42,
        /// Publishes a completion queue's context.
        QueryCq = 0x43,
        /// Moves a completion queue to another ring.
        ResizeCq = 0x44,
        /// Creates a shared receive queue.
        CreateSrq = 0x50,
        /// Destroys a shared receive queue that no queue pair uses.
        DestroySrq = 0x51,
        /// Arms the limit of a shared receive queue.
        ModifySrq = 0x52,
        /// Publishes a shared receive queue's context.
        QuerySrq = 0x53,
        /// Creates a queue pair in RESET.
        CreateQp = 0x60,
        /// Quiesces and destroys a queue pair.
        DestroyQp = 0x61,
        /// Changes state or attributes of a queue pair.
        ModifyQp = 0x62,
        /// Publishes a queue pair's context.
        QueryQp = 0x63,
        /// Attaches a queue pair to a multicast group.
        AttachMcast = 0x70,
        /// Detaches a queue pair from a multicast group.
        DetachMcast = 0x71,
    }
}

codes! {
    /// How a command ended. A command that failed changed nothing.
    pub enum CmdStatus: u32 {
        /// Done.
        Ok = 0,
        /// A field of the request is out of range or contradicts another (EINVAL).
        Invalid = 1,
        /// The object is still used by another (EBUSY).
        Busy = 2,
        /// No such object (EINVAL).
        NotFound = 3,
        /// The number is taken already (EEXIST).
        Exists = 4,
        /// The device has no room for it (ENOMEM).
        NoResources = 5,
        /// The device does not know this command or option (EOPNOTSUPP).
        Unsupported = 6,
        /// Guest memory that the command names cannot be reached (EFAULT).
        BadAddress = 7,
        /// The device is in a fatal error (EIO).
        Fatal = 8,
    }
}

/// A command: its request type carries the opcode and names its reply type.
pub trait Command: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {
    /// The command's opcode.
    const OPCODE: Opcode;
    /// What a successful reply holds.
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

layout! {
    /// Nothing: the request or reply of commands that have no payload.
    pub struct Empty: 8 {
        0 => reserved: Le64,
    }
}

layout! {
    /// Names one object by its number (UAR, EQN, CQN, SRQN, QPN or memory key).
    pub struct ObjectId: 8 {
        0 => id: Le32,
        4 => reserved: Le32,
    }
}

macro_rules! object_command {
    ($(#[$doc:meta])* $request:ident, $opcode:ident, $reply:ident) => {
        layout! {
            $(#[$doc])*
            pub struct $request: 8 {
                /// The object's number.
                0 => id: Le32,
                4 => reserved: Le32,
            }
        }
        command!($request, $opcode, $reply);
    };
}

layout! {
    /// Asks for capabilities and identity.
    pub struct QueryDevice: 8 {
        0 => reserved: Le64,
    }
}

layout! {
    /// Capabilities and identity. Counts are numbers of objects, not of bits.
    pub struct DeviceCaps: 160 {
        /// The port's MAC address; the driver pairs with the netdev that has the same. Bytes 6 and 7 are zero.
        0 => mac: [u8; 8],
        /// Node and system image GUID, in network order.
        8 => node_guid: [u8; 8],
        /// Firmware version: major, minor and patch of the NIC, 16 bits each from the top, as `fw_ver` has them.
        16 => fw_ver: Le64,
        24 => max_mr_size: Le64,
        /// Page sizes that translations may use, a bit each.
        32 => page_size_cap: Le64,
        /// `FEATURE_*`.
        40 => features: Le64,
        /// QPNs are below this; QPNs 0 and 1 are the special queue pairs.
        48 => max_qp: Le32,
        52 => max_cq: Le32,
        56 => max_srq: Le32,
        /// Key indexes are below this; index 0 is reserved.
        60 => max_mr: Le32,
        64 => max_pd: Le32,
        68 => max_eq: Le32,
        72 => max_uar: Le32,
        76 => max_gid: Le32,
        /// Work requests for each queue: a power of two.
        80 => max_qp_wr: Le32,
        84 => max_srq_wr: Le32,
        /// Entries of a CQ: a power of two.
        88 => max_cqe: Le32,
        /// Entries of an EQ: a power of two.
        92 => max_eqe: Le32,
        96 => max_send_sge: Le32,
        100 => max_recv_sge: Le32,
        104 => max_srq_sge: Le32,
        /// Bytes.
        108 => max_inline_data: Le32,
        /// Largest message in bytes.
        112 => max_msg_size: Le32,
        /// Outstanding READs and atomics, as requester.
        116 => max_qp_init_rd_atom: Le32,
        /// Outstanding READs and atomics, as responder.
        120 => max_qp_rd_atom: Le32,
        /// Completion vectors: event queues for completions may use MSI-X vectors 1 to this.
        124 => num_comp_vectors: Le32,
        /// The key with which privileged queue pairs reach all DMA addresses.
        128 => local_dma_lkey: Le32,
        /// Nanoseconds for each tick of the device's clock, times 2^16.
        132 => clock_ns_q16: Le32,
        136 => max_mcast_grp: Le32,
        140 => reserved0: Le32,
        144 => reserved1: [Le64; 2],
    }
}
command!(QueryDevice, QueryDevice, DeviceCaps);

/// [`DeviceCaps::features`]: reliable connections.
pub const FEATURE_RC: u64 = 1 << 0;
/// Unreliable connections.
pub const FEATURE_UC: u64 = 1 << 1;
/// Unreliable datagrams.
pub const FEATURE_UD: u64 = 1 << 2;
/// Shared receive queues.
pub const FEATURE_SRQ: u64 = 1 << 3;
/// 64-bit atomics.
pub const FEATURE_ATOMIC: u64 = 1 << 4;
/// Fast registration and local invalidate (kernel queue pairs).
pub const FEATURE_FAST_REG: u64 = 1 << 5;
/// Moving a CQ to another ring.
pub const FEATURE_RESIZE_CQ: u64 = 1 << 6;
/// Moderation of completion events.
pub const FEATURE_MODERATION: u64 = 1 << 7;
/// Multicast.
pub const FEATURE_MCAST: u64 = 1 << 8;

/// Size of a chunk of a context table in bytes. The table grows by whole chunks.
pub const TABLE_CHUNK_SIZE: usize = 0x1_0000;

codes! {
    /// The context tables.
    pub enum Table: u8 {
        /// Queue pair contexts, indexed by QPN.
        Qpc = 0,
        /// Completion queue contexts, indexed by CQN.
        Cqc = 1,
        /// Shared receive queue contexts, indexed by SRQN.
        Srqc = 2,
        /// Memory entries, indexed by the key's index.
        Mpt = 3,
        /// Event queue contexts, indexed by EQN.
        Eqc = 4,
    }
}

layout! {
    /// Gives the device the memory for the contexts `chunk * n ..` of a table, where n is [`TABLE_CHUNK_SIZE`] over
    /// the size of the table's context. A chunk stays until reset. Objects whose slot has no memory cannot be created.
    pub struct SetTableChunk: 16 {
        /// [`Table`].
        0 => table: u8,
        1 => reserved0: u8,
        2 => reserved1: Le16,
        4 => chunk: Le32,
        /// DMA address of the zeroed chunk, page aligned.
        8 => addr: Le64,
    }
}
command!(SetTableChunk, SetTableChunk, Empty);

layout! {
    /// Asks for the port's counters.
    pub struct QueryStats: 8 {
        0 => reserved: Le64,
    }
}
layout! {
    /// The port's counters, indexed by [`super::stats::Counter`].
    pub struct Stats: 240 {
        0 => counters: [Le64; 30],
    }
}
command!(QueryStats, QueryStats, Stats);

layout! {
    /// Sets or clears an entry of the GID table. Only RoCE v2 GIDs (UDP encapsulation) are accepted.
    pub struct SetGid: 32 {
        0 => index: Le16,
        /// 1: set, 0: clear.
        2 => valid: u8,
        3 => reserved0: u8,
        /// VLAN id, or [`NO_VLAN`].
        4 => vlan: Le16,
        /// Source MAC address of what is sent from this GID.
        6 => mac: [u8; 6],
        /// The GID in network order (IPv4: ::ffff:a.b.c.d).
        12 => gid: [u8; 16],
        28 => reserved1: Le32,
    }
}
command!(SetGid, SetGid, Empty);

/// [`SetGid::vlan`]: no VLAN tag.
pub const NO_VLAN: u16 = 0xffff;

layout! {
    /// Tells the device what the port's netdev is like.
    pub struct SetPort: 8 {
        /// 1: the netdev is up with carrier. While it is down nothing leaves or enters the port, loopback included.
        0 => up: u8,
        /// Largest path MTU, as `enum ib_mtu` (1 to 5).
        1 => mtu: u8,
        2 => reserved0: Le16,
        4 => reserved1: Le32,
    }
}
command!(SetPort, SetPort, Empty);

layout! {
    /// Creates a doorbell area.
    pub struct CreateUar: 16 {
        /// Index of the area, which is the index of its page in the doorbell BAR.
        0 => uar: Le32,
        4 => reserved: Le32,
        /// DMA address of the area: [`super::doorbell::AREA_SIZE`] zeroed bytes, aligned to 4096.
        8 => addr: Le64,
    }
}
command!(CreateUar, CreateUar, Empty);
object_command!(
    /// Destroys a doorbell area that nothing uses.
    DestroyUar, DestroyUar, Empty
);

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
        32 => reserved1: [Le64; 2],
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
    /// Creates a memory region.
    pub struct CreateMr: 56 {
        /// The key: index in bits 31:8, tag in bits 7:0.
        0 => key: Le32,
        4 => pdn: Le32,
        /// [`super::ctx::access`].
        8 => access: Le32,
        /// [`super::ctx::mr_flags`].
        12 => flags: Le32,
        /// Virtual address of the first byte, as WRs name it.
        16 => iova: Le64,
        /// Length in bytes.
        24 => length: Le64,
        /// Offset of the first byte in the first page of the translation.
        32 => page_offset: Le64,
        40 => pages: Translation,
    }
}
command!(CreateMr, CreateMr, Empty);
object_command!(
    /// Destroys a memory region; replies when the device has let go of its pages.
    DestroyMr, DestroyMr, Empty
);

layout! {
    /// Changes a memory region in one step: all fields as in [`CreateMr`].
    pub struct ModifyMr: 56 {
        0 => key: Le32,
        4 => pdn: Le32,
        8 => access: Le32,
        12 => flags: Le32,
        16 => iova: Le64,
        24 => length: Le64,
        32 => page_offset: Le64,
        40 => pages: Translation,
    }
}
command!(ModifyMr, ModifyMr, Empty);

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
        36 => reserved1: Le32,
        40 => reserved2: Le64,
    }
}
command!(CreateCq, CreateCq, Empty);

layout! {
    /// The reply of commands after which the driver has to drain event queues before it frees a number.
    pub struct Quiesced: 32 {
        /// Producer index of the asynchronous event queue.
        0 => async_pi: Le32,
        /// Producer index of the completion event queue (CQs only).
        4 => comp_pi: Le32,
        /// Receives that the queue pair had taken from its SRQ and that will not complete: 0 or 1 ...
        8 => recv_held: Le32,
        /// ... with its index in the SRQ ...
        12 => recv_index: Le32,
        /// ... and its `wr_id`.
        16 => recv_wr_id: Le64,
        24 => reserved: Le64,
    }
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
    pub struct CreateSrq: 48 {
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
        /// `enum ib_srq_type`; 0 is basic, the only one yet.
        32 => srq_type: u8,
        33 => reserved0: u8,
        34 => reserved1: Le16,
        /// Initial limit; 0: not armed.
        36 => limit: Le32,
        40 => reserved2: Le64,
    }
}
command!(CreateSrq, CreateSrq, Empty);
object_command!(
    /// Destroys a shared receive queue that no queue pair uses.
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

codes! {
    /// Types of queue pairs, with the numbers of `enum ib_qp_type`.
    pub enum QpType: u8 {
        /// General services interface (QPN 1).
        Gsi = 1,
        /// Reliable connection.
        Rc = 2,
        /// Unreliable connection.
        Uc = 3,
        /// Unreliable datagram.
        Ud = 4,
    }
}

/// [`CreateQp::flags`]: the queue pair may use the local DMA key, fast registration and local invalidate. Only for the
/// kernel's own.
pub const QP_PRIVILEGED: u8 = 1 << 0;
/// [`CreateQp::flags`]: every send completes with a CQE, signaled or not.
pub const QP_SIGNAL_ALL: u8 = 1 << 1;
/// [`CreateQp::flags`]: receives come from [`CreateQp::srqn`].
pub const QP_HAS_SRQ: u8 = 1 << 2;

layout! {
    /// Creates a queue pair in RESET.
    pub struct CreateQp: 80 {
        0 => qpn: Le32,
        4 => pdn: Le32,
        8 => send_cqn: Le32,
        12 => recv_cqn: Le32,
        16 => srqn: Le32,
        /// Doorbell area, and slot in it, of the producer indexes and the error word.
        20 => uar: Le32,
        24 => slot: Le16,
        /// [`QpType`].
        26 => qp_type: u8,
        /// `QP_*`.
        27 => flags: u8,
        /// The send ring has 2^log entries of 2^stride bytes.
        28 => log_sq_size: u8,
        29 => log_sq_stride: u8,
        /// The receive ring likewise; with [`QP_HAS_SRQ`] there is none.
        30 => log_rq_size: u8,
        31 => log_rq_stride: u8,
        32 => sq: Translation,
        48 => rq: Translation,
        /// Most SGEs of a send WQE, most of a receive WQE, most bytes inline.
        64 => max_send_sge: u8,
        65 => max_recv_sge: u8,
        66 => max_inline: Le16,
        68 => reserved0: Le32,
        72 => reserved1: Le64,
    }
}
command!(CreateQp, CreateQp, Empty);
object_command!(
    /// Quiesces and destroys a queue pair: no DMA, no CQE and no event of it after the reply.
    DestroyQp, DestroyQp, Quiesced
);
layout! {
    /// What QUERY_QP replies, besides publishing the context: a reader of the context may find it half written for as
    /// long as the device's thread has no CPU.
    pub struct QueriedQp: 8 {
        /// [`super::ctx::QpAttr`]'s `qp_state`.
        0 => qp_state: u8,
        1 => reserved: [u8; 7],
    }
}
object_command!(
    /// Publishes a queue pair's context.
    QueryQp, QueryQp, QueriedQp
);

layout! {
    /// Changes state or attributes of a queue pair. What `mask` does not name stays as it is.
    pub struct ModifyQp: 144 {
        0 => qpn: Le32,
        /// `enum ib_qp_attr_mask`, with the kernel's bits.
        4 => mask: Le32,
        8 => attr: QpAttr,
        88 => reserved: Le64,
        96 => av: AddressVector,
    }
}
command!(ModifyQp, ModifyQp, Quiesced);

layout! {
    /// Attaches a queue pair to, or detaches it from, a multicast group.
    pub struct AttachMcast: 24 {
        0 => qpn: Le32,
        4 => reserved: Le32,
        8 => mgid: [u8; 16],
    }
}
command!(AttachMcast, AttachMcast, Empty);

layouts! {
    structs: [
        RequestHeader, ReplyHeader, Empty, ObjectId, QueryDevice, DeviceCaps, SetTableChunk, QueryStats, Stats, SetGid,
        SetPort, CreateUar, DestroyUar, CreateEq, DestroyEq, CreateMr, DestroyMr, ModifyMr, CreateCq, DestroyCq, QueryCq,
        ModifyCq, ResizeCq, Quiesced, CreateSrq, DestroySrq, QuerySrq, ModifySrq, CreateQp, DestroyQp, QueryQp, QueriedQp, ModifyQp,
        AttachMcast,
    ],
    codes: [Opcode, CmdStatus, Table, QpType]
}
