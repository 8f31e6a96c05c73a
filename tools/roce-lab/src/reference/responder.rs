// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A reliable responder (IBTA 9.7.4, 9.7.5, 9.9.3). A request is checked in the order PSN, sequence of opcodes, opcode,
//! resources, R_Key, length.

use super::answers::{Answers, Now, Wish};
use super::refuse::Refusal;
use super::tables::{near, BASE};
use super::{belongs, is_possible, Effects, Receive, Received, World};
use verbena_abi::ctx::access;
use verbena_roce::host::{Access, EventType, KeyUse, WcStatus};
use verbena_roce::packet::{Kind, NakCode, Packet, Reth, Transport};
use verbena_roce::{Attr, QpState};

/// What does not change in the life of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// Protection domain.
    pub pd: u32,
    /// It tells how many receives are posted.
    pub credits: bool,
    /// Bytes that it keeps of what comes ahead of a gap.
    pub keep_bytes: u64,
}

/// The message under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// None.
    None,
    /// SEND: its receive, and bytes so far.
    Send {
        /// Receive.
        receive: Receive,
        /// Bytes so far.
        done: u64,
    },
    /// WRITE.
    Write {
        /// Where to.
        reth: Reth,
        /// Bytes so far.
        done: u64,
    },
}

/// A reliable responder.
#[derive(Debug)]
pub struct Responder {
    pub(super) setup: Setup,
    pub(super) attr: Attr,
    pub(super) state: QpState,
    /// It has no opinion any more.
    pub(super) loose: bool,
    pub(super) expected: u64,
    pub(super) msn: u64,
    pub(super) message: Message,
    /// The peer knows of the gap, or of the missing receive, before what comes ahead.
    pub(super) told: bool,
    /// It was told of a gap.
    pub(super) gap: bool,
    /// What came ahead of it, by PSN.
    pub(super) kept: Vec<(u64, Packet)>,
    /// That gap has closed by a packet that did not ask. What is kept behind it waits until the peer asks at this PSN, or comes again.
    pub(super) closed: Option<u64>,
    /// What is kept before this PSN has come again.
    pub(super) until: u64,
    /// The peer has asked alone for what was missing; one after the PSN of the last gap that closed since.
    pub(super) asks_alone: Option<u64>,
    pub(super) established: bool,
    pub(super) refusal: Option<Refusal>,
    pub(super) answers: Answers,
    /// What the request that is being handled has to do.
    pub(super) due: Effects,
    /// A remote invalidate failed, which ends the connection without a NAK: the receive that tells so.
    pub(super) dies: Option<u64>,
    /// Responses that the peer could not read from the memory that it was lent: first PSN, and the one behind the last.
    unread: Option<(u64, u64)>,
    /// The queue pair has failed by other means.
    pub(super) failed: bool,
}

impl Responder {
    /// In RESET.
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            attr: Attr::default(),
            state: QpState::Reset,
            loose: false,
            expected: 0,
            msn: 0,
            message: Message::None,
            told: false,
            gap: false,
            kept: Vec::new(),
            closed: None,
            until: 0,
            asks_alone: None,
            established: false,
            refusal: None,
            answers: Answers::default(),
            due: Effects::default(),
            dies: None,
            unread: None,
            failed: false,
        }
    }

    /// The driver gives it attributes, and a new life on the way to RTR.
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
                // One that was in ERR goes on as it was.
                if self.state != QpState::Err || to == QpState::Reset {
                    self.refusal = None;
                }
                self.dies = None;
                self.kept.clear();
                self.answers.forget();
            }
            _ => {}
        }
        self.state = to;
    }

    /// Something happens that it has no opinion of.
    pub fn loosen(&mut self) {
        self.loose = true;
    }

    /// The peer could not read a response: it may ask again from there, and be told why.
    pub fn is_unread(&mut self, packet: &Packet) {
        let psn = near(self.expected, packet.psn);
        let end = psn + u64::from(packet.psns);
        let (first, last) = self.unread.unwrap_or((psn, end));
        self.unread = Some((first.min(psn), last.max(end)));
    }

    /// The queue pair fails without a request.
    pub fn fails(&mut self) {
        self.failed = true;
        self.refusal = None;
    }

    /// Whether nothing can be said.
    pub fn is_loose(&self) -> bool {
        self.loose
    }

    /// PSN expected and MSN, to be compared.
    pub fn counts(&self) -> (u32, u32) {
        (
            (self.expected % (1 << 24)) as u32,
            (self.msn % (1 << 24)) as u32,
        )
    }

    fn hears(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
    }

    /// A packet is handed in; what it has to do is noted.
    pub fn request(&mut self, packet: &Packet, world: &impl World) {
        self.due = Effects::default();
        if self.loose {
            return;
        }
        if !is_possible(packet) {
            self.loose = true;
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
        // A payload that died makes a lost packet.
        if !self.hears() || !packet.payload.is_alive() {
            return;
        }
        // In a packet of its own each time, whatever it came in.
        for single in packet.clone().split(self.attr.path_mtu) {
            if self.refusal.is_some() || self.dies.is_some() || self.loose {
                return;
            }
            self.single(&single, world);
        }
    }

    pub(super) fn single(&mut self, packet: &Packet, world: &impl World) {
        let psn = near(self.expected, packet.psn);
        if psn < self.expected {
            self.duplicate(packet, psn, world);
            self.asks_again(packet, psn);
            return;
        }
        if psn > self.expected {
            self.is_ahead(packet, psn, world);
            return;
        }
        self.closes(packet, psn);
        (self.told, self.gap) = (false, false);
        self.answers.go_on();
        if !world.readable(&packet.payload) {
            self.loose = true;
            self.kept.clear();
            return;
        }
        self.execute(packet, world);
        self.look_ahead();
    }

    /// C9-105, 9.7.5.1: a request behind what is expected.
    fn duplicate(&mut self, packet: &Packet, psn: u64, world: &impl World) {
        let wish = match packet.kind {
            Kind::Send(_) | Kind::Write { .. } => {
                if packet.ack_req {
                    self.answers.owe_ack(self.expected - 1);
                }
                return;
            }
            Kind::ReadRequest(reth) => Wish::Read(reth),
            Kind::Atomic { addr, rkey, op } => Wish::Atomic { rkey, addr, op },
            Kind::AtomicWrite(reth) => Wish::Write(reth),
            Kind::Flush(feth, reth) => Wish::Flush(feth, reth),
            _ => return,
        };
        if let Wish::Read(reth) = wish {
            let asks_why = |(first, end)| (first..end).contains(&psn);
            if self.unread.is_some_and(asks_why) {
                self.loose = true;
                return;
            }
            if !self.allows(&reth, Access::RemoteRead, world) {
                // Dropped, but between local peers, where the requester has to hear why.
                self.loose |= self.attr.local_peer;
                return;
            }
        }
        self.answers.ask_again(psn, self.attr.path_mtu, wish);
    }

    pub(super) fn allows(&self, reth: &Reth, access: Access, world: &impl World) -> bool {
        let key = KeyUse {
            pd: self.setup.pd,
            owner: 0,
            privileged: false,
            key: reth.rkey,
            addr: reth.addr,
            length: u64::from(reth.length),
            access,
        };
        // C9-88
        reth.length == 0 || world.allows(&key)
    }

    fn execute(&mut self, packet: &Packet, world: &impl World) {
        let goes_on = match (self.message, packet.kind) {
            (Message::None, _) => packet.first,
            (Message::Send { .. }, Kind::Send(_)) | (Message::Write { .. }, Kind::Write { .. }) => {
                !packet.first
            }
            _ => false,
        };
        let needs = match packet.kind {
            Kind::Write { .. } | Kind::AtomicWrite(_) => access::REMOTE_WRITE,
            Kind::ReadRequest(_) => access::REMOTE_READ,
            Kind::Atomic { .. } => access::REMOTE_ATOMIC,
            Kind::Flush(feth, _) => u32::from(feth.placement & 3) << 8,
            _ => 0,
        };
        let enabled = self.attr.access_flags & needs == needs || !packet.first;
        let known = match packet.kind {
            Kind::Unknown(_) => false,
            // A19: placement and selectivity that are not reserved.
            Kind::Flush(feth, _) => (1..=3).contains(&feth.placement) && feth.level < 2,
            _ => true,
        };
        if !goes_on || !enabled || !known {
            self.refuse_message(NakCode::InvalidRequest, WcStatus::LocQpOpErr);
            return;
        }
        match packet.kind {
            Kind::Send(tail) => self.send(packet, tail, world),
            Kind::Write { reth, imm } => self.write(packet, reth, imm, world),
            Kind::ReadRequest(reth) => self.read(reth, world),
            Kind::Atomic { addr, rkey, op } => self.atomic(addr, rkey, op, world),
            Kind::AtomicWrite(reth) => self.write_word(packet, reth, world),
            Kind::Flush(feth, reth) => self.flush(feth, reth, world),
            _ => {}
        }
    }

    /// The request is executed, and the next one expected.
    pub(super) fn advance(&mut self, packet: &Packet) {
        if packet.ack_req {
            self.answers.owe_ack(self.expected);
        }
        self.expected += 1;
        self.msn += u64::from(packet.last);
    }

    /// C9-92: FIRST and MIDDLE are as long as the path MTU, LAST has 1 byte to that, ONLY 0.
    pub(super) fn is_sized(&self, packet: &Packet) -> bool {
        let (length, mtu) = (packet.payload.len(), self.attr.path_mtu);
        match (packet.first, packet.last) {
            (_, false) => length == mtu,
            (false, true) => (1..=mtu).contains(&length),
            (true, true) => length <= mtu,
        }
    }

    /// An atomic was executed, and returns this.
    pub fn result(&mut self, value: u64) {
        self.answers.result(value);
    }

    /// Compares what a call has done with what it had to do. `events` are those that are the responder's.
    pub fn compare(&mut self, mut seen: Effects, events: &[EventType], state: QpState) {
        let due = std::mem::take(&mut self.due);
        self.state = state;
        if self.loose {
            return;
        }
        let good = |r: &Received| r.status == WcStatus::Success;
        let failed = seen.received.iter().find(|r| !good(r)).copied();
        if let Some(failed) = failed {
            seen.received.retain(good);
            if failed.status == WcStatus::MwBindErr {
                let dies = self.dies.take();
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
                self.receive_fails(&failed);
            }
        }
        for event in events {
            match event {
                EventType::CommEst => seen.established = true,
                EventType::QpReqErr | EventType::QpAccessErr => self.fails_by(*event),
                EventType::QpFatal if !self.failed => self.fails_by(*event),
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
            self.answers.forget();
            self.dies = None;
        }
    }

    pub(super) fn now(&self, receives: Option<u64>) -> Now {
        Now {
            expected: self.expected,
            msn: self.msn,
            mtu: self.attr.path_mtu,
            rnr_timer: self.attr.min_rnr_timer,
            receives,
        }
    }

    /// An answer leaves. `posted`: receives that are posted and not taken, where that is known.
    pub fn sends(&mut self, packet: &Packet, posted: Option<u64>) {
        if self.loose {
            return;
        }
        let psn = near(self.expected, packet.psn);
        if let Kind::Ack(aeth) = packet.kind {
            if self.sends_refusal(packet, psn, &aeth) {
                return;
            }
        }
        assert!(
            self.hears(),
            "reference: 10.3.1: an answer in {:?}: {packet:?}",
            self.state
        );
        let held = matches!(self.message, Message::Send { .. }) && self.refusal.is_none();
        let receives = posted.map(|posted| posted + u64::from(held));
        let now = self.now(receives.filter(|_| self.setup.credits));
        self.answers.sends(packet, &now);
    }

    /// Receives were posted.
    pub fn receives_posted(&mut self, posted: Option<u64>) {
        let some = posted.is_some_and(|posted| posted > 0) && self.setup.credits;
        if some && self.answers.told_none && self.hears() {
            self.answers.tell_credits = true;
        }
    }

    /// The queue pair has nothing more to do now.
    pub fn rests(&self) {
        if self.loose || !self.hears() {
            return;
        }
        let owed = self.answers.owes();
        assert!(
            owed.is_none(),
            "reference: nothing is done, and the peer is owed {owed:?}"
        );
        assert_eq!(
            self.dies, None,
            "reference: class J: a remote invalidate failed, and nothing is done"
        );
        let refusal = &self.refusal;
        assert!(
            refusal.is_none(),
            "reference: nothing is done, and this is to be refused: {refusal:?}"
        );
    }
}
