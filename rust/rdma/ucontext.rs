// SPDX-License-Identifier: GPL-2.0

//! Contexts of processes.
//!
//! C: `struct ib_ucontext`; ops `alloc_ucontext`, `dealloc_ucontext`, `disassociate_ucontext`,
//! `mmap`, `mmap_free`.

use crate::{
    base::count::{
        Counted,
        Objects, //
    },
    bindings,
    device::{
        Device,
        Operations, //
    },
    mmap::{
        self,
        MmapContext, //
    },
    object::{
        init_slot,
        object_size, //
    },
    udata::Udata, //
};
use core::ptr::NonNull;
use kernel::{
    bindings as kbindings,
    error::from_result,
    prelude::*, //
};

/// A driver's data of a context.
pub trait UserContext<D: Operations>: Sized + Send + Sync {
    /// Whether another process that is given the file may import the context: what the core tells it is
    /// all that it needs.
    const IMPORTABLE: bool = false;

    /// Builds the data, and responds. What is to be mapped is made with `mmap`.
    fn create(dev: &Device<D>, mmap: &MmapContext, udata: &Udata<'_>) -> impl PinInit<Self, Error>;

    /// Destroys the context: every object of it is gone.
    fn destroy(ctx: &Ucontext<D>);

    /// The device goes away while the process has it open. The core has replaced, or will replace,
    /// every mapping by zeroes, destroys all objects, and reports a fatal event to the process.
    fn disassociate(_ctx: &Ucontext<D>) {}
}

/// A context of a process.
#[repr(C)]
pub struct Ucontext<D: Operations> {
    mmap: MmapContext,
    _count: Counted<Objects>,
    data: D::Ucontext,
}

// SAFETY: An `ib_ucontext` may be used from any thread; the data is `Send`.
unsafe impl<D: Operations> Send for Ucontext<D> {}
// SAFETY: As above; the data is `Sync`.
unsafe impl<D: Operations> Sync for Ucontext<D> {}

impl<D: Operations> core::ops::Deref for Ucontext<D> {
    type Target = D::Ucontext;

    fn deref(&self) -> &D::Ucontext {
        &self.data
    }
}

impl<D: Operations> Ucontext<D> {
    /// # Safety
    ///
    /// `raw` must be a context of a device of `D`, alive for `'a`.
    pub(crate) unsafe fn from_raw<'a>(raw: *mut bindings::ib_ucontext) -> &'a Self {
        // SAFETY: `repr(C)` with the `ib_ucontext` first; see above.
        unsafe { &*raw.cast() }
    }

    /// Its device.
    pub fn device(&self) -> &Device<D> {
        // SAFETY: Set by the core before `create`, constant.
        unsafe { Device::from_raw((*self.mmap.as_raw()).device) }
    }

    /// What makes memory mappable in the process.
    pub fn mmap(&self) -> &MmapContext {
        &self.mmap
    }

    /// The driver adds nothing to what the core says of a context.
    ///
    /// # Safety
    ///
    /// None.
    unsafe extern "C" fn op_query(
        _ctx: *mut bindings::ib_ucontext,
        _attrs: *mut bindings::uverbs_attr_bundle,
    ) -> c_int {
        0
    }

    pub(crate) const fn fill_ops(ops: &mut bindings::ib_device_ops) {
        ops.size_ib_ucontext = object_size::<Self>();
        ops.alloc_ucontext = Some(Self::op_alloc);
        ops.dealloc_ucontext = Some(Self::op_dealloc);
        ops.disassociate_ucontext = Some(Self::op_disassociate);
        if <D::Ucontext as UserContext<D>>::IMPORTABLE {
            ops.query_ucontext = Some(Self::op_query);
        }
        ops.mmap = Some(Self::op_mmap);
        ops.mmap_free = Some(mmap::free);
    }

    /// # Safety
    ///
    /// Only for the core, with a zeroed object of [`Self`]'s size.
    unsafe extern "C" fn op_alloc(
        ctx: *mut bindings::ib_ucontext,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        let result = from_result(|| {
            // SAFETY: The core always passes one, valid for the call.
            let udata = unsafe { Udata::from_raw(NonNull::new(udata).ok_or(EINVAL)?) };
            let this = ctx.cast::<Self>();
            // SAFETY: The memory behind the C struct is ours, and does not move.
            unsafe {
                (&raw mut (*this).mmap.shared).write(mmap::Shared::new()?);
                let dev = Device::<D>::from_raw((*ctx).device);
                let init = D::Ucontext::create(dev, &(*this).mmap, &udata);
                init_slot(&raw mut (*this).data, init).inspect_err(|_| {
                    mmap::Shared::end(&(*this).mmap.shared);
                    core::ptr::drop_in_place(&raw mut (*this).mmap);
                })?;
                (&raw mut (*this)._count).write(Counted::new());
            }
            udata
                .finish_input()
                .and_then(|()| udata.finish_output())
                // SAFETY: Allocated; the core forgets it.
                .inspect_err(|_| unsafe { Self::op_dealloc(ctx) })?;
            Ok(0)
        });
        if result != 0 {
            // SAFETY: The core has just made the context, and frees it next.
            unsafe { bindings::rdma_helper_ucontext_put_task(ctx) };
        }
        result
    }

    /// # Safety
    ///
    /// Only for the core, with an allocated context.
    unsafe extern "C" fn op_dealloc(ctx: *mut bindings::ib_ucontext) {
        // SAFETY: Allocated; the core frees the memory next.
        unsafe {
            D::Ucontext::destroy(Self::from_raw(ctx));
            let this = ctx.cast::<Self>();
            core::ptr::drop_in_place(&raw mut (*this).data);
            mmap::Shared::end(&(*this).mmap.shared);
            core::ptr::drop_in_place(&raw mut (*this).mmap);
            core::ptr::drop_in_place(&raw mut (*this)._count);
        }
    }

    /// # Safety
    ///
    /// Only for the core, with an allocated context.
    unsafe extern "C" fn op_disassociate(ctx: *mut bindings::ib_ucontext) {
        // SAFETY: Allocated.
        D::Ucontext::disassociate(unsafe { Self::from_raw(ctx) });
    }

    /// # Safety
    ///
    /// Only for the core, with an allocated context and a mapping under construction.
    unsafe extern "C" fn op_mmap(
        ctx: *mut bindings::ib_ucontext,
        vma: *mut kbindings::vm_area_struct,
    ) -> c_int {
        // SAFETY: As above.
        from_result(|| unsafe { mmap::map(ctx, vma) }.map(|()| 0))
    }
}
