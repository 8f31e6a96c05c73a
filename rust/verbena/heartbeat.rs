// SPDX-License-Identifier: GPL-2.0

//! Periodic check of a device that reports nothing.
//!
//! The threads that wait for commands notice a device that has stopped working or whose interrupts
//! do not arrive. A program that only posts and polls waits for no command, so the driver sends a
//! command once per period.

use crate::{
    abi::cmd::QueryDevice,
    hw::DeviceResources,
    verbs::VerbsDevice, //
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
pub(crate) struct Heartbeat {
    vdev: Arc<VerbsDevice>,
    /// Work item that performs the check, until it is stopped.
    #[pin]
    work: Mutex<Option<Arc<Work<Heartbeat>>>>,
}

impl Heartbeat {
    /// Starts the periodic check of `vdev`. The check does not run while the machine is suspended,
    /// because a suspended device does not answer although it is alive.
    pub(crate) fn start(vdev: &Arc<VerbsDevice>, resources: &DeviceResources) -> Result<Arc<Self>> {
        let heartbeat = Arc::pin_init(
            pin_init!(Self {
                vdev: vdev.clone(),
                work <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )?;
        let work = Arc::new(
            new_work!(heartbeat.clone(), &resources.freezable)?,
            GFP_KERNEL,
        )?;
        work.queue_after(PERIOD_MS);
        *heartbeat.work.lock() = Some(work);
        Ok(heartbeat)
    }

    /// Stops the periodic check, and waits for a check that is running.
    pub(crate) fn stop(&self) {
        let work = self.work.lock().take();
        drop(work);
    }
}

impl Handler for Heartbeat {
    fn run(&self) {
        let vdev = &self.vdev;
        vdev.cmdq.check_status();
        // Only the presence of an answer matters. Without one, `exec` declares the device dead.
        let _ = vdev.cmdq.exec(&QueryDevice::default());
        if vdev.health.is_dead() {
            return;
        }
        if vdev.events.has_missed_interrupt() {
            vdev.complain("it raised no interrupt for an event");
            vdev.events.queue_all();
        }
        vdev.notify_missed();
        if let Some(work) = &*self.work.lock() {
            work.queue_after(PERIOD_MS);
        }
    }
}
