// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Error numbers, which are positive, as providers return them.

use core::ffi::c_int;

/// A positive error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub c_int);

impl Errno {
    pub const IO: Self = Self(5);
    pub const NOMEM: Self = Self(12);
    pub const BUSY: Self = Self(16);
    pub const INVAL: Self = Self(22);
    pub const OPNOTSUPP: Self = Self(95);
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(Self::IO.0))
    }
}
