// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets between the devices of one process. They go by reference, and their payload is copied once, from the one guest's memory
//! to the other's.
//!
//! Whether a packet's peer is in the process only the daemon's switch knows, and it may be another's with each packet. So queue pairs
//! treat such a peer as one behind a wire, with all timers, and their packets are offered ([`Device::next_crossing`]): the daemon
//! either has them become frames after all ([`Device::make_frames`]), or queues them for the other device, which gets them in a turn of its
//! own ([`Device::receive_crossing`]), with both memories at hand. The sender's keys and work request are looked at then, so what was
//! taken away meanwhile is a lost packet or the sender's error, as it would be between local queue pairs.

use super::Device;
use crate::device::net::take_in;
use crate::device::sched::{ELEMENT_BYTES, SLICE_BYTES, SLICE_STEPS};
use crate::execution::copy::Side;
use crate::memory::GuestMemory;
use crate::objects::port::Outgoing;
use crate::tap::Way;
use verbena_abi::stats::Counter;
use verbena_faults::Direction;
use verbena_roce::packet::Payload;
use verbena_roce::wire::Path;

/// The most bytes of a super-packet.
const JOINED_BYTES: u32 = 256 << 10;

/// A packet on its way to another device of the process, or maybe to elsewhere.
#[derive(Debug)]
pub struct Crossing(Outgoing);

impl Crossing {
    /// Where from and where to. Each has it.
    pub fn path(&self) -> Option<&Path> {
        self.0.path()
    }

    /// Bytes of payload that it has with it: what its sender has copied (UC, UD). A reference counts nothing.
    pub fn held_bytes(&self) -> usize {
        match &self.0.packet.payload {
            Payload::Bytes { length, .. } => *length as usize,
            _ => 0,
        }
    }
}

impl Device {
    /// Offers a packet that is not for the device's own. Those of a message in a row become one.
    pub(super) fn offer(&mut self, out: Outgoing) {
        if !self.shared.port.is_over_mtu(&out.packet) || out.mtu <= self.shared.port.mtu_bytes() {
            self.append(out);
            return;
        }
        // As on a wire, which would not carry it: the queue pair finds that its retries are exceeded.
        let Outgoing {
            packet, path, mtu, ..
        } = out;
        for packet in packet.split(mtu) {
            if self.shared.port.is_over_mtu(&packet) {
                self.shared.counters.add(Counter::TxOverMtu, 1);
                continue;
            }
            self.append(Outgoing {
                packet,
                path: path.clone(),
                mtu,
                local: false,
            });
        }
    }

    fn append(&mut self, out: Outgoing) {
        if let Some(last) = self.crossing.back_mut() {
            let fits = last.packet.payload.len() < JOINED_BYTES;
            if fits && last.mtu == out.mtu && last.packet.join(&out.packet, out.mtu) {
                return;
            }
        }
        self.crossing.push_back(out);
    }

    /// The next packet for elsewhere that may be for another device of the process (only with [`Config::neighbours`](crate::Config)).
    pub fn next_crossing(&mut self) -> Option<Crossing> {
        self.crossing.pop_front().map(Crossing)
    }

    /// Has a packet become frames after all, which leave as others do.
    pub fn make_frames<M: GuestMemory>(&mut self, mem: &M, Crossing(out): Crossing) {
        self.deliver_frames(mem, out);
    }

    /// Shows the tap, if there is one, a packet that is about to be another device's.
    pub fn show_crossing<M: GuestMemory>(&mut self, mem: &M, Crossing(out): &Crossing) {
        self.shared.show_crossing(mem, None, out, Way::Sent);
    }

    /// What another device may copy from.
    pub fn side<'a, M: GuestMemory>(&'a self, mem: &'a M) -> Side<'a, M> {
        Side {
            mem,
            regions: &self.shared.mrs,
        }
    }

    /// Takes packets of another device, of which the payload lies on the side of the `sender`, as many as there is time for in a
    /// slice, and delivers the answers. What is not for this device any more is dropped, as a frame would be.
    pub fn receive_crossing<M: GuestMemory>(
        &mut self,
        mem: &M,
        sender: Side<'_, M>,
        now: u64,
        mut next: impl FnMut() -> Option<Crossing>,
    ) {
        self.shared.now = now;
        let is_deaf = self.shared.regs.is_fatal() || !self.shared.port.up;
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
                .show_crossing(mem, Some(sender), &out, Way::Received);
            let qpn = out.packet.dst_qpn;
            if self.shared.lab.is_some() && self.is_concerned(Direction::In, qpn) {
                self.receive_by_rules(mem, sender, &path, out);
                continue;
            }
            let found = self.with_qp_of(mem, Some(sender), qpn, |transport, host| {
                take_in(transport, host, now, Some(&path), out.packet);
            });
            bytes += self.shared.lookups.take_sought() * ELEMENT_BYTES;
            match found {
                Some(()) => self.make_ready(qpn),
                None => self.shared.counters.add(Counter::RxNoQp, 1),
            }
            self.follow_deaths(mem);
        }
        self.deliver_answers(mem, waiting);
        self.shared.notify_written(mem);
        self.shared.show_last();
    }
}
