// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! A process polls its own ring. The kernel's polls are here: an entry is taken when its last word
//! shows the phase, copied once, and believed only as far as it can be checked: its QPN must be one
//! of a queue pair that completes here, its index one that is outstanding there. What fails a check
//! is skipped. The queue knows its queue pairs by itself, so that polls of different queues have
//! nothing in common.
//!
//! When the device is dead, and its ring is empty, what is outstanding is flushed in software.

use super::{
    qp::Side,
    Live,
    Verbena, //
};
use crate::{
    abi::{
        cmd::{
            CreateCq,
            DestroyCq,
            QueryCq, //
        },
        cqe::{
            wc_flags,
            Cqe,
            Tail,
            WcOpcode as CqeOpcode,
            CQE_SIZE,
            TAIL_OFFSET,
            WC_OPCODE_RECV, //
        },
        ctx::CqContext,
        doorbell::{
            Arm,
            ArmMode, //
        },
        syndrome::Syndrome,
        uverbs::CreateCqResp,
        Le16,
        Le32,
        Le64, //
    },
    cmdq::{
        lent::{
            Borrowed,
            Lent, //
        },
        Lender, //
    },
    doorbell::{
        Slot,
        SlotKind, //
    },
    eq::CompEq,
    ring::Ring, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    base::{
        errno::eopnotsupp,
        sync::IrqLock,
        table::Held, //
    },
    cq::{
        CompletionQueue,
        Cq,
        CqInitAttr, //
    },
    device::Device,
    enums::{
        NetworkType,
        NotifyFlags,
        WcFlags,
        WcOpcode,
        WcStatus, //
    },
    mmap::{
        Entry,
        Memory,
        Protection, //
    },
    new_irq_lock,
    qp::Qp,
    restrack::ResEntry,
    udata::{
        Caller,
        User, //
    },
    wc::{
        Wc,
        WcEx,
        WcSink, //
    }, //
};
use zerocopy::IntoBytes;

/// A CQN, given back when dropped.
struct Number {
    live: Arc<Live>,
    cqn: u32,
}

impl Drop for Number {
    fn drop(&mut self) {
        if let Ok(known) = self.live.known() {
            known.ids.cqns.free(self.cqn);
        }
    }
}

/// What changes.
struct State {
    consumer: u32,
    arm: Arm,
    /// A handler waits for its call.
    armed: bool,
    /// The process has been woken because the device died.
    woken: bool,
    /// Kernel queue pairs that use this queue; twice if they use it for both sides.
    qps: KVec<Attached>,
    /// The place of the one whose completion was polled last.
    last: usize,
}

/// A side of a queue pair that completes here. They are sorted.
struct Attached {
    qpn: u32,
    side: Side,
    /// Until the queue pair is detached, which is before it is destroyed.
    qp: Held<Qp<Verbena>>,
}

impl State {
    /// Where this side of a queue pair is, or belongs.
    fn place(&self, qpn: u32, side: Side) -> Result<usize, usize> {
        self.qps
            .binary_search_by_key(&(qpn, side), |attached| (attached.qpn, attached.side))
    }

    /// The queue pair, if that side of it completes here.
    fn find(&mut self, qpn: u32, side: Side) -> Option<&Qp<Verbena>> {
        let is_last = |attached: &Attached| attached.qpn == qpn && attached.side == side;
        if !self.qps.get(self.last).is_some_and(is_last) {
            self.last = self.place(qpn, side).ok()?;
        }
        Some(&self.qps.get(self.last)?.qp)
    }
}

/// Data of a completion queue.
#[pin_data]
pub(crate) struct CqData {
    live: Arc<Live>,
    number: Number,
    log_size: u8,
    ring: Lent<Ring>,
    slot: Slot,
    eq: Arc<CompEq>,
    /// How a process maps the ring.
    mapping: Option<Entry>,
    #[pin]
    state: IrqLock<State>,
}

impl CqData {
    /// CQN.
    pub(crate) fn cqn(&self) -> u32 {
        self.number.cqn
    }

    fn new(
        live: &Arc<Live>,
        attr: &CqInitAttr,
        caller: &Caller<'_, Verbena>,
    ) -> Result<impl PinInit<Self, Error>> {
        let known = live.known()?;
        // Timestamps and overrun rules are not for the asking.
        if attr.flags() != 0 {
            return Err(eopnotsupp());
        }
        let entries = attr
            .cqe()
            .checked_next_power_of_two()
            .filter(|&entries| attr.cqe() != 0 && entries <= known.caps.max_cqe.get())
            .ok_or(EINVAL)?;
        // CAST: the logarithm of 32 bits.
        let log_size = entries.trailing_zeros() as u8;
        let eqs = live.events.comp_eqs();
        let eq = eqs
            .get(attr.comp_vector() as usize % eqs.len().max(1))
            .ok_or(EINVAL)?
            .clone();
        let number = Number {
            live: live.clone(),
            cqn: known.ids.cqns.alloc()?,
        };
        let ring = Lent::new(
            Ring::new(&live.dma, caller.payer(), (entries as usize) * CQE_SIZE)?,
            &live.health,
        );
        let (slot, mapping) = match caller {
            Caller::Kernel => (live.areas.take(&live.hw, None, SlotKind::Cq)?, None),
            Caller::User(user) => {
                let context = user.context();
                let mut chunks = KVec::new();
                for chunk in ring.chunks() {
                    chunks.push(chunk.clone(), GFP_KERNEL)?;
                }
                let entry = context
                    .mmap()
                    .insert(Memory::Chunks(chunks), Protection::ReadOnly)?;
                (
                    context
                        .areas
                        .take(&live.hw, Some(context.mmap()), SlotKind::Cq)?,
                    Some(entry),
                )
            }
        };
        slot.clear();
        let live = live.clone();
        Ok(try_pin_init!(Self {
            live,
            number,
            log_size,
            ring,
            slot,
            eq,
            mapping,
            state <- new_irq_lock!(State {
                consumer: 0,
                arm: Arm { index: 0, seq: 0, mode: ArmMode::None },
                armed: false,
                woken: false,
                qps: KVec::new(),
                last: 0,
            }),
        }? Error))
    }

    fn command(&self, to: &Lender) -> CreateCq {
        CreateCq {
            cqn: Le32::new(self.cqn()),
            eqn: Le32::new(self.eq.eqn),
            uar: Le32::new(self.slot.uar()),
            slot: Le16::new(self.slot.index()),
            log_size: self.log_size,
            ring: self.ring.lend(to).translation(),
            ..Default::default()
        }
    }

    fn respond(&self, user: &User<'_, Verbena>) -> Result {
        user.udata().respond(&CreateCqResp {
            cqn: Le32::new(self.cqn()),
            slot: Le16::new(self.slot.index()),
            log_size: self.log_size,
            area: self.slot.info(),
            ring_offset: Le64::new(self.mapping.as_ref().map_or(0, Entry::offset)),
            ring_length: Le64::new(self.ring.len() as u64),
            ..Default::default()
        })
    }

    /// A queue pair's side begins to use this queue.
    pub(crate) fn attach(&self, qpn: u32, side: Side) -> Result {
        let qp = self.live.qps.hold(qpn).ok_or(EINVAL)?;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Err(place) = state.place(qpn, side) else {
            return Err(EBUSY);
        };
        state.qps.reserve(1, GFP_ATOMIC)?;
        state
            .qps
            .insert_within_capacity(place, Attached { qpn, side, qp })
            .map_err(|_| ENOMEM)
    }

    /// A queue pair is about to be destroyed or was reset: nothing of it is polled any more.
    ///
    /// The device is done with the queue pair, so no new entry of it can appear. Its entries go, and
    /// the others move up to the newest one, so that the room is free at once. Receives of its SRQ
    /// that had completed are the SRQ's again.
    pub(crate) fn clean(&self, qp: &Qp<Verbena>, detach: bool) {
        let qpn = qp.qpn();
        let mut state = self.state.lock();
        let mut end = state.consumer;
        while end.wrapping_sub(state.consumer) < 1 << self.log_size && self.is_entry(end) {
            end = end.wrapping_add(1);
        }
        let mut to = end;
        let mut from = end;
        while from != state.consumer {
            from = from.wrapping_sub(1);
            let Ok(cqe) = self.read(from) else { break };
            if cqe.qpn.get() == qpn {
                self.give_back(qp, &cqe, from);
                continue;
            }
            to = to.wrapping_sub(1);
            if to != from && self.rewrite(&cqe, from, to).is_err() {
                break;
            }
        }
        if to != state.consumer {
            state.consumer = to;
            self.slot.consume(to);
        }
        if detach {
            state.qps.retain(|attached| attached.qpn != qpn);
        }
    }

    /// An entry of the queue pair at this index is dropped.
    fn give_back(&self, qp: &Qp<Verbena>, cqe: &Cqe, index: u32) {
        let is_receive = Tail::unpack(cqe.tail.get(), index, self.log_size)
            .is_some_and(|tail| tail.opcode & WC_OPCODE_RECV != 0);
        if let (true, Some(srq)) = (is_receive, qp.srq()) {
            if srq.complete(cqe.wr_id.get()).is_none() {
                self.live
                    .distrust("a completion of nothing outstanding, of a shared receive queue");
            }
        }
    }

    fn read(&self, index: u32) -> Result<Cqe> {
        let (chunk, offset) = self.entry(index)?;
        chunk.read(offset)
    }

    /// Writes the entry from index `from` as that of index `to`, with the phase that belongs there.
    /// Between the consumer and the producer index the ring is the driver's.
    fn rewrite(&self, cqe: &Cqe, from: u32, to: u32) -> Result {
        let tail = Tail::unpack(cqe.tail.get(), from, self.log_size).ok_or(EINVAL)?;
        let mut cqe = *cqe;
        cqe.tail = Le32::new(tail.pack(to, self.log_size));
        let (chunk, offset) = self.entry(to)?;
        chunk.write(offset, &cqe)
    }

    /// Whether the ring has an entry with this index.
    fn is_entry(&self, index: u32) -> bool {
        self.entry(index).is_ok_and(|(chunk, offset)| {
            let tail = chunk.load32_acquire(offset + TAIL_OFFSET).unwrap_or(0);
            Tail::is_valid(Le32::from_raw(tail).get(), index, self.log_size)
        })
    }

    fn entry(&self, index: u32) -> Result<(&rdma::base::dma::Chunk, usize)> {
        let place = (index & ((1u32 << self.log_size) - 1)) as usize;
        self.ring.at(place * CQE_SIZE)
    }

    /// Whether the ring has an entry at the consumer index.
    fn has_entry(&self, state: &State) -> bool {
        self.is_entry(state.consumer)
    }

    /// Whether software has something to flush.
    fn has_flush(&self, state: &State) -> bool {
        self.live.may_flush()
            && state
                .qps
                .iter()
                .any(|attached| attached.qp.flushes() && attached.qp.has_outstanding(attached.side))
    }

    /// The device notifies. Any context.
    pub(crate) fn completion_event(&self, cq: &Cq<Verbena>) {
        let armed = core::mem::replace(&mut self.state.lock().armed, false);
        // Only a process arms by itself. A kernel user that did not arm must not be called,
        // whatever the device says: some poll by themselves and take a call for a defect.
        if armed || cq.is_user() {
            cq.complete();
        }
    }

    /// The device is dead: calls the handler that waits, if there is something to flush.
    pub(crate) fn flush_event(&self, cq: &Cq<Verbena>) {
        let call = {
            let mut state = self.state.lock();
            if cq.is_user() {
                self.live.health.has_ended() && !core::mem::replace(&mut state.woken, true)
            } else if state.armed && (self.has_entry(&state) || self.has_flush(&state)) {
                state.armed = false;
                true
            } else {
                false
            }
        };
        if call {
            cq.complete();
        }
    }

    fn take(&self, state: &mut State, cqe: &Cqe, tail: Tail, wcs: &mut WcSink<'_, Verbena>) {
        let side = if tail.opcode & WC_OPCODE_RECV != 0 {
            Side::Recv
        } else {
            Side::Send
        };
        let Some(qp) = state.find(cqe.qpn.get(), side) else {
            return self
                .live
                .distrust("a completion of a queue pair that does not complete there");
        };
        let request = match (side, qp.srq()) {
            (Side::Recv, Some(srq)) => srq.complete(cqe.wr_id.get()),
            _ => qp.complete(side, cqe.wqe_index.get()),
        };
        let Some(request) = request else {
            return self.live.distrust("a completion of nothing outstanding");
        };
        let mut status = WcStatus::from_raw(tail.status.into()).unwrap_or(WcStatus::GeneralErr);
        let opcode = match side {
            // What it was is known better here.
            Side::Send => request.opcode,
            Side::Recv if tail.opcode == CqeOpcode::RecvRdmaWithImm.to_raw() => {
                WcOpcode::RecvRdmaWithImm
            }
            Side::Recv => WcOpcode::Recv,
        };
        if status == WcStatus::Success
            && opcode == WcOpcode::Recv
            && cqe.byte_len.get() > request.length
        {
            // Somebody would believe that so many bytes of his buffer were received.
            self.live
                .complain("a completion of more bytes than there was room for");
            status = WcStatus::GeneralErr;
        }
        let wr_id = request.wr_id;
        let mut wc = Wc::<Verbena>::new(qp, wr_id, status, opcode);
        wc.vendor_err = cqe.vendor_err.get();
        wc.byte_len = cqe.byte_len.get();
        wc.port_num = 1;
        if status == WcStatus::Success {
            if tail.wc_flags & wc_flags::WITH_IMM != 0 {
                wc.ex = WcEx::Imm(cqe.imm);
            } else if tail.wc_flags & wc_flags::WITH_INV != 0 {
                wc.ex = WcEx::Invalidate(u32::from_le_bytes(cqe.imm));
            }
            if side == Side::Recv && qp.is_datagram() {
                wc.src_qp = cqe.src_qp.get();
                wc.pkey_index = cqe.pkey_index.get();
                wc.sl = cqe.sl;
                wc.smac = Some(cqe.smac);
                wc.network_type = NetworkType::from_raw(cqe.network_type.into());
                if tail.wc_flags & wc_flags::GRH != 0 {
                    wc.flags |= WcFlags::GRH;
                }
                if cqe.vlan.get() < 4096 {
                    wc.vlan_id = Some(cqe.vlan.get());
                }
            }
        }
        // There is room: the caller looked.
        wcs.push(&wc);
    }

    fn flush(&self, state: &State, wcs: &mut WcSink<'_, Verbena>) {
        for Attached { qp, side, .. } in &state.qps {
            while !wcs.is_full() && qp.flushes() {
                let Some(request) = qp.flush_one(*side) else {
                    break;
                };
                let mut wc =
                    Wc::<Verbena>::new(qp, request.wr_id, WcStatus::WrFlushErr, request.opcode);
                wc.vendor_err = Syndrome::DeviceFatal.to_raw().into();
                wcs.push(&wc);
            }
        }
    }
}

#[vtable]
impl CompletionQueue<Verbena> for CqData {
    fn create(
        dev: &Device<Verbena>,
        attr: &CqInitAttr,
        caller: &Caller<'_, Verbena>,
    ) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || Self::new(&dev.live, attr, caller))
    }

    fn start(cq: &Cq<Verbena>, caller: &Caller<'_, Verbena>) -> Result {
        let live = &cq.live;
        live.tables.ensure::<CqContext>(&live.cmdq, cq.cqn())?;
        live.cqs.insert(cq.cqn(), cq)?;
        live.cmdq
            .give(|to| cq.command(to), &[&cq.ring as &dyn Borrowed])?;
        cq.set_cqe(1 << cq.log_size);
        if let Some(user) = caller.user() {
            cq.respond(user).inspect_err(|_| {
                let _ = Self::destroy(cq);
            })?;
        }
        Ok(())
    }

    fn destroy(cq: &Cq<Verbena>) -> Result {
        let live = &cq.live;
        let request = DestroyCq {
            id: Le32::new(cq.cqn()),
            ..Default::default()
        };
        let lent = [&cq.ring as &dyn Borrowed];
        if let Some(quiesced) = live.cmdq.take_back(&request, &lent) {
            live.drain_events(&quiesced);
            live.drain_completions(&cq.eq, &quiesced);
        }
        cq.unlink();
        Ok(())
    }

    fn poll(cq: &Cq<Verbena>, wcs: &mut WcSink<'_, Verbena>) -> Result {
        let mut state = cq.state.lock();
        let before = state.consumer;
        // A device that writes nonsense as fast as it is skipped must not keep us here.
        for _ in 0..2u32 << cq.log_size {
            if wcs.is_full() {
                break;
            }
            let (chunk, offset) = cq.entry(state.consumer)?;
            let tail = Le32::from_raw(chunk.load32_acquire(offset + TAIL_OFFSET)?).get();
            let Some(tail) = Tail::unpack(tail, state.consumer, cq.log_size) else {
                break;
            };
            let cqe: Cqe = chunk.read(offset)?;
            state.consumer = state.consumer.wrapping_add(1);
            cq.take(&mut state, &cqe, tail, wcs);
        }
        if state.consumer != before {
            cq.slot.consume(state.consumer);
        }
        if cq.live.may_flush() {
            cq.flush(&state, wcs);
        }
        Ok(())
    }

    fn req_notify(cq: &Cq<Verbena>, flags: NotifyFlags) -> Result<bool> {
        let mut guard = cq.state.lock();
        let state = &mut *guard;
        let mode = if flags.solicited_only() {
            ArmMode::Solicited
        } else {
            ArmMode::Next
        };
        state.armed = true;
        cq.slot.arm_cq(&mut state.arm, state.consumer, mode);
        let missed = cq.has_entry(state) || cq.has_flush(state);
        drop(guard);
        if missed && cq.live.may_flush() {
            cq.live.health.flush();
        }
        Ok(missed && flags.contains(NotifyFlags::REPORT_MISSED_EVENTS))
    }

    fn fill_res(cq: &Cq<Verbena>, entry: &mut ResEntry<'_>) -> Result {
        let context: CqContext = cq.live.tables.read(cq.cqn())?;
        entry.put_u32(c"cqn", cq.cqn())?;
        entry.put_u32(c"state", context.state.into())?;
        entry.put_u32(c"eqn", context.eqn.get())?;
        entry.put_u32(c"pi", context.producer_index.get())?;
        entry.put_u32(c"ci", context.consumer_index.get())
    }

    fn fill_res_raw(cq: &Cq<Verbena>, put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        let _ = cq.live.cmdq.exec(&QueryCq {
            id: Le32::new(cq.cqn()),
            ..Default::default()
        });
        let context: CqContext = cq.live.tables.read(cq.cqn())?;
        put(context.as_bytes())
    }
}

/// The data of a queue pair's queue.
pub(crate) fn number(cq: Option<&Cq<Verbena>>) -> Result<u32> {
    Ok(cq.ok_or(EINVAL)?.cqn())
}

/// [`CqData::clean`] of both queues of a queue pair.
pub(crate) fn clean(qp: &Qp<Verbena>, detach: bool) {
    for cq in [qp.send_cq(), qp.recv_cq()].into_iter().flatten() {
        cq.clean(qp, detach);
    }
}
