// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shared receive queues.

use crate::memory::ring::Ring;
use crate::memory::tables::ContextSlot;
use crate::memory::{Area, GuestMemory};
use crate::objects::cq::Cq;
use crate::slots::{Held, Ref};
use verbena_abi::ctx::{QueueState, SrqContext};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::syndrome::Syndrome;

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// Its number.
    pub srqn: u32,
    /// Protection domain of its SGEs.
    pub pdn: u32,
    /// Doorbell area ...
    pub uar: u32,
    /// ... its DMA address ...
    pub area: u64,
    /// ... and the slot in it.
    pub slot: u16,
    /// WQEs.
    pub ring: Ring,
    /// Consumer index.
    pub ci: u32,
    /// Armed limit, or 0.
    pub limit: u32,
    /// Queue pairs that use it.
    pub users: u32,
    /// For extended connections: where its receives complete ...
    pub cq: Option<Ref<Cq>>,
    /// ... its domain, else 0 ...
    pub xrcdn: u32,
    /// ... and what no other SRQ has, or ever had.
    pub life: u64,
    /// The next receive that is taken is to bring it to ERR.
    pub faulty: bool,
    /// What brought it to ERR.
    pub error: Option<Syndrome>,
    /// Where the context is.
    pub context_slot: ContextSlot,
}

impl Held for Srq {
    fn users(&mut self) -> &mut u32 {
        &mut self.users
    }
}

impl Srq {
    /// The producer index.
    pub fn producer<M: GuestMemory>(&self, mem: &M) -> u32 {
        Area::new(mem, self.area).load_acquire(doorbell::rq_producer(self.slot as usize))
    }

    /// Entries before `ci` have been read: their places are free.
    pub fn consume<M: GuestMemory>(&mut self, mem: &M, ci: u32) {
        self.ci = ci;
        Area::new(mem, self.area).store_release(doorbell::srq_consumer(self.slot as usize), ci);
    }

    /// The context, with the producer index as last read.
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

    /// Publishes the context.
    pub fn publish<M: GuestMemory>(&mut self, mem: &M) {
        let context = self.context(self.producer(mem));
        self.context_slot.publish(mem, &context);
    }
}
