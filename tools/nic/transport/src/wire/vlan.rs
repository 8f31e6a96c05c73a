// SPDX-License-Identifier: GPL-2.0 OR MIT

//! 802.1Q tag: the four bytes between an Ethernet header of type 0x8100 and the tagged data.

use super::{field, put, split, Malformed};

/// Number of bytes of the tag after the Ethernet type.
pub const LEN: usize = 4;

mod at {
    pub const TAG: usize = 0;
    pub const TYPE: usize = 2;
}

const DROP_ELIGIBLE: u16 = 0x1000;
const ID: u16 = 0x0fff;

/// Bytes that begin with a complete tag.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    header: &'a [u8; LEN],
    payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks that the tag is complete.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, payload) = split(bytes)?;
        Ok(Self { header, payload })
    }

    fn tag(&self) -> u16 {
        u16::from_be_bytes(field(self.header, at::TAG))
    }

    /// Returns the VLAN id. A frame with id 0 has a priority only, and is in no VLAN.
    pub fn id(&self) -> u16 {
        self.tag() & ID
    }

    /// Returns the priority code point (PCP).
    pub fn priority(&self) -> u8 {
        (self.tag() >> 13) as u8
    }

    /// Returns the drop eligible indicator (DEI).
    pub fn drop_eligible(&self) -> bool {
        self.tag() & DROP_ELIGIBLE != 0
    }

    /// Returns the Ethernet type of the tagged data.
    pub fn ether_type(&self) -> u16 {
        u16::from_be_bytes(field(self.header, at::TYPE))
    }

    /// Returns the bytes after the tag.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Fields of the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// VLAN id of 12 bits.
    pub id: u16,
    /// Priority code point (PCP), 3 bits.
    pub priority: u8,
    /// Drop eligible indicator (DEI).
    pub drop_eligible: bool,
    /// Ethernet type of the tagged data.
    pub ether_type: u16,
}

impl Repr {
    /// Reads the fields of the tag.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            id: view.id(),
            priority: view.priority(),
            drop_eligible: view.drop_eligible(),
            ether_type: view.ether_type(),
        })
    }

    /// Writes the tag to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        let dei = if self.drop_eligible { DROP_ELIGIBLE } else { 0 };
        let tag = u16::from(self.priority & 7) << 13 | dei | self.id & ID;
        put(bytes, at::TAG, &tag.to_be_bytes());
        put(bytes, at::TYPE, &self.ether_type.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ethernet;

    #[test]
    fn fields_are_where_802_1q_has_them() {
        let mut repr = Repr {
            id: 0x123,
            priority: 5,
            drop_eligible: false,
            ether_type: ethernet::TYPE_IPV4,
        };
        let mut bytes = [0; LEN];
        repr.emit(&mut bytes);
        assert_eq!(bytes, [0xa1, 0x23, 8, 0]);
        assert_eq!(View::new(&bytes).and_then(Repr::parse), Ok(repr));
        assert_eq!(View::new(&bytes[..3]).unwrap_err(), Malformed::Truncated);
        repr.drop_eligible = true;
        repr.emit(&mut bytes);
        assert_eq!(bytes, [0xb1, 0x23, 8, 0]);
        assert_eq!(View::new(&bytes).and_then(Repr::parse), Ok(repr));
    }
}
