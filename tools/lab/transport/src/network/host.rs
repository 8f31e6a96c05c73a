// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The host of one queue pair: each call goes to the model that all ends share, and is judged
//! there.

use super::cnp_model::is_cnp;
use super::coverage::Topic;
use super::model::NetworkModel;
use verbena_transport::host::*;
use verbena_transport::packet::Packet;
use verbena_transport::pool::Pool;

/// The host of one end.
#[derive(Debug)]
pub struct ModelHost<'a> {
    model: &'a mut NetworkModel,
    me: usize,
}

impl NetworkModel {
    /// Returns the host of an end.
    pub fn host(&mut self, me: usize) -> ModelHost<'_> {
        ModelHost { model: self, me }
    }
}

impl Host for ModelHost<'_> {
    fn fetch_send(
        &mut self,
        index: u32,
        wqe: &mut DecodedSendWqe,
        gather: &mut Gather,
    ) -> Result<(), WqeError> {
        assert!(gather.sges.is_empty() && gather.inline.is_empty());
        let end = &self.model.qps[self.me];
        let op = &self.model.ops[end.sq[index as usize] as usize];
        assert!(!op.is_complete, "a complete WQE is read: {op:?}");
        *wqe = op.wqe.clone();
        gather.pd = end.pd;
        gather.sges.extend_from_slice(&op.sges);
        gather.inline.extend_from_slice(&op.inline);
        op.malformed.map_or(Ok(()), Err)
    }

    fn send_wr_id(&mut self, index: u32) -> (u64, WcOpcode) {
        let end = &self.model.qps[self.me];
        let op = &self.model.ops[end.sq[index as usize] as usize];
        (op.wqe.wr_id, WcOpcode::Send)
    }

    fn take_recv(&mut self, wqe: &mut DecodedRecvWqe) -> RecvFetch {
        let take = self.model.take_recv(self.me, wqe);
        self.model.reference_take_recv(self.me, wqe.wr_id, take);
        take
    }

    fn recv_credits(&mut self) -> Option<u32> {
        let queue = &self.model.queues[self.model.qps[self.me].queue];
        (!queue.shared && !queue.is_failed).then(|| (queue.posts.len() - queue.taken) as u32)
    }

    fn check(&mut self, key: &KeyUse) -> Result<(), Syndrome> {
        assert!(key.length > 0, "an access of zero length needs no key");
        self.model.memory.arena.regions.find(key).map(|_| ())
    }

    fn copy(&mut self, target: CopyTarget<'_>, source: CopySource<'_>) -> Result<(), CopyFault> {
        self.model.copy(self.me, target, &source)
    }

    fn atomic(&mut self, key: &KeyUse, op: AtomicOp) -> Result<u64, Syndrome> {
        self.model.atomic(self.me, key, op)
    }

    fn invalidate(&mut self, key: u32, remote: bool) -> Result<(), Syndrome> {
        self.model.invalidate(self.me, key, remote)
    }

    fn fast_register(&mut self, _index: u32) -> Result<(), Syndrome> {
        self.model.reference_fast_register(self.me);
        Ok(())
    }

    fn complete(&mut self, completion: &WorkCompletion) -> bool {
        self.model.reference_completion(self.me, completion);
        self.model.complete(self.me, completion);
        true
    }

    fn event(&mut self, event: EventType, syndrome: Option<Syndrome>) {
        self.model
            .trace(self.me, || format!("event {event:?} {syndrome:?}"));
        self.model.coverage.count(Topic::Event, event as u8, 0);
        self.model.qps[self.me].events.push(event);
    }

    fn transmit(&mut self, packet: Packet) {
        assert!(packet.psns > 0);
        // The reference covers requests and their answers only.
        if !is_cnp(&packet) {
            self.model.reference_transmit(self.me, &packet);
        }
        self.model.qps[self.me].out.push(packet);
    }

    fn on_reassembled(&mut self, packet: &Packet) {
        self.model.on_reassembled(self.me, packet);
    }

    fn pool(&mut self) -> Option<&mut Pool> {
        Some(&mut self.model.pool)
    }
}
