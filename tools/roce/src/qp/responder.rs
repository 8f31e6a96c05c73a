// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The responder of a reliable connection: requests in, acknowledgements and responses out.
//!
//! A request is checked in the order of IBTA 9.7.4: sequence, opcode, operation enabled, resources (a receive, a READ
//! slot), R_Key, length. Answers leave in PSN order: as long as READ responses are waiting, acknowledgements and NAKs
//! wait behind them.
//!
//! This file places a request in the sequence, `execute.rs` executes it, `answer.rs` answers.

mod answer;
mod execute;

use super::{failed, Budget, Core, QpState};
use crate::host::{Access, EventType, Host, KeyUse, RecvWqe, Syndrome, Take, WcOpcode, WcStatus};
use crate::packet::{AethSyndrome, Kind, NakCode, Packet, Reth};
use crate::psn;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use core::cell::Cell;

/// Longest message of the protocol (IBTA 9.7.4).
const MAX_LENGTH: u32 = 1 << 31;

/// A message of which the last packet has not come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    Send,
    Write { reth: Reth },
}

/// A response to a READ or atomic that waits to be sent.
#[derive(Clone, Copy, Debug)]
struct Answer {
    psn: u32,
    psns: u32,
    /// Packets sent.
    done: u32,
    body: Body,
}

#[derive(Clone, Copy, Debug)]
enum Body {
    Read(Reth),
    Atomic(u64),
}

/// What ends the connection, to be carried out when all answers before it are sent.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    psn: u32,
    /// None: no NAK.
    nak: Option<NakCode>,
    /// What the receive that was taken completes with, if one was.
    status: WcStatus,
    /// Event if no receive carries the error.
    event: EventType,
    cause: Syndrome,
}

/// Why a packet was not executed.
enum Stop {
    /// It counts as lost, or was answered by an RNR NAK.
    Dropped,
    /// The queue pair goes to ERR.
    Error(Syndrome),
}

/// The responder's state.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(super) expected_psn: u32,
    msn: u32,
    pub(super) message: Option<Message>,
    /// Bytes of the message that have come.
    pub(super) offset: u32,
    pub(super) recv: RecvWqe,
    /// `recv` was taken and is not complete.
    pub(super) recv_held: bool,
    pub(super) recv_capacity: u64,
    answers: VecDeque<Answer>,
    /// Results of the last atomics by PSN, for duplicates.
    atomics: VecDeque<(u32, u64)>,
    /// An acknowledgement waits behind `answers`.
    ack_due: bool,
    /// So does a NAK for the PSN expected.
    nak_due: Option<AethSyndrome>,
    refusal: Option<Refusal>,
    /// A NAK was sent for the PSN expected: once for each gap.
    nak_sent: bool,
    /// The NAK that brought the queue pair to ERR, to be repeated to a peer that did not get it.
    last_nak: Option<(u32, NakCode)>,
    /// READ responses under way may read memory. They may also in ERR: they were sent before.
    alive: Rc<Cell<bool>>,
    comm_est_due: bool,
    last_wqe_due: bool,
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.alive.set(false);
    }
}

impl Responder {
    pub(crate) fn new() -> Self {
        Self {
            expected_psn: 0,
            msn: 0,
            message: None,
            offset: 0,
            recv: RecvWqe::default(),
            recv_held: false,
            recv_capacity: 0,
            answers: VecDeque::new(),
            atomics: VecDeque::new(),
            ack_due: false,
            nak_due: None,
            refusal: None,
            nak_sent: false,
            last_nak: None,
            alive: Rc::new(Cell::new(true)),
            comm_est_due: false,
            last_wqe_due: false,
        }
    }

    pub(crate) fn expected_psn(&self) -> u32 {
        self.expected_psn
    }

    pub(crate) fn msn(&self) -> u32 {
        self.msn
    }

    pub(crate) fn reset(&mut self) {
        *self = Self::new();
    }

    /// INIT to RTR.
    pub(crate) fn start(&mut self, core: &Core) {
        self.expected_psn = core.attr.rq_psn;
        self.comm_est_due = true;
    }

    /// Enters ERR.
    pub(crate) fn abandon(&mut self) {
        self.message = None;
        self.answers.clear();
        self.ack_due = false;
        self.nak_due = None;
        self.refusal = None;
        self.last_wqe_due = true;
    }

    /// Reports COMM_EST once, for a packet that comes in RTR.
    pub(super) fn note_arrival<H: Host>(&mut self, core: &Core, host: &mut H) {
        if core.state == QpState::Rtr && self.comm_est_due {
            self.comm_est_due = false;
            host.event(EventType::CommEst, None);
        }
    }

    /// Handles a request. A cause returned takes the queue pair to ERR.
    pub(crate) fn receive<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        mut packet: Packet,
    ) -> Option<Syndrome> {
        match core.state {
            QpState::Rtr | QpState::Rts | QpState::Sqd => {}
            QpState::Err => {
                self.repeat_nak(core, host, &packet);
                return None;
            }
            _ => {
                core.counters.dropped_state += 1;
                return None;
            }
        }
        self.note_arrival(core, host);
        if self.refusal.is_some() {
            core.counters.dropped_state += 1;
            return None;
        }
        if !packet.payload.is_alive() {
            core.counters.dead_payloads += u64::from(packet.psns);
            return None;
        }
        if packet.psn != self.expected_psn {
            if !psn::is_behind(packet.psn, self.expected_psn) {
                core.counters.out_of_sequence += u64::from(packet.psns);
                if !self.nak_sent {
                    self.nak_sent = true;
                    self.nak(core, host, AethSyndrome::Nak(NakCode::Sequence));
                }
                return None;
            }
            let old = psn::ahead(self.expected_psn, packet.psn);
            let data = matches!(packet.kind, Kind::Send(_) | Kind::Write { .. });
            if !data || old >= packet.psns {
                core.counters.duplicates += u64::from(packet.psns);
                return self.duplicate(core, host, &packet);
            }
            core.counters.duplicates += u64::from(old);
            packet.trim_front(old, core.attr.path_mtu);
        }
        self.nak_sent = false;
        self.nak_due = None;
        let ack_req = packet.ack_req;
        let result = match packet.kind {
            Kind::Send(tail) => self.send(core, host, &packet, tail),
            Kind::Write { reth, imm } => self.write_parts(core, host, packet, reth, imm),
            Kind::ReadRequest(reth) => self.read(core, host, &packet, reth),
            Kind::Atomic { addr, rkey, op } => self.atomic(core, host, &packet, addr, rkey, op),
            Kind::ReadResponse(_) | Kind::Ack(_) | Kind::AtomicResponse(..) => return None,
        };
        match result {
            Ok(()) => {
                if ack_req {
                    self.ack(core, host);
                }
                None
            }
            Err(Stop::Dropped) => None,
            Err(Stop::Error(cause)) => Some(cause),
        }
    }

    /// A request that was executed before (IBTA 9.7.5).
    fn duplicate<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
    ) -> Option<Syndrome> {
        match packet.kind {
            Kind::Send(_) | Kind::Write { .. } if packet.ack_req => self.ack(core, host),
            Kind::ReadRequest(reth) => {
                let psns = reth.length.div_ceil(core.attr.path_mtu).max(1);
                if reth.length > MAX_LENGTH || psn::ahead(self.expected_psn, packet.psn) < psns {
                    return None;
                }
                if reth.length > 0 {
                    if let Err(cause) = host.check(&remote_use(core, &reth, Access::RemoteRead)) {
                        let stop = self.refuse_access(core, host, packet.psn, cause);
                        return match stop {
                            Stop::Error(cause) => Some(cause),
                            Stop::Dropped => None,
                        };
                    }
                }
                self.answer_again(
                    core,
                    Answer {
                        psn: packet.psn,
                        psns,
                        done: 0,
                        body: Body::Read(reth),
                    },
                );
            }
            Kind::Atomic { .. } => {
                // Never executed again: the result is replayed, or the request is too old and dropped.
                if let Some(&(_, value)) = self.atomics.iter().find(|(psn, _)| *psn == packet.psn) {
                    self.answer_again(
                        core,
                        Answer {
                            psn: packet.psn,
                            psns: 1,
                            done: 0,
                            body: Body::Atomic(value),
                        },
                    );
                }
            }
            _ => {}
        }
        None
    }

    /// The requester has gone back to `answer`: it discards what it would get after it, and asks again for that.
    fn answer_again(&mut self, core: &Core, answer: Answer) {
        if let Some(at) = self
            .answers
            .iter()
            .position(|a| psn::ahead(answer.psn, a.psn) < a.psns)
        {
            self.answers.truncate(at);
        }
        if self.answers.len() < usize::from(core.attr.max_dest_rd_atomic) {
            self.answers.push_back(answer);
        }
    }

    /// In ERR, the specification's responder is silent. One whose last word was lost would leave the peer without a
    /// reason, so the NAK that ended the connection is repeated.
    fn repeat_nak<H: Host>(&mut self, core: &mut Core, host: &mut H, packet: &Packet) {
        core.counters.dropped_state += 1;
        let data = matches!(packet.kind, Kind::Send(_) | Kind::Write { .. });
        match self.last_nak {
            Some((psn, code)) if packet.ack_req || !data => {
                self.answer_aeth(core, host, psn, AethSyndrome::Nak(code));
            }
            _ => {}
        }
    }

    /// Takes a receive, unless one is held already.
    fn take<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
    ) -> Result<(), Stop> {
        if self.recv_held {
            return Ok(());
        }
        self.recv.sges.clear();
        match host.take_recv(&mut self.recv) {
            Take::Taken => {
                self.recv_held = true;
                self.recv_capacity = self.recv.capacity();
                Ok(())
            }
            Take::Empty => {
                self.nak_sent = true;
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
                self.recv_held = true;
                self.recv_capacity = 0;
                Err(self.refuse(
                    core,
                    host,
                    Refusal {
                        psn: packet.psn,
                        nak: Some(NakCode::RemoteOperational),
                        status: WcStatus::LocQpOpErr,
                        event: EventType::QpFatal,
                        cause,
                    },
                ))
            }
            Take::Dead(cause) => Err(self.refuse(
                core,
                host,
                Refusal {
                    psn: packet.psn,
                    nak: Some(NakCode::RemoteOperational),
                    status: WcStatus::LocQpOpErr,
                    event: EventType::QpFatal,
                    cause,
                },
            )),
        }
    }

    /// In ERR: flushes the receive that is held and those posted. True: there is more.
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
            if !self.recv_held {
                // Receives in an SRQ belong to no queue pair yet.
                if core.config.has_srq {
                    break;
                }
                self.recv.sges.clear();
                match host.take_recv(&mut self.recv) {
                    Take::Taken | Take::Malformed(_) => {}
                    Take::Empty | Take::Dead(_) => break,
                }
            }
            self.recv_held = false;
            budget.spend(0);
            let (wr_id, index) = (self.recv.wr_id, self.recv.index);
            let completion = failed(
                wr_id,
                index,
                WcOpcode::Recv,
                WcStatus::WrFlushErr,
                Syndrome::Flushed,
            );
            core.complete(host, &completion);
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

fn remote_use(core: &Core, reth: &Reth, access: Access) -> KeyUse {
    KeyUse {
        pd: core.config.pd,
        privileged: false,
        key: reth.rkey,
        addr: reth.addr,
        length: u64::from(reth.length),
        access,
    }
}
