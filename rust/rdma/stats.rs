// SPDX-License-Identifier: GPL-2.0

//! Counters of a port (`rdma statistic show`, `/sys/class/infiniband/*/ports/*/hw_counters`).

use crate::bindings;
use kernel::prelude::*;

/// Name of a counter.
#[repr(transparent)]
pub struct StatDesc(bindings::rdma_stat_desc);

// SAFETY: Constant; the pointers are to constants, or `NULL`.
unsafe impl Sync for StatDesc {}
// SAFETY: As above.
unsafe impl Send for StatDesc {}

impl StatDesc {
    /// A counter called `name`.
    // The kernel's `as_char_ptr()` is not `const`; the cast does the same.
    #[expect(clippy::disallowed_methods)]
    pub const fn new(name: &'static CStr) -> Self {
        Self(bindings::rdma_stat_desc {
            name: name.as_ptr().cast(),
            flags: 0,
            priv_: core::ptr::null(),
        })
    }
}
