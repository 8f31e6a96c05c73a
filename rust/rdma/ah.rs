// SPDX-License-Identifier: GPL-2.0

//! Address vectors and address handles.
//!
//! C: `struct rdma_ah_attr`, `struct ib_ah`; ops `create_ah`, `create_user_ah`, `query_ah`,
//! `destroy_ah`. All but `create_user_ah` are called in any context.

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
    errno::eopnotsupp,
    gid::Gid,
    object::{
        caller,
        object_size, //
    },
    pd::Pd,
    udata::Caller,
    Unsupported, //
};
use core::mem::ManuallyDrop;
use kernel::{
    error::from_result,
    prelude::*,
    types::Opaque, //
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
        unsafe { bindings::verbena_ah_dmac(raw, dmac.as_mut_ptr()) };
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
            bindings::verbena_ah_set(
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
#[repr(C)]
pub struct Ah<D: Operations> {
    raw: Opaque<bindings::ib_ah>,
    _count: Counted<Objects>,
    data: D::Ah,
}

// SAFETY: An `ib_ah` may be used from any thread; the data is `Send`.
unsafe impl<D: Operations> Send for Ah<D> {}
// SAFETY: As above; the data is `Sync`.
unsafe impl<D: Operations> Sync for Ah<D> {}

impl<D: Operations> core::ops::Deref for Ah<D> {
    type Target = D::Ah;

    fn deref(&self) -> &D::Ah {
        &self.data
    }
}

impl<D: Operations> Ah<D> {
    /// # Safety
    ///
    /// `raw` must be an address handle of a device of `D`, alive for `'a`.
    pub(crate) unsafe fn from_raw<'a>(raw: *mut bindings::ib_ah) -> &'a Self {
        // SAFETY: `repr(C)` with the `ib_ah` first; see above.
        unsafe { &*raw.cast() }
    }

    /// Its device.
    pub fn device(&self) -> &Device<D> {
        // SAFETY: Set by the core before `create`, constant.
        unsafe { Device::from_raw((*self.raw.get()).device) }
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd<D> {
        // SAFETY: Set by the core before `create`, constant; it outlives the handle.
        unsafe { Pd::from_raw((*self.raw.get()).pd) }
    }

    pub(crate) const fn fill_ops(ops: &mut bindings::ib_device_ops) {
        if !<D::Ah as AddressHandle<D>>::SUPPORTED {
            return;
        }
        ops.size_ib_ah = object_size::<Self>();
        ops.create_ah = Some(Self::op_create);
        ops.create_user_ah = Some(Self::op_create);
        ops.query_ah = Some(Self::op_query);
        ops.destroy_ah = Some(Self::op_destroy);
    }

    /// # Safety
    ///
    /// Only for the core, with a zeroed object of [`Self`]'s size.
    unsafe extern "C" fn op_create(
        ah: *mut bindings::ib_ah,
        init: *mut bindings::rdma_ah_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core has set the protection domain; `udata` is `NULL` or from a bundle of our
            // device, and valid for the call.
            let caller = unsafe { caller::<D>(udata, !(*(*ah).pd).uobject.is_null()) }?;
            // SAFETY: The core passes what it was asked for.
            let (attr, flags, pd) = unsafe {
                (
                    AhAttr::from_raw((*init).ah_attr),
                    (*init).flags,
                    Pd::<D>::from_raw((*ah).pd),
                )
            };
            let may_sleep = flags & bindings::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE != 0;
            let data = D::Ah::create(pd, &attr, may_sleep, &caller)?;
            caller.finish_input()?;
            caller.finish_output()?;
            let this = ah.cast::<Self>();
            // SAFETY: The memory behind the C struct is ours.
            unsafe {
                (&raw mut (*this)._count).write(Counted::new());
                (&raw mut (*this).data).write(data);
            }
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, with a created handle.
    unsafe extern "C" fn op_query(
        ah: *mut bindings::ib_ah,
        attr: *mut bindings::rdma_ah_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: Created.
            let ah = unsafe { Self::from_raw(ah) };
            // SAFETY: The caller's to fill.
            D::Ah::query(ah)?.write(unsafe { &mut *attr });
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, with a created handle.
    unsafe extern "C" fn op_destroy(ah: *mut bindings::ib_ah, _flags: u32) -> c_int {
        // SAFETY: The core frees the memory next; nobody else refers to it.
        unsafe { core::ptr::drop_in_place(ah.cast::<Self>()) };
        0
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
