// SPDX-License-Identifier: GPL-2.0

//! Memory regions.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! C: `struct ib_mr`, which this crate allocates, because the core leaves that to the driver; ops
//! `get_dma_mr`, `reg_user_mr`, `rereg_user_mr`, `alloc_mr`, `map_mr_sg`, `dereg_mr`.

use crate::{
    bindings,
    device::Operations,
    enums::{
        Access,
        MrType, //
    },
    field::{
        read_field,
        write_field, //
    },
    object::{
        core_members,
        Managed,
        Object, //
    },
    pd::Pd,
    restrack::ResEntry,
    udata::{
        Caller,
        User, //
    }, //
};
use base::errno::eopnotsupp;
use core::{
    marker::PhantomData,
    mem::MaybeUninit, //
};
use kernel::{
    bindings as kbindings,
    error::{
        from_result,
        to_result,
        VTABLE_DEFAULT_ERROR, //
    },
    prelude::*, //
};

/// Memory of a process that is to be registered.
#[derive(Clone, Copy)]
pub struct UserRange {
    /// Address of the memory in the process.
    pub start: u64,
    /// Length of the memory in bytes.
    pub length: u64,
    /// Address by which the device knows `start`.
    pub virt_addr: u64,
    /// Access flags of the region.
    pub access: Access,
}

impl UserRange {
    /// Returns the address by which work requests name the first byte.
    pub fn iova(&self) -> u64 {
        if self.access.contains(Access::ZERO_BASED) {
            0
        } else {
            self.virt_addr
        }
    }
}

/// Changes that `ibv_rereg_mr()` makes to a region. A property that is `None` stays as it is.
pub struct MrChange<'a, D: Operations> {
    /// New memory. Its access flags are those of `access`, or else stay.
    pub memory: Option<MemoryRange>,
    /// New access flags of the region.
    pub access: Option<Access>,
    /// New protection domain of the region.
    pub pd: Option<&'a Pd<D>>,
}

/// New memory for an existing region.
#[derive(Clone, Copy)]
pub struct MemoryRange {
    /// Address of the memory in the process.
    pub start: u64,
    /// Length of the memory in bytes.
    pub length: u64,
    /// Address by which the device knows `start`.
    pub virt_addr: u64,
}

/// Keys of a memory region.
#[derive(Clone, Copy)]
pub struct MrKeys {
    /// Local key of the region.
    pub lkey: u32,
    /// Remote key of the region.
    pub rkey: u32,
}

/// A driver's data of a memory region.
#[vtable]
pub trait MemoryRegion<D: Operations>: Sized + Send + Sync {
    /// Returns an initializer of a region of all DMA addresses, for kernel users.
    fn get_dma(pd: &Pd<D>, access: Access) -> impl PinInit<Self, Error>;

    /// Returns an initializer of a region of memory of a process, which pins the memory: see
    /// [`Umem`](crate::umem::Umem).
    fn reg_user(pd: &Pd<D>, range: &UserRange, user: &User<'_, D>) -> impl PinInit<Self, Error>;

    /// Returns an initializer of a region for fast registration of up to `max_num_sg` pages or
    /// elements, for kernel users.
    fn alloc(pd: &Pd<D>, mr_type: MrType, max_num_sg: u32) -> impl PinInit<Self, Error>;

    /// Creates the region in the device and returns its keys.
    fn start(mr: &Mr<D>) -> Result<MrKeys>;

    /// Changes a region of memory of a process in one step, with the same keys. After an error the
    /// region is unchanged.
    fn rereg(_mr: &Mr<D>, _change: &MrChange<'_, D>, _user: &User<'_, D>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Maps the pages of a region for fast registration: clears its page list, then calls
    /// [`SgPages::map`], or [`SgPages::map_elements`] if the region may have gaps.
    fn map_sg(mr: &Mr<D>, pages: SgPages<'_, D>) -> Result<u32>;

    /// Deregisters the region. When this returns `Ok`, the device must not use the pages any more.
    fn dereg(mr: &Mr<D>) -> Result;

    /// Describes the region to `rdma resource`.
    fn fill_res(_mr: &Mr<D>, _entry: &mut ResEntry<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Passes the raw context of the region to `put`, for `rdma resource -r`.
    fn fill_res_raw(_mr: &Mr<D>, _put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// A memory region with the driver's data.
pub type Mr<D> = Managed<MrObject<D>>;

/// The kind of object that an [`Mr`] is.
pub struct MrObject<D>(PhantomData<D>);

// SAFETY: `allocate` sets `device`, which is that of the protection domain, and `pd`.
// `rereg_user_mr` changes `pd` only to a protection domain of the same process. The core uses an
// `ib_mr` from any thread.
unsafe impl<D: Operations> Object for MrObject<D> {
    type Driver = D;
    type Extra = ();
    type Data = D::Mr;

    const NAME: &'static str = "memory region";

    core_members!(ib_mr, user as pd);

    fn destroy(mr: &Mr<D>) -> Result {
        D::Mr::dereg(mr)
    }

    unsafe fn free(mr: *mut bindings::ib_mr) {
        // SAFETY: The memory comes from `KBox::into_raw` in `allocate`. The caller promises that
        // its contents were dropped and that it is not used afterwards.
        drop(unsafe { KBox::from_raw(mr.cast::<MaybeUninit<Mr<D>>>()) });
    }

    fn fill_res(mr: &Mr<D>, entry: &mut ResEntry<'_>) -> Result {
        D::Mr::fill_res(mr, entry)
    }

    fn fill_res_raw(mr: &Mr<D>, put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        D::Mr::fill_res_raw(mr, put)
    }
}

impl<D: Operations> Mr<D> {
    /// Returns the keys of the region.
    pub fn keys(&self) -> MrKeys {
        // `ib_update_fast_reg_key()` may change the keys at any time.
        MrKeys {
            lkey: read_field!(self, lkey),
            rkey: read_field!(self, rkey),
        }
    }

    /// Returns the address by which the device knows the region, as set by the last `map_mr_sg`.
    pub fn iova(&self) -> u64 {
        read_field!(self, iova)
    }

    /// Returns the length in bytes, as set by the last `map_mr_sg`.
    pub fn length(&self) -> u64 {
        read_field!(self, length)
    }

    /// Returns the page size of a fast registration in bytes.
    pub fn page_size(&self) -> u32 {
        read_field!(self, page_size)
    }

    pub(crate) const fn fill_ops(ops: &mut bindings::ib_device_ops) {
        ops.get_dma_mr = Some(Self::op_get_dma);
        ops.reg_user_mr = Some(Self::op_reg_user);
        ops.alloc_mr = Some(Self::op_alloc);
        ops.map_mr_sg = Some(Self::op_map_sg);
        ops.dereg_mr = Some(Self::op_destroy);
        if <D::Mr as MemoryRegion<D>>::HAS_REREG {
            ops.rereg_user_mr = Some(Self::op_rereg_user);
        }
        if <D::Mr as MemoryRegion<D>>::HAS_FILL_RES {
            ops.fill_res_mr_entry = Some(Self::op_fill_res);
        }
        if <D::Mr as MemoryRegion<D>>::HAS_FILL_RES_RAW {
            ops.fill_res_mr_entry_raw = Some(Self::op_fill_res_raw);
        }
    }

    /// Creates a region. This crate allocates its memory, not the core.
    ///
    /// # Safety
    ///
    /// `pd` must be STARTED.
    unsafe fn allocate(
        pd: *mut bindings::ib_pd,
        caller: &Caller<'_, D>,
        (iova, length): (u64, u64),
        init: impl PinInit<D::Mr, Error>,
    ) -> *mut bindings::ib_mr {
        let start = |mr: &Self| {
            let keys = D::Mr::start(mr)?;
            // No other code knows the region yet.
            write_field!(mr, lkey, keys.lkey);
            write_field!(mr, rkey, keys.rkey);
            // The core does not set these in every way of registering (UVERBS_METHOD_REG_MR).
            write_field!(mr, iova, iova);
            write_field!(mr, length, length);
            Ok(())
        };
        let allocate = || {
            let mr =
                KBox::into_raw(KBox::<Self>::new_uninit(GFP_KERNEL)?).cast::<bindings::ib_mr>();
            // SAFETY: The caller promises that `pd` is STARTED, so its device is set.
            let device = unsafe { (*pd).device };
            let raw = bindings::ib_mr {
                device,
                pd,
                ..Default::default()
            };
            // SAFETY: The allocation is large enough for a `Self`, which begins with an `ib_mr`,
            // and is not shared yet.
            unsafe { mr.write(raw) };
            // SAFETY: The allocation does not move. With `device` and `pd` set, `mr` is NEW.
            let draft = unsafe { Self::build(mr, init) }
                // SAFETY: `build` has failed, so no field has contents to drop, and no other code
                // knows `mr`.
                .inspect_err(|_| unsafe { MrObject::<D>::free(mr) })?;
            // A memory window may be bound to the region before the response is finished.
            draft.start_answered(caller, start)?;
            Ok(mr)
        };
        allocate().unwrap_or_else(|e: Error| e.to_ptr())
    }

    /// # Safety
    ///
    /// Only the core may call this op: ARGUMENTS must hold, and `pd` must be STARTED.
    unsafe extern "C" fn op_get_dma(
        pd: *mut bindings::ib_pd,
        access: c_int,
    ) -> *mut bindings::ib_mr {
        // CAST: The access flags are bit flags.
        let access = Access::from_raw(access as u32);
        // SAFETY: By the contract of this op `pd` is STARTED, and it stays alive during the call.
        let init = D::Mr::get_dma(unsafe { Pd::from_raw(pd) }, access);
        // SAFETY: By the contract of this op `pd` is STARTED.
        unsafe { Self::allocate(pd, &Caller::Kernel, (0, 0), init) }
    }

    /// # Safety
    ///
    /// Only the core may call this op: ARGUMENTS must hold, and `pd` must be STARTED.
    unsafe extern "C" fn op_reg_user(
        pd: *mut bindings::ib_pd,
        start: u64,
        length: u64,
        virt_addr: u64,
        access: c_int,
        dmah: *mut bindings::ib_dmah,
        udata: *mut bindings::ib_udata,
    ) -> *mut bindings::ib_mr {
        if !dmah.is_null() {
            return eopnotsupp().to_ptr();
        }
        // SAFETY: By the contract of this op `pd` is STARTED, and ARGUMENTS holds for `udata`.
        let caller = match unsafe { Pd::<D>::caller(pd, udata) } {
            Ok(caller) => caller,
            Err(e) => return e.to_ptr(),
        };
        let Some(user) = caller.user() else {
            return EINVAL.to_ptr();
        };
        let range = UserRange {
            start,
            length,
            virt_addr,
            // CAST: The access flags are bit flags.
            access: Access::from_raw(access as u32),
        };
        // SAFETY: By the contract of this op `pd` is STARTED, and it stays alive during the call.
        let init = D::Mr::reg_user(unsafe { Pd::from_raw(pd) }, &range, user);
        // SAFETY: By the contract of this op `pd` is STARTED.
        unsafe { Self::allocate(pd, &caller, (virt_addr, length), init) }
    }

    /// Changes the region in place. The return value `NULL` informs the core that there is no new
    /// region.
    ///
    /// # Safety
    ///
    /// Only the core may call this op: `mr` must be STARTED, and ARGUMENTS must hold, with `pd`
    /// STARTED if `flags` has `IB_MR_REREG_PD`.
    unsafe extern "C" fn op_rereg_user(
        mr: *mut bindings::ib_mr,
        flags: c_int,
        start: u64,
        length: u64,
        virt_addr: u64,
        access: c_int,
        pd: *mut bindings::ib_pd,
        udata: *mut bindings::ib_udata,
    ) -> *mut bindings::ib_mr {
        // CAST: `flags` consists of three bit flags.
        let has = |flag: bindings::ib_mr_rereg_flags| flags as u32 & flag != 0;
        let rereg = || {
            // SAFETY: By the contract of this op `mr` is STARTED, and it stays alive during the
            // call.
            let this = unsafe { Self::from_raw(mr) };
            // SAFETY: By the contract of this op `mr` is STARTED, and ARGUMENTS holds for `udata`.
            let caller = unsafe { Self::caller(mr, udata) }?;
            let user = caller.user().ok_or(EINVAL)?;
            let change = MrChange {
                memory: has(bindings::ib_mr_rereg_flags_IB_MR_REREG_TRANS).then_some(MemoryRange {
                    start,
                    length,
                    virt_addr,
                }),
                access: has(bindings::ib_mr_rereg_flags_IB_MR_REREG_ACCESS)
                    // CAST: The access flags are bit flags.
                    .then(|| Access::from_raw(access as u32)),
                pd: has(bindings::ib_mr_rereg_flags_IB_MR_REREG_PD)
                    // SAFETY: By the contract of this op `pd` is STARTED if this flag is set.
                    .then(|| unsafe { Pd::from_raw(pd) }),
            };
            caller.finish_input()?;
            // The response is finished first, because a change cannot be undone, and drivers have
            // no response data.
            caller.finish_output()?;
            D::Mr::rereg(this, &change, user)
        };
        match rereg() {
            Ok(()) => core::ptr::null_mut(),
            Err(e) => e.to_ptr(),
        }
    }

    /// # Safety
    ///
    /// Only the core may call this op: ARGUMENTS must hold, and `pd` must be STARTED.
    unsafe extern "C" fn op_alloc(
        pd: *mut bindings::ib_pd,
        mr_type: bindings::ib_mr_type,
        max_num_sg: u32,
    ) -> *mut bindings::ib_mr {
        let Some(mr_type) = MrType::from_raw(mr_type) else {
            return eopnotsupp().to_ptr();
        };
        // SAFETY: By the contract of this op `pd` is STARTED, and it stays alive during the call.
        let init = D::Mr::alloc(unsafe { Pd::from_raw(pd) }, mr_type, max_num_sg);
        // SAFETY: By the contract of this op `pd` is STARTED.
        unsafe { Self::allocate(pd, &Caller::Kernel, (0, 0), init) }
    }

    /// # Safety
    ///
    /// Only the core may call this op: `mr` must be STARTED, and ARGUMENTS must hold, with `sg` a
    /// DMA-mapped scatter list, and `offset` `NULL` or valid.
    unsafe extern "C" fn op_map_sg(
        mr: *mut bindings::ib_mr,
        sg: *mut kbindings::scatterlist,
        nents: c_int,
        offset: *mut c_uint,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `mr` is STARTED, and it stays alive during the
            // call.
            let this = unsafe { Self::from_raw(mr) };
            // INVARIANT: By the contract of this op `sg` is a mapped list and `offset` is `NULL` or
            // valid.
            let pages = SgPages {
                mr: this,
                sg,
                nents,
                offset,
            };
            Ok(D::Mr::map_sg(this, pages)?.try_into()?)
        })
    }
}

/// A scatter list that is to be mapped into a region for fast registration.
///
/// # Invariants
///
/// `sg` is a DMA-mapped scatter list as `ib_map_mr_sg()` gets it, of which up to `nents` entries
/// are mapped. `offset` is `NULL` or valid for reads and writes. Both are valid for `'a`, and the
/// caller of the verb is the only user of the region meanwhile.
pub struct SgPages<'a, D: Operations> {
    mr: &'a Mr<D>,
    sg: *mut kbindings::scatterlist,
    nents: c_int,
    offset: *mut c_uint,
}

/// The callback of `ib_sg_to_pages()`, stored after the `ib_mr` that the C function passes to it.
#[repr(C)]
struct Mapping<F> {
    /// A copy of the C struct of the region, because `ib_sg_to_pages()` passes no other cookie than
    /// its address.
    raw: bindings::ib_mr,
    set_page: F,
}

impl<D: Operations> SgPages<'_, D> {
    /// Calls `set_page` with the address of each page, and sets the address and the length of the
    /// region. Returns the number of entries that were mapped.
    ///
    /// `set_page` returns an error when the region has no room for the page. Mapping ends before
    /// that page.
    pub fn map(self, set_page: impl FnMut(u64) -> Result) -> Result<u32> {
        self.map_with(set_page)
    }

    fn map_with<F: FnMut(u64) -> Result>(self, set_page: F) -> Result<u32> {
        /// # Safety
        ///
        /// `mr` must be the address of a `Mapping<F>` to which there is no other reference.
        unsafe extern "C" fn set<F: FnMut(u64) -> Result>(
            mr: *mut bindings::ib_mr,
            addr: u64,
        ) -> c_int {
            // SAFETY: The caller promises that `mr` is the address of a `Mapping<F>` without other
            // references.
            let set_page = unsafe { &mut (*mr.cast::<Mapping<F>>()).set_page };
            from_result(|| {
                set_page(addr)?;
                Ok(0)
            })
        }

        let mut mapping = Mapping {
            raw: bindings::ib_mr {
                page_size: self.mr.page_size(),
                ..Default::default()
            },
            set_page,
        };
        // SAFETY: By the type invariant the list is mapped and `offset` is `NULL` or valid.
        // `mapping` begins with an `ib_mr`, of which the function reads the page size and writes
        // address and length, and which it passes to `set`. It is not referred to otherwise during
        // the call.
        let n = unsafe {
            bindings::ib_sg_to_pages(
                (&raw mut mapping).cast(),
                self.sg,
                self.nents,
                self.offset,
                Some(set::<F>),
            )
        };
        to_result(n.min(0))?;
        self.set_range(mapping.raw.iova, mapping.raw.length);
        Ok(n.try_into()?)
    }

    fn set_range(&self, iova: u64, length: u64) {
        // By the type invariant the caller of the verb is the only user of the region.
        write_field!(self.mr, iova, iova);
        write_field!(self.mr, length, length);
    }

    /// Calls `set` with the address and the length of each entry. The entries need not be whole
    /// pages. Sets the address of the region, which is that of the first byte, and its length.
    /// Returns the number of entries that were mapped.
    ///
    /// `set` returns an error when the region has no room for the entry. Mapping ends before that
    /// entry.
    pub fn map_elements(self, mut set: impl FnMut(u64, u64) -> Result) -> Result<u32> {
        let mut skip = 0;
        if !self.offset.is_null() {
            // SAFETY: By the type invariant `offset`, which is not `NULL`, is valid for reads.
            skip = u64::from(unsafe { *self.offset });
        }
        let (mut iova, mut length) = (0, 0u64);
        let (mut sg, mut mapped) = (self.sg, 0);
        // CAST: A negative number counts as 0, so the number fits.
        while mapped < self.nents.max(0) as u32 && !sg.is_null() {
            // SAFETY: By the type invariant `sg`, which is not `NULL`, is an entry of a mapped
            // list.
            let addr = unsafe { kbindings::sg_dma_address(sg) };
            // SAFETY: By the type invariant `sg`, which is not `NULL`, is an entry of a mapped
            // list.
            let bytes = u64::from(unsafe { kbindings::sg_dma_len(sg) });
            let addr = addr.checked_add(skip).ok_or(EINVAL)?;
            let bytes = bytes.checked_sub(skip).ok_or(EINVAL)?;
            let longer = length.checked_add(bytes).ok_or(EINVAL)?;
            match set(addr, bytes) {
                Ok(()) => {}
                Err(_) if mapped > 0 => break,
                Err(e) => return Err(e),
            }
            if mapped == 0 {
                iova = addr;
            }
            (length, skip) = (longer, 0);
            mapped += 1;
            // SAFETY: `sg` is an entry of the list. The function returns `NULL` after the last
            // entry.
            sg = unsafe { kbindings::sg_next(sg) };
        }
        if mapped == 0 {
            return Err(EINVAL);
        }
        self.set_range(iova, length);
        if !self.offset.is_null() {
            // The entries are always mapped completely, so the next call starts at offset 0.
            //
            // SAFETY: By the type invariant `offset`, which is not `NULL`, is valid for writes.
            unsafe { *self.offset = 0 };
        }
        Ok(mapped)
    }
}
