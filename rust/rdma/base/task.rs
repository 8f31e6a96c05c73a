// SPDX-License-Identifier: GPL-2.0

//! Who runs.

use crate::bindings;

/// The process (thread group) that runs now, by its number in the initial namespace. Any context; in
/// an interrupt it says nothing.
pub fn current_process() -> i32 {
    // SAFETY: No requirement.
    unsafe { bindings::rdma_helper_current_process() }
}
