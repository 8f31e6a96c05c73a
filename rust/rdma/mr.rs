// SPDX-License-Identifier: GPL-2.0

//! Memory regions.
//!
//! C: `struct ib_mr`, which the driver allocates (here: this crate does); ops `get_dma_mr`,
//! `reg_user_mr`, `rereg_user_mr`, `alloc_mr`, `map_mr_sg`, `dereg_mr`.

use crate::{
    base::errno::eopnotsupp,
    bindings,
    device::Operations,
    enums::{
        Access,
        MrType, //
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

/// Memory of a process to register.
#[derive(Clone, Copy)]
pub struct UserRange {
    /// Address in the process.
    pub start: u64,
    /// Length.
    pub length: u64,
    /// Address by which the device knows `start`.
    pub virt_addr: u64,
    /// Access flags.
    pub access: Access,
}

impl UserRange {
    /// Address by which work requests name the first byte.
    pub fn iova(&self) -> u64 {
        if self.access.contains(Access::ZERO_BASED) {
            0
        } else {
            self.virt_addr
        }
    }
}

/// What of a region is changed by `ibv_rereg_mr()`. What is `None` stays as it is.
pub struct MrChange<'a, D: Operations> {
    /// The memory; its access flags are those of `access`, or stay.
    pub memory: Option<MemoryRange>,
    /// The access flags.
    pub access: Option<Access>,
    /// The protection domain.
    pub pd: Option<&'a Pd<D>>,
}

/// Other memory for a region.
#[derive(Clone, Copy)]
pub struct MemoryRange {
    /// Address in the process.
    pub start: u64,
    /// Length.
    pub length: u64,
    /// Address by which the device knows `start`.
    pub virt_addr: u64,
}

/// Keys of a region.
#[derive(Clone, Copy)]
pub struct MrKeys {
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// A driver's data of a memory region.
#[vtable]
pub trait MemoryRegion<D: Operations>: Sized + Send + Sync {
    /// A region of all DMA addresses, for kernel users.
    fn get_dma(pd: &Pd<D>, access: Access) -> impl PinInit<Self, Error>;

    /// A region of memory of a process. Pins it: see [`Umem`](crate::umem::Umem).
    fn reg_user(pd: &Pd<D>, range: &UserRange, user: &User<'_, D>) -> impl PinInit<Self, Error>;

    /// A region for fast registration of at most `max_num_sg` pages, or elements, for kernel users.
    fn alloc(pd: &Pd<D>, mr_type: MrType, max_num_sg: u32) -> impl PinInit<Self, Error>;

    /// Makes the region known to the device; returns its keys.
    fn start(mr: &Mr<D>) -> Result<MrKeys>;

    /// Changes a region of memory of a process in one step; its keys stay. If it fails, nothing has changed.
    fn rereg(_mr: &Mr<D>, _change: &MrChange<'_, D>, _user: &User<'_, D>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Takes the pages of a region for fast registration: clears its page list, then calls
    /// [`SgPages::map`], or [`SgPages::map_elements`] if it may have gaps.
    fn map_sg(mr: &Mr<D>, pages: SgPages<'_, D>) -> Result<u32>;

    /// Deregisters the region. The device must have let go of the pages.
    fn dereg(mr: &Mr<D>) -> Result;

    /// Describes the region to `rdma resource`.
    fn fill_res(_mr: &Mr<D>, _entry: &mut ResEntry<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The region's raw context for `rdma resource -r`.
    fn fill_res_raw(_mr: &Mr<D>, _put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// A memory region.
pub type Mr<D> = Managed<MrObject<D>>;

/// The kind of object that an [`Mr`] is.
pub struct MrObject<D>(PhantomData<D>);

// SAFETY: `allocate` sets `device` and `pd`; `rereg_user_mr` changes `pd` to one of the same process.
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
        // SAFETY: From `KBox::into_raw` in `allocate`; what was in it was dropped.
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
    /// Keys.
    pub fn keys(&self) -> MrKeys {
        let mr = self.as_raw();
        // SAFETY: Plain integers, which `ib_update_fast_reg_key()` may change at any time.
        unsafe {
            MrKeys {
                lkey: (&raw const (*mr).lkey).read_volatile(),
                rkey: (&raw const (*mr).rkey).read_volatile(),
            }
        }
    }

    /// Address by which the device knows the region, as `map_mr_sg` left it.
    pub fn iova(&self) -> u64 {
        // SAFETY: A plain integer, written by the region's one user.
        unsafe { (&raw const (*self.as_raw()).iova).read_volatile() }
    }

    /// Length, as `map_mr_sg` left it.
    pub fn length(&self) -> u64 {
        // SAFETY: As above.
        unsafe { (&raw const (*self.as_raw()).length).read_volatile() }
    }

    /// Page size of a fast registration.
    pub fn page_size(&self) -> u32 {
        // SAFETY: As above.
        unsafe { (&raw const (*self.as_raw()).page_size).read_volatile() }
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

    /// Makes a region. Its memory is ours, not the core's.
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
            let raw = mr.as_raw();
            // SAFETY: Nobody else knows the region yet.
            unsafe {
                (*raw).lkey = keys.lkey;
                (*raw).rkey = keys.rkey;
                // Not the core's to set in every way of registering: UVERBS_METHOD_REG_MR.
                (*raw).iova = iova;
                (*raw).length = length;
            }
            Ok(())
        };
        let allocate = || {
            let mr =
                KBox::into_raw(KBox::<Self>::new_uninit(GFP_KERNEL)?).cast::<bindings::ib_mr>();
            // SAFETY: The memory is ours. An `ib_mr` may be all zeroes; with this it is NEW.
            let draft = unsafe {
                mr.write_bytes(0, 1);
                (*mr).device = (*pd).device;
                (*mr).pd = pd;
                Self::build(mr, init)
            }
            // SAFETY: Nothing of ours is in it, and nobody knows it.
            .inspect_err(|_| unsafe { MrObject::<D>::free(mr) })?;
            // A window may be bound to it before the response is through.
            draft.start_answered(caller, start)?;
            Ok(mr)
        };
        allocate().unwrap_or_else(|e: Error| e.to_ptr())
    }

    /// # Safety
    ///
    /// For the core: ARGUMENTS.
    unsafe extern "C" fn op_get_dma(
        pd: *mut bindings::ib_pd,
        access: c_int,
    ) -> *mut bindings::ib_mr {
        // CAST: Bit flags.
        let access = Access::from_raw(access as u32);
        // SAFETY: ARGUMENTS: `pd` is STARTED.
        unsafe {
            Self::allocate(
                pd,
                &Caller::Kernel,
                (0, 0),
                D::Mr::get_dma(Pd::from_raw(pd), access),
            )
        }
    }

    /// # Safety
    ///
    /// For the core: ARGUMENTS.
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
        // SAFETY: ARGUMENTS: `pd` is STARTED.
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
            // CAST: Bit flags.
            access: Access::from_raw(access as u32),
        };
        // SAFETY: ARGUMENTS: `pd` is STARTED.
        unsafe {
            let init = D::Mr::reg_user(Pd::from_raw(pd), &range, user);
            Self::allocate(pd, &caller, (virt_addr, length), init)
        }
    }

    /// Always changes the region itself: `NULL` tells the core that there is no new one.
    ///
    /// # Safety
    ///
    /// For the core: STARTED, ARGUMENTS: `pd` is STARTED.
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
        // CAST: Bit flags, three of them.
        let has = |flag: bindings::ib_mr_rereg_flags| flags as u32 & flag != 0;
        let rereg = || {
            // SAFETY: STARTED, ARGUMENTS.
            let (this, caller) = unsafe { (Self::from_raw(mr), Self::caller(mr, udata)?) };
            let user = caller.user().ok_or(EINVAL)?;
            let change = MrChange {
                memory: has(bindings::ib_mr_rereg_flags_IB_MR_REREG_TRANS).then_some(MemoryRange {
                    start,
                    length,
                    virt_addr,
                }),
                access: has(bindings::ib_mr_rereg_flags_IB_MR_REREG_ACCESS)
                    // CAST: Bit flags.
                    .then(|| Access::from_raw(access as u32)),
                pd: has(bindings::ib_mr_rereg_flags_IB_MR_REREG_PD)
                    // SAFETY: ARGUMENTS: STARTED.
                    .then(|| unsafe { Pd::from_raw(pd) }),
            };
            caller.finish_input()?;
            // A driver has nothing to say here. First, because a change is not taken back.
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
    /// For the core: ARGUMENTS.
    unsafe extern "C" fn op_alloc(
        pd: *mut bindings::ib_pd,
        mr_type: bindings::ib_mr_type,
        max_num_sg: u32,
    ) -> *mut bindings::ib_mr {
        let Some(mr_type) = MrType::from_raw(mr_type) else {
            return eopnotsupp().to_ptr();
        };
        // SAFETY: ARGUMENTS: `pd` is STARTED.
        unsafe {
            let init = D::Mr::alloc(Pd::from_raw(pd), mr_type, max_num_sg);
            Self::allocate(pd, &Caller::Kernel, (0, 0), init)
        }
    }

    /// # Safety
    ///
    /// For the core: STARTED, ARGUMENTS.
    unsafe extern "C" fn op_map_sg(
        mr: *mut bindings::ib_mr,
        sg: *mut kbindings::scatterlist,
        nents: c_int,
        offset: *mut c_uint,
    ) -> c_int {
        from_result(|| {
            // SAFETY: STARTED.
            let this = unsafe { Self::from_raw(mr) };
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

/// A scatter list to map into a region for fast registration.
pub struct SgPages<'a, D: Operations> {
    mr: &'a Mr<D>,
    sg: *mut kbindings::scatterlist,
    nents: c_int,
    offset: *mut c_uint,
}

/// What `set_page` of `ib_sg_to_pages` finds behind the region.
#[repr(C)]
struct Mapping<F> {
    /// A copy of the region's C struct: `ib_sg_to_pages()` knows no other cookie than its address.
    raw: bindings::ib_mr,
    set_page: F,
}

impl<D: Operations> SgPages<'_, D> {
    /// Calls `set_page` with the address of each page; sets the region's address and length.
    /// Returns the number of entries that were mapped.
    ///
    /// `set_page` fails when the region has no room for the page: mapping ends before it.
    pub fn map(self, set_page: impl FnMut(u64) -> Result) -> Result<u32> {
        self.map_with(set_page)
    }

    fn map_with<F: FnMut(u64) -> Result>(self, set_page: F) -> Result<u32> {
        /// # Safety
        ///
        /// `mr` must be the `raw` of a `Mapping<F>`.
        unsafe extern "C" fn set<F: FnMut(u64) -> Result>(
            mr: *mut bindings::ib_mr,
            addr: u64,
        ) -> c_int {
            // SAFETY: See above; nobody else refers to it while `ib_sg_to_pages` runs.
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
        // SAFETY: The caller of the verb passes a mapped list; of the region, the function reads
        // the page size and writes address and length; `set` gets the region back.
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
        let raw = self.mr.as_raw();
        // SAFETY: Plain integers of the region, of which the caller of the verb is the only user.
        unsafe {
            (&raw mut (*raw).iova).write_volatile(iova);
            (&raw mut (*raw).length).write_volatile(length);
        }
    }

    /// Calls `set` with address and length of each entry, of which none is like a page; sets the
    /// region's address, that of the first byte, and its length. Returns the number of entries
    /// that were mapped.
    ///
    /// `set` fails when the region has no room for the entry: mapping ends before it.
    pub fn map_elements(self, mut set: impl FnMut(u64, u64) -> Result) -> Result<u32> {
        let mut skip = 0;
        if !self.offset.is_null() {
            // SAFETY: The caller of the verb passes a number of its own, or NULL.
            skip = u64::from(unsafe { *self.offset });
        }
        let (mut iova, mut length) = (0, 0u64);
        let (mut sg, mut mapped) = (self.sg, 0);
        // CAST: none if it is negative.
        while mapped < self.nents.max(0) as u32 && !sg.is_null() {
            // SAFETY: An entry of a mapped list, as the caller of the verb passes it.
            let (addr, bytes) = unsafe {
                (
                    kbindings::sg_dma_address(sg),
                    u64::from(kbindings::sg_dma_len(sg)),
                )
            };
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
            // SAFETY: As above; behind the last entry there is NULL.
            sg = unsafe { kbindings::sg_next(sg) };
        }
        if mapped == 0 {
            return Err(EINVAL);
        }
        self.set_range(iova, length);
        if !self.offset.is_null() {
            // SAFETY: As above. Entries are mapped whole.
            unsafe { *self.offset = 0 };
        }
        Ok(mapped)
    }
}
