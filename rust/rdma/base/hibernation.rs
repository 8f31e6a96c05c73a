// SPDX-License-Identifier: GPL-2.0

//! Hibernation, for drivers whose devices do not outlive it.

use crate::bindings;
use kernel::{
    error::to_result,
    prelude::*, //
};

/// While there is one, hibernation is refused (`EBUSY`), and the log says why.
///
/// An image has what the driver knew of its device, but not what the device knows by then: the kernel that
/// loads the image may have used it, and the PCI core lets it write memory again without asking the driver
/// (`pci_pm_reenable_device()`). One for each module.
pub struct Refusal(());

impl Refusal {
    /// Begins to refuse.
    pub fn new() -> Result<Self> {
        // SAFETY: Called once for each module, which unregisters what it registers here.
        to_result(unsafe { bindings::rdma_helper_refuse_hibernation() })?;
        Ok(Self(()))
    }
}

impl Drop for Refusal {
    fn drop(&mut self) {
        // SAFETY: Registered by `new`.
        unsafe { bindings::rdma_helper_allow_hibernation() };
    }
}
