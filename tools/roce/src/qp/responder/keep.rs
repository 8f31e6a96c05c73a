// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests that come ahead of a gap. The specification's responder drops them, and the requester sends all of them again
//! (IBTA 9.7.4.1). Behind a wire this one keeps them once the peer was told of the gap, and executes them when it closes, so that
//! only what was lost need be sent again; the acknowledgement after that jumps. A peer that sends all again
//! finds that they are duplicates.
//!
//! What is kept dies with an RNR NAK, with a refusal, in RESET and ERR: by what the sender was told, none of it
//! was executed, and it may have reported failure.

use super::{Nak, Responder};
use crate::host::Host;
use crate::packet::{AethSyndrome, NakCode, Packet};
use crate::qp::store::Store;
use crate::qp::Core;

impl Responder {
    /// Keeps a request that is ahead of a gap, if it may.
    pub(super) fn keep<H: Host>(&mut self, core: &mut Core, host: &mut H, packet: Packet) {
        let told = matches!(
            self.nak,
            Nak::Sent { gap: true } | Nak::Due(AethSyndrome::Nak(NakCode::Sequence))
        );
        if told {
            Store::keep(&mut self.store, core, host, packet, self.expected_psn);
        }
    }

    /// The request that is expected, if it was kept. A READ that was executed may have taken the PSNs of what is none of this
    /// connection.
    pub(super) fn take_kept(&mut self) -> Option<Packet> {
        Store::take(&mut self.store, self.expected_psn)
    }

    /// Whether something is kept: ahead of a gap.
    pub(super) fn keeps(&self) -> bool {
        self.store.is_some()
    }
}
