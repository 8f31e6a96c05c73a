// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A send WQE while it is written. Both ways of posting, lists and `ibv_wr_*`, write their WQEs
//! through this file.
//!
//! Words are written whole: one store writes a field together with the reserved field beside it.

use crate::ffi::memory::RingEntry;
use crate::ffi::object::Ah;
use core::mem::{offset_of, size_of};
use verbena_abi::ctx::AddressVector;
use verbena_abi::wqe::{
    self, send_flags, AtomicSegment, BindSegment, FlushSegment, SendWqe, Sge, WqeOpcode,
};

/// Smallest stride of a send ring, in bytes.
pub const MIN: usize = 1 << wqe::LOG_SQ_STRIDE.0;

/// First word of a [`SendWqe`], before `wr_id`: opcode, flags, number of SGEs, length of inline
/// data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WqeHead(u64);

const fn bit(offset: usize) -> u32 {
    8 * offset as u32
}
const FLAGS: u32 = bit(offset_of!(SendWqe, flags));
const NUM_SGE: u32 = bit(offset_of!(SendWqe, num_sge));
const INLINE_LENGTH: u32 = bit(offset_of!(SendWqe, inline_length));
const INLINE: u64 = (send_flags::INLINE as u64) << FLAGS;

const _: () = {
    assert!(offset_of!(SendWqe, opcode) == 0 && offset_of!(SendWqe, wr_id) == size_of::<WqeHead>());
    // Each of these fields begins a word. The field after it in the word serves other transports
    // and types of queue pair.
    assert!(offset_of!(SendWqe, remote_srqn) == offset_of!(SendWqe, imm) + 4);
    assert!(offset_of!(SendWqe, pkey_index) == offset_of!(SendWqe, rkey) + 4);
    assert!(offset_of!(AtomicSegment, compare_add) == 0 && offset_of!(AtomicSegment, swap) == 16);
    assert!(offset_of!(AtomicSegment, compare_add_high) == 8);
    assert!(offset_of!(AtomicSegment, swap_high) == 24);
    assert!(offset_of!(Sge, addr) == 0 && offset_of!(Sge, length) == 8);
    assert!(offset_of!(Sge, lkey) == 12 && size_of::<Sge>() == 16);
};

impl WqeHead {
    #[inline(always)]
    pub fn new(opcode: WqeOpcode, flags: u32) -> Self {
        Self(u64::from(opcode.to_raw()) | u64::from(flags) << FLAGS)
    }

    #[inline(always)]
    pub fn is_inline(self) -> bool {
        self.0 & INLINE != 0
    }

    /// Returns the word without the inline flag, even if the program has set it.
    pub fn not_inline(self) -> Self {
        Self(self.0 & !INLINE)
    }

    /// Returns the word with `count` SGEs, up to 255. The word must not have SGEs before.
    #[inline(always)]
    pub fn with_sges(self, count: u32) -> Self {
        Self(self.0 | u64::from(count) << NUM_SGE)
    }

    /// Returns the word with one more SGE.
    #[inline(always)]
    pub fn plus_sge(self) -> Self {
        Self(self.0 + (1 << NUM_SGE))
    }

    #[inline(always)]
    pub fn sges(self) -> u32 {
        (self.0 >> NUM_SGE) as u8 as u32
    }

    /// Returns the word with the inline flag and `length` more bytes of inline data.
    #[inline(always)]
    pub fn with_inline(self, length: u32) -> Self {
        Self((self.0 | INLINE) + (u64::from(length) << INLINE_LENGTH))
    }

    #[inline(always)]
    pub fn inline_length(self) -> usize {
        (self.0 >> INLINE_LENGTH) as usize
    }
}

/// Place of a WQE in the ring.
#[derive(Clone, Copy)]
pub struct WqeWriter<'a>(pub RingEntry<'a, MIN>);

impl WqeWriter<'_> {
    /// Writes `wr_id` and the first word, which completes the header.
    #[inline(always)]
    pub fn finish(self, head: WqeHead, wr_id: u64) {
        self.0.put::<{ offset_of!(SendWqe, wr_id) }>(wr_id);
        self.0.put::<0>(head.0);
    }

    /// Sets the immediate data, or the key to invalidate, without a change of byte order.
    #[inline(always)]
    pub fn set_imm(self, imm: u32) {
        self.0.put::<{ offset_of!(SendWqe, imm) }>(imm.into());
    }

    /// Sets the SRQ at the peer of an extended connection. The SRQN shares a word with the
    /// immediate data, which has to be set before.
    pub fn set_srqn(self, srqn: u32) {
        let imm = self.0.get::<{ offset_of!(SendWqe, imm) }>() & u64::from(u32::MAX);
        self.0
            .put::<{ offset_of!(SendWqe, imm) }>(imm | u64::from(srqn) << 32);
    }

    /// Sets the address and the key at the peer.
    #[inline(always)]
    pub fn set_remote(self, remote_addr: u64, rkey: u32) {
        self.0
            .put::<{ offset_of!(SendWqe, remote_addr) }>(remote_addr);
        self.0.put::<{ offset_of!(SendWqe, rkey) }>(rkey.into());
    }

    /// Sets the operands of an atomic operation, 8 bytes each.
    #[inline(always)]
    pub fn set_operands(self, compare_add: u64, swap: u64) {
        self.0.put_pair(wqe::DATA_OFFSET, compare_add, 0);
        self.0.put_pair(wqe::DATA_OFFSET + 16, swap, 0);
    }

    /// Sets the region and the part of it to which a window is bound. The first address and the new
    /// key of the window are in the header.
    #[inline(always)]
    pub fn set_bind(self, length: u64, region: u32, access: u32) {
        const {
            assert!(offset_of!(BindSegment, length) == 0 && offset_of!(BindSegment, region) == 8);
            assert!(offset_of!(BindSegment, access) == 12 && size_of::<BindSegment>() == 16);
        };
        let rights = u64::from(region) | u64::from(access) << 32;
        self.0.put_pair(wqe::BIND_OFFSET, length, rights);
    }

    /// Sets the value that an ATOMIC WRITE writes, as inline data.
    #[inline(always)]
    pub fn set_value(self, value: [u8; wqe::ATOMIC_WRITE_SIZE]) {
        self.0
            .put_pair(wqe::DATA_OFFSET, u64::from_ne_bytes(value), 0);
    }

    /// Sets the length, placement and level of a FLUSH. The first address and the key are in the
    /// header.
    #[inline(always)]
    pub fn set_flush(self, length: u32, placement: u8, level: u8) {
        const {
            assert!(offset_of!(FlushSegment, length) == 0);
            assert!(offset_of!(FlushSegment, placement) == 4);
            assert!(offset_of!(FlushSegment, level) == 5 && size_of::<FlushSegment>() == 16);
        };
        let how = u64::from(placement) << 32 | u64::from(level) << 40;
        self.0
            .put_pair(wqe::FLUSH_OFFSET, u64::from(length) | how, 0);
    }

    /// Sets the address of a datagram.
    #[inline(always)]
    pub fn set_address(self, ah: &Ah, qpn: u32, qkey: u32) {
        const DESTINATION: usize = offset_of!(AddressVector, dest_qpn) / 8;
        const { assert!(offset_of!(AddressVector, qkey) == offset_of!(AddressVector, dest_qpn) + 4) };
        let mut words = *ah.words();
        words[DESTINATION] = u64::from(qpn) | u64::from(qkey) << 32;
        for (number, pair) in words.chunks_exact(2).enumerate() {
            self.0
                .put_pair(wqe::DATA_OFFSET + 16 * number, pair[0], pair[1]);
        }
    }

    /// Writes an SGE at `offset`. Returns false, with nothing written, if the SGE does not fit.
    #[inline(always)]
    pub fn set_sge(self, offset: usize, addr: u64, length: u32, lkey: u32) -> bool {
        self.0
            .put_pair(offset, addr, u64::from(length) | u64::from(lkey) << 32)
    }
}
