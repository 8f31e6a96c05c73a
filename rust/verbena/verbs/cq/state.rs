// SPDX-License-Identifier: GPL-2.0

//! The changing state of a completion queue, and the kernel queue pairs that complete in it.

use super::Verbena;
use crate::{
    abi::doorbell::{
        Arm,
        ArmMode, //
    },
    verbs::wq::QueueSide, //
};
use base::{
    sync::IrqLock,
    table::Held, //
};
use kernel::prelude::*;
use rdma::qp::Qp;

/// Changing state of a completion queue.
pub(super) struct CqPollState {
    pub(super) consumer: u32,
    /// Entries between the consumer and the producer index that were moved up or dropped, which
    /// polls skip.
    pub(super) skipped: SkippedRange,
    pub(super) arm: Arm,
    /// True if a handler waits for a call.
    pub(super) armed: bool,
    /// Index of the entry that [`CqData::has_missed_event`](super::CqData::has_missed_event) found
    /// waiting.
    pub(super) waiting: Option<u32>,
    /// True if an event may wait for more entries without a time limit.
    pub(super) is_moderated: bool,
    /// True if the process has been woken because of the death of the device.
    pub(super) woken: bool,
    /// Kernel queue pairs that use this queue, sorted by QPN and side. A queue pair that uses it
    /// for both sides is in it twice.
    pub(super) qps: KVVec<AttachedQp>,
    /// Place in `qps` of the queue pair whose completion was polled last.
    pub(super) last: usize,
}

/// Free-running indexes from `from` on and below `to`.
#[derive(Clone, Copy, Default)]
pub(super) struct SkippedRange {
    pub(super) from: u32,
    pub(super) to: u32,
}

/// A side of a queue pair that completes in this queue.
pub(super) struct AttachedQp {
    pub(super) qpn: u32,
    pub(super) side: QueueSide,
    /// Reference to the queue pair until it is detached, which is before it is destroyed.
    pub(super) qp: Held<Qp<Verbena>>,
}

impl CqPollState {
    /// Returns the index of the next entry to poll, whether the entry is there or not.
    pub(super) fn next(&self) -> u32 {
        let SkippedRange { from, to } = self.skipped;
        if self.consumer.wrapping_sub(from) < to.wrapping_sub(from) {
            return to;
        }
        self.consumer
    }

    /// Returns the place of this side of a queue pair, or as an error the place where it belongs.
    pub(super) fn place(&self, qpn: u32, side: QueueSide) -> Result<usize, usize> {
        self.qps
            .binary_search_by_key(&(qpn, side), |attached| (attached.qpn, attached.side))
    }

    /// Moves the queue pairs to `larger`, if it is larger. Afterwards `larger` is the old vector.
    fn move_to(&mut self, larger: &mut KVVec<AttachedQp>) -> Result {
        if larger.capacity() > self.qps.capacity() {
            for attached in self.qps.drain_all() {
                larger.push_within_capacity(attached).map_err(|_| ENOMEM)?;
            }
            core::mem::swap(larger, &mut self.qps);
        }
        Ok(())
    }

    /// True if the entry that a handler waits for now was already there at the previous call.
    pub(super) fn has_missed_event(&mut self, has_entry: bool) -> bool {
        let is_due = self.armed && self.arm.mode == ArmMode::Next && !self.is_moderated;
        let waiting = (is_due && has_entry).then_some(self.next());
        let before = core::mem::replace(&mut self.waiting, waiting);
        waiting.is_some() && waiting == before
    }

    /// Returns the queue pair, if this side of it completes in this queue.
    pub(super) fn find(&mut self, qpn: u32, side: QueueSide) -> Option<&Qp<Verbena>> {
        let is_last = |attached: &AttachedQp| attached.qpn == qpn && attached.side == side;
        if !self.qps.get(self.last).is_some_and(is_last) {
            self.last = self.place(qpn, side).ok()?;
        }
        Some(&self.qps.get(self.last)?.qp)
    }
}

/// Adds a side of a queue pair to those that complete in this queue. Returns `EBUSY` if it is there
/// already. May sleep, because a list of many queue pairs needs more memory than an allocation that
/// does not sleep can provide.
pub(super) fn attach(state: &IrqLock<CqPollState>, new: AttachedQp) -> Result {
    let mut larger = KVVec::new();
    loop {
        let mut guard = state.lock();
        let state = &mut *guard;
        let Err(place) = state.place(new.qpn, new.side) else {
            return Err(EBUSY);
        };
        state.move_to(&mut larger)?;
        let capacity = state.qps.capacity();
        if state.qps.len() < capacity {
            let inserted = state.qps.insert_within_capacity(place, new);
            return inserted.map_err(|_| ENOMEM);
        }
        drop(guard);
        larger = KVVec::with_capacity(2 * capacity.max(4), GFP_KERNEL)?;
    }
}
