// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fault injection by command: each fault is a rule of the device.

use super::*;
use crate::observation::event::{DeviceEvent, FiredOn};
use verbena_abi::cqe::WcStatus;
use verbena_faults::{InjectedFault, Rule, RuleHook};

impl Device {
    pub(super) fn inject_fault<M: GuestMemory>(
        &mut self,
        mem: &M,
        request: &InjectFault,
    ) -> Result<(), CmdError> {
        let kind = FaultKind::from_raw(request.kind).ok_or(ATTRIBUTE)?;
        let status = WcStatus::from_raw(request.status).ok_or(ATTRIBUTE)?;
        let number = request.number.get();
        if (kind == FaultKind::Send) == (status == WcStatus::Success) {
            return Err(ATTRIBUTE);
        }
        let what = match kind {
            // A flush follows an earlier failure and is not a failure of its own.
            FaultKind::Send if status == WcStatus::WrFlushErr => return Err(ATTRIBUTE),
            FaultKind::Send => {
                let qp = self.qps.get(number).ok_or(NO_OBJECT)?;
                if qp.env.send_cq.is_none() {
                    return Err(NO_OBJECT);
                }
                InjectedFault::Send(number, status)
            }
            FaultKind::Srq => {
                self.shared.srqs.get(number).ok_or(NO_OBJECT)?;
                InjectedFault::Srq(number)
            }
            FaultKind::Cq => {
                self.shared.cqs.get(number).ok_or(NO_OBJECT)?;
                InjectedFault::Cq(number)
            }
            FaultKind::Device if number != 0 => return Err(NUMBER),
            FaultKind::Device => InjectedFault::Device,
        };
        let (rule, now) = (Rule::injected(what), self.shared.clock.now());
        let faults = self.shared.faults.get_or_insert_default();
        let (added, effect) = faults.table.inject(&rule, now);
        if !added {
            return Err(bad(CmdStatus::NoResources, Syndrome::Injected));
        }
        self.shared.report(DeviceEvent::RulesAdded {
            rules: &[rule],
            late: false,
        });
        if let Some(effect) = effect {
            self.shared.report(DeviceEvent::RuleFired(FiredOn::other(
                RuleHook::Time,
                0,
                None,
            )));
            self.apply_effect(mem, None, &effect);
        }
        Ok(())
    }
}
