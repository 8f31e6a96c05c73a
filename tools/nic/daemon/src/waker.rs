// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The sleep of the engine, and its end by another thread.
//!
//! The engine sets `parked`, executes a full fence and checks once more for work; another thread
//! leaves its message, executes a full fence and reads `parked`. At least one of the two sees the
//! other's store.

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, AtomicBool, Ordering};
use std::time::Duration;

/// The engine's sleep. See the [module](self).
pub struct Waker {
    parked: AtomicBool,
    wake: OwnedFd,
}

impl Waker {
    /// Returns the waker of one engine.
    ///
    /// # Errors
    ///
    /// The process cannot get another descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            parked: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Sleeps until another thread calls [`wake`](Self::wake), one of the descriptors is ready, or
    /// `timeout` is over (called by the engine). Does not sleep if there is `pending` work. Returns
    /// true if there may be work.
    pub fn park<'a>(
        &'a self,
        timeout: Duration,
        pending: impl FnOnce() -> bool,
        others: impl Iterator<Item = PollFd<'a>>,
    ) -> bool {
        self.parked.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let woken = pending() || {
            let timeout = Timespec {
                tv_sec: timeout.as_secs().min(i32::MAX as u64) as i64,
                tv_nsec: i64::from(timeout.subsec_nanos()),
            };
            let wake = PollFd::new(&self.wake, PollFlags::IN);
            let mut fds: Vec<_> = std::iter::once(wake).chain(others).collect();
            // An error (a signal) counts as an early wake-up.
            poll(&mut fds, Some(&timeout)) != Ok(0)
        };
        self.parked.store(false, Ordering::SeqCst);
        if woken {
            // The read is non-blocking, and fails if there was no write. A write that comes later
            // ends the next sleep early.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        woken
    }

    /// Wakes the engine if it sleeps.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.parked.swap(false, Ordering::SeqCst) {
            // The write fails only if the counter is full, and then the engine wakes too.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}
