// SPDX-License-Identifier: GPL-2.0 OR MIT

//! RoCEv2 frames to the bit: Ethernet, IPv4 or IPv6, UDP, BTH and its extension headers, payload, ICRC.
//!
//! Each header is a file of the same form, smoltcp's: its length `LEN`, where its fields are (`at`), a `View` of bytes whose
//! length was checked with an accessor for each field, a `Repr` that can only hold what is valid, `Repr::parse` from the
//! one to the other and `Repr::emit` back.
//!
//! | file | header |
//! | --- | --- |
//! | `ethernet.rs`, `vlan.rs` | Ethernet, 802.1Q |
//! | `ipv4.rs`, `ipv6.rs`, `udp.rs` | IP without options, UDP |
//! | `bth.rs` | base transport header |
//! | `deth.rs`, `reth.rs`, `atomic_eth.rs`, `aeth.rs`, `atomic_ack_eth.rs`, `imm_dt.rs`, `ieth.rs`, `xrceth.rs` | extended transport headers |
//! | `opcode.rs` | which of them follow, by opcode; `extensions.rs` reads and writes them together |
//! | `icrc.rs` | the checksum over all that routers leave alone |
//! | `frame.rs` | whole frames to and from [`Packet`](crate::Packet) |

pub mod aeth;
pub mod atomic_ack_eth;
pub mod atomic_eth;
pub mod bth;
pub mod deth;
pub mod ethernet;
pub mod extensions;
pub mod feth;
pub mod frame;
pub mod icrc;
pub mod ieth;
pub mod imm_dt;
pub mod ipv4;
pub mod ipv6;
pub mod opcode;
#[cfg(test)]
mod properties;
pub mod reth;
pub mod udp;
pub mod vlan;
pub mod xrceth;

/// Explicit congestion notification: the lower two bits of the traffic class (RFC 3168).
pub mod ecn {
    /// Both bits.
    pub const MASK: u8 = 3;
    /// ECN-capable transport: routers may mark the packet.
    pub const ECT0: u8 = 2;
    /// Congestion experienced: one has.
    pub const CE: u8 = 3;
}

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
    /// Whether a router has marked the frame: congestion experienced (RFC 3168).
    pub fn is_marked(&self) -> bool {
        self.traffic_class & ecn::MASK == ecn::CE
    }

    /// The same path for frames that routers may mark, instead of dropping them later.
    pub fn with_ect(self) -> Self {
        Self {
            traffic_class: self.traffic_class & !ecn::MASK | ecn::ECT0,
            ..self
        }
    }

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
        if let Some(place) = grh.get_mut(ipv6::LEN - ipv4::LEN..) {
            ipv4::Repr::from_path(path, length).emit(place);
        }
    } else {
        ipv6::Repr::from_path(path, length).emit(&mut grh);
    }
    grh
}

/// The first `N` bytes and the rest.
pub(crate) fn split<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), Malformed> {
    bytes.split_first_chunk().ok_or(Malformed::Truncated)
}

/// The bytes `at..at + N`. Callers have checked the length; a mistake reads as zero rather than panics.
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .unwrap_or([0; N])
}

/// Writes `value` to `at`, if it fits.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    let end = at.saturating_add(value.len());
    if let Some(place) = bytes.get_mut(at..end) {
        place.copy_from_slice(value);
    }
}

/// Three bytes, big endian.
pub(crate) fn field24(bytes: &[u8], at: usize) -> u32 {
    let [a, b, c] = field(bytes, at);
    u32::from_be_bytes([0, a, b, c])
}

/// The lower three bytes, big endian.
pub(crate) fn put24(bytes: &mut [u8], at: usize, value: u32) {
    let [_, low @ ..] = value.to_be_bytes();
    put(bytes, at, &low);
}
