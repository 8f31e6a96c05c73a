// SPDX-License-Identifier: GPL-2.0

//! The network namespace that an RDMA device is in, where the RDMA subsystem shares devices between
//! namespaces by none (`rdma system set netns exclusive`).

use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    bindings as kbindings,
    prelude::*, //
};

/// Names a network namespace, and does not keep it alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetnsId(u64);

impl NetnsId {
    /// The namespace of a device. A device whose namespace is being taken down is about to be in the
    /// initial one.
    ///
    /// # Safety
    ///
    /// `device` must be valid.
    pub(crate) unsafe fn of(device: *mut bindings::ib_device) -> Self {
        // SAFETY: The caller's.
        Self(unsafe { bindings::rdma_helper_ib_device_netns(device) })
    }
}

/// A network namespace, kept alive.
pub(crate) struct Netns {
    raw: NonNull<kbindings::net>,
}

impl Netns {
    /// The namespace of that name; the initial one if that is gone, or for `None`. May sleep.
    pub(crate) fn get(id: Option<NetnsId>) -> Result<Self> {
        // No namespace has the cookie 0.
        let cookie = id.map_or(0, |id| id.0);
        // SAFETY: Any number will do.
        let raw = unsafe { bindings::rdma_helper_netns_get(cookie) };
        let raw = NonNull::new(raw).ok_or(ENODEV)?;
        Ok(Self { raw })
    }

    pub(crate) fn as_raw(&self) -> *mut kbindings::net {
        self.raw.as_ptr()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // SAFETY: Held by `get`.
        unsafe { bindings::rdma_helper_netns_put(self.raw.as_ptr()) };
    }
}
