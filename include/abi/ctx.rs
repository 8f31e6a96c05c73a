// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Contexts: what an object is. Device specification, "Contexts".
//!
//! The device alone writes a context slot: on creation, on every change of state and when asked by a QUERY command,
//! never after the reply to DESTROY. Each begins with a sequence counter: odd while an update is going on, so a reader
//! takes a copy, and takes it again if the counter was odd or has changed.

use super::{Le16, Le32, Le64};

/// Access rights of memory regions and queue pairs, with the bits of `enum ib_access_flags`.
pub mod access {
    /// Writes by the owner (receives, READ responses).
    pub const LOCAL_WRITE: u32 = 1 << 0;
    /// RDMA WRITE by the peer.
    pub const REMOTE_WRITE: u32 = 1 << 1;
    /// RDMA READ by the peer.
    pub const REMOTE_READ: u32 = 1 << 2;
    /// Atomics by the peer.
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    /// Memory windows may be bound to it.
    pub const MW_BIND: u32 = 1 << 4;
    /// Addresses begin at 0.
    pub const ZERO_BASED: u32 = 1 << 5;
    /// FLUSH to global visibility by the peer.
    pub const FLUSH_GLOBAL: u32 = 1 << 8;
    /// FLUSH to persistence by the peer. A queue pair may have it; no memory region does.
    pub const FLUSH_PERSISTENT: u32 = 1 << 9;
    /// All bits that the device knows of memory regions.
    pub const ALL: u32 = 0x13f;
    /// All bits that the device knows of queue pairs.
    pub const QP_ALL: u32 = ALL | FLUSH_PERSISTENT;
}

/// [`super::cmd::CreateMr::flags`].
pub mod mr_flags {
    /// The key can be registered by fast registration; until then it is free and nothing can use it.
    pub const FAST_REG: u32 = 1 << 0;
    /// Only privileged queue pairs may use the key as a local one.
    pub const PRIVILEGED: u32 = 1 << 1;
    /// The pages come and go: the low bits of a page address tell ([`super::PAGE_PRESENT`], [`super::PAGE_WRITABLE`]).
    pub const ON_DEMAND: u32 = 1 << 2;
    /// The pages are memory of the device: their addresses are offsets in it.
    pub const DEVICE_MEMORY: u32 = 1 << 3;
    /// A memory window of type 1: a bind gives it memory, rights and a new tag, and may do so again.
    pub const WINDOW_1: u32 = 1 << 4;
    /// A memory window of type 2B: a bind gives it to its queue pair, until it is invalidated.
    pub const WINDOW_2: u32 = 1 << 5;
    /// Either.
    pub const WINDOW: u32 = WINDOW_1 | WINDOW_2;
}

layout! {
    /// Where the pages of a ring or a memory region are.
    ///
    /// `levels` 0: `addr` is the DMA address of contiguous memory. 1: of a table of page addresses ([`Le64`] each, in
    /// order). 2: of a table of the addresses of such tables, each of which has 512 entries (4096 bytes, aligned).
    /// `addr` of a table is aligned to 8, and page addresses to the page size.
    pub struct Translation: 16 {
        0 => addr: Le64,
        /// Number of pages of 2^log_page_size bytes; 1 when `levels` is 0.
        8 => num_pages: Le32,
        /// 12 to 30; with `levels` 0 or [`TRANSLATION_ELEMENTS`] it is ignored.
        12 => log_page_size: u8,
        13 => levels: u8,
        14 => reserved: Le16,
    }
}

/// Bits of a page address in a region with [`mr_flags::ON_DEMAND`]; in all others bits 11:0 are 0. The page is there.
pub const PAGE_PRESENT: u64 = 1 << 0;
/// The page may be written.
pub const PAGE_WRITABLE: u64 = 1 << 1;

/// Entries of a table of the last level when there are two.
pub const TRANSLATION_LEAF: usize = 512;

/// [`Translation::levels`] of a region with gaps, which fast registration alone makes: `addr`, aligned to 8, is that of a list of
/// `num_pages` [`Element`]s.
pub const TRANSLATION_ELEMENTS: u8 = 0x80;

layout! {
    /// An element of a region with gaps: contiguous memory, which begins and ends anywhere. It may have no bytes.
    pub struct Element: 16 {
        /// DMA address of the first byte.
        0 => addr: Le64,
        /// Position in the region behind the last byte: how many bytes all elements up to this one have.
        8 => end: Le64,
    }
}

layout! {
    /// Address vector: of a connected queue pair, or in the WQE of a datagram.
    pub struct AddressVector: 48 {
        /// Destination GID in network order; RoCE v2 over IPv4 when it is ::ffff:a.b.c.d.
        0 => dgid: [u8; 16],
        /// Destination MAC address.
        16 => dmac: [u8; 6],
        /// Index of the source GID in the device's table.
        22 => sgid_index: Le16,
        /// 20 bits.
        24 => flow_label: Le32,
        28 => hop_limit: u8,
        29 => traffic_class: u8,
        30 => sl: u8,
        31 => port_num: u8,
        /// Datagrams only: destination QPN, Q_Key, and the PD of the address handle.
        32 => dest_qpn: Le32,
        36 => qkey: Le32,
        40 => pdn: Le32,
        /// InfiniBand only: destination LID.
        44 => dlid: Le16,
        /// `enum ib_rate`; 0: that of the port.
        46 => static_rate: u8,
        /// Bits 6:0, InfiniBand only: source path bits. Bit 7: [`AV_GRH`].
        47 => path_bits: u8,
    }
}

/// [`AddressVector::path_bits`]: packets have a global route header, as they always do in RoCE.
pub const AV_GRH: u8 = 1 << 7;

codes! {
    /// States of a queue pair, with the numbers of `enum ib_qp_state`.
    pub enum QpState: u8 {
        /// Nothing is posted or processed.
        Reset = 0,
        /// Receives are posted, nothing is processed.
        Init = 1,
        /// Ready to receive.
        Rtr = 2,
        /// Ready to send.
        Rts = 3,
        /// Sends drained: those posted wait.
        Sqd = 4,
        /// Send queue error (UC, UD): sends flush, receives go on.
        Sqe = 5,
        /// Error: everything flushes.
        Err = 6,
    }
}

/// Bits of [`super::cmd::ModifyQp::mask`], those of `enum ib_qp_attr_mask`.
pub mod qp_mask {
    #![allow(missing_docs)]
    pub const STATE: u32 = 1 << 0;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const ALT_PATH: u32 = 1 << 14;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    pub const CAP: u32 = 1 << 19;
    pub const DEST_QPN: u32 = 1 << 20;
    pub const RATE_LIMIT: u32 = 1 << 25;
}

layout! {
    /// Attributes of a queue pair, named and coded as in `struct ib_qp_attr`.
    pub struct QpAttr: 80 {
        /// [`QpState`].
        0 => qp_state: u8,
        /// [`QpState`].
        1 => cur_qp_state: u8,
        /// `enum ib_mtu`: 1 (256) to 5 (4096).
        2 => path_mtu: u8,
        3 => en_sqd_async_notify: u8,
        4 => qkey: Le32,
        /// First PSN expected, 24 bits.
        8 => rq_psn: Le32,
        /// First PSN sent, 24 bits.
        12 => sq_psn: Le32,
        16 => dest_qpn: Le32,
        /// [`access`]: what the peer may do.
        20 => qp_access_flags: Le32,
        24 => pkey_index: Le16,
        26 => max_rd_atomic: u8,
        27 => max_dest_rd_atomic: u8,
        /// Code of the RNR NAK timer, 5 bits (IBTA table 45).
        28 => min_rnr_timer: u8,
        /// Local ACK timeout: 4.096 us * 2^timeout; 0: none.
        29 => timeout: u8,
        30 => retry_cnt: u8,
        31 => rnr_retry: u8,
        32 => port_num: u8,
        /// `enum ib_mig_state`.
        33 => path_mig_state: u8,
        34 => alt_pkey_index: Le16,
        36 => rate_limit: Le32,
        40 => alt_port_num: u8,
        41 => alt_timeout: u8,
        42 => reserved0: [u8; 6],
        48 => reserved1: [Le64; 4],
    }
}

layout! {
    /// Queue pair context (QPC).
    pub struct QpContext: 512 {
        /// Sequence counter, odd during an update.
        0 => seq: Le32,
        4 => qpn: Le32,
        /// [`super::cmd::QpType`].
        8 => qp_type: u8,
        /// `QP_*` of [`super::cmd::CreateQp`].
        9 => flags: u8,
        /// 1 while the context belongs to a live object.
        10 => valid: u8,
        /// 1 while sends drain (SQD entered, last send not done).
        11 => sq_draining: u8,
        /// [`super::syndrome::Syndrome`] of what brought the queue pair to ERR or SQE, else 0.
        12 => syndrome: Le32,
        16 => attr: QpAttr,
        96 => av: AddressVector,
        144 => pdn: Le32,
        148 => send_cqn: Le32,
        152 => recv_cqn: Le32,
        156 => srqn: Le32,
        160 => uar: Le32,
        164 => slot: Le16,
        166 => log_sq_size: u8,
        167 => log_rq_size: u8,
        /// Producer index as last seen, WQEs started, WQEs completed.
        168 => sq_pi: Le32,
        172 => sq_next: Le32,
        176 => sq_ci: Le32,
        180 => rq_pi: Le32,
        184 => rq_ci: Le32,
        /// Next PSN to send, oldest PSN not acknowledged, PSN expected; 24 bits each.
        188 => next_psn: Le32,
        192 => una_psn: Le32,
        196 => expected_psn: Le32,
        /// Message sequence number of the responder, 24 bits.
        200 => msn: Le32,
        /// Retries left.
        204 => retry_left: u8,
        205 => rnr_left: u8,
        206 => reserved0: Le16,
        208 => sq_ring: Translation,
        224 => rq_ring: Translation,
        240 => xrcdn: Le32,
        /// `enum ib_qp_create_flags`.
        244 => create_flags: Le32,
        /// Alternate path.
        248 => alt_av: AddressVector,
        /// Smoothed round trip time and its deviation, nanoseconds; 0: not measured.
        296 => srtt: Le32,
        300 => rttvar: Le32,
        /// Packets that may be under way, and that are.
        304 => window: Le32,
        308 => in_flight: Le32,
        /// Bytes that the NIC keeps to send them once more.
        312 => stored: Le64,
        320 => reserved1: [Le64; 24],
    }
}

codes! {
    /// States of a completion queue, shared receive queue or event queue.
    pub enum QueueState: u8 {
        /// No such object.
        Free = 0,
        /// Works.
        Ok = 1,
        /// Latched in error until it is destroyed.
        Err = 2,
    }
}

layout! {
    /// Completion queue context (CQC).
    pub struct CqContext: 128 {
        /// Sequence counter, odd during an update.
        0 => seq: Le32,
        4 => cqn: Le32,
        /// [`QueueState`].
        8 => state: u8,
        9 => log_size: u8,
        10 => slot: Le16,
        /// [`super::syndrome::Syndrome`] of what brought it to ERR, else 0.
        12 => syndrome: Le32,
        16 => uar: Le32,
        20 => eqn: Le32,
        24 => producer_index: Le32,
        /// As last read.
        28 => consumer_index: Le32,
        /// Arm word as last read.
        32 => arm: Le64,
        /// Producer index when it notified last, and the arm sequence that this served.
        40 => notified_index: Le32,
        44 => served_seq: Le32,
        48 => ring: Translation,
        64 => moderation_count: Le16,
        66 => moderation_period: Le16,
        /// Queue pairs that use it.
        68 => users: Le32,
        72 => reserved: [Le64; 7],
    }
}

layout! {
    /// Shared receive queue context (SRQC).
    pub struct SrqContext: 128 {
        /// Sequence counter, odd during an update.
        0 => seq: Le32,
        4 => srqn: Le32,
        /// [`QueueState`].
        8 => state: u8,
        9 => log_size: u8,
        10 => slot: Le16,
        12 => syndrome: Le32,
        16 => uar: Le32,
        20 => pdn: Le32,
        24 => producer_index: Le32,
        28 => consumer_index: Le32,
        /// Armed limit; 0: not armed.
        32 => limit: Le32,
        36 => users: Le32,
        40 => log_stride: u8,
        41 => reserved0: u8,
        42 => reserved1: Le16,
        44 => reserved2: Le32,
        48 => ring: Translation,
        /// For extended connections: the CQ of its receives, and its domain; else 0.
        64 => cqn: Le32,
        68 => xrcdn: Le32,
        72 => reserved3: [Le64; 7],
    }
}

codes! {
    /// States of a memory entry.
    pub enum MrState: u8 {
        /// The key cannot be used.
        Free = 0,
        /// The key can be used.
        Valid = 1,
        /// Invalidated; fast registration makes it valid again.
        Invalid = 2,
    }
}

layout! {
    /// Memory entry.
    pub struct MemoryEntry: 128 {
        /// Sequence counter, odd during an update.
        0 => seq: Le32,
        /// The full key with the present tag.
        4 => key: Le32,
        /// [`MrState`].
        8 => state: u8,
        9 => reserved0: u8,
        10 => reserved1: Le16,
        12 => pdn: Le32,
        16 => access: Le32,
        20 => flags: Le32,
        24 => iova: Le64,
        32 => length: Le64,
        40 => page_offset: Le64,
        48 => pages: Translation,
        /// Of a window that is bound: the region's key.
        64 => region: Le32,
        /// Of a window of type 2 that is bound: the queue pair's number.
        68 => qpn: Le32,
        /// Of a region: windows that are bound to it.
        72 => windows: Le32,
        76 => reserved2: Le32,
        80 => reserved3: [Le64; 6],
    }
}

layout! {
    /// Event queue context (EQC).
    pub struct EqContext: 64 {
        /// Sequence counter, odd during an update.
        0 => seq: Le32,
        4 => eqn: Le32,
        /// [`QueueState`].
        8 => state: u8,
        9 => log_size: u8,
        10 => vector: Le16,
        12 => producer_index: Le32,
        16 => consumer_index: Le32,
        /// Events that wait in the device for room in the ring.
        20 => waiting: Le32,
        24 => ring: Translation,
        40 => ci_addr: Le64,
        48 => reserved: [Le64; 2],
    }
}

layouts! {
    structs: [
        Translation, Element, AddressVector, QpAttr, QpContext, CqContext, SrqContext, MemoryEntry, EqContext,
    ],
    codes: [QpState, QueueState, MrState]
}
