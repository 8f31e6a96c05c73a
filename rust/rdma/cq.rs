// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! C: `struct ib_cq`; ops `create_cq`, `create_user_cq`, `destroy_cq`, `resize_user_cq`,
//! `modify_cq`, `poll_cq`, `req_notify_cq`.

use crate::{
    bindings,
    device::{
        Device,
        Operations, //
    },
    enums::NotifyFlags,
    errno::eopnotsupp,
    new_irq_lock,
    object::{
        caller,
        init_slot,
        init_slot_infallible,
        object_size, //
    },
    restrack::ResEntry,
    sync::IrqLock,
    table::{
        Link,
        Linked, //
    },
    udata::{
        Caller,
        User, //
    },
    wc::WcSink,
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
    sync::atomic::{
        Acquire,
        Atomic,
        Release, //
    },
    types::Opaque, //
};

/// What is asked of a new completion queue.
#[repr(transparent)]
pub struct CqInitAttr(bindings::ib_cq_init_attr);

impl CqInitAttr {
    /// Number of entries.
    pub fn cqe(&self) -> u32 {
        self.0.cqe
    }

    /// Completion vector.
    pub fn comp_vector(&self) -> u32 {
        self.0.comp_vector
    }

    /// `enum ib_uverbs_ex_create_cq_flags`.
    pub fn flags(&self) -> u32 {
        self.0.flags
    }
}

/// A driver's data of a completion queue. See the [crate](crate) for the order of calls.
#[vtable]
pub trait CompletionQueue<D: Operations>: Sized + Send + Sync {
    /// `false` only for [`Unsupported`].
    const SUPPORTED: bool = true;

    /// Builds the data.
    fn create(
        dev: &Device<D>,
        attr: &CqInitAttr,
        caller: &Caller<'_, D>,
    ) -> impl PinInit<Self, Error>;

    /// Makes the queue known. Must call [`Cq::set_cqe`].
    fn start(cq: &Cq<D>, caller: &Caller<'_, D>) -> Result;

    /// Destroys the queue: no event, no entry any more. The core made sure that no QP uses it.
    fn destroy(cq: &Cq<D>) -> Result;

    /// Takes entries, oldest first, until the queue is empty or `wcs` full. Any context.
    ///
    /// An entry that cannot be used is skipped; it must not end the poll.
    fn poll(cq: &Cq<D>, wcs: &mut WcSink<'_, D>) -> Result;

    /// Arms the queue. `Ok(true)` if entries were there already and the caller asked for that with
    /// [`NotifyFlags::REPORT_MISSED_EVENTS`]. Any context.
    fn req_notify(cq: &Cq<D>, flags: NotifyFlags) -> Result<bool>;

    /// Resizes the queue of a process.
    fn resize(_cq: &Cq<D>, _cqe: u32, _user: &User<'_, D>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Sets moderation.
    fn modify(_cq: &Cq<D>, _count: u16, _period: u16) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Describes the queue to `rdma resource`.
    fn fill_res(_cq: &Cq<D>, _entry: &mut ResEntry<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// The queue's raw context for `rdma resource -r`.
    fn fill_res_raw(_cq: &Cq<D>, _put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// A completion queue.
///
/// # Invariants
///
/// All fields are initialized once `start` is called.
#[repr(C)]
pub struct Cq<D: Operations> {
    raw: Opaque<bindings::ib_cq>,
    link: Link,
    /// Serializes calls of the completion handler.
    handler: IrqLock<()>,
    /// A queue pair was made with the queue, so whoever made the queue has it. See [`Cq::complete`].
    in_use: Atomic<bool>,
    data: D::Cq,
}

// SAFETY: An `ib_cq` may be used from any thread; the data is `Send`.
unsafe impl<D: Operations> Send for Cq<D> {}
// SAFETY: By shared reference only what is safe to do concurrently is done; the data is `Sync`.
unsafe impl<D: Operations> Sync for Cq<D> {}

// SAFETY: `LINK_OFFSET` is that of `link`; `op_create` and `op_destroy` unlink before they drop.
unsafe impl<D: Operations> Linked for Cq<D> {
    const LINK_OFFSET: usize = offset_of!(Self, link);

    fn link(&self) -> &Link {
        &self.link
    }
}

impl<D: Operations> core::ops::Deref for Cq<D> {
    type Target = D::Cq;

    fn deref(&self) -> &D::Cq {
        &self.data
    }
}

impl<D: Operations> Cq<D> {
    /// # Safety
    ///
    /// `raw` must be a started completion queue of a device of `D`, alive for `'a`.
    pub(crate) unsafe fn from_raw<'a>(raw: *mut bindings::ib_cq) -> &'a Self {
        // SAFETY: `repr(C)` with the `ib_cq` first; see above.
        unsafe { &*raw.cast() }
    }

    /// Its device.
    pub fn device(&self) -> &Device<D> {
        // SAFETY: Set by the core before `create`, constant; the device outlives its objects.
        unsafe { Device::from_raw((*self.raw.get()).device) }
    }

    /// Whether it belongs to a process.
    pub fn is_user(&self) -> bool {
        // SAFETY: Set by the core before `create`, constant.
        unsafe { !(*self.raw.get()).uobject.is_null() }
    }

    /// Number of entries that the queue really has.
    pub fn cqe(&self) -> u32 {
        // SAFETY: A plain integer, accessed by volatile accesses on our side.
        unsafe { (&raw const (*self.raw.get()).cqe).read_volatile() }
            .try_into()
            .unwrap_or(0)
    }

    /// Tells the core how many entries the queue really has.
    pub fn set_cqe(&self, cqe: u32) {
        let cqe = cqe.try_into().unwrap_or(c_int::MAX);
        // SAFETY: A plain integer, read by the core when `create` or `resize` has returned.
        unsafe { (&raw mut (*self.raw.get()).cqe).write_volatile(cqe) };
    }

    /// Takes the queue out of its [`Table`](crate::table::Table). See [`Link::unlink`].
    pub fn unlink(&self) {
        self.link.unlink();
    }

    /// A queue pair is being made with the queue.
    pub(crate) fn set_in_use(&self) {
        self.in_use.store(true, Release);
    }

    /// Calls the completion handler, if there is one. Any context, but not from inside a verb.
    ///
    /// `ib_alloc_cq()` sets the handler, and what the handler needs, only after `create`, and lets
    /// nobody have the queue before. So a queue of the kernel's that no queue pair was ever made with
    /// has none; nothing can complete there either.
    pub fn complete(&self) {
        if !self.is_user() && !self.in_use.load(Acquire) {
            return;
        }
        let _one_at_a_time = self.handler.lock();
        let cq = self.raw.get();
        // SAFETY: The handler and its context are constant: for a process they are set before
        // `create`; else when whoever made the queue got it, which was before the queue pair was
        // made that `in_use` tells of. The queue is not destroyed while we have a reference.
        unsafe {
            if let Some(handler) = (*cq).comp_handler {
                handler(cq, (*cq).cq_context);
            }
        }
    }

    /// Reports a queue in error, if somebody listens. Any context that may call the handler of the
    /// owner: process context for kernel users that sleep there.
    pub fn error_event(&self) {
        let cq = self.raw.get();
        let mut event = bindings::ib_event {
            device: self.device().as_raw(),
            event: bindings::ib_event_type_IB_EVENT_CQ_ERR,
            ..Default::default()
        };
        event.element.cq = ManuallyDrop::new(cq);
        // SAFETY: This handler and its context are always set before `create`, and constant; the
        // queue is not destroyed while we have a reference.
        unsafe {
            if let Some(handler) = (*cq).event_handler {
                handler(&mut event, (*cq).cq_context);
            }
        }
    }

    pub(crate) const fn fill_ops(ops: &mut bindings::ib_device_ops) {
        if !<D::Cq as CompletionQueue<D>>::SUPPORTED {
            return;
        }
        ops.size_ib_cq = object_size::<Self>();
        ops.create_cq = Some(Self::op_create);
        ops.create_user_cq = Some(Self::op_create);
        ops.destroy_cq = Some(Self::op_destroy);
        ops.poll_cq = Some(Self::op_poll);
        ops.req_notify_cq = Some(Self::op_req_notify);
        if <D::Cq as CompletionQueue<D>>::HAS_RESIZE {
            ops.resize_user_cq = Some(Self::op_resize);
        }
        if <D::Cq as CompletionQueue<D>>::HAS_MODIFY {
            ops.modify_cq = Some(Self::op_modify);
        }
        if <D::Cq as CompletionQueue<D>>::HAS_FILL_RES {
            ops.fill_res_cq_entry = Some(Self::op_fill_res);
        }
        if <D::Cq as CompletionQueue<D>>::HAS_FILL_RES_RAW {
            ops.fill_res_cq_entry_raw = Some(Self::op_fill_res_raw);
        }
    }

    /// # Safety
    ///
    /// Only for the core, with a zeroed object of [`Self`]'s size.
    unsafe extern "C" fn op_create(
        cq: *mut bindings::ib_cq,
        attr: *const bindings::ib_cq_init_attr,
        attrs: *mut bindings::uverbs_attr_bundle,
    ) -> c_int {
        from_result(|| {
            let udata = if attrs.is_null() {
                core::ptr::null_mut()
            } else {
                // SAFETY: A bundle of a process' request.
                unsafe { bindings::verbena_attrs_udata(attrs) }
            };
            // SAFETY: The core has set the object's members; `udata` is `NULL` or from a bundle of our
            // device, and valid for the call.
            let caller = unsafe { caller::<D>(udata, !(*cq).uobject.is_null()) }?;
            // SAFETY: The core passes what it was asked for.
            let attr = unsafe { &*attr.cast::<CqInitAttr>() };
            // SAFETY: Set by the core.
            let dev = unsafe { Device::<D>::from_raw((*cq).device) };
            let this = cq.cast::<Self>();

            // SAFETY: The memory behind the C struct is ours, and does not move.
            unsafe {
                let init = D::Cq::create(dev, attr, &caller);
                init_slot(&raw mut (*this).data, init)?;
                init_slot_infallible(&raw mut (*this).link, Link::new());
                init_slot_infallible(&raw mut (*this).handler, new_irq_lock!(()));
                (&raw mut (*this).in_use).write(Atomic::new(false));
            }
            let start = || {
                caller.finish_input()?;
                // SAFETY: All fields are initialized.
                D::Cq::start(unsafe { Self::from_raw(cq) }, &caller)
            };
            if let Err(e) = start() {
                // SAFETY: Not started; the core forgets it.
                unsafe { Self::drop_parts(this) };
                return Err(e);
            }
            if let Err(e) = caller.finish_output() {
                // SAFETY: Started; the core forgets it.
                unsafe { Self::undo(cq) };
                return Err(e);
            }
            Ok(0)
        })
    }

    /// Destroys a started completion queue that its owner never got to know.
    ///
    /// # Safety
    ///
    /// `cq` must be started; nobody uses it afterwards.
    unsafe fn undo(cq: *mut bindings::ib_cq) {
        // SAFETY: Started.
        let this = unsafe { Self::from_raw(cq) };
        if D::Cq::destroy(this).is_ok() {
            // SAFETY: Destroyed.
            unsafe { Self::drop_parts(cq.cast()) };
        } else {
            // The device may still use its memory, so that must stay.
            this.link.unlink();
            pr_err!("cannot destroy a completion queue whose response failed\n");
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
    unsafe extern "C" fn op_destroy(
        cq: *mut bindings::ib_cq,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: Started.
            D::Cq::destroy(unsafe { Self::from_raw(cq) })?;
            // SAFETY: The core frees the memory next.
            unsafe { Self::drop_parts(cq.cast()) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue and room for `n` entries.
    unsafe extern "C" fn op_poll(
        cq: *mut bindings::ib_cq,
        n: c_int,
        wc: *mut bindings::ib_wc,
    ) -> c_int {
        // SAFETY: Started.
        let cq = unsafe { Self::from_raw(cq) };
        if cq.is_user() {
            return eopnotsupp().to_errno();
        }
        // SAFETY: The caller has room for `n` entries.
        let mut sink = unsafe { WcSink::new(wc, usize::try_from(n).unwrap_or(0)) };
        match D::Cq::poll(cq, &mut sink) {
            Err(e) if sink.is_empty() => e.to_errno(),
            // CAST: At most `n`.
            _ => sink.len() as c_int,
        }
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue.
    unsafe extern "C" fn op_req_notify(
        cq: *mut bindings::ib_cq,
        flags: bindings::ib_cq_notify_flags,
    ) -> c_int {
        from_result(|| {
            // SAFETY: Started.
            let cq = unsafe { Self::from_raw(cq) };
            if cq.is_user() {
                return Err(eopnotsupp());
            }
            let missed = D::Cq::req_notify(cq, NotifyFlags::from_raw(flags))?;
            Ok(c_int::from(missed))
        })
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue of a process.
    unsafe extern "C" fn op_resize(
        cq: *mut bindings::ib_cq,
        cqe: c_uint,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: Started; `udata` is `NULL` or from a bundle of our device, and valid for the call.
            let caller = unsafe { caller::<D>(udata, !(*cq).uobject.is_null()) }?;
            let user = caller.user().ok_or(EINVAL)?;
            // SAFETY: Started.
            D::Cq::resize(unsafe { Self::from_raw(cq) }, cqe, user)?;
            caller.finish_output()?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue.
    unsafe extern "C" fn op_modify(cq: *mut bindings::ib_cq, count: u16, period: u16) -> c_int {
        from_result(|| {
            // SAFETY: Started.
            D::Cq::modify(unsafe { Self::from_raw(cq) }, count, period)?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue.
    unsafe extern "C" fn op_fill_res(
        msg: *mut kbindings::sk_buff,
        cq: *mut bindings::ib_cq,
    ) -> c_int {
        // SAFETY: Started; `msg` is a message of the core's.
        unsafe { ResEntry::fill(msg, |e| D::Cq::fill_res(Self::from_raw(cq), e)) }
    }

    /// # Safety
    ///
    /// Only for the core, with a started queue.
    unsafe extern "C" fn op_fill_res_raw(
        msg: *mut kbindings::sk_buff,
        cq: *mut bindings::ib_cq,
    ) -> c_int {
        // SAFETY: Started; `msg` is a message of the core's.
        unsafe { ResEntry::fill_raw(msg, |put| D::Cq::fill_res_raw(Self::from_raw(cq), put)) }
    }
}

impl<D: Operations> CompletionQueue<D> for Unsupported {
    const SUPPORTED: bool = false;
    const USE_VTABLE_ATTR: () = ();

    fn create(
        _dev: &Device<D>,
        _attr: &CqInitAttr,
        _caller: &Caller<'_, D>,
    ) -> impl PinInit<Self, Error> {
        Err(eopnotsupp())
    }

    fn start(_cq: &Cq<D>, _caller: &Caller<'_, D>) -> Result {
        Err(eopnotsupp())
    }

    fn destroy(_cq: &Cq<D>) -> Result {
        Err(eopnotsupp())
    }

    fn poll(_cq: &Cq<D>, _wcs: &mut WcSink<'_, D>) -> Result {
        Err(eopnotsupp())
    }

    fn req_notify(_cq: &Cq<D>, _flags: NotifyFlags) -> Result<bool> {
        Err(eopnotsupp())
    }
}
