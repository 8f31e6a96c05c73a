// SPDX-License-Identifier: GPL-2.0

//! What software completes in a queue of the kernel's: all that is outstanding once the device's life has ended,
//! and what the queue pairs in ERR have outstanding once the queue has lost a completion.

use super::{
    state::{
        Attached,
        State, //
    },
    CqData,
    Verbena, //
};
use crate::abi::syndrome::Syndrome;
use kernel::sync::atomic::{
    Acquire,
    Full, //
};
use rdma::{
    cq::Cq,
    enums::WcStatus,
    wc::{
        Wc,
        WcSink, //
    }, //
};

impl CqData {
    /// Whether software flushes at all.
    pub(crate) fn flushes(&self) -> bool {
        self.live.health.has_ended() || self.died.load(Acquire)
    }

    /// Whether software has something to flush.
    pub(super) fn has_flush(&self, state: &State) -> bool {
        let end = self.live.health.has_ended();
        self.flushes()
            && state.qps.iter().any(|Attached { qp, side, .. }| {
                (end || qp.has_failed()) && qp.has_outstanding(*side)
            })
    }

    /// The device reports that it has lost a completion. May sleep.
    pub(crate) fn die(&self, cq: &Cq<Verbena>) {
        // A process flushes by itself.
        if !cq.is_user() {
            if !self.died.xchg(true, Full) {
                self.live.dead_cqs.add(self.cqn());
            }
            self.mark();
            self.flush_event(cq);
        }
        cq.error_event();
    }

    /// Of a queue that has died: its queue pairs are told who flushes what is posted from now on.
    pub(super) fn mark(&self) {
        if self.died.load(Acquire) {
            let state = self.state.lock();
            state
                .qps
                .iter()
                .for_each(|attached| attached.qp.note_lossy());
        }
    }

    /// The queue is gone.
    pub(super) fn forget(&self) {
        if self.died.load(Acquire) {
            self.live.dead_cqs.remove(self.cqn());
        }
    }

    /// The device is dead, or the queue is: calls the handler that waits, if there is something to flush.
    pub(crate) fn flush_event(&self, cq: &Cq<Verbena>) {
        let call = {
            let mut state = self.state.lock();
            if cq.is_user() {
                self.live.health.has_ended()
                    && cq.is_known()
                    && !core::mem::replace(&mut state.woken, true)
            } else if state.armed
                && self.flushes()
                && (self.has_entry(&state) || self.has_flush(&state))
            {
                state.armed = false;
                true
            } else {
                false
            }
        };
        if call {
            cq.complete();
        }
    }

    /// Whether a user in the kernel has completions to poll, written by the device or flushed by software.
    pub(crate) fn owes_flushes(&self, cq: &Cq<Verbena>) -> bool {
        let state = self.state.lock();
        !cq.is_user() && (self.has_entry(&state) || self.has_flush(&state))
    }

    /// Completes what is flushed.
    pub(super) fn flush(&self, state: &State, wcs: &mut WcSink<'_, Verbena>) {
        let end = self.live.health.has_ended();
        let syndrome = match end {
            true => Syndrome::DeviceFatal,
            false => Syndrome::Flushed,
        };
        for Attached { qp, side, .. } in &state.qps {
            while !wcs.is_full() {
                let Some(request) = qp.flush_one(*side, end) else {
                    break;
                };
                let mut wc =
                    Wc::<Verbena>::new(qp, request.wr_id, WcStatus::WrFlushErr, request.opcode);
                wc.vendor_err = syndrome.to_raw().into();
                wcs.push(&wc);
            }
        }
    }
}
