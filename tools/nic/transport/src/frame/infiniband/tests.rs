// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of InfiniBand packets: some from hardware, truncated, altered, and to special QPs.

use super::*;
use crate::frame::properties::{emitted, payload_of};
use crate::packet::{
    Aeth, AethSyndrome, DatagramHeaders, PacketKind, Payload, SendTail, Transport,
};
use crate::wire::samples::{directed_route_smp, GLOBAL_DATAGRAM, LOCAL_ACKNOWLEDGE, LOCAL_WRITE};
use std::vec::Vec;
use verbena_lab_transport::Rng;

fn path(has_grh: bool) -> Path {
    Path {
        sl: 3,
        local_route: Some(LocalRoute {
            slid: 0x12,
            dlid: 0x34,
            has_grh,
        }),
        ..Path::default()
    }
}

/// Returns a datagram with a MAD-sized payload.
fn datagram(path: Path, dst_qpn: u32) -> Packet {
    Packet {
        transport: Transport::Ud,
        kind: PacketKind::Send(SendTail::None),
        first: true,
        last: true,
        solicited: false,
        ack_req: false,
        pkey: 0x7fff,
        dst_qpn,
        src_qpn: dst_qpn,
        psn: 5,
        psns: 1,
        srqn: 0,
        marked: false,
        datagram: Some(Rc::new(DatagramHeaders {
            path,
            qkey: 0x8001_0000,
            grh: [0; 40],
        })),
        payload: Payload::from_bytes(&[7; 256]),
    }
}

/// Returns a packet whose checksums were made right after a change.
fn with_checksums(mut bytes: Vec<u8>) -> Vec<u8> {
    let next_header = match bytes[1] & 3 {
        3 => NextHeader::Grh,
        _ => NextHeader::Bth,
    };
    bytes.truncate(bytes.len() - vcrc::LEN - icrc::LEN);
    bytes.extend(icrc::compute_infiniband(next_header, &bytes));
    bytes.extend(vcrc::compute(&bytes));
    bytes
}

#[test]
fn an_acknowledgement_from_hardware_is_parsed_and_emitted_again() {
    let frame = parse_infiniband(&LOCAL_ACKNOWLEDGE).unwrap();
    let route = LocalRoute {
        slid: 1,
        dlid: 4,
        has_grh: false,
    };
    let (path, packet) = (frame.path, frame.packet);
    assert_eq!((path.local_route, path.sl), (Some(route), 0));
    assert!(!path.has_grh() && path.sgid == [0; 16]);
    let aeth = Aeth {
        syndrome: AethSyndrome::Ack { credits: 31 },
        msn: 1,
    };
    assert_eq!(packet.kind, PacketKind::Ack(aeth));
    assert_eq!((packet.dst_qpn, packet.psn), (0x87_0408, 0xd4_0a55));
    assert_eq!(emitted(&path, &packet), LOCAL_ACKNOWLEDGE);
}

#[test]
fn a_multicast_datagram_from_hardware_is_parsed_and_emitted_again() {
    let frame = parse_infiniband(&GLOBAL_DATAGRAM).unwrap();
    let (path, packet) = (frame.path, frame.packet);
    let route = path.local_route.unwrap();
    assert_eq!((route.slid, route.dlid, route.has_grh), (4, 0xc000, true));
    assert_eq!(
        (path.sgid[..2].to_vec(), path.dgid[0]),
        ([0xfe, 0x80].to_vec(), 0xff)
    );
    assert_eq!(
        (path.flow_label, path.traffic_class, path.hop_limit),
        (0, 0, 0)
    );
    let datagram = packet.datagram.as_ref().unwrap();
    assert_eq!(datagram.grh, GLOBAL_DATAGRAM[8..48]);
    assert_eq!(datagram.path, path);
    assert_eq!((datagram.qkey, packet.src_qpn), (0xb1b, 0x405));
    assert_eq!((packet.pkey, packet.dst_qpn), (0xffff, 0xff_ffff));
    assert_eq!(emitted(&path, &packet), GLOBAL_DATAGRAM);
}

#[test]
fn an_smp_from_hardware_is_parsed_and_emitted_again() {
    let smp = directed_route_smp();
    let frame = parse_infiniband(&smp).unwrap();
    let (path, packet) = (frame.path, frame.packet);
    let route = path.local_route.unwrap();
    let permissive = (lrh::PERMISSIVE_LID, lrh::PERMISSIVE_LID);
    assert_eq!((route.slid, route.dlid), permissive);
    assert_eq!((packet.dst_qpn, packet.src_qpn), (0, 0));
    assert_eq!(payload_of(&packet), &smp[28..284]);
    assert_eq!(packet.datagram.as_ref().unwrap().grh, [0; 40]);
    // That adapter sends MigReq as 0.
    let mut expected = smp.to_vec();
    expected[lrh::LEN + 1] |= 0x40;
    assert_eq!(emitted(&path, &packet), with_checksums(expected));
}

#[test]
fn a_write_of_another_program_is_parsed() {
    let mut bytes = LOCAL_WRITE.to_vec();
    bytes.extend(vcrc::compute(&LOCAL_WRITE));
    let packet = parse_infiniband(&bytes).unwrap().packet;
    let PacketKind::Write {
        reth: Some(reth),
        imm: None,
    } = packet.kind
    else {
        panic!("{packet:?}");
    };
    assert_eq!((reth.length, packet.payload.len()), (14, 14));
    assert_eq!((packet.pkey, packet.dst_qpn), (0x2487, 0x87_b1b3));
    let wrong_icrc = [&LOCAL_WRITE[..52], &[0; 4]].concat();
    let bytes = [&wrong_icrc[..], &vcrc::compute(&wrong_icrc)].concat();
    assert_eq!(parse_infiniband(&bytes).unwrap_err(), Malformed::Icrc);
}

#[test]
fn every_truncation_and_every_byte_more_is_refused() {
    for packet in [
        &LOCAL_ACKNOWLEDGE[..],
        &GLOBAL_DATAGRAM,
        &directed_route_smp(),
    ] {
        for length in 0..packet.len() {
            let error = parse_infiniband(&packet[..length]).unwrap_err();
            assert_eq!(error, Malformed::Truncated, "{length}");
        }
        let longer = [packet, &[0]].concat();
        assert_eq!(parse_infiniband(&longer).unwrap_err(), Malformed::Length);
    }
}

#[test]
fn the_packet_lengths_of_lrh_and_grh_end_at_the_same_byte() {
    for change in [-4, 4] {
        let mut bytes = GLOBAL_DATAGRAM.to_vec();
        bytes[lrh::LEN + 5] = bytes[lrh::LEN + 5].wrapping_add_signed(change);
        let error = parse_infiniband(&with_checksums(bytes)).unwrap_err();
        let expected = if change < 0 {
            Malformed::Length
        } else {
            Malformed::Truncated
        };
        assert_eq!(error, expected);
    }
}

#[test]
fn vl_15_and_qp0_belong_together() {
    for (qpn, vl) in [(0, 15), (1, 0), (0x123, 0)] {
        let path = path(false);
        let sent = emitted(&path, &datagram(path, qpn));
        assert_eq!(sent[0] >> 4, vl);
        for other in 0..16 {
            let mut bytes = sent.clone();
            bytes[0] = other << 4;
            let parsed = parse_infiniband(&with_checksums(bytes)).map(drop);
            let expected = match (other == 15) == (vl == 15) {
                true => Ok(()),
                false => Err(Malformed::VirtualLane),
            };
            assert_eq!(parsed, expected, "QPN {qpn}, VL {other}");
        }
    }
}

#[test]
fn a_packet_to_a_multicast_group_has_a_grh() {
    for has_grh in [false, true] {
        let path = path(has_grh);
        let sent = emitted(&path, &datagram(path, 0xff_ffff));
        let parsed = parse_infiniband(&sent).map(drop);
        let expected = match has_grh {
            true => Ok(()),
            false => Err(Malformed::NoGrh),
        };
        assert_eq!(parsed, expected);
    }
}

#[test]
fn a_congestion_notification_of_roce_is_refused() {
    let cnp = Packet {
        transport: Transport::Rc,
        kind: PacketKind::Cnp,
        datagram: None,
        payload: Payload::None,
        ..datagram(path(false), 0x12)
    };
    let error = parse_infiniband(&emitted(&path(false), &cnp)).unwrap_err();
    assert_eq!(error, Malformed::Opcode);
}

#[test]
fn a_parsed_payload_may_refer_to_the_buffer_of_the_packet() {
    let buffer = Rc::new(emitted(&path(true), &datagram(path(true), 1)));
    let frame = parse_infiniband_in(&buffer, &mut Pool::default()).unwrap();
    let Payload::Bytes { bytes, offset, .. } = &frame.packet.payload else {
        panic!("{frame:?}");
    };
    assert!(Rc::ptr_eq(bytes, &buffer));
    assert_eq!(*offset, 8 + 40 + 12 + 8);
}

#[test]
fn changed_packets_with_right_checksums_never_panic() {
    let mut rng = Rng::new(7);
    for round in 0..20_000 {
        let mut bytes = match round % 3 {
            0 => LOCAL_ACKNOWLEDGE.to_vec(),
            1 => GLOBAL_DATAGRAM.to_vec(),
            _ => directed_route_smp().to_vec(),
        };
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.next() as u8;
        }
        let bytes = with_checksums(bytes);
        if let Ok(frame) = parse_infiniband(&bytes) {
            assert!(frame.packet.payload.len() as usize <= bytes.len());
        }
    }
}
