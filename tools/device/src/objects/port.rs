// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The port: GID table, netdev state, and where packets go.

use crate::config::{Config, MAX_GID};
use std::rc::Rc;
use verbena_abi::cmd::{SetGid, NO_VLAN};
use verbena_abi::ctx::AddressVector;
use verbena_roce::wire::Path;
use verbena_roce::Packet;

/// The ECN bits of a traffic class. Without congestion management they are 0, "not ECT", whatever the address vector says
/// (CA17-5, CA17-14): a router that marked a packet of ours would not be heard.
const ECN: u8 = 0x03;

/// An entry of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// The GID in network order.
    pub gid: [u8; 16],
    /// Source MAC address of what is sent from it.
    pub mac: [u8; 6],
    /// VLAN id.
    pub vlan: Option<u16>,
}

impl Gid {
    /// The entry that a request sets.
    pub(crate) fn of(request: &SetGid) -> Self {
        let vlan = request.vlan.get();
        Self {
            gid: request.gid,
            mac: request.mac,
            vlan: (vlan != NO_VLAN).then_some(vlan),
        }
    }
}

/// The port.
#[derive(Debug)]
pub struct Port {
    /// The netdev is up.
    pub up: bool,
    /// Largest path MTU, as `enum ib_mtu`.
    pub mtu: u8,
    gids: Vec<Option<Gid>>,
    /// The entries that are set: few, and looked through for each packet.
    own: Vec<Gid>,
    dice: u64,
    drop_percent: u8,
}

/// A packet under way.
#[derive(Debug)]
pub struct Outgoing {
    /// The packet.
    pub packet: Packet,
    /// Where from and where to, as the connected sender names them; a datagram has its own.
    pub path: Option<Rc<Path>>,
    /// Path MTU in bytes, by which a super-packet is split.
    pub mtu: u32,
    /// The destination is a GID of the own table.
    pub local: bool,
}

impl Outgoing {
    /// Where from and where to. Each has it.
    #[inline]
    pub fn path(&self) -> Option<&Path> {
        match &self.packet.datagram {
            Some(datagram) => Some(&datagram.path),
            None => self.path.as_deref(),
        }
    }
}

/// The UDP source port, by which a network with several ways chooses one. That of the flow label, if there is one, as the kernel's
/// `rdma_flow_label_to_udp_sport` computes it, so that programs choose the way; else one for each queue pair, so that its packets
/// keep their order.
fn source_port(flow_label: u32, qpn: u32) -> u16 {
    let flow = match flow_label {
        0 => qpn,
        label => label,
    };
    0xc000 | (flow ^ (flow >> 14)) as u16 & 0x3fff
}

impl Port {
    /// As after power-on: down, no GIDs.
    pub fn new(config: &Config) -> Self {
        Self {
            up: false,
            mtu: 3,
            gids: vec![None; MAX_GID as usize],
            own: Vec::new(),
            dice: config.seed,
            drop_percent: config.drop_percent,
        }
    }

    /// Sets or clears an entry; false if the index is out of range.
    pub fn set_gid(&mut self, request: &SetGid) -> bool {
        let Some(entry) = self.gids.get_mut(request.index.get() as usize) else {
            return false;
        };
        *entry = (request.valid != 0).then(|| Gid::of(request));
        self.own = self.gids.iter().flatten().copied().collect();
        self.own.dedup();
        true
    }

    /// An entry.
    pub fn gid(&self, index: u16) -> Option<&Gid> {
        self.gids.get(index as usize)?.as_ref()
    }

    /// The entries that are set, with their indexes.
    pub fn gids(&self) -> impl Iterator<Item = (u16, &Gid)> {
        let entries = (0u16..).zip(&self.gids);
        entries.filter_map(|(index, gid)| Some((index, gid.as_ref()?)))
    }

    /// Largest path MTU, in bytes.
    pub fn mtu_bytes(&self) -> u32 {
        128 << self.mtu
    }

    /// Whether a packet is too long for the port: the MTU of its path was the port's, which has shrunk since.
    pub fn is_over_mtu(&self, packet: &Packet) -> bool {
        packet.payload.len() > self.mtu_bytes()
    }

    /// Whether packets by this path stay in the device. The GID alone does not tell: another station may have the same one, by
    /// mistake, and what is connected to that goes on. In another VLAN nobody here would hear them either.
    pub fn is_local(&self, path: &Path) -> bool {
        self.is_for(path)
    }

    /// Whether the port is in a VLAN, or in none: what comes to a group tells no GID of the port's.
    pub fn is_in(&self, vlan: Option<u16>) -> bool {
        self.own.iter().any(|own| own.vlan == vlan)
    }

    /// Whether what came by this path is for a GID of the port's, in its VLAN, at a MAC address of the port's there. That need not be
    /// the GID's own MAC address: a host answers for an IP address on any of its net devices (Linux' ARP does), so a peer may have
    /// learned that of another.
    pub fn is_for(&self, path: &Path) -> bool {
        let is_it = |own: &Gid| own.gid == path.dgid && own.vlan == path.vlan;
        self.own.iter().any(is_it) && self.has_mac(&path.dmac, path.vlan)
    }

    /// Whether one of the port's GIDs in a VLAN, or in none, has this MAC address.
    pub fn has_mac(&self, mac: &[u8; 6], vlan: Option<u16>) -> bool {
        self.own
            .iter()
            .any(|own| own.mac == *mac && own.vlan == vlan)
    }

    /// The entries that are set, without indexes; two that follow each other and are the same are one.
    pub fn own(&self) -> Vec<Gid> {
        self.own.clone()
    }

    /// The path that an address vector describes, if its source GID is set.
    pub fn path(&self, av: &AddressVector, qpn: u32) -> Option<Path> {
        let own = self.gid(av.sgid_index.get())?;
        let flow_label = av.flow_label.get() & 0xf_ffff;
        Some(Path {
            smac: own.mac,
            dmac: av.dmac,
            vlan: own.vlan,
            sgid: own.gid,
            dgid: av.dgid,
            udp_sport: source_port(flow_label, qpn),
            flow_label,
            traffic_class: av.traffic_class & !ECN,
            hop_limit: if av.hop_limit == 0 { 64 } else { av.hop_limit },
            // It travels as the priority of the VLAN tag: without one the receiver's `wc.sl` is 0, inside the device too.
            sl: if own.vlan.is_some() { av.sl } else { 0 },
        })
    }

    /// Draws by lot whether a local packet is lost.
    pub fn loses(&mut self) -> bool {
        if self.drop_percent == 0 {
            return false;
        }
        // splitmix64: a fixed seed gives the same losses again.
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % 100 < u64::from(self.drop_percent)
    }
}
