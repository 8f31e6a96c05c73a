// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shows a tap the packets that are sent. The tap does not change the simulation: no random number
//! is drawn and no memory is read for it.

use super::end::extend;
use super::Network;
use crate::tap::{Fate, Sight, Work};
use verbena_transport::packet::Packet;
use verbena_transport::psn::PSN_MASK;
use verbena_transport::wire::frame;

impl Network {
    /// Shows a packet of an end. A packet without a frame, because it travels by reference or is
    /// lost before the frame is made, gets a frame with zeros as payload.
    pub(super) fn show(
        &mut self,
        me: usize,
        packet: &Packet,
        op: Option<u32>,
        made: Option<&[u8]>,
        fate: Fate,
    ) {
        let Some(mut tap) = self.tap.take() else {
            return;
        };
        let end = &self.lab.ends[me];
        let path = packet.datagram.as_ref().map_or(end.path, |d| d.path);
        for packet in packet.clone().split(end.attr.path_mtu) {
            let mut hollow = Vec::new();
            let bytes = made.unwrap_or_else(|| {
                let zeros: Result<(), ()> = frame::emit(&path, &packet, &mut hollow, |_| Ok(()));
                debug_assert!(zeros.is_ok());
                &hollow
            });
            tap.see(&Sight {
                now: self.lab.now,
                frame: bytes,
                packet: &packet,
                work: self.work_of(me, &packet, op),
                fate,
                is_hollow: made.is_none() && !packet.payload.is_empty(),
            });
        }
        self.tap = Some(tap);
    }

    /// Returns the work request that a packet belongs to, where the model knows it.
    fn work_of(&self, me: usize, packet: &Packet, op: Option<u32>) -> Option<Work> {
        let end = &self.lab.ends[me];
        let op = op.or_else(|| {
            let peer = &self.lab.ends[end.peer];
            let known = end.strict && peer.strict && !packet.kind.is_request();
            let psn = extend(peer.una, packet.psn);
            known.then(|| self.lab.op_at(end.peer, psn)).flatten()
        })?;
        let op = &self.lab.ops[op as usize];
        Some(Work {
            wr_id: op.wqe.wr_id,
            opcode: op.wqe.opcode,
            first_psn: op.first as u32 & PSN_MASK,
            psns: op.psns,
            path_mtu: end.attr.path_mtu,
        })
    }
}
