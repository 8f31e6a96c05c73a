// SPDX-License-Identifier: GPL-2.0

//! Periodic check of a device that reports nothing.
//!
//! The threads that wait for commands notice a device that has stopped working or whose interrupts
//! do not arrive. A program that only posts and polls waits for no command, so the driver sends a
//! command once per period.

use crate::{
    abi::cmd::QueryDevice,
    hw::Parts,
    verbs::Live, //
};
use base::{
    new_work,
    work::{
        Handler,
        Work, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

/// Interval between two checks, in milliseconds.
const PERIOD_MS: u32 = 1_000;

/// Periodic check of one life of the device.
#[pin_data]
pub(crate) struct Pulse {
    live: Arc<Live>,
    /// Work item that performs the check, until it is stopped.
    #[pin]
    work: Mutex<Option<Arc<Work<Pulse>>>>,
}

impl Pulse {
    /// Starts the periodic check of `live`. The check does not run while the machine is suspended,
    /// because a suspended device does not answer although it is alive.
    pub(crate) fn start(live: &Arc<Live>, parts: &Parts) -> Result<Arc<Self>> {
        let pulse = Arc::pin_init(
            pin_init!(Self {
                live: live.clone(),
                work <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )?;
        let work = Arc::new(new_work!(pulse.clone(), &parts.awake)?, GFP_KERNEL)?;
        work.queue_after(PERIOD_MS);
        *pulse.work.lock() = Some(work);
        Ok(pulse)
    }

    /// Stops the periodic check, and waits for a check that is running.
    pub(crate) fn stop(&self) {
        let work = self.work.lock().take();
        drop(work);
    }
}

impl Handler for Pulse {
    fn run(&self) {
        let live = &self.live;
        live.cmdq.look();
        // Only the presence of an answer matters. Without one, `exec` declares the device dead.
        let _ = live.cmdq.exec(&QueryDevice::default());
        if live.health.is_dead() {
            return;
        }
        if live.events.stuck() {
            live.complain("it raised no interrupt for an event");
            live.events.look();
        }
        live.wake_stuck();
        if let Some(work) = &*self.work.lock() {
            work.queue_after(PERIOD_MS);
        }
    }
}
