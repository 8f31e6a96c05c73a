// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The network: the switch with what is behind its ports, for whichever thread has a frame.

use crate::outlet::Outlet;
use crate::shared::{Counts, Shared};
use crate::switch::{Port, Ports, Switch, MAX_WIRES};
use crate::uplink::{Uplink, BATCH};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use verbena_device::Addresses;

/// The number of the one VM.
const VM: u8 = 0;

/// See the module.
pub struct Network {
    shared: Arc<Shared>,
    switch: Mutex<Switch>,
    /// To the guest's Ethernet.
    pub outlet: Outlet,
    wires: Vec<Box<dyn Uplink>>,
}

fn count(counter: &AtomicU64, more: usize) {
    if more != 0 {
        counter.fetch_add(more as u64, Ordering::Relaxed);
    }
}

impl Network {
    /// The network of a VM with this MAC address and with so many uplinks.
    pub fn new(shared: Arc<Shared>, mac: [u8; 6], mut wires: Vec<Box<dyn Uplink>>) -> Self {
        wires.truncate(MAX_WIRES.into());
        shared.impairments.set_uplinks(wires.len());
        let mut switch = Switch::new(wires.len() as u8);
        let _ = switch.add(mac);
        Self {
            shared,
            switch: Mutex::new(switch),
            outlet: Outlet::default(),
            wires,
        }
    }

    fn switch(&self) -> MutexGuard<'_, Switch> {
        self.switch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// The uplinks.
    pub fn wires(&self) -> impl Iterator<Item = &dyn Uplink> {
        self.wires.iter().map(|wire| &**wire)
    }

    /// The device answers to other GIDs and groups.
    pub fn set_addresses(&self, addresses: Addresses) {
        let now = self.shared.now();
        if let Some(gid) = self.switch().set_addresses(VM, addresses, now) {
            log::warn!("another VM has the GID {gid:02x?}");
        }
    }

    fn forward(&self, from: Port, frame: &[u8]) -> Ports {
        let now = self.shared.now();
        let mut switch = self.switch();
        let to = switch.forward(from, frame, now);
        let counts = self.counts();
        counts
            .switch_flooded
            .store(switch.tally.flooded, Ordering::Relaxed);
        counts
            .switch_refused
            .store(switch.tally.refused, Ordering::Relaxed);
        counts
            .switch_unlearned
            .store(switch.tally.unlearned, Ordering::Relaxed);
        to
    }

    fn to_guest(&self, frame: &[u8]) {
        count(
            &self.counts().ethernet_dropped,
            usize::from(!self.outlet.send(frame)),
        );
    }

    /// A frame from the guest's Ethernet.
    pub fn from_guest(&self, frame: &[u8]) {
        count(&self.counts().ethernet_frames, 1);
        let to = self.forward(Port::Guest(VM), frame);
        if to.has(Port::Engine(VM)) {
            self.shared.receive(frame.to_vec());
        }
        for wire in to.wires() {
            // With no room it is lost, as on any port.
            if self.send(wire, &[frame]) == 0 {
                count(&self.counts().uplink_dropped, 1);
            }
        }
        if to.is_empty() {
            count(&self.counts().uplink_dropped, 1);
        }
    }

    /// A frame from an uplink. Returns whether it is for the engine, which has called.
    pub fn from_wire(&self, wire: usize, frame: &[u8]) -> bool {
        count(&self.counts().uplink_received, 1);
        let to = self.forward(Port::Wire(wire as u8), frame);
        if to.has(Port::Guest(VM)) {
            self.to_guest(frame);
        }
        to.has(Port::Engine(VM))
    }

    /// A frame from the engine. Those that it returns are the uplinks by which it is to leave.
    pub fn from_engine(&self, frame: &[u8]) -> Ports {
        let to = self.forward(Port::Engine(VM), frame);
        if to.has(Port::Guest(VM)) {
            self.to_guest(frame);
        }
        if to.is_empty() {
            count(&self.counts().uplink_dropped, 1);
        }
        to
    }

    /// Frames that had no room in an uplink for too long.
    pub fn drop_frames(&self, frames: usize) {
        count(&self.counts().uplink_dropped, frames);
    }

    /// Sends frames over an uplink, a batch at most. Returns how many it has taken; what is too long for it is lost.
    pub fn send(&self, number: usize, frames: &[&[u8]]) -> usize {
        let Some(wire) = self.wires.get(number) else {
            return frames.len();
        };
        let mtu = wire.mtu();
        let fit = frames.iter().take_while(|f| f.len() <= mtu).count();
        if fit == 0 {
            count(&self.counts().uplink_dropped, 1);
            return frames.len().min(1);
        }
        let frames = frames.get(..fit).unwrap_or(frames);
        let impairments = &self.shared.impairments;
        if impairments.take(number, frames, self.shared.now()) {
            // It may sleep until something is due.
            self.shared.wake();
            return fit;
        }
        let sent = wire.send(frames);
        count(&self.counts().uplink_sent, sent);
        sent
    }

    /// Has leave what waited on impaired uplinks and is due.
    pub fn release(&self) {
        let impairments = &self.shared.impairments;
        impairments.release(self.shared.now(), BATCH, |number, frames| {
            let wire = self.wires.get(number);
            let sent = wire.map_or(frames.len(), |wire| wire.send(frames));
            count(&self.counts().uplink_sent, sent);
            sent
        });
    }

    /// When [`Network::release`] has something to do.
    pub fn next_release(&self) -> Option<u64> {
        self.shared.impairments.next_due()
    }
}

#[cfg(test)]
mod tests;
