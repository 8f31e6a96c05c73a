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

use super::{remote_use, Answer, Body, Executed, Responder, Stop};
use crate::host::{Access, Host, Syndrome};
use crate::packet::{Kind, Packet, Reth};
use crate::psn;
use crate::qp::Core;

impl Responder {
    /// Handles a request that was executed before. A returned cause moves the queue pair to ERR.
    pub(super) fn duplicate<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
    ) -> Option<Syndrome> {
        let psn = packet.psn;
        match packet.kind {
            // The acknowledgement has the PSN of the last request executed (C9-105).
            Kind::Send(_) | Kind::Write { .. } => {
                if packet.ack_req {
                    self.ack(core, host);
                    if packet.last && !core.attr.local_peer && self.answers.is_empty() {
                        self.ack(core, host);
                    }
                }
            }
            Kind::ReadRequest(reth) => {
                let again = self.remembered(psn, |first| {
                    rest_of_read(first, psn, &reth, core.attr.path_mtu)
                })?;
                if reth.length > 0 {
                    let check = host.check(&remote_use(core, again.pd, &reth, Access::RemoteRead));
                    // A key may be valid for memory that cannot be read.
                    let fault = self.lender.fault.get().filter(|(at, _)| *at == psn);
                    let unread = fault.map(|(_, cause)| cause);
                    if let Some(cause) = check.err().or(unread) {
                        // Between local peers no copy is late: the peer found the memory gone when
                        // it took the response, and asks for the reason. A peer with timers that
                        // takes packets by reference does so too.
                        if core.attr.local_peer || unread.is_some() {
                            return match self.refuse_executed(core, host, psn, cause) {
                                Stop::Error(cause) => Some(cause),
                                Stop::Dropped => None,
                            };
                        }
                        return None;
                    }
                }
                self.answer_again(core, again);
            }
            Kind::Atomic { addr, rkey, op } => {
                let again = self.remembered(psn, |first| match first.body {
                    Body::Atomic {
                        addr: a,
                        rkey: r,
                        op: o,
                        ..
                    } if (a, r, o) == (addr, rkey, op) => Some(*first),
                    _ => None,
                })?;
                self.answer_again(core, again);
            }
            // The memory may have been read since, so the ATOMIC WRITE is not executed again.
            // Flushed memory stays flushed.
            Kind::AtomicWrite(_) | Kind::Flush(..) => {
                let again = self.remembered(psn, |first| is_placed(first, &packet.kind))?;
                self.answer_again(core, again);
            }
            Kind::Unknown(_)
            | Kind::ReadResponse(_)
            | Kind::Ack(_)
            | Kind::AtomicResponse(..)
            | Kind::Cnp => {}
        }
        None
    }

    /// Remembers a READ or atomic that was executed, for its duplicates.
    pub(super) fn remember(&mut self, core: &Core, executed: Executed) {
        while self.memory.len() >= usize::from(core.attr.max_dest_rd_atomic.max(1)) {
            self.memory.pop_front();
        }
        self.memory.push_back((executed, false));
    }

    /// Returns the result of `find` for the READ or atomic that was executed under a PSN, and marks
    /// that request as repeated.
    fn remembered(
        &mut self,
        psn: u32,
        find: impl Fn(&Executed) -> Option<Executed>,
    ) -> Option<Executed> {
        // The search begins with the newest, because PSNs wrap around.
        let (first, repeated) = self
            .memory
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
        self.memory
            .iter()
            .rev()
            .find(|(first, _)| psn::ahead(psn, first.psn) < first.psns)
            .is_none_or(|(_, repeated)| *repeated)
    }

    /// Adds an answer to a duplicate, in PSN order. A pending answer for the same PSN is not sent
    /// twice.
    fn answer_again(&mut self, core: &Core, to: Executed) {
        let again = Answer {
            to,
            done: 0,
            again: true,
        };
        for waiting in &mut self.answers {
            let skip = psn::ahead(to.psn, waiting.to.psn);
            if skip < waiting.to.psns {
                if skip < waiting.done {
                    // The pending answer was sent in part, and begins again at the PSN that is
                    // requested now.
                    *waiting = Answer {
                        again: waiting.again,
                        ..again
                    };
                }
                return;
            }
            if psn::ahead(waiting.to.psn, to.psn) < to.psns {
                // The same READ is requested from an earlier packet on, which includes the pending
                // answer.
                *waiting = again;
                return;
            }
        }
        let repeated = self.answers.iter().filter(|a| a.again).count();
        if repeated >= usize::from(core.attr.max_dest_rd_atomic) {
            return;
        }
        let age = psn::ahead(self.expected_psn, to.psn);
        let newer = |a: &Answer| psn::ahead(self.expected_psn, a.to.psn) < age;
        let at = self.answers.iter().position(newer);
        let at = at.unwrap_or(self.answers.len());
        // The peer drops answers to later PSNs, so one that was sent in part begins again after
        // this one.
        if let Some(next) = self.answers.get_mut(at) {
            next.done = 0;
        }
        self.answers.insert(at, again);
    }
}

/// Returns the ATOMIC WRITE or FLUSH that was executed, if it is the one requested.
fn is_placed(first: &Executed, asked: &Kind) -> Option<Executed> {
    let same = match (first.body, *asked) {
        (Body::AtomicWrite(reth), Kind::AtomicWrite(again)) => reth == again,
        (Body::Flush(feth, reth), Kind::Flush(how, what)) => (feth, reth) == (how, what),
        _ => false,
    };
    same.then_some(*first)
}

/// Returns the READ that `reth` requests, if it is `first` from one of its packets on, to its end.
fn rest_of_read(first: &Executed, psn: u32, reth: &Reth, mtu: u32) -> Option<Executed> {
    let Body::Read(whole) = first.body else {
        return None;
    };
    let skip = psn::ahead(psn, first.psn);
    let offset = skip.checked_mul(mtu)?;
    let rest = Reth {
        addr: whole.addr.wrapping_add(u64::from(offset)),
        rkey: whole.rkey,
        length: whole.length.checked_sub(offset)?,
    };
    (*reth == rest).then_some(Executed {
        psn,
        psns: first.psns.checked_sub(skip)?,
        pd: first.pd,
        body: Body::Read(rest),
    })
}
