// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Guest RAM: the wall around the NIC's only `unsafe` code.
//!
//! QEMU sends a file descriptor with each range of guest RAM. [`GuestRam`] maps it and gives checked access by guest
//! address. Three rules make it sound:
//!
//! * **A mapping lives as long as its region**, and a region leaves only through `&mut GuestRam`, while no access, which
//!   needs `&GuestRam`, can be going on. The owner keeps the whole table behind a lock.
//! * **The file cannot become shorter** under the mapping, where an access would be a SIGBUS and the end of the process:
//!   only files that are sealed against it are mapped. QEMU's memory-backend-memfd seals (`seal=on`), with huge pages too.
//! * **There is never a Rust reference into guest memory**, because the guest's CPUs write it at any time. Bytes are
//!   copied out and in through raw pointers; words that both sides look at go through atomics. What is copied out is
//!   arbitrary bytes, and only types for which any bytes are a value are made of it.
//!
//! Bounds are checked by subtraction from the region's length, never by a sum that could wrap.
#![allow(unsafe_code)]

use rustix::fd::AsFd;
use rustix::fs::SealFlags;
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use verbena_device::memory::{Access, GuestMemory, Unreachable};

/// The most regions at once. QEMU sends a dozen for a plain guest; thousands come only from a virtual IOMMU, which maps
/// page by page and which this NIC does not serve.
pub const MAX_REGIONS: usize = 1024;

/// Accesses up to this many bytes, aligned, are copied word by word with volatile accesses: they are descriptors, of
/// which a snapshot must be taken exactly once.
const SNAPSHOT_MAX: usize = 256;

/// Whether a file keeps its length for ever, or grows.
pub fn cannot_shrink(fd: impl AsFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// A mapping of a range of guest RAM.
struct Region {
    addr: u64,
    len: u64,
    host: NonNull<u8>,
    writable: bool,
}

// SAFETY: The region owns its mapping, which any thread may access and unmap.
unsafe impl Send for Region {}
// SAFETY: Shared access goes through raw copies and atomics only; nothing in the region itself changes.
unsafe impl Sync for Region {}

impl Region {
    fn map(addr: u64, len: u64, fd: impl AsFd, offset: u64, writable: bool) -> io::Result<Self> {
        let size = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        if !cannot_shrink(&fd) {
            return Err(io::Error::other("its file can be truncated"));
        }
        let file = rustix::fs::fstat(&fd)?;
        let end = offset.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?;
        // Beyond the end of the file an access would be a SIGBUS.
        if u64::try_from(file.st_size).map_or(true, |size| end > size) {
            return Err(io::Error::other("the range ends beyond its file"));
        }
        let mut prot = ProtFlags::READ;
        prot.set(ProtFlags::WRITE, writable);
        // SAFETY: A new mapping at an address of the kernel's choice overlaps nothing of this process.
        let host = unsafe { mmap(ptr::null_mut(), size, prot, MapFlags::SHARED, fd, offset) }?;
        let host = NonNull::new(host.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            addr,
            len,
            host,
            writable,
        })
    }

    /// The host address of `addr` and how many bytes lie from there to the end, if `addr` is inside.
    #[inline]
    fn at(&self, addr: u64) -> Option<(*mut u8, u64)> {
        let offset = addr.checked_sub(self.addr)?;
        if offset >= self.len {
            return None;
        }
        // SAFETY: `offset` is less than `len`, which is the mapping's length.
        let host = unsafe { self.host.as_ptr().add(offset as usize) };
        Some((host, self.len - offset))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: The mapping is this region's own, of this length, and nobody can reach it any more.
        let result = unsafe { munmap(self.host.as_ptr().cast(), self.len as usize) };
        debug_assert!(result.is_ok());
    }
}

/// Regions that nobody can reach any more. Their mappings go when this is dropped, which takes a while for memory that was used: so the
/// owner lets go of the table first.
#[must_use = "the mappings go with it"]
pub struct Gone(Vec<Region>);

impl Gone {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// All of guest RAM that the device can reach.
#[derive(Default)]
pub struct GuestRam {
    /// Sorted by address, disjoint.
    regions: Vec<Region>,
    /// Where the last access to such an address hit: most accesses hit there again.
    last: [AtomicUsize; HINTS],
}

/// Regions that are remembered: rings and payload lie in different ones, so that one alone would be forgotten all the time.
const HINTS: usize = 8;

/// Which of them is for an address. RAM is divided at some GiB, or (where it is far apart) at some TiB.
#[inline]
const fn hint(addr: u64) -> usize {
    ((addr >> 30) ^ (addr >> 40)) as usize % HINTS
}

impl GuestRam {
    /// No RAM.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the range `[addr, addr + len)`, found at `offset` of `fd`.
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
            return Err(io::Error::other("an empty or wrapping range"));
        };
        if self.regions.len() >= MAX_REGIONS {
            return Err(io::Error::other(
                "too many DMA ranges; is there a virtual IOMMU in front of the device? \
                 It cannot be used with one yet",
            ));
        }
        let index = self.regions.partition_point(|r| r.addr < addr);
        let before = index.checked_sub(1).and_then(|i| self.regions.get(i));
        let clash = before.is_some_and(|r| addr - r.addr < r.len)
            || self.regions.get(index).is_some_and(|r| r.addr <= last);
        if clash {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let region = Region::map(addr, len, fd, offset, writable)?;
        self.regions.insert(index, region);
        Ok(())
    }

    /// Takes away every region that lies in `[addr, addr + len)`. Takes none if there is one of which
    /// only a part lies there: what the caller would believe to be gone could still be reached.
    pub fn unmap(&mut self, addr: u64, len: u64) -> io::Result<Gone> {
        let inside = |r: &Region| {
            let offset = r.addr.checked_sub(addr).filter(|&o| o < len);
            offset.is_some_and(|o| r.len <= len - o)
        };
        let touched = |r: &Region| match r.addr.checked_sub(addr) {
            Some(offset) => offset < len,
            None => len != 0 && addr - r.addr < r.len,
        };
        if self.regions.iter().any(|r| touched(r) && !inside(r)) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let (gone, kept) = std::mem::take(&mut self.regions)
            .into_iter()
            .partition(inside);
        self.regions = kept;
        Ok(Gone(gone))
    }

    /// Takes away everything.
    pub fn clear(&mut self) -> Gone {
        Gone(std::mem::take(&mut self.regions))
    }

    /// How many bytes of RAM there are.
    pub fn size(&self) -> u64 {
        self.regions.iter().map(|r| r.len).sum()
    }

    /// The host address of `addr` and how many bytes lie there contiguously.
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
    fn search(&self, addr: u64) -> Access<&Region> {
        let index = self.regions.partition_point(|r| r.addr <= addr);
        let index = index.checked_sub(1).ok_or(Unreachable)?;
        self.last[hint(addr)].store(index, Ordering::Relaxed);
        Ok(&self.regions[index])
    }

    /// The host address of an aligned word of `size` bytes.
    #[inline]
    fn word(&self, addr: u64, size: u64, write: bool) -> Access<*mut u8> {
        let (host, room) = self.find(addr, write)?;
        // Mappings begin at a page, but a region's guest address need not: the host address decides.
        if room < size || host as usize as u64 % size != 0 {
            return Err(Unreachable);
        }
        Ok(host)
    }

    #[inline]
    fn word32(&self, addr: u64, write: bool) -> Access<&AtomicU32> {
        let host = self.word(addr, 4, write)?.cast();
        // SAFETY: `word` checked bounds and alignment, the mapping outlives `&self`, and an atomic may change under a
        // shared reference. Only loads are made of words that are mapped read-only.
        Ok(unsafe { AtomicU32::from_ptr(host) })
    }

    #[inline]
    fn word64(&self, addr: u64, write: bool) -> Access<&AtomicU64> {
        let host = self.word(addr, 8, write)?.cast();
        // SAFETY: As in `word32`.
        Ok(unsafe { AtomicU64::from_ptr(host) })
    }
}

/// Copies `words` words of 8 bytes, each exactly once and in order.
///
/// # Safety
///
/// Both pointers are valid for so many words (for reads and writes respectively) and aligned to 8 bytes.
#[inline]
unsafe fn copy_words(from: *const u64, to: *mut u64, words: usize) {
    let word = |i: usize| {
        // SAFETY: In bounds and aligned, as the caller promises.
        let word = unsafe { from.wrapping_add(i).read_volatile() };
        // SAFETY: Likewise.
        unsafe { to.wrapping_add(i).write_volatile(word) };
    };
    // In steps, since the compiler does not unroll what is volatile.
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
        // SAFETY: Aligned, and as long as the caller promises.
        unsafe { copy_words(from.cast(), to.cast(), len / 8) }
    } else {
        // SAFETY: As the caller promises. The guest may write meanwhile; the copy then holds some mix of bytes, each of
        // which is a valid `u8`, and is used as what it is: bytes of a hostile guest.
        unsafe { ptr::copy_nonoverlapping(from, to, len) }
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
            // SAFETY: `host` is valid for `room` bytes, `now` is a slice of this process, not of the guest.
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
            // SAFETY: `host` is valid for `room` bytes and writable, `now` is a slice of this process.
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
            // SAFETY: Both are valid for `step` bytes and the target is writable; they may overlap, also where two guests have
            // one file. The guests may write meanwhile, see `copy_shared`.
            unsafe { ptr::copy(source, target, step) };
            len -= step;
            from = from.wrapping_add(step as u64);
            to = to.wrapping_add(step as u64);
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
mod tests {
    use super::*;
    use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags};
    use std::os::fd::OwnedFd;

    const PAGE: u64 = 4096;

    fn memfd(len: u64) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("ram", flags).unwrap();
        ftruncate(&fd, len).unwrap();
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        fd
    }

    /// Two neighbouring regions, a hole, and a read-only one.
    fn ram() -> GuestRam {
        let mut ram = GuestRam::new();
        let fd = memfd(4 * PAGE);
        ram.map(0x2000, PAGE, &fd, PAGE, true).unwrap();
        ram.map(0x1000, PAGE, &fd, 0, true).unwrap();
        ram.map(0x8000, PAGE, &fd, 2 * PAGE, false).unwrap();
        ram
    }

    #[test]
    fn accesses_cross_regions_and_stop_at_holes() {
        let ram = ram();
        let data: Vec<u8> = (0..=255).collect();
        ram.write(0x1f80, &data).unwrap();
        let mut back = [0; 256];
        ram.read(0x1f80, &mut back).unwrap();
        assert_eq!(back[..], data[..]);
        ram.copy_from(0x1000, &ram, 0x1f80, 256).unwrap();
        ram.read(0x1000, &mut back).unwrap();
        assert_eq!(back[..], data[..]);
        assert_eq!(ram.read(0x2f80, &mut back), Err(Unreachable));
        assert_eq!(ram.read(0xfff, &mut back), Err(Unreachable));
        assert_eq!(ram.copy_from(0x2f80, &ram, 0x1000, 256), Err(Unreachable));
        assert_eq!(ram.read(u64::MAX - 3, &mut back), Err(Unreachable));
        assert!(ram.contains(0x1000, 2 * PAGE) && !ram.contains(0x1000, 2 * PAGE + 1));
        assert!(!ram.contains(u64::MAX, 2) && ram.contains(u64::MAX, 0));
    }

    #[test]
    fn read_only_memory_is_not_written() {
        let ram = ram();
        assert_eq!(ram.load32(0x8000), Ok(0));
        assert_eq!(ram.store32(0x8000, 1), Err(Unreachable));
        assert_eq!(ram.write(0x8000, &[1]), Err(Unreachable));
        assert_eq!(ram.copy_from(0x8000, &ram, 0x1000, 8), Err(Unreachable));
        assert_eq!(ram.copy_from(0x1000, &ram, 0x8000, 8), Ok(()));
    }

    #[test]
    fn words_are_aligned_and_in_bounds() {
        let ram = ram();
        ram.store64(0x1ff8, 0x0102_0304_0506_0708).unwrap();
        assert_eq!(ram.load32(0x1ffc), Ok(0x0102_0304));
        assert_eq!(ram.load32(0x1ffe), Err(Unreachable));
        assert_eq!(ram.load64(0x1ffc), Err(Unreachable));
        assert_eq!(ram.load32(0x3000), Err(Unreachable));
        assert_eq!(ram.fetch_add64(0x1000, 5), Ok(0));
        assert_eq!(ram.compare_swap64(0x1000, 4, 9), Ok(5));
        assert_eq!(ram.compare_swap64(0x1000, 5, 9), Ok(5));
        assert_eq!(ram.load64(0x1000), Ok(9));
    }

    #[test]
    fn unmapping_takes_what_lies_inside() {
        let mut ram = ram();
        assert_eq!(ram.load32(0x2000), Ok(0));
        assert_eq!(ram.unmap(0x2000, PAGE).unwrap().count(), 1);
        assert_eq!(ram.load32(0x2000), Err(Unreachable));
        assert_eq!(ram.load32(0x1000), Ok(0));
        assert_eq!(ram.unmap(0, u64::MAX).unwrap().count(), 2);
        assert_eq!((ram.size(), ram.load32(0x1000)), (0, Err(Unreachable)));
    }

    #[test]
    fn a_part_of_a_region_cannot_be_unmapped() {
        let mut ram = ram();
        for (addr, len) in [
            (0x2000, PAGE / 2),
            (0x2800, PAGE),
            (0x2800, 8),
            (0x1800, 2 * PAGE),
            (0, 0x1001),
        ] {
            assert!(ram.unmap(addr, len).is_err(), "{addr:#x}+{len:#x}");
        }
        // Next to regions, and nothing at all.
        for (addr, len) in [(0, 0x1000), (0x3000, PAGE), (0x1000, 0), (0x1800, 0)] {
            assert_eq!(
                ram.unmap(addr, len).unwrap().count(),
                0,
                "{addr:#x}+{len:#x}"
            );
        }
        assert_eq!(ram.size(), 3 * PAGE);
        assert_eq!(ram.unmap(0x1000, 2 * PAGE).unwrap().count(), 2);
    }

    #[test]
    fn a_file_that_can_become_shorter_is_refused() {
        let fd = memfd_create("ram", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, PAGE).unwrap();
        let mut ram = GuestRam::new();
        assert!(ram.map(0, PAGE, &fd, 0, true).is_err());
        fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        ram.map(0, PAGE, &fd, 0, true).unwrap();
        assert!(ftruncate(&fd, 0).is_err());
        assert_eq!(ram.load64(PAGE - 8), Ok(0));
    }

    #[test]
    fn bad_ranges_are_refused() {
        let mut ram = ram();
        let fd = memfd(PAGE);
        for (addr, len, offset) in [
            (0x1000, PAGE, 0),
            (0x0, 2 * PAGE, 0),
            (0x0, 16 * PAGE, 0),
            (0x1800, PAGE, 0),
            (0x4000, 0, 0),
            (0x4000, 2 * PAGE, 0),
            (0x4000, PAGE, PAGE),
            (0x4000, PAGE, u64::MAX - PAGE + 1),
            (u64::MAX - PAGE + 2, PAGE, 0),
        ] {
            assert!(
                ram.map(addr, len, &fd, offset, true).is_err(),
                "{addr:#x}+{len:#x}"
            );
        }
        ram.map(u64::MAX - PAGE + 1, PAGE, &fd, 0, true).unwrap();
        ram.write(u64::MAX - 7, &[7; 8]).unwrap();
        assert_eq!(ram.load64(u64::MAX - 7), Ok(0x0707_0707_0707_0707));
    }

    #[test]
    fn copies_may_overlap() {
        let ram = ram();
        ram.write(0x1000, &[1, 2, 3, 4, 5, 6]).unwrap();
        ram.copy_from(0x1002, &ram, 0x1000, 6).unwrap();
        let mut back = [0; 8];
        ram.read(0x1000, &mut back).unwrap();
        assert_eq!(back, [1, 2, 1, 2, 3, 4, 5, 6]);
    }
}
