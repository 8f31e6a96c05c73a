// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Comparison after each step: completions are matched with the oracle, request by request, and the
//! model follows the device.

use crate::memory::MemoryAccess;
use crate::objects::{ObservedCqe, PostedRecv, PostedSend};
use crate::oracle::{BadRecv, RequestOutcome};
use crate::simulation::{note, DeviceSimulation, EventExpectation};
use verbena_abi::cmd::{QpType, QP_SIGNAL_ALL};
use verbena_abi::cqe::{wc_flags, WcOpcode, WcStatus};
use verbena_abi::ctx::QpState;
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::{send_flags, WqeOpcode};

/// Status of a flushed request.
pub const FLUSH: u8 = WcStatus::WrFlushErr as u8;

fn wc_opcode(wr: &PostedSend) -> WcOpcode {
    match wr.opcode {
        WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => WcOpcode::RdmaWrite,
        WqeOpcode::RdmaRead => WcOpcode::RdmaRead,
        WqeOpcode::CompareSwap => WcOpcode::CompSwap,
        WqeOpcode::FetchAdd => WcOpcode::FetchAdd,
        WqeOpcode::LocalInv => WcOpcode::LocalInv,
        WqeOpcode::FastReg => WcOpcode::FastReg,
        _ => WcOpcode::Send,
    }
}

impl DeviceSimulation {
    /// Moves a QP to ERR in the model, and records the event that is due.
    pub fn enter_err(&mut self, at: usize) {
        let qp = &mut self.qps[at];
        if qp.state == QpState::Err {
            return;
        }
        note!(self, "  QP {} is in ERR", qp.qpn);
        qp.state = QpState::Err;
        let (qpn, shared) = (qp.qpn, qp.srq.is_some());
        if shared {
            self.expect(EventType::QpLastWqeReached, qpn, EventExpectation::Must);
        }
    }

    /// Matches the sends of a QP with their completions, up to the first send that is pending or
    /// has failed.
    pub fn match_completions(&mut self, at: usize) {
        let kind = self.qps[at].kind;
        while let Some(wr) = self.qps[at].sends.front().cloned() {
            let qp = &self.qps[at];
            if !matches!(qp.state_before, QpState::Rts | QpState::Sqd) || qp.state == QpState::Sqe {
                return;
            }
            let said = qp.completions[0].front().cloned();
            let this = said.as_ref().filter(|s| s.cqe.wqe_index.get() == wr.index);
            if this.is_some_and(|s| s.status == FLUSH)
                || (said.is_none() && self.cqs[qp.cqs[0]].dead)
            {
                return self.on_flushed(at);
            }
            let verdicts = self.possible_outcomes(at, &wr);
            let signaled = wr.flags & send_flags::SIGNALED != 0 || qp.flags & QP_SIGNAL_ALL != 0;
            let (verdict, done) = match (this, &said) {
                (Some(seen), _) => {
                    let matches = |v: &&RequestOutcome| {
                        v.status(qp.rnr_retry).map(|s| s as u8) == Some(seen.status)
                    };
                    let Some(verdict) = verdicts.iter().find(matches).cloned() else {
                        self.fail_rule(&format!(
                            "QP {}: {wr:x?} ended with status {}, not as {verdicts:?}",
                            qp.qpn, seen.status
                        ))
                    };
                    let seen = self.qps[at].completions[0].pop_front();
                    (verdict, seen)
                }
                (None, next) => {
                    if qp.state_before == QpState::Sqd
                        && next.is_none()
                        && qp.device_state != QpState::Err
                    {
                        return self.await_drain(at);
                    }
                    let waits = |v: &&RequestOutcome| v.status(qp.rnr_retry).is_none();
                    let peer_ended = self.qps[qp.peer].device_state == QpState::Err;
                    if next.is_none() && !peer_ended && verdicts.iter().any(|v| waits(&v)) {
                        note!(self, "  QP {} waits with {}", qp.qpn, wr.index);
                        self.cover("waits for a receive");
                        self.mark_srq_empty(at);
                        // The peer may have written all packets of a WRITE with immediate data
                        // except the last.
                        self.mark_remote_uncertain(at, &wr, false);
                        return;
                    }
                    let fine = verdicts
                        .iter()
                        .any(|v| matches!(v, RequestOutcome::Success));
                    if signaled || !fine {
                        self.fail_rule(&format!(
                            "QP {}: no completion of {wr:x?}, for which {verdicts:?}",
                            qp.qpn
                        ))
                    }
                    (RequestOutcome::Success, None)
                }
            };
            if let Some(seen) = &done {
                if seen.status == 0 && !signaled {
                    self.fail_rule(&format!(
                        "QP {}: a completion of the unsignaled {}",
                        self.qps[at].qpn, wr.index
                    ));
                }
                self.check_send(at, &wr, seen, &verdict);
            }
            if matches!(verdict, RequestOutcome::Unstored(_)) {
                self.execute(at, &wr);
                self.qps[at].sends[0].executed_by_peer = true;
            }
            if matches!(
                verdict,
                RequestOutcome::Unstored(_)
                    | RequestOutcome::NoResponse
                    | RequestOutcome::RepeatedNak(_)
            ) {
                // The peer may have executed this request and later ones before the failure.
                self.apply_possible_effects(at, true);
            }
            self.qps[at].sends.pop_front();
            self.qps[at].sq_free = wr.index.wrapping_add(1 + crate::simulation::WQ);
            self.cover(match verdict {
                RequestOutcome::Success => "succeeds",
                RequestOutcome::RejectedLocally(..) => "refused by the requester",
                RequestOutcome::Unstored(_) => "the response cannot be stored",
                RequestOutcome::Refused(..) => "refused by the responder",
                RequestOutcome::ReceiverNotReady => "no receive",
                RequestOutcome::NoResponse => "no answer",
                RequestOutcome::RepeatedNak(_) => "a NAK is repeated",
            });
            if matches!(verdict, RequestOutcome::ReceiverNotReady) {
                self.mark_srq_empty(at);
                self.mark_remote_uncertain(at, &wr, false);
            }
            self.apply(at, &wr, &verdict);
            if !matches!(verdict, RequestOutcome::Success) {
                if kind == QpType::Rc {
                    self.enter_err(at);
                } else {
                    self.qps[at].state = QpState::Sqe;
                }
                return;
            }
        }
    }

    /// Marks the SRQ of the peer as empty, because a message of this QP found no receive.
    pub fn mark_srq_empty(&mut self, at: usize) {
        let peer = &self.qps[self.qps[at].peer];
        if let (Some(srq), true) = (peer.srq, peer.device_state != QpState::Err) {
            self.srqs[srq].found_empty = true;
        }
    }

    fn check_send(
        &mut self,
        at: usize,
        wr: &PostedSend,
        seen: &ObservedCqe,
        verdict: &RequestOutcome,
    ) {
        let cqe = &seen.cqe;
        let qpn = self.qps[at].qpn;
        let vendor = cqe.vendor_err.get();
        let causes = verdict.causes();
        let known =
            causes.iter().any(|c| *c as u32 == vendor) || (causes.is_empty() && vendor == 0);
        // The cause of the failure depends on the responses that the peer sent before it ended.
        let retry = matches!(verdict, RequestOutcome::NoResponse)
            && vendor == Syndrome::SequenceRetryExceeded as u32;
        let fetched = match wr.opcode {
            WqeOpcode::RdmaRead | WqeOpcode::CompareSwap | WqeOpcode::FetchAdd => wr.length(),
            _ => cqe.byte_len.get(),
        };
        let opcode = wr.malformed.is_some() || seen.opcode == wc_opcode(wr) as u8;
        let lengths = seen.status != 0 || cqe.byte_len.get() == fetched;
        if cqe.wr_id.get() != wr.wr_id
            || cqe.qpn.get() != qpn
            || !opcode
            || !lengths
            || !(known || retry)
            || seen.flags != 0
        {
            self.fail_rule(&format!(
                "QP {qpn}: a wrong completion of {wr:x?}: {seen:x?}, expected {causes:?}"
            ));
        }
    }

    /// Applies the effects of a request at the requester and at the responder.
    fn apply(&mut self, at: usize, wr: &PostedSend, verdict: &RequestOutcome) {
        match verdict {
            RequestOutcome::Success => self.execute(at, wr),
            RequestOutcome::Refused(_, recv, event) => self.refuse(at, wr, recv.clone(), *event),
            _ => {}
        }
    }

    pub fn payload(&self, at: usize, wr: &PostedSend) -> Vec<u8> {
        if !wr.inline.is_empty() {
            return wr.inline.clone();
        }
        let pieces = self
            .keys
            .resolve_all(&wr.sges, self.qps[at].pd, MemoryAccess::Read);
        self.data.gather(&pieces.unwrap_or_default())
    }

    /// Executes a request that has succeeded.
    pub fn execute(&mut self, at: usize, wr: &PostedSend) {
        self.execute_as(at, wr, true);
    }

    /// Executes a request at the responder. `answered` is true if the response has arrived, and
    /// false if it may have arrived.
    pub fn execute_as(&mut self, at: usize, wr: &PostedSend, answered: bool) {
        if wr.executed_by_peer {
            return;
        }
        let qp = &self.qps[at];
        let peer = qp.peer;
        if wr.is_local() {
            return self.change_key(wr);
        }
        if qp.kind != QpType::Rc {
            return self.deliver_unreliable(at, wr);
        }
        let to = (wr.remote.0, wr.length(), wr.remote.1);
        let far = |want| {
            self.keys
                .resolve(to, self.qps[peer].pd, want)
                .unwrap_or_default()
        };
        match wr.opcode {
            WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => {
                let pieces = far(MemoryAccess::RemoteWrite);
                let payload = self.payload(at, wr);
                self.data.scatter(&pieces, &payload);
            }
            WqeOpcode::RdmaRead => {
                let bytes = self.data.gather(&far(MemoryAccess::RemoteRead));
                self.answer(at, wr, &bytes, answered);
            }
            WqeOpcode::CompareSwap | WqeOpcode::FetchAdd => {
                let pieces = far(MemoryAccess::RemoteAtomic);
                let old = self.data.word(&pieces);
                let new = match wr.opcode {
                    WqeOpcode::FetchAdd => old.wrapping_add(wr.operands.0),
                    _ if old == wr.operands.0 => wr.operands.1,
                    _ => old,
                };
                self.data.scatter(&pieces, &new.to_le_bytes());
                self.answer(at, wr, &old.to_le_bytes(), answered);
            }
            _ => {}
        }
        if wr.takes_receive() {
            self.receive(at, wr);
        }
    }

    fn answer(&mut self, at: usize, wr: &PostedSend, bytes: &[u8], answered: bool) {
        match self.own_pieces(at, wr) {
            Ok(own) if answered => self.data.scatter(&own, bytes),
            Ok(own) => self.data.may_write(&own, bytes),
            Err(_) => self.mark_local_uncertain(at, wr),
        }
    }

    /// Consumes the receive of a message that has succeeded, and checks its completion.
    fn receive(&mut self, at: usize, wr: &PostedSend) {
        let peer = self.qps[at].peer;
        let dead = self.cqs[self.qps[peer].cqs[1]].dead;
        let Some(recv) = self.take_recv(peer) else {
            if dead && self.qps[peer].srq.is_some() {
                return self.mark_srq_uncertain(peer);
            }
            self.fail_rule(&format!(
                "QP {}: {wr:x?} succeeds without a receive",
                self.qps[at].qpn
            ));
        };
        if wr.opcode != WqeOpcode::RdmaWriteImm {
            let payload = self.payload(at, wr);
            let pieces = self.recv_pieces(peer, &recv, wr.length());
            self.data.scatter(&pieces, &payload);
        }
        let Some(seen) = self.qps[peer].completions[1].pop_front() else {
            if dead {
                return;
            }
            self.fail_rule(&format!(
                "QP {}: no completion of the receive {recv:x?}",
                self.qps[peer].qpn
            ));
        };
        self.check_recv(peer, wr, &recv, &seen, wr.length());
    }

    /// Records that the memory of all receives of the SRQ may have any value. A QP whose CQ is dead
    /// has no completions that show which receives it took.
    pub fn mark_srq_uncertain(&mut self, at: usize) {
        if let Some(srq) = self.qps[at].srq {
            for recv in self.srqs[srq].posted.clone() {
                let pieces = self.all_pieces(at, &recv);
                self.data.may_change(&pieces);
            }
        }
    }

    /// Checks the completion of a receive that succeeded with a message of `length` bytes.
    pub fn check_recv(
        &mut self,
        at: usize,
        wr: &PostedSend,
        recv: &PostedRecv,
        seen: &ObservedCqe,
        length: u32,
    ) {
        let with_imm = matches!(wr.opcode, WqeOpcode::SendImm | WqeOpcode::RdmaWriteImm);
        let opcode = if wr.opcode == WqeOpcode::RdmaWriteImm {
            WcOpcode::RecvRdmaWithImm
        } else {
            WcOpcode::Recv
        };
        let grh = if self.qps[at].kind == QpType::Ud {
            wc_flags::GRH
        } else {
            0
        };
        let invalidates = wr.opcode == WqeOpcode::SendInv;
        if invalidates {
            self.change_key(wr);
        }
        let flags = grh
            | match (with_imm, invalidates) {
                (true, _) => wc_flags::WITH_IMM,
                (_, true) => wc_flags::WITH_INV,
                _ => 0,
            };
        let cqe = &seen.cqe;
        let right = seen.status == 0
            && cqe.vendor_err.get() == 0
            && seen.opcode == opcode as u8
            && seen.flags == flags
            && cqe.byte_len.get() == length
            && cqe.imm
                == if with_imm || invalidates {
                    wr.imm
                } else {
                    [0; 4]
                };
        self.check_recv_ids(at, recv, seen);
        if !right {
            self.fail_rule(&format!(
                "QP {}: a wrong completion of {recv:x?} for {wr:x?}: {seen:x?}",
                self.qps[at].qpn
            ));
        }
        if wr.flags & send_flags::SOLICITED != 0 {
            let cq = self.qps[at].cqs[1];
            self.cqs[cq].solicited.push(seen.at);
        }
    }

    fn check_recv_ids(&self, at: usize, recv: &PostedRecv, seen: &ObservedCqe) {
        let qp = &self.qps[at];
        let srqn = qp.srq.map_or(0, |srq| self.srqs[srq].srqn);
        let cqe = &seen.cqe;
        let found = (
            cqe.wr_id.get(),
            cqe.wqe_index.get(),
            cqe.qpn.get(),
            cqe.srqn.get(),
        );
        if found != (recv.wr_id, recv.index, qp.qpn, srqn) {
            self.fail_rule(&format!(
                "QP {}: {seen:x?} does not belong to {recv:x?}",
                qp.qpn
            ));
        }
    }

    /// Removes the receive that the next message to a QP takes, and returns it.
    pub fn take_recv(&mut self, at: usize) -> Option<PostedRecv> {
        let recv = self.next_recv(at)?;
        match self.qps[at].srq {
            None => self.qps[at].recvs.pop_front(),
            Some(srq) => {
                self.srqs[srq].posted.retain(|r| r.index != recv.index);
                Some(recv)
            }
        }
    }

    /// Applies the effects of a refusal at the responder: completion of the receive, event, and
    /// ERR.
    pub fn refuse(
        &mut self,
        at: usize,
        wr: &PostedSend,
        recv: Option<BadRecv>,
        event: Option<EventType>,
    ) {
        let peer = self.qps[at].peer;
        if wr.opcode == WqeOpcode::RdmaWriteImm {
            // The peer may have written all packets of the message except the last.
            self.mark_remote_uncertain(at, wr, false);
        }
        if recv.is_none() && event.is_none() {
            self.mark_srq_uncertain(peer);
        }
        if let Some(event) = event {
            let qpn = self.qps[peer].qpn;
            self.expect(event, qpn, EventExpectation::Must);
        }
        if let Some(told) = recv {
            self.refuse_recv(peer, wr, &told);
        }
        self.qps[peer].refused = true;
        self.enter_err(peer);
    }

    /// Consumes a receive that fails, and checks that it completes with this status and one of
    /// these causes.
    pub fn refuse_recv(&mut self, at: usize, wr: &PostedSend, (status, causes): &BadRecv) {
        let dead = self.cqs[self.qps[at].cqs[1]].dead;
        let Some(recv) = self.take_recv(at) else {
            return;
        };
        if wr.opcode != WqeOpcode::RdmaWriteImm {
            // The rules leave open how much of the message was written.
            let pieces = self.all_pieces(at, &recv);
            self.data.may_change(&pieces);
        }
        let Some(seen) = self.qps[at].completions[1].pop_front() else {
            if !dead {
                self.fail_rule(&format!(
                    "QP {}: no completion of the refused {recv:x?}",
                    self.qps[at].qpn
                ));
            }
            return;
        };
        self.check_recv_ids(at, &recv, &seen);
        let known = causes
            .iter()
            .any(|c| *c as u32 == seen.cqe.vendor_err.get());
        if seen.status != *status as u8 || !known {
            self.fail_rule(&format!(
                "QP {}: {recv:x?} for {wr:x?} ended as {seen:x?}, not with {status:?} {causes:?}",
                self.qps[at].qpn
            ));
        }
    }

    /// Checks that all requests of a QP in ERR, or all sends of a QP in SQE, complete as flushed.
    pub fn flush(&mut self, at: usize) {
        let (sends, recvs) = match self.qps[at].state {
            QpState::Err => (true, true),
            QpState::Sqe => (true, false),
            _ => (false, false),
        };
        if self.qps[at].was_flushed && !sends {
            self.fail_rule(&format!(
                "QP {}: flushed without being in ERR",
                self.qps[at].qpn
            ));
        }
        while let (true, Some(wr)) = (sends, self.qps[at].sends.front().cloned()) {
            self.qps[at].sends.pop_front();
            self.qps[at].sq_free = wr.index.wrapping_add(1 + crate::simulation::WQ);
            let seen = self.qps[at].completions[0].pop_front();
            // The request may have been executed while requests before it were pending.
            self.flushed_requests.push(wr.clone());
            self.check_flush(at, 0, wr.index, wr.wr_id, seen);
        }
        while let (true, Some(wr)) = (recvs, self.qps[at].recvs.front().cloned()) {
            self.qps[at].recvs.pop_front();
            let seen = self.qps[at].completions[1].pop_front();
            self.check_flush(at, 1, wr.index, wr.wr_id, seen);
        }
        // Receives of an SRQ are not flushed, except the one that a message had already taken.
        if let (true, Some(srq), Some(seen)) = (
            recvs,
            self.qps[at].srq,
            self.qps[at].completions[1].front().cloned(),
        ) {
            let index = seen.cqe.wqe_index.get();
            let held = self.srqs[srq]
                .posted
                .iter()
                .find(|r| r.index == index)
                .cloned();
            if let (FLUSH, Some(recv)) = (seen.status, held) {
                self.qps[at].completions[1].pop_front();
                self.check_recv_ids(at, &recv, &seen);
                let pieces = self.all_pieces(at, &recv);
                self.data.may_change(&pieces);
                self.srqs[srq].posted.retain(|r| r.index != index);
            }
        }
        let qp = &self.qps[at];
        for got in &qp.completions {
            if let Some(seen) = got.front() {
                self.fail_rule(&format!(
                    "QP {}: {seen:x?} belongs to no posted request, or is out of order",
                    qp.qpn
                ));
            }
        }
    }

    fn check_flush(
        &mut self,
        at: usize,
        queue: usize,
        index: u32,
        wr_id: u64,
        seen: Option<ObservedCqe>,
    ) {
        let qp = &self.qps[at];
        let Some(seen) = seen else {
            if !self.cqs[qp.cqs[queue]].dead {
                self.fail_rule(&format!(
                    "QP {}: {index} of queue {queue} was not flushed",
                    qp.qpn
                ));
            }
            return;
        };
        let cqe = &seen.cqe;
        let ids = (cqe.wr_id.get(), cqe.wqe_index.get(), cqe.vendor_err.get());
        if ids != (wr_id, index, Syndrome::Flushed as u32) || seen.status != FLUSH {
            self.fail_rule(&format!(
                "QP {}: {seen:x?} for {index} of queue {queue}, which has to be flushed",
                qp.qpn
            ));
        }
    }
}
