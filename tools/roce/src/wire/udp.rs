// SPDX-License-Identifier: GPL-2.0 OR MIT

//! UDP header. Its checksum is sent as 0, over IPv6 too, and not looked at: zero or not, the ICRC covers more, and it leaves
//! the checksum out so that routers may change it (IBTA A17.3).

use super::{field, put, split, Malformed};

/// Bytes.
pub const LEN: usize = 8;
/// The port of RoCEv2.
pub const PORT: u16 = 4791;

mod at {
    pub const SOURCE: usize = 0;
    pub const DESTINATION: usize = 2;
    pub const LENGTH: usize = 4;
    pub const CHECKSUM: usize = 6;
}

/// A header and what its length says belongs to it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    header: &'a [u8; LEN],
    payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks the lengths.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = split(bytes)?;
        let length = usize::from(u16::from_be_bytes(field(header, at::LENGTH)));
        let length = length.checked_sub(LEN).ok_or(Malformed::Length)?;
        let payload = rest.get(..length).ok_or(Malformed::Length)?;
        Ok(Self { header, payload })
    }

    /// Source port.
    pub fn source(&self) -> u16 {
        u16::from_be_bytes(field(self.header, at::SOURCE))
    }

    /// Destination port.
    pub fn destination(&self) -> u16 {
        u16::from_be_bytes(field(self.header, at::DESTINATION))
    }

    /// What follows the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
    /// Bytes after the header.
    pub payload_len: u16,
}

impl Repr {
    /// Reads it.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            source: view.source(),
            destination: view.destination(),
            payload_len: view.payload.len() as u16,
        })
    }

    /// Writes it.
    pub fn emit(&self, bytes: &mut [u8]) {
        let length = self.payload_len.saturating_add(LEN as u16);
        put(bytes, at::SOURCE, &self.source.to_be_bytes());
        put(bytes, at::DESTINATION, &self.destination.to_be_bytes());
        put(bytes, at::LENGTH, &length.to_be_bytes());
        put(bytes, at::CHECKSUM, &[0, 0]);
    }
}

/// The header with its checksum set to ones, for the ICRC.
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
    fn lengths_that_cannot_be_are_refused() {
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
