// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Identity, capabilities, context tables.

use super::{Command, Empty, Le16, Le32, Le64, Opcode, PAYLOAD_SIZE};

layout! {
    /// Requests the capabilities and identity of the device.
    pub struct QueryDevice: 8 {
        0 => reserved: Le64,
    }
}

layout! {
    /// Capabilities and identity of the device. Limits are numbers of objects unless their comment
    /// gives another unit.
    pub struct DeviceCaps: 160 {
        /// MAC address of the port. The driver uses the net device with the same address. Bytes 6
        /// and 7 are zero.
        0 => mac: [u8; 8],
        /// GUID of node and system image, in network order.
        8 => node_guid: [u8; 8],
        /// Firmware version, which is the version of the NIC: patch in bits 15:0, minor in bits
        /// 31:16, major in bits 47:32.
        16 => fw_ver: Le64,
        24 => max_mr_size: Le64,
        /// Page sizes that translations may use: bit n stands for 2^n bytes.
        32 => page_size_cap: Le64,
        /// `FEATURE_*`.
        40 => features: Le64,
        /// QPNs are below this number, and at least [`super::FIRST_QPN`] except for special queue
        /// pairs.
        48 => max_qp: Le32,
        52 => max_cq: Le32,
        56 => max_srq: Le32,
        /// Indexes of keys are below this number. Index 0 is reserved.
        60 => max_mr: Le32,
        64 => max_pd: Le32,
        68 => max_eq: Le32,
        72 => max_uar: Le32,
        76 => max_gid: Le32,
        /// Work requests of each queue: a power of two.
        80 => max_qp_wr: Le32,
        84 => max_srq_wr: Le32,
        /// Entries of a CQ: a power of two.
        88 => max_cqe: Le32,
        /// Entries of an EQ: a power of two.
        92 => max_eqe: Le32,
        96 => max_send_sge: Le32,
        100 => max_recv_sge: Le32,
        104 => max_srq_sge: Le32,
        /// Inline data in bytes.
        108 => max_inline_data: Le32,
        /// Largest message in bytes.
        112 => max_msg_size: Le32,
        /// Outstanding READs and atomics of a requester.
        116 => max_qp_init_rd_atom: Le32,
        /// Outstanding READs and atomics at a responder.
        120 => max_qp_rd_atom: Le32,
        /// Number of completion vectors: event queues for completions may use MSI-X vectors 1 to
        /// this number.
        124 => num_comp_vectors: Le32,
        /// Local key with which privileged queue pairs reach all DMA addresses.
        128 => local_dma_lkey: Le32,
        /// Nanoseconds of a tick of the device clock, times 2^16.
        132 => clock_ns_q16: Le32,
        /// Multicast groups that have members.
        136 => max_mcast_grp: Le32,
        /// Number of ports, which are numbered from 1.
        140 => num_ports: u8,
        /// [`LinkLayer`] of the ports; 0 before version 13, for Ethernet.
        141 => link_layer: u8,
        142 => reserved0: Le16,
        /// Members of a multicast group.
        144 => max_mcast_qp_attach: Le32,
        /// Elements of a region with gaps ([`super::super::ctx::Element`]).
        148 => max_gaps: Le32,
        /// InfiniBand only: GUID of port 1, in network order.
        152 => port_guid: [u8; 8],
    }
}
command!(QueryDevice, QueryDevice, DeviceCaps);

codes! {
    /// Link layers of a port.
    pub enum LinkLayer: u8 {
        /// Ethernet: the port sends RoCE v2 packets, and a net device of the guest configures it.
        Ethernet = 0,
        /// InfiniBand: a subnet manager configures the port by management datagrams.
        InfiniBand = 1,
    }
}

/// [`DeviceCaps::features`]: reliable connections (RC).
pub const FEATURE_RC: u64 = 1 << 0;
/// [`DeviceCaps::features`]: unreliable connections (UC).
pub const FEATURE_UC: u64 = 1 << 1;
/// [`DeviceCaps::features`]: unreliable datagrams (UD).
pub const FEATURE_UD: u64 = 1 << 2;
/// [`DeviceCaps::features`]: shared receive queues (SRQ).
pub const FEATURE_SRQ: u64 = 1 << 3;
/// [`DeviceCaps::features`]: atomics of 64 bits.
pub const FEATURE_ATOMIC: u64 = 1 << 4;
/// [`DeviceCaps::features`]: fast registration and local invalidate, for privileged queue pairs.
pub const FEATURE_FAST_REG: u64 = 1 << 5;
/// [`DeviceCaps::features`]: RESIZE_CQ.
pub const FEATURE_RESIZE_CQ: u64 = 1 << 6;
/// [`DeviceCaps::features`]: moderation of completion events.
pub const FEATURE_MODERATION: u64 = 1 << 7;
/// [`DeviceCaps::features`]: memory windows of types 1 and 2B, and local invalidate of type 2B, for
/// all queue pairs.
pub const FEATURE_MW: u64 = 1 << 9;
/// [`DeviceCaps::features`]: multicast.
pub const FEATURE_MCAST: u64 = 1 << 8;
/// [`DeviceCaps::features`]: extended reliable connections (XRC, IBTA annex A14).
pub const FEATURE_XRC: u64 = 1 << 12;
/// [`DeviceCaps::features`]: RESIZE_SRQ.
pub const FEATURE_RESIZE_SRQ: u64 = 1 << 13;
/// [`DeviceCaps::features`]: ATOMIC WRITE.
pub const FEATURE_ATOMIC_WRITE: u64 = 1 << 10;
/// [`DeviceCaps::features`]: FLUSH to global visibility.
pub const FEATURE_FLUSH: u64 = 1 << 11;
/// [`DeviceCaps::features`]: INJECT_FAULT.
pub const FEATURE_FAULTS: u64 = 1 << 14;
/// [`DeviceCaps::features`]: fast registration of regions with gaps.
pub const FEATURE_GAPS: u64 = 1 << 15;

/// Size of a chunk of a context table in bytes. Tables grow in chunks.
pub const TABLE_CHUNK_SIZE: usize = 0x1_0000;

codes! {
    /// Context tables.
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
    /// Gives the device the memory of the contexts `chunk * n` to `chunk * n + n - 1` of a table. n
    /// is [`TABLE_CHUNK_SIZE`] divided by the size of the table's contexts. The device uses a chunk
    /// until reset. An object cannot be created if its context has no memory.
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
    codes: [Table, LinkLayer]
}
