// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Datagram extended transport header (IBTA 9.3).

use super::{field, field24, put, put24, split, Malformed};

/// Number of bytes of the header.
pub const LEN: usize = 8;

mod at {
    pub const QKEY: usize = 0;
    pub const RESERVED: usize = 4;
    pub const SRC_QP: usize = 5;
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

    /// Returns the Q_Key of the datagram.
    pub fn qkey(&self) -> u32 {
        u32::from_be_bytes(field(self.header, at::QKEY))
    }

    /// Returns the QPN of the source.
    pub fn src_qpn(&self) -> u32 {
        field24(self.header, at::SRC_QP)
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Fields of the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// Q_Key of the datagram.
    pub qkey: u32,
    /// QPN of the source, 24 bits.
    pub src_qpn: u32,
}

impl Repr {
    /// Reads the fields of the header.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            qkey: view.qkey(),
            src_qpn: view.src_qpn(),
        })
    }

    /// Writes the header to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        put(bytes, at::QKEY, &self.qkey.to_be_bytes());
        put(bytes, at::RESERVED, &[0]);
        put24(bytes, at::SRC_QP, self.src_qpn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_qpn_has_24_bits() {
        let repr = Repr {
            qkey: 0x8001_0203,
            src_qpn: 0x04_0506,
        };
        let mut bytes = [0xff; LEN];
        repr.emit(&mut bytes);
        assert_eq!(bytes, [0x80, 1, 2, 3, 0, 4, 5, 6]);
        bytes[at::RESERVED] = 0xff;
        assert_eq!(View::new(&bytes).and_then(Repr::parse), Ok(repr));
        assert_eq!(View::new(&bytes[..7]).unwrap_err(), Malformed::Truncated);
        let too_long = Repr {
            src_qpn: 0xff04_0506,
            ..repr
        };
        too_long.emit(&mut bytes);
        assert_eq!(View::new(&bytes).and_then(Repr::parse), Ok(repr));
    }
}
