// SPDX-License-Identifier: GPL-2.0

//! Cleanup after the death of the device.
//!
//! 1. Pending commands end. The device is silenced, by a reset and by clearing bus mastering. If
//!    neither can be confirmed, the device is lost. Interrupts are released, so that no handler
//!    reports completions any more, and threads that waited to free memory continue.
//! 2. Everything outstanding in the queues of kernel users completes in software: polls flush from
//!    the private arrays ([`crate::verbs::cq`]), and the undertaker calls the handlers of armed
//!    CQs. The same happens whenever a user posts later, so that every drain ends.
//! 3. The PCI driver's recovery unregisters the RDMA device, by which the core destroys all objects
//!    and reports the fatal event to processes exactly once. Then a new life begins. The recovery
//!    starts when the kernel users have polled their flushed completions, or after [`PATIENCE`]:
//!    NVMe ignores errors of a controller that it is removing, and would wait for its own timers.
//!
//! The undertaker runs on a work queue of its own, which reclaim may wait for.
//!
//! While the device is alive, the undertaker queues the work of the event queues, because an event
//! storm hands over to it. If a CQ of a kernel user has died, the undertaker also wakes the users
//! that drain queue pairs that complete there.

use crate::verbs::Live;
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
const PATIENCE: Delta = Delta::from_millis(500);

/// Milliseconds between two checks for completions that remain to be polled.
const PAUSE_MS: u32 = 2;

/// Work that cleans up after the death of a device.
pub(crate) struct Undertaker {
    live: Arc<Live>,
    recovery: Arc<dyn Wake>,
    buried: Atomic<bool>,
}

impl Undertaker {
    pub(crate) fn new(live: Arc<Live>, recovery: Arc<dyn Wake>) -> Self {
        Self {
            live,
            recovery,
            buried: Atomic::new(false),
        }
    }

    /// Waits until kernel users have polled their flushed completions, for at most [`PATIENCE`],
    /// because a user that polls without events may never do so.
    fn wait_polled(&self) {
        let start = Instant::<Monotonic>::now();
        while self.live.owes_flushes() && start.elapsed() < PATIENCE {
            msleep(PAUSE_MS);
            // Requests that were posted in the meantime are flushed as well.
            self.live.flush();
        }
    }
}

impl Handler for Undertaker {
    fn run(&self) {
        let live = &self.live;
        if !live.health.is_dead() {
            live.events.look();
            if live.flushes() {
                live.flush();
            }
            return;
        }
        let first = !self.buried.xchg(true, Full);
        if first {
            // Pending commands must not wait for their timeouts.
            live.cmdq.abort();
            live.silence();
        }
        live.flush();
        if first {
            self.wait_polled();
            self.recovery.wake();
        }
    }
}
