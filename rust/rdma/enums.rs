// SPDX-License-Identifier: GPL-2.0

//! Enumerations and flags of the verbs, with the kernel's values.

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
            /// The value's meaning, if it has one.
            pub const fn from_raw(raw: u32) -> Option<Self> {
                match raw {
                    $(bindings::$c => Some(Self::$v),)*
                    _ => None,
                }
            }

            /// The kernel's value.
            pub const fn as_raw(self) -> u32 {
                // CAST: `repr(u32)`.
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
                // CAST: bit flags; some are generated as signed.
                pub const $v: Self = Self(bindings::$c as u32);
            )*

            /// No flag.
            pub const fn empty() -> Self {
                Self(0)
            }

            /// From the kernel's value.
            pub const fn from_raw(raw: u32) -> Self {
                Self(raw)
            }

            /// The kernel's value.
            pub const fn as_raw(self) -> u32 {
                self.0
            }

            /// Whether all of `other` is set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether any of `other` is set.
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }

            /// Without the flags of `other`.
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Both.
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

verbs_enum! {
    /// Status of a completion (IBTA 11.6.2).
    WcStatus {
        /// Done.
        Success = ib_wc_status_IB_WC_SUCCESS,
        /// Local length error.
        LocLenErr = ib_wc_status_IB_WC_LOC_LEN_ERR,
        /// Local QP operation error.
        LocQpOpErr = ib_wc_status_IB_WC_LOC_QP_OP_ERR,
        /// Local EE context operation error.
        LocEecOpErr = ib_wc_status_IB_WC_LOC_EEC_OP_ERR,
        /// Local protection error.
        LocProtErr = ib_wc_status_IB_WC_LOC_PROT_ERR,
        /// Work request flushed.
        WrFlushErr = ib_wc_status_IB_WC_WR_FLUSH_ERR,
        /// Memory management operation error.
        MwBindErr = ib_wc_status_IB_WC_MW_BIND_ERR,
        /// Bad response.
        BadRespErr = ib_wc_status_IB_WC_BAD_RESP_ERR,
        /// Local access error.
        LocAccessErr = ib_wc_status_IB_WC_LOC_ACCESS_ERR,
        /// Remote invalid request error.
        RemInvReqErr = ib_wc_status_IB_WC_REM_INV_REQ_ERR,
        /// Remote access error.
        RemAccessErr = ib_wc_status_IB_WC_REM_ACCESS_ERR,
        /// Remote operation error.
        RemOpErr = ib_wc_status_IB_WC_REM_OP_ERR,
        /// Transport retry counter exceeded.
        RetryExcErr = ib_wc_status_IB_WC_RETRY_EXC_ERR,
        /// RNR retry counter exceeded.
        RnrRetryExcErr = ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR,
        /// Local RDD violation.
        LocRddViolErr = ib_wc_status_IB_WC_LOC_RDD_VIOL_ERR,
        /// Remote invalid RD request.
        RemInvRdReqErr = ib_wc_status_IB_WC_REM_INV_RD_REQ_ERR,
        /// Remote aborted.
        RemAbortErr = ib_wc_status_IB_WC_REM_ABORT_ERR,
        /// Invalid EE context number.
        InvEecnErr = ib_wc_status_IB_WC_INV_EECN_ERR,
        /// Invalid EE context state.
        InvEecStateErr = ib_wc_status_IB_WC_INV_EEC_STATE_ERR,
        /// Fatal error.
        FatalErr = ib_wc_status_IB_WC_FATAL_ERR,
        /// Response timeout.
        RespTimeoutErr = ib_wc_status_IB_WC_RESP_TIMEOUT_ERR,
        /// General error.
        GeneralErr = ib_wc_status_IB_WC_GENERAL_ERR,
    }
}

verbs_enum! {
    /// What completed.
    WcOpcode {
        /// SEND in all its forms.
        Send = ib_wc_opcode_IB_WC_SEND,
        /// RDMA WRITE, also with immediate, at the requester.
        RdmaWrite = ib_wc_opcode_IB_WC_RDMA_WRITE,
        /// RDMA READ.
        RdmaRead = ib_wc_opcode_IB_WC_RDMA_READ,
        /// Compare and swap.
        CompSwap = ib_wc_opcode_IB_WC_COMP_SWAP,
        /// Fetch and add.
        FetchAdd = ib_wc_opcode_IB_WC_FETCH_ADD,
        /// Local invalidate.
        LocalInv = ib_wc_opcode_IB_WC_LOCAL_INV,
        /// Fast registration.
        RegMr = ib_wc_opcode_IB_WC_REG_MR,
        /// FLUSH.
        Flush = ib_wc_opcode_IB_WC_FLUSH,
        /// ATOMIC WRITE.
        AtomicWrite = ib_wc_opcode_IB_WC_ATOMIC_WRITE,
        /// A receive that a SEND used.
        Recv = ib_wc_opcode_IB_WC_RECV,
        /// A receive that an RDMA WRITE with immediate used.
        RecvRdmaWithImm = ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM,
    }
}

verbs_flags! {
    /// `wc_flags`.
    WcFlags {
        /// The first 40 bytes hold a GRH.
        GRH = ib_wc_flags_IB_WC_GRH,
        /// `imm_data` is valid.
        WITH_IMM = ib_wc_flags_IB_WC_WITH_IMM,
        /// `invalidate_rkey` is valid.
        WITH_INVALIDATE = ib_wc_flags_IB_WC_WITH_INVALIDATE,
        /// IP checksum verified.
        IP_CSUM_OK = ib_wc_flags_IB_WC_IP_CSUM_OK,
        /// `smac` is valid.
        WITH_SMAC = ib_wc_flags_IB_WC_WITH_SMAC,
        /// `vlan_id` is valid.
        WITH_VLAN = ib_wc_flags_IB_WC_WITH_VLAN,
        /// `network_hdr_type` is valid.
        WITH_NETWORK_HDR_TYPE = ib_wc_flags_IB_WC_WITH_NETWORK_HDR_TYPE,
    }
}

verbs_enum! {
    /// Type of a queue pair.
    QpType {
        /// QP0.
        Smi = ib_qp_type_IB_QPT_SMI,
        /// QP1.
        Gsi = ib_qp_type_IB_QPT_GSI,
        /// Reliable connection.
        Rc = ib_qp_type_IB_QPT_RC,
        /// Unreliable connection.
        Uc = ib_qp_type_IB_QPT_UC,
        /// Unreliable datagram.
        Ud = ib_qp_type_IB_QPT_UD,
        /// Raw packets.
        RawPacket = ib_qp_type_IB_QPT_RAW_PACKET,
        /// Extended reliable connection, initiator.
        XrcIni = ib_qp_type_IB_QPT_XRC_INI,
        /// Extended reliable connection, target.
        XrcTgt = ib_qp_type_IB_QPT_XRC_TGT,
        /// The driver's own.
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
    /// Path MTU.
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
    /// The largest MTU whose packets, RoCEv2 headers included, fit into `netdev_mtu` bytes.
    ///
    /// The same as `iboe_get_mtu()` (`rdma/ib_addr.h`), from which the connection manager has the path
    /// MTU that it asks for.
    pub const fn from_netdev(netdev_mtu: u32) -> Self {
        // GRH, UDP, BTH, XRCETH, AtomicETH, ICRC.
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
    /// Path migration state.
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
    /// `enum ib_qp_attr_mask`.
    QpAttrMask {
        /// `qp_state`.
        STATE = ib_qp_attr_mask_IB_QP_STATE,
        /// `cur_qp_state`.
        CUR_STATE = ib_qp_attr_mask_IB_QP_CUR_STATE,
        /// `en_sqd_async_notify`.
        EN_SQD_ASYNC_NOTIFY = ib_qp_attr_mask_IB_QP_EN_SQD_ASYNC_NOTIFY,
        /// `qp_access_flags`.
        ACCESS_FLAGS = ib_qp_attr_mask_IB_QP_ACCESS_FLAGS,
        /// `pkey_index`.
        PKEY_INDEX = ib_qp_attr_mask_IB_QP_PKEY_INDEX,
        /// `port_num`.
        PORT = ib_qp_attr_mask_IB_QP_PORT,
        /// `qkey`.
        QKEY = ib_qp_attr_mask_IB_QP_QKEY,
        /// `ah_attr`.
        AV = ib_qp_attr_mask_IB_QP_AV,
        /// `path_mtu`.
        PATH_MTU = ib_qp_attr_mask_IB_QP_PATH_MTU,
        /// `timeout`.
        TIMEOUT = ib_qp_attr_mask_IB_QP_TIMEOUT,
        /// `retry_cnt`.
        RETRY_CNT = ib_qp_attr_mask_IB_QP_RETRY_CNT,
        /// `rnr_retry`.
        RNR_RETRY = ib_qp_attr_mask_IB_QP_RNR_RETRY,
        /// `rq_psn`.
        RQ_PSN = ib_qp_attr_mask_IB_QP_RQ_PSN,
        /// `max_rd_atomic`.
        MAX_QP_RD_ATOMIC = ib_qp_attr_mask_IB_QP_MAX_QP_RD_ATOMIC,
        /// `alt_ah_attr` and the like.
        ALT_PATH = ib_qp_attr_mask_IB_QP_ALT_PATH,
        /// `min_rnr_timer`.
        MIN_RNR_TIMER = ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER,
        /// `sq_psn`.
        SQ_PSN = ib_qp_attr_mask_IB_QP_SQ_PSN,
        /// `max_dest_rd_atomic`.
        MAX_DEST_RD_ATOMIC = ib_qp_attr_mask_IB_QP_MAX_DEST_RD_ATOMIC,
        /// `path_mig_state`.
        PATH_MIG_STATE = ib_qp_attr_mask_IB_QP_PATH_MIG_STATE,
        /// `cap`.
        CAP = ib_qp_attr_mask_IB_QP_CAP,
        /// `dest_qp_num`.
        DEST_QPN = ib_qp_attr_mask_IB_QP_DEST_QPN,
        /// `rate_limit`.
        RATE_LIMIT = ib_qp_attr_mask_IB_QP_RATE_LIMIT,
    }
}

impl QpAttrMask {
    /// What an ordinary `modify_qp` may ask for.
    pub const STANDARD: Self = Self(bindings::ib_qp_attr_mask_IB_QP_ATTR_STANDARD_BITS);
}

verbs_flags! {
    /// `enum ib_uverbs_ex_create_cq_flags`.
    CqFlags {
        /// Completions have timestamps.
        TIMESTAMP_COMPLETION = ib_uverbs_ex_create_cq_flags_IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION,
        /// Whoever polls sees to it that there is room.
        IGNORE_OVERRUN = ib_uverbs_ex_create_cq_flags_IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN,
    }
}

verbs_flags! {
    /// `enum ib_access_flags`.
    Access {
        /// Local write.
        LOCAL_WRITE = ib_access_flags_IB_ACCESS_LOCAL_WRITE,
        /// RDMA WRITE.
        REMOTE_WRITE = ib_access_flags_IB_ACCESS_REMOTE_WRITE,
        /// RDMA READ.
        REMOTE_READ = ib_access_flags_IB_ACCESS_REMOTE_READ,
        /// Atomics.
        REMOTE_ATOMIC = ib_access_flags_IB_ACCESS_REMOTE_ATOMIC,
        /// Memory windows may be bound.
        MW_BIND = ib_access_flags_IB_ACCESS_MW_BIND,
        /// Addresses start at 0.
        ZERO_BASED = ib_access_flags_IB_ZERO_BASED,
        /// FLUSH to global visibility.
        FLUSH_GLOBAL = ib_access_flags_IB_ACCESS_FLUSH_GLOBAL,
        /// FLUSH to persistence.
        FLUSH_PERSISTENT = ib_access_flags_IB_ACCESS_FLUSH_PERSISTENT,
        /// On-demand paging.
        ON_DEMAND = ib_access_flags_IB_ACCESS_ON_DEMAND,
        /// Huge pages.
        HUGETLB = ib_access_flags_IB_ACCESS_HUGETLB,
        /// Relaxed ordering.
        RELAXED_ORDERING = ib_access_flags_IB_ACCESS_RELAXED_ORDERING,
    }
}

impl Access {
    /// Whether the memory has to be pinned for writing, as `ib_access_writable()` has it.
    pub fn is_writable(self) -> bool {
        self.intersects(
            Self::LOCAL_WRITE | Self::REMOTE_WRITE | Self::REMOTE_ATOMIC | Self::MW_BIND,
        )
    }
}

verbs_flags! {
    /// `enum ib_send_flags`.
    SendFlags {
        /// Waits for earlier READs and atomics.
        FENCE = ib_send_flags_IB_SEND_FENCE,
        /// Completes with a CQE.
        SIGNALED = ib_send_flags_IB_SEND_SIGNALED,
        /// A solicited event at the receiver.
        SOLICITED = ib_send_flags_IB_SEND_SOLICITED,
        /// Data is copied when posted.
        INLINE = ib_send_flags_IB_SEND_INLINE,
        /// IP checksum offload.
        IP_CSUM = ib_send_flags_IB_SEND_IP_CSUM,
    }
}

verbs_flags! {
    /// `enum ib_cq_notify_flags`.
    NotifyFlags {
        /// Only solicited completions.
        SOLICITED = ib_cq_notify_flags_IB_CQ_SOLICITED,
        /// The next completion.
        NEXT_COMP = ib_cq_notify_flags_IB_CQ_NEXT_COMP,
        /// Tell whether entries were there already.
        REPORT_MISSED_EVENTS = ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS,
    }
}

impl NotifyFlags {
    /// Whether only solicited completions are asked for.
    pub const fn solicited_only(self) -> bool {
        self.0 & bindings::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK
            == bindings::ib_cq_notify_flags_IB_CQ_SOLICITED
    }
}

verbs_enum! {
    /// Asynchronous event of a queue pair.
    QpEvent {
        /// Fatal error.
        Fatal = ib_event_type_IB_EVENT_QP_FATAL,
        /// Invalid request.
        ReqErr = ib_event_type_IB_EVENT_QP_REQ_ERR,
        /// Access violation.
        AccessErr = ib_event_type_IB_EVENT_QP_ACCESS_ERR,
        /// Communication established.
        CommEst = ib_event_type_IB_EVENT_COMM_EST,
        /// Send queue drained.
        SqDrained = ib_event_type_IB_EVENT_SQ_DRAINED,
        /// Last WQE reached.
        LastWqeReached = ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED,
    }
}

verbs_enum! {
    /// Asynchronous event of a shared receive queue.
    SrqEvent {
        /// Error.
        Err = ib_event_type_IB_EVENT_SRQ_ERR,
        /// Limit reached.
        LimitReached = ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED,
    }
}

verbs_enum! {
    /// What carries a port's packets.
    LinkLayer {
        /// InfiniBand.
        Infiniband = rdma_link_layer_IB_LINK_LAYER_INFINIBAND,
        /// Ethernet: RoCE.
        Ethernet = rdma_link_layer_IB_LINK_LAYER_ETHERNET,
    }
}

verbs_enum! {
    /// State of a port.
    PortState {
        /// Nothing known.
        Nop = ib_port_state_IB_PORT_NOP,
        /// Down.
        Down = ib_port_state_IB_PORT_DOWN,
        /// Initializing.
        Init = ib_port_state_IB_PORT_INIT,
        /// Armed.
        Armed = ib_port_state_IB_PORT_ARMED,
        /// Active.
        Active = ib_port_state_IB_PORT_ACTIVE,
    }
}

verbs_enum! {
    /// Physical state of a port.
    PhysState {
        /// Disabled.
        Disabled = ib_port_phys_state_IB_PORT_PHYS_STATE_DISABLED,
        /// Polling.
        Polling = ib_port_phys_state_IB_PORT_PHYS_STATE_POLLING,
        /// Link up.
        LinkUp = ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP,
    }
}

verbs_enum! {
    /// Width of a port.
    PortWidth {
        /// One lane.
        X1 = ib_port_width_IB_WIDTH_1X,
        /// Four lanes.
        X4 = ib_port_width_IB_WIDTH_4X,
    }
}

verbs_enum! {
    /// Speed of a lane.
    PortSpeed {
        /// 2.5 Gb/s.
        Sdr = ib_port_speed_IB_SPEED_SDR,
        /// 10 Gb/s.
        Qdr = ib_port_speed_IB_SPEED_QDR,
        /// 25 Gb/s.
        Edr = ib_port_speed_IB_SPEED_EDR,
        /// 50 Gb/s.
        Hdr = ib_port_speed_IB_SPEED_HDR,
    }
}

verbs_enum! {
    /// Kind of a GID.
    GidType {
        /// InfiniBand, or RoCEv1 (the same value).
        Ib = ib_gid_type_IB_GID_TYPE_IB,
        /// RoCEv2.
        RoceUdpEncap = ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP,
    }
}

verbs_enum! {
    /// Header before the GRH of a RoCEv2 packet.
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
    /// Which sends complete with a CQE.
    SigType {
        /// All.
        AllWr = ib_sig_type_IB_SIGNAL_ALL_WR,
        /// Those with [`SendFlags::SIGNALED`].
        ReqWr = ib_sig_type_IB_SIGNAL_REQ_WR,
    }
}

verbs_enum! {
    /// Kind of a shared receive queue.
    SrqType {
        /// Basic.
        Basic = ib_srq_type_IB_SRQT_BASIC,
        /// For extended reliable connections.
        Xrc = ib_srq_type_IB_SRQT_XRC,
        /// With tag matching.
        Tm = ib_srq_type_IB_SRQT_TM,
    }
}

verbs_flags! {
    /// `enum ib_srq_attr_mask`.
    SrqAttrMask {
        /// `max_wr`.
        MAX_WR = ib_srq_attr_mask_IB_SRQ_MAX_WR,
        /// `srq_limit`.
        LIMIT = ib_srq_attr_mask_IB_SRQ_LIMIT,
    }
}

verbs_enum! {
    /// Kind of a memory region that the driver allocates for kernel users.
    MrType {
        /// Fast registration.
        MemReg = ib_mr_type_IB_MR_TYPE_MEM_REG,
        /// Fast registration with gaps.
        SgGaps = ib_mr_type_IB_MR_TYPE_SG_GAPS,
    }
}

verbs_enum! {
    /// Atomicity that a device offers.
    AtomicCap {
        /// No atomics.
        None = ib_atomic_cap_IB_ATOMIC_NONE,
        /// Among QPs of this device.
        Hca = ib_atomic_cap_IB_ATOMIC_HCA,
        /// Also with the CPU.
        Glob = ib_atomic_cap_IB_ATOMIC_GLOB,
    }
}
