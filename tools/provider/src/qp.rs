// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A queue pair as the data path knows it.

use crate::completion::Completion;
use crate::cq::Cq;
use crate::errno::Errno;
use crate::ffi::wr::{RecvWr, SendWr};
use crate::recv::RecvQueue;
use crate::send::SendQueue;
use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::Arc;
use verbena_abi::ctx::QpState;

/// Where a queue pair takes its receives from.
pub enum Receives {
    /// It cannot receive.
    None,
    /// Its own queue.
    Own(RecvQueue),
    /// An SRQ.
    Shared(Arc<Srq>),
}

/// A shared receive queue.
pub struct Srq {
    pub srqn: u32,
    pub queue: RecvQueue,
    /// Where its receives complete, if it is for extended connections; else that is each queue pair's matter.
    pub cq: Option<Arc<Cq>>,
}

/// A queue pair.
pub struct Qp {
    pub qpn: u32,
    /// As the program has moved it. The device may have moved it to SQE or ERR since, where posting stays accepted.
    state: AtomicU8,
    pub sends: SendQueue,
    pub receives: Receives,
    pub send_cq: Arc<Cq>,
    pub recv_cq: Arc<Cq>,
}

impl Qp {
    /// A queue pair in RESET.
    pub fn new(
        qpn: u32,
        sends: SendQueue,
        receives: Receives,
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

    /// The program has moved it.
    pub fn set_state(&self, state: QpState) {
        self.state.store(state.to_raw(), Ordering::Release);
    }

    /// Whether sends may be posted. Asked under the queue's lock, so that no post slips in behind a move to RESET.
    #[inline(always)]
    pub fn may_send(&self) -> bool {
        self.state.load(Ordering::Relaxed) >= QpState::Rts.to_raw()
    }

    /// The same of receives.
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
            Receives::Own(queue) => queue.post(first, || self.may_receive()),
            Receives::None if self.may_receive() => Err((Errno::NOMEM, first)),
            Receives::None | Receives::Shared(_) => Err((Errno::INVAL, first)),
        }
    }

    /// Whether a completion with its number is its own. A target of extended connections, which may be another process', may have
    /// the number, too, or have had it: what it receives names an SRQ that is not this one's. 0 is no SRQ.
    #[inline(always)]
    pub fn owns(&self, completion: &Completion) -> bool {
        !completion.is_receive()
            || completion.srqn
                == match &self.receives {
                    Receives::Shared(srq) => srq.srqn,
                    Receives::Own(_) | Receives::None => 0,
                }
    }

    /// A completion of a send, or of a receive, with this WQE index was polled.
    #[inline(always)]
    pub fn retire(&self, receive: bool, wqe_index: u32) {
        if !receive {
            self.sends.window().retire(wqe_index);
            return;
        }
        match &self.receives {
            Receives::Own(queue) => queue.window().retire(wqe_index),
            Receives::Shared(srq) => srq.queue.window().retire_shared(wqe_index),
            Receives::None => {}
        }
    }

    /// Makes its CQs know it.
    pub fn attach(self: &Arc<Self>) {
        self.send_cq.attach(self);
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.attach(self);
        }
    }

    /// Takes its CQEs out of its CQs and makes them forget it.
    pub fn detach(&self) {
        self.send_cq.detach(self);
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.detach(self);
        }
    }

    /// It has moved to RESET: nothing of its old life appears any more. A queue starts afresh under the lock of its CQ,
    /// so that a poll that flushes (the device may die right now) sees either life and no mixture.
    pub fn reset(&self) {
        self.set_state(QpState::Reset);
        self.send_cq.clean(self, || self.sends.reset());
        self.recv_cq.clean(self, || {
            if let Receives::Own(queue) = &self.receives {
                queue.reset();
            }
        });
    }
}
