// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs: rings, completion queues and paths around the transport's state machine.

use crate::memory::ring::Ring;
use crate::memory::tables::ContextSlot;
use crate::memory::{Area, GuestMemory};
use crate::objects::counters::Counters;
use crate::objects::cq::Cq;
use crate::objects::srq::Srq;
use crate::slots::Ref;
use std::rc::Rc;
use verbena_abi::cmd::{self, QpType};
use verbena_abi::ctx::{AddressVector, QpAttr, QpContext};
use verbena_abi::doorbell::{self, Words};
use verbena_roce::host::{WcStatus, XrcSrq};
use verbena_roce::prefetch;
use verbena_roce::wire::Path;
use verbena_roce::QpState;

/// The largest path MTU that there is.
const MAX_MTU_BYTES: u32 = 4096;

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// The state machine.
    pub transport: verbena_roce::Qp,
    /// What is around it.
    pub env: Env,
}

/// What is around a queue pair's state machine.
#[derive(Debug)]
pub struct Env {
    /// As it was created.
    pub create: cmd::CreateQp,
    /// Where its sends complete, if it has a send queue.
    pub send_cq: Option<Ref<Cq>>,
    /// Where its receives complete, if it has a receive queue or an SRQ of its own.
    pub recv_cq: Option<Ref<Cq>>,
    /// What it takes receives from, unless it has a ring of its own.
    pub srq: Option<Ref<Srq>>,
    /// Its type.
    pub qp_type: QpType,
    /// DMA address of its doorbell area.
    pub area: u64,
    /// Send ring; that of an XRC target cannot be reached.
    pub sq: Ring,
    /// Receive ring, unless it takes from an SRQ.
    pub rq: Option<Ring>,
    /// Producer index of the send queue as last seen.
    pub sq_pi: u32,
    /// Receives taken from its own ring.
    pub rq_ci: u32,
    /// Producer index of that ring as last read.
    pub rq_pi: u32,
    /// The receive of its SRQ that it took and that completed into a dead CQ: index and `wr_id`. There is no second one,
    /// because nothing is taken for a dead CQ.
    pub lost: Option<(u32, u64)>,
    /// Attributes as the driver set them.
    pub attr: QpAttr,
    /// Path of a connected queue pair, as the driver set it.
    pub av: AddressVector,
    /// The same, looked up.
    pub path: Option<Rc<Path>>,
    /// XRC targets: the SRQ of the present request.
    pub xrc: XrcSrq,
    /// What it has counted beside its transport.
    pub counters: Counters,
    /// How the next send that it begins with is to fail.
    pub fault: Option<WcStatus>,
    /// State that the context shows.
    pub shown: QpState,
    /// No other queue pair has, or ever had, the same: what a memory window is bound to.
    pub owner: u64,
    /// Where the context is.
    pub context_slot: ContextSlot,
}

impl Qp {
    /// Its counters, since it was created.
    pub fn counters(&self) -> Counters {
        let mut all = self.env.counters.clone();
        all.add_transport(&self.transport);
        all
    }
}

impl Env {
    /// Its number.
    pub fn qpn(&self) -> u32 {
        self.create.qpn.get()
    }

    /// The most bytes of payload that one of its packets has. A datagram is one packet, whatever the path.
    pub fn path_mtu_bytes(&self) -> u32 {
        match self.attr.path_mtu {
            0 => MAX_MTU_BYTES,
            mtu => 128 << mtu.min(5),
        }
    }

    /// The SRQ that it takes receives from, if it does.
    #[inline]
    pub fn srqn(&self) -> Option<u32> {
        self.srq.as_ref().map(Ref::number)
    }

    /// Whether it may use the local DMA key and what belongs to it.
    pub fn is_privileged(&self) -> bool {
        self.create.flags & cmd::QP_PRIVILEGED != 0
    }

    /// Protection domain of what a request of its peer may change.
    pub fn target_pd(&self) -> u32 {
        match self.qp_type {
            QpType::XrcTgt => self.xrc.pd,
            _ => self.create.pdn.get(),
        }
    }

    /// Whether one of the CQs is such a one.
    pub fn has_cq(&self, such: impl Fn(u32) -> bool) -> bool {
        let cqs = [&self.send_cq, &self.recv_cq];
        cqs.into_iter().flatten().any(|cq| such(cq.number()))
    }

    /// Whether its WQEs carry an address vector.
    pub fn is_datagram(&self) -> bool {
        matches!(self.qp_type, QpType::Ud | QpType::Gsi)
    }

    /// Producer index of the receive ring.
    pub fn rq_producer<M: GuestMemory>(&self, mem: &M) -> u32 {
        Area::new(mem, self.area)
            .load_acquire(doorbell::rq_producer(self.create.slot.get() as usize))
    }

    /// Producer index of the send ring.
    pub fn sq_producer<M: GuestMemory>(&self, mem: &M) -> u32 {
        Area::new(mem, self.area)
            .load_acquire(doorbell::sq_producer(self.create.slot.get() as usize))
    }

    /// The receive of its SRQ that will not complete now that its life ends: index and `wr_id`.
    pub fn take_held(&mut self, transport: &verbena_roce::Qp) -> Option<(u32, u64)> {
        let lost = self.lost.take();
        self.srqn()?;
        transport.held_recv().or(lost)
    }

    /// Tells the guest whether receives have to be noticed because they are to be flushed.
    pub fn show_error<M: GuestMemory>(&self, mem: &M, in_error: bool) {
        let area = Area::new(mem, self.area);
        area.store(
            doorbell::qp_error(self.create.slot.get() as usize),
            in_error.into(),
        );
        area.fence();
    }
}

impl Qp {
    /// Has its memory fetched for a turn that comes soon.
    #[inline]
    pub fn prefetch(&self) {
        self.transport.prefetch();
        prefetch::line(&self.env.create);
        prefetch::line(&self.env.area);
        prefetch::line(&self.env.sq);
        prefetch::line(&self.env.path);
    }

    /// The context, with the producer index of the receive ring as last read.
    pub fn context(&self, rq_pi: u32) -> QpContext {
        let live = self.transport.snapshot();
        let env = &self.env;
        let mut attr = env.attr;
        attr.qp_state = live.state.to_raw();
        attr.cur_qp_state = live.state.to_raw();
        QpContext {
            qpn: env.create.qpn,
            qp_type: env.create.qp_type,
            flags: env.create.flags,
            valid: 1,
            sq_draining: live.sq_draining.into(),
            syndrome: live.syndrome.map_or(0, |s| u32::from(s.to_raw())).into(),
            attr,
            av: env.av,
            pdn: env.create.pdn,
            send_cqn: env.create.send_cqn,
            recv_cqn: env.create.recv_cqn,
            srqn: env.create.srqn,
            uar: env.create.uar,
            slot: env.create.slot,
            log_sq_size: env.create.log_sq_size,
            log_rq_size: env.create.log_rq_size,
            sq_pi: env.sq_pi.into(),
            sq_next: live.sq_next.into(),
            sq_ci: live.sq_consumer.into(),
            rq_pi: rq_pi.into(),
            rq_ci: env.rq_ci.into(),
            next_psn: live.next_psn.into(),
            una_psn: live.una_psn.into(),
            expected_psn: live.expected_psn.into(),
            msn: live.msn.into(),
            retry_left: live.retry_left,
            rnr_left: live.rnr_left,
            sq_ring: env.create.sq,
            rq_ring: env.create.rq,
            xrcdn: env.create.xrcdn,
            create_flags: env.create.create_flags,
            ..Default::default()
        }
    }

    /// Publishes the context.
    pub fn publish<M: GuestMemory>(&mut self, mem: &M) {
        let context = self.context(self.env.rq_producer(mem));
        self.env.context_slot.publish(mem, &context);
        self.env.shown = self.transport.state();
    }
}
