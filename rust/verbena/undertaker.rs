// SPDX-License-Identifier: GPL-2.0

//! What is done when the device has died.
//!
//! 1. The device is silenced by a reset, and the interrupts are given back, so that nobody else
//!    reports completions any more.
//! 2. Everything outstanding on the kernel's queues completes in software: polls flush from the
//!    private arrays ([`crate::verbs::cq`]), and armed CQs get their handler called here. The same
//!    happens whenever something is posted later, so that every drain ends.
//! 3. The PCI driver's recovery unregisters the RDMA device, by which the core destroys all objects
//!    and tells processes of the fatal event exactly once, and starts a new life.
//!
//! While the device lives the work only looks at the event queues: an event storm hands over to it.
//! If a completion has failed a check it also wakes those who drain queue pairs in ERR.

use crate::{
    hw::Hw,
    pci::Recovery, //
};
use kernel::sync::{
    atomic::{
        Atomic,
        Full, //
    },
    Arc, //
};
use rdma::work::{
    Handler,
    Work, //
};

/// Buries a device.
pub(crate) struct Undertaker {
    hw: Arc<Hw>,
    recovery: Arc<Work<Recovery>>,
    silenced: Atomic<bool>,
}

impl Undertaker {
    pub(crate) fn new(hw: Arc<Hw>, recovery: Arc<Work<Recovery>>) -> Self {
        Self {
            hw,
            recovery,
            silenced: Atomic::new(false),
        }
    }
}

impl Handler for Undertaker {
    fn run(&self) {
        let hw = &self.hw;
        if !hw.health.is_dead() {
            hw.handle_events();
            if !hw.may_flush() {
                return;
            }
        } else if !self.silenced.xchg(true, Full) {
            // Commands that wait must not wait for their time to be over.
            hw.cmdq.abort();
            hw.silence();
            self.recovery.queue();
        }
        for cqn in 0..hw.known().map_or(0, |known| known.ids.cqns.end()) {
            if let Some(cq) = hw.cqs.get(cqn) {
                cq.flush_event(&cq);
            }
        }
    }
}
