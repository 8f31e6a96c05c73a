// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The SMPs by which a subnet manager configures a small subnet: LIDs, forwarding tables, states
//! and M_Keys.

use std::collections::VecDeque;
use verbena_fabric::mad::attribute::{port_state, PortInfo, SwitchInfo};
use verbena_fabric::mad::{attribute_id, class, method, Fields, Mad, SMP_DATA_LEN};
use verbena_fabric::topology::NodeKind;
use verbena_fabric::{PortId, Topology};

/// MLID of the multicast group of all guests.
pub const GROUP: u16 = 0xc003;
/// Offset of the entry of [`GROUP`] in the first block of the multicast forwarding table.
const GROUP_AT: usize = 6;
/// The entry of the linear forwarding table for LIDs without a port.
const NO_PORT: u8 = 255;
/// The default subnet prefix.
const GID_PREFIX: u64 = 0xfe80_0000_0000_0000;

/// The M_Key of all ports. The default is no key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Key {
    pub value: u64,
    /// M_KeyProtectBits.
    pub protect: u8,
    /// M_KeyLeasePeriod in seconds.
    pub lease: u16,
}

impl Key {
    /// Stores the key in a PortInfo.
    pub fn put(&self, info: &mut PortInfo) {
        info.set(PortInfo::M_KEY, self.value);
        info.set(PortInfo::M_KEY_PROTECT_BITS, self.protect);
        info.set(PortInfo::M_KEY_LEASE_PERIOD, self.lease);
    }
}

/// Returns the LID of a node after the configuration.
pub fn lid(node: usize) -> u16 {
    node as u16 + 1
}

/// Returns the links of a node, each with the node's own end first.
fn links_of(topology: &Topology, node: usize) -> impl Iterator<Item = (PortId, PortId)> + '_ {
    let both = |(one, other): &(PortId, PortId)| [(*one, *other), (*other, *one)];
    let links = topology.links.iter().flat_map(both);
    links.filter(move |(own, _)| own.node == node)
}

fn is_switch(topology: &Topology, node: usize) -> bool {
    topology.nodes[node].kind == NodeKind::Switch
}

/// Returns for each node the link by which a breadth-first search from `start` finds it: its two
/// ends in the direction of the search. Packets do not pass adapters.
fn search(topology: &Topology, start: usize) -> Vec<Option<(PortId, PortId)>> {
    let mut found = vec![None; topology.nodes.len()];
    let mut queue = VecDeque::from([start]);
    while let Some(node) = queue.pop_front() {
        if node != start && !is_switch(topology, node) {
            continue;
        }
        for (egress, ingress) in links_of(topology, node) {
            if ingress.node != start && found[ingress.node].is_none() {
                found[ingress.node] = Some((egress, ingress));
                queue.push_back(ingress.node);
            }
        }
    }
    found
}

/// Returns the directed route from a node to each node, as egress ports. None if no links lead to
/// the node.
pub fn routes(topology: &Topology, start: usize) -> Vec<Option<Vec<u8>>> {
    let found = search(topology, start);
    let route = |to: usize| {
        let (mut ports, mut at) = (vec![], to);
        while at != start {
            let (egress, _) = found[at]?;
            ports.push(egress.port);
            at = egress.node;
        }
        ports.reverse();
        Some(ports)
    };
    (0..topology.nodes.len()).map(route).collect()
}

/// Returns for each switch the bits of the ports by which packets to [`GROUP`] leave: those of a
/// tree of all switches, and those to the guests.
fn group_ports(topology: &Topology, guests: &[usize]) -> Vec<u16> {
    let mut ports = vec![0; topology.nodes.len()];
    let Some(root) = (0..topology.nodes.len()).find(|node| is_switch(topology, *node)) else {
        return ports;
    };
    for (node, link) in search(topology, root).into_iter().enumerate() {
        let Some((from, to)) = link else {
            continue;
        };
        if is_switch(topology, node) {
            ports[node] |= 1 << to.port;
        }
        if is_switch(topology, node) || guests.contains(&node) {
            ports[from.node] |= 1 << from.port;
        }
    }
    ports
}

/// Returns a Set along a directed route, before its first hop.
fn set(route: &[u8], attribute: u16, modifier: u32, data: &[u8; SMP_DATA_LEN]) -> Mad {
    let class = class::SUBNET_DIRECTED_ROUTE;
    let mut mad = Mad::smp(class, method::SET, attribute, modifier);
    mad.set_initial_path(route);
    mad.set(Mad::HOP_POINTER, u8::from(!route.is_empty()));
    mad.set_data(data);
    mad
}

/// Returns PortInfo of a Set for a port.
fn port_info(node: usize, home: usize, state: u8) -> PortInfo {
    PortInfo::default()
        .with(PortInfo::GID_PREFIX, GID_PREFIX)
        .with(PortInfo::LID, lid(node))
        .with(PortInfo::MASTER_SM_LID, lid(home))
        .with(PortInfo::SUBNET_TIMEOUT, 18)
        .with(PortInfo::NEIGHBOR_MTU, 5)
        .with(PortInfo::OPERATIONAL_VLS, 4)
        .with(PortInfo::PORT_STATE, state)
}

/// Returns the Sets of a switch's forwarding tables. The subnet has fewer than 64 LIDs.
fn tables(topology: &Topology, node: usize, route: &[u8], group: u16) -> [Mad; 3] {
    let mut linear = [NO_PORT; SMP_DATA_LEN];
    for (to, way) in routes(topology, node).into_iter().enumerate() {
        let first = way.map(|ports| ports.first().copied().unwrap_or(0));
        linear[usize::from(lid(to))] = first.unwrap_or(NO_PORT);
    }
    let mut multicast = [0; SMP_DATA_LEN];
    multicast[GROUP_AT..GROUP_AT + 2].copy_from_slice(&group.to_be_bytes());
    let info = SwitchInfo::default()
        .with(SwitchInfo::LINEAR_FDB_TOP, lid(topology.nodes.len()))
        .with(SwitchInfo::PORT_STATE_CHANGE, true);
    [
        set(route, attribute_id::LINEAR_FORWARDING_TABLE, 0, &linear),
        set(
            route,
            attribute_id::MULTICAST_FORWARDING_TABLE,
            0,
            &multicast,
        ),
        set(route, attribute_id::SWITCH_INFO, 0, &info.0),
    ]
}

/// Returns the SMPs that configure a subnet from the adapter `home`, in their order. Those without
/// a hop are for the agent of that adapter.
pub fn configuration(topology: &Topology, home: usize, guests: &[usize], key: &Key) -> Vec<Mad> {
    let routes = routes(topology, home);
    let reached = || {
        routes
            .iter()
            .enumerate()
            .filter_map(|(node, way)| Some((node, way.as_ref()?)))
    };
    let groups = group_ports(topology, guests);
    let mut mads = vec![];
    for (node, route) in reached().filter(|(node, _)| is_switch(topology, *node)) {
        mads.extend(tables(topology, node, route, groups[node]));
    }
    for state in [port_state::NO_CHANGE, port_state::ARMED, port_state::ACTIVE] {
        for (node, route) in reached() {
            let linked = links_of(topology, node).map(|(own, _)| own.port);
            // Port 0 of a switch is the last of its ports, because it has the M_Key.
            let managed = is_switch(topology, node).then_some(0);
            for port in linked.chain(managed) {
                let mut info = port_info(node, home, state);
                if state == port_state::ACTIVE {
                    key.put(&mut info);
                }
                mads.push(set(route, attribute_id::PORT_INFO, port.into(), &info.0));
            }
        }
    }
    mads
}
