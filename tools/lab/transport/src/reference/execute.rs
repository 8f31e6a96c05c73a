// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The execution of a request by a reliable responder after the sequence is checked: resources,
//! R_Key, length, and the effects (IBTA 9.7.4.1).

use super::answers::RequestedOp;
use super::responder::{ReferenceMessage, ReferenceResponder};
use super::{NextReceive, PostedReceive, ReceiveCompletion, Surroundings};
use verbena_transport::host::{AtomicOp, KeyAccess, WcOpcode, WcStatus};
use verbena_transport::packet::{Feth, NakCode, Packet, Reth, SendTail};

/// Length in bytes of the longest message (C9-94).
const LONGEST: u32 = 1 << 31;

impl ReferenceResponder {
    /// Takes the next receive. Without a usable one, notes the NAK that is owed and returns `None`.
    fn take(&mut self, world: &impl Surroundings) -> Option<PostedReceive> {
        match world.next_receive() {
            NextReceive::Empty => {
                self.gap_or_rnr_reported = true;
                self.answers.owe_rnr();
                None
            }
            NextReceive::QueueError => {
                self.refuse(NakCode::RemoteOperational, None);
                None
            }
            NextReceive::Receive(receive) => {
                self.due.taken = Some(receive.wr_id);
                if receive.malformed {
                    let told = Some((receive.wr_id, WcStatus::LocQpOpErr));
                    self.refuse(NakCode::RemoteOperational, told);
                    return None;
                }
                Some(receive)
            }
        }
    }

    pub(super) fn send(&mut self, packet: &Packet, tail: SendTail, world: &impl Surroundings) {
        if packet.first {
            let Some(receive) = self.take(world) else {
                return;
            };
            self.message = ReferenceMessage::Send { receive, done: 0 };
        }
        let ReferenceMessage::Send { receive, done } = self.message else {
            return;
        };
        let length = u64::from(packet.payload.len());
        if !self.is_sized(packet) {
            self.refuse_message(NakCode::InvalidRequest, WcStatus::LocQpOpErr);
            return;
        }
        if done + length > receive.capacity {
            self.refuse_message(NakCode::InvalidRequest, WcStatus::LocLenErr);
            return;
        }
        if length > 0 && !world.stores(receive.wr_id, done, length) {
            self.refuse_message(NakCode::RemoteOperational, WcStatus::LocProtErr);
            return;
        }
        self.due.store(done, length);
        let done = done + length;
        self.message = ReferenceMessage::Send { receive, done };
        self.advance(packet);
        if !packet.last {
            return;
        }
        self.message = ReferenceMessage::None;
        let mut received = ReceiveCompletion {
            wr_id: receive.wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: done,
            imm: None,
            invalidated: None,
            solicited: packet.solicited,
        };
        match tail {
            SendTail::None => {}
            SendTail::Imm(imm) => received.imm = Some(imm),
            SendTail::Invalidate(key) => {
                self.due.invalidated = Some(key);
                if world.invalidates(key) {
                    received.invalidated = Some(key);
                } else {
                    // Class J: the SEND itself was good.
                    self.failed_invalidate = Some(receive.wr_id);
                    return;
                }
            }
        }
        self.due.complete(received);
    }

    pub(super) fn write(
        &mut self,
        packet: &Packet,
        reth: Option<Reth>,
        imm: Option<[u8; 4]>,
        world: &impl Surroundings,
    ) {
        let (reth, done) = match (self.message, reth) {
            (ReferenceMessage::Write { reth, done }, _) => (reth, done),
            (_, Some(reth)) => (reth, 0),
            _ => return,
        };
        let length = packet.payload.len();
        // C9-94 is checked before the key.
        if reth.length > LONGEST {
            let receive = self.receive_of_immediate(imm, world, WcStatus::LocQpOpErr);
            let Ok(receive) = receive else {
                return;
            };
            self.refuse(NakCode::InvalidRequest, receive);
            return;
        }
        let mut taken = None;
        if imm.is_some() {
            taken = self.take(world);
            if taken.is_none() {
                return;
            }
        }
        let told = |status| taken.map(|receive: PostedReceive| (receive.wr_id, status));
        let part = Reth {
            addr: reth.addr.wrapping_add(done),
            length,
            ..reth
        };
        let whole = !packet.first || self.allows(&reth, KeyAccess::RemoteWrite, world);
        let end = done + u64::from(length);
        let fits = match packet.last {
            true => end == u64::from(reth.length),
            false => end < u64::from(reth.length),
        };
        if !whole {
            self.refuse(NakCode::RemoteAccess, told(WcStatus::LocAccessErr));
            return;
        }
        if !self.is_sized(packet) || !fits {
            self.refuse(NakCode::InvalidRequest, told(WcStatus::LocQpOpErr));
            return;
        }
        // The region may have gone since the first packet.
        if !self.allows(&part, KeyAccess::RemoteWrite, world) {
            self.refuse(NakCode::RemoteAccess, told(WcStatus::LocAccessErr));
            return;
        }
        self.due.write(reth.rkey, part.addr, u64::from(length));
        self.message = if packet.last {
            ReferenceMessage::None
        } else {
            ReferenceMessage::Write { reth, done: end }
        };
        self.advance(packet);
        if let Some(receive) = taken {
            self.due.complete(ReceiveCompletion {
                wr_id: receive.wr_id,
                status: WcStatus::Success,
                opcode: WcOpcode::RecvRdmaWithImm,
                byte_len: end,
                imm,
                invalidated: None,
                solicited: packet.solicited,
            });
        }
    }

    /// Takes the receive that reports a refusal which is decided before the usual moment of taking
    /// it.
    fn receive_of_immediate(
        &mut self,
        imm: Option<[u8; 4]>,
        world: &impl Surroundings,
        status: WcStatus,
    ) -> Result<Option<(u64, WcStatus)>, ()> {
        if imm.is_none() {
            return Ok(None);
        }
        let receive = self.take(world).ok_or(())?;
        Ok(Some((receive.wr_id, status)))
    }

    /// True if one more READ or atomic may be outstanding.
    fn has_place(&self) -> bool {
        self.answers.outstanding() < usize::from(self.attr.max_dest_rd_atomic)
    }

    pub(super) fn read(&mut self, reth: Reth, world: &impl Surroundings) {
        if !self.has_place() || reth.length > LONGEST {
            self.refuse(NakCode::InvalidRequest, None);
            return;
        }
        if !self.allows(&reth, KeyAccess::RemoteRead, world) {
            self.refuse(NakCode::RemoteAccess, None);
            return;
        }
        let count = reth.length.div_ceil(self.attr.path_mtu).max(1);
        self.answers
            .on_executed(self.expected, u64::from(count), RequestedOp::Read(reth));
        self.expected += u64::from(count);
        self.msn += 1;
    }

    pub(super) fn atomic(&mut self, addr: u64, rkey: u32, op: AtomicOp, world: &impl Surroundings) {
        if !self.has_place() || addr % 8 != 0 {
            self.refuse(NakCode::InvalidRequest, None);
            return;
        }
        let word = Reth {
            addr,
            rkey,
            length: 8,
        };
        if !self.allows(&word, KeyAccess::RemoteAtomic, world) {
            self.refuse(NakCode::RemoteAccess, None);
            return;
        }
        self.due.atomic = Some((rkey, addr, op));
        self.answers
            .on_executed(self.expected, 1, RequestedOp::Atomic { rkey, addr, op });
        self.expected += 1;
        self.msn += 1;
    }

    /// Executes an ATOMIC WRITE (A19).
    pub(super) fn write_word(&mut self, packet: &Packet, reth: Reth, world: &impl Surroundings) {
        if !self.has_place() {
            self.refuse(NakCode::InvalidRequest, None);
            return;
        }
        if !self.allows(&reth, KeyAccess::RemoteWrite, world) {
            self.refuse(NakCode::RemoteAccess, None);
            return;
        }
        if (reth.length, packet.payload.len()) != (8, 8) || reth.addr % 8 != 0 {
            self.refuse(NakCode::InvalidRequest, None);
            return;
        }
        self.due.write(reth.rkey, reth.addr, 8);
        self.place(RequestedOp::Write(reth));
    }

    /// Executes a FLUSH (A19).
    pub(super) fn flush(&mut self, feth: Feth, reth: Reth, world: &impl Surroundings) {
        if !self.has_place() {
            self.refuse(NakCode::InvalidRequest, None);
            return;
        }
        // The length has no meaning for the flush of a whole region.
        let length = if feth.level == 1 { 1 } else { reth.length };
        let memory = Reth { length, ..reth };
        if !self.allows(&memory, KeyAccess::RemoteFlush(feth), world) {
            self.refuse(NakCode::RemoteAccess, None);
            return;
        }
        self.place(RequestedOp::Flush(feth, reth));
    }

    fn place(&mut self, wish: RequestedOp) {
        self.answers.on_executed(self.expected, 1, wish);
        self.expected += 1;
        self.msn += 1;
    }
}
