// SPDX-License-Identifier: GPL-2.0

//! Protection domains.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
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
    /// Returns an initializer of the data, and responds. A change of the device must be undone when
    /// the data is dropped, because the data is dropped without `destroy` if the request cannot be
    /// finished.
    fn create(dev: &Device<D>, caller: &Caller<'_, D>) -> impl PinInit<Self, Error>;

    /// Destroys the domain. The core has made sure that no object uses it.
    fn destroy(pd: &Pd<D>) -> Result;
}

/// A protection domain with the driver's data.
pub type Pd<D> = Managed<PdObject<D>>;

/// The kind of object that a [`Pd`] is.
pub struct PdObject<D>(PhantomData<D>);

// SAFETY: By NEW the core sets `device` and `uobject` before it calls `alloc_pd`, and the device is
// one of `D`. The core uses an `ib_pd` from any thread.
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
    /// Only the core may call this op: `pd` must be NEW, and ARGUMENTS must hold.
    unsafe extern "C" fn op_alloc(
        pd: *mut bindings::ib_pd,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `pd` is NEW, and ARGUMENTS holds for `udata`.
            let caller = unsafe { Self::caller(pd, udata) }?;
            // SAFETY: By the contract of this op `pd` is NEW.
            let dev = unsafe { Self::device_of(pd) };
            let data = D::Pd::create(dev, &caller);
            // SAFETY: By the contract of this op `pd` is NEW, and stays so until the draft is
            // started or dropped.
            unsafe { Self::build(pd, data) }?.start(&caller, |_| Ok(()))?;
            Ok(0)
        })
    }
}
