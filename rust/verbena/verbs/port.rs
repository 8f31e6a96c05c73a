// SPDX-License-Identifier: GPL-2.0

//! The RDMA device and its one port, which is a full RoCEv2 port, or a port of InfiniBand
//! ([`infiniband`](super::infiniband)).

use super::{
    ah::AhData,
    counters::{
        self,
        QpCounters, //
    },
    cq::CqData,
    infiniband::{
        InfinibandOps,
        InfinibandPort, //
    },
    mr::{
        has_gaps,
        MrData,
        MAX_FAST_REG, //
    },
    mw::MwData,
    pd::PdData,
    qp::QpData,
    srq::SrqData,
    ucontext::UcontextData,
    xrcd::XrcdData,
    VerbsDevice, //
};
use crate::{
    abi::{
        cmd::{
            SetGid,
            FEATURE_ATOMIC,
            FEATURE_ATOMIC_WRITE,
            FEATURE_FAST_REG,
            FEATURE_FLUSH,
            FEATURE_MCAST,
            FEATURE_MODERATION,
            FEATURE_MW,
            FEATURE_RESIZE_SRQ,
            FEATURE_SRQ,
            FEATURE_XRC,
            GID_TYPE_ROCE_V2,
            NO_VLAN, //
        },
        syndrome::Syndrome,
        uverbs::UVERBS_ABI_VERSION,
        Le16, //
    },
    cmdq::CommandError,
    hw::Hw,
    netdev::NetdevPort, //
};
use base::errno::eopnotsupp;
use core::num::NonZeroU32;
use kernel::{
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};
use rdma::{
    attr::{
        DeviceAttr,
        DeviceCaps,
        KernelCaps,
        PortAttr,
        PortImmutable, //
    },
    device::{
        Device,
        Operations, //
    },
    enums::{
        AtomicCap,
        GidType,
        LinkLayer,
        Mtu,
        PhysState,
        PortSpeed,
        PortState,
        PortWidth, //
    },
    gid::Gid,
    mad::{
        Cleared,
        PortCounters, //
    },
    qp::Qp,
    stats::{
        StatDesc,
        Values, //
    },
};

/// The port, by its link layer.
pub(crate) enum Port {
    Ethernet(Arc<NetdevPort>),
    Infiniband(Arc<InfinibandPort>),
}

impl Port {
    /// Returns the link layer that carries the packets of the port.
    pub(crate) fn link_layer(&self) -> LinkLayer {
        match self {
            Self::Ethernet(_) => LinkLayer::Ethernet,
            Self::Infiniband(_) => LinkLayer::Infiniband,
        }
    }
}

/// Driver's data of an RDMA device.
#[pin_data]
pub(crate) struct Verbena {
    pub(crate) vdev: Arc<VerbsDevice>,
    port: Port,
    #[pin]
    counters: QpCounters,
}

impl Verbena {
    pub(crate) fn new(vdev: Arc<VerbsDevice>, port: Port) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            vdev,
            port,
            counters <- QpCounters::new(),
        }? Error)
    }

    /// Returns the port if its link layer is Ethernet.
    pub(super) fn ethernet(&self) -> Option<&NetdevPort> {
        match &self.port {
            Port::Ethernet(port) => Some(port),
            Port::Infiniband(_) => None,
        }
    }

    /// Returns the port if its link layer is InfiniBand, and otherwise `EOPNOTSUPP`.
    pub(crate) fn infiniband(&self) -> Result<&InfinibandPort> {
        match &self.port {
            Port::Infiniband(port) => Ok(port),
            Port::Ethernet(_) => Err(eopnotsupp()),
        }
    }

    /// Returns the lengths of the GID table and of the P_Key table.
    fn table_lengths(&self) -> Result<(u16, u16)> {
        match &self.port {
            Port::Ethernet(_) => Ok((gid_table_len(&self.vdev)?, PKEYS)),
            Port::Infiniband(port) => Ok(port.table_lengths()),
        }
    }
}

/// Number of P_Keys of a RoCE port, of which there is only the default one.
const PKEYS: u16 = 1;
const DEFAULT_PKEY: u16 = 0xffff;

/// Returns the size of the GID table of a RoCE port. An address names its entry in 8 bits
/// (`ib_global_route.sgid_index`).
fn gid_table_len(hw: &Hw) -> Result<u16> {
    // CAST: The number is at most 256.
    Ok(hw.caps()?.max_gid.get().min(1 << u8::BITS) as u16)
}

/// Logs an address that the host does not let this guest use. Only administrators add addresses,
/// and the core also logs each time, so the messages are not limited.
fn log_refused_gid(hw: &Hw, gid: &Gid, mac: [u8; 6], syndrome: u32) {
    let rule = u16::try_from(syndrome).ok().and_then(Syndrome::from_raw);
    let (name, why) = rule.map_or(("?", ""), |rule| (rule.name(), rule.explain()));
    let [a, b, c, d, e, f] = mac;
    dev_warn!(
        hw.pdev,
        "no GID for address {gid} with MAC address {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}: {name}:{why}\n"
    );
}

/// Fills in the attributes of a RoCE port, which are those of its net device.
fn query_ethernet_port(vdev: &VerbsDevice, port: &NetdevPort, attr: &mut PortAttr) -> Result {
    let info = port.info();
    let up = info.is_up() && !vdev.health.is_dead();
    let (state, phys) = if up {
        (PortState::Active, PhysState::LinkUp)
    } else {
        (PortState::Down, PhysState::Disabled)
    };
    attr.set_state(state)
        .set_phys_state(phys)
        .set_max_mtu(Mtu::Mtu4096)
        .set_active_mtu(Mtu::from_netdev(info.mtu))
        .set_phys_mtu(info.mtu)
        .set_gid_tbl_len(gid_table_len(vdev)?)
        .set_pkey_tbl_len(PKEYS)
        .set_max_msg_sz(vdev.caps()?.max_msg_size.get())
        .set_max_vl_num(1)
        .set_ip_gids(true)
        .set_cm_supported()
        .set_link(PortWidth::X4, PortSpeed::Edr);
    Ok(())
}

#[vtable]
impl Operations for Verbena {
    const ABI_VERSION: u32 = UVERBS_ABI_VERSION;

    const PORT_STATS: &'static [StatDesc] = &counters::NAMES;

    type Ucontext = UcontextData;
    type Pd = PdData;
    type Cq = CqData;
    type Qp = QpData;
    type Srq = SrqData;
    type Ah = AhData;
    type Mr = MrData;
    type Mw = MwData;
    type Xrcd = XrcdData;
    type Infiniband = InfinibandOps;

    fn query_device(dev: &Device<Self>, attr: &mut DeviceAttr) -> Result {
        let hw = &dev.vdev;
        let info = hw.info()?;
        let caps = &info.caps;
        let mut flags = DeviceCaps::CURR_QP_STATE_MOD
            | DeviceCaps::PORT_ACTIVE_EVENT
            | DeviceCaps::SYS_IMAGE_GUID
            | DeviceCaps::RC_RNR_NAK_GEN;
        if hw.has(FEATURE_FAST_REG) {
            flags = flags | DeviceCaps::MEM_MGT_EXTENSIONS;
            attr.set_max_fast_reg_page_list_len(MAX_FAST_REG);
        }
        if hw.has(FEATURE_MW) {
            flags = flags | DeviceCaps::MEM_WINDOW | DeviceCaps::MEM_WINDOW_TYPE_2B;
            // Windows and regions share one space of keys.
            attr.set_max_mw(info.ids.keys.count());
        }
        if hw.has(FEATURE_ATOMIC_WRITE) {
            flags = flags | DeviceCaps::ATOMIC_WRITE;
        }
        if hw.has(FEATURE_FLUSH) {
            flags = flags | DeviceCaps::FLUSH_GLOBAL;
        }
        if hw.has(FEATURE_SRQ) {
            attr.set_max_srq(info.ids.srqns.count())
                .set_max_srq_wr(caps.max_srq_wr.get())
                .set_max_srq_sge(caps.max_srq_sge.get());
        }
        if hw.has(FEATURE_MCAST) {
            let (groups, members) = (caps.max_mcast_grp.get(), caps.max_mcast_qp_attach.get());
            attr.set_max_mcast_grp(groups)
                .set_max_mcast_qp_attach(members)
                .set_max_total_mcast_qp_attach(groups.saturating_mul(members));
        }
        if hw.has(FEATURE_MODERATION) {
            attr.set_cq_moderation(u16::MAX, u16::MAX);
        }
        if hw.has(FEATURE_RESIZE_SRQ) {
            flags = flags | DeviceCaps::SRQ_RESIZE;
        }
        if hw.has(FEATURE_XRC) {
            flags = flags | DeviceCaps::XRC;
        }
        if hw.has(FEATURE_ATOMIC) {
            attr.set_atomic_cap(AtomicCap::Hca);
        }
        let mut kernel_flags = KernelCaps::LOCAL_DMA_LKEY;
        if has_gaps(hw) {
            kernel_flags = kernel_flags | KernelCaps::SG_GAPS_REG;
        }
        attr.set_device_cap_flags(flags)
            .set_kernel_cap_flags(kernel_flags)
            .set_fw_ver(caps.fw_ver.get())
            .set_sys_image_guid(caps.node_guid)
            .set_max_mr_size(caps.max_mr_size.get())
            .set_page_size_cap(caps.page_size_cap.get())
            .set_vendor_id(0x1af4)
            .set_vendor_part_id(0x10f5)
            .set_hw_ver(hw.pdev.revision_id().into())
            .set_max_pkeys(dev.table_lengths()?.1)
            .set_local_ca_ack_delay(15)
            // The core expects the frequency of the device clock in kHz.
            .set_timestamp_mask(u64::MAX)
            .set_hca_core_clock((1_000_000 << 16) / u64::from(caps.clock_ns_q16.get().max(1)))
            .set_max_qp(info.ids.qpns.count())
            .set_max_qp_wr(caps.max_qp_wr.get())
            .set_max_send_sge(caps.max_send_sge.get())
            .set_max_recv_sge(caps.max_recv_sge.get())
            .set_max_sge_rd(caps.max_send_sge.get())
            .set_max_cq(info.ids.cqns.count())
            .set_max_cqe(caps.max_cqe.get())
            .set_max_mr(info.ids.keys.count())
            .set_max_pd(info.ids.pdns.count())
            .set_max_ah(i32::MAX as u32)
            .set_max_qp_rd_atom(caps.max_qp_rd_atom.get())
            .set_max_qp_init_rd_atom(caps.max_qp_init_rd_atom.get())
            .set_max_res_rd_atom(
                caps.max_qp_rd_atom
                    .get()
                    .saturating_mul(info.ids.qpns.count()),
            );
        Ok(())
    }

    fn query_port(dev: &Device<Self>, _port: u32, attr: &mut PortAttr) -> Result {
        match &dev.port {
            Port::Ethernet(port) => query_ethernet_port(&dev.vdev, port, attr),
            Port::Infiniband(port) => port.query(&dev.vdev, attr),
        }
    }

    fn port_event(dev: &Device<Self>) -> bool {
        // The device has to know an active port before consumers do, or packets that they send are
        // lost. If the port is down, packets are lost in any case, so consumers are informed at
        // once.
        let Some(port) = dev.ethernet() else {
            return false;
        };
        let is_down = !port.info().is_up();
        if !is_down {
            port.request_event();
        }
        is_down
    }

    fn link_layer(dev: &Device<Self>, _port: u32) -> LinkLayer {
        dev.port.link_layer()
    }

    fn port_immutable(dev: &Device<Self>, _port: u32, imm: &mut PortImmutable) -> Result {
        let (gids, pkeys) = dev.table_lengths()?;
        match &dev.port {
            Port::Ethernet(_) => imm.set_roce_v2(gids, pkeys),
            Port::Infiniband(_) => imm.set_infiniband(gids, pkeys),
        };
        Ok(())
    }

    fn query_pkey(dev: &Device<Self>, _port: u32, index: u16) -> Result<u16> {
        match &dev.port {
            Port::Infiniband(port) => port.query_pkey(&dev.vdev, index),
            Port::Ethernet(_) if index < PKEYS => Ok(DEFAULT_PKEY),
            Port::Ethernet(_) => Err(EINVAL),
        }
    }

    fn add_gid(dev: &Device<Self>, gid: &Gid) -> Result {
        if gid.gid_type != GidType::RoceUdpEncap {
            return Err(EINVAL);
        }
        let port = dev.ethernet().ok_or(EINVAL)?;
        let mac = gid.mac.unwrap_or(port.info().mac);
        let set = dev.vdev.cmdq.exec(&SetGid {
            index: Le16::new(gid.index),
            valid: 1,
            vlan: Le16::new(gid.vlan_id.unwrap_or(NO_VLAN)),
            mac,
            gid: gid.gid,
            port: 1,
            gid_type: GID_TYPE_ROCE_V2,
            ..Default::default()
        });
        match set {
            Ok(_) => Ok(()),
            // The core leaves the GID out of its table after this error.
            Err(CommandError::Refused(error, _, syndrome)) if error == EACCES => {
                log_refused_gid(&dev.vdev, gid, mac, syndrome);
                Err(error)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    fn del_gid(dev: &Device<Self>, gid: &Gid) -> Result {
        dev.vdev.exec_unless_dead(&SetGid {
            index: Le16::new(gid.index),
            vlan: Le16::new(NO_VLAN),
            port: 1,
            gid_type: GID_TYPE_ROCE_V2,
            ..Default::default()
        })?;
        Ok(())
    }

    fn port_stats(dev: &Device<Self>, _port: u32, values: &mut Values<'_>) -> Result {
        dev.counters.read_unbound(&dev.vdev, values)
    }

    fn port_counters(dev: &Device<Self>, _port: u32) -> Result<PortCounters> {
        counters::query_port(&dev.vdev)
    }

    fn cleared_counters(dev: &Device<Self>, _port: u32) -> &Mutex<Cleared> {
        dev.counters.cleared()
    }

    fn bind_counter(
        dev: &Device<Self>,
        counter: Option<NonZeroU32>,
        qp: &Qp<Self>,
    ) -> Result<NonZeroU32> {
        dev.counters.bind(&dev.vdev, counter, qp)
    }

    fn unbind_counter(dev: &Device<Self>, counter: NonZeroU32, qp: &Qp<Self>) {
        dev.counters.unbind(&dev.vdev, counter, qp);
    }

    fn read_counter(dev: &Device<Self>, counter: NonZeroU32, values: &mut Values<'_>) -> Result {
        dev.counters.read(&dev.vdev, counter, values)
    }

    fn dealloc_counter(dev: &Device<Self>, counter: NonZeroU32) {
        dev.counters.dealloc(counter);
    }

    fn fw_version(dev: &Device<Self>) -> [u16; 3] {
        let version = dev.vdev.caps().map_or(0, |caps| caps.fw_ver.get());
        // CAST: The version consists of three numbers of 16 bits.
        [32, 16, 0].map(|shift| (version >> shift) as u16)
    }
}
