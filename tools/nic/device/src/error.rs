// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The error of a command. The code of objects, rings and context tables returns the same type, so
//! that a command passes their errors on.

use verbena_abi::cmd::CmdStatus;
use verbena_abi::syndrome::Syndrome;

/// The error of a command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmdError {
    /// Kind of failure, which determines the errno.
    pub status: CmdStatus,
    /// Syndrome of the failure's cause.
    pub syndrome: Syndrome,
}

/// Returns the error with this status and syndrome.
pub const fn bad(status: CmdStatus, syndrome: Syndrome) -> CmdError {
    CmdError { status, syndrome }
}

/// The error for a number out of range.
pub(crate) const NUMBER: CmdError = bad(CmdStatus::Invalid, Syndrome::CmdNumber);
/// The error for a size out of range.
pub(crate) const SIZE: CmdError = bad(CmdStatus::Invalid, Syndrome::CmdSize);
/// The error for an attribute out of range.
pub(crate) const ATTRIBUTE: CmdError = bad(CmdStatus::Invalid, Syndrome::CmdAttribute);
/// The error for a number without an object.
pub(crate) const NO_OBJECT: CmdError = bad(CmdStatus::NotFound, Syndrome::CmdNoObject);
/// The error for a number or slot that is in use.
pub(crate) const IN_USE: CmdError = bad(CmdStatus::Exists, Syndrome::CmdInUse);
/// The error for an object that another object needs.
pub(crate) const BUSY: CmdError = bad(CmdStatus::Busy, Syndrome::CmdBusy);
