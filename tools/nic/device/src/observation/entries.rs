// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The entries that the flight recorder makes of events.

use crate::objects::qp::Env;
use crate::observation::event::{position, DeviceEvent, FiredOn, QpEvent};
use crate::observation::flight_recorder::FlightRecorder;
use crate::observation::EventContext;
use verbena_abi::cmd::Opcode;
use verbena_abi::syndrome::Syndrome;
use verbena_faults::{Direction, RuleHook};
use verbena_recorder::{EntryKind, PacketEntry, FIRST, LAST, LOST, RANDOM_DROP, RECV, WRITTEN};
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

fn packet_entry(qpn: u32, peer: u32, packet: &Packet) -> PacketEntry {
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
    PacketEntry {
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

/// Returns the entry of a packet that passed the rules on local packets.
fn local_packet(env: Option<&Env>, packet: &Packet, lost: bool) -> EntryKind {
    let first = |env: &Env| match packet.kind.is_request() {
        true => env.attr.sq_psn.get(),
        false => env.attr.rq_psn.get(),
    };
    EntryKind::Passed {
        direction: Direction::Out,
        flags: RANDOM_DROP | if lost { LOST } else { 0 },
        opcode: packet.opcode(),
        qpn: packet.src_qpn,
        owner: env.map_or(0, |env| env.owner as u32),
        psn: packet.psn,
        nth: env.map_or(0, |env| psn::ahead(packet.psn, first(env)) + 1),
    }
}

/// Returns the entry of an event of a queue pair. None if the flight recorder has no such entry.
fn qp_entry(env: &Env, event: &QpEvent<'_>, context: &EventContext<'_>) -> Option<EntryKind> {
    Some(match *event {
        QpEvent::Created => EntryKind::Created {
            qpn: env.qpn(),
            owner: env.owner as u32,
            qp_type: env.create.qp_type,
            send_cqn: env.create.send_cqn.get(),
            recv_cqn: env.create.recv_cqn.get(),
        },
        QpEvent::Destroyed { .. } => EntryKind::Destroyed {
            qpn: env.qpn(),
            owner: env.owner as u32,
        },
        QpEvent::WorkBegun { index, wqe, .. } => EntryKind::Work {
            qpn: env.qpn(),
            owner: env.owner as u32,
            index,
            opcode: wqe.opcode,
            wr_id: wqe.wr_id.get(),
        },
        QpEvent::Completed {
            cqn,
            cqe,
            tail,
            recv,
            written,
            ..
        } => EntryKind::Completed {
            qpn: cqe.qpn.get(),
            cqn,
            index: cqe.wqe_index.get(),
            bytes: cqe.byte_len.get(),
            status: tail.status,
            flags: if recv { RECV } else { 0 } | if written { WRITTEN } else { 0 },
            syndrome: cqe.vendor_err.get() as u16,
            wr_id: cqe.wr_id.get(),
        },
        QpEvent::PacketSent(packet) => {
            EntryKind::Sent(packet_entry(packet.src_qpn, packet.dst_qpn, packet))
        }
        QpEvent::PacketReceived { packet, .. } => {
            let peer = match packet.datagram {
                Some(_) => packet.src_qpn,
                None => env.attr.dest_qpn.get(),
            };
            EntryKind::Received(packet_entry(env.qpn(), peer, packet))
        }
        QpEvent::StateChanged(transport) => {
            let live = transport.snapshot();
            let path = env.path.as_ref();
            EntryKind::State {
                qpn: env.qpn(),
                owner: env.owner as u32,
                peer: env.attr.dest_qpn.get(),
                is_local: path.map(|path| context.port.is_local(path, env.attr.dest_qpn.get())),
                from: env.shown.to_raw(),
                to: live.state.to_raw(),
                syndrome: raw(live.syndrome),
                next_psn: live.next_psn,
                una_psn: live.una_psn,
                expected_psn: live.expected_psn,
            }
        }
        QpEvent::SendTaken
        | QpEvent::ReceiveTaken
        | QpEvent::PacketRefused
        | QpEvent::KeyViolated { .. } => return None,
    })
}

impl FlightRecorder {
    /// Records an event, if the flight recorder has an entry for it.
    #[inline(never)]
    pub(super) fn on_event(&mut self, event: &DeviceEvent<'_>, context: &EventContext<'_>) {
        let now = context.now;
        let entry = match *event {
            DeviceEvent::Reset => EntryKind::Reset,
            DeviceEvent::CommandDone {
                opcode,
                status,
                syndrome,
            } => EntryKind::Command {
                opcode,
                status: status.to_raw() as u8,
                syndrome: syndrome as u16,
                port_up: (opcode == Opcode::SetPort.to_raw()).then_some(context.port.up),
            },
            DeviceEvent::Async {
                kind,
                number,
                cause,
            } => EntryKind::Event {
                event_type: kind.to_raw(),
                number,
                syndrome: raw(cause),
            },
            DeviceEvent::PacketJudged { passing, fired } => {
                self.ring.push(
                    now,
                    EntryKind::Passed {
                        direction: passing.direction,
                        flags: 0,
                        opcode: passing.opcode,
                        qpn: passing.qp.qpn,
                        owner: passing.qp.created as u32,
                        psn: passing.psn,
                        nth: position(passing),
                    },
                );
                if fired {
                    self.on_rule(FiredOn::packet(passing), context);
                }
                return;
            }
            DeviceEvent::LocalPacketJudged { env, packet, lost } => local_packet(env, packet, lost),
            DeviceEvent::RuleFired(fired) => return self.on_rule(fired, context),
            DeviceEvent::RulesAdded { rules, late } => {
                return rules.iter().for_each(|rule| self.add(now, rule, late));
            }
            DeviceEvent::Qp(env, ref event) => match qp_entry(env, event, context) {
                Some(entry) => entry,
                None => return,
            },
            DeviceEvent::Called(_)
            | DeviceEvent::CommandAccepted
            | DeviceEvent::InterruptRaised
            | DeviceEvent::PacketDropped(_)
            | DeviceEvent::MulticastSent
            | DeviceEvent::PortDown => return,
        };
        self.ring.push(now, entry);
        if let DeviceEvent::Qp(
            env,
            QpEvent::WorkBegun {
                wqe, by_rule: true, ..
            },
        ) = *event
        {
            let fired = FiredOn::other(RuleHook::Send, wqe.opcode.into(), Some(env));
            self.on_rule(fired, context);
        }
    }

    /// Records that the rule has fired which fired last.
    fn on_rule(&mut self, fired: FiredOn, context: &EventContext<'_>) {
        let Some((rule, base)) = context.last_fired() else {
            return;
        };
        let ((qpn, owner), (psn, nth)) = (fired.qp, fired.psn);
        let entry = EntryKind::Fired {
            rule: self.number(&rule.name),
            on: fired.on,
            direction: fired.direction,
            opcode: fired.opcode,
            qpn,
            owner: owner as u32,
            base: base as u32,
            psn,
            nth,
        };
        self.ring.push(context.now, entry);
    }
}
