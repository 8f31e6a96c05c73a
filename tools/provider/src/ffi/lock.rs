// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The lock of a queue: a spinlock that yields, and costs next to nothing while the process has one
//! thread.
//!
//! This file is a safe interface to unsafe code. The lock is held for a few dozen instructions. It
//! is held across a system call of this provider only while a queue is resized (`lock_long`).
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

extern "C" {
    /// Variable of glibc, nonzero while the process certainly has only one thread.
    static __libc_single_threaded: AtomicU8;
}

#[inline(always)]
fn single_threaded() -> bool {
    // SAFETY: glibc (2.32 and later) defines this byte; it is only read here.
    unsafe { __libc_single_threaded.load(Ordering::Relaxed) != 0 }
}

/// Threads that may use a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sharing {
    alone: bool,
}

impl Sharing {
    /// Any thread may use the queue at any time.
    pub const THREADS: Self = Self { alone: false };

    /// The program itself ensures that one thread at a time uses the queue.
    ///
    /// # Safety
    ///
    /// The program has promised this for all queues that receive this value (`ibv_alloc_td`).
    pub const unsafe fn promised() -> Self {
        Self { alone: true }
    }
}

/// Value that one thread at a time can reach.
pub struct Lock<T> {
    held: AtomicBool,
    /// True if no second thread ever comes, so that there is nothing to wait for.
    alone: bool,
    value: UnsafeCell<T>,
}

// SAFETY: the value moves between threads only through the lock.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Returns a free lock.
    pub const fn new(value: T) -> Self {
        Self::shared_by(Sharing::THREADS, value)
    }

    /// Returns a free lock of a value that is shared like this.
    pub const fn shared_by(sharing: Sharing, value: T) -> Self {
        Self {
            held: AtomicBool::new(false),
            alone: sharing.alone,
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock. In a process with one thread there is no other thread to wait for. None
    /// can appear before the lock is released, because the code under the lock creates no thread.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        self.lock_unless(single_threaded())
    }

    /// Takes the lock, unless no other thread can come while the guard lives.
    #[inline(always)]
    fn lock_unless(&self, single_threaded: bool) -> Guard<'_, T> {
        let takes = !self.alone && !single_threaded;
        if takes && self.held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard::of(self, takes)
    }

    /// Waits for the lock, in order to hold it across several calls from C, or for long. The lock
    /// is taken even while the process has one thread, because a second thread can appear
    /// meanwhile.
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
                    // The holder may be preempted, and there may be only one CPU.
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
    /// Returns a guard in place of one that was forgotten, when the lock is held across several
    /// calls from C.
    ///
    /// # Safety
    ///
    /// This thread holds the lock through a [`Guard`] of [`Lock::lock_long`] that went to
    /// [`core::mem::forget`], and the lock has no other guard.
    #[inline(always)]
    pub unsafe fn resume(&self) -> Guard<'_, T> {
        Guard::of(self, !self.alone)
    }
}

/// Proof that the lock is held.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// True if this guard took the lock, so that it releases the lock. A guard that took nothing
    /// must not release it: the lock may be held from `ibv_start_poll` to `ibv_end_poll`, or from
    /// `ibv_wr_start` to `ibv_wr_complete`, and the process may get a second thread before that
    /// ends.
    takes: bool,
    /// Makes the guard stay in its thread. The value may be one that only moves between threads (a
    /// ring), and a shared guard would share the value.
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
        // SAFETY: this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread holds the lock.
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
    fn a_lock_of_a_single_thread_never_waits() {
        // SAFETY: this thread is the only one that knows the lock.
        let alone = Lock::shared_by(unsafe { Sharing::promised() }, 5);
        let first = alone.lock();
        // An ordinary lock would wait for ever here.
        let rest = (alone.lock(), alone.lock_long());
        assert_eq!((*first, *rest.0, *rest.1), (5, 5, 5));
    }

    #[test]
    fn a_guard_that_did_not_take_the_lock_does_not_release_it() {
        let lock = Lock::new(0);
        core::mem::forget(lock.lock_long());
        // The process has one thread, so this guard does not take the lock.
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
