// SPDX-License-Identifier: GPL-2.0

//! Attributes of devices and ports.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::{
    bindings,
    compat,
    enums::{
        AtomicCap,
        Mtu,
        PhysState,
        PortCaps,
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

/// Attributes of a device, which are zero unless set.
#[repr(transparent)]
pub struct DeviceAttr(bindings::ib_device_attr);

impl DeviceAttr {
    setters! {
        /// Sets the firmware version.
        set_fw_ver: fw_ver, u64;
        /// Sets the length of the largest memory region in bytes.
        set_max_mr_size: max_mr_size, u64;
        /// Sets the bitmap of the page sizes of memory regions.
        set_page_size_cap: page_size_cap, u64;
        /// Sets the ID of the vendor.
        set_vendor_id: vendor_id, u32;
        /// Sets the ID that the vendor gives the device model.
        set_vendor_part_id: vendor_part_id, u32;
        /// Sets the revision of the hardware.
        set_hw_ver: hw_ver, u32;
        /// Sets the number of P_Keys.
        set_max_pkeys: max_pkeys, u16;
        /// Sets the code of the delay of the device's ACKs.
        set_local_ca_ack_delay: local_ca_ack_delay, u8;
        /// Sets the maximum number of pages of a fast registration.
        set_max_fast_reg_page_list_len: max_fast_reg_page_list_len, u32;
        /// Sets the mask of the valid bits of a completion's timestamp.
        set_timestamp_mask: timestamp_mask, u64;
        /// Sets the frequency of the clock in kHz.
        set_hca_core_clock: hca_core_clock, u64;
        /// Sets the number of scatter/gather entries with which a READ performs best.
        set_max_sgl_rd: max_sgl_rd, u32;
    }

    counts! {
        /// Sets the maximum number of QPs.
        set_max_qp: max_qp;
        /// Sets the maximum number of work requests of a queue.
        set_max_qp_wr: max_qp_wr;
        /// Sets the maximum number of scatter/gather entries of a send.
        set_max_send_sge: max_send_sge;
        /// Sets the maximum number of scatter/gather entries of a receive.
        set_max_recv_sge: max_recv_sge;
        /// Sets the maximum number of scatter/gather entries of a READ.
        set_max_sge_rd: max_sge_rd;
        /// Sets the maximum number of completion queues.
        set_max_cq: max_cq;
        /// Sets the maximum number of entries of a completion queue.
        set_max_cqe: max_cqe;
        /// Sets the maximum number of memory regions.
        set_max_mr: max_mr;
        /// Sets the maximum number of protection domains.
        set_max_pd: max_pd;
        /// Sets the maximum number of outstanding READs and atomics of a QP as responder.
        set_max_qp_rd_atom: max_qp_rd_atom;
        /// Sets the maximum number of outstanding READs and atomics of the device as responder.
        set_max_res_rd_atom: max_res_rd_atom;
        /// Sets the maximum number of outstanding READs and atomics of a QP as requester.
        set_max_qp_init_rd_atom: max_qp_init_rd_atom;
        /// Sets the maximum number of address handles.
        set_max_ah: max_ah;
        /// Sets the maximum number of memory windows.
        set_max_mw: max_mw;
        /// Sets the maximum number of SRQs.
        set_max_srq: max_srq;
        /// Sets the maximum number of work requests of an SRQ.
        set_max_srq_wr: max_srq_wr;
        /// Sets the maximum number of scatter/gather entries of a receive of an SRQ.
        set_max_srq_sge: max_srq_sge;
        /// Sets the maximum number of multicast groups.
        set_max_mcast_grp: max_mcast_grp;
        /// Sets the maximum number of QPs of a multicast group.
        set_max_mcast_qp_attach: max_mcast_qp_attach;
        /// Sets the maximum number of QPs of all multicast groups.
        set_max_total_mcast_qp_attach: max_total_mcast_qp_attach;
    }

    /// Sets the maximum number of completions, and of microseconds, by which an event can be
    /// moderated.
    pub fn set_cq_moderation(&mut self, count: u16, period: u16) -> &mut Self {
        self.0.cq_caps.max_cq_moderation_count = count;
        self.0.cq_caps.max_cq_moderation_period = period;
        self
    }

    /// Sets the GUID of the system image, in wire byte order.
    pub fn set_sys_image_guid(&mut self, guid: [u8; 8]) -> &mut Self {
        self.0.sys_image_guid = u64::from_ne_bytes(guid);
        self
    }

    /// Sets the scope of the atomics.
    pub fn set_atomic_cap(&mut self, cap: AtomicCap) -> &mut Self {
        self.0.atomic_cap = cap.as_raw();
        self
    }

    /// Sets the flags of `enum ib_device_cap_flags`.
    pub fn set_device_cap_flags(&mut self, flags: DeviceCaps) -> &mut Self {
        self.0.device_cap_flags = flags.0;
        self
    }

    /// Sets the flags of `enum ib_kernel_cap_flags`.
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
                // CAST: These are bit flags.
                pub const $v: Self = Self(bindings::$c as u64);
            )*

            /// Returns the empty set of flags.
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
    /// Capabilities of a device (`enum ib_device_cap_flags`).
    DeviceCaps {
        /// The port counts packets with a bad P_Key.
        BAD_PKEY_CNTR = ib_device_cap_flags_IB_DEVICE_BAD_PKEY_CNTR,
        /// The port counts packets with a bad Q_Key.
        BAD_QKEY_CNTR = ib_device_cap_flags_IB_DEVICE_BAD_QKEY_CNTR,
        /// The caller of `modify_qp` may give the current state.
        CURR_QP_STATE_MOD = ib_device_cap_flags_IB_DEVICE_CURR_QP_STATE_MOD,
        /// The device reports events of ports.
        PORT_ACTIVE_EVENT = ib_device_cap_flags_IB_DEVICE_PORT_ACTIVE_EVENT,
        /// The device has a system image GUID.
        SYS_IMAGE_GUID = ib_device_cap_flags_IB_DEVICE_SYS_IMAGE_GUID,
        /// The device sends RNR NAKs.
        RC_RNR_NAK_GEN = ib_device_cap_flags_IB_DEVICE_RC_RNR_NAK_GEN,
        /// SRQs can be resized.
        SRQ_RESIZE = ib_device_cap_flags_IB_DEVICE_SRQ_RESIZE,
        /// The device has fast registration, and local and remote invalidation.
        MEM_MGT_EXTENSIONS = ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS,
        /// The device has memory windows.
        MEM_WINDOW = ib_device_cap_flags_IB_DEVICE_MEM_WINDOW,
        /// The device has extended reliable connections.
        XRC = ib_device_cap_flags_IB_DEVICE_XRC,
        /// The device has memory windows of type 2B.
        MEM_WINDOW_TYPE_2B = ib_device_cap_flags_IB_DEVICE_MEM_WINDOW_TYPE_2B,
        /// The device has FLUSH to global visibility.
        FLUSH_GLOBAL = ib_device_cap_flags_IB_DEVICE_FLUSH_GLOBAL,
        /// The device has ATOMIC WRITE.
        ATOMIC_WRITE = ib_device_cap_flags_IB_DEVICE_ATOMIC_WRITE,
    }
}

caps! {
    /// Capabilities for kernel users (`enum ib_kernel_cap_flags`).
    KernelCaps {
        /// The `local_dma_lkey` is valid, so protection domains of the kernel need no region for
        /// it.
        LOCAL_DMA_LKEY = ib_kernel_cap_flags_IBK_LOCAL_DMA_LKEY,
        /// Regions with gaps can be registered.
        SG_GAPS_REG = ib_kernel_cap_flags_IBK_SG_GAPS_REG,
        /// Multicast loopback can be switched off.
        BLOCK_MULTICAST_LOOPBACK = ib_kernel_cap_flags_IBK_BLOCK_MULTICAST_LOOPBACK,
    }
}

/// Attributes of a port, which are zero unless set.
#[repr(transparent)]
pub struct PortAttr(bindings::ib_port_attr);

impl PortAttr {
    setters! {
        /// Sets the length of the largest message in bytes.
        set_max_msg_sz: max_msg_sz, u32;
        /// Sets the number of entries of the P_Key table.
        set_pkey_tbl_len: pkey_tbl_len, u16;
        /// Sets the count of packets with a bad P_Key.
        set_bad_pkey_cntr: bad_pkey_cntr, u32;
        /// Sets the count of packets with a bad Q_Key.
        set_qkey_viol_cntr: qkey_viol_cntr, u32;
        /// Sets the MTU of the physical port in bytes.
        set_phys_mtu: phys_mtu, u32;
        /// Sets the code of the number of virtual lanes.
        set_max_vl_num: max_vl_num, u8;
        /// Sets the second capability mask (`enum ib_port_capability_mask2_bits`).
        set_port_cap_flags2: port_cap_flags2, u16;
        /// Sets the reply of the subnet manager to the requested type of initialization.
        set_init_type_reply: init_type_reply, u8;
    }

    /// Sets the LID of the port (InfiniBand). The number of path bits `lmc` has 3 bits.
    pub fn set_lid(&mut self, lid: u16, lmc: u8) -> &mut Self {
        self.0.lid = lid.into();
        self.0.lmc = lmc & 0x7;
        self
    }

    /// Sets the LID of the subnet manager (InfiniBand), and its service level, which has 4 bits.
    pub fn set_sm(&mut self, lid: u16, sl: u8) -> &mut Self {
        self.0.sm_lid = lid.into();
        self.0.sm_sl = sl & 0xf;
        self
    }

    /// Sets the code of the time that a packet needs through the subnet, which has 5 bits.
    pub fn set_subnet_timeout(&mut self, timeout: u8) -> &mut Self {
        self.0.subnet_timeout = timeout & 0x1f;
        self
    }

    /// Sets the capability mask (`enum ib_port_capability_mask_bits`).
    pub fn set_port_caps(&mut self, caps: PortCaps) -> &mut Self {
        self.0.port_cap_flags = caps.as_raw();
        self
    }

    /// Sets the number of entries of the GID table.
    pub fn set_gid_tbl_len(&mut self, len: u16) -> &mut Self {
        self.0.gid_tbl_len = i32::from(len);
        self
    }

    /// Sets the state of the port.
    pub fn set_state(&mut self, state: PortState) -> &mut Self {
        self.0.state = state.as_raw();
        self
    }

    /// Sets the physical state of the port.
    pub fn set_phys_state(&mut self, state: PhysState) -> &mut Self {
        // CAST: The enumeration is small.
        self.0.phys_state = state.as_raw() as u8;
        self
    }

    /// Sets the largest MTU of the port.
    pub fn set_max_mtu(&mut self, mtu: Mtu) -> &mut Self {
        self.0.max_mtu = mtu.as_raw();
        self
    }

    /// Sets the MTU in use.
    pub fn set_active_mtu(&mut self, mtu: Mtu) -> &mut Self {
        self.0.active_mtu = mtu.as_raw();
        self
    }

    /// Sets the width and the speed of the link.
    pub fn set_link(&mut self, width: PortWidth, speed: PortSpeed) -> &mut Self {
        // CAST: The enumerations are small.
        self.0.active_width = width.as_raw() as u8;
        self.0.active_speed = speed.as_raw() as u16;
        self
    }

    /// Sets whether GIDs are IP addresses (RoCE).
    pub fn set_ip_gids(&mut self, ip_gids: bool) -> &mut Self {
        self.0.set_ip_gids(u32::from(ip_gids));
        self
    }

    /// Announces that the connection manager runs on this port.
    pub fn set_cm_supported(&mut self) -> &mut Self {
        self.0.port_cap_flags |= bindings::ib_port_capability_mask_bits_IB_PORT_CM_SUP;
        self
    }
}

/// Attributes of a port that never change.
#[repr(transparent)]
pub struct PortImmutable(bindings::ib_port_immutable);

impl PortImmutable {
    /// Describes a complete RoCEv2 port: management datagrams (so QP1 must work), connection
    /// manager and Ethernet addresses.
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

    /// Describes a complete InfiniBand port: management datagrams (so QP0, QP1 and
    /// [`InfinibandPort`](crate::infiniband::InfinibandPort) must work), connection manager and
    /// subnet administration. The lengths must be those that `query_port` returns, because the core
    /// fills tables of these lengths with as many entries as `query_port` announces.
    pub fn set_infiniband(&mut self, gid_tbl_len: u16, pkey_tbl_len: u16) -> &mut Self {
        self.0.core_cap_flags = bindings::RDMA_CORE_CAP_PROT_IB
            | bindings::RDMA_CORE_CAP_IB_MAD
            | bindings::RDMA_CORE_CAP_IB_SMI
            | bindings::RDMA_CORE_CAP_IB_CM
            | bindings::RDMA_CORE_CAP_IB_SA
            | bindings::RDMA_CORE_CAP_AF_IB;
        self.0.gid_tbl_len = i32::from(gid_tbl_len);
        self.0.pkey_tbl_len = i32::from(pkey_tbl_len);
        self.0.max_mad_size = bindings::IB_MGMT_MAD_SIZE;
        self
    }
}
