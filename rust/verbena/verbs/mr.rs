// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use super::{
    key::MemoryKey,
    mw::WindowCounter,
    pages::{
        DoubleBuffer,
        ElementList,
        PageTable, //
    },
    Verbena, //
};
use crate::{
    abi::{
        cmd::{
            CreateMr,
            ModifyMr, //
            FEATURE_FAST_REG,
            FEATURE_GAPS,
            FEATURE_MW,
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
            Lent,
            Loan, //
        },
        Lender, //
    },
    hw::Hw, //
};
use base::{
    dma::Payer,
    errno::eopnotsupp, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
};
use rdma::{
    enums::{
        Access,
        MrType, //
    },
    mr::{
        MemoryRegion,
        Mr,
        MrChange,
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

/// Limit of pages of a region, because the device counts them in 32 bits.
const MAX_PAGES: usize = u32::MAX as usize;
/// Limit of pages, or of elements, of a fast registration.
pub(crate) const MAX_FAST_REG: u32 = 512;

/// True if regions with gaps can be registered. The device has to allow as many elements as pages,
/// because users know only one limit for both.
pub(crate) fn has_gaps(hw: &Hw) -> bool {
    let most = hw.caps().map_or(0, |caps| caps.max_gaps.get());
    hw.has(FEATURE_FAST_REG) && hw.has(FEATURE_GAPS) && most >= MAX_FAST_REG
}

/// Memory region of a process, as the device knows it.
struct UserRegion {
    range: UserRange,
    /// Command that creates the region, without the address of the page table.
    attributes: CreateMr,
    table: Lent<PageTable>,
    /// Memory that stays pinned until the device has let go of it.
    umem: Lent<Arc<Umem>>,
    /// Memory windows of the same context, which may be bound to the region.
    windows: Arc<WindowCounter>,
}

impl UserRegion {
    fn new(
        hw: &Hw,
        key: u32,
        pdn: u32,
        range: UserRange,
        user: &User<'_, Verbena>,
    ) -> Result<Self> {
        let caps = hw.caps()?;
        if range.length > caps.max_mr_size.get() {
            return Err(EINVAL);
        }
        check_access(hw, range.access)?;
        // A region of length 0 pins the page at which it would begin.
        let mut umem = Umem::pin(user, range.start, range.length.max(1), range.access)?;
        let pgsz = umem
            .find_best_pgsz(caps.page_size_cap.get(), range.virt_addr)
            .ok_or(EINVAL)?;
        let pages = umem.num_blocks(pgsz);
        if pages == 0 || pages > MAX_PAGES {
            return Err(EINVAL);
        }
        let umem = Lent::new(Arc::new(umem, GFP_KERNEL)?, &hw.health);
        let table = Lent::new(PageTable::new(&hw.dma, Payer::Pinned, pages)?, &hw.health);
        for (index, addr) in umem.blocks(pgsz).take(pages).enumerate() {
            table.set(index, addr)?;
        }
        Ok(Self {
            attributes: CreateMr {
                key: Le32::new(key),
                pdn: Le32::new(pdn),
                access: Le32::new(device_access(range.access)),
                iova: Le64::new(range.iova()),
                length: Le64::new(range.length),
                page_offset: Le64::new(range.virt_addr & (pgsz - 1)),
                pages: Translation {
                    // CAST: The number is at most `MAX_PAGES`.
                    num_pages: Le32::new(pages as u32),
                    // CAST: The page size is a power of two below 2^64.
                    log_page_size: pgsz.trailing_zeros() as u8,
                    ..Default::default()
                },
                ..Default::default()
            },
            range,
            table,
            umem,
            windows: user.context().windows.clone(),
        })
    }

    fn create(&self, to: &Lender) -> CreateMr {
        // The command names the pages, too, through the table.
        self.umem.lend(to);
        self.attributes_with(self.table.lend(to))
    }

    fn attributes_with(&self, table: Loan<'_, PageTable>) -> CreateMr {
        let pages = self.attributes.pages;
        CreateMr {
            pages: table.translation(pages.num_pages, pages.log_page_size),
            ..self.attributes
        }
    }

    fn lent(&self) -> [&dyn Borrowed; 2] {
        [&self.table, &self.umem]
    }

    /// Executes [`MemoryRegion::rereg`] with other memory.
    fn move_to(&mut self, hw: &Hw, new: Self) -> Result {
        hw.cmdq
            .exchange(|to| modify(new.create(to)), &new.lent(), &self.lent())?;
        *self = new;
        Ok(())
    }

    /// Executes [`MemoryRegion::rereg`] with the same memory.
    fn change_attributes(&mut self, hw: &Hw, pdn: Le32, range: UserRange) -> Result {
        let table = self.table.loan().ok_or(EINVAL)?;
        let mut request = self.attributes_with(table);
        request.pdn = pdn;
        request.access = Le32::new(device_access(range.access));
        request.iova = Le64::new(range.iova());
        hw.cmdq.exec(&modify(request))?;
        self.attributes = request;
        self.range = range;
        Ok(())
    }
}

/// Returns the command that changes a region to these terms.
fn modify(attributes: CreateMr) -> ModifyMr {
    ModifyMr {
        key: attributes.key,
        pdn: attributes.pdn,
        access: attributes.access,
        flags: attributes.flags,
        iova: attributes.iova,
        length: attributes.length,
        page_offset: attributes.page_offset,
        pages: attributes.pages,
    }
}

/// Driver's data of a memory region.
#[pin_data]
pub(crate) struct MrData {
    hw: Arc<Hw>,
    /// Command that creates the region, without the address of the page table. Regions of processes
    /// are created from `user_region` instead.
    request: CreateMr,
    /// Key of the region. `None` stands for the device's own key of all memory.
    key: Option<MemoryKey>,
    /// Page tables of a region for fast registrations.
    table: Option<DoubleBuffer<PageTable>>,
    /// Element lists of a region for fast registrations that may have gaps.
    list: Option<DoubleBuffer<ElementList>>,
    /// Number of pages or elements that the last `map_sg` mapped.
    mapped: Atomic<u32>,
    /// Pinned memory of a process' region.
    #[pin]
    user_region: Mutex<Option<UserRegion>>,
}

/// Returns the rights that the device checks. The other flags determine how memory is pinned, or
/// are hints.
fn device_access(wanted: Access) -> u32 {
    wanted.as_raw() & access::ALL
}

/// Returns `EOPNOTSUPP` for access flags that a process' region cannot have.
fn check_access(hw: &Hw, wanted: Access) -> Result {
    let mut unknown = Access::ON_DEMAND;
    if !hw.has(FEATURE_MW) {
        unknown |= Access::MW_BIND;
    }
    if wanted.intersects(unknown) {
        return Err(eopnotsupp());
    }
    Ok(())
}

/// Values with which [`MrData`] is made.
struct MrInit {
    request: CreateMr,
    key: Option<MemoryKey>,
    table: Option<DoubleBuffer<PageTable>>,
    list: Option<DoubleBuffer<ElementList>>,
    user_region: Option<UserRegion>,
}

impl MrData {
    fn new(hw: Arc<Hw>, init: Result<MrInit>) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let MrInit {
                request,
                key,
                table,
                list,
                user_region,
            } = init?;
            Ok::<_, Error>(try_pin_init!(Self {
                hw,
                request,
                key,
                table,
                list,
                mapped: Atomic::new(0),
                user_region <- new_mutex!(user_region),
            }? Error))
        })
    }

    fn user(pd: &Pd<Verbena>, range: &UserRange, user: &User<'_, Verbena>) -> Result<MrInit> {
        let hw = &pd.device().vdev.hw;
        let key = MemoryKey::new(hw, Payer::Process)?;
        let user_region = UserRegion::new(hw, key.key, pd.pdn, *range, user)?;
        Ok(MrInit {
            request: user_region.attributes,
            key: Some(key),
            table: None,
            list: None,
            user_region: Some(user_region),
        })
    }

    /// Returns the values of a region that contains all memory and begins at DMA address 0.
    fn dma(pd: &Pd<Verbena>, wanted: Access) -> Result<MrInit> {
        let hw = &pd.device().vdev.hw;
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let key = if wanted.intersects(remote) {
            Some(MemoryKey::new(hw, Payer::Kernel)?)
        } else {
            None
        };
        let length = hw.caps()?.max_mr_size.get();
        Ok(MrInit {
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
            key,
            table: None,
            list: None,
            user_region: None,
        })
    }

    fn fast_reg(pd: &Pd<Verbena>, mr_type: MrType, max_num_sg: u32) -> Result<MrInit> {
        let hw = &pd.device().vdev.hw;
        let gaps = mr_type == MrType::SgGaps;
        if !(hw.has(FEATURE_FAST_REG) && (!gaps || has_gaps(hw))) {
            return Err(eopnotsupp());
        }
        if max_num_sg == 0 || max_num_sg > MAX_FAST_REG {
            return Err(EINVAL);
        }
        let (payer, room) = (Payer::Kernel, max_num_sg as usize);
        let (mut table, mut list) = (None, None);
        if gaps {
            let make = || ElementList::new(&hw.dma, payer, room);
            list = Some(DoubleBuffer::new(make, &hw.health)?);
        } else {
            let make = || PageTable::new(&hw.dma, payer, room);
            table = Some(DoubleBuffer::new(make, &hw.health)?);
        }
        let key = MemoryKey::new(hw, payer)?;
        Ok(MrInit {
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
            key: Some(key),
            table,
            list,
            user_region: None,
        })
    }

    fn command(&self, to: &Lender) -> CreateMr {
        // The command does not name the list, but later work requests do.
        if let Some(list) = &self.list {
            list.lend(to);
        }
        let table = self.table.as_ref().map(|table| table.lend(to));
        let pages = self.request.pages;
        CreateMr {
            pages: table.map_or(pages, |table| {
                table.translation(pages.num_pages, pages.log_page_size)
            }),
            ..self.request
        }
    }

    /// Returns the segment of a work request that registers this region under `key`. The key must
    /// have the index of the region's own key (`EINVAL`).
    pub(crate) fn segment(mr: &Mr<Verbena>, key: u32, wanted: Access) -> Result<FastRegSegment> {
        if mr.key.as_ref().is_none_or(|own| own.key >> 8 != key >> 8) {
            return Err(EINVAL);
        }
        let mapped = Le32::new(mr.mapped.load(Relaxed));
        let (page_offset, pages) = if let Some(list) = &mr.list {
            (0, list.mark_registered().ok_or(EINVAL)?.translation(mapped))
        } else {
            let table = mr.table.as_ref().ok_or(EINVAL)?;
            let page_size = u64::from(mr.page_size());
            if !page_size.is_power_of_two() {
                return Err(EINVAL);
            }
            // CAST: The page size is a power of two below 2^32.
            let log_page_size = page_size.trailing_zeros() as u8;
            let table = table.mark_registered().ok_or(EINVAL)?;
            let pages = table.translation(mapped, log_page_size);
            (mr.iova() & (page_size - 1), pages)
        };
        Ok(FastRegSegment {
            key: Le32::new(key),
            access: Le32::new(device_access(wanted)),
            iova: Le64::new(mr.iova()),
            length: Le64::new(mr.length()),
            page_offset: Le64::new(page_offset),
            pages,
        })
    }
}

#[vtable]
impl MemoryRegion<Verbena> for MrData {
    fn get_dma(pd: &Pd<Verbena>, wanted: Access) -> impl PinInit<Self, Error> {
        Self::new(pd.device().vdev.hw.clone(), Self::dma(pd, wanted))
    }

    fn reg_user(
        pd: &Pd<Verbena>,
        range: &UserRange,
        user: &User<'_, Verbena>,
    ) -> impl PinInit<Self, Error> {
        Self::new(pd.device().vdev.hw.clone(), Self::user(pd, range, user))
    }

    fn alloc(pd: &Pd<Verbena>, mr_type: MrType, max_num_sg: u32) -> impl PinInit<Self, Error> {
        Self::new(
            pd.device().vdev.hw.clone(),
            Self::fast_reg(pd, mr_type, max_num_sg),
        )
    }

    fn start(mr: &Mr<Verbena>) -> Result<MrKeys> {
        let hw = &mr.hw;
        let key = match &mr.key {
            Some(key) => {
                hw.tables.ensure::<MemoryEntry>(&hw.cmdq, key.key >> 8)?;
                match &*mr.user_region.lock() {
                    Some(memory) => hw.cmdq.give(|to| memory.create(to), &memory.lent())?,
                    None => hw.cmdq.give(|to| mr.command(to), &[&mr.table, &mr.list])?,
                };
                key.key
            }
            None => hw.caps()?.local_dma_lkey.get(),
        };
        Ok(MrKeys {
            lkey: key,
            rkey: key,
        })
    }

    fn rereg(mr: &Mr<Verbena>, change: &MrChange<'_, Verbena>, user: &User<'_, Verbena>) -> Result {
        let mut guard = mr.user_region.lock();
        let memory = Option::as_mut(&mut *guard).ok_or(EINVAL)?;
        let mut range = memory.range;
        if let Some(other) = change.memory {
            (range.start, range.length) = (other.start, other.length);
            range.virt_addr = other.virt_addr;
        }
        if let Some(access) = change.access {
            check_access(&mr.hw, access)?;
            range.access = access;
        }
        let pdn = change
            .pd
            .map_or(memory.attributes.pdn, |pd| Le32::new(pd.pdn));
        // Memory that was pinned for reading only must not be written, so it is pinned again.
        if change.memory.is_some() || (range.access.is_writable() && !memory.umem.is_writable()) {
            let key = memory.attributes.key.get();
            let new = UserRegion::new(&mr.hw, key, pdn.get(), range, user)?;
            // By now other memory may lie at these addresses, or the caller may be another process.
            // New rights must not bring a new translation (`ib_umem_check_rereg()` refuses every
            // change of this kind).
            if change.memory.is_none() && !new.umem.has_pages_of(&memory.umem) {
                return Err(EACCES);
            }
            return memory.move_to(&mr.hw, new);
        }
        memory.change_attributes(&mr.hw, pdn, range)
    }

    fn map_sg(mr: &Mr<Verbena>, pages: SgPages<'_, Verbena>) -> Result<u32> {
        let mut count = 0usize;
        if let Some(list) = &mr.list {
            let mut end = 0u64;
            let mapped = list.map(|list| {
                pages.map_elements(|addr, length| {
                    end = end.checked_add(length).ok_or(EINVAL)?;
                    list.set(count, addr, end)?;
                    count += 1;
                    Ok(())
                })
            })?;
            mr.mapped.store(mapped, Relaxed);
            return Ok(mapped);
        }
        let table = mr.table.as_ref().ok_or(EINVAL)?;
        let mapped = table.map(|table| {
            pages.map(|addr| {
                table.set(count, addr)?;
                count += 1;
                Ok(())
            })
        })?;
        mr.mapped.store(u32::try_from(count)?, Relaxed);
        Ok(mapped)
    }

    fn dereg(mr: &Mr<Verbena>) -> Result {
        if let Some(key) = &mr.key {
            let request = key.destroy_command();
            let cmdq = &mr.hw.cmdq;
            match &*mr.user_region.lock() {
                Some(memory) => {
                    let windows = &memory.windows;
                    let before = windows.snapshot();
                    cmdq.take_back_unused(&request, &memory.lent(), || {
                        windows.existed_since(before)
                    })?;
                }
                None => {
                    cmdq.take_back(&request, &[&mr.table, &mr.list]);
                }
            }
        }
        Ok(())
    }

    fn fill_res(mr: &Mr<Verbena>, entry: &mut ResEntry<'_>) -> Result {
        let Some(key) = &mr.key else { return Ok(()) };
        let context: MemoryEntry = mr.hw.tables.read(key.key >> 8)?;
        // The core itself shows the key, and only to administrators.
        entry.put_u32(c"index", context.key.get() >> 8)?;
        entry.put_u32(c"state", context.state.into())?;
        entry.put_u32_hex(c"access", context.access.get())
    }

    fn fill_res_raw(mr: &Mr<Verbena>, put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        let key = mr.key.as_ref().ok_or(eopnotsupp())?;
        let context: MemoryEntry = mr.hw.tables.read(key.key >> 8)?;
        put(context.as_bytes())
    }
}
