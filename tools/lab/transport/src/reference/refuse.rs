// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The parts of a refusal that ends a reliable connection: one NAK, one report to the program, ERR
//! (IBTA 9.9.3).

use super::responder::{ReferenceMessage, ReferenceResponder};
use super::ReceiveCompletion;
use verbena_transport::host::{EventType, WcStatus};
use verbena_transport::packet::{Aeth, AethSyndrome, NakCode, Packet};
use verbena_transport::QpState;

/// Number of times that a NAK is repeated to a peer that asks again.
const REPEATS: u32 = 16;

/// A request that the responder refuses.
#[derive(Clone, Debug)]
pub struct ReferenceRefusal {
    /// PSN of the refused request.
    pub psn: u64,
    /// Code of the NAK.
    pub code: NakCode,
    /// Receive that reports the refusal to the program, and its status.
    pub receive: Option<(u64, WcStatus)>,
    /// Event that reports the refusal if no receive was taken.
    pub event: EventType,
    /// AETH of the NAK, after the NAK was sent.
    pub sent: Option<Aeth>,
    /// True if the completion or event was reported to the program.
    pub told: bool,
    /// Number of times that the NAK may still be repeated.
    pub left: u32,
    /// True if a request came since the NAK was last repeated.
    pub asked: bool,
}

impl ReferenceResponder {
    /// Refuses the expected request. If the request took a receive, the receive reports the refusal
    /// with this status; otherwise an event does.
    pub(super) fn refuse(&mut self, code: NakCode, receive: Option<(u64, WcStatus)>) {
        let event = match code {
            NakCode::RemoteAccess => EventType::QpAccessErr,
            NakCode::RemoteOperational => EventType::QpFatal,
            _ => EventType::QpReqErr,
        };
        self.refusal = Some(ReferenceRefusal {
            psn: self.expected,
            code,
            receive,
            event,
            sent: None,
            told: false,
            left: REPEATS,
            asked: false,
        });
    }

    /// Refuses a request because of its message. The receive of the message, if it took one,
    /// completes in error.
    pub(super) fn refuse_message(&mut self, code: NakCode, status: WcStatus) {
        let receive = match self.message {
            ReferenceMessage::Send { receive, .. } => Some((receive.wr_id, status)),
            _ => None,
        };
        self.refuse(code, receive);
    }

    /// Checks a receive that completes in error and is not flushed: it has to be that of the
    /// refused request.
    pub(super) fn on_failed_receive(&mut self, received: &ReceiveCompletion) {
        let due = self.refusal.as_ref().and_then(|r| r.receive);
        let is = Some((received.wr_id, received.status));
        assert_eq!(
            is, due,
            "reference: 9.9.3.1.3: a receive completes in error"
        );
        self.record_report();
    }

    /// Checks an event that reports an error.
    pub(super) fn on_error_event(&mut self, event: EventType) {
        let refusal = self.refusal.as_ref().filter(|r| r.receive.is_none());
        let due = refusal.map(|r| r.event);
        assert_eq!(
            Some(event),
            due,
            "reference: 9.9.3.1.3: an event of an error"
        );
        self.record_report();
    }

    fn record_report(&mut self) {
        if let Some(refusal) = &mut self.refusal {
            assert!(
                !refusal.told,
                "reference: 9.9.3.1.3: an error is told twice"
            );
            refusal.told = true;
        }
    }

    /// Checks that the refusal is complete when the connection ends.
    pub(super) fn check_end(&self) {
        if let Some(refusal) = self.refusal.as_ref().filter(|r| r.sent.is_some()) {
            assert!(
                refusal.told && self.state == QpState::Err,
                "reference: 9.9.3: a NAK without an error or ERR: {refusal:?} in {:?}",
                self.state
            );
        }
    }

    /// Checks a NAK that ends the connection and leaves for the first time or again. Returns false
    /// for any other answer.
    pub(super) fn on_transmit_nak(&mut self, packet: &Packet, psn: u64, aeth: &Aeth) -> bool {
        let AethSyndrome::Nak(code) = aeth.syndrome else {
            return false;
        };
        if code == NakCode::Sequence {
            return false;
        }
        let now = self.counts_now(None);
        let refusal = self.refusal.as_mut();
        let refusal =
            refusal.unwrap_or_else(|| panic!("reference: 9.9.3: nothing is refused: {packet:?}"));
        assert_eq!(
            (psn, code),
            (refusal.psn, refusal.code),
            "reference: 9.7.5.2: a NAK"
        );
        match &refusal.sent {
            None => {
                refusal.sent = Some(*aeth);
                self.answers.check_nak(psn, aeth, &now);
                self.answers.clear();
            }
            Some(first) => {
                assert_eq!(first, aeth, "reference: a NAK is repeated as another");
                assert!(
                    refusal.asked && refusal.left > 0,
                    "reference: a NAK is repeated, and nobody asked for it"
                );
                refusal.left -= 1;
                refusal.asked = false;
            }
        }
        true
    }
}
