// SPDX-License-Identifier: GPL-2.0

//! Address vectors and address handles.
//!
//! C: `struct rdma_ah_attr`, `struct ib_ah`; ops `create_ah`, `create_user_ah`, `query_ah`,
//! `destroy_ah`. All but `create_user_ah` are called in any context.

use crate::{
    base::errno::eopnotsupp,
    bindings,
    device::Operations,
    gid::Gid,
    object::{
        core_members,
        object_size,
        pd_member,
        InPd,
        Managed,
        Object, //
    },
    pd::Pd,
    udata::Caller,
    Unsupported, //
};
use core::{
    marker::PhantomData,
    mem::ManuallyDrop, //
};
use kernel::{
    error::from_result,
    prelude::*, //
};

/// Global route of an address vector.
#[derive(Clone, Copy, Default)]
pub struct GlobalRoute {
    /// Destination.
    pub dgid: [u8; 16],
    /// Flow label.
    pub flow_label: u32,
    /// Index of the source in the port's GID table.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// An address vector.
#[derive(Clone, Copy, Default)]
pub struct AhAttr {
    /// Global route; RoCE always has one.
    pub grh: Option<GlobalRoute>,
    /// The source's entry in the GID table, if the core resolved it.
    pub sgid: Option<Gid>,
    /// Service level.
    pub sl: u8,
    /// Static rate.
    pub static_rate: u8,
    /// Port.
    pub port_num: u32,
    /// Destination's MAC (RoCE), which the core resolved.
    pub dmac: [u8; 6],
}

impl AhAttr {
    /// # Safety
    ///
    /// `raw` must be valid, and its GID attribute, if any, too.
    pub(crate) unsafe fn from_raw(raw: *const bindings::rdma_ah_attr) -> Self {
        // SAFETY: `raw` is valid.
        let raw = unsafe { &*raw };
        let mut dmac = [0; 6];
        // SAFETY: Six bytes are written.
        unsafe { bindings::rdma_helper_ah_dmac(raw, dmac.as_mut_ptr()) };
        // CAST: A flag.
        let has_grh = raw.ah_flags & bindings::ib_ah_flags_IB_AH_GRH as u8 != 0;
        let grh = has_grh.then(|| GlobalRoute {
            // SAFETY: Any 16 bytes are a GID.
            dgid: unsafe { *raw.grh.dgid.raw },
            flow_label: raw.grh.flow_label,
            sgid_index: raw.grh.sgid_index,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
        });
        let sgid = (has_grh && !raw.grh.sgid_attr.is_null())
            // SAFETY: The core holds a reference to it while it is in the attribute.
            .then(|| unsafe { Gid::from_raw(raw.grh.sgid_attr) });
        Self {
            grh,
            sgid,
            sl: raw.sl,
            static_rate: raw.static_rate,
            port_num: raw.port_num,
            dmac,
        }
    }

    /// Writes everything but `sgid`.
    pub(crate) fn write(&self, raw: &mut bindings::rdma_ah_attr) {
        let grh = self.grh.unwrap_or_default();
        let dgid = bindings::ib_gid {
            raw: ManuallyDrop::new(grh.dgid),
        };
        // SAFETY: `raw` and `dgid` are valid; six bytes of the MAC are read.
        unsafe {
            bindings::rdma_helper_ah_set(
                raw,
                &dgid,
                grh.flow_label,
                grh.sgid_index,
                grh.hop_limit,
                grh.traffic_class,
                self.sl,
                self.port_num,
                self.dmac.as_ptr(),
            )
        };
        raw.static_rate = self.static_rate;
    }
}

/// A driver's data of an address handle.
pub trait AddressHandle<D: Operations>: Sized + Send + Sync {
    /// `false` only for [`Unsupported`].
    const SUPPORTED: bool = true;

    /// Builds the data. May not sleep unless `may_sleep`.
    fn create(pd: &Pd<D>, attr: &AhAttr, may_sleep: bool, caller: &Caller<'_, D>) -> Result<Self>;

    /// The address vector.
    fn query(ah: &Ah<D>) -> Result<AhAttr>;
}

/// An address handle.
pub type Ah<D> = Managed<AhObject<D>>;

/// The kind of object that an [`Ah`] is.
pub struct AhObject<D>(PhantomData<D>);

// SAFETY: The core sets `device` and `pd` before `create`.
unsafe impl<D: Operations> Object for AhObject<D> {
    type Driver = D;
    type Extra = ();
    type Data = D::Ah;

    const NAME: &'static str = "address handle";

    core_members!(ib_ah, user as pd);

    fn destroy(_ah: &Ah<D>) -> Result {
        Ok(())
    }
}

// SAFETY: As above.
unsafe impl<D: Operations> InPd for AhObject<D> {
    pd_member!();
}

impl<D: Operations> Ah<D> {
    pub(crate) const fn fill_ops(ops: &mut bindings::ib_device_ops) {
        if !<D::Ah as AddressHandle<D>>::SUPPORTED {
            return;
        }
        ops.size_ib_ah = object_size::<Self>();
        ops.create_ah = Some(Self::op_create);
        ops.create_user_ah = Some(Self::op_create);
        ops.query_ah = Some(Self::op_query);
        ops.destroy_ah = Some(Self::op_destroy_ah);
    }

    /// # Safety
    ///
    /// For the core: NEW, ARGUMENTS.
    unsafe extern "C" fn op_create(
        ah: *mut bindings::ib_ah,
        init: *mut bindings::rdma_ah_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: NEW, ARGUMENTS.
            let (caller, attr, flags, pd) = unsafe {
                (
                    Self::caller(ah, udata)?,
                    AhAttr::from_raw((*init).ah_attr),
                    (*init).flags,
                    Pd::<D>::from_raw((*ah).pd),
                )
            };
            let may_sleep = flags & bindings::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE != 0;
            let data = D::Ah::create(pd, &attr, may_sleep, &caller);
            // SAFETY: NEW.
            unsafe { Self::build(ah, data) }?.start(&caller, |_| Ok(()))?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// For the core: STARTED, ARGUMENTS.
    unsafe extern "C" fn op_query(
        ah: *mut bindings::ib_ah,
        attr: *mut bindings::rdma_ah_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: STARTED.
            let ah = unsafe { Self::from_raw(ah) };
            // SAFETY: ARGUMENTS: the caller's to fill.
            D::Ah::query(ah)?.write(unsafe { &mut *attr });
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// For the core: STARTED, LAST.
    unsafe extern "C" fn op_destroy_ah(ah: *mut bindings::ib_ah, _flags: u32) -> c_int {
        // SAFETY: STARTED, LAST.
        from_result(|| unsafe { Self::destroy(ah) }.map(|()| 0))
    }
}

impl<D: Operations> AddressHandle<D> for Unsupported {
    const SUPPORTED: bool = false;

    fn create(
        _pd: &Pd<D>,
        _attr: &AhAttr,
        _may_sleep: bool,
        _caller: &Caller<'_, D>,
    ) -> Result<Self> {
        Err(eopnotsupp())
    }

    fn query(_ah: &Ah<D>) -> Result<AhAttr> {
        Err(eopnotsupp())
    }
}
