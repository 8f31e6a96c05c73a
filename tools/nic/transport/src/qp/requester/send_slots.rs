// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The work requests of a send queue that are decoded and not complete: a ring of slots.

use crate::host::{
    completes_as, CopyTarget, DecodedSendWqe, Gather, WcOpcode, WqeError, WqeOpcode,
};
use crate::qp::pending_completion::PendingCompletion;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::mem;

/// A work request that was decoded.
#[derive(Debug, Default)]
pub(super) struct SendSlot {
    pub(super) wqe: DecodedSendWqe,
    pub(super) gather: Rc<Gather>,
    /// First PSN, valid after the start.
    pub(super) first_psn: u32,
    /// Number of PSNs: packets of a SEND or WRITE, responses of a READ; 0 if nothing is sent.
    pub(super) psns: u32,
    /// Send sequence number (SSN), valid after the start (IBTA 9.7.7.2).
    pub(super) ssn: u32,
    /// READ: number of responses that have arrived.
    pub(super) progress: u32,
    /// READ: number of responses that each request asks for, except the last. To the peer each such
    /// part is a message of its own.
    pub(super) part: u32,
    /// READ: number of responses in the parts that have a place among `max_rd_atomic`. Those parts
    /// were requested or may be requested at once.
    pub(super) placed: u32,
    pub(super) started: bool,
    /// Error that prevents its execution.
    pub(super) fault: Option<WqeError>,
}

impl SendSlot {
    /// True if a response ends the work request, not an acknowledgement.
    pub(super) fn awaits_response(&self) -> bool {
        matches!(
            self.wqe.opcode,
            WqeOpcode::RdmaRead
                | WqeOpcode::CompareSwap
                | WqeOpcode::FetchAdd
                | WqeOpcode::AtomicWrite
                | WqeOpcode::Flush
        )
    }

    /// True if the work request takes a receive at the peer.
    pub(super) fn takes_receive(&self) -> bool {
        matches!(
            self.wqe.opcode,
            WqeOpcode::Send | WqeOpcode::SendImm | WqeOpcode::SendInv | WqeOpcode::RdmaWriteImm
        )
    }

    /// Returns the end (exclusive) of the part that response `n` belongs to.
    pub(super) fn part_end(&self, n: u32) -> u32 {
        let part = self.part.max(1);
        (n - n % part).saturating_add(part).min(self.psns)
    }

    /// True if response `n` is the first of a part.
    pub(super) fn begins_part(&self, n: u32) -> bool {
        n % self.part.max(1) == 0
    }

    pub(super) fn length(&self) -> u32 {
        self.gather.length
    }

    /// Returns the destination of a response whose first byte is byte `offset` of the message.
    pub(super) fn target(&self, offset: u32) -> CopyTarget<'_> {
        CopyTarget::Scatter {
            pd: self.gather.pd,
            privileged: self.gather.privileged,
            sges: &self.gather.sges,
            offset,
        }
    }
}

/// Work requests `oldest..next`, by their free-running WQE index.
/// [`QpConfig::max_outstanding`](crate::qp::QpConfig::max_outstanding) limits their number.
#[derive(Debug, Default)]
pub(super) struct SendSlots {
    /// Ring with a size of 0 or a power of two, which grows as needed: a queue pair with at most
    /// one outstanding work request reuses the same memory.
    ring: Vec<SendSlot>,
    oldest: u32,
    next: u32,
}

impl SendSlots {
    /// Returns the index of the oldest work request that is not complete.
    #[inline]
    pub(super) fn oldest(&self) -> u32 {
        self.oldest
    }

    /// Returns the index of the next work request to decode.
    #[inline]
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Returns the number of work requests.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.next.wrapping_sub(self.oldest)
    }

    #[inline]
    fn ring_index(&self, index: u32) -> usize {
        index as usize & self.ring.len().wrapping_sub(1)
    }

    /// Returns the work request with this index, if the index is in `oldest..next`.
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&SendSlot> {
        if index.wrapping_sub(self.oldest) >= self.len() {
            return None;
        }
        self.ring.get(self.ring_index(index))
    }

    /// Returns the work request with this index for changes, if the index is in `oldest..next`.
    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut SendSlot> {
        if index.wrapping_sub(self.oldest) >= self.len() {
            return None;
        }
        let place = self.ring_index(index);
        self.ring.get_mut(place)
    }

    /// Returns the oldest work request.
    #[inline]
    pub(super) fn front(&self) -> Option<&SendSlot> {
        self.get(self.oldest)
    }

    /// Returns the slot of the next work request, for a prefetch.
    #[inline]
    pub(super) fn upcoming(&self) -> Option<&SendSlot> {
        self.ring.get(self.ring_index(self.next))
    }

    /// Adds a slot for the next work request and returns it with its index. The slot still has the
    /// contents of an earlier work request, so that their memory is reused.
    pub(super) fn push(&mut self) -> Option<(u32, &mut SendSlot)> {
        if self.len() as usize >= self.ring.len() {
            self.grow();
        }
        let index = self.next;
        self.next = index.wrapping_add(1);
        self.get_mut(index).map(|slot| (index, slot))
    }

    fn grow(&mut self) {
        let size = self.ring.len().saturating_mul(2).max(1);
        let mut grown = Vec::with_capacity(size);
        grown.resize_with(size, SendSlot::default);
        let mut index = self.oldest;
        while let Some(slot) = self.get_mut(index) {
            if let Some(place) = grown.get_mut(index as usize & (size - 1)) {
                *place = mem::take(slot);
            }
            index = index.wrapping_add(1);
        }
        self.ring = grown;
    }

    /// Removes the oldest work request.
    #[inline]
    #[must_use = "a work request is owed a completion"]
    pub(super) fn pop(&mut self) -> Option<PendingCompletion> {
        let wqe = &self.front()?.wqe;
        let owed = PendingCompletion::new(wqe.wr_id, self.oldest, completes_as(wqe.opcode));
        self.oldest = self.oldest.wrapping_add(1);
        Some(owed)
    }

    /// Removes the next work request, which was never decoded and has this `wr_id` and opcode.
    /// There is no work request before it.
    pub(super) fn skip(&mut self, wr_id: u64, opcode: WcOpcode) -> PendingCompletion {
        let owed = PendingCompletion::new(wr_id, self.oldest, opcode);
        self.oldest = self.oldest.wrapping_add(1);
        self.next = self.oldest;
        owed
    }

    /// Removes all work requests and counts from 0 again. A small ring keeps its memory, and a big
    /// one frees it.
    pub(super) fn reset(&mut self) {
        (self.oldest, self.next) = (0, 0);
        if self.ring.len() > 64 {
            self.ring = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(slots: &mut SendSlots, wr_id: u64) {
        let (_, slot) = slots.push().unwrap();
        slot.wqe.wr_id = wr_id;
    }

    #[test]
    fn growing_keeps_the_work_requests_in_their_order() {
        let mut slots = SendSlots::default();
        // The indexes wrap during the test.
        (slots.oldest, slots.next) = (u32::MAX - 4, u32::MAX - 4);
        for wr_id in 0..3 {
            push(&mut slots, wr_id);
        }
        assert_eq!(slots.pop().unwrap().ids(), (u32::MAX - 4, 0));
        for wr_id in 3..30 {
            push(&mut slots, wr_id);
        }
        let mut index = slots.oldest();
        for wr_id in 1..30 {
            assert_eq!(slots.get(index).unwrap().wqe.wr_id, wr_id);
            index = index.wrapping_add(1);
        }
        assert_eq!((index, slots.len()), (slots.next(), 29));
    }

    #[test]
    fn only_outstanding_work_requests_are_found() {
        let mut slots = SendSlots::default();
        assert!(slots.front().is_none() && slots.get(5).is_none());
        push(&mut slots, 7);
        assert_eq!(slots.front().unwrap().wqe.wr_id, 7);
        assert!(slots.get(1).is_none() && slots.get(u32::MAX).is_none());
        assert_eq!(slots.pop().unwrap().ids(), (0, 7));
        assert!(slots.front().is_none() && slots.get_mut(0).is_none());
        assert!(slots.pop().is_none());
        assert_eq!(slots.skip(8, WcOpcode::Send).ids(), (1, 8));
        assert_eq!((slots.oldest(), slots.next(), slots.len()), (2, 2, 0));
    }

    #[test]
    fn a_reset_counts_from_0_again() {
        let mut slots = SendSlots::default();
        for wr_id in 0..100 {
            push(&mut slots, wr_id);
        }
        slots.reset();
        assert!(slots.front().is_none() && slots.ring.is_empty());
        push(&mut slots, 3);
        assert_eq!((slots.oldest(), slots.ring.len()), (0, 1));
        slots.reset();
        assert_eq!(slots.ring.len(), 1, "a small ring stays");
    }
}
