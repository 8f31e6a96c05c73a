// SPDX-License-Identifier: GPL-2.0

//! Memory windows.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! C: `struct ib_mw`; ops `alloc_mw`, `dealloc_mw`. Memory windows are bound by work requests.

use crate::{
    bindings,
    device::Operations,
    field::write_field,
    object::{
        core_members,
        object_size,
        Managed,
        Object, //
    },
    pd::Pd,
    udata::Caller,
    Unsupported, //
};
use base::errno::eopnotsupp;
use core::marker::PhantomData;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// Type of a memory window (`enum ib_mw_type`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MwType {
    /// Window that its own verb binds, which chooses the key.
    Type1,
    /// Window that a work request binds, with a key that the consumer chooses.
    Type2,
}

/// A driver's data of a memory window. See the [crate](crate) for the order of calls.
pub trait MemoryWindow<D: Operations>: Sized + Send + Sync {
    /// False only for [`Unsupported`].
    const SUPPORTED: bool = true;

    /// Returns an initializer of the data.
    fn create(pd: &Pd<D>, mw_type: MwType, caller: &Caller<'_, D>) -> impl PinInit<Self, Error>;

    /// Creates the window in the device without binding it, and returns its key.
    fn start(mw: &Mw<D>) -> Result<u32>;

    /// Destroys the window, which may be bound.
    fn destroy(mw: &Mw<D>) -> Result;
}

/// A memory window with the driver's data.
pub type Mw<D> = Managed<MwObject<D>>;

/// The kind of object that an [`Mw`] is.
pub struct MwObject<D>(PhantomData<D>);

// SAFETY: By NEW the core sets `device` and `pd` before it calls `alloc_mw`, the device is one of
// `D`, and both are constant. The core uses an `ib_mw` from any thread.
unsafe impl<D: Operations> Object for MwObject<D> {
    type Driver = D;
    type Extra = ();
    type Data = D::Mw;

    const NAME: &'static str = "memory window";

    core_members!(ib_mw, user as pd);

    fn destroy(mw: &Mw<D>) -> Result {
        D::Mw::destroy(mw)
    }
}

impl<D: Operations> Mw<D> {
    pub(crate) const fn fill_ops(ops: &mut bindings::ib_device_ops) {
        if !<D::Mw as MemoryWindow<D>>::SUPPORTED {
            return;
        }
        ops.size_ib_mw = object_size::<Self>();
        ops.alloc_mw = Some(Self::op_alloc);
        ops.dealloc_mw = Some(Self::op_dealloc);
    }

    /// # Safety
    ///
    /// Only the core may call this op: `mw` must be NEW, and ARGUMENTS must hold.
    unsafe extern "C" fn op_alloc(
        mw: *mut bindings::ib_mw,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `mw` is NEW, so that its type is set.
            let mw_type = unsafe { (*mw).type_ };
            // SAFETY: By the contract of this op `mw` is NEW, so that its `pd` is set.
            let pd = unsafe { (*mw).pd };
            // SAFETY: By NEW the domain is STARTED, is one of `D`, and outlives `mw`.
            let pd = unsafe { Pd::<D>::from_raw(pd) };
            // The core accepts any number from a process.
            let mw_type = match mw_type {
                bindings::ib_mw_type_IB_MW_TYPE_1 => MwType::Type1,
                bindings::ib_mw_type_IB_MW_TYPE_2 => MwType::Type2,
                _ => return Err(EINVAL),
            };
            // SAFETY: By the contract of this op `mw` is NEW, and ARGUMENTS holds for `udata`.
            let caller = unsafe { Self::caller(mw, udata) }?;
            let data = D::Mw::create(pd, mw_type, &caller);
            // SAFETY: By the contract of this op `mw` is NEW, and stays so until the draft is
            // started or dropped.
            unsafe { Self::build(mw, data) }?.start(&caller, |this| {
                // No other code knows the window yet.
                write_field!(this, rkey, D::Mw::start(this)?);
                Ok(())
            })?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op: `mw` must be STARTED, and the call must be the LAST.
    unsafe extern "C" fn op_dealloc(mw: *mut bindings::ib_mw) -> c_int {
        // SAFETY: By the contract of this op `mw` is STARTED, and the call is the LAST.
        from_result(|| unsafe { Self::destroy(mw) }.map(|()| 0))
    }
}

impl<D: Operations> MemoryWindow<D> for Unsupported {
    const SUPPORTED: bool = false;

    fn create(_pd: &Pd<D>, _mw_type: MwType, _caller: &Caller<'_, D>) -> impl PinInit<Self, Error> {
        Err(eopnotsupp())
    }

    fn start(_mw: &Mw<D>) -> Result<u32> {
        Err(eopnotsupp())
    }

    fn destroy(_mw: &Mw<D>) -> Result {
        Err(eopnotsupp())
    }
}
