// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work requests become packets, as far as the window, fences and the number of READs allow.

use super::credit_limit::CreditLimit;
use super::datagram::copy_payload;
use super::receive_wait::FOR_EVER;
use super::{Rare, Requester};
use crate::host::{AtomicOp, Host, Syndrome, WcStatus, WqeError, WqeOpcode};
use crate::packet::{Packet, PacketKind, Payload, Reth, SendTail, Transport};
use crate::psn;
use crate::qp::{Budget, Core, QpState};
use alloc::boxed::Box;
use alloc::rc::Rc;

impl Requester {
    /// Returns the next packet, which stands for at most `most` packets, or None if nothing may be
    /// sent now. Work requests without packets (LOCAL_INV, FAST_REG, BIND_MW) are executed on the
    /// way. Each of them costs as much as a packet, so None is also returned when they have spent
    /// the budget.
    pub(super) fn next_packet<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        most: u32,
        budget: &mut Budget,
    ) -> Result<Option<Packet>, Syndrome> {
        let mut executed = false;
        loop {
            let index = self.cursor;
            let Some(slot) = self.slots.get(index) else {
                if core.state != QpState::Rts || !self.fetch(core, host) {
                    return Ok(None);
                }
                continue;
            };
            if let Some(fault) = slot.fault {
                if index == self.slots.oldest() && (slot.started || core.state == QpState::Rts) {
                    return Err(self.fail_oldest(core, host, fault.status, fault.syndrome));
                }
                return Ok(None);
            }
            if !slot.started {
                if core.state != QpState::Rts || !self.try_start(core, host, index) {
                    return Ok(None);
                }
                executed = true;
                continue;
            }
            if slot.psns == 0 {
                self.advance(1);
                self.complete_local(core, host);
                if executed {
                    executed = false;
                    budget.spend(0);
                    if budget.is_spent() {
                        return Ok(None);
                    }
                }
                continue;
            }
            if slot.awaits_response() {
                return Ok(self.response_request(core));
            }
            return self.data_packet(core, host, most);
        }
    }

    /// Moves the cursor past `packets` packets of its work request.
    fn advance(&mut self, packets: u32) {
        self.cursor_packets = self.cursor_packets.saturating_add(packets);
        let psns = self.slots.get(self.cursor).map_or(0, |slot| slot.psns);
        if self.cursor_packets >= psns {
            self.cursor = self.cursor.wrapping_add(1);
            self.cursor_packets = 0;
        }
    }

    /// Assigns PSNs to a work request if nothing holds it back. Returns true also if it got a fault
    /// instead.
    fn try_start<H: Host>(&mut self, core: &Core, host: &mut H, index: u32) -> bool {
        let outstanding = psn::ahead(self.next_psn, self.una_psn);
        let (responses_due, next_psn) = (self.outstanding_responses, self.next_psn);
        let is_oldest = self.slots.oldest() == index;
        let part = self.read_part(core);
        let Some(slot) = self.slots.get_mut(index) else {
            return false;
        };
        // A fence waits for all READs and atomics before it (IBTA 10.8.3).
        if slot.wqe.fence && responses_due > 0 {
            return false;
        }
        let psns = match slot.wqe.opcode {
            // An earlier work request may use the key, so LOCAL_INV waits for all of them.
            WqeOpcode::LocalInv => {
                if !is_oldest {
                    return false;
                }
                0
            }
            WqeOpcode::FastReg | WqeOpcode::BindMw => 0,
            WqeOpcode::CompareSwap
            | WqeOpcode::FetchAdd
            | WqeOpcode::AtomicWrite
            | WqeOpcode::Flush => 1,
            _ => slot.length().div_ceil(core.attr.path_mtu).max(1),
        };
        if psns == 0 {
            let done = match slot.wqe.opcode {
                WqeOpcode::LocalInv => host.invalidate(u32::from_le_bytes(slot.wqe.imm), false),
                WqeOpcode::BindMw => host.bind_window(index, &slot.wqe),
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
        let takes_receive = slot.takes_receive();
        if takes_receive
            && self.credit_limit.is_spent()
            && is_held_back(core, &self.credit_limit, &mut self.rare)
        {
            return false;
        }
        let Some(ssn) = self.credit_limit.start(takes_receive) else {
            return false;
        };
        slot.ssn = ssn;
        slot.first_psn = next_psn;
        slot.psns = psns;
        slot.started = true;
        slot.part = part;
        slot.placed = slot.part_end(0);
        let responds = slot.awaits_response();
        self.next_psn = psn::add(next_psn, psns);
        self.outstanding_responses += u32::from(responds);
        true
    }

    /// Notes that `count` PSNs from `from` on were sent.
    fn record_sent(&mut self, core: &mut Core, from: u32, count: u32) {
        self.rewound = false;
        let sent = psn::ahead(self.sent_psn, self.una_psn);
        let begin = psn::ahead(from, self.una_psn);
        let end = begin + count;
        let again = sent.min(end).saturating_sub(begin);
        if again > 0 {
            core.counters.retransmitted += u64::from(again);
        }
        if end > sent {
            self.sent_psn = psn::add(from, count);
        }
    }

    /// Reserves a place among `max_rd_atomic` for the next part of a READ. The first part has a
    /// place since the READ started. Returns false if no place is free.
    fn reserve_part(&mut self, core: &Core, begin: u32) -> bool {
        let Some(slot) = self.slots.get_mut(self.cursor) else {
            return false;
        };
        if begin < slot.placed {
            return true;
        }
        // The driver may have lowered the limit in SQD. A READ that has started ends nevertheless.
        let limit = u32::from(core.attr.max_rd_atomic).max(1);
        if self.outstanding_responses >= limit || self.credit_limit.start(false).is_none() {
            return false;
        }
        slot.placed = slot.part_end(begin);
        self.outstanding_responses += 1;
        true
    }

    /// Returns the request of an atomic, ATOMIC WRITE or FLUSH, or of the next part of a READ. If
    /// the first responses of a part have arrived, the request asks for the rest.
    fn response_request(&mut self, core: &mut Core) -> Option<Packet> {
        let slot = self.slots.get(self.cursor)?;
        let begin = self.cursor_packets.max(slot.progress);
        let end = slot.part_end(begin);
        let from = psn::add(slot.first_psn, begin);
        let rest = end.saturating_sub(begin);
        // Over a wire the responses have to fit into the window. The oldest part may always go,
        // because its size was chosen for the window when its READ started.
        let ahead = psn::ahead(from, self.una_psn);
        let reach = if core.attr.local_peer { 1 } else { rest };
        if ahead > 0 && ahead.saturating_add(reach) > self.window(core) {
            return None;
        }
        if !self.reserve_part(core, begin) {
            return None;
        }
        let slot = self.slots.get(self.cursor)?;
        let wqe = &slot.wqe;
        let kind = match wqe.opcode {
            WqeOpcode::RdmaRead => {
                let mtu = core.attr.path_mtu;
                let done = begin * mtu;
                let part = slot.length().min(end.saturating_mul(mtu));
                let length = part - done;
                PacketKind::ReadRequest(Reth {
                    addr: wqe.remote_addr.wrapping_add(u64::from(done)),
                    // No responder checks the key of zero bytes (C9-88), but soft RoCE drops each
                    // copy that names one.
                    rkey: if length == 0 { 0 } else { wqe.rkey },
                    length,
                })
            }
            WqeOpcode::AtomicWrite => PacketKind::AtomicWrite(Reth {
                addr: wqe.remote_addr,
                rkey: wqe.rkey,
                length: slot.length(),
            }),
            WqeOpcode::Flush => PacketKind::Flush(
                wqe.flush.0,
                Reth {
                    addr: wqe.remote_addr,
                    rkey: wqe.rkey,
                    length: wqe.flush.1,
                },
            ),
            WqeOpcode::CompareSwap => PacketKind::Atomic {
                addr: wqe.remote_addr,
                rkey: wqe.rkey,
                op: AtomicOp::CompareSwap {
                    compare: wqe.compare_add,
                    swap: wqe.swap,
                },
            },
            _ => PacketKind::Atomic {
                addr: wqe.remote_addr,
                rkey: wqe.rkey,
                op: AtomicOp::FetchAdd {
                    add: wqe.compare_add,
                },
            },
        };
        let mut packet = core.packet(kind, from, 1);
        packet.srqn = wqe.srqn;
        if let PacketKind::AtomicWrite(reth) = packet.kind {
            packet.payload = Payload::Gather {
                gather: Rc::clone(&slot.gather),
                offset: 0,
                length: reth.length,
            };
        }
        self.record_sent(core, from, rest);
        self.cursor_packets = begin;
        self.advance(rest);
        Some(packet)
    }

    /// Returns the next packets of a SEND or WRITE as one super-packet.
    fn data_packet<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        most: u32,
    ) -> Result<Option<Packet>, Syndrome> {
        let mtu = core.attr.path_mtu;
        let done = self.cursor_packets;
        let Some(slot) = self.slots.get(self.cursor) else {
            return Ok(None);
        };
        let from = psn::add(slot.first_psn, done);
        let room = self
            .window(core)
            .saturating_sub(psn::ahead(from, self.una_psn));
        if room == 0 {
            return Ok(None);
        }
        let mut count = (slot.psns - done).min(most).min(room);
        let is_beyond = slot.takes_receive() && self.credit_limit.is_beyond(slot.ssn);
        if is_beyond && slot.wqe.opcode != WqeOpcode::RdmaWriteImm {
            // Without a credit only the first packet is sent. Its acknowledgement shows that there
            // is a receive (IBTA 9.7.7.2).
            let acknowledged = psn::ahead(self.una_psn, slot.first_psn);
            if done == 0 {
                count = 1;
            } else if acknowledged == 0 || acknowledged > slot.psns {
                return Ok(None);
            }
        }
        let offset = done * mtu;
        let length = (slot.length() - offset).min(count.saturating_mul(mtu));
        let (first, last) = (done == 0, done + count == slot.psns);
        let wqe = &slot.wqe;
        let kind = match wqe.opcode {
            WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => PacketKind::Write {
                reth: first.then_some(Reth {
                    addr: wqe.remote_addr,
                    rkey: wqe.rkey,
                    length: slot.length(),
                }),
                imm: (last && wqe.opcode == WqeOpcode::RdmaWriteImm).then_some(wqe.imm),
            },
            WqeOpcode::SendImm if last => PacketKind::Send(SendTail::Imm(wqe.imm)),
            WqeOpcode::SendInv if last => {
                PacketKind::Send(SendTail::Invalidate(u32::from_le_bytes(wqe.imm)))
            }
            _ => PacketKind::Send(SendTail::None),
        };
        let mut packet = core.packet(kind, from, count);
        packet.srqn = wqe.srqn;
        packet.first = first;
        packet.last = last;
        packet.solicited = last && wqe.solicited && slot.takes_receive();
        packet.ack_req = is_beyond;
        if length > 0 {
            packet.payload = Payload::Gather {
                gather: Rc::clone(&slot.gather),
                offset,
                length,
            };
        }
        let unreliable = core.transport() == Transport::Uc;
        if unreliable {
            // The work request completes when the packet leaves, so the packet must not need its
            // buffers.
            match copy_payload(host, &packet.payload) {
                Ok(payload) => packet.payload = payload,
                Err(cause) => {
                    return Err(self.fail_oldest(core, host, WcStatus::LocProtErr, cause))
                }
            }
        }
        self.record_sent(core, from, count);
        self.advance(count);
        if unreliable {
            self.una_psn = psn::add(from, count);
            self.sent_psn = self.una_psn;
            if last {
                self.complete_oldest(core, host);
            }
        }
        Ok(Some(packet))
    }
}

/// True if a message for which the peer has no receive, as far as the requester knows, is held back
/// until the peer reports one. Only a peer on the same NIC reports each (`receive_wait.rs`).
#[cold]
fn is_held_back(core: &Core, limit: &CreditLimit, rare: &mut Option<Box<Rare>>) -> bool {
    core.attr.local_peer
        && core.attr.rnr_retry == FOR_EVER
        && (limit.will_hear() || rare.get_or_insert_default().receive_wait.holds())
}
