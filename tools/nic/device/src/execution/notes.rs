// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The hooks of the flight recorder: they record an entry for each thing that happens, if the
//! device has a recorder.

use crate::execution::resources::Resources;
use crate::objects::qp::{Env, Qp};
use verbena_abi::cmd::{CmdStatus, Opcode};
use verbena_abi::cqe::{Cqe, Tail};
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::SendWqe;
use verbena_faults::{Direction, On, Passing};
use verbena_recorder::{
    EntryKind, PacketEntry as Noted, FIRST, LAST, LOST, RANDOM_DROP, RECV, WRITTEN,
};
use verbena_transport::packet::{Aeth, AethSyndrome, NakCode, PacketKind};
use verbena_transport::{psn, Packet};

/// Returns syndrome and MSN of an AETH as its word has them (IBTA 9.3).
fn syndrome(aeth: &Aeth) -> u32 {
    let byte = match aeth.syndrome {
        // A source fault never appears on a wire. There this value would be a sequence error.
        AethSyndrome::Nak(NakCode::SourceFault) => 0x7f,
        other => other.to_wire(),
    };
    u32::from(byte) << 24 | aeth.msn & 0xff_ffff
}

fn noted(qpn: u32, peer: u32, packet: &Packet) -> Noted {
    let (detail, address) = match &packet.kind {
        PacketKind::Ack(aeth)
        | PacketKind::ReadResponse(Some(aeth))
        | PacketKind::AtomicResponse(aeth, _) => (syndrome(aeth), 0),
        PacketKind::Write {
            reth: Some(reth), ..
        }
        | PacketKind::ReadRequest(reth)
        | PacketKind::AtomicWrite(reth)
        | PacketKind::Flush(_, reth) => (reth.rkey, reth.addr),
        PacketKind::Atomic { addr, rkey, .. } => (*rkey, *addr),
        _ => (0, 0),
    };
    let first = if packet.first { FIRST } else { 0 };
    let last = if packet.last { LAST } else { 0 };
    Noted {
        qpn,
        peer,
        opcode: packet.opcode(),
        flags: first | last,
        psn: packet.psn,
        count: packet.psns,
        bytes: packet.payload.len(),
        detail,
        address,
    }
}

fn raw(syndrome: Option<Syndrome>) -> u16 {
    syndrome.map_or(0, Syndrome::to_raw)
}

impl Resources {
    /// Records an entry, if the device has a recorder.
    #[inline]
    pub(crate) fn note(&mut self, kind: impl FnOnce() -> EntryKind) {
        if let Some(recorder) = &mut self.recorder {
            recorder.ring.push(self.clock.now(), kind());
        }
    }

    /// Records an asynchronous event.
    pub(crate) fn note_event(&mut self, kind: EventType, number: u32, cause: Option<Syndrome>) {
        self.note(|| EntryKind::Event {
            event_type: kind.to_raw(),
            number,
            syndrome: raw(cause),
        });
    }

    /// Records that the device begins with a work request. `by_rule` is true if a rule makes the
    /// request fail.
    #[inline]
    pub(crate) fn note_work(&mut self, env: &Env, index: u32, wqe: &SendWqe, by_rule: bool) {
        self.note(|| EntryKind::Work {
            qpn: env.qpn(),
            owner: env.owner as u32,
            index,
            opcode: wqe.opcode,
            wr_id: wqe.wr_id.get(),
        });
        if by_rule {
            self.remark_rule(On::Send);
            self.note_fired(On::Send, wqe.opcode.into(), Some(env));
        }
    }

    /// Records a completion, also one that the CQ could not take.
    #[inline]
    pub(crate) fn note_completion(
        &mut self,
        cqn: u32,
        cqe: &Cqe,
        tail: Tail,
        recv: bool,
        written: bool,
    ) {
        self.note(|| EntryKind::Completed {
            qpn: cqe.qpn.get(),
            cqn,
            index: cqe.wqe_index.get(),
            bytes: cqe.byte_len.get(),
            status: tail.status,
            flags: if recv { RECV } else { 0 } | if written { WRITTEN } else { 0 },
            syndrome: cqe.vendor_err.get() as u16,
            wr_id: cqe.wr_id.get(),
        });
    }

    /// Records a packet that a queue pair sends.
    #[inline]
    pub(crate) fn note_sent(&mut self, packet: &Packet) {
        self.note(|| EntryKind::Sent(noted(packet.src_qpn, packet.dst_qpn, packet)));
    }

    /// Records a packet that a queue pair receives.
    #[inline]
    pub(crate) fn note_received(&mut self, env: &Env, packet: &Packet) {
        self.note(|| {
            let peer = match packet.datagram {
                Some(_) => packet.src_qpn,
                None => env.attr.dest_qpn.get(),
            };
            EntryKind::Received(noted(env.qpn(), peer, packet))
        });
    }

    /// Records the state of a queue pair that differs from the state in its context.
    #[inline]
    pub(crate) fn note_state(&mut self, qp: &Qp) {
        let path = qp.env.path.as_ref();
        let is_local = path.map(|path| self.port.is_local(path));
        self.note(|| {
            let live = qp.transport.snapshot();
            EntryKind::State {
                qpn: qp.env.qpn(),
                owner: qp.env.owner as u32,
                peer: qp.env.attr.dest_qpn.get(),
                is_local,
                from: qp.env.shown.to_raw(),
                to: live.state.to_raw(),
                syndrome: raw(live.syndrome),
                next_psn: live.next_psn,
                una_psn: live.una_psn,
                expected_psn: live.expected_psn,
            }
        });
    }

    /// Records the creation of a queue pair.
    pub(crate) fn note_created(&mut self, env: &Env) {
        self.note(|| EntryKind::Created {
            qpn: env.qpn(),
            owner: env.owner as u32,
            qp_type: env.create.qp_type,
            send_cqn: env.create.send_cqn.get(),
            recv_cqn: env.create.recv_cqn.get(),
        });
    }

    /// Records the destruction of a queue pair.
    pub(crate) fn note_destroyed(&mut self, env: &Env) {
        self.note(|| EntryKind::Destroyed {
            qpn: env.qpn(),
            owner: env.owner as u32,
        });
    }

    /// Records the reply to a command.
    pub(crate) fn note_command(&mut self, opcode: u16, status: CmdStatus, syndrome: u32) {
        let port_up = (opcode == Opcode::SetPort.to_raw()).then_some(self.port.up);
        self.note(|| EntryKind::Command {
            opcode,
            status: status.to_raw() as u8,
            syndrome: syndrome as u16,
            port_up,
        });
    }

    /// Records a packet that passes the rules. `fired` is true if a rule has fired on the packet.
    pub(crate) fn note_passing(&mut self, passing: &Passing, fired: bool) {
        let nth = psn::ahead(passing.psn, passing.first_psn) + 1;
        self.note(|| EntryKind::Passed {
            direction: passing.way,
            flags: 0,
            opcode: passing.opcode,
            qpn: passing.party.qpn,
            owner: passing.party.created as u32,
            psn: passing.psn,
            nth,
        });
        if fired {
            self.note_rule(
                On::Packet,
                passing.way,
                passing.opcode.into(),
                (passing.party.qpn, passing.party.created as u32),
                (passing.psn, nth),
            );
        }
    }

    /// Records a packet that passed the rules on local packets, and if `verbena-nic --drop` lost it.
    pub(crate) fn note_random_drop(&mut self, env: Option<&Env>, packet: &Packet, lost: bool) {
        self.note(|| {
            let first = |env: &Env| match packet.kind.is_request() {
                true => env.attr.sq_psn.get(),
                false => env.attr.rq_psn.get(),
            };
            EntryKind::Passed {
                direction: Direction::Out,
                flags: if lost {
                    RANDOM_DROP | LOST
                } else {
                    RANDOM_DROP
                },
                opcode: packet.opcode(),
                qpn: packet.src_qpn,
                owner: env.map_or(0, |env| env.owner as u32),
                psn: packet.psn,
                nth: env.map_or(0, |env| psn::ahead(packet.psn, first(env)) + 1),
            }
        });
    }

    /// Records that a rule on local packets has just lost a packet.
    pub(crate) fn note_loss(&mut self, passing: &Passing) {
        let nth = psn::ahead(passing.psn, passing.first_psn) + 1;
        self.note_rule(
            On::Packet,
            Direction::Out,
            passing.opcode.into(),
            (passing.party.qpn, passing.party.created as u32),
            (passing.psn, nth),
        );
    }

    /// Records that a rule has just fired on something else than a packet.
    pub(crate) fn note_fired(&mut self, on: On, opcode: u16, env: Option<&Env>) {
        let party = env.map_or((0, 0), |env| (env.qpn(), env.owner as u32));
        self.note_rule(on, Direction::Out, opcode, party, (0, 0));
    }

    /// Adds a note for the tap that a rule has just fired. The note belongs to the frame that the
    /// rule fired on, or otherwise to the next frame.
    #[cold]
    pub(crate) fn remark_rule(&mut self, on: On) {
        let last = self
            .faults
            .as_ref()
            .and_then(|faults| faults.table.last_fired());
        let (Some((rule, _)), true) = (last, self.capture.has_tap()) else {
            return;
        };
        let (name, action) = (&rule.name, rule.action.name());
        let text = match on {
            On::Packet => format!("rule {name:?}: {action}"),
            _ => format!("before this frame, rule {name:?}: {action}"),
        };
        self.capture.remark(&text);
    }

    fn note_rule(
        &mut self,
        on: On,
        way: Direction,
        opcode: u16,
        (qpn, owner): (u32, u32),
        (psn, nth): (u32, u32),
    ) {
        let last = self
            .faults
            .as_ref()
            .and_then(|faults| faults.table.last_fired());
        let (Some(recorder), Some((rule, base))) = (&mut self.recorder, last) else {
            return;
        };
        let fired = EntryKind::Fired {
            rule: recorder.number(&rule.name),
            on,
            direction: way,
            opcode,
            qpn,
            owner,
            base: base as u32,
            psn,
            nth,
        };
        recorder.ring.push(self.clock.now(), fired);
    }
}
