// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues: polling, arming, and the removal of a queue pair's entries.
//!
//! A poll takes entries while their phase is that of the current pass over the ring, and translates
//! them. For each run of entries of one work queue, the poll publishes the consumer index of the CQ
//! and then moves the consumer index of the work queue past the completed entries. A program that
//! posts into the room that a completion made must find the entry of the CQ free too. In the
//! opposite order, a CQ with exactly as many entries as outstanding requests would overflow. When
//! the device is dead, polls do not read the ring any more. Instead they flush all outstanding
//! requests in the queue pairs of this CQ from the windows of the queue pairs.

use crate::errno::Errno;
use crate::ffi::lock::{Guard, Lock};
use crate::ffi::memory::{DoorbellMapping, MappedRing, RingEntry};
use crate::pending_registrations::PendingRegistrations;
use crate::qp::{Qp, ReceiveSource, Srq};
use crate::table::QpTable;
pub use crate::work_completion::WorkCompletion;
use crate::work_completion::IMM_QPN;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;
use verbena_abi::cqe::{Tail, CQE_SIZE, TAIL_OFFSET};
use verbena_abi::doorbell::{self, Arm, ArmMode, Words};

/// The ring of a CQ.
pub type CqRing = MappedRing<CQE_SIZE>;

/// Stride of a CQ ring in bytes, as a power of two.
pub const LOG_STRIDE: u8 = CQE_SIZE.trailing_zeros() as u8;

/// A completion queue.
///
/// The lock is held from `ibv_start_poll` to `ibv_end_poll`. Meanwhile the program may arm the CQ
/// and create objects that complete there. Neither takes the lock, except as [`Cq::attach`]
/// describes.
pub struct Cq {
    area: Arc<DoorbellMapping>,
    slot: usize,
    state: Lock<CqState>,
    /// Index, sequence number and mode of the last arm.
    arm: Lock<Arm>,
    /// Index after that of the last completion that the program has polled, for the next arm.
    arm_index: AtomicU32,
    pending_qps: PendingRegistrations<Qp>,
    pending_srqs: PendingRegistrations<Srq>,
}

/// State of a CQ that its lock protects.
pub struct CqState {
    ring: CqRing,
    log_size: u8,
    /// Consumer index at the last resize, whose entry is the first of the ring.
    base: u32,
    /// Index of the next entry to read.
    consumer: u32,
    /// Completions before `consumer` that the program has not polled yet, with their indexes: see
    /// [`Cq::clean`]. Each of them occupies an entry: for the device, they are the last entries
    /// before `consumer`.
    saved: VecDeque<(u32, WorkCompletion)>,
    /// True once outstanding work is flushed in software. Entries that a dead device still writes
    /// are then ignored, because otherwise a work request could complete twice.
    flushing: bool,
    /// True if a poll has to take the slow path first: completions are saved, or work is flushed.
    needs_slow_path: bool,
    /// Queue pairs that complete here, except for those whose registration is pending.
    qps: QpTable,
    /// SRQs for extended connections that complete here. Their entries name an XRC target, which
    /// another process may own.
    srqs: Vec<Arc<Srq>>,
    /// Completion that the readers of the extended poll read.
    pub current: WorkCompletion,
}

impl Cq {
    pub fn new(ring: CqRing, log_size: u8, area: Arc<DoorbellMapping>, slot: usize) -> Self {
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
                needs_slow_path: false,
                qps: QpTable::default(),
                srqs: Vec::new(),
                current: WorkCompletion::default(),
            }),
            arm: Lock::new(Arm {
                index: 0,
                seq: 0,
                mode: ArmMode::None,
            }),
            arm_index: AtomicU32::new(0),
            pending_qps: PendingRegistrations::default(),
            pending_srqs: PendingRegistrations::default(),
        }
    }

    /// Returns the lock itself, for a poll that spans several calls from C.
    pub fn state(&self) -> &Lock<CqState> {
        &self.state
    }

    /// Waits for the lock and registers the pending objects.
    fn lock(&self) -> Guard<'_, CqState> {
        let mut state = self.state.lock();
        self.register_pending(&mut state);
        state
    }

    /// Registers the pending objects. Nothing completes for an object before it is among them. A
    /// poll that has seen an entry, and then calls this function, therefore knows the owner of the
    /// entry.
    fn register_pending(&self, state: &mut CqState) {
        for qp in self.pending_qps.take() {
            state.qps.insert(&qp);
        }
        state.srqs.append(&mut self.pending_srqs.take());
    }

    /// Takes up to `most` completions, passes them to `sink` and returns their number. Fewer than
    /// `most` means that the CQ is empty.
    #[inline(always)]
    pub fn poll(&self, most: usize, mut sink: impl FnMut(usize, &WorkCompletion)) -> usize {
        let mut state = self.state.lock();
        let mut count = 0;
        while count < most {
            // The usual case stays in registers; every other case takes the slow path.
            count += self.take(&mut state, most - count, |index, one| {
                sink(count + index, one);
            });
            if count == most || self.is_empty(&state) {
                break;
            }
            let Some(completion) = self.next_slow(&mut state) else {
                break;
            };
            sink(count, &completion);
            count += 1;
        }
        count
    }

    /// Takes up to `most` entries, until an entry is missing or needs the slow path, and returns
    /// their number.
    #[inline(always)]
    fn take(
        &self,
        state: &mut CqState,
        most: usize,
        mut sink: impl FnMut(usize, &WorkCompletion),
    ) -> usize {
        let mut count = 0;
        let mut run: Option<CompletionRun<'_>> = None;
        while count < most && !state.needs_slow_path {
            let Some((entry, tail)) = state.next_written() else {
                break;
            };
            let imm_qpn = entry.get::<IMM_QPN>();
            let Some(qp) = state.qps.find((imm_qpn >> 32) as u32) else {
                break;
            };
            let Some(completion) = WorkCompletion::read(entry, imm_qpn, tail) else {
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
                        self.retire_run(state, run);
                    }
                    run = Some(CompletionRun { qp, receive, index });
                }
            }
            state.consumer = state.consumer.wrapping_add(1);
            sink(count, &completion);
            count += 1;
        }
        if let Some(run) = &run {
            self.retire_run(state, run);
        }
        count
    }

    /// Frees the entries that a run occupied: first those of the CQ, then those of the work queue.
    #[inline(always)]
    fn retire_run(&self, state: &CqState, run: &CompletionRun<'_>) {
        self.publish(state);
        run.qp.retire(run.receive, run.index);
    }

    /// Publishes the consumer index for the device. Saved completions still occupy their entries.
    #[inline(always)]
    fn publish(&self, state: &CqState) {
        self.arm_index.store(state.arm_index(), Ordering::Relaxed);
        self.area
            .store_release(doorbell::cq_consumer(self.slot), state.published_index());
    }

    /// True if the device is alive and there is nothing to poll.
    #[inline(always)]
    fn is_empty(&self, state: &CqState) -> bool {
        state.next_written().is_none() && state.saved.is_empty() && self.area.is_alive()
    }

    /// Takes the next completion. Its entry is free at once, so the program may post in its place
    /// before it takes another completion.
    #[inline(always)]
    pub fn next(&self, state: &mut CqState) -> Option<WorkCompletion> {
        let mut next = None;
        if self.take(state, 1, |_, one| next = Some(*one)) == 0 {
            return self.next_slow(state);
        }
        next
    }

    /// Takes the next completion on the slow path: a saved completion, an entry of the ring, or a
    /// flushed request.
    #[cold]
    #[inline(never)]
    fn next_slow(&self, state: &mut CqState) -> Option<WorkCompletion> {
        if let Some((_, completion)) = state.saved.pop_front() {
            self.register_pending(state);
            state.needs_slow_path = state.flushing || !state.saved.is_empty();
            self.publish(state);
            state.retire(&completion);
            return Some(completion);
        }
        // The entry is read before the pending objects are registered. In the opposite order, an
        // entry of an object that arrives in between would be skipped as unusable.
        while let Some(completion) = state.next_entry() {
            self.register_pending(state);
            state.consumer = state.consumer.wrapping_add(1);
            self.publish(state);
            if state.retire(&completion) {
                return Some(completion);
            }
            // An entry that names no queue pair and no SRQ of this CQ is skipped. It does not end
            // the poll.
        }
        if self.area.is_alive() {
            return None;
        }
        (state.flushing, state.needs_slow_path) = (true, true);
        self.register_pending(state);
        self.flush(state)
    }

    /// Returns the flushed completion of the next outstanding work request of any queue pair here,
    /// after the device has died. The requests of each queue are flushed in order.
    #[cold]
    #[inline(never)]
    fn flush(&self, state: &CqState) -> Option<WorkCompletion> {
        for qp in state.qps.iter() {
            if core::ptr::eq(&*qp.send_cq, self) {
                if let Some(wr_id) = qp.sends.flush_one() {
                    return Some(WorkCompletion::flushed(qp.qpn, false, wr_id));
                }
            }
            if core::ptr::eq(&*qp.recv_cq, self) {
                if let ReceiveSource::Own(queue) = &qp.receives {
                    if let Some(wr_id) = queue.flush_one() {
                        return Some(WorkCompletion::flushed(qp.qpn, true, wr_id));
                    }
                }
            }
        }
        None
    }

    /// Requests an event for the next completion, or for the next solicited one.
    pub fn arm(&self, solicited: bool) {
        if !self.area.is_alive() {
            return;
        }
        let mode = if solicited {
            ArmMode::Solicited
        } else {
            ArmMode::Next
        };
        let mut last = self.arm.lock();
        // A thread that polls at the same time may have seen more completions. The event then
        // announces completions that the other thread takes.
        let arm_index = self.arm_index.load(Ordering::Relaxed);
        doorbell::arm_cq(&*self.area, self.slot, &mut last, arm_index, mode, || {
            self.area.ring();
        });
    }

    /// Moves the CQ to the ring that `make` returns, after `move_entries` has moved the entries
    /// there. No poll runs meanwhile.
    ///
    /// # Errors
    ///
    /// Returns the error of either function; the CQ is then unchanged.
    pub fn resize(
        &self,
        make: impl FnOnce() -> Result<(CqRing, u8), Errno>,
        move_entries: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock_long();
        let (ring, log_size) = make()?;
        move_entries()?;
        (state.ring, state.log_size) = (ring, log_size);
        // The device has put the entries from the published consumer index on into the new ring.
        state.base = state.published_index();
        Ok(())
    }

    /// Registers `qp` with this CQ.
    ///
    /// The kernel may have reused the number of a queue pair that is being destroyed and is still
    /// registered here. That queue pair cannot have further completions, and `qp` has none yet. All
    /// entries with the number therefore belong to the old queue pair. Only in this case does the
    /// function wait for the lock.
    pub fn attach(&self, qp: &Arc<Qp>) {
        if self.pending_qps.add(qp.qpn, qp) {
            return;
        }
        let mut state = self.lock();
        if let Some(replaced) = state.qps.remove(qp.qpn) {
            self.clean_locked(&mut state, &replaced);
        }
        state.qps.insert(qp);
        self.pending_qps.mark_registered(qp.qpn);
    }

    /// Removes `qp`'s completions and the registration of `qp`, unless another queue pair with the
    /// same number has taken its place.
    pub fn detach(&self, qp: &Qp) {
        let mut state = self.lock();
        if state.qps.contains(qp) {
            self.clean_locked(&mut state, qp);
            state.qps.remove(qp.qpn);
            self.pending_qps.unregister(qp.qpn);
        }
    }

    /// Registers an SRQ for extended connections whose receives complete here.
    ///
    /// As in [`attach`](Self::attach), the kernel may have reused the number of an SRQ that is
    /// still registered here. All entries with the number belong to the old SRQ.
    pub fn attach_srq(&self, srq: &Arc<Srq>) {
        if self.pending_srqs.add(srq.srqn, srq) {
            return;
        }
        let mut state = self.lock();
        if state.srqs.iter().any(|other| other.srqn == srq.srqn) {
            self.unregister_srq(&mut state, srq.srqn);
        }
        state.srqs.push(Arc::clone(srq));
        self.pending_srqs.mark_registered(srq.srqn);
    }

    /// Removes the completions and the registration of an SRQ, unless another SRQ with the same
    /// number has taken its place.
    pub fn detach_srq(&self, srq: &Arc<Srq>) {
        let mut state = self.lock();
        if state.srqs.iter().any(|other| Arc::ptr_eq(other, srq)) {
            self.unregister_srq(&mut state, srq.srqn);
            self.pending_srqs.unregister(srq.srqn);
        }
    }

    fn unregister_srq(&self, state: &mut CqState, srqn: u32) {
        state.save();
        self.register_pending(state);
        // A basic SRQ may have the number by now. Its completions name a queue pair that is
        // registered here, so they are kept.
        let mut saved = core::mem::take(&mut state.saved);
        saved.retain(|(_, one)| !one.is_from_srq(srqn) || state.qps.find(one.qpn()).is_some());
        state.saved = saved;
        state.srqs.retain(|srq| srq.srqn != srqn);
        state.needs_slow_path = state.flushing || !state.saved.is_empty();
        self.publish(state);
    }

    /// Removes `qp`'s completions and then calls `then`, with no poll in between. The device does
    /// not write completions of `qp` any more.
    pub fn clean(&self, qp: &Qp, then: impl FnOnce()) {
        let mut state = self.lock();
        self.clean_locked(&mut state, qp);
        then();
    }

    /// Removes `qp`'s completions under the lock.
    ///
    /// Only the device writes the ring, so the completions of other queue pairs move to `saved`. As
    /// if they had moved up in the ring, they occupy as many entries as before; only the entries of
    /// `qp` are freed.
    fn clean_locked(&self, state: &mut CqState, qp: &Qp) {
        state.save();
        let mut saved = core::mem::take(&mut state.saved);
        saved.retain(|(_, completion)| {
            let own = completion.qpn() == qp.qpn && qp.owns(completion);
            if own && completion.is_receive() {
                if let ReceiveSource::Shared(srq) = &qp.receives {
                    srq.queue.window().retire_shared(completion.wqe_index());
                }
            }
            !own
        });
        state.saved = saved;
        state.needs_slow_path = state.flushing || !state.saved.is_empty();
        self.publish(state);
    }
}

/// Consecutive completions of one work queue, all of which the highest index retires.
struct CompletionRun<'a> {
    qp: &'a Qp,
    receive: bool,
    index: u32,
}

impl CompletionRun<'_> {
    /// Keeps the highest index, because completions of an SRQ may be out of order.
    #[inline(always)]
    fn extend(&mut self, index: u32) {
        if index.wrapping_sub(self.index) as i32 > 0 {
            self.index = index;
        }
    }
}

impl CqState {
    /// Returns the place and the tail of the next entry, if the device has written the entry.
    #[inline(always)]
    fn next_written(&self) -> Option<(RingEntry<'_, CQE_SIZE>, u32)> {
        let place = self.consumer.wrapping_sub(self.base);
        let entry = self.ring.entry(place);
        let tail = entry.get32_acquire::<TAIL_OFFSET>();
        (!self.flushing && Tail::is_valid(tail, place, self.log_size)).then_some((entry, tail))
    }

    /// Returns the next entry, if the device has written it.
    fn next_entry(&self) -> Option<WorkCompletion> {
        let (entry, tail) = self.next_written()?;
        WorkCompletion::read(entry, entry.get::<IMM_QPN>(), tail)
    }

    /// Moves the completions in the ring to `saved`.
    fn save(&mut self) {
        let published_index = self.published_index();
        while self.consumer.wrapping_sub(published_index) < self.ring.size() {
            let Some(completion) = self.next_entry() else {
                break;
            };
            self.saved.push_back((self.consumer, completion));
            self.consumer = self.consumer.wrapping_add(1);
        }
    }

    /// Retires the work request of a completion in its queue pair or SRQ. Returns false if the
    /// completion belongs to neither.
    fn retire(&self, completion: &WorkCompletion) -> bool {
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

    /// Returns the SRQ for extended connections from which a receive was taken.
    fn srq_of(&self, completion: &WorkCompletion) -> Option<&Srq> {
        let mut srqs = self.srqs.iter();
        srqs.find(|srq| completion.is_from_srq(srq.srqn))
            .map(|srq| &**srq)
    }

    /// Returns the consumer index that is published for the device.
    #[inline(always)]
    fn published_index(&self) -> u32 {
        // The ring has at least as many entries as there are saved completions.
        self.consumer.wrapping_sub(self.saved.len() as u32)
    }

    /// Returns the index after that of the last completion that the program has polled.
    #[inline(always)]
    fn arm_index(&self) -> u32 {
        self.saved
            .front()
            .map_or(self.consumer, |(index, _)| *index)
    }
}
