// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The requester's timers, and going back to what was not acknowledged.

use super::Requester;
use crate::host::{Host, Syndrome, WcStatus};
use crate::psn;
use crate::qp::timers::ack_timeout_ns;
use crate::qp::{Budget, Core};

/// How long an answer is waited for before any was timed.
const UNKNOWN_TRIP_NS: u64 = 1_000_000;

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

/// What is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// The oldest packet, to hear where to go on; `told`: of a gap that the peer has told of.
    Oldest { told: bool },
    /// All.
    All,
}

impl Requester {
    /// Starts the ACK timer if something is outstanding; on progress, anew.
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

    /// How long an answer is waited for before it is asked for again.
    fn patience(&self, core: &Core) -> u64 {
        let least = core.config.min_timeout_ns;
        self.path.as_ref().map_or(least, |path| {
            path.patience(least.min(UNKNOWN_TRIP_NS), core.config.min_probe_ns)
        })
    }

    /// A READ response came that is of no use: what was asked for again comes behind it.
    pub(super) fn defer_probe(&mut self, core: &Core, now: u64) {
        if let (Wait::Acknowledgement { expires, .. }, Some(_)) = (self.waits, &self.path) {
            self.waits = await_ack(core, now, expires, self.patience(core));
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
    /// ACK timeout. So before it expires, the oldest packet is sent again at growing distances: its answer tells where to go on.
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

    /// The PSN at the cursor: one after what was sent last, of a READ after the responses that were asked for.
    pub(super) fn next_to_send(&self) -> u32 {
        let (mut index, mut packets) = (self.cursor, self.cursor_packets);
        while let Some(slot) = self.slots.get(index).filter(|slot| slot.started) {
            // What sends nothing has no PSN.
            if slot.psns > 0 {
                return psn::add(slot.first_psn, packets);
            }
            (index, packets) = (index.wrapping_add(1), 0);
        }
        self.next_psn
    }

    /// Sends again what is due alone: the oldest packet, or a few. What else is to be sent goes on where it was.
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
            // What was not sent follows in its turn.
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

    /// Whether all that is not acknowledged is about to be sent again anyway: then it costs no retry to ask for it.
    pub(super) fn is_rewound(&self) -> bool {
        self.rewound
            || self.path.as_ref().is_some_and(|path| path.due() > 0)
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
