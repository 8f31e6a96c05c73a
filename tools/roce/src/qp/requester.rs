// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The requester: work requests become packets.
//!
//! Work requests are numbered by their free-running WQE index. Those from `oldest` to `next` have been decoded into
//! slots; those before `cursor` have been sent. A work request gets its range of PSNs when it starts; going back
//! (`rewind`) moves the cursor to the oldest PSN that is not acknowledged and sends the same PSNs again.
//!
//! A fault of the work request itself (a bad key, say) stops the cursor at it. It is completed in error once all before
//! it are done, so completions keep their order; nothing after it is sent.

use super::timers::ack_timeout_ns;
use super::{failed, Budget, Core, QpState};
use crate::host::{
    Access, AtomicOp, Completion, Gather, Host, KeyUse, SendWqe, Syndrome, Target, WcOpcode,
    WcStatus, WqeError, WqeOpcode,
};
use crate::packet::{Datagram, Kind, Packet, Payload, Reth, SendTail, Transport};
use crate::psn;
use crate::wire;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::mem;

/// A work request that was decoded.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) wqe: SendWqe,
    pub(super) gather: Rc<Gather>,
    /// First PSN, valid once started.
    pub(super) first_psn: u32,
    /// Number of PSNs: packets of a SEND or WRITE, responses of a READ; 0 for what sends nothing.
    pub(super) psns: u32,
    /// READ: responses that have come.
    pub(super) progress: u32,
    pub(super) started: bool,
    /// Why it cannot be executed.
    pub(super) fault: Option<WqeError>,
}

impl Slot {
    /// Whether it ends by a response rather than by an acknowledgement.
    pub(super) fn awaits_response(&self) -> bool {
        matches!(
            self.wqe.opcode,
            WqeOpcode::RdmaRead | WqeOpcode::CompareSwap | WqeOpcode::FetchAdd
        )
    }

    pub(super) fn length(&self) -> u32 {
        self.gather.length
    }
}

/// The requester's state.
#[derive(Debug)]
pub(crate) struct Requester {
    /// A ring; its size is a power of two and grows as needed.
    slots: Vec<Slot>,
    /// Index of the oldest work request that is not complete.
    pub(super) oldest: u32,
    /// Index of the next work request to decode.
    pub(super) next: u32,
    /// Producer index as told.
    producer: u32,
    /// Index of the work request to send from.
    cursor: u32,
    /// Packets of it that have been sent in this pass.
    cursor_packets: u32,
    /// First PSN of the next work request to start.
    next_psn: u32,
    /// Oldest PSN that is not acknowledged.
    pub(super) una_psn: u32,
    /// One after the highest PSN that was ever sent.
    pub(super) sent_psn: u32,
    /// READs and atomics that have started and are not complete.
    pub(super) responses_due: u32,
    pub(super) retry_left: u8,
    pub(super) rnr_left: u8,
    pub(super) ack_deadline: Option<u64>,
    /// Nothing is sent until then: an RNR NAK came.
    pub(super) rnr_until: Option<u64>,
    /// The PSN from which lost responses were asked for again: asked once for each gap.
    pub(super) implied_nak_at: Option<u32>,
    /// The cursor went back, and nothing has been sent since.
    pub(super) rewound: bool,
    /// SQ_DRAINED is still to be reported.
    drain_report: bool,
}

impl Drop for Requester {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Requester {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            oldest: 0,
            next: 0,
            producer: 0,
            cursor: 0,
            cursor_packets: 0,
            next_psn: 0,
            una_psn: 0,
            sent_psn: 0,
            responses_due: 0,
            retry_left: 0,
            rnr_left: 0,
            ack_deadline: None,
            rnr_until: None,
            implied_nak_at: None,
            rewound: false,
            drain_report: false,
        }
    }

    /// To RESET: forgets everything, and counts WQEs from 0 again.
    pub(crate) fn reset(&mut self) {
        self.abandon();
        self.oldest = self.next;
        let slots = mem::take(&mut self.slots);
        *self = Self::new();
        // Small rings keep their memory for the next life; a big one is given back.
        if slots.len() <= 64 {
            self.slots = slots;
        }
    }

    /// RTR to RTS.
    pub(crate) fn start(&mut self, core: &Core) {
        self.next_psn = core.attr.sq_psn;
        self.una_psn = core.attr.sq_psn;
        self.sent_psn = core.attr.sq_psn;
        self.reload_retries(core);
    }

    /// SQE to RTS: everything is flushed; PSNs that were given and not sent are given again.
    pub(crate) fn resume(&mut self) {
        self.cursor = self.oldest;
        self.cursor_packets = 0;
        self.next_psn = self.sent_psn;
        self.una_psn = self.sent_psn;
    }

    /// RTS to SQD.
    pub(crate) fn drain(&mut self) {
        self.drain_report = true;
    }

    /// From now on no packet that is under way can read or fill a buffer of the work requests outstanding.
    pub(crate) fn abandon(&mut self) {
        let mut index = self.oldest;
        while index != self.next {
            self.slot(index).gather.alive.set(false);
            index = index.wrapping_add(1);
        }
        self.ack_deadline = None;
        self.rnr_until = None;
    }

    pub(crate) fn set_producer(&mut self, producer: u32) {
        self.producer = producer;
    }

    pub(crate) fn producer(&self) -> u32 {
        self.producer
    }

    pub(crate) fn next_index(&self) -> u32 {
        self.next
    }

    pub(crate) fn oldest_index(&self) -> u32 {
        self.oldest
    }

    pub(crate) fn next_psn(&self) -> u32 {
        self.next_psn
    }

    pub(crate) fn una_psn(&self) -> u32 {
        self.una_psn
    }

    pub(crate) fn retry_left(&self) -> u8 {
        self.retry_left
    }

    pub(crate) fn rnr_left(&self) -> u8 {
        self.rnr_left
    }

    pub(crate) fn deadline(&self) -> Option<u64> {
        self.rnr_until.or(self.ack_deadline)
    }

    /// Whether every work request that has started is complete.
    pub(crate) fn is_drained(&self) -> bool {
        self.oldest == self.next || !self.slot(self.oldest).started
    }

    /// In SQD, once: the last send is done.
    pub(crate) fn report_drained<H: Host>(&mut self, core: &Core, host: &mut H) {
        if self.drain_report && core.state == QpState::Sqd && self.is_drained() {
            self.drain_report = false;
            if core.attr.sqd_notify {
                host.event(crate::host::EventType::SqDrained, None);
            }
        }
    }

    #[inline]
    pub(super) fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize & (self.slots.len() - 1)]
    }

    #[inline]
    pub(super) fn slot_mut(&mut self, index: u32) -> &mut Slot {
        let mask = self.slots.len() - 1;
        &mut self.slots[index as usize & mask]
    }

    /// Makes room for one more slot.
    fn reserve_slot(&mut self) {
        let used = self.next.wrapping_sub(self.oldest) as usize;
        if used < self.slots.len() {
            return;
        }
        let size = (self.slots.len() * 2).max(8);
        let mut grown = Vec::new();
        grown.resize_with(size, Slot::default);
        let mut index = self.oldest;
        while index != self.next {
            grown[index as usize & (size - 1)] = mem::take(self.slot_mut(index));
            index = index.wrapping_add(1);
        }
        self.slots = grown;
    }

    /// Decodes and checks the next work request. False: there is none, or no room.
    pub(super) fn fetch<H: Host>(&mut self, core: &Core, host: &mut H) -> bool {
        if self.next == self.producer
            || self.next.wrapping_sub(self.oldest) >= core.config.max_outstanding
        {
            return false;
        }
        self.reserve_slot();
        let index = self.next;
        self.next = index.wrapping_add(1);
        let slot = self.slot_mut(index);
        slot.started = false;
        slot.psns = 0;
        slot.progress = 0;
        slot.fault = None;
        // A packet of this slot's last life may still be under way; then it keeps that gather, which is dead.
        if Rc::get_mut(&mut slot.gather).is_none() {
            slot.gather = Rc::default();
        }
        if let Some(gather) = Rc::get_mut(&mut slot.gather) {
            gather.recycle();
            slot.wqe.datagram = None;
            (slot.wqe.wr_id, slot.wqe.opcode) = (0, WqeOpcode::Send);
            slot.fault = match host.fetch_send(index, &mut slot.wqe, gather) {
                Ok(()) => check(core, host, &slot.wqe, gather).err(),
                Err(fault) => Some(fault),
            };
            gather.alive.set(true);
        }
        true
    }

    /// Sends what may be sent. True: there is more to send at once.
    pub(crate) fn run<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        now: u64,
        budget: &mut Budget,
    ) -> Result<bool, Syndrome> {
        if !matches!(core.state, QpState::Rts | QpState::Sqd) {
            return Ok(false);
        }
        if let Some(until) = self.rnr_until {
            if now < until {
                return Ok(false);
            }
            self.rnr_until = None;
        }
        if self.ack_deadline.is_some_and(|deadline| now >= deadline) {
            core.counters.timeouts += 1;
            self.retry(core, host, Syndrome::RetryExceeded)?;
        }
        // One packet is held back, so that the last one of this call can ask for an acknowledgement: whatever stops
        // the sending (nothing posted, the window, a fence, a fault, SQD, the budget), what was sent gets acknowledged.
        let mut held: Option<Packet> = None;
        let result = loop {
            if budget.is_spent() {
                break Ok(true);
            }
            match self.next_packet(core, host) {
                Ok(Some(packet)) => {
                    budget.spend(packet.payload.len());
                    if let Some(ready) = held.replace(packet) {
                        core.transmit(host, ready);
                    }
                }
                Ok(None) => break Ok(false),
                Err(cause) => break Err(cause),
            }
        };
        if let Some(mut packet) = held {
            packet.ack_req = core.transport() == Transport::Rc;
            core.transmit(host, packet);
        }
        if result.is_ok() {
            self.arm(core, now, false);
        }
        result
    }

    /// Starts the ACK timer if something is outstanding; on progress, anew.
    pub(super) fn arm(&mut self, core: &Core, now: u64, progress: bool) {
        if self.sent_psn == self.una_psn {
            self.ack_deadline = None;
        } else if (progress || self.ack_deadline.is_none()) && self.rnr_until.is_none() {
            self.ack_deadline = ack_timeout_ns(core.attr.timeout)
                .map(|timeout| now.saturating_add(timeout.max(core.config.min_timeout_ns)));
        }
    }

    pub(super) fn reload_retries(&mut self, core: &Core) {
        self.retry_left = core.attr.retry_cnt;
        self.rnr_left = core.attr.rnr_retry;
    }

    /// Goes back to the oldest PSN that is not acknowledged, unless no retry is left.
    pub(super) fn retry<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        cause: Syndrome,
    ) -> Result<(), Syndrome> {
        if self.retry_left == 0 {
            return Err(self.fail_oldest(core, host, WcStatus::RetryExcErr, cause));
        }
        self.retry_left -= 1;
        self.rewind();
        Ok(())
    }

    /// Moves the cursor to the oldest PSN that is not acknowledged.
    pub(super) fn rewind(&mut self) {
        self.ack_deadline = None;
        self.rewound = true;
        self.cursor = self.oldest;
        self.cursor_packets = 0;
        if self.oldest != self.next {
            let slot = self.slot(self.oldest);
            if slot.started && !slot.awaits_response() {
                self.cursor_packets = psn::ahead(self.una_psn, slot.first_psn).min(slot.psns);
            }
        }
    }

    /// An acknowledgement overtook a cursor that had gone back: what it covers is not sent again.
    pub(super) fn skip_acknowledged(&mut self) {
        if self.cursor == self.oldest && self.oldest != self.next {
            let slot = self.slot(self.oldest);
            if slot.started && !slot.awaits_response() {
                let done = psn::ahead(self.una_psn, slot.first_psn).min(slot.psns);
                self.cursor_packets = self.cursor_packets.max(done);
            }
        }
    }

    /// Completes the oldest work request in error. The caller takes the queue pair to ERR with what this returns.
    pub(super) fn fail_oldest<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        status: WcStatus,
        cause: Syndrome,
    ) -> Syndrome {
        if self.oldest != self.next {
            let slot = self.slot(self.oldest);
            slot.gather.alive.set(false);
            let completion = failed(
                slot.wqe.wr_id,
                self.oldest,
                opcode_of(slot.wqe.opcode),
                status,
                cause,
            );
            self.oldest = self.oldest.wrapping_add(1);
            core.complete(host, &completion);
        }
        cause
    }

    /// Completes the oldest work request.
    pub(super) fn complete_oldest<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        let index = self.oldest;
        let slot = self.slot(index);
        slot.gather.alive.set(false);
        let wqe = &slot.wqe;
        let completion = wqe.signaled.then(|| Completion {
            wr_id: wqe.wr_id,
            wqe_index: index,
            status: WcStatus::Success,
            syndrome: None,
            opcode: opcode_of(wqe.opcode),
            byte_len: slot.length(),
            imm: None,
            invalidated: None,
            solicited: false,
            source: None,
        });
        let responds = slot.awaits_response();
        if responds {
            self.responses_due -= 1;
        }
        self.oldest = index.wrapping_add(1);
        if self.cursor == index {
            self.cursor = self.oldest;
            self.cursor_packets = 0;
        }
        match completion {
            Some(completion) => core.complete(host, &completion),
            None => core.counters.completed += 1,
        }
    }

    /// The packet after the last one, or nothing if nothing may be sent now.
    fn next_packet<H: Host>(
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

    /// Completes work requests that send nothing, as far as they are the oldest.
    pub(super) fn complete_local<H: Host>(&mut self, core: &mut Core, host: &mut H) {
        while self.oldest != self.next {
            let slot = self.slot(self.oldest);
            if !slot.started || slot.psns != 0 || slot.fault.is_some() {
                break;
            }
            self.complete_oldest(core, host);
        }
    }

    pub(super) fn packet(&self, core: &Core, kind: Kind, psn: u32, psns: u32) -> Packet {
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
    pub(super) fn datagram<H: Host>(
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
        packet.datagram = Some(Box::new(Datagram {
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
        }));
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

    /// The memory of the packet with this PSN could not be read: its work request fails when its turn comes.
    pub(crate) fn source_fault(&mut self, psn: u32, cause: Syndrome) {
        let mut index = self.oldest;
        while index != self.next {
            let slot = self.slot_mut(index);
            if slot.started && psn::ahead(psn, slot.first_psn) < slot.psns {
                slot.fault = Some(WqeError::new(WcStatus::LocProtErr, cause));
                self.rewind();
                return;
            }
            index = index.wrapping_add(1);
        }
    }

    /// In ERR: flushes what is outstanding and what is posted. True: there is more.
    pub(crate) fn flush<H: Host>(
        &mut self,
        core: &mut Core,
        host: &mut H,
        budget: &mut Budget,
    ) -> bool {
        while self.oldest != self.producer {
            if budget.is_spent() {
                return true;
            }
            budget.spend(0);
            let index = self.oldest;
            let (wr_id, opcode) = if index == self.next {
                self.next = index.wrapping_add(1);
                host.send_wr_id(index)
            } else {
                let wqe = &self.slot(index).wqe;
                (wqe.wr_id, opcode_of(wqe.opcode))
            };
            self.oldest = index.wrapping_add(1);
            self.cursor = self.oldest;
            let completion = failed(
                wr_id,
                index,
                opcode,
                WcStatus::WrFlushErr,
                Syndrome::Flushed,
            );
            core.complete(host, &completion);
        }
        false
    }

    pub(super) fn gather_target(slot: &Slot, offset: u32) -> Target<'_> {
        Target::Scatter {
            pd: slot.gather.pd,
            privileged: slot.gather.privileged,
            sges: &slot.gather.sges,
            offset,
        }
    }
}

/// Copies a payload into bytes of its own.
pub(super) fn read_payload<H: Host>(host: &mut H, payload: &Payload) -> Result<Payload, Syndrome> {
    let mut bytes = alloc::vec![0; payload.len() as usize];
    if !bytes.is_empty() {
        host.copy(Target::Buffer(&mut bytes), payload.source())
            .map_err(|fault| match fault {
                crate::host::CopyFault::Source(cause) | crate::host::CopyFault::Target(cause) => {
                    cause
                }
            })?;
    }
    Ok(Payload::from_bytes(&bytes))
}

/// What a work request completes as.
pub(super) fn opcode_of(opcode: WqeOpcode) -> WcOpcode {
    match opcode {
        WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => WcOpcode::RdmaWrite,
        WqeOpcode::Send | WqeOpcode::SendImm | WqeOpcode::SendInv => WcOpcode::Send,
        WqeOpcode::RdmaRead => WcOpcode::RdmaRead,
        WqeOpcode::CompareSwap => WcOpcode::CompSwap,
        WqeOpcode::FetchAdd => WcOpcode::FetchAdd,
        WqeOpcode::LocalInv => WcOpcode::LocalInv,
        WqeOpcode::FastReg => WcOpcode::FastReg,
    }
}

/// Checks a decoded work request against the transport service, the longest message and its local keys, and notes its
/// length.
fn check<H: Host>(
    core: &Core,
    host: &mut H,
    wqe: &SendWqe,
    gather: &mut Gather,
) -> Result<(), WqeError> {
    let transport = core.transport();
    let supported = match wqe.opcode {
        WqeOpcode::Send | WqeOpcode::SendImm => true,
        WqeOpcode::RdmaWrite | WqeOpcode::RdmaWriteImm => transport != Transport::Ud,
        WqeOpcode::SendInv | WqeOpcode::RdmaRead | WqeOpcode::CompareSwap | WqeOpcode::FetchAdd => {
            transport == Transport::Rc
        }
        WqeOpcode::LocalInv | WqeOpcode::FastReg => transport != Transport::Ud,
    };
    if !supported {
        return Err(WqeError::new(
            WcStatus::LocQpOpErr,
            Syndrome::WqeOpcodeTransport,
        ));
    }
    if matches!(wqe.opcode, WqeOpcode::LocalInv | WqeOpcode::FastReg) {
        return Ok(());
    }
    let length = if gather.inline.is_empty() {
        gather.sges.iter().map(|sge| u64::from(sge.length)).sum()
    } else {
        gather.inline.len() as u64
    };
    if length > u64::from(core.config.max_msg_size) {
        return Err(WqeError::new(WcStatus::LocLenErr, Syndrome::MessageTooLong));
    }
    gather.length = length as u32;
    let access = match wqe.opcode {
        WqeOpcode::RdmaRead => Access::LocalWrite,
        WqeOpcode::CompareSwap | WqeOpcode::FetchAdd => {
            if length != 8 {
                return Err(WqeError::new(WcStatus::LocLenErr, Syndrome::AtomicLength));
            }
            Access::LocalWrite
        }
        _ => Access::LocalRead,
    };
    for sge in gather.sges.iter().filter(|sge| sge.length > 0) {
        let key = KeyUse {
            pd: gather.pd,
            privileged: gather.privileged,
            key: sge.lkey,
            addr: sge.addr,
            length: u64::from(sge.length),
            access,
        };
        host.check(&key)
            .map_err(|cause| WqeError::new(WcStatus::LocProtErr, cause))?;
    }
    Ok(())
}
