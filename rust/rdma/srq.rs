// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! C: `struct ib_srq`; ops `create_srq`, `modify_srq`, `query_srq`, `destroy_srq`, `post_srq_recv`.

use crate::{
    bindings,
    compat::no_vtable,
    cq::Cq,
    device::Operations,
    enums::{
        SrqAttrMask,
        SrqEvent,
        SrqType, //
    },
    object::{
        core_members,
        object_size,
        pd_member,
        InPd,
        InTable,
        Managed,
        Object, //
    },
    pd::Pd,
    restrack::ResEntry,
    udata::Caller,
    wr::{
        post,
        RecvWrs, //
    },
    xrcd::Xrcd,
    Unsupported, //
};
use base::errno::eopnotsupp;
use core::{
    marker::PhantomData,
    mem::ManuallyDrop, //
};
use kernel::{
    error::{
        from_result,
        VTABLE_DEFAULT_ERROR, //
    },
    prelude::*, //
};

/// Attributes of a shared receive queue.
#[derive(Clone, Copy, Default)]
pub struct SrqAttr {
    /// Number of work requests that the queue can hold.
    pub max_wr: u32,
    /// Number of scatter/gather entries of each request.
    pub max_sge: u32,
    /// Armed limit, or 0 if the limit is not armed.
    pub srq_limit: u32,
}

impl SrqAttr {
    fn from_raw(raw: &bindings::ib_srq_attr) -> Self {
        Self {
            max_wr: raw.max_wr,
            max_sge: raw.max_sge,
            srq_limit: raw.srq_limit,
        }
    }

    fn write(&self, raw: &mut bindings::ib_srq_attr) {
        raw.max_wr = self.max_wr;
        raw.max_sge = self.max_sge;
        raw.srq_limit = self.srq_limit;
    }
}

/// Attributes that `modify_srq` changes. Its callers initialize only those of the C attributes.
pub struct SrqChange {
    /// New number of work requests that the queue can hold.
    pub max_wr: Option<u32>,
    /// New armed limit, or 0 to disarm.
    pub srq_limit: Option<u32>,
}

impl SrqChange {
    /// # Safety
    ///
    /// `raw` must be valid, and the attributes that `mask` names must be initialized.
    unsafe fn from_raw(raw: *const bindings::ib_srq_attr, mask: SrqAttrMask) -> Self {
        // SAFETY: The caller promises that the attributes that `mask` names are initialized.
        let max_wr = || unsafe { (*raw).max_wr };
        // SAFETY: The caller promises that the attributes that `mask` names are initialized.
        let srq_limit = || unsafe { (*raw).srq_limit };
        Self {
            max_wr: mask.contains(SrqAttrMask::MAX_WR).then(max_wr),
            srq_limit: mask.contains(SrqAttrMask::LIMIT).then(srq_limit),
        }
    }
}

/// Type of a shared receive queue, with the objects that it needs.
pub enum SrqKind<'a, D: Operations> {
    /// Queue for QPs that are created with it.
    Basic,
    /// Queue for XRC target QPs, whose peers name it in their requests.
    Xrc {
        /// Completion queue of the receives.
        cq: &'a Cq<D>,
        /// XRC domain of these QPs.
        xrcd: &'a Xrcd<D>,
    },
}

impl<'a, D: Operations> SrqKind<'a, D> {
    /// # Safety
    ///
    /// The objects that `raw` names must be STARTED, and alive for `'a`.
    unsafe fn from_raw(raw: &'a bindings::ib_srq_init_attr) -> Result<Self> {
        match SrqType::from_raw(raw.srq_type).ok_or(EINVAL)? {
            SrqType::Basic => Ok(Self::Basic),
            SrqType::Xrc => {
                let cq = raw.ext.cq;
                // SAFETY: For this type the core sets this member of the union.
                let xrc = unsafe { &raw.ext.__bindgen_anon_1.xrc };
                let xrcd = xrc.xrcd;
                if cq.is_null() || xrcd.is_null() {
                    return Err(EINVAL);
                }
                // SAFETY: The caller promises that the queue, which is not `NULL`, is STARTED and
                // alive for `'a`.
                let cq = unsafe { Cq::<D>::from_raw(cq) };
                // SAFETY: The caller promises that the domain, which is not `NULL`, is STARTED and
                // alive for `'a`.
                let xrcd = unsafe { Xrcd::from_raw(xrcd) };
                cq.set_in_use();
                Ok(Self::Xrc { cq, xrcd })
            }
            SrqType::Tm => Err(eopnotsupp()),
        }
    }
}

/// A driver's data of an SRQ. See the [crate](crate) for the order of calls.
#[vtable]
pub trait SharedReceiveQueue<D: Operations>: Sized + Send + Sync {
    /// False only for [`Unsupported`].
    const SUPPORTED: bool = true;

    /// Returns an initializer of the data.
    fn create(
        pd: &Pd<D>,
        kind: &SrqKind<'_, D>,
        attr: &SrqAttr,
        caller: &Caller<'_, D>,
    ) -> impl PinInit<Self, Error>;

    /// Creates the queue in the device and sets the actual sizes. For an XRC queue this must call
    /// [`Srq::set_srq_num`].
    fn start(srq: &Srq<D>, attr: &mut SrqAttr, caller: &Caller<'_, D>) -> Result;

    /// Modifies the queue. The core's verb has no response data.
    fn modify(srq: &Srq<D>, change: &SrqChange, caller: &Caller<'_, D>) -> Result;

    /// Returns the attributes of the queue.
    fn query(srq: &Srq<D>) -> Result<SrqAttr>;

    /// Destroys the queue in the device.
    fn destroy(srq: &Srq<D>) -> Result;

    /// Posts receives. Called in any context. See
    /// [`QueuePair::post_send`](crate::qp::QueuePair::post_send).
    fn post_recv(srq: &Srq<D>, wrs: &mut RecvWrs<'_>) -> Result;

    /// Describes the queue to `rdma resource`.
    fn fill_res(_srq: &Srq<D>, _entry: &mut ResEntry<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Passes the raw context of the queue to `put`, for `rdma resource -r`.
    fn fill_res_raw(_srq: &Srq<D>, _put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// A shared receive queue with the driver's data.
pub type Srq<D> = Managed<SrqObject<D>>;

/// The kind of object that a [`Srq`] is.
pub struct SrqObject<D>(PhantomData<D>);

// SAFETY: By NEW the core sets `device` and `uobject` before it calls `create`, and the device is
// one of `D`. The core uses an `ib_srq` from any thread.
unsafe impl<D: Operations> Object for SrqObject<D> {
    type Driver = D;
    type Extra = InTable<()>;
    type Data = D::Srq;

    const NAME: &'static str = "shared receive queue";

    core_members!(ib_srq);

    fn destroy(srq: &Srq<D>) -> Result {
        D::Srq::destroy(srq)
    }

    fn fill_res(srq: &Srq<D>, entry: &mut ResEntry<'_>) -> Result {
        D::Srq::fill_res(srq, entry)
    }

    fn fill_res_raw(srq: &Srq<D>, put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        D::Srq::fill_res_raw(srq, put)
    }
}

// SAFETY: By NEW the core sets `pd` before it calls `create`, and it is constant and one of `D`.
unsafe impl<D: Operations> InPd for SrqObject<D> {
    pd_member!();
}

impl<D: Operations> Srq<D> {
    /// Sets the SRQN of an XRC queue, by which requests name it, in the core's struct.
    pub fn set_srq_num(&self, srqn: u32) {
        let srq = self.as_raw();
        // SAFETY: The object is alive. Only the address of the union is computed, which is also
        // that of its member `xrc`.
        let xrc = unsafe { &raw mut (*srq).ext.__bindgen_anon_1 }
            .cast::<bindings::ib_srq__bindgen_ty_1__bindgen_ty_1__bindgen_ty_1>();
        // SAFETY: The object is alive. Only the address of a field is computed.
        let field = unsafe { &raw mut (*xrc).srq_num };
        // SAFETY: The field is part of a live object, and is a plain integer, which the core reads
        // only after `create` has returned.
        unsafe { field.write_volatile(srqn) };
    }

    /// Reports an event if the owner has a handler. Must be called in process context.
    pub fn event(&self, event: SrqEvent) {
        let srq = self.as_raw();
        let mut event = bindings::ib_event {
            event: event.as_raw(),
            ..Default::default()
        };
        event.element.srq = ManuallyDrop::new(srq);
        // SAFETY: The reference keeps the queue alive, and the core set the handler before
        // `create`.
        let handler = unsafe { (*srq).event_handler };
        // SAFETY: The reference keeps the queue alive, and the core set the context before
        // `create`.
        let context = unsafe { (*srq).srq_context };
        // SAFETY: The handler and the context are those of this queue, and the event names this
        // queue.
        unsafe { self.report(event, handler, context) };
    }

    pub(crate) const fn fill_ops(ops: &mut bindings::ib_device_ops) {
        if !<D::Srq as SharedReceiveQueue<D>>::SUPPORTED {
            return;
        }
        ops.size_ib_srq = object_size::<Self>();
        ops.create_srq = Some(Self::op_create);
        ops.modify_srq = Some(Self::op_modify);
        ops.query_srq = Some(Self::op_query);
        ops.destroy_srq = Some(Self::op_destroy);
        ops.post_srq_recv = Some(Self::op_post_recv);
        if <D::Srq as SharedReceiveQueue<D>>::HAS_FILL_RES {
            ops.fill_res_srq_entry = Some(Self::op_fill_res);
        }
        if <D::Srq as SharedReceiveQueue<D>>::HAS_FILL_RES_RAW {
            ops.fill_res_srq_entry_raw = Some(Self::op_fill_res_raw);
        }
    }

    /// # Safety
    ///
    /// Only the core may call this op: `srq` must be NEW, and ARGUMENTS must hold.
    unsafe extern "C" fn op_create(
        srq: *mut bindings::ib_srq,
        init_attr: *mut bindings::ib_srq_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `srq` is NEW, and ARGUMENTS holds for `udata`.
            let caller = unsafe { Self::caller(srq, udata) }?;
            // SAFETY: By ARGUMENTS `init_attr` is valid during the call, and is the caller's alone.
            let raw_attr = unsafe { &mut *init_attr };
            // SAFETY: By the contract of this op `srq` is NEW.
            let pd = unsafe { Self::pd_of(srq) };
            let mut attr = SrqAttr::from_raw(&raw_attr.attr);
            // SAFETY: By NEW the objects of which the queue is made are STARTED, and live until it
            // is destroyed.
            let kind = unsafe { SrqKind::from_raw(raw_attr) }?;
            let data = D::Srq::create(pd, &kind, &attr, &caller);
            // SAFETY: By the contract of this op `srq` is NEW, and stays so until the draft is
            // started or dropped.
            unsafe { Self::build(srq, data) }?
                .start(&caller, |srq| D::Srq::start(srq, &mut attr, &caller))?;
            attr.write(&mut raw_attr.attr);
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op: `srq` must be STARTED, and ARGUMENTS must hold.
    unsafe extern "C" fn op_modify(
        srq: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_attr,
        mask: bindings::ib_srq_attr_mask,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `srq` is STARTED, and ARGUMENTS holds for `udata`.
            let caller = unsafe { Self::caller(srq, udata) }?;
            // SAFETY: By the contract of this op `srq` is STARTED, and it stays alive during the
            // call.
            let srq = unsafe { Self::from_raw(srq) };
            // SAFETY: By ARGUMENTS `attr` is valid, and the attributes that `mask` names are
            // initialized.
            let change = unsafe { SrqChange::from_raw(attr, SrqAttrMask::from_raw(mask)) };
            D::Srq::modify(srq, &change, &caller)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op: `srq` must be STARTED, and ARGUMENTS must hold.
    unsafe extern "C" fn op_query(
        srq: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `srq` is STARTED, and it stays alive during the
            // call.
            let srq = unsafe { Self::from_raw(srq) };
            // SAFETY: By ARGUMENTS `attr` is valid and is the caller's alone.
            let attr = unsafe { &mut *attr };
            D::Srq::query(srq)?.write(attr);
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op: `srq` must be STARTED, and ARGUMENTS must hold, with `wr` a
    /// list of receive requests.
    unsafe extern "C" fn op_post_recv(
        srq: *mut bindings::ib_srq,
        wr: *const bindings::ib_recv_wr,
        bad: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: By the contract of this op `srq` is STARTED, and it stays alive during the call.
        let srq = unsafe { Self::from_raw(srq) };
        // SAFETY: By ARGUMENTS `wr` is a list of receive requests, valid during the call.
        let wrs = unsafe { RecvWrs::new(wr) };
        // SAFETY: By ARGUMENTS `bad` is valid for writes.
        unsafe { post(srq.is_user(), wrs, bad, |wrs| D::Srq::post_recv(srq, wrs)) }
    }
}

impl<D: Operations> SharedReceiveQueue<D> for Unsupported {
    const SUPPORTED: bool = false;
    no_vtable!(D);

    fn create(
        _pd: &Pd<D>,
        _kind: &SrqKind<'_, D>,
        _attr: &SrqAttr,
        _caller: &Caller<'_, D>,
    ) -> impl PinInit<Self, Error> {
        Err(eopnotsupp())
    }

    fn start(_srq: &Srq<D>, _attr: &mut SrqAttr, _caller: &Caller<'_, D>) -> Result {
        Err(eopnotsupp())
    }

    fn modify(_srq: &Srq<D>, _change: &SrqChange, _caller: &Caller<'_, D>) -> Result {
        Err(eopnotsupp())
    }

    fn query(_srq: &Srq<D>) -> Result<SrqAttr> {
        Err(eopnotsupp())
    }

    fn destroy(_srq: &Srq<D>) -> Result {
        Err(eopnotsupp())
    }

    fn post_recv(_srq: &Srq<D>, _wrs: &mut RecvWrs<'_>) -> Result {
        Err(eopnotsupp())
    }
}
