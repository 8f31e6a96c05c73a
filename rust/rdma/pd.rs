// SPDX-License-Identifier: GPL-2.0

//! Protection domains.
//!
//! C: `struct ib_pd`; ops `alloc_pd`, `dealloc_pd`.

use crate::{
    bindings,
    device::{
        Device,
        Operations, //
    },
    object::{
        core_members,
        object_size,
        Managed,
        Object, //
    },
    udata::Caller, //
};
use core::marker::PhantomData;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A driver's data of a protection domain.
pub trait ProtectionDomain<D: Operations>: Sized + Send + Sync {
    /// Builds the data, and responds. Tells the device nothing that dropping the data does not take back:
    /// when the request cannot be finished the data is dropped, without `destroy`.
    fn create(dev: &Device<D>, caller: &Caller<'_, D>) -> impl PinInit<Self, Error>;

    /// Destroys the domain. The core made sure that nothing uses it.
    fn destroy(pd: &Pd<D>) -> Result;
}

/// A protection domain.
pub type Pd<D> = Managed<PdObject<D>>;

/// The kind of object that a [`Pd`] is.
pub struct PdObject<D>(PhantomData<D>);

// SAFETY: The core sets `device` and `uobject` before `alloc_pd`.
unsafe impl<D: Operations> Object for PdObject<D> {
    type Driver = D;
    type Extra = ();
    type Data = D::Pd;

    const NAME: &'static str = "protection domain";

    core_members!(ib_pd);

    fn destroy(pd: &Pd<D>) -> Result {
        D::Pd::destroy(pd)
    }
}

impl<D: Operations> Pd<D> {
    pub(crate) const fn fill_ops(ops: &mut bindings::ib_device_ops) {
        ops.size_ib_pd = object_size::<Self>();
        ops.alloc_pd = Some(Self::op_alloc);
        ops.dealloc_pd = Some(Self::op_destroy);
    }

    /// # Safety
    ///
    /// For the core: NEW, ARGUMENTS.
    unsafe extern "C" fn op_alloc(
        pd: *mut bindings::ib_pd,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: NEW, ARGUMENTS.
            let (caller, dev) = unsafe {
                (
                    Self::caller(pd, udata)?,
                    Device::<D>::from_raw((*pd).device),
                )
            };
            let data = D::Pd::create(dev, &caller);
            // SAFETY: NEW.
            unsafe { Self::build(pd, data) }?.start(&caller, |_| Ok(()))?;
            Ok(0)
        })
    }
}
