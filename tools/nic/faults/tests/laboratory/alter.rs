// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of altered frames, as the transport parses them.

use verbena_faults::{alter, Corruption, HeaderField, IcrcState};
use verbena_transport::frame;
use verbena_transport::packet::{PacketKind, Reth, Transport};
use verbena_transport::wire::{Malformed, Path};
use verbena_transport::{Packet, Payload};

fn write(is_ipv4: bool, vlan: Option<u16>) -> Vec<u8> {
    let gid = |last| {
        let mut gid = [0; 16];
        if is_ipv4 {
            gid[10..12].fill(0xff);
        } else {
            gid[0] = 0xfd;
        }
        gid[15] = last;
        gid
    };
    let path = Path {
        vlan,
        sgid: gid(1),
        dgid: gid(2),
        ..Path::default()
    };
    let packet = Packet {
        transport: Transport::Rc,
        kind: PacketKind::Write {
            reth: Some(Reth {
                addr: 0x1000,
                rkey: 0x1234,
                length: 5,
            }),
            imm: None,
        },
        first: true,
        last: true,
        solicited: false,
        ack_req: true,
        pkey: 0xffff,
        dst_qpn: 17,
        src_qpn: 18,
        psn: 7,
        psns: 1,
        srqn: 0,
        marked: false,
        datagram: None,
        payload: Payload::from_bytes(b"hello"),
    };
    let mut bytes = Vec::new();
    frame::emit(&path, &packet, &mut bytes, |room| {
        room.copy_from_slice(b"hello");
        Ok::<(), ()>(())
    })
    .unwrap();
    bytes
}

fn how(
    field: Option<HeaderField>,
    value: Option<u64>,
    payload: Option<u32>,
    icrc: IcrcState,
) -> Corruption {
    Corruption {
        field,
        value,
        payload,
        icrc,
    }
}

#[test]
fn a_field_gets_the_requested_value() {
    for (is_ipv4, vlan) in [
        (true, None),
        (false, None),
        (true, Some(5)),
        (false, Some(5)),
    ] {
        let mut bytes = write(is_ipv4, vlan);
        assert!(alter::corrupt(
            &mut bytes,
            &how(Some(HeaderField::Rkey), Some(0xbad), None, IcrcState::Right)
        ));
        assert!(alter::corrupt(
            &mut bytes,
            &how(Some(HeaderField::Va), None, None, IcrcState::Right)
        ));
        assert!(alter::corrupt(
            &mut bytes,
            &how(Some(HeaderField::Psn), Some(9), None, IcrcState::Right)
        ));
        let packet = frame::parse(&bytes).unwrap().packet;
        let expected = Reth {
            addr: 0x1001,
            rkey: 0xbad,
            length: 5,
        };
        let kind = PacketKind::Write {
            reth: Some(expected),
            imm: None,
        };
        assert_eq!((packet.kind, packet.psn), (kind, 9));
        assert!(!alter::corrupt(
            &mut bytes,
            &how(Some(HeaderField::Syndrome), Some(9), None, IcrcState::Right)
        ));
    }
}

#[test]
fn a_bit_of_the_payload_is_flipped_but_not_of_the_padding() {
    let mut bytes = write(true, None);
    assert!(alter::corrupt(
        &mut bytes,
        &how(None, None, Some(4), IcrcState::Right)
    ));
    let packet = frame::parse(&bytes).unwrap().packet;
    let verbena_transport::host::CopySource::Bytes(payload) = packet.payload.source() else {
        panic!("the payload is not bytes");
    };
    assert_eq!(payload, b"helln");
    // The bytes after the payload are padding.
    let before = bytes.clone();
    assert!(!alter::corrupt(
        &mut bytes,
        &how(None, None, Some(5), IcrcState::Right)
    ));
    assert_eq!(bytes, before);
}

#[test]
fn a_wrong_icrc_is_detected() {
    let mut bytes = write(true, None);
    assert!(alter::corrupt(
        &mut bytes,
        &how(None, None, Some(0), IcrcState::Wrong)
    ));
    assert_eq!(frame::parse(&bytes).map(drop), Err(Malformed::Icrc));
}

#[test]
fn bytes_that_are_not_a_whole_frame_stay_unchanged() {
    let whole = write(true, None);
    let change = how(Some(HeaderField::Psn), Some(1), None, IcrcState::Right);
    for length in 0..58 {
        assert!(
            !alter::corrupt(&mut whole[..length].to_vec(), &change),
            "{length}"
        );
    }
}
