// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The receives that a queue pair takes, and its completions. Each is judged at once: a request
//! must need the receive, and a work request must be allowed to complete now and with this status.

use super::coverage::Topic;
use super::model::{NetworkModel, QpCall};
use super::work::{PlannedFault, SendModel};
use verbena_transport::host::{
    DecodedRecvWqe, RecvFetch, Syndrome, WcOpcode, WcStatus, WorkCompletion, WqeOpcode,
};
use verbena_transport::QpType;

impl NetworkModel {
    /// Takes a receive from the queue.
    pub(super) fn take_recv(&mut self, me: usize, wqe: &mut DecodedRecvWqe) -> RecvFetch {
        assert!(wqe.sges.is_empty());
        let end = &mut self.qps[me];
        assert!(end.held.is_none(), "a receive is taken twice");
        let queue = &mut self.queues[end.queue];
        if queue.is_failed {
            return RecvFetch::QueueError(Syndrome::SrqUnreadable);
        }
        let Some(recv) = queue.posts.get(queue.taken).copied() else {
            return RecvFetch::Empty;
        };
        queue.taken += 1;
        end.held = Some(recv);
        let post = &self.recvs[recv as usize];
        wqe.wr_id = post.wr_id;
        wqe.index = post.index;
        wqe.pd = post.pd;
        wqe.sges.extend_from_slice(&post.sges);
        let result = post
            .malformed
            .map_or(RecvFetch::Taken, RecvFetch::Malformed);
        if self.call != QpCall::NoPacket && self.qps[me].strict {
            let (op, _) = self.cursor(me);
            let op = &mut self.ops[op as usize];
            assert!(op.takes_recv(), "a receive is taken for {op:?}");
            op.recv = Some(recv);
        }
        result
    }

    /// Judges the completion of a work request or a receive.
    pub(super) fn complete(&mut self, me: usize, c: &WorkCompletion) {
        let success = c.status == WcStatus::Success;
        assert_eq!(c.syndrome.is_none(), success, "{c:?}");
        self.trace(me, || format!("completion {c:?}"));
        self.coverage
            .count(Topic::Completion, c.opcode as u8, c.status as u8);
        let books = &mut self.qps[me].expected_counters;
        if c.status == WcStatus::WrFlushErr {
            books.flushed += 1;
            self.qps[me].flushes += 1;
        } else {
            books.completed += 1;
            self.qps[me].failures += u32::from(!success);
        }
        let digest = &mut self.qps[me].digest[usize::from(c.is_recv())];
        *digest = (digest.rotate_left(7) ^ u64::from(c.byte_len) ^ c.wr_id << 20)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if c.is_recv() {
            self.complete_recv(me, c);
        } else {
            self.complete_send(me, c);
        }
    }

    /// Checks that the receive which was taken completes by the message that is in progress in the
    /// model.
    fn complete_recv(&mut self, me: usize, c: &WorkCompletion) {
        let held = self.qps[me]
            .held
            .take()
            .expect("a receive completes that was not taken");
        let recv = &mut self.recvs[held as usize];
        assert_eq!((c.wr_id, c.wqe_index), (recv.wr_id, recv.index));
        assert!(!recv.is_complete, "a receive completes twice");
        recv.is_complete = true;
        let (fault, capacity, vanishing) = (recv.fault, recv.capacity, recv.vanishing);
        let keys: Vec<u32> = recv.sges.iter().map(|sge| sge.lkey).collect();
        self.qps[me].received += u32::from(c.status != WcStatus::RemAbortErr);
        self.coverage
            .count(Topic::Receive, fault as u8, c.status as u8);
        for key in keys {
            self.memory.check_region(key, "a receive");
        }
        if c.status == WcStatus::WrFlushErr {
            return;
        }
        if c.status != WcStatus::Success {
            self.qps[me].blamed += 1;
        }
        if !self.qps[me].strict {
            return;
        }
        let is_ud = self.qps[me].qp_type == QpType::Ud;
        let room = if is_ud { 40 } else { 0 };
        if c.status == WcStatus::RemAbortErr {
            let shared = self.queues[self.qps[me].queue].shared;
            assert!(
                shared && self.qps[me].qp_type == QpType::Uc,
                "only a UC queue pair on an SRQ aborts"
            );
            return;
        }
        let (index, done) = if self.call == QpCall::NoPacket {
            // The refusal had to wait for READ responses.
            let peer = &self.qps[self.qps[me].peer];
            let took = |op: &&u32| self.ops[**op as usize].recv == Some(held);
            let op = peer.sq.iter().rev().find(took).copied();
            assert!(
                c.status != WcStatus::Success,
                "a receive completes without a request"
            );
            (op.expect("a receive that was never taken"), 0)
        } else {
            self.cursor(me)
        };
        let op = &self.ops[index as usize];
        let allowed = match c.status {
            WcStatus::Success => {
                let opcode = if op.is_send() {
                    WcOpcode::Recv
                } else {
                    WcOpcode::RecvRdmaWithImm
                };
                let source = c.source.map(|source| source.qpn);
                let qpn = is_ud.then(|| self.qps[op.qp].qpn);
                assert!(
                    op.takes_recv()
                        && !op.executed
                        && op.fault != PlannedFault::Qkey
                        && (is_ud || done == op.length)
                        && c.byte_len == op.length + room
                        && c.opcode == opcode
                        && c.imm == op.has_imm().then_some(op.wqe.imm)
                        && c.solicited == op.wqe.solicited
                        && source == qpn,
                    "a receive completes as {c:?} by {op:?}"
                );
                let key =
                    (op.wqe.opcode == WqeOpcode::SendInv).then(|| u32::from_le_bytes(op.wqe.imm));
                assert_eq!(c.invalidated, key);
                op.is_send() && op.length + room <= capacity || !op.is_send()
            }
            WcStatus::LocLenErr => op.is_send() && op.length + room > capacity,
            WcStatus::LocProtErr => fault == PlannedFault::RecvKey || vanishing,
            WcStatus::LocQpOpErr => fault == PlannedFault::RecvMalformed,
            WcStatus::LocAccessErr => {
                op.wqe.opcode == WqeOpcode::RdmaWriteImm
                    && (op.fault.is_remote_access() || op.vanishing)
            }
            WcStatus::MwBindErr => op.fault == PlannedFault::RemoteInvalidate,
            _ => false,
        };
        assert!(
            allowed,
            "a receive ({fault:?}) completes as {c:?} by {op:?}"
        );
        if self.qps[me].qp_type == QpType::Rc {
            let op = &mut self.ops[index as usize];
            op.executed = success_of(c.status);
        }
    }

    /// Completes a work request, and without completions all unsignaled ones before it.
    fn complete_send(&mut self, me: usize, c: &WorkCompletion) {
        let index = c.wqe_index as usize;
        let (done, strict) = (self.qps[me].done, self.qps[me].strict);
        assert!(
            index >= done,
            "a send completes twice or out of order: {c:?}"
        );
        assert!(
            index < self.qps[me].sq.len(),
            "{c:?}: no work request was posted there"
        );
        let flushed = c.status == WcStatus::WrFlushErr;
        for at in done..=index {
            let number = self.qps[me].sq[at];
            let op = &mut self.ops[number as usize];
            let last = at == index;
            assert!(!op.is_complete, "completed twice: {op:?}");
            if last {
                assert_eq!(c.wr_id, op.wqe.wr_id);
            } else {
                assert!(!op.wqe.signaled, "{c:?}: no completion for {op:?}");
            }
            op.is_complete = true;
            let (silent, responds, length, got) = (
                op.is_silent(),
                op.awaits_response(),
                op.response_length(),
                op.received,
            );
            if strict && (!last || c.status == WcStatus::Success) {
                self.check_finished(me, number);
                if responds {
                    assert_eq!(got, length, "a READ completes before its data is there");
                }
            }
            if last && strict && !flushed {
                self.check_status(me, number, c.status);
            }
            if !silent && self.ops[number as usize].awaits_response() {
                let keys: Vec<u32> = self.ops[number as usize]
                    .sges
                    .iter()
                    .map(|sge| sge.lkey)
                    .collect();
                for key in keys {
                    self.memory.check_region(key, "a READ");
                }
            }
        }
        let op = &self.ops[self.qps[me].sq[index] as usize];
        self.coverage
            .count(Topic::Send, op.wqe.opcode as u8, c.status as u8);
        self.coverage
            .count(Topic::Fault, op.fault as u8, c.status as u8);
        if c.status == WcStatus::Success {
            assert!(
                op.wqe.signaled,
                "an unsignaled send has a completion: {op:?}"
            );
            if op.awaits_response() {
                assert_eq!(c.byte_len, op.length);
            }
        }
        let end = &mut self.qps[me];
        assert!(
            !end.send_failed || flushed,
            "after an error all sends flush: {c:?}"
        );
        end.send_failed |= c.status != WcStatus::Success;
        end.done = index + 1;
        end.progress_ns = self.now_ns.max(end.rnr_until_ns);
    }

    /// Checks that a work request which is reported as done is really done.
    fn check_finished(&self, me: usize, op: u32) {
        let (end, op) = (&self.qps[me], &self.ops[op as usize]);
        if op.is_silent() || end.qp_type != QpType::Rc {
            return;
        }
        assert!(op.psns > 0, "complete, but it was never sent: {op:?}");
        let peer = &self.qps[end.peer];
        if peer.life != end.life {
            return;
        }
        assert!(
            peer.expected >= op.end(),
            "complete, but the peer has not executed it (it expects {:#x}): {op:?}",
            peer.expected
        );
    }

    /// Returns the fault of a receive if the work request notices it.
    fn noticed_fault(&self, op: &SendModel, recv: u32) -> PlannedFault {
        let recv = &self.recvs[recv as usize];
        let notices = match recv.fault {
            PlannedFault::RecvShort => op.is_send() && op.length > recv.capacity,
            PlannedFault::RecvKey => op.is_send() && op.length > 0,
            _ => true,
        };
        if notices {
            recv.fault
        } else {
            PlannedFault::None
        }
    }

    /// Checks that a work request may end with this status.
    fn check_status(&mut self, me: usize, number: u32, status: WcStatus) {
        let (end, op) = (&self.qps[me], &self.ops[number as usize]);
        let of_recv = op
            .recv
            .map_or(PlannedFault::None, |r| self.noticed_fault(op, r));
        let planned = if op.fault.is_local() || op.fault.is_remote() {
            op.fault.status()
        } else {
            of_recv.status()
        };
        let recv_vanishes = op.recv.is_some_and(|r| self.recvs[r as usize].vanishing);
        let allowed = match status {
            WcStatus::RetryExcErr => {
                let least = u32::from(end.attr.retry_cnt);
                assert!(
                    end.go_backs >= least,
                    "retries are exceeded after {} rounds of {least}: {op:?}",
                    end.go_backs
                );
                end.may_exhaust_retries
            }
            WcStatus::RnrRetryExcErr => {
                let most = u32::from(end.attr.rnr_retry);
                most < 7 && (end.rnr_seen == most || most == 0)
            }
            WcStatus::LocProtErr | WcStatus::RemAccessErr if op.vanishing => true,
            WcStatus::RemOpErr if recv_vanishes => true,
            WcStatus::RemOpErr if self.queues[self.qps[end.peer].queue].is_failed => true,
            WcStatus::Success if end.qp_type != QpType::Rc => !op.fault.is_local(),
            _ => status == planned || of_recv != PlannedFault::None && status == of_recv.status(),
        };
        assert!(
            allowed,
            "qp {:#x}: a send ends as {status:?}, not {planned:?} (receive: {of_recv:?}): {op:?}",
            end.qpn
        );
    }
}

fn success_of(status: WcStatus) -> bool {
    matches!(status, WcStatus::Success | WcStatus::MwBindErr)
}
