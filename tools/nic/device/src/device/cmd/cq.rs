// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands that create, modify, resize, query and destroy CQs.

use super::*;
use crate::config;
use crate::memory::ring::Ring;
use crate::memory::Area;
use crate::objects::cq::Cq;
use verbena_abi::doorbell::{self, Words};
use verbena_abi::eqe::EventType;

/// Logarithm of the size of a CQE in bytes.
const LOG_CQE: u8 = 6;

fn check_size(log_size: u8) -> Result<(), CmdError> {
    if 1u64 << log_size.min(63) > config::MAX_CQE.into() {
        return Err(SIZE);
    }
    Ok(())
}

impl Device {
    pub(super) fn create_cq<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &CreateCq,
    ) -> Result<(), CmdError> {
        let (cqn, eqn) = (request.cqn.get(), request.eqn.get());
        if !self.shared.cqs.in_range(cqn) {
            return Err(NUMBER);
        }
        if self.shared.cqs.get(cqn).is_some() {
            return Err(IN_USE);
        }
        check_size(request.log_size)?;
        if request.flags.get() & !cq_flags::IGNORE_OVERRUN != 0 {
            return Err(ATTRIBUTE);
        }
        self.shared.eqs.get(eqn).ok_or(NO_OBJECT)?;
        let (number, slot) = (request.uar.get(), request.slot.get());
        let uar = self.shared.uars.get(number).ok_or(NO_OBJECT)?;
        if !uar.cq_slot_free(slot) {
            return Err(IN_USE);
        }
        let place = (number, uar.base, slot);
        let context_slot = self.shared.tables.slot(mem, Table::Cqc, cqn)?;
        let ring = Ring::new(mem, &request.ring, request.log_size, LOG_CQE)?;
        let eq = self.shared.eqs.hold(eqn).ok_or(NO_OBJECT)?;
        let mut cq = Box::new(Cq::new(cqn, eq, place, ring, context_slot));
        cq.moderation_count = request.moderation_count.get();
        cq.moderation_period = request.moderation_period.get();
        cq.ignore_overrun = request.flags.get() & cq_flags::IGNORE_OVERRUN != 0;
        Area::new(mem, place.1).store_release(doorbell::cq_served(slot.into()), 0);
        cq.publish(mem);
        self.shared.cqs.put(cqn, cq);
        if let Some(uar) = self.shared.uars.get_mut(number) {
            uar.set_cq_slot(slot, Some(cqn));
        }
        Ok(())
    }

    pub(super) fn destroy_cq<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &DestroyCq,
    ) -> Result<Quiesced, CmdError> {
        let cqn = request.id.get();
        let mut cq = self.shared.cqs.take_unused(cqn)?;
        self.shared.cqs.cancel_deadline(cqn);
        cq.publish_free(mem);
        self.shared
            .forget_events(ASYNC_EQN, cqn, &[EventType::CqErr]);
        let eqn = cq.eq.number();
        self.shared
            .forget_events(eqn, cqn, &[EventType::Completion]);
        self.shared.eqs.release(cq.eq);
        if let Some(uar) = self.shared.uars.get_mut(cq.uar) {
            uar.set_cq_slot(cq.slot, None);
        }
        Ok(self.quiesced(Some(eqn)))
    }

    pub(super) fn modify_cq<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &ModifyCq,
    ) -> Result<(), CmdError> {
        let cqn = request.cqn.get();
        let cq = self.shared.cqs.get_mut(cqn).ok_or(NO_OBJECT)?;
        cq.moderation_count = request.moderation_count.get();
        cq.moderation_period = request.moderation_period.get();
        cq.publish(mem);
        // The new terms decide about an event that the old ones have held back.
        self.shared.notify(mem, cqn);
        Ok(())
    }

    pub(super) fn query_cq<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &QueryCq,
    ) -> Result<(), CmdError> {
        let cq = self.shared.cqs.get_mut(request.id.get());
        cq.ok_or(NO_OBJECT)?.publish(mem);
        Ok(())
    }

    pub(super) fn resize_cq<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &ResizeCq,
    ) -> Result<Step, CmdError> {
        check_size(request.log_size)?;
        let cqn = request.cqn.get();
        let cq = self.shared.cqs.get(cqn).ok_or(NO_OBJECT)?;
        let ring = Ring::new(mem, &request.ring, request.log_size, LOG_CQE)?;
        Ok(Step::Begun(Long::Resize(cqn, cq.begin_moving(mem, ring))))
    }
}
