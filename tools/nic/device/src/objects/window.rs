// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory windows: keys of their own for parts of memory regions (IBTA 10.6.7).
//!
//! A window is an entry of the key table like a region, and a bind copies the translation of the
//! region into it. Therefore the use of a window's key costs as much as that of a region's key. A
//! region with bound windows can be neither changed nor destroyed, so the copies stay valid.

use crate::memory::ring::Pages;
use crate::memory::GuestMemory;
use crate::objects::mr::{index, Mr};
use crate::slots::Slots;
use verbena_abi::ctx::{access, mr_flags, MrState};
use verbena_abi::syndrome::Syndrome;

/// The region and the queue pair to which a window is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Key of the region.
    pub region: u32,
    /// For type 2: the queue pair, by its [`KeyUse::owner`](verbena_transport::host::KeyUse::owner).
    pub owner: u64,
    /// Number of that queue pair.
    pub qpn: u32,
}

/// A bind as a work request asks for it.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// Key of the window with its new tag.
    pub key: u32,
    /// First address of the window in the region.
    pub addr: u64,
    /// Length of the window in bytes.
    pub length: u64,
    /// Access rights that the window grants to the peer.
    pub access: u32,
    /// The region and the queue pair to bind to.
    pub to: Bound,
    /// Protection domain of the queue pair.
    pub pd: u32,
}

/// Rights that a window can grant. The local rights in a bind have no effect.
const RIGHTS: u32 = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
/// Rights with which the peer can change memory.
const WRITES: u32 = access::REMOTE_WRITE | access::REMOTE_ATOMIC;

/// Binds a window (IBTA 10.6.7.2, 11.4.4.1). A bind that fails changes nothing.
///
/// # Errors
///
/// Fails if the key names no window of this domain that can be bound, if the region does not permit
/// a bind, if the bytes are not within the region, or if the rights cannot be granted.
pub fn bind<M: GuestMemory>(
    regions: &mut Slots<Mr>,
    mem: &M,
    wanted: &Bind,
) -> Result<(), Syndrome> {
    let number = index(wanted.key);
    let window = regions
        .get(number)
        .filter(|w| w.flags & mr_flags::WINDOW != 0 && w.pdn == wanted.pd)
        .ok_or(Syndrome::BindWindow)?;
    let of_type_2 = window.flags & mr_flags::WINDOW_2 != 0;
    // A window of type 2 has to be invalidated before another bind (o10-37.2.30).
    if of_type_2 && window.state == MrState::Valid {
        return Err(Syndrome::BindWindow);
    }
    let mut known = RIGHTS | access::LOCAL_WRITE;
    if of_type_2 {
        known |= access::ZERO_BASED;
    }
    if wanted.access & !known != 0 {
        return Err(Syndrome::BindAccess);
    }
    if wanted.length == 0 {
        if of_type_2 {
            return Err(Syndrome::BindBounds);
        }
        unbind(regions, mem, number, MrState::Free, Some(wanted.key));
        return Ok(());
    }
    let region = regions
        .get(index(wanted.to.region))
        .filter(|r| {
            r.key == wanted.to.region
                && r.state == MrState::Valid
                && r.flags == 0
                && r.pdn == wanted.pd
                && r.access & (access::MW_BIND | access::ZERO_BASED) == access::MW_BIND
        })
        .ok_or(Syndrome::BindRegion)?;
    if wanted.access & WRITES != 0 && region.access & access::LOCAL_WRITE == 0 {
        return Err(Syndrome::BindAccess);
    }
    let offset = wanted.addr.wrapping_sub(region.iova);
    if wanted.addr < region.iova || offset > region.length || wanted.length > region.length - offset
    {
        return Err(Syndrome::BindBounds);
    }
    let (pages, page_offset) = (region.pages, region.page_offset + offset);
    unbind(regions, mem, number, MrState::Free, None);
    if let Some(region) = regions.get_mut(index(wanted.to.region)) {
        region.windows += 1;
        region.publish(mem);
    }
    if let Some(window) = regions.get_mut(number) {
        let zero_based = wanted.access & access::ZERO_BASED != 0;
        window.key = wanted.key;
        window.access = wanted.access & (RIGHTS | access::ZERO_BASED);
        window.iova = if zero_based { 0 } else { wanted.addr };
        window.length = wanted.length;
        (window.pages, window.page_offset) = (pages, page_offset);
        window.bound = Some(wanted.to);
        window.state = MrState::Valid;
        window.publish(mem);
    }
    Ok(())
}

/// Unbinds a window if it is bound, and sets its state. `key` is its new key; none keeps the
/// present key.
pub fn unbind<M: GuestMemory>(
    regions: &mut Slots<Mr>,
    mem: &M,
    number: u32,
    state: MrState,
    key: Option<u32>,
) {
    let Some(window) = regions.get_mut(number) else {
        return;
    };
    let bound = window.bound.take();
    window.key = key.unwrap_or(window.key);
    window.state = state;
    (window.access, window.iova, window.length) = (0, 0, 0);
    (window.pages, window.page_offset) = (Pages::none(), 0);
    window.publish(mem);
    release(regions, mem, bound);
}

/// Counts one window less for the region to which a window was bound.
pub fn release<M: GuestMemory>(regions: &mut Slots<Mr>, mem: &M, bound: Option<Bound>) {
    if let Some(region) = bound.and_then(|bound| regions.get_mut(index(bound.region))) {
        region.windows -= 1;
        region.publish(mem);
    }
}
