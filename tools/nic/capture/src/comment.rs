// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Comments on packets: the sender, the work request, the part of it, and if the packet is a
//! retransmission.
//!
//! For example `QP 0x10 -> 0x11, WR 5 (RDMA WRITE), PSN 16777210, packet 2 of 3, retransmission`.

use std::collections::HashMap;
use std::fmt::Write;
use verbena_lab_transport::tap::{FrameFate, TappedFrame, WorkRequestInfo};
use verbena_transport::host::WqeOpcode;
use verbena_transport::packet::{Aeth, AethSyndrome, NakCode, Packet, PacketKind, Reth};
use verbena_transport::psn;

/// Makes comments on packets, and remembers the sent packets to recognize retransmissions.
#[derive(Debug, Default)]
pub struct PacketCommenter {
    /// PSN after the highest one of a QP, for requests and for responses that carry data.
    sent: HashMap<(u32, bool), u32>,
}

impl PacketCommenter {
    /// Returns the comment on a packet. The caller has to pass packets in the order in which they
    /// are sent.
    pub fn comment(&mut self, sight: &TappedFrame<'_>) -> String {
        let packet = sight.packet;
        let mut text = format!("QP {:#x} -> {:#x}, ", packet.src_qpn, packet.dst_qpn);
        let work = sight.work.map_or_else(
            || String::from("unknown WR"),
            |work| format!("WR {} ({})", work.wr_id, operation(work.opcode)),
        );
        // Writes to a string cannot fail.
        let _ = write!(text, "{}{work}, PSN {}", effect(packet), packet.psn);
        if let Some(work) = sight.work.filter(|work| work.psns > 1) {
            let _ = write_part(&mut text, packet, &work);
        }
        if self.is_retransmission(packet, sight.work) {
            text.push_str(", retransmission");
        }
        match sight.fate {
            FrameFate::Delivered => {}
            FrameFate::Lost => text.push_str(", lost"),
            FrameFate::Corrupted => text.push_str(", corrupted on the link"),
        }
        if sight.is_hollow {
            text.push_str(", payload not shown");
        }
        text
    }

    /// Forgets the packets of a QP that begins anew, so that none of its packets is a
    /// retransmission.
    pub fn forget_qp(&mut self, qpn: u32) {
        self.sent.retain(|(sender, _), _| *sender != qpn);
    }

    /// True if a packet was sent before.
    fn is_retransmission(&mut self, packet: &Packet, work: Option<WorkRequestInfo>) -> bool {
        let is_request = packet.kind.is_request();
        if matches!(packet.kind, PacketKind::Ack(_) | PacketKind::Cnp) {
            return false;
        }
        let next = match (packet.kind, work) {
            // A READ request has the PSNs of all its responses.
            (PacketKind::ReadRequest(reth), Some(work)) => {
                psn::add(packet.psn, responses(&reth, &work))
            }
            _ => psn::add(packet.psn, 1),
        };
        let sent = self.sent.entry((packet.src_qpn, is_request));
        let sent = sent.or_insert(packet.psn);
        let is_retransmission = psn::is_behind(packet.psn, *sent);
        if psn::is_behind(*sent, next) {
            *sent = next;
        }
        is_retransmission
    }
}

/// Returns the number of responses to a READ request.
fn responses(reth: &Reth, work: &WorkRequestInfo) -> u32 {
    reth.length.div_ceil(work.path_mtu.max(1)).max(1)
}

fn write_part(text: &mut String, packet: &Packet, work: &WorkRequestInfo) -> std::fmt::Result {
    let number = psn::ahead(packet.psn, work.first_psn).saturating_add(1);
    match packet.kind {
        // An acknowledgement may cover any number of packets.
        PacketKind::Ack(_) | PacketKind::Cnp => Ok(()),
        PacketKind::ReadRequest(reth) => match responses(&reth, work) {
            all if all == work.psns => write!(text, ", {all} responses"),
            some if number.saturating_add(some) > work.psns => {
                write!(text, ", from response {number} of {}", work.psns)
            }
            some => write!(text, ", {some} responses from {number} of {}", work.psns),
        },
        PacketKind::ReadResponse(_) => write!(text, ", response {number} of {}", work.psns),
        _ => write!(text, ", packet {number} of {}", work.psns),
    }
}

/// Returns the verb of the comment on a packet, such as "acknowledges " or "refuses (remote access) ".
/// The work request that the packet belongs to follows it.
fn effect(packet: &Packet) -> &'static str {
    match packet.kind {
        PacketKind::Ack(Aeth { syndrome, .. }) => match syndrome {
            AethSyndrome::Ack { .. } => "acknowledges ",
            AethSyndrome::Rnr { .. } => "is not ready for ",
            AethSyndrome::Nak(code) => match code {
                NakCode::Sequence => "misses ",
                NakCode::InvalidRequest => "refuses (invalid request) ",
                NakCode::RemoteAccess => "refuses (remote access) ",
                NakCode::RemoteOperational => "fails (remote operational) ",
                NakCode::InvalidRd => "refuses (invalid RD request) ",
                NakCode::SourceFault => "cannot read ",
            },
        },
        PacketKind::ReadResponse(_) | PacketKind::AtomicResponse(..) => "answers ",
        PacketKind::Cnp => "reports congestion (CNP), ",
        _ => "",
    }
}

/// Returns the name of the operation of a work request, in the words of the specification.
fn operation(opcode: WqeOpcode) -> &'static str {
    match opcode {
        WqeOpcode::Send => "SEND",
        WqeOpcode::SendImm => "SEND with immediate",
        WqeOpcode::SendInv => "SEND with invalidate",
        WqeOpcode::RdmaWrite => "RDMA WRITE",
        WqeOpcode::RdmaWriteImm => "RDMA WRITE with immediate",
        WqeOpcode::RdmaRead => "RDMA READ",
        WqeOpcode::CompareSwap => "CmpSwap",
        WqeOpcode::FetchAdd => "FetchAdd",
        WqeOpcode::LocalInv => "local invalidate",
        WqeOpcode::FastReg => "fast register",
        WqeOpcode::BindMw => "bind window",
        WqeOpcode::AtomicWrite => "ATOMIC WRITE",
        WqeOpcode::Flush => "FLUSH",
    }
}
