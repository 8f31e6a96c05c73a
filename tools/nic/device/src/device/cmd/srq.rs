// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands that create, modify, resize, query and destroy SRQs.

use super::*;
use crate::config;
use crate::memory::ring::Ring;
use crate::objects::srq::{Srq, WaitingQps};
use crate::objects::uar::Owner;
use verbena_abi::ctx::SrqContext;
use verbena_abi::eqe::EventType;
use verbena_abi::wqe::LOG_RQ_STRIDE;

/// Types of SRQs as in `enum ib_srq_type`.
const SRQ_BASIC: u8 = 0;
const SRQ_XRC: u8 = 1;

impl Device {
    pub(super) fn create_srq<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &CreateSrq,
    ) -> Result<(), CmdError> {
        let srqn = request.srqn.get();
        if !self.shared.srqs.in_range(srqn) {
            return Err(NUMBER);
        }
        if self.shared.srqs.get(srqn).is_some() {
            return Err(IN_USE);
        }
        let (cqn, xrcdn) = (request.cqn.get(), request.xrcdn.get());
        match request.srq_type {
            SRQ_BASIC if cqn != 0 || xrcdn != 0 => return Err(ATTRIBUTE),
            SRQ_XRC if xrcdn == 0 => return Err(ATTRIBUTE),
            SRQ_XRC => self.check_queues([cqn])?,
            SRQ_BASIC => {}
            _ => return Err(bad(CmdStatus::Unsupported, Syndrome::CmdAttribute)),
        }
        let strides = LOG_RQ_STRIDE.0..=LOG_RQ_STRIDE.1;
        let entries = 1u64 << request.log_size.min(63);
        if !strides.contains(&request.log_stride)
            || entries > config::MAX_WR.into()
            || u64::from(request.limit.get()) > entries
        {
            return Err(SIZE);
        }
        let (number, slot) = (request.uar.get(), request.slot.get());
        let uar = self.shared.uars.get(number).ok_or(NO_OBJECT)?;
        if !uar.qp_slot_free(slot) {
            return Err(IN_USE);
        }
        let area = uar.base;
        let context_slot = self.shared.tables.slot(mem, Table::Srqc, srqn)?;
        let ring = Ring::new(mem, &request.ring, request.log_size, request.log_stride)?;
        let life = self.shared.created.next_srq();
        let mut srq = Box::new(Srq {
            srqn,
            pdn: request.pdn.get(),
            uar: number,
            area,
            slot,
            ring,
            ci: 0,
            limit: request.limit.get(),
            users: 0,
            cq: if xrcdn == 0 {
                None
            } else {
                self.shared.cqs.hold(cqn)
            },
            xrcdn,
            life,
            faulty: false,
            error: None,
            waiting: WaitingQps::default(),
            context_slot,
        });
        srq.consume(mem, 0);
        srq.watch_receives(mem, false);
        srq.publish(mem);
        self.shared.srqs.put(srqn, srq);
        if let Some(uar) = self.shared.uars.get_mut(number) {
            uar.set_qp_slot(slot, Some(Owner::Srq(srqn)));
        }
        Ok(())
    }

    pub(super) fn destroy_srq<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &DestroySrq,
    ) -> Result<Quiesced, CmdError> {
        let srqn = request.id.get();
        let mut srq = self.shared.srqs.take_unused(srqn)?;
        srq.context_slot.publish(mem, &SrqContext::default());
        let kinds = [EventType::SrqErr, EventType::SrqLimitReached];
        self.shared.forget_events(ASYNC_EQN, srqn, &kinds);
        if let Some(uar) = self.shared.uars.get_mut(srq.uar) {
            uar.set_qp_slot(srq.slot, None);
        }
        if let Some(cq) = srq.cq {
            self.shared.cqs.release(cq);
        }
        Ok(self.quiesced(None))
    }

    pub(super) fn modify_srq<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &ModifySrq,
    ) -> Result<(), CmdError> {
        let (srqn, limit) = (request.srqn.get(), request.limit.get());
        let srq = self.shared.srqs.get_mut(srqn).ok_or(NO_OBJECT)?;
        if limit > srq.ring.size() {
            return Err(SIZE);
        }
        if srq.error.is_some() {
            return Err(bad(CmdStatus::Invalid, Syndrome::SrqDied));
        }
        // A limit above the number of posted receives fires at once.
        let posted = srq.producer(mem).wrapping_sub(srq.ci);
        let fires = limit != 0 && posted < limit;
        srq.limit = if fires { 0 } else { limit };
        srq.publish(mem);
        if fires {
            self.shared
                .async_event(mem, EventType::SrqLimitReached, srqn, None);
        }
        Ok(())
    }

    pub(super) fn resize_srq<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &ResizeSrq,
    ) -> Result<(), CmdError> {
        let srq = self.shared.srqs.get(request.srqn.get()).ok_or(NO_OBJECT)?;
        if srq.error.is_some() {
            return Err(bad(CmdStatus::Invalid, Syndrome::SrqDied));
        }
        let entries = 1u64 << request.log_size.min(63);
        let posted = srq.producer(mem).wrapping_sub(srq.ci);
        if entries > config::MAX_WR.into() || u64::from(posted.max(srq.limit)) > entries {
            return Err(SIZE);
        }
        let stride = srq.ring.log_stride();
        let ring = Ring::new(mem, &request.ring, request.log_size, stride)?;
        if let Some(srq) = self.shared.srqs.get_mut(request.srqn.get()) {
            srq.ring = ring;
            srq.publish(mem);
        }
        Ok(())
    }

    pub(super) fn query_srq<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &QuerySrq,
    ) -> Result<(), CmdError> {
        let srq = self.shared.srqs.get_mut(request.id.get());
        srq.ok_or(NO_OBJECT)?.publish(mem);
        Ok(())
    }
}
