// SPDX-License-Identifier: GPL-2.0

//! One life of the device: from reset to reset.

use crate::{
    eq::Listener,
    health::Cause,
    hw::{
        Hw,
        Parts, //
    },
    pulse::Pulse,
    undertaker::Undertaker,
    verbs::Live, //
};
use base::{
    new_work,
    work::Wake, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::trace;

/// One life of the device. Dropping it ends the life.
pub(crate) struct Life {
    pub(crate) live: Arc<Live>,
    pulse: Option<Arc<Pulse>>,
}

impl Life {
    /// Brings the device up. `recovery` is woken after the device has died.
    pub(crate) fn begin(parts: &Parts, recovery: Arc<dyn Wake>) -> Result<Self> {
        let hw = Hw::new(parts)?;
        let live = Live::new(&hw).inspect_err(|_| end(&hw))?;
        // If a later step fails, dropping `life` shuts the device down again.
        let mut life = Self { live, pulse: None };
        let live = &life.live;
        let undertaker = Arc::new(Undertaker::new(live.clone(), recovery), GFP_KERNEL)?;
        let undertaker = Arc::new(new_work!(undertaker, &parts.burials)?, GFP_KERNEL)?;
        hw.health.set_undertaker(Some(undertaker));
        let to: Arc<dyn Listener> = live.clone();
        let asynchronous = live.events.prepare(&hw, parts, &to)?;
        hw.start()?;
        live.events.start(&hw, parts, asynchronous, &to)?;
        life.pulse = Some(Pulse::start(live, parts)?);
        trace::device(hw.health.name(), "alive", 0);
        Ok(life)
    }
}

/// Ends the life of hardware that is no longer in use.
fn end(hw: &Hw) {
    hw.health.declare_dead(Cause::Unbind);
    hw.silence();
}

impl Drop for Life {
    fn drop(&mut self) {
        let live = &self.live;
        // Besides the event queues, only the doorbell areas still need commands.
        live.areas.clear();
        if !live.health.is_dead() {
            live.events.end(live);
        }
        end(live);
        // The works and the interrupt handlers hold references to the device, and the device to
        // them.
        live.health.set_undertaker(None);
        if let Some(pulse) = &self.pulse {
            pulse.stop();
        }
        live.events.stop();
        let abandoned = live.health.total_abandoned();
        if abandoned != 0 {
            dev_err!(
                live.pdev,
                "{abandoned} bytes are never freed: the device may still access them\n"
            );
        }
    }
}
