// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The end of a connection: a request that is refused (IBTA 9.9.3, classes A, C and J), its NAK,
//! and the report to the responder's own side.

use super::{is_data, End, Refusal, Responder, Stop};
use crate::host::{EventType, Host, Syndrome, WcStatus};
use crate::packet::{AethSyndrome, NakCode, Packet, Payload};
use crate::psn;
use crate::qp::{Core, QpState};

/// Number of times that the last NAK is repeated in ERR: enough for all retries of a peer. It is
/// limited because the specification's responder is silent in ERR.
const NAK_REPEATS: u32 = 16;

impl Responder {
    /// Refuses a request that is not valid.
    pub(super) fn refuse_request<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        psn: u32,
        cause: Syndrome,
    ) -> Stop {
        let refusal = Refusal {
            psn,
            nak: Some(NakCode::InvalidRequest),
            status: WcStatus::LocQpOpErr,
            event: EventType::QpReqErr,
            cause,
        };
        self.refuse(core, host, refusal)
    }

    /// Refuses a request for memory that the peer may not access. A receive that was taken for its
    /// immediate carries the error.
    pub(super) fn refuse_access<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        psn: u32,
        cause: Syndrome,
    ) -> Stop {
        let refusal = Refusal {
            psn,
            nak: Some(NakCode::RemoteAccess),
            status: WcStatus::LocAccessErr,
            event: EventType::QpAccessErr,
            cause: if self.owed.is_some() {
                Syndrome::WriteImmAccess
            } else {
                cause
            },
        };
        self.refuse(core, host, refusal)
    }

    /// Refuses a request because of a fault on this side: the receive completes with `status`.
    pub(super) fn refuse_operation<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        psn: u32,
        status: WcStatus,
        cause: Syndrome,
    ) -> Stop {
        let refusal = Refusal {
            psn,
            nak: Some(NakCode::RemoteOperational),
            status,
            event: EventType::QpFatal,
            cause,
        };
        self.refuse(core, host, refusal)
    }

    /// Refuses a READ that was executed and whose memory is gone. The receive of a message in
    /// progress is not the cause: an event reports the error, and the receive is flushed.
    pub(super) fn refuse_executed<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        psn: u32,
        cause: Syndrome,
    ) -> Stop {
        // Requests after the READ are not acknowledged before the NAK reports that the READ failed.
        self.ack_due = false;
        self.nak = super::Nak::NotSent;
        let refusal = Refusal {
            psn,
            nak: Some(NakCode::RemoteAccess),
            status: WcStatus::WrFlushErr,
            event: EventType::QpAccessErr,
            cause,
        };
        self.refuse(core, host, refusal)
    }

    /// Ends the connection: at once, or after the pending responses.
    pub(super) fn refuse<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        refusal: Refusal,
    ) -> Stop {
        self.store = None;
        if self.answers.is_empty() {
            Stop::Error(self.carry_out(core, host, refusal))
        } else {
            self.end = End::Due(refusal);
            Stop::Dropped
        }
    }

    /// True if a refusal is pending.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.end, End::Due(_))
    }

    /// Takes the pending refusal, if there is one.
    pub(super) fn take_refusal(&mut self) -> Option<Refusal> {
        let End::Due(refusal) = self.end else {
            return None;
        };
        self.end = End::None;
        Some(refusal)
    }

    pub(super) fn carry_out<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        refusal: Refusal,
    ) -> Syndrome {
        if let Some(code) = refusal.nak {
            core.counters.naks_sent += 1;
            if code == NakCode::RemoteAccess {
                core.counters.access_naks_sent += 1;
            }
            self.end = End::Told {
                psn: refusal.psn,
                code,
                repeats: NAK_REPEATS,
            };
            self.answer_aeth(core, host, refusal.psn, AethSyndrome::Nak(code));
        } else {
            core.counters.acks_sent += 1;
            let syndrome = self.positive(core, host);
            self.answer_aeth(core, host, refusal.psn, syndrome);
        }
        let tells = self.owed.is_some() && refusal.status != WcStatus::WrFlushErr;
        if tells && self.is_heard_of(core, host) {
            self.fail_recv(core, host, refusal.status, refusal.cause);
        } else {
            host.event(refusal.event, Some(refusal.cause));
        }
        refusal.cause
    }

    /// Handles the loss of a local sender's memory: the sender gets a NAK, and the packet counts as
    /// lost.
    pub(super) fn sender_fault<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        cause: Syndrome,
    ) -> Stop {
        if let Payload::Gather { gather, .. } = &packet.payload {
            gather.fault.set(Some(cause));
            self.nak(core, host, AethSyndrome::Nak(NakCode::SourceFault));
        }
        Stop::Dropped
    }

    /// Handles a READ response whose memory could not be read when it was sent out.
    pub(crate) fn source_fault<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        psn: u32,
        cause: Syndrome,
    ) -> Option<Syndrome> {
        if !matches!(core.state, QpState::Rtr | QpState::Rts | QpState::Sqd) || self.is_ending() {
            return None;
        }
        // The peer may no longer wait for a response to a READ that was repeated.
        if self.was_repeated(psn) && !core.attr.local_peer {
            return None;
        }
        // Repeated answers to earlier requests are still owed, and the NAK waits for them.
        let expected = self.expected_psn;
        self.answers.retain(|answer| {
            let first = answer.to.psn;
            psn::ahead(expected, first) > psn::ahead(expected, psn)
                && psn::ahead(psn, first) >= answer.to.psns
        });
        match self.refuse_executed(core, host, psn, cause) {
            Stop::Error(cause) => Some(cause),
            Stop::Dropped => None,
        }
    }

    /// Repeats in ERR the NAK that ended the connection. The specification's responder is silent in
    /// ERR, but if that NAK is lost, the peer has no reason for the end.
    pub(super) fn repeat_nak<H: Host>(&mut self, core: &mut Core, host: &mut H, packet: &Packet) {
        core.counters.dropped_state += 1;
        let End::Told { psn, code, repeats } = &mut self.end else {
            return;
        };
        if *repeats > 0 && (packet.ack_req || !is_data(packet)) {
            *repeats = repeats.saturating_sub(1);
            let (psn, code) = (*psn, *code);
            core.counters.naks_sent += 1;
            self.answer_aeth(core, host, psn, AethSyndrome::Nak(code));
        }
    }
}
