// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The requester: work requests become packets.
//!
//! Work requests are numbered by their free-running WQE index. Those from `oldest` to `next` have been decoded into
//! slots; those before `cursor` have been sent. A work request gets its range of PSNs when it starts; going back
//! (`rewind`) moves the cursor to the oldest PSN that is not acknowledged and sends the same PSNs again.
//!
//! `sender.rs` makes the packets; this file keeps the work requests, the timers and the order of completions.
//!
//! A fault of the work request itself (a bad key, say) stops the cursor at it. It is completed in error once all before
//! it are done, so completions keep their order; nothing after it is sent.

mod sender;

use super::timers::ack_timeout_ns;
use super::{failed, Budget, Core, QpState};
use crate::host::{
    Access, Completion, Gather, Host, KeyUse, SendWqe, Syndrome, Target, WcOpcode, WcStatus,
    WqeError, WqeOpcode,
};
use crate::packet::{Packet, Transport};
use crate::psn;
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
    /// Everything not acknowledged is sent again at this time without that it counts as a retry, and the time from then to
    /// the next such attempt.
    probe_at: Option<u64>,
    probe_delay: u64,
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
            probe_at: None,
            probe_delay: 0,
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
        self.probe_at = None;
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
        self.rnr_until.or(self.probe_at).or(self.ack_deadline)
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
        if self.probe_at.is_some_and(|at| now >= at) {
            self.probe(core, now);
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
            self.probe_at = None;
        } else if (progress || self.ack_deadline.is_none()) && self.rnr_until.is_none() {
            let least = core.config.min_timeout_ns;
            self.ack_deadline = ack_timeout_ns(core.attr.timeout)
                .map(|timeout| now.saturating_add(timeout.max(least)));
            self.probe_delay = least;
            self.plan_probe(core, now);
        }
    }

    /// The next probe, if it comes before the ACK timer expires. Between local peers nothing is lost.
    fn plan_probe(&mut self, core: &Core, now: u64) {
        let at = now.saturating_add(self.probe_delay);
        let in_time = self.ack_deadline.is_some_and(|deadline| at < deadline);
        self.probe_at = (in_time && !core.attr.local_peer).then_some(at);
    }

    /// A responder reports each gap once, so a NAK that is lost, or a packet that is lost again, would cost the whole
    /// ACK timeout. So before it expires, everything is sent again at growing distances.
    fn probe(&mut self, core: &mut Core, now: u64) {
        core.counters.probes += 1;
        let deadline = self.ack_deadline;
        self.rewind();
        self.ack_deadline = deadline;
        self.probe_delay = self.probe_delay.saturating_mul(2);
        self.plan_probe(core, now);
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
        self.probe_at = None;
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
