// SPDX-License-Identifier: GPL-2.0

//! Address vectors and address handles.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! C: `struct rdma_ah_attr`, `struct ib_ah`; ops `create_ah`, `create_user_ah`, `query_ah`,
//! `destroy_ah`. All but `create_user_ah` are called in any context.

use crate::{
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
use base::errno::eopnotsupp;
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
    /// GID of the destination, in wire byte order.
    pub dgid: [u8; 16],
    /// Flow label of the packets.
    pub flow_label: u32,
    /// Index of the source in the port's GID table.
    pub sgid_index: u8,
    /// Hop limit of the packets.
    pub hop_limit: u8,
    /// Traffic class of the packets.
    pub traffic_class: u8,
}

/// Local route of an address vector, which only InfiniBand has.
#[derive(Clone, Copy, Default)]
pub struct LocalRoute {
    /// LID of the destination.
    pub dlid: u16,
    /// Low bits of the source LID, for a port that has several.
    pub src_path_bits: u8,
}

/// An address vector: the path to a destination.
#[derive(Clone, Copy, Default)]
pub struct AhAttr {
    /// Global route, which RoCE always has.
    pub grh: Option<GlobalRoute>,
    /// Local route, which InfiniBand always has, and RoCE never.
    pub local: Option<LocalRoute>,
    /// Entry of the source in the GID table, if the core resolved it.
    pub sgid: Option<Gid>,
    /// Service level of the path.
    pub sl: u8,
    /// Static rate of the path.
    pub static_rate: u8,
    /// Port to send from.
    pub port_num: u32,
    /// MAC address of the destination (RoCE), which the core resolved.
    pub dmac: [u8; 6],
}

impl AhAttr {
    /// # Safety
    ///
    /// `raw` must be valid, and so must its GID attribute if that is not `NULL`.
    pub(crate) unsafe fn from_raw(raw: *const bindings::rdma_ah_attr) -> Self {
        // SAFETY: The caller promises that `raw` is valid.
        let raw = unsafe { &*raw };
        let mut dmac = [0; 6];
        // SAFETY: `raw` is valid, and the function writes six bytes to `dmac`.
        unsafe { bindings::rdma_helper_ah_dmac(raw, dmac.as_mut_ptr()) };
        let mut local = LocalRoute::default();
        // SAFETY: `raw` is valid, and the function writes to the two integers.
        let has_lid =
            unsafe { bindings::rdma_helper_ah_lid(raw, &mut local.dlid, &mut local.src_path_bits) };
        // CAST: The value is a flag of eight bits.
        let has_grh = raw.ah_flags & bindings::ib_ah_flags_IB_AH_GRH as u8 != 0;
        let grh = has_grh.then(|| GlobalRoute {
            // SAFETY: `raw` is valid, and any 16 bytes are a GID.
            dgid: unsafe { *raw.grh.dgid.raw },
            flow_label: raw.grh.flow_label,
            sgid_index: raw.grh.sgid_index,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
        });
        let sgid = (has_grh && !raw.grh.sgid_attr.is_null())
            // SAFETY: The caller promises that the attribute, which is not `NULL`, is valid. The
            // core holds a reference to it as long as it is in the address vector.
            .then(|| unsafe { Gid::from_raw(raw.grh.sgid_attr) });
        Self {
            grh,
            local: has_lid.then_some(local),
            sgid,
            sl: raw.sl,
            static_rate: raw.static_rate,
            port_num: raw.port_num,
            dmac,
        }
    }

    /// Writes all attributes except `sgid` to `raw`.
    pub(crate) fn write(&self, raw: &mut bindings::rdma_ah_attr) {
        let grh = self.grh.unwrap_or_default();
        let dgid = bindings::ib_gid {
            raw: ManuallyDrop::new(grh.dgid),
        };
        // SAFETY: `raw` and `dgid` are valid, and the function reads six bytes of the MAC address.
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
        if let Some(local) = self.local {
            // SAFETY: `raw` is valid.
            unsafe {
                bindings::rdma_helper_ah_set_lid(
                    raw,
                    local.dlid,
                    local.src_path_bits,
                    self.grh.is_some(),
                )
            };
        }
        raw.static_rate = self.static_rate;
    }
}

/// A driver's data of an address handle.
pub trait AddressHandle<D: Operations>: Sized + Send + Sync {
    /// False only for [`Unsupported`].
    const SUPPORTED: bool = true;

    /// Creates the data. Must not sleep unless `may_sleep` is true.
    fn create(pd: &Pd<D>, attr: &AhAttr, may_sleep: bool, caller: &Caller<'_, D>) -> Result<Self>;

    /// Returns the address vector.
    fn query(ah: &Ah<D>) -> Result<AhAttr>;
}

/// An address handle with the driver's data.
pub type Ah<D> = Managed<AhObject<D>>;

/// The kind of object that an [`Ah`] is.
pub struct AhObject<D>(PhantomData<D>);

// SAFETY: By NEW the core sets `device` and `pd` before it calls `create`, the device is one of
// `D`, and both are constant. The core uses an `ib_ah` from any thread.
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

// SAFETY: By NEW the core sets `pd` before it calls `create`, and it is constant and one of `D`.
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
    /// Only the core may call this op: `ah` must be NEW, and ARGUMENTS must hold.
    unsafe extern "C" fn op_create(
        ah: *mut bindings::ib_ah,
        init: *mut bindings::rdma_ah_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `ah` is NEW, and ARGUMENTS holds for `udata`.
            let caller = unsafe { Self::caller(ah, udata) }?;
            // SAFETY: By ARGUMENTS `init` is valid during the call.
            let init = unsafe { &*init };
            // SAFETY: By ARGUMENTS the `ah_attr` of `init` is valid, and so is its GID attribute.
            let attr = unsafe { AhAttr::from_raw(init.ah_attr) };
            // SAFETY: By the contract of this op `ah` is NEW.
            let pd = unsafe { Self::pd_of(ah) };
            let may_sleep =
                init.flags & bindings::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE != 0;
            let data = D::Ah::create(pd, &attr, may_sleep, &caller);
            // SAFETY: By the contract of this op `ah` is NEW, and stays so until the draft is
            // started or dropped.
            unsafe { Self::build(ah, data) }?.start(&caller, |_| Ok(()))?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op: `ah` must be STARTED, and ARGUMENTS must hold.
    unsafe extern "C" fn op_query(
        ah: *mut bindings::ib_ah,
        attr: *mut bindings::rdma_ah_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `ah` is STARTED, and it stays alive during the
            // call.
            let ah = unsafe { Self::from_raw(ah) };
            // SAFETY: By ARGUMENTS `attr` is valid, and is only the caller's.
            D::Ah::query(ah)?.write(unsafe { &mut *attr });
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op: `ah` must be STARTED, and the call must be the LAST.
    unsafe extern "C" fn op_destroy_ah(ah: *mut bindings::ib_ah, _flags: u32) -> c_int {
        // SAFETY: By the contract of this op `ah` is STARTED, and the call is the LAST.
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
