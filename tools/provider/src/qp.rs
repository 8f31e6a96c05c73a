// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A queue pair as the data path knows it.

use crate::cq::Cq;
use crate::errno::Errno;
use crate::ffi::wr::{RecvWr, SendWr};
use crate::recv::RecvQueue;
use crate::send::SendQueue;
use crate::work_completion::WorkCompletion;
use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;
use verbena_abi::ctx::QpState;

/// Source of a queue pair's receives.
pub enum ReceiveSource {
    /// The queue pair cannot receive.
    None,
    /// The queue pair has its own receive queue.
    Own(RecvQueue),
    /// The queue pair takes receives from an SRQ.
    Shared(Arc<Srq>),
}

/// A shared receive queue.
pub struct Srq {
    pub srqn: u32,
    pub queue: RecvQueue,
    /// CQ of the receives of an SRQ for extended connections. A basic SRQ has none: a receive
    /// completes in the CQ of its queue pair.
    pub cq: Option<Arc<Cq>>,
}

/// A queue pair.
pub struct Qp {
    pub qpn: u32,
    /// State to which the program has moved the queue pair. The device may have moved it to SQE or
    /// ERR since, where posting is still accepted.
    state: AtomicU8,
    pub sends: SendQueue,
    pub receives: ReceiveSource,
    pub send_cq: Arc<Cq>,
    pub recv_cq: Arc<Cq>,
}

impl Qp {
    /// Returns a queue pair in RESET.
    pub fn new(
        qpn: u32,
        sends: SendQueue,
        receives: ReceiveSource,
        send_cq: Arc<Cq>,
        recv_cq: Arc<Cq>,
    ) -> Self {
        Self {
            qpn,
            state: AtomicU8::new(QpState::Reset.to_raw()),
            sends,
            receives,
            send_cq,
            recv_cq,
        }
    }

    /// Records the state to which the program has moved the queue pair.
    pub fn set_state(&self, state: QpState) {
        self.state.store(state.to_raw(), Ordering::Release);
    }

    /// True if sends may be posted. The caller holds the lock of the send queue, so that no request
    /// is posted after a move to RESET.
    #[inline(always)]
    pub fn may_send(&self) -> bool {
        self.state.load(Ordering::Relaxed) >= QpState::Rts.to_raw()
    }

    /// True if receives may be posted. A caller that posts holds the lock of the receive queue.
    #[inline(always)]
    fn may_receive(&self) -> bool {
        self.state.load(Ordering::Relaxed) != QpState::Reset.to_raw()
    }

    #[inline(always)]
    pub fn post_send<'a>(&self, first: SendWr<'a>) -> Result<(), (Errno, SendWr<'a>)> {
        self.sends.post(first, || self.may_send())
    }

    #[inline(always)]
    pub fn post_recv<'a>(&self, first: RecvWr<'a>) -> Result<(), (Errno, RecvWr<'a>)> {
        match &self.receives {
            ReceiveSource::Own(queue) => queue.post(first, || self.may_receive()),
            ReceiveSource::None if self.may_receive() => Err((Errno::NOMEM, first)),
            ReceiveSource::None | ReceiveSource::Shared(_) => Err((Errno::INVAL, first)),
        }
    }

    /// True if a completion with the QPN of this queue pair belongs to the queue pair. A target of
    /// extended connections, possibly of another process, may have the same QPN or have had it. The
    /// receives of the target name an SRQ that is not the one of this queue pair. SRQN 0 stands for
    /// no SRQ.
    #[inline(always)]
    pub fn owns(&self, completion: &WorkCompletion) -> bool {
        !completion.is_receive()
            || completion.srqn
                == match &self.receives {
                    ReceiveSource::Shared(srq) => srq.srqn,
                    ReceiveSource::Own(_) | ReceiveSource::None => 0,
                }
    }

    /// Retires the send or receive with this WQE index, after its completion was polled.
    #[inline(always)]
    pub fn retire(&self, receive: bool, wqe_index: u32) {
        if !receive {
            self.sends.window().retire(wqe_index);
            return;
        }
        match &self.receives {
            ReceiveSource::Own(queue) => queue.window().retire(wqe_index),
            ReceiveSource::Shared(srq) => srq.queue.window().retire_shared(wqe_index),
            ReceiveSource::None => {}
        }
    }

    /// Registers the queue pair with its CQs.
    pub fn attach(self: &Arc<Self>) {
        self.send_cq.attach(self);
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.attach(self);
        }
    }

    /// Removes the CQEs of the queue pair from its CQs, and its registration there.
    pub fn detach(&self) {
        self.send_cq.detach(self);
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.detach(self);
        }
    }

    /// Resets both queues after the queue pair has moved to RESET. No completion from before the
    /// move appears any more. Each queue is reset under the lock of its CQ. A poll that flushes
    /// (the device may die at this moment) therefore sees the queue before or after the reset, and
    /// no mixture.
    pub fn reset(&self) {
        self.set_state(QpState::Reset);
        self.send_cq.clean(self, || self.sends.reset());
        self.recv_cq.clean(self, || {
            if let ReceiveSource::Own(queue) = &self.receives {
                queue.reset();
            }
        });
    }
}
