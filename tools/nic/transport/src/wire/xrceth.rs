// SPDX-License-Identifier: GPL-2.0 OR MIT

//! XRC extended transport header (IBTA A14). Every request of an extended connection has this
//! header, and no response has it.

use super::{put, split, Malformed};

/// Number of bytes of the header.
pub const LEN: usize = 4;

mod at {
    pub const SRQN: usize = 0;
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

    /// Returns the number of the shared receive queue: 24 bits after 8 reserved bits.
    pub fn srqn(&self) -> u32 {
        u32::from_be_bytes(*self.header) & 0xff_ffff
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Fields of the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// Number of the shared receive queue, 24 bits.
    pub srqn: u32,
}

impl Repr {
    /// Reads the fields of the header.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        Ok(Self { srqn: view.srqn() })
    }

    /// Writes the header to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        put(bytes, at::SRQN, &(self.srqn & 0xff_ffff).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bits_are_sent_as_zero_and_ignored() {
        let repr = Repr { srqn: 0xff02_0304 };
        let mut bytes = [0; LEN];
        repr.emit(&mut bytes);
        assert_eq!(bytes, [0, 2, 3, 4]);
        bytes[0] = 0x80;
        let parsed = View::new(&bytes).and_then(Repr::parse);
        assert_eq!(parsed, Ok(Repr { srqn: 0x02_0304 }));
        assert_eq!(
            View::new(&bytes[..LEN - 1]).unwrap_err(),
            Malformed::Truncated
        );
    }
}
