// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! A process polls its own ring. This module polls the rings of kernel users. It takes an entry
//! when the last word of the entry shows the phase, copies the entry once, and checks it before
//! use: the QPN must be that of a queue pair that completes in this queue, the index that of a
//! request that is outstanding there, and no earlier request may still be owed a completion. If a
//! check fails, the driver declares the device dead, because the completion of the right request
//! may never come, and kernel users wait for it without a timeout. Each queue keeps a list of its
//! queue pairs, so that polls of different queues share no data.
//!
//! When the life of the device has ended, or the device has lost a completion of the queue, and the
//! ring is empty, the driver flushes outstanding requests in software.

mod clean;
mod cqe_ring;
mod flush;
mod state;

use self::{
    cqe_ring::CqeRing,
    state::{
        AttachedQp,
        CqPollState,
        SkippedRange, //
    }, //
};
use super::{
    srq,
    wq::QueueSide,
    Verbena,
    VerbsDevice, //
};
use crate::{
    abi::{
        cmd::{
            cq_flags,
            CreateCq,
            DestroyCq,
            ModifyCq,
            QueryCq,
            ResizeCq, //
        },
        cqe::{
            wc_flags,
            Cqe,
            Tail,
            WcOpcode as CqeOpcode, //
            WC_OPCODE_RECV,
        },
        ctx::CqContext,
        doorbell::{
            Arm,
            ArmMode, //
        },
        uverbs::{
            CreateCqResp,
            ResizeCqReq, //
            RESIZE_MOVE,
            RESIZE_PREPARE,
        },
        Le16,
        Le32,
        Le64, //
    },
    cmdq::Lender,
    doorbell::{
        DoorbellSlot,
        SlotKind, //
    },
    eq::{
        AffiliatedObject,
        CompEq, //
    }, //
};
use base::{
    errno::eopnotsupp,
    new_irq_lock,
    share::Part,
    sync::IrqLock, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::Atomic,
        Arc,
        Mutex, //
    }, //
};
use rdma::{
    cq::{
        CompletionQueue,
        Cq,
        CqInitAttr, //
    },
    device::Device,
    enums::{
        CqFlags,
        NetworkType,
        NotifyFlags,
        WcFlags,
        WcOpcode,
        WcStatus, //
    },
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

/// A CQN, which is freed when it is dropped.
struct Cqn {
    vdev: Arc<VerbsDevice>,
    cqn: u32,
    _part: Part,
}

impl Drop for Cqn {
    fn drop(&mut self) {
        if let Ok(info) = self.vdev.info() {
            info.ids.cqns.free(self.cqn);
        }
    }
}

/// Rings of a process' queue.
#[derive(Default)]
struct ProcessRings {
    entries: Option<CqeRing>,
    /// Ring for the next move, which the prepare step of a resize has allocated.
    prepared: Option<CqeRing>,
}

/// Driver's data of a completion queue.
#[pin_data]
pub(crate) struct CqData {
    vdev: Arc<VerbsDevice>,
    number: Cqn,
    slot: DoorbellSlot,
    eq: Arc<CompEq>,
    ignore_overrun: bool,
    /// True if the device has lost a completion of this queue, which belongs to a kernel user. The
    /// device writes no more entries, and the driver flushes the outstanding requests of queue
    /// pairs in ERR in software.
    in_error: Atomic<bool>,
    /// Entries of a kernel user's queue, which never move.
    kernel_ring: Option<CqeRing>,
    #[pin]
    process_rings: Mutex<ProcessRings>,
    /// Held while the entries of one queue pair are removed.
    #[pin]
    cleaning: Mutex<()>,
    #[pin]
    state: IrqLock<CqPollState>,
}

impl CqData {
    /// Returns the number of the queue (CQN).
    pub(crate) fn cqn(&self) -> u32 {
        self.number.cqn
    }

    fn new(
        vdev: &Arc<VerbsDevice>,
        attr: &CqInitAttr,
        caller: &Caller<'_, Verbena>,
    ) -> Result<impl PinInit<Self, Error>> {
        let info = vdev.info()?;
        // Each completion has a timestamp, whether the user requests it or not.
        let ignore_overrun = attr.flags().contains(CqFlags::IGNORE_OVERRUN);
        let known_flags = CqFlags::TIMESTAMP_COMPLETION | CqFlags::IGNORE_OVERRUN;
        if !known_flags.contains(attr.flags()) {
            return Err(eopnotsupp());
        }
        let eqs = vdev.events.comp_eqs();
        let eq = eqs
            .get(attr.comp_vector() as usize % eqs.len().max(1))
            .ok_or(EINVAL)?
            .clone();
        let (cqn, part) = info.ids.cqns.alloc(caller.payer())?;
        let number = Cqn {
            vdev: vdev.clone(),
            cqn,
            _part: part,
        };
        let context = caller.user().map(|user| user.context());
        let areas = context.map_or(&vdev.areas, |context| &context.areas);
        let slot = areas.take(&vdev.hw, context.map(|c| c.mmap()), SlotKind::Cq)?;
        let (kernel_ring, process_rings) = match caller {
            Caller::Kernel => (
                Some(CqeRing::for_kernel(vdev, attr.cqe())?),
                ProcessRings::default(),
            ),
            Caller::User(user) => {
                let entries = Some(CqeRing::for_process(vdev, attr.cqe(), user)?);
                let process_rings = ProcessRings {
                    entries,
                    prepared: None,
                };
                (None, process_rings)
            }
        };
        slot.clear();
        let vdev = vdev.clone();
        Ok(try_pin_init!(Self {
            vdev,
            number,
            slot,
            eq,
            ignore_overrun,
            in_error: Atomic::new(false),
            kernel_ring,
            process_rings <- new_mutex!(process_rings),
            cleaning <- new_mutex!(()),
            state <- new_irq_lock!(CqPollState {
                consumer: 0,
                skipped: SkippedRange::default(),
                arm: Arm { index: 0, seq: 0, mode: ArmMode::None },
                armed: false,
                waiting: None,
                is_moderated: false,
                woken: false,
                qps: KVVec::new(),
                last: 0,
            }),
        }? Error))
    }

    /// Returns the present context. The device publishes one on request and when the state changes.
    /// The context of a dead device is the last one that it published.
    fn context(&self) -> Result<CqContext> {
        let _ = self.vdev.cmdq.exec(&QueryCq {
            id: Le32::new(self.cqn()),
            ..Default::default()
        });
        self.vdev.tables.read(self.cqn())
    }

    /// Returns the entries, of a kernel user's queue or of a process' queue.
    fn entries<'a>(&'a self, process_rings: &'a ProcessRings) -> Result<&'a CqeRing> {
        let process_rings = process_rings.entries.as_ref();
        self.kernel_ring.as_ref().or(process_rings).ok_or(EINVAL)
    }

    fn command(&self, entries: &CqeRing, to: &Lender) -> CreateCq {
        CreateCq {
            cqn: Le32::new(self.cqn()),
            eqn: Le32::new(self.eq.eqn),
            uar: Le32::new(self.slot.uar()),
            slot: Le16::new(self.slot.index()),
            log_size: entries.log_size,
            ring: entries.ring.lend(to).translation(),
            flags: Le32::new(if self.ignore_overrun {
                cq_flags::IGNORE_OVERRUN
            } else {
                0
            }),
            ..Default::default()
        }
    }

    fn respond(&self, entries: &CqeRing, user: &User<'_, Verbena>) -> Result {
        user.udata().respond(&CreateCqResp {
            cqn: Le32::new(self.cqn()),
            slot: Le16::new(self.slot.index()),
            log_size: entries.log_size,
            area: self.slot.info(),
            ring_offset: Le64::new(entries.offset()),
            ring_length: Le64::new(entries.ring.len() as u64),
            ..Default::default()
        })
    }

    /// Adds a side of a queue pair to those that complete in this queue.
    pub(crate) fn attach(&self, qpn: u32, side: QueueSide) -> Result {
        let qp = self.vdev.qps.hold(qpn).ok_or(EINVAL)?;
        state::attach(&self.state, AttachedQp { qpn, side, qp })?;
        self.mark_qps();
        Ok(())
    }

    /// True if the next entry to poll is there.
    fn has_entry(&self, state: &CqPollState) -> bool {
        self.kernel_ring
            .as_ref()
            .is_some_and(|entries| entries.has(state.next()))
    }

    /// Handles a notification by the device. Any context.
    pub(crate) fn completion_event(&self, cq: &Cq<Verbena>) {
        let armed = core::mem::replace(&mut self.state.lock().armed, false);
        // Only a process arms the queue without the driver. A kernel user that has not armed the
        // queue must not be called, whatever the device reports: some users poll without events,
        // and treat a call as a defect.
        if armed || cq.is_user() {
            cq.complete();
        }
    }

    /// True if an entry for which a kernel user's handler waits is there, and was there at the
    /// previous call, too. The device has not notified then.
    pub(crate) fn has_missed_event(&self) -> bool {
        let mut state = self.state.lock();
        let has_entry = self.has_entry(&state);
        state.has_missed_event(has_entry)
    }

    fn take(&self, state: &mut CqPollState, cqe: &Cqe, tail: Tail, wcs: &mut WcSink<'_, Verbena>) {
        let side = if tail.opcode & WC_OPCODE_RECV != 0 {
            QueueSide::Recv
        } else {
            QueueSide::Send
        };
        let Some(qp) = state.find(cqe.qpn.get(), side) else {
            return self
                .vdev
                .distrust("a CQ has a completion of a queue pair that does not use it");
        };
        let request = match (side, qp.srq()) {
            (QueueSide::Recv, Some(srq)) => srq.complete(cqe.wr_id.get()),
            _ => qp.complete(side, cqe.wqe_index.get()),
        };
        let Some(request) = request else {
            return self
                .vdev
                .distrust("a completion belongs to no outstanding request");
        };
        let mut status = WcStatus::from_raw(tail.status.into()).unwrap_or(WcStatus::GeneralErr);
        let opcode = match side {
            // For sends, the opcode of the posted request is more reliable than that of the device.
            QueueSide::Send => request.opcode,
            QueueSide::Recv if tail.opcode == CqeOpcode::RecvRdmaWithImm.to_raw() => {
                WcOpcode::RecvRdmaWithImm
            }
            QueueSide::Recv => WcOpcode::Recv,
        };
        if status == WcStatus::Success
            && opcode == WcOpcode::Recv
            && cqe.byte_len.get() > request.length
        {
            // The user would otherwise treat more bytes as received than the buffer has.
            self.vdev
                .complain("a completion has more bytes than its receive has room for");
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
            if side == QueueSide::Recv && qp.is_datagram() {
                fill_source(&mut wc, cqe, self.vdev.is_infiniband());
                if tail.wc_flags & wc_flags::GRH != 0 {
                    wc.flags |= WcFlags::GRH;
                }
            }
        }
        // There is room, because the caller has checked it.
        wcs.push(&wc);
    }
}

/// Fills in the addresses of the sender of a datagram.
fn fill_source(wc: &mut Wc<'_, Verbena>, cqe: &Cqe, is_infiniband: bool) {
    wc.src_qp = cqe.src_qp.get();
    wc.pkey_index = cqe.pkey_index.get();
    wc.sl = cqe.sl;
    if is_infiniband {
        wc.slid = cqe.slid.get();
        wc.dlid_path_bits = cqe.dlid_path_bits;
        wc.network_type = Some(NetworkType::Ib);
        return;
    }
    wc.smac = Some(cqe.smac);
    wc.network_type = NetworkType::from_raw(cqe.network_type.into());
    if cqe.vlan.get() < 4096 {
        wc.vlan_id = Some(cqe.vlan.get());
    }
}

#[vtable]
impl CompletionQueue<Verbena> for CqData {
    fn create(
        dev: &Device<Verbena>,
        attr: &CqInitAttr,
        caller: &Caller<'_, Verbena>,
    ) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || Self::new(&dev.vdev, attr, caller))
    }

    fn start(cq: &Cq<Verbena>, caller: &Caller<'_, Verbena>) -> Result {
        let vdev = &cq.vdev;
        vdev.tables.ensure::<CqContext>(&vdev.cmdq, cq.cqn())?;
        vdev.cqs.insert(cq.cqn(), cq)?;
        let guard = cq.process_rings.lock();
        let entries = cq.entries(&guard)?;
        vdev.cmdq
            .give(|to| cq.command(entries, to), &[&entries.ring])?;
        cq.set_cqe(entries.count());
        let responded = caller
            .user()
            .map_or(Ok(()), |user| cq.respond(entries, user));
        drop(guard);
        responded.inspect_err(|_| {
            let _ = Self::destroy(cq);
        })
    }

    fn destroy(cq: &Cq<Verbena>) -> Result {
        let vdev = &cq.vdev;
        let request = DestroyCq {
            id: Le32::new(cq.cqn()),
            ..Default::default()
        };
        let guard = cq.process_rings.lock();
        let ring = &cq.entries(&guard)?.ring;
        if let Some(quiesced) = vdev.cmdq.take_back(&request, &[ring]) {
            vdev.drain_events(AffiliatedObject::Cq(cq.cqn()), &quiesced);
            vdev.drain_completions(&cq.eq, &quiesced);
        }
        cq.unlink();
        cq.forget();
        Ok(())
    }

    fn poll(cq: &Cq<Verbena>, wcs: &mut WcSink<'_, Verbena>) -> Result {
        let entries = cq.kernel_ring.as_ref().ok_or(EINVAL)?;
        let mut state = cq.state.lock();
        // This is read first: if the queue is in error by then, all entries that the device will
        // ever write are in the ring.
        let is_flushing = cq.is_flushing();
        // The limit ends the loop if the device writes nonsense as fast as the driver skips it.
        for _ in 0..2 * entries.count() {
            if wcs.is_full() {
                break;
            }
            let next = state.next();
            let Some((cqe, tail)) = entries.take(next)? else {
                break;
            };
            state.consumer = next.wrapping_add(1);
            // The index is published first. A user that posts into the room that the completion
            // makes must find room in this queue, too.
            cq.slot.consume(state.consumer);
            cq.take(&mut state, &cqe, tail, wcs);
        }
        if is_flushing {
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
        if missed && cq.is_flushing() {
            cq.vdev.health.flush();
        }
        Ok(missed && flags.contains(NotifyFlags::REPORT_MISSED_EVENTS))
    }

    fn resize(cq: &Cq<Verbena>, cqe: u32, user: &User<'_, Verbena>) -> Result {
        let vdev = &cq.vdev;
        let step = srq::step_of(&user.udata().read::<ResizeCqReq>()?)?;
        let mut guard = cq.process_rings.lock();
        let ProcessRings { entries, prepared } = &mut *guard;
        if step == RESIZE_PREPARE {
            // A second prepare step frees the ring of the first one, whether it is mapped or not.
            let new = prepared.insert(CqeRing::for_process(vdev, cqe, user)?);
            return user.udata().respond(&new.resized());
        }
        let (Some(old), Some(new), RESIZE_MOVE) = (entries.as_mut(), prepared.take(), step) else {
            return Err(EINVAL);
        };
        // The response is written first, because entries are not moved back.
        user.udata().respond(&new.resized())?;
        let request = |to: &Lender| ResizeCq {
            cqn: Le32::new(cq.cqn()),
            log_size: new.log_size,
            ring: new.ring.lend(to).translation(),
            ..Default::default()
        };
        vdev.cmdq.exchange(request, &[&new.ring], &[&old.ring])?;
        cq.set_cqe(new.count());
        *old = new;
        Ok(())
    }

    fn modify(cq: &Cq<Verbena>, count: u16, period: u16) -> Result {
        cq.vdev.cmdq.exec(&ModifyCq {
            cqn: Le32::new(cq.cqn()),
            moderation_count: Le16::new(count),
            moderation_period: Le16::new(period),
            ..Default::default()
        })?;
        cq.state.lock().is_moderated = count > 1 && period == 0;
        Ok(())
    }

    fn fill_res(cq: &Cq<Verbena>, entry: &mut ResEntry<'_>) -> Result {
        let context = cq.context()?;
        entry.put_u32(c"cqn", cq.cqn())?;
        entry.put_u32(c"state", context.state.into())?;
        entry.put_u32(c"eqn", context.eqn.get())?;
        entry.put_u32(c"pi", context.producer_index.get())?;
        entry.put_u32(c"ci", context.consumer_index.get())
    }

    fn fill_res_raw(cq: &Cq<Verbena>, put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        put(cq.context()?.as_bytes())
    }
}

/// Returns the CQN of a queue pair's completion queue.
pub(crate) fn number(cq: Option<&Cq<Verbena>>) -> Result<u32> {
    Ok(cq.ok_or(EINVAL)?.cqn())
}

/// Calls [`CqData::clean`] for both completion queues of a queue pair.
pub(crate) fn clean(qp: &Qp<Verbena>, detach: bool) {
    for cq in [qp.send_cq(), qp.recv_cq()].into_iter().flatten() {
        cq.clean(qp, detach);
    }
}
