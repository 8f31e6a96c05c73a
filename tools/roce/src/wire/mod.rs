// SPDX-License-Identifier: GPL-2.0 OR MIT

//! RoCEv2 frames to the bit: Ethernet, IPv4 or IPv6, UDP, BTH and its extension headers, payload, ICRC.

pub mod bth;

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
    /// UDP source port: 0xc000 and above (IBTA A17.9.2).
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
