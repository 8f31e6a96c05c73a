// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The network: the switch with the objects behind its ports, for every thread that has a frame.

mod infiniband;

use crate::frame_address::PortLink;
use crate::netdev_queue::NetdevQueue;
use crate::policy::{mac_text, Policy};
use crate::process_state::{FrameCounters, ProcessState};
use crate::subnet::{link_frame, Subnet};
use crate::switch::{PortSet, Switch, SwitchPort, MAX_WIRES};
use crate::uplink::{Uplink, BATCH};
use crate::vm_state::VmState;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use verbena_abi::syndrome::Syndrome;
use verbena_device::{Addresses, Gid as Entry};
use verbena_transport::frame;
use verbena_transport::wire::Path;

/// A VM with its connections to the network.
struct VmPort {
    shared: Arc<VmState>,
    /// MAC address and policy of the guest, for the log.
    description: String,
    /// Path to the guest's Ethernet.
    netdev_queue: NetdevQueue,
}

/// The switch with its VMs and uplinks. See the [module](self).
pub struct Network {
    process: Arc<ProcessState>,
    switch: Mutex<Switch>,
    /// VMs by their numbers in the switch.
    vm_ports: Vec<VmPort>,
    wires: Vec<Box<dyn Uplink>>,
    /// The InfiniBand subnet; none if the guests have Ethernet ports.
    subnet: Option<Mutex<Subnet>>,
}

/// Memory of the last forwarding decision: consecutive RoCE frames that come from one port on one
/// path have the same destinations. The memory is kept for at most one batch.
#[derive(Default)]
pub struct ForwardingCache(Option<(SwitchPort, Path, PortSet)>);

impl ForwardingCache {
    /// Returns the destinations of the last frame if they apply to this frame, or else the frame's
    /// path.
    fn lookup(&self, from: SwitchPort, frame: &[u8]) -> Result<PortSet, Option<Path>> {
        let path = frame::peek(frame);
        match (&self.0, path) {
            (Some((port, last, to)), Some(path)) if *port == from && *last == path => Ok(*to),
            (_, path) => Err(path),
        }
    }
}

fn count(counter: &AtomicU64, more: usize) {
    if more != 0 {
        counter.fetch_add(more as u64, Ordering::Relaxed);
    }
}

impl Network {
    /// Returns a network of VMs with distinct MAC addresses, and of these uplinks. The VMs are
    /// numbered in this order. Each may use its MAC address and any IP address.
    pub fn new(
        process: &Arc<ProcessState>,
        vms: &[(Arc<VmState>, [u8; 6])],
        wires: Vec<Box<dyn Uplink>>,
    ) -> Self {
        let vms = vms.iter().cloned();
        let vms = vms.map(|(shared, mac)| (shared, mac, Policy::default()));
        Self::with_policies(process, vms.collect(), wires)
    }

    /// Returns a network as [`new`](Self::new) does, with a policy for each VM.
    pub fn with_policies(
        process: &Arc<ProcessState>,
        vms: Vec<(Arc<VmState>, [u8; 6], Policy)>,
        mut wires: Vec<Box<dyn Uplink>>,
    ) -> Self {
        wires.truncate(MAX_WIRES.into());
        process.impairments.set_uplinks(wires.len());
        let mut switch = Switch::new(wires.len() as u8);
        let vm_ports = vms.into_iter().map(|(shared, mac, policy)| {
            let description = format!("guest {} ({policy})", mac_text(&mac));
            let number = switch.add_with(mac, policy);
            debug_assert!(number.is_some(), "too many, or one address twice");
            VmPort {
                shared,
                description,
                netdev_queue: NetdevQueue::default(),
            }
        });
        Self {
            vm_ports: vm_ports.collect(),
            process: process.clone(),
            switch: Mutex::new(switch),
            wires,
            subnet: None,
        }
    }

    /// Sets the InfiniBand subnet of the guests.
    pub fn with_subnet(mut self, subnet: Option<Subnet>) -> Self {
        self.subnet = subnet.map(Mutex::new);
        self
    }

    /// True if the guests have InfiniBand ports.
    pub fn has_subnet(&self) -> bool {
        self.subnet.is_some()
    }

    /// Returns the link layer of the guests' ports.
    pub(crate) fn port_link(&self) -> PortLink {
        match self.has_subnet() {
            true => PortLink::InfiniBand,
            false => PortLink::Ethernet,
        }
    }

    /// Returns the state that all VMs share.
    pub fn process(&self) -> &Arc<ProcessState> {
        &self.process
    }

    /// Returns the path to a guest's Ethernet.
    pub fn netdev_queue(&self, vm: u8) -> Option<&NetdevQueue> {
        Some(&self.vm_ports.get(usize::from(vm))?.netdev_queue)
    }

    fn switch(&self) -> MutexGuard<'_, Switch> {
        self.switch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counters(&self) -> &FrameCounters {
        &self.process.counters
    }

    /// Returns the uplinks in the order of their numbers.
    pub fn wires(&self) -> impl Iterator<Item = &dyn Uplink> {
        self.wires.iter().map(|wire| &**wire)
    }

    /// Decides if a VM's driver may set an entry of its GID table.
    ///
    /// # Errors
    ///
    /// The cause of the refusal, which is also logged.
    pub fn claim(&self, vm: u8, entry: &Entry) -> Result<(), Syndrome> {
        let now = self.process.now();
        let claimed = self.switch().claim(vm, entry, now);
        let Some(vm_port) = self.vm_ports.get(usize::from(vm)) else {
            return claimed;
        };
        let refusals = &vm_port.shared.refusals;
        match claimed {
            Ok(()) => refusals.on_accepted(entry),
            Err(cause) => {
                if let Some(text) = refusals.record(*entry, cause, now) {
                    log::warn!("{} does not get {text}", vm_port.description);
                }
            }
        }
        claimed
    }

    /// Sets the GIDs and groups of a VM's device.
    pub fn set_addresses(&self, vm: u8, addresses: &Addresses) {
        if self.has_subnet() {
            // The switch of the Ethernet has no packets for an InfiniBand port.
            return;
        }
        self.switch().set_addresses(vm, addresses);
    }

    fn forward(&self, from: SwitchPort, frame: &[u8], cache: &mut ForwardingCache) -> PortSet {
        let path = match cache.lookup(from, frame) {
            Ok(to) => return to,
            Err(path) => path,
        };
        let to = self.decide(from, frame);
        // A frame without a destination is counted each time, so its decision is not remembered.
        cache.0 = path.filter(|_| !to.is_empty()).map(|path| (from, path, to));
        to
    }

    fn decide(&self, from: SwitchPort, frame: &[u8]) -> PortSet {
        let now = self.process.now();
        let mut switch = self.switch();
        let to = switch.forward(from, frame, now);
        let (counters, all) = (switch.counters, self.counters());
        all.switch_flooded
            .store(counters.flooded, Ordering::Relaxed);
        all.switch_refused
            .store(counters.refused, Ordering::Relaxed);
        all.switch_unlearned
            .store(counters.unlearned, Ordering::Relaxed);
        drop(switch);
        if to.is_empty() && !matches!(from, SwitchPort::Wire(_)) {
            count(&all.uplink_dropped, 1);
        }
        to
    }

    /// Gives a frame to guests. It is lost for a guest that is not there or has no room.
    fn to_guests(&self, to: PortSet, frame: &[u8]) {
        for vm_port in to.guests().filter_map(|vm| self.vm_ports.get(vm)) {
            let lost = !vm_port.netdev_queue.send(frame);
            count(&vm_port.shared.counts.ethernet_dropped, lost.into());
        }
    }

    /// Leaves a frame for the engine, once for each device.
    fn to_engines(&self, to: PortSet, frame: &[u8]) {
        for vm_port in to.engines().filter_map(|vm| self.vm_ports.get(vm)) {
            vm_port.shared.post_frame(frame.to_vec());
        }
    }

    /// Forwards a frame from a guest's Ethernet.
    pub fn from_guest(&self, vm: u8, frame: &[u8]) {
        if let Some(vm_port) = self.vm_ports.get(usize::from(vm)) {
            count(&vm_port.shared.counts.ethernet_frames, 1);
        }
        if self.has_subnet() && link_frame::is_tagged_link_frame(frame) {
            // Only the subnet sends packets over the links of switches.
            count(&self.counters().subnet_refused, 1);
            return;
        }
        let to = self.decide(SwitchPort::Guest(vm), frame);
        self.to_engines(to, frame);
        self.to_guests(to, frame);
        for wire in to.wires() {
            // If the uplink has no room the frame is lost, as on any port.
            if self.send(wire, &[frame]) == 0 {
                count(&self.counters().uplink_dropped, 1);
            }
        }
    }

    /// Forwards a frame from an uplink to guests. The caller is the engine, and gives the frame to
    /// the devices among the returned ports.
    pub fn from_wire(&self, wire: usize, frame: &[u8], cache: &mut ForwardingCache) -> PortSet {
        count(&self.counters().uplink_received, 1);
        let to = self.forward(SwitchPort::Wire(wire as u8), frame, cache);
        self.to_guests(to, frame);
        to
    }

    /// Forwards a frame from a device to guests and devices, which receive it in their next turn.
    /// The caller is the engine, and sends the frame over the uplinks among the returned ports.
    pub fn from_engine(&self, vm: u8, frame: &[u8], cache: &mut ForwardingCache) -> PortSet {
        let to = self.forward(SwitchPort::Engine(vm), frame, cache);
        self.to_engines(to, frame);
        self.to_guests(to, frame);
        to
    }

    /// Returns the other VM whose device is the destination of a device's packet, if there is one.
    pub fn device_for(&self, vm: u8, path: &Path) -> Option<u8> {
        let now = self.process.now();
        self.switch().engine_for(vm, path, now)
    }

    /// Counts frames that were dropped, because an uplink had no room for too long.
    pub fn count_dropped_frames(&self, frames: usize) {
        count(&self.counters().uplink_dropped, frames);
    }

    /// Sends frames over an uplink, at most a batch. Returns the number of frames that it has
    /// accepted. A frame that is too long for the uplink is dropped and counts as accepted.
    pub fn send(&self, number: usize, frames: &[&[u8]]) -> usize {
        let Some(wire) = self.wires.get(number) else {
            return frames.len();
        };
        let mtu = wire.mtu();
        let fit = frames.iter().take_while(|f| f.len() <= mtu).count();
        if fit == 0 {
            count(&self.counters().uplink_dropped, 1);
            return frames.len().min(1);
        }
        let frames = frames.get(..fit).unwrap_or(frames);
        let impairments = &self.process.impairments;
        if impairments.impair(number, frames, self.process.now()) {
            // The engine may be in a sleep that ends after the frame is due.
            self.process.waker.wake();
            return fit;
        }
        let sent = wire.send(frames);
        count(&self.counters().uplink_sent, sent);
        sent
    }

    /// Sends the delayed frames of impaired uplinks and the datagrams of the subnet that are due.
    pub fn release(&self) {
        self.poll_subnet();
        let impairments = &self.process.impairments;
        impairments.release(self.process.now(), BATCH, |number, frames| {
            let wire = self.wires.get(number);
            let sent = wire.map_or(frames.len(), |wire| wire.send(frames));
            count(&self.counters().uplink_sent, sent);
            sent
        });
    }

    /// Returns the time at which [`Network::release`] has a frame or datagram to send.
    pub fn next_release(&self) -> Option<u64> {
        let frame = self.process.impairments.next_due();
        frame.into_iter().chain(self.next_datagram()).min()
    }
}

#[cfg(test)]
mod tests;
