// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Management datagrams of an attacker who knows the topology, the LIDs and the attributes.

use super::manager::{lid, GROUP};
use super::Plan;
use verbena_fabric::mad::attribute::{port_state, PortInfo};
use verbena_fabric::mad::{attribute_id, class, method, Fields, Mad, PERMISSIVE_LID};
use verbena_fabric::{Datagram, Fabric, PortId};
use verbena_lab_transport::fuzz::FuzzInput;

/// The Q_Key of QP1.
const GSI_Q_KEY: u32 = 0x8001_0000;
/// Entries of the paths of a directed route.
const PATH_LEN: u8 = 64;

const CLASSES: [u8; 8] = [
    class::SUBNET_LID_ROUTED,
    class::SUBNET_LID_ROUTED,
    class::SUBNET_DIRECTED_ROUTE,
    class::SUBNET_DIRECTED_ROUTE,
    class::SUBNET_DIRECTED_ROUTE,
    class::PERFORMANCE,
    // Subnet administration, and a class of vendors.
    0x03,
    0x32,
];
const METHODS: [u8; 10] = [
    method::GET,
    method::SET,
    method::SET,
    method::SET,
    method::TRAP,
    method::TRAP_REPRESS,
    method::REPORT,
    method::GET_RESPONSE,
    // TrapRepress with the response bit, and GetTraceTable, which no agent has.
    0x87,
    0x13,
];
const ATTRIBUTES: [u16; 14] = [
    attribute_id::CLASS_PORT_INFO,
    attribute_id::NOTICE,
    attribute_id::NODE_DESCRIPTION,
    attribute_id::NODE_INFO,
    attribute_id::SWITCH_INFO,
    attribute_id::GUID_INFO,
    attribute_id::PORT_INFO,
    attribute_id::P_KEY_TABLE,
    attribute_id::SL_TO_VL_TABLE,
    attribute_id::VL_ARBITRATION,
    attribute_id::LINEAR_FORWARDING_TABLE,
    attribute_id::MULTICAST_FORWARDING_TABLE,
    attribute_id::PORT_COUNTERS_EXTENDED,
    attribute_id::SM_INFO,
];

/// Draws a MAD for the agents of a node.
pub fn mad(input: &mut FuzzInput<'_>, plan: &Plan, fabric: &Fabric, to: usize, key: u64) -> Mad {
    let (class, method) = (input.pick(&CLASSES), input.pick(&METHODS));
    let attribute = input.pick(&ATTRIBUTES);
    let port = input.u8() % 6;
    let number = u32::from(port);
    let modifiers = [
        number,
        0,
        1 << 31 | number,
        number << 16,
        number << 16 | 1,
        1 << 16 | number,
        3 << 16 | number,
        number << 8 | 1,
        2 << 28,
        u32::MAX,
    ];
    let mut mad = Mad::smp(class, method, attribute, input.pick(&modifiers));
    // A small number, as those of the agents' traps.
    mad.set(Mad::TRANSACTION_ID, input.u8().into());
    if attribute == attribute_id::PORT_INFO {
        let at = PortId { node: to, port };
        let info = fabric.port_info(at).unwrap_or_default();
        mad.set_data(&changed(input, info).0);
    }
    spoil(input, &mut mad);
    mad.set(Mad::M_KEY, key);
    keep_key(plan, &mut mad);
    mad
}

/// Puts the M_Key of the subnet into the PortInfo of an SMP, so that a Set does not give the port
/// another one, which any guest may know.
pub fn keep_key(plan: &Plan, mad: &mut Mad) {
    if mad.get(Mad::ATTRIBUTE_ID) == attribute_id::PORT_INFO && mad.is_smp() {
        let mut info = PortInfo(mad.data());
        plan.key.put(&mut info);
        mad.set_data(&info.0);
    }
}

/// Returns PortInfo of a Set that changes some of the fields.
fn changed(input: &mut FuzzInput<'_>, mut info: PortInfo) -> PortInfo {
    let states = [
        port_state::NO_CHANGE,
        port_state::NO_CHANGE,
        port_state::DOWN,
        port_state::ARMED,
        port_state::ACTIVE,
    ];
    info.set(PortInfo::PORT_STATE, input.pick(&states));
    info.set(PortInfo::PORT_PHYSICAL_STATE, input.pick(&[0, 0, 0, 2, 3]));
    let how = input.u8();
    if how & 1 != 0 {
        info.set(PortInfo::LID, input.u8().into());
        info.set(PortInfo::LMC, how >> 5);
    }
    if how & 2 != 0 {
        info.set(PortInfo::CLIENT_REREGISTER, true);
        info.set(PortInfo::MASTER_SM_LID, input.u8().into());
    }
    if how & 4 != 0 {
        info.set(PortInfo::NEIGHBOR_MTU, how >> 4);
        info.set(PortInfo::OPERATIONAL_VLS, input.u8());
    }
    if how & 8 != 0 {
        info.set(PortInfo::LINK_WIDTH_ENABLED, input.u8());
        info.set(PortInfo::PARTITION_ENFORCEMENT_INBOUND, true);
        info.set(PortInfo::PARTITION_ENFORCEMENT_OUTBOUND, true);
    }
    info
}

/// Fills the attribute, or changes one byte, or neither.
fn spoil(input: &mut FuzzInput<'_>, mad: &mut Mad) {
    let how = input.u8();
    if how & 3 == 3 {
        let pattern = [input.u8(), input.u8(), input.u8(), input.u8()];
        for (byte, value) in mad.0[64..128].iter_mut().zip(pattern.iter().cycle()) {
            *byte = *value;
        }
    }
    if how & 0x1c == 0x1c {
        let at = usize::from(input.u8());
        mad.0[at] = input.u8();
    }
}

/// Draws a datagram of a guest with a MAD for a node.
pub fn datagram(
    input: &mut FuzzInput<'_>,
    plan: &Plan,
    fabric: &Fabric,
    guest: usize,
    key: u64,
) -> Datagram {
    let to = usize::from(input.u8()) % plan.topology.nodes.len();
    let mut mad = mad(input, plan, fabric, to, key);
    let own = fabric.port_info(plan.guests[guest]).unwrap_or_default();
    let own = own.get(PortInfo::LID);
    let (source, destination) = match mad.is_directed_route() {
        true => direct(input, plan, guest, to, own, &mut mad),
        false => {
            let lids = [lid(to), lid(to), lid(to), PERMISSIVE_LID, GROUP, 0, own, 60];
            let lid = input.pick(&lids);
            let is_next = lid == PERMISSIVE_LID && mad.is_smp();
            (if is_next { PERMISSIVE_LID } else { own }, lid)
        }
    };
    let usual = u32::from(!mad.is_smp());
    let how = input.u8();
    let (source_qp, destination_qp) = match how & 15 {
        0 => (0, 1),
        1 => (1, 0),
        2 => (1, 1),
        3 => (5, 1),
        4 => (0, 0),
        _ => (usual, usual),
    };
    let source_lid = match how & 0x30 {
        0x30 => input.pick(&[PERMISSIVE_LID, lid(to), 0, own ^ 1]),
        _ => source,
    };
    Datagram {
        source_lid,
        sl: input.u8() & 15,
        source_qp,
        destination_qp,
        p_key: input.pick(&[0xffff, 0xffff, 0x7fff, 0x8001, 0]),
        q_key: input.pick(&[GSI_Q_KEY, GSI_Q_KEY, GSI_Q_KEY, 0]),
        grh: (how & 0xc0 == 0xc0).then_some([7; 40]),
        ..Datagram::smp(source, destination, mad)
    }
}

/// Gives an SMP a directed route, and returns its source LID and destination LID.
fn direct(
    input: &mut FuzzInput<'_>,
    plan: &Plan,
    guest: usize,
    to: usize,
    own: u16,
    mad: &mut Mad,
) -> (u16, u16) {
    let route = plan.routes[guest][to].as_deref().unwrap_or(&[1]);
    mad.set_initial_path(route);
    mad.set(Mad::HOP_POINTER, 1);
    match input.u8() % 8 {
        0 => wild(input, own, mad),
        1 => circle(input, mad),
        2 => {
            // The LID-routed part is the first.
            mad.set(Mad::DR_SLID, own);
            mad.set(Mad::HOP_POINTER, 0);
            mad.set_initial_path(&[input.u8() % 6, input.u8() % 6][..1 + route.len() % 2]);
            return (own, lid(to));
        }
        3 => {
            // The LID-routed part is the last.
            mad.set_initial_path(&route[..route.len().min(1)]);
            mad.set(Mad::DR_DLID, lid(to));
        }
        4 => {
            // The way back to a manager.
            mad.set(Mad::DIRECTION, true);
            let hops = route.len() as u8;
            for (hop, port) in (1..).zip(route) {
                mad.set_return_path(hops + 1 - hop, *port);
            }
            mad.set(Mad::HOP_POINTER, hops + input.u8() % 2);
        }
        _ => {}
    }
    (PERMISSIVE_LID, PERMISSIVE_LID)
}

/// Gives an SMP any pointer, any number of hops and any ports.
fn wild(input: &mut FuzzInput<'_>, own: u16, mad: &mut Mad) {
    mad.set(Mad::HOP_POINTER, input.u8());
    mad.set(Mad::HOP_COUNT, input.u8());
    mad.set(Mad::DIRECTION, input.u8() & 1 != 0);
    mad.set(Mad::DR_SLID, input.pick(&[PERMISSIVE_LID, own, 1, 2]));
    mad.set(Mad::DR_DLID, input.pick(&[PERMISSIVE_LID, 1, 2, 0xc000]));
    for hop in 0..PATH_LEN {
        mad.set_return_path(hop, if hop < 8 { input.u8() % 6 } else { hop % 6 });
    }
}

/// Gives an SMP a route that goes to and fro between two switches.
fn circle(input: &mut FuzzInput<'_>, mad: &mut Mad) {
    let turns = [input.u8() % 6, input.u8() % 6];
    let mut path = vec![1];
    path.extend(
        turns
            .iter()
            .cycle()
            .take(usize::from(input.u8() % PATH_LEN)),
    );
    mad.set_initial_path(&path);
}
