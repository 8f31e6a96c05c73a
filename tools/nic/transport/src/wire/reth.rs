// SPDX-License-Identifier: GPL-2.0 OR MIT

//! RDMA extended transport header (IBTA 9.3).

use super::{field, put, split, Malformed};
pub use crate::headers::Reth as Repr;

/// Number of bytes of the header.
pub const LEN: usize = 16;

mod at {
    pub const ADDR: usize = 0;
    pub const RKEY: usize = 8;
    pub const LENGTH: usize = 12;
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

    /// Returns the DMA length in bytes.
    pub fn length(&self) -> u32 {
        u32::from_be_bytes(field(self.header, at::LENGTH))
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

impl Repr {
    /// Reads the fields of the header.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            addr: view.addr(),
            rkey: view.rkey(),
            length: view.length(),
        })
    }

    /// Writes the header to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        put(bytes, at::ADDR, &self.addr.to_be_bytes());
        put(bytes, at::RKEY, &self.rkey.to_be_bytes());
        put(bytes, at::LENGTH, &self.length.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let repr = Repr {
            addr: 0x0102_0304_0506_0708,
            rkey: 0x1122_3344,
            length: 0x55,
        };
        let mut bytes = [0; LEN];
        repr.emit(&mut bytes);
        assert_eq!(
            bytes,
            [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0x55]
        );
        assert_eq!(View::new(&bytes).and_then(Repr::parse), Ok(repr));
        assert_eq!(View::new(&bytes[..15]).unwrap_err(), Malformed::Truncated);
    }
}
