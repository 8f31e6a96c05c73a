// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of altered frames, as the transport parses them.

use verbena_abi::cmd::LinkLayer;
use verbena_faults::{alter, Corruption, HeaderField, IcrcState};
use verbena_transport::frame;
use verbena_transport::packet::{PacketKind, Reth, Transport};
use verbena_transport::wire::{LocalRoute, Malformed, Path};
use verbena_transport::{Packet, Payload};

fn write(is_ipv4: bool, vlan: Option<u16>) -> Vec<u8> {
    emit(Path {
        vlan,
        sgid: gid(is_ipv4, 1),
        dgid: gid(is_ipv4, 2),
        ..Path::default()
    })
}

/// Returns an InfiniBand packet.
fn infiniband_write(has_grh: bool) -> Vec<u8> {
    emit(Path {
        sgid: gid(false, 1),
        dgid: gid(false, 2),
        local_route: Some(LocalRoute {
            slid: 1,
            dlid: 2,
            has_grh,
        }),
        ..Path::default()
    })
}

fn gid(is_ipv4: bool, last: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    if is_ipv4 {
        gid[10..12].fill(0xff);
    } else {
        gid[0] = 0xfd;
    }
    gid[15] = last;
    gid
}

fn emit(path: Path) -> Vec<u8> {
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

/// Returns frames of each form, with their link layer.
fn frames() -> Vec<(LinkLayer, Vec<u8>)> {
    let ethernet = [
        (true, None),
        (false, None),
        (true, Some(5)),
        (false, Some(5)),
    ];
    let ethernet = ethernet.map(|(is_ipv4, vlan)| (LinkLayer::Ethernet, write(is_ipv4, vlan)));
    let infiniband = [false, true].map(|grh| (LinkLayer::InfiniBand, infiniband_write(grh)));
    ethernet.into_iter().chain(infiniband).collect()
}

fn parse(link_layer: LinkLayer, bytes: &[u8]) -> Result<Packet, Malformed> {
    let frame = match link_layer {
        LinkLayer::Ethernet => frame::parse(bytes),
        LinkLayer::InfiniBand => frame::parse_infiniband(bytes),
    };
    frame.map(|frame| frame.packet)
}

#[test]
fn a_field_gets_the_requested_value() {
    for (layer, mut bytes) in frames() {
        let mut set = |field, value| {
            let how = how(Some(field), value, None, IcrcState::Right);
            alter::corrupt(&mut bytes, layer, &how)
        };
        assert!(set(HeaderField::Rkey, Some(0xbad)));
        assert!(set(HeaderField::Va, None));
        assert!(set(HeaderField::Psn, Some(9)));
        assert!(!set(HeaderField::Syndrome, Some(9)));
        let packet = parse(layer, &bytes).unwrap();
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
    }
}

#[test]
fn a_bit_of_the_payload_is_flipped_but_not_of_the_padding() {
    for (layer, mut bytes) in frames() {
        let flip = |at| how(None, None, Some(at), IcrcState::Right);
        assert!(alter::corrupt(&mut bytes, layer, &flip(4)));
        let packet = parse(layer, &bytes).unwrap();
        let verbena_transport::host::CopySource::Bytes(payload) = packet.payload.source() else {
            panic!("the payload is not bytes");
        };
        assert_eq!(payload, b"helln");
        // The bytes after the payload are padding.
        let before = bytes.clone();
        assert!(!alter::corrupt(&mut bytes, layer, &flip(5)));
        assert_eq!(bytes, before);
    }
}

/// On InfiniBand the VCRC of the altered packet is right, so that the receiver checks the ICRC.
#[test]
fn a_wrong_icrc_is_detected() {
    for (layer, mut bytes) in frames() {
        let flip = how(None, None, Some(0), IcrcState::Wrong);
        assert!(alter::corrupt(&mut bytes, layer, &flip));
        assert_eq!(parse(layer, &bytes).map(drop), Err(Malformed::Icrc));
    }
}

#[test]
fn bytes_that_are_not_a_whole_frame_stay_unchanged() {
    let change = how(Some(HeaderField::Psn), Some(1), None, IcrcState::Right);
    for (layer, whole) in frames() {
        // Without the BTH and the checksums, or without a byte of what the LRH counts.
        let short = match layer {
            LinkLayer::Ethernet => 58,
            LinkLayer::InfiniBand => whole.len(),
        };
        for length in 0..short {
            assert!(
                !alter::corrupt(&mut whole[..length].to_vec(), layer, &change),
                "{length}"
            );
        }
    }
}
