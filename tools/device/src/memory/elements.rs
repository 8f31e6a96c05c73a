// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Regions with gaps: lists of elements, each contiguous memory of any address and length.
//!
//! An element says where it ends in the region, so it is found by halving the list, however long it is. The list lies in the
//! guest's memory, and nothing in it is believed but the two ends between which a position was found, which are read at once.

use crate::config::MAX_GAPS;
use crate::memory::ring::{PageCache, CACHED};
use crate::memory::GuestMemory;
use verbena_abi::ctx::Element;
use zerocopy::IntoBytes;

/// Bytes of an element.
const SIZE: u64 = size_of::<Element>() as u64;
/// Elements that are read at once.
const TOGETHER: u32 = CACHED as u32 / 2;

/// A list of elements that [is sound](Elements::is_sound).
#[derive(Clone, Copy, Debug)]
pub struct Elements {
    pub(super) addr: u64,
    pub(super) count: u32,
}

impl Elements {
    /// Whether a list may be there, and so long.
    pub fn is_sound(addr: u64, count: u32) -> bool {
        addr % 8 == 0
            && (1..=MAX_GAPS).contains(&count)
            && addr.checked_add(u64::from(count) * SIZE).is_some()
    }

    /// The DMA address of a byte position, and how many bytes from there on the element has, at most `want`.
    pub fn run<M: GuestMemory>(
        &self,
        mem: &M,
        cache: &mut PageCache,
        position: u64,
        want: u64,
    ) -> Option<(u64, u64)> {
        cache.sought = cache.sought.saturating_add(1);
        if let Some(found) = self.cached(cache, position, want) {
            return Some(found);
        }
        // The one before comes along: it tells where the first one begins.
        let first = self.find(mem, position)?.saturating_sub(1);
        let count = TOGETHER.min(self.count.checked_sub(first)?);
        let words = cache.addrs.get_mut(..2 * count as usize)?;
        mem.read(self.at(first), words.as_mut_bytes()).ok()?;
        (cache.first, cache.count) = (first, count);
        self.cached(cache, position, want)
    }

    /// The same among those that were read.
    fn cached(&self, cache: &PageCache, position: u64, want: u64) -> Option<(u64, u64)> {
        let read = cache.addrs.get(..2 * cache.count as usize)?;
        // In front of the first of the list there is nothing; of another that was read first only the end is known.
        let mut start = (cache.first == 0).then_some(0);
        for element in read.chunks_exact(2) {
            let &[addr, end] = element else { break };
            let end = end.get();
            match start {
                Some(start) if start <= position && position < end => {
                    let addr = addr.get().checked_add(position - start)?;
                    return Some((addr, want.min(end - position)));
                }
                _ => start = Some(end),
            }
        }
        None
    }

    /// The first element that ends behind a position. Of a list whose ends do not grow it is one or the other.
    fn find<M: GuestMemory>(&self, mem: &M, position: u64) -> Option<u32> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if mem.load64(self.at(middle) + 8).ok()? > position {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        (low < self.count).then_some(low)
    }

    /// Where an element of the list is.
    fn at(&self, index: u32) -> u64 {
        self.addr + u64::from(index) * SIZE
    }
}
