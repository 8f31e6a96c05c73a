// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The host of one queue pair: each call goes to the model that all ends share, and is judged
//! there.

use super::congestion::is_cnp;
use super::cover::Topic;
use super::lab::Lab;
use verbena_transport::host::*;
use verbena_transport::packet::Packet;
use verbena_transport::pool::Pool;

/// The host of one end.
#[derive(Debug)]
pub struct LabHost<'a> {
    lab: &'a mut Lab,
    me: usize,
}

impl Lab {
    /// Returns the host of an end.
    pub fn host(&mut self, me: usize) -> LabHost<'_> {
        LabHost { lab: self, me }
    }
}

impl Host for LabHost<'_> {
    fn fetch_send(
        &mut self,
        index: u32,
        wqe: &mut DecodedSendWqe,
        gather: &mut Gather,
    ) -> Result<(), WqeError> {
        assert!(gather.sges.is_empty() && gather.inline.is_empty());
        let end = &self.lab.ends[self.me];
        let op = &self.lab.ops[end.sq[index as usize] as usize];
        assert!(!op.over, "a complete WQE is read: {op:?}");
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

    fn take_recv(&mut self, wqe: &mut DecodedRecvWqe) -> RecvFetch {
        let take = self.lab.take_recv(self.me, wqe);
        self.lab.beside_takes(self.me, wqe.wr_id, take);
        take
    }

    fn recv_credits(&mut self) -> Option<u32> {
        let queue = &self.lab.queues[self.lab.ends[self.me].queue];
        (!queue.shared && !queue.dead).then(|| (queue.posts.len() - queue.taken) as u32)
    }

    fn check(&mut self, key: &KeyUse) -> Result<(), Syndrome> {
        assert!(key.length > 0, "an access of zero length needs no key");
        self.lab.memory.arena.regions.find(key).map(|_| ())
    }

    fn copy(&mut self, target: CopyTarget<'_>, source: CopySource<'_>) -> Result<(), CopyFault> {
        self.lab.copy(self.me, target, &source)
    }

    fn atomic(&mut self, key: &KeyUse, op: AtomicOp) -> Result<u64, Syndrome> {
        self.lab.atomic(self.me, key, op)
    }

    fn invalidate(&mut self, key: u32, remote: bool) -> Result<(), Syndrome> {
        self.lab.invalidate(self.me, key, remote)
    }

    fn fast_register(&mut self, _index: u32) -> Result<(), Syndrome> {
        self.lab.beside_registers(self.me);
        Ok(())
    }

    fn complete(&mut self, completion: &WorkCompletion) -> bool {
        self.lab.beside_completes(self.me, completion);
        self.lab.complete(self.me, completion);
        true
    }

    fn event(&mut self, event: EventType, syndrome: Option<Syndrome>) {
        self.lab
            .say(self.me, || format!("event {event:?} {syndrome:?}"));
        self.lab.cover.count(Topic::Event, event as u8, 0);
        self.lab.ends[self.me].events.push(event);
    }

    fn transmit(&mut self, packet: Packet) {
        assert!(packet.psns > 0);
        // The reference covers requests and their answers only.
        if !is_cnp(&packet) {
            self.lab.beside_sends(self.me, &packet);
        }
        self.lab.ends[self.me].out.push(packet);
    }

    fn on_reassembled(&mut self, packet: &Packet) {
        self.lab.goes_on(self.me, packet);
    }

    fn pool(&mut self) -> Option<&mut Pool> {
        Some(&mut self.lab.pool)
    }
}
