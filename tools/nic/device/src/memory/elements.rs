// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Regions with gaps: lists of elements, each contiguous memory of any address and length.
//!
//! An element contains its end in the region, so the element of a position is found by binary
//! search. The list lies in the guest's memory. Of the list the device trusts only the two ends
//! between which it found a position, and it reads these two together.

use crate::config::MAX_GAPS;
use crate::memory::ring::{PageCache, CACHED};
use crate::memory::GuestMemory;
use verbena_abi::ctx::Element;
use zerocopy::IntoBytes;

/// Size of an element in bytes.
const SIZE: u64 = size_of::<Element>() as u64;
/// Number of elements that are read together.
const TOGETHER: u32 = CACHED as u32 / 2;

/// A list of elements that [is sound](Elements::is_sound).
#[derive(Clone, Copy, Debug)]
pub struct Elements {
    pub(super) addr: u64,
    pub(super) count: u32,
}

impl Elements {
    /// True if the address is aligned, the count is within the limit and the list does not wrap.
    pub fn is_sound(addr: u64, count: u32) -> bool {
        addr % 8 == 0
            && (1..=MAX_GAPS).contains(&count)
            && addr.checked_add(u64::from(count) * SIZE).is_some()
    }

    /// Returns the DMA address of a byte position, and the number of bytes that the element has
    /// from there, at most `want`.
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
        // The element before the found one is read too, because its end is the beginning of the
        // found one.
        let first = self.find(mem, position)?.saturating_sub(1);
        let count = TOGETHER.min(self.count.checked_sub(first)?);
        let words = cache.addrs.get_mut(..2 * count as usize)?;
        mem.read(self.at(first), words.as_mut_bytes()).ok()?;
        (cache.first, cache.count) = (first, count);
        self.cached(cache, position, want)
    }

    /// Does the same as [`Elements::run`] with the elements that are in the cache.
    fn cached(&self, cache: &PageCache, position: u64, want: u64) -> Option<(u64, u64)> {
        let read = cache.addrs.get(..2 * cache.count as usize)?;
        // The first element of the list begins at 0. The beginning of any other first cached
        // element is not known, only its end.
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

    /// Returns the first element whose end is greater than a position. If the ends of a list are
    /// not ascending, the result is any element of the list or none.
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

    /// Returns the DMA address of an element of the list.
    fn at(&self, index: u32) -> u64 {
        self.addr + u64::from(index) * SIZE
    }
}
