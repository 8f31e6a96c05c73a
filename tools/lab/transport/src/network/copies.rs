// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The accesses of a queue pair to memory: copies, atomics, invalidations. Each is judged at once:
//! the bytes must be those of the message in progress at this place, and the owner of the buffer
//! must still be outstanding.

use super::memory::{pattern, RegionOwner};
use super::model::{NetworkModel, QpCall};
use crate::arena::parts;
use verbena_transport::host::{
    AtomicOp, CopyFault, CopySource, CopyTarget, KeyUse, Sge, Syndrome, WqeOpcode,
};
use verbena_transport::QpType;

impl NetworkModel {
    /// Copies bytes, and compares the result with the model.
    pub(super) fn copy(
        &mut self,
        me: usize,
        mut target: CopyTarget<'_>,
        source: &CopySource<'_>,
    ) -> Result<(), CopyFault> {
        let mut bytes = std::mem::take(&mut self.scratch);
        let read = self.read(me, source, &mut bytes);
        let result = read.map_err(CopyFault::Source).and_then(|()| {
            self.resolve(me, &target, bytes.len() as u32)
                .map_err(CopyFault::Target)
        });
        if result.is_ok() {
            self.reference_copy(me, &target, bytes.len() as u32);
            let known = self.expect_copy(me, &target, &bytes);
            if let CopyTarget::Buffer(buffer) = &mut target {
                buffer.copy_from_slice(&bytes);
            }
            let mut rest = &bytes[..];
            for range in &self.ranges {
                let (part, after) = rest.split_at(range.len());
                self.memory.arena.bytes[range.clone()].copy_from_slice(part);
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

    /// Executes an atomic. The model has its own copy of the word.
    pub(super) fn atomic(
        &mut self,
        me: usize,
        key: &KeyUse,
        op: AtomicOp,
    ) -> Result<u64, Syndrome> {
        let at = self.memory.arena.regions.find(key)?;
        let before = self.memory.arena.atomic(at, op);
        self.reference_atomic(me, key, op, before);
        if self.qps[me].strict {
            let (index, _) = self.cursor(me);
            let peer = self.qps[me].peer;
            let (addr, rkey, value) = self.qps[peer].word;
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
            self.qps[peer].word.2 = next;
            self.memory.expect(addr, &next.to_ne_bytes());
            assert_eq!(before, value, "an atomic has a wrong result");
        }
        let place = at..at + 8;
        if self.qps[me].strict {
            self.memory.check(place, "an atomic");
        } else {
            self.memory.accept(place);
        }
        Ok(before)
    }

    /// Invalidates a key for a work request, or for a message that asks for it (`remote`).
    pub(super) fn invalidate(&mut self, me: usize, key: u32, remote: bool) -> Result<(), Syndrome> {
        self.reference_invalidate(me, key, remote);
        if remote && self.qps[me].strict {
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
        self.memory.arena.regions.invalidate(key, remote)
    }

    /// Enters the bytes that a copy has to bring, and their place, into the model. Returns false if
    /// the model does not know them.
    fn expect_copy(&mut self, me: usize, target: &CopyTarget<'_>, bytes: &[u8]) -> bool {
        if !self.qps[me].strict {
            return false;
        }
        let length = bytes.len() as u32;
        match (self.call, target) {
            (_, CopyTarget::Buffer(_)) => false,
            (QpCall::Response { end }, CopyTarget::Scatter { sges, offset, .. }) => {
                let op = self.op_at(me, end - 1);
                let op = op.expect("a response without a request is copied");
                let op = &mut self.ops[op as usize];
                assert!(
                    !op.is_complete && op.sges == *sges && op.received == *offset,
                    "a response is copied to a wrong place: offset {offset}, {op:?}"
                );
                op.received += length;
                let (base, got, value) = (op.base, op.received, op.value);
                let (atomic, model) = (op.is_atomic(), &mut self.memory);
                assert!(got <= op.length, "a response is longer than its READ");
                parts(sges, *offset, length, |sge, at| {
                    if atomic {
                        let bytes = value.to_ne_bytes();
                        model.expect(sge.addr, &bytes[at as usize..(at + sge.length) as usize]);
                    } else {
                        model.expect(sge.addr, pattern(base, offset + at, sge.length));
                    }
                });
                true
            }
            (QpCall::Request { .. }, CopyTarget::Scatter { sges, offset, .. }) => {
                let held = self.qps[me].held.expect("no receive was taken");
                assert!(
                    self.recvs[held as usize].sges == *sges,
                    "a message goes to another receive than the one taken"
                );
                let (op, done) = self.cursor(me);
                let is_ud = self.qps[me].qp_type == QpType::Ud;
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
                parts(sges, *offset, length, |sge, part| {
                    model.expect(sge.addr, pattern(base, at + part, sge.length));
                });
                self.advance(me, length);
                true
            }
            (QpCall::Request { .. }, CopyTarget::Region { key, addr, .. }) => {
                let (op, done) = self.cursor(me);
                let op = &self.ops[op as usize];
                assert!(
                    !op.is_send() && op.sends_payload() && op.wqe.rkey == *key,
                    "memory is written for {op:?}"
                );
                assert!(
                    !op.fault.is_remote_access(),
                    "a part of a refused write is written: {op:?}"
                );
                let due = op.wqe.remote_addr + u64::from(done);
                assert_eq!(*addr, due, "a WRITE goes on at a wrong place");
                assert!(done + length <= op.length, "a WRITE is too long");
                let base = op.base;
                self.memory.expect(*addr, pattern(base, done, length));
                self.advance(me, length);
                true
            }
            (QpCall::NoPacket, _) => panic!("memory is written without a packet"),
            (QpCall::Response { .. }, CopyTarget::Region { .. }) => {
                panic!("a response writes to remote memory")
            }
        }
    }

    /// Checks that the GRH of a datagram names both ends (A17.4). For IPv4, the header is in the
    /// last 20 bytes.
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

    /// Notes `length` more bytes of the message in progress.
    fn advance(&mut self, me: usize, length: u32) {
        let (op, _) = self.cursor(me);
        if self.qps[me].qp_type == QpType::Rc {
            let op = &mut self.ops[op as usize];
            op.done += length;
        } else if let Some((_, done)) = &mut self.qps[me].message {
            *done += length;
        }
    }

    /// Checks that the owner of a buffer that is accessed is still outstanding.
    fn check_owner(&self, me: usize, sge: &Sge) {
        let Some(owner) = self.memory.owner(sge.lkey) else {
            return;
        };
        match owner {
            RegionOwner::Op(op) => assert!(
                !self.ops[op as usize].is_complete,
                "a buffer is touched whose work request is complete: {:?}",
                self.ops[op as usize]
            ),
            RegionOwner::Recv(recv) => assert!(
                self.qps[me].held == Some(recv) && !self.recvs[recv as usize].is_complete,
                "a buffer is touched whose receive is not under way"
            ),
            RegionOwner::Remote => {}
        }
    }

    /// Checks the places of a target, and fills `ranges` with them.
    fn resolve(&mut self, me: usize, target: &CopyTarget<'_>, length: u32) -> Result<(), Syndrome> {
        if let CopyTarget::Scatter { sges, offset, .. } = target {
            parts(sges, *offset, length, |sge, _| self.check_owner(me, &sge));
        }
        let ranges = &mut self.ranges;
        ranges.clear();
        let regions = &self.memory.arena.regions;
        regions.target(target, length, |run| ranges.push(run))
    }

    /// Reads a source into `to`.
    fn read(&self, me: usize, source: &CopySource<'_>, to: &mut Vec<u8>) -> Result<(), Syndrome> {
        if let CopySource::Gather {
            sges,
            offset,
            length,
            ..
        } = source
        {
            parts(sges, *offset, *length, |sge, _| {
                if let Some(RegionOwner::Op(_)) = self.memory.owner(sge.lkey) {
                    self.check_owner(me, &sge);
                }
            });
        }
        to.clear();
        self.memory.arena.read(source, to)
    }
}
