// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs: rings, completion queues and paths around the transport's state machine.

use crate::memory::ring::Ring;
use crate::memory::tables::ContextSlot;
use crate::memory::{Area, GuestMemory};
use crate::objects::cq::Cq;
use crate::objects::srq::Srq;
use crate::observation::counters::Counters;
use crate::slots::Ref;
use std::rc::Rc;
use verbena_abi::cmd::{self, QpType};
use verbena_abi::ctx::{AddressVector, QpAttr, QpContext};
use verbena_abi::doorbell::{self, Words};
use verbena_transport::host::XrcSrq;
use verbena_transport::prefetch;
use verbena_transport::wire::Path;
use verbena_transport::QpState;

/// Largest path MTU of the standard, in bytes.
const MAX_MTU_BYTES: u32 = 4096;

/// A queue pair of the device: the transport's state machine and the objects around it.
#[derive(Debug)]
pub struct Qp {
    /// State machine of the transport.
    pub transport: verbena_transport::Qp,
    /// Rings, CQs and path around the state machine.
    pub env: Env,
}

/// The part of a queue pair around its state machine: rings, CQs, path and attributes.
#[derive(Debug)]
pub struct Env {
    /// The CREATE_QP request by which the driver created the queue pair.
    pub create: cmd::CreateQp,
    /// CQ of the send queue; none for a queue pair without a send queue.
    pub send_cq: Option<Ref<Cq>>,
    /// CQ of the receives; none for a queue pair without a receive queue or an SRQ of its own.
    pub recv_cq: Option<Ref<Cq>>,
    /// SRQ from which the queue pair takes receives; none if the queue pair has a receive ring.
    pub srq: Option<Ref<Srq>>,
    /// Transport type of the queue pair.
    pub qp_type: QpType,
    /// DMA address of the queue pair's doorbell area.
    pub area: u64,
    /// Send ring. An XRC target has a ring that cannot be reached.
    pub sq: Ring,
    /// Receive ring; none if the queue pair takes receives from an SRQ.
    pub rq: Option<Ring>,
    /// Producer index of the send queue as the device last read it.
    pub sq_pi: u32,
    /// Number of receives taken from the receive ring.
    pub rq_ci: u32,
    /// Producer index of the receive ring as the device last read it.
    pub rq_pi: u32,
    /// The receive that was taken from the SRQ and completed into a dead CQ: index and `wr_id`.
    /// There is at most one, because the device takes no receive for a dead CQ.
    pub lost: Option<(u32, u64)>,
    /// Attributes as the driver last set them.
    pub attr: QpAttr,
    /// Address vector of a connected queue pair, as the driver set it.
    pub av: AddressVector,
    /// Path that the port derived from `av`.
    pub path: Option<Rc<Path>>,
    /// XRC targets: the SRQ of the present request.
    pub xrc: XrcSrq,
    /// Counters of the device for this queue pair; the transport counts on its own.
    pub counters: Counters,
    /// State that the published context shows.
    pub shown: QpState,
    /// True if the peer waits for receives, as last published.
    pub short: bool,
    /// Value of the watch word in the doorbell area.
    pub watched: bool,
    /// SRQ that has this queue pair among those that wait for its receives.
    pub waits_at: Option<u32>,
    /// A value that no other queue pair has or ever had. Memory windows are bound to it.
    pub owner: u64,
    /// Slot in the context table where the context is published.
    pub context_slot: ContextSlot,
}

impl Qp {
    /// Returns all counters of the queue pair since its creation, with those of the transport.
    pub fn counters(&self) -> Counters {
        let mut all = self.env.counters.clone();
        all.add_transport(&self.transport);
        all
    }
}

impl Env {
    /// Returns the queue pair number.
    pub fn qpn(&self) -> u32 {
        self.create.qpn.get()
    }

    /// Returns the most bytes of payload that a packet of this queue pair can carry. A datagram is
    /// one packet of up to 4096 bytes, independent of its path.
    pub fn path_mtu_bytes(&self) -> u32 {
        match self.attr.path_mtu {
            0 => MAX_MTU_BYTES,
            mtu => 128 << mtu.min(5),
        }
    }

    /// Returns the number of the SRQ from which the queue pair takes receives, if it uses an SRQ.
    #[inline]
    pub fn srqn(&self) -> Option<u32> {
        self.srq.as_ref().map(Ref::number)
    }

    /// True if the queue pair may use the local DMA key and other privileged keys and operations.
    pub fn is_privileged(&self) -> bool {
        self.create.flags & cmd::QP_PRIVILEGED != 0
    }

    /// Returns the protection domain of the keys that a request of the peer may invalidate: that of
    /// the SRQ for an XRC target, otherwise that of the queue pair.
    pub fn target_pd(&self) -> u32 {
        match self.qp_type {
            QpType::XrcTgt => self.xrc.pd,
            _ => self.create.pdn.get(),
        }
    }

    /// True if `such` holds for the number of the send CQ or of the receive CQ.
    pub fn has_cq(&self, such: impl Fn(u32) -> bool) -> bool {
        let cqs = [&self.send_cq, &self.recv_cq];
        cqs.into_iter().flatten().any(|cq| such(cq.number()))
    }

    /// True if the send WQEs of the queue pair carry an address vector.
    pub fn is_datagram(&self) -> bool {
        matches!(self.qp_type, QpType::Ud | QpType::Gsi | QpType::Smi)
    }

    /// Loads the producer index of the receive ring from the doorbell area.
    pub fn rq_producer<M: GuestMemory>(&self, mem: &M) -> u32 {
        Area::new(mem, self.area)
            .load_acquire(doorbell::rq_producer(self.create.slot.get() as usize))
    }

    /// Loads the producer index of the send ring from the doorbell area.
    pub fn sq_producer<M: GuestMemory>(&self, mem: &M) -> u32 {
        Area::new(mem, self.area)
            .load_acquire(doorbell::sq_producer(self.create.slot.get() as usize))
    }

    /// Takes the receive of the SRQ that the queue pair still has and will not complete, because
    /// the queue pair is reset or destroyed. Returns its index and `wr_id`.
    pub fn take_held(&mut self, transport: &verbena_transport::Qp) -> Option<(u32, u64)> {
        let lost = self.lost.take();
        self.srqn()?;
        transport.held_recv().or(lost)
    }

    /// Returns the number of the SRQ where a request looked for a receive last: for an XRC target,
    /// the SRQ that this request named. None if the queue pair has a receive ring.
    pub fn shares_receives_of(&self) -> Option<u32> {
        match self.qp_type {
            QpType::XrcTgt => Some(self.xrc.srqn),
            _ => self.srqn(),
        }
    }

    /// True if the published watch does not fit a queue pair whose peer waits for receives (`short`)
    /// or does not. The state of the queue pair has not changed.
    #[inline]
    pub fn is_watch_outdated(&self, short: bool) -> bool {
        // A queue pair that waits may have turned to another SRQ, or may have been taken from those
        // that wait there.
        short != self.short
            || short && self.rq.is_none() && self.waits_at != self.shares_receives_of()
    }

    /// Writes the watch word of the queue pair in the doorbell area. While the word is set, the
    /// guest has to announce posted receives to the device, which flushes them, or tells a sender
    /// of them.
    pub fn watch_receives<M: GuestMemory>(&mut self, mem: &M, watched: bool) {
        self.watched = watched;
        let slot = self.create.slot.get() as usize;
        doorbell::watch_receives(&Area::new(mem, self.area), slot, watched);
    }
}

impl Qp {
    /// Prefetches the memory of the queue pair that its next turn uses.
    #[inline]
    pub fn prefetch(&self) {
        self.transport.prefetch();
        prefetch::line(&self.env.create);
        prefetch::line(&self.env.area);
        prefetch::line(&self.env.sq);
        prefetch::line(&self.env.path);
    }

    /// Returns the context. `rq_pi` is the producer index of the receive ring as last read.
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

    /// Publishes the context in the guest's context table.
    pub fn publish<M: GuestMemory>(&mut self, mem: &M) {
        let context = self.context(self.env.rq_producer(mem));
        self.env.context_slot.publish(mem, &context);
        self.env.shown = self.transport.state();
    }
}
