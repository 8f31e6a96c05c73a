// SPDX-License-Identifier: GPL-2.0

//! Error codes that `kernel::error::code` lacks.
//!
//! C header: [`include/uapi/asm-generic/errno.h`](srctree/include/uapi/asm-generic/errno.h)

use kernel::{
    bindings,
    prelude::*, //
};

/// Returns a code as the negative number that kernel functions return.
fn negative(code: u32) -> c_int {
    c_int::try_from(code).map_or(-1, |code| -code)
}

/// Returns the error of POSIX for operations that the device does not support.
pub fn eopnotsupp() -> Error {
    Error::from_errno(negative(bindings::EOPNOTSUPP))
}
