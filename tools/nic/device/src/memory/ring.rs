// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Translations, and rings of entries in guest memory.

use crate::error::{bad, CmdError};
use crate::memory::elements::Elements;
use crate::memory::GuestMemory;
use verbena_abi::cmd::CmdStatus;
use verbena_abi::ctx::{Translation, TRANSLATION_ELEMENTS, TRANSLATION_LEAF};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::Le64;
use zerocopy::IntoBytes;

/// Page sizes that a translation may use, as logarithms.
pub const LOG_PAGE: std::ops::RangeInclusive<u8> = 12..=30;

/// A translation whose form was checked. Its pages are looked up at the time of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Translation as the driver gave it, for contexts.
    pub raw: Translation,
    addr: u64,
    num_pages: u32,
    log_page: u8,
    levels: u8,
}

impl Pages {
    /// Checks the translation of a fast registration: pages of at least `bytes` bytes, or a list of
    /// elements, whose bytes are checked at the time of use.
    pub fn registered(raw: &Translation, bytes: u64) -> Result<Self, CmdError> {
        if raw.levels != TRANSLATION_ELEMENTS {
            return Self::new(raw, bytes);
        }
        let (addr, num_pages) = (raw.addr.get(), raw.num_pages.get());
        if !Elements::is_sound(addr, num_pages) {
            return Err(bad(CmdStatus::Invalid, Syndrome::CmdTranslation));
        }
        Ok(Self {
            raw: *raw,
            addr,
            num_pages,
            ..Self::none()
        })
    }

    /// Checks a translation of at least `bytes` bytes.
    pub fn new(raw: &Translation, bytes: u64) -> Result<Self, CmdError> {
        let malformed = bad(CmdStatus::Invalid, Syndrome::CmdTranslation);
        let addr = raw.addr.get();
        let num_pages = raw.num_pages.get();
        match raw.levels {
            0 => {
                if num_pages != 1 || addr.checked_add(bytes).is_none() {
                    return Err(malformed);
                }
            }
            1 | 2 => {
                if !LOG_PAGE.contains(&raw.log_page_size)
                    || num_pages == 0
                    || addr % 8 != 0
                    || u64::from(num_pages) << raw.log_page_size < bytes
                    || addr.checked_add(u64::from(num_pages) * 8).is_none()
                {
                    return Err(malformed);
                }
            }
            _ => return Err(malformed),
        }
        Ok(Self {
            raw: *raw,
            addr,
            num_pages,
            log_page: raw.log_page_size,
            levels: raw.levels,
        })
    }

    /// Returns the DMA address of a byte position, and the number of bytes that are contiguous from
    /// there, at most `want`.
    ///
    /// Contiguous pages are merged, so that a copy is as long as possible.
    #[inline]
    pub fn run<M: GuestMemory>(
        &self,
        mem: &M,
        cache: &mut PageCache,
        position: u64,
        want: u64,
    ) -> Option<(u64, u64)> {
        if self.levels == 0 {
            return Some((self.addr.checked_add(position)?, want));
        }
        self.run_of_pages(mem, cache, position, want)
    }

    fn run_of_pages<M: GuestMemory>(
        &self,
        mem: &M,
        cache: &mut PageCache,
        position: u64,
        want: u64,
    ) -> Option<(u64, u64)> {
        if self.raw.levels == TRANSLATION_ELEMENTS {
            let (addr, count) = (self.addr, self.num_pages);
            return Elements { addr, count }.run(mem, cache, position, want);
        }
        let size = 1u64 << self.log_page;
        let mut page = u32::try_from(position >> self.log_page).ok()?;
        let inside = position & (size - 1);
        let mut ahead = (inside + want).div_ceil(size);
        let first = self.cached(mem, cache, page, ahead)?;
        let mut got = size - inside;
        while got < want {
            page += 1;
            ahead -= 1;
            let Some(next) = self.cached(mem, cache, page, ahead) else {
                break;
            };
            if next.wrapping_sub(first) != got + inside {
                break;
            }
            got += size;
        }
        Some((first.checked_add(inside)?, got.min(want)))
    }

    /// Returns the DMA address of a page. If the page is not in the cache, up to `ahead` pages from
    /// it are read.
    #[inline]
    fn cached<M: GuestMemory>(
        &self,
        mem: &M,
        cache: &mut PageCache,
        page: u32,
        ahead: u64,
    ) -> Option<u64> {
        let at = page.wrapping_sub(cache.first);
        if at >= cache.count {
            self.fill(mem, cache, page, ahead)?;
        }
        let at = page.wrapping_sub(cache.first) as usize;
        let addr = cache.addrs.get(at)?.get();
        (addr & ((1u64 << self.log_page) - 1) == 0).then_some(addr)
    }

    fn fill<M: GuestMemory>(
        &self,
        mem: &M,
        cache: &mut PageCache,
        page: u32,
        ahead: u64,
    ) -> Option<()> {
        let left = self.num_pages.checked_sub(page).filter(|&l| l > 0)?;
        // The entries that are read together lie in one table.
        let table = if self.levels == 1 {
            left
        } else {
            left.min(TRANSLATION_LEAF as u32 - page % TRANSLATION_LEAF as u32)
        };
        let count = (CACHED as u32)
            .min(table)
            .min(u32::try_from(ahead).unwrap_or(u32::MAX))
            .max(1);
        let entry = self.entry(mem, page)?;
        let addrs = cache.addrs.get_mut(..count as usize)?;
        mem.read(entry, addrs.as_mut_bytes()).ok()?;
        (cache.first, cache.count) = (page, count);
        Some(())
    }

    /// Looks up the DMA address of a page without a cache.
    fn page<M: GuestMemory>(&self, mem: &M, page: u32) -> Option<u64> {
        self.cached(mem, &mut PageCache::default(), page, 1)
    }

    /// Returns the DMA address of the table entry of a page.
    #[inline]
    fn entry<M: GuestMemory>(&self, mem: &M, page: u32) -> Option<u64> {
        if self.levels == 1 {
            return self.addr.checked_add(u64::from(page) * 8);
        }
        let leaf = u64::from(page) / TRANSLATION_LEAF as u64;
        let table = mem.load64(self.addr.checked_add(leaf * 8)?).ok()?;
        table.checked_add(u64::from(page) % TRANSLATION_LEAF as u64 * 8)
    }
}

/// Number of page addresses that are read together.
pub(super) const CACHED: usize = 32;

/// Page addresses or elements that were read last, for one walk over one region at a time.
#[derive(Debug)]
pub struct PageCache {
    pub(super) first: u32,
    pub(super) count: u32,
    /// Page addresses, or two words for each element: its address and its end.
    pub(super) addrs: [Le64; CACHED],
    /// Number of elements that were looked up since the last [`PageCache::take_sought`].
    pub(super) sought: u32,
}

impl PageCache {
    /// Invalidates the cached addresses.
    #[inline]
    pub fn forget(&mut self) {
        self.count = 0;
    }

    /// Returns the number of elements that were looked up since the last call.
    #[inline]
    pub fn take_sought(&mut self) -> u32 {
        std::mem::take(&mut self.sought)
    }
}

impl Default for PageCache {
    #[inline]
    fn default() -> Self {
        Self {
            first: 0,
            count: 0,
            addrs: [Le64::new(0); CACHED],
            sought: 0,
        }
    }
}

/// A ring of 2^n entries, whose pages were looked up when the ring was created.
#[derive(Debug)]
pub struct Ring {
    pages: Vec<u64>,
    log_page: u8,
    log_stride: u8,
    log_size: u8,
    /// Translation as the driver gave it, for contexts.
    pub raw: Translation,
}

impl Ring {
    /// Looks up the pages of a ring and checks that all of them can be reached.
    pub fn new<M: GuestMemory>(
        mem: &M,
        raw: &Translation,
        log_size: u8,
        log_stride: u8,
    ) -> Result<Self, CmdError> {
        let bytes = 1u64 << (log_size + log_stride);
        let pages = Pages::new(raw, bytes)?;
        let unreachable = bad(CmdStatus::BadAddress, Syndrome::CmdTranslation);
        let (list, log_page) = if raw.levels == 0 {
            (vec![pages.addr], 63)
        } else {
            let count = bytes.div_ceil(1 << pages.log_page) as u32;
            let list: Option<Vec<u64>> = (0..count).map(|i| pages.page(mem, i)).collect();
            (list.ok_or(unreachable)?, pages.log_page)
        };
        let piece = bytes.min(1 << log_page);
        if list.iter().any(|a| a % 64 != 0) {
            return Err(bad(CmdStatus::Invalid, Syndrome::CmdTranslation));
        }
        if !list.iter().all(|&a| mem.contains(a, piece)) {
            return Err(unreachable);
        }
        Ok(Self {
            pages: list,
            log_page,
            log_stride,
            log_size,
            raw: *raw,
        })
    }

    /// Returns the ring of a queue that does not exist. It has one entry, which cannot be reached.
    pub fn none() -> Self {
        Self {
            pages: vec![u64::MAX << 12],
            log_page: 63,
            log_stride: 6,
            log_size: 0,
            raw: Translation::default(),
        }
    }

    /// Returns the DMA address of the entry with a free-running index. An entry does not cross a
    /// page boundary, because the sizes of both are powers of two.
    #[inline]
    pub fn entry(&self, index: u32) -> u64 {
        let offset = (u64::from(index) & ((1 << self.log_size) - 1)) << self.log_stride;
        let page = (offset >> self.log_page) as usize;
        self.pages[page] + (offset & ((1u64 << self.log_page) - 1))
    }

    /// Returns the number of entries.
    #[inline]
    pub fn size(&self) -> u32 {
        1 << self.log_size
    }

    /// Returns the logarithm of the number of entries.
    #[inline]
    pub fn log_size(&self) -> u8 {
        self.log_size
    }

    /// Returns the logarithm of the size of an entry in bytes.
    #[inline]
    pub fn log_stride(&self) -> u8 {
        self.log_stride
    }
}

impl Pages {
    /// Returns a translation without pages.
    pub fn none() -> Self {
        Self {
            raw: Translation::default(),
            addr: 0,
            num_pages: 0,
            log_page: 12,
            levels: 1,
        }
    }
}
