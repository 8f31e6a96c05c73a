// SPDX-License-Identifier: GPL-2.0

//! Restores the configuration space of a device that has lost it.
//!
//! C header: [`include/linux/pci.h`](srctree/include/linux/pci.h)
//!
//! A device that is reset without the kernel's knowledge forgets the addresses of its BARs, its
//! command register and its MSI-X table, and the kernel does not restore them. QEMU resets the
//! device in this way when it loads a snapshot of the virtual machine: the state of a vfio-user
//! device is not part of a snapshot, but the kernel's memory is.

use crate::{
    bind::Binding,
    bindings, //
};
use core::ptr::NonNull;
use kernel::{
    bindings as kbindings,
    error::to_result,
    prelude::*, //
};

/// A saved copy of the configuration space of a device.
///
/// # Invariants
///
/// `saved` was allocated by `pci_store_saved_state()` for the device of `binding`, and is owned by
/// this value. It is never written.
pub struct Config {
    binding: Binding,
    saved: NonNull<kbindings::pci_saved_state>,
}

// SAFETY: By the type invariant this owns the saved state, which may be read and freed from any
// thread.
unsafe impl Send for Config {}
// SAFETY: Code with a shared reference only reads the saved state.
unsafe impl Sync for Config {}

impl Config {
    /// Saves the configuration space of an enabled device. Switches bus mastering off first, so
    /// that [`restore`](Self::restore) does not switch it on. May sleep. Returns `ENODEV` if the
    /// device is no longer bound.
    pub fn save(binding: &Binding) -> Result<Self> {
        // The result is ignored: if bus mastering cannot be switched off now, a restore cannot do
        // so either.
        let _ = binding.clear_master();
        let save = || {
            // SAFETY: `with` keeps the device bound during the call.
            to_result(unsafe { kbindings::pci_save_state(binding.raw_pci()) })?;
            // SAFETY: `with` keeps the device bound during the call.
            let saved = unsafe { kbindings::pci_store_saved_state(binding.raw_pci()) };
            NonNull::new(saved).ok_or(ENOMEM)
        };
        let saved = binding.with(save).ok_or(ENODEV)??;
        // INVARIANT: `pci_store_saved_state()` has allocated the state for this device, and its
        // caller owns it.
        Ok(Self {
            binding: binding.clone(),
            saved,
        })
    }

    /// Restores the saved state, and the MSI-X table with the present vectors, if the device
    /// responds but has lost the addresses of its BARs. Bus mastering is off afterwards. Returns
    /// true if the device had lost the addresses. May sleep.
    pub fn restore(&self) -> bool {
        let restore = || {
            let pdev = self.binding.raw_pci();
            // The holder of this lock is resetting the device, and restores the configuration
            // itself.
            //
            // SAFETY: `with` keeps the device bound during the call.
            if !unsafe { kbindings::pci_cfg_access_trylock(pdev) } {
                return false;
            }
            // SAFETY: `with` keeps the device bound, and the lock keeps others from resetting it.
            let lost = unsafe { bindings::base_helper_pci_bars_lost(pdev) };
            if lost {
                // SAFETY: The device is bound and locked. By the type invariant the saved state is
                // of this device.
                let loaded = unsafe { kbindings::pci_load_saved_state(pdev, self.saved.as_ptr()) };
                if loaded == 0 {
                    // SAFETY: The device is bound and locked.
                    unsafe { kbindings::pci_restore_state(pdev) };
                }
            }
            // SAFETY: This thread took the lock above.
            unsafe { kbindings::pci_cfg_access_unlock(pdev) };
            lost
        };
        self.binding.with(restore).unwrap_or(false)
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        // SAFETY: By the type invariant `pci_store_saved_state()` has allocated the state, which
        // its callers free with `kfree()`. It is not used afterwards.
        unsafe { kbindings::kfree(self.saved.as_ptr().cast()) };
    }
}
