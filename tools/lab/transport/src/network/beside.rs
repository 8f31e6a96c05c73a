// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The reference ([`crate::reference`]) runs along with the engine: this file passes it the same
//! calls, answers its questions, and compares the two.

use super::lab::{Call, Lab};
use super::memory::Memory;
use super::work::{Op, Recv, RecvQueue};
use super::Network;
use crate::reference::requester::Requester;
use crate::reference::responder::{Responder, Setup};
use crate::reference::unreliable::Unreliable;
use crate::reference::work::Work;
use crate::reference::{Effects, Next, Receive, Received, World};
use verbena_transport::host::{
    AtomicOp, CopySource, CopyTarget, KeyUse, RecvFetch, Sge, WcStatus, WorkCompletion, WqeOpcode,
};
use verbena_transport::packet::{Packet, Payload};
use verbena_transport::{Attr, Qp, QpConfig, QpState, QpType};

/// The reference of a queue pair's service.
#[derive(Debug)]
enum Model {
    /// Responder and requester of a reliable connection.
    Rc(Box<(Responder, Requester)>),
    /// Responder of an unreliable service.
    Other(Box<Unreliable>),
}

/// The reference of one queue pair, and the engine's effects in this call.
#[derive(Debug)]
pub struct Beside {
    model: Model,
    seen: Effects,
    /// Receives that were taken in this call, and neither flushed nor compared yet.
    taken: Vec<u64>,
}

impl Beside {
    pub fn new(config: &QpConfig) -> Self {
        let (pd, shared, credits) = (config.pd, config.has_srq, config.credits);
        let model = match config.qp_type {
            QpType::Rc => Model::Rc(Box::new((
                Responder::new(Setup {
                    pd,
                    credits,
                    keep_bytes: config.reassembly_bytes.into(),
                }),
                Requester::new(
                    credits,
                    config.min_timeout_ns,
                    config.recovers,
                    config.reassembly_bytes.into(),
                ),
            ))),
            other => Model::Other(Box::new(Unreliable::new(other, pd, shared))),
        };
        Self {
            model,
            seen: Effects::default(),
            taken: Vec::new(),
        }
    }
}

/// The surroundings that the reference may consult.
struct Around<'a> {
    memory: &'a Memory,
    recvs: &'a [Recv],
    queue: &'a RecvQueue,
}

impl World for Around<'_> {
    fn allows(&self, key: &KeyUse) -> bool {
        self.memory.arena.regions.find(key).is_ok()
    }

    fn readable(&self, payload: &Payload) -> bool {
        let source = payload.source();
        !matches!(source, CopySource::Gather { .. }) || self.memory.reads(&source)
    }

    fn next_receive(&self) -> Next {
        if self.queue.dead {
            return Next::Dead;
        }
        let Some(number) = self.queue.posts.get(self.queue.taken) else {
            return Next::Empty;
        };
        let recv = &self.recvs[*number as usize];
        Next::Receive(Receive {
            wr_id: recv.wr_id,
            capacity: recv.sges.iter().map(|sge| u64::from(sge.length)).sum(),
            malformed: recv.malformed.is_some(),
        })
    }

    fn stores(&self, wr_id: u64, offset: u64, length: u64) -> bool {
        let recv = &self.recvs[wr_id as u32 as usize];
        self.memory.stores(recv.pd, &recv.sges, offset, length)
    }

    fn invalidates(&self, key: u32) -> bool {
        self.memory.is_valid(key)
    }
}

impl Lab {
    /// Passes a packet that is about to be handed to the engine.
    pub(super) fn beside_hands(&mut self, me: usize, packet: &Packet) {
        let around = Around {
            memory: &self.memory,
            recvs: &self.recvs,
            queue: &self.queues[self.ends[me].queue],
        };
        match &mut self.beside[me].model {
            Model::Other(model) => model.request(packet, &around),
            Model::Rc(both) if packet.kind.is_request() => both.0.request(packet, &around),
            Model::Rc(_) => self.beside_hears(me, packet, false),
        }
    }

    /// Passes a response that is about to be handed to the engine, or that the engine had kept and
    /// is about to take.
    fn beside_hears(&mut self, me: usize, packet: &Packet, kept: bool) {
        let source = packet.payload.source();
        let readable = !matches!(source, CopySource::Region { .. }) || self.memory.reads(&source);
        if !readable {
            if let Model::Rc(both) = &mut self.beside[self.ends[me].peer].model {
                both.0.is_unread(packet);
            }
        }
        let Model::Rc(both) = &mut self.beside[me].model else {
            return;
        };
        let (end, ops, memory) = (&self.ends[me], &self.ops, &self.memory);
        let stores = |index: usize, offset: u64, length: u64| {
            let op = &ops[end.sq[index] as usize];
            memory.stores(end.pd, &op.sges, offset, length)
        };
        let now = self.now;
        if kept {
            both.1.goes_on(packet, now, &stores);
        } else {
            both.1.response(packet, now, readable, &stores);
        }
    }

    /// Passes a kept request that the engine is about to execute, or a kept response that it is
    /// about to take.
    pub(super) fn beside_goes_on(&mut self, me: usize, packet: &Packet) {
        if !packet.kind.is_request() {
            return self.beside_hears(me, packet, true);
        }
        let around = Around {
            memory: &self.memory,
            recvs: &self.recvs,
            queue: &self.queues[self.ends[me].queue],
        };
        let beside = &mut self.beside[me];
        let mut seen = std::mem::take(&mut beside.seen);
        assert!(
            beside.taken.len() <= 1,
            "two receives are taken for one request"
        );
        seen.taken = beside.taken.pop();
        if let Model::Rc(both) = &mut beside.model {
            both.0.goes_on(packet, &seen, &around);
        }
    }

    /// Notes bytes that the engine copied.
    pub(super) fn beside_copies(&mut self, me: usize, target: &CopyTarget<'_>, length: u32) {
        let (beside, Call::Request { .. }) = (&mut self.beside[me], self.call) else {
            return;
        };
        match target {
            CopyTarget::Region { key, addr, .. } => beside.seen.write(*key, *addr, length.into()),
            CopyTarget::Scatter { offset, .. } => {
                beside.seen.store(u64::from(*offset), length.into());
            }
            CopyTarget::Buffer(_) => {}
        }
    }

    /// Notes an atomic that the engine executed.
    pub(super) fn beside_atomic(&mut self, me: usize, key: &KeyUse, op: AtomicOp, before: u64) {
        let beside = &mut self.beside[me];
        assert!(beside.seen.atomic.is_none(), "an atomic is executed twice");
        beside.seen.atomic = Some((key.key, key.addr, op));
        if let Model::Rc(both) = &mut beside.model {
            both.0.result(before);
        }
    }

    /// Notes a key that the engine is about to invalidate, for a message of the peer (`remote`) or
    /// for a work request.
    pub(super) fn beside_invalidates(&mut self, me: usize, key: u32, remote: bool) {
        let valid = self.memory.is_valid(key);
        let beside = &mut self.beside[me];
        match &mut beside.model {
            _ if remote => beside.seen.invalidated = Some(key),
            Model::Rc(both) => both.1.executes(WqeOpcode::LocalInv, valid),
            Model::Other(_) => {}
        }
    }

    /// Passes the execution of a fast registration.
    pub(super) fn beside_registers(&mut self, me: usize) {
        if let Model::Rc(both) = &mut self.beside[me].model {
            both.1.executes(WqeOpcode::FastReg, true);
        }
    }

    /// Passes a work request that is posted.
    pub(super) fn beside_posts(&mut self, me: usize, op: &Op) {
        if let Model::Rc(both) = &mut self.beside[me].model {
            let wqe = &op.wqe;
            let work = Work::new(wqe.opcode, op.length, wqe.signaled, wqe.fence);
            both.1.post(work);
        }
    }

    /// Notes the result of asking for a receive.
    pub(super) fn beside_takes(&mut self, me: usize, wr_id: u64, take: RecvFetch) {
        if matches!(take, RecvFetch::Taken | RecvFetch::Malformed(_)) {
            self.beside[me].taken.push(wr_id);
        }
    }

    /// Passes a completion.
    pub(super) fn beside_completes(&mut self, me: usize, c: &WorkCompletion) {
        let beside = &mut self.beside[me];
        if !c.is_recv() {
            let index = c.wqe_index as usize;
            let op = &self.ops[self.ends[me].sq[index] as usize];
            let gone = |sge: &Sge| {
                let region = self.memory.arena.regions.get(sge.lkey);
                region.is_some_and(|region| !region.valid)
            };
            let local = op.fault.is_local() || op.vanishing || op.sges.iter().any(gone);
            if let Model::Rc(both) = &mut beside.model {
                both.1.completes(index, c.status, local);
            }
            return;
        }
        if c.status == WcStatus::WrFlushErr {
            beside.taken.retain(|wr_id| *wr_id != c.wr_id);
            return;
        }
        beside.seen.complete(match c.status {
            WcStatus::Success => Received {
                wr_id: c.wr_id,
                status: c.status,
                opcode: c.opcode,
                byte_len: c.byte_len.into(),
                imm: c.imm,
                invalidated: c.invalidated,
                solicited: c.solicited,
            },
            status => Received::failed(c.wr_id, status),
        });
    }

    /// Passes a packet that leaves.
    pub(super) fn beside_sends(&mut self, me: usize, packet: &Packet) {
        let posted = self.receives_posted(me);
        match &mut self.beside[me].model {
            Model::Rc(both) if packet.kind.is_request() => both.1.sends(packet, self.now),
            Model::Rc(both) => both.0.sends(packet, posted),
            Model::Other(model) => model.sends(packet),
        }
    }

    /// Returns the number of receives that can be taken, where it is known.
    fn receives_posted(&self, me: usize) -> Option<u64> {
        let queue = &self.queues[self.ends[me].queue];
        (!queue.shared && !queue.dead).then(|| (queue.posts.len() - queue.taken) as u64)
    }

    /// Compares engine and reference at the end of a call.
    pub(super) fn beside_compares(&mut self, me: usize, qp: &Qp) {
        let beside = &mut self.beside[me];
        let mut seen = std::mem::take(&mut beside.seen);
        assert!(
            beside.taken.len() <= 1,
            "two receives are taken for one request"
        );
        seen.taken = beside.taken.pop();
        let (snap, events) = (qp.snapshot(), &self.ends[me].events);
        let (responder, requester) = match &mut beside.model {
            Model::Rc(both) => (&mut both.0, &mut both.1),
            Model::Other(model) => return model.compare(seen, events, snap.state),
        };
        responder.compare(seen, events, snap.state);
        requester.compare(&snap, events, self.now);
        let hears = matches!(snap.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if hears && !responder.is_loose() {
            assert_eq!(
                (snap.expected_psn, snap.msn),
                responder.counts(),
                "reference: PSN expected and messages executed (left: the engine)"
            );
        }
    }

    /// Passes the engine's report that it has nothing more to do.
    pub(super) fn beside_rests(&mut self, me: usize, pauses: bool) {
        if let Model::Rc(both) = &mut self.beside[me].model {
            both.0.rests();
            both.1.rests(pauses);
        }
    }
}

impl Network {
    /// Passes a change of state by the driver.
    pub(super) fn beside_modifies(&mut self, me: usize, to: QpState, attr: &Attr) {
        match &mut self.lab.beside[me].model {
            Model::Rc(both) => {
                both.0.modify(to, attr);
                both.1.modify(to, attr);
            }
            Model::Other(model) => model.modify(to, attr),
        }
    }

    /// Passes a failure of the queue pair's surroundings.
    pub(super) fn beside_fails(&mut self, me: usize) {
        match &mut self.lab.beside[me].model {
            Model::Rc(both) => both.0.fails(),
            Model::Other(model) => model.fails(),
        }
    }

    /// Passes the loss of the memory that a packet was to be made of.
    pub(super) fn beside_loses(&mut self, me: usize, packet: &Packet) {
        match &mut self.lab.beside[me].model {
            Model::Rc(both) if packet.kind.is_request() => both.1.loosen(),
            Model::Rc(both) => both.0.loosen(),
            Model::Other(_) => {}
        }
    }

    /// Passes the notice that receives were posted.
    pub(super) fn beside_posts_receives(&mut self, me: usize) {
        let posted = self.lab.receives_posted(me);
        if let Model::Rc(both) = &mut self.lab.beside[me].model {
            both.0.receives_posted(posted);
        }
    }
}
