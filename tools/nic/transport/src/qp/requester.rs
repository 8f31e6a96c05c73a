// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The requester, a queue pair's send queue: it turns work requests into packets, and completes
//! them when responses arrive.
//!
//! Work requests are numbered by their free-running WQE index. Those from `oldest` to `next` are
//! decoded into slots, and those before `cursor` are sent. A work request gets its range of PSNs
//! when it starts. Going back (`rewind`) moves the cursor to the oldest PSN that is not
//! acknowledged, and the same PSNs are sent again.
//!
//! Over a wire a READ is requested in parts of at most half a window. Each part has a request, a
//! place among `max_rd_atomic` and an MSN of its own. The READ has all of its PSNs from its start
//! on, so its parts have adjacent PSNs: the request for a part has the PSN of its first response.
//!
//! | file | role |
//! | --- | --- |
//! | this one | the requester's state from RESET to RESET, and one round of sending |
//! | `send_slots.rs` | the ring of work requests |
//! | `fetch.rs` | a WQE becomes a work request |
//! | `sender.rs` | a work request becomes packets |
//! | `datagram.rs` | a work request becomes a datagram, without a connection |
//! | `credit_limit.rs` | the messages that the peer has receives for |
//! | `receive_wait.rs` | waits while the peer has no receive |
//! | `retry.rs` | timers, and going back |
//! | `path_state.rs` | round trips, and the answers to retransmissions |
//! | `congestion_window.rs` | the number of packets that may be in flight |
//! | `responses.rs` | responses and acknowledgements from the peer |
//! | `reassembly.rs` | responses that arrive ahead of a lost one |
//! | `complete.rs` | work requests complete, in order |
//!
//! A fault of the work request itself (such as a bad key) stops the cursor there. The work request
//! completes in error after all earlier ones are done, so completions keep their order. No later
//! work request is sent.

mod complete;
mod congestion_window;
mod credit_limit;
mod datagram;
mod fetch;
mod path_state;
mod prefetch;
mod reassembly;
mod receive_wait;
mod responses;
mod retry;
mod send_slots;
mod sender;

use super::reassembly_buffer::ReassemblyBuffer;
use super::{Attr, Budget, Core, QpState};
use crate::host::{EventType, Host, Syndrome};
use crate::packet::{Packet, Transport};
use crate::psn;
use alloc::boxed::Box;
use core::mem;
use credit_limit::CreditLimit;
use path_state::PathState;
use receive_wait::ReceiveWait;
use retry::{GoBack, RetryTimer};
use send_slots::SendSlots;

/// Minimum number of responses that a READ request asks for, even if the window is smaller: a
/// request for each response would fill the path too.
const MIN_READ_PART: u32 = 8;

/// The requester's state from RESET to RESET.
#[derive(Debug)]
pub(crate) struct Requester {
    /// Work requests that are decoded and not complete.
    slots: SendSlots,
    /// Producer index of the send queue, as last set.
    producer: u32,
    /// Index of the work request that is sent next.
    cursor: u32,
    /// Packets of that work request that were sent in this pass.
    cursor_packets: u32,
    /// First PSN of the next work request to start.
    next_psn: u32,
    /// Oldest PSN that is not acknowledged.
    una_psn: u32,
    /// PSN after the highest one that was ever sent.
    sent_psn: u32,
    /// READs and atomics that have started and are not complete. A READ in parts counts once for
    /// each part that was requested and is not complete.
    outstanding_responses: u32,
    /// Limit from the credits of the peer.
    credit_limit: CreditLimit,
    retry_left: u8,
    rnr_left: u8,
    timer: RetryTimer,
    /// PSN from which lost responses were last requested again: once for each gap.
    implied_nak_at: Option<u32>,
    /// True if the cursor went back, and nothing has been sent since.
    rewound: bool,
    /// True if SQ_DRAINED is still to be reported.
    drained_event_pending: bool,
    /// Present over a wire, if `QpConfig::recovers` is set.
    path_state: Option<Box<PathState>>,
    rare: Option<Box<Rare>>,
}

/// State that few queue pairs have: for the others it costs only a pointer.
#[derive(Debug, Default)]
struct Rare {
    /// Responses that arrived ahead of a missing one.
    reassembly: Option<Box<ReassemblyBuffer>>,
    receive_wait: ReceiveWait,
}

impl Drop for Requester {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Requester {
    pub(crate) fn new() -> Self {
        Self {
            slots: SendSlots::default(),
            producer: 0,
            cursor: 0,
            cursor_packets: 0,
            next_psn: 0,
            una_psn: 0,
            sent_psn: 0,
            outstanding_responses: 0,
            credit_limit: CreditLimit::new(true),
            retry_left: 0,
            rnr_left: 0,
            timer: RetryTimer::Stopped,
            implied_nak_at: None,
            rewound: false,
            drained_event_pending: false,
            path_state: None,
            rare: None,
        }
    }

    /// Returns the number of spurious retransmissions since RESET.
    pub(crate) fn spurious_retransmits(&self) -> u64 {
        self.path_state.as_ref().map_or(0, |path| path.spurious())
    }

    /// Forgets everything on the way to RESET, and counts WQEs from 0 again. Returns the number of
    /// spurious retransmissions that the path had counted.
    pub(crate) fn reset(&mut self) -> u64 {
        let spurious = self.spurious_retransmits();
        self.abandon();
        let mut slots = mem::take(&mut self.slots);
        slots.reset();
        *self = Self::new();
        self.slots = slots;
        spurious
    }

    /// Takes the first PSN and the limits on RTR to RTS.
    pub(crate) fn start(&mut self, core: &Core) {
        self.next_psn = core.attr.sq_psn;
        self.una_psn = core.attr.sq_psn;
        self.sent_psn = core.attr.sq_psn;
        self.credit_limit =
            CreditLimit::new(!core.config.credits || core.transport() != Transport::Rc);
        self.reload_retries(core);
        let recovers = core.config.recovers && core.transport().is_reliable();
        if recovers && !core.attr.local_peer {
            self.path_state = Some(Box::new(PathState::new(&core.config, core.attr.sq_psn)));
        }
    }

    /// Resumes on SQE to RTS, after everything was flushed. PSNs that were assigned to work
    /// requests and not sent are assigned again.
    pub(crate) fn resume(&mut self) {
        self.cursor = self.slots.oldest();
        self.cursor_packets = 0;
        self.next_psn = self.sent_psn;
        self.una_psn = self.sent_psn;
    }

    /// Begins to drain on RTS to SQD.
    pub(crate) fn drain(&mut self) {
        self.drained_event_pending = true;
    }

    /// Ends all access to the buffers of outstanding work requests: from now on packets in flight
    /// can neither read nor fill them.
    pub(crate) fn abandon(&mut self) {
        let mut index = self.slots.oldest();
        while let Some(slot) = self.slots.get(index) {
            slot.gather.alive.set(false);
            index = index.wrapping_add(1);
        }
        self.timer = RetryTimer::Stopped;
        self.rare = None;
    }

    /// Applies changed attributes: new retry counts and a new timeout hold from now on.
    pub(crate) fn update_attr(&mut self, core: &Core, now: u64, old: &Attr) {
        let attr = &core.attr;
        if (attr.retry_cnt, attr.rnr_retry) != (old.retry_cnt, old.rnr_retry) {
            self.reload_retries(core);
        }
        if attr.timeout != old.timeout {
            self.disarm();
            self.arm(core, now, false);
        }
    }

    /// Sets the producer index of the send queue. An index that would take back decoded WQEs is
    /// ignored.
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

    /// Returns the number of packets that were sent and are not acknowledged.
    pub(crate) fn in_flight(&self, core: &Core) -> u32 {
        let ahead = psn::ahead(self.sent_psn, self.una_psn);
        if core.transport().is_reliable() && ahead < psn::PSN_WINDOW {
            ahead
        } else {
            0
        }
    }

    /// Returns the smoothed round trip and its mean deviation in nanoseconds, if it was measured.
    pub(crate) fn round_trip_ns(&self) -> Option<(u64, u64)> {
        self.path_state.as_ref()?.round_trip_ns()
    }

    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let waits = match self.timer {
            RetryTimer::Stopped => None,
            RetryTimer::Ack {
                expires_ns,
                probe_ns,
                ..
            } => probe_ns.or(Some(expires_ns)),
            RetryTimer::Rnr { until_ns: until } => return Some(until),
        };
        let paced = self
            .path_state
            .as_ref()
            .and_then(|path| path.resumes_at_ns());
        let held = self
            .rare
            .as_ref()
            .and_then(|rare| rare.receive_wait.deadline_ns());
        waits.into_iter().chain(paced).chain(held).min()
    }

    /// True if every work request that has started is complete.
    pub(crate) fn is_drained(&self) -> bool {
        !self.slots.front().is_some_and(|slot| slot.started)
    }

    /// Reports in SQD, once, that the last send is done.
    pub(crate) fn report_drained<H: Host>(&mut self, core: &Core, host: &mut H) {
        if self.drained_event_pending && core.state == QpState::Sqd && self.is_drained() {
            self.drained_event_pending = false;
            if core.attr.sqd_notify {
                host.event(EventType::SqDrained, None);
            }
        }
    }

    /// Sends the packets that may be sent now. Returns true if there is more to send at once.
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
        if let Some(path) = &mut self.path_state {
            path.clear_pacing();
        }
        if !self.run_timer(core, host, now)? {
            return Ok(false);
        }
        if let Some(rare) = &mut self.rare {
            rare.receive_wait.begin_call(now);
        }
        let result = self.send_packets(core, host, now, budget);
        if let Some(rare) = &mut self.rare {
            rare.receive_wait.end_call(now);
        }
        if matches!(result, Ok(false)) {
            if let Some(path) = &mut self.path_state {
                path.repeat_retransmit();
                self.send_retransmits(core, host, budget)?;
            }
        }
        if result.is_ok() {
            self.arm(core, now, false);
        }
        result
    }

    /// Handles a timer that has expired. Returns false if nothing may be sent now, because an RNR
    /// NAK timer runs.
    #[inline]
    fn run_timer<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        now: u64,
    ) -> Result<bool, Syndrome> {
        match self.timer {
            RetryTimer::Rnr { until_ns } if now < until_ns => return Ok(false),
            RetryTimer::Rnr { .. } => self.timer = RetryTimer::Stopped,
            RetryTimer::Ack { expires_ns, .. } if now >= expires_ns => {
                core.counters.timeouts += 1;
                self.disarm();
                self.retry(
                    core,
                    host,
                    Syndrome::RetryExceeded,
                    GoBack::Oldest {
                        gap_reported: false,
                    },
                )?;
            }
            RetryTimer::Ack { probe_ns, .. } if probe_ns.is_some_and(|at| now >= at) => {
                self.probe(core, now);
            }
            _ => {}
        }
        Ok(true)
    }

    /// Sends pending retransmissions, and then packets in their turn. Returns true if there is more
    /// to send at once.
    #[inline]
    fn send_packets<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        now: u64,
        budget: &mut Budget,
    ) -> Result<bool, Syndrome> {
        // The last packet of this call is held back until the end, so that it can ask for an
        // acknowledgement. So the sent packets are acknowledged whatever stops the sending (an
        // empty queue, the window, a fence, a fault, SQD, the budget).
        let mut held: Option<(Packet, bool)> = None;
        // Over a wire each quarter of the window asks for an acknowledgement too. So the window
        // does not run empty before the answer arrives, and a lost answer costs no timeout.
        let quarter = (self.window(core) / 4).max(1);
        let mut unasked = 0u32;
        self.send_retransmits(core, host, budget)?;
        let result = loop {
            if self
                .path_state
                .as_mut()
                .is_some_and(|path| path.is_blocked(now))
            {
                break Ok(false);
            }
            if budget.is_spent() {
                break Ok(true);
            }
            let new = self.sent_psn;
            let is_first_again = self.rewound;
            let most = match core.attr.local_peer {
                true => core.super_packets(),
                // In a super-packet, the last packet asks.
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
                        // If the last packet never arrives, the ones before it complete
                        // nevertheless.
                        packet.ack_req = core.transport().is_reliable();
                    }
                    let is_new = packet.psn == new;
                    if self.path_state.is_some() {
                        self.on_send(&mut packet, is_new, now);
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
            if let Some(path) = &mut self.path_state {
                path.start_rtt_sample(&packet, is_new, now);
            }
            core.transmit(host, packet);
        }
        result
    }

    /// Handles a congestion notification: a router has marked requests or responses of this
    /// requester. False if no congestion control acts on it.
    pub(crate) fn on_cnp(&mut self, now: u64) -> bool {
        self.path_state
            .as_mut()
            .is_some_and(|path| path.on_cnp(now))
    }

    /// Returns the maximum number of unacknowledged packets.
    pub(crate) fn window(&self, core: &Core) -> u32 {
        let most = core.window();
        self.path_state
            .as_ref()
            .map_or(most, |path| path.window(most))
    }

    /// Returns the maximum number of responses that one READ request asks for.
    fn read_part(&self, core: &Core) -> u32 {
        let most = core.read_part();
        match &self.path_state {
            Some(_) => (self.window(core) / 2).max(MIN_READ_PART).min(most),
            None => most,
        }
    }

    /// Notes a packet that is about to be sent in its turn.
    fn on_send(&mut self, packet: &mut Packet, is_new: bool, now: u64) {
        let end = self.next_to_send();
        if let Some(path) = &mut self.path_state {
            path.on_send(packet, end, is_new, now);
        }
    }
}
