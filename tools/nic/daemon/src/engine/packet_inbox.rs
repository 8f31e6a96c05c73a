// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets from one VM's device to another's: they are queued, and delivered in a turn of the
//! receiving VM, never inside a call of the sending device.
//!
//! A delivery holds both maps of guest RAM, and has checked both gates since it locked them.
//! Packets are lost, as they would be on a wire, if their sender's device has been reset since or
//! has failed, or while either gate is closed.

use super::vm::Vm;
use super::Engine;
use crate::sender_budgets::{SenderBudgets, MIN_CHARGE_BYTES};
use std::collections::VecDeque;
use verbena_device::Crossing;

/// Largest number of packets of one sender that wait for one device, and fewer while packets of
/// others wait too ([`SenderBudgets`]). Further packets are lost.
const MAX_PACKETS: usize = 4096;
/// Largest number of bytes of payload that these packets may hold, as the same number of frames
/// would.
const MAX_BYTES: usize = MAX_PACKETS * MIN_CHARGE_BYTES;
/// Largest number of slices in which a device takes packets in one turn, so that other VMs get
/// their turns.
const MAX_SLICES: usize = 8;

/// Largest number of VMs in a process (`args.rs`).
const MAX_VMS: usize = 16;

/// Sender of a packet: a VM, and the `generation` of its device when it sent the packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PacketSender {
    vm: usize,
    generation: u64,
}

/// Packets that wait for a device, in order.
pub(super) struct PacketInbox {
    queue: VecDeque<(PacketSender, Crossing)>,
    /// Bytes that the packets hold, by sending VM.
    budgets: SenderBudgets<MAX_VMS>,
}

impl Default for PacketInbox {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            budgets: SenderBudgets::new(MAX_BYTES),
        }
    }
}

impl PacketInbox {
    /// Queues a packet. Returns false if there is no room.
    fn push(&mut self, sender: PacketSender, packet: Crossing) -> bool {
        let room = self.budgets.reserve(sender.vm, packet.held_bytes());
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

    fn first(&self) -> Option<PacketSender> {
        self.queue.front().map(|(sender, _)| *sender)
    }

    /// Takes the first packet, if it is from this sender.
    fn next_of(&mut self, sender: PacketSender) -> Option<Crossing> {
        let is_next = self.first() == Some(sender);
        let first = is_next.then(|| self.queue.pop_front()).flatten();
        first.map(|(_, packet)| {
            self.budgets.release(sender.vm, packet.held_bytes());
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
    pub(super) fn queue_outgoing(&mut self, from: usize) -> bool {
        let Some(vm) = self.vms.get_mut(from) else {
            return false;
        };
        if vm.outgoing.is_empty() {
            return false;
        }
        let generation = vm.generation;
        let sender = PacketSender {
            vm: from,
            generation,
        };
        let mut outgoing = std::mem::take(&mut vm.outgoing);
        for (to, packet) in outgoing.drain(..) {
            if let Some(to) = self.vms.get_mut(usize::from(to)) {
                if !to.packet_inbox.push(sender, packet) {
                    to.shared.count_dropped();
                }
            }
        }
        // The allocation is used again.
        if let Some(vm) = self.vms.get_mut(from) {
            vm.outgoing = outgoing;
        }
        true
    }

    /// Gives a VM's device the packets from other devices. Returns true if there were any.
    pub(super) fn deliver_packets(&mut self, to: usize) -> bool {
        let vm = self.vms.get_mut(to);
        let vm = vm.filter(|vm| !vm.packet_inbox.is_empty() && !vm.is_stalled());
        let Some(vm) = vm else {
            return false;
        };
        vm.is_asleep = false;
        let mut packet_inbox = std::mem::take(&mut vm.packet_inbox);
        for _ in 0..MAX_SLICES {
            let Some(sender) = packet_inbox.first() else {
                break;
            };
            if let Some((vm, from)) = pair(&mut self.vms, to, sender.vm) {
                vm.receive_from(from, sender, &mut packet_inbox);
            } else {
                packet_inbox.clear();
            }
        }
        if let Some(vm) = self.vms.get_mut(to) {
            vm.packet_inbox = packet_inbox;
        }
        true
    }
}

impl Vm {
    /// Delivers packets of one sender, up to the limit of a slice. Without the limit, a long queue
    /// would delay changes of the memory maps of sender and receiver, which wait for the slice.
    fn receive_from(&mut self, from: &Vm, sender: PacketSender, packet_inbox: &mut PacketInbox) {
        let is_same = from.generation == sender.generation;
        let lent = is_same.then(|| from.device.lend()).flatten();
        let (before, now) = (packet_inbox.queue.len(), self.shared.now());
        let mut slice = self.device.slice();
        if let (Some(lent), true) = (lent, slice.is_gate_open()) {
            let next = || packet_inbox.next_of(sender);
            slice.call(|device, ram| device.receive_crossing(ram, lent.side(), now, next));
        }
        if packet_inbox.queue.len() == before {
            // The memory of the sender cannot be read, or the receiver takes no packets: the
            // packets are lost.
            while packet_inbox.next_of(sender).is_some() {}
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
        let sender = PacketSender {
            vm: 1,
            generation: 1,
        };
        let mut packet_inbox = PacketInbox::default();
        let all: usize = packets.iter().map(Crossing::held_bytes).sum();
        assert!(all > MAX_BYTES && packets.len() < MAX_PACKETS, "{all}");
        let mut lost = 0;
        for packet in packets {
            lost += usize::from(!packet_inbox.push(sender, packet));
        }
        assert!(lost > 0);
        let used = packet_inbox.budgets.used();
        assert!(used <= MAX_BYTES && used > MAX_BYTES / 2, "{used}");
        // There is still room for the packets of another VM.
        let other = PacketSender {
            vm: 2,
            generation: 1,
        };
        assert!(unreliable(4)
            .into_iter()
            .all(|packet| packet_inbox.push(other, packet)));
        let taken = std::iter::from_fn(|| packet_inbox.next_of(sender));
        let held: usize = taken.map(|packet| packet.held_bytes()).sum();
        assert!(held > MAX_BYTES / 2);
        while packet_inbox.next_of(other).is_some() {}
        assert_eq!(packet_inbox.budgets.used(), 0);
    }
}
