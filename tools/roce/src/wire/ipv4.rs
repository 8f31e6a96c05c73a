// SPDX-License-Identifier: GPL-2.0 OR MIT

//! IPv4 header without options, as RoCEv2 uses it.

use super::{field, gid_to_ipv4, ipv4_to_gid, put, Malformed, Path};

/// Bytes.
pub const LEN: usize = 20;
/// UDP.
pub const PROTOCOL_UDP: u8 = 17;

mod at {
    pub const VERSION_IHL: usize = 0;
    pub const TOS: usize = 1;
    pub const TOTAL_LENGTH: usize = 2;
    pub const FLAGS: usize = 6;
    pub const TTL: usize = 8;
    pub const PROTOCOL: usize = 9;
    pub const CHECKSUM: usize = 10;
    pub const SOURCE: usize = 12;
    pub const DESTINATION: usize = 16;
}

const DONT_FRAGMENT: u16 = 0x4000;

/// A header and what its total length says belongs to it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(&'a [u8]);

impl<'a> View<'a> {
    /// Checks version, lengths, checksum, and that it is no fragment.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        if bytes.len() < LEN {
            return Err(Malformed::Truncated);
        }
        // RoCEv2 has no options: the ICRC's mask is defined for 20 bytes (IBTA A17.3).
        if bytes[at::VERSION_IHL] != 0x45 {
            return Err(Malformed::Ip);
        }
        let total = usize::from(u16::from_be_bytes(field(bytes, at::TOTAL_LENGTH)));
        let fragment = u16::from_be_bytes(field(bytes, at::FLAGS)) & !DONT_FRAGMENT;
        if total < LEN || fragment != 0 {
            return Err(Malformed::Ip);
        }
        if bytes.len() < total {
            return Err(Malformed::Truncated);
        }
        if checksum(&bytes[..LEN]) != 0 {
            return Err(Malformed::IpChecksum);
        }
        Ok(Self(&bytes[..total]))
    }

    /// Protocol of the payload.
    pub fn protocol(&self) -> u8 {
        self.0[at::PROTOCOL]
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
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
    /// Bytes after the header.
    pub payload_len: u16,
}

impl Repr {
    /// The header of a packet that takes a path.
    pub fn from_path(path: &Path, payload_len: u16) -> Self {
        Self {
            tos: path.traffic_class,
            ttl: path.hop_limit,
            source: gid_to_ipv4(&path.sgid).unwrap_or_default(),
            destination: gid_to_ipv4(&path.dgid).unwrap_or_default(),
            payload_len,
        }
    }

    /// Fills in its part of a path.
    pub fn to_path(self, path: &mut Path) {
        path.traffic_class = self.tos;
        path.hop_limit = self.ttl;
        path.sgid = ipv4_to_gid(self.source);
        path.dgid = ipv4_to_gid(self.destination);
    }

    /// Reads it.
    pub fn parse(view: View<'_>) -> Self {
        let bytes = view.0;
        Self {
            tos: bytes[at::TOS],
            ttl: bytes[at::TTL],
            source: field(bytes, at::SOURCE),
            destination: field(bytes, at::DESTINATION),
            payload_len: (bytes.len() - LEN) as u16,
        }
    }

    /// Writes it, with its checksum.
    pub fn emit(&self, bytes: &mut [u8]) {
        let Some(bytes) = bytes.get_mut(..LEN) else {
            return;
        };
        bytes.fill(0);
        bytes[at::VERSION_IHL] = 0x45;
        bytes[at::TOS] = self.tos;
        put(
            bytes,
            at::TOTAL_LENGTH,
            &self.payload_len.saturating_add(LEN as u16).to_be_bytes(),
        );
        put(bytes, at::FLAGS, &DONT_FRAGMENT.to_be_bytes());
        bytes[at::TTL] = self.ttl;
        bytes[at::PROTOCOL] = PROTOCOL_UDP;
        put(bytes, at::SOURCE, &self.source);
        put(bytes, at::DESTINATION, &self.destination);
        let sum = checksum(bytes);
        put(bytes, at::CHECKSUM, &sum.to_be_bytes());
    }
}

/// The header with the fields that routers change set to ones, for the ICRC (IBTA A17.3).
pub(super) fn masked(header: &[u8]) -> [u8; LEN] {
    let mut masked: [u8; LEN] = field(header, 0);
    masked[at::TOS] = 0xff;
    masked[at::TTL] = 0xff;
    masked[at::CHECKSUM] = 0xff;
    masked[at::CHECKSUM + 1] = 0xff;
    masked
}

/// Internet checksum; 0 over a header that holds its own.
fn checksum(header: &[u8]) -> u16 {
    let mut sum: u32 = header
        .chunks_exact(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_of_a_known_header() {
        // From a captured frame: 10.0.17 to 10.0.18, UDP, checksum 0x9161.
        let header = [
            0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00,
            0x11, 0x01, 0x0a, 0x00, 0x12, 0x01,
        ];
        assert_eq!(checksum(&header), 0);
    }

    #[test]
    fn what_is_emitted_parses() {
        let repr = Repr {
            tos: 2,
            ttl: 64,
            source: [10, 0, 0, 1],
            destination: [10, 0, 0, 2],
            payload_len: 4,
        };
        let mut bytes = [0; 24];
        repr.emit(&mut bytes);
        assert_eq!(View::new(&bytes).map(Repr::parse).unwrap(), repr);
        bytes[15] ^= 1;
        assert_eq!(View::new(&bytes).unwrap_err(), Malformed::IpChecksum);
    }

    #[test]
    fn fragments_and_options_are_refused() {
        let repr = Repr {
            tos: 0,
            ttl: 1,
            source: [1; 4],
            destination: [2; 4],
            payload_len: 0,
        };
        let mut good = [0; 20];
        repr.emit(&mut good);
        let mut bad = good;
        bad[at::FLAGS] = 0x20;
        assert_eq!(View::new(&bad).unwrap_err(), Malformed::Ip);
        let mut bad = good;
        bad[0] = 0x46;
        assert_eq!(View::new(&bad).unwrap_err(), Malformed::Ip);
        assert_eq!(View::new(&good[..19]).unwrap_err(), Malformed::Truncated);
    }
}
