// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The requester's timers, and going back to what was not acknowledged.

use super::Requester;
use crate::host::{Host, Syndrome, WcStatus};
use crate::psn;
use crate::qp::timers::ack_timeout_ns;
use crate::qp::Core;

impl Requester {
    /// Starts the ACK timer if something is outstanding; on progress, anew.
    pub(super) fn arm(&mut self, core: &Core, now: u64, progress: bool) {
        if self.sent_psn == self.una_psn {
            self.ack_deadline = None;
            self.probe_at = None;
        } else if (progress || self.ack_deadline.is_none()) && self.rnr_until.is_none() {
            let least = core.config.min_timeout_ns;
            self.ack_deadline = ack_timeout_ns(core.attr.timeout)
                .map(|timeout| now.saturating_add(timeout.max(least)));
            self.probe_delay = least;
            self.plan_probe(core, now);
        }
    }

    /// The next probe, if it comes before the ACK timer expires. Between local peers nothing is lost.
    fn plan_probe(&mut self, core: &Core, now: u64) {
        let at = now.saturating_add(self.probe_delay);
        let in_time = self.ack_deadline.is_some_and(|deadline| at < deadline);
        self.probe_at = (in_time && !core.attr.local_peer).then_some(at);
    }

    /// A responder reports each gap once, so a NAK that is lost, or a packet that is lost again, would cost the whole
    /// ACK timeout. So before it expires, everything is sent again at growing distances.
    pub(super) fn probe(&mut self, core: &mut Core, now: u64) {
        core.counters.probes += 1;
        let deadline = self.ack_deadline;
        self.rewind();
        self.ack_deadline = deadline;
        self.probe_delay = self.probe_delay.saturating_mul(2);
        self.plan_probe(core, now);
    }

    pub(super) fn reload_retries(&mut self, core: &Core) {
        self.retry_left = core.attr.retry_cnt;
        self.rnr_left = core.attr.rnr_retry;
    }

    /// Goes back to the oldest PSN that is not acknowledged, unless no retry is left.
    pub(super) fn retry<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        cause: Syndrome,
    ) -> Result<(), Syndrome> {
        if self.retry_left == 0 {
            return Err(self.fail_oldest(core, host, WcStatus::RetryExcErr, cause));
        }
        self.retry_left -= 1;
        self.rewind();
        Ok(())
    }

    /// Moves the cursor to the oldest PSN that is not acknowledged.
    pub(super) fn rewind(&mut self) {
        self.ack_deadline = None;
        self.probe_at = None;
        self.rewound = true;
        self.cursor = self.slots.oldest();
        self.cursor_packets = self.acknowledged_of_oldest();
    }

    /// Whether all that is not acknowledged is about to be sent again anyway: then it costs no retry to ask for it.
    pub(super) fn is_rewound(&self) -> bool {
        self.rewound
            || self.cursor == self.slots.oldest()
                && self.cursor_packets == self.acknowledged_of_oldest()
    }

    /// An acknowledgement overtook a cursor that had gone back: what it covers is not sent again.
    pub(super) fn skip_acknowledged(&mut self) {
        if self.cursor == self.slots.oldest() {
            self.cursor_packets = self.cursor_packets.max(self.acknowledged_of_oldest());
        }
    }

    /// Packets of the oldest work request that are acknowledged; of a READ, the responses that have come.
    fn acknowledged_of_oldest(&self) -> u32 {
        match self.slots.front() {
            Some(slot) if slot.started && slot.awaits_response() => slot.progress,
            Some(slot) if slot.started => psn::ahead(self.una_psn, slot.first_psn).min(slot.psns),
            _ => 0,
        }
    }
}
