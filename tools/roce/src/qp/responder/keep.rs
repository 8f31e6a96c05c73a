// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests that come ahead of a gap. The specification's responder drops them, and the requester sends all of them again
//! (IBTA 9.7.4.1). Behind a wire this one keeps them once the peer was told of the gap. A peer that asks at the packet that was
//! missing (AckReq) wants to hear where to go on: all that was kept goes on, and the acknowledgement jumps, so that
//! only what was lost need be sent again. Known by that, it need not ask for what was late only.
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

/// Whether the peer asks alone for what is missing. If so, the PSN behind the last that it has asked for, to which a peer that
/// sends all again comes next: 15 bits of it, as there is room for two bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AsksAlone(u16);

impl AsksAlone {
    pub(super) const UNKNOWN: Self = Self(0);

    fn before(next: u32) -> Self {
        Self(1 << 15 | (next & 0x7fff) as u16)
    }
}

impl Responder {
    /// Handles a request that is ahead of the PSN expected.
    #[cold]
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
        if self.keeps() && matches!(self.nak, Nak::Sent { gap: true }) {
            // The end of a message asks in any case.
            let asks_alone = packet.ack_req && !packet.last;
            if asks_alone || self.asks_alone != AsksAlone::UNKNOWN {
                self.asks_alone = AsksAlone::before(psn::add(packet.psn, 1));
            } else if !packet.ack_req {
                self.set_closed(Some(packet.psn));
            }
        }
        self.closed().is_some()
    }

    /// Something that was executed comes again. What is behind a gap that has closed is sent again by a peer that sends all again.
    pub(super) fn note_copy(&mut self, packet: &Packet) {
        if self.asks_alone == AsksAlone::before(packet.psn) && !packet.ack_req {
            self.asks_alone = AsksAlone::UNKNOWN;
        }
    }

    /// Whether a request that was executed asks for what is kept behind it.
    pub(super) fn asks_again(&self, packet: &Packet) -> bool {
        packet.ack_req && self.closed() == Some(packet.psn)
    }

    /// Executes what is kept behind a request that asks again.
    #[cold]
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
        self.asks_alone = AsksAlone::before(psn::add(packet.psn, 1));
        let mut asked = asks(packet);
        let result = self.execute_kept(core, host, None, &mut asked);
        self.finish(core, host, result, asked)
    }

    /// Executes what was kept, to the next gap or before the PSN `end`. A READ that was executed may have taken the PSNs of what
    /// is none of this connection.
    #[cold]
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
        self.store.as_ref().is_some_and(|store| !store.is_empty())
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
