// SPDX-License-Identifier: GPL-2.0

//! The current process.
//!
//! C header: [`include/linux/pid.h`](srctree/include/linux/pid.h)

use crate::bindings;

/// Returns the number in the initial namespace of the current process (thread group). Any context,
/// but in an interrupt the value has no meaning.
pub fn current_process() -> i32 {
    // SAFETY: The function has no requirements.
    unsafe { bindings::base_helper_current_process() }
}
