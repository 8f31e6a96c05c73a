// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The surroundings of all queue pairs, and the model of what each call may do. [`LabHost`] is the host of one of them.
//!
//! Each effect that a queue pair has through its host is judged here at once: is this the byte that the message under
//! way has at this place, is this the receive that was taken, may this work request complete now and so.

use super::cover::{Coverage, Topic};
use super::end::End;
use super::memory::{parts, pattern, Memory, Owner};
use super::work::{Fault, Op, Recv, RecvQueue};
use crate::keys;
use std::ops::Range;
use verbena_roce::host::*;
use verbena_roce::packet::Packet;
use verbena_roce::pool::Pool;
use verbena_roce::QpType;

/// The call that is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Poll, modify or failure.
    Own,
    /// A request arrives.
    Request {
        /// First PSN.
        first: u64,
        /// One after the last PSN.
        end: u64,
        /// The work request that it belongs to, where the model knows.
        op: Option<u32>,
    },
    /// A response arrives.
    Response {
        /// One after the last PSN.
        end: u64,
    },
}

/// All of it.
#[derive(Debug)]
pub struct Lab {
    /// Virtual time.
    pub now: u64,
    /// Memory.
    pub memory: Memory,
    /// Work requests.
    pub ops: Vec<Op>,
    /// Receives.
    pub recvs: Vec<Recv>,
    /// Receive queues.
    pub queues: Vec<RecvQueue>,
    /// Ends.
    pub ends: Vec<End>,
    /// The call that is going on.
    pub call: Call,
    /// What was met.
    pub cover: Coverage,
    /// Where lines of the trace go.
    pub trace: Option<fn(&str)>,
    /// Buffers for frames and payloads.
    pub pool: Pool,
    scratch: Vec<u8>,
    ranges: Vec<Range<usize>>,
}

impl Lab {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            now: 0,
            memory: Memory::default(),
            ops: Vec::new(),
            recvs: Vec::new(),
            queues: Vec::new(),
            ends: Vec::new(),
            call: Call::Own,
            cover: Coverage::default(),
            trace: None,
            pool: Pool::default(),
            scratch: Vec::new(),
            ranges: Vec::new(),
        }
    }

    /// Forgets everything but what was met.
    pub fn clear(&mut self) {
        self.now = 0;
        self.memory.clear();
        self.ops.clear();
        self.recvs.clear();
        self.queues.clear();
        self.ends.clear();
        self.call = Call::Own;
    }

    /// The host of an end.
    pub fn host(&mut self, me: usize) -> LabHost<'_> {
        LabHost { lab: self, me }
    }

    /// Writes a line of the trace.
    pub fn say(&self, me: usize, line: impl FnOnce() -> String) {
        if let Some(trace) = self.trace {
            let end = &self.ends[me];
            trace(&format!(
                "{:>12} ns  qp {:#x} {:<5} {}",
                self.now,
                end.qpn,
                end.state.name(),
                line()
            ));
        }
    }

    /// The work request of a queue pair that has a PSN.
    pub fn op_at(&self, qp: usize, psn: u64) -> Option<u32> {
        let sq = &self.ends[qp].sq;
        let sent = &sq[..self.ends[qp].assign.min(sq.len())];
        let after = sent.partition_point(|op| self.ops[*op as usize].first <= psn);
        sent[..after]
            .iter()
            .rev()
            .find(|op| self.ops[**op as usize].psns > 0)
            .copied()
            .filter(|op| psn < self.ops[*op as usize].end())
    }

    /// The work request that a responder has to execute now.
    fn cursor(&self, me: usize) -> (u32, u32) {
        let end = &self.ends[me];
        let Call::Request {
            first,
            end: last,
            op,
        } = self.call
        else {
            panic!("qp {:#x}: a responder acts without a request", end.qpn);
        };
        if end.qp_type == QpType::Rc {
            assert!(
                first <= end.expected && end.expected < last,
                "qp {:#x} executes PSNs {first:#x}..{last:#x} when {:#x} is expected",
                end.qpn,
                end.expected
            );
            let op = self.op_at(end.peer, end.expected);
            let op = op.expect("a request that nobody sent is executed");
            (op, self.ops[op as usize].done)
        } else if end.qp_type == QpType::Uc {
            let (op, done) = end.message.expect("a message is executed that was broken");
            let due = (first - self.ops[op as usize].first) as u32 * end.attr.path_mtu;
            assert!(
                done >= due && last > first,
                "qp {:#x}: a part of a message is missing",
                end.qpn
            );
            (op, done)
        } else {
            (op.expect("a datagram that nobody sent"), 0)
        }
    }

    /// What the model says that a copy has to bring, and where. Returns false if it knows nothing.
    fn expect_copy(&mut self, me: usize, target: &Target<'_>, bytes: &[u8]) -> bool {
        if !self.ends[me].strict {
            return false;
        }
        let length = bytes.len() as u32;
        match (self.call, target) {
            (_, Target::Buffer(_)) => false,
            (Call::Response { end }, Target::Scatter { sges, offset, .. }) => {
                let op = self.op_at(me, end - 1);
                let op = op.expect("a response to nothing is copied");
                let op = &mut self.ops[op as usize];
                assert!(
                    !op.over && op.sges == *sges && op.got == *offset,
                    "a response is copied to a wrong place: offset {offset}, {op:?}"
                );
                op.got += length;
                let (base, got, value) = (op.base, op.got, op.value);
                let (atomic, model) = (op.is_atomic(), &mut self.memory);
                assert!(got <= op.length, "a response is longer than its READ");
                parts(sges, u64::from(*offset), length, |sge, at| {
                    if atomic {
                        let bytes = value.to_ne_bytes();
                        model.expect(sge.addr, &bytes[at as usize..(at + sge.length) as usize]);
                    } else {
                        model.expect(sge.addr, pattern(base, offset + at, sge.length));
                    }
                });
                true
            }
            (Call::Request { .. }, Target::Scatter { sges, offset, .. }) => {
                let held = self.ends[me].held.expect("no receive was taken");
                assert!(
                    self.recvs[held as usize].sges == *sges,
                    "a message goes to another receive than the one taken"
                );
                let (op, done) = self.cursor(me);
                let is_ud = self.ends[me].qp_type == QpType::Ud;
                if is_ud && *offset == 0 {
                    assert_eq!(length, 40, "a GRH has 40 bytes");
                    self.check_grh(op, bytes);
                    let model = &mut self.memory;
                    parts(sges, 0, length, |sge, at| {
                        let to = (at + sge.length) as usize;
                        model.expect(sge.addr, &bytes[at as usize..to]);
                    });
                    return true;
                }
                let op = &self.ops[op as usize];
                assert!(op.is_send(), "a WRITE goes to a receive");
                let at = if is_ud { offset - 40 } else { *offset };
                assert_eq!(at, done, "a SEND goes on at a wrong place");
                assert!(done + length <= op.length, "a SEND is too long");
                let (base, model) = (op.base, &mut self.memory);
                parts(sges, u64::from(*offset), length, |sge, part| {
                    model.expect(sge.addr, pattern(base, at + part, sge.length));
                });
                self.advance(me, length);
                true
            }
            (Call::Request { .. }, Target::Region { key, addr, .. }) => {
                let (op, done) = self.cursor(me);
                let op = &self.ops[op as usize];
                assert!(
                    !op.is_send() && !op.responds() && op.wqe.rkey == *key,
                    "memory is written for {op:?}"
                );
                assert!(
                    !op.fault.is_remote_access(),
                    "a part of what may not be written is written: {op:?}"
                );
                let due = op.wqe.remote_addr + u64::from(done);
                assert_eq!(*addr, due, "a WRITE goes on at a wrong place");
                assert!(done + length <= op.length, "a WRITE is too long");
                let base = op.base;
                self.memory.expect(*addr, pattern(base, done, length));
                self.advance(me, length);
                true
            }
            (Call::Own, _) => panic!("memory is written without a packet"),
            (Call::Response { .. }, Target::Region { .. }) => {
                panic!("a response writes to remote memory")
            }
        }
    }

    /// The GRH of a datagram names both ends (A17.4): over IPv4, in the last 20 bytes.
    fn check_grh(&self, op: u32, grh: &[u8]) {
        let datagram = self.ops[op as usize].wqe.datagram.as_deref();
        let path = &datagram.expect("checked by the host").path;
        let (from, to) = if path.is_ipv4() {
            assert_eq!(grh[..20], [0; 20]);
            (grh[32..36] == path.sgid[12..], grh[36..] == path.dgid[12..])
        } else {
            (grh[8..24] == path.sgid, grh[24..] == path.dgid)
        };
        assert!(from && to, "a wrong GRH {grh:x?} for {path:?}");
    }

    fn advance(&mut self, me: usize, length: u32) {
        let (op, _) = self.cursor(me);
        if self.ends[me].qp_type == QpType::Rc {
            let op = &mut self.ops[op as usize];
            op.done += length;
        } else if let Some((_, done)) = &mut self.ends[me].message {
            *done += length;
        }
    }

    /// A buffer is touched for somebody: is it still his?
    fn check_owner(&self, me: usize, sge: &Sge) {
        let Some(region) = self.memory.region(sge.lkey) else {
            return;
        };
        match region.owner {
            Owner::Op(op) => assert!(
                !self.ops[op as usize].over,
                "a buffer is touched whose work request is complete: {:?}",
                self.ops[op as usize]
            ),
            Owner::Recv(recv) => assert!(
                self.ends[me].held == Some(recv) && !self.recvs[recv as usize].over,
                "a buffer is touched whose receive is not under way"
            ),
            Owner::Remote => {}
        }
    }

    /// Places of a target, each checked. Fills `ranges`.
    fn resolve(&mut self, me: usize, target: &Target<'_>, length: u32) -> Result<(), Syndrome> {
        let mut ranges = std::mem::take(&mut self.ranges);
        ranges.clear();
        let mut result = Ok(());
        match target {
            Target::Buffer(_) => {}
            Target::Scatter {
                pd,
                privileged,
                sges,
                offset,
            } => parts(sges, u64::from(*offset), length, |sge, _| {
                self.check_owner(me, &sge);
                let key = local_use(*pd, *privileged, &sge, Access::LocalWrite);
                match self.memory.find(&key) {
                    Ok(at) => ranges.push(at..at + sge.length as usize),
                    Err(cause) => result = Err(cause),
                }
            }),
            Target::Region { pd, key, addr } => {
                let key = remote_use(*pd, *key, *addr, length, Access::RemoteWrite);
                match self.memory.find(&key) {
                    Ok(at) => ranges.push(at..at + length as usize),
                    Err(cause) => result = Err(cause),
                }
            }
        }
        self.ranges = ranges;
        result
    }

    /// Reads a source.
    fn read(&self, me: usize, source: &Source<'_>, to: &mut Vec<u8>) -> Result<(), Syndrome> {
        to.clear();
        match source {
            Source::Bytes(bytes) => to.extend_from_slice(bytes),
            Source::Gather {
                pd,
                privileged,
                sges,
                offset,
                length,
            } => {
                let mut result = Ok(());
                parts(sges, u64::from(*offset), *length, |sge, _| {
                    if let Some(region) = self.memory.region(sge.lkey) {
                        if let Owner::Op(_) = region.owner {
                            self.check_owner(me, &sge);
                        }
                    }
                    let key = local_use(*pd, *privileged, &sge, Access::LocalRead);
                    match self.memory.find(&key) {
                        Ok(at) => {
                            to.extend_from_slice(self.memory.bytes(at..at + sge.length as usize))
                        }
                        Err(cause) => result = Err(cause),
                    }
                });
                return result;
            }
            Source::Region {
                pd,
                key,
                addr,
                length,
            } => {
                let key = remote_use(*pd, *key, *addr, *length, Access::RemoteRead);
                let at = self.memory.find(&key)?;
                to.extend_from_slice(self.memory.bytes(at..at + *length as usize));
            }
        }
        Ok(())
    }

    fn copy(
        &mut self,
        me: usize,
        mut target: Target<'_>,
        source: &Source<'_>,
    ) -> Result<(), CopyFault> {
        let mut bytes = std::mem::take(&mut self.scratch);
        let read = self.read(me, source, &mut bytes);
        let result = read.map_err(CopyFault::Source).and_then(|()| {
            self.resolve(me, &target, bytes.len() as u32)
                .map_err(CopyFault::Target)
        });
        if result.is_ok() {
            let known = self.expect_copy(me, &target, &bytes);
            if let Target::Buffer(buffer) = &mut target {
                buffer.copy_from_slice(&bytes);
            }
            let mut rest = &bytes[..];
            for range in &self.ranges {
                let (part, after) = rest.split_at(range.len());
                self.memory.bytes_mut(range.clone()).copy_from_slice(part);
                if known {
                    self.memory.check(range.clone(), "a copy");
                } else {
                    self.memory.accept(range.clone());
                }
                rest = after;
            }
        }
        self.scratch = bytes;
        result
    }

    fn atomic(&mut self, me: usize, key: &KeyUse, op: AtomicOp) -> Result<u64, Syndrome> {
        let at = self.memory.find(key)?;
        let place = at..at + 8;
        let mut word = [0; 8];
        word.copy_from_slice(self.memory.bytes(place.clone()));
        let before = u64::from_ne_bytes(word);
        let after = keys::atomic(op, before);
        if self.ends[me].strict {
            let (index, _) = self.cursor(me);
            let peer = self.ends[me].peer;
            let (addr, rkey, value) = self.ends[peer].word;
            let ours = &mut self.ops[index as usize];
            assert!(
                ours.is_atomic() && !ours.executed && (key.addr, key.key) == (addr, rkey),
                "an atomic is executed for {ours:?}"
            );
            ours.executed = true;
            ours.value = value;
            let wqe = &ours.wqe;
            let next = match wqe.opcode {
                WqeOpcode::FetchAdd => value.wrapping_add(wqe.compare_add),
                _ if value == wqe.compare_add => wqe.swap,
                _ => value,
            };
            self.ends[peer].word.2 = next;
            self.memory.expect(addr, &next.to_ne_bytes());
            assert_eq!(
                (before, after),
                (value, next),
                "an atomic has a wrong result"
            );
        }
        self.memory
            .bytes_mut(place.clone())
            .copy_from_slice(&after.to_ne_bytes());
        if self.ends[me].strict {
            self.memory.check(place, "an atomic");
        } else {
            self.memory.accept(place);
        }
        Ok(before)
    }

    fn invalidate(&mut self, me: usize, key: u32, remote: bool) -> Result<(), Syndrome> {
        if remote && self.ends[me].strict {
            let (op, done) = self.cursor(me);
            let op = &self.ops[op as usize];
            assert!(
                op.wqe.opcode == WqeOpcode::SendInv
                    && done == op.length
                    && !op.executed
                    && u32::from_le_bytes(op.wqe.imm) == key,
                "a key is invalidated for {op:?}"
            );
        }
        let failure = if remote {
            Syndrome::RemoteInvalidate
        } else {
            Syndrome::KeyManagement
        };
        let region = self.memory.region_mut(key).filter(|r| r.valid);
        region.ok_or(failure)?.valid = false;
        Ok(())
    }

    fn take_recv(&mut self, me: usize, wqe: &mut RecvWqe) -> Take {
        assert!(wqe.sges.is_empty());
        let end = &mut self.ends[me];
        assert!(end.held.is_none(), "a receive is taken twice");
        let queue = &mut self.queues[end.queue];
        if queue.dead {
            return Take::Dead(Syndrome::SrqUnreadable);
        }
        let Some(recv) = queue.posts.get(queue.taken).copied() else {
            return Take::Empty;
        };
        queue.taken += 1;
        end.held = Some(recv);
        let post = &self.recvs[recv as usize];
        wqe.wr_id = post.wr_id;
        wqe.index = post.index;
        wqe.pd = post.pd;
        wqe.sges.extend_from_slice(&post.sges);
        let result = post.malformed.map_or(Take::Taken, Take::Malformed);
        if self.call != Call::Own && self.ends[me].strict {
            let (op, _) = self.cursor(me);
            let op = &mut self.ops[op as usize];
            assert!(op.takes_recv(), "a receive is taken for {op:?}");
            op.recv = Some(recv);
        }
        result
    }

    fn complete(&mut self, me: usize, c: &Completion) {
        let success = c.status == WcStatus::Success;
        assert_eq!(c.syndrome.is_none(), success, "{c:?}");
        self.say(me, || format!("completion {c:?}"));
        self.cover
            .count(Topic::Completion, c.opcode as u8, c.status as u8);
        let books = &mut self.ends[me].books;
        if c.status == WcStatus::WrFlushErr {
            books.flushed += 1;
            self.ends[me].flushes += 1;
        } else {
            books.completed += 1;
            self.ends[me].failures += u32::from(!success);
        }
        let digest = &mut self.ends[me].digest[usize::from(c.is_recv())];
        *digest = (digest.rotate_left(7) ^ u64::from(c.byte_len) ^ c.wr_id << 20)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if c.is_recv() {
            self.complete_recv(me, c);
        } else {
            self.complete_send(me, c);
        }
    }

    fn complete_recv(&mut self, me: usize, c: &Completion) {
        let held = self.ends[me]
            .held
            .take()
            .expect("a receive completes that was not taken");
        let recv = &mut self.recvs[held as usize];
        assert_eq!((c.wr_id, c.wqe_index), (recv.wr_id, recv.index));
        assert!(!recv.over, "a receive completes twice");
        recv.over = true;
        let (fault, capacity, vanishing) = (recv.fault, recv.capacity, recv.vanishing);
        let keys: Vec<u32> = recv.sges.iter().map(|sge| sge.lkey).collect();
        self.ends[me].received += u32::from(c.status != WcStatus::RemAbortErr);
        self.cover
            .count(Topic::Receive, fault as u8, c.status as u8);
        for key in keys {
            self.memory.check_region(key, "a receive");
        }
        if c.status == WcStatus::WrFlushErr {
            return;
        }
        if c.status != WcStatus::Success {
            self.ends[me].blamed += 1;
        }
        if !self.ends[me].strict {
            return;
        }
        let is_ud = self.ends[me].qp_type == QpType::Ud;
        let room = if is_ud { 40 } else { 0 };
        if c.status == WcStatus::RemAbortErr {
            let shared = self.queues[self.ends[me].queue].shared;
            assert!(
                shared && self.ends[me].qp_type == QpType::Uc,
                "only a UC queue pair on an SRQ aborts"
            );
            return;
        }
        let (index, done) = if self.call == Call::Own {
            // A refusal that had to wait for READ responses.
            let peer = &self.ends[self.ends[me].peer];
            let took = |op: &&u32| self.ops[**op as usize].recv == Some(held);
            let op = peer.sq.iter().rev().find(took).copied();
            assert!(
                c.status != WcStatus::Success,
                "a receive completes without a request"
            );
            (op.expect("a receive that nobody took"), 0)
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
                let qpn = is_ud.then(|| self.ends[op.qp].qpn);
                assert!(
                    op.takes_recv()
                        && !op.executed
                        && op.fault != Fault::Qkey
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
            WcStatus::LocProtErr => fault == Fault::RecvKey || vanishing,
            WcStatus::LocQpOpErr => fault == Fault::RecvMalformed,
            WcStatus::LocAccessErr => {
                op.wqe.opcode == WqeOpcode::RdmaWriteImm
                    && (op.fault.is_remote_access() || op.vanishing)
            }
            WcStatus::MwBindErr => op.fault == Fault::RemoteInvalidate,
            _ => false,
        };
        assert!(
            allowed,
            "a receive ({fault:?}) completes as {c:?} by {op:?}"
        );
        if self.ends[me].qp_type == QpType::Rc {
            let op = &mut self.ops[index as usize];
            op.executed = success_of(c.status);
        }
    }

    fn complete_send(&mut self, me: usize, c: &Completion) {
        let index = c.wqe_index as usize;
        let (done, strict) = (self.ends[me].done, self.ends[me].strict);
        assert!(
            index >= done,
            "a send completes twice or out of order: {c:?}"
        );
        assert!(
            index < self.ends[me].sq.len(),
            "{c:?}: nothing is posted there"
        );
        let flushed = c.status == WcStatus::WrFlushErr;
        for at in done..=index {
            let number = self.ends[me].sq[at];
            let op = &mut self.ops[number as usize];
            let last = at == index;
            assert!(!op.over, "completed twice: {op:?}");
            if last {
                assert_eq!(c.wr_id, op.wqe.wr_id);
            } else {
                assert!(!op.wqe.signaled, "{c:?}: no completion for {op:?}");
            }
            op.over = true;
            let (silent, responds, length, got) =
                (op.is_silent(), op.responds(), op.length, op.got);
            if strict && (!last || c.status == WcStatus::Success) {
                self.check_finished(me, number);
                if responds {
                    assert_eq!(got, length, "a READ completes before its data is there");
                }
            }
            if last && strict && !flushed {
                self.check_status(me, number, c.status);
            }
            if !silent && self.ops[number as usize].responds() {
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
        let op = &self.ops[self.ends[me].sq[index] as usize];
        self.cover
            .count(Topic::Send, op.wqe.opcode as u8, c.status as u8);
        self.cover
            .count(Topic::Fault, op.fault as u8, c.status as u8);
        if c.status == WcStatus::Success {
            assert!(
                op.wqe.signaled,
                "an unsignaled send has a completion: {op:?}"
            );
            if op.responds() {
                assert_eq!(c.byte_len, op.length);
            }
        }
        let end = &mut self.ends[me];
        assert!(
            !end.send_failed || flushed,
            "after an error all sends flush: {c:?}"
        );
        end.send_failed |= c.status != WcStatus::Success;
        end.done = index + 1;
        end.progress_at = self.now.max(end.rnr_until);
    }

    /// Is a work request that is reported as done really done?
    fn check_finished(&self, me: usize, op: u32) {
        let (end, op) = (&self.ends[me], &self.ops[op as usize]);
        if op.is_silent() || end.qp_type != QpType::Rc {
            return;
        }
        assert!(op.psns > 0, "complete, but it was never sent: {op:?}");
        let peer = &self.ends[end.peer];
        if peer.life != end.life {
            return;
        }
        assert!(
            peer.expected >= op.end(),
            "complete, but the peer has not executed it (it expects {:#x}): {op:?}",
            peer.expected
        );
    }

    /// What a work request notices of the fault of its receive.
    fn bite(&self, op: &Op, recv: u32) -> Fault {
        let recv = &self.recvs[recv as usize];
        let notices = match recv.fault {
            Fault::RecvShort => op.is_send() && op.length > recv.capacity,
            Fault::RecvKey => op.is_send() && op.length > 0,
            _ => true,
        };
        if notices {
            recv.fault
        } else {
            Fault::None
        }
    }

    /// May a work request end with this status?
    fn check_status(&mut self, me: usize, number: u32, status: WcStatus) {
        let (end, op) = (&self.ends[me], &self.ops[number as usize]);
        let of_recv = op.recv.map_or(Fault::None, |r| self.bite(op, r));
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
                    end.rounds >= least,
                    "retries are exceeded after {} rounds of {least}: {op:?}",
                    end.rounds
                );
                end.alone
            }
            WcStatus::RnrRetryExcErr => {
                let most = u32::from(end.attr.rnr_retry);
                most < 7 && (end.rnr_seen == most || most == 0)
            }
            WcStatus::LocProtErr | WcStatus::RemAccessErr if op.vanishing => true,
            WcStatus::RemOpErr if recv_vanishes => true,
            WcStatus::RemOpErr if self.queues[self.ends[end.peer].queue].dead => true,
            WcStatus::Success if end.qp_type != QpType::Rc => !op.fault.is_local(),
            _ => status == planned || of_recv != Fault::None && status == of_recv.status(),
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

fn local_use(pd: u32, privileged: bool, sge: &Sge, access: Access) -> KeyUse {
    KeyUse {
        pd,
        privileged,
        key: sge.lkey,
        addr: sge.addr,
        length: u64::from(sge.length),
        access,
    }
}

fn remote_use(pd: u32, key: u32, addr: u64, length: u32, access: Access) -> KeyUse {
    KeyUse {
        pd,
        privileged: false,
        key,
        addr,
        length: u64::from(length),
        access,
    }
}

/// The host of one end.
#[derive(Debug)]
pub struct LabHost<'a> {
    lab: &'a mut Lab,
    me: usize,
}

impl Host for LabHost<'_> {
    fn fetch_send(
        &mut self,
        index: u32,
        wqe: &mut SendWqe,
        gather: &mut Gather,
    ) -> Result<(), WqeError> {
        assert!(gather.sges.is_empty() && gather.inline.is_empty());
        let end = &self.lab.ends[self.me];
        let op = &self.lab.ops[end.sq[index as usize] as usize];
        assert!(!op.over, "a WQE is read that is complete: {op:?}");
        *wqe = op.wqe.clone();
        gather.pd = end.pd;
        gather.sges.extend_from_slice(&op.sges);
        gather.inline.extend_from_slice(&op.inline);
        op.malformed.map_or(Ok(()), Err)
    }

    fn send_wr_id(&mut self, index: u32) -> (u64, WcOpcode) {
        let end = &self.lab.ends[self.me];
        let op = &self.lab.ops[end.sq[index as usize] as usize];
        (op.wqe.wr_id, WcOpcode::Send)
    }

    fn take_recv(&mut self, wqe: &mut RecvWqe) -> Take {
        self.lab.take_recv(self.me, wqe)
    }

    fn recv_credits(&mut self) -> Option<u32> {
        let queue = &self.lab.queues[self.lab.ends[self.me].queue];
        (!queue.shared && !queue.dead).then(|| (queue.posts.len() - queue.taken) as u32)
    }

    fn check(&mut self, key: &KeyUse) -> Result<(), Syndrome> {
        assert!(key.length > 0, "an access of zero length needs no key");
        self.lab.memory.find(key).map(|_| ())
    }

    fn copy(&mut self, target: Target<'_>, source: Source<'_>) -> Result<(), CopyFault> {
        self.lab.copy(self.me, target, &source)
    }

    fn atomic(&mut self, key: &KeyUse, op: AtomicOp) -> Result<u64, Syndrome> {
        self.lab.atomic(self.me, key, op)
    }

    fn invalidate(&mut self, key: u32, remote: bool) -> Result<(), Syndrome> {
        self.lab.invalidate(self.me, key, remote)
    }

    fn fast_register(&mut self, _index: u32) -> Result<(), Syndrome> {
        Ok(())
    }

    fn complete(&mut self, completion: &Completion) {
        self.lab.complete(self.me, completion);
    }

    fn event(&mut self, event: EventType, syndrome: Option<Syndrome>) {
        self.lab
            .say(self.me, || format!("event {event:?} {syndrome:?}"));
        self.lab.cover.count(Topic::Event, event as u8, 0);
        self.lab.ends[self.me].events.push(event);
    }

    fn transmit(&mut self, packet: Packet) {
        assert!(packet.psns > 0);
        self.lab.ends[self.me].out.push(packet);
    }

    fn pool(&mut self) -> Option<&mut Pool> {
        Some(&mut self.lab.pool)
    }
}
