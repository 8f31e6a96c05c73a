// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Targets for whole frames. The first byte selects the repairs to the frame before it is parsed,
//! because a fuzzer does not guess checksums. With none of the bits set, the frame is used
//! unchanged.

use super::FuzzInput;
use std::convert::Infallible;
use std::rc::Rc;
use verbena_transport::frame::{self, Frame};
use verbena_transport::packet::{Packet, Payload};
use verbena_transport::pool::Pool;
use verbena_transport::wire::{icrc, Malformed};

/// Length in bytes of the longest frame that is repaired: MTU 4096 and every header.
const MAX_FRAME: usize = 4200;

mod repair {
    /// Repairs EtherType, version of IP, protocol and fragment field; bit 7 selects IPv6, bit 6 a
    /// VLAN tag.
    pub const TYPES: u8 = 1 << 0;
    /// Repairs the lengths of IP and UDP.
    pub const LENGTHS: u8 = 1 << 1;
    /// Repairs the checksum of IPv4.
    pub const CHECKSUM: u8 = 1 << 2;
    /// Repairs the UDP port.
    pub const PORT: u8 = 1 << 3;
    /// Repairs the transport version, and selects a supported service.
    pub const BTH: u8 = 1 << 4;
    /// Repairs the ICRC.
    pub const ICRC: u8 = 1 << 5;
    pub const TAG: u8 = 1 << 6;
    pub const IPV6: u8 = 1 << 7;
}

/// Applies the selected repairs to a frame.
pub fn repair_frame(bits: u8, bytes: &mut [u8]) {
    let has = |bit| bits & bit != 0;
    let put = |bytes: &mut [u8], at: usize, value: &[u8]| {
        if let Some(place) = bytes.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    };
    let (ip, ipv6) = if has(repair::TYPES) {
        let mut at = 12;
        if has(repair::TAG) {
            put(bytes, at, &[0x81, 0]);
            at += 4;
        }
        let ipv6 = has(repair::IPV6);
        put(bytes, at, if ipv6 { &[0x86, 0xdd] } else { &[8, 0] });
        (at + 2, ipv6)
    } else {
        match bytes.get(12..14) {
            Some([0x81, 0]) => (18, bytes.get(16) == Some(&0x86)),
            Some([0x86, _]) => (14, true),
            _ => (14, false),
        }
    };
    let end = bytes.len();
    let udp = ip + if ipv6 { 40 } else { 20 };
    if end < udp + 8 {
        return;
    }
    if has(repair::TYPES) {
        if ipv6 {
            bytes[ip] = 0x60 | bytes[ip] & 0xf;
            bytes[ip + 6] = 17;
        } else {
            bytes[ip] = 0x45;
            bytes[ip + 6] &= 0x40;
            bytes[ip + 7] = 0;
            bytes[ip + 9] = 17;
        }
    }
    if has(repair::LENGTHS) {
        let (at, from) = if ipv6 { (ip + 4, udp) } else { (ip + 2, ip) };
        put(bytes, at, &((end - from) as u16).to_be_bytes());
        put(bytes, udp + 4, &((end - udp) as u16).to_be_bytes());
    }
    if has(repair::CHECKSUM) && !ipv6 {
        put(bytes, ip + 10, &[0, 0]);
        let mut sum: u32 = bytes[ip..udp]
            .chunks_exact(2)
            .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
            .sum();
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        put(bytes, ip + 10, &(!(sum as u16)).to_be_bytes());
    }
    if has(repair::PORT) {
        put(bytes, udp + 2, &4791u16.to_be_bytes());
    }
    let bth = udp + 8;
    if has(repair::BTH) && end > bth + 1 {
        bytes[bth + 1] &= 0xf0;
        // The odd services are reserved or not supported.
        if !matches!(bytes[bth] >> 5, 0 | 1 | 3) {
            bytes[bth] &= 0x7f;
        }
    }
    if has(repair::ICRC) && end >= bth + 12 + icrc::LEN {
        let (covered, crc) = bytes.split_at_mut(end - icrc::LEN);
        crc.copy_from_slice(&icrc::compute(&covered[ip..]));
    }
}

/// Runs a parser over the frame that an input encodes.
fn with_frame(bytes: &[u8], run: impl FnOnce(&[u8])) {
    let mut input = FuzzInput::new(bytes);
    let bits = input.u8();
    let frame = input.rest();
    if bits == 0 || frame.len() > MAX_FRAME {
        return run(frame);
    }
    let mut place = [0; MAX_FRAME];
    let place = &mut place[..frame.len()];
    place.copy_from_slice(frame);
    repair_frame(bits, place);
    run(place);
}

/// Parses a frame, and checks the conditions on every packet that a queue pair is given.
pub fn frame(bytes: &[u8]) {
    with_frame(bytes, |bytes| match frame::parse(bytes) {
        Ok(frame) => {
            assert!(frame::is_rocev2(bytes));
            check(&frame.packet, bytes.len());
        }
        // An error before the UDP port leaves the frame to the Ethernet side.
        Err(Malformed::EtherType | Malformed::Protocol | Malformed::IpChecksum) => {
            assert!(!frame::is_rocev2(bytes));
        }
        Err(_) => {
            frame::is_rocev2(bytes);
        }
    });
}

fn check(packet: &Packet, len: usize) {
    assert_eq!(packet.psns, 1);
    assert!(packet.psn < 1 << 24 && packet.dst_qpn < 1 << 24 && packet.src_qpn < 1 << 24);
    let payload = packet.payload.len() as usize;
    assert!(payload <= frame::MAX_PAYLOAD && payload < len);
    if let Payload::Bytes {
        bytes,
        offset,
        length,
    } = &packet.payload
    {
        assert!((*offset + *length) as usize <= bytes.len());
    }
}

/// Emits a frame that parses and parses it again, to the same packet and then to the same bytes.
pub fn round_trip(bytes: &[u8]) {
    with_frame(bytes, |bytes| {
        let Ok(first) = frame::parse(bytes) else {
            return;
        };
        let once = emit(&first);
        let second = frame::parse(&once).expect("an emitted frame can be parsed");
        assert_same(&first, &second);
        assert_eq!(emit(&second), once);
        // Parsing from a buffer, without a copy, gives the same packet.
        let buffer = Rc::new(once);
        let third =
            frame::parse_in(&buffer, &mut Pool::default()).expect("the frame was parsed before");
        assert_same(&second, &third);
    });
}

fn payload(packet: &Packet) -> &[u8] {
    match &packet.payload {
        Payload::Bytes {
            bytes,
            offset,
            length,
        } => &bytes[*offset as usize..][..*length as usize],
        _ => &[],
    }
}

fn emit(frame: &Frame) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload(&frame.packet).len() + 128);
    let bytes = payload(&frame.packet);
    let filled: Result<(), Infallible> =
        frame::emit(&frame.path, &frame.packet, &mut out, |place| {
            place.copy_from_slice(bytes);
            Ok(())
        });
    filled.unwrap_or_else(|never| match never {});
    out
}

fn assert_same(a: &Frame, b: &Frame) {
    // The priority of a frame without a VLAN id has no place in the emitted frame.
    let mut path = a.path;
    if path.vlan.is_none() {
        path.sl = b.path.sl;
    }
    assert_eq!(path, b.path);
    let (a, b) = (&a.packet, &b.packet);
    assert_eq!(a.transport, b.transport);
    assert_eq!(a.kind, b.kind);
    assert_eq!((a.first, a.last), (b.first, b.last));
    assert_eq!((a.solicited, a.ack_req), (b.solicited, b.ack_req));
    assert_eq!(
        (a.pkey, a.dst_qpn, a.src_qpn),
        (b.pkey, b.dst_qpn, b.src_qpn)
    );
    assert_eq!(a.psn, b.psn);
    assert_eq!(
        a.datagram.as_ref().map(|d| d.qkey),
        b.datagram.as_ref().map(|d| d.qkey)
    );
    assert_eq!(payload(a), payload(b));
}
