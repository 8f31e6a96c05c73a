// SPDX-License-Identifier: GPL-2.0 OR MIT

//! UDP header. The checksum is sent as 0, over IPv6 too, and is ignored on arrival, whether it is
//! zero or not: the ICRC covers more than the checksum, and it leaves the checksum out so that
//! routers may change it (IBTA A17.3).

use super::{field, put, split, Malformed};

/// Number of bytes of the header.
pub const LEN: usize = 8;
/// UDP destination port of RoCEv2.
pub const PORT: u16 = 4791;

mod at {
    pub const SOURCE: usize = 0;
    pub const DESTINATION: usize = 2;
    pub const LENGTH: usize = 4;
    pub const CHECKSUM: usize = 6;
}

/// A complete header and the payload that its length field gives.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    header: &'a [u8; LEN],
    payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks the length of the header and the length field.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = split(bytes)?;
        let length = usize::from(u16::from_be_bytes(field(header, at::LENGTH)));
        let length = length.checked_sub(LEN).ok_or(Malformed::Length)?;
        let payload = rest.get(..length).ok_or(Malformed::Length)?;
        Ok(Self { header, payload })
    }

    /// Returns the source port.
    pub fn source(&self) -> u16 {
        u16::from_be_bytes(field(self.header, at::SOURCE))
    }

    /// Returns the destination port.
    pub fn destination(&self) -> u16 {
        u16::from_be_bytes(field(self.header, at::DESTINATION))
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Fields of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Port of the source.
    pub source: u16,
    /// Port of the destination.
    pub destination: u16,
    /// Number of bytes after the header.
    pub payload_len: u16,
}

impl Repr {
    /// Reads the fields of the header.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            source: view.source(),
            destination: view.destination(),
            payload_len: view.payload.len() as u16,
        })
    }

    /// Writes the header with a checksum of 0.
    pub fn emit(&self, bytes: &mut [u8]) {
        let length = self.payload_len.saturating_add(LEN as u16);
        put(bytes, at::SOURCE, &self.source.to_be_bytes());
        put(bytes, at::DESTINATION, &self.destination.to_be_bytes());
        put(bytes, at::LENGTH, &length.to_be_bytes());
        put(bytes, at::CHECKSUM, &[0, 0]);
    }
}

/// Returns the header with its checksum set to ones, for the ICRC.
pub(super) fn masked(header: &[u8]) -> [u8; LEN] {
    let mut masked: [u8; LEN] = field(header, 0);
    put(&mut masked, at::CHECKSUM, &[0xff; 2]);
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_rfc_768_has_them() {
        let repr = Repr {
            source: 0xc001,
            destination: PORT,
            payload_len: 2,
        };
        let mut bytes = [0xee; LEN + 3];
        repr.emit(&mut bytes);
        assert_eq!(bytes[..8], [0xc0, 1, 0x12, 0xb7, 0, 10, 0, 0]);
        let view = View::new(&bytes).unwrap();
        assert_eq!(view.payload(), [0xee; 2]);
        assert_eq!(Repr::parse(view), Ok(repr));
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let mut bytes = [0; 12];
        for (length, result) in [
            (7, Err(Malformed::Length)),
            (8, Ok(0)),
            (12, Ok(4)),
            (13, Err(Malformed::Length)),
        ] {
            bytes[5] = length;
            assert_eq!(View::new(&bytes).map(|view| view.payload().len()), result);
        }
        assert_eq!(View::new(&bytes[..7]).unwrap_err(), Malformed::Truncated);
    }
}
