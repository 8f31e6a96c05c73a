// SPDX-License-Identifier: GPL-2.0 OR MIT

//! RoCEv2 frames to the bit: Ethernet, IPv4 or IPv6, UDP, BTH and its extension headers, payload, ICRC.
//!
//! Each header has the same form: its length, a `View` of bytes whose length was checked, a `Repr` that can only hold
//! what is valid, `Repr::parse` from the one to the other and `Repr::emit` back. [`frame`] puts them together.

pub mod bth;
pub mod ethernet;
pub mod ext;
pub mod frame;
pub mod icrc;
pub mod ipv4;
pub mod ipv6;
pub mod udp;

/// Why a frame is not a RoCEv2 packet that a queue pair can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It ends before its headers do.
    Truncated,
    /// Not IPv4 or IPv6.
    EtherType,
    /// A field of the IP header is invalid, or it is a fragment.
    Ip,
    /// The IPv4 header's checksum is wrong.
    IpChecksum,
    /// Not UDP.
    Protocol,
    /// Not for the RoCEv2 port.
    Port,
    /// Lengths of the headers contradict each other or the frame.
    Length,
    /// The BTH has an unknown version.
    TransportVersion,
    /// The BTH has an opcode that is not served.
    Opcode,
    /// An AETH has a reserved syndrome.
    Syndrome,
    /// The invariant CRC is wrong.
    Icrc,
}

/// Everything outside of the BTH that a frame needs: both ends as the *sender* names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Source MAC address.
    pub smac: [u8; 6],
    /// Destination MAC address.
    pub dmac: [u8; 6],
    /// VLAN id, if the source GID has one.
    pub vlan: Option<u16>,
    /// Source GID in network order; IPv4 as ::ffff:a.b.c.d.
    pub sgid: [u8; 16],
    /// Destination GID; of the same kind.
    pub dgid: [u8; 16],
    /// UDP source port: 0xc000 and above (IBTA A17.3).
    pub udp_sport: u16,
    /// 20 bits, IPv6 only.
    pub flow_label: u32,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Hop limit (TTL).
    pub hop_limit: u8,
    /// Service level; the priority of a VLAN tag.
    pub sl: u8,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            smac: [0; 6],
            dmac: [0; 6],
            vlan: None,
            sgid: [0; 16],
            dgid: [0; 16],
            udp_sport: 0xc000,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            sl: 0,
        }
    }
}

impl Path {
    /// Whether frames are IPv4.
    pub fn is_ipv4(&self) -> bool {
        gid_to_ipv4(&self.sgid).is_some() && gid_to_ipv4(&self.dgid).is_some()
    }
}

/// The IPv4 address that a GID stands for, if it does.
pub fn gid_to_ipv4(gid: &[u8; 16]) -> Option<[u8; 4]> {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([*a, *b, *c, *d]),
        _ => None,
    }
}

/// The GID of an IPv4 address.
pub fn ipv4_to_gid(addr: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = addr;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// What a receiver stores before a datagram of `udp_length` bytes that came this way: the IPv6 header, or 20 bytes of
/// zero and the IPv4 header (IBTA A17.4).
pub fn stored_grh(path: &Path, udp_length: u32) -> [u8; 40] {
    let mut grh = [0; 40];
    let length = udp_length.min(0xffff - 20) as u16;
    if path.is_ipv4() {
        ipv4::Repr::from_path(path, length).emit(&mut grh[20..]);
    } else {
        ipv6::Repr::from_path(path, length).emit(&mut grh);
    }
    grh
}

/// The bytes `at..at + N`. Callers have checked the length; a mistake reads as zero rather than panics.
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .unwrap_or([0; N])
}

pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// Three bytes, big endian.
pub(crate) fn field24(bytes: &[u8], at: usize) -> u32 {
    let [a, b, c] = field(bytes, at);
    u32::from_be_bytes([0, a, b, c])
}

pub(crate) fn put24(bytes: &mut [u8], at: usize, value: u32) {
    put(bytes, at, &value.to_be_bytes()[1..]);
}
