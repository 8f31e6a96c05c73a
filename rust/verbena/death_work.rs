// SPDX-License-Identifier: GPL-2.0

//! Cleanup after the death of the device.
//!
//! 1. Pending commands end. The device is silenced, by a reset and by clearing bus mastering. If
//!    neither can be confirmed, the device is lost. Interrupts are released, so that no handler
//!    reports completions any more, and threads that waited to free memory continue.
//! 2. Everything outstanding in the queues of kernel users completes in software: polls flush from
//!    the private arrays ([`crate::verbs::cq`]), and the death work calls the handlers of armed
//!    CQs. The same happens whenever a user posts later, so that every drain ends.
//! 3. The PCI driver's recovery unregisters the RDMA device, by which the core destroys all objects
//!    and reports the fatal event to processes exactly once. Then a new life begins. The recovery
//!    starts when the kernel users have polled their flushed completions, or after [`FLUSH_POLL_TIMEOUT`]:
//!    NVMe ignores errors of a controller that it is removing, and would wait for its own timers.
//!
//! The death work runs on a work queue of its own, which reclaim may wait for.
//!
//! While the device is alive, the death work queues the work of the event queues, because an event
//! storm hands over to it. If a CQ of a kernel user is in error, the death work also wakes the
//! users that drain queue pairs that complete there.

use crate::verbs::VerbsDevice;
use base::{
    sync::msleep,
    work::{
        Handler,
        Wake, //
    }, //
};
use kernel::{
    sync::{
        atomic::{
            Atomic,
            Full, //
        },
        Arc, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    },
};

/// Longest time that kernel users have to poll their flushed completions before the recovery
/// unregisters the device.
const FLUSH_POLL_TIMEOUT: Delta = Delta::from_millis(500);

/// Milliseconds between two checks for completions that remain to be polled.
const POLL_INTERVAL_MS: u32 = 2;

/// Work that cleans up after the death of a device, or of a CQ of a kernel user.
pub(crate) struct DeathWork {
    vdev: Arc<VerbsDevice>,
    recovery: Arc<dyn Wake>,
    started: Atomic<bool>,
}

impl DeathWork {
    pub(crate) fn new(vdev: Arc<VerbsDevice>, recovery: Arc<dyn Wake>) -> Self {
        Self {
            vdev,
            recovery,
            started: Atomic::new(false),
        }
    }

    /// Waits until kernel users have polled their flushed completions, for at most [`FLUSH_POLL_TIMEOUT`],
    /// because a user that polls without events may never do so.
    fn wait_polled(&self) {
        let start = Instant::<Monotonic>::now();
        while self.vdev.has_unpolled_completions() && start.elapsed() < FLUSH_POLL_TIMEOUT {
            msleep(POLL_INTERVAL_MS);
            // Requests that were posted in the meantime are flushed as well.
            self.vdev.flush();
        }
    }
}

impl Handler for DeathWork {
    fn run(&self) {
        let vdev = &self.vdev;
        if !vdev.health.is_dead() {
            vdev.events.queue_all();
            if vdev.is_flushing() {
                vdev.flush();
            }
            return;
        }
        let first = !self.started.xchg(true, Full);
        if first {
            // Pending commands must not wait for their timeouts.
            vdev.cmdq.abort();
            vdev.silence();
        }
        vdev.flush();
        if first {
            self.wait_polled();
            self.recovery.wake();
        }
    }
}
