// SPDX-License-Identifier: GPL-2.0

//! Memory regions.
//!
//! C: `struct ib_mr`, which the driver allocates (here: this crate does); ops `get_dma_mr`,
//! `reg_user_mr`, `alloc_mr`, `map_mr_sg`, `rereg_user_mr`, `dereg_mr`.

use crate::{
    bindings,
    count::{
        Counted,
        Objects, //
    },
    device::{
        Device,
        Operations, //
    },
    enums::{
        Access,
        MrType, //
    },
    errno::eopnotsupp,
    object::{
        caller,
        init_slot, //
    },
    pd::Pd,
    restrack::ResEntry,
    udata::User, //
};
use kernel::{
    bindings as kbindings,
    error::{
        from_result,
        to_result,
        VTABLE_DEFAULT_ERROR, //
    },
    prelude::*,
    types::Opaque, //
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

    /// A region for fast registration of at most `max_num_sg` pages, for kernel users.
    fn alloc(pd: &Pd<D>, mr_type: MrType, max_num_sg: u32) -> impl PinInit<Self, Error>;

    /// Makes the region known to the device; returns its keys.
    fn start(mr: &Mr<D>) -> Result<MrKeys>;

    /// Takes the pages of a region for fast registration: clears its page list, then calls
    /// [`SgPages::map`].
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
#[repr(C)]
pub struct Mr<D: Operations> {
    raw: Opaque<bindings::ib_mr>,
    _count: Counted<Objects>,
    data: D::Mr,
}

// SAFETY: An `ib_mr` may be used from any thread; the data is `Send`.
unsafe impl<D: Operations> Send for Mr<D> {}
// SAFETY: As above; the data is `Sync`.
unsafe impl<D: Operations> Sync for Mr<D> {}

impl<D: Operations> core::ops::Deref for Mr<D> {
    type Target = D::Mr;

    fn deref(&self) -> &D::Mr {
        &self.data
    }
}

impl<D: Operations> Mr<D> {
    /// # Safety
    ///
    /// `raw` must be a region of a device of `D`, alive for `'a`.
    pub(crate) unsafe fn from_raw<'a>(raw: *mut bindings::ib_mr) -> &'a Self {
        // SAFETY: `repr(C)` with the `ib_mr` first; see above.
        unsafe { &*raw.cast() }
    }

    /// Its device.
    pub fn device(&self) -> &Device<D> {
        // SAFETY: Set before anything else, constant.
        unsafe { Device::from_raw((*self.raw.get()).device) }
    }

    /// Keys.
    pub fn keys(&self) -> MrKeys {
        let mr = self.raw.get();
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
        unsafe { (&raw const (*self.raw.get()).iova).read_volatile() }
    }

    /// Length, as `map_mr_sg` left it.
    pub fn length(&self) -> u64 {
        // SAFETY: As above.
        unsafe { (&raw const (*self.raw.get()).length).read_volatile() }
    }

    /// Page size of a fast registration.
    pub fn page_size(&self) -> u32 {
        // SAFETY: As above.
        unsafe { (&raw const (*self.raw.get()).page_size).read_volatile() }
    }

    pub(crate) const fn fill_ops(ops: &mut bindings::ib_device_ops) {
        ops.get_dma_mr = Some(Self::op_get_dma);
        ops.reg_user_mr = Some(Self::op_reg_user);
        ops.alloc_mr = Some(Self::op_alloc);
        ops.map_mr_sg = Some(Self::op_map_sg);
        ops.dereg_mr = Some(Self::op_dereg);
        if <D::Mr as MemoryRegion<D>>::HAS_FILL_RES {
            ops.fill_res_mr_entry = Some(Self::op_fill_res);
        }
        if <D::Mr as MemoryRegion<D>>::HAS_FILL_RES_RAW {
            ops.fill_res_mr_entry_raw = Some(Self::op_fill_res_raw);
        }
    }

    /// Makes a region.
    ///
    /// # Safety
    ///
    /// `pd` must be a protection domain of a device of `D`.
    unsafe fn make(
        pd: *mut bindings::ib_pd,
        init: impl PinInit<D::Mr, Error>,
        finish: impl FnOnce() -> Result,
    ) -> *mut bindings::ib_mr {
        let make = || {
            let mem = KBox::<Self>::new_uninit(GFP_KERNEL)?;
            let this = KBox::into_raw(mem).cast::<Self>();
            // SAFETY: The memory is ours, and does not move. An `ib_mr` may be all zeroes.
            let init = unsafe {
                (&raw mut (*this).raw).write_bytes(0, 1);
                (*(*this).raw.get()).device = (*pd).device;
                (*(*this).raw.get()).pd = pd;
                init_slot(&raw mut (*this).data, init)
            };
            if let Err(e) = init {
                // SAFETY: From `into_raw`; nothing in it is initialized.
                drop(unsafe { KBox::from_raw(this.cast::<core::mem::MaybeUninit<Self>>()) });
                return Err(e);
            }
            // SAFETY: As above; with this the region is initialized.
            let mr = unsafe {
                (&raw mut (*this)._count).write(Counted::new());
                KBox::from_raw(this)
            };
            let keys = D::Mr::start(&mr)?;
            let raw = mr.raw.get();
            // SAFETY: Nobody else knows the region yet.
            unsafe {
                (*raw).lkey = keys.lkey;
                (*raw).rkey = keys.rkey;
            }
            if let Err(e) = finish() {
                if D::Mr::dereg(&mr).is_err() {
                    // The device may still use the pages, so they must stay pinned.
                    core::mem::forget(mr);
                    pr_err!("cannot deregister a memory region whose response failed\n");
                }
                return Err(e);
            }
            Ok(KBox::into_raw(mr).cast::<bindings::ib_mr>())
        };
        make().unwrap_or_else(|e: Error| e.to_ptr())
    }

    /// # Safety
    ///
    /// Only for the core.
    unsafe extern "C" fn op_get_dma(
        pd: *mut bindings::ib_pd,
        access: c_int,
    ) -> *mut bindings::ib_mr {
        // CAST: Bit flags.
        let access = Access::from_raw(access as u32);
        // SAFETY: The core passes a protection domain of ours.
        unsafe { Self::make(pd, D::Mr::get_dma(Pd::from_raw(pd), access), || Ok(())) }
    }

    /// # Safety
    ///
    /// Only for the core.
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
        // SAFETY: The core passes a protection domain of ours; `udata` is `NULL` or from a bundle of
        // our device, and valid for the call.
        let caller = match unsafe { caller::<D>(udata, !(*pd).uobject.is_null()) } {
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
        // SAFETY: The core passes a protection domain of ours.
        unsafe {
            let init = D::Mr::reg_user(Pd::from_raw(pd), &range, user);
            Self::make(pd, init, || {
                caller.finish_input()?;
                caller.finish_output()
            })
        }
    }

    /// # Safety
    ///
    /// Only for the core.
    unsafe extern "C" fn op_alloc(
        pd: *mut bindings::ib_pd,
        mr_type: bindings::ib_mr_type,
        max_num_sg: u32,
    ) -> *mut bindings::ib_mr {
        let Some(mr_type) = MrType::from_raw(mr_type) else {
            return eopnotsupp().to_ptr();
        };
        // SAFETY: The core passes a protection domain of ours.
        unsafe {
            let init = D::Mr::alloc(Pd::from_raw(pd), mr_type, max_num_sg);
            Self::make(pd, init, || Ok(()))
        }
    }

    /// # Safety
    ///
    /// Only for the core, with a region from `op_alloc`.
    unsafe extern "C" fn op_map_sg(
        mr: *mut bindings::ib_mr,
        sg: *mut kbindings::scatterlist,
        nents: c_int,
        offset: *mut c_uint,
    ) -> c_int {
        from_result(|| {
            // SAFETY: A region of ours.
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

    /// # Safety
    ///
    /// Only for the core, with a region of ours.
    unsafe extern "C" fn op_dereg(
        mr: *mut bindings::ib_mr,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: A region of ours.
            D::Mr::dereg(unsafe { Self::from_raw(mr) })?;
            // SAFETY: From `KBox::into_raw` in `make`; the core forgets it.
            drop(unsafe { KBox::from_raw(mr.cast::<Self>()) });
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, with a region of ours.
    unsafe extern "C" fn op_fill_res(
        msg: *mut kbindings::sk_buff,
        mr: *mut bindings::ib_mr,
    ) -> c_int {
        // SAFETY: A region of ours; `msg` is a message of the core's.
        unsafe { ResEntry::fill(msg, |e| D::Mr::fill_res(Self::from_raw(mr), e)) }
    }

    /// # Safety
    ///
    /// Only for the core, with a region of ours.
    unsafe extern "C" fn op_fill_res_raw(
        msg: *mut kbindings::sk_buff,
        mr: *mut bindings::ib_mr,
    ) -> c_int {
        // SAFETY: A region of ours; `msg` is a message of the core's.
        unsafe { ResEntry::fill_raw(msg, |put| D::Mr::fill_res_raw(Self::from_raw(mr), put)) }
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
        let raw = self.mr.raw.get();
        // SAFETY: Plain integers of the region, of which the caller of the verb is the only user.
        unsafe {
            (&raw mut (*raw).iova).write_volatile(mapping.raw.iova);
            (&raw mut (*raw).length).write_volatile(mapping.raw.length);
        }
        Ok(n.try_into()?)
    }
}
