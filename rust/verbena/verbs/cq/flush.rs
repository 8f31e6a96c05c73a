// SPDX-License-Identifier: GPL-2.0

//! Completion in software, in queues of kernel users. After the end of the device's life the driver
//! completes all outstanding requests, and after a queue has lost a completion those of queue pairs
//! in ERR.

use super::{
    state::{
        AttachedQp,
        CqPollState, //
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
    /// True if the driver flushes requests of this queue.
    pub(crate) fn is_flushing(&self) -> bool {
        self.vdev.health.has_ended() || self.in_error.load(Acquire)
    }

    /// True if there is a request for the driver to flush.
    pub(super) fn has_flush(&self, state: &CqPollState) -> bool {
        let end = self.vdev.health.has_ended();
        self.is_flushing()
            && state.qps.iter().any(|AttachedQp { qp, side, .. }| {
                (end || qp.has_failed()) && qp.has_outstanding(*side)
            })
    }

    /// Handles the device's report that it has lost a completion. May sleep.
    pub(crate) fn on_error(&self, cq: &Cq<Verbena>) {
        // A process flushes without the driver.
        if !cq.is_user() {
            if !self.in_error.xchg(true, Full) {
                self.vdev.failed_cqs.add(self.cqn());
            }
            self.mark_qps();
            self.flush_event(cq);
        }
        cq.error_event();
    }

    /// If the queue is in error, marks its queue pairs, so that the driver flushes later requests
    /// of them.
    pub(super) fn mark_qps(&self) {
        if self.in_error.load(Acquire) {
            let state = self.state.lock();
            state
                .qps
                .iter()
                .for_each(|attached| attached.qp.note_cq_failure());
        }
    }

    /// Removes a queue that is destroyed from the list of CQs in error.
    pub(super) fn forget(&self) {
        if self.in_error.load(Acquire) {
            self.vdev.failed_cqs.remove(self.cqn());
        }
    }

    /// Calls the handler that waits, if the device has died or the queue is in error, and there is
    /// something to poll. A process is woken once, after the end of the device's life.
    pub(crate) fn flush_event(&self, cq: &Cq<Verbena>) {
        let call = {
            let mut state = self.state.lock();
            if cq.is_user() {
                self.vdev.health.has_ended()
                    && cq.is_known()
                    && !core::mem::replace(&mut state.woken, true)
            } else if state.armed
                && self.is_flushing()
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

    /// True if a kernel user has completions to poll, written by the device or flushed by the
    /// driver.
    pub(crate) fn has_unpolled_completions(&self, cq: &Cq<Verbena>) -> bool {
        let state = self.state.lock();
        !cq.is_user() && (self.has_entry(&state) || self.has_flush(&state))
    }

    /// Adds completions of flushed requests to `wcs`.
    pub(super) fn flush(&self, state: &CqPollState, wcs: &mut WcSink<'_, Verbena>) {
        let end = self.vdev.health.has_ended();
        let syndrome = match end {
            true => Syndrome::DeviceFatal,
            false => Syndrome::Flushed,
        };
        for AttachedQp { qp, side, .. } in &state.qps {
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
