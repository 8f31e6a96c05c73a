// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Delivery of packets: inside the device, through the bytes of a frame, or out.

use crate::copy;
use crate::device::{Device, MAX_FRAMES};
use crate::mem::GuestMemory;
use crate::port::Outgoing;
use std::rc::Rc;
use verbena_abi::stats::Counter;
use verbena_abi::syndrome::Syndrome;
use verbena_roce::host::{CopyFault, Target};
use verbena_roce::wire::{frame, Malformed, Path};
use verbena_roce::Packet;

impl Device {
    /// Delivers a packet that was sent.
    pub(crate) fn deliver<M: GuestMemory>(&mut self, mem: &M, out: Outgoing) {
        if !self.shared.port.up {
            return;
        }
        if out.local && !self.shared.config.wire_local {
            if !self.shared.port.loses() {
                self.hand_over(mem, &out.path, out.packet);
            }
            return;
        }
        for packet in out.packet.split(out.mtu) {
            // The wire would not carry it either: the queue pair finds that its retries are exceeded.
            if !out.local && self.shared.port.is_over_mtu(&packet) {
                self.shared.own_counters.tx_over_mtu += 1;
                continue;
            }
            let Some(bytes) = self.frame(mem, &out.path, &packet) else {
                return;
            };
            if out.local {
                if !self.shared.port.loses() {
                    self.parse_frame(mem, bytes);
                }
            } else if self.frames.len() < MAX_FRAMES {
                self.frames.push_back(bytes);
            }
        }
    }

    /// The frame of a packet. None: its payload is gone, which its sender is told if it does not know it.
    fn frame<M: GuestMemory>(
        &mut self,
        mem: &M,
        path: &Path,
        packet: &Packet,
    ) -> Option<Rc<Vec<u8>>> {
        if !packet.payload.is_alive() {
            return None;
        }
        let mut bytes = self.shared.pool.buffer();
        let room = Rc::get_mut(&mut bytes)?;
        room.clear();
        let regions = &self.shared.mrs;
        let made = frame::emit(path, packet, room, |buffer| {
            copy::copy(
                mem,
                regions,
                Target::Buffer(buffer),
                packet.payload.source(),
            )
        });
        match made {
            Ok(()) => {
                self.shared.pool.keep_buffer(&bytes);
                Some(bytes)
            }
            Err(CopyFault::Source(cause) | CopyFault::Target(cause)) => {
                self.source_fault(mem, packet, cause);
                None
            }
        }
    }

    fn source_fault<M: GuestMemory>(&mut self, mem: &M, packet: &Packet, cause: Syndrome) {
        let (now, qpn) = (self.shared.now, packet.src_qpn);
        self.with_qp(mem, qpn, |transport, host| {
            transport.handle_source_fault(host, now, packet, cause);
        });
        self.make_ready(qpn);
    }

    /// Gives a packet to its queue pair.
    fn hand_over<M: GuestMemory>(&mut self, mem: &M, path: &Path, packet: Packet) {
        let now = self.shared.now;
        let qpn = packet.dst_qpn;
        let expected = self.qps.get(qpn).is_some_and(|qp| {
            match (&packet.datagram, &qp.env.path) {
                (Some(_), _) => true,
                // A connected queue pair hears its peer only.
                (None, Some(own)) => own.sgid == path.dgid && own.dgid == path.sgid,
                (None, None) => false,
            }
        });
        if !expected {
            self.shared.counters.add(Counter::RxMalformed, 1);
            return;
        }
        self.shared.counters.add_request(&packet);
        self.with_qp(mem, qpn, |transport, host| {
            transport.handle_packet(host, now, packet);
        });
        self.make_ready(qpn);
    }

    fn parse_frame<M: GuestMemory>(&mut self, mem: &M, bytes: Rc<Vec<u8>>) {
        match frame::parse_in(&bytes, &mut self.shared.pool) {
            Ok(frame) => self.hand_over(mem, &frame.path, frame.packet),
            Err(Malformed::Cnp) => self.shared.own_counters.rx_cnps += 1,
            Err(Malformed::Icrc) => self.shared.counters.add(Counter::RxIcrcErrors, 1),
            Err(_) => self.shared.counters.add(Counter::RxMalformed, 1),
        }
    }

    /// Whether a frame is for the RDMA engine: RoCE v2, for our MAC address and one of our GIDs.
    pub fn wants_frame(&self, bytes: &[u8]) -> bool {
        frame::peek(bytes).is_some_and(|path| {
            path.dmac == self.shared.config.mac && self.shared.port.is_own(&path.dgid)
        })
    }

    /// A frame from the uplink, for which [`Device::wants_frame`] said yes.
    pub fn receive_frame<M: GuestMemory>(&mut self, mem: &M, bytes: &[u8], now: u64) {
        if self.shared.regs.is_fatal() || !self.shared.port.up {
            return;
        }
        self.shared.now = now;
        // One short copy, so that the packet can outlive the caller's buffer.
        let mut frame = self.shared.pool.buffer();
        if let Some(room) = Rc::get_mut(&mut frame) {
            room.clear();
            room.extend_from_slice(bytes);
        }
        self.shared.pool.keep_buffer(&frame);
        self.parse_frame(mem, frame);
        self.settle(mem);
    }
}
