// SPDX-License-Identifier: GPL-2.0

//! Locks and barriers that `kernel::sync` lacks.
//!
//! C headers: [`include/linux/spinlock.h`](srctree/include/linux/spinlock.h),
//! [`include/linux/completion.h`](srctree/include/linux/completion.h),
//! [`include/linux/delay.h`](srctree/include/linux/delay.h)
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

/// Lock backend of [`IrqLock`].
pub struct IrqSave;

/// A spin lock that disables the interrupts of this CPU while it is held. Usable in any context.
///
/// Created with [`new_irq_lock!`](crate::new_irq_lock).
pub type IrqLock<T> = Lock<T, IrqSave>;

/// Guard of an [`IrqLock`], with the saved interrupt state.
pub type IrqLockGuard<'a, T> = Guard<'a, T, IrqSave>;

/// Returns an initializer of an [`IrqLock`] with its own lock class.
#[macro_export]
macro_rules! new_irq_lock {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::sync::IrqLock::new(
            $inner, ::kernel::optional_name!($($name)?), ::kernel::static_lock_class!())
    };
}

// SAFETY: `spin_lock_irqsave` gives exclusive ownership of the lock to one CPU until
// `spin_unlock_irqrestore`. `relock` is the provided function, which calls `lock`.
unsafe impl Backend for IrqSave {
    type State = kbindings::spinlock_t;
    type GuardState = c_ulong;

    unsafe fn init(
        ptr: *mut Self::State,
        name: *const c_char,
        key: *mut kbindings::lock_class_key,
    ) {
        // SAFETY: The caller promises that `ptr` is valid for writes and that name and key live as
        // long as the lock.
        unsafe { kbindings::__spin_lock_init(ptr, name, key) }
    }

    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        // SAFETY: The caller promises that the lock is initialized.
        unsafe { bindings::base_helper_spin_lock_irqsave(ptr) }
    }

    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        let mut flags = 0;
        // SAFETY: The caller promises that the lock is initialized. `flags` is a local variable.
        unsafe { bindings::base_helper_spin_trylock_irqsave(ptr, &mut flags) }.then_some(flags)
    }

    unsafe fn unlock(ptr: *mut Self::State, flags: &Self::GuardState) {
        // SAFETY: The caller promises that it owns the lock, and `flags` is the value that `lock`
        // returned.
        unsafe { bindings::base_helper_spin_unlock_irqrestore(ptr, *flags) }
    }

    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: The caller promises that the lock is initialized.
        unsafe { kbindings::spin_assert_is_held(ptr) }
    }
}

/// Orders reads of memory that a device writes: earlier reads (of an owner bit or a producer index)
/// happen before later ones (of the entry).
#[inline]
pub fn dma_rmb() {
    // SAFETY: A barrier has no requirements.
    unsafe { bindings::base_helper_dma_rmb() }
}

/// Executes a full fence towards a device: orders all earlier accesses before all later ones,
/// including stores before loads. Also on a machine with one CPU, for which `smp_mb` need not be a
/// fence.
#[inline]
pub fn mb() {
    // SAFETY: A barrier has no requirements.
    unsafe { bindings::base_helper_mb() }
}

/// Sleeps for at least `ms` milliseconds. Process context only.
pub fn msleep(ms: u32) {
    // SAFETY: The function requires only a context that may sleep. The kernel reports a violation.
    unsafe { bindings::base_helper_msleep(ms) }
}

/// A `struct completion` whose waits can have a timeout.
///
/// # Invariants
///
/// `inner` is initialized.
#[pin_data]
pub struct Completion {
    #[pin]
    inner: Opaque<kbindings::completion>,
}

// SAFETY: A `struct completion` may be used from any thread.
unsafe impl Send for Completion {}
// SAFETY: A `struct completion` has its own lock.
unsafe impl Sync for Completion {}

impl Completion {
    /// Returns an initializer of a completion that is not complete.
    pub fn new() -> impl PinInit<Self> {
        // INVARIANT: The function initializes the completion.
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is memory for a `struct completion` that will not move.
                unsafe { kbindings::init_completion(slot) }
            }),
        })
    }

    /// Wakes one present or future waiter. Any context.
    pub fn complete(&self) {
        // SAFETY: By the type invariant the completion is initialized.
        unsafe { kbindings::complete(self.inner.get()) }
    }

    /// Wakes all present and future waiters. Any context.
    pub fn complete_all(&self) {
        // SAFETY: By the type invariant the completion is initialized.
        unsafe { kbindings::complete_all(self.inner.get()) }
    }

    /// Resets the completion. No thread may wait for it or complete it at the same time.
    pub fn reinit(&self) {
        // SAFETY: By the type invariant the completion is initialized. The function writes only a
        // counter, which other code accesses with the lock of the completion held or with marked
        // accesses.
        unsafe { bindings::base_helper_reinit_completion(self.inner.get()) }
    }

    /// Waits for the completion without a timeout.
    pub fn wait(&self) {
        // SAFETY: By the type invariant the completion is initialized.
        unsafe { kbindings::wait_for_completion(self.inner.get()) }
    }

    /// Waits for at most `ms` milliseconds. Returns true if the completion was complete.
    #[must_use]
    pub fn wait_ms(&self, ms: u32) -> bool {
        // SAFETY: By the type invariant the completion is initialized.
        unsafe { bindings::base_helper_wait_ms(self.inner.get(), ms) }
    }
}
