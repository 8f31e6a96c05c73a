// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plain memory that stands for a guest's memory. Only one thread uses it: the fake driver and the
//! device take turns.

use crate::memory::{Access, GuestMemory, Unreachable};
use std::cell::RefCell;
use verbena_abi::doorbell::Words;

/// DMA address of the first byte. Addresses below it cannot be reached.
pub const BASE: u64 = 0x10_0000;

/// The memory of the fake guest.
#[derive(Debug)]
pub struct Ram {
    bytes: RefCell<Vec<u8>>,
    /// Ranges that cannot be reached any more.
    hidden: RefCell<Vec<std::ops::Range<u64>>>,
}

impl Ram {
    /// Creates zeroed memory of `size` bytes.
    pub fn new(size: usize) -> Self {
        Self {
            bytes: RefCell::new(vec![0; size]),
            hidden: RefCell::default(),
        }
    }

    /// Makes a range unreachable, as if the guest's memory map had changed.
    pub fn hide(&self, addr: u64, len: u64) {
        self.hidden.borrow_mut().push(addr..addr + len);
    }

    /// Makes all hidden ranges reachable again.
    pub fn unhide(&self) {
        self.hidden.borrow_mut().clear();
    }

    fn at(&self, addr: u64, len: usize) -> Access<usize> {
        let offset = addr.checked_sub(BASE).ok_or(Unreachable)?;
        let size = self.bytes.borrow().len();
        let offset = usize::try_from(offset).map_err(|_| Unreachable)?;
        let overlaps = |r: &std::ops::Range<u64>| addr < r.end && addr + len as u64 > r.start;
        if self.hidden.borrow().iter().any(overlaps) {
            return Err(Unreachable);
        }
        if offset > size || len > size - offset {
            return Err(Unreachable);
        }
        Ok(offset)
    }

    fn word<const N: usize>(&self, addr: u64) -> Access<[u8; N]> {
        if addr % N as u64 != 0 {
            return Err(Unreachable);
        }
        let at = self.at(addr, N)?;
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes.borrow()[at..at + N]);
        Ok(out)
    }

    fn set_word<const N: usize>(&self, addr: u64, value: [u8; N]) -> Access {
        if addr % N as u64 != 0 {
            return Err(Unreachable);
        }
        self.write(addr, &value)
    }
}

impl GuestMemory for Ram {
    fn contains(&self, addr: u64, len: u64) -> bool {
        usize::try_from(len).is_ok_and(|len| self.at(addr, len).is_ok())
    }
    fn read(&self, addr: u64, to: &mut [u8]) -> Access {
        let at = self.at(addr, to.len())?;
        to.copy_from_slice(&self.bytes.borrow()[at..at + to.len()]);
        Ok(())
    }
    fn write(&self, addr: u64, from: &[u8]) -> Access {
        let at = self.at(addr, from.len())?;
        self.bytes.borrow_mut()[at..at + from.len()].copy_from_slice(from);
        Ok(())
    }
    fn copy_from(&self, to: u64, of: &Self, from: u64, len: usize) -> Access {
        let (to, from) = (self.at(to, len)?, of.at(from, len)?);
        let mut bytes = self.bytes.borrow_mut();
        if std::ptr::eq(self, of) {
            bytes.copy_within(from..from + len, to);
        } else {
            bytes[to..to + len].copy_from_slice(&of.bytes.borrow()[from..from + len]);
        }
        Ok(())
    }
    fn load32(&self, addr: u64) -> Access<u32> {
        self.word(addr).map(u32::from_le_bytes)
    }
    fn store32(&self, addr: u64, value: u32) -> Access {
        self.set_word(addr, value.to_le_bytes())
    }
    fn load64(&self, addr: u64) -> Access<u64> {
        self.word(addr).map(u64::from_le_bytes)
    }
    fn store64(&self, addr: u64, value: u64) -> Access {
        self.set_word(addr, value.to_le_bytes())
    }
    fn compare_swap64(&self, addr: u64, compare: u64, swap: u64) -> Access<u64> {
        let old = self.load64(addr)?;
        if old == compare {
            self.store64(addr, swap)?;
        }
        Ok(old)
    }
    fn fetch_add64(&self, addr: u64, add: u64) -> Access<u64> {
        let old = self.load64(addr)?;
        self.store64(addr, old.wrapping_add(add))?;
        Ok(old)
    }
}

/// A doorbell area as the guest accesses it.
#[derive(Clone, Copy, Debug)]
pub struct GuestWords<'a> {
    /// Memory that contains the area.
    pub ram: &'a Ram,
    /// DMA address of the area.
    pub base: u64,
}

impl Words for GuestWords<'_> {
    fn load(&self, offset: usize) -> u32 {
        self.ram.load32(self.base + offset as u64).unwrap_or(0)
    }
    fn load_acquire(&self, offset: usize) -> u32 {
        self.load(offset)
    }
    fn store(&self, offset: usize, value: u32) {
        let _ = self.ram.store32(self.base + offset as u64, value);
    }
    fn store_release(&self, offset: usize, value: u32) {
        self.store(offset, value);
    }
    fn store64_release(&self, offset: usize, value: u64) {
        let _ = self.ram.store64(self.base + offset as u64, value);
    }
    fn load64_acquire(&self, offset: usize) -> u64 {
        self.ram.load64(self.base + offset as u64).unwrap_or(0)
    }
    fn increment(&self, offset: usize) {
        self.store(offset, self.load(offset).wrapping_add(1));
    }
    fn fence(&self) {}
}
