// SPDX-License-Identifier: GPL-2.0

//! Looks after a device that says nothing.
//!
//! A device that stops working, or whose interrupts do not arrive, is noticed by whoever waits for a
//! command. A program that only posts and polls waits for none; so once in a while somebody asks.

use crate::{
    abi::cmd::QueryDevice,
    hw::Parts,
    verbs::Live, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use rdma::{
    base::work::{
        Handler,
        Work, //
    },
    new_work, //
};

/// How long between two looks.
const PERIOD_MS: u32 = 1_000;

/// Who looks.
#[pin_data]
pub(crate) struct Pulse {
    live: Arc<Live>,
    /// The work that looks, until it is stopped.
    #[pin]
    work: Mutex<Option<Arc<Work<Pulse>>>>,
}

impl Pulse {
    /// Begins to look after `live`. Not while the machine is suspended: a suspended device answers nothing, and is not dead.
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

    /// Looks no more. Waits for a look that is being taken.
    pub(crate) fn stop(&self) {
        let work = self.work.lock().take();
        drop(work);
    }
}

impl Handler for Pulse {
    fn run(&self) {
        let live = &self.live;
        live.cmdq.look();
        // Its answer does not matter, but that there is one: else the device is declared dead.
        let _ = live.cmdq.exec(&QueryDevice::default());
        if live.health.is_dead() {
            return;
        }
        if live.events.stuck() {
            live.complain("an event has no interrupt");
            live.events.look();
        }
        live.wake_stuck();
        if let Some(work) = &*self.work.lock() {
            work.queue_after(PERIOD_MS);
        }
    }
}
