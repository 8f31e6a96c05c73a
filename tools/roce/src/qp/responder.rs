// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The responder of a reliable connection, a queue pair's receive queue: requests in, acknowledgements and responses out.
//!
//! A request is checked in the order of IBTA 9.7.4.1: sequence, opcode, operation enabled, resources (a receive, a READ
//! slot), R_Key, length. Answers leave in PSN order: as long as READ responses are waiting, acknowledgements and NAKs
//! wait behind them.
//!
//! This file places a request in the sequence, `execute.rs` executes it, `duplicate.rs` repeats what was executed
//! before, `keep.rs` keeps what comes ahead of a gap, `place.rs` has ATOMIC WRITE and FLUSH, `answer.rs` answers, `refuse.rs`
//! ends the connection, `receives.rs` takes and flushes receives. Documentation/rules.md has the rules by clause.

mod answer;
mod duplicate;
mod execute;
mod keep;
mod place;
mod prefetch;
mod receives;
mod refuse;
mod xrc;

use self::keep::AsksAlone;
use super::store::Store;
use super::{Core, QpState};
use crate::host::{Access, AtomicOp, EventType, Host, KeyUse, RecvWqe, Syndrome, WcStatus};
use crate::packet::{AethSyndrome, Feth, Kind, Lender, NakCode, Packet, Reth};
use crate::psn;
use crate::qp::credits;
use crate::qp::owed::Owed;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;

/// Longest message of the protocol (IBTA 9.7.4).
const MAX_LENGTH: u32 = 1 << 31;

/// A message of which the last packet has not come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    Send,
    Write { reth: Reth },
}

/// A READ, atomic, ATOMIC WRITE or FLUSH that was executed: for its response, and for duplicates.
#[derive(Clone, Copy, Debug)]
struct Executed {
    psn: u32,
    psns: u32,
    /// Protection domain of its memory.
    pd: u32,
    body: Body,
}

#[derive(Clone, Copy, Debug)]
enum Body {
    Read(Reth),
    Atomic {
        addr: u64,
        rkey: u32,
        op: AtomicOp,
        /// The value before the operation.
        value: u64,
    },
    AtomicWrite(Reth),
    Flush(Feth, Reth),
}

/// A response that waits to be sent.
#[derive(Clone, Copy, Debug)]
struct Answer {
    to: Executed,
    /// Packets sent.
    done: u32,
    /// To a duplicate.
    again: bool,
}

/// What ends the connection, to be carried out when all answers before it are sent.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    psn: u32,
    /// None: no NAK.
    nak: Option<NakCode>,
    /// What the receive that was taken completes with, if one was; WR_FLUSH_ERR if it is not to blame.
    status: WcStatus,
    /// Event if no receive carries the error.
    event: EventType,
    cause: Syndrome,
}

/// Whether the peer was told to send the PSN expected again: once for each gap (IBTA 9.7.5).
#[derive(Clone, Copy, Debug)]
enum Nak {
    NotSent,
    /// It waits behind `answers`.
    Due(AethSyndrome),
    Sent {
        /// That PSN has not come. Else it has, and there was no receive for it.
        gap: bool,
    },
}

impl Nak {
    /// Whether the peer knows, or will, why the PSN expected is not executed. If its own memory is gone, no gap behind that
    /// takes the place of the reason.
    fn is_told(self) -> bool {
        !matches!(self, Nak::NotSent)
    }
}

/// How this side ends the connection.
#[derive(Clone, Copy, Debug)]
enum End {
    None,
    /// It waits behind `answers`, and whatever comes meanwhile is dropped.
    Due(Refusal),
    /// In ERR: the NAK that ended it, to be repeated to a peer that did not get it, at most so often.
    Told {
        psn: u32,
        code: NakCode,
        repeats: u32,
    },
}

/// Why a packet was not executed.
enum Stop {
    /// It counts as lost, or was answered by an RNR NAK.
    Dropped,
    /// The queue pair goes to ERR.
    Error(Syndrome),
}

/// Why a packet of a service that never answers was not executed.
pub(super) enum Lost {
    /// It was counted.
    Counted,
    /// The queue pair goes to ERR, and its own side was told.
    Error(Syndrome),
}

/// The responder's state.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Responder {
    pub(super) expected_psn: u32,
    msn: u32,
    /// Bytes of the message that have come.
    pub(super) offset: u32,
    /// An acknowledgement waits behind `answers`.
    ack_due: bool,
    /// The credit code told last, or the one for "not used".
    credits_told: u8,
    asks_alone: AsksAlone,
    pub(super) message: Option<Message>,
    /// `recv` was taken and is not complete.
    pub(super) owed: Option<Owed>,
    comm_est_due: bool,
    last_wqe_due: bool,
    nak: Nak,
    /// In PSN order.
    answers: VecDeque<Answer>,
    // What was above, every packet needs; this, some.
    end: End,
    pub(super) recv_capacity: u64,
    pub(super) recv: RecvWqe,
    /// The last `max_dest_rd_atomic` READs and atomics, the newest last, and whether they were repeated.
    memory: VecDeque<(Executed, bool)>,
    /// READ responses under way may read memory. They may also in ERR: they were sent before.
    lender: Rc<Lender>,
    /// What came ahead of a gap.
    store: Option<Box<Store>>,
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.lender.alive.set(false);
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
            owed: None,
            recv_capacity: 0,
            answers: VecDeque::new(),
            memory: VecDeque::new(),
            ack_due: false,
            nak: Nak::NotSent,
            end: End::None,
            credits_told: credits::INVALID,
            lender: Rc::default(),
            store: None,
            asks_alone: AsksAlone::UNKNOWN,
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
        self.nak = Nak::NotSent;
        self.store = None;
        self.take_refusal();
        self.last_wqe_due = true;
    }

    /// Whether an unreliable service takes packets in this state.
    pub(super) fn is_receiving(state: QpState) -> bool {
        matches!(
            state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        )
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
        if self.is_ending() {
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
                return self.ahead(core, host, packet);
            }
            let old = psn::ahead(self.expected_psn, packet.psn);
            if !is_data(&packet) || old >= packet.psns {
                core.counters.duplicates += u64::from(packet.psns);
                if self.asks_again(&packet) {
                    return self.go_on(core, host, &packet);
                }
                self.note_copy(&packet);
                return self.duplicate(core, host, &packet);
            }
            core.counters.duplicates += u64::from(old);
            packet.trim_front(old, core.attr.path_mtu);
        }
        let mut asked = asks(&packet);
        let keeps = self.store.is_some();
        let waits = keeps && self.close(&packet);
        let mut result = self.execute(core, host, packet);
        if waits {
            self.forget_behind();
        } else if keeps && result.is_ok() {
            result = self.execute_kept(core, host, None, &mut asked);
        }
        self.finish(core, host, result, asked)
    }

    /// Ends a call in which requests were executed. `asked`: for an acknowledgement.
    #[inline]
    fn finish<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        result: Result<(), Stop>,
        asked: bool,
    ) -> Option<Syndrome> {
        match result {
            // What nobody was told of is not acknowledged.
            Ok(()) if core.is_doomed() => None,
            // The next gap is known already. Telling it acknowledges all before it, but it may close before it is told.
            Ok(()) if self.keeps() && self.closed().is_none() => {
                self.ack_due |= asked && !self.answers.is_empty();
                self.nak(core, host, AethSyndrome::Nak(NakCode::Sequence));
                None
            }
            Ok(()) => {
                if asked {
                    self.ack(core, host);
                }
                None
            }
            Err(Stop::Dropped) => {
                self.store = None;
                None
            }
            Err(Stop::Error(cause)) => Some(cause),
        }
    }

    /// Executes the request that is expected.
    #[inline]
    fn execute<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: Packet,
    ) -> Result<(), Stop> {
        self.nak = Nak::NotSent;
        self.find_xrc_srq(core, host, &packet)?;
        match packet.kind {
            Kind::Send(tail) => self.send(core, host, &packet, tail),
            Kind::Write { reth, imm } => self.write_parts(core, host, packet, reth, imm),
            Kind::ReadRequest(reth) => self.read(core, host, &packet, reth),
            Kind::Atomic { addr, rkey, op } => self.atomic(core, host, &packet, addr, rkey, op),
            Kind::AtomicWrite(reth) => self.atomic_write(core, host, &packet, reth),
            Kind::Flush(feth, reth) => self.flush_memory(core, host, &packet, feth, reth),
            // Reserved or not supported: an invalid request (IBTA 9.7.4.1, 9.9.3 class C).
            Kind::Unknown(_) => {
                Err(self.refuse_request(core, host, packet.psn, Syndrome::RequestOpcode))
            }
            Kind::ReadResponse(_) | Kind::Ack(_) | Kind::AtomicResponse(..) | Kind::Cnp => {
                Err(Stop::Dropped)
            }
        }
    }
}

/// Whether a request is a SEND or WRITE.
fn is_data(packet: &Packet) -> bool {
    matches!(packet.kind, Kind::Send(_) | Kind::Write { .. })
}

/// Whether an acknowledgement is asked for. A READ or atomic is acknowledged by its response.
fn asks(packet: &Packet) -> bool {
    packet.ack_req && is_data(packet)
}

/// The use of memory of a protection domain that a request asks for.
fn remote_use(core: &Core, pd: u32, reth: &Reth, access: Access) -> KeyUse {
    KeyUse {
        pd,
        owner: core.config.owner,
        privileged: false,
        key: reth.rkey,
        addr: reth.addr,
        length: u64::from(reth.length),
        access,
    }
}
