// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The performance management agent (PMA) of a node (IBTA 16.1).

use crate::counters::Counters;
use crate::mad::performance::{
    ClassPortInfo, PortCounters, PortCountersExtended, ALL_PORT_SELECT,
    IS_EXTENDED_WIDTH_SUPPORTED, IS_PORT_XMIT_WAIT_SUPPORTED,
};
use crate::mad::{attribute_id, method, status, Fields, Mad};
use crate::node::Node;

/// PortSelect of all ports.
const ALL_PORTS: u8 = 255;
/// ClassPortInfo:RespTimeValue, the code of 0.27 s.
const RESPONSE_TIME: u8 = 16;

/// Answers a request of performance management. None: the datagram is no request.
pub fn answer(node: &mut Node, request: &Mad) -> Option<Mad> {
    let asked = request.get(Mad::METHOD);
    if request.get(Mad::RESPONSE)
        || [method::TRAP, method::REPORT, method::TRAP_REPRESS].contains(&asked)
    {
        return None;
    }
    let mut response = *request;
    let status = match execute(node, &mut response) {
        Ok(()) => status::OK,
        Err(status) => status,
    };
    response.make_response(status);
    Some(response)
}

/// Executes a request, and replaces its data by the data of the response.
fn execute(node: &mut Node, mad: &mut Mad) -> Result<(), u16> {
    if mad.get(Mad::BASE_VERSION) != 1 || mad.get(Mad::CLASS_VERSION) != 1 {
        return Err(status::BAD_VERSION);
    }
    let is_set = match mad.get(Mad::METHOD) {
        method::GET => false,
        method::SET => true,
        _ => return Err(status::UNSUPPORTED_METHOD),
    };
    match mad.get(Mad::ATTRIBUTE_ID) {
        attribute_id::CLASS_PORT_INFO if !is_set => {
            mad.set_performance_data(&class_port_info(node).0);
            Ok(())
        }
        attribute_id::PORT_COUNTERS => port_counters(node, mad, is_set),
        attribute_id::PORT_COUNTERS_EXTENDED => port_counters_extended(node, mad, is_set),
        _ => Err(status::UNSUPPORTED_ATTRIBUTE),
    }
}

fn class_port_info(node: &Node) -> ClassPortInfo {
    let all_ports = if node.is_switch() { ALL_PORT_SELECT } else { 0 };
    let mask = all_ports | IS_EXTENDED_WIDTH_SUPPORTED | IS_PORT_XMIT_WAIT_SUPPORTED;
    ClassPortInfo::default()
        .with(ClassPortInfo::BASE_VERSION, 1)
        .with(ClassPortInfo::CLASS_VERSION, 1)
        .with(ClassPortInfo::CAPABILITY_MASK, mask)
        .with(ClassPortInfo::RESP_TIME_VALUE, RESPONSE_TIME)
}

fn port_counters(node: &mut Node, mad: &mut Mad, is_set: bool) -> Result<(), u16> {
    let asked = PortCounters(mad.performance_data());
    let port = asked.get(PortCounters::PORT_SELECT);
    if is_set {
        change(node, port, |counters| counters.set_basic(&asked))?;
    }
    let mut shown = *selected(node, port)?.basic();
    shown.copy(PortCounters::PORT_SELECT, &asked);
    shown.copy(PortCounters::COUNTER_SELECT, &asked);
    shown.copy(PortCounters::COUNTER_SELECT_2, &asked);
    mad.set_performance_data(&shown.0);
    Ok(())
}

fn port_counters_extended(node: &mut Node, mad: &mut Mad, is_set: bool) -> Result<(), u16> {
    let asked = PortCountersExtended(mad.performance_data());
    let port = asked.get(PortCountersExtended::PORT_SELECT);
    if is_set {
        change(node, port, |counters| counters.set_extended(&asked))?;
    }
    let mut shown = *selected(node, port)?.extended();
    shown.copy(PortCountersExtended::PORT_SELECT, &asked);
    shown.copy(PortCountersExtended::COUNTER_SELECT, &asked);
    mad.set_performance_data(&shown.0);
    Ok(())
}

/// Returns the numbers of the ports that PortSelect selects.
fn ports(node: &Node, select: u8) -> Result<Vec<u8>, u16> {
    match select {
        ALL_PORTS if node.is_switch() => Ok(node.port_numbers().collect()),
        _ if node.port(select).is_some() => Ok(vec![select]),
        _ => Err(status::INVALID_VALUE),
    }
}

/// Returns the sums of the counters of the selected ports.
fn selected(node: &Node, select: u8) -> Result<Counters, u16> {
    let mut sums = Counters::default();
    for number in ports(node, select)? {
        if let Some(port) = node.port(number) {
            sums.add_port(&port.counters);
        }
    }
    Ok(sums)
}

fn change(node: &mut Node, select: u8, mut action: impl FnMut(&mut Counters)) -> Result<(), u16> {
    for number in ports(node, select)? {
        if let Some(port) = node.port_mut(number) {
            action(&mut port.counters);
        }
    }
    Ok(())
}
