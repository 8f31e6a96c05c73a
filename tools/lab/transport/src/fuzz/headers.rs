// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Targets for single headers. A header that parses is emitted to the same bytes, except for bits
//! that a valid header does not keep, and the emitted bytes parse to the same header.

use verbena_transport::wire::{
    aeth, atomic_ack_eth, atomic_eth, bth, deth, ethernet, ieth, imm_dt, ipv4, ipv6, reth, udp,
    vlan, Path,
};

/// Emits over bytes that are not zero, so that a byte left out is detected. `$kept` lists the bits
/// that a header keeps, by byte; bytes that are not listed are kept completely.
macro_rules! header {
    ($module:ident, $bytes:expr, $kept:expr) => {{
        let bytes: &[u8] = $bytes;
        match $module::View::new(bytes).and_then(|view| Ok((view, $module::Repr::parse(view)?))) {
            Err(_) => None,
            Ok((view, repr)) => {
                let mut out = [0xaa; $module::LEN];
                repr.emit(&mut out);
                let kept: &[(usize, u8)] = &$kept;
                for (at, byte) in out.iter().enumerate() {
                    let mask = kept
                        .iter()
                        .find(|(of, _)| *of == at)
                        .map_or(0xff, |(_, mask)| *mask);
                    assert_eq!(byte & mask, bytes[at] & mask, "byte {at} of {repr:?}");
                }
                Some((view, repr, out))
            }
        }
    }};
}

/// [`header`] of a fixed length: it parses whenever it is complete, and parses again.
macro_rules! fixed {
    ($module:ident, $bytes:expr, $kept:expr) => {{
        let bytes: &[u8] = $bytes;
        match header!($module, bytes, $kept) {
            Some((view, repr, out)) => {
                assert_eq!(view.payload(), &bytes[$module::LEN..]);
                let again = $module::View::new(&out).and_then($module::Repr::parse);
                assert_eq!(again, Ok(repr));
                Some((view, repr))
            }
            None => None,
        }
    }};
}

/// Checks an Ethernet header, and a VLAN tag if one follows.
pub fn ethernet(bytes: &[u8]) {
    match fixed!(ethernet, bytes, []) {
        Some((view, repr)) if repr.ether_type == ethernet::TYPE_VLAN => {
            let rest = view.payload();
            if fixed!(vlan, rest, []).is_none() {
                assert!(rest.len() < vlan::LEN);
            }
        }
        Some(_) => {}
        None => assert!(bytes.len() < ethernet::LEN),
    }
}

/// Checks an IPv4 header. Identification, the fragment flag and the checksum are not kept.
pub fn ipv4(bytes: &[u8]) {
    let kept = [(4, 0), (5, 0), (6, 0), (7, 0), (10, 0), (11, 0)];
    let Some((view, repr, out)) = header!(ipv4, bytes, kept) else {
        return;
    };
    let packet = view.packet();
    assert_eq!(packet, &bytes[..packet.len()]);
    assert_eq!(view.payload(), &packet[ipv4::LEN..]);
    assert_eq!(view.payload().len(), usize::from(repr.payload_len));
    let mut path = Path::default();
    repr.to_path(&mut path);
    assert!(path.is_ipv4());
    assert_eq!(ipv4::Repr::from_path(&path, repr.payload_len), repr);
    // The checksum is right: a header without its payload parses if its length says so.
    let mut alone = ipv4::Repr {
        payload_len: 0,
        ..repr
    };
    let mut short = out;
    alone.emit(&mut short);
    assert_eq!(
        ipv4::View::new(&short).and_then(ipv4::Repr::parse),
        Ok(alone)
    );
    alone.payload_len = u16::MAX;
    alone.emit(&mut short);
}

/// Checks an IPv6 header.
pub fn ipv6(bytes: &[u8]) {
    let Some((view, repr, _)) = header!(ipv6, bytes, []) else {
        return;
    };
    let packet = view.packet();
    assert_eq!(packet, &bytes[..packet.len()]);
    assert_eq!(view.payload(), &packet[ipv6::LEN..]);
    assert_eq!(view.payload().len(), usize::from(repr.payload_len));
    let mut path = Path::default();
    repr.to_path(&mut path);
    assert_eq!(ipv6::Repr::from_path(&path, repr.payload_len), repr);
}

/// Checks a UDP header. The checksum is always sent as 0.
pub fn udp(bytes: &[u8]) {
    let Some((view, repr, out)) = header!(udp, bytes, [(6, 0), (7, 0)]) else {
        return;
    };
    assert_eq!(out[6..], [0, 0]);
    assert_eq!(view.payload().len(), usize::from(repr.payload_len));
    assert_eq!(view.payload(), &bytes[udp::LEN..][..view.payload().len()]);
}

/// Checks a BTH. Migration, congestion and reserved bits are not kept.
pub fn bth(bytes: &[u8]) {
    if fixed!(bth, bytes, [(1, 0xb0), (4, 0), (8, 0x80)]).is_none() {
        assert!(bytes.len() < bth::LEN || bytes[1] & 0x0f != 0);
    }
}

/// Checks the extension header that the first byte selects.
pub fn ext(bytes: &[u8]) {
    let Some((selector, bytes)) = bytes.split_first() else {
        return;
    };
    let least = match selector % 7 {
        0 => fixed!(reth, bytes, []).map_or(reth::LEN, |_| 0),
        1 => fixed!(atomic_eth, bytes, []).map_or(atomic_eth::LEN, |_| 0),
        2 => fixed!(atomic_ack_eth, bytes, []).map_or(atomic_ack_eth::LEN, |_| 0),
        3 => fixed!(deth, bytes, [(4, 0)]).map_or(deth::LEN, |_| 0),
        4 => fixed!(imm_dt, bytes, []).map_or(imm_dt::LEN, |_| 0),
        5 => fixed!(ieth, bytes, []).map_or(ieth::LEN, |_| 0),
        _ => match fixed!(aeth, bytes, []) {
            // Reserved syndromes are refused.
            None if bytes.len() >= aeth::LEN => {
                let (kind, value) = (bytes[0] >> 5, bytes[0] & 0x1f);
                assert!(kind == 2 || kind > 3 || (kind == 3 && value > 4));
                return;
            }
            None => aeth::LEN,
            Some(_) => 0,
        },
    };
    // The other headers parse whenever they are complete.
    assert!(least == 0 || bytes.len() < least);
}
