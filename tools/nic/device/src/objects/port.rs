// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The port: GID table, netdev state, and the destinations of packets.

use crate::config::MAX_GID;
use crate::objects::infiniband::InfiniBandPort;
use std::rc::Rc;
use verbena_abi::cmd::{SetGid, FIRST_QPN, NO_VLAN};
use verbena_abi::ctx::AddressVector;
use verbena_transport::host::{pkeys_match, DEFAULT_PKEY};
use verbena_transport::wire::Path;
use verbena_transport::Packet;

/// The ECN bits of a traffic class. Without congestion control they are 0, "not ECT", whatever the
/// address vector has (CA17-5, CA17-14), because the device would not react to a router's mark.
const ECN: u8 = 0x03;

/// An entry of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// GID in network order.
    pub gid: [u8; 16],
    /// Source MAC address of packets that are sent from this GID.
    pub mac: [u8; 6],
    /// VLAN id, if the GID is in a VLAN.
    pub vlan: Option<u16>,
}

impl Gid {
    /// Returns the entry that a SET_GID request describes.
    pub(crate) fn of(request: &SetGid) -> Self {
        let vlan = request.vlan.get();
        Self {
            gid: request.gid,
            mac: request.mac,
            vlan: (vlan != NO_VLAN).then_some(vlan),
        }
    }
}

/// The port of the device.
#[derive(Debug)]
pub struct Port {
    /// True if the netdev is up, or the InfiniBand port is active.
    pub up: bool,
    /// Largest path MTU, as `enum ib_mtu`.
    pub mtu: u8,
    /// Configuration of an InfiniBand port; none for an Ethernet port.
    infiniband: Option<Box<InfiniBandPort>>,
    gids: Vec<Option<Gid>>,
    /// Copy of the entries that are set. There are few, and each packet is compared with all of
    /// them.
    own: Vec<Gid>,
}

/// A packet that was sent and is not delivered yet.
#[derive(Debug)]
pub struct Outgoing {
    /// The packet itself.
    pub packet: Packet,
    /// Path of a connected sender; none for a datagram, which has its own path.
    pub path: Option<Rc<Path>>,
    /// Path MTU in bytes. A super-packet is split into packets with this payload.
    pub mtu: u32,
    /// True if the destination is a GID of this port.
    pub local: bool,
}

impl Outgoing {
    /// Returns the path of the packet: the datagram's own or the path of the connected sender.
    #[inline]
    pub fn path(&self) -> Option<&Path> {
        match &self.packet.datagram {
            Some(datagram) => Some(&datagram.path),
            None => self.path.as_deref(),
        }
    }
}

/// Returns the UDP source port, by which a network with several paths selects one (ECMP). A flow
/// label other than 0 determines the port, as in the kernel's `rdma_flow_label_to_udp_sport`, so
/// that programs can select the path. Otherwise the QPN determines it, so that the packets of a
/// queue pair stay in order.
fn source_port(flow_label: u32, qpn: u32) -> u16 {
    let flow = match flow_label {
        0 => qpn,
        label => label,
    };
    0xc000 | (flow ^ (flow >> 14)) as u16 & 0x3fff
}

impl Default for Port {
    /// Creates the port in its state after power-on: down and without GIDs.
    fn default() -> Self {
        Self {
            up: false,
            mtu: 3,
            infiniband: None,
            gids: vec![None; MAX_GID as usize],
            own: Vec::new(),
        }
    }
}

impl Port {
    /// Creates an InfiniBand port in its state after power-on.
    pub fn infiniband() -> Self {
        Self {
            infiniband: Some(Box::default()),
            ..Self::default()
        }
    }

    /// Sets the configuration of an InfiniBand port. An Ethernet port has none.
    pub fn configure(&mut self, configuration: InfiniBandPort) {
        if let Some(port) = &mut self.infiniband {
            self.up = configuration.sends(FIRST_QPN);
            self.mtu = configuration.attributes.active_mtu.clamp(1, 5);
            **port = configuration;
        }
    }

    /// Returns the configuration of an InfiniBand port; none for an Ethernet port.
    #[inline]
    pub fn as_infiniband(&self) -> Option<&InfiniBandPort> {
        self.infiniband.as_deref()
    }

    /// True if packets of a queue pair leave the port.
    #[inline]
    pub fn sends(&self, qpn: u32) -> bool {
        match &self.infiniband {
            None => self.up,
            Some(port) => port.sends(qpn),
        }
    }

    /// False if no packet enters the port. Whether a packet enters an InfiniBand port also depends on
    /// its queue pair ([`InfiniBandPort::receives`]).
    #[inline]
    pub fn may_receive(&self) -> bool {
        self.up || self.infiniband.is_some()
    }

    /// True if packets for queue pairs other than QP0 enter the port in its present state.
    pub fn receives_data(&self) -> bool {
        match &self.infiniband {
            None => self.up,
            Some(port) => port.receives(FIRST_QPN),
        }
    }

    /// Returns the P_Key of an entry of the P_Key table, if it is valid. An Ethernet port has the
    /// entry 0, with the P_Key of the default partition (IBTA A17.4.6).
    pub fn pkey(&self, index: u16) -> Option<u16> {
        match &self.infiniband {
            None => (index == 0).then_some(DEFAULT_PKEY),
            Some(port) => port.pkey(index),
        }
    }

    /// True if the P_Key table has this entry, valid or not.
    pub fn has_pkey_index(&self, index: u16) -> bool {
        let entries = self.infiniband.as_ref().map_or(1, |port| port.pkeys.len());
        usize::from(index) < entries
    }

    /// Returns the index of the entry of the P_Key table that matches a P_Key.
    pub fn index_of_pkey(&self, pkey: u16) -> Option<u16> {
        match &self.infiniband {
            None => pkeys_match(pkey, DEFAULT_PKEY).then_some(0),
            Some(port) => port.index_of_pkey(pkey),
        }
    }

    /// Sets or clears an entry of the GID table. Returns false if the index is out of range.
    pub fn set_gid(&mut self, request: &SetGid) -> bool {
        let Some(entry) = self.gids.get_mut(request.index.get() as usize) else {
            return false;
        };
        *entry = (request.valid != 0).then(|| Gid::of(request));
        self.own = self.gids.iter().flatten().copied().collect();
        self.own.dedup();
        true
    }

    /// Returns the GID table entry with this index, if it is set.
    pub fn gid(&self, index: u16) -> Option<&Gid> {
        self.gids.get(index as usize)?.as_ref()
    }

    /// Returns the entries that are set, with their indexes.
    pub fn gids(&self) -> impl Iterator<Item = (u16, &Gid)> {
        let entries = (0u16..).zip(&self.gids);
        entries.filter_map(|(index, gid)| Some((index, gid.as_ref()?)))
    }

    /// Returns the largest path MTU in bytes.
    pub fn mtu_bytes(&self) -> u32 {
        128 << self.mtu
    }

    /// True if the payload of a packet exceeds the MTU of the port. This happens if the port's MTU
    /// has shrunk after the path MTU was set.
    pub fn is_over_mtu(&self, packet: &Packet) -> bool {
        packet.payload.len() > self.mtu_bytes()
    }

    /// True if packets with this path stay in the device. The GID alone does not decide: another
    /// station may have the same GID by mistake, and a queue pair that is connected to that station
    /// must keep its connection. A packet for another VLAN does not stay in the device either,
    /// because no GID of the port could receive it there.
    pub fn is_local(&self, path: &Path, dest_qpn: u32) -> bool {
        match &self.infiniband {
            None => self.is_for(path),
            Some(port) => port.is_local(path, dest_qpn),
        }
    }

    /// True if the port has a GID in this VLAN, or without a VLAN for `None`. Packets to a
    /// multicast group do not name a GID of the port, so only their VLAN is checked.
    pub fn is_in(&self, vlan: Option<u16>) -> bool {
        self.own.iter().any(|own| own.vlan == vlan)
    }

    /// True if a packet with this path is for a GID of the port, in the VLAN of that GID, and for a
    /// MAC address that the port has in that VLAN. The MAC address need not be that of the GID: a
    /// host answers for an IP address on any of its net devices (Linux' ARP does), so a peer may
    /// have learned the address of another one.
    pub fn is_for(&self, path: &Path) -> bool {
        if let Some(port) = &self.infiniband {
            return path.local_route.is_some_and(|route| port.is_for(&route));
        }
        let is_it = |own: &Gid| own.gid == path.dgid && own.vlan == path.vlan;
        self.own.iter().any(is_it) && self.has_mac(&path.dmac, path.vlan)
    }

    /// True if a GID of the port in this VLAN, or without a VLAN for `None`, has this MAC address.
    pub fn has_mac(&self, mac: &[u8; 6], vlan: Option<u16>) -> bool {
        self.own
            .iter()
            .any(|own| own.mac == *mac && own.vlan == vlan)
    }

    /// Returns the entries that are set, without indexes. Equal neighbours appear once.
    pub fn own(&self) -> Vec<Gid> {
        self.own.clone()
    }

    /// Returns the path that an address vector describes, for packets from a queue pair to another;
    /// none if its source GID is not set.
    pub fn path(&self, av: &AddressVector, qpn: u32, dest_qpn: u32) -> Option<Path> {
        if let Some(port) = &self.infiniband {
            return port.path(av, dest_qpn);
        }
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
            // The SL is transmitted as the priority of the VLAN tag. Without a tag the receiver's
            // `wc.sl` is 0, which also holds for packets inside the device.
            sl: if own.vlan.is_some() { av.sl } else { 0 },
            local_route: None,
        })
    }
}
