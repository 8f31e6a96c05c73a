// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of whole subnets: a small subnet manager configures three switches in a triangle, with a
//! guest at two of six adapters.

mod forwarding;
mod hostile;
mod key_violations;
mod management;
mod remote_links;

use super::*;
use crate::mad::attribute::{capability, port_state, SwitchInfo};
use crate::mad::{attribute_id, class, method, status, PERMISSIVE_LID};

/// Adapters H1 and H4 have guests. The switches are S1 to S3, with ports 1 and 2 to adapters, and 3
/// and 4 to the other switches.
const TRIANGLE: &str = r#"
Switch 4 "S1"
[1] "H1"[1]
[2] "H2"[1]
[3] "S2"[4]
[4] "S3"[3]

Switch 4 "S2"
[1] "H3"[1]
[2] "H4"[1]
[3] "S3"[4]
[4] "S1"[3]

Switch 4 "S3"
[1] "H5"[1]
[2] "H6"[1]
[3] "S1"[4]
[4] "S2"[3]

Ca 1 "H1"
[1] "S1"[1]

Ca 1 "H2"
[1] "S1"[2]

Ca 1 "H3"
[1] "S2"[1]

Ca 1 "H4"
[1] "S2"[2]

Ca 1 "H5"
[1] "S3"[1]

Ca 1 "H6"
[1] "S3"[2]
"#;

/// Nodes of the topology.
const S1: usize = 0;
const S2: usize = 1;
const S3: usize = 2;
const H1: usize = 3;
const H2: usize = 4;
const H4: usize = 6;
const H5: usize = 7;

/// Ports with a guest.
const GUEST_1: PortId = PortId { node: H1, port: 1 };
const GUEST_4: PortId = PortId { node: H4, port: 1 };

/// The multicast LID of the tests.
const GROUP: u16 = 0xc003;

/// A subnet, and the time.
struct Lab {
    fabric: Fabric,
    now: Time,
    transaction: u64,
}

impl Lab {
    /// A subnet after power-on.
    fn new() -> Self {
        let mut fabric = Fabric::new(&Topology::parse(TRIANGLE).unwrap());
        fabric.set_guest(H1, true);
        fabric.set_guest(H4, true);
        Self {
            fabric,
            now: Time::ZERO,
            transaction: 0,
        }
    }

    /// A subnet in which each port is active. Node n has the LID n + 1.
    fn active() -> Self {
        let mut lab = Self::new();
        for node in [S1, S2, S3] {
            lab.configure_switch(node);
        }
        for state in [0, port_state::ARMED, port_state::ACTIVE] {
            for node in 0..lab.fabric.nodes.len() {
                lab.configure_ports(node, state);
            }
        }
        lab.events();
        lab
    }

    /// Gives a switch its LID and its tables.
    fn configure_switch(&mut self, node: usize) {
        let path = path_to(node);
        self.set_lid(node, 0, 0);
        let mut block = [255; SMP_DATA_LEN];
        for to in 0..9 {
            block[to + 1] = egress(node, to);
        }
        self.set(&path, attribute_id::LINEAR_FORWARDING_TABLE, 0, block);
        let info = SwitchInfo::default()
            .with(SwitchInfo::LINEAR_FDB_TOP, 9)
            .with(SwitchInfo::PORT_STATE_CHANGE, true);
        self.set(&path, attribute_id::SWITCH_INFO, 0, info.0);
    }

    /// Configures all ports of a node, and asks for a state.
    fn configure_ports(&mut self, node: usize, state: u8) {
        let numbers = self.fabric.nodes[node].port_numbers();
        for port in numbers {
            if self.fabric.nodes[node].port(port).unwrap().peer.is_some() {
                self.set_lid(node, port, state);
            }
        }
    }

    /// Sets the LIDs and the state of a port.
    fn set_lid(&mut self, node: usize, port: u8, state: u8) {
        let mut info = self.port_info(node, port);
        if port == 0 || node >= H1 {
            info.set(PortInfo::LID, node as u16 + 1);
            info.set(PortInfo::MASTER_SM_LID, H1 as u16 + 1);
        }
        info.set(PortInfo::PORT_STATE, state);
        info.set(PortInfo::PORT_PHYSICAL_STATE, 0);
        let answer = self.set(
            &path_to(node),
            attribute_id::PORT_INFO,
            u32::from(port),
            info.0,
        );
        assert_eq!(
            answer.get(Mad::STATUS) & 0x7fff,
            status::OK,
            "node {node} port {port} state {state}"
        );
    }

    /// Returns PortInfo, as the agent of the node answers.
    fn port_info(&mut self, node: usize, port: u8) -> PortInfo {
        PortInfo(
            self.get(&path_to(node), attribute_id::PORT_INFO, u32::from(port))
                .data(),
        )
    }

    fn get(&mut self, path: &[u8], attribute: u16, modifier: u32) -> Mad {
        let mad = Mad::smp(
            class::SUBNET_DIRECTED_ROUTE,
            method::GET,
            attribute,
            modifier,
        );
        self.ask_by_path(path, mad).expect("an answer")
    }

    fn set(&mut self, path: &[u8], attribute: u16, modifier: u32, data: [u8; SMP_DATA_LEN]) -> Mad {
        let mut mad = Mad::smp(
            class::SUBNET_DIRECTED_ROUTE,
            method::SET,
            attribute,
            modifier,
        );
        mad.set_data(&data);
        self.ask_by_path(path, mad).expect("an answer")
    }

    /// Sets IsSM of a guest's port. Returns false if refused.
    fn set_is_sm(&mut self, guest: PortId) -> bool {
        self.fabric
            .set_capabilities(guest, capability::IS_SM, 0, self.now)
    }

    /// Sends an SMP of guest 1 by a directed route, and returns its answer.
    fn ask_by_path(&mut self, path: &[u8], mut mad: Mad) -> Option<Mad> {
        mad.set_initial_path(path);
        if path.is_empty() {
            return match self.fabric.process_mad(GUEST_1, &mad, false, self.now) {
                ProcessMad::Reply(reply) => Some(*reply),
                _ => None,
            };
        }
        mad.set(Mad::HOP_POINTER, 1);
        self.ask(Datagram::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad))
    }

    /// Sends a LID-routed SMP of guest 1, and returns its answer.
    fn ask_by_lid(&mut self, lid: u16, method: u8, attribute: u16) -> Option<Mad> {
        let mad = Mad::smp(class::SUBNET_LID_ROUTED, method, attribute, 0);
        let source = match lid {
            PERMISSIVE_LID => PERMISSIVE_LID,
            _ => self.fabric.port(GUEST_1).unwrap().lid(),
        };
        self.ask(Datagram::smp(source, lid, mad))
    }

    /// Sends a datagram of guest 1, and returns the datagram with the same transaction.
    fn ask(&mut self, mut datagram: Datagram) -> Option<Mad> {
        self.transaction += 1;
        datagram
            .mad
            .set(Mad::TRANSACTION_ID, self.transaction | 1 << 40);
        self.fabric.send(GUEST_1, datagram, self.now);
        let outputs = &mut self.fabric.outputs;
        let is_answer = |output: &Output| {
            matches!(output, Output::Datagram(GUEST_1, datagram)
                if datagram.mad.get(Mad::TRANSACTION_ID) == self.transaction | 1 << 40)
        };
        let place = outputs.iter().position(is_answer)?;
        match outputs.remove(place) {
            Some(Output::Datagram(_, datagram)) => Some(*datagram.mad),
            _ => None,
        }
    }

    /// Takes the events so far.
    fn events(&mut self) -> Vec<(PortId, PortEvent)> {
        let outputs = std::mem::take(&mut self.fabric.outputs);
        let (events, rest) = outputs
            .into_iter()
            .partition(|output| matches!(output, Output::Event(..)));
        self.fabric.outputs = rest;
        let event = |output| match output {
            Output::Event(port, event) => (port, event),
            Output::Datagram(..) | Output::Departure(..) => unreachable!(),
        };
        VecDeque::into_iter(events).map(event).collect()
    }

    /// Takes the datagrams for guests.
    fn datagrams(&mut self) -> Vec<(PortId, Datagram)> {
        let outputs = std::mem::take(&mut self.fabric.outputs);
        let datagram = |output| match output {
            Output::Datagram(port, datagram) => Some((port, datagram)),
            Output::Event(..) | Output::Departure(..) => None,
        };
        outputs.into_iter().filter_map(datagram).collect()
    }

    /// Represses a trap, as the subnet manager of guest 1.
    fn repress(&mut self, trap: &Datagram) {
        let repress = trap.mad.with(Mad::METHOD, method::TRAP_REPRESS);
        self.fabric.send(
            GUEST_1,
            Datagram::smp(trap.destination_lid, trap.source_lid, repress),
            self.now,
        );
    }

    /// Sends a data packet of guest 1, and returns the nodes that it reaches.
    fn forward(&mut self, lid: u16, sl: u8, p_key: u16) -> Vec<usize> {
        let header = RouteHeader {
            destination_lid: lid,
            sl,
            p_key,
            length: 100,
        };
        let mut arrivals = Vec::new();
        self.fabric.forward(GUEST_1, &header, &mut arrivals);
        arrivals.iter().map(|arrival| arrival.port.node).collect()
    }

    fn state(&self, node: usize, port: u8) -> u8 {
        self.fabric.port(PortId { node, port }).unwrap().state()
    }

    fn port_state_change(&self, node: usize) -> bool {
        self.fabric.nodes[node]
            .tables
            .as_ref()
            .unwrap()
            .info
            .get(SwitchInfo::PORT_STATE_CHANGE)
    }
}

/// Returns the directed route from H1 to a node.
fn path_to(node: usize) -> Vec<u8> {
    match node {
        S1 => vec![1],
        S2 => vec![1, 3],
        S3 => vec![1, 4],
        H1 => vec![],
        adapter => {
            let switch = (adapter - H1) / 2;
            let mut path = path_to(switch);
            path.push((adapter - H1) as u8 % 2 + 1);
            path
        }
    }
}

/// Returns the port by which a switch reaches a node.
fn egress(switch: usize, to: usize) -> u8 {
    let home = if to < H1 { to } else { (to - H1) / 2 };
    match (home + 3 - switch) % 3 {
        0 if to < H1 => 0,
        0 => (to - H1) as u8 % 2 + 1,
        1 => 3,
        _ => 4,
    }
}
