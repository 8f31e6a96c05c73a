// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests without a known outcome, because their QP or its peer ended before they completed.

use crate::lab::{Due, Lab};
use crate::memory::{Piece, Want};
use crate::oracle::Verdict;
use crate::settle::FLUSH;
use crate::things::{Element, Send};
use verbena_abi::cmd::QpType;
use verbena_abi::ctx::QpState;
use verbena_abi::wqe::WqeOpcode;

impl Lab {
    /// Marks the pending requests of a QP in SQD, because some of them may have been executed.
    pub fn wait(&mut self, at: usize) {
        self.perhaps(at, false);
        for send in &mut self.qps[at].sends {
            send.maybe = true;
        }
    }

    /// Handles a QP that went to ERR with requests pending. Only the receives of its peer show how
    /// far each request came.
    pub fn cut(&mut self, at: usize) {
        self.qps[at].cut = true;
        self.meet("cut short");
        self.perhaps(at, true);
    }

    /// Applies the possible effects of pending requests, whose completions give no information.
    /// `over` is true if the QP has failed, and false if it waits in SQD.
    pub fn perhaps(&mut self, at: usize, over: bool) {
        let peer = self.qps[at].peer;
        let sends: Vec<Send> = self.qps[at]
            .sends
            .iter()
            .filter(|s| !s.done)
            .cloned()
            .collect();
        let mut limbo: Vec<Send> = Vec::new();
        for wr in sends {
            let verdicts = self.verdicts(at, &wr);
            self.qps[at].excused |= over && verdicts.iter().any(|v| !matches!(v, Verdict::Fine));
            if self.local_fault(at, &wr).is_some() || !self.qps[peer].received() {
                break;
            }
            let said = self.qps[peer].got[1]
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
                    Some(0) if verdicts.iter().any(|v| matches!(v, Verdict::Fine)) => {
                        limbo.push(wr);
                        self.execute_all(at, &mut limbo);
                        continue;
                    }
                    Some(status) if status != 0 => {
                        let told = verdicts.iter().find_map(|v| match v {
                            Verdict::Refused(_, Some(told), _) if told.0 as u8 == status => {
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
                    self.unknown_srq(peer);
                    for recv in self.qps[peer].recvs.clone() {
                        let pieces = self.all_pieces(peer, &recv);
                        self.data.anything(&pieces);
                    }
                } else if let Some(recv) = self.qps[peer].recvs.front().cloned() {
                    let pieces = self.all_pieces(peer, &recv);
                    self.data.anything(&pieces);
                } else {
                    self.unknown_srq(peer);
                }
            }
            for verdict in &verdicts {
                if let Verdict::Refused(_, told, event) = verdict {
                    let qpn = self.qps[peer].qpn;
                    // The receive may have moved the peer to ERR before its CQ overflowed.
                    self.qps[peer].excused |= dead && event.is_none();
                    if let Some(event) = event {
                        self.expect(*event, qpn, Due::May);
                    }
                    if self.qps[peer].real == QpState::Err
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
            self.doubt(at, &wr, over);
        }
    }

    /// Executes requests that the receive of a later request proves to be executed. Their
    /// completions are still pending.
    fn execute_all(&mut self, at: usize, limbo: &mut Vec<Send>) {
        for wr in limbo.drain(..) {
            self.execute_as(at, &wr, false);
            let sends = self.qps[at].sends.iter_mut();
            sends
                .filter(|s| s.index == wr.index)
                .for_each(|s| s.done = true);
        }
    }

    /// Records that a request may have been executed, completely or in part.
    pub fn doubt(&mut self, at: usize, wr: &Send, over: bool) {
        let qp = &self.qps[at];
        let to = (wr.remote.0, wr.length(), wr.remote.1);
        let pd = self.qps[qp.peer].pd;
        match wr.opcode {
            WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => {
                let far = self
                    .keys
                    .look_up(to, pd, Want::RemoteWrite)
                    .unwrap_or_default();
                let payload = self.payload(at, wr);
                self.data.perhaps(&far, &payload);
            }
            WqeOpcode::RdmaRead => self.doubt_own(at, wr),
            WqeOpcode::CompareSwap | WqeOpcode::FetchAdd if over => {
                let far = self
                    .keys
                    .look_up(to, pd, Want::RemoteAtomic)
                    .unwrap_or_default();
                self.doubt_own(at, wr);
                self.data.anything(&far);
            }
            _ => {}
        }
    }

    /// Records that part of the response may have been written to the memory of the requester.
    pub fn doubt_own(&mut self, at: usize, wr: &Send) {
        let pd = self.qps[at].pd;
        let pieces = |sge: &Element| self.keys.reach(*sge, pd, Want::Write);
        let own: Vec<Piece> = wr.sges.iter().flat_map(pieces).collect();
        self.data.anything(&own);
    }
}
