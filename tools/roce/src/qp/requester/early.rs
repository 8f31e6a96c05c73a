// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Responses that come ahead of one that was lost. The specification's requester drops them and asks for all again, from the
//! one that is missing on (IBTA 9.7.5.1.5). Behind a wire this one asks as well, but keeps them, and takes them when what was missing is
//! there: so one loss costs one round, whatever came behind it.

use super::Requester;
use crate::host::{Host, Syndrome};
use crate::packet::Packet;
use crate::psn;
use crate::qp::store::Store;
use crate::qp::Core;

impl Requester {
    /// Keeps a response that is ahead of `expected`, which is missing.
    pub(super) fn keep<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: Packet,
        expected: u32,
    ) {
        Store::keep(&mut self.early, core, host, packet, expected);
    }

    /// Takes the responses that were kept, as far as none is missing.
    pub(super) fn take_early<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        now: u64,
    ) -> Result<(), Syndrome> {
        while self.early.is_some() && !core.is_doomed() {
            // Where nothing is awaited, all of it came late.
            let next = self.awaited().unwrap_or(self.next_psn);
            let Some(packet) = Store::take(&mut self.early, next) else {
                break;
            };
            host.executes_kept(&packet);
            self.response(core, host, now, packet)?;
            if self.awaited() == Some(next) {
                // It was of no use.
                break;
            }
        }
        Ok(())
    }

    /// The PSN of the oldest response that is missing.
    fn awaited(&self) -> Option<u32> {
        let mut index = self.slots.oldest();
        while let Some(slot) = self.slots.get(index).filter(|slot| slot.started) {
            if slot.awaits_response() {
                return Some(psn::add(slot.first_psn, slot.progress));
            }
            index = index.wrapping_add(1);
        }
        None
    }
}
