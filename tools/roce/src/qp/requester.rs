// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The requester, a queue pair's send queue: work requests become packets, and complete by what comes back.
//!
//! Work requests are numbered by their free-running WQE index. Those from `oldest` to `next` have been decoded into
//! slots; those before `cursor` have been sent. A work request gets its range of PSNs when it starts; going back
//! (`rewind`) moves the cursor to the oldest PSN that is not acknowledged and sends the same PSNs again.
//!
//! Behind a wire a READ is asked for in parts of at most half a window, each with a request, a place among `max_rd_atomic`
//! and an MSN of its own. All of its PSNs are its own from its start on, so the parts lie side by side: the request for a part
//! has the PSN of its first response.
//!
//! | file | role |
//! | --- | --- |
//! | this one | what a requester is, from RESET to RESET, and one round of sending |
//! | `slots.rs` | the ring of work requests |
//! | `fetch.rs` | a WQE becomes a work request |
//! | `sender.rs` | a work request becomes packets |
//! | `datagram.rs` | the same without a connection |
//! | `credits.rs` | which messages the peer has receives for |
//! | `retry.rs` | timers, and going back |
//! | `path.rs` | round trips, and what becomes of what is sent again |
//! | `congestion.rs` | how much may be under way |
//! | `responses.rs` | what comes back from the peer |
//! | `early.rs` | responses that come ahead of one that was lost |
//! | `complete.rs` | work requests complete, in order |
//!
//! A fault of the work request itself (a bad key, say) stops the cursor at it. It is completed in error once all before
//! it are done, so completions keep their order; nothing after it is sent.

mod complete;
mod congestion;
mod credits;
mod datagram;
mod early;
mod fetch;
mod path;
mod prefetch;
mod responses;
mod retry;
mod sender;
mod slots;

use super::store::Store;
use super::{Attr, Budget, Core, QpState};
use crate::host::{EventType, Host, Syndrome};
use crate::packet::{Packet, Transport};
use crate::psn;
use alloc::boxed::Box;
use core::mem;
use credits::Limit;
use path::Path;
use retry::{Back, Wait};
use slots::Slots;

/// Responses that a READ request asks for at least, however full the path is: a request for each would fill it too.
const LEAST_PART: u32 = 8;

/// The requester's state.
#[derive(Debug)]
pub(crate) struct Requester {
    /// Work requests that are decoded and not complete.
    slots: Slots,
    /// Producer index as told.
    producer: u32,
    /// Index of the work request to send from.
    cursor: u32,
    /// Packets of it that have been sent in this pass.
    cursor_packets: u32,
    /// First PSN of the next work request to start.
    next_psn: u32,
    /// Oldest PSN that is not acknowledged.
    una_psn: u32,
    /// One after the highest PSN that was ever sent.
    sent_psn: u32,
    /// READs and atomics that have started and are not complete; of a READ in several parts, those asked for.
    responses_due: u32,
    /// What the peer has receives for.
    limit: Limit,
    retry_left: u8,
    rnr_left: u8,
    waits: Wait,
    /// The PSN from which lost responses were asked for again: asked once for each gap.
    implied_nak_at: Option<u32>,
    /// The cursor went back, and nothing has been sent since.
    rewound: bool,
    /// SQ_DRAINED is still to be reported.
    drain_report: bool,
    /// Behind a wire, if it recovers by itself.
    path: Option<Box<Path>>,
    /// Responses that came ahead of one that is missing.
    early: Option<Box<Store>>,
}

impl Drop for Requester {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Requester {
    pub(crate) fn new() -> Self {
        Self {
            slots: Slots::default(),
            producer: 0,
            cursor: 0,
            cursor_packets: 0,
            next_psn: 0,
            una_psn: 0,
            sent_psn: 0,
            responses_due: 0,
            limit: Limit::new(true),
            retry_left: 0,
            rnr_left: 0,
            waits: Wait::Nothing,
            implied_nak_at: None,
            rewound: false,
            drain_report: false,
            path: None,
            early: None,
        }
    }

    /// Spurious retransmissions since RESET.
    pub(crate) fn spurious_retransmits(&self) -> u64 {
        self.path.as_ref().map_or(0, |path| path.spurious())
    }

    /// To RESET: forgets everything, and counts WQEs from 0 again. Returns the spurious retransmissions that it forgets.
    pub(crate) fn reset(&mut self) -> u64 {
        let spurious = self.spurious_retransmits();
        self.abandon();
        let mut slots = mem::take(&mut self.slots);
        slots.reset();
        *self = Self::new();
        self.slots = slots;
        spurious
    }

    /// RTR to RTS.
    pub(crate) fn start(&mut self, core: &Core) {
        self.next_psn = core.attr.sq_psn;
        self.una_psn = core.attr.sq_psn;
        self.sent_psn = core.attr.sq_psn;
        self.limit = Limit::new(!core.config.credits || core.transport() != Transport::Rc);
        self.reload_retries(core);
        let recovers = core.config.recovers && core.transport().is_reliable();
        if recovers && !core.attr.local_peer {
            self.path = Some(Box::new(Path::new(&core.config, core.attr.sq_psn)));
        }
    }

    /// SQE to RTS: everything is flushed; PSNs that were given and not sent are given again.
    pub(crate) fn resume(&mut self) {
        self.cursor = self.slots.oldest();
        self.cursor_packets = 0;
        self.next_psn = self.sent_psn;
        self.una_psn = self.sent_psn;
    }

    /// RTS to SQD.
    pub(crate) fn drain(&mut self) {
        self.drain_report = true;
    }

    /// From now on no packet that is under way can read or fill a buffer of the work requests outstanding.
    pub(crate) fn abandon(&mut self) {
        let mut index = self.slots.oldest();
        while let Some(slot) = self.slots.get(index) {
            slot.gather.alive.set(false);
            index = index.wrapping_add(1);
        }
        self.waits = Wait::Nothing;
        self.early = None;
    }

    /// The attributes changed: other retry counts hold from now on, and another timeout too.
    pub(crate) fn change(&mut self, core: &Core, now: u64, old: &Attr) {
        let attr = &core.attr;
        if (attr.retry_cnt, attr.rnr_retry) != (old.retry_cnt, old.rnr_retry) {
            self.reload_retries(core);
        }
        if attr.timeout != old.timeout {
            self.disarm();
            self.arm(core, now, false);
        }
    }

    /// Takes the producer index of the send queue. An index that would take back decoded WQEs is ignored.
    pub(crate) fn set_producer(&mut self, producer: u32) {
        if producer.wrapping_sub(self.slots.oldest()) >= self.slots.len() {
            self.producer = producer;
        }
    }

    pub(crate) fn producer(&self) -> u32 {
        self.producer
    }

    pub(crate) fn next_index(&self) -> u32 {
        self.slots.next()
    }

    pub(crate) fn oldest_index(&self) -> u32 {
        self.slots.oldest()
    }

    pub(crate) fn next_psn(&self) -> u32 {
        self.next_psn
    }

    pub(crate) fn una_psn(&self) -> u32 {
        self.una_psn
    }

    pub(crate) fn retry_left(&self) -> u8 {
        self.retry_left
    }

    pub(crate) fn rnr_left(&self) -> u8 {
        self.rnr_left
    }

    /// Packets that were sent and are not acknowledged.
    pub(crate) fn in_flight(&self, core: &Core) -> u32 {
        let ahead = psn::ahead(self.sent_psn, self.una_psn);
        if core.transport().is_reliable() && ahead < psn::PSN_WINDOW {
            ahead
        } else {
            0
        }
    }

    /// Round trip, smoothed, and its mean deviation, in nanoseconds, if it was measured.
    pub(crate) fn round_trip(&self) -> Option<(u64, u64)> {
        self.path.as_ref()?.round_trip()
    }

    pub(crate) fn deadline(&self) -> Option<u64> {
        let waits = match self.waits {
            Wait::Nothing => None,
            Wait::Acknowledgement { expires, probe, .. } => probe.or(Some(expires)),
            Wait::Receive { until } => return Some(until),
        };
        let paced = self.path.as_ref().and_then(|path| path.resumes_at());
        waits.into_iter().chain(paced).min()
    }

    /// Whether every work request that has started is complete.
    pub(crate) fn is_drained(&self) -> bool {
        !self.slots.front().is_some_and(|slot| slot.started)
    }

    /// In SQD, once: the last send is done.
    pub(crate) fn report_drained<H: Host>(&mut self, core: &Core, host: &mut H) {
        if self.drain_report && core.state == QpState::Sqd && self.is_drained() {
            self.drain_report = false;
            if core.attr.sqd_notify {
                host.event(EventType::SqDrained, None);
            }
        }
    }

    /// Sends what may be sent. True: there is more to send at once.
    pub(crate) fn run<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        now: u64,
        budget: &mut Budget,
    ) -> Result<bool, Syndrome> {
        if !matches!(core.state, QpState::Rts | QpState::Sqd) {
            return Ok(false);
        }
        if let Some(path) = &mut self.path {
            path.resume();
        }
        match self.waits {
            Wait::Receive { until } if now < until => return Ok(false),
            Wait::Receive { .. } => self.waits = Wait::Nothing,
            Wait::Acknowledgement { expires, .. } if now >= expires => {
                core.counters.timeouts += 1;
                self.disarm();
                self.retry(
                    core,
                    host,
                    Syndrome::RetryExceeded,
                    Back::Oldest { told: false },
                )?;
            }
            Wait::Acknowledgement { probe, .. } if probe.is_some_and(|at| now >= at) => {
                self.probe(core, now);
            }
            _ => {}
        }
        // One packet is held back, so that the last one of this call can ask for an acknowledgement: whatever stops
        // the sending (nothing posted, the window, a fence, a fault, SQD, the budget), what was sent gets acknowledged.
        let mut held: Option<(Packet, bool)> = None;
        // Behind a wire it is asked for in each quarter of the window too, so that the window never runs empty before the
        // answer is there, and a lost one costs no timeout.
        let quarter = (self.window(core) / 4).max(1);
        let mut unasked = 0u32;
        self.send_alone(core, host, budget)?;
        let result = loop {
            if self.path.as_mut().is_some_and(|path| path.holds(now)) {
                break Ok(false);
            }
            if budget.is_spent() {
                break Ok(true);
            }
            let new = self.sent_psn;
            let is_first_again = self.rewound;
            let most = match core.attr.local_peer {
                true => core.super_packets(),
                // The last of a super-packet is the one that asks.
                false => core.super_packets().min(quarter.saturating_sub(unasked)),
            };
            match self.next_packet(core, host, most.max(1), budget) {
                Ok(Some(mut packet)) => {
                    budget.spend(packet.payload.len());
                    unasked = unasked.saturating_add(packet.psns);
                    if unasked >= quarter && !core.attr.local_peer {
                        packet.ack_req = core.transport().is_reliable();
                        unasked = 0;
                    }
                    if is_first_again {
                        // If the last one is lost for ever, what is before it completes nevertheless.
                        packet.ack_req = core.transport().is_reliable();
                    }
                    let is_new = packet.psn == new;
                    if self.path.is_some() {
                        self.note_sending(&mut packet, is_new, now);
                    }
                    if let Some((ready, _)) = held.replace((packet, is_new)) {
                        core.transmit(host, ready);
                    }
                }
                Ok(None) => break Ok(budget.is_spent()),
                Err(cause) => break Err(cause),
            }
        };
        if let Some((mut packet, is_new)) = held {
            packet.ack_req = core.transport().is_reliable();
            if let Some(path) = &mut self.path {
                path.times(&packet, is_new, now);
            }
            core.transmit(host, packet);
        }
        if matches!(result, Ok(false)) {
            if let Some(path) = &mut self.path {
                path.ask_twice();
                self.send_alone(core, host, budget)?;
            }
        }
        if result.is_ok() {
            self.arm(core, now, false);
        }
        result
    }

    /// A router has marked what was sent, or what was asked for. False: nobody heeds it.
    pub(crate) fn notified(&mut self, now: u64) -> bool {
        self.path.as_mut().is_some_and(|path| path.notified(now))
    }

    /// Packets that may be unacknowledged.
    pub(crate) fn window(&self, core: &Core) -> u32 {
        let most = core.window();
        self.path.as_ref().map_or(most, |path| path.window(most))
    }

    /// Most responses that one READ request asks for.
    fn read_part(&self, core: &Core) -> u32 {
        let most = core.read_part();
        match &self.path {
            Some(_) => (self.window(core) / 2).max(LEAST_PART).min(most),
            None => most,
        }
    }

    /// A packet is about to be sent in its turn.
    fn note_sending(&mut self, packet: &mut Packet, is_new: bool, now: u64) {
        let end = self.next_to_send();
        if let Some(path) = &mut self.path {
            path.sends(packet, end, is_new, now);
        }
    }
}
