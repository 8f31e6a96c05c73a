// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Immediate data (IBTA 9.3).

use super::{put, split, Malformed};

/// Number of bytes of the header.
pub const LEN: usize = 4;

mod at {
    pub const DATA: usize = 0;
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

    /// Returns the immediate data. It is opaque, so it stays in network order.
    pub fn data(&self) -> [u8; 4] {
        *self.header
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Fields of the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// Immediate data, which is opaque and therefore stays in network order.
    pub data: [u8; 4],
}

impl Repr {
    /// Reads the fields of the header.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        Ok(Self { data: view.data() })
    }

    /// Writes the header to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        put(bytes, at::DATA, &self.data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_stays_in_network_order() {
        let repr = Repr { data: [1, 2, 3, 4] };
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
