// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work requests become packets, as far as the window, fences and the number of READs allow.

use super::Requester;
use crate::host::{AtomicOp, CopyFault, Host, Syndrome, Target, WcStatus, WqeError, WqeOpcode};
use crate::packet::{Datagram, Kind, Packet, Payload, Reth, SendTail, Transport};
use crate::pool::Pool;
use crate::psn;
use crate::qp::{Core, QpState};
use crate::wire;
use alloc::rc::Rc;

impl Requester {
    /// The packet after the last one, or nothing if nothing may be sent now.
    pub(super) fn next_packet<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
    ) -> Result<Option<Packet>, Syndrome> {
        loop {
            let index = self.cursor;
            if index == self.next {
                if core.state != QpState::Rts || !self.fetch(core, host) {
                    return Ok(None);
                }
                continue;
            }
            let slot = self.slot(index);
            if let Some(fault) = slot.fault {
                if index == self.oldest && (slot.started || core.state == QpState::Rts) {
                    return Err(self.fail_oldest(core, host, fault.status, fault.syndrome));
                }
                return Ok(None);
            }
            if !slot.started {
                if core.state != QpState::Rts || !self.try_start(core, host, index) {
                    return Ok(None);
                }
                continue;
            }
            if slot.psns == 0 {
                self.advance(1);
                self.complete_local(core, host);
                continue;
            }
            if slot.awaits_response() {
                return Ok(self.response_request(core, index));
            }
            return self.data_packet(core, host, index);
        }
    }

    /// The cursor passes `packets` packets of its work request.
    fn advance(&mut self, packets: u32) {
        self.cursor_packets += packets;
        if self.cursor_packets >= self.slot(self.cursor).psns {
            self.cursor = self.cursor.wrapping_add(1);
            self.cursor_packets = 0;
        }
    }

    /// Gives a work request its PSNs if nothing holds it back. True also when it got a fault instead.
    fn try_start<H: Host>(&mut self, core: &Core, host: &mut H, index: u32) -> bool {
        let outstanding = psn::ahead(self.next_psn, self.una_psn);
        let (responses_due, next_psn, is_oldest) =
            (self.responses_due, self.next_psn, self.oldest == index);
        let slot = self.slot_mut(index);
        // Fence: after all READs and atomics before it (IBTA 10.8.3).
        if slot.wqe.fence && responses_due > 0 {
            return false;
        }
        let psns = match slot.wqe.opcode {
            // Executed in order with all before it, which may use the key.
            WqeOpcode::LocalInv => {
                if !is_oldest {
                    return false;
                }
                0
            }
            WqeOpcode::FastReg => 0,
            WqeOpcode::CompareSwap | WqeOpcode::FetchAdd => 1,
            _ => slot.length().div_ceil(core.attr.path_mtu).max(1),
        };
        if psns == 0 {
            let done = match slot.wqe.opcode {
                WqeOpcode::LocalInv => host.invalidate(u32::from_le_bytes(slot.wqe.imm), false),
                _ => host.fast_register(index),
            };
            slot.fault = done
                .err()
                .map(|cause| WqeError::new(WcStatus::MwBindErr, cause));
            slot.started = slot.fault.is_none();
            return true;
        }
        if outstanding != 0 && outstanding + psns > psn::PSN_WINDOW {
            return false;
        }
        if slot.awaits_response() {
            let limit = u32::from(core.attr.max_rd_atomic);
            if limit == 0 {
                slot.fault = Some(WqeError::new(
                    WcStatus::LocQpOpErr,
                    Syndrome::NoReadResources,
                ));
                return true;
            }
            if responses_due >= limit {
                return false;
            }
        }
        slot.first_psn = next_psn;
        slot.psns = psns;
        slot.started = true;
        let responds = slot.awaits_response();
        self.next_psn = psn::add(next_psn, psns);
        self.responses_due += u32::from(responds);
        true
    }

    fn packet(&self, core: &Core, kind: Kind, psn: u32, psns: u32) -> Packet {
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

    /// Notes that PSNs up to `end` were sent.
    fn note_sent(&mut self, core: &mut Core, from: u32, count: u32) {
        self.rewound = false;
        let sent = psn::ahead(self.sent_psn, self.una_psn);
        let begin = psn::ahead(from, self.una_psn);
        let end = begin + count;
        core.counters.retransmitted += u64::from(sent.min(end).saturating_sub(begin));
        if end > sent {
            self.sent_psn = psn::add(from, count);
        }
    }

    /// A READ or atomic request; of a READ whose first responses have come, for the rest.
    fn response_request(&mut self, core: &mut Core, index: u32) -> Option<Packet> {
        let slot = self.slot(index);
        let from = psn::add(slot.first_psn, slot.progress);
        let rest = slot.psns - slot.progress;
        if psn::ahead(from, self.una_psn) >= core.window() {
            return None;
        }
        let wqe = &slot.wqe;
        let kind = match wqe.opcode {
            WqeOpcode::RdmaRead => {
                let done = slot.progress * core.attr.path_mtu;
                Kind::ReadRequest(Reth {
                    addr: wqe.remote_addr.wrapping_add(u64::from(done)),
                    rkey: wqe.rkey,
                    length: slot.length() - done,
                })
            }
            WqeOpcode::CompareSwap => Kind::Atomic {
                addr: wqe.remote_addr,
                rkey: wqe.rkey,
                op: AtomicOp::CompareSwap {
                    compare: wqe.compare_add,
                    swap: wqe.swap,
                },
            },
            _ => Kind::Atomic {
                addr: wqe.remote_addr,
                rkey: wqe.rkey,
                op: AtomicOp::FetchAdd {
                    add: wqe.compare_add,
                },
            },
        };
        let packet = self.packet(core, kind, from, 1);
        self.note_sent(core, from, rest);
        self.cursor = index.wrapping_add(1);
        self.cursor_packets = 0;
        Some(packet)
    }

    /// The next packets of a SEND or WRITE, as one super-packet.
    fn data_packet<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        index: u32,
    ) -> Result<Option<Packet>, Syndrome> {
        let mtu = core.attr.path_mtu;
        let done = self.cursor_packets;
        let slot = self.slot(index);
        let from = psn::add(slot.first_psn, done);
        let room = core.window().saturating_sub(psn::ahead(from, self.una_psn));
        if room == 0 {
            return Ok(None);
        }
        let count = (slot.psns - done).min(core.super_packets()).min(room);
        let offset = done * mtu;
        let length = (slot.length() - offset).min(count.saturating_mul(mtu));
        let (first, last) = (done == 0, done + count == slot.psns);
        let wqe = &slot.wqe;
        let kind = match wqe.opcode {
            WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => Kind::Write {
                reth: first.then_some(Reth {
                    addr: wqe.remote_addr,
                    rkey: wqe.rkey,
                    length: slot.length(),
                }),
                imm: (last && wqe.opcode == WqeOpcode::RdmaWriteImm).then_some(wqe.imm),
            },
            WqeOpcode::SendImm if last => Kind::Send(SendTail::Imm(wqe.imm)),
            WqeOpcode::SendInv if last => {
                Kind::Send(SendTail::Invalidate(u32::from_le_bytes(wqe.imm)))
            }
            _ => Kind::Send(SendTail::None),
        };
        let mut packet = self.packet(core, kind, from, count);
        packet.first = first;
        packet.last = last;
        packet.solicited = last && wqe.solicited;
        if length > 0 {
            packet.payload = Payload::Gather {
                gather: Rc::clone(&slot.gather),
                offset,
                length,
            };
        }
        self.note_sent(core, from, count);
        self.advance(count);
        if core.transport() == Transport::Uc {
            // The work request is done when it has left, so the packet must not need its buffers any more.
            match read_payload(host, &packet.payload) {
                Ok(payload) => packet.payload = payload,
                Err(cause) => {
                    return Err(self.fail_oldest(core, host, WcStatus::LocProtErr, cause))
                }
            }
            self.una_psn = psn::add(from, count);
            self.sent_psn = self.una_psn;
            if last {
                self.complete_oldest(core, host);
            }
        }
        Ok(Some(packet))
    }

    /// Sends one datagram. None: nothing is posted.
    pub(in crate::qp) fn datagram<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
    ) -> Result<Option<u32>, Syndrome> {
        if self.oldest == self.next && !self.fetch(core, host) {
            return Ok(None);
        }
        let slot = self.slot(self.oldest);
        if let Some(fault) = slot.fault {
            return Err(self.fail_oldest(core, host, fault.status, fault.syndrome));
        }
        let length = slot.length();
        let Some(dest) = slot.wqe.datagram.as_deref() else {
            return Err(self.fail_oldest(
                core,
                host,
                WcStatus::LocQpOpErr,
                Syndrome::AddressHandleGid,
            ));
        };
        if length > core.attr.path_mtu {
            // Nothing is sent, and that is no error (IBTA C10-93.1.1).
            core.counters.over_mtu += 1;
            self.complete_oldest(core, host);
            return Ok(Some(0));
        }
        let tail = match slot.wqe.opcode {
            WqeOpcode::SendImm => SendTail::Imm(slot.wqe.imm),
            _ => SendTail::None,
        };
        let mut packet = self.packet(core, Kind::Send(tail), self.next_psn, 1);
        packet.solicited = slot.wqe.solicited;
        packet.dst_qpn = dest.qpn;
        let datagram = Datagram {
            path: dest.path,
            // With the top bit set the queue pair's own is sent (IBTA 10.2.5).
            qkey: if dest.qkey & 1 << 31 != 0 {
                core.attr.qkey
            } else {
                dest.qkey
            },
            grh: wire::stored_grh(
                &dest.path,
                wire::frame::datagram_udp_length(length, matches!(tail, SendTail::Imm(_))),
            ),
        };
        packet.datagram = Some(match host.pool() {
            Some(pool) => pool.datagram(datagram),
            None => Rc::new(datagram),
        });
        // The work request is done when it has left, so the packet must not need its buffers any more.
        let payload = Payload::Gather {
            gather: Rc::clone(&slot.gather),
            offset: 0,
            length,
        };
        match read_payload(host, &payload) {
            Ok(payload) => packet.payload = payload,
            Err(cause) => return Err(self.fail_oldest(core, host, WcStatus::LocProtErr, cause)),
        }
        self.next_psn = psn::add(self.next_psn, 1);
        self.una_psn = self.next_psn;
        self.sent_psn = self.next_psn;
        core.transmit(host, packet);
        self.complete_oldest(core, host);
        Ok(Some(length))
    }
}

/// Copies a payload into bytes of its own.
fn read_payload<H: Host>(host: &mut H, payload: &Payload) -> Result<Payload, Syndrome> {
    if payload.is_empty() {
        return Ok(Payload::None);
    }
    let length = payload.len() as usize;
    let mut bytes = host.pool().map(Pool::buffer).unwrap_or_default();
    if let Some(buffer) = Rc::get_mut(&mut bytes) {
        // A longer one stays as long as it is: growing again would have to fill it.
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        if let Some(place) = buffer.get_mut(..length) {
            host.copy(Target::Buffer(place), payload.source())
                .map_err(|fault| match fault {
                    CopyFault::Source(cause) | CopyFault::Target(cause) => cause,
                })?;
        }
    }
    if let Some(pool) = host.pool() {
        pool.keep_buffer(&bytes);
    }
    Ok(Payload::Bytes {
        bytes,
        offset: 0,
        length: payload.len(),
    })
}
