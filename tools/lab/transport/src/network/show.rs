// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shows a tap the packets that are sent. The tap does not change the simulation: no random number
//! is drawn and no memory is read for it.

use super::qp_model::nearest_psn;
use super::SimNetwork;
use crate::tap::{FrameFate, TappedFrame, WorkRequestInfo};
use verbena_transport::frame;
use verbena_transport::packet::Packet;
use verbena_transport::psn::PSN_MASK;

impl SimNetwork {
    /// Shows a packet of an end. A packet without a frame, because it travels by reference or is
    /// lost before the frame is made, gets a frame with zeros as payload.
    pub(super) fn report_to_tap(
        &mut self,
        me: usize,
        packet: &Packet,
        op: Option<u32>,
        made: Option<&[u8]>,
        fate: FrameFate,
    ) {
        let Some(mut tap) = self.tap.take() else {
            return;
        };
        let end = &self.model.qps[me];
        let path = packet.datagram.as_ref().map_or(end.path, |d| d.path);
        for packet in packet.clone().split(end.attr.path_mtu) {
            let mut hollow = Vec::new();
            let bytes = made.unwrap_or_else(|| {
                let zeros: Result<(), ()> = frame::emit(&path, &packet, &mut hollow, |_| Ok(()));
                debug_assert!(zeros.is_ok());
                &hollow
            });
            tap.on_frame(&TappedFrame {
                now_ns: self.model.now_ns,
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
    fn work_of(&self, me: usize, packet: &Packet, op: Option<u32>) -> Option<WorkRequestInfo> {
        let end = &self.model.qps[me];
        let op = op.or_else(|| {
            let peer = &self.model.qps[end.peer];
            let known = end.strict && peer.strict && !packet.kind.is_request();
            let psn = nearest_psn(peer.una_psn, packet.psn);
            known.then(|| self.model.op_at(end.peer, psn)).flatten()
        })?;
        let op = &self.model.ops[op as usize];
        Some(WorkRequestInfo {
            wr_id: op.wqe.wr_id,
            opcode: op.wqe.opcode,
            first_psn: op.first as u32 & PSN_MASK,
            psns: op.psns,
            path_mtu: end.attr.path_mtu,
        })
    }
}
