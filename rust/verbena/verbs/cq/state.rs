// SPDX-License-Identifier: GPL-2.0

//! What changes of a completion queue, and the kernel queue pairs that complete there.

use super::Verbena;
use crate::{
    abi::doorbell::{
        Arm,
        ArmMode, //
    },
    verbs::qp::Side, //
};
use kernel::prelude::*;
use rdma::{
    base::{
        sync::IrqLock,
        table::Held, //
    },
    qp::Qp, //
};

/// What changes.
pub(super) struct State {
    pub(super) consumer: u32,
    /// Entries between the consumer and the producer index that are no more: they have moved on.
    pub(super) hole: Hole,
    pub(super) arm: Arm,
    /// A handler waits for its call.
    pub(super) armed: bool,
    /// The index of the entry that [`CqData::stuck`](super::CqData::stuck) found waiting.
    pub(super) waiting: Option<u32>,
    /// An event may wait for more entries as long as it likes.
    pub(super) is_moderated: bool,
    /// The process has been woken because the device died.
    pub(super) woken: bool,
    /// Kernel queue pairs that use this queue; twice if they use it for both sides.
    pub(super) qps: KVVec<Attached>,
    /// The place of the one whose completion was polled last.
    pub(super) last: usize,
}

/// The indexes from `from` on and below `to`; they run freely.
#[derive(Clone, Copy, Default)]
pub(super) struct Hole {
    pub(super) from: u32,
    pub(super) to: u32,
}

/// A side of a queue pair that completes here. They are sorted.
pub(super) struct Attached {
    pub(super) qpn: u32,
    pub(super) side: Side,
    /// Until the queue pair is detached, which is before it is destroyed.
    pub(super) qp: Held<Qp<Verbena>>,
}

impl State {
    /// The index of the next entry, there or not.
    pub(super) fn next(&self) -> u32 {
        let Hole { from, to } = self.hole;
        if self.consumer.wrapping_sub(from) < to.wrapping_sub(from) {
            return to;
        }
        self.consumer
    }

    /// Where this side of a queue pair is, or belongs.
    pub(super) fn place(&self, qpn: u32, side: Side) -> Result<usize, usize> {
        self.qps
            .binary_search_by_key(&(qpn, side), |attached| (attached.qpn, attached.side))
    }

    /// Moves the queue pairs to `larger`, if it is; what they leave is there afterwards.
    fn move_to(&mut self, larger: &mut KVVec<Attached>) -> Result {
        if larger.capacity() > self.qps.capacity() {
            for attached in self.qps.drain_all() {
                larger.push_within_capacity(attached).map_err(|_| ENOMEM)?;
            }
            core::mem::swap(larger, &mut self.qps);
        }
        Ok(())
    }

    /// Whether the entry that a handler waits for now was there already when this was called last.
    pub(super) fn stuck(&mut self, has_entry: bool) -> bool {
        let is_due = self.armed && self.arm.mode == ArmMode::Next && !self.is_moderated;
        let waiting = (is_due && has_entry).then_some(self.next());
        let before = core::mem::replace(&mut self.waiting, waiting);
        waiting.is_some() && waiting == before
    }

    /// The queue pair, if that side of it completes here.
    pub(super) fn find(&mut self, qpn: u32, side: Side) -> Option<&Qp<Verbena>> {
        let is_last = |attached: &Attached| attached.qpn == qpn && attached.side == side;
        if !self.qps.get(self.last).is_some_and(is_last) {
            self.last = self.place(qpn, side).ok()?;
        }
        Some(&self.qps.get(self.last)?.qp)
    }
}

/// A side of a queue pair begins to complete here. May sleep: with many queue pairs it needs more memory than can be had
/// otherwise.
pub(super) fn attach(state: &IrqLock<State>, new: Attached) -> Result {
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
