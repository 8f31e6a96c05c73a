// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The requester's timers, and going back to what was not acknowledged.

use super::Requester;
use crate::host::{Host, Syndrome, WcStatus};
use crate::psn;
use crate::qp::timers::ack_timeout_ns;
use crate::qp::Core;

/// What the requester waits for before it sends again what is not acknowledged, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    /// Nothing is outstanding, or the timer does not run: what went back is about to be sent, or there is no timeout.
    Nothing,
    /// An acknowledgement.
    Acknowledgement {
        /// The ACK timer: then it counts as a retry.
        expires: u64,
        /// Before that everything is sent again at this time, which does not count.
        probe: Option<u64>,
        /// The time from then to the next such attempt.
        delay: u64,
    },
    /// The peer has no receive: an RNR NAK came, and nothing is sent before this time.
    Receive {
        /// When the RNR NAK timer expires.
        until: u64,
    },
}

impl Requester {
    /// Starts the ACK timer if something is outstanding; on progress, anew.
    pub(super) fn arm(&mut self, core: &Core, now: u64, progress: bool) {
        if self.sent_psn == self.una_psn {
            self.disarm();
        } else if matches!(self.waits, Wait::Nothing) || progress && !self.awaits_receive() {
            let least = core.config.min_timeout_ns;
            self.waits = match ack_timeout_ns(core.attr.timeout) {
                Some(timeout) => {
                    await_ack(core, now, now.saturating_add(timeout.max(least)), least)
                }
                None => Wait::Nothing,
            };
        }
    }

    /// Stops the ACK timer. That of an RNR NAK runs on.
    pub(super) fn disarm(&mut self) {
        if !self.awaits_receive() {
            self.waits = Wait::Nothing;
        }
    }

    /// Whether an RNR NAK came and its time is not over.
    pub(super) fn awaits_receive(&self) -> bool {
        matches!(self.waits, Wait::Receive { .. })
    }

    /// A responder reports each gap once, so a NAK that is lost, or a packet that is lost again, would cost the whole
    /// ACK timeout. So before it expires, everything is sent again at growing distances.
    pub(super) fn probe(&mut self, core: &mut Core, now: u64) {
        core.counters.probes += 1;
        let waits = self.waits;
        self.rewind();
        if let Wait::Acknowledgement { expires, delay, .. } = waits {
            self.waits = await_ack(core, now, expires, delay.saturating_mul(2));
        }
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
        self.disarm();
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

/// Waits for an acknowledgement, with the next probe if it comes before the ACK timer expires. Between local peers nothing is
/// lost.
fn await_ack(core: &Core, now: u64, expires: u64, delay: u64) -> Wait {
    let probe = now.saturating_add(delay);
    Wait::Acknowledgement {
        expires,
        probe: (probe < expires && !core.attr.local_peer).then_some(probe),
        delay,
    }
}
