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
use std::collections::VecDeque;

/// The fields of a packet that forwarding depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteHeader {
    pub destination_lid: u16,
    pub sl: u8,
    pub p_key: u16,
    /// Bytes from LRH to ICRC.
    pub length: u32,
}

/// A packet that arrived at the port of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub port: PortId,
    /// The VL of the last link.
    pub vl: u8,
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
                arrivals.push(Arrival { port: from, vl });
            }
        } else if is_multicast(lid) {
            self.forward_multicast(from, vl, header, arrivals);
        } else if is_unicast(lid) {
            self.forward_unicast(from, vl, header, arrivals);
        }
    }

    fn forward_unicast(
        &mut self,
        from: PortId,
        vl: u8,
        header: &RouteHeader,
        arrivals: &mut Vec<Arrival>,
    ) {
        let (mut egress, mut vl) = (from, vl);
        for _ in 0..HOPS {
            let Some(ingress) = self.cross(egress, vl, header) else {
                return;
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
                    arrivals.push(Arrival { port: ingress, vl });
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

    fn forward_multicast(
        &mut self,
        from: PortId,
        vl: u8,
        header: &RouteHeader,
        arrivals: &mut Vec<Arrival>,
    ) {
        let mut copies = VecDeque::from([(from, vl, 0)]);
        let mut made = 0;
        while let Some((egress, vl, hops)) = copies.pop_front() {
            let Some(ingress) = self.cross(egress, vl, header) else {
                continue;
            };
            let Some(node) = self.nodes.get(ingress.node) else {
                continue;
            };
            if !node.is_switch() {
                if node.has_guest {
                    arrivals.push(Arrival { port: ingress, vl });
                }
                continue;
            }
            for port in self.multicast_ports(ingress, header) {
                let egress = PortId { port, ..ingress };
                made += 1;
                match self.leaves(ingress, egress, header) {
                    Some(vl) if hops < HOPS && made <= COPIES => {
                        copies.push_back((egress, vl, hops + 1))
                    }
                    Some(_) => return self.count_error(egress, PortError::XmitDiscard),
                    None => {}
                }
            }
        }
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

    /// Moves a packet over the link of a port. Returns the port at the other end, None if the packet is
    /// discarded.
    pub(super) fn cross(&mut self, egress: PortId, vl: u8, header: &RouteHeader) -> Option<PortId> {
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
        let ingress = port.peer?;
        let port = self.port_mut(ingress)?;
        let least = if vl == MANAGEMENT_VL {
            port_state::INIT
        } else {
            port_state::ARMED
        };
        if port.state() < least {
            return None;
        }
        port.counters.count_received(header.length, is_multicast);
        Some(ingress)
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
