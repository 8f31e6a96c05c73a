// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The whole subnet: datagrams and data enter at the port of an adapter and leave at others.

mod datagrams;
mod events;
mod forward;
mod key_violations;
mod links;
mod process_mad;
mod remote_links;
#[cfg(test)]
mod tests;

use crate::mad::attribute::{capability, PortInfo};
use crate::mad::notice::{Notice, Trap};
use crate::mad::{Fields, Mad, SMP_DATA_LEN};
use crate::node::Node;
use crate::port::Port;
use crate::topology::{NodeKind, Topology};
use crate::{agent, PortId, Time};
pub use events::PortEvent;
pub use forward::{Arrival, PacketLimits, RouteHeader};
pub use key_violations::{KeyViolation, KeyViolations, ViolatedKey};
pub use process_mad::ProcessMad;
pub use remote_links::LocalEnd;
use std::collections::VecDeque;

/// The most links that a packet passes, like the life time of a packet in switches (IBTA 18.2.5).
pub const HOPS: u32 = 64;
/// The most copies of a multicast packet that switches make.
pub const COPIES: usize = 4096;
/// Number of bytes of a packet with a MAD, from LRH to ICRC: LRH 8, BTH 12, DETH 8, MAD 256, ICRC 4.
const DATAGRAM_LEN: u32 = 288;

/// A management datagram with its addresses. Datagrams between QP0 have VL15, those between QP1 the VL
/// of their SL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    pub source_lid: u16,
    pub destination_lid: u16,
    pub sl: u8,
    pub source_qp: u32,
    /// 0 or 1: others are data.
    pub destination_qp: u32,
    /// Of QP1: the P_Key. QP0 has none.
    pub p_key: u16,
    /// Of QP1: the Q_Key.
    pub q_key: u32,
    /// The GRH, if the packet has one.
    pub grh: Option<[u8; 40]>,
    pub mad: Box<Mad>,
}

impl Datagram {
    /// Makes a datagram between QP0, with the permissive LID as its source if that is the destination.
    pub fn smp(source_lid: u16, destination_lid: u16, mad: Mad) -> Self {
        Self {
            source_lid,
            destination_lid,
            sl: 0,
            source_qp: 0,
            destination_qp: 0,
            p_key: 0xffff,
            q_key: 0,
            grh: None,
            mad: Box::new(mad),
        }
    }

    /// Returns true if the datagram is subnet management, which only QP0 sends and receives.
    fn is_smp(&self) -> bool {
        self.destination_qp == 0
    }

    /// Returns true if the queue pairs are those of the datagram's management class.
    fn is_valid(&self) -> bool {
        match self.destination_qp {
            0 => self.source_qp == 0 && self.mad.is_smp(),
            1 => self.source_qp != 0 && !self.mad.is_smp(),
            _ => false,
        }
    }

    /// Makes the datagram that answers this one.
    fn answer(&self, mad: Mad) -> Self {
        let grh = self.grh.map(|mut grh| {
            let (source, destination) = grh[8..].split_at_mut(16);
            source.swap_with_slice(destination);
            grh
        });
        Self {
            source_lid: self.destination_lid,
            destination_lid: self.source_lid,
            source_qp: self.destination_qp,
            destination_qp: self.source_qp,
            mad: Box::new(mad),
            grh,
            ..*self
        }
    }
}

/// An output of the subnet for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A datagram for QP0 or QP1 of the guest at this port.
    Datagram(PortId, Datagram),
    /// An event for the driver of the guest at this port.
    Event(PortId, PortEvent),
    /// A datagram that leaves by this port of a switch to another fabric, and the number of links
    /// that it may still pass.
    Departure(PortId, Datagram, u32),
}

/// A subnet.
#[derive(Clone, Debug)]
pub struct Fabric {
    nodes: Vec<Node>,
    /// Datagrams that arrived at a port and are not handled yet.
    in_flight: VecDeque<datagrams::InFlight>,
    outputs: VecDeque<Output>,
    /// SMPs of guests that may not manage the subnet.
    refused_smps: u64,
}

impl Fabric {
    /// Makes a subnet after power-on: the links are up, no port has a LID, no adapter has a guest.
    pub fn new(topology: &Topology) -> Self {
        let node = |spec: &crate::topology::NodeSpec| match spec.kind {
            NodeKind::Adapter => Node::adapter(spec.identity.clone(), spec.ports),
            NodeKind::Switch => Node::switch(spec.identity.clone(), spec.ports),
        };
        let mut fabric = Self {
            nodes: topology.nodes.iter().map(node).collect(),
            in_flight: VecDeque::new(),
            outputs: VecDeque::new(),
            refused_smps: 0,
        };
        for (one, other) in &topology.links {
            fabric.join(*one, *other);
        }
        fabric
    }

    /// Returns the nodes in the order of the topology.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Says whether an adapter has a guest. Agents answer for an adapter without a guest, also
    /// to performance management.
    pub fn set_guest(&mut self, node: usize, has_guest: bool) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.has_guest = has_guest && !node.is_switch();
        }
    }

    /// Says whether the guest of an adapter may be a subnet manager. If not, the adapter refuses IsSM,
    /// and drops the guest's SMPs.
    pub fn allow_management(&mut self, node: usize, is_allowed: bool) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.guest_may_manage = is_allowed;
        }
    }

    /// Returns how many SMPs of guests that may not manage the subnet were dropped.
    pub fn refused_smps(&self) -> u64 {
        self.refused_smps
    }

    /// Sets and clears bits of the capability mask of an adapter's port, as its driver asks. Returns
    /// false if refused.
    pub fn set_capabilities(&mut self, port: PortId, set: u32, clear: u32, now: Time) -> bool {
        let Some(node) = self.nodes.get_mut(port.node) else {
            return false;
        };
        let wants_is_sm = set & capability::IS_SM != 0;
        if node.is_switch() || wants_is_sm && !node.guest_may_manage {
            return false;
        }
        let Some(state) = node.port_mut(port.port) else {
            return false;
        };
        let before = state.info.get(PortInfo::CAPABILITY_MASK);
        let after = (before | set) & !clear;
        state.info.set(PortInfo::CAPABILITY_MASK, after);
        if before != after {
            self.report_local_change(port, 0, now);
        }
        true
    }

    /// Sets the NodeDescription of an adapter, as its driver asks.
    pub fn set_description(&mut self, node: usize, description: &[u8; SMP_DATA_LEN], now: Time) {
        let Some(changed) = self.nodes.get_mut(node) else {
            return;
        };
        changed.description = *description;
        for port in changed.port_numbers() {
            self.report_local_change(PortId { node, port }, 1, now);
        }
    }

    /// Raises trap 144. Change flag 1 is NodeDescriptionChange.
    fn report_local_change(&mut self, port: PortId, flags: u16, now: Time) {
        let Some(node) = self.nodes.get_mut(port.node) else {
            return;
        };
        let mask = node
            .port(port.port)
            .map_or(0, |port| port.info.get(PortInfo::CAPABILITY_MASK));
        agent::sma::raise_trap(node, port.port, Trap::LocalChange, now, |notice| {
            notice.set(Notice::CAPABILITY_MASK, mask);
            notice.set(Notice::OTHER_LOCAL_CHANGES, flags != 0);
            notice.set(Notice::CHANGE_FLAGS, flags);
        });
        self.poll(now);
    }

    /// Returns PortInfo of a port, for the driver of its adapter.
    pub fn port_info(&self, port: PortId) -> Option<PortInfo> {
        self.nodes.get(port.node)?.port_info(port.port, port.port)
    }

    /// Returns the P_Key table of a port.
    pub fn p_keys(&self, port: PortId) -> Option<&[u16]> {
        Some(&self.port(port)?.p_keys)
    }

    /// Returns the next datagram or event. The caller takes all of them after each call.
    pub fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns when [`Fabric::poll`] has to be called, for traps that are sent again.
    pub fn next_deadline(&self) -> Option<Time> {
        self.nodes
            .iter()
            .flat_map(|node| &node.traps)
            .filter_map(|traps| traps.due())
            .min()
    }

    /// Returns a port.
    fn port(&self, id: PortId) -> Option<&Port> {
        self.nodes.get(id.node)?.port(id.port)
    }

    fn port_mut(&mut self, id: PortId) -> Option<&mut Port> {
        self.nodes.get_mut(id.node)?.port_mut(id.port)
    }
}
