// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shared receive queues: their state, context and doorbell words.

use crate::memory::ring::Ring;
use crate::memory::tables::ContextSlot;
use crate::memory::{Area, GuestMemory};
use crate::objects::cq::Cq;
use crate::slots::{Held, Ref};
use std::collections::BTreeSet;
use verbena_abi::ctx::{QueueState, SrqContext};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::syndrome::Syndrome;

/// A shared receive queue of the device.
#[derive(Debug)]
pub struct Srq {
    /// Number of the SRQ.
    pub srqn: u32,
    /// Protection domain of the SGEs in its WQEs.
    pub pdn: u32,
    /// Number of the doorbell area.
    pub uar: u32,
    /// DMA address of the doorbell area.
    pub area: u64,
    /// Slot of the SRQ in the doorbell area.
    pub slot: u16,
    /// Ring of the SRQ's WQEs.
    pub ring: Ring,
    /// Consumer index of the ring.
    pub ci: u32,
    /// Armed limit, or 0 if no limit is armed.
    pub limit: u32,
    /// Number of queue pairs that use the SRQ.
    pub users: u32,
    /// XRC: CQ where the receives of the SRQ complete.
    pub cq: Option<Ref<Cq>>,
    /// XRC: domain of the SRQ, or 0.
    pub xrcdn: u32,
    /// XRC: a value that no other SRQ has or ever had.
    pub life: u64,
    /// Fault injection: the next receive that is taken moves the SRQ to ERR.
    pub faulty: bool,
    /// Cause of the ERR state, if the SRQ is in error.
    pub error: Option<Syndrome>,
    /// Queue pairs whose peers wait for receives.
    pub waiting: WaitingQps,
    /// Slot in the context table where the context is published.
    pub context_slot: ContextSlot,
}

/// The queue pairs whose peers wait for receives of an SRQ.
#[derive(Debug, Default)]
pub struct WaitingQps {
    numbers: BTreeSet<u32>,
    /// Number from which on the next queue pair is chosen, so that each has its turn.
    next: u32,
}

impl WaitingQps {
    /// Takes the queue pair whose turn it is.
    fn take(&mut self) -> Option<u32> {
        let mut later = self.numbers.range(self.next..);
        let qpn = *later.next().or_else(|| self.numbers.first())?;
        self.numbers.remove(&qpn);
        self.next = qpn.wrapping_add(1);
        Some(qpn)
    }
}

impl Held for Srq {
    fn users(&mut self) -> &mut u32 {
        &mut self.users
    }
}

impl Srq {
    /// Loads the producer index from the doorbell area.
    pub fn producer<M: GuestMemory>(&self, mem: &M) -> u32 {
        Area::new(mem, self.area).load_acquire(doorbell::rq_producer(self.slot as usize))
    }

    /// Sets the consumer index and publishes it: the guest may reuse the ring entries before `ci`.
    pub fn consume<M: GuestMemory>(&mut self, mem: &M, ci: u32) {
        self.ci = ci;
        Area::new(mem, self.area).store_release(doorbell::srq_consumer(self.slot as usize), ci);
    }

    /// True if there are receives that no queue pair has taken.
    pub fn has_receives<M: GuestMemory>(&self, mem: &M) -> bool {
        self.error.is_none() && self.producer(mem) != self.ci
    }

    /// Adds a queue pair whose peer waits for receives. From now on the guest announces receives.
    pub fn begin_wait<M: GuestMemory>(&mut self, mem: &M, qpn: u32) {
        if self.waiting.numbers.is_empty() {
            self.watch_receives(mem, true);
        }
        self.waiting.numbers.insert(qpn);
    }

    /// Removes a queue pair whose peer no longer waits.
    pub fn end_wait<M: GuestMemory>(&mut self, mem: &M, qpn: u32) {
        if self.waiting.numbers.remove(&qpn) && self.waiting.numbers.is_empty() {
            self.watch_receives(mem, false);
        }
    }

    /// Takes up to `most` waiting queue pairs, but not more than there are receives. True if others
    /// are left that have receives too.
    pub fn take_waiting<M: GuestMemory>(&mut self, mem: &M, most: u32) -> (Vec<u32>, bool) {
        if self.waiting.numbers.is_empty() {
            return (Vec::new(), false);
        }
        // A queue pair that meets a wrong producer index reports it.
        let posted = self.producer(mem).wrapping_sub(self.ci);
        let count = posted.min(most);
        let taken: Vec<u32> = (0..count).map_while(|_| self.waiting.take()).collect();
        if self.waiting.numbers.is_empty() {
            self.watch_receives(mem, false);
        }
        (taken, posted > most && !self.waiting.numbers.is_empty())
    }

    /// Writes the watch word of the SRQ in the doorbell area.
    pub fn watch_receives<M: GuestMemory>(&self, mem: &M, watched: bool) {
        doorbell::watch_receives(&Area::new(mem, self.area), self.slot.into(), watched);
    }

    /// Returns the context. `producer` is the producer index as last read.
    pub fn context(&self, producer: u32) -> SrqContext {
        SrqContext {
            srqn: self.srqn.into(),
            state: if self.error.is_some() {
                QueueState::Err
            } else {
                QueueState::Ok
            }
            .to_raw(),
            log_size: self.ring.log_size(),
            slot: self.slot.into(),
            syndrome: self.error.map_or(0, |s| u32::from(s.to_raw())).into(),
            uar: self.uar.into(),
            pdn: self.pdn.into(),
            producer_index: producer.into(),
            consumer_index: self.ci.into(),
            limit: self.limit.into(),
            users: self.users.into(),
            log_stride: self.ring.log_stride(),
            cqn: self.cq.as_ref().map_or(0, Ref::number).into(),
            xrcdn: self.xrcdn.into(),
            ring: self.ring.raw,
            ..Default::default()
        }
    }

    /// Publishes the context in the guest's context table.
    pub fn publish<M: GuestMemory>(&mut self, mem: &M) {
        let context = self.context(self.producer(mem));
        self.context_slot.publish(mem, &context);
    }
}
