// SPDX-License-Identifier: GPL-2.0

//! Coherent memory that the device, and possibly a process, also reads and writes.
//!
//! C header: [`include/linux/dma-mapping.h`](srctree/include/linux/dma-mapping.h)
//!
//! Every access is bounds-checked and volatile or atomic, and copies from or to a value of the
//! caller. There is never a reference to the memory, except to a word as an atomic during an
//! access. Words that both sides access while they work (owner words, indexes) are accessed with an
//! explicit ordering, by [`load32`](Chunk::load32) and similar functions. [`read`](Chunk::read)
//! takes a snapshot of an entry, which is then validated and never read again. An offset that is
//! out of bounds or not aligned results in `EINVAL`.
//!
//! All values are little endian in the memory. The types of the ABI take care of that, and the
//! words here are plain integers with the ABI's value.

pub use crate::bind::Binding;

use crate::{
    bindings,
    count::{
        leak,
        Chunks,
        Counted, //
    },
    errno::eopnotsupp,
    share::QueueMemory, //
};
use core::{
    mem::MaybeUninit,
    ptr::NonNull, //
};
use kernel::{
    bindings as kbindings,
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        Arc, //
    }, //
};
use zerocopy::{
    FromBytes,
    Immutable,
    IntoBytes, //
};

/// The owner that is charged for memory, or for an object with a number.
///
/// Memory of a process is charged to the memory cgroup of the current process. The allocation fails
/// if the cgroup has no room, or if the user of the process has used up its share
/// ([`share`](crate::share)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payer {
    /// The kernel, whose use is not limited.
    Kernel,
    /// The current process. Memory beyond the free amount of each process also counts as pinned.
    Process,
    /// The current process, for memory that is no larger than memory that the process has pinned
    /// for it.
    Pinned,
    /// The current process, for objects of which each user may have a limited number. Their memory
    /// is not counted in bytes, so that it is available even if others have used up all of those.
    Counted,
}

/// A piece of coherent memory of whole pages, which is zeroed when it is allocated.
///
/// # Invariants
///
/// `base_helper_dma_alloc()` has allocated `size` bytes for the device of `binding`, at `cpu` for
/// this side and at `dma` for the device. `size` is a multiple of the page size, `cpu` is
/// page-aligned, and the memory is freed only when this is dropped. This side accesses it only with
/// volatile or atomic accesses.
///
/// # Examples
///
/// ```
/// use base::dma::Chunk;
///
/// /// Offset of the owner word in an entry.
/// const OWNER: usize = 60;
/// const PHASE: u32 = 1 << 31;
///
/// /// Returns the entry at `offset` if the device has written it in this round.
/// fn poll(ring: &Chunk, offset: usize, phase: u32) -> Result<Option<[u32; 16]>> {
///     // The owner word is read first. The entry is read after that, and only once.
///     if ring.load32_acquire(offset + OWNER)? & PHASE != phase {
///         return Ok(None);
///     }
///     ring.read(offset).map(Some)
/// }
/// ```
pub struct Chunk {
    binding: Binding,
    cpu: NonNull<u8>,
    dma: u64,
    size: usize,
    share: Option<QueueMemory>,
    _count: Counted<Chunks>,
}

// SAFETY: Coherent memory may be used and freed from any thread.
unsafe impl Send for Chunk {}
// SAFETY: By the type invariant all accesses to the memory are volatile or atomic.
unsafe impl Sync for Chunk {}

/// Size of the words in which aligned bytes are copied.
const WORD: usize = size_of::<u64>();

/// Returns how many of `len` bytes at `offset` are copied by words.
fn in_words(offset: usize, len: usize) -> usize {
    if offset % WORD == 0 {
        len - len % WORD
    } else {
        0
    }
}

impl Chunk {
    /// Allocates `size` bytes of memory of `payer`, rounded up to whole pages. May sleep.
    pub fn alloc(binding: &Binding, payer: Payer, size: usize) -> Result<Self> {
        let size = size
            .checked_next_multiple_of(kernel::page::PAGE_SIZE)
            .filter(|&size| size != 0)
            .ok_or(EINVAL)?;
        let share = match payer {
            Payer::Kernel | Payer::Counted => None,
            Payer::Process | Payer::Pinned => Some(QueueMemory::take(payer, size)?),
        };
        let mut dma = 0;
        let cpu = binding
            .with(|| {
                // SAFETY: `with` keeps the device bound during the call.
                unsafe {
                    bindings::base_helper_dma_alloc(
                        binding.dev(),
                        size,
                        &mut dma,
                        payer != Payer::Kernel,
                    )
                }
            })
            .ok_or(ENODEV)?;
        // INVARIANT: The function has allocated `size` bytes, which is a multiple of the page size.
        // Coherent memory of whole pages is page-aligned.
        Ok(Self {
            binding: binding.clone(),
            cpu: NonNull::new(cpu.cast()).ok_or(ENOMEM)?,
            dma,
            size,
            share,
            _count: Counted::new(),
        })
    }

    /// Never frees the memory, because a device may still use it. This leak is not reported.
    pub fn abandon(this: &Arc<Self>) {
        leak(this.clone());
        if let Some(share) = &this.share {
            share.forgive();
        }
        Counted::<Chunks>::forgive();
    }

    /// Returns the address of the memory for the device.
    pub fn dma_addr(&self) -> u64 {
        self.dma
    }

    /// Returns the size of the memory in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the first page frame, or `EOPNOTSUPP` if the memory cannot be mapped into a process.
    pub fn pfn(&self) -> Result<c_ulong> {
        // SAFETY: By the type invariant `cpu` is the address of coherent memory.
        match unsafe { bindings::base_helper_coherent_pfn(self.cpu.as_ptr().cast()) } {
            0 => Err(eopnotsupp()),
            pfn => Ok(pfn),
        }
    }

    /// Returns `EINVAL` unless `len` bytes at `offset` are inside the memory.
    #[inline]
    fn check(&self, offset: usize, len: usize) -> Result {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// Returns the address of a `T` at `offset`, aligned and inside the memory.
    #[inline]
    fn at<T>(&self, offset: usize) -> Result<*mut T> {
        self.check(offset, size_of::<T>())?;
        // By the type invariant the memory is page-aligned, so the offset has the alignment of the
        // address.
        if offset % align_of::<T>() != 0 {
            return Err(EINVAL);
        }
        // SAFETY: `check` has made sure that the offset is inside the memory, which is one
        // allocation.
        Ok(unsafe { self.cpu.as_ptr().add(offset) }.cast())
    }

    #[inline]
    fn word<T: kernel::sync::atomic::AtomicType>(&self, offset: usize) -> Result<&Atomic<T>> {
        let ptr = self.at::<T>(offset)?;
        // SAFETY: `at` returns an address that is aligned and inside the memory, which lives as
        // long as `self`. By the type invariant this side accesses it only with volatile or atomic
        // accesses.
        Ok(unsafe { Atomic::from_ptr(ptr) })
    }

    /// Returns a word, without ordering.
    #[inline]
    pub fn load32(&self, offset: usize) -> Result<u32> {
        Ok(self.word::<u32>(offset)?.load(Relaxed))
    }

    /// Returns a word with acquire ordering: later reads see what the other side wrote before this
    /// word.
    #[inline]
    pub fn load32_acquire(&self, offset: usize) -> Result<u32> {
        Ok(self.word::<u32>(offset)?.load(Acquire))
    }

    /// Writes a word, without ordering.
    #[inline]
    pub fn store32(&self, offset: usize, value: u32) -> Result {
        self.word::<u32>(offset)?.store(value, Relaxed);
        Ok(())
    }

    /// Writes a word with release ordering: the other side sees it after all earlier writes.
    #[inline]
    pub fn store32_release(&self, offset: usize, value: u32) -> Result {
        self.word::<u32>(offset)?.store(value, Release);
        Ok(())
    }

    /// Adds 1 atomically to a word that only this side writes, with the ordering of
    /// [`store32_release`](Self::store32_release). Returns the old value.
    #[inline]
    pub fn increment32(&self, offset: usize) -> Result<u32> {
        Ok(self.word::<u32>(offset)?.fetch_add(1, Release))
    }

    /// Returns a double word with the ordering of [`load32_acquire`](Self::load32_acquire).
    #[inline]
    pub fn load64_acquire(&self, offset: usize) -> Result<u64> {
        Ok(self.word::<u64>(offset)?.load(Acquire))
    }

    /// Writes a double word with the ordering of [`store32_release`](Self::store32_release).
    #[inline]
    pub fn store64_release(&self, offset: usize, value: u64) -> Result {
        self.word::<u64>(offset)?.store(value, Release);
        Ok(())
    }

    /// Returns a snapshot of a value.
    #[inline]
    pub fn read<T: FromBytes>(&self, offset: usize) -> Result<T> {
        let ptr = self.at::<T>(offset)?;
        // SAFETY: `at` returns an address that is aligned and inside the memory, and any bytes are
        // a `T`. The read is volatile, so the value is read once, and may change at the same time.
        Ok(unsafe { ptr.read_volatile() })
    }

    /// Writes a value to the memory.
    #[inline]
    pub fn write<T: IntoBytes + Immutable>(&self, offset: usize, value: &T) -> Result {
        let ptr = self.at::<MaybeUninit<T>>(offset)?;
        // SAFETY: The pointer comes from a reference. The bytes of `value` are initialized
        // (`IntoBytes`), and a `MaybeUninit<T>` has no drop.
        let copy = unsafe { core::ptr::from_ref(value).cast::<MaybeUninit<T>>().read() };
        // SAFETY: `at` returns an address that is aligned and inside the memory.
        unsafe { ptr.write_volatile(copy) };
        Ok(())
    }

    /// Writes all bytes, or none if they are not inside the memory.
    pub fn write_bytes(&self, offset: usize, bytes: &[u8]) -> Result {
        self.check(offset, bytes.len())?;
        let (words, rest) = bytes.split_at(in_words(offset, bytes.len()));
        let mut at = offset;
        for word in words.chunks_exact(WORD) {
            let mut value = [0; WORD];
            value.copy_from_slice(word);
            self.write(at, &u64::from_ne_bytes(value))?;
            at += WORD;
        }
        for byte in rest {
            self.write(at, byte)?;
            at += 1;
        }
        Ok(())
    }

    /// Reads bytes, each of them once. Some of them may be from before a concurrent write of the
    /// other side, and others from after it.
    pub fn read_bytes(&self, offset: usize, bytes: &mut [u8]) -> Result {
        self.check(offset, bytes.len())?;
        let (words, rest) = bytes.split_at_mut(in_words(offset, bytes.len()));
        let mut at = offset;
        for word in words.chunks_exact_mut(WORD) {
            word.copy_from_slice(&self.read::<u64>(at)?.to_ne_bytes());
            at += WORD;
        }
        for byte in rest {
            *byte = self.read(at)?;
            at += 1;
        }
        Ok(())
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let freed = self.binding.with(|| {
            // SAFETY: By the type invariant the memory was allocated with these arguments from this
            // device, which `with` keeps bound. It is not used afterwards.
            unsafe {
                kbindings::dma_free_attrs(
                    self.binding.dev(),
                    self.size,
                    self.cpu.as_ptr().cast(),
                    self.dma,
                    0,
                )
            }
        });
        if freed.is_none() {
            pr_err!(
                "{} bytes of DMA memory were in use when the driver was unbound: never freed\n",
                self.size
            );
        }
    }
}
