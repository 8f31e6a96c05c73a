// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests that arrive ahead of a gap. The specification's responder drops them, and the requester
//! sends all of them again (IBTA 9.7.4.1). Over a wire this responder keeps them after it has
//! reported the gap to the peer. A peer that asks for an acknowledgement (AckReq) with the missing
//! packet wants to know where to go on. For such a peer the responder executes all kept requests,
//! and the acknowledgement covers them, so that only lost packets are sent again. After a peer has
//! done so once, it need not ask when a packet was only late.
//!
//! For any other peer the responder acknowledges only packets that the peer has sent again. rxe
//! notes an acknowledgement of others without completing the work request, and has no timer from
//! then on. So kept requests wait until they arrive again, and each is executed in its turn as if
//! nothing were kept. A kept request is used if its second copy is lost as well.
//!
//! An RNR NAK, a refusal, RESET and ERR discard the kept requests: according to the answer that the
//! sender received, none of them was executed, and the sender may have reported failure.

use super::{is_data, requests_ack, NakState, NotExecuted, Responder};
use crate::host::{Host, Syndrome};
use crate::packet::{AethSyndrome, NakCode, Packet};
use crate::psn;
use crate::qp::reassembly_buffer::ReassemblyBuffer;
use crate::qp::Core;

/// Knowledge of whether the peer asks only for missing packets. If so, the value is the PSN after
/// the last packet that the peer has asked for; a peer that sends everything again sends that PSN
/// next. Only 15 bits of the PSN are kept, because there is room for two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SelectiveRetransmission(u16);

impl SelectiveRetransmission {
    pub(super) const UNKNOWN: Self = Self(0);

    fn before(next: u32) -> Self {
        Self(1 << 15 | (next & 0x7fff) as u16)
    }
}

impl Responder {
    /// Handles a request that is ahead of the PSN expected.
    #[cold]
    pub(super) fn on_out_of_order<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: Packet,
    ) -> Option<Syndrome> {
        let psn = packet.psn;
        let waiting = self
            .reassembly
            .as_ref()
            .filter(|store| store.closed_gap.is_some());
        let is_again =
            waiting.is_some_and(|store| store.contains(self.expected_psn) && store.contains(psn));
        if !is_again && !self.nak.is_reported() {
            self.set_closed_gap(None);
            self.send_nak(core, host, AethSyndrome::Nak(NakCode::Sequence));
        }
        self.buffer_request(core, host, packet);
        if !is_again {
            return None;
        }
        // The peer has sent all packets before this one again, too.
        let mut asked = false;
        let end = psn::add(psn, 1);
        let result = self.execute_buffered(core, host, Some(end), &mut asked);
        if psn::is_behind(self.expected_psn, end) {
            self.set_closed_gap(None);
        }
        self.finish(core, host, result, asked)
    }

    /// Keeps a request that is ahead of a gap, if the gap is reported or its kept requests wait.
    fn buffer_request<H: Host>(&mut self, core: &mut Core, host: &mut H, packet: Packet) {
        let is_reported = matches!(
            self.nak,
            NakState::Sent { gap: true } | NakState::Pending(AethSyndrome::Nak(NakCode::Sequence))
        );
        if is_reported || self.closed_gap().is_some() {
            ReassemblyBuffer::insert(&mut self.reassembly, core, host, packet, self.expected_psn);
        }
    }

    /// Handles the arrival of the request that is expected, which may close a gap. Returns true if
    /// the kept requests after it wait. A peer that received no NAK for the gap does not send them
    /// again.
    pub(super) fn on_expected_request(&mut self, packet: &Packet) -> bool {
        if self.has_buffered() && matches!(self.nak, NakState::Sent { gap: true }) {
            // The end of a message asks in any case.
            let asks_alone = packet.ack_req && !packet.last;
            if asks_alone || self.selective_retransmission != SelectiveRetransmission::UNKNOWN {
                self.selective_retransmission =
                    SelectiveRetransmission::before(psn::add(packet.psn, 1));
            } else if !packet.ack_req {
                self.set_closed_gap(Some(packet.psn));
            }
        }
        self.closed_gap().is_some()
    }

    /// Handles a copy of an executed request. If it is the packet after a closed gap, without
    /// AckReq, the peer sends everything again.
    pub(super) fn on_duplicate_copy(&mut self, packet: &Packet) {
        if self.selective_retransmission == SelectiveRetransmission::before(packet.psn)
            && !packet.ack_req
        {
            self.selective_retransmission = SelectiveRetransmission::UNKNOWN;
        }
    }

    /// True if the copy of an executed request asks for the kept requests after it.
    pub(super) fn resumes_buffered(&self, packet: &Packet) -> bool {
        packet.ack_req && self.closed_gap() == Some(packet.psn)
    }

    /// Executes the kept requests after a request that asks again.
    #[cold]
    pub(super) fn resume_buffered<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
    ) -> Option<Syndrome> {
        if !is_data(packet) {
            if let Some(cause) = self.on_duplicate(core, host, packet) {
                return Some(cause);
            }
        }
        self.set_closed_gap(None);
        self.selective_retransmission = SelectiveRetransmission::before(psn::add(packet.psn, 1));
        let mut asked = requests_ack(packet);
        let result = self.execute_buffered(core, host, None, &mut asked);
        self.finish(core, host, result, asked)
    }

    /// Executes kept requests, up to the next gap or before the PSN `end`. A kept packet whose PSN
    /// an executed READ has used does not belong to this connection, and is discarded.
    #[cold]
    pub(super) fn execute_buffered<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        end: Option<u32>,
        asked: &mut bool,
    ) -> Result<(), NotExecuted> {
        while !core.is_doomed() && end.is_none_or(|end| psn::is_behind(self.expected_psn, end)) {
            let Some(packet) =
                ReassemblyBuffer::take_expected(&mut self.reassembly, self.expected_psn)
            else {
                break;
            };
            host.on_reassembled(&packet);
            *asked |= requests_ack(&packet);
            self.execute(core, host, packet)?;
        }
        self.discard_duplicates();
        Ok(())
    }

    pub(super) fn discard_duplicates(&mut self) {
        ReassemblyBuffer::discard_before(&mut self.reassembly, self.expected_psn);
    }

    /// True if requests are kept.
    pub(super) fn has_buffered(&self) -> bool {
        self.reassembly
            .as_ref()
            .is_some_and(|store| !store.is_empty())
    }

    /// Returns the PSN of a gap that was reported and closed without AckReq: the kept requests
    /// after it wait.
    pub(super) fn closed_gap(&self) -> Option<u32> {
        self.reassembly.as_ref().and_then(|store| store.closed_gap)
    }

    fn set_closed_gap(&mut self, psn: Option<u32>) {
        if let Some(store) = &mut self.reassembly {
            store.closed_gap = psn;
        }
    }
}
