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
//!    and tells processes of the fatal event exactly once, and starts a new life.
//!
//! This runs on a work queue of its own, which reclaim may wait for.
//!
//! While the device lives the work has the event queues looked at: an event storm hands over to it. If one
//! of the kernel's CQs has died it also wakes those who drain queue pairs that complete there.

use crate::verbs::Live;
use kernel::sync::{
    atomic::{
        Atomic,
        Full, //
    },
    Arc, //
};
use rdma::base::work::{
    Handler,
    Wake, //
};

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
            self.recovery.wake();
        }
    }
}
