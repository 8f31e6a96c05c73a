// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets between the devices of one process. They go by reference, and their payload is copied
//! once, from the memory of one guest to the memory of the other.
//!
//! Only the switch of the daemon knows whether the peer of a packet is in the process, and this may
//! change with each packet. Therefore QPs treat such a peer as a remote one, with all timers, and
//! the device offers their packets to the daemon ([`Device::next_crossing`]). The daemon either has
//! them made into frames ([`Device::make_frames`]), or queues them for the other device. That
//! device receives them in a turn of its own ([`Device::receive_crossing`]), with both memories at
//! hand. The keys and the work request of the sender are checked at that time. If they were removed
//! meanwhile, the packet is lost or the sender gets an error, as between QPs of one device.

use super::Device;
use crate::capture::CaptureDirection;
use crate::device::net::take_in;
use crate::device::sched::{ELEMENT_BYTES, SLICE_BYTES, SLICE_STEPS};
use crate::execution::copy::Side;
use crate::memory::GuestMemory;
use crate::objects::port::Outgoing;
use crate::observation::event::DropReason;
use verbena_faults::Direction;
use verbena_transport::frame;
use verbena_transport::packet::Payload;
use verbena_transport::wire::Path;

/// A packet that may be for another device of the process.
#[derive(Debug)]
pub struct Crossing(Outgoing);

impl Crossing {
    /// Returns the source and destination addresses. Each packet has them.
    pub fn path(&self) -> Option<&Path> {
        self.0.path()
    }

    /// Returns the QPN of the destination.
    pub fn dest_qpn(&self) -> u32 {
        self.0.packet.dst_qpn
    }

    /// Returns the P_Key.
    pub fn pkey(&self) -> u16 {
        self.0.packet.pkey
    }

    /// Returns the number of bytes, from its LRH to its ICRC, of each packet that this one stands for
    /// on an InfiniBand link.
    pub fn packet_lengths(&self) -> Vec<u32> {
        let Some(path) = self.path() else {
            return Vec::new();
        };
        let packets = self.0.packet.clone().split(self.0.mtu);
        packets
            .map(|packet| frame::infiniband_length(path, &packet) as u32)
            .collect()
    }

    /// Returns the number of payload bytes that the packet holds itself, as copied by its sender
    /// (UC, UD). A reference to payload counts 0.
    pub fn held_bytes(&self) -> usize {
        match &self.0.packet.payload {
            Payload::Bytes { length, .. } => *length as usize,
            _ => 0,
        }
    }
}

impl Device {
    /// Offers a packet for another destination. Consecutive packets of a message are joined.
    pub(super) fn offer(&mut self, out: Outgoing) {
        if !self.shared.port.is_over_mtu(&out.packet) || out.mtu <= self.shared.port.mtu_bytes() {
            self.crossing.push(out);
            return;
        }
        // The wire would not carry the packet either: the QP finds that its retries are exceeded.
        let Outgoing {
            packet, path, mtu, ..
        } = out;
        for packet in packet.split(mtu) {
            if self.shared.port.is_over_mtu(&packet) {
                self.shared.drop_packet(DropReason::OverMtu);
                continue;
            }
            self.crossing.push(Outgoing {
                packet,
                path: path.clone(),
                mtu,
                local: false,
            });
        }
    }

    /// Takes the next packet that may be for another device of the process. There are such packets
    /// only with [`Config::neighbours`](crate::Config).
    pub fn next_crossing(&mut self) -> Option<Crossing> {
        self.crossing.pop().map(Crossing)
    }

    /// Makes frames of a packet, which leave through the uplink as other frames do.
    pub fn make_frames<M: GuestMemory>(&mut self, mem: &M, Crossing(out): Crossing) {
        self.deliver_frames(mem, out);
    }

    /// Shows a packet to the tap, if there is a tap, before another device receives the packet.
    pub fn show_crossing<M: GuestMemory>(&mut self, mem: &M, Crossing(out): &Crossing) {
        self.shared
            .show_crossing(mem, None, out, CaptureDirection::Sent);
    }

    /// Returns the memory and the regions that another device may copy from.
    pub fn side<'a, M: GuestMemory>(&'a self, mem: &'a M) -> Side<'a, M> {
        Side {
            mem,
            regions: &self.shared.mrs,
        }
    }

    /// Receives packets of another device, within the limits of a slice, and delivers the answers.
    /// Their payload is on the side of the `sender`. A packet that is no longer for this device is
    /// dropped, as a frame would be.
    pub fn receive_crossing<M: GuestMemory>(
        &mut self,
        mem: &M,
        sender: Side<'_, M>,
        now: u64,
        mut next: impl FnMut() -> Option<Crossing>,
    ) {
        self.shared.clock.begin(now);
        let is_deaf = self.shared.regs().is_fatal() || !self.shared.port.receives_data();
        let waiting = self.shared.outgoing.len();
        let (mut bytes, mut steps) = (0, 0);
        while bytes < SLICE_BYTES && steps < SLICE_STEPS {
            let Some(Crossing(out)) = next() else {
                break;
            };
            steps += 1;
            let Some(path) = out.path().copied().filter(|_| !is_deaf) else {
                continue;
            };
            if !self.shared.port.is_for(&path) {
                continue;
            }
            bytes += u64::from(out.packet.payload.len());
            bytes += self
                .shared
                .show_crossing(mem, Some(sender), &out, CaptureDirection::Received);
            let qpn = out.packet.dst_qpn;
            if self.shared.faults.is_some() && self.is_concerned(Direction::In, qpn) {
                self.receive_by_rules(mem, sender, &path, out);
                continue;
            }
            let found = self.with_qp_of(mem, Some(sender), qpn, |transport, host| {
                take_in(transport, host, now, Some(&path), out.packet);
            });
            bytes += self.shared.lookups.take_sought() * ELEMENT_BYTES;
            match found {
                Some(()) => self.make_ready(qpn),
                None => self.shared.drop_packet(DropReason::NoQp),
            }
            self.follow_deaths(mem);
        }
        self.deliver_answers(mem, waiting);
        self.shared.notify_written(mem);
        self.shared.observers.capture_mut().show_last();
    }
}
