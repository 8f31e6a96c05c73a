// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The requester's timers, and going back to packets that are not acknowledged.

use super::Requester;
use crate::host::{Host, Syndrome, WcStatus};
use crate::psn;
use crate::qp::timers::ack_timeout_ns;
use crate::qp::{Budget, Core};

/// Timeout in nanoseconds before the first round trip is measured.
const UNKNOWN_TRIP_NS: u64 = 1_000_000;

/// The event that the requester waits for before a retransmission; times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    /// Nothing is outstanding, or no timer runs: a retransmission is about to be sent, or there is
    /// no timeout.
    Nothing,
    /// The peer has to acknowledge packets.
    Acknowledgement {
        /// Time when the ACK timer expires; the retransmission then counts as a retry.
        expires: u64,
        /// Time of the next probe before that, if any; a probe does not count as a retry.
        probe: Option<u64>,
        /// Delay before that probe; the next one waits twice as long.
        delay: u64,
    },
    /// The peer has no receive: an RNR NAK arrived, and nothing is sent until its timer expires.
    Receive {
        /// Time when the RNR NAK timer expires.
        until: u64,
    },
}

/// The packets to retransmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// The oldest packet, whose answer shows where to go on. `told` is true if the peer has
    /// reported a gap.
    Oldest { told: bool },
    /// Everything that is not acknowledged.
    All,
}

impl Requester {
    /// Starts the ACK timer if something is outstanding, and restarts it after progress.
    pub(super) fn arm(&mut self, core: &Core, now: u64, progress: bool) {
        if self.sent_psn == self.una_psn {
            self.disarm();
        } else if matches!(self.waits, Wait::Nothing) || progress && !self.awaits_receive() {
            let least = core.config.min_timeout_ns;
            let delay = self.patience(core);
            self.waits = match ack_timeout_ns(core.attr.timeout) {
                Some(timeout) => {
                    await_ack(core, now, now.saturating_add(timeout.max(least)), delay)
                }
                None => Wait::Nothing,
            };
        }
    }

    /// Returns the time in nanoseconds to wait for an answer before a probe.
    fn patience(&self, core: &Core) -> u64 {
        let least = core.config.min_timeout_ns;
        self.path.as_ref().map_or(least, |path| {
            path.patience(least.min(UNKNOWN_TRIP_NS), core.config.min_probe_ns)
        })
    }

    /// Defers the probe after a READ response without progress: the requested responses follow it.
    pub(super) fn defer_probe(&mut self, core: &Core, now: u64) {
        if let (Wait::Acknowledgement { expires, .. }, Some(_)) = (self.waits, &self.path) {
            self.waits = await_ack(core, now, expires, self.patience(core));
        }
    }

    /// Stops the ACK timer. An RNR NAK timer runs on.
    pub(super) fn disarm(&mut self) {
        if !self.awaits_receive() {
            self.waits = Wait::Nothing;
        }
    }

    /// True if an RNR NAK arrived and its timer has not expired.
    pub(super) fn awaits_receive(&self) -> bool {
        matches!(self.waits, Wait::Receive { .. })
    }

    /// Retransmits the oldest packet before the ACK timer expires, with growing delays; its answer
    /// shows where to go on. A responder reports each gap once, so the loss of a NAK or of a
    /// retransmission would otherwise cost the whole ACK timeout.
    pub(super) fn probe(&mut self, core: &mut Core, now: u64) {
        core.counters.probes += 1;
        if let Some(path) = &mut self.path {
            path.probes();
        }
        let waits = self.waits;
        self.go_back(Back::Oldest { told: false });
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
        back: Back,
    ) -> Result<(), Syndrome> {
        if self.retry_left == 0 {
            return Err(self.fail_oldest(core, host, WcStatus::RetryExcErr, cause));
        }
        self.retry_left -= 1;
        self.go_back(back);
        Ok(())
    }

    fn go_back(&mut self, back: Back) {
        let told = match back {
            Back::Oldest { told } => {
                if self.path.as_mut().is_some_and(|path| path.ask_alone(told)) {
                    return;
                }
                told
            }
            Back::All => false,
        };
        self.rewind();
        if let Some(path) = &mut self.path {
            path.went_back(told);
        }
    }

    /// Returns the PSN at the cursor: one after the last sent packet; for a READ, after the
    /// responses that were requested.
    pub(super) fn next_to_send(&self) -> u32 {
        let (mut index, mut packets) = (self.cursor, self.cursor_packets);
        while let Some(slot) = self.slots.get(index).filter(|slot| slot.started) {
            // A work request without packets has no PSN.
            if slot.psns > 0 {
                return psn::add(slot.first_psn, packets);
            }
            (index, packets) = (index.wrapping_add(1), 0);
        }
        self.next_psn
    }

    /// Retransmits the packets that are due alone: the oldest, or a few. Other packets then
    /// continue where they were.
    pub(super) fn send_alone<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        budget: &mut Budget,
    ) -> Result<(), Syndrome> {
        let due = self.path.as_ref().map_or(0, |path| path.due());
        if due == 0 || self.sent_psn == self.una_psn {
            return Ok(());
        }
        let (cursor, packets) = (self.cursor, self.cursor_packets);
        let oldest = self.slots.oldest();
        self.cursor = oldest;
        self.cursor_packets = self.acknowledged_of_oldest();
        let end = (cursor.wrapping_sub(oldest), packets);
        for count in 1..=due {
            // Packets that were not sent before follow in their turn.
            if (self.cursor.wrapping_sub(oldest), self.cursor_packets) >= end {
                break;
            }
            let Some(mut packet) = self.next_packet(core, host, 1, budget)? else {
                break;
            };
            let end = self.next_to_send();
            if let Some(path) = &mut self.path {
                path.sends_alone(&mut packet, end, count);
            }
            budget.spend(packet.payload.len());
            core.transmit(host, packet);
        }
        if let Some(path) = &mut self.path {
            path.sent_alone();
        }
        if (self.cursor.wrapping_sub(oldest), self.cursor_packets) < end {
            (self.cursor, self.cursor_packets) = (cursor, packets);
        }
        Ok(())
    }

    /// Moves the cursor to the oldest PSN that is not acknowledged.
    pub(super) fn rewind(&mut self) {
        self.disarm();
        self.rewound = true;
        if let Some(path) = &mut self.path {
            path.went_back(false);
        }
        self.cursor = self.slots.oldest();
        self.cursor_packets = self.acknowledged_of_oldest();
    }

    /// True if everything unacknowledged is about to be retransmitted anyway, so that a request for
    /// it costs no retry.
    pub(super) fn is_rewound(&self) -> bool {
        self.rewound
            || self.path.as_ref().is_some_and(|path| path.due() > 0)
            || self.cursor == self.slots.oldest()
                && self.cursor_packets == self.acknowledged_of_oldest()
    }

    /// Skips packets that were acknowledged after the cursor went back, so that they are not sent
    /// again.
    pub(super) fn skip_acknowledged(&mut self) {
        if self.cursor == self.slots.oldest() {
            self.cursor_packets = self.cursor_packets.max(self.acknowledged_of_oldest());
        }
    }

    /// Returns the number of acknowledged packets of the oldest work request; for a READ, of
    /// responses that have arrived.
    fn acknowledged_of_oldest(&self) -> u32 {
        match self.slots.front() {
            Some(slot) if slot.started && slot.awaits_response() => slot.progress,
            Some(slot) if slot.started => psn::ahead(self.una_psn, slot.first_psn).min(slot.psns),
            _ => 0,
        }
    }
}

/// Returns the wait for an acknowledgement, with the next probe if it is due before the ACK timer
/// expires. Local peers need no probe, because no packet is lost between them.
fn await_ack(core: &Core, now: u64, expires: u64, delay: u64) -> Wait {
    let probe = now.saturating_add(delay);
    Wait::Acknowledgement {
        expires,
        probe: (probe < expires && !core.attr.local_peer).then_some(probe),
        delay,
    }
}
