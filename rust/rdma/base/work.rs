// SPDX-License-Identifier: GPL-2.0

//! Work items that cannot outlive their owner.
//!
//! `kernel::workqueue` has neither cancel nor flush, so that its work may still run when the module
//! is gone. A [`Work`] is cancelled, and waited for, when it is dropped. Whoever waits for a work
//! from a path that frees memory needs one that runs without: [`Queue`].

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

/// A work queue, with a thread in reserve unless it is [freezable](Queue::freezable), so that its work runs when memory
/// is short: for what reclaim may wait for. Its work is bound to no CPU.
pub struct Queue {
    raw: NonNull<kbindings::workqueue_struct>,
}

// SAFETY: A work queue may be used and destroyed from any thread.
unsafe impl Send for Queue {}
// SAFETY: As above.
unsafe impl Sync for Queue {}

impl Queue {
    /// A queue of that name.
    pub fn new(name: &CStr) -> Result<Arc<Self>> {
        Self::make(name, false)
    }

    /// A queue whose work does not run while the machine is suspended, nor on the way there and back: for what
    /// uses a device that the machine suspends. It has no thread in reserve.
    pub fn freezable(name: &CStr) -> Result<Arc<Self>> {
        Self::make(name, true)
    }

    fn make(name: &CStr, freezable: bool) -> Result<Arc<Self>> {
        // SAFETY: The name is copied.
        let raw = unsafe { bindings::rdma_helper_alloc_workqueue(name.as_char_ptr(), freezable) };
        let raw = NonNull::new(raw).ok_or(ENOMEM)?;
        Ok(Arc::new(Self { raw }, GFP_KERNEL)?)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: Allocated by `new`. Every work item of the queue holds a reference, so none is left.
        unsafe { kbindings::destroy_workqueue(self.raw.as_ptr()) };
    }
}

/// What a [`Work`] does.
pub trait Handler: Send + Sync + 'static {
    /// Runs in process context; may sleep. Never concurrently with itself for one [`Work`].
    fn run(&self);
}

#[repr(C)]
struct Inner<H: Handler> {
    work: Opaque<kbindings::delayed_work>,
    handler: Arc<H>,
    /// `None`: the system's.
    queue: Option<Arc<Queue>>,
}

/// A work item. Made with [`new_work!`](crate::new_work).
pub struct Work<H: Handler> {
    inner: Pin<KBox<Inner<H>>>,
}

/// A [`Work`] that runs a handler, on the system's queue or on one of its own, with a lock class of
/// its own: `new_work!(handler)`, `new_work!(handler, &queue)`.
#[macro_export]
macro_rules! new_work {
    ($handler:expr $(,)?) => {
        $crate::base::work::Work::new($handler, None, c"rdma work", ::kernel::static_lock_class!())
    };
    ($handler:expr, $queue:expr $(,)?) => {
        $crate::base::work::Work::new(
            $handler,
            Some($queue),
            c"rdma work",
            ::kernel::static_lock_class!(),
        )
    };
}

// SAFETY: A work item may be queued and cancelled from any thread; the handler is `Send + Sync`.
unsafe impl<H: Handler> Send for Work<H> {}
// SAFETY: As above.
unsafe impl<H: Handler> Sync for Work<H> {}

impl<H: Handler> Work<H> {
    /// See [`new_work!`](crate::new_work).
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
        // `LockClassKey` is a transparent wrapper; `as_ptr()` is private to `kernel`.
        let key = core::ptr::from_ref::<LockClassKey>(key.get_ref())
            .cast_mut()
            .cast::<kbindings::lock_class_key>();
        // SAFETY: The memory is ours and stays where it is; name and key live on.
        unsafe {
            bindings::rdma_helper_init_work(
                inner.work.get(),
                Some(Self::run),
                name.as_char_ptr(),
                key,
            )
        };
        Ok(Self { inner })
    }

    /// # Safety
    ///
    /// Only for the workqueue.
    unsafe extern "C" fn run(work: *mut kbindings::work_struct) {
        // SAFETY: `work` is that of the `delayed_work` of an `Inner<H>`, which lives: drop waits for
        // this to end.
        let inner = unsafe {
            let delayed = work
                .byte_sub(offset_of!(kbindings::delayed_work, work))
                .cast::<kbindings::delayed_work>();
            &*container_of!(Opaque::cast_from(delayed), Inner<H>, work)
        };
        inner.handler.run();
    }

    /// Lets it run soon; whether it was not waiting to run already. Any context.
    pub fn queue(&self) -> bool {
        self.queue_after(0)
    }

    /// Lets it run in `ms` milliseconds, unless it is waiting to run already. Any context.
    pub fn queue_after(&self, ms: u32) -> bool {
        // SAFETY: Initialized; the queue lives as long as we do.
        unsafe { bindings::rdma_helper_queue_work(self.queue_raw(), self.inner.work.get(), ms) }
    }

    /// Lets it run in `ms` milliseconds, and not before, even if it is waiting to run already. Any
    /// context.
    pub fn put_off(&self, ms: u32) {
        // SAFETY: Initialized; the queue lives as long as we do.
        unsafe { bindings::rdma_helper_put_off_work(self.queue_raw(), self.inner.work.get(), ms) }
    }

    fn queue_raw(&self) -> *mut kbindings::workqueue_struct {
        let queue = self.inner.queue.as_ref();
        queue.map_or(core::ptr::null_mut(), |queue| queue.raw.as_ptr())
    }

    /// Waits until what was queued before has run.
    ///
    /// Must not be called from the handler.
    pub fn flush(&self) {
        // SAFETY: Initialized.
        unsafe { kbindings::flush_delayed_work(self.inner.work.get()) };
    }

    /// Waits until it does not run; it does not start again until queued again.
    ///
    /// Must not be called from the handler.
    pub fn cancel(&self) {
        // SAFETY: Initialized.
        unsafe { kbindings::cancel_delayed_work_sync(self.inner.work.get()) };
    }
}

/// What can be asked to run: a [`Work`] of whatever kind, for those who need not know it.
pub trait Wake: Send + Sync {
    /// Lets it run soon. Any context.
    fn wake(&self);
}

impl<H: Handler> Wake for Work<H> {
    fn wake(&self) {
        self.queue();
    }
}

impl<H: Handler> Drop for Work<H> {
    fn drop(&mut self) {
        // Also refuses to be queued again, by the handler itself for example.
        //
        // SAFETY: Initialized.
        unsafe { kbindings::disable_delayed_work_sync(self.inner.work.get()) };
    }
}
