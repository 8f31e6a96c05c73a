// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues: polling, arming, and taking a queue pair's entries out again.
//!
//! A poll takes entries while their phase is that of the pass and translates them. For each run of entries of one work
//! queue it publishes its own consumer index, and then moves the work queue's behind what completed. In this order:
//! whoever posts into the room that a completion made must find the CQ's entry free too, or a CQ that holds exactly what
//! is outstanding would overflow. When the device is dead the ring is not looked at any more: then everything outstanding
//! in the queue pairs of this CQ is flushed from their windows.

use crate::errno::Errno;
use crate::ffi::lock::Lock;
use crate::ffi::memory::{Area, Entry, Ring};
use crate::qp::{Qp, Receives, Srq};
use crate::table::QpTable;
use crate::wall_clock::{system_clock, WallClock};
use core::mem::offset_of;
use std::collections::VecDeque;
use std::sync::Arc;
use verbena_abi::cqe::{Cqe, Tail, WcOpcode, WcStatus, CQE_SIZE, TAIL_OFFSET, WC_OPCODE_RECV};
use verbena_abi::doorbell::{self, Arm, ArmMode, Words};
use verbena_abi::syndrome::Syndrome;

/// The ring of a CQ.
pub type CqRing = Ring<CQE_SIZE>;

/// The stride of the ring as a power of two.
pub const LOG_STRIDE: u8 = CQE_SIZE.trailing_zeros() as u8;

/// A completion queue.
pub struct Cq {
    area: Arc<Area>,
    slot: usize,
    state: Lock<CqState>,
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
    /// The last arm.
    arm: Arm,
    /// The queue pairs that complete here.
    qps: QpTable,
    /// The SRQs for extended connections that complete here: their entries name a target, which may be another process'.
    srqs: Vec<Arc<Srq>>,
    wall_clock: WallClock,
    /// The entry that `ibv_next_poll` reads from.
    pub current: Completion,
}

/// A completion: the words of its CQE, which are turned into what C reads without taking them apart more than needed.
#[derive(Clone, Copy, Default)]
pub struct Completion {
    pub wr_id: u64,
    /// Index of the WQE, then the length.
    index_length: u64,
    /// Immediate data as it lies in memory, then the QPN.
    imm_qpn: u64,
    /// QPN of the sender, then the syndrome.
    source_error: u64,
    pub timestamp: u64,
    /// P_Key index, then the service level.
    path: u64,
    /// SRQN of a receive of one.
    srqn: u32,
    tail: u32,
}

const INDEX_LENGTH: usize = offset_of!(Cqe, wqe_index);
const IMM_QPN: usize = offset_of!(Cqe, imm);
const SOURCE_ERROR: usize = offset_of!(Cqe, src_qp);
/// The words that hold SRQN and P_Key index, and service level, and where in them.
const PKEY_INDEX: (usize, usize) = in_word(offset_of!(Cqe, pkey_index));
const SL: (usize, usize) = in_word(offset_of!(Cqe, sl));

const fn in_word(offset: usize) -> (usize, usize) {
    (offset / 8 * 8, offset % 8 * 8)
}

const _: () = {
    assert!(offset_of!(Cqe, srqn) == PKEY_INDEX.0);
    assert!(offset_of!(Cqe, byte_len) == INDEX_LENGTH + 4);
    assert!(offset_of!(Cqe, qpn) == IMM_QPN + 4);
    assert!(offset_of!(Cqe, vendor_err) == SOURCE_ERROR + 4);
    assert!(offset_of!(Cqe, tail) == TAIL_OFFSET && size_of::<Cqe>() == CQE_SIZE);
};

impl Completion {
    #[inline(always)]
    fn read(entry: Entry<'_, CQE_SIZE>, imm_qpn: u64, tail: u32) -> Self {
        let srqn_pkey = entry.get::<{ PKEY_INDEX.0 }>();
        let pkey_index = srqn_pkey >> PKEY_INDEX.1 & 0xffff;
        let sl = entry.get::<{ SL.0 }>() >> SL.1 & 0xff;
        Self {
            wr_id: entry.get::<{ offset_of!(Cqe, wr_id) }>(),
            index_length: entry.get::<INDEX_LENGTH>(),
            imm_qpn,
            source_error: entry.get::<SOURCE_ERROR>(),
            timestamp: entry.get::<{ offset_of!(Cqe, timestamp) }>(),
            path: pkey_index | sl << 32,
            srqn: srqn_pkey as u32,
            tail,
        }
    }

    fn flushed(qpn: u32, receive: bool, wr_id: u64) -> Self {
        let opcode = if receive {
            WcOpcode::Recv
        } else {
            WcOpcode::Send
        };
        Self {
            wr_id,
            imm_qpn: u64::from(qpn) << 32,
            source_error: u64::from(Syndrome::DeviceFatal.to_raw()) << 32,
            tail: u32::from(WcStatus::WrFlushErr.to_raw()) | u32::from(opcode.to_raw()) << 8,
            ..Self::default()
        }
    }

    /// `struct ibv_wc`, which is six words: `wr_id`; status, opcode; syndrome, length; immediate data, QPN; QPN of the
    /// sender, flags; P_Key index, and service level among fields that RoCE has no use for.
    #[inline(always)]
    pub fn wc_words(&self) -> [u64; 6] {
        let tail = u64::from(self.tail);
        [
            self.wr_id,
            tail & 0xff | (tail >> 8 & 0xff) << 32,
            self.source_error >> 32 | self.index_length >> 32 << 32,
            self.imm_qpn,
            u64::from(self.source_error as u32) | (tail >> 16 & 0x3f) << 32,
            self.path,
        ]
    }

    #[inline(always)]
    pub fn qpn(&self) -> u32 {
        (self.imm_qpn >> 32) as u32
    }

    #[inline(always)]
    pub fn is_receive(&self) -> bool {
        self.opcode() & WC_OPCODE_RECV != 0
    }

    #[inline(always)]
    pub fn wqe_index(&self) -> u32 {
        self.index_length as u32
    }

    /// Whether it is of a receive of this SRQ.
    fn is_of(&self, srqn: u32) -> bool {
        self.is_receive() && self.srqn == srqn
    }

    pub fn status(&self) -> u8 {
        self.tail as u8
    }

    #[inline(always)]
    pub fn opcode(&self) -> u8 {
        (self.tail >> 8) as u8
    }

    pub fn wc_flags(&self) -> u8 {
        (self.tail >> 16) as u8 & 0x3f
    }

    pub fn byte_len(&self) -> u32 {
        (self.index_length >> 32) as u32
    }

    pub fn imm(&self) -> u32 {
        self.imm_qpn as u32
    }

    pub fn src_qp(&self) -> u32 {
        self.source_error as u32
    }

    pub fn vendor_err(&self) -> u32 {
        (self.source_error >> 32) as u32
    }

    pub fn sl(&self) -> u8 {
        (self.path >> 32) as u8
    }
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
                arm: Arm {
                    index: 0,
                    seq: 0,
                    mode: ArmMode::None,
                },
                qps: QpTable::default(),
                srqs: Vec::new(),
                wall_clock: WallClock::default(),
                current: Completion::default(),
            }),
        }
    }

    /// The lock itself, for a poll that spans several calls from C.
    pub fn state(&self) -> &Lock<CqState> {
        &self.state
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
            let place = state.consumer.wrapping_sub(state.base);
            let entry = state.ring.entry(place);
            let tail = entry.get32_acquire::<TAIL_OFFSET>();
            if !Tail::is_valid(tail, place, state.log_size) {
                break;
            }
            let imm_qpn = entry.get::<IMM_QPN>();
            let Some(qp) = state.qps.find((imm_qpn >> 32) as u32) else {
                break;
            };
            let completion = Completion::read(entry, imm_qpn, tail);
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
        self.area
            .store_release(doorbell::cq_consumer(self.slot), state.polled());
    }

    /// Whether the next entry is there.
    #[inline(always)]
    fn is_written(&self, state: &CqState) -> bool {
        if state.flushing {
            return false;
        }
        let place = state.consumer.wrapping_sub(state.base);
        let tail = state.ring.entry(place).get32_acquire::<TAIL_OFFSET>();
        Tail::is_valid(tail, place, state.log_size)
    }

    /// Whether there is nothing to poll.
    #[inline(always)]
    fn is_empty(&self, state: &CqState) -> bool {
        !self.is_written(state) && state.saved.is_empty() && self.area.alive()
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
            state.aside = state.flushing || !state.saved.is_empty();
            self.publish(state);
            if let Some(qp) = state.qps.find(completion.qpn()) {
                qp.retire(completion.is_receive(), completion.wqe_index());
            } else if let Some(srq) = state.srq_of(&completion) {
                srq.queue.window().retire_shared(completion.wqe_index());
            }
            return Some(completion);
        }
        // First whether the entry is there, then what it is: one that appears in between must not pass for unusable.
        while self.is_written(state) {
            let mut next = None;
            if self.take(state, 1, |_, one| next = Some(*one)) == 1 {
                return next;
            }
            // An entry that names no queue pair and no SRQ of this CQ cannot be used; it does not end the poll.
            let completion = state.next_entry();
            state.consumer = state.consumer.wrapping_add(1);
            self.publish(state);
            if let Some(srq) = state.srq_of(&completion) {
                srq.queue.window().retire_shared(completion.wqe_index());
                return Some(completion);
            }
        }
        if self.area.alive() {
            return None;
        }
        (state.flushing, state.aside) = (true, true);
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

    /// What the system clock (nanoseconds since 1970) showed when the device clock showed `timestamp`.
    pub fn wall_clock(&self, state: &mut CqState, timestamp: u64) -> u64 {
        state
            .wall_clock
            .at(timestamp, || Some((self.area.clock()?, system_clock())))
    }

    /// Asks for an event at the next completion, or the next solicited one.
    pub fn arm(&self, solicited: bool) {
        let mut state = self.state.lock();
        if !self.area.alive() {
            return;
        }
        let mode = if solicited {
            ArmMode::Solicited
        } else {
            ArmMode::Next
        };
        let index = match state.saved.front() {
            Some((index, _)) => *index,
            None => state.consumer,
        };
        doorbell::arm_cq(&*self.area, self.slot, &mut state.arm, index, mode, || {
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
    /// complete there, and nothing of `qp` has yet: what is found belongs to that one.
    pub fn attach(&self, qp: &Arc<Qp>) {
        let mut state = self.state.lock();
        if let Some(gone) = state.qps.remove(qp.qpn) {
            self.clean_locked(&mut state, &gone);
        }
        state.qps.insert(qp);
    }

    /// Takes `qp`'s completions out and forgets it, unless its number has brought another here.
    pub fn detach(&self, qp: &Qp) {
        let mut state = self.state.lock();
        if state.qps.has(qp) {
            self.clean_locked(&mut state, qp);
            state.qps.remove(qp.qpn);
        }
    }

    /// Makes known an SRQ for extended connections whose receives complete here.
    ///
    /// As in [`attach`](Self::attach), the kernel may have handed out the number of one that is still known here: what is found
    /// belongs to that one.
    pub fn attach_srq(&self, srq: &Arc<Srq>) {
        let mut state = self.state.lock();
        if state.srqs.iter().any(|other| other.srqn == srq.srqn) {
            self.forget_srq(&mut state, srq.srqn);
        }
        state.srqs.push(Arc::clone(srq));
    }

    /// Takes an SRQ's completions out and forgets it, unless its number has brought another here.
    pub fn detach_srq(&self, srq: &Arc<Srq>) {
        let mut state = self.state.lock();
        if state.srqs.iter().any(|other| Arc::ptr_eq(other, srq)) {
            self.forget_srq(&mut state, srq.srqn);
        }
    }

    fn forget_srq(&self, state: &mut CqState, srqn: u32) {
        self.save(state);
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
        let mut state = self.state.lock();
        self.clean_locked(&mut state, qp);
        then();
    }

    /// The ring is the device's alone to write, so what belongs to other queue pairs is saved from it. As if it had moved
    /// up in the ring, it keeps as many entries as it had: only those of `qp` are given back.
    fn clean_locked(&self, state: &mut CqState, qp: &Qp) {
        self.save(state);
        let mut saved = core::mem::take(&mut state.saved);
        saved.retain(|(_, completion)| {
            // A target may have the number by now: what it receives names an SRQ that is not this one's.
            let own = completion.qpn() == qp.qpn
                && (!completion.is_receive() || completion.srqn == qp.srqn());
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

    /// Sets aside what lies in the ring.
    fn save(&self, state: &mut CqState) {
        let polled = state.polled();
        while state.consumer.wrapping_sub(polled) < state.ring.size() && self.is_written(state) {
            let completion = state.next_entry();
            state.saved.push_back((state.consumer, completion));
            state.consumer = state.consumer.wrapping_add(1);
        }
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
    /// The entry at the consumer index, which is there.
    fn next_entry(&self) -> Completion {
        let entry = self.ring.entry(self.consumer.wrapping_sub(self.base));
        let tail = entry.get32_acquire::<TAIL_OFFSET>();
        Completion::read(entry, entry.get::<IMM_QPN>(), tail)
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
}
