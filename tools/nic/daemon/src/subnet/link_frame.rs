// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The Ethernet frames in which an uplink carries an InfiniBand link between the switches of two
//! processes. Numbers are big-endian.
//!
//! | bytes | contents |
//! | --- | --- |
//! | 6, 6 | destination and source MAC address |
//! | 2 | [`ETHER_TYPE`] |
//! | 1, 1 | [`VERSION`], kind of the frame: 1 for a hello, 2 for a packet |
//! | 1, 1 | links that the packet may still pass, 0 |
//! | 2 | copies that switches may still make of the packet |
//! | the rest | the hello ([`Hello`]), or the packet from its LRH to its VCRC; padding |
//!
//! | bytes of a hello | contents |
//! | --- | --- |
//! | 8, 8 | number of the sender, and of the process that the sender hears (0: none) |
//! | 8, 1 | GUID of the sender's switch, and number of its port |
//! | 1, 1, 1 | enabled widths and speeds (0, 0: the port is disabled), 0 |
//! | 4 | how often the sender's subnet manager has restarted or disabled the link |

use verbena_fabric::{LocalEnd, PacketLimits, RemoteEnd};
use verbena_transport::wire::{ethernet, lrh, vcrc, vlan};

/// EtherType of the frames: the first of the two that IEEE 802 (9.2.3) leaves to local experiments. No
/// EtherType is assigned to InfiniBand packets with an LRH.
pub const ETHER_TYPE: u16 = 0x88b5;
/// EtherType of the outer tag of a frame with two VLAN tags (IEEE 802.1Q 9.5).
const TYPE_SERVICE_VLAN: u16 = 0x88a8;
/// Version of the format of the frames.
const VERSION: u8 = 1;
const HELLO: u8 = 1;
const PACKET: u8 = 2;
/// Number of bytes before the hello or the packet: the Ethernet header and six more.
const HEADER: usize = ethernet::LEN + 6;
/// Number of bytes of a hello.
const HELLO_LEN: usize = 32;
/// Destination of a hello before the peer is known: all stations of an Ethernet. The address has the
/// bits of a group and of local administration, and belongs to no other protocol.
const ALL_SWITCHES: [u8; 6] = [0x03, 0x56, 0x52, 0x4e, 0x49, 0x42];

/// What a process says about its end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Number of the process, which it draws when it begins.
    pub process: u64,
    /// Number of the process that it hears; 0 if it hears none.
    pub heard: u64,
    /// GUID of its switch.
    pub guid: u64,
    /// Port of the switch.
    pub port: u8,
    /// The end as the other end has to know it.
    pub end: LocalEnd,
}

/// The contents of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkFrame<'a> {
    /// A hello.
    Hello(Hello),
    /// A packet from its LRH to its VCRC.
    Packet {
        limits: PacketLimits,
        packet: &'a [u8],
    },
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn ether_type(frame: &[u8], at: usize) -> Option<u16> {
    array(frame, at).map(u16::from_be_bytes)
}

/// True if a frame has the EtherType of InfiniBand links.
pub fn is_link_frame(frame: &[u8]) -> bool {
    ether_type(frame, ethernet::LEN - 2) == Some(ETHER_TYPE)
}

/// True if a frame has the EtherType of InfiniBand links, also after VLAN tags, which a bridge may
/// remove.
pub fn is_tagged_link_frame(frame: &[u8]) -> bool {
    let types = (ethernet::LEN - 2..).step_by(vlan::LEN);
    types
        .map_while(|at| ether_type(frame, at))
        .find(|found| ![ethernet::TYPE_VLAN, TYPE_SERVICE_VLAN].contains(found))
        == Some(ETHER_TYPE)
}

/// Returns the source MAC address and the contents of a frame; none if the frame is malformed. The
/// VCRC of a packet is not checked.
pub fn parse(frame: &[u8]) -> Option<([u8; 6], LinkFrame<'_>)> {
    let source = array(frame, 6)?;
    let [version, kind, links, _, high, low] = array(frame, ethernet::LEN)?;
    let rest = frame.get(HEADER..)?;
    if !is_link_frame(frame) || version != VERSION {
        return None;
    }
    let contents = match kind {
        HELLO => LinkFrame::Hello(parse_hello(rest)?),
        PACKET => {
            let length = lrh::View::new(rest).ok()?.packet().len();
            let limits = PacketLimits {
                links: links.into(),
                copies: u16::from_be_bytes([high, low]).into(),
            };
            LinkFrame::Packet {
                limits: limits.at_most_full(),
                packet: rest.get(..length.checked_add(vcrc::LEN)?)?,
            }
        }
        _ => return None,
    };
    Some((source, contents))
}

fn parse_hello(bytes: &[u8]) -> Option<Hello> {
    let number = |at| array(bytes, at).map(u64::from_be_bytes);
    let [port, widths, speeds, _] = array(bytes, 24)?;
    Some(Hello {
        process: number(0)?,
        heard: number(8)?,
        guid: number(16)?,
        port,
        end: LocalEnd {
            rates: (widths != 0 && speeds != 0).then_some(RemoteEnd { widths, speeds }),
            restarts: u32::from_be_bytes(array(bytes, 28)?),
        },
    })
}

/// Begins a frame to a peer, or to all stations while the peer is not known.
fn begin(source: [u8; 6], peer: Option<[u8; 6]>, kind: u8, limits: PacketLimits) -> Vec<u8> {
    let copies = u16::try_from(limits.copies).unwrap_or(u16::MAX);
    let mut frame = Vec::new();
    frame.extend(peer.unwrap_or(ALL_SWITCHES));
    frame.extend(source);
    frame.extend(ETHER_TYPE.to_be_bytes());
    frame.extend([VERSION, kind, limits.links.min(0xff) as u8, 0]);
    frame.extend(copies.to_be_bytes());
    frame
}

/// Returns the frame of a hello.
pub fn emit_hello(source: [u8; 6], peer: Option<[u8; 6]>, hello: &Hello) -> Vec<u8> {
    let none = PacketLimits {
        links: 0,
        copies: 0,
    };
    let rates = hello.end.rates.unwrap_or(RemoteEnd {
        widths: 0,
        speeds: 0,
    });
    let mut frame = begin(source, peer, HELLO, none);
    frame.extend(hello.process.to_be_bytes());
    frame.extend(hello.heard.to_be_bytes());
    frame.extend(hello.guid.to_be_bytes());
    frame.extend([hello.port, rates.widths, rates.speeds, 0]);
    frame.extend(hello.end.restarts.to_be_bytes());
    debug_assert_eq!(frame.len(), HEADER + HELLO_LEN);
    frame
}

/// Returns the frame of a packet.
pub fn emit_packet(source: [u8; 6], peer: [u8; 6], limits: PacketLimits, packet: &[u8]) -> Vec<u8> {
    let mut frame = begin(source, Some(peer), PACKET, limits);
    frame.extend_from_slice(packet);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn hello(rates: Option<RemoteEnd>) -> Hello {
        Hello {
            process: 1 << 63,
            heard: 5,
            guid: 0x5652_0200_0000_0001,
            port: 36,
            end: LocalEnd { rates, restarts: 7 },
        }
    }

    /// Returns a packet with an LRH that gives its length; the contents do not matter here.
    fn packet(words: u8) -> Vec<u8> {
        let mut packet = vec![0; usize::from(words) * 4 + vcrc::LEN];
        packet[..6].copy_from_slice(&[0, 2, 0, 9, 0, words]);
        packet
    }

    #[test]
    fn frames_are_read_back_also_with_padding() {
        let rates = RemoteEnd {
            widths: 3,
            speeds: 7,
        };
        for hello in [hello(Some(rates)), hello(None)] {
            let mut frame = emit_hello(SOURCE, None, &hello);
            assert_eq!(frame[0] & 3, 3);
            frame.resize(60, 0);
            assert_eq!(parse(&frame), Some((SOURCE, LinkFrame::Hello(hello))));
        }
        let limits = PacketLimits {
            links: 64,
            copies: 4096,
        };
        let packet = packet(6);
        let mut frame = emit_packet(SOURCE, PEER, limits, &packet);
        frame.resize(60, 0);
        let contents = LinkFrame::Packet {
            limits,
            packet: &packet,
        };
        assert_eq!(parse(&frame), Some((SOURCE, contents)));
    }

    #[test]
    fn limits_beyond_those_of_a_new_packet_are_lowered() {
        let excessive = PacketLimits {
            links: 255,
            copies: 0xffff,
        };
        let frame = emit_packet(SOURCE, PEER, excessive, &packet(6));
        let Some((_, LinkFrame::Packet { limits, .. })) = parse(&frame) else {
            panic!("no packet");
        };
        assert_eq!(limits, PacketLimits::FULL);
    }

    #[test]
    fn malformed_frames_are_refused() {
        let good = [
            emit_hello(SOURCE, None, &hello(None)),
            emit_packet(SOURCE, PEER, PacketLimits::FULL, &packet(6)),
        ];
        for frame in good {
            for length in 0..frame.len() {
                assert_eq!(parse(&frame[..length]), None, "{length}");
            }
            // Another EtherType, another version, an unknown kind.
            for (at, byte) in [(12, 8), (14, 2), (15, 3)] {
                let mut changed = frame.clone();
                changed[at] = byte;
                assert_eq!(parse(&changed), None, "{at}");
            }
        }
        // A packet length of less than an LRH.
        let short = emit_packet(SOURCE, PEER, PacketLimits::FULL, &packet(1));
        assert_eq!(parse(&short), None);
    }

    #[test]
    fn a_frame_is_recognised_after_vlan_tags() {
        let tagged = |tags: &[u8]| [&[0; 12], tags, &[0x88, 0xb5, 1, 2]].concat();
        for tags in [
            &[][..],
            &[0x81, 0, 0, 1],
            &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2],
        ] {
            assert!(is_tagged_link_frame(&tagged(tags)), "{tags:?}");
            assert_eq!(is_link_frame(&tagged(tags)), tags.is_empty());
        }
        for frame in [tagged(&[8, 0, 0, 1]), vec![], vec![0; 13], vec![0x81; 60]] {
            assert!(!is_tagged_link_frame(&frame), "{frame:?}");
        }
    }
}
