// SPDX-License-Identifier: GPL-2.0

//! Differences between the kernels that this module builds for: Linux 7.2, and 7.3 and later. All
//! conditional code of the module is here, and in the file of the same name of the crate `rdma`.
//! `Kbuild` derives `linux_7_3` from the version of the kernel's tree, and `irqreturn_is_newtype`
//! from the parameters of its bindings, because release candidates of 7.3 differ in that.

use kernel::{
    bindings as kbindings,
    pci,
    prelude::*, //
};

/// Return value of an interrupt handler whose device raised the interrupt.
#[cfg(irqreturn_is_newtype)]
pub(crate) const IRQ_HANDLED: kbindings::irqreturn_t = kbindings::irqreturn::IRQ_HANDLED;
/// Return value of an interrupt handler whose device raised the interrupt.
#[cfg(not(irqreturn_is_newtype))]
pub(crate) const IRQ_HANDLED: kbindings::irqreturn_t = kbindings::irqreturn_IRQ_HANDLED;

/// Argument of `probe` for the entry of the ID table that matches the device.
#[cfg(linux_7_3)]
pub(crate) type IdInfo<'a, T> = Option<&'a T>;
/// Argument of `probe` for the entry of the ID table that matches the device.
#[cfg(not(linux_7_3))]
pub(crate) type IdInfo<'a, T> = &'a T;

/// Returns the driver's information about the device. Returns `ENODEV` if the ID table has no entry
/// for the device, for instance after it was bound by `driver_override`.
#[cfg(linux_7_3)]
pub(crate) fn id_info<T>(info: IdInfo<'_, T>) -> Result<&T> {
    info.ok_or(ENODEV)
}
/// Returns the driver's information about the device.
#[cfg(not(linux_7_3))]
pub(crate) fn id_info<T>(info: IdInfo<'_, T>) -> Result<&T> {
    Ok(info)
}

/// A mapped BAR that is revoked when the device is unbound.
#[cfg(linux_7_3)]
pub type DevresBar<const SIZE: usize = 0> = pci::DevresBar<SIZE>;
/// A mapped BAR that is revoked when the device is unbound.
#[cfg(not(linux_7_3))]
pub type DevresBar<const SIZE: usize = 0> = kernel::devres::Devres<pci::Bar<'static, SIZE>>;

/// Runs `init` on `slot`.
///
/// # Safety
///
/// `slot` must point to unused memory for a `T` that does not move.
#[cfg(linux_7_3)]
pub unsafe fn init_at<T, E>(slot: *mut T, init: impl PinInit<T, E>) -> Result<(), E> {
    // SAFETY: The caller promises that `slot` is unused memory for a `T` that does not move.
    unsafe { init.__init(slot) }
}
/// Runs `init` on `slot`.
///
/// # Safety
///
/// `slot` must point to unused memory for a `T` that does not move.
#[cfg(not(linux_7_3))]
pub unsafe fn init_at<T, E>(slot: *mut T, init: impl PinInit<T, E>) -> Result<(), E> {
    // SAFETY: The caller promises that `slot` is unused memory for a `T` that does not move.
    unsafe { init.__pinned_init(slot) }
}

/// Evaluates to the `&'static ThisModule` of the crate that contains `module!`.
#[cfg(linux_7_3)]
#[macro_export]
macro_rules! this_module {
    ($krate:tt) => {
        ::kernel::module::this_module::<$krate::LocalModule>()
    };
}
/// Evaluates to the `&'static ThisModule` of the crate that contains `module!`.
#[cfg(not(linux_7_3))]
#[macro_export]
macro_rules! this_module {
    ($krate:tt) => {
        &$krate::THIS_MODULE
    };
}

/// Calls `kernel::pci_device_table!`. The arguments are the name of the table, the name under which
/// it is exported for `modprobe`, the type of the driver's information about a device, and the
/// entries.
#[cfg(linux_7_3)]
#[macro_export]
macro_rules! pci_device_table {
    ($table:ident, $exported:ident, $info:ty, $entries:tt) => {
        ::kernel::pci_device_table!($table, $info, $entries);
    };
}
/// Calls `kernel::pci_device_table!`. The arguments are the name of the table, the name under which
/// it is exported for `modprobe`, the type of the driver's information about a device, and the
/// entries.
#[cfg(not(linux_7_3))]
#[macro_export]
macro_rules! pci_device_table {
    ($table:ident, $exported:ident, $info:ty, $entries:tt) => {
        ::kernel::pci_device_table!($table, $exported, $info, $entries);
    };
}
