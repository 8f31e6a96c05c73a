// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The lock of a queue: a spinlock that yields, and costs next to nothing while the process has one thread.
//!
//! A wall. Held for a few dozen instructions, and across a syscall of ours only while a queue is resized (`lock_long`).
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

extern "C" {
    /// glibc: nonzero while the process certainly has one thread only.
    static __libc_single_threaded: AtomicU8;
}

#[inline(always)]
fn single_threaded() -> bool {
    // SAFETY: glibc (2.32 and later) defines this byte; it is only read here.
    unsafe { __libc_single_threaded.load(Ordering::Relaxed) != 0 }
}

/// Who may use a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    alone: bool,
}

impl Sharing {
    /// Any thread at any time.
    pub const THREADS: Self = Self { alone: false };

    /// One thread at a time, by itself.
    ///
    /// # Safety
    ///
    /// The program has promised so for all that this is given to (`ibv_alloc_td`).
    pub const unsafe fn promised() -> Self {
        Self { alone: true }
    }
}

/// A value that one thread at a time can reach.
pub struct Lock<T> {
    held: AtomicBool,
    /// Nobody else ever comes: there is nothing to wait for.
    alone: bool,
    value: UnsafeCell<T>,
}

// SAFETY: the value moves between threads only through the lock.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self::shared_by(Sharing::THREADS, value)
    }

    /// A free lock of a value that is shared like this.
    pub const fn shared_by(sharing: Sharing, value: T) -> Self {
        Self {
            held: AtomicBool::new(false),
            alone: sharing.alone,
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock. With one thread there is nobody to wait for, and nobody can appear before it is released:
    /// what runs under it creates no thread.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        self.lock_unless(single_threaded())
    }

    /// Takes the lock, unless nobody else can come while the guard lives.
    #[inline(always)]
    fn lock_unless(&self, single_threaded: bool) -> Guard<'_, T> {
        let takes = !self.alone && !single_threaded;
        if takes && self.held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard::of(self, takes)
    }

    /// Waits for the lock, to hold it across several calls from C, or for long: there a second thread can appear meanwhile.
    pub fn lock_long(&self) -> Guard<'_, T> {
        self.lock_unless(false)
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        let mut turns = 0u32;
        loop {
            while self.held.load(Ordering::Relaxed) {
                turns += 1;
                if turns % 64 == 0 {
                    // The holder may be preempted, and there may be one CPU only.
                    std::thread::yield_now();
                } else {
                    core::hint::spin_loop();
                }
            }
            if !self.held.swap(true, Ordering::Acquire) {
                return;
            }
        }
    }
}

impl<T> Lock<T> {
    /// Takes over from a guard that was forgotten, when a lock spans several calls from C.
    ///
    /// # Safety
    ///
    /// This thread holds the lock through a [`Guard`] of [`Lock::lock_long`] that went to [`core::mem::forget`], and no other guard of
    /// it lives.
    #[inline(always)]
    pub unsafe fn resume(&self) -> Guard<'_, T> {
        Guard::of(self, !self.alone)
    }
}

/// Shows that the lock is held.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// This guard took the lock, so it releases the lock. A guard that took nothing must not: the lock may be held from
    /// `ibv_start_poll` to `ibv_end_poll`, or from `ibv_wr_start` to `ibv_wr_complete`, and the process may get a second thread
    /// before that ends.
    takes: bool,
    /// Stays in its thread: the value may be one that only moves between threads (a ring), and a shared guard would share
    /// it.
    thread: PhantomData<*mut T>,
}

impl<'a, T> Guard<'a, T> {
    #[inline(always)]
    const fn of(lock: &'a Lock<T>, takes: bool) -> Self {
        Self {
            lock,
            takes,
            thread: PhantomData,
        }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held, by this thread.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, by this thread.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.takes {
            self.lock.held.store(false, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alone_does_not_wait() {
        // SAFETY: this thread is the only one that knows the lock.
        let alone = Lock::shared_by(unsafe { Sharing::promised() }, 5);
        let first = alone.lock();
        // Either would wait for ever.
        let rest = (alone.lock(), alone.lock_long());
        assert_eq!((*first, *rest.0, *rest.1), (5, 5, 5));
    }

    #[test]
    fn a_guard_that_took_nothing_releases_nothing() {
        let lock = Lock::new(0);
        core::mem::forget(lock.lock_long());
        // The same thread, while the process has one.
        drop(lock.lock_unless(true));
        assert!(lock.held.load(Ordering::Relaxed));
        // SAFETY: the guard of the first line was forgotten, and the second is gone.
        drop(unsafe { lock.resume() });
        assert!(!lock.held.load(Ordering::Relaxed));
        drop(lock.lock_unless(false));
        assert!(!lock.held.load(Ordering::Relaxed));
    }

    #[test]
    fn threads_wait_for_each_other() {
        let lock = Lock::new(0);
        let first = lock.lock_long();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| *lock.lock());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!second.is_finished());
            drop(first);
        });
    }
}
