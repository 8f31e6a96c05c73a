// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Ethernet header, with or without an 802.1Q tag.

use super::{field, put, Malformed};

/// Bytes without a tag.
pub const LEN: usize = 14;
/// Bytes with a tag.
pub const LEN_TAGGED: usize = 18;
/// IPv4.
pub const TYPE_IPV4: u16 = 0x0800;
/// IPv6.
pub const TYPE_IPV6: u16 = 0x86dd;
const TYPE_VLAN: u16 = 0x8100;

mod at {
    pub const DESTINATION: usize = 0;
    pub const SOURCE: usize = 6;
    pub const TYPE: usize = 12;
    pub const TAG: usize = 14;
    pub const TAGGED_TYPE: usize = 16;
}

/// Bytes of which the header is complete.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8]);

impl<'a> View<'a> {
    /// Checks the length.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let view = Self(bytes);
        if bytes.len() < LEN || bytes.len() < view.header_len() {
            return Err(Malformed::Truncated);
        }
        Ok(view)
    }

    fn is_tagged(&self) -> bool {
        u16::from_be_bytes(field(self.0, at::TYPE)) == TYPE_VLAN
    }

    /// Bytes of the header.
    pub fn header_len(&self) -> usize {
        if self.is_tagged() {
            LEN_TAGGED
        } else {
            LEN
        }
    }

    /// What follows the header.
    pub fn payload(&self) -> &'a [u8] {
        self.0.get(self.header_len()..).unwrap_or(&[])
    }
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Destination MAC address.
    pub destination: [u8; 6],
    /// Source MAC address.
    pub source: [u8; 6],
    /// VLAN id and priority.
    pub vlan: Option<(u16, u8)>,
    /// What follows.
    pub ether_type: u16,
}

impl Repr {
    /// Reads it.
    pub fn parse(view: View<'_>) -> Self {
        let tag = u16::from_be_bytes(field(view.0, at::TAG));
        let (vlan, type_at) = if view.is_tagged() {
            (Some((tag & 0xfff, (tag >> 13) as u8)), at::TAGGED_TYPE)
        } else {
            (None, at::TYPE)
        };
        Self {
            destination: field(view.0, at::DESTINATION),
            source: field(view.0, at::SOURCE),
            vlan,
            ether_type: u16::from_be_bytes(field(view.0, type_at)),
        }
    }

    /// Bytes that [`Repr::emit`] writes.
    pub fn header_len(&self) -> usize {
        if self.vlan.is_some() {
            LEN_TAGGED
        } else {
            LEN
        }
    }

    /// Writes it.
    pub fn emit(&self, bytes: &mut [u8]) {
        put(bytes, at::DESTINATION, &self.destination);
        put(bytes, at::SOURCE, &self.source);
        match self.vlan {
            Some((id, priority)) => {
                put(bytes, at::TYPE, &TYPE_VLAN.to_be_bytes());
                put(
                    bytes,
                    at::TAG,
                    &(u16::from(priority & 7) << 13 | id & 0xfff).to_be_bytes(),
                );
                put(bytes, at::TAGGED_TYPE, &self.ether_type.to_be_bytes());
            }
            None => put(bytes, at::TYPE, &self.ether_type.to_be_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_moves_the_type() {
        let repr = Repr {
            destination: [1, 2, 3, 4, 5, 6],
            source: [7, 8, 9, 10, 11, 12],
            vlan: Some((0x123, 5)),
            ether_type: TYPE_IPV4,
        };
        let mut bytes = [0; LEN_TAGGED];
        repr.emit(&mut bytes);
        assert_eq!(
            bytes,
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x81, 0, 0xa1, 0x23, 8, 0]
        );
        assert_eq!(View::new(&bytes).map(Repr::parse), Ok(repr));
        assert_eq!(
            View::new(&bytes[..17]).map(Repr::parse),
            Err(Malformed::Truncated)
        );
    }
}
