// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A switch with a guest at port 1, and links to other fabrics at ports 2 to 4.

use super::*;
use crate::port::RemoteEnd;

const SWITCH: usize = 0;
const RATES: RemoteEnd = RemoteEnd {
    widths: 3,
    speeds: 7,
};

fn port(port: u8) -> PortId {
    PortId { node: SWITCH, port }
}

/// Returns the fabric with active ports, in which packets to the group leave by all ports.
fn fabric() -> Fabric {
    let text = "Switch 5 \"S\"\n[1] \"H\"[1]\n\nCa 1 \"H\"\n[1] \"S\"[1]\n";
    let mut fabric = Fabric::new(&Topology::parse(text).unwrap());
    fabric.set_guest(1, true);
    for number in 2..=4 {
        assert!(fabric.open_remote_link(port(number)));
        fabric.set_remote_end(port(number), Some(RATES), false, Time::ZERO);
    }
    for id in (1..=4).map(port).chain([PortId { node: 1, port: 1 }]) {
        let info = &mut fabric.port_mut(id).unwrap().info;
        assert_eq!(info.get(PortInfo::PORT_STATE), port_state::INIT, "{id:?}");
        info.set(PortInfo::PORT_STATE, port_state::ACTIVE);
    }
    let mut data = [0; SMP_DATA_LEN];
    data[6..8].copy_from_slice(&0x1e_u16.to_be_bytes());
    let tables = fabric.nodes[SWITCH].tables.as_mut().unwrap();
    assert!(tables.set_multicast_block(0, &data));
    fabric
}

const TO_GROUP: RouteHeader = RouteHeader {
    destination_lid: GROUP,
    sl: 0,
    p_key: 0xffff,
    length: 100,
};

/// Returns the ports at which a packet to the group arrives that came by port 2, with the links and
/// copies that are left.
fn arrivals(fabric: &mut Fabric, links: u32, copies: usize) -> Vec<(usize, u8, u32, usize)> {
    let mut arrivals = Vec::new();
    let limits = PacketLimits { links, copies };
    fabric.receive(port(2), &TO_GROUP, limits, &mut arrivals);
    let all = arrivals.iter().map(|arrival| {
        let (at, left) = (arrival.port, arrival.limits);
        (at.node, at.port, left.links, left.copies)
    });
    all.collect()
}

#[test]
fn copies_share_the_limits_of_their_packet() {
    let mut fabric = fabric();
    let all = arrivals(&mut fabric, 5, 11);
    let remote: Vec<_> = all.iter().filter(|(node, ..)| *node == SWITCH).collect();
    assert_eq!(remote, [&(SWITCH, 3, 4, 4), &(SWITCH, 4, 4, 4)]);
    assert_eq!((all[0].0, all.len()), (1, 3));
    assert_eq!(arrivals(&mut fabric, 5, 2).len(), 2);
    for (links, copies) in [(0, 9), (5, 0)] {
        assert_eq!(arrivals(&mut fabric, links, copies), []);
    }
    let full = arrivals(&mut fabric, u32::MAX, usize::MAX);
    assert_eq!(full[1], (SWITCH, 3, HOPS - 1, (COPIES - 3) / 2));
}

#[test]
fn packets_come_only_by_links_to_other_fabrics() {
    let mut fabric = fabric();
    let mut arrivals = Vec::new();
    for id in [
        port(0),
        port(1),
        port(5),
        port(9),
        PortId { node: 1, port: 1 },
    ] {
        fabric.receive(id, &TO_GROUP, PacketLimits::FULL, &mut arrivals);
        let mad = Mad::smp(
            class::SUBNET_LID_ROUTED,
            method::GET,
            attribute_id::NODE_INFO,
            0,
        );
        let smp = Datagram::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad);
        fabric.receive_datagram(id, smp, HOPS, Time::ZERO);
    }
    assert_eq!(arrivals, []);
    let departed = std::iter::from_fn(|| fabric.next_output())
        .filter(|output| matches!(output, Output::Departure(..)));
    assert_eq!(departed.count(), 0);
}

#[test]
fn only_a_free_port_of_a_switch_has_a_link_to_another_fabric() {
    let mut fabric = fabric();
    for id in [
        port(0),
        port(1),
        port(2),
        port(6),
        PortId { node: 1, port: 1 },
    ] {
        assert!(!fabric.open_remote_link(id), "{id:?}");
    }
    assert!(fabric.open_remote_link(port(5)));
    assert_eq!(fabric.local_end(port(1)), None);
    let end = LocalEnd {
        rates: Some(RATES),
        restarts: 0,
    };
    assert_eq!(fabric.local_end(port(5)), Some(end));
}

#[test]
fn ends_without_a_common_width_have_no_link() {
    let mut fabric = fabric();
    let wide = RemoteEnd { widths: 8, ..RATES };
    fabric.set_remote_end(port(2), Some(wide), false, Time::ZERO);
    assert_eq!(fabric.port(port(2)).unwrap().state(), port_state::ACTIVE);
    fabric.set_remote_end(port(2), Some(wide), true, Time::ZERO);
    assert_eq!(fabric.port(port(2)).unwrap().state(), port_state::DOWN);
    fabric.set_remote_end(port(2), None, true, Time::ZERO);
    assert_eq!(fabric.port(port(2)).unwrap().state(), port_state::DOWN);
}
