// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests that come ahead of a gap. The specification's responder drops them, and the requester sends all of them again
//! (IBTA 9.7.4.1). Behind a wire this one keeps them once the peer was told of the gap. A peer that asks at the packet that was
//! missing (AckReq) wants to hear where to go on: all that was kept goes on, and the acknowledgement jumps, so that
//! only what was lost need be sent again.
//!
//! To any other peer nothing is acknowledged that it has not sent again by then: rxe notes such an acknowledgement without
//! completing the work request, and has no timer from then on. What is kept waits until it comes again, so that each packet is
//! executed in its turn as if nothing were kept. It is used where the second copy is lost as well.
//!
//! What is kept dies with an RNR NAK, with a refusal, in RESET and ERR: by what the sender was told, none of it
//! was executed, and it may have reported failure.

use super::{asks, is_data, Nak, Responder, Stop};
use crate::host::{Host, Syndrome};
use crate::packet::{AethSyndrome, NakCode, Packet};
use crate::psn;
use crate::qp::store::Store;
use crate::qp::Core;

impl Responder {
    /// Handles a request that is ahead of the PSN expected.
    pub(super) fn ahead<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: Packet,
    ) -> Option<Syndrome> {
        let psn = packet.psn;
        let waiting = self.store.as_ref().filter(|store| store.closed.is_some());
        let is_again = waiting.is_some_and(|store| store.has(self.expected_psn) && store.has(psn));
        if !is_again && !self.nak.is_told() {
            self.set_closed(None);
            self.nak(core, host, AethSyndrome::Nak(NakCode::Sequence));
        }
        self.keep(core, host, packet);
        if !is_again {
            return None;
        }
        // The peer has sent all before this one again, too.
        let mut asked = false;
        let end = psn::add(psn, 1);
        let result = self.execute_kept(core, host, Some(end), &mut asked);
        if psn::is_behind(self.expected_psn, end) {
            self.set_closed(None);
        }
        self.finish(core, host, result, asked)
    }

    /// Keeps a request that is ahead of a gap, if it may.
    fn keep<H: Host>(&mut self, core: &mut Core, host: &mut H, packet: Packet) {
        let told = matches!(
            self.nak,
            Nak::Sent { gap: true } | Nak::Due(AethSyndrome::Nak(NakCode::Sequence))
        );
        if told || self.closed().is_some() {
            Store::keep(&mut self.store, core, host, packet, self.expected_psn);
        }
    }

    /// The request that is expected comes, and may close a gap. True: what is kept behind it waits. A peer that was not told of the
    /// gap does not come back.
    pub(super) fn close(&mut self, packet: &Packet) -> bool {
        let comes_back = matches!(self.nak, Nak::Sent { gap: true }) && !packet.ack_req;
        if self.keeps() && comes_back {
            self.set_closed(Some(packet.psn));
        }
        self.closed().is_some()
    }

    /// Whether a request that was executed asks for what is kept behind it.
    pub(super) fn asks_again(&self, packet: &Packet) -> bool {
        packet.ack_req && self.closed() == Some(packet.psn)
    }

    /// Executes what is kept behind a request that asks again.
    pub(super) fn go_on<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
    ) -> Option<Syndrome> {
        if !is_data(packet) {
            if let Some(cause) = self.duplicate(core, host, packet) {
                return Some(cause);
            }
        }
        self.set_closed(None);
        let mut asked = asks(packet);
        let result = self.execute_kept(core, host, None, &mut asked);
        self.finish(core, host, result, asked)
    }

    /// Executes what was kept, to the next gap or before the PSN `end`. A READ that was executed may have taken the PSNs of what
    /// is none of this connection.
    pub(super) fn execute_kept<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        end: Option<u32>,
        asked: &mut bool,
    ) -> Result<(), Stop> {
        while !core.is_doomed() && end.is_none_or(|end| psn::is_behind(self.expected_psn, end)) {
            let Some(packet) = Store::take(&mut self.store, self.expected_psn) else {
                break;
            };
            host.executes_kept(&packet);
            *asked |= asks(&packet);
            self.execute(core, host, packet)?;
        }
        self.forget_behind();
        Ok(())
    }

    pub(super) fn forget_behind(&mut self) {
        Store::forget_behind(&mut self.store, self.expected_psn);
    }

    /// Whether something is kept.
    pub(super) fn keeps(&self) -> bool {
        self.store.is_some()
    }

    /// The PSN of a gap that the peer was told of and that closed unasked: what is kept behind it waits.
    pub(super) fn closed(&self) -> Option<u32> {
        self.store.as_ref().and_then(|store| store.closed)
    }

    fn set_closed(&mut self, psn: Option<u32>) {
        if let Some(store) = &mut self.store {
            store.closed = psn;
        }
    }
}
