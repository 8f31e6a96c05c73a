// SPDX-License-Identifier: GPL-2.0

//! Looks after a device that says nothing.
//!
//! A device that stops working, or whose interrupts do not arrive, is noticed by whoever waits for a
//! command. A program that only posts and polls waits for none; so once in a while somebody asks.

use crate::{
    abi::cmd::QueryDevice,
    eq,
    hw::Hw, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    base::work::Handler,
    new_work, //
};

/// How long between two looks.
const PERIOD_MS: u32 = 1_000;

/// The work that looks.
pub(crate) struct Pulse(Arc<Hw>);

impl Pulse {
    /// Begins to look after `hw`.
    pub(crate) fn start(hw: &Arc<Hw>) -> Result {
        let pulse = Arc::new(
            new_work!(Arc::new(Self(hw.clone()), GFP_KERNEL)?)?,
            GFP_KERNEL,
        )?;
        pulse.queue_after(PERIOD_MS);
        *hw.pulse.lock() = Some(pulse);
        Ok(())
    }
}

impl Handler for Pulse {
    fn run(&self) {
        let hw = &self.0;
        hw.cmdq.look();
        // Its answer does not matter, but that there is one: else the device is declared dead.
        let _ = hw.cmdq.exec(&QueryDevice::default());
        if hw.health.is_dead() {
            return;
        }
        if eq::stuck(hw) {
            hw.complain("an event has no interrupt");
            if let Some(works) = hw.works() {
                works.queue();
            }
        }
        if let Some(pulse) = &*hw.pulse.lock() {
            pulse.queue_after(PERIOD_MS);
        }
    }
}
