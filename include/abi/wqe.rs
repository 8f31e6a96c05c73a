// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work queue entries. Device specification, "Work queues".
//!
//! Rings have 2^n entries of a fixed stride that is a power of two. Producer indexes are free-running 32-bit numbers;
//! entry `i` lies at `(i % size) * stride`. The producer may overwrite an entry once its completion, or a later one of
//! the same queue, was polled.
//!
//! A send WQE is a [`SendWqe`] header, an [`AtomicSegment`] or [`AddressVector`] if the operation or the queue pair's
//! type needs one, then SGEs or inline data. A receive WQE is a [`RecvWqe`] header, then SGEs.

use super::{ctx::AddressVector, Le16, Le32, Le64};
use core::mem::size_of;

codes! {
    /// Operations of a send WQE.
    pub enum WqeOpcode: u8 {
        /// RDMA WRITE.
        RdmaWrite = 0,
        /// RDMA WRITE with immediate.
        RdmaWriteImm = 1,
        /// SEND.
        Send = 2,
        /// SEND with immediate.
        SendImm = 3,
        /// RDMA READ.
        RdmaRead = 4,
        /// Compare and swap.
        CompareSwap = 5,
        /// Fetch and add.
        FetchAdd = 6,
        /// Local invalidate of [`SendWqe::imm`] as a key.
        LocalInv = 7,
        /// SEND with invalidate of [`SendWqe::imm`] as a key.
        SendInv = 8,
        /// Fast registration: a [`FastRegSegment`] follows the header.
        FastReg = 9,
        /// Bind of a memory window: [`SendWqe::rkey`] is the window's key with the tag that it is to have,
        /// [`SendWqe::remote_addr`] its first address in the memory region that the [`BindSegment`] behind the header names.
        BindMw = 10,
        /// ATOMIC WRITE of 8 bytes.
        AtomicWrite = 11,
        /// FLUSH: a [`FlushSegment`] follows the header; it has no data.
        Flush = 12,
    }
}

/// [`SendWqe::flags`]: with the bits of `enum ib_send_flags`.
pub mod send_flags {
    /// Waits until earlier READs and atomics are done.
    pub const FENCE: u8 = 1 << 0;
    /// Completes with a CQE.
    pub const SIGNALED: u8 = 1 << 1;
    /// The receiver's CQE counts as solicited.
    pub const SOLICITED: u8 = 1 << 2;
    /// The payload follows in the WQE.
    pub const INLINE: u8 = 1 << 3;
    /// All bits that the device knows; others are a malformed WQE.
    pub const ALL: u8 = 0xf;
}

layout! {
    /// Header of a send WQE.
    pub struct SendWqe: 48 {
        /// [`WqeOpcode`].
        0 => opcode: u8,
        /// [`send_flags`].
        1 => flags: u8,
        /// Number of SGEs; 0 when inline.
        2 => num_sge: u8,
        /// Special queue pairs: port to send from, where there are several; 0: the queue pair's.
        3 => port: u8,
        /// Bytes of inline data.
        4 => inline_length: Le32,
        /// Comes back in the CQE.
        8 => wr_id: Le64,
        /// Immediate data in network order, or the key to invalidate (little endian).
        16 => imm: [u8; 4],
        /// XRC: SRQN at the peer.
        20 => remote_srqn: Le32,
        /// RDMA and atomics: address at the peer.
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
    /// Operands of an atomic. Those of 16 bytes go on in `*_high`, where masked atomics have their masks.
    pub struct AtomicSegment: 32 {
        0 => compare_add: Le64,
        8 => compare_add_high: Le64,
        16 => swap: Le64,
        24 => swap_high: Le64,
    }
}

layout! {
    /// Operands of a fast registration: what [`super::cmd::CreateMr`] says of a region.
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
    /// Which part of which memory region a memory window is bound to.
    pub struct BindSegment: 16 {
        /// Bytes; 0 takes the binding of a window of type 1 away.
        0 => length: Le64,
        /// The region's key; ignored where there are no bytes.
        8 => region: Le32,
        /// [`super::ctx::access`]: what the peer may do; `ZERO_BASED` of type 2 only.
        12 => access: Le32,
    }
}

layout! {
    /// What a FLUSH asks for; [`SendWqe::remote_addr`] is its first address.
    pub struct FlushSegment: 16 {
        /// Bytes; of a whole region nothing.
        0 => length: Le32,
        /// [`flush_placement`].
        4 => placement: u8,
        /// [`flush_level`].
        5 => level: u8,
        6 => reserved0: Le16,
        8 => reserved1: Le64,
    }
}

/// [`FlushSegment::placement`], with the bits of `enum ib_placement_type`: how far earlier writes have come.
pub mod flush_placement {
    /// Everybody who reads the memory sees them.
    pub const GLOBAL: u8 = 1 << 0;
    /// They survive a loss of power.
    pub const PERSISTENT: u8 = 1 << 1;
    /// All bits that there are.
    pub const ALL: u8 = 0x3;
}

/// [`FlushSegment::level`], with the numbers of `enum ib_selectivity_level`: which memory.
pub mod flush_level {
    /// A range of a memory region.
    pub const RANGE: u8 = 0;
    /// All of a memory region.
    pub const REGION: u8 = 1;
}

layout! {
    /// Header of a receive WQE.
    pub struct RecvWqe: 16 {
        /// Comes back in the CQE.
        0 => wr_id: Le64,
        8 => num_sge: u8,
        9 => reserved0: u8,
        10 => reserved1: Le16,
        12 => reserved2: Le32,
    }
}

/// Offset of SGEs or inline data in the WQE of a connected queue pair, in bytes.
pub const DATA_OFFSET: usize = size_of::<SendWqe>();
/// The same where an [`AtomicSegment`] comes first.
pub const DATA_OFFSET_ATOMIC: usize = DATA_OFFSET + size_of::<AtomicSegment>();
/// The same where an [`AddressVector`] comes first.
pub const DATA_OFFSET_UD: usize = DATA_OFFSET + size_of::<AddressVector>();
/// Offset of the [`FastRegSegment`].
pub const FAST_REG_OFFSET: usize = DATA_OFFSET;

/// Offset of the [`BindSegment`].
pub const BIND_OFFSET: usize = DATA_OFFSET;

/// Offset of the [`FlushSegment`].
pub const FLUSH_OFFSET: usize = DATA_OFFSET;

/// Bytes of an ATOMIC WRITE. They may be inline whatever the queue was created for.
pub const ATOMIC_WRITE_SIZE: usize = 8;

/// Smallest and largest stride of a send ring, as powers of two.
pub const LOG_SQ_STRIDE: (u8, u8) = (6, 10);
/// Smallest and largest stride of a receive ring, as powers of two.
pub const LOG_RQ_STRIDE: (u8, u8) = (5, 10);

/// Most SGEs of a WQE.
pub const MAX_SGE: u32 = 32;
/// Most bytes of inline data.
pub const MAX_INLINE: u32 = 512;

/// Offset of SGEs or inline data in a send WQE.
pub const fn data_offset(datagram: bool, atomic: bool) -> usize {
    if datagram {
        DATA_OFFSET_UD
    } else if atomic {
        DATA_OFFSET_ATOMIC
    } else {
        DATA_OFFSET
    }
}

/// The stride (as a power of two) of a send ring for so many SGEs and so many bytes of inline data. The SGEs of an
/// atomic and a fast registration fit too.
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

/// The bytes of inline data that a send ring of this stride (as a power of two) has room for, which may be more than it was
/// made for: programs that ask for none send what would fit in the place of an SGE.
pub const fn inline_room(datagram: bool, log_sq_stride: u8) -> u32 {
    // CAST: at most the largest stride.
    ((1usize << log_sq_stride) - data_offset(datagram, false)) as u32
}

/// The stride (as a power of two) of a receive ring for so many SGEs.
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
