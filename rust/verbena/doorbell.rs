// SPDX-License-Identifier: GPL-2.0

//! Doorbell areas. Device specification, "Doorbells"; the protocol itself is
//! [`crate::abi::doorbell`].
//!
//! The kernel has areas of its own, and each context of a process has some: [`Areas`] grows by an
//! area whenever all slots of a kind are taken. A [`Slot`] is a place for one queue.

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
            Words,
            AREA_SIZE,
            AREA_SLOTS,
            DEVICE_PART,
            GUEST_PART,
            PART_SIZE, //
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
    ids, //
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
use rdma::{
    base::{
        dma::{
            Chunk,
            Payer, //
        },
        share::Part,
        sync::mb, //
    },
    mmap::{
        Entry,
        Memory,
        MmapContext,
        Protection, //
    }, //
};

/// The words of an area, as the guest's side of the protocol sees them. The offsets are the
/// contract's own, so no access is out of bounds.
struct AreaWords<'a>(&'a Chunk);

impl Words for AreaWords<'_> {
    fn load(&self, offset: usize) -> u32 {
        self.0.load32(offset).unwrap_or(0)
    }

    fn load_acquire(&self, offset: usize) -> u32 {
        self.0.load32_acquire(offset).unwrap_or(0)
    }

    fn store(&self, offset: usize, value: u32) {
        let _ = self.0.store32(offset, value);
    }

    fn store_release(&self, offset: usize, value: u32) {
        let _ = self.0.store32_release(offset, value);
    }

    fn store64_release(&self, offset: usize, value: u64) {
        let _ = self.0.store64_release(offset, value);
    }

    fn load64_acquire(&self, offset: usize) -> u64 {
        self.0.load64_acquire(offset).unwrap_or(0)
    }

    fn increment(&self, offset: usize) {
        let _ = self.0.increment32(offset);
    }

    fn fence(&self) {
        mb()
    }
}

/// How a process maps an area: see [`AreaInfo`].
struct Mappings {
    device: Entry,
    guest: Entry,
    ring: Entry,
}

impl Mappings {
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

/// What a slot is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotKind {
    /// A queue pair or SRQ.
    Qp,
    /// A CQ.
    Cq,
}

const GROUPS: usize = AREA_SLOTS / 64;

/// Slots that are taken, a bit each.
struct Taken {
    qp: [u64; GROUPS],
    cq: [u64; GROUPS],
}

impl Taken {
    fn of(&mut self, kind: SlotKind) -> &mut [u64; GROUPS] {
        match kind {
            SlotKind::Qp => &mut self.qp,
            SlotKind::Cq => &mut self.cq,
        }
    }
}

/// Index of an area, given back when it is dropped.
struct Uar {
    hw: Arc<Hw>,
    index: u32,
    _part: Part,
}

impl Drop for Uar {
    fn drop(&mut self) {
        // Known since the index was taken.
        if let Ok(known) = self.hw.known() {
            known.ids.uars.free(self.index);
        }
    }
}

/// The memory of an area, which the device has until this is dropped.
struct AreaMemory {
    memory: Lent<Arc<Chunk>>,
    /// The last to go: until then nobody else gets the index.
    uar: Uar,
}

impl Drop for AreaMemory {
    fn drop(&mut self) {
        let hw = &self.uar.hw;
        // Only what the device was given is there.
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

/// A doorbell area.
#[pin_data]
pub(crate) struct Area {
    part: AreaMemory,
    /// How a process maps the memory and the doorbell page; the kernel does not.
    mappings: Option<Mappings>,
    #[pin]
    taken: Mutex<Taken>,
}

impl Area {
    /// A new area of the kernel, or of the context whose first area is given unless this is the first.
    fn new(
        hw: &Arc<Hw>,
        context: Option<&MmapContext>,
        first: Option<&Arc<Area>>,
    ) -> Result<Arc<Self>> {
        let uars = &hw.known()?.ids.uars;
        // An area of a context is not counted by bytes: a user has a number of them.
        let (payer, least) = match context {
            Some(_) => (Payer::Counted, ids::of_kernel(uars.count())),
            None => (Payer::Kernel, 0),
        };
        let (index, part) = uars.alloc_from(payer, least)?;
        let uar = Uar {
            hw: hw.clone(),
            index,
            _part: part,
        };
        // A context has the number of its first area; the kernel's is 0.
        let owner = match context {
            Some(_) => first.map_or(index, |area| area.part.uar.index),
            None => 0,
        };
        let memory = Arc::new(Chunk::alloc(&hw.dma, payer, AREA_SIZE)?, GFP_KERNEL)?;
        let mappings = match context {
            Some(context) => Some(Mappings::new(hw, index, &memory, context)?),
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
                taken <- new_mutex!(Taken { qp: [0; GROUPS], cq: [0; GROUPS] }),
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
                // CAST: below 64.
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

/// The doorbell areas of one context.
#[pin_data]
pub(crate) struct Areas {
    #[pin]
    list: Mutex<KVec<Arc<Area>>>,
}

impl Areas {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(KVec::new()),
        })
    }

    /// Takes a slot; in a new area if need be.
    pub(crate) fn take(
        &self,
        hw: &Arc<Hw>,
        context: Option<&MmapContext>,
        kind: SlotKind,
    ) -> Result<Slot> {
        let mut list = self.list.lock();
        for area in list.iter() {
            if let Some(index) = area.take(kind) {
                return Ok(Slot {
                    area: area.clone(),
                    kind,
                    index,
                });
            }
        }
        let area = Area::new(hw, context, list.first())?;
        let index = area.take(kind).ok_or(ENOMEM)?;
        list.push(area.clone(), GFP_KERNEL)?;
        Ok(Slot { area, kind, index })
    }

    /// The first area, which every process has.
    pub(crate) fn first(&self, hw: &Arc<Hw>, context: Option<&MmapContext>) -> Result<AreaInfo> {
        let mut list = self.list.lock();
        if list.is_empty() {
            list.push(Area::new(hw, context, None)?, GFP_KERNEL)?;
        }
        Ok(list.first().map(|area| area.info()).unwrap_or_default())
    }

    /// Drops all areas. No queue of them may be left.
    pub(crate) fn clear(&self) {
        let list = core::mem::take(&mut *self.list.lock());
        drop(list);
    }
}

impl Area {
    /// How a process maps the area.
    fn info(&self) -> AreaInfo {
        let offset = |entry: fn(&Mappings) -> &Entry| {
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

/// A queue's place in a doorbell area.
pub(crate) struct Slot {
    area: Arc<Area>,
    kind: SlotKind,
    index: u16,
}

impl Slot {
    /// Index of the area.
    pub(crate) fn uar(&self) -> u32 {
        self.area.part.uar.index
    }

    /// Index in the area.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// How a process maps the area.
    pub(crate) fn info(&self) -> AreaInfo {
        self.area.info()
    }

    fn words(&self) -> AreaWords<'_> {
        AreaWords(&self.area.part.memory)
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

    /// Arms a CQ.
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

impl Drop for Slot {
    fn drop(&mut self) {
        self.area.give_back(self.kind, self.index);
    }
}
