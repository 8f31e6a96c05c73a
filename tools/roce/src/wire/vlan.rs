// SPDX-License-Identifier: GPL-2.0 OR MIT

//! 802.1Q tag: the four bytes between an Ethernet header of type 0x8100 and what is tagged.

use super::{field, put, split, Malformed};

/// Bytes.
pub const LEN: usize = 4;

mod at {
    pub const TAG: usize = 0;
    pub const TYPE: usize = 2;
}

const DROP_ELIGIBLE: u16 = 0x1000;
const ID: u16 = 0x0fff;

/// Bytes of which the tag is complete.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    header: &'a [u8; LEN],
    payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks the length.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, payload) = split(bytes)?;
        Ok(Self { header, payload })
    }

    fn tag(&self) -> u16 {
        u16::from_be_bytes(field(self.header, at::TAG))
    }

    /// VLAN id. 0: the frame has a priority only, and is in no VLAN.
    pub fn id(&self) -> u16 {
        self.tag() & ID
    }

    /// Priority code point.
    pub fn priority(&self) -> u8 {
        (self.tag() >> 13) as u8
    }

    /// Drop eligible indicator.
    pub fn drop_eligible(&self) -> bool {
        self.tag() & DROP_ELIGIBLE != 0
    }

    /// What follows.
    pub fn ether_type(&self) -> u16 {
        u16::from_be_bytes(field(self.header, at::TYPE))
    }

    /// What follows the tag.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// A tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// VLAN id, 12 bits.
    pub id: u16,
    /// Priority code point, 3 bits.
    pub priority: u8,
    /// Drop eligible indicator.
    pub drop_eligible: bool,
    /// What follows.
    pub ether_type: u16,
}

impl Repr {
    /// Reads it.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            id: view.id(),
            priority: view.priority(),
            drop_eligible: view.drop_eligible(),
            ether_type: view.ether_type(),
        })
    }

    /// Writes it.
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
