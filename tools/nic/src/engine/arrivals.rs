// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets from one VM's device to another's: queued, and delivered in a turn of the one that they are for, never inside a call of
//! the one that sent them.
//!
//! A delivery holds both maps of guest RAM and has looked at both gates since. What was sent in a life of the sender's device that
//! is over, by one that has failed, or while either gate is closed, is lost, as it would be on a wire.

use super::vm::Vm;
use super::Engine;
use crate::shares::{Shares, LEAST};
use std::collections::VecDeque;
use verbena_device::Crossing;

/// Packets of one sender that wait for one device; fewer while others' wait too ([`Shares`]). More are lost.
const MAX: usize = 4096;
/// Bytes of payload that they may have with them: as those frames would have.
const MAX_BYTES: usize = MAX * LEAST;
/// What a device takes of them in a turn, in slices: as others' turns come after it.
const PORTIONS: usize = 8;

/// So many VMs a process has at most (`args.rs`).
const MAX_VMS: usize = 16;

/// Who sent a packet: the VM, and the life of its device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Sender {
    vm: usize,
    life: u64,
}

/// What waits for a device, in order.
pub(super) struct Arrivals {
    queue: VecDeque<(Sender, Crossing)>,
    /// What they hold, by VM.
    shares: Shares<MAX_VMS>,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            shares: Shares::new(MAX_BYTES),
        }
    }
}

impl Arrivals {
    /// Leaves a packet. False: there is no room.
    fn leave(&mut self, sender: Sender, packet: Crossing) -> bool {
        let room = self.shares.take(sender.vm, packet.held_bytes());
        if room {
            self.queue.push_back((sender, packet));
        }
        room
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Drops all.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn first(&self) -> Option<Sender> {
        self.queue.front().map(|(sender, _)| *sender)
    }

    /// Takes the first, if it is of this sender.
    fn next_of(&mut self, sender: Sender) -> Option<Crossing> {
        let is_next = self.first() == Some(sender);
        let first = is_next.then(|| self.queue.pop_front()).flatten();
        first.map(|(_, packet)| {
            self.shares.give_back(sender.vm, packet.held_bytes());
            packet
        })
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
        let (before, now) = (arrivals.queue.len(), self.shared.now());
        let mut slice = self.model.slice();
        if let (Some(loan), true) = (loan, slice.is_open()) {
            let next = || arrivals.next_of(sender);
            slice.call(|device, ram| device.receive_crossing(ram, loan.side(), now, next));
        }
        if arrivals.queue.len() == before {
            // Nobody may read what this sender has sent, or nobody hears it.
            while arrivals.next_of(sender).is_some() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbena_abi::cmd::QpType;
    use verbena_abi::ctx::{qp_mask as m, QpAttr, QpState};
    use verbena_abi::wqe::WqeOpcode;
    use verbena_device::mock::{Driver, SendWr};
    use verbena_device::Config;

    /// Packets of an unreliable queue pair to elsewhere, which have their payload with them.
    fn unreliable(messages: usize) -> Vec<Crossing> {
        const BYTES: u32 = 128 << 10;
        let mut d = Driver::with(Config {
            neighbours: true,
            ..Config::default()
        });
        let mut cq = d.create_cq(6);
        let mut request = d.qp_request(&cq, &cq);
        request.qp_type = QpType::Uc.to_raw();
        let mut qp = d.create_qp_by(&request).unwrap();
        let connected = m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN;
        for (to, mask) in [
            (QpState::Init, m::PKEY_INDEX | m::ACCESS_FLAGS | m::PORT),
            (QpState::Rtr, connected),
            (QpState::Rts, m::SQ_PSN),
        ] {
            let attr = QpAttr {
                qp_state: to.to_raw(),
                port_num: 1,
                path_mtu: 3,
                dest_qpn: 77.into(),
                ..QpAttr::default()
            };
            d.modify_av(qp.qpn, m::STATE | mask, attr, Driver::path(0, 8))
                .unwrap();
        }
        let (from, key) = d.region(BYTES, 1);
        let mut packets = Vec::new();
        for _ in 0..messages {
            let wr = SendWr::new(WqeOpcode::RdmaWrite, 0, &[(from, BYTES, key)]);
            d.post_send(&mut qp, &wr.to(0, 0));
            d.run();
            d.drain(&mut cq);
            packets.extend(std::iter::from_fn(|| d.device.next_crossing()));
        }
        packets
    }

    #[test]
    fn what_waits_holds_no_more_than_so_many_frames_would() {
        let packets = unreliable(2 * MAX_BYTES / (128 << 10));
        let sender = Sender { vm: 1, life: 1 };
        let mut arrivals = Arrivals::default();
        let all: usize = packets.iter().map(Crossing::held_bytes).sum();
        assert!(all > MAX_BYTES && packets.len() < MAX, "{all}");
        let mut lost = 0;
        for packet in packets {
            lost += usize::from(!arrivals.leave(sender, packet));
        }
        assert!(lost > 0);
        let used = arrivals.shares.used();
        assert!(used <= MAX_BYTES && used > MAX_BYTES / 2, "{used}");
        // Another VM's packets have room beside them.
        let other = Sender { vm: 2, life: 1 };
        assert!(unreliable(4)
            .into_iter()
            .all(|packet| arrivals.leave(other, packet)));
        let taken = std::iter::from_fn(|| arrivals.next_of(sender));
        let held: usize = taken.map(|packet| packet.held_bytes()).sum();
        assert!(held > MAX_BYTES / 2);
        while arrivals.next_of(other).is_some() {}
        assert_eq!(arrivals.shares.used(), 0);
    }
}
