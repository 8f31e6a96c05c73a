// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The responder of a reliable connection, a queue pair's receive queue: it receives requests, and
//! sends acknowledgements and responses.
//!
//! A request is checked in the order of IBTA 9.7.4.1: sequence, opcode, operation enabled,
//! resources (a receive, a READ slot), R_Key, length. Answers leave in PSN order: while READ
//! responses are pending, later acknowledgements and NAKs wait for them.
//!
//! This file checks the place of a request in the sequence, `execute.rs` executes it,
//! `duplicate.rs` answers requests that were executed before, `reassembly.rs` keeps requests that arrive
//! ahead of a gap, `placement.rs` has ATOMIC WRITE and FLUSH, `respond.rs` sends answers, `refuse.rs`
//! ends the connection, and `receives.rs` takes and flushes receives. Documentation/rules.md has
//! the rules by clause.

mod duplicate;
mod execute;
mod placement;
mod prefetch;
mod reassembly;
mod receives;
mod refuse;
mod respond;
mod xrc;

use self::reassembly::SelectiveRetransmission;
use super::reassembly_buffer::ReassemblyBuffer;
use super::{Core, QpState};
use crate::host::{
    AtomicOp, DecodedRecvWqe, EventType, Host, KeyAccess, KeyUse, Syndrome, WcStatus,
};
use crate::packet::{AethSyndrome, Feth, NakCode, Packet, PacketKind, ReadLease, Reth};
use crate::psn;
use crate::qp::credits;
use crate::qp::pending_completion::PendingCompletion;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;

/// Length of the longest message of the protocol in bytes (IBTA 9.7.4).
const MAX_LENGTH: u32 = 1 << 31;

/// A message whose last packet has not arrived.
#[derive(Clone, Copy, Debug)]
pub(super) enum MessageInProgress {
    Send,
    Write { reth: Reth },
}

/// A READ, atomic, ATOMIC WRITE or FLUSH that was executed: for its response, and for duplicates.
#[derive(Clone, Copy, Debug)]
struct ExecutedRequest {
    psn: u32,
    psns: u32,
    /// Protection domain of its memory.
    pd: u32,
    op: ExecutedOp,
}

#[derive(Clone, Copy, Debug)]
enum ExecutedOp {
    Read(Reth),
    Atomic {
        addr: u64,
        rkey: u32,
        op: AtomicOp,
        /// Value in memory before the operation.
        value: u64,
    },
    AtomicWrite(Reth),
    Flush(Feth, Reth),
}

/// A response that is to be sent.
#[derive(Clone, Copy, Debug)]
struct PendingResponse {
    request: ExecutedRequest,
    /// Number of response packets that were sent.
    sent_packets: u32,
    /// True if the response is to a duplicate.
    is_repeat: bool,
}

/// A refusal, which ends the connection after all earlier answers are sent.
#[derive(Clone, Copy, Debug)]
struct RequestRefusal {
    psn: u32,
    /// Code of the NAK. None: the request is acknowledged.
    nak: Option<NakCode>,
    /// Status of the receive that was taken, if there is one. WR_FLUSH_ERR if that receive did not
    /// cause the refusal.
    status: WcStatus,
    /// Event that is reported if no receive carries the error.
    event: EventType,
    cause: Syndrome,
}

/// State of the NAK for the PSN expected, which is sent once for each gap (IBTA 9.7.5).
#[derive(Clone, Copy, Debug)]
enum NakState {
    NotSent,
    /// The NAK waits for the pending `answers`.
    Pending(AethSyndrome),
    Sent {
        /// True if that PSN has not arrived. False if it has arrived and found no receive.
        gap: bool,
    },
    /// The NAK was sent because there was no receive. Since then the peer was told of receives.
    Withdrawn,
}

impl NakState {
    /// True if the peer knows, or will know, why the PSN expected is not executed. If the reason is
    /// that the peer's own memory is gone, a later gap does not replace the reason.
    fn is_reported(self) -> bool {
        !matches!(self, NakState::NotSent)
    }
}

/// The way in which this side ends the connection.
#[derive(Clone, Copy, Debug)]
enum ErrorState {
    None,
    /// The refusal waits for the pending `answers`, and packets that arrive meanwhile are dropped.
    Pending(RequestRefusal),
    /// In ERR: the NAK that ended the connection. It is repeated up to `repeats` times, for a peer
    /// that did not receive it.
    NakSent {
        psn: u32,
        code: NakCode,
        repeats: u32,
    },
}

/// Reason why a packet was not executed.
enum NotExecuted {
    /// The packet counts as lost, an RNR NAK answered it, or its refusal is pending.
    Dropped,
    /// The queue pair moves to ERR.
    Error(Syndrome),
}

/// Reason why a packet of a service that never answers was not executed.
pub(super) enum UnreliableDrop {
    /// The packet was counted as dropped.
    Counted,
    /// The queue pair moves to ERR, and its own side has a completion or an event.
    Error(Syndrome),
}

/// The responder's state from RESET to RESET.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Responder {
    pub(super) expected_psn: u32,
    msn: u32,
    /// Bytes of the present message that have arrived.
    pub(super) offset: u32,
    /// True if an acknowledgement waits for the pending `answers`.
    ack_pending: bool,
    /// Credit code that was sent last, or the one for "not used".
    reported_credits: u8,
    selective_retransmission: SelectiveRetransmission,
    pub(super) message: Option<MessageInProgress>,
    /// Completion of the receive in `recv`, which was taken and is not complete.
    pub(super) pending_completion: Option<PendingCompletion>,
    comm_est_pending: bool,
    last_wqe_pending: bool,
    nak: NakState,
    /// Pending responses in PSN order.
    pending_responses: VecDeque<PendingResponse>,
    // Every packet needs the fields above, and only some packets need those below.
    error_state: ErrorState,
    pub(super) recv_capacity: u64,
    pub(super) recv: DecodedRecvWqe,
    /// The last `max_dest_rd_atomic` READs and atomics, the newest last, with true if they were
    /// repeated.
    executed_requests: VecDeque<(ExecutedRequest, bool)>,
    /// Permission of READ responses in flight to read memory. It also holds in ERR, because they
    /// were sent before.
    lease: Rc<ReadLease>,
    /// Requests that arrived ahead of a gap.
    reassembly: Option<Box<ReassemblyBuffer>>,
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.lease.alive.set(false);
    }
}

impl Responder {
    pub(crate) fn new() -> Self {
        Self {
            expected_psn: 0,
            msn: 0,
            message: None,
            offset: 0,
            recv: DecodedRecvWqe::default(),
            pending_completion: None,
            recv_capacity: 0,
            pending_responses: VecDeque::new(),
            executed_requests: VecDeque::new(),
            ack_pending: false,
            nak: NakState::NotSent,
            error_state: ErrorState::None,
            reported_credits: credits::INVALID,
            lease: Rc::default(),
            reassembly: None,
            selective_retransmission: SelectiveRetransmission::UNKNOWN,
            comm_est_pending: false,
            last_wqe_pending: false,
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

    /// Takes the first PSN on INIT to RTR.
    pub(crate) fn start(&mut self, core: &Core) {
        self.expected_psn = core.attr.rq_psn;
        self.comm_est_pending = true;
    }

    /// Drops all pending work on entry to ERR.
    pub(crate) fn abandon(&mut self) {
        self.message = None;
        self.pending_responses.clear();
        self.ack_pending = false;
        self.nak = NakState::NotSent;
        self.reassembly = None;
        self.take_refusal();
        self.last_wqe_pending = true;
    }

    /// True if an unreliable service takes packets in this state.
    pub(super) fn is_receiving(state: QpState) -> bool {
        matches!(
            state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        )
    }

    /// Reports COMM_EST once, for a packet that arrives in RTR.
    pub(super) fn on_arrival<H: Host>(&mut self, core: &Core, host: &mut H) {
        if core.state == QpState::Rtr && self.comm_est_pending {
            self.comm_est_pending = false;
            host.event(EventType::CommEst, None);
        }
    }

    /// Handles a request. A returned cause moves the queue pair to ERR.
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
        self.on_arrival(core, host);
        if self.is_refusal_pending() {
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
                return self.on_out_of_order(core, host, packet);
            }
            let old = psn::ahead(self.expected_psn, packet.psn);
            if !is_data(&packet) || old >= packet.psns {
                core.counters.duplicates += u64::from(packet.psns);
                if self.resumes_buffered(&packet) {
                    return self.resume_buffered(core, host, &packet);
                }
                self.on_duplicate_copy(&packet);
                return self.on_duplicate(core, host, &packet);
            }
            core.counters.duplicates += u64::from(old);
            packet.trim_front(old, core.attr.path_mtu);
        }
        let mut asked = requests_ack(&packet);
        let keeps = self.reassembly.is_some();
        let waits = keeps && self.on_expected_request(&packet);
        let mut result = self.execute(core, host, packet);
        if waits {
            self.discard_duplicates();
        } else if keeps && result.is_ok() {
            result = self.execute_buffered(core, host, None, &mut asked);
        }
        self.finish(core, host, result, asked)
    }

    /// Ends a call that executed requests; `asked` is true if one of them asked for an
    /// acknowledgement.
    #[inline]
    fn finish<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        result: Result<(), NotExecuted>,
        asked: bool,
    ) -> Option<Syndrome> {
        match result {
            // A request whose completion was lost is not acknowledged.
            Ok(()) if core.is_doomed() => None,
            // The kept requests show the next gap. Its NAK acknowledges everything before the gap,
            // but the gap may close before the NAK is sent.
            Ok(()) if self.has_buffered() && self.closed_gap().is_none() => {
                self.ack_pending |= asked && !self.pending_responses.is_empty();
                self.send_nak(core, host, AethSyndrome::Nak(NakCode::Sequence));
                None
            }
            Ok(()) => {
                if asked {
                    self.send_ack(core, host);
                }
                None
            }
            Err(NotExecuted::Dropped) => {
                self.reassembly = None;
                None
            }
            Err(NotExecuted::Error(cause)) => Some(cause),
        }
    }

    /// Executes the request that is expected.
    #[inline]
    fn execute<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        packet: Packet,
    ) -> Result<(), NotExecuted> {
        self.nak = NakState::NotSent;
        self.find_xrc_srq(core, host, &packet)?;
        match packet.kind {
            PacketKind::Send(tail) => self.send(core, host, &packet, tail),
            PacketKind::Write { reth, imm } => self.write_parts(core, host, packet, reth, imm),
            PacketKind::ReadRequest(reth) => self.read(core, host, &packet, reth),
            PacketKind::Atomic { addr, rkey, op } => {
                self.atomic(core, host, &packet, addr, rkey, op)
            }
            PacketKind::AtomicWrite(reth) => self.atomic_write(core, host, &packet, reth),
            PacketKind::Flush(feth, reth) => self.flush_memory(core, host, &packet, feth, reth),
            // A reserved or unsupported opcode is an invalid request (IBTA 9.7.4.1, 9.9.3 class C).
            PacketKind::Unknown(_) => {
                Err(self.refuse_request(core, host, packet.psn, Syndrome::RequestOpcode))
            }
            PacketKind::ReadResponse(_)
            | PacketKind::Ack(_)
            | PacketKind::AtomicResponse(..)
            | PacketKind::Cnp => Err(NotExecuted::Dropped),
        }
    }
}

/// True if a request is a SEND or WRITE.
fn is_data(packet: &Packet) -> bool {
    matches!(packet.kind, PacketKind::Send(_) | PacketKind::Write { .. })
}

/// True if a request asks for an acknowledgement. A READ or atomic is acknowledged by its response.
fn requests_ack(packet: &Packet) -> bool {
    packet.ack_req && is_data(packet)
}

/// Returns the use of memory of a protection domain that a request asks for.
fn remote_key_use(core: &Core, pd: u32, reth: &Reth, access: KeyAccess) -> KeyUse {
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
