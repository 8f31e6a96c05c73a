// SPDX-License-Identifier: GPL-2.0

//! Memory that a process maps.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! An [`Entry`] makes memory mappable at an offset that only its process knows. The core keeps the
//! entry, and the entry keeps the memory, until the [`Entry`] is dropped *and* every mapping is
//! gone. When the device is removed while a file is open, the core zaps the mappings. A process
//! that accesses them after that gets a page of zeroes (`rdma_umap_fault()`), so an *alive* word in
//! such memory reads 0 from then on.
//!
//! Coherent memory is mapped by page frames, which requires that it is in the kernel's linear map.
//! That is the case without an IOMMU that remaps it. Otherwise the mapping fails with `EOPNOTSUPP`.

use crate::bindings;
use base::{
    count::{
        Counted,
        Mappings, //
    },
    dma::Chunk, //
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

/// Memory that can be mapped.
pub enum Memory {
    /// Chunks, which are mapped one after the other.
    Chunks(KVec<Arc<Chunk>>),
    /// Whole pages of a chunk.
    Part {
        /// Chunk that contains the pages.
        chunk: Arc<Chunk>,
        /// Offset in the chunk in bytes.
        offset: usize,
        /// Length of the part in bytes.
        len: usize,
    },
    /// Whole pages of a BAR, which are mapped uncached.
    Bar {
        /// Device that has the BAR.
        pdev: ARef<pci::Device>,
        /// Index of the BAR.
        bar: u32,
        /// Offset in the BAR in bytes.
        offset: u64,
        /// Length of the part in bytes.
        len: usize,
    },
}

/// Access of the process to the memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// The process may read and write.
    ReadWrite,
    /// The process may only read.
    ReadOnly,
}

/// A range of page frames.
struct Range {
    pfn: c_ulong,
    len: usize,
}

/// The core's entry together with the memory that it maps.
///
/// # Invariants
///
/// `ranges` are the page frames of `memory`, and `len` is the sum of their lengths.
#[repr(C)]
struct Mapping {
    /// Entry of the core, whose reference count is here, and may change while there is a
    /// `&Mapping`.
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

/// State of a context that its mappings share.
#[pin_data]
pub(crate) struct Shared {
    /// True until the context is about to be freed.
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

    /// Records that the context is about to be freed.
    pub(crate) fn end(this: &Arc<Self>) {
        *this.alive.lock() = false;
    }
}

/// The part of a context that makes memory mappable.
///
/// # Invariants
///
/// `raw` is a context of the core, which is not freed as long as there is a reference to this.
#[repr(C)]
pub struct MmapContext {
    raw: Opaque<bindings::ib_ucontext>,
    pub(crate) shared: Arc<Shared>,
}

// SAFETY: The core allows the use of a context from any thread.
unsafe impl Send for MmapContext {}
// SAFETY: The core's functions for mappings have their own locks.
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
        // INVARIANT: `Memory::ranges` returns the page frames of `memory`, and `len` is their sum.
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
        // SAFETY: By the type invariant the context is alive. The entry begins a
        // `Mapping` that was leaked above, so it lives until the core calls `free`.
        to_result(unsafe { bindings::rdma_user_mmap_entry_insert(self.raw.get(), entry, len) })
            .inspect_err(|_| {
                // SAFETY: The pointer comes from `leak`, and the core has not taken the entry.
                drop(unsafe { KBox::from_raw(raw.as_ptr()) })
            })?;
        // INVARIANT: The mapping was leaked above, and was inserted into the context of `shared`.
        Ok(Entry {
            mapping: raw,
            shared: self.shared.clone(),
        })
    }
}

/// Memory that a process can map. Must be dropped before its context is destroyed.
///
/// # Invariants
///
/// `mapping` was inserted into the context of `shared`, and its entry is removed only when this is
/// dropped. Until then the core holds a reference to it, so that it is alive.
///
/// # Examples
///
/// ```
/// use base::dma::Chunk;
/// use kernel::sync::Arc;
/// use rdma::{
///     device::Operations,
///     mmap::{
///         Entry,
///         Memory,
///         Protection, //
///     },
///     udata::User, //
/// };
///
/// /// Makes a ring mappable by the process that calls the verb, and responds with the offset.
/// fn share<D: Operations>(ring: Arc<Chunk>, user: &User<'_, D>) -> Result<Entry> {
///     let mut chunks = KVec::new();
///     chunks.push(ring, GFP_KERNEL)?;
///     let mmap = user.context().mmap();
///     let entry = mmap.insert(Memory::Chunks(chunks), Protection::ReadWrite)?;
///     user.udata().respond(&entry.offset())?;
///     Ok(entry)
/// }
/// ```
pub struct Entry {
    mapping: NonNull<Mapping>,
    shared: Arc<Shared>,
}

// SAFETY: An entry may be used and removed from any thread.
unsafe impl Send for Entry {}
// SAFETY: Code with a shared reference reads only constant fields.
unsafe impl Sync for Entry {}

impl Entry {
    /// Returns the offset that the process passes to `mmap()`.
    pub fn offset(&self) -> u64 {
        // SAFETY: By the type invariant the core's entry is alive.
        unsafe { bindings::rdma_helper_mmap_offset(self.mapping.as_ptr().cast()) }
    }

    /// Returns the length in bytes, all of which the process must map.
    pub fn len(&self) -> usize {
        // SAFETY: By the type invariant the mapping is alive. The field is constant.
        unsafe { (*self.mapping.as_ptr()).len }
    }

    /// True if there is nothing to map, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let alive = self.shared.alive.lock();
        if !*alive {
            pr_err!("an mmap entry was in use when its context was destroyed: not removed\n");
            return;
        }
        // SAFETY: The context is alive, and the lock keeps it so. By the type invariant the entry
        // was inserted and not removed. The core calls `free` now, or after the last mapping is
        // gone.
        unsafe { bindings::rdma_user_mmap_entry_remove(self.mapping.as_ptr().cast()) };
    }
}

/// Implements `mmap_free`, which the core calls after the last reference to the entry is gone.
///
/// # Safety
///
/// Only the core may call this, with the entry of a [`Mapping`], which must not be used afterwards.
pub(crate) unsafe extern "C" fn free(entry: *mut bindings::rdma_user_mmap_entry) {
    // SAFETY: By the contract of this function the entry is the first field of a `Mapping`, which
    // comes from `leak` in `insert`, and is not used afterwards.
    drop(unsafe { KBox::from_raw(entry.cast::<Mapping>()) });
}

/// Implements the op `mmap`.
///
/// # Safety
///
/// Only the core may call this, with a context of a device of this crate and a mapping under
/// construction.
pub(crate) unsafe fn map(
    ctx: *mut bindings::ib_ucontext,
    vma: *mut kbindings::vm_area_struct,
) -> Result {
    // SAFETY: By the contract of this function both are valid. The function also checks that the
    // length is that of the entry.
    let entry = unsafe { bindings::rdma_user_mmap_entry_get(ctx, vma) };
    let entry = NonNull::new(entry).ok_or(EINVAL)?;
    // SAFETY: All entries of such a context are in a `Mapping`, which lives as long as the
    // reference from `rdma_user_mmap_entry_get()`.
    let mapping = unsafe { &*entry.as_ptr().cast::<Mapping>() };
    // SAFETY: The contract is the same, and `entry` is that of `mapping`.
    let result = unsafe { map_entry(ctx, vma, mapping, entry.as_ptr()) };
    // SAFETY: The reference comes from `rdma_user_mmap_entry_get()`. The new mapping has its own.
    unsafe { bindings::rdma_user_mmap_entry_put(entry.as_ptr()) };
    result
}

/// # Safety
///
/// The requirements of [`map`] must be fulfilled, and `entry` must be that of `mapping` and of
/// `ctx`.
unsafe fn map_entry(
    ctx: *mut bindings::ib_ucontext,
    vma: *mut kbindings::vm_area_struct,
    mapping: &Mapping,
    entry: *mut bindings::rdma_user_mmap_entry,
) -> Result {
    let read_only = mapping.protection == Protection::ReadOnly;
    let device = matches!(mapping.memory, Memory::Bar { .. });
    // SAFETY: The caller promises that `vma` is under construction, so that only this thread uses
    // it.
    let len = unsafe { bindings::rdma_helper_vma_len(vma) };
    if len != c_ulong::try_from(mapping.len)? {
        return Err(EINVAL);
    }
    // SAFETY: The caller promises that `vma` is under construction, so that only this thread uses
    // it.
    to_result(unsafe { bindings::rdma_helper_vma_prepare(vma, read_only, device) })?;
    let (first, others) = mapping.ranges.split_first().ok_or(EINVAL)?;
    let first_len = c_ulong::try_from(first.len)?;
    let mut offset = first_len;
    for range in others {
        let len = c_ulong::try_from(range.len)?;
        // After an error the core's caller undoes the mappings that were made.
        //
        // SAFETY: `vma` is under construction, and `offset` is below its length, which is that of
        // all ranges. By the invariants of `Mapping` the range is memory that `mapping` keeps, and
        // the core keeps `mapping` as long as the process maps it.
        to_result(unsafe { bindings::rdma_helper_vma_map(vma, offset, range.pfn, len) })?;
        offset += len;
    }
    // This step is last because it records the mapping, after which the op must not fail.
    //
    // SAFETY: `vma` is under construction. By the invariants of `Mapping` the range is memory that
    // `mapping` keeps, and the caller promises that `entry` is that of `mapping` and of `ctx`.
    to_result(unsafe { bindings::rdma_helper_vma_map_first(ctx, vma, first.pfn, first_len, entry) })
}
