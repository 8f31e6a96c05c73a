// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks every packet that a queue pair sends against the model's own view: its PSN, its part of a
//! work request, the acknowledgement that it makes.

use super::cnp_model::is_cnp;
use super::coverage::Topic;
use super::model::NetworkModel;
use super::qp_model::{nearest_psn, PendingAnswer};
use verbena_transport::host::WqeOpcode;
use verbena_transport::packet::{
    Aeth, AethSyndrome, NakCode, Packet, PacketKind, Payload, SendTail,
};
use verbena_transport::QpType;

/// Returns the number of receives for a credit code (IBTA 9.7.7.2, table 46), which doubles every
/// other step.
fn credits_of(code: u8) -> u32 {
    match code {
        0..=3 => u32::from(code),
        code if code % 2 == 0 => 1 << (code / 2),
        code => 3 << (code / 2 - 1),
    }
}

impl NetworkModel {
    /// Judges a packet that was sent. For a request, returns the work request that the packet
    /// belongs to.
    pub fn observe(&mut self, me: usize, packet: &Packet) -> Option<u32> {
        self.trace(me, || format!("sends {}", describe(packet)));
        self.coverage.count(Topic::Packet, packet.opcode(), 0);
        let end = &mut self.qps[me];
        end.expected_counters.tx_packets += u64::from(packet.psns);
        end.expected_counters.tx_bytes += u64::from(packet.payload.len());
        if let PacketKind::Ack(aeth)
        | PacketKind::ReadResponse(Some(aeth))
        | PacketKind::AtomicResponse(aeth, _) = packet.kind
        {
            self.coverage.count(Topic::Aeth, syndrome_byte(&aeth), 0);
        }
        if is_cnp(packet) {
            self.observe_cnp(me, packet);
            return None;
        }
        if !self.qps[me].strict {
            return None;
        }
        let end = &self.qps[me];
        assert_eq!(packet.pkey, end.attr.pkey);
        assert_eq!(packet.src_qpn, end.qpn);
        if packet.kind.is_request() {
            return match end.qp_type {
                QpType::Rc | QpType::Uc => Some(self.observe_request(me, packet)),
                _ => Some(self.observe_datagram(me, packet)),
            };
        }
        assert_eq!(end.qp_type, QpType::Rc, "an unreliable service answers");
        assert_eq!(packet.dst_qpn, end.attr.dest_qpn);
        self.observe_response(me, packet);
        None
    }

    fn observe_datagram(&mut self, me: usize, packet: &Packet) -> u32 {
        let psn = nearest_psn(self.qps[me].sent_psn, packet.psn);
        assert_eq!(
            psn, self.qps[me].sent_psn,
            "datagrams are numbered one after the other"
        );
        let mtu = self.qps[me].attr.path_mtu;
        let number = loop {
            let number = self.next_op(me);
            if self.ops[number as usize].length <= mtu {
                break number;
            }
        };
        let to = self.ops[number as usize].destination;
        let qpn = self.qps[to].qpn;
        let own = self.qps[me].attr.qkey;
        let op = &mut self.ops[number as usize];
        op.psns = 1;
        let dest = op.wqe.datagram.as_deref().expect("checked by the host");
        let qkey = if dest.qkey >> 31 == 1 { own } else { dest.qkey };
        let datagram = packet.datagram.as_deref().expect("a datagram has a DETH");
        let tail = match op.wqe.opcode {
            WqeOpcode::SendImm => SendTail::Imm(op.wqe.imm),
            _ => SendTail::None,
        };
        assert!(
            packet.kind == PacketKind::Send(tail)
                && packet.dst_qpn == qpn
                && datagram.qkey == qkey
                && packet.solicited == op.wqe.solicited
                && packet.payload.len() == op.length
                && packet.first
                && packet.last
                && packet.psns == 1,
            "a wrong datagram {packet:?} for {op:?}"
        );
        self.qps[me].sent_psn += 1;
        self.qps[me].next_psn = self.qps[me].sent_psn;
        number
    }

    fn observe_response(&mut self, me: usize, packet: &Packet) {
        let end = &self.qps[me];
        let (expected, peer, mtu) = (end.expected, end.peer, end.attr.path_mtu);
        let psn = nearest_psn(expected, packet.psn);
        if self.qps[peer].life != end.life {
            return;
        }
        let after = psn + u64::from(packet.psns);
        match packet.kind {
            PacketKind::Ack(aeth) => self.observe_ack(me, psn, &aeth),
            PacketKind::ReadResponse(_) | PacketKind::AtomicResponse(..) => {
                assert!(
                    after <= expected,
                    "a response to a request that was not executed"
                );
                let number = self.op_at(peer, psn).expect("a response without a request");
                let op = &self.ops[number as usize];
                let begin = (psn - op.first) as u32;
                match packet.kind {
                    PacketKind::AtomicResponse(_, value) => {
                        assert!(op.is_atomic() && op.executed);
                        assert_eq!(value, op.value, "an atomic's result is not the stored one");
                    }
                    _ if op.is_placed() => {
                        let empty = packet.payload.is_empty();
                        assert!(
                            empty && packet.first && packet.last,
                            "a wrong response {packet:?} for {op:?}"
                        );
                    }
                    _ => {
                        assert_eq!(op.wqe.opcode, WqeOpcode::RdmaRead);
                        assert_eq!(
                            packet.last,
                            after == op.message_at(psn).1,
                            "a wrong end of a response {packet:?}"
                        );
                        let due = (op.length - begin * mtu).min(packet.psns * mtu);
                        assert_eq!(
                            packet.payload.len(),
                            due,
                            "a wrong response {packet:?} for {op:?}"
                        );
                        if let Payload::Region { key, addr, .. } = packet.payload {
                            let from = op.wqe.remote_addr + u64::from(begin * mtu);
                            assert_eq!(
                                (key, addr),
                                (op.wqe.rkey, from),
                                "a response from another place than {op:?}"
                            );
                        }
                    }
                }
                let end = &mut self.qps[me];
                let fresh = end.pending.front().is_some_and(|p| p.sent == psn);
                if fresh {
                    end.pending[0].sent = after;
                    if after == end.pending[0].end {
                        end.pending.pop_front();
                    }
                } else {
                    assert!(
                        end.again.is_some_and(|again| again <= psn),
                        "a response out of order: {psn:#x}, {:?}",
                        end.pending.front()
                    );
                }
                end.answered = end.answered.max(after);
            }
            _ => {}
        }
    }

    fn observe_ack(&mut self, me: usize, psn: u64, aeth: &Aeth) {
        let end = &self.qps[me];
        let expected = end.expected;
        match aeth.syndrome {
            AethSyndrome::Ack { credits } => {
                assert!(
                    psn < expected,
                    "{psn:#x} is acknowledged, but {expected:#x} is expected"
                );
                self.check_pending(me, psn + 1);
                if credits != 31 {
                    let queue = &self.queues[self.qps[me].queue];
                    assert!(!queue.shared, "credits of an SRQ");
                    // The receive of the message in progress counts, because its MSN is not
                    // reported yet.
                    let held = usize::from(self.qps[me].held.is_some());
                    let left = (queue.posts.len() - queue.taken + held) as u32;
                    assert!(
                        credits_of(credits) <= left,
                        "credits for {} receives, and {left} are posted",
                        credits_of(credits)
                    );
                }
                self.check_msn(me, aeth);
            }
            AethSyndrome::Rnr { timer } => {
                assert_eq!(
                    psn, expected,
                    "an RNR NAK for another PSN than the expected one"
                );
                assert_eq!(timer, self.qps[me].attr.min_rnr_timer);
                self.check_pending(me, psn);
                self.check_msn(me, aeth);
                let peer = self.qps[me].peer;
                self.qps[peer].disturbed = true;
                // The RNR NAK covers a gap after this PSN too.
                self.qps[me].gap_nak = Some(psn);
            }
            AethSyndrome::Nak(NakCode::Sequence) => {
                assert_eq!(psn, expected, "a NAK for another PSN than the expected one");
                self.check_pending(me, psn);
                self.check_msn(me, aeth);
                let end = &mut self.qps[me];
                assert_ne!(end.gap_nak, Some(psn), "a gap is reported twice");
                end.gap_nak = Some(psn);
            }
            // A NAK for memory of the sender that is gone covers a gap too.
            AethSyndrome::Nak(NakCode::SourceFault) => self.qps[me].fault_nak = Some(psn),
            AethSyndrome::Nak(_) => {}
        }
    }

    /// Checks that the answers of READs and atomics leave first.
    fn check_pending(&self, me: usize, end: u64) {
        let first = self.qps[me].pending.front();
        assert!(
            first.is_none_or(|p| p.first >= end),
            "acknowledged up to {end:#x} before the answer to {first:?}"
        );
    }

    fn check_msn(&self, me: usize, aeth: &Aeth) {
        let msn = (self.qps[me].msn & 0xff_ffff) as u32;
        assert_eq!(aeth.msn, msn, "a wrong MSN");
    }

    /// Advances a responder that has executed up to a PSN: notes the READs and atomics to be
    /// answered, and counts messages.
    pub fn note_executed(&mut self, me: usize, to: u64) {
        let (mut psn, peer) = (self.qps[me].expected, self.qps[me].peer);
        while psn < to {
            let number = self
                .op_at(peer, psn)
                .expect("more was executed than was sent");
            let op = &self.ops[number as usize];
            let (first, end) = op.message_at(psn);
            let responds = op.awaits_response();
            if end <= to {
                self.qps[me].msn += 1;
            }
            if responds {
                let sent = first;
                self.qps[me]
                    .pending
                    .push_back(PendingAnswer { first, end, sent });
            }
            psn = end;
        }
        self.qps[me].expected = to;
    }
}

fn syndrome_byte(aeth: &Aeth) -> u8 {
    match aeth.syndrome {
        AethSyndrome::Ack { credits } => credits,
        AethSyndrome::Rnr { timer } => 0x20 | timer,
        AethSyndrome::Nak(code) => match code {
            NakCode::Sequence => 0x60,
            NakCode::InvalidRequest => 0x61,
            NakCode::RemoteAccess => 0x62,
            NakCode::RemoteOperational => 0x63,
            NakCode::InvalidRd => 0x64,
            NakCode::SourceFault => 0xff,
        },
    }
}

/// Describes a packet in one line.
pub fn describe(packet: &Packet) -> std::string::String {
    let place = match (packet.first, packet.last) {
        (true, true) => "only",
        (true, false) => "first",
        (false, true) => "last",
        (false, false) => "middle",
    };
    let mut line = format!(
        "psn {:#08x}+{} {} {:?}, {} bytes, to qp {:#x}",
        packet.psn,
        packet.psns,
        place,
        packet.kind,
        packet.payload.len(),
        packet.dst_qpn
    );
    if packet.ack_req {
        line.push_str(", asks for an acknowledgement");
    }
    line
}
