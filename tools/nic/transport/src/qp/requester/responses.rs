// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Responses and acknowledgements from the peer's responder, which complete work requests.
//!
//! The responder answers in PSN order. So an answer to PSN n also acknowledges every SEND and WRITE
//! before n. If the response to a READ or atomic before n has not arrived, the answer shows that
//! this response was lost on the way ("implied NAK", IBTA 9.7.5).

use super::receive_wait::{RnrWait, FOR_EVER};
use super::retry::{GoBack, RetryTimer};
use super::send_slots::SendSlot;
use super::Requester;
use crate::host::{CopyFault, CopySource, Host, Syndrome, WcStatus, WqeOpcode};
use crate::packet::{Aeth, AethSyndrome, NakCode, Packet, PacketKind, Payload};
use crate::psn;
use crate::qp::timers::rnr_delay_ns;
use crate::qp::{Core, QpState};

impl Requester {
    /// Handles a response. A returned cause moves the queue pair to ERR; the work request that
    /// failed is complete.
    pub(crate) fn receive<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        now: u64,
        packet: Packet,
    ) -> Option<Syndrome> {
        if !matches!(core.state, QpState::Rts | QpState::Sqd) {
            core.counters.dropped_state += 1;
            return None;
        }
        let una = self.una_psn;
        let kind = packet.kind;
        if packet.marked && matches!(kind, PacketKind::ReadResponse(_)) {
            self.on_cnp(now);
        }
        let result = match kind {
            PacketKind::Ack(aeth) => self.on_ack(core, host, now, packet.psn, aeth),
            PacketKind::ReadResponse(_) | PacketKind::AtomicResponse(..) => self
                .on_response(core, host, now, packet)
                .and_then(|()| self.process_buffered(core, host, now)),
            _ => Ok(()),
        };
        if let Err(cause) = result {
            return Some(cause);
        }
        self.complete_local(core, host);
        if self.una_psn != una {
            self.on_answer(&kind);
        } else if matches!(kind, PacketKind::ReadResponse(_)) {
            self.defer_probe(core, now);
        }
        self.arm(core, now, self.una_psn != una);
        None
    }

    /// Handles the answer to a retransmission. If the answer acknowledges no later packet, the rest
    /// may have to be retransmitted too.
    fn on_answer(&mut self, kind: &PacketKind) {
        let Some(path) = &mut self.path_state else {
            return;
        };
        let asks = matches!(kind, PacketKind::Ack(aeth) if !matches!(aeth.syndrome, AethSyndrome::Ack { .. }));
        let is_missing = path.on_answer(self.una_psn, asks);
        if self.sent_psn == self.una_psn {
            path.clear_pending();
        } else if is_missing {
            self.rewind();
        }
    }

    /// Notes an answer to a PSN that is not outstanding.
    fn on_stale_response(&mut self, core: &mut Core, now: u64) {
        core.counters.stale_responses += 1;
        if let Some(path) = &mut self.path_state {
            path.on_duplicate_answer(now);
        }
    }

    /// True if a PSN was sent and is not acknowledged.
    fn is_outstanding(&self, psn: u32) -> bool {
        psn::ahead(psn, self.una_psn) < psn::ahead(self.sent_psn, self.una_psn)
    }

    /// Acknowledges everything before `end` and completes work requests. Returns false if a READ or
    /// atomic before `end` has not had its response; acknowledgement ends there.
    fn acknowledge<H: Host>(&mut self, core: &mut Core, host: &mut H, now: u64, end: u32) -> bool {
        let una = self.una_psn;
        let all = self.acknowledge_slots(core, host, end);
        if self.una_psn != una {
            self.on_progress(core, now);
        }
        all
    }

    /// Notes progress: all retries are available again (IBTA 9.7.6), and the peer has taken the
    /// request for which it had no receive.
    fn on_progress(&mut self, core: &Core, now: u64) {
        self.reload_retries(core);
        if let Some(path) = &mut self.path_state {
            path.on_ack(self.una_psn, now);
        }
        if self.is_rnr_waiting() {
            self.timer = RetryTimer::Stopped;
        }
        if let Some(rare) = &mut self.rare {
            rare.receive_wait.on_progress();
        }
        self.implied_nak_at = None;
        self.skip_acknowledged();
    }

    fn acknowledge_slots<H: Host>(&mut self, core: &mut Core, host: &mut H, end: u32) -> bool {
        self.complete_local(core, host);
        while self.una_psn != end {
            let Some(slot) = self.slots.front().filter(|slot| slot.started) else {
                break;
            };
            let (first, psns) = (slot.first_psn, slot.psns);
            let base = psn::add(first, slot.progress);
            if slot.awaits_response() {
                // The oldest PSN that is not acknowledged belongs to this READ or atomic.
                self.una_psn = base;
                return end == base;
            }
            let passed = psn::ahead(end, first);
            if passed < psns {
                self.una_psn = end;
                break;
            }
            self.una_psn = psn::add(first, psns);
            self.complete_oldest(core, host);
            self.complete_local(core, host);
        }
        true
    }

    fn on_ack<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        now: u64,
        psn: u32,
        aeth: Aeth,
    ) -> Result<(), Syndrome> {
        let syndrome = aeth.syndrome;
        if !self.is_outstanding(psn) {
            self.on_stale_response(core, now);
            // The peer sent this because receives were posted: it has credits and acknowledges
            // nothing new.
            if psn::add(psn, 1) == self.una_psn {
                self.update_credits(aeth);
                self.hear_of_receives(core, aeth);
            }
            return Ok(());
        }
        self.update_credits(aeth);
        self.hear_of_receives(core, aeth);
        let end = match syndrome {
            AethSyndrome::Ack { .. } => psn::add(psn, 1),
            _ => psn,
        };
        if !self.acknowledge(core, host, now, end) {
            return self.imply_nak(core, host);
        }
        match syndrome {
            AethSyndrome::Ack { .. } => Ok(()),
            AethSyndrome::Rnr { timer } => {
                // This is a copy of the RNR NAK whose timer runs already.
                if self.is_rnr_waiting() {
                    self.on_stale_response(core, now);
                    return Ok(());
                }
                core.counters.rnr_naks_received += 1;
                let wait = match &mut self.rare {
                    Some(rare) => rare.receive_wait.on_rnr_nak(now, rnr_delay_ns(timer)),
                    None => RnrWait::new(now, rnr_delay_ns(timer)),
                };
                if wait.costs_retry && self.rnr_left == 0 {
                    let cause = Syndrome::RnrRetryExceeded;
                    return Err(self.fail_oldest(core, host, WcStatus::RnrRetryExcErr, cause));
                }
                if wait.costs_retry && core.attr.rnr_retry != FOR_EVER {
                    self.rnr_left -= 1;
                }
                self.rewind();
                self.timer = RetryTimer::Rnr {
                    until_ns: wait.until_ns,
                };
                Ok(())
            }
            AethSyndrome::Nak(NakCode::Sequence) => {
                core.counters.sequence_naks_received += 1;
                // The packets that the NAK asks for are about to be retransmitted already.
                if self.is_rewound() || self.is_rnr_waiting() {
                    return Ok(());
                }
                self.retry(
                    core,
                    host,
                    Syndrome::SequenceRetryExceeded,
                    GoBack::Oldest { gap_reported: true },
                )
            }
            AethSyndrome::Nak(code) => {
                core.counters.naks_received += 1;
                let (status, cause) = match code {
                    NakCode::InvalidRequest => {
                        (WcStatus::RemInvReqErr, Syndrome::NakInvalidRequest)
                    }
                    NakCode::RemoteAccess => (WcStatus::RemAccessErr, Syndrome::NakRemoteAccess),
                    NakCode::RemoteOperational => {
                        (WcStatus::RemOpErr, Syndrome::NakRemoteOperational)
                    }
                    NakCode::InvalidRd | NakCode::Sequence => {
                        (WcStatus::BadRespErr, Syndrome::ResponseOpcode)
                    }
                    NakCode::SourceFault => {
                        let fault = self.slots.front().and_then(|slot| slot.gather.fault.get());
                        (WcStatus::LocProtErr, fault.unwrap_or(Syndrome::LkeyUnknown))
                    }
                };
                Err(self.fail_oldest(core, host, status, cause))
            }
        }
    }

    fn update_credits(&mut self, aeth: Aeth) {
        if let AethSyndrome::Ack { credits } = aeth.syndrome {
            self.credit_limit.on_aeth(aeth.msn, credits);
        }
    }

    /// Ends the waits for receives if a peer on the same NIC has some.
    fn hear_of_receives(&mut self, core: &Core, aeth: Aeth) {
        let AethSyndrome::Ack { credits } = aeth.syndrome else {
            return;
        };
        if !core.attr.local_peer || credits == 0 {
            return;
        }
        if let RetryTimer::Rnr { until_ns } = self.timer {
            self.timer = RetryTimer::Stopped;
            let rare = self.rare.get_or_insert_default();
            rare.receive_wait.on_news(Some(until_ns));
        } else if let Some(rare) = &mut self.rare {
            rare.receive_wait.on_news(None);
        }
    }

    /// Requests a lost response again, once for each gap.
    fn imply_nak<H: Host>(&mut self, core: &mut Core, host: &mut H) -> Result<(), Syndrome> {
        let asked = self.implied_nak_at == Some(self.una_psn);
        // The request is about to be sent again already.
        if asked || self.is_rewound() || self.is_rnr_waiting() {
            return Ok(());
        }
        self.implied_nak_at = Some(self.una_psn);
        core.counters.implied_naks += 1;
        self.retry(core, host, Syndrome::RetryExceeded, GoBack::All)
    }

    fn bad_response<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        cause: Syndrome,
    ) -> Result<(), Syndrome> {
        Err(self.fail_oldest(core, host, WcStatus::BadRespErr, cause))
    }

    /// Handles a response whose PSN expects none, which is an error. A response with a dead
    /// payload, from before a RESET of the peer, counts as lost.
    fn on_misplaced_response<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
    ) -> Result<(), Syndrome> {
        if packet.payload.is_alive() {
            return self.bad_response(core, host, Syndrome::ResponseOpcode);
        }
        core.counters.dead_payloads += 1;
        Ok(())
    }

    /// Handles a READ or atomic response.
    pub(super) fn on_response<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        now: u64,
        mut packet: Packet,
    ) -> Result<(), Syndrome> {
        let mtu = core.attr.path_mtu;
        let last_psn = psn::add(packet.psn, packet.psns.saturating_sub(1));
        // A super-packet that reaches beyond the outstanding PSNs, as from a peer with a smaller
        // path MTU, is not stale: its length is wrong.
        if !self.is_outstanding(packet.psn) && !self.is_outstanding(last_psn) {
            self.on_stale_response(core, now);
            return Ok(());
        }
        // The oldest work request that waits for a response. All before it are done, since this
        // arrived.
        let mut index = self.slots.oldest();
        let slot = loop {
            match self.slots.get(index).filter(|slot| slot.started) {
                None => return self.on_misplaced_response(core, host, &packet),
                Some(slot) if slot.awaits_response() => break slot,
                Some(_) => index = index.wrapping_add(1),
            }
        };
        let (first, psns, progress) = (slot.first_psn, slot.psns, slot.progress);
        let expected = psn::add(first, progress);
        let ahead = psn::ahead(packet.psn, expected);
        if psn::is_behind(packet.psn, expected) {
            // The packet begins with old responses; a super-packet may continue with new ones.
            let old = psn::ahead(expected, packet.psn);
            if old >= packet.psns {
                if psn::is_behind(packet.psn, first) {
                    // The PSN belongs to a SEND or WRITE.
                    return self.on_misplaced_response(core, host, &packet);
                }
                self.on_stale_response(core, now);
                return Ok(());
            }
            packet.trim_front(old, mtu);
        } else if ahead > 0 {
            if ahead < psns - progress || self.is_response_awaited(packet.psn) {
                self.acknowledge(core, host, now, expected);
                self.buffer_response(core, host, packet, expected);
                return self.imply_nak(core, host);
            }
            return self.on_misplaced_response(core, host, &packet);
        }
        if !packet.payload.is_alive() {
            core.counters.dead_payloads += 1;
            return Ok(());
        }
        self.accept_response(core, host, now, &packet, index)
    }

    /// Takes the next response that the work request with this index waits for: checks it, stores
    /// its payload, and completes the work request after its last response.
    fn accept_response<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        now: u64,
        packet: &Packet,
        index: u32,
    ) -> Result<(), Syndrome> {
        let expected = packet.psn;
        self.acknowledge(core, host, now, expected);
        self.una_psn = expected;
        let aeth = match packet.kind {
            PacketKind::ReadResponse(aeth) => aeth,
            PacketKind::AtomicResponse(aeth, _) => Some(aeth),
            _ => None,
        };
        if let Some(aeth) = aeth {
            if !matches!(aeth.syndrome, AethSyndrome::Ack { .. }) {
                return self.bad_response(core, host, Syndrome::ResponseOpcode);
            }
            self.update_credits(aeth);
        }
        let Some(slot) = self.slots.get(index) else {
            return Ok(());
        };
        let part_end = slot.part_end(slot.progress);
        match store_response(host, slot, packet, core.attr.path_mtu) {
            Ok(()) => {}
            Err(ResponseFault::Invalid(cause)) => return self.bad_response(core, host, cause),
            Err(ResponseFault::Copy(CopyFault::Target(cause))) => {
                return Err(self.fail_oldest(core, host, WcStatus::LocProtErr, cause));
            }
            // The peer's memory went away between its check and the copy. When the request is sent
            // again, the peer reports the error itself.
            Err(ResponseFault::Copy(CopyFault::Source(cause))) => {
                if let Payload::Region { lease, .. } = &packet.payload {
                    lease.fault.set(Some((expected, cause)));
                }
                if self.implied_nak_at != Some(expected) {
                    self.implied_nak_at = Some(expected);
                    self.rewind();
                }
                return Ok(());
            }
        }
        let count = packet.psns;
        self.una_psn = psn::add(expected, count);
        if let Some(slot) = self.slots.get_mut(index) {
            slot.progress = slot.progress.saturating_add(count);
            if slot.progress >= slot.psns {
                self.complete_oldest(core, host);
            } else if slot.progress >= part_end {
                // A complete part frees its place for the next one.
                self.outstanding_responses = self.outstanding_responses.saturating_sub(1);
            }
        }
        self.on_progress(core, now);
        Ok(())
    }

    /// True if a PSN belongs to a work request that waits for a response.
    fn is_response_awaited(&self, psn: u32) -> bool {
        let mut index = self.slots.oldest();
        while let Some(slot) = self.slots.get(index) {
            if slot.started && psn::ahead(psn, slot.first_psn) < slot.psns {
                return slot.awaits_response();
            }
            index = index.wrapping_add(1);
        }
        false
    }
}

/// Reason why a response was not stored.
enum ResponseFault {
    /// The response has another form than its request demands.
    Invalid(Syndrome),
    Copy(CopyFault),
}

/// Checks the form of the next response of a work request, and stores its payload.
#[inline]
fn store_response<H: Host>(
    host: &mut H,
    slot: &SendSlot,
    packet: &Packet,
    mtu: u32,
) -> Result<(), ResponseFault> {
    let progress = slot.progress;
    // The responses to a request begin with a FIRST or ONLY. After a repeated request, one may also
    // be in the middle.
    if slot.begins_part(progress) && !packet.first {
        return Err(ResponseFault::Invalid(Syndrome::ResponseOpcode));
    }
    let opcode = slot.wqe.opcode;
    let copied = match packet.kind {
        PacketKind::ReadResponse(_) if opcode == WqeOpcode::RdmaRead => {
            let part_end = slot.part_end(progress);
            let offset = progress * mtu;
            let due = (slot.length() - offset).min(packet.psns.saturating_mul(mtu));
            let ends = progress + packet.psns == part_end;
            if packet.psns > part_end - progress
                || packet.last != ends
                || packet.payload.len() != due
            {
                return Err(ResponseFault::Invalid(Syndrome::ResponseLength));
            }
            if due == 0 {
                return Ok(());
            }
            host.copy(slot.target(offset), packet.payload.source())
        }
        PacketKind::ReadResponse(_)
            if matches!(opcode, WqeOpcode::AtomicWrite | WqeOpcode::Flush) =>
        {
            if packet.psns != 1 || !packet.last || !packet.payload.is_empty() {
                return Err(ResponseFault::Invalid(Syndrome::ResponseLength));
            }
            return Ok(());
        }
        PacketKind::AtomicResponse(_, value)
            if matches!(opcode, WqeOpcode::CompareSwap | WqeOpcode::FetchAdd) =>
        {
            host.copy(slot.target(0), CopySource::Bytes(&value.to_ne_bytes()))
        }
        _ => return Err(ResponseFault::Invalid(Syndrome::ResponseOpcode)),
    };
    copied.map_err(ResponseFault::Copy)
}
