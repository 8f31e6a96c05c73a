// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets on their way: they are delivered, lost, doubled and changed.

use super::{path, FlightMode, FuzzRun};
use crate::fuzz::FuzzInput;
use verbena_transport::frame;
use verbena_transport::host::{CopyFault, CopyTarget, Syndrome};
use verbena_transport::packet::Packet;
use verbena_transport::{psn, Host, QpType};

/// Highest number of packets on their way; beyond it the oldest are lost.
pub(super) const MAX_FLIGHT: usize = 256;

impl FuzzRun {
    /// Removes a packet that is on its way.
    pub(super) fn take(&mut self, input: &mut FuzzInput<'_>) -> Option<(usize, Packet)> {
        let at = usize::from(input.u8());
        (!self.flight.is_empty()).then(|| self.flight.remove(at % self.flight.len()))
    }

    /// Adds a copy of a packet that is on its way.
    pub(super) fn duplicate(&mut self, input: &mut FuzzInput<'_>) {
        let at = usize::from(input.u8());
        if !self.flight.is_empty() && self.flight.len() < MAX_FLIGHT {
            let copy = self.flight[at % self.flight.len()].clone();
            self.flight.push(copy);
        }
    }

    /// Delivers a packet that is on its way.
    pub(super) fn deliver(&mut self, at: usize) {
        if self.flight.is_empty() {
            return;
        }
        let (to, packet) = self.flight.remove(at % self.flight.len());
        self.give(to, packet);
    }

    /// Hands a packet to a queue pair.
    pub(super) fn give(&mut self, to: usize, packet: Packet) {
        self.qps[to].handle_packet(&mut self.adapter.host(to), self.now, packet);
        self.carry(to);
    }

    /// Sends the packets of a queue pair on their way.
    pub(super) fn carry(&mut self, node: usize) {
        if self.adapter.nodes[node].out.is_empty() {
            return;
        }
        let mut out = std::mem::take(&mut self.adapter.nodes[node].out);
        let mtu = self.qps[node].attr().path_mtu;
        for packet in out.drain(..) {
            match self.mode {
                FlightMode::Local => self.launch(node, packet),
                FlightMode::Split => packet
                    .split(mtu)
                    .for_each(|packet| self.launch(node, packet)),
                FlightMode::Wire => packet
                    .split(mtu)
                    .for_each(|packet| self.transmit(node, &packet)),
            }
        }
        if self.adapter.nodes[node].out.is_empty() {
            self.adapter.nodes[node].out = out;
        }
    }

    /// Sends a packet on its way to the peer.
    pub(super) fn launch(&mut self, from: usize, packet: Packet) {
        if self.flight.len() >= MAX_FLIGHT {
            self.flight.remove(0);
        }
        self.flight.push((from ^ 1, packet));
    }

    /// Makes a frame of a packet, and a packet of the frame.
    fn transmit(&mut self, node: usize, packet: &Packet) {
        if !packet.payload.is_alive() {
            return;
        }
        let mut bytes = Vec::with_capacity(packet.payload.len() as usize + 96);
        let mut host = self.adapter.host(node);
        let emitted = frame::emit(&path(node), packet, &mut bytes, |place| match place {
            [] => Ok(()),
            _ => host.copy(CopyTarget::Buffer(place), packet.payload.source()),
        });
        match emitted {
            Ok(()) => {
                let frame = frame::parse(&bytes).expect("own frames are valid");
                self.launch(node, frame.packet);
            }
            Err(CopyFault::Source(cause) | CopyFault::Target(cause)) => {
                self.qps[node].handle_source_fault(
                    &mut self.adapter.host(node),
                    self.now,
                    packet,
                    cause,
                );
            }
        }
    }

    /// Changes a packet that is on its way, as a peer in the same engine or a link may do.
    pub(super) fn tamper(&mut self, input: &mut FuzzInput<'_>) {
        let (what, value) = (input.u8(), input.u8());
        if self.flight.is_empty() {
            return;
        }
        let at = usize::from(what >> 3) % self.flight.len();
        let (to, packet) = &mut self.flight[at];
        let mtu = self.qps[*to ^ 1].attr().path_mtu;
        match what & 7 {
            0 | 1 if packet.psns > 1 => {
                let (to, front) = (*to, packet.split_front(u32::from(value).max(1), mtu));
                self.flight.insert(at, (to, front));
            }
            2 if packet.psns > 1 => packet.trim_front(u32::from(value), mtu),
            3 => packet.ack_req = !packet.ack_req,
            4 => packet.psn = psn::add(packet.psn, u32::from(value)),
            5 => packet.psn = psn::add(packet.psn, 0xff_ffff - u32::from(value)),
            6 => packet.dst_qpn ^= u32::from(value),
            _ => packet.solicited = !packet.solicited,
        }
    }

    /// Informs the sender of a packet that is on its way that its payload could not be read.
    pub(super) fn source_fault(&mut self, input: &mut FuzzInput<'_>) {
        if let Some((to, mut packet)) = self.take(input) {
            let from = to ^ 1;
            // Only a packet that a queue pair of this kind may have sent is used.
            let is_reliable = matches!(
                self.qps[from].config().qp_type,
                QpType::Rc | QpType::XrcIni | QpType::XrcTgt
            );
            if is_reliable != packet.transport.is_reliable() {
                return;
            }
            let flags = input.u8();
            if flags & 1 != 0 {
                packet.psn = psn::add(packet.psn, u32::from(flags));
            }
            let cause = Syndrome::LkeyUnreachable;
            self.qps[from].handle_source_fault(
                &mut self.adapter.host(from),
                self.now,
                &packet,
                cause,
            );
            self.carry(from);
        }
    }
}
