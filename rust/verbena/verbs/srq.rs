// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues. Device specification, "Work queues".
//!
//! A process posts without the driver. For kernel users the driver keeps the `wr_id` of each
//! receive in a place of its own, and returns it once. The device takes entries of the ring in
//! order, but receives complete in any order, so the places are independent of the entries. They
//! come from a free list. The WQE names its place in its `wr_id`, which the completion brings back.
//!
//! There are as many places as entries. An entry waits in the ring only while its receive has a
//! place, so a free place implies room in the ring.

use super::{
    wq::{
        self,
        PostQueue,
        PostedRequest, //
    },
    Verbena,
    VerbsDevice, //
};
use crate::{
    abi::{
        cmd::{
            CreateSrq,
            DestroySrq,
            ModifySrq,
            QuerySrq,
            ResizeSrq, //
            FEATURE_RESIZE_SRQ,
            FEATURE_SRQ,
        },
        ctx::{
            QueueState,
            SrqContext, //
        },
        uverbs::{
            CreateSrqResp,
            ResizeSrqReq,
            ResizeSrqResp, //
            RESIZE_MOVE,
            RESIZE_PREPARE,
        },
        wqe,
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
        DoorbellSlot,
        SlotKind, //
    },
    eq::AffiliatedObject,
    ring::{
        entries,
        DmaRing, //
    }, //
};
use base::{
    dma::Payer,
    errno::eopnotsupp,
    new_irq_lock,
    share::Part,
    sync::IrqLock, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use rdma::{
    mmap::{
        Entry,
        Protection, //
    },
    pd::Pd,
    restrack::ResEntry,
    srq::{
        SharedReceiveQueue,
        Srq,
        SrqAttr,
        SrqChange,
        SrqKind, //
    },
    udata::{
        Caller,
        User, //
    },
    wr::{
        RecvWr,
        RecvWrs, //
    }, //
};
use zerocopy::{
    Immutable,
    IntoBytes, //
};

/// An SRQN, which is freed when it is dropped.
struct Srqn {
    vdev: Arc<VerbsDevice>,
    number: u32,
    _part: Part,
}

impl Srqn {
    fn new(vdev: &Arc<VerbsDevice>, payer: Payer) -> Result<Self> {
        let (number, part) = vdev.info()?.ids.srqns.alloc(payer)?;
        Ok(Self {
            number,
            vdev: vdev.clone(),
            _part: part,
        })
    }
}

impl Drop for Srqn {
    fn drop(&mut self) {
        if let Ok(info) = self.vdev.info() {
            info.ids.srqns.free(self.number);
        }
    }
}

/// Element of the list of places.
#[derive(Clone, Copy)]
enum ReceiveSlot {
    /// The place is free. The field is the next free place.
    Free(u32),
    /// The receive in this place was posted at this index of the ring and has not completed.
    Posted { index: u32, request: PostedRequest },
}

/// Receives that kernel users have posted.
struct PostedReceives {
    producer: u32,
    /// List of places, which is empty for a process' queue.
    slots: KVVec<ReceiveSlot>,
    /// First free place. The value is out of bounds if all places are taken.
    free: u32,
}

/// Returns the `wr_id` that the device gets: the place, and the index, by which the driver
/// recognizes a `wr_id` that the device returns twice.
fn encode_wr_id(slot: u32, index: u32) -> u64 {
    u64::from(index) << 32 | u64::from(slot)
}

impl PostedReceives {
    /// Returns a list of `slots` free places.
    fn new(slots: u32) -> Result<Self> {
        let mut list = KVVec::with_capacity(slots as usize, GFP_KERNEL)?;
        for next in 1..=slots {
            list.push(ReceiveSlot::Free(next), GFP_KERNEL)?;
        }
        Ok(Self {
            producer: 0,
            slots: list,
            free: 0,
        })
    }

    /// Takes the receive that the device knows by this `wr_id`.
    fn take(&mut self, wr_id: u64) -> Option<PostedRequest> {
        // CAST: These are the two halves of the number.
        let (at, index) = (wr_id as u32, (wr_id >> 32) as u32);
        let slot = self.slots.get_mut(at as usize)?;
        match *slot {
            ReceiveSlot::Posted {
                index: posted,
                request,
            } if posted == index => {
                *slot = ReceiveSlot::Free(self.free);
                self.free = at;
                Some(request)
            }
            _ => None,
        }
    }
}

impl PostQueue for PostedReceives {
    /// Returns the first free place.
    fn next(&self) -> Option<u32> {
        ((self.free as usize) < self.slots.len()).then_some(self.free)
    }

    fn push(&mut self, request: PostedRequest) {
        let index = self.producer;
        if let Some(slot) = self.slots.get_mut(self.free as usize) {
            if let ReceiveSlot::Free(next) = *slot {
                *slot = ReceiveSlot::Posted { index, request };
                self.free = next;
                self.producer = index.wrapping_add(1);
            }
        }
    }

    fn producer(&self) -> u32 {
        self.producer
    }
}

/// Additional numbers of an SRQ for XRC.
struct XrcIds {
    cqn: u32,
    xrcdn: u32,
}

/// Rings to which a process has resized the queue. The first ring exists as long as the queue.
#[derive(Default)]
struct ResizedRings {
    /// Ring that was allocated for a resize, before the queue moves to it.
    prepared: Option<SrqRing>,
    /// Present ring, if it is not the first one.
    present: Option<SrqRing>,
}

/// A ring, and its mapping into a process.
struct SrqRing {
    max_wr: u32,
    ring: Lent<DmaRing>,
    mapping: Entry,
}

impl SrqRing {
    fn new(srq: &SrqData, wanted: u32, user: &User<'_, Verbena>) -> Result<Self> {
        let vdev = &srq.number.vdev;
        let max_wr = entries(wanted, vdev.caps()?.max_srq_wr.get())?;
        let bytes = (max_wr as usize) << srq.log_stride;
        let ring = Lent::new(
            DmaRing::new(&vdev.dma, Payer::Process, bytes)?,
            &vdev.health,
        );
        let mapping = ring.map(user.context().mmap(), Protection::ReadWrite)?;
        Ok(Self {
            max_wr,
            ring,
            mapping,
        })
    }

    fn log_size(&self) -> u8 {
        // CAST: The logarithm of a 32-bit number is small.
        self.max_wr.trailing_zeros() as u8
    }
}

/// Driver's data of a shared receive queue.
///
/// The fields are in the order in which they have to be dropped, with the number last.
#[pin_data]
pub(crate) struct SrqData {
    xrc: Option<XrcIds>,
    /// Rings to which a process has resized its queue.
    #[pin]
    resized: Mutex<ResizedRings>,
    max_wr: u32,
    max_sge: u32,
    log_size: u8,
    log_stride: u8,
    #[pin]
    posted: IrqLock<PostedReceives>,
    /// Mapping of the ring into a process.
    mapping: Option<Entry>,
    ring: Lent<DmaRing>,
    doorbell: DoorbellSlot,
    number: Srqn,
}

/// Returns the step of a resize, for SRQs and CQs. Both requests begin with the step and 7 reserved
/// bytes, which must be 0 (`EINVAL`).
pub(super) fn step_of<T: IntoBytes + Immutable>(request: &T) -> Result<u8> {
    match request.as_bytes() {
        [step, 0, 0, 0, 0, 0, 0, 0, ..] => Ok(*step),
        _ => Err(EINVAL),
    }
}

impl SrqData {
    /// Returns the number of the queue (SRQN).
    pub(crate) fn srqn(&self) -> u32 {
        self.number.number
    }

    /// Takes the receive that the device knows by this `wr_id`, because it has completed or never
    /// will. Each receive is returned once. Returns `None` if there is no such receive. Only for
    /// queues of kernel users.
    pub(crate) fn complete(&self, wr_id: u64) -> Option<PostedRequest> {
        self.posted.lock().take(wr_id)
    }

    /// Returns the number of work requests that the present ring holds.
    fn max_wr(&self) -> u32 {
        let resized = self.resized.lock();
        resized
            .present
            .as_ref()
            .map_or(self.max_wr, |srq_ring| srq_ring.max_wr)
    }

    /// Executes one of the two steps of a resize.
    fn resize(&self, wanted: u32, user: &User<'_, Verbena>) -> Result {
        let vdev = &self.number.vdev;
        let request: ResizeSrqReq = user.udata().read()?;
        let step = step_of(&request)?;
        let mut guard = self.resized.lock();
        let ResizedRings { prepared, present } = &mut *guard;
        if step == RESIZE_PREPARE {
            let srq_ring = prepared.insert(SrqRing::new(self, wanted, user)?);
            let response = ResizeSrqResp {
                ring_offset: Le64::new(srq_ring.mapping.offset()),
                ring_length: Le64::new(srq_ring.ring.len() as u64),
                max_wr: Le32::new(srq_ring.max_wr),
                log_size: srq_ring.log_size(),
                ..Default::default()
            };
            return user.udata().write_to(request.response.get(), &response);
        }
        let (Some(new), RESIZE_MOVE) = (prepared.take(), step) else {
            return Err(EINVAL);
        };
        let request = |to: &Lender| ResizeSrq {
            srqn: Le32::new(self.srqn()),
            log_size: new.log_size(),
            ring: new.ring.lend(to).translation(),
            ..Default::default()
        };
        let old = present
            .as_ref()
            .map_or(&self.ring, |srq_ring| &srq_ring.ring);
        vdev.cmdq.exchange(request, &[&new.ring], &[old])?;
        *present = Some(new);
        Ok(())
    }

    fn context(&self) -> Result<SrqContext> {
        let vdev = &self.number.vdev;
        vdev.cmdq.exec(&QuerySrq {
            id: Le32::new(self.srqn()),
            ..Default::default()
        })?;
        vdev.tables.read(self.srqn())
    }

    fn new(
        pd: &Pd<Verbena>,
        kind: &SrqKind<'_, Verbena>,
        attr: &SrqAttr,
        caller: &Caller<'_, Verbena>,
    ) -> Result<impl PinInit<Self, Error>> {
        let vdev = pd.device().vdev.clone();
        let caps = vdev.caps()?;
        if !vdev.has(FEATURE_SRQ) {
            return Err(eopnotsupp());
        }
        let xrc = match kind {
            SrqKind::Basic => None,
            // The driver matches completions of kernel users by queue pair, and so does not offer
            // them XRC.
            SrqKind::Xrc { .. } if caller.is_kernel() => return Err(eopnotsupp()),
            SrqKind::Xrc { cq, xrcd } => Some(XrcIds {
                cqn: cq.cqn(),
                xrcdn: xrcd.xrcdn,
            }),
        };
        let most = caps.max_srq_wr.get();
        if attr.max_sge > caps.max_srq_sge.get() {
            return Err(EINVAL);
        }
        let max_wr = entries(attr.max_wr, most)?;
        let max_sge = attr.max_sge.max(1);
        // CAST: The logarithm of a 32-bit number is small.
        let log_size = max_wr.trailing_zeros() as u8;
        let log_stride = wqe::log_rq_stride(max_sge);
        if log_stride > wqe::LOG_RQ_STRIDE.1 {
            return Err(EINVAL);
        }
        let number = Srqn::new(&vdev, caller.payer())?;
        let ring = Lent::new(
            DmaRing::new(&vdev.dma, caller.payer(), (max_wr as usize) << log_stride)?,
            &vdev.health,
        );
        let posted = PostedReceives::new(match caller {
            Caller::User(_) => 0,
            Caller::Kernel => max_wr,
        })?;
        let (doorbell, mapping) = match caller {
            Caller::User(user) => {
                let context = user.context();
                let mmap = context.mmap();
                let doorbell = context.areas.take(&vdev.hw, Some(mmap), SlotKind::Qp)?;
                (doorbell, Some(ring.map(mmap, Protection::ReadWrite)?))
            }
            Caller::Kernel => (vdev.areas.take(&vdev.hw, None, SlotKind::Qp)?, None),
        };
        Ok(try_pin_init!(Self {
            xrc,
            resized <- new_mutex!(ResizedRings::default()),
            max_wr,
            max_sge,
            log_size,
            log_stride,
            posted <- new_irq_lock!(posted),
            mapping,
            ring,
doorbell,
            number,
        }? Error))
    }
}

#[vtable]
impl SharedReceiveQueue<Verbena> for SrqData {
    fn create(
        pd: &Pd<Verbena>,
        kind: &SrqKind<'_, Verbena>,
        attr: &SrqAttr,
        caller: &Caller<'_, Verbena>,
    ) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || Self::new(pd, kind, attr, caller))
    }

    fn start(srq: &Srq<Verbena>, attr: &mut SrqAttr, caller: &Caller<'_, Verbena>) -> Result {
        let vdev = &srq.number.vdev;
        vdev.tables.ensure::<SrqContext>(&vdev.cmdq, srq.srqn())?;
        srq.doorbell.clear();
        let request = |to: &Lender| CreateSrq {
            srqn: Le32::new(srq.srqn()),
            pdn: Le32::new(srq.pd().pdn),
            uar: Le32::new(srq.doorbell.uar()),
            slot: Le16::new(srq.doorbell.index()),
            log_size: srq.log_size,
            log_stride: srq.log_stride,
            ring: srq.ring.lend(to).translation(),
            // The values are those of `enum ib_srq_type`.
            srq_type: srq.xrc.is_some().into(),
            cqn: Le32::new(srq.xrc.as_ref().map_or(0, |xrc| xrc.cqn)),
            xrcdn: Le32::new(srq.xrc.as_ref().map_or(0, |xrc| xrc.xrcdn)),
            ..Default::default()
        };
        vdev.cmdq.give(request, &[&srq.ring as &dyn Borrowed])?;
        let finish = || {
            vdev.srqs.insert(srq.srqn(), srq)?;
            if srq.xrc.is_some() {
                srq.set_srq_num(srq.srqn());
            }
            let Some(user) = caller.user() else {
                return Ok(());
            };
            user.udata().respond(&CreateSrqResp {
                srqn: Le32::new(srq.srqn()),
                slot: Le16::new(srq.doorbell.index()),
                log_size: srq.log_size,
                log_stride: srq.log_stride,
                area: srq.doorbell.info(),
                ring_offset: Le64::new(srq.mapping.as_ref().map_or(0, Entry::offset)),
                ring_length: Le64::new(srq.ring.len() as u64),
                ..Default::default()
            })
        };
        finish().inspect_err(|_| {
            let _ = Self::destroy(srq);
        })?;
        attr.max_wr = srq.max_wr;
        attr.max_sge = srq.max_sge;
        // The limit has no meaning at creation (ibv_create_srq(3)). Only modify arms a limit.
        attr.srq_limit = 0;
        Ok(())
    }

    fn modify(srq: &Srq<Verbena>, change: &SrqChange, caller: &Caller<'_, Verbena>) -> Result {
        if let Some(max_wr) = change.max_wr {
            // Only one attribute may change at a time, since the first change would remain if the
            // second failed.
            if change.srq_limit.is_some() {
                return Err(EINVAL);
            }
            let user = caller
                .user()
                .filter(|_| srq.number.vdev.has(FEATURE_RESIZE_SRQ));
            let user = user.ok_or(eopnotsupp())?;
            return srq.resize(max_wr, user);
        }
        if let Some(user) = caller.user() {
            user.udata().finish_input()?;
        }
        if let Some(limit) = change.srq_limit {
            if limit > srq.max_wr() {
                return Err(EINVAL);
            }
            srq.number.vdev.cmdq.exec(&ModifySrq {
                srqn: Le32::new(srq.srqn()),
                limit: Le32::new(limit),
                ..Default::default()
            })?;
        }
        Ok(())
    }

    fn query(srq: &Srq<Verbena>) -> Result<SrqAttr> {
        let context = srq.context()?;
        Ok(SrqAttr {
            max_wr: srq.max_wr(),
            max_sge: srq.max_sge,
            srq_limit: context.limit.get(),
        })
    }

    fn destroy(srq: &Srq<Verbena>) -> Result {
        let vdev = &srq.number.vdev;
        let request = DestroySrq {
            id: Le32::new(srq.srqn()),
            ..Default::default()
        };
        // All events of this queue reach it before it is unlinked. Later ones find no queue.
        let resized = srq.resized.lock();
        let present = resized
            .present
            .as_ref()
            .map_or(&srq.ring, |srq_ring| &srq_ring.ring);
        let quiesced = vdev.cmdq.take_back(&request, &[present as &dyn Borrowed]);
        drop(resized);
        if let Some(quiesced) = quiesced {
            vdev.drain_events(AffiliatedObject::Srq(srq.srqn()), &quiesced);
        }
        srq.unlink();
        Ok(())
    }

    fn post_recv(srq: &Srq<Verbena>, wrs: &mut RecvWrs<'_>) -> Result {
        let write = |slot, index, wr: &RecvWr<'_>| {
            // `max_wr` is never 0, which the compiler cannot know: `%` would bring a panic.
            let entry = (index as usize)
                .checked_rem(srq.max_wr as usize)
                .unwrap_or(0);
            let at = entry << srq.log_stride;
            wq::write_recv(&srq.ring, at, encode_wr_id(slot, index), srq.max_sge, wr)
        };
        let mut posted = srq.posted.lock();
        wq::post(&mut *posted, wrs, write, |producer| {
            srq.doorbell.post_recv(producer)
        })
    }

    fn fill_res(srq: &Srq<Verbena>, entry: &mut ResEntry<'_>) -> Result {
        let context = srq.context()?;
        entry.put_u32(c"limit", context.limit.get())?;
        entry.put_u32(c"producer", context.producer_index.get())?;
        entry.put_u32(c"consumer", context.consumer_index.get())?;
        entry.put_u32(
            c"error",
            u32::from(context.state == QueueState::Err.to_raw()),
        )
    }

    fn fill_res_raw(srq: &Srq<Verbena>, put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        put(srq.context()?.as_bytes())
    }
}
