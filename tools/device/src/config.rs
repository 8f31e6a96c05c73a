// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the NIC is told when it starts, and what it tells the driver that it can do.

use crate::misbehave::Misbehaviour;
use verbena_abi::cmd::{self, DeviceCaps};
use verbena_abi::wqe;

/// What the NIC is told when it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// The port's MAC address.
    pub mac: [u8; 6],
    /// Forces every packet between local queue pairs through the bytes of a frame.
    pub wire_local: bool,
    /// There are other devices in the process: packets for elsewhere are offered by reference
    /// ([`Device::next_crossing`](crate::Device::next_crossing)).
    pub neighbours: bool,
    /// So many percent of the local packets are lost.
    pub drop_percent: u8,
    /// Acknowledgements carry end-to-end credits, and those of peers are kept to.
    pub credits: bool,
    /// On a wire, queue pairs have fewer packets under way where there are queues, and answer what routers mark (annex A17.9).
    pub congestion_control: bool,
    /// Connected queue pairs hear their peer from any MAC address: routers may differ for each direction.
    pub asymmetric_routes: bool,
    /// The host decides which entries the GID table may have ([`Device::next_claim`](crate::Device::next_claim)). Without it all
    /// entries are accepted.
    pub asks_for_gids: bool,
    /// Seed of everything that is drawn by lot.
    pub seed: u64,
    /// Answers that look right and are wrong, drawn with this seed (only with the feature `hostile`).
    pub hostile: Option<u64>,
    /// What the device does wrong at present (only with the feature `misbehave`).
    pub misbehave: Misbehaviour,
    /// The flight recorder keeps so many entries from the beginning; 0: nothing is recorded until somebody asks for it.
    pub record: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mac: [0x52, 0x54, 0x00, 0x12, 0x34, 0x56],
            wire_local: false,
            neighbours: false,
            drop_percent: 0,
            credits: true,
            congestion_control: true,
            asymmetric_routes: false,
            asks_for_gids: false,
            seed: 1,
            hostile: None,
            misbehave: Misbehaviour::default(),
            record: 0,
        }
    }
}

/// The reserved key with which privileged queue pairs reach all DMA addresses: index 0, which no region has.
pub const LOCAL_DMA_LKEY: u32 = 0x5a;

/// Bytes that all queue pairs together keep of what came ahead of a gap.
pub const KEEP_BYTES: u64 = 64 << 20;
/// The same of those that are connected to one peer.
pub const PEER_KEEP_BYTES: u64 = 16 << 20;

/// Packets of a super-packet to a peer behind a wire: frames that are made at once.
pub const WIRE_SUPER_PACKETS: u8 = 32;

/// QPNs are below this.
pub const MAX_QP: u32 = 16 << 10;
/// CQNs are below this.
pub const MAX_CQ: u32 = 16 << 10;
/// SRQNs are below this.
pub const MAX_SRQ: u32 = 4 << 10;
/// Key indexes are below this.
pub const MAX_MR: u32 = 64 << 10;
/// Bytes of a memory region.
pub const MAX_MR_SIZE: u64 = 1 << 47;
/// Elements of a region with gaps.
pub const MAX_GAPS: u32 = 512;
/// EQNs are below this.
pub const MAX_EQ: u32 = 64;
/// Ports are numbered from 1 to this.
pub const NUM_PORTS: u8 = 1;
/// GID table entries.
pub const MAX_GID: u32 = 256;
/// Multicast groups that have members.
pub const MAX_MCAST_GRP: u32 = 1 << 10;
/// Members of a multicast group.
pub const MAX_MCAST_QP_ATTACH: u32 = 256;
/// Work requests of a queue.
pub const MAX_WR: u32 = 16 << 10;
/// Entries of a CQ.
pub const MAX_CQE: u32 = 1 << 18;
/// Entries of an EQ.
pub const MAX_EQE: u32 = 128 << 10;
/// Longest message in bytes.
pub const MAX_MSG: u32 = 1 << 31;
/// Outstanding READs and atomics of a queue pair, either way.
pub const MAX_RD_ATOMIC: u32 = 16;

/// Node GUID of a MAC address (EUI-64).
pub fn node_guid(mac: [u8; 6]) -> [u8; 8] {
    [
        mac[0] ^ 2,
        mac[1],
        mac[2],
        0xff,
        0xfe,
        mac[3],
        mac[4],
        mac[5],
    ]
}

/// The answer to QUERY_DEVICE.
pub fn caps(config: &Config) -> DeviceCaps {
    let mut mac = [0; 8];
    mac[..6].copy_from_slice(&config.mac);
    DeviceCaps {
        mac,
        node_guid: node_guid(config.mac),
        fw_ver: (1u64 << 16).into(),
        max_mr_size: MAX_MR_SIZE.into(),
        page_size_cap: ((1u64 << 31) - (1 << 12)).into(),
        features: (cmd::FEATURE_RC
            | cmd::FEATURE_UC
            | cmd::FEATURE_UD
            | cmd::FEATURE_SRQ
            | cmd::FEATURE_ATOMIC
            | cmd::FEATURE_FAST_REG
            | cmd::FEATURE_RESIZE_CQ
            | cmd::FEATURE_MODERATION
            | cmd::FEATURE_MW
            | cmd::FEATURE_MCAST
            | cmd::FEATURE_XRC
            | cmd::FEATURE_RESIZE_SRQ
            | cmd::FEATURE_ATOMIC_WRITE
            | cmd::FEATURE_FLUSH
            | cmd::FEATURE_FAULTS
            | cmd::FEATURE_GAPS)
            .into(),
        max_qp: MAX_QP.into(),
        max_cq: MAX_CQ.into(),
        max_srq: MAX_SRQ.into(),
        max_mr: MAX_MR.into(),
        max_pd: (64 << 10).into(),
        max_eq: MAX_EQ.into(),
        max_uar: verbena_abi::regs::NUM_UARS.into(),
        max_gid: MAX_GID.into(),
        max_qp_wr: MAX_WR.into(),
        max_srq_wr: MAX_WR.into(),
        max_cqe: MAX_CQE.into(),
        max_eqe: MAX_EQE.into(),
        max_send_sge: wqe::MAX_SGE.into(),
        max_recv_sge: wqe::MAX_SGE.into(),
        max_srq_sge: wqe::MAX_SGE.into(),
        max_inline_data: wqe::MAX_INLINE.into(),
        max_msg_size: MAX_MSG.into(),
        max_qp_init_rd_atom: MAX_RD_ATOMIC.into(),
        max_qp_rd_atom: MAX_RD_ATOMIC.into(),
        num_comp_vectors: (verbena_abi::regs::NUM_VECTORS - 1).into(),
        local_dma_lkey: LOCAL_DMA_LKEY.into(),
        clock_ns_q16: (1u32 << 16).into(),
        max_mcast_grp: MAX_MCAST_GRP.into(),
        max_mcast_qp_attach: MAX_MCAST_QP_ATTACH.into(),
        num_ports: NUM_PORTS,
        max_gaps: MAX_GAPS.into(),
        ..Default::default()
    }
}
