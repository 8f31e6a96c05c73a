// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Invalidate extended transport header (IBTA 9.3).

use super::{put, split, Malformed};

/// Number of bytes of the header.
pub const LEN: usize = 4;

mod at {
    pub const RKEY: usize = 0;
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

    /// Returns the R_Key to invalidate.
    pub fn rkey(&self) -> u32 {
        u32::from_be_bytes(*self.header)
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Fields of the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// R_Key that the responder is to invalidate.
    pub rkey: u32,
}

impl Repr {
    /// Reads the fields of the header.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        Ok(Self { rkey: view.rkey() })
    }

    /// Writes the header to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        put(bytes, at::RKEY, &self.rkey.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_big_endian() {
        let repr = Repr { rkey: 0x0102_0304 };
        let mut bytes = [0; LEN];
        repr.emit(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert_eq!(View::new(&bytes).and_then(Repr::parse), Ok(repr));
        assert_eq!(
            View::new(&bytes[..LEN - 1]).unwrap_err(),
            Malformed::Truncated
        );
    }
}
