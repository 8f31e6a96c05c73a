// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Contexts, which describe the objects of the device. Device specification, "Contexts".
//!
//! Only the device writes a context: when the object is created or changed, when its state changes,
//! and on a QUERY command, but never after the reply to DESTROY. A context begins with a sequence
//! counter, which is odd during an update. A reader copies the context, and repeats that if the
//! counter was odd or has changed.

use super::{Le16, Le32, Le64};

/// Access rights of memory regions and queue pairs, with the bits of `enum ib_access_flags`.
pub mod access {
    /// Writes by the owner: receives and READ responses.
    pub const LOCAL_WRITE: u32 = 1 << 0;
    /// RDMA WRITE by the peer.
    pub const REMOTE_WRITE: u32 = 1 << 1;
    /// RDMA READ by the peer.
    pub const REMOTE_READ: u32 = 1 << 2;
    /// Atomics by the peer.
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    /// Memory windows may be bound to the region.
    pub const MW_BIND: u32 = 1 << 4;
    /// Addresses of the region or window begin at 0.
    pub const ZERO_BASED: u32 = 1 << 5;
    /// FLUSH to global visibility by the peer.
    pub const FLUSH_GLOBAL: u32 = 1 << 8;
    /// FLUSH to persistence by the peer. Queue pairs may have this right, memory regions may not.
    pub const FLUSH_PERSISTENT: u32 = 1 << 9;
    /// All bits that the device knows for memory regions.
    pub const ALL: u32 = 0x13f;
    /// All bits that the device knows for queue pairs.
    pub const QP_ALL: u32 = ALL | FLUSH_PERSISTENT;
}

/// Flags in [`super::cmd::CreateMr::flags`].
pub mod mr_flags {
    /// The key is for fast registration. Before that it is free, and no work request can use it.
    pub const FAST_REG: u32 = 1 << 0;
    /// Only privileged queue pairs may use the key as a local key.
    pub const PRIVILEGED: u32 = 1 << 1;
    /// Pages can become present and absent. The low bits of a page address are
    /// [`super::PAGE_PRESENT`] and [`super::PAGE_WRITABLE`].
    pub const ON_DEMAND: u32 = 1 << 2;
    /// The pages are device memory, and their addresses are offsets in it.
    pub const DEVICE_MEMORY: u32 = 1 << 3;
    /// A memory window of type 1. A bind gives it memory, rights and a new tag, and may be
    /// repeated.
    pub const WINDOW_1: u32 = 1 << 4;
    /// A memory window of type 2B. After a bind it belongs to that queue pair until it is
    /// invalidated.
    pub const WINDOW_2: u32 = 1 << 5;
    /// A memory window of either type.
    pub const WINDOW: u32 = WINDOW_1 | WINDOW_2;
}

layout! {
    /// The pages of a ring or a memory region.
    ///
    /// If `levels` is 0, `addr` is the DMA address of contiguous memory. If `levels` is 1, `addr`
    /// is that of a table of page addresses, in order, each a [`Le64`]. If `levels` is 2, `addr` is
    /// that of a table of the addresses of such tables, each of which has 512 entries (4096 bytes,
    /// aligned to 4096). `addr` of a table is aligned to 8, and page addresses are aligned to the
    /// page size.
    pub struct Translation: 16 {
        0 => addr: Le64,
        /// Number of pages of 2^log_page_size bytes; 1 if `levels` is 0.
        8 => num_pages: Le32,
        /// 12 to 30. The device ignores it if `levels` is 0 or [`TRANSLATION_ELEMENTS`].
        12 => log_page_size: u8,
        13 => levels: u8,
        14 => reserved: Le16,
    }
}

/// Bit of a page address in a region with [`mr_flags::ON_DEMAND`]: the page is present. In other
/// regions bits 11:0 of a page address are 0.
pub const PAGE_PRESENT: u64 = 1 << 0;
/// Bit of a page address in a region with [`mr_flags::ON_DEMAND`]: the page may be written.
pub const PAGE_WRITABLE: u64 = 1 << 1;

/// Number of entries of a table of the last level if there are two levels.
pub const TRANSLATION_LEAF: usize = 512;

/// [`Translation::levels`] of a region with gaps, which only fast registration creates. `addr` is
/// the address of a list of `num_pages` [`Element`]s, aligned to 8.
pub const TRANSLATION_ELEMENTS: u8 = 0x80;

layout! {
    /// An element of a region with gaps: contiguous memory of any address and length, also of
    /// length 0.
    pub struct Element: 16 {
        /// DMA address of the first byte.
        0 => addr: Le64,
        /// Offset in the region of the byte after the element: the number of bytes of all elements
        /// up to this one.
        8 => end: Le64,
    }
}

layout! {
    /// Address vector of a connected queue pair, or in the WQE of a datagram.
    pub struct AddressVector: 48 {
        /// Destination GID in network order. Packets to ::ffff:a.b.c.d are RoCE v2 over IPv4.
        0 => dgid: [u8; 16],
        /// Destination MAC address.
        16 => dmac: [u8; 6],
        /// Index of the source GID in the device's table.
        22 => sgid_index: Le16,
        /// Flow label, 20 bits.
        24 => flow_label: Le32,
        28 => hop_limit: u8,
        29 => traffic_class: u8,
        30 => sl: u8,
        31 => port_num: u8,
        /// Datagrams only: destination QPN. The next two fields are the Q_Key, and the PD of the
        /// address handle.
        32 => dest_qpn: Le32,
        36 => qkey: Le32,
        40 => pdn: Le32,
        /// InfiniBand only: destination LID.
        44 => dlid: Le16,
        /// `enum ib_rate`; 0 for the rate of the port.
        46 => static_rate: u8,
        /// Bits 6:0, InfiniBand only: source path bits. Bit 7: [`AV_GRH`].
        47 => path_bits: u8,
    }
}

/// [`AddressVector::path_bits`]: packets have a global route header. RoCE packets always have one.
pub const AV_GRH: u8 = 1 << 7;

codes! {
    /// States of a queue pair, with the numbers of `enum ib_qp_state`.
    pub enum QpState: u8 {
        /// No work requests can be posted, and none are processed.
        Reset = 0,
        /// Receives can be posted, and no work requests are processed.
        Init = 1,
        /// Ready to receive.
        Rtr = 2,
        /// Ready to send.
        Rts = 3,
        /// Send queue drained: posted sends wait.
        Sqd = 4,
        /// Send queue error (UC, UD): sends are flushed, receives continue.
        Sqe = 5,
        /// Error: all work requests are flushed.
        Err = 6,
    }
}

/// Bits of [`super::cmd::ModifyQp::mask`], which are those of `enum ib_qp_attr_mask`.
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
    /// Attributes of a queue pair, with the names and values of `struct ib_qp_attr`.
    pub struct QpAttr: 80 {
        /// [`QpState`].
        0 => qp_state: u8,
        /// [`QpState`].
        1 => cur_qp_state: u8,
        /// `enum ib_mtu`: 1 (256) to 5 (4096).
        2 => path_mtu: u8,
        3 => en_sqd_async_notify: u8,
        4 => qkey: Le32,
        /// First expected PSN, 24 bits.
        8 => rq_psn: Le32,
        /// First PSN to send, 24 bits.
        12 => sq_psn: Le32,
        16 => dest_qpn: Le32,
        /// [`access`]: rights of the peer.
        20 => qp_access_flags: Le32,
        24 => pkey_index: Le16,
        26 => max_rd_atomic: u8,
        27 => max_dest_rd_atomic: u8,
        /// Code of the RNR NAK timer, 5 bits (IBTA table 45).
        28 => min_rnr_timer: u8,
        /// Local ACK timeout of 4.096 us * 2^timeout; 0 for no timeout.
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
        /// [`super::cmd::CreateQp::flags`].
        9 => flags: u8,
        /// 1 while the queue pair exists, else 0.
        10 => valid: u8,
        /// 1 while the send queue drains: the queue pair is in SQD, and its last send is not
        /// complete.
        11 => sq_draining: u8,
        /// [`super::syndrome::Syndrome`] of the cause of ERR or SQE, else 0.
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
        /// Send queue: producer index as last read. The next two fields are the number of started
        /// WQEs, and the number of completed WQEs.
        168 => sq_pi: Le32,
        172 => sq_next: Le32,
        176 => sq_ci: Le32,
        180 => rq_pi: Le32,
        184 => rq_ci: Le32,
        /// Next PSN to send. The next two fields are the oldest unacknowledged PSN and the expected
        /// PSN. Each has 24 bits.
        188 => next_psn: Le32,
        192 => una_psn: Le32,
        196 => expected_psn: Le32,
        /// Message sequence number of the responder, 24 bits.
        200 => msn: Le32,
        /// Remaining retries of retry_cnt. The next field is those of rnr_retry.
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
        /// Smoothed RTT in nanoseconds, and its variation; 0 if they are not measured. The device
        /// does not report these and the next three fields yet: they are 0.
        296 => srtt: Le32,
        300 => rttvar: Le32,
        /// Congestion window in packets.
        304 => window: Le32,
        /// Number of packets in flight.
        308 => in_flight: Le32,
        /// Bytes that the NIC keeps for retransmission.
        312 => stored: Le64,
        320 => reserved1: [Le64; 24],
    }
}

codes! {
    /// States of a completion queue, shared receive queue or event queue.
    pub enum QueueState: u8 {
        /// The queue does not exist.
        Free = 0,
        /// The queue works.
        Ok = 1,
        /// The queue is in error until it is destroyed.
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
        /// [`super::syndrome::Syndrome`] of the cause of ERR, else 0.
        12 => syndrome: Le32,
        16 => uar: Le32,
        20 => eqn: Le32,
        24 => producer_index: Le32,
        /// Consumer index as last read.
        28 => consumer_index: Le32,
        /// Arm word as last read.
        32 => arm: Le64,
        /// Producer index at the last notification. The next field is the sequence number of the
        /// arm that it served.
        40 => notified_index: Le32,
        44 => served_seq: Le32,
        48 => ring: Translation,
        64 => moderation_count: Le16,
        66 => moderation_period: Le16,
        /// Number of queue pairs that use the CQ.
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
        /// Armed limit; 0 if it is not armed.
        32 => limit: Le32,
        36 => users: Le32,
        40 => log_stride: u8,
        41 => reserved0: u8,
        42 => reserved1: Le16,
        44 => reserved2: Le32,
        48 => ring: Translation,
        /// XRC SRQs: CQ of the receives; else 0. The next field is the XRC domain, or 0.
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
        /// The key was invalidated. Fast registration or a bind makes it valid again.
        Invalid = 2,
    }
}

layout! {
    /// Memory entry, which is the context of a memory region or window.
    pub struct MemoryEntry: 128 {
        /// Sequence counter, odd during an update.
        0 => seq: Le32,
        /// Key with its present tag.
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
        /// Bound windows: key of the region.
        64 => region: Le32,
        /// Bound windows of type 2: QPN of their queue pair.
        68 => qpn: Le32,
        /// Regions: number of windows that are bound to them.
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
        /// Number of events that wait in the device for room in the ring.
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
