// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Responders of unreliable connections and datagrams (IBTA 9.8.2, 9.8.3). They never answer. A
//! responder drops a packet that it cannot take, and only a bad receive of its own moves it to ERR.

use super::tables::{near, BASE};
use super::{belongs, is_possible, Effects, Next, Receive, Received, World};
use verbena_abi::ctx::access;
use verbena_transport::host::{EventType, KeyAccess, KeyUse, WcOpcode, WcStatus};
use verbena_transport::packet::{Packet, PacketKind, Reth, SendTail, Transport};
use verbena_transport::{Attr, QpState, QpType};

/// Bytes of the GRH before the payload of a datagram.
const GRH: u64 = 40;

/// The message in progress.
#[derive(Clone, Copy, Debug)]
enum Message {
    /// No message is in progress, or it was abandoned.
    None,
    /// SEND, with the bytes that have arrived.
    Send(u64),
    /// WRITE, with its RETH and the bytes that have arrived.
    Write(Reth, u64),
}

/// The reference's state of an unreliable responder.
#[derive(Debug)]
pub struct Unreliable {
    qp_type: QpType,
    pd: u32,
    /// True if the receives are in an SRQ.
    shared: bool,
    attr: Attr,
    state: QpState,
    loose: bool,
    established: bool,
    expected: u64,
    message: Message,
    /// Receive that the message in progress has taken.
    held: Option<Receive>,
    due: Effects,
    /// True if the QP has to be in ERR after this call.
    ends: bool,
    /// True if QP_FATAL is due with that.
    fatal: bool,
    failed: bool,
}

impl Unreliable {
    /// Returns a responder in RESET.
    pub fn new(qp_type: QpType, pd: u32, shared: bool) -> Self {
        Self {
            qp_type,
            pd,
            shared,
            attr: Attr::default(),
            state: QpState::Reset,
            loose: false,
            established: false,
            expected: 0,
            message: Message::None,
            held: None,
            due: Effects::default(),
            ends: false,
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
    pub fn fails(&mut self) {
        self.failed = true;
    }

    /// Judges a packet that is handed in, and notes the effects that it must have.
    pub fn request(&mut self, packet: &Packet, world: &impl World) {
        self.due = Effects::default();
        let transport = match self.qp_type {
            QpType::Uc => Transport::Uc,
            _ => Transport::Ud,
        };
        if self.loose || !belongs(packet, transport, self.attr.pkey) || !packet.kind.is_request() {
            return;
        }
        if !is_possible(packet) || matches!(packet.kind, PacketKind::Send(SendTail::Invalidate(_)))
        {
            // No frame of these services can carry such a packet.
            self.loose |= self.qp_type == QpType::Uc;
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
            if self.ends || self.loose {
                return;
            }
            if !world.readable(&single.payload) {
                self.loose = true;
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

    fn single(&mut self, packet: &Packet, world: &impl World) {
        let psn = near(self.expected, packet.psn);
        let follows = psn == self.expected;
        self.expected = psn + 1;
        let goes_on = match (self.message, packet.kind) {
            (Message::Send(_), PacketKind::Send(_))
            | (Message::Write(..), PacketKind::Write { .. }) => follows && !packet.first,
            _ => false,
        };
        if !goes_on {
            self.give_up();
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
            self.give_up();
        } else if packet.last {
            self.message = Message::None;
        }
    }

    /// Abandons a message that does not continue. Its receive is used again, except a receive of an
    /// SRQ, which cannot go back.
    fn give_up(&mut self) {
        self.message = Message::None;
        if self.shared {
            if let Some(receive) = self.held.take() {
                self.due
                    .complete(Received::failed(receive.wr_id, WcStatus::RemAbortErr));
            }
        }
    }

    /// Returns the receive for a message, if there is a usable one.
    fn take(&mut self, world: &impl World) -> Option<Receive> {
        if let Some(receive) = self.held {
            return Some(receive);
        }
        match world.next_receive() {
            Next::Empty => None,
            Next::Dead => {
                (self.ends, self.fatal) = (true, true);
                None
            }
            Next::Receive(receive) => {
                self.due.taken = Some(receive.wr_id);
                if receive.malformed {
                    self.fail(receive, WcStatus::LocQpOpErr);
                    self.ends = true;
                    return None;
                }
                self.held = Some(receive);
                Some(receive)
            }
        }
    }

    fn fail(&mut self, receive: Receive, status: WcStatus) {
        self.held = None;
        self.due.complete(Received::failed(receive.wr_id, status));
    }

    /// Puts bytes into a receive, if they fit.
    fn store(
        &mut self,
        receive: Receive,
        offset: u64,
        length: u64,
        world: &impl World,
    ) -> Option<()> {
        if offset + length > receive.capacity {
            if self.shared {
                self.fail(receive, WcStatus::LocLenErr);
            }
            return None;
        }
        if length > 0 && !world.stores(receive.wr_id, offset, length) {
            self.fail(receive, WcStatus::LocProtErr);
            self.ends = true;
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

    fn arrived(
        &mut self,
        receive: Receive,
        byte_len: u64,
        opcode: WcOpcode,
        imm: Option<[u8; 4]>,
        solicited: bool,
    ) {
        self.held = None;
        self.due.complete(Received {
            wr_id: receive.wr_id,
            status: WcStatus::Success,
            opcode,
            byte_len,
            imm,
            invalidated: None,
            solicited,
        });
    }

    fn send(&mut self, packet: &Packet, tail: SendTail, world: &impl World) -> Option<()> {
        let done = match self.message {
            Message::Send(done) => done,
            _ => 0,
        };
        if !self.is_sized(packet) {
            return None;
        }
        let receive = self.take(world)?;
        let length = u64::from(packet.payload.len());
        self.store(receive, done, length, world)?;
        self.message = Message::Send(done + length);
        if packet.last {
            let imm = match tail {
                SendTail::Imm(imm) => Some(imm),
                _ => None,
            };
            self.arrived(
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
        world: &impl World,
    ) -> Option<()> {
        let (reth, done) = match self.message {
            Message::Write(reth, done) => (reth, done),
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
        self.message = Message::Write(reth, end);
        if let Some(receive) = receive {
            self.arrived(
                receive,
                end,
                WcOpcode::RecvRdmaWithImm,
                imm,
                packet.solicited,
            );
        }
        Some(())
    }

    fn datagram(&mut self, packet: &Packet, world: &impl World) {
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
        self.arrived(receive, GRH + length, WcOpcode::Recv, imm, packet.solicited);
    }

    /// Compares the effects of a call with those that it had to have.
    pub fn compare(&mut self, mut seen: Effects, events: &[EventType], state: QpState) {
        let mut due = std::mem::take(&mut self.due);
        let (ends, fatal) = (
            std::mem::take(&mut self.ends),
            std::mem::take(&mut self.fatal),
        );
        self.state = state;
        if self.loose {
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
    pub fn sends(&self, packet: &Packet) {
        let answers = !packet.kind.is_request();
        assert!(
            !answers,
            "reference: 9.8.2: an unreliable responder answers: {packet:?}"
        );
    }
}
