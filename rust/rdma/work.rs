// SPDX-License-Identifier: GPL-2.0

//! Work items that cannot outlive their owner.
//!
//! `kernel::workqueue` has neither cancel nor flush, so that its work may still run when the module
//! is gone. A [`Work`] is cancelled, and waited for, when it is dropped.

use crate::bindings;
use kernel::{
    bindings as kbindings,
    container_of,
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

/// What a [`Work`] does.
pub trait Handler: Send + Sync + 'static {
    /// Runs in process context; may sleep. Never concurrently with itself for one [`Work`].
    fn run(&self);
}

#[repr(C)]
struct Inner<H: Handler> {
    work: Opaque<kbindings::work_struct>,
    handler: Arc<H>,
}

/// A work item.
pub struct Work<H: Handler> {
    inner: Pin<KBox<Inner<H>>>,
}

// SAFETY: A work item may be queued and cancelled from any thread; the handler is `Send + Sync`.
unsafe impl<H: Handler> Send for Work<H> {}
// SAFETY: As above.
unsafe impl<H: Handler> Sync for Work<H> {}

impl<H: Handler> Work<H> {
    /// A work item that runs `handler`.
    pub fn new(handler: Arc<H>) -> Result<Self> {
        let inner = KBox::pin(
            Inner {
                work: Opaque::uninit(),
                handler,
            },
            GFP_KERNEL,
        )?;
        // SAFETY: The memory is ours and stays where it is.
        unsafe { bindings::verbena_init_work(inner.work.get(), Some(Self::run)) };
        Ok(Self { inner })
    }

    /// # Safety
    ///
    /// Only for the workqueue.
    unsafe extern "C" fn run(work: *mut kbindings::work_struct) {
        // SAFETY: `work` is the `work` of an `Inner<H>`, which lives: drop waits for this to end.
        let inner = unsafe { &*container_of!(Opaque::cast_from(work), Inner<H>, work) };
        inner.handler.run();
    }

    /// Lets it run soon; whether it was not waiting to run already. Any context.
    pub fn queue(&self) -> bool {
        // SAFETY: Initialized.
        unsafe { bindings::verbena_queue_work(self.inner.work.get()) }
    }

    /// Waits until it does not run; it does not start again until queued again.
    ///
    /// Must not be called from the handler.
    pub fn cancel(&self) {
        // SAFETY: Initialized.
        unsafe { kbindings::cancel_work_sync(self.inner.work.get()) };
    }
}

impl<H: Handler> Drop for Work<H> {
    fn drop(&mut self) {
        // Also refuses to be queued again, by the handler itself for example.
        //
        // SAFETY: Initialized.
        unsafe { kbindings::disable_work_sync(self.inner.work.get()) };
    }
}
