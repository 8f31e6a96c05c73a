// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How the simulated hosts check a use of a key, and what atomics do there. Tables of their own: what is wrong in the
//! device's must not be wrong here too.

use verbena_abi::ctx::access;
use verbena_roce::host::{Access, AtomicOp, KeyUse, Syndrome};

/// What a memory region lets its key be used for.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// Protection domain.
    pub pd: u32,
    /// `verbena_abi::ctx::access`.
    pub access: u32,
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
}

/// Checks a use of a key against what its region grants, if there is a region with a valid key. Returns the offset of the
/// use in the region.
#[inline]
pub fn admit(key: &KeyUse, grant: Option<Grant>) -> Result<u64, Syndrome> {
    let local = key.access.is_local();
    let pick = |l, r| if local { l } else { r };
    let grant = grant.ok_or(pick(Syndrome::LkeyUnknown, Syndrome::RkeyUnknown))?;
    if grant.pd != key.pd {
        return Err(pick(Syndrome::LkeyPd, Syndrome::RkeyPd));
    }
    let needed = match key.access {
        Access::LocalRead => 0,
        Access::LocalWrite => access::LOCAL_WRITE,
        Access::RemoteRead => access::REMOTE_READ,
        Access::RemoteWrite => access::REMOTE_WRITE,
        Access::RemoteAtomic => access::REMOTE_ATOMIC,
    };
    if grant.access & needed != needed {
        return Err(pick(Syndrome::LkeyAccess, Syndrome::RkeyAccess));
    }
    let bounds = pick(Syndrome::LkeyBounds, Syndrome::RkeyBounds);
    let offset = key.addr.checked_sub(grant.addr).ok_or(bounds)?;
    let room = grant.length.checked_sub(offset).ok_or(bounds)?;
    if key.length > room {
        return Err(bounds);
    }
    Ok(offset)
}

/// The value after an atomic operation, from that before.
#[inline]
pub fn atomic(op: AtomicOp, before: u64) -> u64 {
    match op {
        AtomicOp::CompareSwap { compare, swap } if before == compare => swap,
        AtomicOp::CompareSwap { .. } => before,
        AtomicOp::FetchAdd { add } => before.wrapping_add(add),
    }
}
