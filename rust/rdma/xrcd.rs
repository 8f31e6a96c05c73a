// SPDX-License-Identifier: GPL-2.0

//! Domains of extended reliable connections (XRC): targets reach the shared receive queues of their own
//! domain.
//!
//! C: `struct ib_xrcd`; ops `alloc_xrcd`, `dealloc_xrcd`. Processes share one by a file that they name,
//! which is the core's matter.

use crate::{
    base::errno::eopnotsupp,
    bindings,
    device::{
        Device,
        Operations, //
    },
    object::{
        object_size,
        Managed,
        Object, //
    },
    udata::Caller,
    Unsupported, //
};
use core::marker::PhantomData;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A driver's data of an XRC domain.
pub trait XrcDomain<D: Operations>: Sized + Send + Sync {
    /// `false` only for [`Unsupported`].
    const SUPPORTED: bool = true;

    /// Builds the data. As [`ProtectionDomain::create`](crate::pd::ProtectionDomain::create); the process
    /// that calls may be gone before the domain is.
    fn create(dev: &Device<D>, caller: &Caller<'_, D>) -> impl PinInit<Self, Error>;

    /// Destroys the domain. The core made sure that nothing uses it.
    fn destroy(xrcd: &Xrcd<D>) -> Result;
}

/// An XRC domain.
pub type Xrcd<D> = Managed<XrcdObject<D>>;

/// The kind of object that an [`Xrcd`] is.
pub struct XrcdObject<D>(PhantomData<D>);

// SAFETY: The core sets `device` before `alloc_xrcd`, and makes these objects for processes only.
unsafe impl<D: Operations> Object for XrcdObject<D> {
    type Driver = D;
    type Raw = bindings::ib_xrcd;
    type Extra = ();
    type Data = D::Xrcd;

    const NAME: &'static str = "XRC domain";

    unsafe fn device(raw: *mut Self::Raw) -> *mut bindings::ib_device {
        // SAFETY: NEW or STARTED: set, and constant.
        unsafe { (*raw).device }
    }

    unsafe fn is_user(_raw: *mut Self::Raw) -> bool {
        true
    }

    fn destroy(xrcd: &Xrcd<D>) -> Result {
        D::Xrcd::destroy(xrcd)
    }
}

impl<D: Operations> Xrcd<D> {
    pub(crate) const fn fill_ops(ops: &mut bindings::ib_device_ops) {
        if !<D::Xrcd as XrcDomain<D>>::SUPPORTED {
            return;
        }
        ops.size_ib_xrcd = object_size::<Self>();
        ops.alloc_xrcd = Some(Self::op_alloc);
        ops.dealloc_xrcd = Some(Self::op_destroy);
    }

    /// # Safety
    ///
    /// For the core: NEW, ARGUMENTS.
    unsafe extern "C" fn op_alloc(
        xrcd: *mut bindings::ib_xrcd,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: NEW, ARGUMENTS.
            let (caller, dev) = unsafe {
                (
                    Self::caller(xrcd, udata)?,
                    Device::<D>::from_raw((*xrcd).device),
                )
            };
            let data = D::Xrcd::create(dev, &caller);
            // SAFETY: NEW.
            unsafe { Self::build(xrcd, data) }?.start(&caller, |_| Ok(()))?;
            Ok(0)
        })
    }
}

impl<D: Operations> XrcDomain<D> for Unsupported {
    const SUPPORTED: bool = false;

    fn create(_dev: &Device<D>, _caller: &Caller<'_, D>) -> impl PinInit<Self, Error> {
        Err(eopnotsupp())
    }

    fn destroy(_xrcd: &Xrcd<D>) -> Result {
        Err(eopnotsupp())
    }
}
