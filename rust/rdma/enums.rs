// SPDX-License-Identifier: GPL-2.0

//! Enumerations and flags of the verbs, with the values that the kernel uses.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::bindings;

macro_rules! verbs_enum {
    ($(#[$m:meta])* $name:ident { $($(#[$vm:meta])* $v:ident = $c:ident),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $name {
            $($(#[$vm])* $v = bindings::$c,)*
        }

        impl $name {
            /// Returns the variant with the kernel's value `raw`, or `None` if there is none.
            pub const fn from_raw(raw: u32) -> Option<Self> {
                match raw {
                    $(bindings::$c => Some(Self::$v),)*
                    _ => None,
                }
            }

            /// Returns the kernel's value of the variant.
            pub const fn as_raw(self) -> u32 {
                // CAST: The enumeration is `repr(u32)`.
                self as u32
            }
        }
    };
}

macro_rules! verbs_flags {
    ($(#[$m:meta])* $name:ident { $($(#[$vm:meta])* $v:ident = $c:ident),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(u32);

        impl $name {
            $(
                $(#[$vm])*
                // CAST: These are bit flags, some of which are generated as signed.
                pub const $v: Self = Self(bindings::$c as u32);
            )*

            /// Returns the empty set of flags.
            pub const fn empty() -> Self {
                Self(0)
            }

            /// Returns the flags with the kernel's value `raw`.
            pub const fn from_raw(raw: u32) -> Self {
                Self(raw)
            }

            /// Returns the kernel's value of the flags.
            pub const fn as_raw(self) -> u32 {
                self.0
            }

            /// True if all flags of `other` are set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// True if any flag of `other` is set.
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }

            /// Returns the flags without those of `other`.
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Returns the flags that are set in either.
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl core::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl core::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                *self = self.union(other);
            }
        }
    };
}

mod port;

pub use self::port::{
    LinkLayer,
    MadFlags,
    PhysState,
    PortCaps,
    PortEvent,
    PortSpeed,
    PortState,
    PortWidth, //
};

verbs_enum! {
    /// Status of a completion (IBTA 11.6.2).
    WcStatus {
        /// The request completed successfully.
        Success = ib_wc_status_IB_WC_SUCCESS,
        /// Local length error: a message does not fit the buffers or the limits of this side.
        LocLenErr = ib_wc_status_IB_WC_LOC_LEN_ERR,
        /// Local QP operation error: the QP cannot execute the request.
        LocQpOpErr = ib_wc_status_IB_WC_LOC_QP_OP_ERR,
        /// Local EE context operation error (reliable datagram only).
        LocEecOpErr = ib_wc_status_IB_WC_LOC_EEC_OP_ERR,
        /// Local protection error: a scatter/gather entry names memory that it may not use.
        LocProtErr = ib_wc_status_IB_WC_LOC_PROT_ERR,
        /// The request was flushed because the QP is in error.
        WrFlushErr = ib_wc_status_IB_WC_WR_FLUSH_ERR,
        /// Memory management operation error: a bind, registration or invalidation failed.
        MwBindErr = ib_wc_status_IB_WC_MW_BIND_ERR,
        /// Bad response: the opcode of the response does not fit the request.
        BadRespErr = ib_wc_status_IB_WC_BAD_RESP_ERR,
        /// Local access error: the peer wrote with immediate data to memory that it may not use.
        LocAccessErr = ib_wc_status_IB_WC_LOC_ACCESS_ERR,
        /// Remote invalid request error: the responder does not accept the request.
        RemInvReqErr = ib_wc_status_IB_WC_REM_INV_REQ_ERR,
        /// Remote access error: the peer does not allow access to its memory.
        RemAccessErr = ib_wc_status_IB_WC_REM_ACCESS_ERR,
        /// Remote operation error: the responder failed to execute the request.
        RemOpErr = ib_wc_status_IB_WC_REM_OP_ERR,
        /// Transport retry counter exceeded: the peer did not respond.
        RetryExcErr = ib_wc_status_IB_WC_RETRY_EXC_ERR,
        /// RNR retry counter exceeded: the peer had no receive posted.
        RnrRetryExcErr = ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR,
        /// Local RDD violation (reliable datagram only).
        LocRddViolErr = ib_wc_status_IB_WC_LOC_RDD_VIOL_ERR,
        /// Remote invalid RD request (reliable datagram only).
        RemInvRdReqErr = ib_wc_status_IB_WC_REM_INV_RD_REQ_ERR,
        /// Remote aborted: the message of this receive was abandoned.
        RemAbortErr = ib_wc_status_IB_WC_REM_ABORT_ERR,
        /// Invalid EE context number (reliable datagram only).
        InvEecnErr = ib_wc_status_IB_WC_INV_EECN_ERR,
        /// Invalid EE context state (reliable datagram only).
        InvEecStateErr = ib_wc_status_IB_WC_INV_EEC_STATE_ERR,
        /// Fatal error.
        FatalErr = ib_wc_status_IB_WC_FATAL_ERR,
        /// Response timeout.
        RespTimeoutErr = ib_wc_status_IB_WC_RESP_TIMEOUT_ERR,
        /// General error without another status.
        GeneralErr = ib_wc_status_IB_WC_GENERAL_ERR,
    }
}

verbs_enum! {
    /// Operation that a work completion reports.
    WcOpcode {
        /// SEND in all its forms.
        Send = ib_wc_opcode_IB_WC_SEND,
        /// RDMA WRITE at the requester, with or without immediate data.
        RdmaWrite = ib_wc_opcode_IB_WC_RDMA_WRITE,
        /// RDMA READ at the requester.
        RdmaRead = ib_wc_opcode_IB_WC_RDMA_READ,
        /// Compare and swap at the requester.
        CompSwap = ib_wc_opcode_IB_WC_COMP_SWAP,
        /// Fetch and add at the requester.
        FetchAdd = ib_wc_opcode_IB_WC_FETCH_ADD,
        /// Local invalidation of a key.
        LocalInv = ib_wc_opcode_IB_WC_LOCAL_INV,
        /// Fast registration of a region.
        RegMr = ib_wc_opcode_IB_WC_REG_MR,
        /// FLUSH at the requester.
        Flush = ib_wc_opcode_IB_WC_FLUSH,
        /// ATOMIC WRITE at the requester.
        AtomicWrite = ib_wc_opcode_IB_WC_ATOMIC_WRITE,
        /// A receive that a SEND consumed.
        Recv = ib_wc_opcode_IB_WC_RECV,
        /// A receive that an RDMA WRITE with immediate data consumed.
        RecvRdmaWithImm = ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM,
    }
}

verbs_flags! {
    /// Flags of a work completion (`wc_flags`).
    WcFlags {
        /// The first 40 bytes of the buffers hold a GRH.
        GRH = ib_wc_flags_IB_WC_GRH,
        /// The member `imm_data` is valid.
        WITH_IMM = ib_wc_flags_IB_WC_WITH_IMM,
        /// The member `invalidate_rkey` is valid.
        WITH_INVALIDATE = ib_wc_flags_IB_WC_WITH_INVALIDATE,
        /// The IP checksum was verified.
        IP_CSUM_OK = ib_wc_flags_IB_WC_IP_CSUM_OK,
        /// The member `smac` is valid.
        WITH_SMAC = ib_wc_flags_IB_WC_WITH_SMAC,
        /// The member `vlan_id` is valid.
        WITH_VLAN = ib_wc_flags_IB_WC_WITH_VLAN,
        /// The member `network_hdr_type` is valid.
        WITH_NETWORK_HDR_TYPE = ib_wc_flags_IB_WC_WITH_NETWORK_HDR_TYPE,
    }
}

verbs_enum! {
    /// Type of a queue pair.
    QpType {
        /// QP0, for subnet management.
        Smi = ib_qp_type_IB_QPT_SMI,
        /// QP1, for general services.
        Gsi = ib_qp_type_IB_QPT_GSI,
        /// Reliable connection of two QPs.
        Rc = ib_qp_type_IB_QPT_RC,
        /// Unreliable connection of two QPs.
        Uc = ib_qp_type_IB_QPT_UC,
        /// Unreliable datagram.
        Ud = ib_qp_type_IB_QPT_UD,
        /// Raw packets of the port.
        RawPacket = ib_qp_type_IB_QPT_RAW_PACKET,
        /// Initiator of an extended reliable connection.
        XrcIni = ib_qp_type_IB_QPT_XRC_INI,
        /// Target of an extended reliable connection.
        XrcTgt = ib_qp_type_IB_QPT_XRC_TGT,
        /// Type that the driver defines.
        Driver = ib_qp_type_IB_QPT_DRIVER,
    }
}

verbs_enum! {
    /// State of a queue pair (IBTA 10.3).
    QpState {
        /// Reset.
        Reset = ib_qp_state_IB_QPS_RESET,
        /// Initialized.
        Init = ib_qp_state_IB_QPS_INIT,
        /// Ready to receive.
        Rtr = ib_qp_state_IB_QPS_RTR,
        /// Ready to send.
        Rts = ib_qp_state_IB_QPS_RTS,
        /// Send queue drained.
        Sqd = ib_qp_state_IB_QPS_SQD,
        /// Send queue error.
        Sqe = ib_qp_state_IB_QPS_SQE,
        /// Error.
        Err = ib_qp_state_IB_QPS_ERR,
    }
}

verbs_enum! {
    /// Maximum payload of a packet on the path.
    Mtu {
        /// 256 bytes.
        Mtu256 = ib_mtu_IB_MTU_256,
        /// 512 bytes.
        Mtu512 = ib_mtu_IB_MTU_512,
        /// 1024 bytes.
        Mtu1024 = ib_mtu_IB_MTU_1024,
        /// 2048 bytes.
        Mtu2048 = ib_mtu_IB_MTU_2048,
        /// 4096 bytes.
        Mtu4096 = ib_mtu_IB_MTU_4096,
    }
}

impl Mtu {
    /// Returns the largest MTU whose packets, with RoCEv2 headers, fit into `netdev_mtu` bytes.
    ///
    /// Does the same as `iboe_get_mtu()` (`rdma/ib_addr.h`), from which the connection manager
    /// takes the path MTU that it requests.
    pub const fn from_netdev(netdev_mtu: u32) -> Self {
        // Lengths of GRH, UDP, BTH, XRCETH, AtomicETH and ICRC.
        match netdev_mtu.saturating_sub(40 + 8 + 12 + 4 + 28 + 4) {
            4096.. => Self::Mtu4096,
            2048.. => Self::Mtu2048,
            1024.. => Self::Mtu1024,
            512.. => Self::Mtu512,
            _ => Self::Mtu256,
        }
    }
}

verbs_enum! {
    /// State of automatic path migration.
    MigState {
        /// Migrated.
        Migrated = ib_mig_state_IB_MIG_MIGRATED,
        /// Rearm.
        Rearm = ib_mig_state_IB_MIG_REARM,
        /// Armed.
        Armed = ib_mig_state_IB_MIG_ARMED,
    }
}

verbs_flags! {
    /// Attributes that are valid (`enum ib_qp_attr_mask`).
    QpAttrMask {
        /// The attribute `qp_state` is valid.
        STATE = ib_qp_attr_mask_IB_QP_STATE,
        /// The attribute `cur_qp_state` is valid.
        CUR_STATE = ib_qp_attr_mask_IB_QP_CUR_STATE,
        /// The attribute `en_sqd_async_notify` is valid.
        EN_SQD_ASYNC_NOTIFY = ib_qp_attr_mask_IB_QP_EN_SQD_ASYNC_NOTIFY,
        /// The attribute `qp_access_flags` is valid.
        ACCESS_FLAGS = ib_qp_attr_mask_IB_QP_ACCESS_FLAGS,
        /// The attribute `pkey_index` is valid.
        PKEY_INDEX = ib_qp_attr_mask_IB_QP_PKEY_INDEX,
        /// The attribute `port_num` is valid.
        PORT = ib_qp_attr_mask_IB_QP_PORT,
        /// The attribute `qkey` is valid.
        QKEY = ib_qp_attr_mask_IB_QP_QKEY,
        /// The attribute `ah_attr` is valid.
        AV = ib_qp_attr_mask_IB_QP_AV,
        /// The attribute `path_mtu` is valid.
        PATH_MTU = ib_qp_attr_mask_IB_QP_PATH_MTU,
        /// The attribute `timeout` is valid.
        TIMEOUT = ib_qp_attr_mask_IB_QP_TIMEOUT,
        /// The attribute `retry_cnt` is valid.
        RETRY_CNT = ib_qp_attr_mask_IB_QP_RETRY_CNT,
        /// The attribute `rnr_retry` is valid.
        RNR_RETRY = ib_qp_attr_mask_IB_QP_RNR_RETRY,
        /// The attribute `rq_psn` is valid.
        RQ_PSN = ib_qp_attr_mask_IB_QP_RQ_PSN,
        /// The attribute `max_rd_atomic` is valid.
        MAX_QP_RD_ATOMIC = ib_qp_attr_mask_IB_QP_MAX_QP_RD_ATOMIC,
        /// The attributes of the alternate path, such as `alt_ah_attr`, are valid.
        ALT_PATH = ib_qp_attr_mask_IB_QP_ALT_PATH,
        /// The attribute `min_rnr_timer` is valid.
        MIN_RNR_TIMER = ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER,
        /// The attribute `sq_psn` is valid.
        SQ_PSN = ib_qp_attr_mask_IB_QP_SQ_PSN,
        /// The attribute `max_dest_rd_atomic` is valid.
        MAX_DEST_RD_ATOMIC = ib_qp_attr_mask_IB_QP_MAX_DEST_RD_ATOMIC,
        /// The attribute `path_mig_state` is valid.
        PATH_MIG_STATE = ib_qp_attr_mask_IB_QP_PATH_MIG_STATE,
        /// The attribute `cap` is valid.
        CAP = ib_qp_attr_mask_IB_QP_CAP,
        /// The attribute `dest_qp_num` is valid.
        DEST_QPN = ib_qp_attr_mask_IB_QP_DEST_QPN,
        /// The attribute `rate_limit` is valid.
        RATE_LIMIT = ib_qp_attr_mask_IB_QP_RATE_LIMIT,
    }
}

impl QpAttrMask {
    /// Attributes that a call of `modify_qp` without extensions can change.
    pub const STANDARD: Self = Self(bindings::ib_qp_attr_mask_IB_QP_ATTR_STANDARD_BITS);
}

verbs_flags! {
    /// Flags of a new completion queue (`enum ib_uverbs_ex_create_cq_flags`).
    CqFlags {
        /// Completions have timestamps.
        TIMESTAMP_COMPLETION = ib_uverbs_ex_create_cq_flags_IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION,
        /// The consumer makes sure that the queue has room for all completions.
        IGNORE_OVERRUN = ib_uverbs_ex_create_cq_flags_IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN,
    }
}

verbs_flags! {
    /// Access rights to memory (`enum ib_access_flags`).
    Access {
        /// The local side may write.
        LOCAL_WRITE = ib_access_flags_IB_ACCESS_LOCAL_WRITE,
        /// The peer may use RDMA WRITE.
        REMOTE_WRITE = ib_access_flags_IB_ACCESS_REMOTE_WRITE,
        /// The peer may use RDMA READ.
        REMOTE_READ = ib_access_flags_IB_ACCESS_REMOTE_READ,
        /// The peer may use atomics.
        REMOTE_ATOMIC = ib_access_flags_IB_ACCESS_REMOTE_ATOMIC,
        /// Memory windows may be bound.
        MW_BIND = ib_access_flags_IB_ACCESS_MW_BIND,
        /// Addresses of the region start at 0.
        ZERO_BASED = ib_access_flags_IB_ZERO_BASED,
        /// The peer may FLUSH to global visibility.
        FLUSH_GLOBAL = ib_access_flags_IB_ACCESS_FLUSH_GLOBAL,
        /// The peer may FLUSH to persistence.
        FLUSH_PERSISTENT = ib_access_flags_IB_ACCESS_FLUSH_PERSISTENT,
        /// The memory is paged on demand.
        ON_DEMAND = ib_access_flags_IB_ACCESS_ON_DEMAND,
        /// The memory consists of huge pages.
        HUGETLB = ib_access_flags_IB_ACCESS_HUGETLB,
        /// The device may relax PCIe ordering.
        RELAXED_ORDERING = ib_access_flags_IB_ACCESS_RELAXED_ORDERING,
    }
}

impl Access {
    /// True if the memory has to be pinned for writing, with the rule of `ib_access_writable()`.
    pub fn is_writable(self) -> bool {
        self.intersects(
            Self::LOCAL_WRITE | Self::REMOTE_WRITE | Self::REMOTE_ATOMIC | Self::MW_BIND,
        )
    }
}

verbs_flags! {
    /// Flags of a send request (`enum ib_send_flags`).
    SendFlags {
        /// The request waits for earlier READs and atomics.
        FENCE = ib_send_flags_IB_SEND_FENCE,
        /// The request completes with a CQE.
        SIGNALED = ib_send_flags_IB_SEND_SIGNALED,
        /// The receiver gets a solicited event.
        SOLICITED = ib_send_flags_IB_SEND_SOLICITED,
        /// The data is copied when the request is posted.
        INLINE = ib_send_flags_IB_SEND_INLINE,
        /// The device computes the IP checksum.
        IP_CSUM = ib_send_flags_IB_SEND_IP_CSUM,
    }
}

verbs_flags! {
    /// Conditions under which a completion queue notifies (`enum ib_cq_notify_flags`).
    NotifyFlags {
        /// Only solicited completions notify.
        SOLICITED = ib_cq_notify_flags_IB_CQ_SOLICITED,
        /// The next completion notifies.
        NEXT_COMP = ib_cq_notify_flags_IB_CQ_NEXT_COMP,
        /// The verb reports if the queue already had entries.
        REPORT_MISSED_EVENTS = ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS,
    }
}

impl NotifyFlags {
    /// True if only solicited completions are to notify.
    pub const fn solicited_only(self) -> bool {
        self.0 & bindings::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK
            == bindings::ib_cq_notify_flags_IB_CQ_SOLICITED
    }
}

verbs_enum! {
    /// Asynchronous event of a queue pair.
    QpEvent {
        /// Fatal error of the QP.
        Fatal = ib_event_type_IB_EVENT_QP_FATAL,
        /// Invalid request of the peer.
        ReqErr = ib_event_type_IB_EVENT_QP_REQ_ERR,
        /// Access violation by the peer.
        AccessErr = ib_event_type_IB_EVENT_QP_ACCESS_ERR,
        /// A packet arrived while the QP was in RTR.
        CommEst = ib_event_type_IB_EVENT_COMM_EST,
        /// The send queue was drained.
        SqDrained = ib_event_type_IB_EVENT_SQ_DRAINED,
        /// The QP, which is in error, has taken its last WQE from the SRQ.
        LastWqeReached = ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED,
    }
}

verbs_enum! {
    /// Asynchronous event of a shared receive queue.
    SrqEvent {
        /// Error of the queue.
        Err = ib_event_type_IB_EVENT_SRQ_ERR,
        /// The armed limit was reached.
        LimitReached = ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED,
    }
}

verbs_enum! {
    /// Type of a GID, which selects the protocol.
    GidType {
        /// InfiniBand, or RoCEv1 (the same value).
        Ib = ib_gid_type_IB_GID_TYPE_IB,
        /// RoCEv2.
        RoceUdpEncap = ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP,
    }
}

verbs_enum! {
    /// Network header of a packet, which in RoCEv2 comes before the UDP header.
    NetworkType {
        /// Global routing header.
        Ib = rdma_network_type_RDMA_NETWORK_IB,
        /// IPv4.
        Ipv4 = rdma_network_type_RDMA_NETWORK_IPV4,
        /// IPv6.
        Ipv6 = rdma_network_type_RDMA_NETWORK_IPV6,
    }
}

verbs_enum! {
    /// Sends that complete with a CQE.
    SigType {
        /// All sends complete with a CQE.
        AllWr = ib_sig_type_IB_SIGNAL_ALL_WR,
        /// Only sends with [`SendFlags::SIGNALED`] complete with a CQE.
        ReqWr = ib_sig_type_IB_SIGNAL_REQ_WR,
    }
}

verbs_enum! {
    /// Type of a shared receive queue.
    SrqType {
        /// Queue for ordinary QPs.
        Basic = ib_srq_type_IB_SRQT_BASIC,
        /// Queue for extended reliable connections.
        Xrc = ib_srq_type_IB_SRQT_XRC,
        /// Queue with tag matching.
        Tm = ib_srq_type_IB_SRQT_TM,
    }
}

verbs_flags! {
    /// Attributes that are valid (`enum ib_srq_attr_mask`).
    SrqAttrMask {
        /// The attribute `max_wr` is valid.
        MAX_WR = ib_srq_attr_mask_IB_SRQ_MAX_WR,
        /// The attribute `srq_limit` is valid.
        LIMIT = ib_srq_attr_mask_IB_SRQ_LIMIT,
    }
}

verbs_enum! {
    /// Type of a memory region that the driver allocates for kernel users.
    MrType {
        /// Fast registration of whole pages.
        MemReg = ib_mr_type_IB_MR_TYPE_MEM_REG,
        /// Fast registration with gaps.
        SgGaps = ib_mr_type_IB_MR_TYPE_SG_GAPS,
    }
}

verbs_enum! {
    /// Scope in which the device's atomics are atomic.
    AtomicCap {
        /// The device has no atomics.
        None = ib_atomic_cap_IB_ATOMIC_NONE,
        /// Among the QPs of this device.
        Hca = ib_atomic_cap_IB_ATOMIC_HCA,
        /// Also among accesses by the CPU.
        Glob = ib_atomic_cap_IB_ATOMIC_GLOB,
    }
}
