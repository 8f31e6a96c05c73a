// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Effects of rules that use the error paths of the device: a QP, CQ, SRQ or the device fails, the
//! port goes down, a QP or the device stalls.

use crate::device::Device;
use crate::memory::GuestMemory;
use crate::observation::event::DeviceEvent;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{Effect, QpQueue};

impl Device {
    /// True if a rule has taken the port down.
    pub(super) fn is_port_cut(&self) -> bool {
        self.shared
            .faults
            .as_ref()
            .is_some_and(|faults| faults.is_port_cut())
    }

    /// Returns the time until which a rule makes the whole device idle, if a rule does so now.
    #[inline]
    pub(super) fn stalled_until(&mut self) -> Option<u64> {
        let now = self.shared.clock.now();
        self.shared.faults.as_mut()?.stalled_until(now)
    }

    /// True if a rule makes a QP idle.
    #[inline]
    pub(super) fn is_stalled(&self, qpn: u32) -> bool {
        let Some(faults) = &self.shared.faults else {
            return false;
        };
        let qp = self.qps.get(qpn);
        qp.is_some_and(|qp| faults.stall_of(&qp.env).is_some())
    }

    /// Returns the QP that the effect of a timed rule is for.
    #[cold]
    pub(super) fn qp_of_effect(&self, effect: &Effect) -> Option<u32> {
        let target = match effect {
            Effect::QpError(target)
            | Effect::CqOverflow(_, target)
            | Effect::KillSrq(target)
            | Effect::Stall(_, _, target) => target,
            _ => return None,
        };
        let is_target = |qpn: &u32| {
            let owner = self.qps.get(*qpn).map(|qp| qp.env.owner);
            owner.is_some() && owner == target.created
        };
        let by_order = || (0..self.qps.len()).find(is_target);
        target.qp.or_else(by_order)
    }

    /// Applies an effect. Nothing happens to a CQ or SRQ that the QP does not have.
    #[cold]
    pub(super) fn apply_effect<M: GuestMemory>(
        &mut self,
        mem: &M,
        qpn: Option<u32>,
        effect: &Effect,
    ) {
        let now = self.shared.clock.now();
        let env = qpn.and_then(|qpn| self.qps.get(qpn)).map(|qp| &qp.env);
        match (effect, env, &mut self.shared.faults) {
            (Effect::Fatal, ..) => self.fail(mem, Syndrome::Injected),
            (Effect::QpError(_), Some(env), _) => {
                let qpn = env.qpn();
                self.fail_qp(mem, qpn, Syndrome::Injected);
            }
            (Effect::CqOverflow(queue, _), Some(env), _) => {
                let cq = match queue {
                    QpQueue::Send => &env.send_cq,
                    QpQueue::Recv => &env.recv_cq,
                };
                let number = cq.as_ref().map(|cq| cq.number());
                let cq = number.and_then(|cqn| self.shared.cqs.get_mut(cqn));
                cq.into_iter().for_each(|cq| cq.full = true);
            }
            (Effect::KillSrq(_), Some(env), _) => {
                let srq = env.srqn();
                let srq = srq.and_then(|srqn| self.shared.srqs.get_mut(srqn));
                srq.into_iter().for_each(|srq| srq.faulty = true);
            }
            (Effect::SrqFault(number), ..) => {
                let srq = self.shared.srqs.get_mut(*number);
                srq.into_iter().for_each(|srq| srq.faulty = true);
            }
            (Effect::CqFault(number), ..) => {
                let cq = self.shared.cqs.get_mut(*number);
                cq.into_iter().for_each(|cq| cq.faulty = true);
            }
            (Effect::Stall(ns, rule, _), Some(env), Some(faults)) => {
                faults.stall(now, *ns, *rule, env);
            }
            (Effect::StallDevice(ns, rule), _, Some(faults)) => {
                faults.stall_device(now, *ns, *rule)
            }
            (Effect::PortDown(ns, rule), _, Some(faults)) => {
                if faults.cut_port(now, *ns, *rule) && self.shared.port.up {
                    self.shared.report(DeviceEvent::PortDown);
                }
            }
            (Effect::PortUp, _, Some(faults)) => faults.end_port_cut(),
            (Effect::Misbehave(kind, number, rule), ..) => self.misbehave(kind, *number, *rule),
            _ => {}
        }
    }
}
