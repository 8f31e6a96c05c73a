// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Ethernet header. An 802.1Q tag (`vlan.rs`) follows the header if its type is that of a tag.

use super::{field, put, split, Malformed};

/// Number of bytes of the header.
pub const LEN: usize = 14;
/// Ethernet type of IPv4.
pub const TYPE_IPV4: u16 = 0x0800;
/// Ethernet type of an 802.1Q tag.
pub const TYPE_VLAN: u16 = 0x8100;
/// Ethernet type of IPv6.
pub const TYPE_IPV6: u16 = 0x86dd;

mod at {
    pub const DESTINATION: usize = 0;
    pub const SOURCE: usize = 6;
    pub const TYPE: usize = 12;
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

    /// Returns the destination MAC address.
    pub fn destination(&self) -> [u8; 6] {
        field(self.header, at::DESTINATION)
    }

    /// Returns the source MAC address.
    pub fn source(&self) -> [u8; 6] {
        field(self.header, at::SOURCE)
    }

    /// Returns the type of the payload.
    pub fn ether_type(&self) -> u16 {
        u16::from_be_bytes(field(self.header, at::TYPE))
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Fields of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// MAC address of the destination.
    pub destination: [u8; 6],
    /// MAC address of the source.
    pub source: [u8; 6],
    /// Ethernet type of the payload.
    pub ether_type: u16,
}

impl Repr {
    /// Reads the fields of the header.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            destination: view.destination(),
            source: view.source(),
            ether_type: view.ether_type(),
        })
    }

    /// Writes the header to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        put(bytes, at::DESTINATION, &self.destination);
        put(bytes, at::SOURCE, &self.source);
        put(bytes, at::TYPE, &self.ether_type.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_802_3_has_them() {
        let repr = Repr {
            destination: [1, 2, 3, 4, 5, 6],
            source: [7, 8, 9, 10, 11, 12],
            ether_type: TYPE_IPV6,
        };
        let mut bytes = [0; LEN];
        repr.emit(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x86, 0xdd]);
        assert_eq!(View::new(&bytes).and_then(Repr::parse), Ok(repr));
        assert_eq!(View::new(&bytes[..13]).unwrap_err(), Malformed::Truncated);
    }
}
