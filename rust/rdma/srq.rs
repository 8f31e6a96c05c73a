// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.
//!
//! C: `struct ib_srq`; ops `create_srq`, `modify_srq`, `query_srq`, `destroy_srq`, `post_srq_recv`.

use crate::{
    base::{
        compat::no_vtable,
        errno::eopnotsupp, //
    },
    bindings,
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
    /// Work requests.
    pub max_wr: u32,
    /// Scatter/gather entries of each.
    pub max_sge: u32,
    /// Armed limit; 0: none.
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

/// What is to be another: who modifies a queue sets no more of the core's attributes than that.
pub struct SrqChange {
    /// Work requests.
    pub max_wr: Option<u32>,
    /// Armed limit; 0: none.
    pub srq_limit: Option<u32>,
}

impl SrqChange {
    /// # Safety
    ///
    /// Those attributes that `mask` names must be valid.
    unsafe fn from_raw(raw: *const bindings::ib_srq_attr, mask: SrqAttrMask) -> Self {
        let set = |bit| mask.contains(bit);
        // SAFETY: The caller says that what `mask` names is valid.
        unsafe {
            Self {
                max_wr: set(SrqAttrMask::MAX_WR).then(|| (*raw).max_wr),
                srq_limit: set(SrqAttrMask::LIMIT).then(|| (*raw).srq_limit),
            }
        }
    }
}

/// What a shared receive queue is for.
pub enum SrqKind<'a, D: Operations> {
    /// Queue pairs that are made with it.
    Basic,
    /// Targets of extended connections, which name it in their requests.
    Xrc {
        /// Where its receives complete.
        cq: &'a Cq<D>,
        /// The domain of these targets.
        xrcd: &'a Xrcd<D>,
    },
}

impl<'a, D: Operations> SrqKind<'a, D> {
    /// # Safety
    ///
    /// What `raw` names must be STARTED, and live for `'a`.
    unsafe fn from_raw(raw: &'a bindings::ib_srq_init_attr) -> Result<Self> {
        match SrqType::from_raw(raw.srq_type).ok_or(EINVAL)? {
            SrqType::Basic => Ok(Self::Basic),
            SrqType::Xrc => {
                // SAFETY: Of this type: these are set.
                let (cq, xrcd) = unsafe { (raw.ext.cq, raw.ext.__bindgen_anon_1.xrc.xrcd) };
                if cq.is_null() || xrcd.is_null() {
                    return Err(EINVAL);
                }
                // SAFETY: The caller says so.
                let (cq, xrcd) = unsafe { (Cq::<D>::from_raw(cq), Xrcd::from_raw(xrcd)) };
                cq.set_in_use();
                Ok(Self::Xrc { cq, xrcd })
            }
            SrqType::Tm => Err(eopnotsupp()),
        }
    }
}

/// A driver's data of a shared receive queue. See the [crate](crate) for the order of calls.
#[vtable]
pub trait SharedReceiveQueue<D: Operations>: Sized + Send + Sync {
    /// `false` only for [`Unsupported`].
    const SUPPORTED: bool = true;

    /// Builds the data.
    fn create(
        pd: &Pd<D>,
        kind: &SrqKind<'_, D>,
        attr: &SrqAttr,
        caller: &Caller<'_, D>,
    ) -> impl PinInit<Self, Error>;

    /// Makes the queue known; sets the real sizes. One for extended connections must call
    /// [`Srq::set_srq_num`].
    fn start(srq: &Srq<D>, attr: &mut SrqAttr, caller: &Caller<'_, D>) -> Result;

    /// Modifies the queue. The core's verb has no response.
    fn modify(srq: &Srq<D>, change: &SrqChange, caller: &Caller<'_, D>) -> Result;

    /// Tells the attributes.
    fn query(srq: &Srq<D>) -> Result<SrqAttr>;

    /// Destroys the queue.
    fn destroy(srq: &Srq<D>) -> Result;

    /// Posts receives. Any context. See [`QueuePair::post_send`](crate::qp::QueuePair::post_send).
    fn post_recv(srq: &Srq<D>, wrs: &mut RecvWrs<'_>) -> Result;

    /// Describes the queue to `rdma resource`.
    fn fill_res(_srq: &Srq<D>, _entry: &mut ResEntry<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The queue's raw context for `rdma resource -r`.
    fn fill_res_raw(_srq: &Srq<D>, _put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// A shared receive queue.
pub type Srq<D> = Managed<SrqObject<D>>;

/// The kind of object that a [`Srq`] is.
pub struct SrqObject<D>(PhantomData<D>);

// SAFETY: The core sets `device` and `uobject` before `create`.
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

// SAFETY: The core sets `pd` before `create`.
unsafe impl<D: Operations> InPd for SrqObject<D> {
    pd_member!();
}

impl<D: Operations> Srq<D> {
    /// Tells the core the SRQN of one for extended connections, by which their requests name it.
    pub fn set_srq_num(&self, srqn: u32) {
        let srq = self.as_raw();
        // SAFETY: A plain integer, read by the core when `create` has returned.
        unsafe {
            let xrc = (&raw mut (*srq).ext.__bindgen_anon_1.xrc)
                .cast::<bindings::ib_srq__bindgen_ty_1__bindgen_ty_1__bindgen_ty_1>();
            (&raw mut (*xrc).srq_num).write_volatile(srqn);
        }
    }

    /// Reports an event, if somebody listens. Process context.
    pub fn event(&self, event: SrqEvent) {
        let srq = self.as_raw();
        let mut event = bindings::ib_event {
            event: event.as_raw(),
            ..Default::default()
        };
        event.element.srq = ManuallyDrop::new(srq);
        // SAFETY: The queue's own, set before `create`.
        unsafe { self.report(event, (*srq).event_handler, (*srq).srq_context) };
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
    /// For the core: NEW, ARGUMENTS.
    unsafe extern "C" fn op_create(
        srq: *mut bindings::ib_srq,
        init_attr: *mut bindings::ib_srq_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: NEW, ARGUMENTS.
            let (caller, raw_attr, pd) = unsafe {
                (
                    Self::caller(srq, udata)?,
                    &mut *init_attr,
                    Pd::<D>::from_raw((*srq).pd),
                )
            };
            let mut attr = SrqAttr::from_raw(&raw_attr.attr);
            // SAFETY: NEW: what it is made of stays.
            let kind = unsafe { SrqKind::from_raw(raw_attr) }?;
            let data = D::Srq::create(pd, &kind, &attr, &caller);
            // SAFETY: NEW.
            unsafe { Self::build(srq, data) }?
                .start(&caller, |srq| D::Srq::start(srq, &mut attr, &caller))?;
            attr.write(&mut raw_attr.attr);
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// For the core: STARTED, ARGUMENTS.
    unsafe extern "C" fn op_modify(
        srq: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_attr,
        mask: bindings::ib_srq_attr_mask,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: STARTED, ARGUMENTS.
            let caller = unsafe { Self::caller(srq, udata) }?;
            // SAFETY: STARTED, ARGUMENTS.
            let (srq, change) = unsafe {
                (
                    Self::from_raw(srq),
                    SrqChange::from_raw(attr, SrqAttrMask::from_raw(mask)),
                )
            };
            D::Srq::modify(srq, &change, &caller)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// For the core: STARTED, ARGUMENTS.
    unsafe extern "C" fn op_query(
        srq: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: STARTED; ARGUMENTS: `attr` is the caller's to fill.
            let (srq, attr) = unsafe { (Self::from_raw(srq), &mut *attr) };
            D::Srq::query(srq)?.write(attr);
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// For the core: STARTED, ARGUMENTS: a list of requests.
    unsafe extern "C" fn op_post_recv(
        srq: *mut bindings::ib_srq,
        wr: *const bindings::ib_recv_wr,
        bad: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: STARTED, ARGUMENTS.
        unsafe {
            let srq = Self::from_raw(srq);
            post(srq.is_user(), RecvWrs::new(wr), bad, |wrs| {
                D::Srq::post_recv(srq, wrs)
            })
        }
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
