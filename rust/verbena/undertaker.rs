// SPDX-License-Identifier: GPL-2.0

//! What is done when the device has died.
//!
//! 1. Commands that wait end. The device is silenced: by a reset, and by taking bus mastering from it.
//!    If neither can be confirmed it is lost. Interrupts are given back, so that nobody else reports
//!    completions any more, and whoever waited to free something goes on.
//! 2. Everything outstanding on the kernel's queues completes in software: polls flush from the
//!    private arrays ([`crate::verbs::cq`]), and armed CQs get their handler called here. The same
//!    happens whenever something is posted later, so that every drain ends.
//! 3. The PCI driver's recovery unregisters the RDMA device, by which the core destroys all objects
//!    and tells processes of the fatal event exactly once, and starts a new life. It begins when the users in
//!    the kernel have polled their flushed completions, or after [`PATIENCE`]: NVMe ignores errors of a
//!    controller that it is removing, and would wait for its own timers.
//!
//! This runs on a work queue of its own, which reclaim may wait for.
//!
//! While the device lives the work has the event queues looked at: an event storm hands over to it. If one
//! of the kernel's CQs has died it also wakes those who drain queue pairs that complete there.

use crate::verbs::Live;
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
use rdma::base::{
    sync::msleep,
    work::{
        Handler,
        Wake, //
    }, //
};

/// The longest time that kernel users have to poll their flushed completions before the recovery unregisters the device.
const PATIENCE: Delta = Delta::from_millis(500);

/// Milliseconds between two checks whether completions remain to be polled.
const PAUSE_MS: u32 = 2;

/// Buries a device.
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

    /// Waits until kernel users have polled their flushed completions, up to [`PATIENCE`]: a user that polls
    /// without events may never do so.
    fn wait_polled(&self) {
        let start = Instant::<Monotonic>::now();
        while self.live.owes_flushes() && start.elapsed() < PATIENCE {
            msleep(PAUSE_MS);
            // Requests that were posted meanwhile are flushed as well.
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
            // Commands that wait must not wait for their time to be over.
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
