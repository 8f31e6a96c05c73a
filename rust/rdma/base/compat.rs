// SPDX-License-Identifier: GPL-2.0

//! What differs between the kernels that this module builds for: Linux 7.2, and 7.3 and later. All conditional code of the
//! module is here; `Kbuild` derives `linux_7_3` from the version of the kernel's tree.

use kernel::{
    bindings as kbindings,
    pci,
    prelude::*, //
};

/// What an interrupt handler returns that had something to do.
#[cfg(linux_7_3)]
pub(crate) const IRQ_HANDLED: kbindings::irqreturn_t = kbindings::irqreturn::IRQ_HANDLED;
/// What an interrupt handler returns that had something to do.
#[cfg(not(linux_7_3))]
pub(crate) const IRQ_HANDLED: kbindings::irqreturn_t = kbindings::irqreturn_IRQ_HANDLED;

/// A count of `struct ib_device_attr`.
#[cfg(linux_7_3)]
pub(crate) type Count = u32;
/// A count of `struct ib_device_attr`.
#[cfg(not(linux_7_3))]
pub(crate) type Count = i32;

/// A count of `struct ib_device_attr`, at most the largest `int`: user space keeps counts as such.
#[cfg(linux_7_3)]
pub(crate) fn count(value: u32) -> Count {
    // CAST: it is positive.
    value.min(i32::MAX as u32)
}
/// A count of `struct ib_device_attr`, at most the largest `int`.
#[cfg(not(linux_7_3))]
pub(crate) fn count(value: u32) -> Count {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// What `probe` gets of the entry of the ID table that fits the device.
#[cfg(linux_7_3)]
pub(crate) type IdInfo<'a, T> = Option<&'a T>;
/// What `probe` gets of the entry of the ID table that fits the device.
#[cfg(not(linux_7_3))]
pub(crate) type IdInfo<'a, T> = &'a T;

/// What is said of the device. `ENODEV` if there is no entry for it, as of one that was bound by `driver_override`.
#[cfg(linux_7_3)]
pub(crate) fn id_info<T>(info: IdInfo<'_, T>) -> Result<&T> {
    info.ok_or(ENODEV)
}
/// What is said of the device.
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
/// `slot` must be memory for a `T` that does not move, not in use.
#[cfg(linux_7_3)]
pub(crate) unsafe fn init_at<T, E>(slot: *mut T, init: impl PinInit<T, E>) -> Result<(), E> {
    // SAFETY: The caller's.
    unsafe { init.__init(slot) }
}
/// Runs `init` on `slot`.
///
/// # Safety
///
/// `slot` must be memory for a `T` that does not move, not in use.
#[cfg(not(linux_7_3))]
pub(crate) unsafe fn init_at<T, E>(slot: *mut T, init: impl PinInit<T, E>) -> Result<(), E> {
    // SAFETY: The caller's.
    unsafe { init.__pinned_init(slot) }
}

/// What `#[vtable]` adds to an implementation, for those of [`Unsupported`](crate::Unsupported), which have no operation. The module is that
/// of `$d`, the driver's operations.
#[cfg(linux_7_3)]
macro_rules! no_vtable {
    ($d:ident) => {
        const USE_VTABLE_ATTR: () = ();
        type OwnerModule = $d::OwnerModule;
    };
}
/// What `#[vtable]` adds to an implementation, for those of [`Unsupported`](crate::Unsupported), which have no operation.
#[cfg(not(linux_7_3))]
macro_rules! no_vtable {
    ($d:ident) => {
        const USE_VTABLE_ATTR: () = ();
    };
}
pub(crate) use no_vtable;

/// The calling module, a `&'static ThisModule`: of the crate that has `module!`.
#[cfg(linux_7_3)]
#[macro_export]
macro_rules! this_module {
    ($krate:tt) => {
        ::kernel::module::this_module::<$krate::LocalModule>()
    };
}
/// The calling module, a `&'static ThisModule`: of the crate that has `module!`.
#[cfg(not(linux_7_3))]
#[macro_export]
macro_rules! this_module {
    ($krate:tt) => {
        &$krate::THIS_MODULE
    };
}

/// `kernel::pci_device_table!`: the name of the table, the name of what it exports for `modprobe`, the type of what is said of
/// a device, and the entries.
#[cfg(linux_7_3)]
#[macro_export]
macro_rules! pci_device_table {
    ($table:ident, $exported:ident, $info:ty, $entries:tt) => {
        ::kernel::pci_device_table!($table, $info, $entries);
    };
}
/// `kernel::pci_device_table!`: the name of the table, the name of what it exports for `modprobe`, the type of what is said of
/// a device, and the entries.
#[cfg(not(linux_7_3))]
#[macro_export]
macro_rules! pci_device_table {
    ($table:ident, $exported:ident, $info:ty, $entries:tt) => {
        ::kernel::pci_device_table!($table, $exported, $info, $entries);
    };
}
