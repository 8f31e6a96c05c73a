// SPDX-License-Identifier: GPL-2.0

//! Protection domains.
//!
//! C: `struct ib_pd`; ops `alloc_pd`, `dealloc_pd`.

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
    object::{
        caller,
        init_slot,
        object_size, //
    },
    udata::Caller, //
};
use kernel::{
    error::from_result,
    prelude::*,
    types::Opaque, //
};

/// A driver's data of a protection domain.
pub trait ProtectionDomain<D: Operations>: Sized + Send + Sync {
    /// Builds the data, and responds.
    fn create(dev: &Device<D>, caller: &Caller<'_, D>) -> impl PinInit<Self, Error>;

    /// Destroys the domain. The core made sure that nothing uses it.
    fn destroy(pd: &Pd<D>) -> Result;
}

/// A protection domain.
#[repr(C)]
pub struct Pd<D: Operations> {
    raw: Opaque<bindings::ib_pd>,
    _count: Counted<Objects>,
    data: D::Pd,
}

// SAFETY: An `ib_pd` may be used from any thread; the data is `Send`.
unsafe impl<D: Operations> Send for Pd<D> {}
// SAFETY: As above; the data is `Sync`.
unsafe impl<D: Operations> Sync for Pd<D> {}

impl<D: Operations> core::ops::Deref for Pd<D> {
    type Target = D::Pd;

    fn deref(&self) -> &D::Pd {
        &self.data
    }
}

impl<D: Operations> Pd<D> {
    /// # Safety
    ///
    /// `raw` must be a protection domain of a device of `D`, alive for `'a`.
    pub(crate) unsafe fn from_raw<'a>(raw: *mut bindings::ib_pd) -> &'a Self {
        // SAFETY: `repr(C)` with the `ib_pd` first; see above.
        unsafe { &*raw.cast() }
    }

    /// Its device.
    pub fn device(&self) -> &Device<D> {
        // SAFETY: Set by the core before `create`, constant.
        unsafe { Device::from_raw((*self.raw.get()).device) }
    }

    /// Whether it belongs to a process.
    pub fn is_user(&self) -> bool {
        // SAFETY: Set by the core before `create`, constant.
        unsafe { !(*self.raw.get()).uobject.is_null() }
    }

    pub(crate) const fn fill_ops(ops: &mut bindings::ib_device_ops) {
        ops.size_ib_pd = object_size::<Self>();
        ops.alloc_pd = Some(Self::op_alloc);
        ops.dealloc_pd = Some(Self::op_dealloc);
    }

    /// # Safety
    ///
    /// Only for the core, with a zeroed object of [`Self`]'s size.
    unsafe extern "C" fn op_alloc(
        pd: *mut bindings::ib_pd,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core has set the object's members; `udata` is `NULL` or from a bundle of our
            // device, and valid for the call.
            let caller = unsafe { caller::<D>(udata, !(*pd).uobject.is_null()) }?;
            let this = pd.cast::<Self>();
            // SAFETY: The core has set the device; the memory behind the C struct is ours, and does
            // not move.
            unsafe {
                let dev = Device::<D>::from_raw((*pd).device);
                init_slot(&raw mut (*this).data, D::Pd::create(dev, &caller))?;
                (&raw mut (*this)._count).write(Counted::new());
            }
            caller
                .finish_input()
                .and_then(|()| caller.finish_output())
                .inspect_err(|_| {
                    // SAFETY: All fields are initialized.
                    let _ = D::Pd::destroy(unsafe { Self::from_raw(pd) });
                    // SAFETY: As above; the core forgets it.
                    unsafe { core::ptr::drop_in_place(this) }
                })?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, with an allocated domain.
    unsafe extern "C" fn op_dealloc(
        pd: *mut bindings::ib_pd,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: Allocated.
            D::Pd::destroy(unsafe { Self::from_raw(pd) })?;
            // SAFETY: The core frees the memory next.
            unsafe { core::ptr::drop_in_place(pd.cast::<Self>()) };
            Ok(0)
        })
    }
}
