// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The subnet with programs at its adapters. A program takes the place of a guest. This file replaces
//! the kernel's MAD layer: it begins and ends directed routes, passes MADs to the agents of the
//! adapter, and finds the program that a MAD is for.

use std::time::Duration;
use verbena_fabric::agent::smi;
use verbena_fabric::mad::attribute::capability;
use verbena_fabric::mad::{class, method, Fields, Mad, PERMISSIVE_LID};
use verbena_fabric::{Datagram, Fabric, Output, PortEvent, PortId, ProcessMad, Topology};

/// The Q_Key of QP1.
const GSI_Q_KEY: u32 = 0x8001_0000;
/// The port of its adapter to which a program is attached.
const PORT: u8 = 1;

/// A program at an adapter.
#[derive(Clone, Copy, Debug)]
struct Program {
    node: usize,
    is_sm: bool,
}

/// A MAD for a program.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub program: usize,
    pub datagram: Datagram,
}

/// The subnet and its programs.
pub struct Subnet {
    pub topology: Topology,
    pub fabric: Fabric,
    programs: Vec<Option<Program>>,
    /// Events of ports with a program, for the log.
    pub events: Vec<(PortId, PortEvent)>,
}

impl Subnet {
    /// Makes a subnet with places for a number of programs.
    pub fn new(topology: Topology, places: usize) -> Self {
        let fabric = Fabric::new(&topology);
        Self {
            topology,
            fabric,
            programs: vec![None; places],
            events: Vec::new(),
        }
    }

    /// Returns the place of a new program, if one is free.
    pub fn free_place(&self) -> Option<usize> {
        self.programs.iter().position(Option::is_none)
    }

    /// Attaches a program to an adapter. Returns the index of its node: that with the name or the
    /// description, or the first adapter if the name is empty.
    pub fn attach(&mut self, program: usize, name: &str) -> Option<usize> {
        let node = match name {
            "" => self.topology.adapters().next(),
            name => self.topology.find(name),
        };
        let node = node.filter(|node| self.topology.adapters().any(|adapter| adapter == *node))?;
        *self.programs.get_mut(program)? = Some(Program { node, is_sm: false });
        self.fabric.set_guest(node, true);
        Some(node)
    }

    /// Detaches a program.
    pub fn detach(&mut self, program: usize, now: Duration) {
        let Some(gone) = self.programs.get_mut(program).and_then(Option::take) else {
            return;
        };
        let mut others = self
            .programs
            .iter()
            .flatten()
            .filter(|other| other.node == gone.node);
        if gone.is_sm && !others.clone().any(|other| other.is_sm) {
            let port = PortId {
                node: gone.node,
                port: PORT,
            };
            self.fabric
                .set_capabilities(port, 0, capability::IS_SM, now);
        }
        if others.next().is_none() {
            self.fabric.set_guest(gone.node, false);
        }
    }

    /// Says whether a program is a subnet manager.
    pub fn set_is_sm(&mut self, program: usize, is_sm: bool, now: Duration) {
        if let Some(Some(state)) = self.programs.get_mut(program) {
            state.is_sm = is_sm;
            let port = PortId {
                node: state.node,
                port: PORT,
            };
            let (set, clear) = match is_sm {
                true => (capability::IS_SM, 0),
                false => (0, capability::IS_SM),
            };
            self.fabric.set_capabilities(port, set, clear, now);
        }
    }

    /// Returns the port to which a program is attached.
    pub fn port_of(&self, program: usize) -> Option<PortId> {
        let node = self.programs.get(program).copied().flatten()?.node;
        Some(PortId { node, port: PORT })
    }

    /// Sends a MAD of a program. Returns the deliveries to programs that this causes.
    pub fn send(
        &mut self,
        program: usize,
        destination_lid: u16,
        source_qp: u32,
        mut mad: Mad,
        now: Duration,
    ) -> Vec<Delivery> {
        let Some(from) = self.port_of(program) else {
            return Vec::new();
        };
        if !mad.get(Mad::RESPONSE) {
            // The response finds the program by the high bits, as with the kernel's MAD layer.
            let transaction = mad.get(Mad::TRANSACTION_ID) & u64::MAX >> 16;
            mad.set(Mad::TRANSACTION_ID, transaction | (program as u64) << 48);
        }
        if mad.is_directed_route() && mad.get(Mad::HOP_COUNT) == 0 {
            return self.process_own(from, mad, now);
        }
        let own_lid = self.fabric.port_info(from).map_or(0, |info| {
            info.get(verbena_fabric::mad::attribute::PortInfo::LID)
        });
        let source_lid = if destination_lid == PERMISSIVE_LID {
            PERMISSIVE_LID
        } else {
            own_lid
        };
        if mad.is_directed_route() && destination_lid == PERMISSIVE_LID {
            // The first hop leaves by the port of the program, or not at all.
            if !mad.get(Mad::RESPONSE) && mad.initial_path(1) != PORT {
                return Vec::new();
            }
            begin_route(&mut mad);
        }
        let datagram = match mad.is_smp() {
            true => Datagram::smp(source_lid, destination_lid, mad),
            false => Datagram {
                source_qp: source_qp.max(1),
                destination_qp: 1,
                q_key: GSI_Q_KEY,
                ..Datagram::smp(source_lid, destination_lid, mad)
            },
        };
        self.fabric.send(from, datagram, now);
        self.take_outputs(now)
    }

    /// Sends the traps that are due, and returns the deliveries to programs.
    pub fn poll(&mut self, now: Duration) -> Vec<Delivery> {
        self.fabric.poll(now);
        self.take_outputs(now)
    }

    /// Processes an SMP of a directed route without a hop, which does not leave the node.
    fn process_own(&mut self, at: PortId, mad: Mad, now: Duration) -> Vec<Delivery> {
        let datagram = |mad| Datagram::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad);
        let mut deliveries: Vec<Delivery> = match self.fabric.process_mad(at, &mad, false, now) {
            ProcessMad::Reply(reply) => self.find(at, datagram(*reply)).into_iter().collect(),
            ProcessMad::Consumed => Vec::new(),
            ProcessMad::Pass => self.find(at, datagram(mad)).into_iter().collect(),
        };
        deliveries.extend(self.take_outputs(now));
        deliveries
    }

    fn take_outputs(&mut self, now: Duration) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        while let Some(output) = self.fabric.next_output() {
            match output {
                Output::Event(port, event) => self.events.push((port, event)),
                // The subnet has no links to others.
                Output::Departure(..) => {}
                Output::Datagram(port, datagram) => {
                    deliveries.extend(self.receive(port, datagram, now))
                }
            }
        }
        deliveries
    }

    /// A datagram reached the port of an adapter with programs. Requests of performance management are
    /// the device's, as with the kernel.
    fn receive(&mut self, at: PortId, mut datagram: Datagram, now: Duration) -> Option<Delivery> {
        if datagram.mad.is_directed_route() {
            smi::arrive(&mut datagram.mad, false, at.port);
        }
        if datagram.mad.get(Mad::CLASS) != class::PERFORMANCE || datagram.mad.get(Mad::RESPONSE) {
            return self.find(at, datagram);
        }
        if let ProcessMad::Reply(reply) = self.fabric.process_mad(at, &datagram.mad, true, now) {
            let answer = Datagram {
                source_lid: datagram.destination_lid,
                destination_lid: datagram.source_lid,
                destination_qp: 1,
                source_qp: 1,
                mad: reply,
                ..datagram
            };
            self.fabric.send(at, answer, now);
        }
        None
    }

    /// Finds the program of a MAD: for a response the one that sent the request, else the subnet
    /// manager.
    fn find(&self, at: PortId, datagram: Datagram) -> Option<Delivery> {
        let is_here = |index: &usize| {
            self.programs
                .get(*index)
                .copied()
                .flatten()
                .is_some_and(|program| program.node == at.node)
        };
        let program = if datagram.mad.get(Mad::RESPONSE)
            || datagram.mad.get(Mad::METHOD) == method::TRAP_REPRESS
        {
            Some((datagram.mad.get(Mad::TRANSACTION_ID) >> 48) as usize).filter(is_here)
        } else {
            (0..self.programs.len()).find(|index| {
                is_here(index) && self.programs[*index].is_some_and(|program| program.is_sm)
            })
        };
        Some(Delivery {
            program: program?,
            datagram,
        })
    }
}

/// Moves the hop pointer of an SMP that leaves its first node (IBTA 14.2.2).
fn begin_route(mad: &mut Mad) {
    let pointer = if mad.get(Mad::RESPONSE) {
        mad.get(Mad::HOP_COUNT)
    } else {
        1
    };
    mad.set(Mad::DIRECTION, mad.get(Mad::RESPONSE));
    mad.set(Mad::HOP_POINTER, pointer);
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbena_fabric::mad::attribute_id;

    const TWO: &str = "Switch 2 \"s\"\n[1] \"a\"[1]\n[2] \"b\"[1]\n\n\
                       Ca 1 \"a\"\n[1] \"s\"[1]\n\nCa 1 \"b\"\n[1] \"s\"[2]\n";

    /// A subnet with a program at each of two adapters.
    fn two_programs() -> Subnet {
        let mut subnet = Subnet::new(Topology::parse(TWO).unwrap(), 3);
        assert_eq!(
            (subnet.attach(0, ""), subnet.attach(1, "b")),
            (Some(1), Some(2))
        );
        assert_eq!(
            (subnet.free_place(), subnet.attach(2, "s")),
            (Some(2), None)
        );
        subnet
    }

    /// Program 0 sends a Get by a directed route.
    fn get(subnet: &mut Subnet, path: &[u8], attribute: u16) -> Vec<Delivery> {
        let mut mad = Mad::smp(class::SUBNET_DIRECTED_ROUTE, method::GET, attribute, 0);
        mad.set_initial_path(path);
        subnet.send(0, PERMISSIVE_LID, 0, mad, Duration::ZERO)
    }

    #[test]
    fn a_program_asks_its_own_adapter_and_others() {
        let mut subnet = two_programs();
        for path in [&[][..], &[1], &[1, 2]] {
            let deliveries = get(&mut subnet, path, attribute_id::NODE_INFO);
            let [Delivery {
                program: 0,
                datagram,
            }] = &deliveries[..]
            else {
                panic!("{deliveries:?}")
            };
            assert!(datagram.mad.get(Mad::RESPONSE) && datagram.mad.get(Mad::HOP_POINTER) <= 1);
        }
        assert_eq!(get(&mut subnet, &[2], attribute_id::NODE_INFO).len(), 0);
    }

    #[test]
    fn requests_reach_the_manager_and_responses_the_requester() {
        let mut subnet = two_programs();
        subnet.set_is_sm(1, true, Duration::ZERO);
        let deliveries = get(&mut subnet, &[1, 2], attribute_id::SM_INFO);
        let [Delivery {
            program: 1,
            datagram,
        }] = &deliveries[..]
        else {
            panic!("{deliveries:?}")
        };
        let mut response = *datagram.mad;
        response.make_response(0);
        let deliveries = subnet.send(1, PERMISSIVE_LID, 0, response, Duration::ZERO);
        assert!(
            matches!(deliveries[..], [Delivery { program: 0, .. }]),
            "{deliveries:?}"
        );
        subnet.detach(1, Duration::ZERO);
        let deliveries = get(&mut subnet, &[1, 2], attribute_id::SM_INFO);
        assert!(
            matches!(deliveries[..], [Delivery { program: 0, .. }]),
            "{deliveries:?}"
        );
    }
}
