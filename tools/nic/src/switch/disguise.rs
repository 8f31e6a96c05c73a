// SPDX-License-Identifier: GPL-2.0 OR MIT

//! RoCE in a form that no adapter sends and `frame::peek` does not know, but a kernel would unpack and give to its software RDMA: with
//! IP options or extension headers, in fragments, within tags of other kinds or several, from addresses that stand for IPv4.

/// UDP, as IP numbers it.
const UDP: u8 = 17;
/// Where RoCEv2 is (annex A17).
const PORT: [u8; 2] = 4791u16.to_be_bytes();
/// Headers that may come one after the other before that; what has more is taken for RoCE. Linux goes on as long as the frame does.
const HEADERS: usize = 16;

/// Whether a frame that `frame::peek` does not know is one of those. Of fragments the first is: without it, the others are of no use.
pub(super) fn is_disguised(bytes: &[u8]) -> bool {
    carries_roce(bytes).unwrap_or(false)
}

/// Whether a UDP datagram for the port is in there. None: the frame is too short to tell, or to be one.
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

/// The UDP datagram, or its first fragment.
fn ipv4(packet: &[u8]) -> Option<&[u8]> {
    let head = packet.first_chunk::<20>()?;
    let length = usize::from(head[0] & 0xf) * 4;
    let offset = u16::from_be_bytes([head[6], head[7]]) & 0x1fff;
    if head[0] >> 4 != 4 || head[9] != UDP || offset != 0 {
        return None;
    }
    packet.get(length..)
}

/// The same. Some(None): there are too many headers before it.
fn ipv6(packet: &[u8]) -> Option<Option<&[u8]>> {
    let (head, mut rest) = packet.split_first_chunk::<40>()?;
    if head[0] >> 4 != 6 {
        return None;
    }
    let mut next = head[6];
    for _ in 0..HEADERS {
        let length = match next {
            UDP => return Some(Some(rest)),
            // Hop-by-hop and destination options, routing: 8 octets, and so many times 8 more.
            0 | 43 | 60 => 8 + 8 * usize::from(*rest.get(1)?),
            // A fragment.
            44 if u16::from_be_bytes([*rest.get(2)?, *rest.get(3)?]) & 0xfff8 == 0 => 8,
            _ => return None,
        };
        next = *rest.first()?;
        rest = rest.get(length..)?;
    }
    Some(None)
}
