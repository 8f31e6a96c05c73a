// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory regions: what a key allows, and where its bytes are.
//!
//! Bounds are checked by subtraction, so that nothing wraps. Translations are walked when they are used: a region may
//! have terabytes, and its driver may change it in one step.

use crate::config::{LOCAL_DMA_LKEY, MAX_MR_SIZE};
use crate::error::{CmdError, ATTRIBUTE, SIZE};
use crate::memory::ring::{PageCache, Pages};
use crate::memory::tables::ContextSlot;
use crate::memory::GuestMemory;
use crate::objects::window::Bound;
use crate::slots::Slots;
use verbena_abi::ctx::{access, mr_flags, MemoryEntry, MrState};
use verbena_abi::syndrome::Syndrome;
use verbena_roce::host::{Access, KeyUse};

/// A memory region.
#[derive(Debug)]
pub struct Mr {
    /// The key with its present tag.
    pub key: u32,
    /// Protection domain.
    pub pdn: u32,
    /// What it allows.
    pub access: u32,
    /// `mr_flags`.
    pub flags: u32,
    /// Address of the first byte.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Offset of the first byte in the translation.
    pub page_offset: u64,
    /// Where the bytes are.
    pub pages: Pages,
    /// Whether it can be used.
    pub state: MrState,
    /// Of a window: to what it is bound.
    pub bound: Option<Bound>,
    /// Of a region: windows that are bound to it.
    pub windows: u32,
    /// Where the context is.
    pub context_slot: ContextSlot,
}

/// The index of a key.
#[inline]
pub const fn index(key: u32) -> u32 {
    key >> 8
}

/// Checks what is said of a region, by a command or by a fast registration; how many bytes its translation has to have.
///
/// # Errors
///
/// Unknown rights; more bytes than a region may have; addresses or positions that wrap.
pub fn check_terms(rights: u32, iova: u64, length: u64, page_offset: u64) -> Result<u64, CmdError> {
    if rights & !access::ALL != 0 {
        return Err(ATTRIBUTE);
    }
    if iova.checked_add(length).is_none() || length > MAX_MR_SIZE {
        return Err(SIZE);
    }
    page_offset.checked_add(length).ok_or(SIZE)
}

/// Memory that a key was found good for.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The translation; none for DMA addresses as they are.
    pages: Option<&'a Pages>,
    /// First byte: its position in the translation, or its DMA address.
    at: u64,
}

impl Span<'_> {
    /// The DMA address `offset` bytes on, and how many bytes from there are contiguous, at most `want`. Whether there is
    /// memory at that address is for the access to find out.
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

/// The names of what can be wrong: local and remote keys have syndromes of their own.
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

/// The syndrome of memory that a key allows and that cannot be reached.
#[inline]
pub fn unreachable(kind: Access) -> Syndrome {
    if kind.is_local() {
        Syndrome::LkeyUnreachable
    } else {
        Syndrome::RkeyUnreachable
    }
}

/// Checks a use of a key and finds the memory.
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
        // Windows are for peers alone (IBTA 10.6.7), and those of type 2B for those of one queue pair (10.6.7.2).
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
    // A FLUSH of all of it has no address.
    let whole = matches!(key.access, Access::RemoteFlush(feth) if feth.is_whole());
    let (addr, length) = if whole {
        (region.iova, 0)
    } else {
        (key.addr, key.length)
    };
    let offset = addr.wrapping_sub(region.iova);
    if addr < region.iova || offset > region.length || length > region.length - offset {
        return Err(names.bounds);
    }
    // Both were checked to fit the translation when the region was made.
    Ok(Span {
        pages: Some(&region.pages),
        at: region.page_offset + offset,
    })
}

impl Mr {
    /// The context.
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

    /// Publishes the context.
    pub fn publish<M: GuestMemory>(&mut self, mem: &M) {
        let context = self.context();
        self.context_slot.publish(mem, &context);
    }
}
