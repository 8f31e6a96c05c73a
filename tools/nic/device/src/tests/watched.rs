// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Guest memory that records the accesses of the device, in order.

use crate::memory::{Access, GuestMemory};
use crate::mock::Ram;
use std::cell::RefCell;

/// An access: address, length in bytes, and for a store the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Copies bytes out.
    Read(u64, u64),
    /// Copies bytes in.
    Write(u64, u64),
    /// Loads a word.
    Load(u64, u64),
    /// Stores a word.
    Store(u64, u64, u64),
}

impl Op {
    /// True if the access changes memory.
    pub fn writes(&self) -> bool {
        matches!(self, Self::Write(..) | Self::Store(..))
    }

    /// True if the access touches a byte of a range.
    pub fn touches(&self, addr: u64, len: u64) -> bool {
        let (at, bytes) = match *self {
            Self::Read(a, n) | Self::Write(a, n) | Self::Load(a, n) | Self::Store(a, n, _) => {
                (a, n)
            }
        };
        at < addr + len && at + bytes > addr
    }
}

/// Guest memory and its recorded accesses.
pub struct Watched<'a> {
    ram: &'a Ram,
    ops: RefCell<Vec<Op>>,
}

impl<'a> Watched<'a> {
    /// Begins to record accesses to this memory.
    pub fn new(ram: &'a Ram) -> Self {
        Self {
            ram,
            ops: RefCell::default(),
        }
    }

    /// Returns the accesses so far.
    pub fn ops(&self) -> Vec<Op> {
        self.ops.borrow().clone()
    }

    fn note(&self, op: Op) {
        self.ops.borrow_mut().push(op);
    }
}

impl GuestMemory for Watched<'_> {
    fn contains(&self, addr: u64, len: u64) -> bool {
        self.ram.contains(addr, len)
    }
    fn read(&self, addr: u64, to: &mut [u8]) -> Access {
        self.note(Op::Read(addr, to.len() as u64));
        self.ram.read(addr, to)
    }
    fn write(&self, addr: u64, from: &[u8]) -> Access {
        self.note(Op::Write(addr, from.len() as u64));
        self.ram.write(addr, from)
    }
    fn copy_from(&self, to: u64, of: &Self, from: u64, len: usize) -> Access {
        of.note(Op::Read(from, len as u64));
        self.note(Op::Write(to, len as u64));
        self.ram.copy_from(to, of.ram, from, len)
    }
    fn load32(&self, addr: u64) -> Access<u32> {
        self.note(Op::Load(addr, 4));
        self.ram.load32(addr)
    }
    fn store32(&self, addr: u64, value: u32) -> Access {
        self.note(Op::Store(addr, 4, value.into()));
        self.ram.store32(addr, value)
    }
    fn load64(&self, addr: u64) -> Access<u64> {
        self.note(Op::Load(addr, 8));
        self.ram.load64(addr)
    }
    fn store64(&self, addr: u64, value: u64) -> Access {
        self.note(Op::Store(addr, 8, value));
        self.ram.store64(addr, value)
    }
    fn compare_swap64(&self, addr: u64, compare: u64, swap: u64) -> Access<u64> {
        self.note(Op::Store(addr, 8, swap));
        self.ram.compare_swap64(addr, compare, swap)
    }
    fn fetch_add64(&self, addr: u64, add: u64) -> Access<u64> {
        self.note(Op::Store(addr, 8, add));
        self.ram.fetch_add64(addr, add)
    }
}
