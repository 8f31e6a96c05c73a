// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets of guests' devices through the subnet, to the byte.

mod by_reference;
mod uplinks;

use super::*;
use verbena_fabric::mad::attribute::{capability, port_state, NodeInfo};
use verbena_fabric::mad::{attribute_id, class, method, PERMISSIVE_LID, SMP_DATA_LEN};

const NOW: Duration = Duration::ZERO;
const GUIDS: [u64; 2] = [0x5054_00ff_fe00_0001, 0x5054_00ff_fe00_0011];

fn subnet(guests: usize) -> Subnet {
    let topology = Topology::parse(&default_topology(&GUIDS[..guests])).unwrap();
    Subnet::new(&topology, guests).unwrap()
}

/// Returns the packet of an SMP that goes over these ports, from a guest's adapter.
pub(crate) fn directed(
    method: u8,
    attribute: u16,
    ports: &[u8],
    data: Option<[u8; SMP_DATA_LEN]>,
) -> Vec<u8> {
    directed_to(method, attribute, 0, ports, data)
}

/// Like [`directed`], with an attribute modifier.
fn directed_to(
    method: u8,
    attribute: u16,
    modifier: u32,
    ports: &[u8],
    data: Option<[u8; SMP_DATA_LEN]>,
) -> Vec<u8> {
    let mut mad = Mad::smp(class::SUBNET_DIRECTED_ROUTE, method, attribute, modifier);
    mad.set_initial_path(ports);
    mad.set(Mad::DR_SLID, PERMISSIVE_LID);
    mad.set(Mad::DR_DLID, PERMISSIVE_LID);
    // The kernel has done the first hop.
    mad.set(Mad::HOP_POINTER, 1);
    if let Some(data) = data {
        mad.set_data(&data);
    }
    emit_datagram(&Datagram::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad))
}

fn deliveries(subnet: &mut Subnet) -> Vec<(u8, Delivery)> {
    std::iter::from_fn(|| subnet.next_delivery()).collect()
}

fn response(subnet: &mut Subnet) -> Mad {
    let mut all = deliveries(subnet);
    let Some((0, Delivery::Packet(bytes))) = all.pop() else {
        panic!("no packet for the first guest");
    };
    *parse_datagram(&bytes).unwrap().mad
}

#[test]
fn an_smp_of_a_guest_reaches_the_agents_of_other_nodes() {
    let mut subnet = subnet(2);
    for (ports, guid) in [(&[1u8][..], 0x5652_5054_0000_0001), (&[1, 2], GUIDS[1])] {
        let request = directed(method::GET, attribute_id::NODE_INFO, ports, None);
        subnet.send(0, &request, NOW);
        let answer = response(&mut subnet);
        assert_eq!(answer.get(Mad::METHOD), method::GET_RESPONSE);
        let info = NodeInfo(answer.data());
        assert_eq!(info.get(NodeInfo::NODE_GUID), guid);
    }
}

#[test]
fn a_change_of_a_port_is_an_event_with_the_new_configuration() {
    let mut subnet = subnet(2);
    let before = subnet.port(1).unwrap();
    assert_eq!(before.attributes.state, port_state::INIT);
    let mut info = subnet.fabric.port_info(subnet.port_id(1).unwrap()).unwrap();
    info.set(PortInfo::LID, 5);
    info.set(PortInfo::PORT_STATE, port_state::NO_CHANGE);
    info.set(PortInfo::PORT_PHYSICAL_STATE, 0);
    info.set(PortInfo::LINK_SPEED_ENABLED, 0);
    info.set(PortInfo::LINK_WIDTH_ENABLED, 0);
    let request = directed(method::SET, attribute_id::PORT_INFO, &[1, 2], Some(info.0));
    subnet.send(0, &request, NOW);
    let all = deliveries(&mut subnet);
    let change = Delivery::Change(vec![EventType::LidChange]);
    assert!(all.contains(&(1, change)), "{all:?}");
    let after = subnet.port(1).unwrap();
    assert_eq!(after.attributes.lid.get(), 5);
    assert_eq!(after.gids[0][8..], (GUIDS[1] + 1).to_be_bytes());
}

#[test]
fn a_change_without_an_event_is_delivered_too() {
    let mut subnet = subnet(2);
    let mut info = subnet.fabric.port_info(subnet.port_id(1).unwrap()).unwrap();
    info.set(PortInfo::LID, 5);
    for (state, events) in [
        (port_state::NO_CHANGE, vec![EventType::LidChange]),
        (port_state::ARMED, vec![]),
        (port_state::ACTIVE, vec![EventType::PortActive]),
    ] {
        info.set(PortInfo::PORT_STATE, state);
        info.set(PortInfo::PORT_PHYSICAL_STATE, 0);
        info.set(PortInfo::LINK_SPEED_ENABLED, 0);
        info.set(PortInfo::LINK_WIDTH_ENABLED, 0);
        let request = directed(method::SET, attribute_id::PORT_INFO, &[1, 2], Some(info.0));
        subnet.send(0, &request, NOW);
        let all = deliveries(&mut subnet);
        assert!(all.contains(&(1, Delivery::Change(events))), "{all:?}");
    }
    assert_eq!(subnet.port(1).unwrap().attributes.state, port_state::ACTIVE);
}

#[test]
fn a_guest_that_must_not_manage_the_subnet_sends_no_smps() {
    let mut subnet = subnet(2);
    subnet.forbid_management(0);
    let request = directed(method::GET, attribute_id::NODE_INFO, &[1], None);
    subnet.send(0, &request, NOW);
    assert_eq!(
        (deliveries(&mut subnet), subnet.take_refused()),
        (vec![], 1)
    );
    let set = |set| AgentRequest::SetCapabilities { set, clear: 0 };
    assert_eq!(
        subnet.answer(0, &set(capability::IS_SM), NOW),
        AgentReply::Refused
    );
    let device_management = capability::IS_DEVICE_MANAGEMENT_SUPPORTED;
    assert_eq!(
        subnet.answer(0, &set(device_management), NOW),
        AgentReply::Done
    );
    let flags = subnet.port(0).unwrap().attributes.port_cap_flags.get();
    assert_eq!(
        flags & (capability::IS_SM | device_management),
        device_management
    );
}

#[test]
fn packets_that_are_cut_anywhere_are_dropped() {
    let mut subnet = subnet(1);
    let request = directed(method::GET, attribute_id::NODE_INFO, &[1], None);
    for length in 0..request.len() {
        subnet.send(0, &request[..length], NOW);
        assert_eq!(deliveries(&mut subnet), [], "{length}");
    }
}

#[test]
fn the_descriptions_of_nodes_have_the_mac_addresses_of_guests() {
    let described = |guids: &[u64]| -> Vec<String> {
        let topology = Topology::parse(&default_topology(guids)).unwrap();
        let nodes = topology.nodes.into_iter();
        nodes.map(|node| node.identity.description).collect()
    };
    let mac = [0x52, 0x54, 0, 0xab, 0, 1];
    let guid = u64::from_be_bytes(verbena_device::config::node_guid(mac));
    let expected = ["switch 52:54:00:ab:00:01", "guest1 52:54:00:ab:00:01"];
    assert_eq!(described(&[guid]), expected);
    let expected = [
        "switch 52:54:00:00:00:01",
        "guest1 52:54:00:00:00:01",
        "guest2 52:54:00:00:00:11",
    ];
    assert_eq!(described(&GUIDS), expected);
}

#[test]
fn a_topology_with_too_few_adapters_is_refused() {
    let topology = Topology::parse(&default_topology(&GUIDS[..1])).unwrap();
    let refused = Subnet::new(&topology, 2).err().unwrap();
    assert!(refused.contains("1 adapters for 2 guests"), "{refused}");
}

#[test]
fn a_datagram_keeps_its_grh() {
    let mad = Mad::smp(class::PERFORMANCE, method::GET, 0x12, 0);
    let mut grh = [7; 40];
    // Version 6, traffic class 0xab, flow label 0x12345; 280 bytes from the BTH on; a BTH follows.
    grh[..8].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45, 1, 0x18, 0x1b, 63]);
    grh[24..].fill(9);
    let datagram = Datagram {
        source_qp: 1,
        destination_qp: 1,
        grh: Some(grh),
        ..Datagram::smp(3, 5, mad)
    };
    assert_eq!(parse_datagram(&emit_datagram(&datagram)), Some(datagram));
}

/// Returns Set(PortInfo) with a LID for the own port, as a request of the driver.
fn own_lid(lid: u16) -> AgentRequest {
    let mut mad = Mad::smp(
        class::SUBNET_LID_ROUTED,
        method::SET,
        attribute_id::PORT_INFO,
        1,
    );
    let info = PortInfo::default()
        .with(PortInfo::LID, lid)
        .with(PortInfo::NEIGHBOR_MTU, 5);
    mad.set_data(&info.0);
    AgentRequest::Mad {
        mad: Box::new(mad.0),
        checks_m_key: false,
    }
}

#[test]
fn a_guest_that_must_not_manage_the_subnet_does_not_set_its_own_port() {
    let mut subnet = subnet(2);
    subnet.forbid_management(1);
    let before = subnet.port(1);
    assert_eq!(subnet.answer(1, &own_lid(9), NOW), AgentReply::Consumed);
    assert_eq!((subnet.port(1), deliveries(&mut subnet)), (before, vec![]));
    let answer = subnet.answer(0, &own_lid(9), NOW);
    assert!(matches!(answer, AgentReply::Response(_)), "{answer:?}");
    assert_eq!(subnet.port(0).unwrap().attributes.lid.get(), 9);
}
