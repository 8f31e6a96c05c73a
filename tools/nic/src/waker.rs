// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How the engine sleeps, and how the others wake it.
//!
//! The engine sets `parked`, executes a full fence and looks once more whether anything came; the others leave their message,
//! execute a full fence and look at `parked`. One of both sees the other.

use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{fence, AtomicBool, Ordering};
use std::time::Duration;

/// See the module.
pub struct Waker {
    parked: AtomicBool,
    wake: OwnedFd,
}

impl Waker {
    /// For one engine.
    ///
    /// # Errors
    ///
    /// No descriptor can be had.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            parked: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Engine: sleeps until somebody wakes it, something comes to one of the descriptors, or for `timeout`; not at all if
    /// something is `pending`. Returns whether there may be something.
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
            // An error (a signal) is as good as an early wake-up.
            poll(&mut fds, Some(&timeout)) != Ok(0)
        };
        self.parked.store(false, Ordering::SeqCst);
        if woken {
            // Non-blocking: it fails if nobody wrote. What is written too late ends the next sleep early.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        woken
    }

    /// Has the engine look for what is new.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.parked.swap(false, Ordering::SeqCst) {
            // It fails only if the counter is full, and then the engine wakes as well.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}
