// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A reliable responder (IBTA 9.7.4, 9.7.5, 9.9.3). A request is checked in the order PSN, sequence
//! of opcodes, opcode, resources, R_Key, length.

use super::answers::{OwedAnswers, RequestedOp, ResponderCounts};
use super::refuse::ReferenceRefusal;
use super::tables::{near, BASE};
use super::{belongs, is_possible, PostedReceive, ReceiveCompletion, RequestEffects, Surroundings};
use verbena_abi::ctx::access;
use verbena_transport::host::{EventType, KeyAccess, KeyUse, WcStatus};
use verbena_transport::packet::{NakCode, Packet, PacketKind, Reth, Transport};
use verbena_transport::{Attr, QpState};

/// Properties that do not change in the life of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceSetup {
    /// Protection domain of the queue pair.
    pub pd: u32,
    /// True if the responder advertises the number of posted receives as credits.
    pub credits: bool,
    /// Bytes of requests ahead of a gap that the responder keeps.
    pub keep_bytes: u64,
}

/// The message in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceMessage {
    /// No message is in progress.
    None,
    /// A SEND is in progress.
    Send {
        /// Receive that the SEND has taken.
        receive: PostedReceive,
        /// Bytes of the SEND that have arrived.
        done: u64,
    },
    /// A WRITE is in progress.
    Write {
        /// RETH of the first packet, with the destination.
        reth: Reth,
        /// Bytes of the WRITE that have arrived.
        done: u64,
    },
}

/// The reference's state of a reliable responder.
#[derive(Debug)]
pub struct ReferenceResponder {
    pub(super) setup: ReferenceSetup,
    pub(super) attr: Attr,
    pub(super) state: QpState,
    /// True if the reference no longer judges this responder.
    pub(super) is_unjudged: bool,
    pub(super) expected: u64,
    pub(super) msn: u64,
    pub(super) message: ReferenceMessage,
    /// True if a NAK for the gap, or an RNR NAK, is owed or sent for the expected PSN.
    pub(super) gap_or_rnr_reported: bool,
    /// True if that NAK is for a gap.
    pub(super) gap: bool,
    /// Requests kept ahead of the gap, by PSN.
    pub(super) kept: Vec<(u64, Packet)>,
    /// PSN of the packet that closed the gap without asking for an acknowledgement. The kept
    /// requests after it wait until the peer asks for an acknowledgement at this PSN or sends them
    /// again.
    pub(super) closed: Option<u64>,
    /// PSN before which the kept requests have come again.
    pub(super) until: u64,
    /// PSN after the last gap that closed since the peer began to send only the missing packets
    /// again.
    pub(super) asks_alone: Option<u64>,
    pub(super) established: bool,
    pub(super) refusal: Option<ReferenceRefusal>,
    pub(super) answers: OwedAnswers,
    /// Effects that the request being handled must have.
    pub(super) due: RequestEffects,
    /// Receive that reports a failed remote invalidate, which ends the connection without a NAK.
    pub(super) failed_invalidate: Option<u64>,
    /// Responses that the peer could not read from the memory lent to it: first PSN, and the PSN
    /// after the last.
    unread: Option<(u64, u64)>,
    /// True if the queue pair has failed for a reason other than a request.
    pub(super) failed: bool,
}

impl ReferenceResponder {
    /// Returns a responder in RESET.
    pub fn new(setup: ReferenceSetup) -> Self {
        Self {
            setup,
            attr: Attr::default(),
            state: QpState::Reset,
            is_unjudged: false,
            expected: 0,
            msn: 0,
            message: ReferenceMessage::None,
            gap_or_rnr_reported: false,
            gap: false,
            kept: Vec::new(),
            closed: None,
            until: 0,
            asks_alone: None,
            established: false,
            refusal: None,
            answers: OwedAnswers::default(),
            due: RequestEffects::default(),
            failed_invalidate: None,
            unread: None,
            failed: false,
        }
    }

    /// Applies the driver's attributes, and starts from the initial PSN on the way to RTR.
    pub fn modify(&mut self, to: QpState, attr: &Attr) {
        self.attr = *attr;
        match to {
            QpState::Rtr => {
                *self = Self {
                    attr: *attr,
                    expected: BASE + u64::from(attr.rq_psn),
                    ..Self::new(self.setup)
                };
                let keep = usize::from(attr.max_dest_rd_atomic);
                self.answers.begin(self.expected, keep);
            }
            QpState::Reset | QpState::Err => {
                // A responder that was in ERR already keeps its refusal.
                if self.state != QpState::Err || to == QpState::Reset {
                    self.refusal = None;
                }
                self.failed_invalidate = None;
                self.kept.clear();
                self.answers.clear();
            }
            _ => {}
        }
        self.state = to;
    }

    /// Stops judging the responder until it goes to RTR again.
    pub fn stop_judging(&mut self) {
        self.is_unjudged = true;
    }

    /// Notes that the peer could not read a response. The peer may ask again from there, and the
    /// responder may report the reason.
    pub fn on_unread_response(&mut self, packet: &Packet) {
        let psn = near(self.expected, packet.psn);
        let end = psn + u64::from(packet.psns);
        let (first, last) = self.unread.unwrap_or((psn, end));
        self.unread = Some((first.min(psn), last.max(end)));
    }

    /// Notes that the queue pair fails for a reason other than a request.
    pub fn on_failure(&mut self) {
        self.failed = true;
        self.refusal = None;
    }

    /// True if the reference makes no statement about this responder.
    pub fn is_unjudged(&self) -> bool {
        self.is_unjudged
    }

    /// Returns the expected PSN and the MSN for comparison.
    pub fn counts(&self) -> (u32, u32) {
        (
            (self.expected % (1 << 24)) as u32,
            (self.msn % (1 << 24)) as u32,
        )
    }

    fn processes_requests(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
    }

    /// Judges a request that is handed in, and notes the effects that it must have.
    pub fn on_request(&mut self, packet: &Packet, world: &impl Surroundings) {
        self.due = RequestEffects::default();
        if self.is_unjudged {
            return;
        }
        if !is_possible(packet) {
            self.is_unjudged = true;
            return;
        }
        if !belongs(packet, Transport::Rc, self.attr.pkey) {
            return;
        }
        if let Some(refusal) = &mut self.refusal {
            refusal.asked = true;
        }
        if self.state == QpState::Rtr && !self.established {
            self.established = true;
            self.due.established = true;
        }
        // A packet whose payload's memory went away counts as lost.
        if !self.processes_requests() || !packet.payload.is_alive() {
            return;
        }
        // A super-packet is judged as its packets.
        for single in packet.clone().split(self.attr.path_mtu) {
            if self.refusal.is_some() || self.failed_invalidate.is_some() || self.is_unjudged {
                return;
            }
            self.on_single_request(&single, world);
        }
    }

    pub(super) fn on_single_request(&mut self, packet: &Packet, world: &impl Surroundings) {
        let psn = near(self.expected, packet.psn);
        if psn < self.expected {
            self.duplicate(packet, psn, world);
            self.on_repeated_request(packet, psn);
            return;
        }
        if psn > self.expected {
            self.on_out_of_order(packet, psn, world);
            return;
        }
        self.on_gap_closed(packet, psn);
        (self.gap_or_rnr_reported, self.gap) = (false, false);
        self.answers.on_expected_request();
        if !world.readable(&packet.payload) {
            self.is_unjudged = true;
            self.kept.clear();
            return;
        }
        self.execute(packet, world);
        self.update_reassembly();
    }

    /// C9-105, 9.7.5.1: handles a request with a PSN before the expected one.
    fn duplicate(&mut self, packet: &Packet, psn: u64, world: &impl Surroundings) {
        let wish = match packet.kind {
            PacketKind::Send(_) | PacketKind::Write { .. } => {
                if packet.ack_req {
                    self.answers.owe_ack(self.expected - 1);
                }
                return;
            }
            PacketKind::ReadRequest(reth) => RequestedOp::Read(reth),
            PacketKind::Atomic { addr, rkey, op } => RequestedOp::Atomic { rkey, addr, op },
            PacketKind::AtomicWrite(reth) => RequestedOp::Write(reth),
            PacketKind::Flush(feth, reth) => RequestedOp::Flush(feth, reth),
            _ => return,
        };
        if let RequestedOp::Read(reth) = wish {
            let asks_why = |(first, end)| (first..end).contains(&psn);
            if self.unread.is_some_and(asks_why) {
                self.is_unjudged = true;
                return;
            }
            if !self.allows(&reth, KeyAccess::RemoteRead, world) {
                // The duplicate is dropped, except between local peers, where the requester has to
                // learn the reason.
                self.is_unjudged |= self.attr.local_peer;
                return;
            }
        }
        self.answers.on_duplicate(psn, self.attr.path_mtu, wish);
    }

    pub(super) fn allows(&self, reth: &Reth, access: KeyAccess, world: &impl Surroundings) -> bool {
        let key = KeyUse {
            pd: self.setup.pd,
            owner: 0,
            privileged: false,
            key: reth.rkey,
            addr: reth.addr,
            length: u64::from(reth.length),
            access,
        };
        // C9-88: a request of no bytes needs no valid key.
        reth.length == 0 || world.allows(&key)
    }

    fn execute(&mut self, packet: &Packet, world: &impl Surroundings) {
        let goes_on = match (self.message, packet.kind) {
            (ReferenceMessage::None, _) => packet.first,
            (ReferenceMessage::Send { .. }, PacketKind::Send(_))
            | (ReferenceMessage::Write { .. }, PacketKind::Write { .. }) => !packet.first,
            _ => false,
        };
        let needs = match packet.kind {
            PacketKind::Write { .. } | PacketKind::AtomicWrite(_) => access::REMOTE_WRITE,
            PacketKind::ReadRequest(_) => access::REMOTE_READ,
            PacketKind::Atomic { .. } => access::REMOTE_ATOMIC,
            PacketKind::Flush(feth, _) => u32::from(feth.placement & 3) << 8,
            _ => 0,
        };
        let enabled = self.attr.access_flags & needs == needs || !packet.first;
        let known = match packet.kind {
            PacketKind::Unknown(_) => false,
            // A19: the placement and selectivity types must not be reserved.
            PacketKind::Flush(feth, _) => (1..=3).contains(&feth.placement) && feth.level < 2,
            _ => true,
        };
        if !goes_on || !enabled || !known {
            self.refuse_message(NakCode::InvalidRequest, WcStatus::LocQpOpErr);
            return;
        }
        match packet.kind {
            PacketKind::Send(tail) => self.send(packet, tail, world),
            PacketKind::Write { reth, imm } => self.write(packet, reth, imm, world),
            PacketKind::ReadRequest(reth) => self.read(reth, world),
            PacketKind::Atomic { addr, rkey, op } => self.atomic(addr, rkey, op, world),
            PacketKind::AtomicWrite(reth) => self.write_word(packet, reth, world),
            PacketKind::Flush(feth, reth) => self.flush(feth, reth, world),
            _ => {}
        }
    }

    /// Executes the request, and expects the next one.
    pub(super) fn advance(&mut self, packet: &Packet) {
        if packet.ack_req {
            self.answers.owe_ack(self.expected);
        }
        self.expected += 1;
        self.msn += u64::from(packet.last);
    }

    /// C9-92: FIRST and MIDDLE are as long as the path MTU, LAST has at least 1 byte and at most
    /// the MTU, ONLY has 0 bytes to the MTU.
    pub(super) fn is_sized(&self, packet: &Packet) -> bool {
        let (length, mtu) = (packet.payload.len(), self.attr.path_mtu);
        match (packet.first, packet.last) {
            (_, false) => length == mtu,
            (false, true) => (1..=mtu).contains(&length),
            (true, true) => length <= mtu,
        }
    }

    /// Notes the value that the atomic just executed returns.
    pub fn result(&mut self, value: u64) {
        self.answers.result(value);
    }

    /// Compares the effects of a call with those that it had to have. `events` are the events that
    /// belong to the responder.
    pub fn compare(&mut self, mut seen: RequestEffects, events: &[EventType], state: QpState) {
        let due = std::mem::take(&mut self.due);
        self.state = state;
        if self.is_unjudged {
            return;
        }
        let good = |r: &ReceiveCompletion| r.status == WcStatus::Success;
        let failed = seen.received.iter().find(|r| !good(r)).copied();
        if let Some(failed) = failed {
            seen.received.retain(good);
            if failed.status == WcStatus::MwBindErr {
                let dies = self.failed_invalidate.take();
                assert_eq!(
                    Some(failed.wr_id),
                    dies,
                    "reference: class J: no invalidate failed"
                );
                assert_eq!(
                    state,
                    QpState::Err,
                    "reference: class J: a remote invalidate failed"
                );
            } else {
                self.on_failed_receive(&failed);
            }
        }
        for event in events {
            match event {
                EventType::CommEst => seen.established = true,
                EventType::QpReqErr | EventType::QpAccessErr => self.on_error_event(*event),
                EventType::QpFatal if !self.failed => self.on_error_event(*event),
                _ => {}
            }
        }
        assert_eq!(
            seen, due,
            "reference: what a request does (left: the engine)"
        );
        self.check_end();
        self.check_kept(state);
        if state == QpState::Err {
            self.answers.clear();
            self.failed_invalidate = None;
        }
    }

    pub(super) fn counts_now(&self, receives: Option<u64>) -> ResponderCounts {
        ResponderCounts {
            expected: self.expected,
            msn: self.msn,
            mtu: self.attr.path_mtu,
            rnr_timer: self.attr.min_rnr_timer,
            receives,
        }
    }

    /// Checks an answer that leaves. `posted` is the number of receives that are posted and not
    /// taken, where that is known.
    pub fn on_transmit(&mut self, packet: &Packet, posted: Option<u64>) {
        if self.is_unjudged {
            return;
        }
        let psn = near(self.expected, packet.psn);
        if let PacketKind::Ack(aeth) = packet.kind {
            if self.on_transmit_nak(packet, psn, &aeth) {
                return;
            }
        }
        assert!(
            self.processes_requests(),
            "reference: 10.3.1: an answer in {:?}: {packet:?}",
            self.state
        );
        let held = matches!(self.message, ReferenceMessage::Send { .. }) && self.refusal.is_none();
        let receives = posted.map(|posted| posted + u64::from(held));
        let now = self.counts_now(receives.filter(|_| self.setup.credits));
        self.answers.on_transmit(packet, &now);
    }

    /// Notes that receives were posted. `posted` is the number of receives that are not taken,
    /// where that is known.
    pub fn receives_posted(&mut self, posted: Option<u64>) {
        let some = posted.is_some_and(|posted| posted > 0) && self.setup.credits;
        if some && self.answers.reported_no_credits && self.processes_requests() {
            self.answers.credits_owed = true;
        }
    }

    /// Checks that nothing is owed when the queue pair says that it has nothing more to do now.
    pub fn check_idle(&self) {
        if self.is_unjudged || !self.processes_requests() {
            return;
        }
        let owed = self.answers.describe_owed();
        assert!(
            owed.is_none(),
            "reference: nothing is done, and the peer is owed {owed:?}"
        );
        assert_eq!(
            self.failed_invalidate, None,
            "reference: class J: a remote invalidate failed, and nothing is done"
        );
        let refusal = &self.refusal;
        assert!(
            refusal.is_none(),
            "reference: nothing is done, and this is to be refused: {refusal:?}"
        );
    }
}
