// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device model as the engine's thread uses it, and the slices of time that it gets.
//!
//! The model is called only in a [`Slice`]. A slice locks guest RAM as it is mapped, checks the
//! gate after that, and raises the interrupts that the model wants before it unlocks. So after a
//! thread has closed the gate, or changed the map, and has waited for the end of the slice, the
//! model accesses no memory any more and raises no interrupt. There is one guard, which is also
//! passed to the code that handles a panic of the model: a second read lock would deadlock if the
//! PCI function waits to change the map.
//!
//! **When the model panics** (a defect), the panic is caught, the device fails with
//! `EngineFailure`, and the thread goes on. If the failed device panics once more, it gets no more
//! time until it is reset. Vector 0 reports every such panic.

use crate::guest_ram::GuestRam;
use crate::vm_state::VmState;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, RwLockReadGuard};
use verbena_abi::syndrome::Syndrome;
use verbena_device::misbehave::Kind;
use verbena_device::{Config, Device, FlightRecordingPart, Side};

/// State of the device model after its panics.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeviceHealth {
    Well,
    /// The model panicked, and the device has failed; the model may still answer commands.
    Failed,
    /// The model panicked again, and is not called any more.
    Dead,
}

/// The device model of one VM.
pub(crate) struct VmDevice {
    shared: Arc<VmState>,
    config: Config,
    device: Device,
    health: DeviceHealth,
    /// Interrupts that a device keeps back as a misbehaviour.
    withheld: u32,
}

impl VmDevice {
    /// Returns a device as after power-on.
    pub(crate) fn new(shared: Arc<VmState>, mut config: Config) -> Self {
        config.misbehave = shared.misbehave.clone();
        let mut device = Device::new(config.clone(), shared.regs.clone());
        if let Some(Err(e)) = shared
            .take_full_recording_request()
            .map(|wish| device.begin_full_recording(wish))
        {
            log::error!("the full recording cannot begin: {e}");
        }
        Self {
            device,
            shared,
            config,
            health: DeviceHealth::Well,
            withheld: 0,
        }
    }

    /// Begins a slice. Waits while the PCI function changes the map of guest RAM.
    pub(crate) fn slice(&mut self) -> Slice<'_> {
        let ram = self.shared.ram();
        Slice {
            is_gate_open: self.shared.is_gate_open(),
            ram,
            shared: &self.shared,
            device: &mut self.device,
            health: &mut self.health,
            withheld: &mut self.withheld,
        }
    }

    /// Returns the memory that another VM's device may copy from, and locks its map meanwhile.
    /// Returns `None` if the gate is closed, or the device has failed.
    pub(crate) fn lend(&self) -> Option<LentMemory<'_>> {
        let ram = self.shared.ram();
        let has_failed =
            self.health != DeviceHealth::Well || self.shared.regs.is_fatal() || ram.is_lost();
        let is_usable = !has_failed && self.shared.is_gate_open();
        is_usable.then_some(LentMemory {
            ram,
            device: &self.device,
        })
    }

    /// Returns the device's recording, also after the device has failed: the recorder depends on no
    /// other part of it.
    #[cold]
    pub(crate) fn flight_recording(
        &self,
        from: u64,
        max_entries: usize,
    ) -> Option<FlightRecordingPart> {
        let device = &self.device;
        catch_unwind(AssertUnwindSafe(|| {
            device.flight_recording(from, max_entries)
        }))
        .unwrap_or_default()
    }

    /// Returns the MAC address of the device.
    pub(crate) fn mac(&self) -> [u8; 6] {
        self.config.mac
    }

    /// Resets the device to its state after power-on. A device that has failed is replaced.
    pub(crate) fn reset(&mut self) {
        if self.health == DeviceHealth::Well {
            let device = &mut self.device;
            if catch_unwind(AssertUnwindSafe(|| device.reset())).is_err() {
                log::error!("the device model has panicked in a reset: a new device replaces it");
                self.health = DeviceHealth::Dead;
            }
        }
        if self.health != DeviceHealth::Well {
            self.replace();
            self.device.reset();
            self.health = DeviceHealth::Well;
        }
        self.withheld = 0;
    }

    /// Replaces a device whose state is unknown; the new device is in a fatal error until reset.
    #[cold]
    pub(crate) fn abandon(&mut self) {
        self.replace();
        self.health = DeviceHealth::Dead;
    }

    /// Puts a new device in the place of one that may even panic when it is dropped.
    fn replace(&mut self) {
        let mut new = Device::new(self.config.clone(), self.shared.regs.clone());
        self.device.hand_over_observers(&mut new);
        let old = std::mem::replace(&mut self.device, new);
        if catch_unwind(AssertUnwindSafe(|| drop(old))).is_err() {
            log::error!("the device model has panicked when it was dropped");
        }
    }
}

/// A device's memory for another device, which may only read it. As in a slice, the map is locked,
/// and the gate was open when the loan began.
pub(crate) struct LentMemory<'a> {
    ram: RwLockReadGuard<'a, GuestRam>,
    device: &'a Device,
}

impl LentMemory<'_> {
    /// Returns the memory that can be copied from.
    pub(crate) fn side(&self) -> Side<'_, GuestRam> {
        self.device.side(&self.ram)
    }
}

/// A slice: the device model with guest RAM, and the gate's state. See the [module](self).
pub(crate) struct Slice<'a> {
    shared: &'a VmState,
    ram: RwLockReadGuard<'a, GuestRam>,
    is_gate_open: bool,
    device: &'a mut Device,
    health: &'a mut DeviceHealth,
    withheld: &'a mut u32,
}

impl Slice<'_> {
    /// True if DMA and interrupts are allowed in this slice.
    pub(crate) fn is_gate_open(&self) -> bool {
        self.is_gate_open
    }

    /// Calls into the device model. Returns `None` if the model panics in this call, or has
    /// panicked twice and is not called any more.
    pub(crate) fn call<T>(&mut self, call: impl FnOnce(&mut Device, &GuestRam) -> T) -> Option<T> {
        if *self.health == DeviceHealth::Dead {
            return None;
        }
        let (device, ram) = (&mut *self.device, &*self.ram);
        match catch_unwind(AssertUnwindSafe(|| call(device, ram))) {
            Ok(value) => {
                if self.ram.is_lost() {
                    self.on_memory_lost();
                }
                Some(value)
            }
            Err(_) => {
                self.on_panic();
                None
            }
        }
    }

    /// Reports a fatal error, because the host has lost memory of this guest and the device has
    /// read zeros from it.
    #[cold]
    fn on_memory_lost(&mut self) {
        if self.shared.regs.is_fatal() {
            return;
        }
        log::error!(
            "the host has no page for memory of this guest (a memory error, or no huge page left): \
             the device is dead until QEMU is started again; other guests of this process are not affected"
        );
        if self.is_gate_open {
            let (device, ram) = (&mut *self.device, &*self.ram);
            let call = AssertUnwindSafe(|| device.engine_failed(ram, Syndrome::EngineFailure));
            if catch_unwind(call).is_err() {
                *self.health = DeviceHealth::Dead;
            }
        }
        self.shared.regs.set_fatal(Syndrome::EngineFailure);
        self.raise_failure_interrupt();
    }

    #[cold]
    fn on_panic(&mut self) {
        log::error!("the device model has panicked: the device is dead until its driver resets it");
        let has_panicked_before = *self.health != DeviceHealth::Well;
        *self.health = if has_panicked_before {
            DeviceHealth::Dead
        } else {
            DeviceHealth::Failed
        };
        if !has_panicked_before && self.is_gate_open {
            let (device, ram) = (&mut *self.device, &*self.ram);
            let call = AssertUnwindSafe(|| device.engine_failed(ram, Syndrome::EngineFailure));
            if catch_unwind(call).is_err() {
                *self.health = DeviceHealth::Dead;
            }
        }
        self.shared.regs.set_fatal(Syndrome::EngineFailure);
        self.raise_failure_interrupt();
    }

    /// Raises vector 0 if the device is in a fatal error.
    pub(crate) fn raise_failure_interrupt(&mut self) {
        if self.shared.regs.is_fatal() {
            self.raise(1);
        }
    }

    /// Raises the interrupts that the model wants, as the end of the slice does. Returns true if
    /// there were any.
    pub(crate) fn raise_wanted(&mut self) -> bool {
        if !self.is_gate_open {
            return false;
        }
        let wanted = self.call(|device, _| device.take_interrupts()).unwrap_or(0);
        self.raise(wanted);
        wanted != 0
    }

    /// Raises interrupts, unless the NIC withholds them as a misbehaviour.
    fn raise(&mut self, interrupts: u32) {
        if !self.is_gate_open {
            return;
        }
        let wanted = interrupts | std::mem::take(self.withheld);
        if self.shared.misbehave.is(Kind::NoInterrupts) {
            *self.withheld = wanted;
        } else if wanted != 0 {
            self.shared.raise(&self.ram, wanted);
        }
    }
}

impl Drop for Slice<'_> {
    fn drop(&mut self) {
        // If the engine panics, it gives its device up and reports that separately.
        if !std::thread::panicking() {
            self.raise_wanted();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{eventfd, EventfdFlags};

    #[test]
    fn interrupts_are_raised_at_the_end_of_a_slice_and_only_while_the_gate_is_open() {
        let shared = Arc::new(VmState::new().unwrap());
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        shared.set_vector(0, Some(fd.try_clone().unwrap()));
        let was_raised = || rustix::io::read(&fd, &mut [0; 8]).is_ok();
        let mut model = VmDevice::new(shared.clone(), Config::default());
        let fail = |model: &mut VmDevice| {
            let mut slice = model.slice();
            slice.call(|device, ram| device.fail(ram, Syndrome::EngineFailure));
            assert!(!was_raised());
        };
        fail(&mut model);
        assert!(!was_raised());
        // The interrupt is still pending when the gate opens.
        shared.set_bus_master(true);
        drop(model.slice());
        assert!(was_raised());
        model.reset();
        fail(&mut model);
        assert!(was_raised());
        drop(model.slice());
        assert!(!was_raised());
    }
}
