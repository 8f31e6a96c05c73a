// SPDX-License-Identifier: GPL-2.0

//! Memory that a process maps.
//!
//! An [`Entry`] makes memory mappable at an offset that only its process knows. The core keeps the
//! entry, and the entry keeps the memory, until the [`Entry`] is dropped *and* every mapping is
//! gone. When the device goes away under an open file, the core zaps the mappings, and whoever
//! touches them then gets a page of zeroes (`rdma_umap_fault()`): an *alive* word in such memory
//! reads 0 from there on.
//!
//! Coherent memory is mapped by page frames, which needs it to be in the kernel's linear map: true
//! without an IOMMU that remaps it; else the mapping fails with `EOPNOTSUPP`.

use crate::{
    base::{
        count::{
            Counted,
            Mappings, //
        },
        dma::Chunk, //
    },
    bindings, //
};
use core::ptr::NonNull;
use kernel::{
    bindings as kbindings,
    error::to_result,
    new_mutex,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    pci,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    },
    types::Opaque, //
};

/// What can be mapped.
pub enum Memory {
    /// Chunks, one after the other.
    Chunks(KVec<Arc<Chunk>>),
    /// Whole pages of a chunk.
    Part {
        /// The chunk.
        chunk: Arc<Chunk>,
        /// Offset in it.
        offset: usize,
        /// Length.
        len: usize,
    },
    /// A part of a BAR, whole pages, uncached.
    Bar {
        /// The device.
        pdev: ARef<pci::Device>,
        /// The BAR.
        bar: u32,
        /// Offset in it.
        offset: u64,
        /// Length.
        len: usize,
    },
}

/// Who may write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// The process too.
    ReadWrite,
    /// Not the process.
    ReadOnly,
}

/// A range of page frames.
struct Range {
    pfn: c_ulong,
    len: usize,
}

/// The core's entry, and what it maps.
#[repr(C)]
struct Mapping {
    /// The core's; it counts its references here, also while there is a `&Mapping`.
    raw: Opaque<bindings::rdma_user_mmap_entry>,
    memory: Memory,
    protection: Protection,
    ranges: KVec<Range>,
    len: usize,
    _count: Counted<Mappings>,
}

impl Memory {
    fn ranges(&self) -> Result<KVec<Range>> {
        let mut ranges = KVec::new();
        match self {
            Self::Chunks(chunks) => {
                for chunk in chunks {
                    ranges.push(
                        Range {
                            pfn: chunk.pfn()?,
                            len: chunk.size(),
                        },
                        GFP_KERNEL,
                    )?;
                }
            }
            Self::Part { chunk, offset, len } => {
                let end = offset.checked_add(*len).ok_or(EINVAL)?;
                if end > chunk.size() || offset % PAGE_SIZE != 0 || len % PAGE_SIZE != 0 {
                    return Err(EINVAL);
                }
                ranges.push(
                    Range {
                        pfn: chunk.pfn()? + (offset >> PAGE_SHIFT),
                        len: *len,
                    },
                    GFP_KERNEL,
                )?;
            }
            Self::Bar {
                pdev,
                bar,
                offset,
                len,
            } => {
                let end = offset.checked_add(u64::try_from(*len)?).ok_or(EINVAL)?;
                let start = pdev.resource_start(*bar)?;
                let phys = start.checked_add(*offset).ok_or(EINVAL)?;
                let pages = u64::try_from(PAGE_SIZE)?;
                if end > pdev.resource_len(*bar)?
                    || start == 0
                    || phys % pages != 0
                    || len % PAGE_SIZE != 0
                {
                    return Err(EINVAL);
                }
                ranges.push(
                    Range {
                        pfn: c_ulong::try_from(phys >> PAGE_SHIFT)?,
                        len: *len,
                    },
                    GFP_KERNEL,
                )?;
            }
        }
        Ok(ranges)
    }
}

/// The part of a context that its mappings share.
#[pin_data]
pub(crate) struct Shared {
    /// Whether the context is there still.
    #[pin]
    alive: Mutex<bool>,
}

impl Shared {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                alive <- new_mutex!(true),
            }),
            GFP_KERNEL,
        )
    }

    /// The context is about to be freed.
    pub(crate) fn end(this: &Arc<Self>) {
        *this.alive.lock() = false;
    }
}

/// The part of a context that makes memory mappable.
#[repr(C)]
pub struct MmapContext {
    raw: Opaque<bindings::ib_ucontext>,
    pub(crate) shared: Arc<Shared>,
}

// SAFETY: A context may be used from any thread.
unsafe impl Send for MmapContext {}
// SAFETY: The core's functions for mappings have locks of their own.
unsafe impl Sync for MmapContext {}

impl MmapContext {
    pub(crate) fn as_raw(&self) -> *mut bindings::ib_ucontext {
        self.raw.get()
    }

    /// Makes `memory` mappable by the process.
    pub fn insert(&self, memory: Memory, protection: Protection) -> Result<Entry> {
        let ranges = memory.ranges()?;
        let len = ranges
            .iter()
            .try_fold(0usize, |sum, range| sum.checked_add(range.len))
            .filter(|&len| len != 0)
            .ok_or(EINVAL)?;
        let mapping = KBox::new(
            Mapping {
                raw: Opaque::new(Default::default()),
                memory,
                protection,
                ranges,
                len,
                _count: Counted::new(),
            },
            GFP_KERNEL,
        )?;
        let raw = NonNull::from(Box::leak(mapping));
        let entry = raw.as_ptr().cast::<bindings::rdma_user_mmap_entry>();
        // SAFETY: The context is alive: we have a reference to a part of it. The entry is ours until
        // the core calls `free`.
        to_result(unsafe { bindings::rdma_user_mmap_entry_insert(self.raw.get(), entry, len) })
            .inspect_err(|_| {
                // SAFETY: From `leak`; the core did not take it.
                drop(unsafe { KBox::from_raw(raw.as_ptr()) })
            })?;
        Ok(Entry {
            mapping: raw,
            shared: self.shared.clone(),
        })
    }
}

/// Memory that a process can map. Must be dropped before its context is destroyed.
///
/// # Examples
///
/// ```ignore
/// let entry = context.mmap().insert(Memory::Chunks(chunks), Protection::ReadWrite)?;
/// user.udata().respond(&CreateCqResp { offset: entry.offset() })?;
/// ```
pub struct Entry {
    mapping: NonNull<Mapping>,
    shared: Arc<Shared>,
}

// SAFETY: An entry may be used and removed from any thread.
unsafe impl Send for Entry {}
// SAFETY: Only constant fields are read.
unsafe impl Sync for Entry {}

impl Entry {
    /// Where the process maps it: the `offset` of its `mmap()`.
    pub fn offset(&self) -> u64 {
        // SAFETY: The core's entry lives: we have not removed it.
        unsafe { bindings::rdma_helper_mmap_offset(self.mapping.as_ptr().cast()) }
    }

    /// How much it must map: all of it.
    pub fn len(&self) -> usize {
        // SAFETY: As above; constant.
        unsafe { (*self.mapping.as_ptr()).len }
    }

    /// Whether there is nothing to map: never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let alive = self.shared.alive.lock();
        if !*alive {
            pr_err!("an mmap entry outlived its context\n");
            return;
        }
        // SAFETY: The context is alive, and stays so while we hold the lock. The core calls `free`,
        // now or when the last mapping is gone.
        unsafe { bindings::rdma_user_mmap_entry_remove(self.mapping.as_ptr().cast()) };
    }
}

/// `mmap_free`: nobody can map, or has mapped, the entry any more.
///
/// # Safety
///
/// Only for the core, with an entry of a [`Mapping`].
pub(crate) unsafe extern "C" fn free(entry: *mut bindings::rdma_user_mmap_entry) {
    // SAFETY: From `leak` in `insert`, of which it is the first field; this is the last use of it.
    drop(unsafe { KBox::from_raw(entry.cast::<Mapping>()) });
}

/// `mmap`.
///
/// # Safety
///
/// Only for the core, with a context of ours and a mapping under construction.
pub(crate) unsafe fn map(
    ctx: *mut bindings::ib_ucontext,
    vma: *mut kbindings::vm_area_struct,
) -> Result {
    // SAFETY: See above. Also checks that the length is that of the entry.
    let entry = unsafe { bindings::rdma_user_mmap_entry_get(ctx, vma) };
    let entry = NonNull::new(entry).ok_or(EINVAL)?;
    // SAFETY: All entries of our contexts are in a `Mapping`, which lives while we hold a reference.
    let mapping = unsafe { &*entry.as_ptr().cast::<Mapping>() };
    // SAFETY: See above.
    let result = unsafe { map_entry(ctx, vma, mapping, entry.as_ptr()) };
    // SAFETY: The reference from `get`; the mapping has one of its own.
    unsafe { bindings::rdma_user_mmap_entry_put(entry.as_ptr()) };
    result
}

/// # Safety
///
/// As [`map`].
unsafe fn map_entry(
    ctx: *mut bindings::ib_ucontext,
    vma: *mut kbindings::vm_area_struct,
    mapping: &Mapping,
    entry: *mut bindings::rdma_user_mmap_entry,
) -> Result {
    let read_only = mapping.protection == Protection::ReadOnly;
    let device = matches!(mapping.memory, Memory::Bar { .. });
    // SAFETY: `vma` is under construction, by us alone.
    unsafe {
        if bindings::rdma_helper_vma_len(vma) != c_ulong::try_from(mapping.len)? {
            return Err(EINVAL);
        }
        to_result(bindings::rdma_helper_vma_prepare(vma, read_only, device))?;
        let (first, others) = mapping.ranges.split_first().ok_or(EINVAL)?;
        let first_len = c_ulong::try_from(first.len)?;
        let mut offset = first_len;
        for range in others {
            let len = c_ulong::try_from(range.len)?;
            // If this fails the core's caller takes back what was mapped.
            to_result(bindings::rdma_helper_vma_map(vma, offset, range.pfn, len))?;
            offset += len;
        }
        // The last step, because it records the mapping: from then on it must not fail.
        to_result(bindings::rdma_helper_vma_map_first(
            ctx, vma, first.pfn, first_len, entry,
        ))?;
    }
    Ok(())
}
