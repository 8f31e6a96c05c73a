// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Receives: taken for a request, kept for a message, completed in error, flushed in ERR.

use super::{Lost, Responder, Stop};
use crate::host::{EventType, Host, Syndrome, Take, WcOpcode, WcStatus};
use crate::packet::{AethSyndrome, Packet};
use crate::qp::owed::Owed;
use crate::qp::{Budget, Core};

impl Responder {
    /// Returns the index and `wr_id` of the receive that is held.
    pub(crate) fn held_recv(&self) -> Option<(u32, u64)> {
        self.owed.as_ref().map(Owed::names)
    }

    /// Takes a receive, unless one is held already.
    fn hold<H: Host>(&mut self, host: &mut H) -> Take {
        if self.owed.is_some() {
            return Take::Taken;
        }
        let take = self.next(host);
        if take == Take::Taken {
            self.recv_capacity = self.recv.capacity();
        }
        take
    }

    /// Takes the next receive out of its queue.
    fn next<H: Host>(&mut self, host: &mut H) -> Take {
        self.recv.sges.clear();
        let take = host.take_recv(&mut self.recv);
        if matches!(take, Take::Taken | Take::Malformed(_)) {
            let (wr_id, index) = (self.recv.wr_id, self.recv.index);
            self.owed = Some(Owed::new(wr_id, index, WcOpcode::Recv).of(self.recv.xrc));
        }
        take
    }

    /// Makes sure that a receive is held. If none is posted, an RNR NAK answers the request.
    pub(super) fn take<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
    ) -> Result<(), Stop> {
        match self.hold(host) {
            Take::Taken => Ok(()),
            Take::Empty => {
                self.nak(
                    core,
                    host,
                    AethSyndrome::Rnr {
                        timer: core.attr.min_rnr_timer,
                    },
                );
                Err(Stop::Dropped)
            }
            Take::Malformed(cause) => {
                self.recv_capacity = 0;
                Err(self.refuse_operation(core, host, packet.psn, WcStatus::LocQpOpErr, cause))
            }
            Take::Dead(cause) => {
                Err(self.refuse_operation(core, host, packet.psn, WcStatus::LocQpOpErr, cause))
            }
        }
    }

    /// Makes sure that a receive is held, for a service that never answers.
    pub(in crate::qp) fn take_silently<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
    ) -> Result<(), Lost> {
        match self.hold(host) {
            Take::Taken => Ok(()),
            Take::Empty => {
                core.counters.dropped_no_receive += 1;
                Err(Lost::Counted)
            }
            Take::Malformed(cause) => {
                self.fail_recv(core, host, WcStatus::LocQpOpErr, cause);
                Err(Lost::Error(cause))
            }
            Take::Dead(cause) => {
                host.event(EventType::QpFatal, Some(cause));
                Err(Lost::Error(cause))
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
        if let Some(owed) = self.owed.take() {
            core.complete(host, &owed.failed(status, cause));
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
            if self.owed.is_none() {
                // Receives in an SRQ belong to no queue pair yet.
                if core.config.has_srq {
                    break;
                }
                match self.next(host) {
                    Take::Taken | Take::Malformed(_) => {}
                    Take::Empty | Take::Dead(_) => break,
                }
            }
            budget.spend(0);
            self.fail_recv(core, host, WcStatus::WrFlushErr, Syndrome::Flushed);
        }
        if self.last_wqe_due {
            self.last_wqe_due = false;
            if core.config.has_srq {
                host.event(EventType::QpLastWqeReached, None);
            }
        }
        false
    }
}
