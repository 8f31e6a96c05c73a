// SPDX-License-Identifier: GPL-2.0

//! Error codes that `kernel::error::code` lacks.

use kernel::{
    bindings,
    prelude::*, //
};

/// A code as the negative number that the kernel passes around.
fn negative(code: u32) -> c_int {
    c_int::try_from(code).map_or(-1, |code| -code)
}

/// Operation not supported, as POSIX has it: what the verbs answer for what a device cannot do.
pub fn eopnotsupp() -> Error {
    Error::from_errno(negative(bindings::EOPNOTSUPP))
}
