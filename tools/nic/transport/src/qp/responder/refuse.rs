// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The end of a connection: a request that is refused (IBTA 9.9.3, classes A, C and J), its NAK,
//! and the report to the responder's own side.

use super::{is_data, ErrorState, NotExecuted, RequestRefusal, Responder};
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
    ) -> NotExecuted {
        let refusal = RequestRefusal {
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
    ) -> NotExecuted {
        let refusal = RequestRefusal {
            psn,
            nak: Some(NakCode::RemoteAccess),
            status: WcStatus::LocAccessErr,
            event: EventType::QpAccessErr,
            cause: if self.pending_completion.is_some() {
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
    ) -> NotExecuted {
        let refusal = RequestRefusal {
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
    ) -> NotExecuted {
        // Requests after the READ are not acknowledged before the NAK reports that the READ failed.
        self.ack_pending = false;
        self.nak = super::NakState::NotSent;
        let refusal = RequestRefusal {
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
        refusal: RequestRefusal,
    ) -> NotExecuted {
        self.reassembly = None;
        if self.pending_responses.is_empty() {
            NotExecuted::Error(self.apply_refusal(core, host, refusal))
        } else {
            self.error_state = ErrorState::Pending(refusal);
            NotExecuted::Dropped
        }
    }

    /// True if a refusal is pending.
    pub(crate) fn is_refusal_pending(&self) -> bool {
        matches!(self.error_state, ErrorState::Pending(_))
    }

    /// Takes the pending refusal, if there is one.
    pub(super) fn take_refusal(&mut self) -> Option<RequestRefusal> {
        let ErrorState::Pending(refusal) = self.error_state else {
            return None;
        };
        self.error_state = ErrorState::None;
        Some(refusal)
    }

    pub(super) fn apply_refusal<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        refusal: RequestRefusal,
    ) -> Syndrome {
        if let Some(code) = refusal.nak {
            core.counters.naks_sent += 1;
            if code == NakCode::RemoteAccess {
                core.counters.access_naks_sent += 1;
            }
            self.error_state = ErrorState::NakSent {
                psn: refusal.psn,
                code,
                repeats: NAK_REPEATS,
            };
            self.send_aeth(core, host, refusal.psn, AethSyndrome::Nak(code));
        } else {
            core.counters.acks_sent += 1;
            let syndrome = self.ack_syndrome(core, host);
            self.send_aeth(core, host, refusal.psn, syndrome);
        }
        let tells = self.pending_completion.is_some() && refusal.status != WcStatus::WrFlushErr;
        if tells && self.is_recv_reportable(core, host) {
            self.fail_recv(core, host, refusal.status, refusal.cause);
        } else {
            host.event(refusal.event, Some(refusal.cause));
        }
        refusal.cause
    }

    /// Handles the loss of a local sender's memory: the sender gets a NAK, and the packet counts as
    /// lost.
    pub(super) fn on_sender_fault<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        cause: Syndrome,
    ) -> NotExecuted {
        if let Payload::Gather { gather, .. } = &packet.payload {
            gather.fault.set(Some(cause));
            self.send_nak(core, host, AethSyndrome::Nak(NakCode::SourceFault));
        }
        NotExecuted::Dropped
    }

    /// Handles a READ response whose memory could not be read when it was sent out.
    pub(crate) fn on_source_fault<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        psn: u32,
        cause: Syndrome,
    ) -> Option<Syndrome> {
        if !matches!(core.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
            || self.is_refusal_pending()
        {
            return None;
        }
        // The peer may no longer wait for a response to a READ that was repeated.
        if self.was_repeated(psn) && !core.attr.local_peer {
            return None;
        }
        // Repeated answers to earlier requests are still owed, and the NAK waits for them.
        let expected = self.expected_psn;
        self.pending_responses.retain(|answer| {
            let first = answer.request.psn;
            psn::ahead(expected, first) > psn::ahead(expected, psn)
                && psn::ahead(psn, first) >= answer.request.psns
        });
        match self.refuse_executed(core, host, psn, cause) {
            NotExecuted::Error(cause) => Some(cause),
            NotExecuted::Dropped => None,
        }
    }

    /// Repeats in ERR the NAK that ended the connection. The specification's responder is silent in
    /// ERR, but if that NAK is lost, the peer has no reason for the end.
    pub(super) fn repeat_nak<H: Host>(&mut self, core: &mut Core, host: &mut H, packet: &Packet) {
        core.counters.dropped_state += 1;
        let ErrorState::NakSent { psn, code, repeats } = &mut self.error_state else {
            return;
        };
        if *repeats > 0 && (packet.ack_req || !is_data(packet)) {
            *repeats = repeats.saturating_sub(1);
            let (psn, code) = (*psn, *code);
            core.counters.naks_sent += 1;
            self.send_aeth(core, host, psn, AethSyndrome::Nak(code));
        }
    }
}
