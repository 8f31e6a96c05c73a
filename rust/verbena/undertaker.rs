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
//! While the device lives the work only has the event queues looked at: an event storm hands over to
//! it. If a completion has failed a check it also wakes those who drain queue pairs in ERR.

use crate::{
    hw::Hw,
    pci::Recovery,
    verbs::qp::QpData, //
};
use kernel::sync::{
    atomic::{
        Atomic,
        Full, //
    },
    Arc, //
};
use rdma::base::work::{
    Handler,
    Work, //
};

/// Buries a device.
pub(crate) struct Undertaker {
    hw: Arc<Hw>,
    recovery: Arc<Work<Recovery>>,
    buried: Atomic<bool>,
}

impl Undertaker {
    pub(crate) fn new(hw: Arc<Hw>, recovery: Arc<Work<Recovery>>) -> Self {
        Self {
            hw,
            recovery,
            buried: Atomic::new(false),
        }
    }

    /// Calls the handlers of all CQs for which there is something to flush, then of all queue pairs whose
    /// drain waits for an event.
    fn flush(&self) {
        let hw = &self.hw;
        for cqn in 0..hw.known().map_or(0, |known| known.ids.cqns.end()) {
            if let Some(cq) = hw.cqs.get(cqn) {
                cq.flush_event(&cq);
            }
        }
        for qpn in 0..hw.known().map_or(0, |known| known.ids.qpns.end()) {
            if let Some(qp) = hw.qps.get(qpn) {
                QpData::flush_event(&qp);
            }
        }
    }
}

impl Handler for Undertaker {
    fn run(&self) {
        let hw = &self.hw;
        if !hw.health.is_dead() {
            if let Some(works) = hw.works() {
                works.queue();
            }
            if hw.may_flush() {
                self.flush();
            }
            return;
        }
        let first = !self.buried.xchg(true, Full);
        if first {
            // Commands that wait must not wait for their time to be over.
            hw.cmdq.abort();
            hw.silence();
        }
        self.flush();
        if first {
            self.recovery.queue();
        }
    }
}
