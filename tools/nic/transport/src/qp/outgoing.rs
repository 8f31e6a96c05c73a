// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The packets that both sides of a queue pair send to its peer.

use super::Core;
use crate::host::Host;
use crate::packet::{Packet, PacketKind, Payload};

impl Core {
    /// Returns a packet to the peer, which is a whole message without a payload.
    pub(crate) fn packet(&self, kind: PacketKind, psn: u32, psns: u32) -> Packet {
        Packet {
            transport: self.transport(),
            kind,
            first: true,
            last: true,
            solicited: false,
            ack_req: false,
            pkey: self.attr.pkey,
            dst_qpn: self.attr.dest_qpn,
            src_qpn: self.config.qpn,
            psn,
            psns,
            srqn: 0,
            marked: false,
            datagram: None,
            payload: Payload::None,
        }
    }

    /// Sends and counts a packet.
    pub(crate) fn transmit<H: Host>(&mut self, host: &mut H, packet: Packet) {
        self.counters.tx_packets += u64::from(packet.psns);
        self.counters.tx_bytes += u64::from(packet.payload.len());
        host.transmit(packet);
    }
}
