// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Identity, capabilities, context tables.

use super::{Command, Empty, Le16, Le32, Le64, Opcode, PAYLOAD_SIZE};

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
        /// Firmware version: major, minor and patch of the NIC, 16 bits each, the patch lowest.
        16 => fw_ver: Le64,
        24 => max_mr_size: Le64,
        /// Page sizes that translations may use, a bit each.
        32 => page_size_cap: Le64,
        /// `FEATURE_*`.
        40 => features: Le64,
        /// QPNs are below this, and not below [`super::FIRST_QPN`] but for the special queue pairs.
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
        /// Multicast groups that have members.
        136 => max_mcast_grp: Le32,
        /// Ports are numbered from 1 to this.
        140 => num_ports: u8,
        141 => reserved0: [u8; 3],
        /// Members of a multicast group.
        144 => max_mcast_qp_attach: Le32,
        /// Elements of a region with gaps ([`super::super::ctx::Element`]).
        148 => max_gaps: Le32,
        152 => reserved1: Le64,
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
/// Memory windows of types 1 and 2B, and local invalidate of the latter (all queue pairs).
pub const FEATURE_MW: u64 = 1 << 9;
/// Multicast.
pub const FEATURE_MCAST: u64 = 1 << 8;
/// Extended reliable connections.
pub const FEATURE_XRC: u64 = 1 << 12;
/// Moving an SRQ to another ring.
pub const FEATURE_RESIZE_SRQ: u64 = 1 << 13;
/// ATOMIC WRITE.
pub const FEATURE_ATOMIC_WRITE: u64 = 1 << 10;
/// FLUSH to global visibility.
pub const FEATURE_FLUSH: u64 = 1 << 11;
/// Faults on demand.
pub const FEATURE_FAULTS: u64 = 1 << 14;
/// Fast registration of regions with gaps.
pub const FEATURE_GAPS: u64 = 1 << 15;

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

layouts! {
    structs: [QueryDevice, DeviceCaps, SetTableChunk],
    codes: [Table]
}
