// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Responses that arrive ahead of a lost one. The specification's requester drops them and requests
//! everything again, from the missing response on (IBTA 9.7.5.1.5). Over a wire this requester also
//! requests it, but keeps the responses, and takes them when the missing one arrives. So one loss
//! costs one round trip, whatever arrives after it.

use super::Requester;
use crate::host::{Host, Syndrome};
use crate::packet::Packet;
use crate::psn;
use crate::qp::reassembly_buffer::ReassemblyBuffer;
use crate::qp::Core;

impl Requester {
    /// Keeps a response that is ahead of the missing PSN `expected`.
    pub(super) fn buffer_response<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: Packet,
        expected: u32,
    ) {
        let kept = &mut self.rare.get_or_insert_default().reassembly;
        ReassemblyBuffer::insert(kept, core, host, packet, expected);
    }

    /// Takes the kept responses up to the next missing one.
    pub(super) fn process_buffered<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        now: u64,
    ) -> Result<(), Syndrome> {
        while self.has_buffered() && !core.is_doomed() {
            // If no response is awaited, all kept ones are late.
            let next = self.awaited_psn().unwrap_or(self.next_psn);
            let kept = self.rare.as_mut().map(|rare| &mut rare.reassembly);
            let Some(packet) = kept.and_then(|kept| ReassemblyBuffer::take_expected(kept, next))
            else {
                break;
            };
            host.on_reassembled(&packet);
            self.on_response(core, host, now, packet)?;
            if self.awaited_psn() == Some(next) {
                // The response was of no use.
                break;
            }
        }
        Ok(())
    }

    /// True if responses are kept.
    #[inline]
    fn has_buffered(&self) -> bool {
        let rare = self.rare.as_ref();
        rare.is_some_and(|rare| rare.reassembly.is_some())
    }

    /// Returns the PSN of the oldest missing response.
    fn awaited_psn(&self) -> Option<u32> {
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
