// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Links of the subnet's switches to those of other processes: the ports that have them, and the
//! packets that pass them.

use super::uplink_link::UplinkLink;
use super::{parse_datagram, parse_route, Subnet, GSI_QPN};
use std::collections::hash_map::RandomState;
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::time::Duration;
use verbena_fabric::{PacketLimits, PortId, Topology};
use verbena_transport::wire::{lrh, vcrc};

impl Subnet {
    /// Links ports of switches to those of other processes, one over each of `count` uplinks. A port
    /// that the topology file links to the node `uplinkN` has the n-th uplink, counted from 1. Other
    /// uplinks have the last free ports of the first switch. The frames have source addresses that
    /// are made of `mac`, an address that no other process has.
    ///
    /// # Errors
    ///
    /// There is no free port for an uplink, or no uplink for a port.
    pub fn add_uplinks(
        &mut self,
        topology: &Topology,
        count: usize,
        mac: [u8; 6],
    ) -> Result<(), String> {
        if let Some((number, _)) = topology.uplinks.iter().find(|(n, _)| *n > count) {
            return Err(format!(
                "a port is linked to \"uplink{number}\", but there are {count} uplinks (--uplink)"
            ));
        }
        let is_named = |port: PortId| topology.uplinks.iter().any(|(_, named)| *named == port);
        let switch = topology.switches().next();
        let ports = switch.into_iter().flat_map(|(node, spec)| {
            let ports = (1..=spec.ports).rev();
            ports.map(move |port| PortId { node, port })
        });
        let mut free = ports.filter(|port| !is_named(*port));
        for number in 1..=count {
            let named = topology.uplinks.iter().find(|(n, _)| *n == number);
            let port = match named {
                Some((_, port)) => Some(*port).filter(|port| self.fabric.open_remote_link(*port)),
                None => free.find(|port| self.fabric.open_remote_link(*port)),
            };
            let port = port.ok_or_else(|| {
                format!(
                    "there is no port for uplink {number}: link a port of a switch to \"uplink{number}\", \
                     or leave a port of the first switch free"
                )
            })?;
            let guid = topology.nodes.get(port.node).map(|spec| spec.identity.guid);
            let process = RandomState::new().hash_one(guid);
            let mac = uplink_mac(mac, number as u8);
            let link = UplinkLink::new(port, guid.unwrap_or_default(), process, mac);
            self.uplinks.push(link);
        }
        Ok(())
    }

    /// Takes a frame from an uplink that [`link_frame::is_link_frame`] accepts. Returns the guests
    /// whose devices the packet in the frame is for, and the packet.
    pub fn receive<'a>(
        &mut self,
        uplink: usize,
        frame: &'a [u8],
        now: Duration,
    ) -> (Vec<u8>, &'a [u8]) {
        let Some(link) = self.uplinks.get_mut(uplink) else {
            return (vec![], &[]);
        };
        let received = match link.receive(frame, &mut self.fabric, now) {
            Ok(Some(received)) => received,
            other => {
                self.refused_frames += u64::from(other.is_err());
                self.take_outputs();
                return (vec![], &[]);
            }
        };
        let (port, packet) = (received.port, received.packet);
        let Some(header) = parse_route(packet).filter(|_| has_valid_vcrc(packet)) else {
            self.refused_frames += 1;
            self.fabric.count_malformed(port);
            return (vec![], &[]);
        };
        let mut arrivals = Vec::new();
        if header.dest_qpn > GSI_QPN {
            let route = &header.route;
            self.fabric
                .receive(port, route, received.limits, &mut arrivals);
        } else if let Some(datagram) = parse_datagram(packet) {
            let links = received.limits.links;
            self.fabric.receive_datagram(port, datagram, links, now);
            self.take_outputs();
        } else {
            self.refused_frames += 1;
            self.fabric.count_malformed(port);
        }
        (self.arrive(arrivals, packet), packet)
    }

    /// Sends a packet over the link of a port to another process.
    pub(super) fn depart(&mut self, port: PortId, limits: PacketLimits, packet: &[u8]) {
        let links = self.uplinks.iter().enumerate();
        let mut links = links.filter(|(_, link)| link.port() == port);
        if let Some(departure) =
            links.find_map(|(n, link)| Some((n, link.frame_of(limits, packet)?)))
        {
            self.departures.push_back(departure);
        }
    }

    /// Sends a hello over each uplink, and takes down the links whose peers are silent. Called about
    /// twice a second.
    pub fn maintain(&mut self, now: Duration) {
        for link in &mut self.uplinks {
            link.expire(&mut self.fabric, now);
        }
        self.take_outputs();
        self.say_hello(true);
    }

    /// Sends a hello over each uplink whose end has changed, or over each if they are `due`.
    pub(super) fn say_hello(&mut self, are_due: bool) {
        for (uplink, link) in self.uplinks.iter_mut().enumerate() {
            if let Some(frame) = link.hello(&self.fabric, are_due) {
                self.departures.push_back((uplink, frame));
            }
        }
    }

    /// Takes the frames for uplinks, each with the number of its uplink. The caller takes them after
    /// each call.
    pub fn take_departures(&mut self) -> VecDeque<(usize, Vec<u8>)> {
        std::mem::take(&mut self.departures)
    }
}

/// Returns the source address of the frames of an uplink: a local unicast address that differs from
/// the guest's `mac`, and from those of other uplinks.
pub(super) fn uplink_mac(mac: [u8; 6], number: u8) -> [u8; 6] {
    let [a, b, c, d, e, f] = mac;
    [(a | 2) ^ 4, b ^ number, c, d, e, f]
}

fn has_valid_vcrc(packet: &[u8]) -> bool {
    lrh::View::new(packet).is_ok_and(|view| vcrc::compute(view.packet()) == view.vcrc())
}
