// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The check of a key's use by the simulated hosts, and the effect of atomics there. The tables are
//! separate from the device's, so that an error in those is not repeated here.

use crate::arena::ArenaRegion;
use verbena_abi::ctx::access;
use verbena_transport::host::{AtomicOp, KeyAccess, KeyUse, Syndrome};

/// Checks a use of a key against the region that the key names, if there is one. Returns the
/// region, and the offset in it at which the use begins.
#[inline]
pub fn admit<'a>(
    key: &KeyUse,
    region: Option<&'a ArenaRegion>,
) -> Result<(&'a ArenaRegion, usize), Syndrome> {
    let local = key.access.is_local();
    let pick = |l, r| if local { l } else { r };
    let region = region.filter(|region| region.valid);
    let region = region.ok_or(pick(Syndrome::LkeyUnknown, Syndrome::RkeyUnknown))?;
    if region.pd != key.pd {
        return Err(pick(Syndrome::LkeyPd, Syndrome::RkeyPd));
    }
    let needed = match key.access {
        KeyAccess::LocalRead => 0,
        KeyAccess::LocalWrite => access::LOCAL_WRITE,
        KeyAccess::RemoteRead => access::REMOTE_READ,
        KeyAccess::RemoteWrite => access::REMOTE_WRITE,
        KeyAccess::RemoteAtomic => access::REMOTE_ATOMIC,
        KeyAccess::RemoteFlush(feth) => match feth.placement {
            1 => access::FLUSH_GLOBAL,
            2 => access::FLUSH_PERSISTENT,
            _ => access::FLUSH_GLOBAL | access::FLUSH_PERSISTENT,
        },
    };
    if region.access & needed != needed {
        return Err(pick(Syndrome::LkeyAccess, Syndrome::RkeyAccess));
    }
    if matches!(key.access, KeyAccess::RemoteFlush(feth) if feth.level == 1) {
        return Ok((region, 0));
    }
    let bounds = pick(Syndrome::LkeyBounds, Syndrome::RkeyBounds);
    let offset = key.addr.checked_sub(region.addr).ok_or(bounds)?;
    let room = region.length.checked_sub(offset).ok_or(bounds)?;
    if key.length > room {
        return Err(bounds);
    }
    Ok((region, offset as usize))
}

/// Returns the value after an atomic operation on the value `before`.
#[inline]
pub fn atomic(op: AtomicOp, before: u64) -> u64 {
    match op {
        AtomicOp::CompareSwap { compare, swap } if before == compare => swap,
        AtomicOp::CompareSwap { .. } => before,
        AtomicOp::FetchAdd { add } => before.wrapping_add(add),
    }
}
