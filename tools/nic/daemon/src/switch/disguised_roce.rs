// SPDX-License-Identifier: GPL-2.0 OR MIT

//! RoCE in a form that no adapter sends and `frame::peek` does not recognize, but that a kernel
//! would unpack and give to its software RDMA: with IP options or extension headers, in fragments,
//! within tags of other kinds or several tags, from IPv4-mapped addresses.

/// Protocol number of UDP in IP.
const UDP: u8 = 17;
/// UDP port of RoCEv2 (annex A17).
const PORT: [u8; 2] = 4791u16.to_be_bytes();
/// Largest number of successive headers before UDP; a frame with more is taken for RoCE. Linux has
/// no limit but the length of the frame.
const HEADERS: usize = 16;

/// True if a frame that `frame::peek` does not recognize carries RoCE. Of a fragmented packet only
/// the first fragment counts: without it, the others are of no use.
pub(super) fn is_disguised_roce(bytes: &[u8]) -> bool {
    carries_roce(bytes).unwrap_or(false)
}

/// Returns true if the frame contains a UDP datagram for the port of RoCE, and `None` if the frame
/// is too short for one or carries something else.
fn carries_roce(bytes: &[u8]) -> Option<bool> {
    let mut tags = 0;
    let (kind, packet) = loop {
        let (kind, rest) = bytes.get(12 + 4 * tags..)?.split_first_chunk::<2>()?;
        match u16::from_be_bytes(*kind) {
            0x8100 | 0x88a8 if tags < HEADERS => tags += 1,
            0x8100 | 0x88a8 => return Some(true),
            kind => break (kind, rest),
        }
    };
    let segment = match kind {
        0x0800 => ipv4(packet)?,
        0x86dd => match ipv6(packet)? {
            Some(segment) => segment,
            None => return Some(true),
        },
        _ => return None,
    };
    Some(segment.get(2..4)? == PORT)
}

/// Returns the UDP datagram of an IPv4 packet, or its first fragment.
fn ipv4(packet: &[u8]) -> Option<&[u8]> {
    let head = packet.first_chunk::<20>()?;
    let length = usize::from(head[0] & 0xf) * 4;
    let offset = u16::from_be_bytes([head[6], head[7]]) & 0x1fff;
    if head[0] >> 4 != 4 || head[9] != UDP || offset != 0 {
        return None;
    }
    packet.get(length..)
}

/// Returns the UDP datagram of an IPv6 packet, or its first fragment; `Some(None)` if there are too
/// many headers before it.
fn ipv6(packet: &[u8]) -> Option<Option<&[u8]>> {
    let (head, mut rest) = packet.split_first_chunk::<40>()?;
    if head[0] >> 4 != 6 {
        return None;
    }
    let mut next = head[6];
    for _ in 0..HEADERS {
        let length = match next {
            UDP => return Some(Some(rest)),
            // Hop-by-hop and destination options, routing: the second byte counts units of 8 octets
            // after the first 8.
            0 | 43 | 60 => 8 + 8 * usize::from(*rest.get(1)?),
            // The first fragment of a packet.
            44 if u16::from_be_bytes([*rest.get(2)?, *rest.get(3)?]) & 0xfff8 == 0 => 8,
            _ => return None,
        };
        next = *rest.first()?;
        rest = rest.get(length..)?;
    }
    Some(None)
}
