// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of whole frames: emitted and parsed, truncated, altered, and random.

use super::*;
use crate::headers::{Aeth, AethSyndrome, AtomicOp, NakCode, Reth, SendTail};
use crate::wire::ipv4_to_gid;
use std::vec;
use verbena_lab_transport::Rng;

fn path() -> Path {
    Path {
        smac: [2, 0, 0, 0, 0, 1],
        dmac: [2, 0, 0, 0, 0, 2],
        sgid: ipv4_to_gid([10, 0, 0, 1]),
        dgid: ipv4_to_gid([10, 0, 0, 2]),
        udp_sport: 0xc123,
        ..Path::default()
    }
}

fn packet(
    transport: Transport,
    kind: PacketKind,
    first: bool,
    last: bool,
    payload: &[u8],
) -> Packet {
    let datagram = (transport == Transport::Ud).then(|| {
        Rc::new(DatagramHeaders {
            path: path(),
            qkey: 0x8001_0000,
            grh: [0; 40],
        })
    });
    Packet {
        transport,
        kind,
        first,
        last,
        solicited: last,
        ack_req: last,
        pkey: 0xffff,
        dst_qpn: 0x12_3456,
        src_qpn: if transport == Transport::Ud {
            0x65_4321
        } else {
            0
        },
        psn: 0xab_cdef,
        psns: 1,
        srqn: 0,
        marked: false,
        datagram,
        payload: Payload::from_bytes(payload),
    }
}

fn samples() -> Vec<Packet> {
    let reth = Reth {
        addr: 0x1000,
        rkey: 0x77,
        length: 5,
    };
    let aeth = Aeth {
        syndrome: AethSyndrome::Ack { credits: 31 },
        msn: 9,
    };
    let nak = Aeth {
        syndrome: AethSyndrome::Nak(NakCode::RemoteAccess),
        msn: 9,
    };
    let add = AtomicOp::FetchAdd { add: 3 };
    let swap = AtomicOp::CompareSwap {
        compare: 1,
        swap: 2,
    };
    let rc = |kind, first, last, payload: &[u8]| packet(Transport::Rc, kind, first, last, payload);
    vec![
        rc(PacketKind::Send(SendTail::None), true, false, &[7; 256]),
        rc(PacketKind::Send(SendTail::None), false, false, &[7; 256]),
        rc(PacketKind::Send(SendTail::None), false, true, &[1]),
        rc(
            PacketKind::Send(SendTail::Imm([1, 2, 3, 4])),
            true,
            true,
            &[1, 2],
        ),
        rc(
            PacketKind::Send(SendTail::Invalidate(5)),
            true,
            true,
            &[1, 2, 3],
        ),
        rc(PacketKind::Send(SendTail::None), true, true, &[]),
        rc(
            PacketKind::Write {
                reth: Some(reth),
                imm: None,
            },
            true,
            true,
            &[1, 2, 3, 4, 5],
        ),
        rc(
            PacketKind::Write {
                reth: None,
                imm: None,
            },
            false,
            false,
            &[9; 1024],
        ),
        rc(
            PacketKind::Write {
                reth: None,
                imm: Some([9; 4]),
            },
            false,
            true,
            &[9; 1024],
        ),
        rc(
            PacketKind::Write {
                reth: Some(reth),
                imm: Some([9; 4]),
            },
            true,
            true,
            &[1, 2, 3, 4, 5],
        ),
        rc(PacketKind::ReadRequest(reth), true, true, &[]),
        rc(
            PacketKind::ReadResponse(Some(aeth)),
            true,
            false,
            &[4; 4096],
        ),
        rc(PacketKind::ReadResponse(None), false, false, &[4; 4096]),
        rc(PacketKind::ReadResponse(Some(aeth)), false, true, &[4; 3]),
        rc(PacketKind::Ack(nak), true, true, &[]),
        rc(PacketKind::AtomicResponse(aeth, 77), true, true, &[]),
        rc(
            PacketKind::Atomic {
                addr: 8,
                rkey: 1,
                op: add,
            },
            true,
            true,
            &[],
        ),
        rc(
            PacketKind::Atomic {
                addr: 8,
                rkey: 1,
                op: swap,
            },
            true,
            true,
            &[],
        ),
        packet(
            Transport::Uc,
            PacketKind::Send(SendTail::None),
            true,
            true,
            &[1; 18],
        ),
        packet(
            Transport::Ud,
            PacketKind::Send(SendTail::None),
            true,
            true,
            &[1; 18],
        ),
        Packet {
            srqn: 0x77_8899,
            ..packet(
                Transport::Xrc,
                PacketKind::Send(SendTail::Imm([1; 4])),
                true,
                true,
                &[1; 18],
            )
        },
        Packet {
            srqn: 0x77_8899,
            ..packet(
                Transport::Xrc,
                PacketKind::ReadRequest(reth),
                true,
                true,
                &[],
            )
        },
        packet(
            Transport::Xrc,
            PacketKind::ReadResponse(Some(aeth)),
            true,
            true,
            &[4; 3],
        ),
        packet(
            Transport::Ud,
            PacketKind::Send(SendTail::Imm([1; 4])),
            true,
            true,
            &[1; 18],
        ),
    ]
}

fn bytes_of(path: &Path, packet: &Packet) -> Vec<u8> {
    let mut out = vec![];
    let crate::host::CopySource::Bytes(source) = packet.payload.source() else {
        panic!("bytes")
    };
    emit::<()>(path, packet, &mut out, |place| {
        place.copy_from_slice(source);
        Ok(())
    })
    .unwrap();
    out
}

fn payload_bytes(packet: &Packet) -> Vec<u8> {
    match packet.payload.source() {
        crate::host::CopySource::Bytes(bytes) => bytes.to_vec(),
        _ => panic!("bytes"),
    }
}

#[test]
fn every_kind_of_packet_survives_the_wire() {
    let ipv6 = Path {
        sgid: [0xfe; 16],
        dgid: [0xfd; 16],
        vlan: Some(7),
        sl: 3,
        flow_label: 5,
        ..path()
    };
    for path in [path(), ipv6] {
        for sent in samples() {
            let bytes = bytes_of(&path, &sent);
            assert!(is_rocev2(&bytes));
            let got = parse(&bytes).unwrap();
            assert_eq!(got.path, path);
            assert_eq!(
                (got.packet.kind, got.packet.transport),
                (sent.kind, sent.transport)
            );
            assert_eq!(
                (got.packet.first, got.packet.last),
                (sent.first, sent.last),
                "{:?}",
                sent.kind
            );
            assert_eq!(
                (got.packet.psn, got.packet.dst_qpn),
                (sent.psn, sent.dst_qpn)
            );
            assert_eq!(
                (got.packet.solicited, got.packet.ack_req),
                (sent.solicited, sent.ack_req)
            );
            assert_eq!(payload_bytes(&got.packet), payload_bytes(&sent));
            assert_eq!(got.packet.src_qpn, sent.src_qpn);
            assert_eq!(got.packet.srqn, sent.srqn);
        }
    }
}

#[test]
fn a_frame_in_a_buffer_is_read_without_a_copy() {
    let mut pool = Pool::default();
    for packet in samples() {
        let buffer = Rc::new(bytes_of(&path(), &packet));
        let copied = parse(&buffer).unwrap().packet;
        let referred = parse_in(&buffer, &mut pool).unwrap().packet;
        assert_eq!(referred.kind, copied.kind);
        assert_eq!(referred.datagram, copied.datagram);
        assert_eq!(payload_bytes(&referred), payload_bytes(&copied));
        if let Payload::Bytes { bytes, .. } = &referred.payload {
            assert!(Rc::ptr_eq(bytes, &buffer));
        }
    }
}

#[test]
fn grh_of_a_datagram_is_the_ip_header() {
    let sent = packet(
        Transport::Ud,
        PacketKind::Send(SendTail::None),
        true,
        true,
        &[1; 18],
    );
    let bytes = bytes_of(&path(), &sent);
    let got = parse(&bytes).unwrap();
    let grh = got.packet.datagram.unwrap().grh;
    assert_eq!(grh[..20], [0; 20]);
    assert_eq!(grh[20..], bytes[14..34]);
    assert_eq!(
        grh,
        crate::wire::stored_grh(&path(), datagram_udp_length(18, false))
    );
}

#[test]
fn trailing_ethernet_padding_is_ignored() {
    let mut bytes = bytes_of(&path(), &samples()[5]);
    bytes.extend([0; 10]);
    assert!(parse(&bytes).is_ok());
}

#[test]
fn a_failed_fill_leaves_nothing() {
    let mut out = vec![1, 2, 3];
    assert_eq!(
        emit(&path(), &samples()[0], &mut out, |_| Err("gone")),
        Err("gone")
    );
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn every_truncation_is_refused() {
    for sent in samples() {
        let bytes = bytes_of(&path(), &sent);
        for length in 0..bytes.len() {
            assert!(parse(&bytes[..length]).is_err());
        }
    }
}

#[test]
fn every_flipped_bit_is_refused_or_harmless() {
    for sent in samples().iter().filter(|sent| sent.payload.len() < 64) {
        let good = bytes_of(&path(), sent);
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(frame) = parse(&bytes) {
                // Only fields that the ICRC does not cover can have changed.
                assert_eq!((frame.packet.kind, frame.packet.psn), (sent.kind, sent.psn));
            }
        }
    }
}

#[test]
fn mutated_frames_with_a_right_icrc_never_panic() {
    let mut rng = Rng::new(0x1cfc);
    for sent in samples() {
        let good = bytes_of(&path(), &sent);
        for _ in 0..400 {
            let mut bytes = good.clone();
            for _ in 0..=rng.below(4) {
                let at = 34 + rng.below(bytes.len() as u64 - 34) as usize;
                bytes[at] = rng.next() as u8;
            }
            if rng.below(4) == 0 {
                let length = 38 + rng.below(bytes.len() as u64 - 38) as usize;
                bytes.truncate(length);
                let total = (length - 14) as u16;
                bytes[16..18].copy_from_slice(&total.to_be_bytes());
                bytes[38.min(length - 2)..][..2].copy_from_slice(&(total - 20).to_be_bytes());
                let header: [u8; 20] = bytes[14..34].try_into().unwrap();
                let mut repr = ipv4::Repr {
                    tos: header[1],
                    ttl: header[8],
                    ..ipv4_of(&path())
                };
                repr.payload_len = total - 20;
                repr.emit(&mut bytes[14..34]);
            }
            let body = bytes.len() - 4;
            if body > 46 {
                let crc = icrc::compute(&bytes[14..body]);
                bytes[body..].copy_from_slice(&crc);
            }
            if let Ok(frame) = parse(&bytes) {
                // An accepted packet can be emitted again.
                bytes_of(&frame.path, &frame.packet);
            }
        }
    }
}

/// Parses a valid frame after a change to its bytes from the BTH on, with correct lengths, IPv4
/// checksum and ICRC.
fn resealed(change: impl FnOnce(&mut Vec<u8>)) -> Result<Frame, Malformed> {
    let bytes = bytes_of(&path(), &samples()[6]);
    let mut transport = bytes[42..bytes.len() - 4].to_vec();
    change(&mut transport);
    let (mut bytes, length) = (bytes[..42].to_vec(), transport.len() as u16 + 4);
    ipv4::Repr::from_path(&path(), length + 8).emit(&mut bytes[14..]);
    bytes[38..40].copy_from_slice(&(length + 8).to_be_bytes());
    bytes.extend(transport);
    let crc = icrc::compute(&bytes[14..]);
    bytes.extend(crc);
    parse(&bytes)
}

#[test]
fn frames_that_contradict_themselves_are_refused() {
    type FrameChange = fn(&mut Vec<u8>);
    // An RDMA WRITE ONLY of 5 bytes: 12 of BTH, 16 of RETH, 3 of padding.
    let cases: [(FrameChange, Malformed); 9] = [
        (|bytes| bytes[1] |= 0x01, Malformed::TransportVersion),
        // UC has no operation 0x15.
        (
            |bytes| bytes[0] = opcode::service::UC | 0x15,
            Malformed::Opcode,
        ),
        (|bytes| bytes[0] = opcode::CNP, Malformed::Length),
        (|bytes| bytes.truncate(11), Malformed::Truncated),
        (|bytes| bytes.truncate(27), Malformed::Truncated),
        // Padding, but no payload.
        (|bytes| bytes.truncate(28), Malformed::Length),
        // A length that is not a multiple of four.
        (|bytes| bytes.truncate(35), Malformed::Length),
        // A payload after an opcode that has none.
        (
            |bytes| bytes[0] = opcode::op::READ_REQUEST,
            Malformed::Length,
        ),
        // 4097 bytes of payload: more than the largest path MTU.
        (|bytes| bytes.resize(28 + 4100, 0), Malformed::Length),
    ];
    for (change, error) in cases {
        assert_eq!(resealed(change).unwrap_err(), error);
    }
    assert!(resealed(|_| {}).is_ok());
    let largest = resealed(|bytes| bytes.resize(28 + 4096, 0)).unwrap();
    assert_eq!(largest.packet.payload.len(), 4093);
    let header_only = resealed(|bytes| {
        bytes.truncate(28);
        bytes[0] = opcode::op::READ_REQUEST;
        bytes[1] &= !0x30;
    });
    assert!(header_only.is_ok());
}

#[test]
fn a_request_that_will_be_refused_is_parsed_without_payload() {
    for code in [0x15, 0x18, 0x1e, 0x1f] {
        let good = resealed(|_| {}).unwrap().packet;
        let packet = resealed(|bytes| bytes[0] = code).unwrap().packet;
        assert_eq!(packet.kind, PacketKind::Unknown(code));
        assert_eq!((packet.opcode(), packet.psn), (code, good.psn));
        assert!(packet.payload.is_empty() && packet.kind.is_request());
        assert_eq!(packet.transport, Transport::Rc);
    }
    let uneven = resealed(|bytes| {
        bytes[0] = 0x18;
        bytes.truncate(30);
    });
    assert_eq!(uneven.unwrap_err(), Malformed::Length);
    let long = resealed(|bytes| {
        bytes[0] = 0x18;
        bytes.resize(12 + extensions::MAX_LEN + 4096 + 4, 0);
    });
    assert_eq!(long.unwrap_err(), Malformed::Length);
}

#[test]
fn a_cnp_with_its_reserved_bytes_is_parsed() {
    let cnp = resealed(|bytes| {
        bytes[0] = opcode::CNP;
        bytes[1] = 0;
        bytes.truncate(12);
        bytes.resize(12 + opcode::CNP_PAYLOAD, 0);
    });
    let cnp = cnp.unwrap().packet;
    assert_eq!(
        (cnp.kind, cnp.psn, cnp.psns),
        (PacketKind::Cnp, 0xab_cdef, 1)
    );
    assert!(!cnp.kind.is_request() && cnp.payload.is_empty());
}

/// A CNP has BECN set, MigReq clear, and 16 reserved bytes. `icrc.rs` has one that was captured
/// from hardware.
#[test]
fn an_emitted_cnp_has_the_fields_of_one_from_hardware() {
    let cnp = Packet {
        dst_qpn: 0x118,
        psn: 0,
        solicited: false,
        ack_req: false,
        ..packet(Transport::Rc, PacketKind::Cnp, true, true, &[])
    };
    let bytes = bytes_of(&path(), &cnp);
    let bth = &bytes[14 + 20 + 8..bytes.len() - icrc::LEN];
    assert_eq!(bth[..2], [0x81, 0]);
    assert_eq!(bth[4..8], [0x40, 0, 1, 0x18]);
    assert_eq!(bth[12..], [0; opcode::CNP_PAYLOAD]);
    let frame = parse(&bytes).unwrap();
    assert_eq!(
        (frame.packet.kind, frame.packet.dst_qpn),
        (PacketKind::Cnp, 0x118)
    );
}

#[test]
fn the_mark_of_a_router_is_parsed() {
    for (class, marked) in [
        (0xb8, false),
        (0xb9, false),
        (0xba, false),
        (0xbb, true),
        (3, true),
    ] {
        let path = Path {
            traffic_class: class,
            ..path()
        };
        let frame = parse(&bytes_of(&path, &samples()[0])).unwrap();
        assert_eq!(frame.packet.marked, marked, "{class:#x}");
        assert_eq!(path.with_ect().traffic_class, class & 0xfc | 2);
    }
}

#[test]
fn a_udp_length_below_that_of_ip_is_refused() {
    let mut bytes = bytes_of(&path(), &samples()[6]);
    bytes.extend([0; 4]);
    let length = bytes.len() as u16 - 34;
    ipv4::Repr::from_path(&path(), length).emit(&mut bytes[14..34]);
    let body = bytes.len() - 4;
    let crc = icrc::compute(&bytes[14..body]);
    bytes[body..].copy_from_slice(&crc);
    assert_eq!(parse(&bytes).unwrap_err(), Malformed::Length);
}

#[test]
fn priority_tags_belong_to_no_vlan_and_two_tags_are_refused() {
    let tagged = Path {
        vlan: Some(7),
        sl: 3,
        ..path()
    };
    let mut bytes = bytes_of(&tagged, &samples()[6]);
    bytes[14..16].copy_from_slice(&[0x60, 0]);
    let path = parse(&bytes).unwrap().path;
    assert_eq!((path.vlan, path.sl), (None, 3));
    bytes.splice(12..12, [0x81, 0, 0, 9]);
    assert_eq!(parse(&bytes).unwrap_err(), Malformed::EtherType);
    assert!(!is_rocev2(&bytes));
}

#[test]
fn frames_to_another_port_or_of_another_type_are_not_rocev2() {
    let good = bytes_of(&path(), &samples()[6]);
    let seen = peek(&good).unwrap();
    assert_eq!((seen.dmac, seen.dgid), (path().dmac, path().dgid));
    assert_eq!(peek(&good[..good.len() - 1]), None);
    // Another UDP port, and another Ethernet type. The modules of the headers test other faults.
    for (at, value) in [(37, 0xb8), (13, 6)] {
        let mut bytes = good.clone();
        bytes[at] = value;
        assert_eq!(peek(&bytes), None, "byte {at}");
        assert!(parse(&bytes).is_err());
    }
}

fn ipv4_of(path: &Path) -> ipv4::Repr {
    ipv4::Repr::from_path(path, 0)
}

#[test]
fn random_bytes_never_panic() {
    let mut rng = Rng::new(7);
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..rng.below(128)).map(|_| rng.next() as u8).collect();
        assert!(parse(&bytes).is_err());
        is_rocev2(&bytes);
    }
}
