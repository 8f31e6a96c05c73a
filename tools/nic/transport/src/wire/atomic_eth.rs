// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Atomic extended transport header (IBTA 9.3), of both atomic operations. FetchAdd does not use
//! the last field.

use super::{field, put, split, Malformed};
use crate::headers::AtomicOp;

/// Number of bytes of the header.
pub const LEN: usize = 28;

mod at {
    pub const ADDR: usize = 0;
    pub const RKEY: usize = 8;
    pub const SWAP_ADD: usize = 12;
    pub const COMPARE: usize = 20;
}

/// Bytes that begin with a complete header.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    header: &'a [u8; LEN],
    payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks that the header is complete.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, payload) = split(bytes)?;
        Ok(Self { header, payload })
    }

    /// Returns the virtual address.
    pub fn addr(&self) -> u64 {
        u64::from_be_bytes(field(self.header, at::ADDR))
    }

    /// Returns the R_Key of the memory region.
    pub fn rkey(&self) -> u32 {
        u32::from_be_bytes(field(self.header, at::RKEY))
    }

    /// Returns the swap or add data.
    pub fn swap_add(&self) -> u64 {
        u64::from_be_bytes(field(self.header, at::SWAP_ADD))
    }

    /// Returns the compare data.
    pub fn compare(&self) -> u64 {
        u64::from_be_bytes(field(self.header, at::COMPARE))
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Fields of the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// Virtual address of the 8 bytes.
    pub addr: u64,
    /// R_Key of the memory region.
    pub rkey: u32,
    /// Value to store (CmpSwap) or to add (FetchAdd).
    pub swap_add: u64,
    /// Value to compare with (CmpSwap).
    pub compare: u64,
}

impl Repr {
    /// Returns the header of an operation.
    pub fn new(addr: u64, rkey: u32, op: AtomicOp) -> Self {
        let (swap_add, compare) = match op {
            AtomicOp::CompareSwap { compare, swap } => (swap, compare),
            AtomicOp::FetchAdd { add } => (add, 0),
        };
        Self {
            addr,
            rkey,
            swap_add,
            compare,
        }
    }

    /// Returns the operation of a CmpSwap with this header.
    pub fn compare_swap(&self) -> AtomicOp {
        AtomicOp::CompareSwap {
            compare: self.compare,
            swap: self.swap_add,
        }
    }

    /// Returns the operation of a FetchAdd with this header.
    pub fn fetch_add(&self) -> AtomicOp {
        AtomicOp::FetchAdd { add: self.swap_add }
    }

    /// Reads the fields of the header.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            addr: view.addr(),
            rkey: view.rkey(),
            swap_add: view.swap_add(),
            compare: view.compare(),
        })
    }

    /// Writes the header to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        put(bytes, at::ADDR, &self.addr.to_be_bytes());
        put(bytes, at::RKEY, &self.rkey.to_be_bytes());
        put(bytes, at::SWAP_ADD, &self.swap_add.to_be_bytes());
        put(bytes, at::COMPARE, &self.compare.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_swap_then_compare() {
        let op = AtomicOp::CompareSwap {
            compare: 1,
            swap: 2,
        };
        let repr = Repr::new(8, 3, op);
        let mut bytes = [0xee; LEN];
        repr.emit(&mut bytes);
        assert_eq!(bytes[..12], [0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 3]);
        assert_eq!(
            bytes[12..],
            [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1]
        );
        let parsed = View::new(&bytes).and_then(Repr::parse);
        assert_eq!(parsed, Ok(repr));
        assert_eq!(repr.compare_swap(), op);
        assert_eq!(View::new(&bytes[..27]).unwrap_err(), Malformed::Truncated);
    }

    #[test]
    fn fetch_add_has_no_compare() {
        let op = AtomicOp::FetchAdd { add: 7 };
        let repr = Repr::new(8, 3, op);
        assert_eq!((repr.swap_add, repr.compare), (7, 0));
        assert_eq!(repr.fetch_add(), op);
    }
}
