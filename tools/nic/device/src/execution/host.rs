// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device as the transport sees it during one call.
//!
//! The used part of a WQE is copied out and then the copy is validated (`wqe.rs`), so an invalid
//! WQE only leads to a status or an error of the guest's own queue pair. The segments of BIND_MW
//! and FAST_REG are copied when they are executed.

use crate::execution::copy::{self, Side};
use crate::execution::datagrams;
use crate::execution::resources::Resources;
use crate::execution::wqe::{decode_flush, decode_recv, decode_sges, malformed, read_at};
use crate::memory::ring::Pages;
use crate::memory::GuestMemory;
use crate::objects::mr;
use crate::objects::port::Outgoing;
use crate::objects::qp::Env;
use crate::objects::window::{self, Bind, Bound};
use crate::observation::event::QpEvent;
use crate::slots::Ref;
use verbena_abi::cmd::{self, QpType, NO_VLAN};
use verbena_abi::cqe::{wc_flags, Cqe, Tail};
use verbena_abi::ctx::{mr_flags, AddressVector, MrState};
use verbena_abi::wqe::{self, send_flags, AtomicSegment, BindSegment, FastRegSegment};
use verbena_transport::host::{
    completes_as, AtomicOp, CopyFault, CopySource, CopyTarget, DecodedRecvWqe, DecodedSendWqe,
    EventType, Gather, Host, KeyUse, RecvFetch, Syndrome, ViolatedKey, WcOpcode, WcStatus,
    WorkCompletion, WqeError, WqeOpcode, XrcSrq,
};
use verbena_transport::{Packet, Pool};

/// Number of known posted receives from which credits are sent without another read of guest
/// memory.
const ENOUGH_CREDITS: u32 = 32;

/// A queue pair and the device around it during one call of the transport.
pub struct QpHost<'a, M> {
    /// Guest memory of the queue pair.
    pub mem: &'a M,
    /// State of the device that its queue pairs share.
    pub shared: &'a mut Resources,
    /// The queue pair except for its transport.
    pub env: &'a mut Env,
    /// Side with the payload of the present packet, if another guest has sent it. A call with a
    /// `sender` copies from no other memory.
    pub sender: Option<Side<'a, M>>,
}

impl<M: GuestMemory> QpHost<'_, M> {
    fn atomic_address(&mut self, key: &KeyUse) -> Result<u64, Syndrome> {
        let span = mr::resolve(&self.shared.mrs, key)?;
        let pages = &mut self.shared.lookups.target;
        pages.forget();
        match span.run(self.mem, pages, 0, 8) {
            Some((addr, 8)) if addr % 8 == 0 => Ok(addr),
            _ => Err(mr::unreachable(key.access)),
        }
    }

    /// Moves the SRQ to ERR. The device then moves its queue pairs to ERR as well.
    fn srq_dies(&mut self, srqn: u32, cause: Syndrome) -> RecvFetch {
        if let Some(srq) = self.shared.srqs.get_mut(srqn) {
            if srq.error.is_none() {
                srq.error = Some(cause);
                srq.publish(self.mem);
                self.shared.witnesses.add(self.env.qpn());
                self.shared
                    .async_event(self.mem, EventType::SrqErr, srqn, Some(cause));
            }
        }
        RecvFetch::QueueError(cause)
    }

    fn take_from_srq(&mut self, srqn: u32, out: &mut DecodedRecvWqe) -> RecvFetch {
        let mem = self.mem;
        let Some(srq) = self.shared.srqs.get_mut(srqn) else {
            return RecvFetch::QueueError(Syndrome::SrqDied);
        };
        if srq.error.is_some() {
            return RecvFetch::QueueError(Syndrome::SrqDied);
        }
        // The receive could not be completed, so it stays in the SRQ for a queue pair with a
        // working CQ.
        let cq = srq.cq.as_ref().or(self.env.recv_cq.as_ref());
        let cq = cq.and_then(|cq| self.shared.cqs.get(cq.number()));
        if cq.is_none_or(|cq| cq.error.is_some()) {
            return RecvFetch::QueueError(Syndrome::CqDied);
        }
        let posted = srq.producer(mem).wrapping_sub(srq.ci);
        if posted == 0 {
            return RecvFetch::Empty;
        }
        if posted > srq.ring.size() {
            return self.srq_dies(srqn, Syndrome::ProducerIndex);
        }
        let index = srq.ci;
        if srq.faulty {
            return self.srq_dies(srqn, Syndrome::Injected);
        }
        let Some(length) = self.shared.wqe.fetch(mem, &srq.ring, index) else {
            return self.srq_dies(srqn, Syndrome::SrqUnreadable);
        };
        let bytes = self.shared.wqe.bytes(length);
        out.pd = srq.pdn;
        if !decode_recv(bytes, index, self.env.is_privileged(), out) {
            return self.srq_dies(srqn, Syndrome::SrqWqeMalformed);
        }
        srq.consume(mem, index.wrapping_add(1));
        if srq.limit != 0 && posted - 1 < srq.limit {
            srq.limit = 0;
            srq.publish(mem);
            self.shared
                .async_event(mem, EventType::SrqLimitReached, srqn, None);
        }
        RecvFetch::Taken
    }
}

/// Checks that a queue pair may execute the operation of a send WQE.
#[inline]
fn check_opcode(env: &Env, opcode: WqeOpcode, entry: &[u8]) -> Result<(), WqeError> {
    let allowed = match opcode {
        WqeOpcode::Send | WqeOpcode::SendImm => true,
        WqeOpcode::RdmaWrite
        | WqeOpcode::RdmaWriteImm
        | WqeOpcode::SendInv
        | WqeOpcode::LocalInv
        | WqeOpcode::FastReg
        | WqeOpcode::BindMw => !env.is_datagram(),
        WqeOpcode::RdmaRead
        | WqeOpcode::CompareSwap
        | WqeOpcode::FetchAdd
        | WqeOpcode::AtomicWrite
        | WqeOpcode::Flush => matches!(env.qp_type, QpType::Rc | QpType::XrcIni),
    };
    if !allowed {
        return Err(malformed(Syndrome::WqeOpcodeTransport));
    }
    if opcode == WqeOpcode::FastReg {
        // The bytes after the entry belong to the next entry of the ring.
        if entry.len() < wqe::FAST_REG_OFFSET + size_of::<FastRegSegment>() {
            return Err(malformed(Syndrome::WqeSgeCount));
        }
        if !env.is_privileged() {
            return Err(malformed(Syndrome::Privilege));
        }
    }
    Ok(())
}

/// Returns the inline data of a send WQE. `data` is the part of the WQE from its data on.
#[inline]
fn inline_data<'a>(
    env: &Env,
    opcode: WqeOpcode,
    header: &wqe::SendWqe,
    data: Option<&'a [u8]>,
) -> Result<&'a [u8], WqeError> {
    let count = header.inline_length.get() as usize;
    let most = env.create.max_inline.get() as usize;
    let most = match opcode {
        WqeOpcode::AtomicWrite => most.max(wqe::ATOMIC_WRITE_SIZE),
        _ => most,
    };
    let carries_data = matches!(
        opcode,
        WqeOpcode::Send
            | WqeOpcode::SendImm
            | WqeOpcode::SendInv
            | WqeOpcode::RdmaWrite
            | WqeOpcode::RdmaWriteImm
            | WqeOpcode::AtomicWrite
    );
    data.and_then(|data| data.get(..count))
        .filter(|_| carries_data && count <= most && header.num_sge == 0)
        .ok_or(malformed(Syndrome::WqeInline))
}

impl<M: GuestMemory> Host for QpHost<'_, M> {
    fn fetch_send(
        &mut self,
        index: u32,
        out: &mut DecodedSendWqe,
        gather: &mut Gather,
    ) -> Result<(), WqeError> {
        self.shared.report_of_qp(self.env, QpEvent::SendTaken);
        let length = self.shared.wqe.fetch(self.mem, &self.env.sq, index);
        let length = length.ok_or(malformed(Syndrome::RingUnreadable))?;
        let bytes = self.shared.wqe.bytes(length);
        let header: wqe::SendWqe = read_at(bytes, 0).ok_or(malformed(Syndrome::RingUnreadable))?;
        gather.pd = self.env.create.pdn.get();
        gather.privileged = self.env.is_privileged();
        out.wr_id = header.wr_id.get();
        out.signaled = header.flags & send_flags::SIGNALED != 0
            || self.env.create.flags & cmd::QP_SIGNAL_ALL != 0;
        out.solicited = header.flags & send_flags::SOLICITED != 0;
        out.fence = header.flags & send_flags::FENCE != 0;
        out.imm = header.imm;
        out.remote_addr = header.remote_addr.get();
        out.rkey = header.rkey.get();
        out.srqn = header.remote_srqn.get() & 0xff_ffff;
        let opcode =
            WqeOpcode::from_raw(header.opcode).ok_or(malformed(Syndrome::WqeOpcodeUnknown))?;
        out.opcode = opcode;
        let by_rule = match &mut self.shared.faults {
            None => None,
            Some(faults) => faults.send(self.shared.clock.now(), self.env, header.opcode),
        };
        self.shared.report_of_qp(
            self.env,
            QpEvent::WorkBegun {
                index,
                wqe: &header,
                by_rule: by_rule.is_some(),
            },
        );
        let bytes = self.shared.wqe.bytes(length);
        if let Some((status, cause)) = by_rule {
            return Err(WqeError::new(status, cause));
        }
        if header.flags & !send_flags::ALL != 0 {
            return Err(malformed(Syndrome::WqeFlags));
        }
        check_opcode(self.env, opcode, bytes)?;
        // The key of a LOCAL_INV is checked when the request is executed.
        if matches!(
            opcode,
            WqeOpcode::LocalInv | WqeOpcode::FastReg | WqeOpcode::BindMw
        ) {
            return Ok(());
        }
        if opcode == WqeOpcode::Flush {
            out.flush = decode_flush(bytes)?;
            return Ok(());
        }
        let atomic = matches!(opcode, WqeOpcode::CompareSwap | WqeOpcode::FetchAdd);
        if atomic {
            let operands: AtomicSegment =
                read_at(bytes, wqe::DATA_OFFSET).ok_or(malformed(Syndrome::WqeSgeCount))?;
            out.compare_add = operands.compare_add.get();
            out.swap = operands.swap.get();
        }
        let datagram = self.env.is_datagram();
        if datagram {
            let av: AddressVector =
                read_at(bytes, wqe::DATA_OFFSET).ok_or(malformed(Syndrome::WqeSgeCount))?;
            let dest = datagrams::destination(&self.shared.port, self.env, &av, &header)?;
            out.set_datagram(dest);
        }
        let data = wqe::data_offset(datagram, atomic);
        if header.flags & send_flags::INLINE != 0 {
            let inline = inline_data(self.env, opcode, &header, bytes.get(data..))?;
            gather.inline.extend_from_slice(inline);
            return Ok(());
        }
        let count = header.num_sge;
        if count > self.env.create.max_send_sge
            || !decode_sges(bytes, data, count.into(), &mut gather.sges)
        {
            gather.sges.clear();
            return Err(malformed(Syndrome::WqeSgeCount));
        }
        Ok(())
    }

    fn send_wr_id(&mut self, index: u32) -> (u64, WcOpcode) {
        let header: wqe::SendWqe = self
            .mem
            .read_struct(self.env.sq.entry(index))
            .unwrap_or_default();
        let opcode = WqeOpcode::from_raw(header.opcode).map_or(WcOpcode::Send, completes_as);
        (header.wr_id.get(), opcode)
    }

    fn take_recv(&mut self, out: &mut DecodedRecvWqe) -> RecvFetch {
        let xrc = (self.env.qp_type == QpType::XrcTgt).then_some(out.xrc.srqn);
        if let Some(srqn) = xrc.or(self.env.srqn()) {
            let take = self.take_from_srq(srqn, out);
            if take == RecvFetch::Taken {
                self.shared.report_of_qp(self.env, QpEvent::ReceiveTaken);
            }
            return take;
        }
        let Some(rq) = &self.env.rq else {
            return RecvFetch::Empty;
        };
        let index = self.env.rq_ci;
        self.env.rq_pi = self.env.rq_producer(self.mem);
        let posted = self.env.rq_pi.wrapping_sub(index);
        if posted == 0 {
            return RecvFetch::Empty;
        }
        if posted > rq.size() {
            return RecvFetch::QueueError(Syndrome::ProducerIndex);
        }
        let Some(length) = self.shared.wqe.fetch(self.mem, rq, index) else {
            return RecvFetch::QueueError(Syndrome::RingUnreadable);
        };
        self.env.rq_ci = index.wrapping_add(1);
        self.shared.report_of_qp(self.env, QpEvent::ReceiveTaken);
        out.pd = self.env.create.pdn.get();
        let bytes = self.shared.wqe.bytes(length);
        let good = decode_recv(bytes, index, self.env.is_privileged(), out);
        if !good || out.sges.len() > self.env.create.max_recv_sge as usize {
            out.sges.clear();
            return RecvFetch::Malformed(Syndrome::RecvWqeMalformed);
        }
        RecvFetch::Taken
    }

    fn xrc_srq(&mut self, srqn: u32) -> Result<XrcSrq, Syndrome> {
        let srq = self.shared.srqs.get(srqn).filter(|srq| srq.xrcdn != 0);
        let srq = srq.ok_or(Syndrome::XrcSrq)?;
        if srq.xrcdn != self.env.create.xrcdn.get() {
            return Err(Syndrome::XrcDomain);
        }
        // A queue pair whose own SRQ or CQ has died accepts no request, neither a new one nor the
        // rest of a begun one. The same holds here.
        if srq.error.is_some() {
            return Err(Syndrome::SrqDied);
        }
        let cq = srq
            .cq
            .as_ref()
            .and_then(|cq| self.shared.cqs.get(cq.number()));
        if cq.is_none_or(|cq| cq.error.is_some()) {
            return Err(Syndrome::CqDied);
        }
        self.env.xrc = XrcSrq {
            srqn,
            life: srq.life,
            pd: srq.pdn,
        };
        Ok(self.env.xrc)
    }

    fn recv_credits(&mut self) -> Option<u32> {
        let size = self.env.rq.as_ref()?.size();
        let index = self.env.rq_ci;
        // The producer index as last read is good enough while it gives enough credits.
        if self.env.rq_pi.wrapping_sub(index) < ENOUGH_CREDITS {
            self.env.rq_pi = self.env.rq_producer(self.mem);
        }
        let posted = self.env.rq_pi.wrapping_sub(index);
        Some(if posted > size { 0 } else { posted })
    }

    fn has_recv(&mut self) -> bool {
        let Some(srqn) = self.env.shares_receives_of() else {
            return self.recv_credits().is_some_and(|posted| posted != 0);
        };
        let srq = self.shared.srqs.get(srqn);
        srq.is_some_and(|srq| srq.has_receives(self.mem))
    }

    fn check(&mut self, key: &KeyUse) -> Result<(), Syndrome> {
        mr::resolve(&self.shared.mrs, key).map(|_| ())
    }

    fn copy(&mut self, target: CopyTarget<'_>, source: CopySource<'_>) -> Result<(), CopyFault> {
        let own = Side {
            mem: self.mem,
            regions: &self.shared.mrs,
        };
        let sender = self.sender.unwrap_or(own);
        copy::copy(own, sender, &mut self.shared.lookups, target, source)
    }

    fn atomic(&mut self, key: &KeyUse, op: AtomicOp) -> Result<u64, Syndrome> {
        let addr = self.atomic_address(key)?;
        match op {
            AtomicOp::CompareSwap { compare, swap } => self.mem.compare_swap64(addr, compare, swap),
            AtomicOp::FetchAdd { add } => self.mem.fetch_add64(addr, add),
        }
        .map_err(|_| mr::unreachable(key.access))
    }

    fn atomic_write(&mut self, key: &KeyUse, value: [u8; 8]) -> Result<(), Syndrome> {
        let addr = self.atomic_address(key)?;
        let value = u64::from_ne_bytes(value);
        let stored = self.mem.store64(addr, value);
        stored.map_err(|_| mr::unreachable(key.access))
    }

    fn invalidate(&mut self, key: u32, remote: bool) -> Result<(), Syndrome> {
        let cause = if remote {
            Syndrome::RemoteInvalidate
        } else {
            Syndrome::KeyManagement
        };
        let (pdn, owner) = (self.env.target_pd(), self.env.owner);
        // Only privileged queue pairs own keys for fast registration, so only they may invalidate
        // such keys locally.
        let registers = remote || self.env.is_privileged();
        let region = self
            .shared
            .mrs
            .get_mut(mr::index(key))
            .filter(|r| r.key == key && r.pdn == pdn)
            .ok_or(cause)?;
        let is_fast_reg = region.flags & mr_flags::FAST_REG != 0;
        // The owner may invalidate a key that the peer has just invalidated, because both may have
        // been asked to do so.
        let is_late = is_fast_reg && !remote && region.state == MrState::Invalid;
        if region.state != MrState::Valid && !is_late {
            return Err(cause);
        }
        if is_fast_reg && registers {
            region.state = MrState::Invalid;
            region.publish(self.mem);
            return Ok(());
        }
        // Only its own queue pair may invalidate a window of type 2B (IBTA 10.6.5.2).
        if region.bound.is_some_and(|bound| bound.owner == owner)
            && region.flags & mr_flags::WINDOW_2 != 0
        {
            let number = mr::index(key);
            window::unbind(
                &mut self.shared.mrs,
                self.mem,
                number,
                MrState::Invalid,
                None,
            );
            return Ok(());
        }
        Err(cause)
    }

    fn bind_window(&mut self, index: u32, wqe: &DecodedSendWqe) -> Result<(), Syndrome> {
        let entry = self.env.sq.entry(index);
        let segment: BindSegment = self
            .mem
            .read_struct(entry + wqe::BIND_OFFSET as u64)
            .map_err(|_| Syndrome::RingUnreadable)?;
        let wanted = Bind {
            key: wqe.rkey,
            addr: wqe.remote_addr,
            length: segment.length.get(),
            access: segment.access.get(),
            to: Bound {
                region: segment.region.get(),
                owner: self.env.owner,
                qpn: self.env.qpn(),
            },
            pd: self.env.create.pdn.get(),
        };
        window::bind(&mut self.shared.mrs, self.mem, &wanted)
    }

    fn fast_register(&mut self, index: u32) -> Result<(), Syndrome> {
        let bad = Syndrome::KeyManagement;
        let entry = self.env.sq.entry(index);
        let segment: FastRegSegment = self
            .mem
            .read_struct(entry + wqe::FAST_REG_OFFSET as u64)
            .map_err(|_| Syndrome::RingUnreadable)?;
        let key = segment.key.get();
        let pdn = self.env.create.pdn.get();
        let region = self
            .shared
            .mrs
            .get_mut(mr::index(key))
            .filter(|r| {
                r.pdn == pdn && r.flags & mr_flags::FAST_REG != 0 && r.state != MrState::Valid
            })
            .ok_or(bad)?;
        let (rights, iova) = (segment.access.get(), segment.iova.get());
        let (length, offset) = (segment.length.get(), segment.page_offset.get());
        let bytes = mr::check_terms(rights, iova, length, offset).map_err(|_| bad)?;
        region.pages = Pages::registered(&segment.pages, bytes).map_err(|_| bad)?;
        region.key = key;
        region.access = rights;
        region.iova = iova;
        region.length = length;
        region.page_offset = offset;
        region.state = MrState::Valid;
        region.publish(self.mem);
        Ok(())
    }

    fn complete(&mut self, completion: &WorkCompletion) -> bool {
        let recv = completion.is_recv();
        let env = &*self.env;
        let cq = if completion.xrc.life != 0 {
            // If the SRQ was destroyed, no CQ is left for the completion.
            let srq = self.shared.srqs.get(completion.xrc.srqn);
            srq.filter(|srq| srq.life == completion.xrc.life)
                .and_then(|srq| srq.cq.as_ref())
        } else if recv {
            env.recv_cq.as_ref()
        } else {
            env.send_cq.as_ref()
        };
        let Some(cqn) = cq.map(Ref::number) else {
            return true;
        };
        let mut flags = 0;
        let mut body = Cqe {
            wr_id: completion.wr_id.into(),
            wqe_index: completion.wqe_index.into(),
            byte_len: completion.byte_len.into(),
            qpn: env.create.qpn,
            vendor_err: completion
                .syndrome
                .map_or(0, |s| u32::from(s.to_raw()))
                .into(),
            timestamp: self.shared.clock.now().into(),
            vlan: NO_VLAN.into(),
            ..Default::default()
        };
        if recv {
            body.srqn = env.srqn().unwrap_or(completion.xrc.srqn).into();
        }
        if let Some(imm) = completion.imm {
            flags |= wc_flags::WITH_IMM;
            body.imm = imm;
        }
        if let Some(key) = completion.invalidated {
            flags |= wc_flags::WITH_INV;
            body.imm = key.to_le_bytes();
        }
        if let Some(source) = &completion.source {
            flags |= datagrams::describe_source(&self.shared.port, source, &mut body);
        }
        let tail = Tail {
            status: completion.status.to_raw(),
            opcode: completion.opcode.to_raw(),
            wc_flags: flags,
        };
        let solicited = completion.solicited || completion.status != WcStatus::Success;
        let written = self.shared.write_cqe(self.mem, cqn, &body, tail, solicited);
        self.shared.report_of_qp(
            self.env,
            QpEvent::Completed {
                cqn,
                completion,
                cqe: &body,
                tail,
                recv,
                written,
            },
        );
        if !written && recv && self.env.srqn().is_some() {
            self.env.lost = Some((completion.wqe_index, completion.wr_id));
        }
        // An XRC target stays up if the CQ of an SRQ dies, because the SRQ is not its own.
        written || completion.xrc.life != 0
    }

    fn event(&mut self, event: EventType, syndrome: Option<Syndrome>) {
        let qpn = self.env.qpn();
        self.shared.async_event(self.mem, event, qpn, syndrome);
    }

    fn transmit(&mut self, packet: Packet) {
        let mut out = Outgoing {
            packet,
            path: self.env.path.clone(),
            mtu: self.env.path_mtu_bytes(),
            local: false,
        };
        let Some(path) = out.path() else {
            return;
        };
        out.local = self.shared.port.is_local(path, out.packet.dst_qpn);
        self.shared
            .report_of_qp(self.env, QpEvent::PacketSent(&out.packet));
        self.shared.outgoing.push(out);
    }

    fn has_pkey(&self, pkey: u16) -> bool {
        self.shared.port.index_of_pkey(pkey).is_some()
    }

    #[cold]
    fn on_key_violation(&mut self, key: ViolatedKey, packet: &Packet) {
        let violated = QpEvent::KeyViolated { key, packet };
        self.shared.report_of_qp(self.env, violated);
    }

    fn pool(&mut self) -> Option<&mut Pool> {
        Some(&mut self.shared.pool)
    }
}
