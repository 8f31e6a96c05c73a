// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues: polling, arming, and taking a queue pair's entries out again.
//!
//! A poll takes entries while their phase is that of the pass, translates them, moves the consumer index of the work
//! queue behind what completed, and publishes its own consumer index once. When the device is dead the ring is not
//! looked at any more: then everything outstanding in the queue pairs of this CQ is flushed from their windows.

use crate::ffi::lock::{Guard, Lock};
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

/// A completion, in the order of the words of a CQE.
#[derive(Clone, Copy, Default)]
pub struct Completion {
    pub wr_id: u64,
    pub wqe_index: u32,
    pub byte_len: u32,
    /// As it lies in memory.
    pub imm: u32,
    pub qpn: u32,
    pub src_qp: u32,
    pub vendor_err: u32,
    pub timestamp: u64,
    pub pkey_index: u16,
    pub sl: u8,
    pub status: u8,
    pub opcode: u8,
    pub wc_flags: u8,
}

impl Completion {
    #[inline(always)]
    fn read(entry: Entry<'_, CQE_SIZE>, tail: Tail) -> Self {
        let index = entry.get::<8>();
        let target = entry.get::<16>();
        let sender = entry.get::<24>();
        Self {
            wr_id: entry.get::<0>(),
            wqe_index: index as u32,
            byte_len: (index >> 32) as u32,
            imm: target as u32,
            qpn: (target >> 32) as u32,
            src_qp: sender as u32,
            vendor_err: (sender >> 32) as u32,
            timestamp: entry.get::<32>(),
            pkey_index: (entry.get::<40>() >> 32) as u16,
            sl: (entry.get::<48>() >> 48) as u8,
            status: tail.status,
            opcode: tail.opcode,
            wc_flags: tail.wc_flags,
        }
    }

    #[inline(always)]
    fn is_receive(&self) -> bool {
        self.opcode & WC_OPCODE_RECV != 0
    }

    fn flushed(qpn: u32, receive: bool, wr_id: u64) -> Self {
        Self {
            wr_id,
            qpn,
            vendor_err: Syndrome::DeviceFatal.to_raw().into(),
            status: WcStatus::WrFlushErr.to_raw(),
            opcode: if receive {
                WcOpcode::Recv
            } else {
                WcOpcode::Send
            }
            .to_raw(),
            ..Self::default()
        }
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

    /// The lock, for a poll of several steps.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, CqState> {
        self.state.lock()
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
            let Some(completion) = self.next(&mut state) else {
                break;
            };
            sink(count, &completion);
            count += 1;
        }
        if state.consumer != before {
            self.publish(&state);
        }
        count
    }

    /// Tells the device how far the CQ was polled.
    #[inline(always)]
    pub fn publish(&self, state: &CqState) {
        self.area
            .store_release(doorbell::cq_consumer(self.slot), state.consumer);
    }

    /// Takes the next completion.
    #[inline(always)]
    pub fn next(&self, state: &mut CqState) -> Option<Completion> {
        if !state.saved.is_empty() {
            return Some(state.take_saved());
        }
        loop {
            let consumer = state.consumer;
            let entry = state.ring.entry(consumer);
            let word = entry.get32_acquire::<TAIL_OFFSET>();
            let Some(tail) = Tail::unpack(word, consumer, state.log_size) else {
                return if self.area.alive() {
                    None
                } else {
                    self.flush(state)
                };
            };
            state.consumer = consumer.wrapping_add(1);
            let completion = Completion::read(entry, tail);
            // An entry that names no queue pair of this CQ cannot be used; it does not end the poll.
            if let Some(qp) = state.qps.find(completion.qpn) {
                qp.retire(completion.is_receive(), completion.wqe_index);
                return Some(completion);
            }
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
            let word = entry.get32_acquire::<TAIL_OFFSET>();
            let Some(tail) = Tail::unpack(word, state.consumer, state.log_size) else {
                break;
            };
            kept.push_back((state.consumer, Completion::read(entry, tail)));
            state.consumer = state.consumer.wrapping_add(1);
        }
        kept.retain(|(_, completion)| {
            let own = completion.qpn == qp.qpn;
            if own && completion.is_receive() {
                if let Receives::Shared(srq) = &qp.receives {
                    srq.queue.window().retire_shared(completion.wqe_index);
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
        if let Some(qp) = self.qps.find(completion.qpn) {
            qp.retire(completion.is_receive(), completion.wqe_index);
        }
        completion
    }
}
