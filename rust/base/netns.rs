// SPDX-License-Identifier: GPL-2.0

//! Network namespaces, for devices that belong to one. An RDMA device does on systems on which the
//! RDMA subsystem does not share devices between namespaces (`rdma system set netns exclusive`).
//!
//! C header: [`include/net/net_namespace.h`](srctree/include/net/net_namespace.h)

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
    /// Returns the name of the namespace with this cookie (`net_cookie`). 0, which no namespace
    /// has, stands for the initial namespace.
    pub fn from_cookie(cookie: u64) -> Self {
        Self(cookie)
    }
}

/// A reference to a network namespace.
///
/// # Invariants
///
/// `raw` is a network namespace to which this holds a reference of `get_net()`.
pub struct Netns {
    raw: NonNull<kbindings::net>,
}

impl Netns {
    /// Returns the namespace with this name, or the initial one if it no longer exists or `id` is
    /// `None`. May sleep.
    pub fn get(id: Option<NetnsId>) -> Result<Self> {
        // No namespace has the cookie 0.
        let cookie = id.map_or(0, |id| id.0);
        // SAFETY: The function accepts any number.
        let raw = unsafe { bindings::base_helper_netns_get(cookie) };
        let raw = NonNull::new(raw).ok_or(ENODEV)?;
        // INVARIANT: The function has taken a reference to the namespace that it returns.
        Ok(Self { raw })
    }

    /// Returns the C struct, which is valid as long as this reference.
    pub fn as_raw(&self) -> *mut kbindings::net {
        self.raw.as_ptr()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this holds a reference to the namespace, which is not used
        // afterwards.
        unsafe { bindings::base_helper_netns_put(self.raw.as_ptr()) };
    }
}
