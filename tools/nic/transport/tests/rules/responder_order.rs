// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The checks of the reliable responder and their order (IBTA 9.7.4.1).

use super::by_hand::*;
use verbena_lab_transport::{ArenaBuffer, PairSetup, PairSide::*, QpPair};
use verbena_transport::host::{EventType, Syndrome, WcStatus::*};
use verbena_transport::packet::{Aeth, AethSyndrome, NakCode, Packet, PacketKind, Reth, SendTail};
use verbena_transport::QpState;
use NakCode::{InvalidRequest, RemoteAccess};

#[test]
fn responses_to_a_responder_are_not_answered() {
    let aeth = Aeth {
        syndrome: AethSyndrome::Nak(InvalidRequest),
        msn: 0,
    };
    for kind in [
        PacketKind::Ack(aeth),
        PacketKind::ReadResponse(Some(aeth)),
        PacketKind::ReadResponse(None),
        PacketKind::AtomicResponse(aeth, 1),
    ] {
        let mut p = rc();
        assert!(exchange(&mut p, request(kind, 0, &[])).is_empty());
        assert_eq!(p.state(A), QpState::Rts);
        assert_eq!(p.qps[0].snapshot().expected_psn, psn(0));
    }
}

#[test]
fn a_request_with_another_pkey_is_silently_dropped() {
    let mut p = rc();
    let word = p.zeros(A, 8);
    let mut packet = request(write(word), 0, &[1; 8]);
    packet.pkey = 0x8001;
    assert!(exchange(&mut p, packet).is_empty());
    assert_eq!(p.qps[0].counters().dropped_pkey, 1);
    assert_eq!(p.adapter.bytes(word), [0; 8]);
    assert!(is_ack(
        &exchange(&mut p, request(write(word), 0, &[1; 8])),
        0
    ));
}

#[test]
fn an_unknown_opcode_is_an_invalid_request() {
    for code in [0x15, 0x18, 0x1b, 0x1e, 0x1f] {
        let mut p = responder(PairSetup {
            recovers: false,
            ..PairSetup::default()
        });
        let word = p.zeros(A, 8);
        p.post_recv(A, 1, &[word.sge()]);
        // Ahead of the PSN expected, the packet is out of sequence like any other.
        let got = exchange(&mut p, request(PacketKind::Unknown(code), 1, &[]));
        assert!(is_nak(&got, 0, NakCode::Sequence), "{code:#x}");
        assert!(is_ack(
            &exchange(&mut p, request(write(word), 0, &[1; 8])),
            0
        ));
        // Before the PSN expected, it is a duplicate that matches no executed request.
        assert!(exchange(&mut p, request(PacketKind::Unknown(code), 0, &[])).is_empty());
        assert_eq!(p.state(A), QpState::Rts, "{code:#x}");
        let got = exchange(&mut p, request(PacketKind::Unknown(code), 1, &[]));
        assert!(is_nak(&got, 1, InvalidRequest), "{code:#x}");
        assert_eq!(p.state(A), QpState::Err, "{code:#x}");
        assert_eq!(p.qps[0].snapshot().syndrome, Some(Syndrome::RequestOpcode));
        assert_eq!(p.events(A), [EventType::QpReqErr], "{code:#x}");
        assert_eq!(p.statuses(A), [(1, WrFlushErr)], "{code:#x}");
    }
}

#[test]
fn an_unknown_opcode_within_a_send_completes_its_receive_in_error() {
    let mut p = rc();
    let far = p.zeros(A, 1024);
    p.post_recv(A, 1, &[far.sge()]);
    put(&mut p, part(true, false, request(SEND, 0, &[1; 256])));
    answers(&mut p);
    let got = exchange(&mut p, request(PacketKind::Unknown(0x1f), 1, &[]));
    assert!(is_nak(&got, 1, InvalidRequest));
    assert_eq!(p.statuses(A), [(1, LocQpOpErr)]);
    assert!(p.events(A).is_empty());
}

/// A message in progress.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MessageBefore {
    Nothing,
    Send,
    Write,
}

#[test]
fn every_opcode_out_of_its_order_is_an_invalid_request() {
    use MessageBefore::*;
    for before in [Nothing, Send, Write] {
        for (name, fits_after) in [
            ("SEND FIRST", Nothing),
            ("SEND MIDDLE", Send),
            ("SEND LAST", Send),
            ("SEND ONLY", Nothing),
            ("SEND LAST INV", Send),
            ("WRITE FIRST", Nothing),
            ("WRITE MIDDLE", Write),
            ("WRITE LAST", Write),
            ("WRITE ONLY", Nothing),
            ("WRITE LAST IMM", Write),
            ("READ", Nothing),
            ("ATOMIC", Nothing),
        ] {
            let mut p = rc();
            let (far, key) = (p.zeros(A, 1024), p.zeros(A, 8));
            for i in 0..2 {
                p.post_recv(A, i, &[far.sge()]);
            }
            let n = u32::from(before != Nothing);
            match before {
                Nothing => {}
                Send => put(&mut p, part(true, false, request(SEND, 0, &[1; 256]))),
                Write => put(&mut p, part(true, false, request(write(far), 0, &[1; 256]))),
            }
            answers(&mut p);
            let small = ArenaBuffer { len: 8, ..far };
            let rest = if before == Write { 768 } else { 512 };
            // The earlier WRITE packet had 256 bytes of 1024.
            let last = |tail| (PacketKind::Send(tail), false, true, 8);
            let (kind, first, last, length) = match name {
                "SEND FIRST" => (SEND, true, false, 256),
                "SEND MIDDLE" => (SEND, false, false, 256),
                "SEND LAST" => last(SendTail::None),
                "SEND ONLY" => (SEND, true, true, 8),
                "SEND LAST INV" => last(SendTail::Invalidate(key.key)),
                "WRITE FIRST" => (write(far), true, false, 256),
                "WRITE MIDDLE" => (WRITE_ON, false, false, 256),
                "WRITE LAST" => (WRITE_ON, false, true, rest),
                "WRITE ONLY" => (write(small), true, true, 8),
                "WRITE LAST IMM" => {
                    let imm = Some([0; 4]);
                    (PacketKind::Write { reth: None, imm }, false, true, rest)
                }
                "READ" => (read(small), true, true, 0),
                _ => (fetch_add(far, 1), true, true, 0),
            };
            let mut packet = part(first, last, request(kind, n, &vec![1; length]));
            packet.psns = (length as u32).div_ceil(256).max(1);
            let got = exchange(&mut p, packet);
            let case = std::format!("{name} after {before:?}");
            if before == fits_after {
                assert_eq!(p.state(A), QpState::Rts, "{case}");
                assert!(!got.is_empty(), "{case}");
                continue;
            }
            assert!(is_nak(&got, n, InvalidRequest), "{case}");
            assert_eq!(p.state(A), QpState::Err, "{case}");
            // A SEND in progress has a receive, which reports the error. Otherwise an event reports
            // it.
            let taken = before == Send;
            let statuses: Vec<_> = p.statuses(A).iter().map(|(_, status)| *status).collect();
            let first = if taken { LocQpOpErr } else { WrFlushErr };
            assert_eq!(statuses, [first, WrFlushErr], "{case}");
            assert_eq!(p.events(A).len(), usize::from(!taken), "{case}");
        }
    }
}

/// Returns the NAK code with which a new responder answers the last of these packets. The earlier
/// ones are valid.
fn refused(access_flags: Option<u32>, prepare: impl Fn(&mut QpPair) -> Vec<Packet>) -> NakCode {
    let mut setup = PairSetup::default();
    if let Some(flags) = access_flags {
        setup.attr.access_flags = flags;
    }
    let mut p = responder(setup);
    let packets = prepare(&mut p);
    let count = packets.len() as u32;
    let mut got = vec![];
    for packet in packets {
        got = exchange(&mut p, packet);
    }
    assert_eq!(p.state(A), QpState::Err);
    match acks(&got)[..] {
        [(at, AethSyndrome::Nak(code))] => {
            assert_eq!(at, psn(count - 1));
            code
        }
        _ => panic!("{got:?}"),
    }
}

#[test]
fn payloads_of_the_wrong_size_are_invalid_requests() {
    // (first, last, bytes) of packets, the last of which is wrong. The path MTU is 256.
    let cases: [&[(bool, bool, usize)]; 9] = [
        &[(true, false, 255)],
        &[(true, false, 257)],
        &[(true, false, 0)],
        &[(true, true, 257)],
        &[(true, false, 256), (false, false, 255)],
        &[(true, false, 256), (false, false, 0)],
        &[(true, false, 256), (false, false, 252)],
        &[(true, false, 256), (false, true, 0)],
        &[(true, false, 256), (false, true, 257)],
    ];
    for case in cases {
        for is_write in [false, true] {
            let code = refused(None, |p| {
                let far = p.zeros(A, 4096);
                p.post_recv(A, 1, &[far.sge()]);
                // The DMA length matches the payloads.
                let sum: usize = case.iter().map(|(_, last, n)| n + usize::from(!last)).sum();
                let far = ArenaBuffer {
                    len: sum as u32,
                    ..far
                };
                let packets = case.iter().enumerate().map(|(n, (first, last, bytes))| {
                    let kind = match (is_write, first) {
                        (false, _) => SEND,
                        (true, true) => write(far),
                        (true, false) => WRITE_ON,
                    };
                    part(*first, *last, request(kind, n as u32, &vec![1; *bytes]))
                });
                packets.collect()
            });
            assert_eq!(code, InvalidRequest, "{case:?}");
        }
    }
}

#[test]
fn a_write_whose_data_differ_from_its_dma_length_is_invalid() {
    // DMA length, and the bytes of the packets. The last packet is one too many, too long or too
    // short.
    let cases: [(u32, &[usize]); 6] = [
        (8, &[7]),
        (8, &[9]),
        (0, &[1]),
        (257, &[256, 2]),
        (300, &[256, 43]),
        (256, &[256]),
    ];
    for (length, sizes) in cases {
        let code = refused(None, |p| {
            let far = p.zeros(A, 4096);
            let kind = write(ArenaBuffer { len: length, ..far });
            let only = sizes.len() == 1;
            sizes
                .iter()
                .enumerate()
                .map(|(n, bytes)| {
                    let kind = if n == 0 { kind } else { WRITE_ON };
                    // A FIRST with all bytes of the DMA length is wrong, because a LAST would have
                    // none.
                    let last = if only { *bytes < 256 } else { n > 0 };
                    part(n == 0, last, request(kind, n as u32, &vec![1; *bytes]))
                })
                .collect()
        });
        assert_eq!(code, InvalidRequest, "{length} {sizes:?}");
    }
}

#[test]
fn the_first_fault_in_the_order_of_checks_is_answered() {
    let bad = Reth {
        addr: 0,
        rkey: 0xbad,
        length: 100,
    };
    let write = |reth| PacketKind::Write {
        reth: Some(reth),
        imm: None,
    };
    // The opcode is checked before the key.
    let code = refused(None, |_| {
        vec![part(
            false,
            true,
            request(
                PacketKind::Write {
                    reth: None,
                    imm: None,
                },
                0,
                &[],
            ),
        )]
    });
    assert_eq!(code, InvalidRequest);
    // The enabled operations are checked before the key.
    let code = refused(Some(0), |_| vec![request(write(bad), 0, &[1; 100])]);
    assert_eq!(code, InvalidRequest);
    // The resources are checked before the key.
    let code = refused(None, |p| {
        let attr = verbena_transport::Attr {
            max_dest_rd_atomic: 0,
            ..p.attr(A)
        };
        p.modify_attr(A, QpState::Rts, &attr).unwrap();
        vec![request(PacketKind::ReadRequest(bad), 0, &[])]
    });
    assert_eq!(code, InvalidRequest);
    // The key is checked before the length.
    let code = refused(None, |_| vec![request(write(bad), 0, &[1; 50])]);
    assert_eq!(code, RemoteAccess);
    let atomic = PacketKind::Atomic {
        addr: 4,
        rkey: 0xbad,
        op: verbena_transport::host::AtomicOp::FetchAdd { add: 1 },
    };
    // The alignment of an atomic is checked before the key. IBTA 9.4.5 leaves the order open, and
    // adapters check the address first.
    let code = refused(None, |_| vec![request(atomic, 0, &[])]);
    assert_eq!(code, InvalidRequest);
    // A DMA length over the longest message is found before the key.
    let long = Reth {
        length: (1 << 31) + 1,
        ..bad
    };
    let code = refused(None, |_| {
        vec![request(PacketKind::ReadRequest(long), 0, &[])]
    });
    assert_eq!(code, InvalidRequest);
    let code = refused(None, |_| {
        vec![part(true, false, request(write(long), 0, &[1; 256]))]
    });
    assert_eq!(code, InvalidRequest);
    // The receive is checked before the key, and the sequence before everything else.
    let mut p = rc();
    let imm = PacketKind::Write {
        reth: Some(bad),
        imm: Some([0; 4]),
    };
    let got = exchange(&mut p, request(imm, 0, &[1; 100]));
    assert!(matches!(acks(&got)[..], [(_, AethSyndrome::Rnr { .. })]));
    let mut p = rc();
    let got = exchange(&mut p, request(write(bad), 1, &[1; 100]));
    assert!(is_nak(&got, 0, NakCode::Sequence));
    assert!(p.events(A).is_empty());
}

#[test]
fn a_refusal_is_reported_by_an_event_or_a_receive_never_both() {
    let mut p = rc();
    let far = p.zeros(A, 8);
    p.post_recv(A, 1, &[far.sge()]);
    // A SEND takes its receive before its size is checked.
    let got = exchange(&mut p, part(true, false, request(SEND, 0, &[1; 8])));
    assert!(is_nak(&got, 0, InvalidRequest));
    assert_eq!(p.statuses(A), [(1, LocQpOpErr)]);
    assert!(p.events(A).is_empty());
    let mut p = rc();
    let far = p.zeros(A, 8);
    p.post_recv(A, 1, &[far.sge()]);
    let got = exchange(
        &mut p,
        request(write(ArenaBuffer { len: 9, ..far }), 0, &[1; 9]),
    );
    assert!(is_nak(&got, 0, RemoteAccess));
    assert_eq!(p.statuses(A), [(1, WrFlushErr)]);
    assert_eq!(p.events(A), [EventType::QpAccessErr]);
}
