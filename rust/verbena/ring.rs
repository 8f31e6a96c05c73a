// SPDX-License-Identifier: GPL-2.0

//! Rings and other memory that the device reaches through a [`Translation`].
//!
//! The memory is coherent and allocated in chunks of at most [`CHUNK`] bytes, so that a big queue
//! needs no big contiguous allocation. The translation names a single chunk directly (levels 0),
//! and several chunks by a table of their addresses (levels 1). A process maps all chunks in order
//! as one mapping.

use crate::{
    abi::{
        ctx::Translation,
        doorbell::Words,
        Le32,
        Le64, //
    },
    cmdq::lent::{
        Abandon,
        Loan, //
    }, //
};
use base::{
    bind::Binding,
    dma::{
        Chunk,
        Payer, //
    },
    sync::{
        dma_rmb,
        mb, //
    }, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};
use rdma::mmap::{
    Entry,
    Memory,
    MmapContext,
    Protection, //
};

/// Size of a chunk of a ring that has more than one.
const CHUNK: usize = 0x1_0000;
const LOG_CHUNK: u8 = 16;

/// True if the free-running index `a` is before `b`. They must be less than 2^31 apart.
pub(crate) fn before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) > u32::MAX / 2
}

/// Returns the smallest power of two that is at least `wanted`. Returns `EINVAL` if `wanted` is 0,
/// or if the result is above `most`.
pub(crate) fn entries(wanted: u32, most: u32) -> Result<u32> {
    wanted
        .checked_next_power_of_two()
        .filter(|&count| wanted != 0 && count <= most)
        .ok_or(EINVAL)
}

/// Words of memory that the device shares, for the driver's side of the contract's protocols.
/// Offsets count from `base`, and the contract defines them, so no access is out of bounds.
pub(crate) struct SharedWords<'a> {
    memory: &'a Chunk,
    base: usize,
}

impl<'a> SharedWords<'a> {
    /// Returns the words from offset `base` of `memory` on.
    #[inline]
    pub(crate) fn new(memory: &'a Chunk, base: usize) -> Self {
        Self { memory, base }
    }
}

impl Words for SharedWords<'_> {
    #[inline]
    fn load(&self, offset: usize) -> u32 {
        self.memory.load32(self.base + offset).unwrap_or(0)
    }

    #[inline]
    fn load_acquire(&self, offset: usize) -> u32 {
        self.memory.load32_acquire(self.base + offset).unwrap_or(0)
    }

    #[inline]
    fn store(&self, offset: usize, value: u32) {
        let _ = self.memory.store32(self.base + offset, value);
    }

    #[inline]
    fn store_release(&self, offset: usize, value: u32) {
        let _ = self.memory.store32_release(self.base + offset, value);
    }

    #[inline]
    fn store64_release(&self, offset: usize, value: u64) {
        let _ = self.memory.store64_release(self.base + offset, value);
    }

    #[inline]
    fn load64_acquire(&self, offset: usize) -> u64 {
        self.memory.load64_acquire(self.base + offset).unwrap_or(0)
    }

    #[inline]
    fn increment(&self, offset: usize) {
        let _ = self.memory.increment32(self.base + offset);
    }

    #[inline]
    fn fence(&self) {
        mb()
    }

    #[inline]
    fn read_fence(&self) {
        dma_rmb()
    }
}

/// Memory of a ring, which the device and perhaps a process access.
pub(crate) struct DmaRing {
    chunks: KVVec<Arc<Chunk>>,
    /// Table of chunk addresses, which the device reads while the ring is in use.
    table: Option<Arc<Chunk>>,
    bytes: usize,
}

impl DmaRing {
    /// Allocates a zeroed ring of at least `bytes` bytes of `payer`'s memory.
    pub(crate) fn new(dma: &Binding, payer: Payer, bytes: usize) -> Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(PAGE_SIZE);
        let mut chunks = KVVec::new();
        if bytes <= CHUNK {
            chunks.push(
                Arc::new(Chunk::alloc(dma, payer, bytes)?, GFP_KERNEL)?,
                GFP_KERNEL,
            )?;
            return Ok(Self {
                chunks,
                table: None,
                bytes,
            });
        }
        let bytes = bytes.next_multiple_of(CHUNK);
        let count = bytes / CHUNK;
        let table = Arc::new(
            Chunk::alloc(dma, payer, count * size_of::<Le64>())?,
            GFP_KERNEL,
        )?;
        for i in 0..count {
            let chunk = Chunk::alloc(dma, payer, CHUNK)?;
            table.write(i * size_of::<Le64>(), &Le64::new(chunk.dma_addr()))?;
            chunks.push(Arc::new(chunk, GFP_KERNEL)?, GFP_KERNEL)?;
        }
        Ok(Self {
            chunks,
            table: Some(table),
            bytes,
        })
    }

    /// Creates a mapping by which a process can map the ring.
    pub(crate) fn map(&self, mmap: &MmapContext, protection: Protection) -> Result<Entry> {
        let mut chunks = KVec::with_capacity(self.chunks.len(), GFP_KERNEL)?;
        for chunk in &self.chunks {
            chunks.push(chunk.clone(), GFP_KERNEL)?;
        }
        mmap.insert(Memory::Chunks(chunks), protection)
    }

    /// Returns the length of the ring in bytes, which is a number of whole pages.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// Returns the chunk of an offset, and the offset in the chunk. Entries never cross chunks,
    /// because their strides are powers of two not above a page.
    #[inline]
    pub(crate) fn at(&self, offset: usize) -> Result<(&Chunk, usize)> {
        let chunk = self.chunks.get(offset / CHUNK).ok_or(EINVAL)?;
        Ok((chunk, offset % CHUNK))
    }
}

impl Abandon for DmaRing {
    fn abandon(&self) -> usize {
        self.table.abandon() + self.chunks.iter().map(Abandon::abandon).sum::<usize>()
    }
}

impl Loan<'_, DmaRing> {
    /// Returns the translation by which the device finds the ring.
    pub(crate) fn translation(&self) -> Translation {
        let (addr, num_pages, levels) = match (&self.table, self.chunks.first()) {
            (Some(table), _) => (table.dma_addr(), self.chunks.len(), 1),
            (None, Some(chunk)) => (chunk.dma_addr(), 1, 0),
            (None, None) => (0, 0, 0),
        };
        Translation {
            addr: Le64::new(addr),
            // CAST: The queue sizes, which are 32-bit numbers, limit the number of chunks.
            num_pages: Le32::new(num_pages as u32),
            log_page_size: LOG_CHUNK,
            levels,
            ..Default::default()
        }
    }
}
