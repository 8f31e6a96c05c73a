// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Guest memory as the device sees it: bytes at DMA addresses, never a Rust reference.
//!
//! The guest changes its memory whenever it likes, so everything here copies out or in, and a word that both sides look
//! at is loaded and stored at once. What is read is a snapshot to be validated; nothing is read twice where the first
//! answer was trusted.

pub mod elements;
pub mod order;
pub mod ring;
pub mod tables;

use std::sync::atomic::{fence, Ordering};
use verbena_abi::doorbell::Words;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The address is not in guest memory that the device can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable;

/// Result of an access.
pub type Access<T = ()> = Result<T, Unreachable>;

/// Guest memory. Ranges are checked by the implementation; none of these calls can fail in another way.
pub trait GuestMemory {
    /// Whether all of a range can be reached.
    fn contains(&self, addr: u64, len: u64) -> bool;
    /// Copies bytes out.
    fn read(&self, addr: u64, to: &mut [u8]) -> Access;
    /// Copies bytes in.
    fn write(&self, addr: u64, from: &[u8]) -> Access;
    /// Copies payload from another guest's memory, or inside one's own, in the order that [`order`] has; the ranges may overlap.
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
    /// Compares and swaps an aligned 64-bit word; returns the value before.
    fn compare_swap64(&self, addr: u64, compare: u64, swap: u64) -> Access<u64>;
    /// Adds to an aligned 64-bit word; returns the value before.
    fn fetch_add64(&self, addr: u64, add: u64) -> Access<u64>;

    /// Copies payload out, of which the device wants the bytes and not their meaning: a part of it, which begins at this place of it.
    #[inline]
    fn read_payload(&self, addr: u64, to: &mut [u8], _place: usize) -> Access {
        self.read(addr, to)
    }

    /// These bytes of payload are about to be written, in parts.
    #[inline]
    fn begin_payload(&self, _bytes: &[u8]) {}

    /// Copies a part of them in, in the order that [`order`] has.
    #[inline]
    fn write_payload(&self, addr: u64, from: &[u8]) -> Access {
        self.write(addr, from)
    }

    /// Takes a snapshot of a structure.
    #[inline]
    fn read_struct<T: FromBytes + IntoBytes>(&self, addr: u64) -> Access<T>
    where
        Self: Sized,
    {
        let mut value = T::new_zeroed();
        self.read(addr, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Writes a structure.
    #[inline]
    fn write_struct<T: IntoBytes + Immutable>(&self, addr: u64, value: &T) -> Access
    where
        Self: Sized,
    {
        self.write(addr, value.as_bytes())
    }
}

/// A doorbell area in guest memory. Reads of an area that has gone read 0, which no protocol step mistakes for work.
#[derive(Debug)]
pub struct Area<'a, M> {
    mem: &'a M,
    base: u64,
}

impl<'a, M: GuestMemory> Area<'a, M> {
    /// The area at a DMA address.
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
        // Only the guest increments; the device has no such word.
        debug_assert!(false, "the device increments nothing ({offset:#x})");
    }
    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}
