// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests without a known outcome, because their QP or its peer ended before they completed.

use crate::completions::FLUSH;
use crate::memory::{MemoryAccess, Piece};
use crate::objects::{DataSegment, PostedSend};
use crate::oracle::RequestOutcome;
use crate::simulation::{DeviceSimulation, EventExpectation};
use verbena_abi::cmd::QpType;
use verbena_abi::ctx::QpState;
use verbena_abi::wqe::WqeOpcode;

impl DeviceSimulation {
    /// Marks the pending requests of a QP in SQD, because some of them may have been executed.
    pub fn await_drain(&mut self, at: usize) {
        self.apply_possible_effects(at, false);
        for send in &mut self.qps[at].sends {
            send.may_be_executed = true;
        }
    }

    /// Handles a QP that went to ERR with requests pending. Only the receives of its peer show how
    /// far each request came.
    pub fn on_flushed(&mut self, at: usize) {
        self.qps[at].was_flushed = true;
        self.cover("cut short");
        self.apply_possible_effects(at, true);
    }

    /// Applies the possible effects of pending requests, whose completions give no information.
    /// `over` is true if the QP has failed, and false if it waits in SQD.
    pub fn apply_possible_effects(&mut self, at: usize, over: bool) {
        let peer = self.qps[at].peer;
        let sends: Vec<PostedSend> = self.qps[at]
            .sends
            .iter()
            .filter(|s| !s.executed_by_peer)
            .cloned()
            .collect();
        let mut limbo: Vec<PostedSend> = Vec::new();
        for wr in sends {
            let verdicts = self.possible_outcomes(at, &wr);
            self.qps[at].has_failing_request |= over
                && verdicts
                    .iter()
                    .any(|v| !matches!(v, RequestOutcome::Success));
            if self.local_fault(at, &wr).is_some() || !self.qps[peer].received() {
                break;
            }
            let said = self.qps[peer].completions[1]
                .front()
                .filter(|s| s.status != FLUSH)
                .map(|s| s.status);
            let dead = self.cqs[self.qps[peer].cqs[1]].dead;
            if wr.takes_receive() && said.is_some() && self.qps[at].kind != QpType::Rc {
                limbo.push(wr);
                self.execute_all(at, &mut limbo);
                continue;
            }
            if wr.takes_receive() {
                match said {
                    Some(0)
                        if verdicts
                            .iter()
                            .any(|v| matches!(v, RequestOutcome::Success)) =>
                    {
                        limbo.push(wr);
                        self.execute_all(at, &mut limbo);
                        continue;
                    }
                    Some(status) if status != 0 => {
                        let told = verdicts.iter().find_map(|v| match v {
                            RequestOutcome::Refused(_, Some(told), _) if told.0 as u8 == status => {
                                Some(told.clone())
                            }
                            _ => None,
                        });
                        if let Some(told) = told {
                            for wr in limbo.drain(..) {
                                self.execute_as(at, &wr, false);
                            }
                            self.refuse(at, &wr, Some(told), None);
                            return;
                        }
                    }
                    _ => {}
                }
                if dead {
                    self.mark_srq_uncertain(peer);
                    for recv in self.qps[peer].recvs.clone() {
                        let pieces = self.all_pieces(peer, &recv);
                        self.data.may_change(&pieces);
                    }
                } else if let Some(recv) = self.qps[peer].recvs.front().cloned() {
                    let pieces = self.all_pieces(peer, &recv);
                    self.data.may_change(&pieces);
                } else {
                    self.mark_srq_uncertain(peer);
                }
            }
            for verdict in &verdicts {
                if let RequestOutcome::Refused(_, told, event) = verdict {
                    let qpn = self.qps[peer].qpn;
                    // The receive may have moved the peer to ERR before its CQ overflowed.
                    self.qps[peer].has_failing_request |= dead && event.is_none();
                    if let Some(event) = event {
                        self.expect(*event, qpn, EventExpectation::May);
                    }
                    if self.qps[peer].device_state == QpState::Err
                        && (event.is_some() || told.is_some() && dead)
                    {
                        self.qps[peer].refused = true;
                        self.enter_err(peer);
                    }
                }
            }
            limbo.push(wr);
        }
        for wr in limbo {
            self.mark_remote_uncertain(at, &wr, over);
        }
    }

    /// Executes requests that the receive of a later request proves to be executed. Their
    /// completions are still pending.
    fn execute_all(&mut self, at: usize, limbo: &mut Vec<PostedSend>) {
        for wr in limbo.drain(..) {
            self.execute_as(at, &wr, false);
            let sends = self.qps[at].sends.iter_mut();
            sends
                .filter(|s| s.index == wr.index)
                .for_each(|s| s.executed_by_peer = true);
        }
    }

    /// Records that a request may have been executed, completely or in part.
    pub fn mark_remote_uncertain(&mut self, at: usize, wr: &PostedSend, over: bool) {
        let qp = &self.qps[at];
        let to = (wr.remote.0, wr.length(), wr.remote.1);
        let pd = self.qps[qp.peer].pd;
        match wr.opcode {
            WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => {
                let far = self
                    .keys
                    .resolve(to, pd, MemoryAccess::RemoteWrite)
                    .unwrap_or_default();
                let payload = self.payload(at, wr);
                self.data.may_write(&far, &payload);
            }
            WqeOpcode::RdmaRead => self.mark_local_uncertain(at, wr),
            WqeOpcode::CompareSwap | WqeOpcode::FetchAdd if over => {
                let far = self
                    .keys
                    .resolve(to, pd, MemoryAccess::RemoteAtomic)
                    .unwrap_or_default();
                self.mark_local_uncertain(at, wr);
                self.data.may_change(&far);
            }
            _ => {}
        }
    }

    /// Records that part of the response may have been written to the memory of the requester.
    pub fn mark_local_uncertain(&mut self, at: usize, wr: &PostedSend) {
        let pd = self.qps[at].pd;
        let pieces = |sge: &DataSegment| self.keys.reachable_pieces(*sge, pd, MemoryAccess::Write);
        let own: Vec<Piece> = wr.sges.iter().flat_map(pieces).collect();
        self.data.may_change(&own);
    }
}
