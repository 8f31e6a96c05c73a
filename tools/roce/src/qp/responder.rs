// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The responder of a reliable connection: requests in, acknowledgements and responses out.
//!
//! A request is checked in the order of IBTA 9.7.4: sequence, opcode, operation enabled, resources (a receive, a READ
//! slot), R_Key, length. Answers leave in PSN order: as long as READ responses are waiting, acknowledgements and NAKs
//! wait behind them.

use super::{failed, Budget, Core, QpState};
use crate::host::{
    Access, Completion, CopyFault, EventType, Host, KeyUse, RecvWqe, Syndrome, Take, Target,
    WcOpcode, WcStatus,
};
use crate::packet::{Aeth, AethSyndrome, Kind, NakCode, Packet, Payload, Reth, SendTail};
use crate::psn;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use core::cell::Cell;
use verbena_abi::ctx::access;

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

    /// Whether the payload has the size that its place in the message demands (IBTA 9.7.4).
    pub(super) fn fits(core: &Core, packet: &Packet) -> bool {
        let full = packet.psns.saturating_mul(core.attr.path_mtu);
        let length = packet.payload.len();
        if packet.last {
            let least = full.saturating_sub(core.attr.path_mtu);
            length <= full && (length > least || (packet.first && packet.psns == 1))
        } else {
            length == full
        }
    }

    /// Counts a packet as executed.
    pub(super) fn executed(&mut self, packet: &Packet) {
        self.expected_psn = psn::add(packet.psn, packet.psns);
        self.offset = if packet.last {
            0
        } else {
            self.offset + packet.payload.len()
        };
        if packet.last {
            self.message = None;
            self.msn = (self.msn + 1) & psn::PSN_MASK;
        }
    }

    fn send<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        tail: SendTail,
    ) -> Result<(), Stop> {
        let in_order = match self.message {
            None => packet.first,
            Some(Message::Send) => !packet.first,
            Some(Message::Write { .. }) => false,
        };
        if !in_order {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::RequestOpcode));
        }
        if !Self::fits(core, packet) || packet.payload.len() > MAX_LENGTH - self.offset {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::RequestLength));
        }
        if packet.first {
            self.take(core, host, packet)?;
        }
        let mtu = core.attr.path_mtu;
        let room = self.recv_capacity.saturating_sub(u64::from(self.offset));
        if u64::from(packet.payload.len()) > room {
            // The packets before the first that does not fit are good.
            let good = (room / u64::from(mtu)) as u32;
            if good > 0 {
                let part = packet.payload.slice(0, good * mtu);
                self.scatter(core, host, packet, &part)?;
            }
            return Err(self.refuse(
                core,
                host,
                Refusal {
                    psn: psn::add(packet.psn, good),
                    nak: Some(NakCode::InvalidRequest),
                    status: WcStatus::LocLenErr,
                    event: EventType::QpReqErr,
                    cause: Syndrome::RecvTooSmall,
                },
            ));
        }
        self.scatter(core, host, packet, &packet.payload)?;
        let length = self.offset + packet.payload.len();
        self.message = Some(Message::Send);
        self.executed(packet);
        if !packet.last {
            return Ok(());
        }
        let (mut imm, mut invalidated) = (None, None);
        match tail {
            SendTail::None => {}
            SendTail::Imm(data) => imm = Some(data),
            SendTail::Invalidate(key) => {
                if let Err(cause) = host.invalidate(key, true) {
                    // The peer's SEND was good, so it gets no NAK.
                    return Err(self.refuse(
                        core,
                        host,
                        Refusal {
                            psn: psn::add(packet.psn, packet.psns - 1),
                            nak: None,
                            status: WcStatus::MwBindErr,
                            event: EventType::QpAccessErr,
                            cause,
                        },
                    ));
                }
                invalidated = Some(key);
            }
        }
        self.complete_recv(
            core,
            host,
            WcOpcode::Recv,
            length,
            imm,
            invalidated,
            packet.solicited,
        );
        Ok(())
    }

    /// Copies a payload into the receive's buffers.
    fn scatter<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        payload: &Payload,
    ) -> Result<(), Stop> {
        if payload.is_empty() {
            return Ok(());
        }
        let target = Target::Scatter {
            pd: self.recv.pd,
            privileged: self.recv.privileged,
            sges: &self.recv.sges,
            offset: self.offset,
        };
        match host.copy(target, payload.source()) {
            Ok(()) => Ok(()),
            Err(CopyFault::Source(cause)) => Err(self.sender_fault(core, host, packet, cause)),
            Err(CopyFault::Target(cause)) => Err(self.refuse(
                core,
                host,
                Refusal {
                    psn: packet.psn,
                    nak: Some(NakCode::RemoteOperational),
                    status: WcStatus::LocProtErr,
                    event: EventType::QpFatal,
                    cause,
                },
            )),
        }
    }

    /// A WRITE. Its immediate belongs to its last packet alone, so that packet is executed by itself.
    fn write_parts<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        mut packet: Packet,
        reth: Option<Reth>,
        imm: Option<[u8; 4]>,
    ) -> Result<(), Stop> {
        if imm.is_some() && packet.psns > 1 {
            let front = packet.split_front(packet.psns - 1, core.attr.path_mtu);
            self.write(core, host, &front, reth, None)?;
            return self.write(core, host, &packet, None, imm);
        }
        self.write(core, host, &packet, reth, imm)
    }

    fn write<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        reth: Option<Reth>,
        imm: Option<[u8; 4]>,
    ) -> Result<(), Stop> {
        let psn = packet.psn;
        let reth = match (self.message, reth) {
            (None, Some(reth)) if packet.first => reth,
            (Some(Message::Write { reth }), None) if !packet.first => reth,
            _ => return Err(self.refuse_request(core, host, psn, Syndrome::RequestOpcode)),
        };
        if packet.first && core.attr.access_flags & access::REMOTE_WRITE == 0 {
            return Err(self.refuse_request(core, host, psn, Syndrome::OperationDisabled));
        }
        let length = packet.payload.len();
        let rest = reth.length.saturating_sub(self.offset);
        let whole = if packet.last {
            length == rest
        } else {
            length < rest
        };
        if reth.length > MAX_LENGTH || !whole || !Self::fits(core, packet) {
            return Err(self.refuse_request(core, host, psn, Syndrome::RequestLength));
        }
        if imm.is_some() {
            self.take(core, host, packet)?;
        }
        // A message of one part is checked by its copy.
        if packet.first && !packet.last {
            if let Err(cause) = host.check(&remote_use(core, &reth, Access::RemoteWrite)) {
                return Err(self.refuse_access(core, host, psn, cause));
            }
        }
        if length > 0 {
            let target = Target::Region {
                pd: core.config.pd,
                key: reth.rkey,
                addr: reth.addr.wrapping_add(u64::from(self.offset)),
            };
            match host.copy(target, packet.payload.source()) {
                Ok(()) => {}
                Err(CopyFault::Source(cause)) => {
                    return Err(self.sender_fault(core, host, packet, cause))
                }
                Err(CopyFault::Target(cause)) => {
                    return Err(self.refuse_access(core, host, psn, cause))
                }
            }
        }
        self.message = Some(Message::Write { reth });
        self.executed(packet);
        if imm.is_some() {
            self.complete_recv(
                core,
                host,
                WcOpcode::RecvRdmaWithImm,
                reth.length,
                imm,
                None,
                packet.solicited,
            );
        }
        Ok(())
    }

    fn read<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        reth: Reth,
    ) -> Result<(), Stop> {
        self.check_response_request(core, host, packet, access::REMOTE_READ)?;
        if reth.length > MAX_LENGTH {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::RequestLength));
        }
        if reth.length > 0 {
            if let Err(cause) = host.check(&remote_use(core, &reth, Access::RemoteRead)) {
                return Err(self.refuse_access(core, host, packet.psn, cause));
            }
        }
        let psns = reth.length.div_ceil(core.attr.path_mtu).max(1);
        self.answers.push_back(Answer {
            psn: packet.psn,
            psns,
            done: 0,
            body: Body::Read(reth),
        });
        self.expected_psn = psn::add(packet.psn, psns);
        self.msn = (self.msn + 1) & psn::PSN_MASK;
        Ok(())
    }

    fn atomic<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        addr: u64,
        rkey: u32,
        op: crate::host::AtomicOp,
    ) -> Result<(), Stop> {
        self.check_response_request(core, host, packet, access::REMOTE_ATOMIC)?;
        if addr % 8 != 0 {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::AtomicMisaligned));
        }
        let key = remote_use(
            core,
            &Reth {
                addr,
                rkey,
                length: 8,
            },
            Access::RemoteAtomic,
        );
        let value = match host.atomic(&key, op) {
            Ok(value) => value,
            Err(cause) => return Err(self.refuse_access(core, host, packet.psn, cause)),
        };
        while self.atomics.len() >= usize::from(core.attr.max_dest_rd_atomic) {
            self.atomics.pop_front();
        }
        self.atomics.push_back((packet.psn, value));
        self.answers.push_back(Answer {
            psn: packet.psn,
            psns: 1,
            done: 0,
            body: Body::Atomic(value),
        });
        self.expected_psn = psn::add(packet.psn, 1);
        self.msn = (self.msn + 1) & psn::PSN_MASK;
        Ok(())
    }

    /// What READs and atomics are checked for alike.
    fn check_response_request<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        access: u32,
    ) -> Result<(), Stop> {
        if self.message.is_some() || !packet.payload.is_empty() {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::RequestOpcode));
        }
        if core.attr.access_flags & access == 0 {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::OperationDisabled));
        }
        if self.answers.len() >= usize::from(core.attr.max_dest_rd_atomic) {
            return Err(self.refuse_request(core, host, packet.psn, Syndrome::TooManyReads));
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn complete_recv<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        opcode: WcOpcode,
        byte_len: u32,
        imm: Option<[u8; 4]>,
        invalidated: Option<u32>,
        solicited: bool,
    ) {
        self.recv_held = false;
        let completion = Completion {
            wr_id: self.recv.wr_id,
            wqe_index: self.recv.index,
            status: WcStatus::Success,
            syndrome: None,
            opcode,
            byte_len,
            imm,
            invalidated,
            solicited,
            source: None,
        };
        core.complete(host, &completion);
    }

    /// The peer's request is not a valid one.
    fn refuse_request<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        psn: u32,
        cause: Syndrome,
    ) -> Stop {
        let refusal = Refusal {
            psn,
            nak: Some(NakCode::InvalidRequest),
            status: WcStatus::LocQpOpErr,
            event: EventType::QpReqErr,
            cause,
        };
        self.refuse(core, host, refusal)
    }

    /// The peer's request names memory that it may not access. A receive that was taken for its immediate tells so.
    fn refuse_access<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        psn: u32,
        cause: Syndrome,
    ) -> Stop {
        let refusal = Refusal {
            psn,
            nak: Some(NakCode::RemoteAccess),
            status: WcStatus::LocAccessErr,
            event: EventType::QpAccessErr,
            cause: if self.recv_held {
                Syndrome::WriteImmAccess
            } else {
                cause
            },
        };
        self.refuse(core, host, refusal)
    }

    /// Ends the connection: at once, or after the READ responses that wait.
    fn refuse<H: Host>(&mut self, core: &mut Core, host: &mut H, refusal: Refusal) -> Stop {
        if self.answers.is_empty() {
            Stop::Error(self.carry_out(core, host, refusal))
        } else {
            self.refusal = Some(refusal);
            Stop::Dropped
        }
    }

    fn carry_out<H: Host>(&mut self, core: &mut Core, host: &mut H, refusal: Refusal) -> Syndrome {
        if let Some(code) = refusal.nak {
            core.counters.naks_sent += 1;
            self.last_nak = Some((refusal.psn, code));
            self.answer_aeth(core, host, refusal.psn, AethSyndrome::Nak(code));
        } else {
            self.answer_aeth(core, host, refusal.psn, AethSyndrome::Ack { credits: 31 });
        }
        if self.recv_held {
            self.recv_held = false;
            let (wr_id, index) = (self.recv.wr_id, self.recv.index);
            core.complete(
                host,
                &failed(wr_id, index, WcOpcode::Recv, refusal.status, refusal.cause),
            );
        } else {
            host.event(refusal.event, Some(refusal.cause));
        }
        refusal.cause
    }

    /// The memory of a local sender went away: it is told, and the packet counts as lost.
    fn sender_fault<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: &Packet,
        cause: Syndrome,
    ) -> Stop {
        if let Payload::Gather { gather, .. } = &packet.payload {
            gather.fault.set(Some(cause));
            self.nak(core, host, AethSyndrome::Nak(NakCode::SourceFault));
        }
        Stop::Dropped
    }

    /// Memory of a READ response could not be read when it was sent out.
    pub(crate) fn source_fault<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        psn: u32,
        cause: Syndrome,
    ) -> Option<Syndrome> {
        if !matches!(core.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
            || self.refusal.is_some()
        {
            return None;
        }
        self.answers.clear();
        match self.refuse_access(core, host, psn, cause) {
            Stop::Error(cause) => Some(cause),
            Stop::Dropped => None,
        }
    }

    /// Acknowledges all that was executed, or lets that wait behind READ responses.
    fn ack<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        if self.answers.is_empty() {
            self.ack_due = false;
            core.counters.acks_sent += 1;
            let psn = psn::add(self.expected_psn, psn::PSN_MASK);
            self.answer_aeth(core, host, psn, AethSyndrome::Ack { credits: 31 });
        } else {
            self.ack_due = true;
        }
    }

    /// Sends a NAK for the PSN expected, or lets it wait likewise.
    fn nak<H: Host>(&mut self, core: &mut Core, host: &mut H, syndrome: AethSyndrome) {
        if !self.answers.is_empty() {
            self.nak_due = Some(syndrome);
            return;
        }
        match syndrome {
            AethSyndrome::Rnr { .. } => core.counters.rnr_naks_sent += 1,
            AethSyndrome::Nak(NakCode::Sequence) => core.counters.sequence_naks_sent += 1,
            _ => core.counters.naks_sent += 1,
        }
        self.answer_aeth(core, host, self.expected_psn, syndrome);
    }

    fn answer_aeth<H: Host>(
        &self,
        core: &mut Core,
        host: &mut H,
        psn: u32,
        syndrome: AethSyndrome,
    ) {
        let kind = Kind::Ack(Aeth {
            syndrome,
            msn: self.msn,
        });
        let packet = answer(core, kind, psn, 1);
        core.transmit(host, packet);
    }

    /// Sends READ and atomic responses, then what waited behind them. True: there is more to send at once.
    pub(crate) fn run<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        budget: &mut Budget,
    ) -> Result<bool, Syndrome> {
        while let Some(front) = self.answers.front_mut() {
            if budget.is_spent() {
                return Ok(true);
            }
            let aeth = Aeth {
                syndrome: AethSyndrome::Ack { credits: 31 },
                msn: self.msn,
            };
            let psn = psn::add(front.psn, front.done);
            let packet = match front.body {
                Body::Atomic(value) => answer(core, Kind::AtomicResponse(aeth, value), psn, 1),
                Body::Read(reth) => {
                    let count = (front.psns - front.done).min(core.super_packets());
                    let offset = front.done * core.attr.path_mtu;
                    let length =
                        (reth.length - offset).min(count.saturating_mul(core.attr.path_mtu));
                    let (first, last) = (front.done == 0, front.done + count == front.psns);
                    let kind = Kind::ReadResponse((first || last).then_some(aeth));
                    let mut packet = answer(core, kind, psn, count);
                    packet.first = first;
                    packet.last = last;
                    if length > 0 {
                        packet.payload = Payload::Region {
                            alive: Rc::clone(&self.alive),
                            pd: core.config.pd,
                            key: reth.rkey,
                            addr: reth.addr.wrapping_add(u64::from(offset)),
                            length,
                        };
                    }
                    packet
                }
            };
            front.done += packet.psns;
            let done = front.done == front.psns;
            budget.spend(packet.payload.len());
            core.transmit(host, packet);
            if done {
                self.answers.pop_front();
            }
        }
        if self.ack_due {
            self.ack(core, host);
        }
        if let Some(syndrome) = self.nak_due.take() {
            self.nak(core, host, syndrome);
        }
        match self.refusal.take() {
            Some(refusal) => Err(self.carry_out(core, host, refusal)),
            None => Ok(false),
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

/// A packet to the peer that carries no request.
fn answer(core: &Core, kind: Kind, psn: u32, psns: u32) -> Packet {
    Packet {
        transport: core.transport(),
        kind,
        first: true,
        last: true,
        solicited: false,
        ack_req: false,
        pkey: core.attr.pkey,
        dst_qpn: core.attr.dest_qpn,
        src_qpn: core.config.qpn,
        psn,
        psns,
        datagram: None,
        payload: Payload::None,
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
