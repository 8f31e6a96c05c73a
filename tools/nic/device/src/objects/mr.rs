// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory regions: the access that a key grants, and the place of its bytes.
//!
//! Bounds are checked by subtraction, so that nothing wraps. Translations are walked at the time of
//! use, because a region may have terabytes and its driver may change it in one step.

use crate::config::{LOCAL_DMA_LKEY, MAX_MR_SIZE};
use crate::error::{CmdError, ATTRIBUTE, SIZE};
use crate::memory::ring::{PageCache, Pages};
use crate::memory::tables::ContextSlot;
use crate::memory::GuestMemory;
use crate::objects::window::Bound;
use crate::slots::Slots;
use verbena_abi::ctx::{access, mr_flags, MemoryEntry, MrState};
use verbena_abi::syndrome::Syndrome;
use verbena_transport::host::{KeyAccess, KeyUse};

/// A memory region or a memory window.
#[derive(Debug)]
pub struct Mr {
    /// Key of the region, with its present tag.
    pub key: u32,
    /// Protection domain of the region.
    pub pdn: u32,
    /// Access rights (`access`) that the key grants.
    pub access: u32,
    /// Flags of the region (`mr_flags`).
    pub flags: u32,
    /// Address of the first byte.
    pub iova: u64,
    /// Length of the region in bytes.
    pub length: u64,
    /// Offset of the first byte in the translation.
    pub page_offset: u64,
    /// Translation to the DMA addresses of the bytes.
    pub pages: Pages,
    /// State of the region; only a valid region can be used.
    pub state: MrState,
    /// For a window: the region and the queue pair to which the window is bound.
    pub bound: Option<Bound>,
    /// For a region: the number of windows that are bound to it.
    pub windows: u32,
    /// Slot in the context table where the context is published.
    pub context_slot: ContextSlot,
}

/// Returns the index of a key, without its tag.
#[inline]
pub const fn index(key: u32) -> u32 {
    key >> 8
}

/// Checks the attributes of a region, which come from a command or a fast registration. Returns the
/// number of bytes that the translation must have.
///
/// # Errors
///
/// Fails for unknown rights, for a length over [`MAX_MR_SIZE`], and if the last address or the last
/// position in the translation wraps.
pub fn check_terms(rights: u32, iova: u64, length: u64, page_offset: u64) -> Result<u64, CmdError> {
    if rights & !access::ALL != 0 {
        return Err(ATTRIBUTE);
    }
    if iova.checked_add(length).is_none() || length > MAX_MR_SIZE {
        return Err(SIZE);
    }
    page_offset.checked_add(length).ok_or(SIZE)
}

/// A range of memory for which a key was checked.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// Translation of the region; none if `at` is a DMA address itself.
    pages: Option<&'a Pages>,
    /// Position of the first byte in the translation, or its DMA address.
    at: u64,
}

impl Span<'_> {
    /// Returns the DMA address of the byte at `offset`, and the number of bytes that are contiguous
    /// from there, at most `want`. The access that follows checks that there is memory at that
    /// address.
    #[inline]
    pub fn run<M: GuestMemory>(
        &self,
        mem: &M,
        cache: &mut PageCache,
        offset: u64,
        want: u64,
    ) -> Option<(u64, u64)> {
        let at = self.at.checked_add(offset)?;
        match self.pages {
            None => Some((at, want)),
            Some(pages) => pages.run(mem, cache, at, want),
        }
    }
}

/// Syndromes of the errors of a key: local and remote keys have different ones.
struct Names {
    unknown: Syndrome,
    pd: Syndrome,
    bounds: Syndrome,
    access: Syndrome,
}

const LOCAL: Names = Names {
    unknown: Syndrome::LkeyUnknown,
    pd: Syndrome::LkeyPd,
    bounds: Syndrome::LkeyBounds,
    access: Syndrome::LkeyAccess,
};

const REMOTE: Names = Names {
    unknown: Syndrome::RkeyUnknown,
    pd: Syndrome::RkeyPd,
    bounds: Syndrome::RkeyBounds,
    access: Syndrome::RkeyAccess,
};

/// Returns the syndrome for memory to which a key grants access and that cannot be reached.
#[inline]
pub fn unreachable(kind: KeyAccess) -> Syndrome {
    if kind.is_local() {
        Syndrome::LkeyUnreachable
    } else {
        Syndrome::RkeyUnreachable
    }
}

/// Checks the use of a key and returns the memory that the use refers to.
#[inline]
pub fn resolve<'a>(regions: &'a Slots<Mr>, key: &KeyUse) -> Result<Span<'a>, Syndrome> {
    let local = key.access.is_local();
    if local && key.privileged && key.key == LOCAL_DMA_LKEY {
        return Ok(Span {
            pages: None,
            at: key.addr,
        });
    }
    let names = if local { &LOCAL } else { &REMOTE };
    let region = regions
        .get(index(key.key))
        .filter(|r| r.key == key.key && r.state == MrState::Valid)
        .ok_or(names.unknown)?;
    if region.pdn != key.pd {
        return Err(names.pd);
    }
    if region.flags & mr_flags::WINDOW != 0 {
        // Only peers may use a window (IBTA 10.6.7), and only the peer of its queue pair a window
        // of type 2B (10.6.7.2).
        if local {
            return Err(names.unknown);
        }
        if region.flags & mr_flags::WINDOW_2 != 0
            && region.bound.is_none_or(|bound| bound.owner != key.owner)
        {
            return Err(Syndrome::RkeyQp);
        }
    }
    let needed = key.access.permission();
    let unprivileged = local && region.flags & mr_flags::PRIVILEGED != 0 && !key.privileged;
    if region.access & needed != needed || unprivileged {
        return Err(names.access);
    }
    // A FLUSH of the whole region has no address.
    let whole = matches!(key.access, KeyAccess::RemoteFlush(feth) if feth.is_whole());
    let (addr, length) = if whole {
        (region.iova, 0)
    } else {
        (key.addr, key.length)
    };
    let offset = addr.wrapping_sub(region.iova);
    if addr < region.iova || offset > region.length || length > region.length - offset {
        return Err(names.bounds);
    }
    // The sum does not wrap: `page_offset + length` was checked when the region was made.
    Ok(Span {
        pages: Some(&region.pages),
        at: region.page_offset + offset,
    })
}

impl Mr {
    /// Returns the context of the region.
    pub fn context(&self) -> MemoryEntry {
        MemoryEntry {
            key: self.key.into(),
            state: self.state.to_raw(),
            pdn: self.pdn.into(),
            access: self.access.into(),
            flags: self.flags.into(),
            iova: self.iova.into(),
            length: self.length.into(),
            page_offset: self.page_offset.into(),
            pages: self.pages.raw,
            region: self.bound.map_or(0, |bound| bound.region).into(),
            qpn: self.bound.map_or(0, |bound| bound.qpn).into(),
            windows: self.windows.into(),
            ..Default::default()
        }
    }

    /// Publishes the context in the guest's context table.
    pub fn publish<M: GuestMemory>(&mut self, mem: &M) {
        let context = self.context();
        self.context_slot.publish(mem, &context);
    }
}
