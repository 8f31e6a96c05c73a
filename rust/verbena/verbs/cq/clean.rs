// SPDX-License-Identifier: GPL-2.0

//! How the entries of a queue pair that is destroyed or reset are taken out of a completion queue of the kernel's.
//!
//! The device is done with the queue pair, so no new entry of it can appear. Its entries go, and those
//! before them move up to the newest one, so that the room is free for new ones at once. A queue may have 2^18
//! entries, and polls lock it with interrupts off; so this is done in steps of [`STEP`] entries, between which
//! others poll. They see every entry once and in order at each time:
//!
//! ```text
//! consumer          from        to            end
//!    | not looked at  |   hole   |  moved up   | newer
//! ```
//!
//! What has moved leaves room behind it, the [`Hole`], which grows downwards and which polls skip. When nothing is
//! left before it, the consumer index goes behind it.

use super::{
    entries::Entries,
    CqData,
    Hole,
    Verbena, //
};
use crate::{
    abi::cqe::Cqe,
    ring::before, //
};
use rdma::qp::Qp;

/// Entries that are looked at with the queue locked.
const STEP: u32 = 256;

impl CqData {
    /// A queue pair is about to be destroyed or was reset: nothing of it is polled any more when this returns.
    /// Receives of its SRQ that had completed are the SRQ's again. May sleep.
    pub(crate) fn clean(&self, qp: &Qp<Verbena>, detach: bool) {
        // A process cleans its queues by itself.
        let Some(entries) = &self.own else { return };
        let _cleaning = self.cleaning.lock();
        let end = self.end(entries);
        let mut hole = Hole { from: end, to: end };
        while !self.clean_some(qp, entries, &mut hole) {}
        if detach {
            let qpn = qp.qpn();
            self.state.lock().qps.retain(|attached| attached.qpn != qpn);
        }
    }

    /// The index behind the newest entry that a queue pair which is done can have there.
    fn end(&self, entries: &Entries) -> u32 {
        let first = self.state.lock().consumer;
        let mut end = first;
        loop {
            let state = self.state.lock();
            // What is polled meanwhile was there before.
            if before(end, state.consumer) {
                end = state.consumer;
            }
            for _ in 0..STEP {
                // Its entries were there when this began, and so many fit in.
                if end.wrapping_sub(first) >= entries.count() || !entries.has(end) {
                    return end;
                }
                end = end.wrapping_add(1);
            }
        }
    }

    /// Looks at the entries before the hole, some of them: whether none is left.
    fn clean_some(&self, qp: &Qp<Verbena>, entries: &Entries, hole: &mut Hole) -> bool {
        let mut state = self.state.lock();
        for _ in 0..STEP {
            // Whoever polls has come to the hole, or is beyond it.
            if !before(state.consumer, hole.from) {
                break;
            }
            let index = hole.from.wrapping_sub(1);
            // Cannot fail: a place of the ring.
            let Ok(cqe) = entries.read(index) else {
                break;
            };
            hole.from = index;
            if cqe.qpn.get() == qp.qpn() {
                self.give_back(qp, entries.is_receive(&cqe, index), &cqe);
                continue;
            }
            let to = hole.to.wrapping_sub(1);
            if to != index && entries.move_to(&cqe, index, to).is_err() {
                // It is no entry: the device has changed it since.
                self.live
                    .distrust("an entry of a completion queue is no more");
            }
            hole.to = to;
        }
        if before(state.consumer, hole.from) {
            state.hole = *hole;
            return false;
        }
        // Nothing is left before the hole.
        state.hole = Hole::default();
        if before(state.consumer, hole.to) {
            state.consumer = hole.to;
            self.slot.consume(hole.to);
        }
        true
    }

    /// An entry of the queue pair is dropped.
    fn give_back(&self, qp: &Qp<Verbena>, is_receive: bool, cqe: &Cqe) {
        if let (true, Some(srq)) = (is_receive, qp.srq()) {
            if srq.complete(cqe.wr_id.get()).is_none() {
                self.live
                    .distrust("a completion of nothing outstanding, of a shared receive queue");
            }
        }
    }
}
