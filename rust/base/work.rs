// SPDX-License-Identifier: GPL-2.0

//! Work items that cannot outlive their owner.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)
//!
//! `kernel::workqueue` has neither cancel nor flush, so its work may still run when the module is
//! unloaded. The drop of a [`Work`] cancels it and waits for it. A path that frees memory may wait
//! only for work that can run without new memory, which needs a [`Queue`].

use crate::bindings;
use core::{
    mem::offset_of,
    ptr::NonNull, //
};
use kernel::{
    bindings as kbindings,
    container_of,
    prelude::*,
    sync::{
        Arc,
        LockClassKey, //
    },
    types::Opaque, //
};

/// A work queue, whose work is bound to no CPU. It has a rescuer thread unless it is
/// [freezable](Queue::freezable), so that its work, for which memory reclaim may wait, runs when
/// memory is short.
///
/// # Invariants
///
/// `raw` comes from `base_helper_alloc_workqueue()`, and is destroyed only when this is dropped.
pub struct Queue {
    raw: NonNull<kbindings::workqueue_struct>,
}

// SAFETY: A work queue may be used and destroyed from any thread.
unsafe impl Send for Queue {}
// SAFETY: A work queue has its own locks.
unsafe impl Sync for Queue {}

impl Queue {
    /// Creates a queue with this name and a rescuer thread.
    pub fn new(name: &CStr) -> Result<Arc<Self>> {
        Self::make(name, false)
    }

    /// Creates a queue whose work does not run while the machine suspends, sleeps and resumes, for
    /// work that uses a device that the machine suspends. It has no rescuer thread.
    pub fn freezable(name: &CStr) -> Result<Arc<Self>> {
        Self::make(name, true)
    }

    fn make(name: &CStr, freezable: bool) -> Result<Arc<Self>> {
        // SAFETY: The function copies the name.
        let raw = unsafe { bindings::base_helper_alloc_workqueue(name.as_char_ptr(), freezable) };
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        // INVARIANT: The function has allocated the queue.
        Ok(Arc::new(Self { raw }, GFP_KERNEL)?)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the queue was allocated. Every work item of the queue holds
        // a reference to this, so no work item is left.
        unsafe { kbindings::destroy_workqueue(self.raw.as_ptr()) };
    }
}

/// A handler of a [`Work`].
pub trait Handler: Send + Sync + 'static {
    /// Does the work in process context, where it may sleep. The handler of one [`Work`] never runs
    /// concurrently with itself.
    fn run(&self);
}

/// A work item in memory that does not move.
///
/// # Invariants
///
/// From the end of [`Work::new`] on `work` is initialized, and its function is [`Work::run`].
#[repr(C)]
struct Inner<H: Handler> {
    work: Opaque<kbindings::delayed_work>,
    handler: Arc<H>,
    /// Queue of the work, or `None` for that of the system.
    queue: Option<Arc<Queue>>,
}

/// A work item with its handler. Created with [`new_work!`](crate::new_work).
///
/// # Examples
///
/// ```
/// use base::{
///     new_work,
///     work::{
///         Handler,
///         Work, //
///     }, //
/// };
/// use kernel::sync::Arc;
///
/// struct Restart;
///
/// impl Handler for Restart {
///     fn run(&self) {
///         pr_info!("in process context\n");
///     }
/// }
///
/// /// Runs the handler in a second, unless the result is dropped before.
/// fn later() -> Result<Work<Restart>> {
///     let work = new_work!(Arc::new(Restart, GFP_KERNEL)?)?;
///     work.queue_after(1000);
///     Ok(work)
/// }
/// ```
pub struct Work<H: Handler> {
    inner: Pin<KBox<Inner<H>>>,
}

/// Creates a [`Work`] that runs a handler on the system's queue or on another queue, with its own
/// lock class: `new_work!(handler)`, `new_work!(handler, &queue)`.
#[macro_export]
macro_rules! new_work {
    ($handler:expr $(,)?) => {
        $crate::work::Work::new($handler, None, c"rdma work", ::kernel::static_lock_class!())
    };
    ($handler:expr, $queue:expr $(,)?) => {
        $crate::work::Work::new(
            $handler,
            Some($queue),
            c"rdma work",
            ::kernel::static_lock_class!(),
        )
    };
}

// SAFETY: A work item may be queued and cancelled from any thread, and the handler is `Send +
// Sync`.
unsafe impl<H: Handler> Send for Work<H> {}
// SAFETY: The functions for work items allow concurrent calls, and the handler is `Send + Sync`.
unsafe impl<H: Handler> Sync for Work<H> {}

impl<H: Handler> Work<H> {
    /// Creates the work item. See [`new_work!`](crate::new_work).
    #[doc(hidden)]
    pub fn new(
        handler: Arc<H>,
        queue: Option<&Arc<Queue>>,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> Result<Self> {
        let inner = KBox::pin(
            Inner {
                work: Opaque::uninit(),
                handler,
                queue: queue.cloned(),
            },
            GFP_KERNEL,
        )?;
        // `LockClassKey` is a transparent wrapper. Its `as_ptr()` is private to `kernel`.
        let key = core::ptr::from_ref::<LockClassKey>(key.get_ref())
            .cast_mut()
            .cast::<kbindings::lock_class_key>();
        // SAFETY: The memory is not in use yet and is pinned. The name and the key are `'static`.
        unsafe {
            bindings::base_helper_init_work(
                inner.work.get(),
                Some(Self::run),
                name.as_char_ptr(),
                key,
            )
        };
        // INVARIANT: The function has initialized `work` with this function.
        Ok(Self { inner })
    }

    /// # Safety
    ///
    /// Only the workqueue may call this, with the work of an `Inner<H>`.
    unsafe extern "C" fn run(work: *mut kbindings::work_struct) {
        // SAFETY: By the contract of this function `work` is in a `delayed_work`.
        let delayed = unsafe { work.byte_sub(offset_of!(kbindings::delayed_work, work)) }
            .cast::<kbindings::delayed_work>();
        // The macro of the kernel contains more than one unsafe operation.
        //
        // SAFETY: By the contract of this function the `delayed_work` is in an `Inner<H>`.
        #[allow(clippy::multiple_unsafe_ops_per_block)]
        let inner = unsafe { container_of!(Opaque::cast_from(delayed), Inner<H>, work) };
        // SAFETY: The `Inner<H>` lives, because the drop of the `Work` waits for this function.
        let inner = unsafe { &*inner };
        inner.handler.run();
    }

    /// Queues the work to run soon. Returns false if it was queued already. Any context.
    pub fn queue(&self) -> bool {
        self.queue_after(0)
    }

    /// Queues the work to run in `ms` milliseconds. Returns false, and changes nothing, if it was
    /// queued already. Any context.
    pub fn queue_after(&self, ms: u32) -> bool {
        // SAFETY: By the invariant of `Inner` the work item is initialized, and `inner` keeps its
        // queue.
        unsafe { bindings::base_helper_queue_work(self.queue_raw(), self.inner.work.get(), ms) }
    }

    /// Queues the work to run in `ms` milliseconds, and not before, even if it was queued already.
    /// Any context.
    pub fn put_off(&self, ms: u32) {
        // SAFETY: By the invariant of `Inner` the work item is initialized, and `inner` keeps its
        // queue.
        unsafe { bindings::base_helper_put_off_work(self.queue_raw(), self.inner.work.get(), ms) }
    }

    fn queue_raw(&self) -> *mut kbindings::workqueue_struct {
        let queue = self.inner.queue.as_ref();
        queue.map_or(core::ptr::null_mut(), |queue| queue.raw.as_ptr())
    }

    /// Waits until work that was queued before has run.
    ///
    /// Must not be called from the handler.
    pub fn flush(&self) {
        // SAFETY: By the invariant of `Inner` the work item is initialized.
        unsafe { kbindings::flush_delayed_work(self.inner.work.get()) };
    }

    /// Cancels the work and waits until it does not run. It can be queued again.
    ///
    /// Must not be called from the handler.
    pub fn cancel(&self) {
        // SAFETY: By the invariant of `Inner` the work item is initialized.
        unsafe { kbindings::cancel_delayed_work_sync(self.inner.work.get()) };
    }
}

/// A [`Work`] with any handler, for code that need not know its type.
pub trait Wake: Send + Sync {
    /// Queues the work to run soon. Any context.
    fn wake(&self);
}

impl<H: Handler> Wake for Work<H> {
    fn wake(&self) {
        self.queue();
    }
}

impl<H: Handler> Drop for Work<H> {
    fn drop(&mut self) {
        // This also keeps the work from being queued again, for instance by its handler.
        //
        // SAFETY: By the invariant of `Inner` the work item is initialized.
        unsafe { kbindings::disable_delayed_work_sync(self.inner.work.get()) };
    }
}
