// SPDX-License-Identifier: GPL-2.0

//! Domains of extended reliable connections (XRC). Target QPs use the SRQs of their own domain.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! C: `struct ib_xrcd`; ops `alloc_xrcd`, `dealloc_xrcd`. Processes share a domain by a file that
//! they name, which the core implements.

use crate::{
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
use base::errno::eopnotsupp;
use core::marker::PhantomData;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A driver's data of an XRC domain.
pub trait XrcDomain<D: Operations>: Sized + Send + Sync {
    /// False only for [`Unsupported`].
    const SUPPORTED: bool = true;

    /// Returns an initializer of the data, with the contract of
    /// [`ProtectionDomain::create`](crate::pd::ProtectionDomain::create). The calling process may
    /// end before the domain is destroyed.
    fn create(dev: &Device<D>, caller: &Caller<'_, D>) -> impl PinInit<Self, Error>;

    /// Destroys the domain. The core has made sure that no object uses it.
    fn destroy(xrcd: &Xrcd<D>) -> Result;
}

/// An XRC domain with the driver's data.
pub type Xrcd<D> = Managed<XrcdObject<D>>;

/// The kind of object that an [`Xrcd`] is.
pub struct XrcdObject<D>(PhantomData<D>);

// SAFETY: By NEW the core sets `device` before it calls `alloc_xrcd`, and the device is one of `D`.
// The core creates XRC domains only for processes, and uses an `ib_xrcd` from any thread.
unsafe impl<D: Operations> Object for XrcdObject<D> {
    type Driver = D;
    type Raw = bindings::ib_xrcd;
    type Extra = ();
    type Data = D::Xrcd;

    const NAME: &'static str = "XRC domain";

    unsafe fn device(raw: *mut Self::Raw) -> *mut bindings::ib_device {
        // SAFETY: `raw` is NEW or STARTED, so the core has set `device`, which never changes.
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
    /// Only the core may call this op: `xrcd` must be NEW, and ARGUMENTS must hold.
    unsafe extern "C" fn op_alloc(
        xrcd: *mut bindings::ib_xrcd,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `xrcd` is NEW, and ARGUMENTS holds for `udata`.
            let caller = unsafe { Self::caller(xrcd, udata) }?;
            // SAFETY: By the contract of this op `xrcd` is NEW.
            let dev = unsafe { Self::device_of(xrcd) };
            let data = D::Xrcd::create(dev, &caller);
            // SAFETY: By the contract of this op `xrcd` is NEW, and stays so until the draft is
            // started or dropped.
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
