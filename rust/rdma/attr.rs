// SPDX-License-Identifier: GPL-2.0

//! Attributes of devices and ports.

use crate::{
    base::compat,
    bindings,
    enums::{
        AtomicCap,
        Mtu,
        PhysState,
        PortSpeed,
        PortState,
        PortWidth, //
    }, //
};

macro_rules! setters {
    ($($(#[$m:meta])* $set:ident: $field:ident, $t:ty);* $(;)?) => {
        $(
            $(#[$m])*
            pub fn $set(&mut self, value: $t) -> &mut Self {
                self.0.$field = value;
                self
            }
        )*
    };
}

macro_rules! counts {
    ($($(#[$m:meta])* $set:ident: $field:ident);* $(;)?) => {
        $(
            $(#[$m])*
            pub fn $set(&mut self, value: u32) -> &mut Self {
                self.0.$field = compat::count(value);
                self
            }
        )*
    };
}

/// Attributes of a device; zero unless set.
#[repr(transparent)]
pub struct DeviceAttr(bindings::ib_device_attr);

impl DeviceAttr {
    setters! {
        /// Firmware version.
        set_fw_ver: fw_ver, u64;
        /// Length of the largest memory region.
        set_max_mr_size: max_mr_size, u64;
        /// Page sizes of memory regions, a bitmap.
        set_page_size_cap: page_size_cap, u64;
        /// Vendor.
        set_vendor_id: vendor_id, u32;
        /// The vendor's name of the device.
        set_vendor_part_id: vendor_part_id, u32;
        /// Revision.
        set_hw_ver: hw_ver, u32;
        /// P_Keys.
        set_max_pkeys: max_pkeys, u16;
        /// Code of the delay of the device's ACKs.
        set_local_ca_ack_delay: local_ca_ack_delay, u8;
        /// Pages of a fast registration.
        set_max_fast_reg_page_list_len: max_fast_reg_page_list_len, u32;
        /// Bits of a completion's timestamp.
        set_timestamp_mask: timestamp_mask, u64;
        /// Frequency of the clock in kHz.
        set_hca_core_clock: hca_core_clock, u64;
        /// Scatter/gather entries of a READ that perform best.
        set_max_sgl_rd: max_sgl_rd, u32;
    }

    counts! {
        /// Queue pairs.
        set_max_qp: max_qp;
        /// Work requests of a queue.
        set_max_qp_wr: max_qp_wr;
        /// Scatter/gather entries of a send.
        set_max_send_sge: max_send_sge;
        /// Scatter/gather entries of a receive.
        set_max_recv_sge: max_recv_sge;
        /// Scatter/gather entries of a READ.
        set_max_sge_rd: max_sge_rd;
        /// Completion queues.
        set_max_cq: max_cq;
        /// Entries of a completion queue.
        set_max_cqe: max_cqe;
        /// Memory regions.
        set_max_mr: max_mr;
        /// Protection domains.
        set_max_pd: max_pd;
        /// Outstanding READs and atomics of a queue pair as responder.
        set_max_qp_rd_atom: max_qp_rd_atom;
        /// The same of the whole device.
        set_max_res_rd_atom: max_res_rd_atom;
        /// Outstanding READs and atomics of a queue pair as requester.
        set_max_qp_init_rd_atom: max_qp_init_rd_atom;
        /// Address handles.
        set_max_ah: max_ah;
        /// Memory windows.
        set_max_mw: max_mw;
        /// Shared receive queues.
        set_max_srq: max_srq;
        /// Work requests of a shared receive queue.
        set_max_srq_wr: max_srq_wr;
        /// Scatter/gather entries of a receive of a shared receive queue.
        set_max_srq_sge: max_srq_sge;
        /// Multicast groups.
        set_max_mcast_grp: max_mcast_grp;
        /// Queue pairs of a multicast group.
        set_max_mcast_qp_attach: max_mcast_qp_attach;
        /// Queue pairs of all multicast groups.
        set_max_total_mcast_qp_attach: max_total_mcast_qp_attach;
    }

    /// For how many completions, and microseconds, an event of a completion queue can wait.
    pub fn set_cq_moderation(&mut self, count: u16, period: u16) -> &mut Self {
        self.0.cq_caps.max_cq_moderation_count = count;
        self.0.cq_caps.max_cq_moderation_period = period;
        self
    }

    /// GUID of the system image, as on the wire.
    pub fn set_sys_image_guid(&mut self, guid: [u8; 8]) -> &mut Self {
        self.0.sys_image_guid = u64::from_ne_bytes(guid);
        self
    }

    /// Atomicity.
    pub fn set_atomic_cap(&mut self, cap: AtomicCap) -> &mut Self {
        self.0.atomic_cap = cap.as_raw();
        self
    }

    /// Flags of `enum ib_device_cap_flags`.
    pub fn set_device_cap_flags(&mut self, flags: DeviceCaps) -> &mut Self {
        self.0.device_cap_flags = flags.0;
        self
    }

    /// Flags of `enum ib_kernel_cap_flags`.
    pub fn set_kernel_cap_flags(&mut self, flags: KernelCaps) -> &mut Self {
        self.0.kernel_cap_flags = flags.0;
        self
    }
}

macro_rules! caps {
    ($(#[$m:meta])* $name:ident { $($(#[$vm:meta])* $v:ident = $c:ident),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Default)]
        pub struct $name(u64);

        impl $name {
            $(
                $(#[$vm])*
                // CAST: Bit flags.
                pub const $v: Self = Self(bindings::$c as u64);
            )*

            /// No flag.
            pub const fn empty() -> Self {
                Self(0)
            }
        }

        impl core::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }
    };
}

caps! {
    /// `enum ib_device_cap_flags`.
    DeviceCaps {
        /// Bad P_Key counter.
        BAD_PKEY_CNTR = ib_device_cap_flags_IB_DEVICE_BAD_PKEY_CNTR,
        /// Bad Q_Key counter.
        BAD_QKEY_CNTR = ib_device_cap_flags_IB_DEVICE_BAD_QKEY_CNTR,
        /// The current state may be given to `modify_qp`.
        CURR_QP_STATE_MOD = ib_device_cap_flags_IB_DEVICE_CURR_QP_STATE_MOD,
        /// Port events.
        PORT_ACTIVE_EVENT = ib_device_cap_flags_IB_DEVICE_PORT_ACTIVE_EVENT,
        /// A system image GUID.
        SYS_IMAGE_GUID = ib_device_cap_flags_IB_DEVICE_SYS_IMAGE_GUID,
        /// RNR NAKs.
        RC_RNR_NAK_GEN = ib_device_cap_flags_IB_DEVICE_RC_RNR_NAK_GEN,
        /// Shared receive queues may be resized.
        SRQ_RESIZE = ib_device_cap_flags_IB_DEVICE_SRQ_RESIZE,
        /// Fast registration, local and remote invalidate.
        MEM_MGT_EXTENSIONS = ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS,
        /// Memory windows.
        MEM_WINDOW = ib_device_cap_flags_IB_DEVICE_MEM_WINDOW,
        /// Extended reliable connections.
        XRC = ib_device_cap_flags_IB_DEVICE_XRC,
        /// Memory windows of type 2B.
        MEM_WINDOW_TYPE_2B = ib_device_cap_flags_IB_DEVICE_MEM_WINDOW_TYPE_2B,
        /// FLUSH to global visibility.
        FLUSH_GLOBAL = ib_device_cap_flags_IB_DEVICE_FLUSH_GLOBAL,
        /// ATOMIC WRITE.
        ATOMIC_WRITE = ib_device_cap_flags_IB_DEVICE_ATOMIC_WRITE,
    }
}

caps! {
    /// `enum ib_kernel_cap_flags`.
    KernelCaps {
        /// `local_dma_lkey` is valid: the kernel's protection domains need no region of their own.
        LOCAL_DMA_LKEY = ib_kernel_cap_flags_IBK_LOCAL_DMA_LKEY,
        /// Regions with gaps can be registered.
        SG_GAPS_REG = ib_kernel_cap_flags_IBK_SG_GAPS_REG,
        /// Multicast loopback may be switched off.
        BLOCK_MULTICAST_LOOPBACK = ib_kernel_cap_flags_IBK_BLOCK_MULTICAST_LOOPBACK,
    }
}

/// Attributes of a port; zero unless set.
#[repr(transparent)]
pub struct PortAttr(bindings::ib_port_attr);

impl PortAttr {
    setters! {
        /// Bytes of the largest message.
        set_max_msg_sz: max_msg_sz, u32;
        /// Entries of the P_Key table.
        set_pkey_tbl_len: pkey_tbl_len, u16;
        /// Packets with a bad P_Key.
        set_bad_pkey_cntr: bad_pkey_cntr, u32;
        /// Packets with a bad Q_Key.
        set_qkey_viol_cntr: qkey_viol_cntr, u32;
        /// MTU of the physical port.
        set_phys_mtu: phys_mtu, u32;
        /// Number of virtual lanes, as a code.
        set_max_vl_num: max_vl_num, u8;
    }

    /// Entries of the GID table.
    pub fn set_gid_tbl_len(&mut self, len: u16) -> &mut Self {
        self.0.gid_tbl_len = i32::from(len);
        self
    }

    /// State.
    pub fn set_state(&mut self, state: PortState) -> &mut Self {
        self.0.state = state.as_raw();
        self
    }

    /// Physical state.
    pub fn set_phys_state(&mut self, state: PhysState) -> &mut Self {
        // CAST: A small enumeration.
        self.0.phys_state = state.as_raw() as u8;
        self
    }

    /// The largest MTU.
    pub fn set_max_mtu(&mut self, mtu: Mtu) -> &mut Self {
        self.0.max_mtu = mtu.as_raw();
        self
    }

    /// The MTU in use.
    pub fn set_active_mtu(&mut self, mtu: Mtu) -> &mut Self {
        self.0.active_mtu = mtu.as_raw();
        self
    }

    /// Width and speed.
    pub fn set_link(&mut self, width: PortWidth, speed: PortSpeed) -> &mut Self {
        // CAST: Small enumerations.
        self.0.active_width = width.as_raw() as u8;
        self.0.active_speed = speed.as_raw() as u16;
        self
    }

    /// GIDs are IP addresses (RoCE).
    pub fn set_ip_gids(&mut self, ip_gids: bool) -> &mut Self {
        self.0.set_ip_gids(u32::from(ip_gids));
        self
    }

    /// The connection manager runs here.
    pub fn set_cm_supported(&mut self) -> &mut Self {
        self.0.port_cap_flags |= bindings::ib_port_capability_mask_bits_IB_PORT_CM_SUP;
        self
    }
}

/// What of a port never changes.
#[repr(transparent)]
pub struct PortImmutable(bindings::ib_port_immutable);

impl PortImmutable {
    /// A full RoCEv2 port: management datagrams (so QP1 must work), connection manager, addresses
    /// of Ethernet.
    pub fn set_roce_v2(&mut self, gid_tbl_len: u16, pkey_tbl_len: u16) -> &mut Self {
        self.0.core_cap_flags = bindings::RDMA_CORE_CAP_PROT_ROCE_UDP_ENCAP
            | bindings::RDMA_CORE_CAP_IB_MAD
            | bindings::RDMA_CORE_CAP_IB_CM
            | bindings::RDMA_CORE_CAP_AF_IB
            | bindings::RDMA_CORE_CAP_ETH_AH;
        self.0.gid_tbl_len = i32::from(gid_tbl_len);
        self.0.pkey_tbl_len = i32::from(pkey_tbl_len);
        self.0.max_mad_size = bindings::IB_MGMT_MAD_SIZE;
        self
    }
}
