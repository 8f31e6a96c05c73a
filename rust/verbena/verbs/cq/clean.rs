// SPDX-License-Identifier: GPL-2.0

//! Removal of the entries of a queue pair that is destroyed or reset from a kernel user's
//! completion queue.
//!
//! The device is done with the queue pair, so no new entry of it can appear. The driver drops its
//! entries, and moves the entries before them up to the newest one, so that the room is free for
//! new entries at once. A queue may have 2^18 entries, and polls lock it with interrupts off.
//! Therefore the driver works in steps of [`STEP`] entries, between which other threads poll. At
//! each time these threads see every entry once and in order:
//!
//! ```text
//! consumer          from        to            end
//!    | not looked at  | skipped  |  moved up   | newer
//! ```
//!
//! Entries that move up leave a [`SkippedRange`] below them, which grows downwards and which polls
//! skip. When no entry is left below the skipped range, the consumer index moves to the end of the
//! range.

use super::{
    cqe_ring::CqeRing,
    CqData,
    SkippedRange,
    Verbena, //
};
use crate::{
    abi::cqe::Cqe,
    ring::before, //
};
use rdma::qp::Qp;

/// Number of entries that are examined with the queue locked.
const STEP: u32 = 256;

impl CqData {
    /// Removes the entries of a queue pair that is about to be destroyed or was reset. No poll
    /// returns one of them after this. Receives of its SRQ that had completed are returned to the
    /// SRQ. With `detach` the queue pair no longer completes in this queue. May sleep.
    pub(crate) fn clean(&self, qp: &Qp<Verbena>, detach: bool) {
        // A process cleans its queues without the driver.
        let Some(entries) = &self.kernel_ring else {
            return;
        };
        let _cleaning = self.cleaning.lock();
        let end = self.end(entries);
        let mut skipped = SkippedRange { from: end, to: end };
        while !self.clean_some(qp, entries, &mut skipped) {}
        if detach {
            let qpn = qp.qpn();
            self.state.lock().qps.retain(|attached| attached.qpn != qpn);
        }
    }

    /// Returns the index after the newest entry that a finished queue pair can have in the queue.
    fn end(&self, entries: &CqeRing) -> u32 {
        let first = self.state.lock().consumer;
        let mut end = first;
        loop {
            let state = self.state.lock();
            // Entries that are polled in the meantime were there before.
            if before(end, state.consumer) {
                end = state.consumer;
            }
            for _ in 0..STEP {
                // The entries of the queue pair were there at the beginning, and no more than these
                // fit in.
                if end.wrapping_sub(first) >= entries.count() || !entries.has(end) {
                    return end;
                }
                end = end.wrapping_add(1);
            }
        }
    }

    /// Examines some of the entries before the skipped range. Returns true if none is left.
    fn clean_some(&self, qp: &Qp<Verbena>, entries: &CqeRing, skipped: &mut SkippedRange) -> bool {
        let mut state = self.state.lock();
        for _ in 0..STEP {
            // A poll has come to the skipped range, or is beyond it.
            if !before(state.consumer, skipped.from) {
                break;
            }
            let index = skipped.from.wrapping_sub(1);
            // The read cannot fail, because each index has a place in the ring.
            let Ok(cqe) = entries.read(index) else {
                break;
            };
            skipped.from = index;
            if cqe.qpn.get() == qp.qpn() {
                self.give_back(qp, entries.is_receive(&cqe, index), &cqe);
                continue;
            }
            let to = skipped.to.wrapping_sub(1);
            if to != index && entries.move_to(&cqe, index, to).is_err() {
                // The entry is no longer valid, so the device has changed it since.
                self.vdev
                    .distrust("it changed an entry of a CQ that it had completed");
            }
            skipped.to = to;
        }
        if before(state.consumer, skipped.from) {
            state.skipped = *skipped;
            return false;
        }
        // No entry is left before the skipped range.
        state.skipped = SkippedRange::default();
        if before(state.consumer, skipped.to) {
            state.consumer = skipped.to;
            self.slot.consume(skipped.to);
        }
        true
    }

    /// Returns the receive of a dropped entry to its SRQ, if it is from one.
    fn give_back(&self, qp: &Qp<Verbena>, is_receive: bool, cqe: &Cqe) {
        if let (true, Some(srq)) = (is_receive, qp.srq()) {
            if srq.complete(cqe.wr_id.get()).is_none() {
                self.vdev
                    .distrust("a completion belongs to no outstanding request of its SRQ");
            }
        }
    }
}
