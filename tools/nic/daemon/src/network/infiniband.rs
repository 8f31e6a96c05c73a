// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The InfiniBand ports of the network: packets and requests of the guests' devices for the subnet,
//! and its links over uplinks.

use super::{count, Network};
use crate::frame_address::PortLink;
use crate::inbox::PortChange;
use crate::subnet::{link_frame, Delivery, HandOver, Subnet};
use crate::switch::{PortSet, SwitchPort};
use crate::uplink::BATCH;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::PoisonError;
use std::time::Duration;
use verbena_device::{
    AgentReply, AgentRequest, Crossing, InfiniBandPort, KeyViolations, SOFTWARE_CAPABILITIES,
};

/// Frames for uplinks, each with the number of its uplink.
type Departures = VecDeque<(usize, Vec<u8>)>;

impl Network {
    /// Calls the InfiniBand subnet, if there is one, and hands out the packets and events that come
    /// of it. The engines receive them in their next turns. Also returns the frames for uplinks.
    fn call<R>(&self, call: impl FnOnce(&mut Subnet, Duration) -> R) -> Option<(R, Departures)> {
        let subnet = self.subnet.as_ref()?;
        let mut subnet = subnet.lock().unwrap_or_else(PoisonError::into_inner);
        let result = call(&mut subnet, Duration::from_nanos(self.process.now()));
        while let Some((vm, delivery)) = subnet.next_delivery() {
            let Some(vm_port) = self.vm_ports.get(usize::from(vm)) else {
                continue;
            };
            match delivery {
                Delivery::Packet(packet) => {
                    vm_port.shared.post_of(PortLink::InfiniBand, packet);
                }
                Delivery::Change(events) => {
                    if let Some(port) = subnet.port(vm) {
                        vm_port.shared.post_port_change(PortChange { port, events });
                    }
                }
            }
        }
        let refused = &self.counters().subnet_refused;
        refused.fetch_add(subnet.take_refused(), Ordering::Relaxed);
        Some((result, subnet.take_departures()))
    }

    /// Calls the InfiniBand subnet, if there is one, and also sends the frames for uplinks.
    fn with<R>(&self, call: impl FnOnce(&mut Subnet, Duration) -> R) -> Option<R> {
        let (result, mut departures) = self.call(call)?;
        while let Some((uplink, _)) = departures.front() {
            let uplink = *uplink;
            let same = departures.iter().take_while(|(to, _)| *to == uplink);
            let frames: Vec<&[u8]> = same.take(BATCH).map(|(_, frame)| &frame[..]).collect();
            let sent = self.send(uplink, &frames);
            if sent == 0 {
                // The uplink has no room: the packet is lost, as in a full buffer of a switch.
                count(&self.counters().uplink_dropped, 1);
            }
            departures.drain(..sent.max(1));
        }
        Some(result)
    }

    /// Forwards a packet of a VM's InfiniBand port. The caller is the engine, and sends the returned
    /// frames over the uplinks with these numbers.
    pub fn from_infiniband_port(&self, vm: u8, packet: &[u8]) -> Departures {
        let called = self.call(|subnet, now| subnet.send(vm, packet, now));
        called.map_or_else(Departures::new, |((), departures)| departures)
    }

    /// Decides how a packet of a VM's device goes on that may be for another device.
    pub fn hand_over(&self, vm: u8, packet: &Crossing) -> HandOver {
        if let Some((to, _)) = self.call(|subnet, _| subnet.hand_over(vm, packet)) {
            return to;
        }
        let to = packet.path().and_then(|path| self.device_for(vm, path));
        to.map_or(HandOver::Frames, HandOver::Device)
    }

    /// Forwards a frame from an uplink that has a packet of the InfiniBand subnet. Returns the
    /// devices that the packet is for, and the packet: the caller is the engine, and gives the
    /// packet to them. Returns none for other frames, which are Ethernet.
    pub fn from_infiniband_wire<'a>(
        &self,
        wire: usize,
        frame: &'a [u8],
    ) -> Option<(PortSet, &'a [u8])> {
        if !self.has_subnet() || !link_frame::is_link_frame(frame) {
            return None;
        }
        count(&self.counters().uplink_received, 1);
        let (vms, packet) = self.with(|subnet, now| subnet.receive(wire, frame, now))?;
        let ports = vms.into_iter().map(SwitchPort::Engine).collect();
        Some((ports, packet))
    }

    /// Answers a request of a VM's driver to the agents of its InfiniBand port.
    pub fn answer_for_agents(&self, vm: u8, request: &AgentRequest) -> AgentReply {
        self.with(|subnet, now| subnet.answer(vm, request, now))
            .unwrap_or(AgentReply::Refused)
    }

    /// Reports packets that a VM's device has dropped because of a key to the agents of its InfiniBand
    /// port.
    pub fn report_key_violations(&self, vm: u8, violations: &KeyViolations) {
        self.with(|subnet, now| subnet.report_key_violations(vm, violations, now));
    }

    /// Returns the configuration of a VM's InfiniBand port; none for an Ethernet port.
    pub fn infiniband_port(&self, vm: u8) -> Option<InfiniBandPort> {
        self.with(|subnet, _| subnet.port(vm)).flatten()
    }

    /// Clears the capabilities of software in a VM's InfiniBand port, whose driver has ended with all
    /// its programs.
    pub fn reset_infiniband_port(&self, vm: u8) {
        let request = AgentRequest::SetCapabilities {
            set: 0,
            clear: SOFTWARE_CAPABILITIES,
        };
        self.with(|subnet, now| subnet.answer(vm, &request, now));
    }

    /// Maintains the links of the subnet over uplinks; called about twice a second.
    pub fn maintain_subnet(&self) {
        self.with(|subnet, now| subnet.maintain(now));
    }

    /// Sends the datagrams of the subnet that are due.
    pub(super) fn poll_subnet(&self) {
        self.with(|subnet, now| {
            if subnet.next_deadline().is_some_and(|due| due <= now) {
                subnet.poll(now);
            }
        });
    }

    /// Returns the time at which a datagram of the subnet is due.
    pub(super) fn next_datagram(&self) -> Option<u64> {
        let due = self.with(|subnet, _| subnet.next_deadline()).flatten();
        due.map(|due| due.as_nanos() as u64)
    }
}
