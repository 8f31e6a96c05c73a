// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Fault injection by command: a fault is stored in the object that it is for.

use super::*;
use verbena_abi::cqe::WcStatus;

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
        match kind {
            // A flush follows an earlier failure and is not a failure of its own.
            FaultKind::Send if status == WcStatus::WrFlushErr => return Err(ATTRIBUTE),
            FaultKind::Send => {
                let qp = self.qps.get_mut(number).ok_or(NO_OBJECT)?;
                if qp.env.send_cq.is_none() {
                    return Err(NO_OBJECT);
                }
                qp.env.fault = Some(status);
            }
            FaultKind::Srq => {
                let srq = self.shared.srqs.get_mut(number).ok_or(NO_OBJECT)?;
                srq.faulty = true;
            }
            FaultKind::Cq => {
                let cq = self.shared.cqs.get_mut(number).ok_or(NO_OBJECT)?;
                cq.faulty = true;
            }
            FaultKind::Device if number != 0 => return Err(NUMBER),
            FaultKind::Device => self.fail(mem, Syndrome::Injected),
        }
        Ok(())
    }
}
