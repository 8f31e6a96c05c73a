// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Properties of every frame, tested with random values.

use super::*;
use crate::copy::CopySource;
use crate::frame;
use crate::packet::SendTail;
use crate::wire::opcode::ExtensionHeader;
use crate::wire::properties::{aeths, atomic_eths, bths, config, deths, feths, reths, QPN};
use crate::wire::{atomic_ack_eth, ieth, ipv4_to_gid, stored_grh};
use proptest::prelude::*;
use std::{format, vec};

/// All headers that can follow a BTH.
fn extensions() -> impl Strategy<Value = extensions::Repr> {
    let headers = (
        deths(),
        feths(),
        reths(),
        atomic_eths(),
        aeths(),
        any::<u64>(),
        any::<[u8; 4]>(),
        any::<u32>(),
        QPN,
    );
    headers.prop_map(
        |(deth, feth, reth, atomic_eth, aeth, original, data, rkey, srqn)| extensions::Repr {
            deth: Some(deth),
            feth: Some(feth),
            xrceth: Some(xrceth::Repr { srqn }),
            reth: Some(reth),
            atomic_eth: Some(atomic_eth),
            aeth: Some(aeth),
            atomic_ack_eth: Some(atomic_ack_eth::Repr { original }),
            imm_dt: Some(imm_dt::Repr { data }),
            ieth: Some(ieth::Repr { rkey }),
        },
    )
}

/// Returns only those headers that an opcode has.
fn only(headers: &[ExtensionHeader], all: &extensions::Repr) -> extensions::Repr {
    let has = |header| headers.contains(&header);
    extensions::Repr {
        deth: all.deth.filter(|_| has(ExtensionHeader::Deth)),
        xrceth: all.xrceth.filter(|_| has(ExtensionHeader::Xrceth)),
        feth: all.feth.filter(|_| has(ExtensionHeader::Feth)),
        reth: all.reth.filter(|_| has(ExtensionHeader::Reth)),
        atomic_eth: all.atomic_eth.filter(|_| has(ExtensionHeader::AtomicEth)),
        aeth: all.aeth.filter(|_| has(ExtensionHeader::Aeth)),
        atomic_ack_eth: all
            .atomic_ack_eth
            .filter(|_| has(ExtensionHeader::AtomicAckEth)),
        imm_dt: all.imm_dt.filter(|_| has(ExtensionHeader::ImmDt)),
        ieth: all.ieth.filter(|_| has(ExtensionHeader::Ieth)),
    }
}

fn paths() -> impl Strategy<Value = Path> {
    let gids = prop_oneof![
        any::<[[u8; 4]; 2]>().prop_map(|ends| ends.map(ipv4_to_gid)),
        any::<[[u8; 16]; 2]>(),
    ];
    let vlan = prop_oneof![Just(None), (1u16..0x1000).prop_map(Some)];
    let rest = (
        any::<[[u8; 6]; 2]>(),
        any::<u16>(),
        0u32..0x10_0000,
        any::<[u8; 2]>(),
        0u8..8,
    );
    (gids, vlan, rest).prop_map(
        |([sgid, dgid], vlan, ([smac, dmac], udp_sport, label, [class, hops], sl))| {
            let mut path = Path {
                smac,
                dmac,
                vlan,
                sgid,
                dgid,
                udp_sport,
                flow_label: label,
                traffic_class: class,
                hop_limit: hops,
                sl: if vlan.is_some() { sl } else { 0 },
                local_route: None,
            };
            if path.is_ipv4() {
                path.flow_label = 0;
            }
            path
        },
    )
}

/// A packet with any supported opcode.
pub(super) fn packets() -> impl Strategy<Value = Packet> {
    let served: Vec<u8> = (0..=0xff)
        .filter(|opcode| opcode::is_served(*opcode))
        .collect();
    let opcodes = proptest::sample::select(served);
    let payloads = proptest::collection::vec(any::<u8>(), 0..40);
    (opcodes, bths(), extensions(), payloads).prop_map(|(opcode, bth, all, payload)| {
        let (service, row) = opcode::lookup(opcode).unwrap();
        let headers = only(row.headers, &all);
        let before = only(service.headers_of(row), &all);
        let deth = before.deth;
        Packet {
            transport: service.transport.unwrap(),
            kind: headers.kind(row).unwrap(),
            first: row.first,
            last: row.last,
            solicited: bth.solicited,
            ack_req: bth.ack_req,
            pkey: bth.pkey,
            dst_qpn: bth.dest_qpn,
            src_qpn: deth.map_or(0, |deth| deth.src_qpn),
            psn: bth.psn,
            psns: 1,
            srqn: before.xrceth.map_or(0, |xrceth| xrceth.srqn),
            marked: false,
            datagram: deth.map(|deth| {
                Rc::new(DatagramHeaders {
                    qkey: deth.qkey,
                    ..DatagramHeaders::default()
                })
            }),
            payload: if row.payload {
                Payload::from_bytes(&payload)
            } else {
                Payload::None
            },
        }
    })
}

pub(super) fn payload_of(packet: &Packet) -> &[u8] {
    match packet.payload.source() {
        CopySource::Bytes(bytes) => bytes,
        source => panic!("{source:?}"),
    }
}

pub(super) fn emitted(path: &Path, packet: &Packet) -> Vec<u8> {
    let mut out = vec![];
    let fill = |place: &mut [u8]| -> Result<(), ()> {
        place.copy_from_slice(payload_of(packet));
        Ok(())
    };
    frame::emit(path, packet, &mut out, fill).unwrap();
    out
}

/// True if the ICRC does not cover a bit. Bits are counted from the IP header on, the most
/// significant bit of each byte first. This list of the masked fields (A17.3) is independent of the
/// code under test.
fn is_masked(is_ipv4: bool, bit: usize) -> bool {
    let (ip_bits, ip_len): (&[core::ops::Range<usize>], usize) = if is_ipv4 {
        (&[8..16, 64..72, 80..96], 160)
    } else {
        (&[4..32, 56..64], 320)
    };
    let udp_checksum = ip_len + 48..ip_len + 64;
    let resv8a = ip_len + 96..ip_len + 104;
    ip_bits.iter().any(|bits| bits.contains(&bit))
        || udp_checksum.contains(&bit)
        || resv8a.contains(&bit)
}

proptest! {
    #![proptest_config(config(1024))]

    #[test]
    fn frames_round_trip(path in paths(), packet in packets()) {
        let bytes = emitted(&path, &packet);
        prop_assert!(frame::is_rocev2(&bytes));
        let parsed = frame::parse(&bytes).unwrap();
        let mut expected = packet.clone();
        expected.marked = path.is_marked();
        expected.datagram = packet.datagram.as_ref().map(|datagram| {
            let imm = matches!(packet.kind, PacketKind::Send(SendTail::Imm(_)));
            Rc::new(DatagramHeaders {
                path,
                qkey: datagram.qkey,
                grh: stored_grh(&path, frame::datagram_udp_length(packet.payload.len(), imm)),
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
        let _ = frame::parse(&bytes);
        let _ = frame::is_rocev2(&bytes);
        let _ = icrc::compute(&bytes);
    }

    /// The headers before the BTH and the ICRC are correct; the opcode and the body are arbitrary.
    #[test]
    fn arbitrary_transport_never_panics(
        path in paths(),
        opcode: u8,
        body in proptest::collection::vec(any::<u8>(), 0..100),
        valid in packets(),
    ) {
        let mut bytes = emitted(&path, &Packet {
            kind: PacketKind::Send(SendTail::None),
            transport: Transport::Rc,
            datagram: None,
            payload: Payload::from_bytes(&body),
            ..valid
        });
        let ip = ethernet::LEN + if path.vlan.is_some() { vlan::LEN } else { 0 };
        let bth = ip + udp::LEN + if path.is_ipv4() { ipv4::LEN } else { ipv6::LEN };
        bytes[bth] = opcode;
        let end = bytes.len() - icrc::LEN;
        let crc = icrc::compute(&bytes[ip..end]);
        bytes[end..].copy_from_slice(&crc);
        match frame::parse(&bytes) {
            // A packet that its responder will refuse keeps only its BTH.
            Ok(frame) if matches!(frame.packet.kind, PacketKind::Unknown(_)) => {
                prop_assert!(opcode::is_refused(opcode));
                prop_assert_eq!(frame.packet.opcode(), opcode);
            }
            // An accepted packet can be emitted again, with the same length. Reserved bits may
            // differ.
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

    #[test]
    fn flips_of_covered_bits_are_refused_and_flips_of_masked_bits_are_not(path in paths(), packet in packets()) {
        let good = emitted(&path, &packet);
        let ip = ethernet::LEN + if path.vlan.is_some() { vlan::LEN } else { 0 };
        let end = good.len() - icrc::LEN;
        for bit in 0..(good.len() - ip) * 8 {
            let mut bytes = good.clone();
            bytes[ip + bit / 8] ^= 0x80 >> (bit % 8);
            let right = icrc::compute(&bytes[ip..end]) == bytes[end..];
            // The version selects the mask, so the ICRC does not detect a wrong version.
            if bit >= 4 {
                prop_assert_eq!(right, is_masked(path.is_ipv4(), bit), "bit {}", bit);
            }
            let parsed = frame::parse(&bytes);
            // The checksum of the IPv4 header also covers the bits of the header that the ICRC does
            // not cover.
            let refused = !is_masked(path.is_ipv4(), bit) || (path.is_ipv4() && bit < 160);
            prop_assert_eq!(parsed.is_err(), refused, "bit {}", bit);
        }
    }
}
