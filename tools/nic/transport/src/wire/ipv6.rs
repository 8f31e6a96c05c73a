// SPDX-License-Identifier: GPL-2.0 OR MIT

//! IPv6 header without extension headers. A GRH (`grh.rs`) has the same bits.

use super::ipv4::PROTOCOL_UDP;
use super::{field, gid_to_ipv4, put, split, Malformed, Path};

/// Number of bytes of the header.
pub const LEN: usize = 40;

mod at {
    pub const VERSION_CLASS_FLOW: usize = 0;
    pub const PAYLOAD_LENGTH: usize = 4;
    pub const NEXT_HEADER: usize = 6;
    pub const HOP_LIMIT: usize = 7;
    pub const SOURCE: usize = 8;
    pub const DESTINATION: usize = 24;
}

const FLOW_LABEL: u32 = 0xf_ffff;

/// A complete header and the packet that its payload length gives.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    header: &'a [u8; LEN],
    packet: &'a [u8],
    payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks the length of the header and the payload length.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = split::<LEN>(bytes)?;
        let length = usize::from(u16::from_be_bytes(field(header, at::PAYLOAD_LENGTH)));
        let payload = rest.get(..length).ok_or(Malformed::Truncated)?;
        let packet = bytes
            .get(..length.saturating_add(LEN))
            .ok_or(Malformed::Truncated)?;
        Ok(Self {
            header,
            packet,
            payload,
        })
    }

    fn word(&self) -> u32 {
        u32::from_be_bytes(field(self.header, at::VERSION_CLASS_FLOW))
    }

    /// Returns the IP version.
    pub fn version(&self) -> u8 {
        (self.word() >> 28) as u8
    }

    /// Returns the traffic class: DSCP and ECN.
    pub fn traffic_class(&self) -> u8 {
        (self.word() >> 20) as u8
    }

    /// Returns the flow label, 20 bits.
    pub fn flow_label(&self) -> u32 {
        self.word() & FLOW_LABEL
    }

    /// Returns the protocol of the payload.
    pub fn next_header(&self) -> u8 {
        let [byte] = field(self.header, at::NEXT_HEADER);
        byte
    }

    /// Returns the hop limit.
    pub fn hop_limit(&self) -> u8 {
        let [byte] = field(self.header, at::HOP_LIMIT);
        byte
    }

    /// Returns the source address.
    pub fn source(&self) -> [u8; 16] {
        field(self.header, at::SOURCE)
    }

    /// Returns the destination address.
    pub fn destination(&self) -> [u8; 16] {
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

/// Fields of the header of a UDP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label of 20 bits.
    pub flow_label: u32,
    /// Hop limit of the packet.
    pub hop_limit: u8,
    /// Address of the source.
    pub source: [u8; 16],
    /// Address of the destination.
    pub destination: [u8; 16],
    /// Number of bytes after the header.
    pub payload_len: u16,
}

impl Repr {
    /// Returns the header of a packet on a path.
    pub fn from_path(path: &Path, payload_len: u16) -> Self {
        Self {
            traffic_class: path.traffic_class,
            flow_label: path.flow_label & FLOW_LABEL,
            hop_limit: path.hop_limit,
            source: path.sgid,
            destination: path.dgid,
            payload_len,
        }
    }

    /// Sets the fields of a path that the header determines.
    pub fn to_path(self, path: &mut Path) {
        path.traffic_class = self.traffic_class;
        path.flow_label = self.flow_label;
        path.hop_limit = self.hop_limit;
        path.sgid = self.source;
        path.dgid = self.destination;
    }

    /// Reads the fields of the header. Refuses extension headers and all protocols but UDP. Also
    /// refuses IPv4-mapped addresses: they are the GIDs of IPv4 packets, and no IPv6 packet may use
    /// them.
    pub fn parse(view: View<'_>) -> Result<Self, Malformed> {
        let is_mapped = |address| gid_to_ipv4(&address).is_some();
        if view.version() != 6 || is_mapped(view.source()) || is_mapped(view.destination()) {
            return Err(Malformed::Ip);
        }
        if view.next_header() != PROTOCOL_UDP {
            return Err(Malformed::Protocol);
        }
        Ok(Self::of(view))
    }

    /// Returns the fields of the header, whose version and next header the caller has checked.
    pub(super) fn of(view: View<'_>) -> Self {
        Self {
            traffic_class: view.traffic_class(),
            flow_label: view.flow_label(),
            hop_limit: view.hop_limit(),
            source: view.source(),
            destination: view.destination(),
            payload_len: view.payload.len() as u16,
        }
    }

    /// Writes the header to the start of `bytes`.
    pub fn emit(&self, bytes: &mut [u8]) {
        self.emit_before(PROTOCOL_UDP, bytes);
    }

    /// Writes the header to the start of `bytes`, with the number of the header that follows.
    pub(super) fn emit_before(&self, next_header: u8, bytes: &mut [u8]) {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & FLOW_LABEL;
        put(bytes, at::VERSION_CLASS_FLOW, &word.to_be_bytes());
        put(bytes, at::PAYLOAD_LENGTH, &self.payload_len.to_be_bytes());
        put(bytes, at::NEXT_HEADER, &[next_header, self.hop_limit]);
        put(bytes, at::SOURCE, &self.source);
        put(bytes, at::DESTINATION, &self.destination);
    }
}

/// Returns the header with the fields that routers change set to ones, for the ICRC (IBTA A17.3).
pub(super) fn masked(header: &[u8]) -> [u8; LEN] {
    let mut masked: [u8; LEN] = field(header, 0);
    let word = u32::from_be_bytes(field(header, at::VERSION_CLASS_FLOW)) | 0x0fff_ffff;
    put(&mut masked, at::VERSION_CLASS_FLOW, &word.to_be_bytes());
    put(&mut masked, at::HOP_LIMIT, &[0xff]);
    masked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ipv4_to_gid;

    fn repr() -> Repr {
        Repr {
            traffic_class: 0xab,
            flow_label: 0x1_2345,
            hop_limit: 63,
            source: [1; 16],
            destination: [2; 16],
            payload_len: 2,
        }
    }

    fn emitted(repr: Repr) -> [u8; 42] {
        let mut bytes = [0; 42];
        repr.emit(&mut bytes);
        bytes
    }

    #[test]
    fn fields_are_where_rfc_8200_has_them() {
        let bytes = emitted(repr());
        assert_eq!(bytes[..8], [0x6a, 0xb1, 0x23, 0x45, 0, 2, 17, 63]);
        assert_eq!(bytes[8..24], [1; 16]);
        assert_eq!(bytes[24..40], [2; 16]);
        assert_eq!(View::new(&bytes).and_then(Repr::parse), Ok(repr()));
        assert_eq!(View::new(&bytes[..41]).unwrap_err(), Malformed::Truncated);
        assert_eq!(View::new(&bytes[..39]).unwrap_err(), Malformed::Truncated);
    }

    #[test]
    fn other_versions_and_extension_headers_are_refused() {
        let mut bytes = emitted(repr());
        bytes[0] = 0x4a;
        let wrong = View::new(&bytes).and_then(Repr::parse);
        assert_eq!(wrong, Err(Malformed::Ip));
        let mut bytes = emitted(repr());
        bytes[at::NEXT_HEADER] = 44;
        let wrong = View::new(&bytes).and_then(Repr::parse);
        assert_eq!(wrong, Err(Malformed::Protocol));
    }

    #[test]
    fn ipv4_mapped_addresses_are_refused() {
        let mapped = ipv4_to_gid([10, 0, 0, 1]);
        for (source, destination) in [(mapped, [2; 16]), ([1; 16], mapped), (mapped, mapped)] {
            let bytes = emitted(Repr {
                source,
                destination,
                ..repr()
            });
            let wrong = View::new(&bytes).and_then(Repr::parse);
            assert_eq!(wrong, Err(Malformed::Ip));
        }
    }
}
