// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Properties of every InfiniBand packet, tested with random values.

use super::*;
use crate::frame::properties::{emitted, packets, payload_of};
use crate::packet::{DatagramHeaders, PacketKind, Payload, SendTail};
use crate::wire::properties::config;
use crate::wire::stored_grh;
use proptest::prelude::*;
use std::format;

/// Paths with the default values of those fields that their packets do not have.
fn paths() -> impl Strategy<Value = Path> {
    let grh = (
        any::<[[u8; 16]; 2]>(),
        0u32..0x10_0000,
        any::<u8>(),
        any::<u8>(),
    );
    let lrh = (any::<u16>(), any::<u16>(), 0u8..16);
    (lrh, proptest::option::of(grh)).prop_map(|((slid, dlid, sl), grh)| {
        let mut path = Path {
            sl,
            local_route: Some(LocalRoute {
                slid,
                dlid,
                has_grh: grh.is_some(),
            }),
            ..Path::default()
        };
        if let Some(([sgid, dgid], flow_label, traffic_class, hop_limit)) = grh {
            (path.sgid, path.dgid) = (sgid, dgid);
            (path.flow_label, path.traffic_class) = (flow_label, traffic_class);
            path.hop_limit = hop_limit;
        }
        path
    })
}

/// Offset of the BTH.
fn bth_at(path: &Path) -> usize {
    lrh::LEN + if path.has_grh() { grh::LEN } else { 0 }
}

fn next_header(path: &Path) -> NextHeader {
    match path.has_grh() {
        true => NextHeader::Grh,
        false => NextHeader::Bth,
    }
}

/// Writes the VCRC of a packet that was changed.
fn renew_vcrc(bytes: &mut [u8]) {
    let (packet, crc) = bytes.split_last_chunk_mut().unwrap();
    *crc = vcrc::compute(packet);
}

/// True if the ICRC does not cover a bit of the packet. The most significant bit of each byte is
/// the first. This list of the masked fields (IBTA 7.8.1) is independent of the code under test.
fn is_masked(has_grh: bool, bit: usize) -> bool {
    let lrh = if has_grh { 0..64 } else { 0..4 };
    let (class_and_flow, hop_limit) = (64 + 4..64 + 32, 64 + 56..64 + 64);
    let bth = if has_grh { 64 + 320 } else { 64 };
    let resv8a = bth + 32..bth + 40;
    lrh.contains(&bit)
        || has_grh && (class_and_flow.contains(&bit) || hop_limit.contains(&bit))
        || resv8a.contains(&bit)
}

/// True if a bit of the LRH has another check than the ICRC: the version, the next header, and the
/// packet length.
fn is_checked(bit: usize) -> bool {
    [4..8, 14..16, 37..48]
        .iter()
        .any(|bits| bits.contains(&bit))
}

proptest! {
    #![proptest_config(config(1024))]

    #[test]
    fn packets_round_trip(path in paths(), packet in packets()) {
        let bytes = emitted(&path, &packet);
        prop_assert_eq!(infiniband_length(&path, &packet), bytes.len() - vcrc::LEN);
        prop_assert_eq!(peek_infiniband(&bytes), Some(path));
        let parsed = parse_infiniband(&bytes).unwrap();
        let mut expected = packet.clone();
        expected.datagram = packet.datagram.as_ref().map(|datagram| {
            let imm = matches!(packet.kind, PacketKind::Send(SendTail::Imm(_)));
            let length = crate::frame::datagram_udp_length(packet.payload.len(), imm);
            Rc::new(DatagramHeaders {
                path,
                qkey: datagram.qkey,
                grh: stored_grh(&path, length),
            })
        });
        prop_assert_eq!(parsed.path, path);
        // The parsed payload is in another buffer, so its bytes are compared.
        prop_assert_eq!(payload_of(&parsed.packet), payload_of(&packet));
        let mut got = parsed.packet;
        (got.payload, expected.payload) = (Payload::None, Payload::None);
        prop_assert_eq!(format!("{got:?}"), format!("{expected:?}"));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_infiniband(&bytes);
        let _ = peek_infiniband(&bytes);
        let _ = icrc::compute_infiniband(NextHeader::Bth, &bytes);
        let _ = icrc::compute_infiniband(NextHeader::Grh, &bytes);
    }

    /// The headers before the BTH and the checksums are correct; the opcode and the body are
    /// arbitrary.
    #[test]
    fn arbitrary_transport_never_panics(
        path in paths(),
        opcode: u8,
        body in proptest::collection::vec(any::<u8>(), 0..100),
        valid in packets(),
    ) {
        let mut bytes = emitted(&path, &Packet {
            kind: PacketKind::Send(SendTail::None),
            transport: crate::packet::Transport::Rc,
            datagram: None,
            payload: Payload::from_bytes(&body),
            ..valid
        });
        bytes[bth_at(&path)] = opcode;
        let end = bytes.len() - vcrc::LEN - icrc::LEN;
        let crc = icrc::compute_infiniband(next_header(&path), &bytes[..end]);
        bytes[end..end + icrc::LEN].copy_from_slice(&crc);
        renew_vcrc(&mut bytes);
        match parse_infiniband(&bytes) {
            Ok(frame) if matches!(frame.packet.kind, PacketKind::Unknown(_)) => {
                prop_assert!(opcode::is_refused(opcode));
            }
            Ok(frame) => prop_assert_eq!(emitted(&frame.path, &frame.packet).len(), bytes.len()),
            Err(error) => {
                let expected = matches!(error, Malformed::Opcode | Malformed::Length | Malformed::Truncated | Malformed::Syndrome);
                prop_assert!(expected, "{:?}", error);
                prop_assert!(error != Malformed::Opcode || !opcode::is_served(opcode));
            }
        }
    }
}

proptest! {
    #![proptest_config(config(48))]

    /// The VCRC covers all bits. With a VCRC that was renewed after the change, as a switch does,
    /// the ICRC covers all bits but those of the list.
    #[test]
    fn every_flipped_bit_is_refused_by_a_checksum_that_covers_it(path in paths(), packet in packets()) {
        let good = emitted(&path, &packet);
        let end = good.len() - vcrc::LEN - icrc::LEN;
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
            prop_assert!(parse_infiniband(&bytes).is_err(), "bit {}", bit);
            if bit >= (good.len() - vcrc::LEN) * 8 {
                continue;
            }
            // The version of the GRH selects no mask, so the ICRC detects a wrong version too.
            let right = icrc::compute_infiniband(next_header(&path), &bytes[..end]) == bytes[end..end + icrc::LEN];
            prop_assert_eq!(right, is_masked(path.has_grh(), bit), "bit {}", bit);
            renew_vcrc(&mut bytes);
            let refused = !is_masked(path.has_grh(), bit) || is_checked(bit);
            prop_assert_eq!(parse_infiniband(&bytes).is_err(), refused, "bit {}", bit);
        }
    }
}
