// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A node of the subnet: a channel adapter or a switch, with its ports.

use crate::forwarding::ForwardingTables;
use crate::mad::attribute::{NodeInfo, PortInfo, NODE_TYPE_CHANNEL_ADAPTER, NODE_TYPE_SWITCH};
use crate::mad::{Fields, SMP_DATA_LEN};
use crate::port::{Port, PortKind, P_KEYS_PER_PORT};
use crate::topology::Identity;
use crate::traps::TrapQueue;

/// NodeInfo:Revision.
const REVISION: u32 = 0xa0;

/// A channel adapter or a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub(crate) identity: Identity,
    pub(crate) description: [u8; SMP_DATA_LEN],
    /// The ports in the order of their numbers. The first has number 0 in a switch, and 1 in an adapter.
    ports: Vec<Port>,
    /// The tables of a switch.
    pub(crate) tables: Option<ForwardingTables>,
    /// Traps of each managed port that the subnet manager has not repressed. A switch has one.
    pub(crate) traps: Vec<TrapQueue>,
    /// True if the adapter has a guest.
    pub(crate) has_guest: bool,
    /// True if the guest may send SMPs.
    pub(crate) guest_may_manage: bool,
}

impl Node {
    /// Makes a channel adapter with ports 1 to `ports`.
    pub(crate) fn adapter(identity: Identity, ports: u8) -> Self {
        let all = (1..=ports).map(|n| {
            Port::new(
                PortKind::Adapter,
                identity.guid.wrapping_add(u64::from(n)),
                1,
            )
        });
        Self::new(identity.clone(), all.collect(), None)
    }

    /// Makes a switch with port 0 and the external ports 1 to `ports`.
    pub(crate) fn switch(identity: Identity, ports: u8) -> Self {
        let count = usize::from(ports) + 1;
        let kind = |n| {
            if n == 0 {
                PortKind::SwitchPort0
            } else {
                PortKind::SwitchExternal
            }
        };
        let all = (0..=ports).map(|n| Port::new(kind(n), identity.guid, count));
        Self::new(
            identity.clone(),
            all.collect(),
            Some(ForwardingTables::new(count)),
        )
    }

    fn new(identity: Identity, ports: Vec<Port>, tables: Option<ForwardingTables>) -> Self {
        let managed = ports.iter().filter(|port| port.is_managed()).count();
        let mut description = [0; SMP_DATA_LEN];
        for (byte, of_name) in description.iter_mut().zip(identity.description.bytes()) {
            *byte = of_name;
        }
        Self {
            identity,
            description,
            ports,
            tables,
            traps: vec![TrapQueue::default(); managed],
            has_guest: false,
            guest_may_manage: true,
        }
    }

    /// Returns true if all is equal in both nodes that a subnet manager, a driver or a cable
    /// determines: all but counters, violations, traps and M_Key leases. The laboratories compare
    /// nodes before and after a hostile datagram.
    pub fn has_configuration_of(&self, other: &Self) -> bool {
        let mut ports = self.ports.iter().zip(&other.ports);
        self.ports.len() == other.ports.len()
            && ports.all(|(one, other)| one.has_configuration_of(other))
            && self.identity == other.identity
            && self.description == other.description
            && self.tables == other.tables
            && self.has_guest == other.has_guest
            && self.guest_may_manage == other.guest_may_manage
    }

    /// Returns true if the node is a switch.
    pub fn is_switch(&self) -> bool {
        self.tables.is_some()
    }

    /// Returns the names and numbers of the node.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the number of ports, without port 0 of a switch.
    pub fn number_of_ports(&self) -> u8 {
        (self.ports.len() - usize::from(self.is_switch())) as u8
    }

    /// Returns the numbers of the ports, with port 0 of a switch.
    pub fn port_numbers(&self) -> std::ops::RangeInclusive<u8> {
        u8::from(!self.is_switch())..=self.number_of_ports()
    }

    /// Returns a port by its number.
    pub fn port(&self, number: u8) -> Option<&Port> {
        self.ports.get(usize::from(
            number.checked_sub(u8::from(!self.is_switch()))?,
        ))
    }

    pub(crate) fn port_mut(&mut self, number: u8) -> Option<&mut Port> {
        let first = u8::from(!self.is_switch());
        self.ports.get_mut(usize::from(number.checked_sub(first)?))
    }

    /// Returns the number of the port with the LID and the M_Key for packets that came by `ingress`.
    pub(crate) fn managed_port(&self, ingress: u8) -> u8 {
        if self.is_switch() {
            0
        } else {
            ingress
        }
    }

    /// Returns the traps of a managed port.
    pub(crate) fn traps_mut(&mut self, managed: u8) -> Option<&mut TrapQueue> {
        let first = u8::from(!self.is_switch());
        self.traps.get_mut(usize::from(managed.checked_sub(first)?))
    }

    /// Returns NodeInfo:NodeType.
    pub(crate) fn node_type(&self) -> u8 {
        if self.is_switch() {
            NODE_TYPE_SWITCH
        } else {
            NODE_TYPE_CHANNEL_ADAPTER
        }
    }

    /// Returns NodeInfo for an SMP that came by port `ingress` (IBTA 14.2.5.3).
    pub(crate) fn info(&self, ingress: u8) -> NodeInfo {
        let port_guid = self
            .port(ingress)
            .map_or(self.identity.guid, |port| port.guid);
        NodeInfo::default()
            .with(NodeInfo::BASE_VERSION, 1)
            .with(NodeInfo::CLASS_VERSION, 1)
            .with(NodeInfo::NODE_TYPE, self.node_type())
            .with(NodeInfo::NUM_PORTS, self.number_of_ports())
            .with(NodeInfo::SYSTEM_IMAGE_GUID, self.identity.system_image_guid)
            .with(NodeInfo::NODE_GUID, self.identity.guid)
            .with(NodeInfo::PORT_GUID, port_guid)
            .with(NodeInfo::PARTITION_CAP, P_KEYS_PER_PORT as u16)
            .with(NodeInfo::DEVICE_ID, self.identity.device_id)
            .with(NodeInfo::REVISION, REVISION)
            .with(NodeInfo::LOCAL_PORT_NUM, ingress)
            .with(NodeInfo::VENDOR_ID, self.identity.vendor_id)
    }

    /// Returns PortInfo of a port for an SMP that came by port `ingress`.
    pub(crate) fn port_info(&self, number: u8, ingress: u8) -> Option<PortInfo> {
        Some(
            self.port(number)?
                .info
                .with(PortInfo::LOCAL_PORT_NUM, ingress),
        )
    }
}
