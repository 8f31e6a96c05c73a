// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Guest memory as the device sees it: bytes at DMA addresses, never a Rust reference.
//!
//! The guest may change its memory at any time. Therefore everything here copies out or in, and a
//! word that both sides use is loaded and stored with one access. A value that was read is a
//! snapshot, which has to be validated. No value is read a second time after the first one was
//! trusted.

pub mod elements;
pub mod order;
pub mod ring;
pub mod tables;

use std::sync::atomic::{fence, Ordering};
use verbena_abi::doorbell::Words;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Error: the address is not in guest memory that the device can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable;

/// Result of an access to guest memory.
pub type Access<T = ()> = Result<T, Unreachable>;

/// Guest memory. The implementation checks the ranges; none of these calls can fail for another
/// reason.
pub trait GuestMemory {
    /// True if the device can reach all bytes of a range.
    fn contains(&self, addr: u64, len: u64) -> bool;
    /// Copies bytes out of guest memory.
    fn read(&self, addr: u64, to: &mut [u8]) -> Access;
    /// Copies bytes into guest memory.
    fn write(&self, addr: u64, from: &[u8]) -> Access;
    /// Copies payload from another guest's memory or within the same memory, in the order of
    /// [`order`]. The ranges may overlap.
    fn copy_from(&self, to: u64, of: &Self, from: u64, len: usize) -> Access
    where
        Self: Sized;
    /// Loads an aligned word with acquire order.
    fn load32(&self, addr: u64) -> Access<u32>;
    /// Stores an aligned word with release order.
    fn store32(&self, addr: u64, value: u32) -> Access;
    /// Loads an aligned 64-bit word with acquire order.
    fn load64(&self, addr: u64) -> Access<u64>;
    /// Stores an aligned 64-bit word with release order.
    fn store64(&self, addr: u64, value: u64) -> Access;
    /// Compares and swaps an aligned 64-bit word. Returns the previous value.
    fn compare_swap64(&self, addr: u64, compare: u64, swap: u64) -> Access<u64>;
    /// Adds to an aligned 64-bit word. Returns the previous value.
    fn fetch_add64(&self, addr: u64, add: u64) -> Access<u64>;

    /// Full fence: orders all earlier accesses to guest memory before all later ones, also earlier
    /// stores before later loads. Only models have a fence of their own (`tests/loom_queues.rs`).
    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    /// Copies a part of a payload out of guest memory. The part begins at `_place` of the payload.
    /// The device does not interpret these bytes.
    #[inline]
    fn read_payload(&self, addr: u64, to: &mut [u8], _place: usize) -> Access {
        self.read(addr, to)
    }

    /// Announces that these bytes of payload will be written, in parts.
    #[inline]
    fn begin_payload(&self, _bytes: &[u8]) {}

    /// Copies a part of the announced payload in, in the order of [`order`].
    #[inline]
    fn write_payload(&self, addr: u64, from: &[u8]) -> Access {
        self.write(addr, from)
    }

    /// Copies a structure out of guest memory, as a snapshot.
    #[inline]
    fn read_struct<T: FromBytes + IntoBytes>(&self, addr: u64) -> Access<T>
    where
        Self: Sized,
    {
        let mut value = T::new_zeroed();
        self.read(addr, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Copies a structure into guest memory.
    #[inline]
    fn write_struct<T: IntoBytes + Immutable>(&self, addr: u64, value: &T) -> Access
    where
        Self: Sized,
    {
        self.write(addr, value.as_bytes())
    }
}

/// A doorbell area in guest memory. Words of an area that cannot be reached read as 0, which no
/// step of the protocol takes for work.
#[derive(Debug)]
pub struct Area<'a, M> {
    mem: &'a M,
    base: u64,
}

impl<'a, M: GuestMemory> Area<'a, M> {
    /// Returns the doorbell area at a DMA address.
    pub fn new(mem: &'a M, base: u64) -> Self {
        Self { mem, base }
    }
}

impl<M: GuestMemory> Words for Area<'_, M> {
    #[inline]
    fn load(&self, offset: usize) -> u32 {
        self.load_acquire(offset)
    }
    #[inline]
    fn load_acquire(&self, offset: usize) -> u32 {
        self.mem
            .load32(self.base.wrapping_add(offset as u64))
            .unwrap_or(0)
    }
    #[inline]
    fn store(&self, offset: usize, value: u32) {
        self.store_release(offset, value);
    }
    #[inline]
    fn store_release(&self, offset: usize, value: u32) {
        let _ = self
            .mem
            .store32(self.base.wrapping_add(offset as u64), value);
    }
    #[inline]
    fn store64_release(&self, offset: usize, value: u64) {
        let _ = self
            .mem
            .store64(self.base.wrapping_add(offset as u64), value);
    }
    #[inline]
    fn load64_acquire(&self, offset: usize) -> u64 {
        self.mem
            .load64(self.base.wrapping_add(offset as u64))
            .unwrap_or(0)
    }
    fn increment(&self, offset: usize) {
        // Only the guest increments words; the device has no such word.
        debug_assert!(false, "the device increments nothing ({offset:#x})");
    }
    #[inline]
    fn fence(&self) {
        self.mem.fence();
    }
}
