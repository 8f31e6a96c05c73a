// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets from one VM's device to another's: queued, and delivered in a turn of the one that they are for, never inside a call of
//! the one that sent them.
//!
//! A delivery holds both maps of guest RAM and has looked at both gates since. What was sent in a life of the sender's device that
//! is over, by one that has failed, or while either gate is closed, is lost, as it would be on a wire.

use super::vm::Vm;
use super::Engine;
use std::collections::VecDeque;
use verbena_device::Crossing;

/// Packets that wait for one device; more are lost.
const MAX: usize = 4096;
/// What a device takes of them in a turn, in slices: as others' turns come after it.
const PORTIONS: usize = 8;

/// Who sent a packet: the VM, and the life of its device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Sender {
    vm: usize,
    life: u64,
}

/// What waits for a device, in order.
#[derive(Default)]
pub(super) struct Arrivals(VecDeque<(Sender, Crossing)>);

impl Arrivals {
    /// Leaves a packet. False: there is no room.
    fn leave(&mut self, sender: Sender, packet: Crossing) -> bool {
        let room = self.0.len() < MAX;
        if room {
            self.0.push_back((sender, packet));
        }
        room
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops all.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn first(&self) -> Option<Sender> {
        self.0.front().map(|(sender, _)| *sender)
    }

    /// Takes the first, if it is of this sender.
    fn next_of(&mut self, sender: Sender) -> Option<Crossing> {
        let is_next = self.first() == Some(sender);
        let first = is_next.then(|| self.0.pop_front()).flatten();
        first.map(|(_, packet)| packet)
    }
}

/// One of them to change, and another to look at.
fn pair(vms: &mut [Vm], one: usize, other: usize) -> Option<(&mut Vm, &Vm)> {
    if one < other {
        let (before, rest) = vms.split_at_mut(other);
        Some((before.get_mut(one)?, rest.first()?))
    } else {
        let (before, rest) = vms.split_at_mut(one);
        Some((rest.first_mut()?, before.get(other)?))
    }
}

impl Engine {
    /// Leaves what a VM's device has sent to others' with these. Returns whether there was anything.
    pub(super) fn send_across(&mut self, from: usize) -> bool {
        let Some(vm) = self.vms.get_mut(from) else {
            return false;
        };
        if vm.crossing.is_empty() {
            return false;
        }
        let life = vm.life;
        let sender = Sender { vm: from, life };
        let mut crossing = std::mem::take(&mut vm.crossing);
        for (to, packet) in crossing.drain(..) {
            if let Some(to) = self.vms.get_mut(usize::from(to)) {
                if !to.arrivals.leave(sender, packet) {
                    to.shared.count_lost();
                }
            }
        }
        // Its room is used again.
        if let Some(vm) = self.vms.get_mut(from) {
            vm.crossing = crossing;
        }
        true
    }

    /// Gives a VM's device what has come from others'. Returns whether there was anything.
    pub(super) fn take_arrivals(&mut self, to: usize) -> bool {
        let vm = self.vms.get_mut(to);
        let vm = vm.filter(|vm| !vm.arrivals.is_empty() && !vm.is_stalled());
        let Some(vm) = vm else {
            return false;
        };
        vm.is_asleep = false;
        let mut arrivals = std::mem::take(&mut vm.arrivals);
        for _ in 0..PORTIONS {
            let Some(sender) = arrivals.first() else {
                break;
            };
            if let Some((vm, from)) = pair(&mut self.vms, to, sender.vm) {
                vm.receive_from(from, sender, &mut arrivals);
            } else {
                arrivals.clear();
            }
        }
        if let Some(vm) = self.vms.get_mut(to) {
            vm.arrivals = arrivals;
        }
        true
    }
}

impl Vm {
    /// Delivers packets of one sender, as many as a slice has time for: so both maps can change between two portions.
    fn receive_from(&mut self, from: &Vm, sender: Sender, arrivals: &mut Arrivals) {
        let is_same = from.life == sender.life;
        let loan = is_same.then(|| from.model.lend()).flatten();
        let (before, now) = (arrivals.0.len(), self.shared.now());
        let mut slice = self.model.slice();
        if let (Some(loan), true) = (loan, slice.is_open()) {
            let next = || arrivals.next_of(sender);
            slice.call(|device, ram| device.receive_crossing(ram, loan.side(), now, next));
        }
        if arrivals.0.len() == before {
            // Nobody may read what this sender has sent, or nobody hears it.
            while arrivals.next_of(sender).is_some() {}
        }
    }
}
