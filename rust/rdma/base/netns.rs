// SPDX-License-Identifier: GPL-2.0

//! The network namespace of an RDMA device, for systems on which the RDMA subsystem does not share
//! devices between namespaces (`rdma system set netns exclusive`).

use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    bindings as kbindings,
    prelude::*, //
};

/// Name of a network namespace, which does not keep the namespace alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetnsId(u64);

impl NetnsId {
    /// Returns the namespace of a device. If that is being taken down, the result stands for the
    /// initial namespace, to which the device is about to move.
    ///
    /// # Safety
    ///
    /// `device` must be valid.
    pub(crate) unsafe fn of(device: *mut bindings::ib_device) -> Self {
        // SAFETY: The caller promises that `device` is valid.
        Self(unsafe { bindings::rdma_helper_ib_device_netns(device) })
    }
}

/// A reference to a network namespace.
///
/// # Invariants
///
/// `raw` is a network namespace to which this holds a reference of `get_net()`.
pub(crate) struct Netns {
    raw: NonNull<kbindings::net>,
}

impl Netns {
    /// Returns the namespace with this name, or the initial one if it no longer exists or `id` is
    /// `None`. May sleep.
    pub(crate) fn get(id: Option<NetnsId>) -> Result<Self> {
        // No namespace has the cookie 0.
        let cookie = id.map_or(0, |id| id.0);
        // SAFETY: The function accepts any number.
        let raw = unsafe { bindings::rdma_helper_netns_get(cookie) };
        let raw = NonNull::new(raw).ok_or(ENODEV)?;
        // INVARIANT: The function has taken a reference to the namespace that it returns.
        Ok(Self { raw })
    }

    pub(crate) fn as_raw(&self) -> *mut kbindings::net {
        self.raw.as_ptr()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this holds a reference to the namespace, which is not used
        // afterwards.
        unsafe { bindings::rdma_helper_netns_put(self.raw.as_ptr()) };
    }
}
