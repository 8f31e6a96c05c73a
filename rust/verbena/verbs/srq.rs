// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues. Device specification, "Work queues".
//!
//! A process posts by itself. For the kernel the driver keeps the `wr_id` of each place of the ring
//! and hands it out once: the index in a completion is checked against it, and a place is free again
//! only when its own completion was polled, because those of an SRQ come in any order.

use super::{
    wq::Request,
    Verbena, //
};
use crate::{
    abi::{
        cmd::{
            CreateSrq,
            DestroySrq,
            ModifySrq,
            QuerySrq,
            FEATURE_SRQ, //
        },
        ctx::{
            QueueState,
            SrqContext, //
        },
        uverbs::CreateSrqResp,
        wqe::{
            self,
            RecvWqe, //
        },
        Le16,
        Le32,
        Le64, //
    },
    doorbell::{
        Slot,
        SlotKind, //
    },
    hw::Hw,
    lent::{
        Borrowed,
        Lent, //
    },
    ring::Ring, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    enums::{
        SrqAttrMask,
        SrqType,
        WcOpcode, //
    },
    errno::eopnotsupp,
    mmap::{
        Entry,
        Memory,
        Protection, //
    },
    new_irq_lock,
    pd::Pd,
    restrack::ResEntry,
    srq::{
        SharedReceiveQueue,
        Srq,
        SrqAttr, //
    },
    sync::IrqLock,
    udata::Caller,
    wr::RecvWrs, //
};
use zerocopy::IntoBytes;

/// An SRQN, given back when dropped.
struct Srqn {
    hw: Arc<Hw>,
    number: u32,
}

impl Srqn {
    fn new(hw: &Arc<Hw>) -> Result<Self> {
        Ok(Self {
            number: hw.known()?.ids.srqns.alloc()?,
            hw: hw.clone(),
        })
    }
}

impl Drop for Srqn {
    fn drop(&mut self) {
        if let Ok(known) = self.hw.known() {
            known.ids.srqns.free(self.number);
        }
    }
}

/// A receive that waits in the ring, or is being filled.
#[derive(Clone, Copy)]
struct Waiting {
    index: u32,
    request: Request,
}

/// What the kernel has posted.
struct Posted {
    producer: u32,
    /// By place in the ring; empty for a process' queue.
    places: KVVec<Option<Waiting>>,
}

/// Data of a shared receive queue.
///
/// The fields are in the order in which they have to go: the number last.
#[pin_data]
pub(crate) struct SrqData {
    max_wr: u32,
    max_sge: u32,
    log_size: u8,
    log_stride: u8,
    #[pin]
    posted: IrqLock<Posted>,
    /// How a process maps the ring.
    mapping: Option<Entry>,
    ring: Lent<Ring>,
    place: Slot,
    number: Srqn,
}

impl SrqData {
    /// Its number.
    pub(crate) fn srqn(&self) -> u32 {
        self.number.number
    }

    /// Kernel queues: a receive with this index was completed. Its `wr_id`, once; `None` if there is
    /// no such receive.
    pub(crate) fn complete(&self, index: u32) -> Option<Request> {
        let mut posted = self.posted.lock();
        let at = index as usize % posted.places.len().max(1);
        let place = posted.places.get_mut(at)?;
        let waiting = place.filter(|waiting| waiting.index == index)?;
        *place = None;
        Some(waiting.request)
    }

    fn context(&self) -> Result<SrqContext> {
        let hw = &self.number.hw;
        hw.cmdq.exec(&QuerySrq {
            id: Le32::new(self.srqn()),
            ..Default::default()
        })?;
        hw.tables.read(self.srqn())
    }

    fn new(
        pd: &Pd<Verbena>,
        attr: &SrqAttr,
        caller: &Caller<'_, Verbena>,
    ) -> Result<impl PinInit<Self, Error>> {
        let hw = pd.device().hw.clone();
        let caps = hw.caps()?;
        if !hw.has(FEATURE_SRQ) {
            return Err(eopnotsupp());
        }
        let most = caps.max_srq_wr.get();
        if attr.max_wr == 0 || attr.max_wr > most || attr.max_sge > caps.max_srq_sge.get() {
            return Err(EINVAL);
        }
        let max_wr = attr.max_wr.checked_next_power_of_two().ok_or(EINVAL)?;
        let max_sge = attr.max_sge.max(1);
        // CAST: the logarithm of a 32-bit number.
        let log_size = max_wr.trailing_zeros() as u8;
        let log_stride = wqe::log_rq_stride(max_sge);
        if max_wr > most || log_stride > wqe::LOG_RQ_STRIDE.1 {
            return Err(EINVAL);
        }
        if attr.srq_limit > max_wr {
            return Err(EINVAL);
        }
        let number = Srqn::new(&hw)?;
        let ring = Lent::new(
            Ring::new(&hw.dma, caller.payer(), (max_wr as usize) << log_stride)?,
            &hw.health,
        );
        let mut places = KVVec::new();
        let (place, mapping) = match caller {
            Caller::User(user) => {
                let context = user.context();
                let mmap = context.mmap();
                let mut chunks = KVec::with_capacity(ring.chunks().len(), GFP_KERNEL)?;
                for chunk in ring.chunks() {
                    chunks.push(chunk.clone(), GFP_KERNEL)?;
                }
                let place = context.areas.take(&hw, Some(mmap), SlotKind::Qp)?;
                let mapping = mmap.insert(Memory::Chunks(chunks), Protection::ReadWrite)?;
                (place, Some(mapping))
            }
            Caller::Kernel => {
                places.resize(max_wr as usize, None, GFP_KERNEL)?;
                (hw.areas.take(&hw, None, SlotKind::Qp)?, None)
            }
        };
        let posted = Posted {
            producer: 0,
            places,
        };
        Ok(try_pin_init!(Self {
            max_wr,
            max_sge,
            log_size,
            log_stride,
            posted <- new_irq_lock!(posted),
            mapping,
            ring,
            place,
            number,
        }? Error))
    }

    /// Writes a receive at `index`.
    fn write(&self, index: u32, wr: &rdma::wr::RecvWr<'_>) -> Result {
        let sges = wr.sges();
        if sges.len() > self.max_sge as usize {
            return Err(EINVAL);
        }
        let at = (index as usize % self.max_wr as usize) << self.log_stride;
        let (chunk, offset) = self.ring.at(at)?;
        for (number, sge) in sges.iter().enumerate() {
            let entry = wqe::Sge {
                addr: Le64::new(sge.addr()),
                length: Le32::new(sge.length()),
                lkey: Le32::new(sge.lkey()),
            };
            let at = size_of::<RecvWqe>() + number * size_of::<wqe::Sge>();
            chunk.write(offset + at, &entry)?;
        }
        chunk.write(
            offset,
            &RecvWqe {
                wr_id: Le64::new(index.into()),
                // CAST: checked against `max_sge`.
                num_sge: sges.len() as u8,
                ..Default::default()
            },
        )
    }
}

#[vtable]
impl SharedReceiveQueue<Verbena> for SrqData {
    fn create(
        pd: &Pd<Verbena>,
        srq_type: SrqType,
        attr: &SrqAttr,
        caller: &Caller<'_, Verbena>,
    ) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            if srq_type != SrqType::Basic {
                return Err(eopnotsupp());
            }
            Self::new(pd, attr, caller)
        })
    }

    fn start(srq: &Srq<Verbena>, attr: &mut SrqAttr, caller: &Caller<'_, Verbena>) -> Result {
        let hw = &srq.number.hw;
        hw.tables.ensure::<SrqContext>(&hw.cmdq, srq.srqn())?;
        srq.place.clear();
        let request = CreateSrq {
            srqn: Le32::new(srq.srqn()),
            pdn: Le32::new(srq.pd().pdn),
            uar: Le32::new(srq.place.uar()),
            slot: Le16::new(srq.place.index()),
            log_size: srq.log_size,
            log_stride: srq.log_stride,
            ring: srq.ring.lend().translation(),
            limit: Le32::new(attr.srq_limit),
            ..Default::default()
        };
        hw.cmdq.give(&request, &[&srq.ring as &dyn Borrowed])?;
        let finish = || {
            hw.srqs.insert(srq.srqn(), srq)?;
            let Some(user) = caller.user() else {
                return Ok(());
            };
            user.udata().respond(&CreateSrqResp {
                srqn: Le32::new(srq.srqn()),
                slot: Le16::new(srq.place.index()),
                log_size: srq.log_size,
                log_stride: srq.log_stride,
                area: srq.place.info(),
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
        Ok(())
    }

    fn modify(srq: &Srq<Verbena>, attr: &SrqAttr, mask: SrqAttrMask) -> Result {
        if mask.contains(SrqAttrMask::MAX_WR) {
            return Err(eopnotsupp());
        }
        if mask.contains(SrqAttrMask::LIMIT) {
            if attr.srq_limit > srq.max_wr {
                return Err(EINVAL);
            }
            srq.number.hw.cmdq.exec(&ModifySrq {
                srqn: Le32::new(srq.srqn()),
                limit: Le32::new(attr.srq_limit),
                ..Default::default()
            })?;
        }
        Ok(())
    }

    fn query(srq: &Srq<Verbena>) -> Result<SrqAttr> {
        let context = srq.context()?;
        Ok(SrqAttr {
            max_wr: srq.max_wr,
            max_sge: srq.max_sge,
            srq_limit: context.limit.get(),
        })
    }

    fn destroy(srq: &Srq<Verbena>) -> Result {
        let hw = &srq.number.hw;
        let request = DestroySrq {
            id: Le32::new(srq.srqn()),
            ..Default::default()
        };
        // Events of this queue reach it before it goes; those that come later find nobody.
        let lent = [&srq.ring as &dyn Borrowed];
        if let Some(quiesced) = hw.cmdq.take_back(&request, &lent) {
            hw.drain_events(&quiesced);
        }
        srq.unlink();
        Ok(())
    }

    fn post_recv(srq: &Srq<Verbena>, wrs: &mut RecvWrs<'_>) -> Result {
        let mut posted = srq.posted.lock();
        let before = posted.producer;
        let mut post = |posted: &mut Posted| -> Result {
            for wr in wrs.by_ref() {
                let index = posted.producer;
                let at = index as usize % srq.max_wr as usize;
                let place = posted.places.get_mut(at).ok_or(EINVAL)?;
                if place.is_some() {
                    return Err(ENOMEM);
                }
                srq.write(index, &wr)?;
                let length = wr
                    .sges()
                    .iter()
                    .fold(0u32, |sum, sge| sum.saturating_add(sge.length()));
                *place = Some(Waiting {
                    index,
                    request: Request {
                        wr_id: wr.wr_id(),
                        opcode: WcOpcode::Recv,
                        length,
                    },
                });
                posted.producer = index.wrapping_add(1);
            }
            Ok(())
        };
        let result = post(&mut posted);
        if posted.producer != before {
            srq.place.post_recv(posted.producer);
        }
        result
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
