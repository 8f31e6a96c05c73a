// SPDX-License-Identifier: GPL-2.0

//! Doorbell areas. Device specification, "Doorbells". The protocol itself is in
//! [`crate::abi::doorbell`].
//!
//! The kernel has areas of its own, and each context of a process has some. [`DoorbellAreas`] grows
//! by an area when all slots of a kind are taken. A [`DoorbellSlot`] is the place of one queue in
//! an area.

use crate::{
    abi::{
        cmd::{
            CreateUar,
            DestroyUar, //
        },
        doorbell::{
            self,
            Arm,
            ArmMode,
            Words, //
            AREA_SIZE,
            AREA_SLOTS,
            DEVICE_PART,
            GUEST_PART,
            PART_SIZE,
        },
        regs,
        uverbs::AreaInfo,
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
    hw::Hw,
    ids,
    ring::SharedWords, //
};
use base::{
    dma::{
        Chunk,
        Payer, //
    },
    share::Part, //
};
use kernel::{
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
};
use rdma::mmap::{
    Entry,
    Memory,
    MmapContext,
    Protection, //
};

/// Mappings of an area into a process, see [`AreaInfo`].
struct AreaMappings {
    device: Entry,
    guest: Entry,
    ring: Entry,
}

impl AreaMappings {
    fn new(hw: &Hw, uar: u32, memory: &Arc<Chunk>, context: &MmapContext) -> Result<Self> {
        let part = |offset| Memory::Part {
            chunk: memory.clone(),
            offset,
            len: PART_SIZE,
        };
        Ok(Self {
            device: context.insert(part(DEVICE_PART), Protection::ReadOnly)?,
            guest: context.insert(part(GUEST_PART), Protection::ReadWrite)?,
            ring: context.insert(
                Memory::Bar {
                    pdev: hw.pdev.clone(),
                    bar: regs::BAR_DOORBELL,
                    offset: u64::from(uar) * regs::DOORBELL_STRIDE as u64,
                    len: PAGE_SIZE,
                },
                Protection::ReadWrite,
            )?,
        })
    }
}

/// Type of queue that a slot is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotKind {
    /// Slot for a queue pair or SRQ.
    Qp,
    /// Slot for a CQ.
    Cq,
}

const GROUPS: usize = AREA_SLOTS / 64;

/// Bit masks of the slots that are taken.
struct SlotMasks {
    qp: [u64; GROUPS],
    cq: [u64; GROUPS],
}

impl SlotMasks {
    fn of(&mut self, kind: SlotKind) -> &mut [u64; GROUPS] {
        match kind {
            SlotKind::Qp => &mut self.qp,
            SlotKind::Cq => &mut self.cq,
        }
    }
}

/// Index of an area (UAR), which is freed when it is dropped.
struct UarIndex {
    hw: Arc<Hw>,
    index: u32,
    _part: Part,
}

impl Drop for UarIndex {
    fn drop(&mut self) {
        // The capabilities are known since the index was taken.
        if let Ok(info) = self.hw.info() {
            info.ids.uars.free(self.index);
        }
    }
}

/// Memory of an area, which the device has until this is dropped.
struct AreaMemory {
    memory: Lent<Arc<Chunk>>,
    /// Index of the area. It is dropped last, so that no other area gets it before.
    uar: UarIndex,
}

impl Drop for AreaMemory {
    fn drop(&mut self) {
        let hw = &self.uar.hw;
        // Only areas that were given to the device are in the list.
        if hw.served.remove(self.uar.index) {
            let request = DestroyUar {
                id: Le32::new(self.uar.index),
                ..Default::default()
            };
            hw.cmdq
                .take_back(&request, &[&self.memory as &dyn Borrowed]);
        }
    }
}

/// A doorbell area of the kernel or of a process.
#[pin_data]
pub(crate) struct DoorbellArea {
    part: AreaMemory,
    /// Mappings of the memory and the doorbell page into a process. The kernel's areas have none.
    mappings: Option<AreaMappings>,
    #[pin]
    taken: Mutex<SlotMasks>,
}

impl DoorbellArea {
    /// Creates an area, of the kernel or of a context. `first` is the context's first area, unless
    /// the new one is the first.
    fn new(
        hw: &Arc<Hw>,
        context: Option<&MmapContext>,
        first: Option<&Arc<DoorbellArea>>,
    ) -> Result<Arc<Self>> {
        let uars = &hw.info()?.ids.uars;
        // The bytes of a context's area are not counted, because each user has a limit on the
        // number of areas.
        let (payer, least) = match context {
            Some(_) => (Payer::Counted, ids::kernel_reserve(uars.count())),
            None => (Payer::Kernel, 0),
        };
        let (index, part) = uars.alloc_from(payer, least)?;
        let uar = UarIndex {
            hw: hw.clone(),
            index,
            _part: part,
        };
        // A context has the number of its first area. The kernel's number is 0.
        let owner = match context {
            Some(_) => first.map_or(index, |area| area.part.uar.index),
            None => 0,
        };
        let memory = Arc::new(Chunk::alloc(&hw.dma, payer, AREA_SIZE)?, GFP_KERNEL)?;
        let mappings = match context {
            Some(context) => Some(AreaMappings::new(hw, index, &memory, context)?),
            None => None,
        };
        let part = AreaMemory {
            memory: Lent::new(memory.clone(), &hw.health),
            uar,
        };
        let request = |to: &Lender| CreateUar {
            uar: Le32::new(index),
            context: Le32::new(owner),
            addr: Le64::new(part.memory.lend(to).addr()),
            ..Default::default()
        };
        let lent = [&part.memory as &dyn Borrowed];
        hw.served.add(index, memory)?;
        hw.cmdq.give(request, &lent).inspect_err(|_| {
            hw.served.remove(index);
        })?;
        Arc::pin_init(
            try_pin_init!(Self {
                part,
                mappings,
                taken <- new_mutex!(SlotMasks { qp: [0; GROUPS], cq: [0; GROUPS] }),
            }? Error),
            GFP_KERNEL,
        )
    }

    fn take(&self, kind: SlotKind) -> Option<u16> {
        let mut taken = self.taken.lock();
        for (group, word) in (0u16..).zip(taken.of(kind).iter_mut()) {
            let free = (!*word).trailing_zeros();
            if free < u64::BITS {
                *word |= 1 << free;
                // CAST: The bit number is below 64.
                return Some(group * 64 + free as u16);
            }
        }
        None
    }

    fn give_back(&self, kind: SlotKind, slot: u16) {
        if let Some(word) = self.taken.lock().of(kind).get_mut(usize::from(slot) / 64) {
            *word &= !(1 << (slot % 64));
        }
    }
}

/// Doorbell areas of the kernel or of one context.
#[pin_data]
pub(crate) struct DoorbellAreas {
    #[pin]
    list: Mutex<KVec<Arc<DoorbellArea>>>,
}

impl DoorbellAreas {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(KVec::new()),
        })
    }

    /// Takes a free slot, in a new area if necessary.
    pub(crate) fn take(
        &self,
        hw: &Arc<Hw>,
        context: Option<&MmapContext>,
        kind: SlotKind,
    ) -> Result<DoorbellSlot> {
        let mut list = self.list.lock();
        for area in list.iter() {
            if let Some(index) = area.take(kind) {
                return Ok(DoorbellSlot {
                    area: area.clone(),
                    kind,
                    index,
                });
            }
        }
        let area = DoorbellArea::new(hw, context, list.first())?;
        let index = area.take(kind).ok_or(ENOMEM)?;
        list.push(area.clone(), GFP_KERNEL)?;
        Ok(DoorbellSlot { area, kind, index })
    }

    /// Returns how a process maps its first area, which is created if there is none yet.
    pub(crate) fn first(&self, hw: &Arc<Hw>, context: Option<&MmapContext>) -> Result<AreaInfo> {
        let mut list = self.list.lock();
        if list.is_empty() {
            list.push(DoorbellArea::new(hw, context, None)?, GFP_KERNEL)?;
        }
        Ok(list.first().map(|area| area.info()).unwrap_or_default())
    }

    /// Drops all areas. There must be no queues in them.
    pub(crate) fn clear(&self) {
        let list = core::mem::take(&mut *self.list.lock());
        drop(list);
    }
}

impl DoorbellArea {
    /// Returns how a process maps the area.
    fn info(&self) -> AreaInfo {
        let offset = |entry: fn(&AreaMappings) -> &Entry| {
            Le64::new(self.mappings.as_ref().map_or(0, |m| entry(m).offset()))
        };
        AreaInfo {
            uar: Le32::new(self.part.uar.index),
            device_offset: offset(|m| &m.device),
            guest_offset: offset(|m| &m.guest),
            ring_offset: offset(|m| &m.ring),
            ..Default::default()
        }
    }
}

/// Place of a queue in a doorbell area, which is freed when it is dropped.
pub(crate) struct DoorbellSlot {
    area: Arc<DoorbellArea>,
    kind: SlotKind,
    index: u16,
}

impl DoorbellSlot {
    /// Returns the index of the area (UAR).
    pub(crate) fn uar(&self) -> u32 {
        self.area.part.uar.index
    }

    /// Returns the index of the slot in the area.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// Returns how a process maps the area.
    pub(crate) fn info(&self) -> AreaInfo {
        self.area.info()
    }

    fn words(&self) -> SharedWords<'_> {
        SharedWords::new(&self.area.part.memory, 0)
    }

    fn ring(&self) {
        self.area.part.uar.hw.bars.ring(self.area.part.uar.index);
    }

    /// Zeroes the guest's words of the slot, before a new queue uses it.
    pub(crate) fn clear(&self) {
        let (words, slot) = (self.words(), usize::from(self.index));
        match self.kind {
            SlotKind::Qp => {
                words.store(doorbell::sq_producer(slot), 0);
                words.store_release(doorbell::rq_producer(slot), 0);
            }
            SlotKind::Cq => {
                words.store(doorbell::cq_consumer(slot), 0);
                words.store64_release(doorbell::cq_arm(slot), 0);
            }
        }
    }

    /// Publishes the producer index of a send queue.
    pub(crate) fn post_send(&self, producer: u32) {
        doorbell::post_send(&self.words(), self.index.into(), producer, || self.ring());
    }

    /// Publishes the producer index of a receive queue.
    pub(crate) fn post_recv(&self, producer: u32) {
        doorbell::post_recv(&self.words(), self.index.into(), producer, || self.ring());
    }

    /// Arms a CQ for a notification of entries after the consumer index `index`.
    pub(crate) fn arm_cq(&self, last: &mut Arm, index: u32, mode: ArmMode) {
        doorbell::arm_cq(&self.words(), self.index.into(), last, index, mode, || {
            self.ring()
        });
    }

    /// Publishes the consumer index of a CQ.
    pub(crate) fn consume(&self, index: u32) {
        self.words()
            .store_release(doorbell::cq_consumer(self.index.into()), index);
    }
}

impl Drop for DoorbellSlot {
    fn drop(&mut self) {
        self.area.give_back(self.kind, self.index);
    }
}
