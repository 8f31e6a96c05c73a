// SPDX-License-Identifier: GPL-2.0

//! Contexts of processes.
//!
//! C: `struct ib_ucontext`; ops `alloc_ucontext`, `dealloc_ucontext`, `disassociate_ucontext`,
//! `mmap`, `mmap_free`.

use crate::{
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
use base::count::{
    Counted,
    Objects, //
};
use core::ptr::NonNull;
use kernel::{
    bindings as kbindings,
    error::from_result,
    prelude::*, //
};

/// A driver's data of a context.
pub trait UserContext<D: Operations>: Sized + Send + Sync {
    /// True if another process that gets the file may import the context, because it needs no
    /// information besides that of the core.
    const IMPORTABLE: bool = false;

    /// Returns an initializer of the data, and responds. Mappable memory is created with `mmap`.
    fn create(dev: &Device<D>, mmap: &MmapContext, udata: &Udata<'_>) -> impl PinInit<Self, Error>;

    /// Destroys the context, all objects of which are destroyed already.
    fn destroy(ctx: &Ucontext<D>);

    /// Handles the removal of the device while the process has it open. The core has replaced every
    /// mapping by zeroes or will do so, destroys all objects, and reports a fatal event to the
    /// process.
    fn disassociate(_ctx: &Ucontext<D>) {}
}

/// A context of a process with the driver's data.
///
/// # Invariants
///
/// All fields of a context to which there is a reference are initialized.
#[repr(C)]
pub struct Ucontext<D: Operations> {
    mmap: MmapContext,
    _count: Counted<Objects>,
    data: D::Ucontext,
}

// SAFETY: The core allows the use of an `ib_ucontext` from any thread. The other fields are `Send`.
unsafe impl<D: Operations> Send for Ucontext<D> {}
// SAFETY: The core allows concurrent use of an `ib_ucontext`. The other fields are `Sync`.
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
    /// `raw` must be a context of a device of `D` whose fields are all initialized, and alive for
    /// `'a`.
    pub(crate) unsafe fn from_raw<'a>(raw: *mut bindings::ib_ucontext) -> &'a Self {
        // SAFETY: The struct is `repr(C)` and begins with the `ib_ucontext`, so `raw` points to a
        // `Self`. The caller promises that it is initialized and alive for `'a`.
        unsafe { &*raw.cast() }
    }

    /// Returns the device of the context.
    pub fn device(&self) -> &Device<D> {
        // SAFETY: The core sets `device` before it calls `alloc_ucontext`. It is constant, a device
        // of `D`, and outlives its contexts.
        unsafe { Device::from_raw((*self.mmap.as_raw()).device) }
    }

    /// Returns the part of the context that makes memory mappable in the process.
    pub fn mmap(&self) -> &MmapContext {
        &self.mmap
    }

    /// Implements `query_ucontext`, to which the driver adds nothing.
    ///
    /// # Safety
    ///
    /// There are no requirements.
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
    /// Only the core may call this op, with a zeroed object of the size of [`Self`] that does not
    /// move and whose device is set to one of `D`.
    unsafe extern "C" fn op_alloc(
        ctx: *mut bindings::ib_ucontext,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        let result = from_result(|| {
            // SAFETY: The core never passes `NULL`, which is checked, and `udata` is valid during
            // the call.
            let udata = unsafe { Udata::from_raw(NonNull::new(udata).ok_or(EINVAL)?) };
            let this = ctx.cast::<Self>();
            // SAFETY: By the contract of this op the memory after the C struct is unused, is large
            // enough, and does not move, and the device is one of `D`. `mmap` is initialized before
            // it is borrowed, and is dropped only after an error of `init_slot`, which leaves no
            // other field to drop.
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
                // SAFETY: All fields are initialized, and the core does not use the context after
                // an error.
                .inspect_err(|_| unsafe { Self::op_dealloc(ctx) })?;
            Ok(0)
        });
        if result != 0 {
            // SAFETY: The core has just allocated the context, and frees it after an error of this
            // op.
            unsafe { bindings::rdma_helper_ucontext_put_task(ctx) };
        }
        result
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a context that `op_alloc` has initialized, and as the
    /// last op.
    unsafe extern "C" fn op_dealloc(ctx: *mut bindings::ib_ucontext) {
        // SAFETY: By the contract of this op all fields are initialized. Each is dropped once and
        // not used afterwards, as the core frees the memory next.
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
    /// Only the core may call this op, with a context that `op_alloc` has initialized.
    unsafe extern "C" fn op_disassociate(ctx: *mut bindings::ib_ucontext) {
        // SAFETY: By the contract of this op the context is initialized, and it stays alive during
        // the call.
        D::Ucontext::disassociate(unsafe { Self::from_raw(ctx) });
    }

    /// # Safety
    ///
    /// Only the core may call this op, with a context that `op_alloc` has initialized and a mapping
    /// under construction.
    unsafe extern "C" fn op_mmap(
        ctx: *mut bindings::ib_ucontext,
        vma: *mut kbindings::vm_area_struct,
    ) -> c_int {
        // SAFETY: By the contract of this op `ctx` is a context of a device of this crate, and
        // `vma` is a mapping under construction.
        from_result(|| unsafe { mmap::map(ctx, vma) }.map(|()| 0))
    }
}
