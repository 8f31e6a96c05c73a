// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! C: `struct ib_cq`; ops `create_cq`, `create_user_cq`, `pre_destroy_cq`, `post_destroy_cq`,
//! `destroy_cq`, `resize_user_cq`, `modify_cq`, `poll_cq`, `req_notify_cq`.

use crate::{
    bindings,
    compat::no_vtable,
    device::{
        Device,
        Operations, //
    },
    enums::{
        CqFlags,
        NotifyFlags, //
    },
    field::{
        read_field,
        write_field, //
    },
    object::{
        core_members,
        object_size,
        Extra,
        InTable,
        Managed,
        Object, //
    },
    restrack::ResEntry,
    udata::{
        Caller,
        User, //
    },
    wc::WcSink,
    Unsupported, //
};
use base::{
    errno::eopnotsupp,
    new_irq_lock,
    sync::IrqLock, //
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
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Release, //
    }, //
};

/// Attributes with which a completion queue is to be created.
#[repr(transparent)]
pub struct CqInitAttr(bindings::ib_cq_init_attr);

impl CqInitAttr {
    /// Returns the requested number of entries.
    pub fn cqe(&self) -> u32 {
        self.0.cqe
    }

    /// Returns the index of the completion vector.
    pub fn comp_vector(&self) -> u32 {
        self.0.comp_vector
    }

    /// Returns the flags of the request.
    pub fn flags(&self) -> CqFlags {
        CqFlags::from_raw(self.0.flags)
    }
}

/// A driver's data of a completion queue. See the [crate](crate) for the order of calls.
#[vtable]
pub trait CompletionQueue<D: Operations>: Sized + Send + Sync {
    /// False only for [`Unsupported`].
    const SUPPORTED: bool = true;

    /// Returns an initializer of the data.
    fn create(
        dev: &Device<D>,
        attr: &CqInitAttr,
        caller: &Caller<'_, D>,
    ) -> impl PinInit<Self, Error>;

    /// Creates the queue in the device. Must call [`Cq::set_cqe`].
    fn start(cq: &Cq<D>, caller: &Caller<'_, D>) -> Result;

    /// Destroys the queue. Afterwards there are no events and no new entries. The core has made
    /// sure that no QP uses the queue.
    ///
    /// A kernel user that polls the queue in a work item may poll and arm it until that work item
    /// has ended, for which the core waits after this call. A concurrent [`modify`](Self::modify)
    /// may find the queue destroyed.
    fn destroy(cq: &Cq<D>) -> Result;

    /// Polls entries, oldest first, until the queue is empty or `wcs` is full. Called in any
    /// context.
    ///
    /// An entry that cannot be used is skipped and must not end the poll.
    fn poll(cq: &Cq<D>, wcs: &mut WcSink<'_, D>) -> Result;

    /// Arms the queue. Returns true if the queue already has entries and the caller asked for that
    /// information with [`NotifyFlags::REPORT_MISSED_EVENTS`]. Called in any context.
    fn req_notify(cq: &Cq<D>, flags: NotifyFlags) -> Result<bool>;

    /// Resizes the completion queue of a process.
    fn resize(_cq: &Cq<D>, _cqe: u32, _user: &User<'_, D>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Sets the moderation of completion events.
    fn modify(_cq: &Cq<D>, _count: u16, _period: u16) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Describes the queue to `rdma resource`.
    fn fill_res(_cq: &Cq<D>, _entry: &mut ResEntry<'_>) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }

    /// Passes the raw context of the queue to `put`, for `rdma resource -r`.
    fn fill_res_raw(_cq: &Cq<D>, _put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        build_error!(VTABLE_DEFAULT_ERROR)
    }
}

/// A completion queue with the driver's data.
pub type Cq<D> = Managed<CqObject<D>>;

/// The kind of object that a [`Cq`] is.
pub struct CqObject<D>(PhantomData<D>);

// SAFETY: By NEW the core sets `device` and `uobject` before it calls `create`, and the device is
// one of `D`. The core uses an `ib_cq` from any thread.
unsafe impl<D: Operations> Object for CqObject<D> {
    type Driver = D;
    type Extra = InTable<CqExtra>;
    type Data = D::Cq;

    const NAME: &'static str = "completion queue";

    core_members!(ib_cq);

    fn destroy(cq: &Cq<D>) -> Result {
        D::Cq::destroy(cq)
    }

    fn fill_res(cq: &Cq<D>, entry: &mut ResEntry<'_>) -> Result {
        D::Cq::fill_res(cq, entry)
    }

    fn fill_res_raw(cq: &Cq<D>, put: &mut dyn FnMut(&[u8]) -> Result) -> Result {
        D::Cq::fill_res_raw(cq, put)
    }
}

/// State of this crate in each completion queue.
#[pin_data]
pub struct CqExtra {
    /// Serializes the calls of the completion handler.
    #[pin]
    handler: IrqLock<()>,
    /// True after a QP was created with the queue, so that its owner has the queue. See
    /// [`Cq::complete`].
    in_use: Atomic<bool>,
    /// True as soon as the queue is being destroyed. See [`Cq::op_pre_destroy`].
    goes: Atomic<bool>,
    /// True after the device destroyed the queue, of which only the memory is left.
    destroyed: Atomic<bool>,
}

impl Extra for CqExtra {
    fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            handler <- new_irq_lock!(()),
            in_use: Atomic::new(false),
            goes: Atomic::new(false),
            destroyed: Atomic::new(false),
        })
    }
}

impl<D: Operations> Cq<D> {
    /// Returns the actual number of entries of the queue.
    pub fn cqe(&self) -> u32 {
        read_field!(self, cqe).try_into().unwrap_or(0)
    }

    /// Sets the actual number of entries of the queue in the core's struct.
    pub fn set_cqe(&self, cqe: u32) {
        // The core reads the number only after `create` or `resize` has returned.
        write_field!(self, cqe, cqe.try_into().unwrap_or(c_int::MAX));
    }

    /// Records that a QP is being created with the queue.
    pub(crate) fn set_in_use(&self) {
        self.extra().in_use.store(true, Release);
    }

    /// Calls the completion handler, if there is one. May be called in any context, but not from a
    /// verb.
    ///
    /// `ib_alloc_cq()` sets the handler, and the state that the handler needs, only after `create`,
    /// and gives the queue to no user before that. So a kernel queue with which no QP was ever
    /// created has no handler, and cannot have completions either. For the queue of a process that
    /// is not [known](Self::is_known) the core would link the event to memory that it frees if the
    /// create op fails.
    pub fn complete(&self) {
        let has_owner = match self.is_user() {
            true => self.is_known(),
            false => self.extra().in_use.load(Acquire),
        };
        if !has_owner {
            return;
        }
        let _one_at_a_time = self.extra().handler.lock();
        let cq = self.as_raw();
        // SAFETY: The reference keeps the queue alive. The handler is constant here: for a process
        // it is set before `create`, for a kernel user before the user gets the queue, which was
        // before it created the QP that set `in_use`.
        let Some(handler) = (unsafe { (*cq).comp_handler }) else {
            return;
        };
        // SAFETY: The context is constant for the same reason as the handler.
        let context = unsafe { (*cq).cq_context };
        // SAFETY: The handler and the context are those of this queue. The reference keeps the
        // queue from being destroyed.
        unsafe { handler(cq, context) };
    }

    /// Reports an error of the queue if the owner has a handler. The context must be one in which
    /// the handler of the owner may run: process context for kernel users whose handler sleeps.
    pub fn error_event(&self) {
        let cq = self.as_raw();
        let mut event = bindings::ib_event {
            event: bindings::ib_event_type_IB_EVENT_CQ_ERR,
            ..Default::default()
        };
        event.element.cq = ManuallyDrop::new(cq);
        // SAFETY: The reference keeps the queue alive, and the core set the handler before
        // `create`.
        let handler = unsafe { (*cq).event_handler };
        // SAFETY: The reference keeps the queue alive, and the core set the context before
        // `create`.
        let context = unsafe { (*cq).cq_context };
        // SAFETY: The handler and the context are those of this queue, and the event names this
        // queue.
        unsafe { self.report(event, handler, context) };
    }

    pub(crate) const fn fill_ops(ops: &mut bindings::ib_device_ops) {
        if !<D::Cq as CompletionQueue<D>>::SUPPORTED {
            return;
        }
        ops.size_ib_cq = object_size::<Self>();
        ops.create_cq = Some(Self::op_create);
        ops.create_user_cq = Some(Self::op_create);
        ops.pre_destroy_cq = Some(Self::op_pre_destroy);
        ops.post_destroy_cq = Some(Self::op_post_destroy);
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
    /// Only the core may call this op: `cq` must be NEW, and ARGUMENTS must hold.
    unsafe extern "C" fn op_create(
        cq: *mut bindings::ib_cq,
        attr: *const bindings::ib_cq_init_attr,
        attrs: *mut bindings::uverbs_attr_bundle,
    ) -> c_int {
        from_result(|| {
            let udata = if attrs.is_null() {
                core::ptr::null_mut()
            } else {
                // SAFETY: By ARGUMENTS `attrs`, which is not `NULL`, is the bundle of a request of
                // a process.
                unsafe { bindings::rdma_helper_attrs_udata(attrs) }
            };
            // SAFETY: By the contract of this op `cq` is NEW, and ARGUMENTS holds for `udata`.
            let caller = unsafe { Self::caller(cq, udata) }?;
            // SAFETY: By ARGUMENTS `attr` is valid during the call. `CqInitAttr` is
            // `repr(transparent)`.
            let attr = unsafe { &*attr.cast::<CqInitAttr>() };
            // SAFETY: By the contract of this op `cq` is NEW.
            let dev = unsafe { Self::device_of(cq) };
            let data = D::Cq::create(dev, attr, &caller);
            // SAFETY: By the contract of this op `cq` is NEW, and stays so until the draft is
            // started or dropped.
            unsafe { Self::build(cq, data) }?.start(&caller, |cq| D::Cq::start(cq, &caller))?;
            Ok(0)
        })
    }

    /// Implements the first half of `ib_free_cq()`. Events end here, because the core then cancels
    /// the work that their handler queues (`cq->work`), and frees it after the second half.
    ///
    /// # Safety
    ///
    /// Only the core may call this op: `cq` must be STARTED, and the call must be the LAST but for
    /// `op_poll`, `op_req_notify`, `op_modify` and `op_post_destroy`.
    unsafe extern "C" fn op_pre_destroy(cq: *mut bindings::ib_cq) -> c_int {
        // SAFETY: By the contract of this op `cq` is STARTED, and it stays alive until
        // `op_post_destroy`.
        let cq = unsafe { Self::from_raw(cq) };
        cq.extra().goes.store(true, Release);
        let destroyed = D::Cq::destroy(cq);
        cq.extra().fence();
        cq.extra().destroyed.store(destroyed.is_ok(), Release);
        from_result(|| destroyed.map(|()| 0))
    }

    /// Implements the second half. If the device has not destroyed the queue, it may still use the
    /// memory that it was given, so this is leaked.
    ///
    /// # Safety
    ///
    /// Only the core may call this op: after `op_pre_destroy`, and the call must be the LAST.
    unsafe extern "C" fn op_post_destroy(cq: *mut bindings::ib_cq) {
        // SAFETY: `op_pre_destroy` drops nothing, so all fields are still initialized.
        let destroyed = unsafe { Self::from_raw(cq) }
            .extra()
            .destroyed
            .load(Acquire);
        if destroyed {
            // SAFETY: All fields are initialized. The device has destroyed the queue, and by LAST
            // it has no users.
            unsafe { Self::drop_parts(cq) };
        }
    }

    /// # Safety
    ///
    /// Only the core may call this op: `cq` must be STARTED, and ARGUMENTS must hold, with room for
    /// `n` entries at `wc`.
    unsafe extern "C" fn op_poll(
        cq: *mut bindings::ib_cq,
        n: c_int,
        wc: *mut bindings::ib_wc,
    ) -> c_int {
        // SAFETY: By the contract of this op `cq` is STARTED, and it stays alive during the call.
        let cq = unsafe { Self::from_raw(cq) };
        if cq.is_user() {
            return eopnotsupp().to_errno();
        }
        // SAFETY: By ARGUMENTS there is room for `n` entries at `wc`.
        let mut sink = unsafe { WcSink::new(wc, usize::try_from(n).unwrap_or(0)) };
        match D::Cq::poll(cq, &mut sink) {
            Err(e) if sink.is_empty() => e.to_errno(),
            // CAST: `len()` is at most `n`, which is a `c_int`.
            _ => sink.len() as c_int,
        }
    }

    /// # Safety
    ///
    /// Only the core may call this op: `cq` must be STARTED.
    unsafe extern "C" fn op_req_notify(
        cq: *mut bindings::ib_cq,
        flags: bindings::ib_cq_notify_flags,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `cq` is STARTED, and it stays alive during the
            // call.
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
    /// Only the core may call this op: `cq` must be STARTED, and ARGUMENTS must hold.
    unsafe extern "C" fn op_resize(
        cq: *mut bindings::ib_cq,
        cqe: c_uint,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `cq` is STARTED, and ARGUMENTS holds for `udata`.
            let caller = unsafe { Self::caller(cq, udata) }?;
            let user = caller.user().ok_or(EINVAL)?;
            // SAFETY: By the contract of this op `cq` is STARTED, and it stays alive during the
            // call.
            D::Cq::resize(unsafe { Self::from_raw(cq) }, cqe, user)?;
            caller.finish_output()?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// Only the core may call this op: `cq` must be STARTED.
    unsafe extern "C" fn op_modify(cq: *mut bindings::ib_cq, count: u16, period: u16) -> c_int {
        from_result(|| {
            // SAFETY: By the contract of this op `cq` is STARTED, and it stays alive until
            // `op_post_destroy`.
            let cq = unsafe { Self::from_raw(cq) };
            // Adaptive moderation calls this op until the core cancels it in `ib_free_cq()`, after
            // `op_pre_destroy`.
            if !cq.extra().goes.load(Acquire) {
                D::Cq::modify(cq, count, period)?;
            }
            Ok(0)
        })
    }
}

impl<D: Operations> CompletionQueue<D> for Unsupported {
    const SUPPORTED: bool = false;
    no_vtable!(D);

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
