// SPDX-License-Identifier: GPL-2.0 OR MIT

//! RoCEv2 frames to the bit: Ethernet, IPv4 or IPv6, UDP, BTH and its extension headers, payload,
//! ICRC. InfiniBand packets to the bit: LRH, GRH if there is one, BTH and its extension headers,
//! payload, ICRC, VCRC.
//!
//! Each header has a file of the same form, which is that of smoltcp: the length `LEN`, the offsets
//! of the fields (module `at`), a `View` of bytes whose length was checked, with an accessor for
//! each field, a `Repr` that can hold only valid values, `Repr::parse` from a `View` to a `Repr`,
//! and `Repr::emit` back to bytes.
//!
//! | file | header |
//! | --- | --- |
//! | `ethernet.rs`, `vlan.rs` | Ethernet, 802.1Q |
//! | `ipv4.rs`, `ipv6.rs`, `udp.rs` | IP without options, UDP |
//! | `bth.rs` | base transport header |
//! | `deth.rs`, `reth.rs`, `atomic_eth.rs`, `imm_dt.rs`, `ieth.rs` | extended headers of requests |
//! | `aeth.rs`, `atomic_ack_eth.rs` | extended headers of responses |
//! | `xrceth.rs`, `feth.rs` | extended headers of annexes A14 and A19 |
//! | `opcode.rs` | the headers of each opcode; `extensions.rs` reads and writes them together |
//! | `icrc.rs` | the checksum over all bytes that routers do not change |
//! | `lrh.rs`, `grh.rs` | InfiniBand: local and global route header |
//! | `vcrc.rs` | InfiniBand: the checksum over all bytes |
//!
//! A [`Path`] has the addresses of either link. Those of an InfiniBand link are an optional field
//! beside the fields of Ethernet, rather than one case of an enumeration: most fields of a path (GIDs,
//! flow label, traffic class, hop limit, service level) belong to both links, and the switch and
//! the device, which know Ethernet only, read the others as plain fields.

pub mod aeth;
pub mod atomic_ack_eth;
pub mod atomic_eth;
pub mod bth;
pub mod deth;
pub mod ethernet;
pub mod extensions;
pub mod feth;
pub mod grh;
pub mod icrc;
pub mod ieth;
pub mod imm_dt;
pub mod ipv4;
pub mod ipv6;
pub mod lrh;
pub mod opcode;
#[cfg(test)]
pub(crate) mod properties;
pub mod reth;
#[cfg(test)]
pub(crate) mod samples;
pub mod udp;
pub mod vcrc;
pub mod vlan;
pub mod xrceth;

/// Explicit congestion notification: the lower two bits of the traffic class (RFC 3168).
pub mod ecn {
    /// Mask of both bits.
    pub const MASK: u8 = 3;
    /// ECN-capable transport: routers may mark the packet.
    pub const ECT0: u8 = 2;
    /// Congestion experienced: a router has marked the packet.
    pub const CE: u8 = 3;
}

/// Reason for which a frame cannot be passed to a queue pair as a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The frame ends before its headers are complete.
    Truncated,
    /// The Ethernet type is neither IPv4 nor IPv6.
    EtherType,
    /// A field of the IP header is invalid, or the packet is a fragment.
    Ip,
    /// The checksum of the IPv4 header is wrong.
    IpChecksum,
    /// The protocol is not UDP.
    Protocol,
    /// The UDP destination port is not that of RoCEv2.
    Port,
    /// Lengths of the headers contradict each other or the frame.
    Length,
    /// The BTH has an unknown version.
    TransportVersion,
    /// The BTH has an unsupported opcode.
    Opcode,
    /// An AETH has a reserved syndrome.
    Syndrome,
    /// The invariant CRC is wrong.
    Icrc,
    /// InfiniBand: the LRH has an unknown version.
    LinkVersion,
    /// InfiniBand: the packet is raw, so it has no BTH.
    Raw,
    /// InfiniBand: the GRH has another version or next header.
    Grh,
    /// InfiniBand: a packet to a multicast group has no GRH.
    NoGrh,
    /// InfiniBand: the virtual lane is not that of the destination. VL 15 and QP0 belong together.
    VirtualLane,
    /// InfiniBand: the variant CRC is wrong.
    Vcrc,
}

/// Addresses of a packet on an InfiniBand link, from its LRH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRoute {
    /// LID of the source.
    pub slid: u16,
    /// LID of the destination, or of a multicast group.
    pub dlid: u16,
    /// True if the packet has a GRH. Without a GRH, its GIDs, flow label, traffic class and hop
    /// limit are not sent.
    pub has_grh: bool,
}

/// All fields of a frame outside of the BTH. Source and destination are those of the *sender*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// MAC address of the source.
    pub smac: [u8; 6],
    /// MAC address of the destination.
    pub dmac: [u8; 6],
    /// VLAN id, if the source GID has one.
    pub vlan: Option<u16>,
    /// GID of the source in network order; an IPv4 address is ::ffff:a.b.c.d.
    pub sgid: [u8; 16],
    /// GID of the destination, of the same kind as the source GID.
    pub dgid: [u8; 16],
    /// UDP source port: 0xc000 and above (IBTA A17.3).
    pub udp_sport: u16,
    /// Flow label of 20 bits, for IPv6 only.
    pub flow_label: u32,
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Hop limit of IPv6, or TTL of IPv4.
    pub hop_limit: u8,
    /// Service level: the priority of a VLAN tag, 3 bits, or 4 bits of an LRH.
    pub sl: u8,
    /// Addresses on an InfiniBand link; `None` for RoCE. On an InfiniBand link, the MAC addresses,
    /// the VLAN id and the UDP source port have no meaning.
    pub local_route: Option<LocalRoute>,
}

/// A path is copied with each frame and each datagram.
const _: () = assert!(size_of::<Path>() <= 64);

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
            local_route: None,
        }
    }
}

impl Path {
    /// RoCE: true if a router has marked the frame "congestion experienced" (RFC 3168).
    pub fn is_marked(&self) -> bool {
        self.traffic_class & ecn::MASK == ecn::CE
    }

    /// Returns the same path for frames that routers may mark, before they have to drop frames. On
    /// an InfiniBand link, the traffic class has no such bits.
    pub fn with_ect(mut self) -> Self {
        if self.local_route.is_none() {
            self.traffic_class = self.traffic_class & !ecn::MASK | ecn::ECT0;
        }
        self
    }

    /// True if packets on the path have a GRH, or an IP header in its place.
    pub fn has_grh(&self) -> bool {
        self.local_route.is_none_or(|route| route.has_grh)
    }

    /// RoCE: true if the frames of the path are IPv4.
    pub fn is_ipv4(&self) -> bool {
        gid_to_ipv4(&self.sgid).is_some() && gid_to_ipv4(&self.dgid).is_some()
    }
}

/// Returns the IPv4 address of a GID, or `None` if the GID is no IPv4 address.
pub fn gid_to_ipv4(gid: &[u8; 16]) -> Option<[u8; 4]> {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([*a, *b, *c, *d]),
        _ => None,
    }
}

/// Returns the GID of an IPv4 address.
pub fn ipv4_to_gid(addr: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = addr;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// Returns the bytes that a receiver stores before a datagram of `udp_length` bytes on this path:
/// the IPv6 header, or 20 zero bytes and the IPv4 header (IBTA A17.4). On an InfiniBand link these
/// are the GRH; without a GRH their values are undefined, and zeros are stored.
#[inline]
pub fn stored_grh(path: &Path, udp_length: u32) -> [u8; 40] {
    match path.local_route {
        None => roce_grh(path, udp_length),
        Some(route) => infiniband_grh(path, route, udp_length),
    }
}

fn roce_grh(path: &Path, udp_length: u32) -> [u8; 40] {
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

/// Returns the stored GRH on an InfiniBand link, where no UDP header precedes the BTH.
#[inline(never)]
fn infiniband_grh(path: &Path, route: LocalRoute, udp_length: u32) -> [u8; 40] {
    let mut grh = [0; 40];
    if route.has_grh {
        let length = udp_length.saturating_sub(udp::LEN as u32).min(0xffff) as u16;
        grh::Repr::from_path(path, length).emit(&mut grh);
    }
    grh
}

/// Returns the first `N` bytes and the rest.
pub(crate) fn split<const N: usize>(bytes: &[u8]) -> Result<(&[u8; N], &[u8]), Malformed> {
    bytes.split_first_chunk().ok_or(Malformed::Truncated)
}

/// Returns the bytes `at..at + N`. Callers have checked the length; if a caller is wrong, the bytes
/// read as zero and nothing panics.
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .unwrap_or([0; N])
}

/// Writes `value` to offset `at`, if it fits.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    let end = at.saturating_add(value.len());
    if let Some(place) = bytes.get_mut(at..end) {
        place.copy_from_slice(value);
    }
}

/// Reads three bytes in big-endian order.
pub(crate) fn field24(bytes: &[u8], at: usize) -> u32 {
    let [a, b, c] = field(bytes, at);
    u32::from_be_bytes([0, a, b, c])
}

/// Writes the lower three bytes in big-endian order.
pub(crate) fn put24(bytes: &mut [u8], at: usize, value: u32) {
    let [_, low @ ..] = value.to_be_bytes();
    put(bytes, at, &low);
}
