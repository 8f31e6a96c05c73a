// SPDX-License-Identifier: GPL-2.0 OR MIT

//! FLUSH extended transport header (IBTA A19): placement type in bits 3:0, selectivity level in
//! bits 5:4.

use super::{field, put, split, Malformed};
pub use crate::headers::Feth as Repr;

/// Number of bytes of the header.
pub const LEN: usize = 4;

mod at {
    pub const BITS: usize = 0;
}

const PLACEMENT: u32 = 0xf;
const LEVEL: u32 = 0x3;
const LEVEL_SHIFT: u32 = 4;

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

    fn bits(&self) -> u32 {
        u32::from_be_bytes(field(self.header, at::BITS))
    }

    /// Returns the placement type, 4 bits.
    pub fn placement(&self) -> u8 {
        (self.bits() & PLACEMENT) as u8
    }

    /// Returns the selectivity level, 2 bits.
    pub fn level(&self) -> u8 {
        (self.bits() >> LEVEL_SHIFT & LEVEL) as u8
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

impl Repr {
    /// Reads the fields of the header, and ignores reserved bits.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            placement: view.placement(),
            level: view.level(),
        })
    }

    /// Writes the header to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        let level = (u32::from(self.level) & LEVEL) << LEVEL_SHIFT;
        let bits = u32::from(self.placement) & PLACEMENT | level;
        put(bytes, at::BITS, &bits.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let repr = Repr {
            placement: 2,
            level: 1,
        };
        let mut bytes = [0; LEN];
        repr.emit(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0x12]);
        assert_eq!(View::new(&bytes).and_then(Repr::parse), Ok(repr));
        assert_eq!(View::new(&bytes[..3]).unwrap_err(), Malformed::Truncated);
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let repr = View::new(&[0xff, 0xff, 0xff, 0xd1]).and_then(Repr::parse);
        assert_eq!(
            repr,
            Ok(Repr {
                placement: 1,
                level: 1
            })
        );
    }
}
