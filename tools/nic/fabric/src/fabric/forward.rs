// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Forwarding of data packets: the adapters that they reach, by their DLID, SL and P_Key (IBTA 18.2.4). The
//! caller has the packet itself.

use super::{Fabric, COPIES, HOPS};
use crate::counters::PortError;
use crate::mad::attribute::{port_state, PortInfo};
use crate::mad::field::Field;
use crate::mad::{is_multicast, is_unicast, p_keys_match, Fields};
use crate::port::{Port, PortKind};
use crate::PortId;
use std::collections::{HashSet, VecDeque};

/// The fields of a packet that forwarding depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteHeader {
    pub destination_lid: u16,
    pub sl: u8,
    pub p_key: u16,
    /// Bytes from LRH to ICRC.
    pub length: u32,
}

/// How many links a packet may still pass, and how many copies switches may still make of it. A
/// packet takes its limits to another fabric, so a loop over several fabrics ends too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketLimits {
    pub links: u32,
    pub copies: usize,
}

impl PacketLimits {
    /// The limits of a packet that an adapter sends.
    pub const FULL: Self = Self {
        links: HOPS,
        copies: COPIES,
    };

    /// Returns the limits, of which each is at most that of a new packet.
    pub fn at_most_full(self) -> Self {
        Self {
            links: self.links.min(HOPS),
            copies: self.copies.min(COPIES),
        }
    }
}

/// A packet that arrived at the port of an adapter, or that leaves by a port of a switch to another
/// fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub port: PortId,
    /// The VL of the last link.
    pub vl: u8,
    /// The limits of the packet after the last link.
    pub limits: PacketLimits,
}

/// The far end of a link.
pub(super) enum FarEnd {
    /// A port of this fabric.
    Port(PortId),
    /// A port of another fabric.
    Remote,
}

/// The bit of a P_Key of a full member (IBTA 10.9.3).
const FULL_MEMBER: u16 = 0x8000;
/// The VL of subnet management, which no SL maps to (IBTA 7.6.3).
pub(super) const MANAGEMENT_VL: u8 = 15;

impl Fabric {
    /// Forwards a data packet of an adapter's port `from`, and adds the ports where it arrives. A unicast
    /// packet to a LID of that port arrives at the port itself; multicast packets to other queue
    /// pairs of the same adapter are the caller's task.
    pub fn forward(&mut self, from: PortId, header: &RouteHeader, arrivals: &mut Vec<Arrival>) {
        let is_adapter = self
            .nodes
            .get(from.node)
            .is_some_and(|node| !node.is_switch());
        let Some(port) = self.port(from).filter(|_| is_adapter) else {
            return;
        };
        let Some(vl) = port.vl(0, header.sl) else {
            return self.count_error(from, PortError::XmitDiscard);
        };
        let lid = header.destination_lid;
        if port.has_lid(lid) {
            if port.state() == port_state::ACTIVE {
                arrivals.push(Arrival {
                    port: from,
                    vl,
                    limits: PacketLimits::FULL,
                });
            }
        } else if is_multicast(lid) {
            let copies = vec![(from, vl)];
            self.forward_multicast(copies, header, PacketLimits::FULL, arrivals);
        } else if is_unicast(lid) {
            self.forward_unicast(from, vl, header, PacketLimits::FULL, arrivals);
        }
    }

    /// Returns the port of a guest's adapter to which packets of an adapter's port `from` go by the
    /// forwarding tables; none if they go elsewhere, or are for a group. Nothing is counted, and
    /// neither states nor partitions are looked at: that is left to [`Fabric::forward`].
    pub fn destination(&self, from: PortId, lid: u16) -> Option<PortId> {
        let mut egress = from;
        for _ in 0..HOPS {
            let ingress = self.port(egress)?.peer?;
            let node = self.nodes.get(ingress.node)?;
            let Some(tables) = &node.tables else {
                let has_lid = self.port(ingress)?.has_lid(lid);
                return (has_lid && node.has_guest).then_some(ingress);
            };
            let port = tables.unicast(lid)?;
            egress = PortId { port, ..ingress };
        }
        None
    }

    /// Forwards a data packet that came from another fabric by the link of port `ingress`, and adds
    /// the ports where it arrives, like [`Fabric::forward`].
    pub fn receive(
        &mut self,
        ingress: PortId,
        header: &RouteHeader,
        limits: PacketLimits,
        arrivals: &mut Vec<Arrival>,
    ) {
        let limits = limits.at_most_full();
        let lid = header.destination_lid;
        if !self.is_remote(ingress) || !self.enter(ingress, 0, header) {
            return;
        }
        if is_multicast(lid) {
            let copies = self.multicast_copies(ingress, header);
            self.forward_multicast(copies, header, limits, arrivals);
        } else if is_unicast(lid) {
            if let Some((port, vl)) = self.relay(ingress, header).filter(|(port, _)| *port != 0) {
                let egress = PortId { port, ..ingress };
                self.forward_unicast(egress, vl, header, limits, arrivals);
            }
        }
    }

    fn forward_unicast(
        &mut self,
        from: PortId,
        vl: u8,
        header: &RouteHeader,
        limits: PacketLimits,
        arrivals: &mut Vec<Arrival>,
    ) {
        let (mut egress, mut vl) = (from, vl);
        for links in (0..limits.links).rev() {
            let limits = PacketLimits { links, ..limits };
            let ingress = match self.cross(egress, vl, header) {
                Some(FarEnd::Port(ingress)) => ingress,
                Some(FarEnd::Remote) => {
                    return arrivals.push(Arrival {
                        port: egress,
                        vl,
                        limits,
                    })
                }
                None => return,
            };
            let Some(node) = self.nodes.get(ingress.node) else {
                return;
            };
            if !node.is_switch() {
                if node.has_guest
                    && node
                        .port(ingress.port)
                        .is_some_and(|port| port.has_lid(header.destination_lid))
                {
                    arrivals.push(Arrival {
                        port: ingress,
                        vl,
                        limits,
                    });
                }
                return;
            }
            match self.relay(ingress, header) {
                Some((port, next)) if port != 0 => {
                    (egress, vl) = (PortId { port, ..ingress }, next)
                }
                _ => return,
            }
        }
        self.count_error(egress, PortError::XmitDiscard);
    }

    /// Forwards copies of a multicast packet, each from its egress port on. A link carries the packet
    /// at most once in each direction: where the forwarding tables have a loop, its second copy on a
    /// link is discarded.
    fn forward_multicast(
        &mut self,
        copies: Vec<(PortId, u8)>,
        header: &RouteHeader,
        limits: PacketLimits,
        arrivals: &mut Vec<Arrival>,
    ) {
        let first = arrivals.len();
        let mut left = limits.copies;
        let mut waiting = VecDeque::new();
        self.queue_copies(&mut waiting, copies, limits.links, &mut left);
        let mut crossed = HashSet::new();
        while let Some((egress, vl, links)) = waiting.pop_front() {
            if !crossed.insert(egress) {
                self.count_error(egress, PortError::XmitDiscard);
                continue;
            }
            let limits = PacketLimits {
                links,
                copies: left,
            };
            let ingress = match self.cross(egress, vl, header) {
                Some(FarEnd::Port(ingress)) => ingress,
                Some(FarEnd::Remote) => {
                    arrivals.push(Arrival {
                        port: egress,
                        vl,
                        limits,
                    });
                    continue;
                }
                None => continue,
            };
            let Some(node) = self.nodes.get(ingress.node) else {
                continue;
            };
            if node.is_switch() {
                let copies = self.multicast_copies(ingress, header);
                self.queue_copies(&mut waiting, copies, links, &mut left);
            } else if node.has_guest {
                arrivals.push(Arrival {
                    port: ingress,
                    vl,
                    limits,
                });
            }
        }
        self.share_copies(left, arrivals.get_mut(first..).unwrap_or_default());
    }

    /// Queues copies for their egress ports, with the links that they may pass after that. If a copy
    /// is over a limit of the packet, that copy and the ones after it are discarded.
    fn queue_copies(
        &mut self,
        waiting: &mut VecDeque<(PortId, u8, u32)>,
        copies: Vec<(PortId, u8)>,
        links: u32,
        left: &mut usize,
    ) {
        for (egress, vl) in copies {
            match links.checked_sub(1).zip(left.checked_sub(1)) {
                Some((links, rest)) => {
                    *left = rest;
                    waiting.push_back((egress, vl, links));
                }
                None => return self.count_error(egress, PortError::XmitDiscard),
            }
        }
    }

    /// Shares the copies that are left among the packets that leave to other fabrics.
    fn share_copies(&self, left: usize, arrivals: &mut [Arrival]) {
        let is_remote = |arrival: &&mut Arrival| self.is_remote(arrival.port);
        let remote: Vec<_> = arrivals.iter_mut().filter(is_remote).collect();
        let share = left / remote.len().max(1);
        for arrival in remote {
            arrival.limits.copies = share;
        }
    }

    /// Returns the ports by which copies of a multicast packet leave a switch, with their VLs.
    fn multicast_copies(&mut self, ingress: PortId, header: &RouteHeader) -> Vec<(PortId, u8)> {
        let ports = self.multicast_ports(ingress, header).into_iter();
        let egress = ports.map(|port| PortId { port, ..ingress });
        egress
            .filter_map(|egress| Some((egress, self.leaves(ingress, egress, header)?)))
            .collect()
    }

    /// Returns the ports by which a multicast packet leaves a switch: never the ingress port.
    fn multicast_ports(&mut self, ingress: PortId, header: &RouteHeader) -> Vec<u8> {
        if !self.enters(ingress, header) {
            return Vec::new();
        }
        let Some(node) = self.nodes.get(ingress.node) else {
            return Vec::new();
        };
        let Some(tables) = &node.tables else {
            return Vec::new();
        };
        let is_egress =
            |port: &u8| *port != ingress.port && tables.multicast(header.destination_lid, *port);
        let ports: Vec<u8> = (1..=node.number_of_ports()).filter(is_egress).collect();
        if ports.is_empty() {
            self.count_error(ingress, PortError::SwitchRelay);
        }
        ports
    }

    /// Returns the port by which a unicast packet leaves a switch, and its VL there. Port 0 is the
    /// management port. None: the switch discards the packet, and counts the cause.
    pub(super) fn relay(&mut self, ingress: PortId, header: &RouteHeader) -> Option<(u8, u8)> {
        if !self.enters(ingress, header) {
            return None;
        }
        let node = self.nodes.get(ingress.node)?;
        let port = match node.tables.as_ref()?.unicast(header.destination_lid) {
            Some(port) if port != ingress.port && node.port(port).is_some() => port,
            // No port, a port that does not exist, or back where the packet came from.
            _ => {
                self.count_error(ingress, PortError::SwitchRelay);
                return None;
            }
        };
        if port == 0 {
            return Some((0, 0));
        }
        let vl = self.leaves(ingress, PortId { port, ..ingress }, header)?;
        Some((port, vl))
    }

    /// Returns true if the partitions of the ingress port let a packet pass (IBTA 14.2.5.6). Packets of the
    /// switch's own management port always pass.
    ///
    /// opensm gives the port the P_Keys of its adapter, with its membership. A limited member sends
    /// limited P_Keys, so membership does not count here, but where the packet leaves.
    fn enters(&mut self, ingress: PortId, header: &RouteHeader) -> bool {
        let field = PortInfo::PARTITION_ENFORCEMENT_INBOUND;
        let passes = self
            .port(ingress)
            .is_some_and(|port| lets_pass(port, field, header.p_key | FULL_MEMBER));
        if !passes {
            self.count_error(ingress, PortError::RcvConstraint);
        }
        passes
    }

    /// Returns the VL by which a packet leaves a switch, None if the switch discards the packet.
    fn leaves(&mut self, ingress: PortId, egress: PortId, header: &RouteHeader) -> Option<u8> {
        let port = self.port(egress)?;
        if !lets_pass(port, PortInfo::PARTITION_ENFORCEMENT_OUTBOUND, header.p_key) {
            self.count_error(egress, PortError::XmitConstraint);
            return None;
        }
        let vl = port.vl(ingress.port, header.sl);
        if vl.is_none() {
            self.count_error(ingress, PortError::SwitchRelay);
        }
        vl
    }

    /// Moves a packet over the link of a port. Returns the other end, None if the packet is discarded.
    pub(super) fn cross(&mut self, egress: PortId, vl: u8, header: &RouteHeader) -> Option<FarEnd> {
        let is_multicast = is_multicast(header.destination_lid);
        let port = self.port_mut(egress)?;
        let may_leave = match vl {
            MANAGEMENT_VL => port.passes_smps(),
            _ => port.state() == port_state::ACTIVE && header.length <= port.largest_packet(),
        };
        if !may_leave {
            port.counters.count_error(PortError::XmitDiscard);
            return None;
        }
        port.counters.count_sent(header.length, is_multicast);
        if port.remote.is_some() {
            return Some(FarEnd::Remote);
        }
        let ingress = port.peer?;
        self.enter(ingress, vl, header)
            .then_some(FarEnd::Port(ingress))
    }

    /// Counts a packet that came over the link of a port. Returns false if the state of the port
    /// lets no such packet pass.
    pub(super) fn enter(&mut self, ingress: PortId, vl: u8, header: &RouteHeader) -> bool {
        let least = if vl == MANAGEMENT_VL {
            port_state::INIT
        } else {
            port_state::ARMED
        };
        let port = self.port_mut(ingress);
        let Some(port) = port.filter(|port| port.state() >= least) else {
            return false;
        };
        let is_multicast = is_multicast(header.destination_lid);
        port.counters.count_received(header.length, is_multicast);
        true
    }

    pub(super) fn count_error(&mut self, id: PortId, error: PortError) {
        if let Some(port) = self.port_mut(id) {
            port.counters.count_error(error);
        }
    }
}

/// Returns true if a port of a switch lets a P_Key pass in the direction of `field` (IBTA 10.9.3).
fn lets_pass(port: &Port, field: Field<PortInfo, bool>, p_key: u16) -> bool {
    port.kind != PortKind::SwitchExternal
        || !port.info.get(field)
        || port.p_keys.iter().any(|entry| p_keys_match(p_key, *entry))
}
