// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The requester's timers, and going back to packets that are not acknowledged.

use super::Requester;
use crate::host::{Host, Syndrome, WcStatus};
use crate::psn;
use crate::qp::timers::ack_timeout_ns;
use crate::qp::{Budget, Core};

/// Timeout in nanoseconds before the first round trip is measured.
const INITIAL_TIMEOUT_NS: u64 = 1_000_000;

/// The event that the requester waits for before a retransmission; times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) enum RetryTimer {
    /// Nothing is outstanding, or no timer runs: a retransmission is about to be sent, or there is
    /// no timeout.
    Stopped,
    /// The peer has to acknowledge packets.
    Ack {
        /// Time when the ACK timer expires; the retransmission then counts as a retry.
        expires_ns: u64,
        /// Time of the next probe before that, if any; a probe does not count as a retry.
        probe_ns: Option<u64>,
        /// Delay before that probe; the next one waits twice as long.
        delay_ns: u64,
    },
    /// The peer has no receive: an RNR NAK arrived, and nothing is sent until its timer expires.
    Rnr {
        /// Time when the RNR NAK timer expires.
        until_ns: u64,
    },
}

/// The packets to retransmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoBack {
    /// The oldest packet, whose answer shows where to go on. `gap_reported` is true if the peer has
    /// reported a gap.
    Oldest { gap_reported: bool },
    /// Everything that is not acknowledged.
    All,
}

impl Requester {
    /// Starts the ACK timer if something is outstanding, and restarts it after progress.
    pub(super) fn arm(&mut self, core: &Core, now: u64, progress: bool) {
        if self.sent_psn == self.una_psn {
            self.disarm();
        } else if matches!(self.timer, RetryTimer::Stopped) || progress && !self.is_rnr_waiting() {
            let least = core.config.min_timeout_ns;
            let delay_ns = self.retransmission_timeout_ns(core);
            self.timer = match ack_timeout_ns(core.attr.timeout) {
                Some(timeout) => {
                    ack_timer(core, now, now.saturating_add(timeout.max(least)), delay_ns)
                }
                None => RetryTimer::Stopped,
            };
        }
    }

    /// Returns the time in nanoseconds to wait for an answer before a probe.
    fn retransmission_timeout_ns(&self, core: &Core) -> u64 {
        let least = core.config.min_timeout_ns;
        self.path_state.as_ref().map_or(least, |path| {
            path.retransmission_timeout_ns(least.min(INITIAL_TIMEOUT_NS), core.config.min_probe_ns)
        })
    }

    /// Defers the probe after a READ response without progress: the requested responses follow it.
    pub(super) fn defer_probe(&mut self, core: &Core, now: u64) {
        if let (RetryTimer::Ack { expires_ns, .. }, Some(_)) = (self.timer, &self.path_state) {
            self.timer = ack_timer(core, now, expires_ns, self.retransmission_timeout_ns(core));
        }
    }

    /// Stops the ACK timer. An RNR NAK timer runs on.
    pub(super) fn disarm(&mut self) {
        if !self.is_rnr_waiting() {
            self.timer = RetryTimer::Stopped;
        }
    }

    /// True if an RNR NAK arrived and its timer has not expired.
    pub(super) fn is_rnr_waiting(&self) -> bool {
        matches!(self.timer, RetryTimer::Rnr { .. })
    }

    /// Retransmits the oldest packet before the ACK timer expires, with growing delays; its answer
    /// shows where to go on. A responder reports each gap once, so the loss of a NAK or of a
    /// retransmission would otherwise cost the whole ACK timeout.
    pub(super) fn probe(&mut self, core: &mut Core, now: u64) {
        core.counters.probes += 1;
        if let Some(path) = &mut self.path_state {
            path.on_probe();
        }
        let waits = self.timer;
        self.go_back(GoBack::Oldest {
            gap_reported: false,
        });
        if let RetryTimer::Ack {
            expires_ns,
            delay_ns,
            ..
        } = waits
        {
            self.timer = ack_timer(core, now, expires_ns, delay_ns.saturating_mul(2));
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
        back: GoBack,
    ) -> Result<(), Syndrome> {
        if self.retry_left == 0 {
            return Err(self.fail_oldest(core, host, WcStatus::RetryExcErr, cause));
        }
        self.retry_left -= 1;
        self.go_back(back);
        Ok(())
    }

    fn go_back(&mut self, back: GoBack) {
        let gap_reported = match back {
            GoBack::Oldest { gap_reported } => {
                if self
                    .path_state
                    .as_mut()
                    .is_some_and(|path| path.request_retransmit(gap_reported))
                {
                    return;
                }
                gap_reported
            }
            GoBack::All => false,
        };
        self.rewind();
        if let Some(path) = &mut self.path_state {
            path.on_go_back(gap_reported);
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
    pub(super) fn send_retransmits<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        budget: &mut Budget,
    ) -> Result<(), Syndrome> {
        let due = self
            .path_state
            .as_ref()
            .map_or(0, |path| path.pending_packets());
        if due == 0 || self.sent_psn == self.una_psn {
            return Ok(());
        }
        let (cursor, packets) = (self.cursor, self.cursor_packets);
        let oldest = self.slots.oldest();
        self.cursor = oldest;
        self.cursor_packets = self.oldest_progress();
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
            if let Some(path) = &mut self.path_state {
                path.on_retransmit(&mut packet, end, count);
            }
            budget.spend(packet.payload.len());
            core.transmit(host, packet);
        }
        if let Some(path) = &mut self.path_state {
            path.clear_pending();
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
        if let Some(path) = &mut self.path_state {
            path.on_go_back(false);
        }
        self.cursor = self.slots.oldest();
        self.cursor_packets = self.oldest_progress();
    }

    /// True if everything unacknowledged is about to be retransmitted anyway, so that a request for
    /// it costs no retry.
    pub(super) fn is_rewound(&self) -> bool {
        self.rewound
            || self
                .path_state
                .as_ref()
                .is_some_and(|path| path.pending_packets() > 0)
            || self.cursor == self.slots.oldest() && self.cursor_packets == self.oldest_progress()
    }

    /// Skips packets that were acknowledged after the cursor went back, so that they are not sent
    /// again.
    pub(super) fn skip_acknowledged(&mut self) {
        if self.cursor == self.slots.oldest() {
            self.cursor_packets = self.cursor_packets.max(self.oldest_progress());
        }
    }

    /// Returns the number of acknowledged packets of the oldest work request; for a READ, of
    /// responses that have arrived.
    fn oldest_progress(&self) -> u32 {
        match self.slots.front() {
            Some(slot) if slot.started && slot.awaits_response() => slot.progress,
            Some(slot) if slot.started => psn::ahead(self.una_psn, slot.first_psn).min(slot.psns),
            _ => 0,
        }
    }
}

/// Returns the wait for an acknowledgement, with the next probe if it is due before the ACK timer
/// expires. Local peers need no probe, because no packet is lost between them.
fn ack_timer(core: &Core, now: u64, expires_ns: u64, delay_ns: u64) -> RetryTimer {
    let probe_ns = now.saturating_add(delay_ns);
    RetryTimer::Ack {
        expires_ns,
        probe_ns: (probe_ns < expires_ns && !core.attr.local_peer).then_some(probe_ns),
        delay_ns,
    }
}
