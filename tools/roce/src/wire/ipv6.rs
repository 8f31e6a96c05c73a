// SPDX-License-Identifier: GPL-2.0 OR MIT

//! IPv6 header without extension headers. It is the GRH to the bit.

use super::{field, put, Malformed, Path};

/// Bytes.
pub const LEN: usize = 40;

mod at {
    pub const VERSION_CLASS_FLOW: usize = 0;
    pub const PAYLOAD_LENGTH: usize = 4;
    pub const NEXT_HEADER: usize = 6;
    pub const HOP_LIMIT: usize = 7;
    pub const SOURCE: usize = 8;
    pub const DESTINATION: usize = 24;
}

/// A header and what its payload length says belongs to it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8]);

impl<'a> View<'a> {
    /// Checks version and lengths.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        if bytes.len() < LEN {
            return Err(Malformed::Truncated);
        }
        if bytes[at::VERSION_CLASS_FLOW] >> 4 != 6 {
            return Err(Malformed::Ip);
        }
        let total = LEN + usize::from(u16::from_be_bytes(field(bytes, at::PAYLOAD_LENGTH)));
        if bytes.len() < total {
            return Err(Malformed::Truncated);
        }
        Ok(Self(&bytes[..total]))
    }

    /// Protocol of the payload.
    pub fn next_header(&self) -> u8 {
        self.0[at::NEXT_HEADER]
    }

    /// All bytes that belong to the packet.
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }

    /// What follows the header.
    pub fn payload(&self) -> &'a [u8] {
        &self.0[LEN..]
    }
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
    /// Bytes after the header.
    pub payload_len: u16,
}

impl Repr {
    /// The header of a packet that takes a path.
    pub fn from_path(path: &Path, payload_len: u16) -> Self {
        Self {
            traffic_class: path.traffic_class,
            flow_label: path.flow_label & 0xf_ffff,
            hop_limit: path.hop_limit,
            source: path.sgid,
            destination: path.dgid,
            payload_len,
        }
    }

    /// Fills in its part of a path.
    pub fn to_path(self, path: &mut Path) {
        path.traffic_class = self.traffic_class;
        path.flow_label = self.flow_label;
        path.hop_limit = self.hop_limit;
        path.sgid = self.source;
        path.dgid = self.destination;
    }

    /// Reads it.
    pub fn parse(view: View<'_>) -> Self {
        let bytes = view.0;
        let word = u32::from_be_bytes(field(bytes, at::VERSION_CLASS_FLOW));
        Self {
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xf_ffff,
            hop_limit: bytes[at::HOP_LIMIT],
            source: field(bytes, at::SOURCE),
            destination: field(bytes, at::DESTINATION),
            payload_len: (bytes.len() - LEN) as u16,
        }
    }

    /// Writes it.
    pub fn emit(&self, bytes: &mut [u8]) {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        put(bytes, at::VERSION_CLASS_FLOW, &word.to_be_bytes());
        put(bytes, at::PAYLOAD_LENGTH, &self.payload_len.to_be_bytes());
        put(
            bytes,
            at::NEXT_HEADER,
            &[super::ipv4::PROTOCOL_UDP, self.hop_limit],
        );
        put(bytes, at::SOURCE, &self.source);
        put(bytes, at::DESTINATION, &self.destination);
    }
}

/// The header with the fields that routers change set to ones, for the ICRC (IBTA A17.3).
pub(super) fn masked(header: &[u8]) -> [u8; LEN] {
    let mut masked: [u8; LEN] = field(header, 0);
    masked[0] |= 0x0f;
    masked[1..4].fill(0xff);
    masked[at::HOP_LIMIT] = 0xff;
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_rfc_8200_has_them() {
        let repr = Repr {
            traffic_class: 0xab,
            flow_label: 0x1_2345,
            hop_limit: 63,
            source: [1; 16],
            destination: [2; 16],
            payload_len: 2,
        };
        let mut bytes = [0; 42];
        repr.emit(&mut bytes);
        assert_eq!(bytes[..8], [0x6a, 0xb1, 0x23, 0x45, 0, 2, 17, 63]);
        assert_eq!(View::new(&bytes).map(Repr::parse).unwrap(), repr);
        assert_eq!(View::new(&bytes[..41]).unwrap_err(), Malformed::Truncated);
    }
}
