// SPDX-License-Identifier: GPL-2.0

//! The configuration space of a device, given back to a device that has lost it.
//!
//! A device that is reset while the kernel does not know forgets the addresses of its BARs, its command register and
//! its MSI-X table, and nobody restores them. QEMU resets the device so where a snapshot of the virtual machine is loaded: the
//! state of a vfio-user device is not part of a snapshot, but the kernel's memory is.

use crate::{
    base::bind::Binding,
    bindings, //
};
use core::ptr::NonNull;
use kernel::{
    bindings as kbindings,
    error::to_result,
    prelude::*, //
};

/// What the configuration space of a device was when this was made.
pub struct Config {
    binding: Binding,
    saved: NonNull<kbindings::pci_saved_state>,
}

// SAFETY: The saved state belongs to this alone, and may be read and freed from any thread.
unsafe impl Send for Config {}
// SAFETY: By shared reference the saved state is only read.
unsafe impl Sync for Config {}

impl Config {
    /// Saves the configuration space of a device that is enabled. Switches bus mastering off first, so that
    /// [`restore`](Self::restore) does not switch it on. May sleep. `ENODEV` if the device is no longer bound.
    pub fn save(binding: &Binding) -> Result<Self> {
        // A device whose bus mastering is stuck keeps it whatever is restored.
        let _ = binding.clear_master();
        let save = || {
            // SAFETY: The device is bound.
            unsafe {
                to_result(kbindings::pci_save_state(binding.raw_pci()))?;
                NonNull::new(kbindings::pci_store_saved_state(binding.raw_pci())).ok_or(ENOMEM)
            }
        };
        let saved = binding.with(save).ok_or(ENODEV)??;
        Ok(Self {
            binding: binding.clone(),
            saved,
        })
    }

    /// If the device is there but has lost the addresses of its BARs, gives it back what was saved, and its table of interrupt
    /// vectors as they are now. Bus mastering is off afterwards. Whether the device had lost them. May sleep.
    pub fn restore(&self) -> bool {
        let restore = || {
            let pdev = self.binding.raw_pci();
            // Who has the lock is resetting the device, and restores it by himself.
            //
            // SAFETY: The device is bound.
            if !unsafe { kbindings::pci_cfg_access_trylock(pdev) } {
                return false;
            }
            // SAFETY: The device is bound, and nobody else restores it meanwhile; the saved state is this device's.
            let lost = unsafe { bindings::rdma_helper_pci_bars_lost(pdev) };
            if lost {
                // SAFETY: As above.
                unsafe {
                    if kbindings::pci_load_saved_state(pdev, self.saved.as_ptr()) == 0 {
                        kbindings::pci_restore_state(pdev);
                    }
                }
            }
            // SAFETY: Locked above.
            unsafe { kbindings::pci_cfg_access_unlock(pdev) };
            lost
        };
        self.binding.with(restore).unwrap_or(false)
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        // SAFETY: Allocated by `pci_store_saved_state()`, which has its callers free it so.
        unsafe { kbindings::kfree(self.saved.as_ptr().cast()) };
    }
}
