// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Receives: taken for a request, kept for a message, completed in error, flushed in ERR.

use super::{NotExecuted, Responder, UnreliableDrop};
use crate::host::{EventType, Host, RecvFetch, Syndrome, WcOpcode, WcStatus};
use crate::packet::{AethSyndrome, Packet};
use crate::qp::pending_completion::PendingCompletion;
use crate::qp::{Budget, Core};

impl Responder {
    /// Returns the index and `wr_id` of the receive that is held.
    pub(crate) fn held_recv(&self) -> Option<(u32, u64)> {
        self.pending_completion.as_ref().map(PendingCompletion::ids)
    }

    /// Takes a receive, unless one is held already.
    fn hold_recv<H: Host>(&mut self, host: &mut H) -> RecvFetch {
        if self.pending_completion.is_some() {
            return RecvFetch::Taken;
        }
        let take = self.take_next_recv(host);
        if take == RecvFetch::Taken {
            self.recv_capacity = self.recv.capacity();
        }
        take
    }

    /// Takes the next receive out of its queue.
    fn take_next_recv<H: Host>(&mut self, host: &mut H) -> RecvFetch {
        self.recv.sges.clear();
        let take = host.take_recv(&mut self.recv);
        if matches!(take, RecvFetch::Taken | RecvFetch::Malformed(_)) {
            let (wr_id, index) = (self.recv.wr_id, self.recv.index);
            self.pending_completion = Some(
                PendingCompletion::new(wr_id, index, WcOpcode::Recv).with_xrc_srq(self.recv.xrc),
            );
        }
        take
    }

    /// Makes sure that a receive is held. If none is posted, an RNR NAK answers the request.
    pub(super) fn require_recv<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
    ) -> Result<(), NotExecuted> {
        match self.hold_recv(host) {
            RecvFetch::Taken => Ok(()),
            RecvFetch::Empty => {
                self.send_nak(
                    core,
                    host,
                    AethSyndrome::Rnr {
                        timer: core.attr.min_rnr_timer,
                    },
                );
                Err(NotExecuted::Dropped)
            }
            RecvFetch::Malformed(cause) => {
                self.recv_capacity = 0;
                Err(self.refuse_operation(core, host, packet.psn, WcStatus::LocQpOpErr, cause))
            }
            RecvFetch::QueueError(cause) => {
                Err(self.refuse_operation(core, host, packet.psn, WcStatus::LocQpOpErr, cause))
            }
        }
    }

    /// Makes sure that a receive is held, for a service that never answers.
    pub(in crate::qp) fn require_recv_unacknowledged<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
    ) -> Result<(), UnreliableDrop> {
        match self.hold_recv(host) {
            RecvFetch::Taken => Ok(()),
            RecvFetch::Empty => {
                core.counters.dropped_no_receive += 1;
                Err(UnreliableDrop::Counted)
            }
            RecvFetch::Malformed(cause) => {
                self.fail_recv(core, host, WcStatus::LocQpOpErr, cause);
                Err(UnreliableDrop::Error(cause))
            }
            RecvFetch::QueueError(cause) => {
                host.event(EventType::QpFatal, Some(cause));
                Err(UnreliableDrop::Error(cause))
            }
        }
    }

    /// Completes the receive that was taken in error.
    pub(in crate::qp) fn fail_recv<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        status: WcStatus,
        cause: Syndrome,
    ) {
        if let Some(owed) = self.pending_completion.take() {
            core.complete(host, &owed.error(status, cause));
        }
    }

    /// Flushes the held receive and the posted ones in ERR. Returns true if some are left.
    pub(crate) fn flush<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        budget: &mut Budget,
    ) -> bool {
        loop {
            if budget.is_spent() {
                return true;
            }
            if self.pending_completion.is_none() {
                // Receives in an SRQ belong to no queue pair yet.
                if core.config.has_srq {
                    break;
                }
                match self.take_next_recv(host) {
                    RecvFetch::Taken | RecvFetch::Malformed(_) => {}
                    RecvFetch::Empty | RecvFetch::QueueError(_) => break,
                }
            }
            budget.spend(0);
            self.fail_recv(core, host, WcStatus::WrFlushErr, Syndrome::Flushed);
        }
        if self.last_wqe_pending {
            self.last_wqe_pending = false;
            if core.config.has_srq {
                host.event(EventType::QpLastWqeReached, None);
            }
        }
        false
    }
}
