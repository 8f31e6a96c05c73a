// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory that the device sees: doorbell areas and rings.
//!
//! This file is a safe interface to unsafe code. Memory comes from `mmap(2)` of the uverbs file or,
//! in unit tests, from the heap. All other code reaches the memory through the accessors here. They
//! mask or check each offset, so that a wrong index reaches another entry of the same ring, never
//! other memory. The ordering is that of the device specification. An entry is written with plain
//! stores and published by a release store of the producer index. A CQE is read after an acquire
//! load of its tail, and then the tail is loaded again. Memory that the device writes is mapped for
//! reading only. When the kernel removes such a mapping, the memory reads as zeroes, even in the
//! middle of an entry, whereas data that is read through a writable mapping then means nothing any
//! more (device specification, "Doorbell areas").
#![allow(unsafe_code)]

use super::pabi::ibv_sge;
use core::ffi::{c_int, c_long, c_void};
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::io;
use verbena_abi::doorbell::{self, Words};
use verbena_abi::regs;
use verbena_abi::uverbs::AreaInfo;
use verbena_abi::wqe::Sge;

const PROT_READ: c_int = 1;
const PROT_WRITE: c_int = 2;
const PROT_NONE: c_int = 0;
const MAP_SHARED: c_int = 1;
const MAP_PRIVATE: c_int = 2;
const MAP_FIXED: c_int = 0x10;
const MAP_ANONYMOUS: c_int = 0x20;

extern "C" {
    fn mmap(
        addr: *mut c_void,
        length: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        offset: c_long,
    ) -> *mut c_void;
    fn munmap(addr: *mut c_void, length: usize) -> c_int;
}

/// # Safety
///
/// If `flags` has `MAP_FIXED`, nothing refers to the memory that was mapped there before.
unsafe fn map(
    at: Option<NonNull<u8>>,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: u64,
) -> io::Result<NonNull<u8>> {
    let at = at.map_or(core::ptr::null_mut(), NonNull::as_ptr);
    let offset = c_long::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the caller vouches for `MAP_FIXED`; otherwise a new mapping disturbs nothing.
    let base = unsafe { mmap(at.cast(), length, protection, flags, fd, offset) };
    // MAP_FAILED is all ones.
    if base as isize == -1 {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Access of process and device to a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MapAccess {
    /// The device writes, the process reads.
    Read,
    /// The process writes, the device reads; the process may read its own data again. Doorbell
    /// pages are mapped like this too.
    ReadWrite,
}

impl MapAccess {
    fn bits(self) -> c_int {
        match self {
            Self::Read => PROT_READ,
            Self::ReadWrite => PROT_READ | PROT_WRITE,
        }
    }
}

enum MemorySource {
    Mapped,
    #[cfg(test)]
    Heap(std::alloc::Layout),
    #[cfg(test)]
    Alias,
}

/// Piece of memory that is aligned to at least 64 bytes and lives as long as this value.
pub struct MappedMemory {
    base: NonNull<u8>,
    length: usize,
    source: MemorySource,
}

// SAFETY: the memory belongs to the process, not to a thread.
unsafe impl Send for MappedMemory {}
// SAFETY: a shared reference only shows where the memory is. Reads and writes go through
// `DoorbellMapping`, which uses atomic words only, and `MappedRing`, which stays with one thread at
// a time.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// Maps `length` bytes of the uverbs file `fd` at `offset`, which the kernel has handed out.
    pub fn map(fd: c_int, offset: u64, length: usize, protection: MapAccess) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { map(None, length, protection.bits(), MAP_SHARED, fd, offset) }?;
        Ok(Self {
            base,
            length,
            source: MemorySource::Mapped,
        })
    }

    /// Maps pieces of `piece` bytes (whole pages) at consecutive addresses.
    fn map_side_by_side<const N: usize>(
        fd: c_int,
        piece: usize,
        offsets: [(u64, MapAccess); N],
    ) -> io::Result<Self> {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS;
        // SAFETY: as above. The mapping reserves the addresses.
        let base = unsafe { map(None, piece * N, PROT_NONE, flags, -1, 0) }?;
        let whole = Self {
            base,
            length: piece * N,
            source: MemorySource::Mapped,
        };
        for (number, (offset, protection)) in offsets.into_iter().enumerate() {
            // SAFETY: the address is within the reservation.
            let at = unsafe { base.add(piece * number) };
            let flags = MAP_SHARED | MAP_FIXED;
            // SAFETY: the mapping replaces a part of the reservation, which nothing has used yet.
            unsafe { map(Some(at), piece, protection.bits(), flags, fd, offset) }?;
        }
        Ok(whole)
    }

    /// Returns zeroed memory from the heap, in place of a mapping.
    #[cfg(test)]
    pub fn heap(length: usize) -> Self {
        let layout = std::alloc::Layout::from_size_align(length, 4096).expect("a valid layout");
        assert!(length > 0);
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).expect("memory");
        Self {
            base,
            length,
            source: MemorySource::Heap(layout),
        }
    }
}

#[cfg(test)]
impl MappedMemory {
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns a second view, for a test that keeps this one alive.
    pub fn alias(&self) -> Self {
        Self {
            base: self.base,
            length: self.length,
            source: MemorySource::Alias,
        }
    }

    /// Returns the address of `length` bytes at `offset`.
    pub fn slice_at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset <= self.length && length <= self.length - offset);
        // SAFETY: the range was checked just now.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        match self.source {
            MemorySource::Mapped => {
                // SAFETY: the mapping is this value's own and nothing refers to it any more.
                unsafe { munmap(self.base.as_ptr().cast(), self.length) };
            }
            #[cfg(test)]
            // SAFETY: the memory was allocated with this very layout.
            MemorySource::Heap(layout) => unsafe {
                std::alloc::dealloc(self.base.as_ptr(), layout)
            },
            #[cfg(test)]
            MemorySource::Alias => {}
        }
    }
}

/// Doorbell area with its page in the doorbell BAR.
pub struct DoorbellMapping {
    words: MappedMemory,
    page: MappedMemory,
    /// Index of the doorbell area.
    pub uar: u32,
    /// True once the alive word was found to be 0; never reset.
    dead: AtomicBool,
}

/// Minimum size of the doorbell page in bytes.
const CLOCK_END: usize = regs::DOORBELL_CLOCK + 8;

impl DoorbellMapping {
    /// Maps the doorbell area that a response describes.
    pub fn map(fd: c_int, info: &AreaInfo) -> io::Result<Self> {
        // The two parts lie side by side, so that one base address serves all offsets.
        const { assert!(doorbell::DEVICE_PART == 0) };
        const { assert!(doorbell::GUEST_PART == doorbell::PART_SIZE) };
        const { assert!(doorbell::AREA_SIZE == 2 * doorbell::PART_SIZE) };
        let words = MappedMemory::map_side_by_side(
            fd,
            doorbell::PART_SIZE,
            [
                (info.device_offset.get(), MapAccess::Read),
                (info.guest_offset.get(), MapAccess::ReadWrite),
            ],
        )?;
        let offset = info.ring_offset.get();
        let page = MappedMemory::map(fd, offset, doorbell::PART_SIZE, MapAccess::ReadWrite)?;
        Self::new(words, page, info.uar.get()).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn new(words: MappedMemory, page: MappedMemory, uar: u32) -> Option<Self> {
        (words.length >= doorbell::AREA_SIZE && page.length >= CLOCK_END).then_some(Self {
            words,
            page,
            uar,
            dead: AtomicBool::new(false),
        })
    }

    /// Returns an area whose words a test sees too.
    #[cfg(test)]
    pub fn with_words(words: MappedMemory) -> Self {
        Self::new(words, MappedMemory::heap(doorbell::PART_SIZE), 0).expect("big enough")
    }

    /// Returns an area in plain memory whose words say that the device is alive and awake.
    #[cfg(test)]
    pub fn mock() -> Self {
        let area = Self::new(
            MappedMemory::heap(doorbell::AREA_SIZE),
            MappedMemory::heap(4096),
            0,
        )
        .expect("big enough");
        area.store(doorbell::ALIVE, 1);
        area
    }

    /// True if the doorbell was ever rung.
    #[cfg(test)]
    pub fn is_rung(&self) -> bool {
        // SAFETY: the page has at least 4 bytes and is aligned.
        unsafe { self.page.base.cast::<u32>().read_volatile() != 0 }
    }

    #[cfg(test)]
    pub fn clear_ring(&self) {
        // SAFETY: the page has at least 4 bytes and is aligned.
        unsafe { self.page.base.cast::<u32>().write_volatile(0) };
    }

    /// True if the device serves this area. After the first false the result stays false.
    #[inline(always)]
    pub fn is_alive(&self) -> bool {
        !self.dead.load(Ordering::Relaxed) && (self.load(doorbell::ALIVE) != 0 || self.mark_dead())
    }

    /// Latches the death of the device, and returns false.
    #[cold]
    #[inline(never)]
    pub fn mark_dead(&self) -> bool {
        self.dead.store(true, Ordering::Relaxed);
        false
    }

    /// Writes to the doorbell page. The write costs a VM exit and is needed only when the device
    /// sleeps.
    #[cold]
    #[inline(never)]
    pub fn ring(&self) {
        // SAFETY: the page has at least 4 bytes and is aligned. Its first word is only ever
        // accessed as an atomic.
        let word = unsafe { AtomicU32::from_ptr(self.page.base.as_ptr().cast()) };
        // The device ignores the value.
        word.store(1, Ordering::Relaxed);
    }

    /// Returns the device clock in nanoseconds, or `None` if the device is dead. The read costs a
    /// VM exit.
    pub fn clock(&self) -> Option<u64> {
        let at = self.page.base.as_ptr().wrapping_add(regs::DOORBELL_CLOCK);
        // SAFETY: the page holds the clock, which is aligned and only ever accessed as an atomic.
        let clock = unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Relaxed);
        self.is_alive().then_some(clock)
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU32 {
        let offset = offset & (doorbell::AREA_SIZE - 4);
        // SAFETY: the offset is a multiple of 4 below the area's size, which `new` has compared
        // with the size of the memory. Shared words are only ever accessed as atomics.
        unsafe { AtomicU32::from_ptr(self.words.base.as_ptr().wrapping_add(offset).cast()) }
    }

    #[inline(always)]
    fn word64(&self, offset: usize) -> &AtomicU64 {
        let offset = offset & (doorbell::AREA_SIZE - 8);
        // SAFETY: the conditions are those in `word`, with multiples of 8.
        unsafe { AtomicU64::from_ptr(self.words.base.as_ptr().wrapping_add(offset).cast()) }
    }
}

impl Words for DoorbellMapping {
    #[inline(always)]
    fn load(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn load_acquire(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }

    #[inline(always)]
    fn store(&self, offset: usize, value: u32) {
        self.word(offset).store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn store_release(&self, offset: usize, value: u32) {
        self.word(offset).store(value, Ordering::Release);
    }

    #[inline(always)]
    fn store64_release(&self, offset: usize, value: u64) {
        self.word64(offset).store(value, Ordering::Release);
    }

    #[inline(always)]
    fn load64_acquire(&self, offset: usize) -> u64 {
        self.word64(offset).load(Ordering::Acquire)
    }

    #[inline(always)]
    fn increment(&self, offset: usize) {
        self.word(offset).fetch_add(1, Ordering::Release);
    }

    #[inline(always)]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Ring of 2^n entries whose stride is a power of two and at least `MIN` bytes.
pub struct MappedRing<const MIN: usize> {
    base: NonNull<u8>,
    mask: u32,
    log_stride: u32,
    _memory: MappedMemory,
}

// SAFETY: the memory belongs to the process, not to a thread. A ring is not `Sync`, because its
// entries are written and read with plain accesses: the ring is inside the lock of its queue.
unsafe impl<const MIN: usize> Send for MappedRing<MIN> {}

impl<const MIN: usize> MappedRing<MIN> {
    /// Returns a ring in `memory`, if the memory is large enough for the ring.
    pub fn new(memory: MappedMemory, log_size: u8, log_stride: u8) -> Option<Self> {
        const { assert!(MIN % 8 == 0) };
        if log_size > 24 || log_stride > 16 || (1usize << log_stride) < MIN {
            return None;
        }
        if (1usize << log_size) << log_stride > memory.length {
            return None;
        }
        Some(Self {
            base: memory.base,
            mask: (1 << log_size) - 1,
            log_stride: log_stride.into(),
            _memory: memory,
        })
    }

    /// Returns the size of an entry in bytes, as a power of two.
    pub fn log_stride(&self) -> u8 {
        self.log_stride as u8
    }

    /// Returns the number of entries.
    pub fn size(&self) -> u32 {
        self.mask + 1
    }

    /// Returns the entry of a free-running index.
    #[inline(always)]
    pub fn entry(&self, index: u32) -> RingEntry<'_, MIN> {
        let offset = ((index & self.mask) as usize) << self.log_stride;
        RingEntry {
            // SAFETY: entry number `mask` still ends within the memory, which `new` has checked.
            base: unsafe { self.base.add(offset) },
            stride: 1 << self.log_stride,
            ring: core::marker::PhantomData,
        }
    }
}

/// One entry of a ring, which only the thread that uses the ring can reach.
#[derive(Clone, Copy)]
pub struct RingEntry<'a, const MIN: usize> {
    base: NonNull<u8>,
    stride: usize,
    ring: core::marker::PhantomData<&'a MappedRing<MIN>>,
}

impl<const MIN: usize> RingEntry<'_, MIN> {
    /// Stores 8 bytes at a fixed offset, little endian.
    #[inline(always)]
    pub fn put<const OFFSET: usize>(self, value: u64) {
        const { assert!(OFFSET % 8 == 0 && OFFSET + 8 <= MIN) };
        let at = self.base.as_ptr().wrapping_add(OFFSET).cast::<u64>();
        // SAFETY: the word is within the entry, which is at least `MIN` bytes long and so aligned.
        unsafe { at.write(value.to_le()) };
    }

    /// Stores two words at an offset that is known only at run time. Returns false, with nothing
    /// written, if they do not fit.
    #[inline(always)]
    pub fn put_pair(self, offset: usize, low: u64, high: u64) -> bool {
        let fits = offset % 8 == 0 && offset < self.stride && self.stride - offset >= 16;
        if fits {
            let at = self.base.as_ptr().wrapping_add(offset).cast::<[u64; 2]>();
            // SAFETY: the range was checked just now, and entries are aligned to their stride.
            unsafe { at.write([low.to_le(), high.to_le()]) };
        }
        fits
    }

    /// Copies SGEs to `offset`. Returns false, with nothing written, if they do not fit. The
    /// structure of C and that of the ABI have the same layout: an address, a length, a key.
    #[inline(always)]
    pub fn put_all(self, offset: usize, sges: &[ibv_sge]) -> bool {
        const {
            assert!(size_of::<ibv_sge>() == size_of::<Sge>());
            assert!(offset_of!(ibv_sge, length) == offset_of!(Sge, length));
            assert!(offset_of!(ibv_sge, lkey) == offset_of!(Sge, lkey));
            assert!(cfg!(target_endian = "little"));
        };
        if offset % 8 != 0 || offset + size_of_val(sges) > self.stride {
            return false;
        }
        let mut to = self.base.as_ptr().wrapping_add(offset).cast::<ibv_sge>();
        for sge in sges {
            // SAFETY: the place is within the entry, which was checked for all SGEs, and is
            // aligned.
            unsafe { to.write(*sge) };
            to = to.wrapping_add(1);
        }
        true
    }

    /// Copies an entry of another ring. Returns false, with nothing written, if its size is
    /// different.
    pub fn copy_from(self, other: RingEntry<'_, MIN>) -> bool {
        if other.stride != self.stride {
            return false;
        }
        // SAFETY: both are entries of `stride` bytes, of rings that do not overlap.
        unsafe {
            core::ptr::copy_nonoverlapping(other.base.as_ptr(), self.base.as_ptr(), self.stride);
        }
        true
    }

    /// Copies inline data to `offset`. Returns false, with nothing written, if the data does not
    /// fit.
    ///
    /// Inline data is usually short. Whole words are copied first, so that short data needs no call
    /// of memcpy.
    ///
    /// # Safety
    ///
    /// `from` has `length` readable bytes.
    #[inline(always)]
    pub unsafe fn copy_in(self, offset: usize, from: *const u8, length: usize) -> bool {
        if offset > self.stride || length > self.stride - offset {
            return false;
        }
        let to = self.base.as_ptr().wrapping_add(offset);
        if length > 128 {
            // SAFETY: the caller vouches for `from`, and the check above holds for `to`. A ring is
            // no user buffer, so the two do not overlap.
            unsafe { core::ptr::copy_nonoverlapping(from, to, length) };
            return true;
        }
        let mut done = 0;
        while done + 8 <= length {
            let source = from.wrapping_add(done).cast::<u64>();
            // SAFETY: as above.
            let word = unsafe { source.read_unaligned() };
            let target = to.wrapping_add(done).cast::<u64>();
            // SAFETY: as above.
            unsafe { target.write_unaligned(word) };
            done += 8;
        }
        while done < length {
            let source = from.wrapping_add(done);
            // SAFETY: as above.
            let byte = unsafe { source.read() };
            let target = to.wrapping_add(done);
            // SAFETY: as above.
            unsafe { target.write(byte) };
            done += 1;
        }
        true
    }

    /// Loads 8 bytes at a fixed offset with relaxed order, because the kernel may remove the page
    /// at this moment.
    #[inline(always)]
    pub fn get<const OFFSET: usize>(self) -> u64 {
        const { assert!(OFFSET % 8 == 0 && OFFSET + 8 <= MIN) };
        let at = self.base.as_ptr().wrapping_add(OFFSET).cast();
        // SAFETY: the word is within the entry, which is at least `MIN` bytes long and so aligned.
        // No other access than atomic ones writes it meanwhile.
        let word = unsafe { AtomicU64::from_ptr(at) };
        u64::from_le(word.load(Ordering::Relaxed))
    }

    /// Loads 4 bytes at a fixed offset with acquire order.
    #[inline(always)]
    pub fn get32_acquire<const OFFSET: usize>(self) -> u32 {
        const { assert!(OFFSET % 4 == 0 && OFFSET + 4 <= MIN) };
        let at = self.base.as_ptr().wrapping_add(OFFSET).cast();
        // SAFETY: the word is within the entry and aligned; it is only accessed as an atomic while
        // the device may write it.
        let word = unsafe { AtomicU32::from_ptr(at) };
        u32::from_le(word.load(Ordering::Acquire))
    }

    /// Loads the word again, after all loads before. If its value is the same, it was unchanged
    /// during those loads.
    #[inline(always)]
    pub fn reread32<const OFFSET: usize>(self) -> u32 {
        const { assert!(OFFSET % 4 == 0 && OFFSET + 4 <= MIN) };
        fence(Ordering::Acquire);
        let at = self.base.as_ptr().wrapping_add(OFFSET).cast();
        // SAFETY: as above.
        let word = unsafe { AtomicU32::from_ptr(at) };
        u32::from_le(word.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
impl<const MIN: usize> MappedRing<MIN> {
    /// Reads `length` bytes of an entry, as the device would.
    pub fn bytes(&self, index: u32, offset: usize, length: usize) -> Vec<u8> {
        let entry = self.entry(index);
        assert!(length <= entry.stride.saturating_sub(offset));
        let at = entry.base.as_ptr().wrapping_add(offset);
        // SAFETY: the range was checked just now; no other thread writes in a unit test.
        unsafe { core::slice::from_raw_parts(at, length) }.to_vec()
    }
}
