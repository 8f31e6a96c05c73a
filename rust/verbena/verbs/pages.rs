// SPDX-License-Identifier: GPL-2.0

//! Tables of page addresses, by which the device finds the pages of a memory region, and lists of
//! elements for regions with gaps.

use crate::{
    abi::{
        ctx::{
            Element,
            Translation, //
            TRANSLATION_ELEMENTS,
            TRANSLATION_LEAF,
        },
        Le32,
        Le64, //
    },
    cmdq::{
        lent::{
            Abandon,
            Borrowed,
            Lent,
            Loan, //
        },
        Lender,
        ReleaseProof, //
    },
    health::Health, //
};
use base::{
    bind::Binding,
    dma::{
        Chunk,
        Payer, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// Limit of pages in a table of one level, which takes 64 KiB of contiguous memory.
const FLAT: usize = 0x1_0000 / size_of::<u64>();
/// Number of leaves of a table of two levels in one chunk.
const LEAVES: usize = 16;
/// Size of a leaf in bytes, independent of the kernel's page size.
const LEAF: usize = TRANSLATION_LEAF * size_of::<u64>();

/// Table of page addresses, of one or two levels.
pub(crate) struct PageTable {
    /// Chunks of the leaves, or the only chunk of a table of one level.
    chunks: KVVec<Arc<Chunk>>,
    /// Table of the addresses of the leaves.
    top: Option<Arc<Chunk>>,
    capacity: usize,
}

impl PageTable {
    /// Allocates a table with room for `pages` pages, of `payer`'s memory.
    pub(crate) fn new(dma: &Binding, payer: Payer, pages: usize) -> Result<Self> {
        let alloc = |bytes| Ok::<_, Error>(Arc::new(Chunk::alloc(dma, payer, bytes)?, GFP_KERNEL)?);
        let mut chunks = KVVec::new();
        if pages <= FLAT {
            chunks.push(alloc(pages.max(1) * size_of::<u64>())?, GFP_KERNEL)?;
            return Ok(Self {
                chunks,
                top: None,
                capacity: pages,
            });
        }
        let leaves = pages.div_ceil(TRANSLATION_LEAF);
        let top = alloc(leaves * size_of::<u64>())?;
        for leaf in 0..leaves {
            if leaf % LEAVES == 0 {
                let count = (leaves - leaf).min(LEAVES);
                chunks.push(alloc(count * LEAF)?, GFP_KERNEL)?;
            }
            let chunk = chunks.last().ok_or(EINVAL)?;
            let addr = chunk.dma_addr() + ((leaf % LEAVES) * LEAF) as u64;
            top.write(leaf * size_of::<u64>(), &Le64::new(addr))?;
        }
        Ok(Self {
            chunks,
            top: Some(top),
            capacity: pages,
        })
    }

    /// Sets the address of page `index`. Returns `ENOMEM` if the table has no room for it.
    pub(crate) fn set(&self, index: usize, addr: u64) -> Result {
        if index >= self.capacity {
            return Err(ENOMEM);
        }
        let (chunk, at) = match self.top {
            None => (0, index),
            Some(_) => {
                let per_chunk = LEAVES * TRANSLATION_LEAF;
                (index / per_chunk, index % per_chunk)
            }
        };
        self.chunks
            .get(chunk)
            .ok_or(EINVAL)?
            .write(at * size_of::<u64>(), &Le64::new(addr))
    }
}

impl Abandon for PageTable {
    fn abandon(&self) -> usize {
        self.top.abandon() + self.chunks.iter().map(Abandon::abandon).sum::<usize>()
    }
}

/// List of elements of a region with gaps.
pub(crate) struct ElementList {
    chunk: Arc<Chunk>,
    capacity: usize,
}

impl ElementList {
    /// Allocates a list with room for `elements` elements, of `payer`'s memory.
    pub(crate) fn new(dma: &Binding, payer: Payer, elements: usize) -> Result<Self> {
        let bytes = elements.checked_mul(size_of::<Element>()).ok_or(EINVAL)?;
        Ok(Self {
            chunk: Arc::new(Chunk::alloc(dma, payer, bytes)?, GFP_KERNEL)?,
            capacity: elements,
        })
    }

    /// Sets element `index`, which begins at `addr` and whose last byte lies before position `end`
    /// of the region. Returns `ENOMEM` if the list has no room for it.
    pub(crate) fn set(&self, index: usize, addr: u64, end: u64) -> Result {
        if index >= self.capacity {
            return Err(ENOMEM);
        }
        let element = Element {
            addr: Le64::new(addr),
            end: Le64::new(end),
        };
        self.chunk.write(index * size_of::<Element>(), &element)
    }
}

impl Abandon for ElementList {
    fn abandon(&self) -> usize {
        self.chunk.abandon()
    }
}

/// Two tables or lists for a region of fast registrations, of which the region uses one at a time.
/// Users map the next pages before the work request that invalidates the region has run (`ib_iser`,
/// `ib_srp`, the core's `rdma_rw`), and until then the registered table must not change. Requests
/// of a queue pair run in order, so a table is no longer in use when its turn comes again. The turn
/// passes with each request that registers, not with each mapping: pages that are only mapped may
/// be mapped anew, because the core's `rdma_rw` gives up a request for which it has fewer regions
/// than it needs.
pub(crate) struct DoubleBuffer<T: Abandon> {
    buffers: [Lent<T>; 2],
    /// True if the second one was mapped last.
    mapped: Atomic<bool>,
    /// True if the second one is the one that a work request registered last.
    registered: Atomic<bool>,
}

impl<T: Abandon> DoubleBuffer<T> {
    pub(crate) fn new(make: impl Fn() -> Result<T>, health: &Arc<Health>) -> Result<Self> {
        Ok(Self {
            buffers: [Lent::new(make()?, health), Lent::new(make()?, health)],
            mapped: Atomic::new(false),
            registered: Atomic::new(false),
        })
    }

    fn buffer(&self, second: bool) -> &Lent<T> {
        let [a, b] = &self.buffers;
        if second {
            b
        } else {
            a
        }
    }

    /// Lends both, because work requests will name them in turn. Returns the one that was mapped
    /// last.
    pub(crate) fn lend(&self, to: &Lender) -> Loan<'_, T> {
        let mapped = self.mapped.load(Relaxed);
        self.buffer(!mapped).lend(to);
        self.buffer(mapped).lend(to)
    }

    /// Returns the one that was mapped last, for a work request that registers it.
    pub(crate) fn mark_registered(&self) -> Option<Loan<'_, T>> {
        let mapped = self.mapped.load(Relaxed);
        self.registered.store(mapped, Relaxed);
        self.buffer(mapped).loan()
    }

    /// Calls `map` with the one that is not registered.
    pub(crate) fn map<R>(&self, map: impl FnOnce(&T) -> Result<R>) -> Result<R> {
        let next = !self.registered.load(Relaxed);
        let mapped = map(self.buffer(next))?;
        self.mapped.store(next, Relaxed);
        Ok(mapped)
    }
}

impl<T: Abandon> Borrowed for DoubleBuffer<T> {
    fn returned(&self, proof: &ReleaseProof) {
        self.buffers.iter().for_each(|lent| lent.returned(proof));
    }
}

impl Loan<'_, ElementList> {
    /// Returns the translation by which the device finds the first `count` elements.
    pub(crate) fn translation(&self, count: Le32) -> Translation {
        Translation {
            addr: Le64::new(self.chunk.dma_addr()),
            num_pages: count,
            levels: TRANSLATION_ELEMENTS,
            ..Default::default()
        }
    }
}

impl Loan<'_, PageTable> {
    /// Returns the translation by which the device finds the first `num_pages` pages of that size.
    pub(crate) fn translation(&self, num_pages: Le32, log_page_size: u8) -> Translation {
        let (addr, levels) = match (&self.top, self.chunks.first()) {
            (Some(top), _) => (top.dma_addr(), 2),
            (None, Some(chunk)) => (chunk.dma_addr(), 1),
            (None, None) => (0, 1),
        };
        Translation {
            addr: Le64::new(addr),
            num_pages,
            log_page_size,
            levels,
            ..Default::default()
        }
    }
}
