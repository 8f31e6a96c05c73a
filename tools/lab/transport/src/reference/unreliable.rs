// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Responders of unreliable connections and datagrams (IBTA 9.8.2, 9.8.3). They never answer. A
//! responder drops a packet that it cannot take, and only a bad receive of its own moves it to ERR.

use super::tables::{near, BASE};
use super::{
    belongs, is_possible, NextReceive, PostedReceive, ReceiveCompletion, RequestEffects,
    Surroundings,
};
use verbena_abi::ctx::access;
use verbena_transport::host::{EventType, KeyAccess, KeyUse, WcOpcode, WcStatus};
use verbena_transport::packet::{Packet, PacketKind, Reth, SendTail, Transport};
use verbena_transport::{Attr, QpState, QpType};

/// Bytes of the GRH before the payload of a datagram.
const GRH: u64 = 40;

/// The message in progress.
#[derive(Clone, Copy, Debug)]
enum UnreliableMessage {
    /// No message is in progress, or it was abandoned.
    None,
    /// SEND, with the bytes that have arrived.
    Send(u64),
    /// WRITE, with its RETH and the bytes that have arrived.
    Write(Reth, u64),
}

/// The reference's state of an unreliable responder.
#[derive(Debug)]
pub struct UnreliableReference {
    qp_type: QpType,
    pd: u32,
    /// True if the receives are in an SRQ.
    shared: bool,
    attr: Attr,
    state: QpState,
    is_unjudged: bool,
    established: bool,
    expected: u64,
    message: UnreliableMessage,
    /// Receive that the message in progress has taken.
    held: Option<PostedReceive>,
    due: RequestEffects,
    /// True if the QP has to be in ERR after this call.
    enters_err: bool,
    /// True if QP_FATAL is due with that.
    fatal: bool,
    failed: bool,
}

impl UnreliableReference {
    /// Returns a responder in RESET.
    pub fn new(qp_type: QpType, pd: u32, shared: bool) -> Self {
        Self {
            qp_type,
            pd,
            shared,
            attr: Attr::default(),
            state: QpState::Reset,
            is_unjudged: false,
            established: false,
            expected: 0,
            message: UnreliableMessage::None,
            held: None,
            due: RequestEffects::default(),
            enters_err: false,
            fatal: false,
            failed: false,
        }
    }

    /// Applies the driver's attributes, and starts from the initial PSN on the way to RTR.
    pub fn modify(&mut self, to: QpState, attr: &Attr) {
        if to == QpState::Rtr {
            *self = Self::new(self.qp_type, self.pd, self.shared);
            self.expected = BASE + u64::from(attr.rq_psn);
        }
        if to == QpState::Err || to == QpState::Reset {
            self.held = None;
        }
        self.attr = *attr;
        self.state = to;
    }

    /// Notes that the queue pair fails for a reason other than a request.
    pub fn on_failure(&mut self) {
        self.failed = true;
    }

    /// Judges a packet that is handed in, and notes the effects that it must have.
    pub fn on_request(&mut self, packet: &Packet, world: &impl Surroundings) {
        self.due = RequestEffects::default();
        let transport = match self.qp_type {
            QpType::Uc => Transport::Uc,
            _ => Transport::Ud,
        };
        if self.is_unjudged
            || !belongs(packet, transport, self.attr.pkey)
            || !packet.kind.is_request()
        {
            return;
        }
        if !is_possible(packet) || matches!(packet.kind, PacketKind::Send(SendTail::Invalidate(_)))
        {
            // No frame of these services can carry such a packet.
            self.is_unjudged |= self.qp_type == QpType::Uc;
            return;
        }
        let hears = matches!(
            self.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        );
        if !hears || !packet.payload.is_alive() {
            return;
        }
        if self.qp_type != QpType::Uc {
            self.datagram(packet, world);
            return;
        }
        self.establish();
        for single in packet.clone().split(self.attr.path_mtu) {
            if self.enters_err || self.is_unjudged {
                return;
            }
            if !world.readable(&single.payload) {
                self.is_unjudged = true;
                return;
            }
            self.single(&single, world);
        }
    }

    fn establish(&mut self) {
        if self.state == QpState::Rtr && !self.established {
            self.established = true;
            self.due.established = true;
        }
    }

    fn single(&mut self, packet: &Packet, world: &impl Surroundings) {
        let psn = near(self.expected, packet.psn);
        let follows = psn == self.expected;
        self.expected = psn + 1;
        let goes_on = match (self.message, packet.kind) {
            (UnreliableMessage::Send(_), PacketKind::Send(_))
            | (UnreliableMessage::Write(..), PacketKind::Write { .. }) => follows && !packet.first,
            _ => false,
        };
        if !goes_on {
            self.abandon_message();
        }
        if !goes_on && !packet.first {
            return;
        }
        let done = match packet.kind {
            PacketKind::Send(tail) => self.send(packet, tail, world),
            PacketKind::Write { reth, imm } => self.write(packet, reth, imm, world),
            _ => None,
        };
        if done.is_none() {
            self.abandon_message();
        } else if packet.last {
            self.message = UnreliableMessage::None;
        }
    }

    /// Abandons a message that does not continue. Its receive is used again, except a receive of an
    /// SRQ, which cannot go back.
    fn abandon_message(&mut self) {
        self.message = UnreliableMessage::None;
        if self.shared {
            if let Some(receive) = self.held.take() {
                self.due.complete(ReceiveCompletion::failed(
                    receive.wr_id,
                    WcStatus::RemAbortErr,
                ));
            }
        }
    }

    /// Returns the receive for a message, if there is a usable one.
    fn take(&mut self, world: &impl Surroundings) -> Option<PostedReceive> {
        if let Some(receive) = self.held {
            return Some(receive);
        }
        match world.next_receive() {
            NextReceive::Empty => None,
            NextReceive::QueueError => {
                (self.enters_err, self.fatal) = (true, true);
                None
            }
            NextReceive::Receive(receive) => {
                self.due.taken = Some(receive.wr_id);
                if receive.malformed {
                    self.fail(receive, WcStatus::LocQpOpErr);
                    self.enters_err = true;
                    return None;
                }
                self.held = Some(receive);
                Some(receive)
            }
        }
    }

    fn fail(&mut self, receive: PostedReceive, status: WcStatus) {
        self.held = None;
        self.due
            .complete(ReceiveCompletion::failed(receive.wr_id, status));
    }

    /// Puts bytes into a receive, if they fit.
    fn store(
        &mut self,
        receive: PostedReceive,
        offset: u64,
        length: u64,
        world: &impl Surroundings,
    ) -> Option<()> {
        if offset + length > receive.capacity {
            if self.shared {
                self.fail(receive, WcStatus::LocLenErr);
            }
            return None;
        }
        if length > 0 && !world.stores(receive.wr_id, offset, length) {
            self.fail(receive, WcStatus::LocProtErr);
            self.enters_err = true;
            return None;
        }
        self.due.store(offset, length);
        Some(())
    }

    /// True if the payload's length fits the packet's place in the message (C9-92).
    fn is_sized(&self, packet: &Packet) -> bool {
        let (length, mtu) = (packet.payload.len(), self.attr.path_mtu);
        let least = match (packet.first, packet.last) {
            (_, false) => mtu,
            (first, true) => u32::from(!first),
        };
        (least..=mtu).contains(&length)
    }

    fn complete_message(
        &mut self,
        receive: PostedReceive,
        byte_len: u64,
        opcode: WcOpcode,
        imm: Option<[u8; 4]>,
        solicited: bool,
    ) {
        self.held = None;
        self.due.complete(ReceiveCompletion {
            wr_id: receive.wr_id,
            status: WcStatus::Success,
            opcode,
            byte_len,
            imm,
            invalidated: None,
            solicited,
        });
    }

    fn send(&mut self, packet: &Packet, tail: SendTail, world: &impl Surroundings) -> Option<()> {
        let done = match self.message {
            UnreliableMessage::Send(done) => done,
            _ => 0,
        };
        if !self.is_sized(packet) {
            return None;
        }
        let receive = self.take(world)?;
        let length = u64::from(packet.payload.len());
        self.store(receive, done, length, world)?;
        self.message = UnreliableMessage::Send(done + length);
        if packet.last {
            let imm = match tail {
                SendTail::Imm(imm) => Some(imm),
                _ => None,
            };
            self.complete_message(
                receive,
                done + length,
                WcOpcode::Recv,
                imm,
                packet.solicited,
            );
        }
        Some(())
    }

    fn write(
        &mut self,
        packet: &Packet,
        reth: Option<Reth>,
        imm: Option<[u8; 4]>,
        world: &impl Surroundings,
    ) -> Option<()> {
        let (reth, done) = match self.message {
            UnreliableMessage::Write(reth, done) => (reth, done),
            _ => (reth?, 0),
        };
        let enabled = self.attr.access_flags & access::REMOTE_WRITE != 0 || !packet.first;
        let (length, all) = (u64::from(packet.payload.len()), u64::from(reth.length));
        let end = done + length;
        let fits = if packet.last { end == all } else { end < all };
        if !enabled || reth.length > 1 << 31 || !self.is_sized(packet) || !fits {
            return None;
        }
        let allows = |addr, length| {
            let key = KeyUse {
                pd: self.pd,
                owner: 0,
                privileged: false,
                key: reth.rkey,
                addr,
                length,
                access: KeyAccess::RemoteWrite,
            };
            length == 0 || world.allows(&key)
        };
        let at = reth.addr.wrapping_add(done);
        let whole = !packet.first || allows(reth.addr, all);
        if !whole || !allows(at, length) {
            return None;
        }
        let receive = match imm {
            Some(_) => Some(self.take(world)?),
            None => None,
        };
        self.due.write(reth.rkey, at, length);
        self.message = UnreliableMessage::Write(reth, end);
        if let Some(receive) = receive {
            self.complete_message(
                receive,
                end,
                WcOpcode::RecvRdmaWithImm,
                imm,
                packet.solicited,
            );
        }
        Some(())
    }

    fn datagram(&mut self, packet: &Packet, world: &impl Surroundings) {
        let qkey = packet.datagram.as_ref().map(|datagram| datagram.qkey);
        if qkey != Some(self.attr.qkey) {
            return;
        }
        let PacketKind::Send(tail) = packet.kind else {
            return;
        };
        if !packet.first || !packet.last {
            return;
        }
        let length = u64::from(packet.payload.len());
        let Some(receive) = self.take(world) else {
            return;
        };
        if GRH + length > receive.capacity {
            if self.shared {
                self.fail(receive, WcStatus::LocLenErr);
            }
            return;
        }
        let whole = self.store(receive, 0, GRH, world);
        if whole.is_none() || self.store(receive, GRH, length, world).is_none() {
            return;
        }
        let imm = match tail {
            SendTail::Imm(imm) => Some(imm),
            _ => None,
        };
        self.complete_message(receive, GRH + length, WcOpcode::Recv, imm, packet.solicited);
    }

    /// Compares the effects of a call with those that it had to have.
    pub fn compare(&mut self, mut seen: RequestEffects, events: &[EventType], state: QpState) {
        let mut due = std::mem::take(&mut self.due);
        let (ends, fatal) = (
            std::mem::take(&mut self.enters_err),
            std::mem::take(&mut self.fatal),
        );
        self.state = state;
        if self.is_unjudged {
            return;
        }
        seen.established = events.contains(&EventType::CommEst);
        if ends {
            // Some bytes of a bad receive may have been written.
            (seen.stored, due.stored) = (None, None);
            assert_eq!(
                state,
                QpState::Err,
                "reference: 9.9.3.1.1: a bad receive ends in ERR"
            );
        }
        assert_eq!(
            seen, due,
            "reference: 9.8: what a packet does (left: the engine)"
        );
        let told = events.contains(&EventType::QpFatal) && !self.failed;
        assert_eq!(
            told, fatal,
            "reference: 9.9.3.1: QP_FATAL (left: the engine)"
        );
    }

    /// Checks that a packet that leaves is no answer.
    pub fn on_transmit(&self, packet: &Packet) {
        let answers = !packet.kind.is_request();
        assert!(
            !answers,
            "reference: 9.8.2: an unreliable responder answers: {packet:?}"
        );
    }
}
