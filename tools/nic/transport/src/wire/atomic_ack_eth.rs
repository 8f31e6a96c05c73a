// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Atomic acknowledge extended transport header (IBTA 9.3), which follows the AETH.

use super::{put, split, Malformed};

/// Number of bytes of the header.
pub const LEN: usize = 8;

mod at {
    pub const ORIGINAL: usize = 0;
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

    /// Returns the value before the operation.
    pub fn original(&self) -> u64 {
        u64::from_be_bytes(*self.header)
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Fields of the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// Value of the memory before the operation.
    pub original: u64,
}

impl Repr {
    /// Reads the fields of the header.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            original: view.original(),
        })
    }

    /// Writes the header to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        put(bytes, at::ORIGINAL, &self.original.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_big_endian() {
        let repr = Repr {
            original: 0x0102_0304_0506_0708,
        };
        let mut bytes = [0; LEN];
        repr.emit(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(View::new(&bytes).and_then(Repr::parse), Ok(repr));
        assert_eq!(
            View::new(&bytes[..LEN - 1]).unwrap_err(),
            Malformed::Truncated
        );
    }
}
