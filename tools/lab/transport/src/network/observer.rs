// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks every packet that a queue pair sends against the model's own view: its PSN, its part of a
//! work request, the acknowledgement that it makes.

use super::cnp_model::is_cnp;
use super::coverage::Topic;
use super::model::NetworkModel;
use super::qp_model::{nearest_psn, PendingAnswer};
use verbena_transport::host::{AtomicOp, WqeOpcode};
use verbena_transport::packet::{
    Aeth, AethSyndrome, NakCode, Packet, PacketKind, Payload, SendTail,
};
use verbena_transport::QpState;
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

    /// Returns the next work request that sends packets.
    fn next_op(&mut self, me: usize) -> u32 {
        loop {
            let end = &mut self.qps[me];
            let number = end.sq.get(end.assign).copied();
            let number = number.expect("a packet without a work request is sent");
            end.assign += 1;
            let hi = end.sent_psn;
            let op = &mut self.ops[number as usize];
            assert!(
                !op.is_rejected_locally(),
                "a work request with a fault, or a later one, is sent: {op:?}"
            );
            op.first = hi;
            if !op.is_silent() {
                return number;
            }
        }
    }

    fn observe_request(&mut self, me: usize, packet: &Packet) -> u32 {
        let end = &self.qps[me];
        assert_eq!(packet.dst_qpn, end.attr.dest_qpn);
        let (mtu, una, hi) = (end.attr.path_mtu, end.una_psn, end.sent_psn);
        let psn = nearest_psn(end.next_psn, packet.psn);
        assert!(
            matches!(
                end.state,
                QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err
            ),
            "a request is sent in {:?}",
            end.state
        );
        assert!(
            self.now_ns >= end.rnr_until_ns,
            "sent before the RNR timer expires"
        );
        let reliable = end.qp_type == QpType::Rc;
        // A UC packet whose memory was gone has used its PSN without being sent.
        let hi = if !reliable && end.expected_counters.flushed > 0 {
            hi.max(psn)
        } else {
            hi
        };
        assert!(psn <= hi, "PSN {psn:#x} leaves a gap after {hi:#x}");
        let modern = end.recovers_early();
        if reliable && modern && psn > end.next_psn && psn <= end.resume {
            // Either the packets that were sent again alone have left, and the reference checks
            // where the requester goes on, or an acknowledgement came meanwhile.
            let end = &mut self.qps[me];
            end.next_psn = psn;
            if psn == una && psn < hi {
                end.go_backs += 1;
                end.second_retransmit = end
                    .has_retry_cause
                    .then_some((psn, self.now_ns + end.min_probe_ns));
                end.has_retry_cause = false;
            }
        } else if reliable && psn != end.next_psn {
            assert!(
                psn == una,
                "the requester goes back to {psn:#x}, not to {una:#x}, the oldest unacknowledged PSN"
            );
            let goes_back = psn < end.next_psn;
            let now = self.now_ns;
            let end = &mut self.qps[me];
            end.resume = end.resume.max(end.next_psn);
            let second = end
                .second_retransmit
                .take()
                .is_some_and(|(at, end)| at == psn && now < end);
            let second = modern && second && !end.has_retry_cause;
            if goes_back && !second {
                end.go_backs += 1;
                // A packet that came just before the first request was sent may have started the
                // timer.
                let least = if modern {
                    end.min_probe_ns
                } else {
                    end.min_timeout_ns
                };
                let due = (end.progress_ns + least).saturating_sub(2_000);
                (end.is_probe, end.second_retransmit) = (
                    !end.has_retry_cause,
                    end.has_retry_cause.then_some((psn, now + least)),
                );
                assert!(
                    end.has_retry_cause || end.thawed || now >= due,
                    "sent again before the timer expires at {due}"
                );
                end.has_retry_cause = false;
            }
            assert!(
                end.disturbed,
                "packets are sent again without a reason (una {una:#x}, at {:#x})",
                end.next_psn
            );
            assert!(
                !modern || !goes_back || packet.ack_req,
                "the first packet that is sent again does not ask for an acknowledgement"
            );
        } else if reliable && modern && psn < hi {
            assert!(
                !end.is_probe || end.has_retry_cause,
                "a probe is more than one packet: {psn:#x} after {una:#x}"
            );
            self.qps[me].go_backs += u32::from(psn == una);
        }
        self.qps[me].sent_psn = hi;
        self.qps[me].is_rnr_waiting = false;
        // The next request of a READ that was requested in part begins no work request. PSNs that a
        // failed unreliable work request had not used go to the next work request.
        let begun = self.op_at(me, psn).filter(|op| {
            let has_ended = !reliable && self.ops[*op as usize].is_complete;
            !(has_ended && psn == hi && packet.first)
        });
        let number = if psn == hi && packet.first && begun.is_none() {
            let end = &mut self.qps[me];
            if end.state == QpState::Sqd {
                assert!(end.may_start, "a send starts in SQD");
                end.may_start = false;
            } else {
                end.may_start = true;
            }
            let number = self.next_op(me);
            let end = &self.qps[me];
            let op = &self.ops[number as usize];
            if op.wqe.fence {
                assert_eq!(end.reads, 0, "a fence is ignored: {op:?}");
            }
            let (most, least) = (end.read_part(), end.least_part());
            let op = &mut self.ops[number as usize];
            op.psns = op.psns_needed(mtu);
            // The number of responses that one request asks for depends on the path. The first
            // request determines it for all.
            op.part = match packet.kind {
                PacketKind::ReadRequest(reth) => reth.length.div_ceil(mtu).max(1),
                _ => most,
            };
            assert!(
                op.part <= most && op.part >= least.min(op.psns),
                "a READ asks for {} responses, of {least} to {most}",
                op.part
            );
            number
        } else {
            begun.expect("a PSN that belongs to no work request")
        };
        let op = &self.ops[number as usize];
        if psn == hi && op.awaits_response() {
            let end = &mut self.qps[me];
            // The driver may have lowered `max_rd_atomic` under a READ that has begun.
            let most = u32::from(end.attr.max_rd_atomic).max(1);
            assert!(
                end.reads < most && (end.attr.max_rd_atomic > 0 || psn > op.first),
                "more READs and atomics than max_rd_atomic"
            );
            end.reads += 1;
        }
        assert!(
            !op.is_complete || !reliable,
            "a work request is sent after its end: {op:?}"
        );
        let begin = (psn - op.first) as u32;
        let reaches = if op.awaits_response() {
            op.message_at(psn).1
        } else {
            psn + u64::from(packet.psns)
        };
        check_request(packet, op, begin, mtu);
        let end = &mut self.qps[me];
        let again = hi.min(reaches).saturating_sub(psn);
        if again > 0 {
            end.again_to = reaches;
        }
        end.expected_counters.retransmitted += again;
        end.next_psn = reaches;
        if end.sent_psn == end.una_psn {
            end.progress_ns = self.now_ns;
        }
        end.sent_psn = end.sent_psn.max(reaches);
        if reliable && !(op.awaits_response() && end.attr.local_peer) {
            assert!(
                reaches - una <= u64::from(end.window),
                "more packets than the window: {una:#x}..{reaches:#x}"
            );
        }
        number
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

/// Checks that a packet is the part of its work request that begins with packet number `begin`.
fn check_request(packet: &Packet, op: &super::work::SendModel, begin: u32, mtu: u32) {
    let wqe = &op.wqe;
    if op.awaits_response() {
        let done = begin * mtu;
        let (_, end) = op.message_at(op.first + u64::from(begin));
        let part = op.length.min((end - op.first) as u32 * mtu);
        let kind = match wqe.opcode {
            WqeOpcode::RdmaRead => PacketKind::ReadRequest(verbena_transport::packet::Reth {
                addr: wqe.remote_addr + u64::from(done),
                rkey: if op.length == 0 { 0 } else { wqe.rkey },
                length: part - done,
            }),
            WqeOpcode::AtomicWrite => PacketKind::AtomicWrite(verbena_transport::packet::Reth {
                addr: wqe.remote_addr,
                rkey: wqe.rkey,
                length: 8,
            }),
            WqeOpcode::Flush => PacketKind::Flush(
                wqe.flush.0,
                verbena_transport::packet::Reth {
                    addr: wqe.remote_addr,
                    rkey: wqe.rkey,
                    length: wqe.flush.1,
                },
            ),
            WqeOpcode::CompareSwap => PacketKind::Atomic {
                addr: wqe.remote_addr,
                rkey: wqe.rkey,
                op: AtomicOp::CompareSwap {
                    compare: wqe.compare_add,
                    swap: wqe.swap,
                },
            },
            _ => PacketKind::Atomic {
                addr: wqe.remote_addr,
                rkey: wqe.rkey,
                op: AtomicOp::FetchAdd {
                    add: wqe.compare_add,
                },
            },
        };
        assert_eq!(packet.kind, kind, "a wrong request for {op:?}");
        let due = if op.sends_payload() { op.length } else { 0 };
        assert_eq!(packet.payload.len(), due, "a wrong payload for {op:?}");
        return;
    }
    let (first, last) = (begin == 0, begin + packet.psns == op.psns);
    let kind = match wqe.opcode {
        WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => PacketKind::Write {
            reth: first.then_some(verbena_transport::packet::Reth {
                addr: wqe.remote_addr,
                rkey: wqe.rkey,
                length: op.length,
            }),
            imm: (last && op.has_imm()).then_some(wqe.imm),
        },
        WqeOpcode::SendImm if last => PacketKind::Send(SendTail::Imm(wqe.imm)),
        WqeOpcode::SendInv if last => {
            PacketKind::Send(SendTail::Invalidate(u32::from_le_bytes(wqe.imm)))
        }
        _ => PacketKind::Send(SendTail::None),
    };
    let due = (op.length - begin * mtu).min(packet.psns * mtu);
    assert!(
        packet.kind == kind
            && packet.first == first
            && packet.last == last
            && packet.solicited == (last && wqe.solicited && op.takes_receive())
            && packet.payload.len() == due,
        "a wrong packet {packet:?} for {op:?}"
    );
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
