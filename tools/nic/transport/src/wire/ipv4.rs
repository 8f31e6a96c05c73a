// SPDX-License-Identifier: GPL-2.0 OR MIT

//! IPv4 header without options, as RoCEv2 uses it.

use super::{field, gid_to_ipv4, ipv4_to_gid, put, split, Malformed, Path};

/// Number of bytes of the header.
pub const LEN: usize = 20;
/// Protocol number of UDP.
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

/// Version 4 and a header length of five words. RoCEv2 has no options: the mask of the ICRC is
/// defined for 20 bytes (IBTA A17.3).
const VERSION_IHL: u8 = 0x45;
const DONT_FRAGMENT: u16 = 0x4000;
/// The flag "more fragments", and the fragment offset.
const FRAGMENT: u16 = 0x3fff;

/// A complete header and the packet that its total length gives.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    header: &'a [u8; LEN],
    packet: &'a [u8],
    payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks the length of the header and the total length.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, _) = split::<LEN>(bytes)?;
        let total = usize::from(u16::from_be_bytes(field(header, at::TOTAL_LENGTH)));
        let packet = bytes.get(..total).ok_or(Malformed::Truncated)?;
        let payload = packet.get(LEN..).ok_or(Malformed::Ip)?;
        Ok(Self {
            header,
            packet,
            payload,
        })
    }

    fn byte(&self, at: usize) -> u8 {
        let [byte] = field(self.header, at);
        byte
    }

    /// True if the header is of version 4 and has no options.
    pub fn is_plain(&self) -> bool {
        self.byte(at::VERSION_IHL) == VERSION_IHL
    }

    /// True if the packet is a fragment.
    pub fn is_fragment(&self) -> bool {
        u16::from_be_bytes(field(self.header, at::FLAGS)) & FRAGMENT != 0
    }

    /// True if the checksum of the header is correct.
    pub fn checksum_ok(&self) -> bool {
        checksum(self.header) == 0
    }

    /// Returns the type of service: DSCP and ECN.
    pub fn tos(&self) -> u8 {
        self.byte(at::TOS)
    }

    /// Returns the time to live (TTL).
    pub fn ttl(&self) -> u8 {
        self.byte(at::TTL)
    }

    /// Returns the protocol of the payload.
    pub fn protocol(&self) -> u8 {
        self.byte(at::PROTOCOL)
    }

    /// Returns the source address.
    pub fn source(&self) -> [u8; 4] {
        field(self.header, at::SOURCE)
    }

    /// Returns the destination address.
    pub fn destination(&self) -> [u8; 4] {
        field(self.header, at::DESTINATION)
    }

    /// Returns all bytes of the packet.
    pub fn packet(&self) -> &'a [u8] {
        self.packet
    }

    /// Returns the bytes after the header.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// Fields of the header of a UDP packet that is no fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Time to live (TTL).
    pub ttl: u8,
    /// Address of the source.
    pub source: [u8; 4],
    /// Address of the destination.
    pub destination: [u8; 4],
    /// Number of bytes after the header.
    pub payload_len: u16,
}

impl Repr {
    /// Returns the header of a packet on a path.
    pub fn from_path(path: &Path, payload_len: u16) -> Self {
        Self {
            tos: path.traffic_class,
            ttl: path.hop_limit,
            source: gid_to_ipv4(&path.sgid).unwrap_or_default(),
            destination: gid_to_ipv4(&path.dgid).unwrap_or_default(),
            payload_len,
        }
    }

    /// Sets the fields of a path that the header determines.
    pub fn to_path(self, path: &mut Path) {
        path.traffic_class = self.tos;
        path.hop_limit = self.ttl;
        path.sgid = ipv4_to_gid(self.source);
        path.dgid = ipv4_to_gid(self.destination);
    }

    /// Reads the fields of the header. Refuses options, fragments, wrong checksums and all
    /// protocols but UDP.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        if !view.is_plain() || view.is_fragment() {
            return Err(Malformed::Ip);
        }
        if !view.checksum_ok() {
            return Err(Malformed::IpChecksum);
        }
        if view.protocol() != PROTOCOL_UDP {
            return Err(Malformed::Protocol);
        }
        Ok(Self {
            tos: view.tos(),
            ttl: view.ttl(),
            source: view.source(),
            destination: view.destination(),
            payload_len: view.payload.len() as u16,
        })
    }

    /// Writes the header and its checksum to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        let mut header = [0; LEN];
        let total = self.payload_len.saturating_add(LEN as u16);
        put(&mut header, at::VERSION_IHL, &[VERSION_IHL, self.tos]);
        put(&mut header, at::TOTAL_LENGTH, &total.to_be_bytes());
        put(&mut header, at::FLAGS, &DONT_FRAGMENT.to_be_bytes());
        put(&mut header, at::TTL, &[self.ttl, PROTOCOL_UDP]);
        put(&mut header, at::SOURCE, &self.source);
        put(&mut header, at::DESTINATION, &self.destination);
        let sum = checksum(&header);
        put(&mut header, at::CHECKSUM, &sum.to_be_bytes());
        put(bytes, 0, &header);
    }
}

/// Returns the header with the fields that routers change set to ones, for the ICRC (IBTA A17.3).
pub(super) fn masked(header: &[u8]) -> [u8; LEN] {
    let mut masked: [u8; LEN] = field(header, 0);
    put(&mut masked, at::TOS, &[0xff]);
    put(&mut masked, at::TTL, &[0xff]);
    put(&mut masked, at::CHECKSUM, &[0xff; 2]);
    masked
}

/// Computes the Internet checksum; 0 over a header that contains its checksum.
fn checksum(header: &[u8; LEN]) -> u16 {
    let sum = header
        .chunks_exact(2)
        .map(|word| u32::from(u16::from_be_bytes(field(word, 0))))
        .fold(0, u32::wrapping_add);
    // The sum of ten words has no carry left after two folds.
    let sum = (sum & 0xffff).wrapping_add(sum >> 16);
    let sum = (sum & 0xffff).wrapping_add(sum >> 16);
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Header of a captured frame: 10.0.17.1 to 10.0.18.1, UDP, checksum 0x9161.
    const CAPTURED: [u8; 20] = [
        0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00, 0x11,
        0x01, 0x0a, 0x00, 0x12, 0x01,
    ];

    fn repr() -> Repr {
        Repr {
            tos: 2,
            ttl: 64,
            source: [10, 0, 0, 1],
            destination: [10, 0, 0, 2],
            payload_len: 4,
        }
    }

    fn emitted() -> [u8; 24] {
        let mut bytes = [0; 24];
        repr().emit(&mut bytes);
        bytes
    }

    /// Parses the header after a change of one byte, with a correct checksum.
    fn with(at: usize, value: u8) -> Result<Repr, Malformed> {
        let mut bytes = emitted();
        bytes[at] = value;
        put(&mut bytes, at::CHECKSUM, &[0, 0]);
        let sum = checksum(&field(&bytes, 0));
        put(&mut bytes, at::CHECKSUM, &sum.to_be_bytes());
        View::new(&bytes).and_then(Repr::parse)
    }

    #[test]
    fn checksum_of_a_known_header() {
        assert_eq!(checksum(&CAPTURED), 0);
        assert_eq!(checksum(&[0xff; LEN]), 0);
        assert_eq!(checksum(&[0; LEN]), 0xffff);
    }

    /// Reference: a one's complement sum that adds each carry at once (RFC 1071).
    fn bit_by_bit(header: &[u8; LEN]) -> u16 {
        let mut sum = 0u16;
        for word in header.chunks_exact(2) {
            let (more, carry) = sum.overflowing_add(u16::from_be_bytes([word[0], word[1]]));
            sum = more + u16::from(carry);
        }
        !sum
    }

    #[test]
    fn every_carry_is_added() {
        let mut header = CAPTURED;
        // The word takes every value, because some sums carry again when their carries are added.
        for word in 0..=u16::MAX {
            header[12..14].copy_from_slice(&word.to_be_bytes());
            assert_eq!(checksum(&header), bit_by_bit(&header), "{word:#x}");
        }
    }

    #[test]
    fn an_emitted_header_is_parsed() {
        let mut bytes = emitted();
        assert_eq!(View::new(&bytes).and_then(Repr::parse), Ok(repr()));
        bytes[15] ^= 1;
        let wrong = View::new(&bytes).and_then(Repr::parse);
        assert_eq!(wrong, Err(Malformed::IpChecksum));
    }

    #[test]
    fn fragments_options_and_other_protocols_are_refused() {
        assert_eq!(with(at::FLAGS, 0x00), Ok(repr()));
        assert_eq!(with(at::FLAGS, 0x20), Err(Malformed::Ip));
        assert_eq!(with(at::FLAGS + 1, 1), Err(Malformed::Ip));
        assert_eq!(with(at::VERSION_IHL, 0x46), Err(Malformed::Ip));
        assert_eq!(with(at::VERSION_IHL, 0x65), Err(Malformed::Ip));
        assert_eq!(with(at::PROTOCOL, 6), Err(Malformed::Protocol));
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let bytes = emitted();
        assert_eq!(View::new(&bytes[..19]).unwrap_err(), Malformed::Truncated);
        assert_eq!(View::new(&bytes[..23]).unwrap_err(), Malformed::Truncated);
        assert_eq!(with(at::TOTAL_LENGTH + 1, 19), Err(Malformed::Ip));
        assert_eq!(with(at::TOTAL_LENGTH + 1, 25), Err(Malformed::Truncated));
    }
}
