// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues: polling, arming, and taking a queue pair's entries out again.
//!
//! A poll takes entries while their phase is that of the pass and translates them. For each run of entries of one work
//! queue it publishes its own consumer index, and then moves the work queue's behind what completed. In this order:
//! whoever posts into the room that a completion made must find the CQ's entry free too, or a CQ that holds exactly what
//! is outstanding would overflow. When the device is dead the ring is not looked at any more: then everything outstanding
//! in the queue pairs of this CQ is flushed from their windows.

pub use crate::completion::Completion;
use crate::completion::IMM_QPN;
use crate::errno::Errno;
use crate::ffi::lock::{Guard, Lock};
use crate::ffi::memory::{Area, Entry, Ring};
use crate::newcomers::Newcomers;
use crate::qp::{Qp, Receives, Srq};
use crate::table::QpTable;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;
use verbena_abi::cqe::{Tail, CQE_SIZE, TAIL_OFFSET};
use verbena_abi::doorbell::{self, Arm, ArmMode, Words};

/// The ring of a CQ.
pub type CqRing = Ring<CQE_SIZE>;

/// The stride of the ring as a power of two.
pub const LOG_STRIDE: u8 = CQE_SIZE.trailing_zeros() as u8;

/// A completion queue.
///
/// Its lock is held from `ibv_start_poll` to `ibv_end_poll`. What a program may do meanwhile, arm the CQ and create what
/// completes there, does not need it.
pub struct Cq {
    area: Arc<Area>,
    slot: usize,
    state: Lock<CqState>,
    /// The last arm.
    arm: Lock<Arm>,
    /// The index behind the last completion that the program has seen, for the next one.
    seen: AtomicU32,
    new_qps: Newcomers<Qp>,
    new_srqs: Newcomers<Srq>,
}

/// What the lock of a CQ protects.
pub struct CqState {
    ring: CqRing,
    log_size: u8,
    /// The index whose entry is the first of the ring: where the consumer was when the entries were moved last.
    base: u32,
    /// The next entry to look at.
    consumer: u32,
    /// Completions before it that were not polled yet, with their indexes: see [`Cq::clean`]. Each keeps the place of an
    /// entry: to the device they are the last ones before `consumer`.
    saved: VecDeque<(u32, Completion)>,
    /// Outstanding work is being flushed: what a device that is dead writes all the same is not looked at any more, or
    /// a work request could complete twice.
    flushing: bool,
    /// Whether a poll has to go the long way first: something is saved, or flushed.
    aside: bool,
    /// The queue pairs that complete here, but for newcomers.
    qps: QpTable,
    /// The SRQs for extended connections that complete here: their entries name a target, which may be another process'.
    srqs: Vec<Arc<Srq>>,
    /// The entry that `ibv_next_poll` reads from.
    pub current: Completion,
}

impl Cq {
    pub fn new(ring: CqRing, log_size: u8, area: Arc<Area>, slot: usize) -> Self {
        Self {
            area,
            slot,
            state: Lock::new(CqState {
                ring,
                log_size,
                base: 0,
                consumer: 0,
                saved: VecDeque::new(),
                flushing: false,
                aside: false,
                qps: QpTable::default(),
                srqs: Vec::new(),
                current: Completion::default(),
            }),
            arm: Lock::new(Arm {
                index: 0,
                seq: 0,
                mode: ArmMode::None,
            }),
            seen: AtomicU32::new(0),
            new_qps: Newcomers::default(),
            new_srqs: Newcomers::default(),
        }
    }

    /// The lock itself, for a poll that spans several calls from C.
    pub fn state(&self) -> &Lock<CqState> {
        &self.state
    }

    /// Waits for the lock; whoever has come so far is known then.
    fn lock(&self) -> Guard<'_, CqState> {
        let mut state = self.state.lock();
        self.let_in(&mut state);
        state
    }

    /// Makes those known who have come. Nothing completes for one that has not, so who sees an entry, and asks then, knows whose it is.
    fn let_in(&self, state: &mut CqState) {
        for qp in self.new_qps.take() {
            state.qps.insert(&qp);
        }
        state.srqs.append(&mut self.new_srqs.take());
    }

    /// Takes up to `most` completions and hands them to `sink`; returns how many. Fewer means that the CQ is empty.
    #[inline(always)]
    pub fn poll(&self, most: usize, mut sink: impl FnMut(usize, &Completion)) -> usize {
        let mut state = self.state.lock();
        let mut count = 0;
        while count < most {
            // What is usual stays in registers; everything else goes the long way.
            count += self.take(&mut state, most - count, |index, one| {
                sink(count + index, one);
            });
            if count == most || self.is_empty(&state) {
                break;
            }
            let Some(completion) = self.next_unusual(&mut state) else {
                break;
            };
            sink(count, &completion);
            count += 1;
        }
        count
    }

    /// Takes entries as long as they are there and usual, `most` at most; returns how many.
    #[inline(always)]
    fn take(
        &self,
        state: &mut CqState,
        most: usize,
        mut sink: impl FnMut(usize, &Completion),
    ) -> usize {
        let mut count = 0;
        let mut run: Option<Run<'_>> = None;
        while count < most && !state.aside {
            let Some((entry, tail)) = state.written() else {
                break;
            };
            let imm_qpn = entry.get::<IMM_QPN>();
            let Some(qp) = state.qps.find((imm_qpn >> 32) as u32) else {
                break;
            };
            let Some(completion) = Completion::read(entry, imm_qpn, tail) else {
                break;
            };
            if !qp.owns(&completion) {
                break;
            }
            let (receive, index) = (completion.is_receive(), completion.wqe_index());
            match &mut run {
                Some(run) if core::ptr::eq(run.qp, qp) && run.receive == receive => {
                    run.extend(index)
                }
                _ => {
                    if let Some(run) = &run {
                        self.settle(state, run);
                    }
                    run = Some(Run { qp, receive, index });
                }
            }
            state.consumer = state.consumer.wrapping_add(1);
            sink(count, &completion);
            count += 1;
        }
        if let Some(run) = &run {
            self.settle(state, run);
        }
        count
    }

    /// Gives back what a run held: first the CQ's entries, then the work queue's.
    #[inline(always)]
    fn settle(&self, state: &CqState, run: &Run<'_>) {
        self.publish(state);
        run.qp.retire(run.receive, run.index);
    }

    /// Tells the device how far the CQ was polled. What is saved still counts.
    #[inline(always)]
    fn publish(&self, state: &CqState) {
        self.seen.store(state.seen(), Ordering::Relaxed);
        self.area
            .store_release(doorbell::cq_consumer(self.slot), state.polled());
    }

    /// Whether there is nothing to poll.
    #[inline(always)]
    fn is_empty(&self, state: &CqState) -> bool {
        state.written().is_none() && state.saved.is_empty() && self.area.alive()
    }

    /// Takes the next completion. Its place is free at once: the program may post in its stead before it takes another.
    #[inline(always)]
    pub fn next(&self, state: &mut CqState) -> Option<Completion> {
        let mut next = None;
        if self.take(state, 1, |_, one| next = Some(*one)) == 0 {
            return self.next_unusual(state);
        }
        next
    }

    /// Takes the next completion, whatever there is.
    #[cold]
    #[inline(never)]
    fn next_unusual(&self, state: &mut CqState) -> Option<Completion> {
        if let Some((_, completion)) = state.saved.pop_front() {
            self.let_in(state);
            state.aside = state.flushing || !state.saved.is_empty();
            self.publish(state);
            state.retire(&completion);
            return Some(completion);
        }
        // First whether the entry is there, then what it is: one that appears in between must not pass for unusable.
        while let Some(completion) = state.next_entry() {
            self.let_in(state);
            state.consumer = state.consumer.wrapping_add(1);
            self.publish(state);
            if state.retire(&completion) {
                return Some(completion);
            }
            // An entry that names no queue pair and no SRQ of this CQ cannot be used; it does not end the poll.
        }
        if self.area.alive() {
            return None;
        }
        (state.flushing, state.aside) = (true, true);
        self.let_in(state);
        self.flush(state)
    }

    /// Dead device: the next outstanding work request of any queue pair here, in order for each queue.
    #[cold]
    #[inline(never)]
    fn flush(&self, state: &CqState) -> Option<Completion> {
        for qp in state.qps.iter() {
            if core::ptr::eq(&*qp.send_cq, self) {
                if let Some(wr_id) = qp.sends.flush_one() {
                    return Some(Completion::flushed(qp.qpn, false, wr_id));
                }
            }
            if core::ptr::eq(&*qp.recv_cq, self) {
                if let Receives::Own(queue) = &qp.receives {
                    if let Some(wr_id) = queue.flush_one() {
                        return Some(Completion::flushed(qp.qpn, true, wr_id));
                    }
                }
            }
        }
        None
    }

    /// Asks for an event at the next completion, or the next solicited one.
    pub fn arm(&self, solicited: bool) {
        if !self.area.alive() {
            return;
        }
        let mode = if solicited {
            ArmMode::Solicited
        } else {
            ArmMode::Next
        };
        let mut last = self.arm.lock();
        // While another thread polls, it may have seen more: then the event tells of what that one takes.
        let seen = self.seen.load(Ordering::Relaxed);
        doorbell::arm_cq(&*self.area, self.slot, &mut last, seen, mode, || {
            self.area.ring();
        });
    }

    /// Moves the entries to the ring that `make` makes when `move_entries` says so. Nothing is polled meanwhile.
    ///
    /// # Errors
    ///
    /// What either says; then nothing has changed.
    pub fn resize(
        &self,
        make: impl FnOnce() -> Result<(CqRing, u8), Errno>,
        move_entries: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock_long();
        let (ring, log_size) = make()?;
        move_entries()?;
        (state.ring, state.log_size) = (ring, log_size);
        // What the device saw as the consumer index; it has put the entries from there on into the new ring.
        state.base = state.polled();
        Ok(())
    }

    /// Makes `qp`'s completions known here.
    ///
    /// The kernel may have handed out the number of one that is being destroyed and is still known here. Nothing more can
    /// complete there, and nothing of `qp` has yet: what is found belongs to that one. This alone waits for the lock.
    pub fn attach(&self, qp: &Arc<Qp>) {
        if self.new_qps.put(qp.qpn, qp) {
            return;
        }
        let mut state = self.lock();
        if let Some(gone) = state.qps.remove(qp.qpn) {
            self.clean_locked(&mut state, &gone);
        }
        state.qps.insert(qp);
        self.new_qps.know(qp.qpn);
    }

    /// Takes `qp`'s completions out and forgets it, unless its number has brought another here.
    pub fn detach(&self, qp: &Qp) {
        let mut state = self.lock();
        if state.qps.has(qp) {
            self.clean_locked(&mut state, qp);
            state.qps.remove(qp.qpn);
            self.new_qps.forget(qp.qpn);
        }
    }

    /// Makes known an SRQ for extended connections whose receives complete here.
    ///
    /// As in [`attach`](Self::attach), the kernel may have handed out the number of one that is still known here: what is found
    /// belongs to that one.
    pub fn attach_srq(&self, srq: &Arc<Srq>) {
        if self.new_srqs.put(srq.srqn, srq) {
            return;
        }
        let mut state = self.lock();
        if state.srqs.iter().any(|other| other.srqn == srq.srqn) {
            self.forget_srq(&mut state, srq.srqn);
        }
        state.srqs.push(Arc::clone(srq));
        self.new_srqs.know(srq.srqn);
    }

    /// Takes an SRQ's completions out and forgets it, unless its number has brought another here.
    pub fn detach_srq(&self, srq: &Arc<Srq>) {
        let mut state = self.lock();
        if state.srqs.iter().any(|other| Arc::ptr_eq(other, srq)) {
            self.forget_srq(&mut state, srq.srqn);
            self.new_srqs.forget(srq.srqn);
        }
    }

    fn forget_srq(&self, state: &mut CqState, srqn: u32) {
        state.save();
        self.let_in(state);
        // A basic one may have the number by now: its completions name a queue pair that is known here.
        let mut saved = core::mem::take(&mut state.saved);
        saved.retain(|(_, one)| !one.is_of(srqn) || state.qps.find(one.qpn()).is_some());
        state.saved = saved;
        state.srqs.retain(|srq| srq.srqn != srqn);
        state.aside = state.flushing || !state.saved.is_empty();
        self.publish(state);
    }

    /// Takes `qp`'s completions out; then `then`, which no poll comes between. The device writes none of them any more.
    pub fn clean(&self, qp: &Qp, then: impl FnOnce()) {
        let mut state = self.lock();
        self.clean_locked(&mut state, qp);
        then();
    }

    /// The ring is the device's alone to write, so what belongs to other queue pairs is saved from it. As if it had moved
    /// up in the ring, it keeps as many entries as it had: only those of `qp` are given back.
    fn clean_locked(&self, state: &mut CqState, qp: &Qp) {
        state.save();
        let mut saved = core::mem::take(&mut state.saved);
        saved.retain(|(_, completion)| {
            let own = completion.qpn() == qp.qpn && qp.owns(completion);
            if own && completion.is_receive() {
                if let Receives::Shared(srq) = &qp.receives {
                    srq.queue.window().retire_shared(completion.wqe_index());
                }
            }
            !own
        });
        state.saved = saved;
        state.aside = state.flushing || !state.saved.is_empty();
        self.publish(state);
    }
}

/// Completions of one work queue in a row: the newest one says what is done.
struct Run<'a> {
    qp: &'a Qp,
    receive: bool,
    index: u32,
}

impl Run<'_> {
    /// An SRQ's need not be in order.
    #[inline(always)]
    fn extend(&mut self, index: u32) {
        if index.wrapping_sub(self.index) as i32 > 0 {
            self.index = index;
        }
    }
}

impl CqState {
    /// The next entry's place and tail, if it is there.
    #[inline(always)]
    fn written(&self) -> Option<(Entry<'_, CQE_SIZE>, u32)> {
        let place = self.consumer.wrapping_sub(self.base);
        let entry = self.ring.entry(place);
        let tail = entry.get32_acquire::<TAIL_OFFSET>();
        (!self.flushing && Tail::is_valid(tail, place, self.log_size)).then_some((entry, tail))
    }

    /// The next entry, if it is there.
    fn next_entry(&self) -> Option<Completion> {
        let (entry, tail) = self.written()?;
        Completion::read(entry, entry.get::<IMM_QPN>(), tail)
    }

    /// Sets aside what lies in the ring.
    fn save(&mut self) {
        let polled = self.polled();
        while self.consumer.wrapping_sub(polled) < self.ring.size() {
            let Some(completion) = self.next_entry() else {
                break;
            };
            self.saved.push_back((self.consumer, completion));
            self.consumer = self.consumer.wrapping_add(1);
        }
    }

    /// Gives back to its queue pair, or SRQ, what a completion held; false if it is of neither.
    fn retire(&self, completion: &Completion) -> bool {
        let index = completion.wqe_index();
        let qp = self.qps.find(completion.qpn());
        if let Some(qp) = qp.filter(|qp| qp.owns(completion)) {
            qp.retire(completion.is_receive(), index);
        } else if let Some(srq) = self.srq_of(completion) {
            srq.queue.window().retire_shared(index);
        } else {
            return false;
        }
        true
    }

    /// The SRQ for extended connections that a receive was taken from.
    fn srq_of(&self, completion: &Completion) -> Option<&Srq> {
        let mut srqs = self.srqs.iter();
        srqs.find(|srq| completion.is_of(srq.srqn))
            .map(|srq| &**srq)
    }

    /// The consumer index as the device is to see it.
    #[inline(always)]
    fn polled(&self) -> u32 {
        // At most as many as the ring has entries.
        self.consumer.wrapping_sub(self.saved.len() as u32)
    }

    /// The index behind the last completion that the program has seen.
    #[inline(always)]
    fn seen(&self) -> u32 {
        self.saved
            .front()
            .map_or(self.consumer, |(index, _)| *index)
    }
}
