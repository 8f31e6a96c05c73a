// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets from one VM's device to another's: they are queued, and delivered in a turn of the
//! receiving VM, never inside a call of the sending device.
//!
//! A delivery holds both maps of guest RAM, and has checked both gates since it locked them.
//! Packets are lost, as they would be on a wire, if their sender's device has been reset since or
//! has failed, or while either gate is closed.

use super::vm::Vm;
use super::Engine;
use crate::shares::{Shares, LEAST};
use std::collections::VecDeque;
use verbena_device::Crossing;

/// Largest number of packets of one sender that wait for one device, and fewer while packets of
/// others wait too ([`Shares`]). Further packets are lost.
const MAX: usize = 4096;
/// Largest number of bytes of payload that these packets may hold, as the same number of frames
/// would.
const MAX_BYTES: usize = MAX * LEAST;
/// Largest number of slices in which a device takes packets in one turn, so that other VMs get
/// their turns.
const PORTIONS: usize = 8;

/// Largest number of VMs in a process (`args.rs`).
const MAX_VMS: usize = 16;

/// Sender of a packet: a VM, and the `life` of its device when it sent the packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Sender {
    vm: usize,
    life: u64,
}

/// Packets that wait for a device, in order.
pub(super) struct Arrivals {
    queue: VecDeque<(Sender, Crossing)>,
    /// Bytes that the packets hold, by sending VM.
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
    /// Queues a packet. Returns false if there is no room.
    fn leave(&mut self, sender: Sender, packet: Crossing) -> bool {
        let room = self.shares.take(sender.vm, packet.held_bytes());
        if room {
            self.queue.push_back((sender, packet));
        }
        room
    }

    /// True if no packet waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Drops all packets.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn first(&self) -> Option<Sender> {
        self.queue.front().map(|(sender, _)| *sender)
    }

    /// Takes the first packet, if it is from this sender.
    fn next_of(&mut self, sender: Sender) -> Option<Crossing> {
        let is_next = self.first() == Some(sender);
        let first = is_next.then(|| self.queue.pop_front()).flatten();
        first.map(|(_, packet)| {
            self.shares.give_back(sender.vm, packet.held_bytes());
            packet
        })
    }
}

/// Returns the VM `one`, which can be changed, and the VM `other`.
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
    /// Queues the packets that a VM's device has sent to others. Returns true if there were any.
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
        // The allocation is used again.
        if let Some(vm) = self.vms.get_mut(from) {
            vm.crossing = crossing;
        }
        true
    }

    /// Gives a VM's device the packets from other devices. Returns true if there were any.
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
    /// Delivers packets of one sender, up to the limit of a slice. Without the limit, a long queue
    /// would delay changes of the memory maps of sender and receiver, which wait for the slice.
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
            // The memory of the sender cannot be read, or the receiver takes no packets: the
            // packets are lost.
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

    /// Returns packets of a UC queue pair to another device. They contain their payload.
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
    fn the_bytes_of_waiting_packets_are_bounded_for_each_sender() {
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
        // There is still room for the packets of another VM.
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
