// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests that were executed before: copies that the network made, or retransmissions of a
//! requester that went back (IBTA 9.7.5).
//!
//! A SEND or WRITE is acknowledged again. The end of a message is acknowledged by two copies: rxe
//! may have no timer by then (Documentation/transport.md), and would wait for ever if a single copy
//! were lost. The last `max_dest_rd_atomic` READs and atomics are remembered, which is as many as a
//! requester may have outstanding: a READ is executed again, an atomic gets its stored result, and
//! ATOMIC WRITE and FLUSH are answered again. A request is dropped if it is older, or if it differs
//! from the one that was executed under its PSN. A READ whose key is gone by now is dropped too:
//! the copy may have been late, and a request that was valid once must not end the connection.

use super::{remote_key_use, ExecutedOp, ExecutedRequest, NotExecuted, PendingResponse, Responder};
use crate::host::{Host, KeyAccess, Syndrome};
use crate::packet::{Packet, PacketKind, Reth};
use crate::psn;
use crate::qp::Core;

impl Responder {
    /// Handles a request that was executed before. A returned cause moves the queue pair to ERR.
    pub(super) fn on_duplicate<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
    ) -> Option<Syndrome> {
        let psn = packet.psn;
        match packet.kind {
            // The acknowledgement has the PSN of the last request executed (C9-105).
            PacketKind::Send(_) | PacketKind::Write { .. } => {
                if packet.ack_req {
                    self.send_ack(core, host);
                    if packet.last && !core.attr.local_peer && self.pending_responses.is_empty() {
                        self.send_ack(core, host);
                    }
                }
            }
            PacketKind::ReadRequest(reth) => {
                let again = self.find_repeated(psn, |first| {
                    rest_of_read(first, psn, &reth, core.attr.path_mtu)
                })?;
                if reth.length > 0 {
                    let check = host.check(&remote_key_use(
                        core,
                        again.pd,
                        &reth,
                        KeyAccess::RemoteRead,
                    ));
                    // A key may be valid for memory that cannot be read.
                    let fault = self.lease.fault.get().filter(|(at, _)| *at == psn);
                    let unread = fault.map(|(_, cause)| cause);
                    if let Some(cause) = check.err().or(unread) {
                        // Between local peers no copy is late: the peer found the memory gone when
                        // it took the response, and asks for the reason. A peer with timers that
                        // takes packets by reference does so too.
                        if core.attr.local_peer || unread.is_some() {
                            return match self.refuse_executed(core, host, psn, cause) {
                                NotExecuted::Error(cause) => Some(cause),
                                NotExecuted::Dropped => None,
                            };
                        }
                        return None;
                    }
                }
                self.respond_again(core, again);
            }
            PacketKind::Atomic { addr, rkey, op } => {
                let again = self.find_repeated(psn, |first| match first.op {
                    ExecutedOp::Atomic {
                        addr: a,
                        rkey: r,
                        op: o,
                        ..
                    } if (a, r, o) == (addr, rkey, op) => Some(*first),
                    _ => None,
                })?;
                self.respond_again(core, again);
            }
            // The memory may have been read since, so the ATOMIC WRITE is not executed again.
            // Flushed memory stays flushed.
            PacketKind::AtomicWrite(_) | PacketKind::Flush(..) => {
                let again =
                    self.find_repeated(psn, |first| matching_placement(first, &packet.kind))?;
                self.respond_again(core, again);
            }
            PacketKind::Unknown(_)
            | PacketKind::ReadResponse(_)
            | PacketKind::Ack(_)
            | PacketKind::AtomicResponse(..)
            | PacketKind::Cnp => {}
        }
        None
    }

    /// Remembers a READ or atomic that was executed, for its duplicates.
    pub(super) fn remember(&mut self, core: &Core, executed: ExecutedRequest) {
        while self.executed_requests.len() >= usize::from(core.attr.max_dest_rd_atomic.max(1)) {
            self.executed_requests.pop_front();
        }
        self.executed_requests.push_back((executed, false));
    }

    /// Returns the result of `find` for the READ or atomic that was executed under a PSN, and marks
    /// that request as repeated.
    fn find_repeated(
        &mut self,
        psn: u32,
        find: impl Fn(&ExecutedRequest) -> Option<ExecutedRequest>,
    ) -> Option<ExecutedRequest> {
        // The search begins with the newest, because PSNs wrap around.
        let (first, repeated) = self
            .executed_requests
            .iter_mut()
            .rev()
            .find(|(first, _)| psn::ahead(psn, first.psn) < first.psns)?;
        let found = find(first)?;
        *repeated = true;
        Some(found)
    }

    /// True if the READ that a response belongs to was repeated. A READ that newer ones have
    /// displaced from `memory` was: until its first answer it counts among `max_dest_rd_atomic`, so
    /// it stays there.
    pub(super) fn was_repeated(&self, psn: u32) -> bool {
        self.executed_requests
            .iter()
            .rev()
            .find(|(first, _)| psn::ahead(psn, first.psn) < first.psns)
            .is_none_or(|(_, repeated)| *repeated)
    }

    /// Adds an answer to a duplicate, in PSN order. A pending answer for the same PSN is not sent
    /// twice.
    fn respond_again(&mut self, core: &Core, to: ExecutedRequest) {
        let again = PendingResponse {
            request: to,
            sent_packets: 0,
            is_repeat: true,
        };
        for waiting in &mut self.pending_responses {
            let skip = psn::ahead(to.psn, waiting.request.psn);
            if skip < waiting.request.psns {
                if skip < waiting.sent_packets {
                    // The pending answer was sent in part, and begins again at the PSN that is
                    // requested now.
                    *waiting = PendingResponse {
                        is_repeat: waiting.is_repeat,
                        ..again
                    };
                }
                return;
            }
            if psn::ahead(waiting.request.psn, to.psn) < to.psns {
                // The same READ is requested from an earlier packet on, which includes the pending
                // answer.
                *waiting = again;
                return;
            }
        }
        let repeated = self
            .pending_responses
            .iter()
            .filter(|a| a.is_repeat)
            .count();
        if repeated >= usize::from(core.attr.max_dest_rd_atomic) {
            return;
        }
        let age = psn::ahead(self.expected_psn, to.psn);
        let newer = |a: &PendingResponse| psn::ahead(self.expected_psn, a.request.psn) < age;
        let at = self.pending_responses.iter().position(newer);
        let at = at.unwrap_or(self.pending_responses.len());
        // The peer drops answers to later PSNs, so one that was sent in part begins again after
        // this one.
        if let Some(next) = self.pending_responses.get_mut(at) {
            next.sent_packets = 0;
        }
        self.pending_responses.insert(at, again);
    }
}

/// Returns the ATOMIC WRITE or FLUSH that was executed, if it is the one requested.
fn matching_placement(first: &ExecutedRequest, asked: &PacketKind) -> Option<ExecutedRequest> {
    let same = match (first.op, *asked) {
        (ExecutedOp::AtomicWrite(reth), PacketKind::AtomicWrite(again)) => reth == again,
        (ExecutedOp::Flush(feth, reth), PacketKind::Flush(how, what)) => {
            (feth, reth) == (how, what)
        }
        _ => false,
    };
    same.then_some(*first)
}

/// Returns the READ that `reth` requests, if it is `first` from one of its packets on, to its end.
fn rest_of_read(
    first: &ExecutedRequest,
    psn: u32,
    reth: &Reth,
    mtu: u32,
) -> Option<ExecutedRequest> {
    let ExecutedOp::Read(whole) = first.op else {
        return None;
    };
    let skip = psn::ahead(psn, first.psn);
    let offset = skip.checked_mul(mtu)?;
    let rest = Reth {
        addr: whole.addr.wrapping_add(u64::from(offset)),
        rkey: whole.rkey,
        length: whole.length.checked_sub(offset)?,
    };
    (*reth == rest).then_some(ExecutedRequest {
        psn,
        psns: first.psns.checked_sub(skip)?,
        pd: first.pd,
        op: ExecutedOp::Read(rest),
    })
}
