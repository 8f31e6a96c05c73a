// SPDX-License-Identifier: GPL-2.0

//! Memory windows.
//!
//! C: `struct ib_mw`; ops `alloc_mw`, `dealloc_mw`. They are bound by work requests.

use crate::{
    base::errno::eopnotsupp,
    bindings,
    device::Operations,
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
use core::marker::PhantomData;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// `enum ib_mw_type`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MwType {
    /// Bound by a verb of its own, which chooses the key.
    Type1,
    /// Bound by a work request with a key of the consumer's.
    Type2,
}

/// A driver's data of a memory window. See the [crate](crate) for the order of calls.
pub trait MemoryWindow<D: Operations>: Sized + Send + Sync {
    /// `false` only for [`Unsupported`].
    const SUPPORTED: bool = true;

    /// Builds the data.
    fn create(pd: &Pd<D>, mw_type: MwType, caller: &Caller<'_, D>) -> impl PinInit<Self, Error>;

    /// Makes the window known, not bound to anything; returns its key.
    fn start(mw: &Mw<D>) -> Result<u32>;

    /// Destroys the window, bound or not.
    fn destroy(mw: &Mw<D>) -> Result;
}

/// A memory window.
pub type Mw<D> = Managed<MwObject<D>>;

/// The kind of object that an [`Mw`] is.
pub struct MwObject<D>(PhantomData<D>);

// SAFETY: The core sets `device` and `pd` before `alloc_mw`.
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
    /// For the core: NEW, ARGUMENTS.
    unsafe extern "C" fn op_alloc(
        mw: *mut bindings::ib_mw,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: NEW: set, as is its domain, which is STARTED.
            let (mw_type, pd) = unsafe { ((*mw).type_, Pd::<D>::from_raw((*mw).pd)) };
            // The core takes any number from a process.
            let mw_type = match mw_type {
                bindings::ib_mw_type_IB_MW_TYPE_1 => MwType::Type1,
                bindings::ib_mw_type_IB_MW_TYPE_2 => MwType::Type2,
                _ => return Err(EINVAL),
            };
            // SAFETY: NEW, ARGUMENTS.
            let caller = unsafe { Self::caller(mw, udata) }?;
            let data = D::Mw::create(pd, mw_type, &caller);
            // SAFETY: NEW.
            unsafe { Self::build(mw, data) }?.start(&caller, |this| {
                let rkey = D::Mw::start(this)?;
                // SAFETY: Nobody else knows the window yet.
                unsafe { (*this.as_raw()).rkey = rkey };
                Ok(())
            })?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// For the core: STARTED, LAST.
    unsafe extern "C" fn op_dealloc(mw: *mut bindings::ib_mw) -> c_int {
        // SAFETY: STARTED, LAST.
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
