// SPDX-License-Identifier: GPL-2.0

//! Hibernation, for drivers whose devices do not survive it.
//!
//! C header: [`include/linux/suspend.h`](srctree/include/linux/suspend.h)

use crate::bindings;
use kernel::{
    error::to_result,
    prelude::*, //
};

/// Refuses hibernation (`EBUSY`, with a message in the log) as long as it exists.
///
/// A hibernation image contains the driver's state, but not that of the device. By the time the
/// image is loaded, the kernel that loads it may have used the device, and the PCI core enables bus
/// mastering again before it calls the driver (`pci_pm_reenable_device()`). A module creates only
/// one of these.
pub struct Refusal(());

impl Refusal {
    /// Starts to refuse hibernation.
    pub fn new() -> Result<Self> {
        // SAFETY: A module calls this only once, so its notifier is not registered yet. `drop`
        // unregisters it before the module is unloaded.
        to_result(unsafe { bindings::base_helper_refuse_hibernation() })?;
        Ok(Self(()))
    }
}

impl Drop for Refusal {
    fn drop(&mut self) {
        // SAFETY: `new` has registered the notifier of this module.
        unsafe { bindings::base_helper_allow_hibernation() };
    }
}
