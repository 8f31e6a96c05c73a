// SPDX-License-Identifier: GPL-2.0

//! Completion queues.
//!
//! C: `struct ib_cq`; ops `create_cq`, `create_user_cq`, `pre_destroy_cq`, `post_destroy_cq`,
//! `destroy_cq`, `resize_user_cq`, `modify_cq`, `poll_cq`, `req_notify_cq`.

use crate::{
    base::{
        compat::no_vtable,
        errno::eopnotsupp,
        sync::IrqLock, //
    },
    bindings,
    device::{
        Device,
        Operations, //
    },
    enums::{
        CqFlags,
        NotifyFlags, //
    },
    new_irq_lock,
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

    /// Flags.
    pub fn flags(&self) -> CqFlags {
        CqFlags::from_raw(self.0.flags)
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
    ///
    /// Whoever polls a queue of the kernel's in a work item may do so, and arm it, until that has
    /// ended, which the core sees to afterwards; a [`modify`](Self::modify) under way may find it gone.
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
pub type Cq<D> = Managed<CqObject<D>>;

/// The kind of object that a [`Cq`] is.
pub struct CqObject<D>(PhantomData<D>);

// SAFETY: The core sets `device` and `uobject` before `create`.
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

/// What a completion queue has besides the driver's data.
#[pin_data]
pub struct CqExtra {
    /// Serializes calls of the completion handler.
    #[pin]
    handler: IrqLock<()>,
    /// A queue pair was made with the queue, so whoever made the queue has it. See [`Cq::complete`].
    in_use: Atomic<bool>,
    /// It is about to be destroyed, or was. See [`Cq::op_pre_destroy`].
    goes: Atomic<bool>,
    /// It was destroyed, and only its memory is left.
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
    /// Number of entries that the queue really has.
    pub fn cqe(&self) -> u32 {
        // SAFETY: A plain integer, accessed by volatile accesses on our side.
        unsafe { (&raw const (*self.as_raw()).cqe).read_volatile() }
            .try_into()
            .unwrap_or(0)
    }

    /// Tells the core how many entries the queue really has.
    pub fn set_cqe(&self, cqe: u32) {
        let cqe = cqe.try_into().unwrap_or(c_int::MAX);
        // SAFETY: A plain integer, read by the core when `create` or `resize` has returned.
        unsafe { (&raw mut (*self.as_raw()).cqe).write_volatile(cqe) };
    }

    /// A queue pair is being made with the queue.
    pub(crate) fn set_in_use(&self) {
        self.extra().in_use.store(true, Release);
    }

    /// Calls the completion handler, if there is one. Any context, but not from inside a verb.
    ///
    /// `ib_alloc_cq()` sets the handler, and what the handler needs, only after `create`, and lets
    /// nobody have the queue before. So a queue of the kernel's that no queue pair was ever made with
    /// has none; nothing can complete there either. Of a process' queue that is not
    /// [known](Self::is_known) the core would link the event to what it frees if the queue comes to
    /// nothing.
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
        let cq = self.as_raw();
        let mut event = bindings::ib_event {
            event: bindings::ib_event_type_IB_EVENT_CQ_ERR,
            ..Default::default()
        };
        event.element.cq = ManuallyDrop::new(cq);
        // SAFETY: The queue's own, set before `create`.
        unsafe { self.report(event, (*cq).event_handler, (*cq).cq_context) };
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
    /// For the core: NEW, ARGUMENTS.
    unsafe extern "C" fn op_create(
        cq: *mut bindings::ib_cq,
        attr: *const bindings::ib_cq_init_attr,
        attrs: *mut bindings::uverbs_attr_bundle,
    ) -> c_int {
        from_result(|| {
            let udata = if attrs.is_null() {
                core::ptr::null_mut()
            } else {
                // SAFETY: ARGUMENTS: a bundle of a process' request.
                unsafe { bindings::rdma_helper_attrs_udata(attrs) }
            };
            // SAFETY: NEW, ARGUMENTS.
            let (caller, attr, dev) = unsafe {
                (
                    Self::caller(cq, udata)?,
                    &*attr.cast::<CqInitAttr>(),
                    Device::<D>::from_raw((*cq).device),
                )
            };
            let data = D::Cq::create(dev, attr, &caller);
            // SAFETY: NEW.
            unsafe { Self::build(cq, data) }?.start(&caller, |cq| D::Cq::start(cq, &caller))?;
            Ok(0)
        })
    }

    /// The first half of `ib_free_cq()`. Events end here, because the core cancels next what their
    /// handler queues (`cq->work`), and frees it after the second half.
    ///
    /// # Safety
    ///
    /// For the core: STARTED, LAST but for `op_poll`, `op_req_notify`, `op_modify` and `op_post_destroy`.
    unsafe extern "C" fn op_pre_destroy(cq: *mut bindings::ib_cq) -> c_int {
        // SAFETY: STARTED.
        let cq = unsafe { Self::from_raw(cq) };
        cq.extra().goes.store(true, Release);
        let destroyed = D::Cq::destroy(cq);
        cq.extra().fence();
        cq.extra().destroyed.store(destroyed.is_ok(), Release);
        from_result(|| destroyed.map(|()| 0))
    }

    /// The second half. What a device that did not destroy the queue may still use stays.
    ///
    /// # Safety
    ///
    /// For the core: after `op_pre_destroy`, LAST.
    unsafe extern "C" fn op_post_destroy(cq: *mut bindings::ib_cq) {
        // SAFETY: Nothing was dropped yet.
        let destroyed = unsafe { Self::from_raw(cq) }
            .extra()
            .destroyed
            .load(Acquire);
        if destroyed {
            // SAFETY: Destroyed; LAST.
            unsafe { Self::drop_parts(cq) };
        }
    }

    /// # Safety
    ///
    /// For the core: STARTED, ARGUMENTS: room for `n` entries.
    unsafe extern "C" fn op_poll(
        cq: *mut bindings::ib_cq,
        n: c_int,
        wc: *mut bindings::ib_wc,
    ) -> c_int {
        // SAFETY: STARTED.
        let cq = unsafe { Self::from_raw(cq) };
        if cq.is_user() {
            return eopnotsupp().to_errno();
        }
        // SAFETY: ARGUMENTS: room for `n` entries.
        let mut sink = unsafe { WcSink::new(wc, usize::try_from(n).unwrap_or(0)) };
        match D::Cq::poll(cq, &mut sink) {
            Err(e) if sink.is_empty() => e.to_errno(),
            // CAST: At most `n`.
            _ => sink.len() as c_int,
        }
    }

    /// # Safety
    ///
    /// For the core: STARTED.
    unsafe extern "C" fn op_req_notify(
        cq: *mut bindings::ib_cq,
        flags: bindings::ib_cq_notify_flags,
    ) -> c_int {
        from_result(|| {
            // SAFETY: STARTED.
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
    /// For the core: STARTED, ARGUMENTS.
    unsafe extern "C" fn op_resize(
        cq: *mut bindings::ib_cq,
        cqe: c_uint,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: STARTED, ARGUMENTS.
            let caller = unsafe { Self::caller(cq, udata) }?;
            let user = caller.user().ok_or(EINVAL)?;
            // SAFETY: STARTED.
            D::Cq::resize(unsafe { Self::from_raw(cq) }, cqe, user)?;
            caller.finish_output()?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// For the core: STARTED.
    unsafe extern "C" fn op_modify(cq: *mut bindings::ib_cq, count: u16, period: u16) -> c_int {
        from_result(|| {
            // SAFETY: STARTED.
            let cq = unsafe { Self::from_raw(cq) };
            // Adaptive moderation does so until the core ends it, in `ib_free_cq()`.
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
