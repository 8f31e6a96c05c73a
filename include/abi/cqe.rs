// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queue entries. Device specification, "Completion queues".
//!
//! The entry with the free-running index `i` lies at `i % size`. Its last word contains the phase.
//! The device writes the rest of the entry, then this word with release order. The consumer loads
//! the word with acquire order, and takes the entry if [`Tail::unpack`] finds in it the phase of
//! the present pass over the ring ([`phase`]). A new ring is zeroed, and the first pass has phase
//! 1.

use super::{Le16, Le32, Le64};

codes! {
    /// Completion statuses, with the numbers of `enum ib_wc_status`.
    pub enum WcStatus: u8 {
        /// Success.
        Success = 0,
        /// Local length error.
        LocLenErr = 1,
        /// Local queue pair operation error.
        LocQpOpErr = 2,
        /// Local EE context operation error (reliable datagram only).
        LocEecOpErr = 3,
        /// Local protection error.
        LocProtErr = 4,
        /// Work request flushed.
        WrFlushErr = 5,
        /// Memory management operation error.
        MwBindErr = 6,
        /// Bad response.
        BadRespErr = 7,
        /// Local access error.
        LocAccessErr = 8,
        /// Remote invalid request error.
        RemInvReqErr = 9,
        /// Remote access error.
        RemAccessErr = 10,
        /// Remote operation error.
        RemOpErr = 11,
        /// Transport retry counter exceeded.
        RetryExcErr = 12,
        /// RNR retry counter exceeded.
        RnrRetryExcErr = 13,
        /// Local RDD violation (reliable datagram only).
        LocRddViolErr = 14,
        /// Remote invalid RD request (reliable datagram only).
        RemInvRdReqErr = 15,
        /// Remote aborted.
        RemAbortErr = 16,
        /// Invalid EE context number (reliable datagram only).
        InvEecnErr = 17,
        /// Invalid EE context state (reliable datagram only).
        InvEecStateErr = 18,
        /// Fatal error.
        FatalErr = 19,
        /// Response timeout.
        RespTimeoutErr = 20,
        /// General error.
        GeneralErr = 21,
    }
}

impl WcStatus {
    /// Returns the name in `enum ibv_wc_status`.
    pub const fn verbs_name(self) -> &'static str {
        match self {
            Self::Success => "IBV_WC_SUCCESS",
            Self::LocLenErr => "IBV_WC_LOC_LEN_ERR",
            Self::LocQpOpErr => "IBV_WC_LOC_QP_OP_ERR",
            Self::LocEecOpErr => "IBV_WC_LOC_EEC_OP_ERR",
            Self::LocProtErr => "IBV_WC_LOC_PROT_ERR",
            Self::WrFlushErr => "IBV_WC_WR_FLUSH_ERR",
            Self::MwBindErr => "IBV_WC_MW_BIND_ERR",
            Self::BadRespErr => "IBV_WC_BAD_RESP_ERR",
            Self::LocAccessErr => "IBV_WC_LOC_ACCESS_ERR",
            Self::RemInvReqErr => "IBV_WC_REM_INV_REQ_ERR",
            Self::RemAccessErr => "IBV_WC_REM_ACCESS_ERR",
            Self::RemOpErr => "IBV_WC_REM_OP_ERR",
            Self::RetryExcErr => "IBV_WC_RETRY_EXC_ERR",
            Self::RnrRetryExcErr => "IBV_WC_RNR_RETRY_EXC_ERR",
            Self::LocRddViolErr => "IBV_WC_LOC_RDD_VIOL_ERR",
            Self::RemInvRdReqErr => "IBV_WC_REM_INV_RD_REQ_ERR",
            Self::RemAbortErr => "IBV_WC_REM_ABORT_ERR",
            Self::InvEecnErr => "IBV_WC_INV_EECN_ERR",
            Self::InvEecStateErr => "IBV_WC_INV_EEC_STATE_ERR",
            Self::FatalErr => "IBV_WC_FATAL_ERR",
            Self::RespTimeoutErr => "IBV_WC_RESP_TIMEOUT_ERR",
            Self::GeneralErr => "IBV_WC_GENERAL_ERR",
        }
    }
}

codes! {
    /// Completed operations, with the numbers of `enum ibv_wc_opcode`.
    pub enum WcOpcode: u8 {
        /// SEND of any kind.
        Send = 0,
        /// RDMA WRITE of any kind.
        RdmaWrite = 1,
        /// RDMA READ.
        RdmaRead = 2,
        /// Compare and swap.
        CompSwap = 3,
        /// Fetch and add.
        FetchAdd = 4,
        /// Bind of a memory window.
        BindMw = 5,
        /// Local invalidate.
        LocalInv = 6,
        /// Fast registration.
        FastReg = 7,
        /// FLUSH.
        Flush = 8,
        /// ATOMIC WRITE.
        AtomicWrite = 9,
        /// Receive.
        Recv = 128,
        /// Receive that an RDMA WRITE with immediate data consumed.
        RecvRdmaWithImm = 129,
    }
}

/// Bit of [`WcOpcode`] that is set for receives only.
pub const WC_OPCODE_RECV: u8 = 128;

/// [`Cqe::wc_flags`], with the bits of `enum ibv_wc_flags`.
pub mod wc_flags {
    /// The payload follows a GRH (UD).
    pub const GRH: u8 = 1 << 0;
    /// Immediate data is valid.
    pub const WITH_IMM: u8 = 1 << 1;
    /// The invalidated key is valid.
    pub const WITH_INV: u8 = 1 << 3;
}

layout! {
    /// A completion.
    pub struct Cqe: 64 {
        /// `wr_id` of the WQE. The kernel must not trust it.
        0 => wr_id: Le64,
        /// Free-running index of the WQE in its ring, which is that of the SRQ for receives from an
        /// SRQ.
        8 => wqe_index: Le32,
        /// Length in bytes of the message that was received, read or sent.
        12 => byte_len: Le32,
        /// Immediate data in network order, or the invalidated key in little endian.
        16 => imm: [u8; 4],
        20 => qpn: Le32,
        /// UD: QPN of the sender.
        24 => src_qp: Le32,
        /// [`super::syndrome::Syndrome`]; 0 only on success.
        28 => vendor_err: Le32,
        /// Time of completion in nanoseconds of the device clock ([`super::regs::DOORBELL_CLOCK`]).
        32 => timestamp: Le64,
        /// SRQN, for receives from an SRQ; else 0, which no SRQ has.
        40 => srqn: Le32,
        /// Special queue pairs: index of the datagram's P_Key.
        44 => pkey_index: Le16,
        /// UD on Ethernet: MAC address of the sender.
        46 => smac: [u8; 6],
        /// UD on Ethernet: VLAN id, or [`super::cmd::NO_VLAN`].
        52 => vlan: Le16,
        54 => sl: u8,
        /// UD: [`network_type`].
        55 => network_type: u8,
        /// InfiniBand only: LID of the sender. The next field is the low bits of the LID that it
        /// sent to.
        56 => slid: Le16,
        58 => dlid_path_bits: u8,
        /// Special queue pairs of devices with several ports: port that received the datagram; else
        /// 0.
        59 => port: u8,
        /// Status, opcode, flags and phase in one word; see [`Tail`].
        60 => tail: Le32,
    }
}

/// [`Cqe::network_type`], with the numbers of `enum rdma_network_type`.
pub mod network_type {
    /// InfiniBand.
    pub const INFINIBAND: u8 = 0;
    /// RoCE v2 over IPv4.
    pub const IPV4: u8 = 2;
    /// RoCE v2 over IPv6.
    pub const IPV6: u8 = 3;
}

/// Size of an entry in bytes.
pub const CQE_SIZE: usize = 64;
/// Offset of [`Cqe::tail`].
pub const TAIL_OFFSET: usize = 60;

/// Last word of a CQE: status in bits 7:0, opcode in bits 15:8, `wc_flags` in bits 23:16, 1 in bit
/// 30, [`phase`] in bit 31.
///
/// Bit 30 is 1 in every entry. When the context of a process is disassociated, the kernel replaces
/// the mapping of a ring by the zero page. Because of bit 30 the zero page contains no entry of
/// either phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// [`WcStatus`].
    pub status: u8,
    /// [`WcOpcode`], also for a CQE in error: it shows to which queue the WQE belongs.
    pub opcode: u8,
    /// [`wc_flags`].
    pub wc_flags: u8,
}

const TAIL_PHASE: u32 = 1 << 31;
const TAIL_VALID: u32 = 1 << 30;

impl Tail {
    /// Returns the word for the entry with a free-running index, in a ring of 2^log_size entries.
    #[inline]
    pub const fn pack(self, index: u32, log_size: u8) -> u32 {
        (self.status as u32)
            | (self.opcode as u32) << 8
            | (self.wc_flags as u32) << 16
            | TAIL_VALID
            | (phase(index, log_size) as u32) << 31
    }

    /// True if the word belongs to the entry with this index. False if the entry was not written
    /// yet.
    #[inline]
    pub const fn is_valid(word: u32, index: u32, log_size: u8) -> bool {
        let expected = TAIL_VALID | (phase(index, log_size) as u32) << 31;
        word & (TAIL_PHASE | TAIL_VALID) == expected
    }

    /// Unpacks the word if it belongs to the entry with this index. Returns `None` if the entry was
    /// not written yet.
    #[inline]
    pub const fn unpack(word: u32, index: u32, log_size: u8) -> Option<Self> {
        if !Self::is_valid(word, index, log_size) {
            return None;
        }
        Some(Self {
            status: word as u8,
            opcode: (word >> 8) as u8,
            wc_flags: (word >> 16) as u8,
        })
    }
}

/// Returns the phase of the entry with a free-running index, in a ring of 2^log_size entries.
#[inline]
pub const fn phase(index: u32, log_size: u8) -> bool {
    (index >> log_size) & 1 == 0
}

layouts! {
    structs: [Cqe],
    codes: [WcStatus, WcOpcode]
}
