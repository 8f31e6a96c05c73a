// SPDX-License-Identifier: GPL-2.0

//! Differences of the RDMA core between the kernels that this module builds for. See
//! [`base::compat`].

/// Type of the counts of `struct ib_device_attr`.
#[cfg(linux_7_3)]
pub(crate) type Count = u32;
/// Type of the counts of `struct ib_device_attr`.
#[cfg(not(linux_7_3))]
pub(crate) type Count = i32;

/// Converts to a count of `struct ib_device_attr`, of up to `INT_MAX`, because user space uses
/// `int`.
#[cfg(linux_7_3)]
pub(crate) fn count(value: u32) -> Count {
    // CAST: The constant is positive.
    value.min(i32::MAX as u32)
}
/// Converts to a count of `struct ib_device_attr`, of up to `INT_MAX`.
#[cfg(not(linux_7_3))]
pub(crate) fn count(value: u32) -> Count {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// Adds the items that `#[vtable]` adds to an implementation. This is for those of
/// [`Unsupported`](crate::Unsupported), which have no operation. The module is that of `$d`, the
/// driver's operations.
#[cfg(linux_7_3)]
macro_rules! no_vtable {
    ($d:ident) => {
        const USE_VTABLE_ATTR: () = ();
        type OwnerModule = $d::OwnerModule;
    };
}
/// Adds the items that `#[vtable]` adds to an implementation. This is for those of
/// [`Unsupported`](crate::Unsupported), which have no operation.
#[cfg(not(linux_7_3))]
macro_rules! no_vtable {
    ($d:ident) => {
        const USE_VTABLE_ATTR: () = ();
    };
}
pub(crate) use no_vtable;
