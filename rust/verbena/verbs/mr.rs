// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use super::{
    pages::PageTable,
    Verbena, //
};
use crate::{
    abi::{
        cmd::{
            CreateMr,
            DestroyMr,
            FEATURE_FAST_REG, //
        },
        ctx::{
            access,
            mr_flags,
            MemoryEntry,
            Translation, //
        },
        wqe::FastRegSegment,
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
    hw::Hw, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
};
use rdma::{
    base::{
        dma::Payer,
        errno::eopnotsupp, //
    },
    enums::{
        Access,
        MrType, //
    },
    mr::{
        MemoryRegion,
        Mr,
        MrKeys,
        SgPages,
        UserRange, //
    },
    pd::Pd,
    restrack::ResEntry,
    udata::User,
    umem::Umem, //
};
use zerocopy::IntoBytes;

/// Pages of a region at most: what fits into the device's number.
const MOST_PAGES: usize = u32::MAX as usize;
/// Pages of a fast registration at most.
pub(crate) const MOST_FAST_REG: u32 = 512;

/// A key, given back when dropped.
struct Key {
    hw: Arc<Hw>,
    key: u32,
}

impl Key {
    fn new(hw: &Arc<Hw>) -> Result<Self> {
        let key = hw.known()?.ids.keys.alloc()?;
        Ok(Self {
            hw: hw.clone(),
            key,
        })
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        if let Ok(known) = self.hw.known() {
            known.ids.keys.free(self.key);
        }
    }
}

/// Data of a memory region.
pub(crate) struct MrData {
    hw: Arc<Hw>,
    /// What the region is created by; where its pages are is added then.
    request: CreateMr,
    /// `None`: the device's own key of all memory.
    key: Option<Key>,
    table: Option<Lent<PageTable>>,
    /// Pages of the last `map_sg`.
    mapped: Atomic<u32>,
    /// Pinned until the device has let go of it.
    umem: Option<Lent<Arc<Umem>>>,
}

fn device_access(wanted: Access) -> u32 {
    wanted.as_raw() & access::ALL
}

impl MrData {
    fn user(pd: &Pd<Verbena>, range: &UserRange, user: &User<'_, Verbena>) -> Result<Self> {
        let hw = pd.device().live.hw.clone();
        let caps = hw.caps()?;
        if range.length == 0 || range.length > caps.max_mr_size.get() {
            return Err(EINVAL);
        }
        if range.access.intersects(Access::ON_DEMAND | Access::MW_BIND) {
            return Err(eopnotsupp());
        }
        let umem = Umem::pin(user, range.start, range.length, range.access)?;
        let pgsz = umem
            .find_best_pgsz(caps.page_size_cap.get(), range.virt_addr)
            .ok_or(EINVAL)?;
        let pages = umem.num_blocks(pgsz);
        if pages == 0 || pages > MOST_PAGES {
            return Err(EINVAL);
        }
        let umem = Lent::new(Arc::new(umem, GFP_KERNEL)?, &hw.health);
        let table = Lent::new(PageTable::new(&hw.dma, Payer::Process, pages)?, &hw.health);
        for (index, addr) in umem.blocks(pgsz).take(pages).enumerate() {
            table.set(index, addr)?;
        }
        let key = Key::new(&hw)?;
        let iova = if range.access.contains(Access::ZERO_BASED) {
            0
        } else {
            range.virt_addr
        };
        Ok(Self {
            request: CreateMr {
                key: Le32::new(key.key),
                pdn: Le32::new(pd.pdn),
                access: Le32::new(device_access(range.access)),
                iova: Le64::new(iova),
                length: Le64::new(range.length),
                page_offset: Le64::new(range.virt_addr & (pgsz - 1)),
                pages: Translation {
                    // CAST: at most `MOST_PAGES`.
                    num_pages: Le32::new(pages as u32),
                    // CAST: a power of two below 2^64.
                    log_page_size: pgsz.trailing_zeros() as u8,
                    ..Default::default()
                },
                ..Default::default()
            },
            hw,
            key: Some(key),
            table: Some(table),
            mapped: Atomic::new(0),
            umem: Some(umem),
        })
    }

    /// All of memory: a region that begins at DMA address 0.
    fn dma(pd: &Pd<Verbena>, wanted: Access) -> Result<Self> {
        let hw = pd.device().live.hw.clone();
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let key = if wanted.intersects(remote) {
            Some(Key::new(&hw)?)
        } else {
            None
        };
        let length = hw.caps()?.max_mr_size.get();
        Ok(Self {
            request: CreateMr {
                key: Le32::new(key.as_ref().map_or(0, |key| key.key)),
                pdn: Le32::new(pd.pdn),
                access: Le32::new(device_access(wanted)),
                length: Le64::new(length),
                pages: Translation {
                    num_pages: Le32::new(1),
                    log_page_size: 30,
                    ..Default::default()
                },
                ..Default::default()
            },
            hw,
            key,
            table: None,
            mapped: Atomic::new(0),
            umem: None,
        })
    }

    fn fast_reg(pd: &Pd<Verbena>, mr_type: MrType, max_num_sg: u32) -> Result<Self> {
        let hw = pd.device().live.hw.clone();
        if mr_type != MrType::MemReg || !hw.has(FEATURE_FAST_REG) {
            return Err(eopnotsupp());
        }
        if max_num_sg == 0 || max_num_sg > MOST_FAST_REG {
            return Err(EINVAL);
        }
        let table = PageTable::new(&hw.dma, Payer::Kernel, max_num_sg as usize)?;
        let table = Lent::new(table, &hw.health);
        let key = Key::new(&hw)?;
        Ok(Self {
            request: CreateMr {
                key: Le32::new(key.key),
                pdn: Le32::new(pd.pdn),
                flags: Le32::new(mr_flags::FAST_REG),
                pages: Translation {
                    num_pages: Le32::new(max_num_sg),
                    log_page_size: 12,
                    ..Default::default()
                },
                ..Default::default()
            },
            hw,
            key: Some(key),
            table: Some(table),
            mapped: Atomic::new(0),
            umem: None,
        })
    }

    fn command(&self, to: &Lender) -> CreateMr {
        // The command names the pages too.
        self.umem.as_ref().map(|umem| umem.lend(to));
        let table = self.table.as_ref().map(|table| table.lend(to));
        let pages = self.request.pages;
        CreateMr {
            pages: table.map_or(pages, |table| {
                table.translation(pages.num_pages, pages.log_page_size)
            }),
            ..self.request
        }
    }

    fn lent(&self) -> [&dyn Borrowed; 2] {
        [&self.table, &self.umem]
    }

    /// The segment of a fast registration of this region.
    pub(crate) fn segment(mr: &Mr<Verbena>, key: u32, wanted: Access) -> Result<FastRegSegment> {
        let table = mr.table.as_ref().ok_or(EINVAL)?;
        let page_size = u64::from(mr.page_size());
        if !page_size.is_power_of_two()
            || mr.key.as_ref().is_none_or(|own| own.key >> 8 != key >> 8)
        {
            return Err(EINVAL);
        }
        Ok(FastRegSegment {
            key: Le32::new(key),
            access: Le32::new(device_access(wanted)),
            iova: Le64::new(mr.iova()),
            length: Le64::new(mr.length()),
            page_offset: Le64::new(mr.iova() & (page_size - 1)),
            pages: table.loan().ok_or(EINVAL)?.translation(
                Le32::new(mr.mapped.load(Relaxed)),
                // CAST: a power of two below 2^32.
                page_size.trailing_zeros() as u8,
            ),
        })
    }
}

#[vtable]
impl MemoryRegion<Verbena> for MrData {
    fn get_dma(pd: &Pd<Verbena>, wanted: Access) -> impl PinInit<Self, Error> {
        Self::dma(pd, wanted)
    }

    fn reg_user(
        pd: &Pd<Verbena>,
        range: &UserRange,
        user: &User<'_, Verbena>,
    ) -> impl PinInit<Self, Error> {
        Self::user(pd, range, user)
    }

    fn alloc(pd: &Pd<Verbena>, mr_type: MrType, max_num_sg: u32) -> impl PinInit<Self, Error> {
        Self::fast_reg(pd, mr_type, max_num_sg)
    }

    fn start(mr: &Mr<Verbena>) -> Result<MrKeys> {
        let hw = &mr.hw;
        let key = match &mr.key {
            Some(key) => {
                hw.tables.ensure::<MemoryEntry>(&hw.cmdq, key.key >> 8)?;
                hw.cmdq.give(|to| mr.command(to), &mr.lent())?;
                key.key
            }
            None => hw.caps()?.local_dma_lkey.get(),
        };
        Ok(MrKeys {
            lkey: key,
            rkey: key,
        })
    }

    fn map_sg(mr: &Mr<Verbena>, pages: SgPages<'_, Verbena>) -> Result<u32> {
        let table = mr.table.as_ref().ok_or(EINVAL)?;
        let mut count = 0usize;
        let mapped = pages.map(|addr| {
            table.set(count, addr)?;
            count += 1;
            Ok(())
        })?;
        mr.mapped.store(u32::try_from(count)?, Relaxed);
        Ok(mapped)
    }

    fn dereg(mr: &Mr<Verbena>) -> Result {
        if let Some(key) = &mr.key {
            let request = DestroyMr {
                // The tag may have changed since.
                id: Le32::new(key.key),
                ..Default::default()
            };
            mr.hw.cmdq.take_back(&request, &mr.lent());
        }
        Ok(())
    }

    fn fill_res(mr: &Mr<Verbena>, entry: &mut ResEntry<'_>) -> Result {
        let Some(key) = &mr.key else { return Ok(()) };
        let context: MemoryEntry = mr.hw.tables.read(key.key >> 8)?;
        entry.put_u32_hex(c"key", context.key.get())?;
        entry.put_u32(c"state", context.state.into())?;
        entry.put_u32_hex(c"access", context.access.get())
    }

    fn fill_res_raw(mr: &Mr<Verbena>, put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        let key = mr.key.as_ref().ok_or(eopnotsupp())?;
        let context: MemoryEntry = mr.hw.tables.read(key.key >> 8)?;
        put(context.as_bytes())
    }
}
