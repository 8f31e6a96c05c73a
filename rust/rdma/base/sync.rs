// SPDX-License-Identifier: GPL-2.0

//! Locks and barriers that `kernel::sync` lacks.
//!
//! The data path verbs run in any context, interrupt handlers included (Documentation/infiniband/
//! core_locking.rst), so their locks disable interrupts and restore them: [`IrqLock`].

use crate::bindings;
use kernel::{
    bindings as kbindings,
    prelude::*,
    sync::lock::{
        Backend,
        Guard,
        Lock, //
    },
    types::Opaque, //
};

/// Backend of [`IrqLock`].
pub struct IrqSave;

/// A spin lock that disables interrupts of this CPU while held. Usable in any context.
///
/// Made with [`new_irq_lock!`](crate::new_irq_lock).
pub type IrqLock<T> = Lock<T, IrqSave>;

/// Guard of an [`IrqLock`].
pub type IrqLockGuard<'a, T> = Guard<'a, T, IrqSave>;

/// An initializer of an [`IrqLock`], with a lock class of its own.
#[macro_export]
macro_rules! new_irq_lock {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::base::sync::IrqLock::new(
            $inner, ::kernel::optional_name!($($name)?), ::kernel::static_lock_class!())
    };
}

// SAFETY: `spin_lock_irqsave` gives exclusive ownership of the lock to one CPU until
// `spin_unlock_irqrestore`; `relock` is the provided one, which calls `lock`.
unsafe impl Backend for IrqSave {
    type State = kbindings::spinlock_t;
    type GuardState = c_ulong;

    unsafe fn init(
        ptr: *mut Self::State,
        name: *const c_char,
        key: *mut kbindings::lock_class_key,
    ) {
        // SAFETY: The caller passes a `ptr` valid for writes, and a name and a key that live on.
        unsafe { kbindings::__spin_lock_init(ptr, name, key) }
    }

    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: The caller has initialized the lock.
        unsafe { bindings::rdma_helper_spin_lock_irqsave(ptr) }
    }

    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        let mut flags = 0;
        // SAFETY: The caller has initialized the lock; `flags` is ours.
        unsafe { bindings::rdma_helper_spin_trylock_irqsave(ptr, &mut flags) }.then_some(flags)
    }

    unsafe fn unlock(ptr: *mut Self::State, flags: &Self::GuardState) {
        // SAFETY: The caller owns the lock, and `flags` is what `lock` returned.
        unsafe { bindings::rdma_helper_spin_unlock_irqrestore(ptr, *flags) }
    }

    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: The caller passes an initialized lock.
        unsafe { kbindings::spin_assert_is_held(ptr) }
    }
}

/// Orders reads of memory that a device writes: what was read before (an owner bit, a producer
/// index) happens before what is read after (the entry).
#[inline]
pub fn dma_rmb() {
    // SAFETY: A barrier.
    unsafe { bindings::rdma_helper_dma_rmb() }
}

/// Full fence towards a device: orders all earlier accesses before all later ones, stores before
/// loads included. Also on a machine with one CPU, where `smp_mb` need not be one.
#[inline]
pub fn mb() {
    // SAFETY: A barrier.
    unsafe { bindings::rdma_helper_mb() }
}

/// Sleeps. Process context only.
pub fn msleep(ms: u32) {
    // SAFETY: No requirement but the context, whose violation the kernel reports.
    unsafe { bindings::rdma_helper_msleep(ms) }
}

/// A `struct completion` with a timed wait.
#[pin_data]
pub struct Completion {
    #[pin]
    inner: Opaque<kbindings::completion>,
}

// SAFETY: A `struct completion` may be used from any thread.
unsafe impl Send for Completion {}
// SAFETY: A `struct completion` synchronizes itself.
unsafe impl Sync for Completion {}

impl Completion {
    /// An initializer: not completed.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is memory for a completion that will not move.
                unsafe { kbindings::init_completion(slot) }
            }),
        })
    }

    /// Wakes one waiter, present or future. Any context.
    pub fn complete(&self) {
        // SAFETY: Initialized.
        unsafe { kbindings::complete(self.inner.get()) }
    }

    /// Wakes all waiters, present and future. Any context.
    pub fn complete_all(&self) {
        // SAFETY: Initialized.
        unsafe { kbindings::complete_all(self.inner.get()) }
    }

    /// Forgets earlier completions. Nobody may be waiting or completing.
    pub fn reinit(&self) {
        // SAFETY: Initialized; only a counter is written, which all others access under the
        // completion's own lock or with marked accesses.
        unsafe { bindings::rdma_helper_reinit_completion(self.inner.get()) }
    }

    /// Waits.
    pub fn wait(&self) {
        // SAFETY: Initialized.
        unsafe { kbindings::wait_for_completion(self.inner.get()) }
    }

    /// Waits at most `ms` milliseconds; whether it was completed.
    #[must_use]
    pub fn wait_ms(&self, ms: u32) -> bool {
        // SAFETY: Initialized.
        unsafe { bindings::rdma_helper_wait_ms(self.inner.get(), ms) }
    }
}
