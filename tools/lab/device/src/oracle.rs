// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The oracle: the outcome of a work request by the rules alone. The oracle knows queues of
//! requests, keys, PDs and states; packets, slices and scheduling are not part of it.

use crate::memory::{Domain, MemoryAccess, Piece};
use crate::objects::{DataSegment, PostedRecv, PostedSend};
use crate::simulation::DeviceSimulation;
use verbena_abi::cmd::QpType;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::QpState;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

/// Completion of a receive in error: its status and the possible causes.
pub type BadRecv = (WcStatus, Vec<Syndrome>);

/// Possible outcome of a work request.
#[derive(Clone, Debug)]
pub enum RequestOutcome {
    /// The request succeeds.
    Success,
    /// The requester itself rejects the request.
    RejectedLocally(WcStatus, Vec<Syndrome>),
    /// The responder has executed the request, but the requester cannot store the response.
    Unstored(Vec<Syndrome>),
    /// The responder rejects the request: status at the requester, completion of the receive that
    /// was taken, and event at the responder.
    Refused(WcStatus, Option<BadRecv>, Option<EventType>),
    /// The responder has no receive for the message.
    ReceiverNotReady,
    /// The responder does not answer.
    NoResponse,
    /// The responder repeats the NAK of an earlier request.
    RepeatedNak(WcStatus),
}

impl RequestOutcome {
    /// Returns the status of the request's completion, or `None` if the request stays pending.
    pub fn status(&self, rnr_retry: u8) -> Option<WcStatus> {
        match self {
            Self::Success => Some(WcStatus::Success),
            Self::RejectedLocally(status, _)
            | Self::Refused(status, ..)
            | Self::RepeatedNak(status) => Some(*status),
            Self::Unstored(_) => Some(WcStatus::LocProtErr),
            Self::ReceiverNotReady if rnr_retry == 7 => None,
            Self::ReceiverNotReady => Some(WcStatus::RnrRetryExcErr),
            Self::NoResponse => Some(WcStatus::RetryExcErr),
        }
    }

    /// Returns the values that `vendor_err` may have.
    pub fn causes(&self) -> Vec<Syndrome> {
        match self {
            Self::Success => Vec::new(),
            Self::RejectedLocally(_, causes) | Self::Unstored(causes) => causes.clone(),
            Self::Refused(status, ..) | Self::RepeatedNak(status) => vec![match status {
                WcStatus::RemInvReqErr => Syndrome::NakInvalidRequest,
                WcStatus::RemAccessErr => Syndrome::NakRemoteAccess,
                _ => Syndrome::NakRemoteOperational,
            }],
            Self::ReceiverNotReady => vec![Syndrome::RnrRetryExceeded],
            Self::NoResponse => vec![Syndrome::RetryExceeded],
        }
    }
}

/// Returns a list with the part of each data segment that a message of this length uses.
fn used_segments(sges: &[DataSegment], length: u32) -> Vec<DataSegment> {
    let mut left = length;
    let mut out = Vec::new();
    for &(addr, len, key) in sges {
        let part = len.min(left);
        left -= part;
        out.push((addr, part, key));
    }
    out
}

impl DeviceSimulation {
    /// Returns the receive that the next message to a QP takes. If the QP has an SRQ, the
    /// completion of the receive names it.
    pub fn next_recv(&self, at: usize) -> Option<PostedRecv> {
        let qp = &self.qps[at];
        let Some(srq) = qp.srq else {
            return qp.recvs.front().cloned();
        };
        let said = qp.completions[1].front()?;
        if said.status == WcStatus::WrFlushErr as u8 {
            return None;
        }
        let index = said.cqe.wqe_index.get();
        self.srqs[srq]
            .posted
            .iter()
            .find(|r| r.index == index)
            .cloned()
    }

    /// Returns the domain for the key checks of the QP's receives.
    pub fn recv_pd(&self, at: usize) -> Domain {
        let qp = &self.qps[at];
        qp.srq
            .map_or(qp.pd, |srq| self.srqs[srq].domain(qp.pd.privileged))
    }

    /// Returns the pieces that a message of this length is written to.
    pub fn recv_pieces(&self, at: usize, recv: &PostedRecv, length: u32) -> Vec<Piece> {
        let pd = self.recv_pd(at);
        let list = used_segments(&recv.sges, length);
        self.keys
            .resolve_all(&list, pd, MemoryAccess::Write)
            .unwrap_or_default()
    }

    /// Returns all pieces that the device may write for a receive.
    pub fn all_pieces(&self, at: usize, recv: &PostedRecv) -> Vec<Piece> {
        let pd = self.recv_pd(at);
        let pieces = |sge: &DataSegment| self.keys.reachable_pieces(*sge, pd, MemoryAccess::Write);
        recv.sges.iter().flat_map(pieces).collect()
    }

    /// Returns the verdict for a send that the requester itself rejects.
    pub fn local_fault(&self, at: usize, wr: &PostedSend) -> Option<RequestOutcome> {
        if let Some(why) = wr.malformed {
            return Some(RequestOutcome::RejectedLocally(
                WcStatus::LocQpOpErr,
                vec![why],
            ));
        }
        if wr.is_local() {
            return self.key_fault(at, wr);
        }
        if wr.fetches() {
            return None;
        }
        let wrong = self
            .keys
            .resolve_all(&wr.sges, self.qps[at].pd, MemoryAccess::Read)
            .err()?;
        Some(RequestOutcome::RejectedLocally(WcStatus::LocProtErr, wrong))
    }

    /// Returns the pieces that the response is written to, or the syndromes of the keys that reject
    /// it.
    pub fn own_pieces(&self, at: usize, wr: &PostedSend) -> Result<Vec<Piece>, Vec<Syndrome>> {
        self.keys
            .resolve_all(&wr.sges, self.qps[at].pd, MemoryAccess::Write)
    }

    /// Returns the verdict for a send that the responder executes.
    fn executed(&self, at: usize, wr: &PostedSend) -> RequestOutcome {
        match self.own_pieces(at, wr) {
            Err(wrong) if wr.fetches() => RequestOutcome::Unstored(wrong),
            _ => RequestOutcome::Success,
        }
    }

    /// Returns the possible outcomes of a send. There are several if the rules leave the outcome
    /// open, or if the outcome depends on other requests.
    pub fn possible_outcomes(&self, at: usize, wr: &PostedSend) -> Vec<RequestOutcome> {
        let qp = &self.qps[at];
        let peer = &self.qps[qp.peer];
        if let Some(fault) = self.local_fault(at, wr) {
            let mut out = vec![fault];
            // The requester checks a request before its first packet, and checks a request in
            // progress again at each retransmission. So the retries may run out before the check
            // fails.
            if qp.kind == QpType::Rc && !peer.received() && !wr.is_local() {
                out.push(RequestOutcome::NoResponse);
            }
            return out;
        }
        if qp.kind != QpType::Rc || wr.executed_by_peer || wr.is_local() {
            return vec![self.executed(at, wr)];
        }
        let mut out = Vec::new();
        if peer.received() {
            out = self.answers(qp.peer, wr);
        }
        if !peer.received() || peer.device_state == QpState::Err || !peer.connected {
            out.push(RequestOutcome::NoResponse);
            if wr.may_be_executed {
                out.push(self.executed(at, wr));
            }
            if peer.refused {
                use WcStatus::*;
                out.extend([RemInvReqErr, RemAccessErr, RemOpErr].map(RequestOutcome::RepeatedNak));
            }
        }
        out
    }

    /// Returns the possible outcomes of a request at a responder that processes requests.
    fn answers(&self, at: usize, wr: &PostedSend) -> Vec<RequestOutcome> {
        use WcStatus::*;
        let qp = &self.qps[at];
        let fine = || self.executed(qp.peer, wr);
        let length = wr.length();
        let atomic = matches!(wr.opcode, WqeOpcode::CompareSwap | WqeOpcode::FetchAdd);
        let want = MemoryAccess::of(wr.opcode);
        if want.is_some_and(|want| want.qp_right() & !qp.rights != 0) {
            return vec![RequestOutcome::Refused(
                RemInvReqErr,
                None,
                Some(EventType::QpReqErr),
            )];
        }
        let refused = want.is_some_and(|want| {
            self.keys
                .resolve((wr.remote.0, length, wr.remote.1), qp.pd, want)
                .is_err()
        });
        let access = RequestOutcome::Refused(RemAccessErr, None, Some(EventType::QpAccessErr));
        if atomic && wr.remote.0 % 8 != 0 {
            return vec![RequestOutcome::Refused(
                RemInvReqErr,
                None,
                Some(EventType::QpReqErr),
            )];
        }
        if !wr.takes_receive() {
            return vec![if refused { access } else { fine() }];
        }
        let imm_write = wr.opcode == WqeOpcode::RdmaWriteImm;
        // The immediate data is in the last packet, but the key is checked with the first packet.
        if refused && length > 1 << qp.log_mtu {
            return vec![access];
        }
        let Some(recv) = self.next_recv(at) else {
            if qp.srq.is_some() && qp.device_state == QpState::Err && self.cqs[qp.cqs[1]].dead {
                // The model cannot tell any more which receive the responder took.
                let bad = |status| RequestOutcome::Refused(status, None, None);
                if refused {
                    return vec![RequestOutcome::ReceiverNotReady, bad(RemAccessErr)];
                }
                return vec![
                    RequestOutcome::Success,
                    RequestOutcome::ReceiverNotReady,
                    bad(RemInvReqErr),
                    bad(RemOpErr),
                ];
            }
            return vec![RequestOutcome::ReceiverNotReady];
        };
        if recv.malformed {
            let told = (LocQpOpErr, vec![Syndrome::RecvWqeMalformed]);
            return vec![RequestOutcome::Refused(RemOpErr, Some(told), None)];
        }
        if refused {
            let told = (LocAccessErr, vec![Syndrome::WriteImmAccess]);
            return vec![RequestOutcome::Refused(RemAccessErr, Some(told), None)];
        }
        if imm_write {
            return vec![RequestOutcome::Success];
        }
        let pd = self.recv_pd(at);
        let mut out = Vec::new();
        // The rules leave open if the responder checks data segments that the message does not
        // need.
        let needed =
            self.keys
                .resolve_all(&used_segments(&recv.sges, length), pd, MemoryAccess::Write);
        let small = recv.room() < length;
        if let Err(wrong) = self.keys.resolve_all(&recv.sges, pd, MemoryAccess::Write) {
            out.push(RequestOutcome::Refused(
                RemOpErr,
                Some((LocProtErr, wrong)),
                None,
            ));
        }
        if small {
            let told = (LocLenErr, vec![Syndrome::RecvTooSmall]);
            out.push(RequestOutcome::Refused(RemInvReqErr, Some(told), None));
        }
        if needed.is_ok() && !small {
            out.push(RequestOutcome::Success);
        }
        out
    }
}
