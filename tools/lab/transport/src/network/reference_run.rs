// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The reference ([`crate::reference`]) runs along with the engine: this file passes it the same
//! calls, answers its questions, and compares the two.

use super::memory::MemoryModel;
use super::model::{NetworkModel, QpCall};
use super::work::{RecvModel, RecvQueueModel, SendModel};
use super::SimNetwork;
use crate::reference::requester::ReferenceRequester;
use crate::reference::responder::{ReferenceResponder, ReferenceSetup};
use crate::reference::unreliable::UnreliableReference;
use crate::reference::work::ReferenceWork;
use crate::reference::{
    NextReceive, PostedReceive, ReceiveCompletion, RequestEffects, Surroundings,
};
use verbena_transport::host::{
    AtomicOp, CopySource, CopyTarget, KeyUse, RecvFetch, Sge, WcStatus, WorkCompletion, WqeOpcode,
};
use verbena_transport::packet::{Packet, Payload};
use verbena_transport::{Attr, Qp, QpConfig, QpState, QpType};

/// The reference of a queue pair's service.
#[derive(Debug)]
enum ServiceReference {
    /// Responder and requester of a reliable connection.
    Rc(Box<(ReferenceResponder, ReferenceRequester)>),
    /// Responder of an unreliable service.
    Other(Box<UnreliableReference>),
}

/// The reference of one queue pair, and the engine's effects in this call.
#[derive(Debug)]
pub struct ReferenceRun {
    model: ServiceReference,
    seen: RequestEffects,
    /// Receives that were taken in this call, and neither flushed nor compared yet.
    taken: Vec<u64>,
}

impl ReferenceRun {
    pub fn new(config: &QpConfig) -> Self {
        let (pd, shared, credits) = (config.pd, config.has_srq, config.credits);
        let model = match config.qp_type {
            QpType::Rc => ServiceReference::Rc(Box::new((
                ReferenceResponder::new(ReferenceSetup {
                    pd,
                    credits,
                    keep_bytes: config.reassembly_bytes.into(),
                }),
                ReferenceRequester::new(
                    credits,
                    config.min_timeout_ns,
                    config.recovers,
                    config.reassembly_bytes.into(),
                ),
            ))),
            other => ServiceReference::Other(Box::new(UnreliableReference::new(other, pd, shared))),
        };
        Self {
            model,
            seen: RequestEffects::default(),
            taken: Vec::new(),
        }
    }
}

/// The surroundings that the reference may consult.
struct ModelSurroundings<'a> {
    memory: &'a MemoryModel,
    recvs: &'a [RecvModel],
    queue: &'a RecvQueueModel,
}

impl Surroundings for ModelSurroundings<'_> {
    fn allows(&self, key: &KeyUse) -> bool {
        self.memory.arena.regions.find(key).is_ok()
    }

    fn readable(&self, payload: &Payload) -> bool {
        let source = payload.source();
        !matches!(source, CopySource::Gather { .. }) || self.memory.reads(&source)
    }

    fn next_receive(&self) -> NextReceive {
        if self.queue.is_failed {
            return NextReceive::QueueError;
        }
        let Some(number) = self.queue.posts.get(self.queue.taken) else {
            return NextReceive::Empty;
        };
        let recv = &self.recvs[*number as usize];
        NextReceive::Receive(PostedReceive {
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

impl NetworkModel {
    /// Passes a packet that is about to be handed to the engine.
    pub(super) fn reference_packet(&mut self, me: usize, packet: &Packet) {
        let around = ModelSurroundings {
            memory: &self.memory,
            recvs: &self.recvs,
            queue: &self.queues[self.qps[me].queue],
        };
        match &mut self.references[me].model {
            ServiceReference::Other(model) => model.on_request(packet, &around),
            ServiceReference::Rc(both) if packet.kind.is_request() => {
                both.0.on_request(packet, &around)
            }
            ServiceReference::Rc(_) => self.reference_response(me, packet, false),
        }
    }

    /// Passes a response that is about to be handed to the engine, or that the engine had kept and
    /// is about to take.
    fn reference_response(&mut self, me: usize, packet: &Packet, kept: bool) {
        let source = packet.payload.source();
        let readable = !matches!(source, CopySource::Region { .. }) || self.memory.reads(&source);
        if !readable {
            if let ServiceReference::Rc(both) = &mut self.references[self.qps[me].peer].model {
                both.0.on_unread_response(packet);
            }
        }
        let ServiceReference::Rc(both) = &mut self.references[me].model else {
            return;
        };
        let (end, ops, memory) = (&self.qps[me], &self.ops, &self.memory);
        let stores = |index: usize, offset: u64, length: u64| {
            let op = &ops[end.sq[index] as usize];
            memory.stores(end.pd, &op.sges, offset, length)
        };
        let now = self.now_ns;
        if kept {
            both.1.on_reassembled(packet, now, &stores);
        } else {
            both.1.on_response(packet, now, readable, &stores);
        }
    }

    /// Passes a kept request that the engine is about to execute, or a kept response that it is
    /// about to take.
    pub(super) fn reference_reassembled(&mut self, me: usize, packet: &Packet) {
        if !packet.kind.is_request() {
            return self.reference_response(me, packet, true);
        }
        let around = ModelSurroundings {
            memory: &self.memory,
            recvs: &self.recvs,
            queue: &self.queues[self.qps[me].queue],
        };
        let reference = &mut self.references[me];
        let mut seen = std::mem::take(&mut reference.seen);
        assert!(
            reference.taken.len() <= 1,
            "two receives are taken for one request"
        );
        seen.taken = reference.taken.pop();
        if let ServiceReference::Rc(both) = &mut reference.model {
            both.0.on_reassembled(packet, &seen, &around);
        }
    }

    /// Notes bytes that the engine copied.
    pub(super) fn reference_copy(&mut self, me: usize, target: &CopyTarget<'_>, length: u32) {
        let (reference, QpCall::Request { .. }) = (&mut self.references[me], self.call) else {
            return;
        };
        match target {
            CopyTarget::Region { key, addr, .. } => {
                reference.seen.write(*key, *addr, length.into())
            }
            CopyTarget::Scatter { offset, .. } => {
                reference.seen.store(u64::from(*offset), length.into());
            }
            CopyTarget::Buffer(_) => {}
        }
    }

    /// Notes an atomic that the engine executed.
    pub(super) fn reference_atomic(&mut self, me: usize, key: &KeyUse, op: AtomicOp, before: u64) {
        let reference = &mut self.references[me];
        assert!(
            reference.seen.atomic.is_none(),
            "an atomic is executed twice"
        );
        reference.seen.atomic = Some((key.key, key.addr, op));
        if let ServiceReference::Rc(both) = &mut reference.model {
            both.0.result(before);
        }
    }

    /// Notes a key that the engine is about to invalidate, for a message of the peer (`remote`) or
    /// for a work request.
    pub(super) fn reference_invalidate(&mut self, me: usize, key: u32, remote: bool) {
        let valid = self.memory.is_valid(key);
        let reference = &mut self.references[me];
        match &mut reference.model {
            _ if remote => reference.seen.invalidated = Some(key),
            ServiceReference::Rc(both) => both.1.on_local_operation(WqeOpcode::LocalInv, valid),
            ServiceReference::Other(_) => {}
        }
    }

    /// Passes the execution of a fast registration.
    pub(super) fn reference_fast_register(&mut self, me: usize) {
        if let ServiceReference::Rc(both) = &mut self.references[me].model {
            both.1.on_local_operation(WqeOpcode::FastReg, true);
        }
    }

    /// Passes a work request that is posted.
    pub(super) fn reference_post(&mut self, me: usize, op: &SendModel) {
        if let ServiceReference::Rc(both) = &mut self.references[me].model {
            let wqe = &op.wqe;
            let work = ReferenceWork::new(wqe.opcode, op.length, wqe.signaled, wqe.fence);
            both.1.post(work);
        }
    }

    /// Notes the result of asking for a receive.
    pub(super) fn reference_take_recv(&mut self, me: usize, wr_id: u64, take: RecvFetch) {
        if matches!(take, RecvFetch::Taken | RecvFetch::Malformed(_)) {
            self.references[me].taken.push(wr_id);
        }
    }

    /// Passes a completion.
    pub(super) fn reference_completion(&mut self, me: usize, c: &WorkCompletion) {
        let reference = &mut self.references[me];
        if !c.is_recv() {
            let index = c.wqe_index as usize;
            let op = &self.ops[self.qps[me].sq[index] as usize];
            let gone = |sge: &Sge| {
                let region = self.memory.arena.regions.get(sge.lkey);
                region.is_some_and(|region| !region.valid)
            };
            let local = op.fault.is_local() || op.vanishing || op.sges.iter().any(gone);
            if let ServiceReference::Rc(both) = &mut reference.model {
                both.1.on_completion(index, c.status, local);
            }
            return;
        }
        if c.status == WcStatus::WrFlushErr {
            reference.taken.retain(|wr_id| *wr_id != c.wr_id);
            return;
        }
        reference.seen.complete(match c.status {
            WcStatus::Success => ReceiveCompletion {
                wr_id: c.wr_id,
                status: c.status,
                opcode: c.opcode,
                byte_len: c.byte_len.into(),
                imm: c.imm,
                invalidated: c.invalidated,
                solicited: c.solicited,
            },
            status => ReceiveCompletion::failed(c.wr_id, status),
        });
    }

    /// Passes a packet that leaves.
    pub(super) fn reference_transmit(&mut self, me: usize, packet: &Packet) {
        let posted = self.receives_posted(me);
        match &mut self.references[me].model {
            ServiceReference::Rc(both) if packet.kind.is_request() => {
                both.1.on_transmit(packet, self.now_ns)
            }
            ServiceReference::Rc(both) => both.0.on_transmit(packet, posted),
            ServiceReference::Other(model) => model.on_transmit(packet),
        }
    }

    /// Returns the number of receives that can be taken, where it is known.
    fn receives_posted(&self, me: usize) -> Option<u64> {
        let queue = &self.queues[self.qps[me].queue];
        (!queue.shared && !queue.is_failed).then(|| (queue.posts.len() - queue.taken) as u64)
    }

    /// Compares engine and reference at the end of a call.
    pub(super) fn compare_reference(&mut self, me: usize, qp: &Qp) {
        let reference = &mut self.references[me];
        let mut seen = std::mem::take(&mut reference.seen);
        assert!(
            reference.taken.len() <= 1,
            "two receives are taken for one request"
        );
        seen.taken = reference.taken.pop();
        let (snap, events) = (qp.snapshot(), &self.qps[me].events);
        let (responder, requester) = match &mut reference.model {
            ServiceReference::Rc(both) => (&mut both.0, &mut both.1),
            ServiceReference::Other(model) => return model.compare(seen, events, snap.state),
        };
        responder.compare(seen, events, snap.state);
        requester.compare(&snap, events, self.now_ns);
        let hears = matches!(snap.state, QpState::Rtr | QpState::Rts | QpState::Sqd);
        if hears && !responder.is_unjudged() {
            assert_eq!(
                (snap.expected_psn, snap.msn),
                responder.counts(),
                "reference: PSN expected and messages executed (left: the engine)"
            );
        }
    }

    /// Passes the engine's report that it has nothing more to do.
    pub(super) fn reference_idle(&mut self, me: usize, pauses: bool) {
        if let ServiceReference::Rc(both) = &mut self.references[me].model {
            both.0.check_idle();
            both.1.check_idle(pauses);
        }
    }
}

impl SimNetwork {
    /// Passes a change of state by the driver.
    pub(super) fn reference_modify(&mut self, me: usize, to: QpState, attr: &Attr) {
        match &mut self.model.references[me].model {
            ServiceReference::Rc(both) => {
                both.0.modify(to, attr);
                both.1.modify(to, attr);
            }
            ServiceReference::Other(model) => model.modify(to, attr),
        }
    }

    /// Passes a failure of the queue pair's surroundings.
    pub(super) fn reference_failure(&mut self, me: usize) {
        match &mut self.model.references[me].model {
            ServiceReference::Rc(both) => both.0.on_failure(),
            ServiceReference::Other(model) => model.on_failure(),
        }
    }

    /// Passes the loss of the memory that a packet was to be made of.
    pub(super) fn reference_source_fault(&mut self, me: usize, packet: &Packet) {
        match &mut self.model.references[me].model {
            ServiceReference::Rc(both) if packet.kind.is_request() => both.1.stop_judging(),
            ServiceReference::Rc(both) => both.0.stop_judging(),
            ServiceReference::Other(_) => {}
        }
    }

    /// Passes the notice that receives were posted.
    pub(super) fn reference_receives_posted(&mut self, me: usize) {
        let posted = self.model.receives_posted(me);
        if let ServiceReference::Rc(both) = &mut self.model.references[me].model {
            both.0.receives_posted(posted);
        }
    }
}
