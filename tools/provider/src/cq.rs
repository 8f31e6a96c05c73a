// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues: polling, arming, and taking a queue pair's entries out again.
//!
//! A poll takes entries while their phase is that of the pass, translates them, moves the consumer index of the work
//! queue behind what completed, and publishes its own consumer index once. When the device is dead the ring is not
//! looked at any more: then everything outstanding in the queue pairs of this CQ is flushed from their windows.

use crate::ffi::lock::Lock;
use crate::ffi::memory::{Area, Entry, Ring};
use crate::qp::{Qp, Receives};
use crate::table::QpTable;
use std::collections::VecDeque;
use std::sync::Arc;
use verbena_abi::cqe::{Tail, WcOpcode, WcStatus, CQE_SIZE, TAIL_OFFSET, WC_OPCODE_RECV};
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
    /// Consumer index: the next entry to look at.
    consumer: u32,
    /// Completions before it that were not polled yet, with their indexes: see [`Cq::clean`].
    saved: VecDeque<(u32, Completion)>,
    /// The last arm.
    arm: Arm,
    /// The queue pairs that complete here.
    qps: QpTable,
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
    tail: u32,
}

impl Completion {
    #[inline(always)]
    fn read(entry: Entry<'_, CQE_SIZE>, imm_qpn: u64, tail: u32) -> Self {
        Self {
            wr_id: entry.get::<0>(),
            index_length: entry.get::<8>(),
            imm_qpn,
            source_error: entry.get::<24>(),
            timestamp: entry.get::<32>(),
            path: entry.get::<40>() >> 32 & 0xffff | (entry.get::<48>() >> 48 & 0xff) << 32,
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
                consumer: 0,
                saved: VecDeque::new(),
                arm: Arm {
                    index: 0,
                    seq: 0,
                    mode: ArmMode::None,
                },
                qps: QpTable::default(),
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
        let before = state.consumer;
        let mut count = 0;
        while count < most {
            // What is usual stays in registers; everything else goes the long way.
            if let Some(completion) = self.take(&mut state) {
                sink(count, &completion);
            } else if self.is_empty(&state) {
                break;
            } else if let Some(completion) = self.next(&mut state) {
                sink(count, &completion);
            } else {
                break;
            }
            count += 1;
        }
        if state.consumer != before {
            self.publish(&state);
        }
        count
    }

    /// Takes the next entry if it is there and usual.
    #[inline(always)]
    fn take(&self, state: &mut CqState) -> Option<Completion> {
        let consumer = state.consumer;
        let entry = state.ring.entry(consumer);
        let tail = entry.get32_acquire::<TAIL_OFFSET>();
        if !Tail::is_valid(tail, consumer, state.log_size) || !state.saved.is_empty() {
            return None;
        }
        let imm_qpn = entry.get::<16>();
        let qp = state.qps.find((imm_qpn >> 32) as u32)?;
        let completion = Completion::read(entry, imm_qpn, tail);
        qp.retire(completion.is_receive(), completion.wqe_index());
        state.consumer = consumer.wrapping_add(1);
        Some(completion)
    }

    /// Tells the device how far the CQ was polled.
    #[inline(always)]
    pub fn publish(&self, state: &CqState) {
        self.area
            .store_release(doorbell::cq_consumer(self.slot), state.consumer);
    }

    /// Whether the next entry is there.
    #[inline(always)]
    fn is_written(&self, state: &CqState) -> bool {
        let entry = state.ring.entry(state.consumer);
        let tail = entry.get32_acquire::<TAIL_OFFSET>();
        Tail::is_valid(tail, state.consumer, state.log_size)
    }

    /// Whether there is nothing to poll.
    #[inline(always)]
    fn is_empty(&self, state: &CqState) -> bool {
        !self.is_written(state) && state.saved.is_empty() && self.area.alive()
    }

    /// Takes the next completion, whatever there is.
    #[cold]
    #[inline(never)]
    pub fn next(&self, state: &mut CqState) -> Option<Completion> {
        if !state.saved.is_empty() {
            return Some(state.take_saved());
        }
        // First whether the entry is there, then what it is: one that appears in between must not pass for unusable.
        while self.is_written(state) {
            if let Some(completion) = self.take(state) {
                return Some(completion);
            }
            // An entry that names no queue pair of this CQ cannot be used; it does not end the poll.
            state.consumer = state.consumer.wrapping_add(1);
        }
        if self.area.alive() {
            None
        } else {
            self.flush(state)
        }
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

    /// Makes `qp`'s completions known here.
    pub fn attach(&self, qp: &Arc<Qp>) {
        self.state.lock().qps.insert(qp);
    }

    /// Takes `qp`'s completions out and forgets it.
    pub fn detach(&self, qp: &Qp) {
        let mut state = self.state.lock();
        self.clean_locked(&mut state, qp);
        state.qps.remove(qp.qpn);
    }

    /// Takes `qp`'s completions out. The device writes none of them any more.
    pub fn clean(&self, qp: &Qp) {
        self.clean_locked(&mut self.state.lock(), qp);
    }

    /// The ring is the device's alone to write, so what belongs to other queue pairs is saved from it, and all its
    /// entries are given back.
    fn clean_locked(&self, state: &mut CqState, qp: &Qp) {
        let mut kept = core::mem::take(&mut state.saved);
        loop {
            let entry = state.ring.entry(state.consumer);
            let tail = entry.get32_acquire::<TAIL_OFFSET>();
            if !Tail::is_valid(tail, state.consumer, state.log_size) {
                break;
            }
            let completion = Completion::read(entry, entry.get::<16>(), tail);
            kept.push_back((state.consumer, completion));
            state.consumer = state.consumer.wrapping_add(1);
        }
        kept.retain(|(_, completion)| {
            let own = completion.qpn() == qp.qpn;
            if own && completion.is_receive() {
                if let Receives::Shared(srq) = &qp.receives {
                    srq.queue.window().retire_shared(completion.wqe_index());
                }
            }
            !own
        });
        state.saved = kept;
        self.publish(state);
    }
}

impl CqState {
    #[cold]
    #[inline(never)]
    fn take_saved(&mut self) -> Completion {
        let (_, completion) = self.saved.pop_front().unwrap_or_default();
        if let Some(qp) = self.qps.find(completion.qpn()) {
            qp.retire(completion.is_receive(), completion.wqe_index());
        }
        completion
    }
}
