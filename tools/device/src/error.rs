// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How a command fails. Whatever a command looks at, down to guest memory, says it in these words.

use verbena_abi::cmd::CmdStatus;
use verbena_abi::syndrome::Syndrome;

/// How a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmdError {
    /// Kind of failure, for the errno.
    pub status: CmdStatus,
    /// Cause.
    pub syndrome: Syndrome,
}

/// A failure.
pub const fn bad(status: CmdStatus, syndrome: Syndrome) -> CmdError {
    CmdError { status, syndrome }
}

/// A number out of range.
pub(crate) const NUMBER: CmdError = bad(CmdStatus::Invalid, Syndrome::CmdNumber);
/// A size out of range.
pub(crate) const SIZE: CmdError = bad(CmdStatus::Invalid, Syndrome::CmdSize);
/// An attribute out of range.
pub(crate) const ATTRIBUTE: CmdError = bad(CmdStatus::Invalid, Syndrome::CmdAttribute);
/// No such object.
pub(crate) const NO_OBJECT: CmdError = bad(CmdStatus::NotFound, Syndrome::CmdNoObject);
/// The number or slot is taken.
pub(crate) const IN_USE: CmdError = bad(CmdStatus::Exists, Syndrome::CmdInUse);
/// Another object needs it.
pub(crate) const BUSY: CmdError = bad(CmdStatus::Busy, Syndrome::CmdBusy);
