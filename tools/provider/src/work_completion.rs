// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A completion as a poll reads it from its CQE.

use crate::ffi::memory::RingEntry;
use core::mem::offset_of;
use verbena_abi::cqe::{Cqe, WcOpcode, WcStatus, CQE_SIZE, TAIL_OFFSET, WC_OPCODE_RECV};
use verbena_abi::syndrome::Syndrome;

/// A completion: the words of its CQE. Their conversion to the structures of C takes them apart no
/// more than needed.
#[derive(Clone, Copy, Default)]
pub struct WorkCompletion {
    pub wr_id: u64,
    /// Index of the WQE, then the length in bytes.
    index_length: u64,
    /// Immediate data without a change of byte order, then the QPN.
    imm_qpn: u64,
    /// QPN of the sender, then the syndrome.
    source_error: u64,
    pub timestamp: u64,
    /// P_Key index, LID of the sender (2 bytes each), service level, path bits (1 byte each).
    path: u64,
    /// SRQN of a receive from an SRQ; 0 for other receives.
    pub srqn: u32,
    tail: u32,
}

const INDEX_LENGTH: usize = offset_of!(Cqe, wqe_index);
/// Offset of the word with immediate data and QPN, which a poll reads first after the tail.
pub const IMM_QPN: usize = offset_of!(Cqe, imm);
const SOURCE_ERROR: usize = offset_of!(Cqe, src_qp);
/// Offset of the word with SRQN and P_Key index, and the first bit of the P_Key index in it. The
/// next constant is the same for the service level.
const PKEY_INDEX: (usize, usize) = in_word(offset_of!(Cqe, pkey_index));
const SL: (usize, usize) = in_word(offset_of!(Cqe, sl));
/// Offset of the four bytes with the LID of the sender, then the path bits, before the tail.
const LIDS: usize = offset_of!(Cqe, slid);

const fn in_word(offset: usize) -> (usize, usize) {
    (offset / 8 * 8, offset % 8 * 8)
}

const _: () = {
    assert!(offset_of!(Cqe, srqn) == PKEY_INDEX.0);
    assert!(offset_of!(Cqe, dlid_path_bits) == LIDS + 2 && TAIL_OFFSET == LIDS + 4);
    assert!(offset_of!(Cqe, byte_len) == INDEX_LENGTH + 4);
    assert!(offset_of!(Cqe, qpn) == IMM_QPN + 4);
    assert!(offset_of!(Cqe, vendor_err) == SOURCE_ERROR + 4);
    assert!(offset_of!(Cqe, tail) == TAIL_OFFSET && size_of::<Cqe>() == CQE_SIZE);
};

impl WorkCompletion {
    /// Reads the rest of an entry whose tail was valid. Returns `None` if the entry has disappeared
    /// meanwhile: when the device has died, the kernel removes the whole page at once, and the
    /// entry reads as zeroes. If the tail is still there after the other words are read, those
    /// words are intact.
    #[inline(always)]
    pub fn read(entry: RingEntry<'_, CQE_SIZE>, imm_qpn: u64, tail: u32) -> Option<Self> {
        let srqn_pkey = entry.get::<{ PKEY_INDEX.0 }>();
        let pkey_index = srqn_pkey >> PKEY_INDEX.1 & 0xffff;
        let sl = entry.get::<{ SL.0 }>() >> SL.1 & 0xff;
        let lids = u64::from(entry.get32_acquire::<LIDS>());
        let (slid, path_bits) = (lids & 0xffff, lids >> 16 & 0xff);
        let read = Self {
            wr_id: entry.get::<{ offset_of!(Cqe, wr_id) }>(),
            index_length: entry.get::<INDEX_LENGTH>(),
            imm_qpn,
            source_error: entry.get::<SOURCE_ERROR>(),
            timestamp: entry.get::<{ offset_of!(Cqe, timestamp) }>(),
            path: pkey_index | slid << 16 | sl << 32 | path_bits << 40,
            srqn: srqn_pkey as u32,
            tail,
        };
        (entry.reread32::<TAIL_OFFSET>() == tail).then_some(read)
    }

    /// Returns the completion of a work request that was outstanding when the device died.
    pub fn flushed(qpn: u32, receive: bool, wr_id: u64) -> Self {
        let opcode = if receive {
            WcOpcode::Recv
        } else {
            WcOpcode::Send
        };
        Self {
            wr_id,
            imm_qpn: u64::from(qpn) << 32,
            source_error: u64::from(Syndrome::DeviceFatal.to_raw()) << 32,
            tail: u32::from(WcStatus::WrFlushErr.to_raw()) | u32::from(opcode.to_raw()) << 8,
            ..Self::default()
        }
    }

    /// Returns `struct ibv_wc`, which has six words: `wr_id`; status, opcode; syndrome, length;
    /// immediate data, QPN; QPN of the sender, flags; P_Key index, LID of the sender, service level,
    /// path bits.
    #[inline(always)]
    pub fn wc_words(&self) -> [u64; 6] {
        let tail = u64::from(self.tail);
        [
            self.wr_id,
            tail & 0xff | (tail >> 8 & 0xff) << 32,
            self.source_error >> 32 | self.index_length >> 32 << 32,
            self.imm_qpn,
            u64::from(self.source_error as u32) | (tail >> 16 & 0x3f) << 32,
            self.path,
        ]
    }

    #[inline(always)]
    pub fn qpn(&self) -> u32 {
        (self.imm_qpn >> 32) as u32
    }

    #[inline(always)]
    pub fn is_receive(&self) -> bool {
        self.opcode() & WC_OPCODE_RECV != 0
    }

    #[inline(always)]
    pub fn wqe_index(&self) -> u32 {
        self.index_length as u32
    }

    /// True if this is the completion of a receive from this SRQ.
    pub fn is_from_srq(&self, srqn: u32) -> bool {
        self.is_receive() && self.srqn == srqn
    }

    pub fn status(&self) -> u8 {
        self.tail as u8
    }

    #[inline(always)]
    pub fn opcode(&self) -> u8 {
        (self.tail >> 8) as u8
    }

    pub fn wc_flags(&self) -> u8 {
        (self.tail >> 16) as u8 & 0x3f
    }

    pub fn byte_len(&self) -> u32 {
        (self.index_length >> 32) as u32
    }

    pub fn imm(&self) -> u32 {
        self.imm_qpn as u32
    }

    pub fn src_qp(&self) -> u32 {
        self.source_error as u32
    }

    pub fn vendor_err(&self) -> u32 {
        (self.source_error >> 32) as u32
    }

    /// Returns the LID of the sender, which only InfiniBand has.
    pub fn slid(&self) -> u16 {
        (self.path >> 16) as u16
    }

    pub fn sl(&self) -> u8 {
        (self.path >> 32) as u8
    }

    /// Returns the low bits of the LID to which the packet was sent, which only InfiniBand has.
    pub fn dlid_path_bits(&self) -> u8 {
        (self.path >> 40) as u8
    }
}
