// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Forwarding of datagrams by LID, and of data.

use super::*;
use crate::counters::Counters;
use crate::mad::performance::{PortCounters, PortCountersExtended, ALL_PORT_SELECT};

impl Lab {
    /// Asks an agent of performance management by LID.
    fn ask_pma(&mut self, lid: u16, attribute: u16, data: PortCounters) -> Option<Mad> {
        let mut mad = Mad::smp(class::PERFORMANCE, method::GET, attribute, 0);
        mad.set_performance_data(&data.0);
        self.ask(Datagram {
            source_qp: 1,
            destination_qp: 1,
            q_key: 0x8001_0000,
            ..Datagram::smp(H1 as u16 + 1, lid, mad)
        })
    }

    /// Changes an entry of the linear forwarding table of a switch.
    fn set_route(&mut self, switch: usize, lid: u16, port: u8) {
        self.fabric.nodes[switch]
            .tables
            .as_mut()
            .unwrap()
            .linear_block(0)
            .unwrap()[usize::from(lid)] = port;
    }

    /// Adds ports to the multicast group in a switch.
    fn set_group(&mut self, switch: usize, ports: u16) {
        let mut data = [0; SMP_DATA_LEN];
        data[6..8].copy_from_slice(&ports.to_be_bytes());
        let path = path_to(switch);
        assert_eq!(
            self.set(&path, attribute_id::MULTICAST_FORWARDING_TABLE, 0, data)
                .data(),
            data
        );
    }

    fn counters(&self, node: usize, port: u8) -> &Counters {
        &self.fabric.port(PortId { node, port }).unwrap().counters
    }

    fn relay_errors(&self, node: usize, port: u8) -> u64 {
        self.counters(node, port)
            .basic()
            .get(PortCounters::PORT_RCV_SWITCH_RELAY_ERRORS)
    }
}

#[test]
fn agents_answer_by_lid() {
    let mut lab = Lab::active();
    for node in [S1, S2, S3, H1, H2, H4, H5] {
        let answer = lab
            .ask_by_lid(node as u16 + 1, method::GET, attribute_id::NODE_DESCRIPTION)
            .unwrap();
        assert_eq!(
            answer.data(),
            lab.fabric.nodes[node].description,
            "node {node}"
        );
        assert_eq!(answer.get(Mad::STATUS), status::OK);
    }
    for lid in [0, 10, 47, 0xc000] {
        assert_eq!(
            lab.ask_by_lid(lid, method::GET, attribute_id::NODE_INFO),
            None,
            "LID {lid}"
        );
    }
}

#[test]
fn the_permissive_lid_reaches_the_next_node() {
    let mut lab = Lab::new();
    let answer = lab
        .ask_by_lid(PERMISSIVE_LID, method::GET, attribute_id::NODE_DESCRIPTION)
        .unwrap();
    assert_eq!(answer.data(), lab.fabric.nodes[S1].description);
}

#[test]
fn a_route_may_have_lid_routed_parts() {
    let mut lab = Lab::active();
    let mut mad = Mad::smp(
        class::SUBNET_DIRECTED_ROUTE,
        method::GET,
        attribute_id::NODE_DESCRIPTION,
        0,
    );
    mad.set(Mad::DR_SLID, H1 as u16 + 1);
    mad.set_initial_path(&[1]);
    let answer = lab
        .ask(Datagram::smp(H1 as u16 + 1, S3 as u16 + 1, mad))
        .unwrap();
    assert_eq!(answer.data(), lab.fabric.nodes[H5].description);

    let mut mad = Mad::smp(
        class::SUBNET_DIRECTED_ROUTE,
        method::GET,
        attribute_id::NODE_DESCRIPTION,
        0,
    );
    mad.set(Mad::DR_DLID, H5 as u16 + 1);
    mad.set(Mad::HOP_POINTER, 1);
    mad.set_initial_path(&[1, 3]);
    let answer = lab
        .ask(Datagram::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad))
        .unwrap();
    assert_eq!(answer.data(), lab.fabric.nodes[H5].description);
}

#[test]
fn performance_management_needs_keys_and_active_ports() {
    let mut lab = Lab::active();
    let select = PortCounters::default().with(PortCounters::PORT_SELECT, 3);
    let answer = lab
        .ask_pma(S1 as u16 + 1, attribute_id::PORT_COUNTERS, select)
        .unwrap();
    assert_ne!(
        PortCounters(answer.performance_data()).get(PortCounters::PORT_XMIT_DATA),
        0
    );
    let answer = lab
        .ask_pma(
            S1 as u16 + 1,
            attribute_id::CLASS_PORT_INFO,
            PortCounters::default(),
        )
        .unwrap();
    assert_ne!(
        answer.performance_data()[2] & (ALL_PORT_SELECT >> 8) as u8,
        0
    );
    let select = PortCounters::default().with(PortCounters::PORT_SELECT, 1);
    assert!(lab
        .ask_pma(H5 as u16 + 1, attribute_id::PORT_COUNTERS, select)
        .is_some());

    lab.fabric.nodes[H5].port_mut(1).unwrap().p_keys[0] = 0x8005;
    assert_eq!(
        lab.ask_pma(H5 as u16 + 1, attribute_id::PORT_COUNTERS, select),
        None
    );
    assert_eq!(
        lab.fabric.nodes[H5]
            .port(1)
            .unwrap()
            .info
            .get(PortInfo::P_KEY_VIOLATIONS),
        1
    );
    // The trap.
    assert_eq!(lab.datagrams().len(), 1);
    // A guest's datagrams of QP1 are the guest's own.
    assert_eq!(
        lab.ask_pma(H4 as u16 + 1, attribute_id::PORT_COUNTERS, select),
        None
    );
    assert_eq!(lab.datagrams().len(), 1);
    lab.fabric
        .set_cable(PortId { node: S1, port: 3 }, false, lab.now);
    assert_eq!(
        lab.ask_pma(S2 as u16 + 1, attribute_id::PORT_COUNTERS, select),
        None
    );
}

#[test]
fn data_reaches_guests_by_lid() {
    let mut lab = Lab::active();
    assert_eq!(lab.forward(H4 as u16 + 1, 0, 0xffff), [H4]);
    assert_eq!(lab.forward(H1 as u16 + 1, 0, 0xffff), [H1]);
    // H5 has no guest, S2 is a switch, and the other LIDs do not exist.
    for lid in [H5 as u16 + 1, S2 as u16 + 1, 10, 0, PERMISSIVE_LID] {
        assert_eq!(lab.forward(lid, 0, 0xffff), [], "LID {lid}");
    }
    assert_eq!(lab.relay_errors(S1, 1), 1);
    let sent = lab
        .counters(S2, 2)
        .extended()
        .get(PortCountersExtended::PORT_XMIT_DATA);
    assert!(sent >= 25);
}

#[test]
fn forwarding_tables_with_a_loop_discard() {
    let mut lab = Lab::active();
    let lid = H4 as u16 + 1;
    for (switch, port) in [(S1, 4), (S3, 4), (S2, 4)] {
        lab.set_route(switch, lid, port);
    }
    assert_eq!(lab.forward(lid, 0, 0xffff), []);
    assert_eq!(
        lab.ask_by_lid(lid, method::GET, attribute_id::NODE_INFO),
        None
    );
    let discards: u64 = [(S1, 4), (S2, 4), (S3, 4)]
        .map(|(node, port)| {
            lab.counters(node, port)
                .basic()
                .get(PortCounters::PORT_XMIT_DISCARDS)
        })
        .iter()
        .sum();
    assert_eq!(discards, 2);
    // Back by the port of arrival, a port that does not exist, and no port.
    for port in [1, 77, 255] {
        let before = lab.relay_errors(S1, 1);
        lab.set_route(S1, lid, port);
        assert_eq!(lab.forward(lid, 0, 0xffff), []);
        assert_eq!(lab.relay_errors(S1, 1), before + 1);
    }
}

#[test]
fn multicast_reaches_all_members_but_the_sender() {
    let mut lab = Lab::active();
    assert_eq!(lab.forward(GROUP, 0, 0xffff), []);
    lab.set_group(S1, 1 << 1 | 1 << 3);
    lab.set_group(S2, 1 << 2 | 1 << 4);
    assert_eq!(lab.forward(GROUP, 0, 0xffff), [H4]);
}

#[test]
fn multicast_tables_with_a_loop_use_each_link_once() {
    let mut lab = Lab::active();
    for switch in [S1, S2, S3] {
        lab.set_group(switch, 0x1e);
    }
    let sent = |lab: &Lab, node, port| {
        let field = PortCountersExtended::PORT_MULTICAST_XMIT_PKTS;
        lab.counters(node, port).extended().get(field)
    };
    // The copy that went round comes back to the sender.
    let mut reached = lab.forward(GROUP, 0, 0xffff);
    reached.sort_unstable();
    assert_eq!(reached, [H1, H4]);
    for switch in [S1, S2, S3] {
        assert_eq!([1, 2, 3, 4].map(|port| sent(&lab, switch, port)), [1; 4]);
    }
}

/// Returns a subnet in which all links are active: `switches` switches in a line, with adapters at
/// the ends, which have the LIDs 1 and 2 and are of one multicast group.
fn line(switches: usize) -> Fabric {
    let mut text = String::from("Ca 1 \"0\"\n[1] \"1\"[1]\n");
    for n in 1..=switches {
        let (before, after) = (n - 1, n + 1);
        let port = if before == 0 { 1 } else { 2 };
        text += &format!("\nSwitch 2 \"{n}\"\n[1] \"{before}\"[{port}]\n[2] \"{after}\"[1]\n");
    }
    let last = switches + 1;
    text += &format!("\nCa 1 \"{last}\"\n[1] \"{switches}\"[2]\n");
    let mut fabric = Fabric::new(&Topology::parse(&text).unwrap());
    for node in &mut fabric.nodes {
        for number in node.port_numbers() {
            let info = &mut node.port_mut(number).unwrap().info;
            info.set(PortInfo::PORT_STATE, port_state::ACTIVE);
        }
        let Some(tables) = &mut node.tables else {
            continue;
        };
        tables.linear_block(0).unwrap()[1..3].copy_from_slice(&[1, 2]);
        tables.info.set(SwitchInfo::LINEAR_FDB_TOP, 2);
        let mut data = [0; SMP_DATA_LEN];
        data[6..8].copy_from_slice(&[0, 6]);
        assert!(tables.set_multicast_block(0, &data));
    }
    for (node, lid) in [(0, 1), (last, 2)] {
        let port = fabric.nodes[node].port_mut(1).unwrap();
        port.info.set(PortInfo::LID, lid);
        fabric.set_guest(node, true);
    }
    fabric
}

#[test]
fn every_packet_passes_at_most_64_links() {
    let from = PortId { node: 0, port: 1 };
    for (switches, passes) in [(63, true), (64, false)] {
        let mut fabric = line(switches);
        let to = PortId {
            node: switches + 1,
            port: 1,
        };
        for destination_lid in [2, GROUP] {
            let header = RouteHeader {
                destination_lid,
                sl: 0,
                p_key: 0xffff,
                length: 100,
            };
            let mut arrivals = Vec::new();
            fabric.forward(from, &header, &mut arrivals);
            let reached: Vec<PortId> = arrivals.iter().map(|arrival| arrival.port).collect();
            assert_eq!(
                reached == [to],
                passes,
                "{switches} switches, LID {destination_lid:#x}"
            );
        }
        let class = class::SUBNET_LID_ROUTED;
        let mad = Mad::smp(class, method::GET, attribute_id::NODE_INFO, 0);
        fabric.send(from, Datagram::smp(1, 2, mad), Time::ZERO);
        let is_answered = matches!(fabric.next_output(), Some(Output::Datagram(..)));
        assert_eq!(is_answered, passes, "{switches} switches");
    }
}

#[test]
fn the_permissive_lid_is_the_source_only_if_it_is_the_destination() {
    let mut lab = Lab::active();
    let class = class::SUBNET_LID_ROUTED;
    let mad = Mad::smp(class, method::SET, attribute_id::P_KEY_TABLE, 0);
    lab.ask(Datagram::smp(PERMISSIVE_LID, H4 as u16 + 1, mad));
    assert_eq!(lab.fabric.p_keys(GUEST_4).unwrap()[0], 0xffff);
    lab.ask(Datagram::smp(H1 as u16 + 1, H4 as u16 + 1, mad));
    assert_eq!(lab.fabric.p_keys(GUEST_4).unwrap()[0], 0);
}

#[test]
fn service_levels_and_states_decide() {
    let mut lab = Lab::active();
    let lid = H4 as u16 + 1;
    let mut map = [0; SMP_DATA_LEN];
    map[..8].copy_from_slice(&[0x0f, 0, 0, 0, 0, 0, 0, 0]);
    lab.set(&path_to(S1), attribute_id::SL_TO_VL_TABLE, 0x0103, map);
    assert_eq!(
        (lab.forward(lid, 0, 0xffff), lab.forward(lid, 1, 0xffff)),
        (vec![H4], vec![])
    );
    lab.fabric
        .set_cable(PortId { node: S2, port: 2 }, false, lab.now);
    lab.fabric
        .set_cable(PortId { node: S2, port: 2 }, true, lab.now);
    assert_eq!(lab.forward(lid, 0, 0xffff), []);
    lab.configure_ports(S2, 0);
    for state in [port_state::ARMED, port_state::ACTIVE] {
        lab.set_lid(S2, 2, state);
        lab.set_lid(H4, 1, state);
    }
    assert_eq!(lab.forward(lid, 0, 0xffff), [H4]);
}

#[test]
fn a_port_receives_data_from_armed_on() {
    let mut lab = Lab::active();
    for (state, expected) in [(port_state::INIT, vec![]), (port_state::ARMED, vec![H4])] {
        let info = &mut lab.fabric.nodes[H4].port_mut(1).unwrap().info;
        info.set(PortInfo::PORT_STATE, state);
        assert_eq!(
            lab.forward(H4 as u16 + 1, 0, 0xffff),
            expected,
            "state {state}"
        );
    }
}

#[test]
fn packets_larger_than_the_mtu_are_discarded() {
    let mut lab = Lab::active();
    let info = lab
        .port_info(S1, 3)
        .with(PortInfo::PORT_STATE, 0)
        .with(PortInfo::PORT_PHYSICAL_STATE, 0);
    lab.set(
        &path_to(S1),
        attribute_id::PORT_INFO,
        3,
        info.with(PortInfo::NEIGHBOR_MTU, 3).0,
    );
    let mut header = RouteHeader {
        destination_lid: H4 as u16 + 1,
        sl: 0,
        p_key: 0xffff,
        length: 1148,
    };
    let mut arrivals = Vec::new();
    lab.fabric.forward(GUEST_1, &header, &mut arrivals);
    assert_eq!(arrivals.len(), 1);
    header.length = 1152;
    lab.fabric.forward(GUEST_1, &header, &mut arrivals);
    assert_eq!(arrivals.len(), 1);
}

#[test]
fn switches_enforce_partitions_where_the_manager_says_so() {
    let mut lab = Lab::active();
    let lid = H4 as u16 + 1;
    let mut keys = [0; SMP_DATA_LEN];
    keys[..2].copy_from_slice(&[0x00, 0x07]);
    lab.set(&path_to(S2), attribute_id::P_KEY_TABLE, 2 << 16, keys);
    assert_eq!(lab.forward(lid, 0, 0xffff), [H4]);
    let info = lab
        .port_info(S2, 2)
        .with(PortInfo::PORT_STATE, 0)
        .with(PortInfo::PORT_PHYSICAL_STATE, 0);
    lab.set(
        &path_to(S2),
        attribute_id::PORT_INFO,
        2,
        info.with(PortInfo::PARTITION_ENFORCEMENT_OUTBOUND, true).0,
    );
    assert_eq!(
        (lab.forward(lid, 0, 0xffff), lab.forward(lid, 0, 0x0007)),
        (vec![], vec![])
    );
    assert_eq!(lab.forward(lid, 0, 0x8007), [H4]);
    assert_eq!(
        lab.counters(S2, 2)
            .basic()
            .get(PortCounters::PORT_XMIT_CONSTRAINT_ERRORS),
        2
    );
    // Subnet management has no partition.
    assert!(lab
        .ask_by_lid(lid, method::GET, attribute_id::NODE_INFO)
        .is_some());
}

/// opensm gives a port of a switch the P_Keys of the adapter there, with its membership. A limited member
/// has to reach full members.
#[test]
fn inbound_enforcement_lets_a_limited_member_send() {
    let mut lab = Lab::active();
    let lid = H4 as u16 + 1;
    let mut keys = [0; SMP_DATA_LEN];
    keys[..2].copy_from_slice(&[0x00, 0x07]);
    lab.set(&path_to(S1), attribute_id::P_KEY_TABLE, 1 << 16, keys);
    let info = lab
        .port_info(S1, 1)
        .with(PortInfo::PORT_STATE, 0)
        .with(PortInfo::PORT_PHYSICAL_STATE, 0);
    lab.set(
        &path_to(S1),
        attribute_id::PORT_INFO,
        1,
        info.with(PortInfo::PARTITION_ENFORCEMENT_INBOUND, true).0,
    );
    assert_eq!(lab.forward(lid, 0, 0x0007), [H4]);
    assert_eq!(lab.forward(lid, 0, 0x0008), [0; 0]);
    let errors = lab.counters(S1, 1).basic();
    assert_eq!(errors.get(PortCounters::PORT_RCV_CONSTRAINT_ERRORS), 1);
}

#[test]
fn an_adapter_sends_only_with_its_own_lid() {
    let mut lab = Lab::active();
    let mad = Mad::smp(
        class::SUBNET_LID_ROUTED,
        method::GET,
        attribute_id::NODE_INFO,
        0,
    );
    assert_eq!(
        lab.ask(Datagram::smp(H4 as u16 + 1, S2 as u16 + 1, mad)),
        None
    );
    let data_as_smp = Datagram {
        source_qp: 5,
        ..Datagram::smp(H1 as u16 + 1, S2 as u16 + 1, mad)
    };
    assert_eq!(lab.ask(data_as_smp), None);
    let smp_to_qp1 = Datagram {
        source_qp: 1,
        destination_qp: 1,
        q_key: 0x8001_0000,
        ..Datagram::smp(H1 as u16 + 1, S2 as u16 + 1, mad)
    };
    assert_eq!(lab.ask(smp_to_qp1), None);
    assert_eq!(lab.datagrams(), []);
}
