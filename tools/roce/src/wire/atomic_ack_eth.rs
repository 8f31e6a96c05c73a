// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Atomic acknowledge extended transport header (IBTA 9.3): follows the AETH.

use super::{put, split, Malformed};

/// Bytes.
pub const LEN: usize = 8;

mod at {
    pub const ORIGINAL: usize = 0;
}

/// Bytes of which the header is complete.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    header: &'a [u8; LEN],
    payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks the length.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, payload) = split(bytes)?;
        Ok(Self { header, payload })
    }

    /// The value before the operation.
    pub fn original(&self) -> u64 {
        u64::from_be_bytes(*self.header)
    }

    /// What follows the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// A header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// The value before the operation.
    pub original: u64,
}

impl Repr {
    /// Reads it.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            original: view.original(),
        })
    }

    /// Writes it.
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
