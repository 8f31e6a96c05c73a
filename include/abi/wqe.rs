// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work queue entries. Device specification, "Work queues".
//!
//! Rings have 2^n entries. The stride of a ring is a power of two. Producer indexes are
//! free-running 32-bit numbers, and entry `i` lies at `(i % size) * stride`. The producer may
//! overwrite an entry after it has polled the completion of this entry, or of a later one of the
//! same queue.
//!
//! A send WQE consists of a [`SendWqe`] header, then an [`AtomicSegment`] or [`AddressVector`] if
//! the operation or the type of the queue pair needs one, then SGEs or inline data. Some operations
//! have another segment instead. A receive WQE consists of a [`RecvWqe`] header, then SGEs.

use super::{ctx::AddressVector, Le16, Le32, Le64};
use core::mem::size_of;

codes! {
    /// Operations of a send WQE.
    pub enum WqeOpcode: u8 {
        /// RDMA WRITE.
        RdmaWrite = 0,
        /// RDMA WRITE with immediate data.
        RdmaWriteImm = 1,
        /// SEND.
        Send = 2,
        /// SEND with immediate data.
        SendImm = 3,
        /// RDMA READ.
        RdmaRead = 4,
        /// Compare and swap.
        CompareSwap = 5,
        /// Fetch and add.
        FetchAdd = 6,
        /// Local invalidate of the key in [`SendWqe::imm`].
        LocalInv = 7,
        /// SEND with invalidate of the key in [`SendWqe::imm`].
        SendInv = 8,
        /// Fast registration: a [`FastRegSegment`] follows the header.
        FastReg = 9,
        /// Bind of a memory window. [`SendWqe::rkey`] is the window's key with its new tag. A
        /// [`BindSegment`] follows the header and names a memory region. [`SendWqe::remote_addr`]
        /// is the window's first address in that region.
        BindMw = 10,
        /// ATOMIC WRITE of 8 bytes.
        AtomicWrite = 11,
        /// FLUSH, which has no data: a [`FlushSegment`] follows the header.
        Flush = 12,
    }
}

/// Flags in [`SendWqe::flags`].
pub mod send_flags {
    /// The operation begins after earlier READs and atomics are complete.
    pub const FENCE: u8 = 1 << 0;
    /// A successful completion writes a CQE.
    pub const SIGNALED: u8 = 1 << 1;
    /// The receiver's CQE is solicited.
    pub const SOLICITED: u8 = 1 << 2;
    /// The payload follows in the WQE.
    pub const INLINE: u8 = 1 << 3;
    /// All bits that the device knows. A WQE with others is malformed.
    pub const ALL: u8 = 0xf;
}

layout! {
    /// Header of a send WQE.
    pub struct SendWqe: 48 {
        /// [`WqeOpcode`].
        0 => opcode: u8,
        /// [`send_flags`].
        1 => flags: u8,
        /// Number of SGEs; 0 with inline data.
        2 => num_sge: u8,
        /// Special queue pairs of devices with several ports: port that sends the datagram; 0 for
        /// the queue pair's port.
        3 => port: u8,
        /// Number of bytes of inline data.
        4 => inline_length: Le32,
        /// The CQE contains this value.
        8 => wr_id: Le64,
        /// Immediate data in network order, or the key to invalidate in little endian.
        16 => imm: [u8; 4],
        /// XRC: SRQN of the peer.
        20 => remote_srqn: Le32,
        /// RDMA and atomics: address in the peer's memory.
        24 => remote_addr: Le64,
        32 => rkey: Le32,
        /// GSI: index of the P_Key.
        36 => pkey_index: Le16,
        38 => reserved0: Le16,
        40 => reserved1: Le64,
    }
}

layout! {
    /// Scatter/gather element.
    pub struct Sge: 16 {
        0 => addr: Le64,
        8 => length: Le32,
        12 => lkey: Le32,
    }
}

layout! {
    /// Operands of an atomic. The `*_high` fields are for operands of 16 bytes, or for the masks of
    /// masked atomics.
    pub struct AtomicSegment: 32 {
        0 => compare_add: Le64,
        8 => compare_add_high: Le64,
        16 => swap: Le64,
        24 => swap_high: Le64,
    }
}

layout! {
    /// Operands of a fast registration, with the fields of [`super::cmd::CreateMr`].
    pub struct FastRegSegment: 48 {
        0 => key: Le32,
        4 => access: Le32,
        8 => iova: Le64,
        16 => length: Le64,
        24 => page_offset: Le64,
        32 => pages: super::ctx::Translation,
    }
}

layout! {
    /// Memory to which a memory window is bound.
    pub struct BindSegment: 16 {
        /// Length in bytes. 0 unbinds a window of type 1.
        0 => length: Le64,
        /// Key of the memory region. The device ignores it if the length is 0.
        8 => region: Le32,
        /// [`super::ctx::access`]: rights of the peer. `ZERO_BASED` is allowed for windows of type
        /// 2 only.
        12 => access: Le32,
    }
}

layout! {
    /// Operands of a FLUSH. [`SendWqe::remote_addr`] is the first address.
    pub struct FlushSegment: 16 {
        /// Length in bytes. It has no meaning for a whole region.
        0 => length: Le32,
        /// [`flush_placement`].
        4 => placement: u8,
        /// [`flush_level`].
        5 => level: u8,
        6 => reserved0: Le16,
        8 => reserved1: Le64,
    }
}

/// Bits of [`FlushSegment::placement`], which are those of `enum ib_placement_type`: properties of
/// earlier writes after the FLUSH.
pub mod flush_placement {
    /// Every reader of the memory sees the writes.
    pub const GLOBAL: u8 = 1 << 0;
    /// The writes survive a loss of power.
    pub const PERSISTENT: u8 = 1 << 1;
    /// All defined bits.
    pub const ALL: u8 = 0x3;
}

/// Values of [`FlushSegment::level`], which are those of `enum ib_selectivity_level`: the memory
/// that is flushed.
pub mod flush_level {
    /// A range of a memory region.
    pub const RANGE: u8 = 0;
    /// All of a memory region.
    pub const REGION: u8 = 1;
}

layout! {
    /// Header of a receive WQE.
    pub struct RecvWqe: 16 {
        /// The CQE contains this value.
        0 => wr_id: Le64,
        8 => num_sge: u8,
        9 => reserved0: u8,
        10 => reserved1: Le16,
        12 => reserved2: Le32,
    }
}

/// Offset of SGEs or inline data in the WQE of a connected queue pair, in bytes.
pub const DATA_OFFSET: usize = size_of::<SendWqe>();
/// Offset of SGEs in a WQE with an [`AtomicSegment`], in bytes.
pub const DATA_OFFSET_ATOMIC: usize = DATA_OFFSET + size_of::<AtomicSegment>();
/// Offset of SGEs or inline data in a WQE with an [`AddressVector`], in bytes.
pub const DATA_OFFSET_UD: usize = DATA_OFFSET + size_of::<AddressVector>();
/// Offset of the [`FastRegSegment`] in bytes.
pub const FAST_REG_OFFSET: usize = DATA_OFFSET;

/// Offset of the [`BindSegment`] in bytes.
pub const BIND_OFFSET: usize = DATA_OFFSET;

/// Offset of the [`FlushSegment`] in bytes.
pub const FLUSH_OFFSET: usize = DATA_OFFSET;

/// Length of an ATOMIC WRITE in bytes. Its data may be inline regardless of the queue's limit of
/// inline data.
pub const ATOMIC_WRITE_SIZE: usize = 8;

/// Binary logarithms of the smallest and largest stride of a send ring.
pub const LOG_SQ_STRIDE: (u8, u8) = (6, 10);
/// Binary logarithms of the smallest and largest stride of a receive ring.
pub const LOG_RQ_STRIDE: (u8, u8) = (5, 10);

/// Largest number of SGEs of a WQE.
pub const MAX_SGE: u32 = 32;
/// Largest number of bytes of inline data of a WQE.
pub const MAX_INLINE: u32 = 512;

/// Returns the offset of SGEs or inline data in a send WQE, in bytes.
pub const fn data_offset(datagram: bool, atomic: bool) -> usize {
    if datagram {
        DATA_OFFSET_UD
    } else if atomic {
        DATA_OFFSET_ATOMIC
    } else {
        DATA_OFFSET
    }
}

/// Returns the binary logarithm of the stride of a send ring with these limits of SGEs and bytes of
/// inline data. An atomic with that many SGEs and a fast registration fit too.
pub const fn log_sq_stride(datagram: bool, max_sge: u32, max_inline: u32) -> u8 {
    let sges = max_sge as usize * size_of::<Sge>();
    let data = if sges > max_inline as usize {
        sges
    } else {
        max_inline as usize
    };
    let mut bytes = data_offset(datagram, false) + data;
    let atomic = DATA_OFFSET_ATOMIC + sges;
    if !datagram && bytes < atomic && max_sge > 0 {
        bytes = atomic;
    }
    log2_at_least(bytes, LOG_SQ_STRIDE.0)
}

const _: () = {
    let mut sges = 1;
    while sges <= MAX_SGE {
        let stride = 1 << log_sq_stride(false, sges, 0);
        assert!(DATA_OFFSET_ATOMIC + sges as usize * size_of::<Sge>() <= stride);
        assert!(FAST_REG_OFFSET + size_of::<FastRegSegment>() <= stride);
        sges += 1;
    }
};

/// Returns the number of bytes of inline data for which a send ring with this binary logarithm of
/// its stride has room. It may be more than the requested number: programs that request no inline
/// data send inline as much as fits in the place of an SGE.
pub const fn inline_room(datagram: bool, log_sq_stride: u8) -> u32 {
    // CAST: The number is less than the largest stride.
    ((1usize << log_sq_stride) - data_offset(datagram, false)) as u32
}

/// Returns the binary logarithm of the stride of a receive ring with this limit of SGEs.
pub const fn log_rq_stride(max_sge: u32) -> u8 {
    log2_at_least(
        size_of::<RecvWqe>() + max_sge as usize * size_of::<Sge>(),
        LOG_RQ_STRIDE.0,
    )
}

const fn log2_at_least(bytes: usize, least: u8) -> u8 {
    let mut log = least;
    while (1usize << log) < bytes && log < 31 {
        log += 1;
    }
    log
}

layouts! {
    structs: [SendWqe, Sge, AtomicSegment, FastRegSegment, BindSegment, FlushSegment, RecvWqe],
    codes: [WqeOpcode]
}
