// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The configuration of a device: the options that the NIC gives at the start, and the limits that
//! the device reports to the driver.

use crate::misbehave::Misbehaviour;
use verbena_abi::cmd::{self, DeviceCaps, LinkLayer};
use verbena_abi::wqe;

/// Options that the NIC gives the device at the start.
#[derive(Clone, Debug)]
pub struct Config {
    /// MAC address of the port. The GUIDs are made of it unless `guid` is set.
    pub mac: [u8; 6],
    /// Link layer of the port.
    pub link_layer: LinkLayer,
    /// GUID of the node, in network order. The GUID of an InfiniBand port is the next number.
    pub guid: Option<[u8; 8]>,
    /// True if every packet between local queue pairs is converted to a frame and back.
    pub wire_local: bool,
    /// True if the process has other devices: packets to destinations outside this device are
    /// offered by reference ([`Device::next_crossing`](crate::Device::next_crossing)).
    pub neighbours: bool,
    /// Percentage of the local packets that are lost at random, by a rule that the device begins
    /// with ([`Rule::of_loss`](verbena_faults::Rule::of_loss)). 0 after that rule was removed.
    pub drop_percent: u8,
    /// True if acknowledgements carry end-to-end credits, and the device observes the credits of
    /// peers.
    pub credits: bool,
    /// True if queue pairs use congestion control on a wire: they reduce the number of packets in
    /// flight when queues build up, and answer packets that routers have marked (annex A17.9).
    pub congestion_control: bool,
    /// True if connected queue pairs accept packets of their peer from any MAC address, because the
    /// routers may differ for each direction.
    pub asymmetric_routes: bool,
    /// True if the host decides on each entry of the GID table
    /// ([`Device::next_claim`](crate::Device::next_claim)). Otherwise all entries are accepted.
    pub asks_for_gids: bool,
    /// Seed of all random decisions.
    pub seed: u64,
    /// Seed of a device that gives plausible but wrong answers (only with the feature `hostile`).
    pub hostile: Option<u64>,
    /// Misbehaviour that is set at present (only with the feature `misbehave`).
    pub misbehave: Misbehaviour,
    /// Number of entries of the flight recorder, which records from the beginning. With 0 the
    /// device records nothing until a recording is requested.
    pub record: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mac: [0x52, 0x54, 0x00, 0x12, 0x34, 0x56],
            link_layer: LinkLayer::Ethernet,
            guid: None,
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

/// The reserved key with which privileged queue pairs reach all DMA addresses. Its index is 0,
/// which no region has.
pub const LOCAL_DMA_LKEY: u32 = 0x5a;

/// Largest number of bytes of out-of-order packets that all queue pairs together keep.
pub const KEEP_BYTES: u64 = 64 << 20;
/// Largest number of such bytes that the queue pairs connected to one peer keep.
pub const PEER_KEEP_BYTES: u64 = 16 << 20;

/// Largest number of packets of a super-packet to a peer on a wire, for which the frames are made
/// at once.
pub const WIRE_SUPER_PACKETS: u8 = 32;

/// Limit of QPNs, which are all below this value.
pub const MAX_QP: u32 = 16 << 10;
/// Limit of CQNs, which are all below this value.
pub const MAX_CQ: u32 = 16 << 10;
/// Limit of SRQNs, which are all below this value.
pub const MAX_SRQ: u32 = 4 << 10;
/// Limit of key indexes, which are all below this value.
pub const MAX_MR: u32 = 64 << 10;
/// Largest size of a memory region in bytes.
pub const MAX_MR_SIZE: u64 = 1 << 47;
/// Largest number of elements of a region with gaps.
pub const MAX_GAPS: u32 = 512;
/// Limit of EQNs, which are all below this value.
pub const MAX_EQ: u32 = 64;
/// Number of ports, which are numbered from 1.
pub const NUM_PORTS: u8 = 1;
/// Number of GID table entries.
pub const MAX_GID: u32 = 256;
/// Largest number of multicast groups that have members.
pub const MAX_MCAST_GRP: u32 = 1 << 10;
/// Largest number of members of a multicast group.
pub const MAX_MCAST_QP_ATTACH: u32 = 256;
/// Largest number of work requests of a queue.
pub const MAX_WR: u32 = 16 << 10;
/// Largest number of entries of a CQ.
pub const MAX_CQE: u32 = 1 << 18;
/// Largest number of entries of an EQ.
pub const MAX_EQE: u32 = 128 << 10;
/// Largest length of a message in bytes.
pub const MAX_MSG: u32 = 1 << 31;
/// Largest number of outstanding READs and atomics of a queue pair, in each direction.
pub const MAX_RD_ATOMIC: u32 = 16;

/// Returns the node GUID for a MAC address (EUI-64).
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

/// Returns the reply to QUERY_DEVICE.
pub fn caps(config: &Config) -> DeviceCaps {
    let mut mac = [0; 8];
    mac[..6].copy_from_slice(&config.mac);
    let guid = config.guid.unwrap_or(node_guid(config.mac));
    let is_infiniband = config.link_layer == LinkLayer::InfiniBand;
    let port_guid = u64::from_be_bytes(guid).wrapping_add(1).to_be_bytes();
    DeviceCaps {
        mac,
        node_guid: guid,
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
        max_gid: if is_infiniband { 1 } else { MAX_GID }.into(),
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
        link_layer: config.link_layer.to_raw(),
        port_guid: if is_infiniband { port_guid } else { [0; 8] },
        max_gaps: MAX_GAPS.into(),
        ..Default::default()
    }
}
