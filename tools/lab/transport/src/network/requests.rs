// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks every request that a queue pair of a connection sends: the PSN at which it goes on, and
//! the part of its work request.

use super::model::NetworkModel;
use super::qp_model::nearest_psn;
use super::work::SendModel;
use verbena_transport::host::{AtomicOp, WqeOpcode};
use verbena_transport::packet::{AethSyndrome, Packet, PacketKind, Reth, SendTail};
use verbena_transport::{QpState, QpType};

impl NetworkModel {
    /// Returns the next work request that sends packets.
    pub(super) fn next_op(&mut self, me: usize) -> u32 {
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

    /// Notes that a local peer has receives, which ends the wait after an RNR NAK.
    pub(super) fn hear_of_receives(&mut self, me: usize, packet: &Packet) {
        let end = &mut self.qps[me];
        let PacketKind::Ack(aeth) = packet.kind else {
            return;
        };
        let has_some = matches!(aeth.syndrome, AethSyndrome::Ack { credits } if credits != 0);
        let psn = nearest_psn(end.una_psn, packet.psn);
        let is_new = psn + 1 >= end.una_psn && psn < end.sent_psn.max(end.una_psn);
        if end.attr.local_peer && has_some && is_new && end.is_rnr_waiting {
            end.rnr_ended_early_ns = end.rnr_until_ns;
            end.rnr_until_ns = 0;
            end.is_rnr_waiting = false;
            end.progress_ns = self.now_ns;
        }
    }

    /// Checks a request of a connection. Returns the work request that the packet belongs to.
    pub(super) fn observe_request(&mut self, me: usize, packet: &Packet) -> u32 {
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
        if reliable {
            self.observe_position(me, packet, psn);
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
            self.start_work_request(me, packet)
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

    /// Checks the PSN at which a reliable requester goes on: after the last request, or where a
    /// retransmission begins or ends.
    fn observe_position(&mut self, me: usize, packet: &Packet, psn: u64) {
        let end = &self.qps[me];
        let (una, hi) = (end.una_psn, end.sent_psn);
        let modern = end.recovers_early();
        if modern && psn > end.next_psn && psn <= end.resume {
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
        } else if psn != end.next_psn {
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
        } else if modern && psn < hi {
            assert!(
                !end.is_probe || end.has_retry_cause,
                "a probe is more than one packet: {psn:#x} after {una:#x}"
            );
            self.qps[me].go_backs += u32::from(psn == una);
        }
    }

    /// Starts the next work request with its first packet, and returns its number.
    fn start_work_request(&mut self, me: usize, packet: &Packet) -> u32 {
        let mtu = self.qps[me].attr.path_mtu;
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
    }
}

/// Checks that a packet is the part of its work request that begins with packet number `begin`.
fn check_request(packet: &Packet, op: &SendModel, begin: u32, mtu: u32) {
    let wqe = &op.wqe;
    if op.awaits_response() {
        let done = begin * mtu;
        let (_, end) = op.message_at(op.first + u64::from(begin));
        let part = op.length.min((end - op.first) as u32 * mtu);
        let kind = match wqe.opcode {
            WqeOpcode::RdmaRead => PacketKind::ReadRequest(Reth {
                addr: wqe.remote_addr + u64::from(done),
                rkey: if op.length == 0 { 0 } else { wqe.rkey },
                length: part - done,
            }),
            WqeOpcode::AtomicWrite => PacketKind::AtomicWrite(Reth {
                addr: wqe.remote_addr,
                rkey: wqe.rkey,
                length: 8,
            }),
            WqeOpcode::Flush => PacketKind::Flush(
                wqe.flush.0,
                Reth {
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
            reth: first.then_some(Reth {
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
