// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Forwarding of management datagrams, and their delivery to agents and guests.

use super::forward::{FarEnd, RouteHeader, MANAGEMENT_VL};
use super::key_violations::{KeyViolations, ViolatedKey};
use super::{Datagram, Fabric, Output, PortEvent, DATAGRAM_LEN, HOPS};
use crate::agent::pma;
use crate::agent::sma::{self, Effects, Origin, Outcome};
use crate::agent::smi::{self, Step};
use crate::counters::PortError;
use crate::mad::attribute::{capability, PortInfo};
use crate::mad::{attribute_id, class, method, p_keys_match, Fields, Mad, PERMISSIVE_LID};
use crate::port::Port;
use crate::{PortId, Time};

/// The Q_Key of QP1.
const GSI_Q_KEY: u32 = 0x8001_0000;

/// A datagram that arrived at a port.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    at: PortId,
    datagram: Datagram,
    /// Links that the datagram has passed.
    hops: u32,
}

impl Fabric {
    /// Sends a datagram of a guest by the port of its adapter. Datagrams for queue pairs other than QP0
    /// and QP1 are data: see [`Fabric::forward`].
    pub fn send(&mut self, from: PortId, datagram: Datagram, now: Time) {
        if self.may_send(from, &datagram) {
            self.route_from_adapter(from, datagram, 0);
            self.run(now);
        }
        self.poll(now);
    }

    /// Takes a datagram that came from another fabric by the link of port `ingress`. `links` is the
    /// number of links that it may still pass.
    pub fn receive_datagram(&mut self, ingress: PortId, datagram: Datagram, links: u32, now: Time) {
        let vl = if datagram.is_smp() { MANAGEMENT_VL } else { 0 };
        if self.is_remote(ingress)
            && datagram.is_valid()
            && self.enter(ingress, vl, &header(&datagram))
        {
            self.in_flight.push_back(InFlight {
                at: ingress,
                datagram,
                hops: HOPS.saturating_sub(links),
            });
            self.run(now);
        }
        self.poll(now);
    }

    /// Sends the traps that are due.
    pub fn poll(&mut self, now: Time) {
        for node in 0..self.nodes.len() {
            let Some(ports) = self.nodes.get(node).map(|node| match node.is_switch() {
                true => 0..=0,
                false => node.port_numbers(),
            }) else {
                continue;
            };
            for port in ports {
                for datagram in self.take_traps(PortId { node, port }, now) {
                    self.route(PortId { node, port }, datagram, 0);
                }
            }
        }
        self.run(now);
    }

    /// Returns the traps of a managed port that are due.
    fn take_traps(&mut self, id: PortId, now: Time) -> Vec<Datagram> {
        let Some(node) = self.nodes.get_mut(id.node) else {
            return Vec::new();
        };
        let Some(info) = node.port(id.port).map(|port| port.info) else {
            return Vec::new();
        };
        let due = node
            .traps_mut(id.port)
            .map_or_else(Vec::new, |traps| traps.take_due(&info, now));
        let (lid, manager) = (info.get(PortInfo::LID), info.get(PortInfo::MASTER_SM_LID));
        let datagram = |mad| Datagram {
            sl: info.get(PortInfo::MASTER_SM_SL),
            ..Datagram::smp(lid, manager, mad)
        };
        due.into_iter().map(datagram).collect()
    }

    /// Returns true if an adapter sends a datagram of its guest.
    fn may_send(&mut self, from: PortId, datagram: &Datagram) -> bool {
        let Some(node) = self.nodes.get(from.node).filter(|node| !node.is_switch()) else {
            return false;
        };
        let Some(port) = node.port(from.port) else {
            return false;
        };
        let source = datagram.source_lid;
        let is_permissive = source == PERMISSIVE_LID && datagram.destination_lid == PERMISSIVE_LID;
        let is_source_own =
            is_permissive && datagram.is_smp() || source == port.lid() || port.has_lid(source);
        // Agents answer all requests to the adapter, so its guest has no response to send.
        if datagram.is_smp() && !node.guest_may_manage {
            self.refused_smps += 1;
            return false;
        }
        datagram.is_valid() && is_source_own
    }

    /// Handles all datagrams that have arrived. The loop ends: a datagram passes at most `HOPS` links,
    /// and makes at most one other datagram.
    fn run(&mut self, now: Time) {
        while let Some(arrived) = self.in_flight.pop_front() {
            if arrived.datagram.is_smp() {
                self.arrive_smp(arrived, now);
            } else {
                self.arrive_gmp(arrived, now);
            }
        }
    }

    /// Returns the port with the LID for datagrams that arrived at a port.
    fn managed_port(&self, at: PortId) -> PortId {
        let port = self
            .nodes
            .get(at.node)
            .map_or(at.port, |node| node.managed_port(at.port));
        PortId { port, ..at }
    }

    fn has_lid(&self, at: PortId, lid: u16) -> bool {
        self.port(self.managed_port(at))
            .is_some_and(|port| port.has_lid(lid))
    }

    fn lid(&self, at: PortId) -> u16 {
        self.port(self.managed_port(at))
            .map_or(0, |port| port.lid())
    }

    /// An SMP arrived at a port.
    fn arrive_smp(&mut self, arrived: InFlight, now: Time) {
        let lid = arrived.datagram.destination_lid;
        if lid != PERMISSIVE_LID && !self.has_lid(arrived.at, lid) {
            return self.relay_datagram(arrived);
        }
        let mut moved = arrived.datagram.mad.clone();
        if !moved.is_directed_route() {
            return self.arrive_at_agent(arrived, &moved, now);
        }
        let is_switch = self
            .nodes
            .get(arrived.at.node)
            .is_some_and(|node| node.is_switch());
        match smi::arrive(&mut moved, is_switch, arrived.at.port) {
            Step::Agent => self.arrive_at_agent(arrived, &moved, now),
            Step::Manager => self.deliver(arrived),
            step => self.take_step(
                arrived.at,
                step,
                Datagram {
                    mad: moved,
                    ..arrived.datagram
                },
                arrived.hops,
            ),
        }
    }

    /// Sends an SMP of a directed route from a node to its next place.
    fn take_step(&mut self, at: PortId, step: Step, mut datagram: Datagram, hops: u32) {
        match step {
            Step::Port(port) => {
                datagram.source_lid = PERMISSIVE_LID;
                datagram.destination_lid = PERMISSIVE_LID;
                self.leave(PortId { port, ..at }, MANAGEMENT_VL, datagram, hops);
            }
            Step::Lid(lid) => {
                datagram.source_lid = self.lid(at);
                datagram.destination_lid = lid;
                self.route(self.managed_port(at), datagram, hops);
            }
            Step::Agent | Step::Manager | Step::Discard => {}
        }
    }

    /// An SMP reached its destination. `mad` is the SMP after its hop pointer moved. A guest gets the
    /// SMP as it came over the link, because the kernel's SMI moves the pointer itself.
    fn arrive_at_agent(&mut self, arrived: InFlight, mad: &Mad, now: Time) {
        if self.is_for_manager(arrived.at, mad) {
            return self.deliver(arrived);
        }
        match self.ask_sma(arrived.at, mad, Origin::Subnet, now) {
            Outcome::Answer(response, _) => self.answer_smp(arrived, *response),
            Outcome::Consumed => {}
            Outcome::NotForAgent => self.deliver(arrived),
        }
    }

    /// Returns true if an SMP is for the subnet manager in the guest of an adapter, and not for the adapter.
    fn is_for_manager(&self, at: PortId, mad: &Mad) -> bool {
        let has_sm = self
            .port(at)
            .is_some_and(|port| port.info.get(PortInfo::CAPABILITY_MASK) & capability::IS_SM != 0);
        let is_request = [method::GET, method::SET].contains(&mad.get(Mad::METHOD));
        has_sm && is_request && mad.get(Mad::ATTRIBUTE_ID) == attribute_id::SM_INFO
    }

    /// Passes an SMP to the subnet management agent, and applies the effects of a Set.
    pub(super) fn ask_sma(&mut self, at: PortId, mad: &Mad, origin: Origin, now: Time) -> Outcome {
        let before = self.watch(at);
        let Some(node) = self.nodes.get_mut(at.node) else {
            return Outcome::Consumed;
        };
        let mut outcome = sma::handle(node, at.port, mad, origin, now);
        if let Outcome::Answer(response, effects) = &mut outcome {
            self.apply(at, *effects, response, now);
            self.report_changes(at, before);
            if effects.reregister {
                self.report_event(at, PortEvent::ClientReregister);
            }
        }
        outcome
    }

    /// Changes the link of a port after a Set, and shows the new states in the response.
    fn apply(&mut self, at: PortId, effects: Effects, response: &mut Mad, now: Time) {
        let Some((number, request)) = effects.link else {
            return;
        };
        let changed = PortId { port: number, ..at };
        self.request_link(changed, request, now);
        if let Some(port) = self.port(changed) {
            let mut shown = PortInfo(response.data());
            shown.copy(PortInfo::PORT_STATE, &port.info);
            shown.copy(PortInfo::PORT_PHYSICAL_STATE, &port.info);
            shown.copy(PortInfo::LINK_WIDTH_ACTIVE, &port.info);
            shown.copy(PortInfo::LINK_SPEED_ACTIVE, &port.info);
            response.set_data(&shown.0);
        }
    }

    /// Sends the response of an agent.
    fn answer_smp(&mut self, request: InFlight, response: Mad) {
        let mut datagram = request.datagram.answer(response);
        let at = request.at;
        if datagram.mad.is_directed_route() {
            let step = smi::answer(&mut datagram.mad, at.port, request.datagram.source_lid);
            self.take_step(at, step, datagram, 0);
        } else if request.datagram.destination_lid == PERMISSIVE_LID {
            datagram.source_lid = self.lid(at);
            self.leave(at, MANAGEMENT_VL, datagram, 0);
        } else {
            self.route(self.managed_port(at), datagram, 0);
        }
    }

    /// A datagram of QP1 arrived at a port.
    fn arrive_gmp(&mut self, arrived: InFlight, now: Time) {
        if !self.has_lid(arrived.at, arrived.datagram.destination_lid) {
            return self.relay_datagram(arrived);
        }
        let Some(node) = self.nodes.get_mut(arrived.at.node) else {
            return;
        };
        if node.has_guest {
            return self.deliver(arrived);
        }
        let managed = node.managed_port(arrived.at.port);
        let Some(port) = node.port(managed) else {
            return;
        };
        let datagram = &arrived.datagram;
        if let Some(kind) = violated_key(port, datagram) {
            let port = PortId {
                port: managed,
                ..arrived.at
            };
            return self.count_key_violations(port, &KeyViolations::by(datagram, kind), now);
        }
        if datagram.mad.get(Mad::CLASS) != class::PERFORMANCE {
            return;
        }
        if let Some(response) = pma::answer(node, &datagram.mad) {
            self.route(
                PortId {
                    port: managed,
                    ..arrived.at
                },
                datagram.answer(response),
                0,
            );
        }
    }

    /// Hands a datagram to the guest of an adapter. Without a guest the datagram is dropped.
    fn deliver(&mut self, arrived: InFlight) {
        if self
            .nodes
            .get(arrived.at.node)
            .is_some_and(|node| node.has_guest)
        {
            self.outputs
                .push_back(Output::Datagram(arrived.at, arrived.datagram));
        }
    }

    /// Sends a datagram that a node itself has made, by its managed port.
    fn route(&mut self, from: PortId, datagram: Datagram, hops: u32) {
        if self
            .nodes
            .get(from.node)
            .is_some_and(|node| node.is_switch())
        {
            let at = PortId { port: 0, ..from };
            match self.has_lid(at, datagram.destination_lid) {
                true => self.requeue(InFlight { at, datagram, hops }),
                false => self.relay_datagram(InFlight { at, datagram, hops }),
            }
        } else {
            self.route_from_adapter(from, datagram, hops);
        }
    }

    /// Sends a datagram by the port of an adapter, or back to the same port if that has the LID.
    fn route_from_adapter(&mut self, from: PortId, datagram: Datagram, hops: u32) {
        let Some(port) = self.port(from) else { return };
        if port.has_lid(datagram.destination_lid) {
            self.requeue(InFlight {
                at: from,
                datagram,
                hops,
            });
        } else if datagram.is_smp() {
            self.leave(from, MANAGEMENT_VL, datagram, hops);
        } else if let Some(vl) = port.vl(0, datagram.sl) {
            self.leave(from, vl, datagram, hops);
        }
    }

    /// Forwards a datagram by the linear forwarding table of a switch. At an adapter, the datagram has
    /// a wrong LID and is dropped.
    fn relay_datagram(&mut self, arrived: InFlight) {
        let InFlight { at, datagram, hops } = arrived;
        let next = match datagram.is_smp() {
            true => self.relay_smp(at, datagram.destination_lid),
            false => self.relay(at, &header(&datagram)),
        };
        match next {
            Some((0, _)) => self.requeue(InFlight {
                at: PortId { port: 0, ..at },
                datagram,
                hops,
            }),
            Some((port, vl)) => self.leave(PortId { port, ..at }, vl, datagram, hops),
            None => {}
        }
    }

    /// Returns the port by which a LID-routed SMP leaves a switch. Neither partitions nor SLs matter on
    /// VL15 (IBTA 7.6.3, 10.9.3).
    fn relay_smp(&mut self, ingress: PortId, lid: u16) -> Option<(u8, u8)> {
        let node = self.nodes.get(ingress.node)?;
        let port = node.tables.as_ref()?.unicast(lid);
        let port =
            port.filter(|port| *port != 0 && *port != ingress.port && node.port(*port).is_some());
        if port.is_none() {
            self.count_error(ingress, PortError::SwitchRelay);
        }
        Some((port?, MANAGEMENT_VL))
    }

    /// Queues a datagram for a port of the node where the datagram is.
    fn requeue(&mut self, arrived: InFlight) {
        if arrived.hops < HOPS {
            self.in_flight.push_back(InFlight {
                hops: arrived.hops + 1,
                ..arrived
            });
        }
    }

    /// Sends a datagram over the link of a port.
    fn leave(&mut self, egress: PortId, vl: u8, datagram: Datagram, hops: u32) {
        if hops >= HOPS {
            return self.count_error(egress, PortError::XmitDiscard);
        }
        let hops = hops + 1;
        match self.cross(egress, vl, &header(&datagram)) {
            Some(FarEnd::Port(at)) => self.in_flight.push_back(InFlight { at, datagram, hops }),
            Some(FarEnd::Remote) => {
                let links = HOPS.saturating_sub(hops);
                let departure = Output::Departure(egress, datagram, links);
                self.outputs.push_back(departure);
            }
            None => {}
        }
    }
}

/// Returns the key of a datagram by which an agent at QP1 of a port drops the datagram, if there is
/// one.
fn violated_key(port: &Port, datagram: &Datagram) -> Option<ViolatedKey> {
    let is_entry = |entry: &u16| p_keys_match(datagram.p_key, *entry);
    if !port.p_keys.iter().any(is_entry) {
        return Some(ViolatedKey::PKey);
    }
    (datagram.q_key != GSI_Q_KEY).then_some(ViolatedKey::QKey)
}

/// Returns the fields of a datagram that forwarding depends on.
fn header(datagram: &Datagram) -> RouteHeader {
    let grh = if datagram.grh.is_some() { 40 } else { 0 };
    RouteHeader {
        destination_lid: datagram.destination_lid,
        sl: datagram.sl,
        p_key: datagram.p_key,
        length: DATAGRAM_LEN + grh,
    }
}
