// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands that create and destroy event queues.

use super::*;
use crate::config;
use crate::memory::ring::Ring;
use crate::objects::eq::Eq;
use verbena_abi::ctx::EqContext;
use verbena_abi::eqe::LOG_EQE_SIZE;
use verbena_abi::regs::NUM_VECTORS;

impl Device {
    pub(super) fn create_eq<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &CreateEq,
    ) -> Result<(), CmdError> {
        let (eqn, vector) = (request.eqn.get(), request.vector.get());
        if !self.shared.eqs.in_range(eqn) || u32::from(vector) >= NUM_VECTORS {
            return Err(NUMBER);
        }
        // The first EQ has to be the one to which all errors are reported.
        if eqn != ASYNC_EQN && self.shared.eqs.get(ASYNC_EQN).is_none() {
            return Err(NO_OBJECT);
        }
        if self.shared.eqs.get(eqn).is_some() {
            return Err(IN_USE);
        }
        if EqKind::from_raw(request.kind) != Some(EqKind::Event) {
            return Err(bad(CmdStatus::Unsupported, Syndrome::CmdAttribute));
        }
        if request.log_entry_size != LOG_EQE_SIZE {
            return Err(SIZE);
        }
        if request.log_size == 0 || 1u64 << request.log_size.min(63) > config::MAX_EQE.into() {
            return Err(SIZE);
        }
        let ci_addr = request.ci_addr.get();
        if ci_addr % 4 != 0 {
            return Err(bad(CmdStatus::Invalid, Syndrome::CmdTranslation));
        }
        if !mem.contains(ci_addr, 4) {
            return Err(bad(CmdStatus::BadAddress, Syndrome::CmdTranslation));
        }
        let slot = self.shared.tables.slot(mem, Table::Eqc, eqn)?;
        let ring = Ring::new(mem, &request.ring, request.log_size, LOG_EQE_SIZE)?;
        let mut eq = Box::new(Eq::new(eqn, vector, ring, ci_addr, slot));
        let context = eq.context();
        eq.slot.publish(mem, &context);
        self.shared.eqs.put(eqn, eq);
        Ok(())
    }

    pub(super) fn destroy_eq<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &DestroyEq,
    ) -> Result<(), CmdError> {
        let eqn = request.id.get();
        let eq = self.shared.eqs.get(eqn).ok_or(NO_OBJECT)?;
        let others = self.shared.eqs.count() > 1;
        let objects = self.qps.count() + self.shared.cqs.count() + self.shared.srqs.count();
        if eq.is_used() || (eqn == ASYNC_EQN && (others || objects != 0)) {
            return Err(BUSY);
        }
        if let Some(mut eq) = self.shared.eqs.take(eqn) {
            eq.slot.publish(mem, &EqContext::default());
        }
        Ok(())
    }
}
