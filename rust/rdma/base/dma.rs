// SPDX-License-Identifier: GPL-2.0

//! Coherent memory that the device, and maybe a process, also reads and writes.
//!
//! Every access is volatile or atomic, bounds-checked, to or from a value of the caller's: no
//! reference to the memory ever exists, but to a word as an atomic for the time of an access. Words that
//! both sides look at while they work (owner words, indexes) are accessed with an explicit ordering, by
//! [`load32`](Chunk::load32) and the like; [`read`](Chunk::read) takes a snapshot of an entry, which is
//! then validated and never read again. An offset out of bounds or not aligned is `EINVAL`.
//!
//! All is little endian on the wire; the types of the ABI take care of that, and the words here are
//! plain integers of the ABI's value.

pub use crate::base::bind::Binding;

use crate::{
    base::{
        count::{
            leak,
            Chunks,
            Counted, //
        },
        errno::eopnotsupp,
        share::QueueMemory, //
    },
    bindings, //
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

/// Whose something is: memory, or an object with a number.
///
/// What is a process' is charged to the memory cgroup of the current one. If that has no room, or the process'
/// user has its share of what users may have ([`share`](crate::base::share)), there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payer {
    /// The kernel's.
    Kernel,
    /// The current process'. Beyond what each process has for nothing it also counts as pinned.
    Process,
    /// The current process', and no larger than memory that it has pinned for it.
    Pinned,
    /// The current process', and of a kind of which each user has a number. It is not counted by bytes, so
    /// that it is there where others have taken all of those.
    Counted,
}

/// A piece of coherent memory, zeroed when allocated, of whole pages.
///
/// # Invariants
///
/// `cpu` points to `size` bytes that live until this is dropped.
///
/// # Examples
///
/// ```ignore
/// let ring = Chunk::alloc(&binding, caller.payer(), entries * size_of::<Cqe>())?;
/// // The owner word is read first, the entry after it, and never again.
/// if ring.load32_acquire(offset + OWNER)? & PHASE == phase {
///     let cqe: Cqe = ring.read(offset)?;
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
// SAFETY: All accesses are volatile or atomic.
unsafe impl Sync for Chunk {}

/// What bytes are copied by, where they are aligned.
const WORD: usize = size_of::<u64>();

/// How many of `len` bytes at `offset` are copied by words.
fn in_words(offset: usize, len: usize) -> usize {
    if offset % WORD == 0 {
        len - len % WORD
    } else {
        0
    }
}

impl Chunk {
    /// Allocates `size` bytes of `payer`'s memory, rounded up to whole pages. May sleep.
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
                // SAFETY: The device is bound.
                unsafe {
                    bindings::rdma_helper_dma_alloc(
                        binding.dev(),
                        size,
                        &mut dma,
                        payer != Payer::Kernel,
                    )
                }
            })
            .ok_or(ENODEV)?;
        Ok(Self {
            binding: binding.clone(),
            cpu: NonNull::new(cpu.cast()).ok_or(ENOMEM)?,
            dma,
            size,
            share,
            _count: Counted::new(),
        })
    }

    /// Never frees the memory: a device may go on using it. No leak that is complained of.
    pub fn abandon(this: &Arc<Self>) {
        leak(this.clone());
        if let Some(share) = &this.share {
            share.forgive();
        }
        Counted::<Chunks>::forgive();
    }

    /// Address for the device.
    pub fn dma_addr(&self) -> u64 {
        self.dma
    }

    /// Size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Page frame, if the memory can be mapped into a process.
    pub(crate) fn pfn(&self) -> Result<c_ulong> {
        // SAFETY: Memory of ours.
        match unsafe { bindings::rdma_helper_coherent_pfn(self.cpu.as_ptr().cast()) } {
            0 => Err(eopnotsupp()),
            pfn => Ok(pfn),
        }
    }

    /// Whether `len` bytes at `offset` are within.
    #[inline]
    fn check(&self, offset: usize, len: usize) -> Result {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// Address of a `T` at `offset`.
    #[inline]
    fn at<T>(&self, offset: usize) -> Result<*mut T> {
        self.check(offset, size_of::<T>())?;
        // The memory starts on a page, so the offset's alignment is that of the address.
        if offset % align_of::<T>() != 0 {
            return Err(EINVAL);
        }
        // SAFETY: Within the memory.
        Ok(unsafe { self.cpu.as_ptr().add(offset) }.cast())
    }

    #[inline]
    fn word<T: kernel::sync::atomic::AtomicType>(&self, offset: usize) -> Result<&Atomic<T>> {
        let ptr = self.at::<T>(offset)?;
        // SAFETY: Aligned and within the memory; this side accesses words atomically or volatile.
        Ok(unsafe { Atomic::from_ptr(ptr) })
    }

    /// A word, without ordering.
    #[inline]
    pub fn load32(&self, offset: usize) -> Result<u32> {
        Ok(self.word::<u32>(offset)?.load(Relaxed))
    }

    /// A word; what is read afterwards was written by the other side before it wrote the word.
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

    /// Writes a word; the other side sees it after all that was written before.
    #[inline]
    pub fn store32_release(&self, offset: usize, value: u32) -> Result {
        self.word::<u32>(offset)?.store(value, Release);
        Ok(())
    }

    /// Adds 1 to a word that only this side writes, atomically. Returns the old value.
    #[inline]
    pub fn increment32(&self, offset: usize) -> Result<u32> {
        Ok(self.word::<u32>(offset)?.fetch_add(1, Relaxed))
    }

    /// A double word; see [`load32_acquire`](Self::load32_acquire).
    #[inline]
    pub fn load64_acquire(&self, offset: usize) -> Result<u64> {
        Ok(self.word::<u64>(offset)?.load(Acquire))
    }

    /// Writes a double word; see [`store32_release`](Self::store32_release).
    #[inline]
    pub fn store64_release(&self, offset: usize, value: u64) -> Result {
        self.word::<u64>(offset)?.store(value, Release);
        Ok(())
    }

    /// A snapshot of a value.
    #[inline]
    pub fn read<T: FromBytes>(&self, offset: usize) -> Result<T> {
        let ptr = self.at::<T>(offset)?;
        // SAFETY: Aligned and within the memory; any bytes are a `T`. Volatile, so it is read once
        // and may change meanwhile.
        Ok(unsafe { ptr.read_volatile() })
    }

    /// Writes a value.
    #[inline]
    pub fn write<T: IntoBytes + Immutable>(&self, offset: usize, value: &T) -> Result {
        let ptr = self.at::<MaybeUninit<T>>(offset)?;
        // SAFETY: Aligned and within the memory; the bytes of `value` are initialized, and copied.
        unsafe { ptr.write_volatile(core::ptr::from_ref(value).cast::<MaybeUninit<T>>().read()) };
        Ok(())
    }

    /// Writes bytes; all, or none.
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

    /// Reads bytes, each once. What another side writes meanwhile is in some of them, or not.
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
            // SAFETY: Allocated with these arguments from this device, which is bound; nobody uses
            // the memory any more.
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
                "{} bytes of DMA memory outlived the driver's binding\n",
                self.size
            );
        }
    }
}
