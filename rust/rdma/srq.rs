// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.
//!
//! C: `struct ib_srq`; ops `create_srq`, `modify_srq`, `query_srq`, `destroy_srq`, `post_srq_recv`.

use crate::{
    bindings,
    device::{
        Device,
        Operations, //
    },
    enums::{
        SrqAttrMask,
        SrqEvent,
        SrqType, //
    },
    errno::eopnotsupp,
    object::{
        caller,
        init_slot,
        init_slot_infallible,
        no_udata,
        object_size, //
    },
    pd::Pd,
    restrack::ResEntry,
    table::{
        Link,
        Linked, //
    },
    udata::Caller,
    wr::RecvWrs,
    Unsupported, //
};
use core::mem::{
    offset_of,
    ManuallyDrop, //
};
use kernel::{
    bindings as kbindings,
    error::{
        from_result,
        VTABLE_DEFAULT_ERROR, //
    },
    prelude::*,
    types::Opaque, //
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

/// A driver's data of a shared receive queue. See the [crate](crate) for the order of calls.
#[vtable]
pub trait SharedReceiveQueue<D: Operations>: Sized + Send + Sync {
    /// `false` only for [`Unsupported`].
    const SUPPORTED: bool = true;

    /// Builds the data.
    fn create(
        pd: &Pd<D>,
        srq_type: SrqType,
        attr: &SrqAttr,
        caller: &Caller<'_, D>,
    ) -> impl PinInit<Self, Error>;

    /// Makes the queue known; sets the real sizes.
    fn start(srq: &Srq<D>, attr: &mut SrqAttr, caller: &Caller<'_, D>) -> Result;

    /// Modifies the queue.
    fn modify(srq: &Srq<D>, attr: &SrqAttr, mask: SrqAttrMask) -> Result;

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
#[repr(C)]
pub struct Srq<D: Operations> {
    raw: Opaque<bindings::ib_srq>,
    link: Link,
    data: D::Srq,
}

// SAFETY: An `ib_srq` may be used from any thread; the data is `Send`.
unsafe impl<D: Operations> Send for Srq<D> {}
// SAFETY: By shared reference only what is safe to do concurrently is done; the data is `Sync`.
unsafe impl<D: Operations> Sync for Srq<D> {}

// SAFETY: `LINK_OFFSET` is that of `link`; `drop_parts` unlinks before it drops.
unsafe impl<D: Operations> Linked for Srq<D> {
    const LINK_OFFSET: usize = offset_of!(Self, link);

    fn link(&self) -> &Link {
        &self.link
    }
}

impl<D: Operations> core::ops::Deref for Srq<D> {
    type Target = D::Srq;

    fn deref(&self) -> &D::Srq {
        &self.data
    }
}

impl<D: Operations> Srq<D> {
    /// # Safety
    ///
    /// `raw` must be a started queue of a device of `D`, alive for `'a`.
    pub(crate) unsafe fn from_raw<'a>(raw: *mut bindings::ib_srq) -> &'a Self {
        // SAFETY: `repr(C)` with the `ib_srq` first; see above.
        unsafe { &*raw.cast() }
    }

    /// Its device.
    pub fn device(&self) -> &Device<D> {
        // SAFETY: Set by the core before `create`, constant.
        unsafe { Device::from_raw((*self.raw.get()).device) }
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd<D> {
        // SAFETY: As above.
        unsafe { Pd::from_raw((*self.raw.get()).pd) }
    }

    /// Whether it belongs to a process.
    pub fn is_user(&self) -> bool {
        // SAFETY: As above.
        unsafe { !(*self.raw.get()).uobject.is_null() }
    }

    /// Takes the queue out of its [`Table`](crate::table::Table). See [`Link::unlink`].
    pub fn unlink(&self) {
        self.link.unlink();
    }

    /// Reports an event, if somebody listens. Process context.
    pub fn event(&self, event: SrqEvent) {
        let srq = self.raw.get();
        let mut event = bindings::ib_event {
            device: self.device().as_raw(),
            event: event.as_raw(),
            ..Default::default()
        };
        event.element.srq = ManuallyDrop::new(srq);
        // SAFETY: The handler and its context are set before `create` and constant; the queue is
        // not destroyed while we have a reference.
        unsafe {
            if let Some(handler) = (*srq).event_handler {
                handler(&mut event, (*srq).srq_context);
            }
        }
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
    /// Only for the core, with a zeroed object of [`Self`]'s size.
    unsafe extern "C" fn op_create(
        srq: *mut bindings::ib_srq,
        init_attr: *mut bindings::ib_srq_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core has set the object's members; `udata` is `NULL` or from a bundle of our
            // device, and valid for the call.
            let caller = unsafe { caller::<D>(udata, !(*srq).uobject.is_null()) }?;
            // SAFETY: The core passes what it was asked for.
            let raw_attr = unsafe { &mut *init_attr };
            let srq_type = SrqType::from_raw(raw_attr.srq_type).ok_or(EINVAL)?;
            let mut attr = SrqAttr::from_raw(&raw_attr.attr);
            // SAFETY: Set by the core.
            let pd = unsafe { Pd::<D>::from_raw((*srq).pd) };
            let this = srq.cast::<Self>();

            // SAFETY: The memory behind the C struct is ours, and does not move.
            unsafe {
                let init = D::Srq::create(pd, srq_type, &attr, &caller);
                init_slot(&raw mut (*this).data, init)?;
                init_slot_infallible(&raw mut (*this).link, Link::new());
            }
            let mut start = || {
                caller.finish_input()?;
                // SAFETY: All fields are initialized.
                D::Srq::start(unsafe { Self::from_raw(srq) }, &mut attr, &caller)
            };
            if let Err(e) = start() {
                // SAFETY: Not started; the core forgets it.
                unsafe { Self::drop_parts(this) };
                return Err(e);
            }
            if let Err(e) = caller.finish_output() {
                // SAFETY: Started; the core forgets it.
                unsafe { Self::undo(srq) };
                return Err(e);
            }
            attr.write(&mut raw_attr.attr);
            Ok(0)
        })
    }

    /// Destroys a started shared receive queue that its owner never got to know.
    ///
    /// # Safety
    ///
    /// `srq` must be started; nobody uses it afterwards.
    unsafe fn undo(srq: *mut bindings::ib_srq) {
        // SAFETY: Started.
        let this = unsafe { Self::from_raw(srq) };
        if D::Srq::destroy(this).is_ok() {
            // SAFETY: Destroyed.
            unsafe { Self::drop_parts(srq.cast()) };
        } else {
            // The device may still use its memory, so that must stay.
            this.link.unlink();
            pr_err!("cannot destroy a shared receive queue whose response failed\n");
        }
    }

    /// # Safety
    ///
    /// All fields must be initialized; nobody uses them afterwards.
    unsafe fn drop_parts(this: *mut Self) {
        // SAFETY: Initialized. References from tables are gone when `unlink` returns.
        unsafe {
            (*this).link.unlink();
            core::ptr::drop_in_place(this);
        }
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue.
    unsafe extern "C" fn op_modify(
        srq: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_attr,
        mask: bindings::ib_srq_attr_mask,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: `NULL` or valid.
            unsafe { no_udata(udata) }?;
            // SAFETY: Started; the core passes what it was asked for.
            let (srq, attr) = unsafe { (Self::from_raw(srq), SrqAttr::from_raw(&*attr)) };
            D::Srq::modify(srq, &attr, SrqAttrMask::from_raw(mask))?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue.
    unsafe extern "C" fn op_query(
        srq: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: Started; `attr` is the caller's to fill.
            let (srq, attr) = unsafe { (Self::from_raw(srq), &mut *attr) };
            D::Srq::query(srq)?.write(attr);
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue.
    unsafe extern "C" fn op_destroy(
        srq: *mut bindings::ib_srq,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: Started.
            D::Srq::destroy(unsafe { Self::from_raw(srq) })?;
            // SAFETY: The core frees the memory next.
            unsafe { Self::drop_parts(srq.cast()) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue and a list of work requests.
    unsafe extern "C" fn op_post_recv(
        srq: *mut bindings::ib_srq,
        wr: *const bindings::ib_recv_wr,
        bad: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: Started.
        let this = unsafe { Self::from_raw(srq) };
        // SAFETY: A list.
        let mut wrs = unsafe { RecvWrs::new(wr) };
        let result = if this.is_user() {
            Err(eopnotsupp())
        } else {
            D::Srq::post_recv(this, &mut wrs)
        };
        from_result(|| {
            result.inspect_err(|_| {
                // SAFETY: The core passes a place for it.
                unsafe { *bad = wrs.bad() };
            })?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue.
    unsafe extern "C" fn op_fill_res(
        msg: *mut kbindings::sk_buff,
        srq: *mut bindings::ib_srq,
    ) -> c_int {
        // SAFETY: Started; `msg` is a message of the core's.
        unsafe { ResEntry::fill(msg, |e| D::Srq::fill_res(Self::from_raw(srq), e)) }
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue.
    unsafe extern "C" fn op_fill_res_raw(
        msg: *mut kbindings::sk_buff,
        srq: *mut bindings::ib_srq,
    ) -> c_int {
        // SAFETY: Started; `msg` is a message of the core's.
        unsafe { ResEntry::fill_raw(msg, |put| D::Srq::fill_res_raw(Self::from_raw(srq), put)) }
    }
}

impl<D: Operations> SharedReceiveQueue<D> for Unsupported {
    const SUPPORTED: bool = false;
    const USE_VTABLE_ATTR: () = ();

    fn create(
        _pd: &Pd<D>,
        _srq_type: SrqType,
        _attr: &SrqAttr,
        _caller: &Caller<'_, D>,
    ) -> impl PinInit<Self, Error> {
        Err(eopnotsupp())
    }

    fn start(_srq: &Srq<D>, _attr: &mut SrqAttr, _caller: &Caller<'_, D>) -> Result {
        Err(eopnotsupp())
    }

    fn modify(_srq: &Srq<D>, _attr: &SrqAttr, _mask: SrqAttrMask) -> Result {
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
