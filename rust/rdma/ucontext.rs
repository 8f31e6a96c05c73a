// SPDX-License-Identifier: GPL-2.0

//! Contexts of processes.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
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
        // SAFETY: The reference keeps the context alive. The core sets `device` before it calls
        // `alloc_ucontext`, and it is constant.
        let dev = unsafe { (*self.mmap.as_raw()).device };
        // SAFETY: The device is one of `D`, and outlives its contexts.
        unsafe { Device::from_raw(dev) }
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
            // SAFETY: By the contract of this op the memory is large enough for a `Self`. Only the
            // address of a field is computed.
            let slot = unsafe { &raw mut (*this).mmap.shared };
            let shared = mmap::Shared::new()?;
            // SAFETY: By the contract of this op the memory after the C struct is unused.
            //
            // INVARIANT: The core has allocated the context, and frees it only after this op has
            // failed or after `op_dealloc`, which drop `mmap` before.
            unsafe { slot.write(shared) };
            // SAFETY: By the contract of this op the device is set.
            let dev = unsafe { (*ctx).device };
            // SAFETY: By the contract of this op the device is one of `D`. It outlives its
            // contexts.
            let dev = unsafe { Device::<D>::from_raw(dev) };
            // SAFETY: Both fields of `mmap` are initialized: the core has zeroed its struct, and
            // `shared` is written above. It is dropped only after an error of `init_slot`, which
            // has dropped the initializer that borrows it.
            let mmap = unsafe { &(*this).mmap };
            let init = D::Ucontext::create(dev, mmap, &udata);
            // SAFETY: By the contract of this op the memory is large enough for a `Self`. Only the
            // address of a field is computed.
            let slot = unsafe { &raw mut (*this).data };
            // SAFETY: By the contract of this op the memory after the C struct is unused and does
            // not move.
            unsafe { init_slot(slot, init) }.inspect_err(|_| {
                // SAFETY: `mmap` is initialized, and no code borrows it. The error leaves no other
                // field to drop, and the core frees the memory.
                unsafe { Self::drop_mmap(this) };
            })?;
            // SAFETY: By the contract of this op the memory is large enough for a `Self`. Only the
            // address of a field is computed.
            let slot = unsafe { &raw mut (*this)._count };
            // SAFETY: By the contract of this op the memory after the C struct is unused.
            //
            // INVARIANT: This is the last of the fields.
            unsafe { slot.write(Counted::new()) };
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
        // SAFETY: By the contract of this op the context is initialized, and it is alive.
        D::Ucontext::destroy(unsafe { Self::from_raw(ctx) });
        let this = ctx.cast::<Self>();
        // SAFETY: By the contract of this op the context is initialized. Only the address of a
        // field is computed.
        let data = unsafe { &raw mut (*this).data };
        // SAFETY: By the contract of this op the field is initialized. It is dropped once and not
        // used afterwards, as the core frees the memory next.
        unsafe { core::ptr::drop_in_place(data) };
        // SAFETY: By the contract of this op the field is initialized. It is dropped once and not
        // used afterwards, as the core frees the memory next.
        unsafe { Self::drop_mmap(this) };
        // SAFETY: By the contract of this op the context is initialized. Only the address of a
        // field is computed.
        let count = unsafe { &raw mut (*this)._count };
        // SAFETY: By the contract of this op the field is initialized. It is dropped once and not
        // used afterwards, as the core frees the memory next.
        unsafe { core::ptr::drop_in_place(count) };
    }

    /// Drops the field `mmap` of a context that is about to be freed.
    ///
    /// # Safety
    ///
    /// The field must be initialized, and the caller must not use it afterwards.
    unsafe fn drop_mmap(this: *mut Self) {
        // SAFETY: The caller promises that `this` points to a context. Only the address of a field
        // is computed.
        let mmap = unsafe { &raw mut (*this).mmap };
        // SAFETY: The caller promises that the field is initialized.
        mmap::Shared::end(unsafe { &(*mmap).shared });
        // SAFETY: The caller promises that the field is initialized and not used afterwards.
        unsafe { core::ptr::drop_in_place(mmap) };
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
