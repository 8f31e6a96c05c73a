// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Agents, links, traps and events.

use super::*;
use crate::mad::attribute::{capability, physical_state, NodeInfo};
use crate::mad::notice::Notice;
use crate::mad::performance::PortCounters;
use std::time::Duration;

/// The port of switch S2 to adapter H4.
const TO_H4: PortId = PortId { node: S2, port: 2 };

/// Sets the state of a port by the directed route to its node.
fn set_states(lab: &mut Lab, at: PortId, state: u8, physical: u8) -> Mad {
    let info = lab
        .port_info(at.node, at.port)
        .with(PortInfo::PORT_STATE, state)
        .with(PortInfo::PORT_PHYSICAL_STATE, physical);
    lab.set(
        &path_to(at.node),
        attribute_id::PORT_INFO,
        u32::from(at.port),
        info.0,
    )
}

#[test]
fn node_info_of_a_switch_to_the_byte() {
    let mut lab = Lab::new();
    let answer = lab.get(&[1, 3], attribute_id::NODE_INFO, 0);
    let mut expected = [0; 256];
    expected[..8].copy_from_slice(&[1, 0x81, 1, 0x81, 0x80, 0, 1, 2]);
    expected[8..16].copy_from_slice(&[0, 0, 1, 0, 0, 0, 0, 1]);
    expected[16..18].copy_from_slice(&[0, 0x11]);
    expected[32..36].fill(0xff);
    expected[64..68].copy_from_slice(&[1, 1, 2, 4]);
    for guid in [68, 76, 84] {
        expected[guid..guid + 8].copy_from_slice(&[0, 0, 0, 0, 0, 0x20, 0, 1]);
    }
    expected[92..104].copy_from_slice(&[0, 32, 0, 0, 0, 0, 0, 0xa0, 4, 0, 0, 0]);
    expected[129..131].copy_from_slice(&[1, 3]);
    expected[193..195].copy_from_slice(&[1, 4]);
    assert_eq!(answer.0, expected);
}

#[test]
fn port_info_of_an_adapter_after_power_on_to_the_byte() {
    let mut lab = Lab::new();
    let data = lab
        .get(&path_to(H5), attribute_id::PORT_INFO, 0x8000_0000)
        .data();
    let mut expected = [0; SMP_DATA_LEN];
    expected[8..10].copy_from_slice(&[0xfe, 0x80]);
    expected[20..24].copy_from_slice(&[0x06, 0x41, 0x08, 0x48]);
    // Local port 1, widths 1x and 4x, 4x active, SDR to QDR, INIT, LinkUp, Polling.
    expected[28..34].copy_from_slice(&[1, 3, 3, 2, 0x72, 0x52]);
    // QDR, MTU 4096, VL0 to VL7, arbitration of 8 entries.
    expected[35..45].copy_from_slice(&[0x47, 0x50, 0x40, 0, 8, 8, 5, 0, 0x40, 0]);
    expected[50..54].copy_from_slice(&[1, 18, 16, 0x88]);
    assert_eq!(data, expected);
}

#[test]
fn the_local_port_is_the_port_of_arrival() {
    let mut lab = Lab::new();
    for (path, port) in [(vec![1], 1), (vec![1, 3], 4), (vec![1, 4, 4], 3)] {
        let info = lab.get(&path, attribute_id::PORT_INFO, 2);
        assert_eq!(
            PortInfo(info.data()).get(PortInfo::LOCAL_PORT_NUM),
            port,
            "{path:?}"
        );
    }
}

#[test]
fn a_subnet_comes_up_with_events_for_guests() {
    let mut lab = Lab::new();
    for state in [0, port_state::ARMED, port_state::ACTIVE] {
        lab.configure_ports(H4, state);
    }
    let expected = [
        PortEvent::LidChange,
        PortEvent::SmChange,
        PortEvent::PortActive,
    ];
    assert_eq!(lab.events(), expected.map(|event| (GUEST_4, event)));
    let info = lab
        .port_info(H4, 1)
        .with(PortInfo::PORT_STATE, 0)
        .with(PortInfo::PORT_PHYSICAL_STATE, 0);
    let new = info
        .with(PortInfo::CLIENT_REREGISTER, true)
        .with(PortInfo::GID_PREFIX, 7);
    lab.set(&path_to(H4), attribute_id::PORT_INFO, 1, new.0);
    lab.set(
        &path_to(H4),
        attribute_id::P_KEY_TABLE,
        0,
        [0x7f; SMP_DATA_LEN],
    );
    let expected = [
        PortEvent::GidChange,
        PortEvent::ClientReregister,
        PortEvent::PKeyChange,
    ];
    assert_eq!(lab.events(), expected.map(|event| (GUEST_4, event)));
}

#[test]
fn agents_refuse_what_they_do_not_have() {
    let mut lab = Lab::active();
    let refused = [
        (S1, attribute_id::SM_INFO, 0, status::UNSUPPORTED_ATTRIBUTE),
        (H2, attribute_id::SM_INFO, 0, status::UNSUPPORTED_ATTRIBUTE),
        (
            H2,
            attribute_id::SWITCH_INFO,
            0,
            status::UNSUPPORTED_ATTRIBUTE,
        ),
        (
            H2,
            attribute_id::LINEAR_FORWARDING_TABLE,
            0,
            status::UNSUPPORTED_ATTRIBUTE,
        ),
        (S1, 0xff90, 0, status::UNSUPPORTED_ATTRIBUTE),
        (S1, attribute_id::PORT_INFO, 5, status::INVALID_VALUE),
        (H2, attribute_id::PORT_INFO, 2, status::INVALID_VALUE),
        (H2, attribute_id::P_KEY_TABLE, 1, status::INVALID_VALUE),
        (
            S1,
            attribute_id::P_KEY_TABLE,
            5 << 16,
            status::INVALID_VALUE,
        ),
        (
            S1,
            attribute_id::SL_TO_VL_TABLE,
            0x0501,
            status::INVALID_VALUE,
        ),
        (
            H2,
            attribute_id::VL_ARBITRATION,
            2 << 16,
            status::INVALID_VALUE,
        ),
        (
            S1,
            attribute_id::LINEAR_FORWARDING_TABLE,
            768,
            status::INVALID_VALUE,
        ),
        (
            S1,
            attribute_id::MULTICAST_FORWARDING_TABLE,
            1 << 28,
            status::INVALID_VALUE,
        ),
    ];
    for (node, attribute, modifier, expected) in refused {
        let answer = lab.get(&path_to(node), attribute, modifier);
        assert_eq!(
            answer.get(Mad::STATUS),
            expected | 0x8000,
            "{attribute:#x} {modifier:#x}"
        );
    }
    let set = lab.set(&path_to(H2), attribute_id::NODE_INFO, 0, [1; SMP_DATA_LEN]);
    assert_eq!(set.get(Mad::STATUS), status::UNSUPPORTED_ATTRIBUTE | 0x8000);
    let mad = Mad::smp(
        class::SUBNET_DIRECTED_ROUTE,
        0x15,
        attribute_id::NODE_INFO,
        0,
    );
    let answer = lab.ask_by_path(&path_to(H2), mad).unwrap();
    assert_eq!(answer.get(Mad::STATUS), status::UNSUPPORTED_METHOD | 0x8000);
    let mad = Mad::smp(
        class::SUBNET_DIRECTED_ROUTE,
        method::GET,
        attribute_id::NODE_INFO,
        0,
    );
    let answer = lab
        .ask_by_path(&path_to(H2), mad.with(Mad::CLASS_VERSION, 2))
        .unwrap();
    assert_eq!(answer.get(Mad::STATUS), status::BAD_VERSION | 0x8000);
}

#[test]
fn a_set_of_down_trains_both_ends_again() {
    let mut lab = Lab::active();
    let answer = set_states(&mut lab, TO_H4, port_state::DOWN, 0);
    assert_eq!(
        PortInfo(answer.data()).get(PortInfo::PORT_STATE),
        port_state::INIT
    );
    assert_eq!(
        (lab.state(S2, 2), lab.state(H4, 1)),
        (port_state::INIT, port_state::INIT)
    );
    assert_eq!(lab.events(), [(GUEST_4, PortEvent::PortErr)]);
    assert!(lab.port_state_change(S2) && !lab.port_state_change(S1));
    let path = path_to(S2);
    let clear = SwitchInfo(lab.get(&path, attribute_id::SWITCH_INFO, 0).data());
    lab.set(&path, attribute_id::SWITCH_INFO, 0, clear.0);
    assert!(!lab.port_state_change(S2));
    set_states(&mut lab, GUEST_4, port_state::DOWN, 0);
    assert!(lab.port_state_change(S2));
}

#[test]
fn a_disabled_port_has_no_link_until_it_is_enabled() {
    let mut lab = Lab::active();
    set_states(&mut lab, TO_H4, 0, physical_state::DISABLED);
    assert_eq!(
        (lab.state(S2, 2), lab.state(H4, 1)),
        (port_state::DOWN, port_state::DOWN)
    );
    let info = lab.port_info(S2, 2);
    assert_eq!(
        info.get(PortInfo::PORT_PHYSICAL_STATE),
        physical_state::DISABLED
    );
    let armed = set_states(&mut lab, TO_H4, port_state::ARMED, 0);
    assert_eq!(armed.get(Mad::STATUS), status::INVALID_VALUE | 0x8000);
    let far = lab.fabric.port_info(GUEST_4).unwrap();
    assert_eq!(
        far.get(PortInfo::PORT_PHYSICAL_STATE),
        physical_state::POLLING
    );
    set_states(&mut lab, TO_H4, 0, physical_state::POLLING);
    assert_eq!(
        (lab.state(S2, 2), lab.state(H4, 1)),
        (port_state::INIT, port_state::INIT)
    );
    assert_eq!(lab.fabric.port(GUEST_4).unwrap().lid(), H4 as u16 + 1);
}

#[test]
fn a_pulled_cable_is_reported_until_the_manager_represses_the_trap() {
    let mut lab = Lab::active();
    lab.fabric.set_cable(TO_H4, false, lab.now);
    assert_eq!(
        (lab.state(S2, 2), lab.state(H4, 1)),
        (port_state::DOWN, port_state::DOWN)
    );
    assert!(lab.port_state_change(S2));
    assert_eq!(lab.events(), [(GUEST_4, PortEvent::PortErr)]);
    let [(GUEST_1, trap)] = &lab.datagrams()[..] else {
        panic!("no trap")
    };
    let notice = Notice(trap.mad.data());
    assert_eq!(
        (
            notice.get(Notice::TRAP_NUMBER),
            notice.get(Notice::SWITCH_LID)
        ),
        (128, S2 as u16 + 1)
    );
    lab.now = lab.fabric.next_deadline().unwrap();
    assert_eq!(lab.now, Duration::from_nanos(4096 << 18));
    lab.fabric.poll(lab.now);
    let again = lab.datagrams();
    assert_eq!(again[0].1, *trap);
    lab.repress(trap);
    assert_eq!(lab.fabric.next_deadline(), None);
    lab.fabric.set_cable(TO_H4, true, lab.now);
    assert_eq!(
        (lab.state(S2, 2), lab.state(H4, 1)),
        (port_state::INIT, port_state::INIT)
    );
}

#[test]
fn a_program_that_becomes_a_manager_changes_the_capability_mask() {
    let mut lab = Lab::active();
    assert!(lab.set_is_sm(GUEST_4));
    let [(GUEST_1, trap)] = &lab.datagrams()[..] else {
        panic!("no trap")
    };
    let notice = Notice(trap.mad.data());
    assert_eq!(
        (
            notice.get(Notice::TRAP_NUMBER),
            notice.get(Notice::PORT_LID)
        ),
        (144, H4 as u16 + 1)
    );
    assert_ne!(notice.get(Notice::CAPABILITY_MASK) & capability::IS_SM, 0);
    // SMInfo is the program's now, and the SMP has the hop pointer of the link.
    let mut mad = Mad::smp(
        class::SUBNET_DIRECTED_ROUTE,
        method::GET,
        attribute_id::SM_INFO,
        0,
    );
    mad.set_initial_path(&path_to(H4));
    mad.set(Mad::HOP_POINTER, 1);
    lab.fabric.send(
        GUEST_1,
        Datagram::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad),
        lab.now,
    );
    let [(GUEST_4, request)] = &lab.datagrams()[..] else {
        panic!("no request")
    };
    assert_eq!(request.mad.get(Mad::HOP_POINTER), 3);
}

#[test]
fn a_port_without_a_lid_sends_no_traps() {
    let mut lab = Lab::new();
    lab.fabric.set_cable(TO_H4, false, lab.now);
    assert!(lab.set_is_sm(GUEST_1));
    let info = &mut lab.fabric.nodes[S1].port_mut(0).unwrap().info;
    info.set(PortInfo::MASTER_SM_LID, 4);
    lab.fabric
        .set_cable(PortId { node: S1, port: 2 }, false, lab.now);
    assert_eq!(lab.fabric.next_deadline(), None);
}

#[test]
fn a_changed_description_is_reported() {
    let mut lab = Lab::active();
    lab.fabric
        .set_description(H4, &[b'x'; SMP_DATA_LEN], lab.now);
    assert_eq!(
        lab.get(&path_to(H4), attribute_id::NODE_DESCRIPTION, 0)
            .data(),
        [b'x'; SMP_DATA_LEN]
    );
    let datagrams = lab.datagrams();
    let notice = Notice(datagrams[0].1.mad.data());
    assert!(notice.get(Notice::OTHER_LOCAL_CHANGES) && notice.get(Notice::CHANGE_FLAGS) == 1);
}

#[test]
fn a_guest_without_permission_sends_no_smps() {
    let mut lab = Lab::active();
    lab.fabric.allow_management(H1, false);
    assert!(!lab.set_is_sm(GUEST_1));
    let mad = Mad::smp(
        class::SUBNET_DIRECTED_ROUTE,
        method::GET,
        attribute_id::NODE_INFO,
        0,
    );
    assert_eq!(lab.ask_by_path(&path_to(S1), mad), None);
    assert_eq!(
        lab.ask_by_lid(2, method::SET, attribute_id::NODE_INFO),
        None
    );
    let mut response = Mad::smp(
        class::SUBNET_LID_ROUTED,
        method::GET,
        attribute_id::SM_INFO,
        0,
    );
    response.make_response(0);
    lab.fabric.send(
        GUEST_1,
        Datagram::smp(H1 as u16 + 1, H4 as u16 + 1, response),
        lab.now,
    );
    assert_eq!((lab.datagrams(), lab.fabric.refused_smps()), (vec![], 3));
}

#[test]
fn the_driver_of_a_guest_without_permission_only_reads() {
    let mut lab = Lab::active();
    let info = &mut lab.fabric.nodes[H1].port_mut(1).unwrap().info;
    info.set(PortInfo::M_KEY, 7);
    let get = Mad::smp(
        class::SUBNET_LID_ROUTED,
        method::GET,
        attribute_id::PORT_INFO,
        1,
    );
    for (may_manage, expected) in [(true, 7), (false, 0)] {
        lab.fabric.allow_management(H1, may_manage);
        let ProcessMad::Reply(reply) = lab.fabric.process_mad(GUEST_1, &get, false, lab.now) else {
            panic!("no reply")
        };
        let info = PortInfo(reply.data());
        assert_eq!(info.get(PortInfo::M_KEY), expected);
        assert_eq!(info.get(PortInfo::LID), H1 as u16 + 1);
    }
    let before = lab.fabric.nodes.clone();
    let set = get.with(Mad::METHOD, method::SET).with(Mad::M_KEY, 7);
    for mad in [
        set.with(Mad::ATTRIBUTE_ID, attribute_id::P_KEY_TABLE),
        set.with(Mad::CLASS, class::SUBNET_DIRECTED_ROUTE),
        set.with(Mad::METHOD, method::TRAP_REPRESS),
    ] {
        for checks_m_key in [false, true] {
            let result = lab.fabric.process_mad(GUEST_1, &mad, checks_m_key, lab.now);
            assert_eq!(result, ProcessMad::Consumed);
        }
    }
    assert!(lab.fabric.nodes == before);
    assert_eq!((lab.fabric.refused_smps(), lab.events()), (6, vec![]));
}

#[test]
fn the_driver_needs_no_m_key() {
    let mut lab = Lab::active();
    let info = lab
        .port_info(H1, 1)
        .with(PortInfo::PORT_STATE, 0)
        .with(PortInfo::PORT_PHYSICAL_STATE, 0);
    let keyed = info
        .with(PortInfo::M_KEY, 5)
        .with(PortInfo::M_KEY_PROTECT_BITS, 3);
    lab.set(&[], attribute_id::PORT_INFO, 1, keyed.0);
    let get = Mad::smp(
        class::SUBNET_LID_ROUTED,
        method::GET,
        attribute_id::PORT_INFO,
        1,
    );
    assert_eq!(
        lab.fabric.process_mad(GUEST_1, &get, true, lab.now),
        ProcessMad::Consumed
    );
    assert!(matches!(
        lab.fabric.process_mad(GUEST_1, &get, false, lab.now),
        ProcessMad::Reply(_)
    ));
    let pass = [
        get.with(Mad::METHOD, method::GET_RESPONSE),
        get.with(Mad::METHOD, method::TRAP),
        get.with(Mad::ATTRIBUTE_ID, attribute_id::SM_INFO),
        get.with(Mad::CLASS, 7),
    ];
    for mad in pass {
        assert_eq!(
            lab.fabric.process_mad(GUEST_1, &mad, false, lab.now),
            ProcessMad::Pass
        );
    }
    let performance = Mad::smp(
        class::PERFORMANCE,
        method::GET,
        attribute_id::PORT_COUNTERS,
        0,
    );
    let mut asked = performance;
    asked.set_performance_data(&PortCounters::default().with(PortCounters::PORT_SELECT, 1).0);
    let ProcessMad::Reply(reply) = lab.fabric.process_mad(GUEST_1, &asked, false, lab.now) else {
        panic!("no reply")
    };
    assert_ne!(
        PortCounters(reply.performance_data()).get(PortCounters::PORT_XMIT_PKTS),
        0
    );
    let ProcessMad::Reply(reply) = lab
        .fabric
        .process_mad(GUEST_1, &performance, false, lab.now)
    else {
        panic!("no reply")
    };
    assert_eq!(reply.get(Mad::STATUS), status::INVALID_VALUE);
}

#[test]
fn the_answer_to_a_set_has_the_stored_values() {
    let mut lab = Lab::active();
    let info = lab
        .port_info(H4, 1)
        .with(PortInfo::PORT_STATE, 0)
        .with(PortInfo::PORT_PHYSICAL_STATE, 0);
    let new = info
        .with(PortInfo::LINK_WIDTH_ENABLED, 255)
        .with(PortInfo::LINK_SPEED_EXT_ENABLED, 31)
        .with(PortInfo::SUBNET_TIMEOUT, 5)
        .with(PortInfo::CLIENT_REREGISTER, true);
    let path = path_to(H4);
    let answer = lab.set(&path, attribute_id::PORT_INFO, 0x8000_0001, new.0);
    let expected = lab.get(&path, attribute_id::PORT_INFO, 1).data();
    assert_eq!(answer.data(), expected);
    assert_eq!(PortInfo(expected).get(PortInfo::LINK_WIDTH_ENABLED), 3);
    assert_eq!(PortInfo(expected).get(PortInfo::SUBNET_TIMEOUT), 5);
    let refused = lab.set(
        &path,
        attribute_id::PORT_INFO,
        1,
        new.with(PortInfo::LID, 0xffff).0,
    );
    assert_eq!(refused.get(Mad::STATUS), status::INVALID_VALUE | 0x8000);
    assert_eq!(refused.data(), expected);
}

#[test]
fn an_lmc_changes_the_lids() {
    let mut lab = Lab::active();
    let info = lab
        .port_info(H4, 1)
        .with(PortInfo::PORT_STATE, 0)
        .with(PortInfo::PORT_PHYSICAL_STATE, 0);
    // The LID of H4 is 7. With an LMC of 1, a base LID is even.
    for (lid, lmc, expected) in [(8, 0, true), (8, 1, true), (8, 1, false)] {
        let new = info.with(PortInfo::LID, lid).with(PortInfo::LMC, lmc);
        lab.set(&path_to(H4), attribute_id::PORT_INFO, 1, new.0);
        let events = lab.events();
        assert_eq!(
            events.contains(&(GUEST_4, PortEvent::LidChange)),
            expected,
            "{events:?}"
        );
    }
}

#[test]
fn the_ports_of_an_adapter_are_configured_one_by_one() {
    let text = "Ca 2 \"a\"\n[1] \"b\"[1]\n\nCa 2 \"b\"\n[1] \"a\"[1]\n";
    let mut fabric = Fabric::new(&Topology::parse(text).unwrap());
    let port = PortId { node: 1, port: 1 };
    let mut valid = fabric.port_info(PortId { node: 1, port: 2 }).unwrap();
    valid.set(PortInfo::PORT_STATE, 0);
    valid.set(PortInfo::PORT_PHYSICAL_STATE, 0);
    let mut ask = |method, attribute, modifier| {
        let mut mad = Mad::smp(class::SUBNET_LID_ROUTED, method, attribute, modifier);
        mad.set_data(&valid.0);
        match fabric.process_mad(port, &mad, false, Time::ZERO) {
            ProcessMad::Reply(reply) => *reply,
            other => panic!("{other:?}"),
        }
    };
    let set = ask(method::SET, attribute_id::PORT_INFO, 2);
    assert_eq!(set.get(Mad::STATUS), status::INVALID_VALUE);
    let set = ask(method::SET, attribute_id::PORT_INFO, 1);
    assert_eq!(set.get(Mad::STATUS), status::OK);
    let state = |mad: Mad| PortInfo(mad.data()).get(PortInfo::PORT_STATE);
    assert_eq!(
        state(ask(method::GET, attribute_id::PORT_INFO, 0)),
        port_state::INIT
    );
    assert_eq!(
        state(ask(method::GET, attribute_id::PORT_INFO, 2)),
        port_state::DOWN
    );
    let node = NodeInfo(ask(method::GET, attribute_id::NODE_INFO, 0).data());
    let guids = (node.get(NodeInfo::NODE_GUID), node.get(NodeInfo::PORT_GUID));
    assert_eq!(guids, (0x10_0003, 0x10_0004));
    let table = ask(method::GET, attribute_id::GUID_INFO, 0);
    assert_eq!(table.data()[..8], 0x10_0004u64.to_be_bytes());
}
