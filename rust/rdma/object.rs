// SPDX-License-Identifier: GPL-2.0

//! What the objects of the verbs have in common.

use crate::{
    bindings,
    device::Operations,
    ucontext::Ucontext,
    udata::{
        Caller,
        Udata,
        User, //
    }, //
};
use core::ptr::NonNull;
use kernel::prelude::*;

/// The core allocates objects with `kzalloc()`, which aligns no better than this.
const KMALLOC_MINALIGN: usize = 8;

/// Size of an object for `INIT_RDMA_OBJ_SIZE`; fails to compile if the core cannot align it.
pub(crate) const fn object_size<T>() -> usize {
    assert!(align_of::<T>() <= KMALLOC_MINALIGN);
    size_of::<T>()
}

/// Who calls a verb. The kernel is more privileged than any process, so only a call without any
/// sign of a process is the kernel's: no request data, and `of_process` is false.
///
/// `of_process` is what the core says of the object: that it, or the protection domain that it is
/// made in, has a `uobject`.
///
/// # Safety
///
/// `udata` must be `NULL`, or the `driver_udata` of an `uverbs_attr_bundle` whose context, if it has
/// one, is one of a device of `D`; both valid for `'a`.
pub(crate) unsafe fn caller<'a, D: Operations>(
    udata: *mut bindings::ib_udata,
    of_process: bool,
) -> Result<Caller<'a, D>> {
    let Some(raw) = NonNull::new(udata) else {
        return if of_process {
            Err(EINVAL)
        } else {
            Ok(Caller::Kernel)
        };
    };
    // SAFETY: `udata` is in a bundle.
    let ctx = NonNull::new(unsafe { bindings::verbena_udata_context(udata) }).ok_or(EINVAL)?;
    if !of_process {
        return Err(EINVAL);
    }
    // SAFETY: The context is one of our device; the caller says that it is valid.
    let ctx = unsafe { Ucontext::<D>::from_raw(ctx.as_ptr()) };
    // SAFETY: The caller says that it is valid.
    Ok(Caller::User(User::new(ctx, unsafe {
        Udata::from_raw(raw)
    })))
}

/// Refuses request data, and zeroes the response, of a verb that has none.
///
/// # Safety
///
/// `udata` must be `NULL` or valid.
pub(crate) unsafe fn no_udata(udata: *mut bindings::ib_udata) -> Result {
    if let Some(raw) = NonNull::new(udata) {
        // SAFETY: The caller says that it is valid.
        let udata = unsafe { Udata::from_raw(raw) };
        udata.finish_input()?;
        udata.finish_output()?;
    }
    Ok(())
}

/// Runs `init` on memory of the core.
///
/// # Safety
///
/// `slot` must be memory for a `T` that does not move, not in use.
pub(crate) unsafe fn init_slot<T, E>(slot: *mut T, init: impl PinInit<T, E>) -> Result<(), E> {
    // SAFETY: See above.
    unsafe { init.__pinned_init(slot) }
}

/// [`init_slot`] for what cannot fail.
///
/// # Safety
///
/// As [`init_slot`].
pub(crate) unsafe fn init_slot_infallible<T>(slot: *mut T, init: impl PinInit<T>) {
    // SAFETY: See above.
    let Ok(()) = unsafe { init.__pinned_init(slot) };
}
