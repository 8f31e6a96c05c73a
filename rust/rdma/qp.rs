// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.
//!
//! C: `struct ib_qp`; ops `create_qp`, `modify_qp`, `query_qp`, `destroy_qp`, `post_send`,
//! `post_recv`. `drain_sq` and `drain_rq` are left to the core's generic code.

use crate::{
    bindings,
    cq::Cq,
    device::{
        Device,
        Operations, //
    },
    enums::{
        QpAttrMask,
        QpEvent,
        QpType, //
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
    qp_attr::{
        QpAttr,
        QpInitAttr,
        QpInitReply, //
    },
    restrack::ResEntry,
    srq::Srq,
    table::{
        Link,
        Linked, //
    },
    udata::Caller,
    wr::{
        RecvWrs,
        SendWrs, //
    }, //
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

/// A driver's data of a queue pair. See the [crate](crate) for the order of calls.
#[vtable]
pub trait QueuePair<D: Operations>: Sized + Send + Sync {
    /// Builds the data.
    fn create(
        pd: &Pd<D>,
        attr: &QpInitAttr<'_, D>,
        caller: &Caller<'_, D>,
    ) -> impl PinInit<Self, Error>;

    /// Makes the queue pair known. Must call [`Qp::set_qp_num`], and [`QpInitAttr::set_cap`] with
    /// the real sizes.
    fn start(qp: &Qp<D>, attr: &mut QpInitAttr<'_, D>, caller: &Caller<'_, D>) -> Result;

    /// Modifies the queue pair. Illegal transitions and masks are the driver's to refuse, with
    /// [`modify_is_ok`](crate::qp_attr::modify_is_ok).
    fn modify(qp: &Qp<D>, attr: &QpAttr, mask: QpAttrMask) -> Result;

    /// Tells the attributes; `mask` says which the caller needs at least.
    fn query(qp: &Qp<D>, attr: &mut QpAttr, mask: QpAttrMask, init: &mut QpInitReply) -> Result;

    /// Destroys the queue pair: no event, no entry in a completion queue any more.
    fn destroy(qp: &Qp<D>) -> Result;

    /// Posts work requests until `wrs` is empty or one fails. Any context. When this returns an
    /// error, the last request taken from `wrs` is the bad one.
    fn post_send(qp: &Qp<D>, wrs: &mut SendWrs<'_, D>) -> Result;

    /// As [`post_send`](Self::post_send), for receives.
    fn post_recv(qp: &Qp<D>, wrs: &mut RecvWrs<'_>) -> Result;

    /// Describes the queue pair to `rdma resource`.
    fn fill_res(_qp: &Qp<D>, _entry: &mut ResEntry<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The queue pair's raw context for `rdma resource -r`.
    fn fill_res_raw(_qp: &Qp<D>, _put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// A queue pair.
///
/// # Invariants
///
/// All fields are initialized once `start` is called.
#[repr(C)]
pub struct Qp<D: Operations> {
    raw: Opaque<bindings::ib_qp>,
    link: Link,
    data: D::Qp,
}

// SAFETY: An `ib_qp` may be used from any thread; the data is `Send`.
unsafe impl<D: Operations> Send for Qp<D> {}
// SAFETY: By shared reference only what is safe to do concurrently is done; the data is `Sync`.
unsafe impl<D: Operations> Sync for Qp<D> {}

// SAFETY: `LINK_OFFSET` is that of `link`; `drop_parts` unlinks before it drops.
unsafe impl<D: Operations> Linked for Qp<D> {
    const LINK_OFFSET: usize = offset_of!(Self, link);

    fn link(&self) -> &Link {
        &self.link
    }
}

impl<D: Operations> core::ops::Deref for Qp<D> {
    type Target = D::Qp;

    fn deref(&self) -> &D::Qp {
        &self.data
    }
}

impl<D: Operations> Qp<D> {
    /// # Safety
    ///
    /// `raw` must be a started queue pair of a device of `D`, alive for `'a`.
    pub(crate) unsafe fn from_raw<'a>(raw: *mut bindings::ib_qp) -> &'a Self {
        // SAFETY: `repr(C)` with the `ib_qp` first; see above.
        unsafe { &*raw.cast() }
    }

    pub(crate) fn as_raw(&self) -> *mut bindings::ib_qp {
        self.raw.get()
    }

    /// Its device.
    pub fn device(&self) -> &Device<D> {
        // SAFETY: Set by the core before `create`, constant; the device outlives its objects.
        unsafe { Device::from_raw((*self.raw.get()).device) }
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd<D> {
        // SAFETY: As above.
        unsafe { Pd::from_raw((*self.raw.get()).pd) }
    }

    /// Whether it belongs to a process.
    pub fn is_user(&self) -> bool {
        // SAFETY: Set by the core before `create`, constant.
        unsafe { !(*self.raw.get()).uobject.is_null() }
    }

    /// Its type.
    pub fn qp_type(&self) -> Option<QpType> {
        // SAFETY: As above.
        QpType::from_raw(unsafe { (*self.raw.get()).qp_type })
    }

    /// Completion queue of the send queue.
    pub fn send_cq(&self) -> Option<&Cq<D>> {
        // SAFETY: Set by the core before `create`, constant; it outlives the queue pair.
        let cq = unsafe { (*self.raw.get()).send_cq };
        // SAFETY: As above.
        (!cq.is_null()).then(|| unsafe { Cq::from_raw(cq) })
    }

    /// Completion queue of the receive queue.
    pub fn recv_cq(&self) -> Option<&Cq<D>> {
        // SAFETY: As above.
        let cq = unsafe { (*self.raw.get()).recv_cq };
        // SAFETY: As above.
        (!cq.is_null()).then(|| unsafe { Cq::from_raw(cq) })
    }

    /// Shared receive queue.
    pub fn srq(&self) -> Option<&Srq<D>> {
        // SAFETY: As above.
        let srq = unsafe { (*self.raw.get()).srq };
        // SAFETY: As above.
        (!srq.is_null()).then(|| unsafe { Srq::from_raw(srq) })
    }

    /// QPN.
    pub fn qp_num(&self) -> u32 {
        // SAFETY: A plain integer, accessed by volatile accesses on our side.
        unsafe { (&raw const (*self.raw.get()).qp_num).read_volatile() }
    }

    /// Tells the core the QPN.
    pub fn set_qp_num(&self, qpn: u32) {
        // SAFETY: A plain integer, read by the core when `create` has returned.
        unsafe { (&raw mut (*self.raw.get()).qp_num).write_volatile(qpn) };
    }

    /// Takes the queue pair out of its [`Table`](crate::table::Table). See [`Link::unlink`].
    pub fn unlink(&self) {
        self.link.unlink();
    }

    /// Reports an event. Process context: the owner's handler may sleep.
    pub fn event(&self, event: QpEvent) {
        let qp = self.raw.get();
        let mut event = bindings::ib_event {
            device: self.device().as_raw(),
            event: event.as_raw(),
            ..Default::default()
        };
        event.element.qp = ManuallyDrop::new(qp);
        // SAFETY: The handler and its context are set before `create` and constant; the queue pair
        // is not destroyed while we have a reference.
        unsafe {
            if let Some(handler) = (*qp).event_handler {
                handler(&mut event, (*qp).qp_context);
            }
        }
    }

    pub(crate) const fn fill_ops(ops: &mut bindings::ib_device_ops) {
        ops.size_ib_qp = object_size::<Self>();
        ops.create_qp = Some(Self::op_create);
        ops.modify_qp = Some(Self::op_modify);
        ops.query_qp = Some(Self::op_query);
        ops.destroy_qp = Some(Self::op_destroy);
        ops.post_send = Some(Self::op_post_send);
        ops.post_recv = Some(Self::op_post_recv);
        if <D::Qp as QueuePair<D>>::HAS_FILL_RES {
            ops.fill_res_qp_entry = Some(Self::op_fill_res);
        }
        if <D::Qp as QueuePair<D>>::HAS_FILL_RES_RAW {
            ops.fill_res_qp_entry_raw = Some(Self::op_fill_res_raw);
        }
    }

    /// # Safety
    ///
    /// Only for the core, with a zeroed object of [`Self`]'s size.
    unsafe extern "C" fn op_create(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core has set the object's members; `udata` is `NULL` or from a bundle of our
            // device, and valid for the call.
            let caller = unsafe { caller::<D>(udata, !(*qp).uobject.is_null()) }?;
            // SAFETY: The core passes what it was asked for.
            let mut attr = unsafe { QpInitAttr::<D>::from_raw(&mut *attr) };
            // SAFETY: Set by the core.
            let pd = unsafe { (*qp).pd };
            if pd.is_null() {
                // An XRC target has none.
                return Err(eopnotsupp());
            }
            let this = qp.cast::<Self>();

            // SAFETY: Set by the core, constant.
            for cq in unsafe { [(*qp).send_cq, (*qp).recv_cq] } {
                if !cq.is_null() {
                    // SAFETY: The core keeps it alive during the call.
                    unsafe { Cq::<D>::from_raw(cq) }.set_in_use();
                }
            }

            // SAFETY: The memory behind the C struct is ours, and does not move.
            unsafe {
                let init = D::Qp::create(Pd::from_raw(pd), &attr, &caller);
                init_slot(&raw mut (*this).data, init)?;
                init_slot_infallible(&raw mut (*this).link, Link::new());
            }
            let mut start = || {
                caller.finish_input()?;
                // SAFETY: All fields are initialized.
                D::Qp::start(unsafe { Self::from_raw(qp) }, &mut attr, &caller)
            };
            if let Err(e) = start() {
                // SAFETY: Not started; the core forgets it.
                unsafe { Self::drop_parts(this) };
                return Err(e);
            }
            if let Err(e) = caller.finish_output() {
                // SAFETY: Started; the core forgets it.
                unsafe { Self::undo(qp) };
                return Err(e);
            }
            Ok(0)
        })
    }

    /// Destroys a started queue pair that its owner never got to know.
    ///
    /// # Safety
    ///
    /// `qp` must be started; nobody uses it afterwards.
    unsafe fn undo(qp: *mut bindings::ib_qp) {
        // SAFETY: Started.
        let this = unsafe { Self::from_raw(qp) };
        if D::Qp::destroy(this).is_ok() {
            // SAFETY: Destroyed.
            unsafe { Self::drop_parts(qp.cast()) };
        } else {
            // The device may still use its memory, so that must stay.
            this.link.unlink();
            pr_err!("cannot destroy a queue pair whose response failed\n");
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
    /// Only for the core, with a started queue pair.
    unsafe extern "C" fn op_modify(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        mask: c_int,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: `NULL` or valid.
            unsafe { no_udata(udata) }?;
            // CAST: Bit flags.
            let mask = QpAttrMask::from_raw(mask as u32);
            // SAFETY: What the mask says is initialized.
            let attr = unsafe { QpAttr::masked(attr, mask) };
            // SAFETY: Started.
            D::Qp::modify(unsafe { Self::from_raw(qp) }, &attr, mask)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue pair.
    unsafe extern "C" fn op_query(
        qp: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        mask: c_int,
        init: *mut bindings::ib_qp_init_attr,
    ) -> c_int {
        from_result(|| {
            // CAST: Bit flags.
            let mask = QpAttrMask::from_raw(mask as u32);
            // Some kernel users pass structs that they have not cleared.
            //
            // SAFETY: The caller's to fill; all zeroes are valid for both.
            unsafe {
                attr.write_bytes(0, 1);
                init.write_bytes(0, 1);
                (*init).event_handler = (*qp).registered_event_handler;
                (*init).qp_context = (*qp).qp_context;
                (*init).send_cq = (*qp).send_cq;
                (*init).recv_cq = (*qp).recv_cq;
                (*init).srq = (*qp).srq;
                (*init).qp_type = (*qp).qp_type;
            }
            // SAFETY: Started; both structs are initialized.
            unsafe {
                D::Qp::query(
                    Self::from_raw(qp),
                    &mut *attr.cast(),
                    mask,
                    &mut *init.cast(),
                )
            }?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue pair.
    unsafe extern "C" fn op_destroy(
        qp: *mut bindings::ib_qp,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: Started.
            D::Qp::destroy(unsafe { Self::from_raw(qp) })?;
            // SAFETY: The core frees the memory next.
            unsafe { Self::drop_parts(qp.cast()) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue pair and a list of work requests.
    unsafe extern "C" fn op_post_send(
        qp: *mut bindings::ib_qp,
        wr: *const bindings::ib_send_wr,
        bad: *mut *const bindings::ib_send_wr,
    ) -> c_int {
        // SAFETY: Started.
        let this = unsafe { Self::from_raw(qp) };
        // SAFETY: A list for this queue pair.
        let mut wrs = unsafe { SendWrs::new(wr, this.qp_type()) };
        let result = if this.is_user() {
            Err(eopnotsupp())
        } else {
            D::Qp::post_send(this, &mut wrs)
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
    /// Only for the core, with a started queue pair and a list of work requests.
    unsafe extern "C" fn op_post_recv(
        qp: *mut bindings::ib_qp,
        wr: *const bindings::ib_recv_wr,
        bad: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: Started.
        let this = unsafe { Self::from_raw(qp) };
        // SAFETY: A list.
        let mut wrs = unsafe { RecvWrs::new(wr) };
        let result = if this.is_user() {
            Err(eopnotsupp())
        } else {
            D::Qp::post_recv(this, &mut wrs)
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
    /// Only for the core, with a started queue pair.
    unsafe extern "C" fn op_fill_res(
        msg: *mut kbindings::sk_buff,
        qp: *mut bindings::ib_qp,
    ) -> c_int {
        // SAFETY: Started; `msg` is a message of the core's.
        unsafe { ResEntry::fill(msg, |e| D::Qp::fill_res(Self::from_raw(qp), e)) }
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue pair.
    unsafe extern "C" fn op_fill_res_raw(
        msg: *mut kbindings::sk_buff,
        qp: *mut bindings::ib_qp,
    ) -> c_int {
        // SAFETY: Started; `msg` is a message of the core's.
        unsafe { ResEntry::fill_raw(msg, |put| D::Qp::fill_res_raw(Self::from_raw(qp), put)) }
    }
}
