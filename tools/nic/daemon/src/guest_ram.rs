// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Guest RAM: the module that confines the NIC's `unsafe` code, but for one ioctl.
//!
//! QEMU sends a file descriptor with each range of guest RAM. [`GuestRam`] maps the ranges and
//! gives checked access by guest address. Three rules make it sound:
//!
//! * **A mapping lives as long as its region.** A region is removed only through `&mut GuestRam`,
//!   so that no access, which needs `&GuestRam`, can be in progress. The owner keeps the whole
//!   table behind a lock.
//! * **The file cannot become shorter** under the mapping, where an access would raise SIGBUS: only
//!   files that are sealed against shrinking are mapped. `sigbus.rs` handles pages that the host
//!   loses nevertheless. QEMU's memory-backend-memfd seals its files (`seal=on`), with huge pages
//!   too.
//! * **There is never a Rust reference into guest memory**, because the guest's CPUs write it at
//!   any time. Bytes are copied out and in through raw pointers; words that both sides access go
//!   through atomics. Bytes that were copied out are arbitrary, and become only types for which any
//!   bytes are a valid value.
//!
//! Bounds are checked by subtraction from the region's length, never by a sum that could wrap.
#![allow(unsafe_code)]

mod sigbus;

use rustix::fd::AsFd;
use rustix::fs::SealFlags;
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use sigbus::WatchedMapping;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{
    fence, AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicU8, AtomicUsize, Ordering,
};
use verbena_device::memory::{order, Access, GuestMemory, Unreachable};

/// Largest number of regions, which QEMU learns when it connects. QEMU sends a dozen regions for a
/// plain guest, and one for each block of a virtio-mem device: 1 TiB in blocks of 64 MiB are 16384.
/// The NIC does not support a virtual IOMMU, which would map page by page. Linux allows a process
/// 65530 mappings (`vm.max_map_count`), so that a VM with the largest number leaves room for
/// another VM of the process.
pub const MAX_REGIONS: usize = 24_000;

/// Aligned accesses of up to this many bytes are copied word by word with volatile accesses: they
/// are descriptors, of which a snapshot must be taken exactly once.
const SNAPSHOT_MAX: usize = 256;

/// True if a file is sealed so that it can keep its length or grow, but never shrink.
pub fn cannot_shrink(fd: impl AsFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// Whole pages of a file, which stay mapped until this is dropped.
struct HostMapping {
    start: NonNull<u8>,
    size: usize,
}

impl HostMapping {
    /// Maps the pages, `page` bytes each, that hold `len` bytes at `offset` of the file. Also
    /// returns the offset of these bytes in the mapping. The kernel maps huge pages only as a
    /// whole, whereas QEMU divides guest RAM where a PC does: at 640 KiB, for example.
    fn new(
        fd: impl AsFd,
        offset: u64,
        len: u64,
        page: u64,
        prot: ProtFlags,
    ) -> io::Result<(Self, usize)> {
        let before = offset % page;
        let size = before.checked_add(len);
        let size = size.and_then(|size| size.checked_next_multiple_of(page));
        let size = size.and_then(|size| usize::try_from(size).ok());
        let size = size.ok_or(io::ErrorKind::InvalidInput)?;
        let flags = MapFlags::SHARED;
        // SAFETY: A new mapping at an address that the kernel chooses overlaps no other mapping.
        let start = unsafe { mmap(ptr::null_mut(), size, prot, flags, fd, offset - before) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok((Self { start, size }, before as usize))
    }
}

impl Drop for HostMapping {
    fn drop(&mut self) {
        // SAFETY: This value owns the mapping, which has this length, and no access can reach it
        // any more.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.size) };
        debug_assert!(result.is_ok());
    }
}

/// A range of guest RAM.
struct RamRegion {
    addr: u64,
    len: u64,
    /// Host address of the first byte, from which `len` bytes lie in the mapping.
    host: NonNull<u8>,
    writable: bool,
    /// Dropped before the mapping, because the kernel may reuse the addresses after that.
    _watched: WatchedMapping,
    _mapping: HostMapping,
}

// SAFETY: The region owns its mapping, which any thread may access and unmap.
unsafe impl Send for RamRegion {}
// SAFETY: Shared access goes only through raw copies and atomics; the region itself is constant.
unsafe impl Sync for RamRegion {}

impl RamRegion {
    fn map(
        addr: u64,
        len: u64,
        fd: impl AsFd,
        offset: u64,
        writable: bool,
        lost: &'static AtomicBool,
    ) -> io::Result<Self> {
        if !cannot_shrink(&fd) {
            return Err(io::Error::other(
                "its file can be truncated: use a memory-backend-memfd",
            ));
        }
        let file = rustix::fs::fstat(&fd)?;
        let end = offset.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
        // An access beyond the end of the file would raise SIGBUS.
        if u64::try_from(file.st_size).map_or(true, |size| end > size) {
            return Err(io::Error::other(format!(
                "the range ends at offset {end:#x} of its file, which has {:#x} bytes",
                file.st_size
            )));
        }
        Self::map_unsealed(addr, len, fd, offset, writable, lost)
    }

    /// Maps a range that the file has at present; only a sealed file keeps it. `lost` is set when
    /// the host loses a page of the range.
    fn map_unsealed(
        addr: u64,
        len: u64,
        fd: impl AsFd,
        offset: u64,
        writable: bool,
        lost: &'static AtomicBool,
    ) -> io::Result<Self> {
        let file = rustix::fs::fstat(&fd)?;
        let mut prot = ProtFlags::READ;
        prot.set(ProtFlags::WRITE, writable);
        // For a file in memory, the block size is the size of its pages.
        let page = u64::try_from(file.st_blksize).unwrap_or(0);
        let page = page.max(rustix::param::page_size() as u64);
        let (mapping, before) = HostMapping::new(fd, offset, len, page, prot)?;
        // SAFETY: The mapping has `len` bytes from the offset `before` on.
        let host = unsafe { mapping.start.add(before) };
        let watched = WatchedMapping::new(mapping.start.as_ptr() as usize, mapping.size, lost);
        Ok(Self {
            _watched: watched,
            addr,
            len,
            host,
            writable,
            _mapping: mapping,
        })
    }

    /// Returns the host address of `addr` and the number of bytes from there to the end of the
    /// region, or `None` if `addr` is outside.
    #[inline]
    fn at(&self, addr: u64) -> Option<(*mut u8, u64)> {
        let offset = addr.checked_sub(self.addr)?;
        if offset >= self.len {
            return None;
        }
        // SAFETY: `offset` is less than `len`, and the mapping has `len` bytes from `host` on.
        let host = unsafe { self.host.as_ptr().add(offset as usize) };
        Some((host, self.len - offset))
    }
}

/// Regions that were removed from the table. Their mappings are removed when this is dropped, which
/// takes a while for memory that was used: so the owner unlocks the table first.
#[must_use = "the mappings go with it"]
pub struct UnmappedRegions(Vec<RamRegion>);

impl UnmappedRegions {
    /// Returns the number of removed regions.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// All of guest RAM that the device can reach.
pub struct GuestRam {
    /// Regions in the order of their addresses, which do not overlap.
    regions: Vec<RamRegion>,
    /// Index of the region of the last access, for each [`hint`]: most accesses hit the same region
    /// again.
    last: [AtomicUsize; HINTS],
    /// True if some of the memory is not the guest's any more (`sigbus.rs`). The flag is never
    /// freed, because the signal handler may hold a pointer to it.
    lost: &'static AtomicBool,
}

impl Default for GuestRam {
    fn default() -> Self {
        Self {
            regions: Vec::new(),
            last: Default::default(),
            lost: Box::leak(Box::default()),
        }
    }
}

/// Number of remembered regions: rings and payload lie in different regions, so that a single hint
/// would be overwritten all the time.
const HINTS: usize = 8;

/// Returns the index of the hint for an address. RAM is divided at some GiB, or (where its parts
/// are far apart) at some TiB.
#[inline]
const fn hint(addr: u64) -> usize {
    ((addr >> 30) ^ (addr >> 40)) as usize % HINTS
}

impl GuestRam {
    /// Returns a table without regions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the range `[addr, addr + len)`, which lies at `offset` of `fd`.
    ///
    /// # Errors
    ///
    /// The range is empty, wraps, overlaps a region or cannot be mapped, or there are
    /// [`MAX_REGIONS`].
    pub fn map(
        &mut self,
        addr: u64,
        len: u64,
        fd: impl AsFd,
        offset: u64,
        writable: bool,
    ) -> io::Result<()> {
        let last = addr.checked_add(len.wrapping_sub(1));
        let Some(last) = last.filter(|_| len != 0) else {
            return Err(io::Error::other(format!(
                "the range of {len:#x} bytes at {addr:#x} is empty or exceeds 64-bit addresses"
            )));
        };
        if self.regions.len() >= MAX_REGIONS {
            return Err(io::Error::other(
                "too many DMA ranges. If the device has a virtual IOMMU, remove the IOMMU: the NIC \
                 does not support one yet",
            ));
        }
        let index = self.regions.partition_point(|r| r.addr < addr);
        let before = index.checked_sub(1).and_then(|i| self.regions.get(i));
        let clash = before.is_some_and(|r| addr - r.addr < r.len)
            || self.regions.get(index).is_some_and(|r| r.addr <= last);
        if clash {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let region = RamRegion::map(addr, len, fd, offset, writable, self.lost)?;
        self.regions.insert(index, region);
        Ok(())
    }

    /// Removes every region that lies in `[addr, addr + len)`. Fails and removes none if only a
    /// part of a region lies there: the device could still reach memory that the caller believes to
    /// be removed.
    pub fn unmap(&mut self, addr: u64, len: u64) -> io::Result<UnmappedRegions> {
        let inside = |r: &RamRegion| {
            let offset = r.addr.checked_sub(addr).filter(|&o| o < len);
            offset.is_some_and(|o| r.len <= len - o)
        };
        let touched = |r: &RamRegion| match r.addr.checked_sub(addr) {
            Some(offset) => offset < len,
            None => len != 0 && addr - r.addr < r.len,
        };
        if self.regions.iter().any(|r| touched(r) && !inside(r)) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let (removed, kept) = std::mem::take(&mut self.regions)
            .into_iter()
            .partition(inside);
        self.regions = kept;
        Ok(UnmappedRegions(removed))
    }

    /// Removes all regions, and clears [`is_lost`](Self::is_lost).
    pub fn clear(&mut self) -> UnmappedRegions {
        self.lost.store(false, Ordering::Relaxed);
        UnmappedRegions(std::mem::take(&mut self.regions))
    }

    /// True if the host has lost a page since the last [`clear`](Self::clear): the guest and the
    /// device then do not see the same memory, and the device has to be in a fatal error.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns the size of guest RAM in bytes.
    pub fn size(&self) -> u64 {
        self.regions.iter().map(|r| r.len).sum()
    }

    /// Returns the host address of `addr` and the number of contiguous bytes from there on.
    #[inline]
    fn find(&self, addr: u64, write: bool) -> Access<(*mut u8, u64)> {
        let last = self.last[hint(addr)].load(Ordering::Relaxed);
        let region = match self.regions.get(last) {
            Some(r) if addr.wrapping_sub(r.addr) < r.len => r,
            _ => self.search(addr)?,
        };
        if write && !region.writable {
            return Err(Unreachable);
        }
        region.at(addr).ok_or(Unreachable)
    }

    #[cold]
    fn search(&self, addr: u64) -> Access<&RamRegion> {
        let index = self.regions.partition_point(|r| r.addr <= addr);
        let index = index.checked_sub(1).ok_or(Unreachable)?;
        self.last[hint(addr)].store(index, Ordering::Relaxed);
        Ok(&self.regions[index])
    }

    /// Returns the host address of an aligned word of `size` bytes.
    #[inline]
    fn word(&self, addr: u64, size: u64, write: bool) -> Access<*mut u8> {
        let (host, room) = self.find(addr, write)?;
        // The guest address of a region may have any alignment, so the host address is checked.
        if room < size || host as usize as u64 % size != 0 {
            return Err(Unreachable);
        }
        Ok(host)
    }

    #[inline]
    fn word32(&self, addr: u64, write: bool) -> Access<&AtomicU32> {
        let host = self.word(addr, 4, write)?.cast();
        // SAFETY: `word` checked bounds and alignment, the mapping outlives `&self`, and an atomic
        // may change under a shared reference. Words that are mapped read-only are only loaded.
        Ok(unsafe { AtomicU32::from_ptr(host) })
    }

    #[inline]
    fn word64(&self, addr: u64, write: bool) -> Access<&AtomicU64> {
        let host = self.word(addr, 8, write)?.cast();
        // SAFETY: The conditions are those of `word32`.
        Ok(unsafe { AtomicU64::from_ptr(host) })
    }
}

#[cfg(test)]
impl GuestRam {
    /// Returns `count` words of one region, as a processor of the guest accesses them.
    fn words(&self, addr: u64, count: usize) -> &[AtomicU64] {
        let host = self.word(addr, 8, false).unwrap();
        assert!(self.find(addr, false).unwrap().1 >= 8 * count as u64);
        // SAFETY: The words are in bounds and aligned, as checked above. The mapping outlives
        // `&self`, and atomics may change under a shared reference.
        unsafe { std::slice::from_raw_parts(host.cast(), count) }
    }
}

/// Copies `words` words of 8 bytes, each exactly once and in order.
///
/// # Safety
///
/// Both pointers are valid for `words` words (for reads and writes respectively) and aligned to 8
/// bytes.
#[inline]
unsafe fn copy_words(from: *const u64, to: *mut u64, words: usize) {
    let word = |i: usize| {
        // SAFETY: The word is in bounds and aligned, as the caller promises.
        let word = unsafe { from.wrapping_add(i).read_volatile() };
        // SAFETY: The word is in bounds and aligned, as the caller promises.
        unsafe { to.wrapping_add(i).write_volatile(word) };
    };
    // The loop is unrolled by hand, since the compiler does not unroll volatile accesses.
    let steps = words / 4 * 4;
    for i in (0..steps).step_by(4) {
        (0..4).for_each(|j| word(i + j));
    }
    (steps..words).for_each(word);
}

/// Copies bytes that one side shares with the guest. Small aligned accesses are snapshots.
///
/// # Safety
///
/// `from` is valid for reads and `to` for writes of `len` bytes; they do not overlap.
#[inline]
unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    if len <= SNAPSHOT_MAX && (from as usize | to as usize | len) % 8 == 0 {
        // SAFETY: The pointers are aligned, and valid for `len` bytes, as the caller promises.
        unsafe { copy_words(from.cast(), to.cast(), len / 8) }
    } else {
        // SAFETY: The pointers are valid for `len` bytes and do not overlap, as the caller
        // promises. The guest may write meanwhile; the copy then holds some mix of bytes, each of
        // which is a valid `u8`, and is used as untrusted bytes.
        unsafe { ptr::copy_nonoverlapping(from, to, len) }
    }
}

/// Payload on its way to guest memory, for which `order.rs` chooses the order of the copy.
struct PayloadCopy {
    from: *const u8,
    to: *mut u8,
    length: usize,
}

impl PayloadCopy {
    /// Copies `length` bytes between ranges that may overlap.
    ///
    /// # Safety
    ///
    /// `from` is valid for reads and `to` for writes of `length` bytes, the latter as guest memory,
    /// to which there are no references.
    #[inline]
    unsafe fn run(from: *const u8, to: *mut u8, length: usize) {
        order::copy(&Self { from, to, length }, to as usize, length);
    }
}

/// Each method checks the bounds that its accesses rely on; the compiler removes the checks where
/// it sees that `order.rs` stays within them.
impl order::Payload for PayloadCopy {
    #[inline(always)]
    fn fence(&self) {
        fence(Ordering::Release);
    }

    #[inline(always)]
    fn last(&self, count: usize) -> [u8; order::TAIL] {
        let mut bytes = [0; order::TAIL];
        assert!(count <= self.length && count <= bytes.len());
        let from = self.from.wrapping_add(self.length - count);
        // SAFETY: These are the last `count` bytes of the source, and the target is an array of
        // this process with room for them. The guest may write meanwhile, see `copy_shared`.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), count) };
        bytes
    }

    #[inline(always)]
    fn bulk(&self, count: usize) {
        assert!(count <= self.length);
        // SAFETY: Both are valid for `count` bytes, see `run`; they may overlap, also where two
        // guests map one file. The guests may write meanwhile, see `copy_shared`.
        unsafe { ptr::copy(self.from, self.to, count) };
    }

    #[inline(always)]
    fn store<const N: usize>(&self, at: usize, bytes: [u8; N]) {
        assert!(at <= self.length && N <= self.length - at);
        let to = self.to.wrapping_add(at);
        assert!(to as usize % N == 0);
        let mut word = [0; order::TAIL];
        word[..N].copy_from_slice(&bytes);
        let word = u64::from_le_bytes(word);
        match N {
            // SAFETY: In each arm, `to` points to `N` aligned bytes of the target, to which there
            // are no references but those of other atomics. A processor of the guest, and a copy
            // for another VM, may write to them meanwhile, which an atomic store allows.
            8 => unsafe { AtomicU64::from_ptr(to.cast()) }.store(word.to_le(), Ordering::Release),
            // SAFETY: The conditions are those of the first arm.
            4 => unsafe { AtomicU32::from_ptr(to.cast()) }
                .store((word as u32).to_le(), Ordering::Release),
            // SAFETY: The conditions are those of the first arm.
            2 => unsafe { AtomicU16::from_ptr(to.cast()) }
                .store((word as u16).to_le(), Ordering::Release),
            // SAFETY: The conditions are those of the first arm.
            1 => unsafe { AtomicU8::from_ptr(to) }.store(word as u8, Ordering::Release),
            _ => unreachable!("a store of {N} bytes"),
        }
    }
}

impl GuestMemory for GuestRam {
    fn contains(&self, mut addr: u64, mut len: u64) -> bool {
        while len != 0 {
            let Ok((_, room)) = self.find(addr, false) else {
                return false;
            };
            let step = room.min(len);
            len -= step;
            match addr.checked_add(step) {
                Some(next) => addr = next,
                None => return len == 0,
            }
        }
        true
    }

    #[inline]
    fn read(&self, mut addr: u64, mut to: &mut [u8]) -> Access {
        while !to.is_empty() {
            let (host, room) = self.find(addr, false)?;
            let step = to.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            let (now, rest) = to.split_at_mut(step);
            // SAFETY: `host` is valid for `room` bytes; `now` is a slice of this process, not of
            // the guest.
            unsafe { copy_shared(host, now.as_mut_ptr(), step) };
            to = rest;
            addr = addr.wrapping_add(step as u64);
        }
        Ok(())
    }

    #[inline]
    fn write(&self, mut addr: u64, mut from: &[u8]) -> Access {
        while !from.is_empty() {
            let (host, room) = self.find(addr, true)?;
            let step = from.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            let (now, rest) = from.split_at(step);
            // SAFETY: `host` is valid for `room` bytes and writable; `now` is a slice of this
            // process.
            unsafe { copy_shared(now.as_ptr(), host, step) };
            from = rest;
            addr = addr.wrapping_add(step as u64);
        }
        Ok(())
    }

    #[inline]
    fn copy_from(&self, mut to: u64, of: &Self, mut from: u64, mut len: usize) -> Access {
        while len != 0 {
            let (source, source_room) = of.find(from, false)?;
            let (target, target_room) = self.find(to, true)?;
            let room = source_room.min(target_room);
            let step = len.min(usize::try_from(room).unwrap_or(usize::MAX));
            // SAFETY: Both are valid for `step` bytes, and the target is writable guest memory.
            unsafe { PayloadCopy::run(source, target, step) };
            len -= step;
            from = from.wrapping_add(step as u64);
            to = to.wrapping_add(step as u64);
        }
        if of.is_lost() {
            return Err(Unreachable);
        }
        Ok(())
    }

    #[inline]
    fn write_payload(&self, mut addr: u64, mut from: &[u8]) -> Access {
        while !from.is_empty() {
            let (host, room) = self.find(addr, true)?;
            let step = from.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            let (now, rest) = from.split_at(step);
            // SAFETY: `host` is valid for `room` bytes of writable guest memory; `now` is a slice
            // of this process.
            unsafe { PayloadCopy::run(now.as_ptr(), host, step) };
            from = rest;
            addr = addr.wrapping_add(step as u64);
        }
        Ok(())
    }

    #[inline]
    fn load32(&self, addr: u64) -> Access<u32> {
        Ok(self.word32(addr, false)?.load(Ordering::Acquire))
    }

    #[inline]
    fn store32(&self, addr: u64, value: u32) -> Access {
        self.word32(addr, true)?.store(value, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn load64(&self, addr: u64) -> Access<u64> {
        Ok(self.word64(addr, false)?.load(Ordering::Acquire))
    }

    #[inline]
    fn store64(&self, addr: u64, value: u64) -> Access {
        self.word64(addr, true)?.store(value, Ordering::Release);
        Ok(())
    }

    fn compare_swap64(&self, addr: u64, compare: u64, swap: u64) -> Access<u64> {
        let word = self.word64(addr, true)?;
        let result = word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
        Ok(result.unwrap_or_else(|before| before))
    }

    fn fetch_add64(&self, addr: u64, add: u64) -> Access<u64> {
        Ok(self.word64(addr, true)?.fetch_add(add, Ordering::SeqCst))
    }
}

#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod tests;
