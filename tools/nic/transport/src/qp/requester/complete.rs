// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion of work requests: the oldest first, each once.

use super::Requester;
use crate::host::{Host, Syndrome, WcStatus, WorkCompletion, WqeError};
use crate::psn;
use crate::qp::{Budget, Core};

impl Requester {
    /// Completes the oldest work request in error. The caller moves the queue pair to ERR or SQE
    /// with the returned cause.
    pub(super) fn fail_oldest<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        status: WcStatus,
        cause: Syndrome,
    ) -> Syndrome {
        if let Some(slot) = self.slots.front() {
            slot.gather.alive.set(false);
        }
        if let Some(owed) = self.slots.pop() {
            core.complete(host, &owed.error(status, cause));
        }
        cause
    }

    /// Completes the oldest work request in success.
    pub(super) fn complete_oldest<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        let index = self.slots.oldest();
        let Some(slot) = self.slots.front() else {
            return;
        };
        slot.gather.alive.set(false);
        let (signaled, byte_len) = (slot.wqe.signaled, slot.length());
        if slot.awaits_response() {
            self.outstanding_responses = self.outstanding_responses.saturating_sub(1);
        } else if slot.takes_receive() {
            self.credit_limit.on_complete();
        }
        let Some(owed) = self.slots.pop() else {
            return;
        };
        if self.cursor == index {
            self.cursor = self.slots.oldest();
            self.cursor_packets = 0;
        }
        if signaled {
            let completion = WorkCompletion {
                byte_len,
                ..owed.success()
            };
            core.complete(host, &completion);
        } else {
            owed.unsignaled();
            core.counters.completed += 1;
        }
    }

    /// Completes work requests without packets while they are the oldest.
    pub(super) fn complete_local<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        while self
            .slots
            .front()
            .is_some_and(|slot| slot.started && slot.psns == 0 && slot.fault.is_none())
        {
            self.complete_oldest(core, host);
        }
    }

    /// Handles a packet whose memory could not be read: the work request with this PSN fails after
    /// the earlier ones are done.
    pub(crate) fn on_source_fault(&mut self, core: &Core, now: u64, psn: u32, cause: Syndrome) {
        let mut index = self.slots.oldest();
        while let Some(slot) = self.slots.get_mut(index) {
            if slot.started && psn::ahead(psn, slot.first_psn) < slot.psns {
                slot.fault = Some(WqeError::new(WcStatus::LocProtErr, cause));
                self.rewind();
                self.arm(core, now, false);
                return;
            }
            index = index.wrapping_add(1);
        }
    }

    /// Flushes all work requests that are outstanding or posted, in ERR or SQE. Returns true if
    /// some are left.
    pub(crate) fn flush<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        budget: &mut Budget,
    ) -> bool {
        while self.slots.oldest() != self.producer {
            if budget.is_spent() {
                return true;
            }
            budget.spend(0);
            let index = self.slots.oldest();
            let owed = match self.slots.pop() {
                Some(owed) => owed,
                None => {
                    let (wr_id, opcode) = host.send_wr_id(index);
                    self.slots.skip(wr_id, opcode)
                }
            };
            self.cursor = self.slots.oldest();
            let completion = owed.error(WcStatus::WrFlushErr, Syndrome::Flushed);
            core.complete(host, &completion);
        }
        false
    }
}
