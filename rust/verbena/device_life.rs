// SPDX-License-Identifier: GPL-2.0

//! One life of the device: from reset to reset.

use crate::{
    death_work::DeathWork,
    eq::Listener,
    health::DeathCause,
    heartbeat::Heartbeat,
    hw::{
        DeviceResources,
        Hw, //
    },
    verbs::VerbsDevice, //
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
pub(crate) struct DeviceLife {
    pub(crate) vdev: Arc<VerbsDevice>,
    heartbeat: Option<Arc<Heartbeat>>,
}

impl DeviceLife {
    /// Brings the device up. `recovery` is woken after the device has died.
    pub(crate) fn begin(resources: &DeviceResources, recovery: Arc<dyn Wake>) -> Result<Self> {
        let hw = Hw::new(resources)?;
        let vdev = VerbsDevice::new(&hw).inspect_err(|_| end(&hw))?;
        // If a later step fails, dropping `life` shuts the device down again.
        let mut life = Self {
            vdev,
            heartbeat: None,
        };
        let vdev = &life.vdev;
        let death_work = Arc::new(DeathWork::new(vdev.clone(), recovery), GFP_KERNEL)?;
        let death_work = Arc::new(new_work!(death_work, &resources.death)?, GFP_KERNEL)?;
        hw.health.set_death_work(Some(death_work));
        let to: Arc<dyn Listener> = vdev.clone();
        let asynchronous = vdev.events.prepare(&hw, resources, &to)?;
        hw.start()?;
        vdev.events.start(&hw, resources, asynchronous, &to)?;
        life.heartbeat = Some(Heartbeat::start(vdev, resources)?);
        trace::device(hw.health.name(), "alive", 0);
        Ok(life)
    }
}

/// Ends the life of hardware that is no longer in use.
fn end(hw: &Hw) {
    hw.health.declare_dead(DeathCause::Unbind);
    hw.silence();
}

impl Drop for DeviceLife {
    fn drop(&mut self) {
        let vdev = &self.vdev;
        // Besides the event queues, only the doorbell areas still need commands.
        vdev.areas.clear();
        if !vdev.health.is_dead() {
            vdev.events.end(vdev);
        }
        end(vdev);
        // The works and the interrupt handlers hold references to the device, and the device to
        // them.
        vdev.health.set_death_work(None);
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.stop();
        }
        vdev.events.stop();
        let abandoned = vdev.health.total_abandoned();
        if abandoned != 0 {
            dev_err!(
                vdev.pdev,
                "{abandoned} bytes are never freed: the device may still access them\n"
            );
        }
    }
}
