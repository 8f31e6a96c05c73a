// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets that no correct peer sends: answers without a request, answers of a wrong kind or
//! length, requests that break the order of a message, and random packets.

use super::errors::{in_error, outcome};
use super::pattern;
use verbena_lab_transport::{LinkMode, PairSetup, PairSide::*, QpPair, Rng, SendPost};
use verbena_transport::host::{EventType, Syndrome, WcStatus::*};
use verbena_transport::packet::{
    Aeth, AethSyndrome, NakCode, Packet, PacketKind, Payload, Reth, SendTail, Transport,
};

/// Returns a packet to A that seems to come from B.
fn forged(kind: PacketKind, psn: u32, payload: &[u8]) -> Packet {
    Packet {
        transport: Transport::Rc,
        kind,
        first: true,
        last: true,
        solicited: false,
        ack_req: true,
        pkey: 0xffff,
        dst_qpn: 0x10,
        src_qpn: 0x11,
        psn,
        psns: 1,
        srqn: 0,
        marked: false,
        datagram: None,
        payload: Payload::from_bytes(payload),
    }
}

const ACK: Aeth = Aeth {
    syndrome: AethSyndrome::Ack { credits: 31 },
    msn: 1,
};

#[test]
fn a_response_that_cannot_answer_the_request() {
    for kind in [
        PacketKind::ReadResponse(Some(ACK)),
        PacketKind::AtomicResponse(ACK, 1),
    ] {
        let mut p = QpPair::rc(LinkMode::Local);
        p.link.loss = 100;
        let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
        p.post(A, SendPost::write(1, &[src.sge()], dst));
        p.run_until(1);
        let psn = p.qps[0].snapshot().una_psn;
        p.deliver(A, forged(kind, psn, &[]));
        let [sends, _] = outcome(&mut p);
        assert_eq!(sends, [(1, BadRespErr)]);
        in_error(&p, [true, false]);
    }
}

#[test]
fn a_read_response_of_the_wrong_length() {
    for len in [0usize, 7, 9, 4096] {
        let mut p = QpPair::rc(LinkMode::Local);
        p.link.loss = 100;
        let (dst, src) = (p.zeros(A, 8), p.zeros(B, 8));
        p.post(A, SendPost::read(1, &[dst.sge()], src));
        p.run_until(1);
        let psn = p.qps[0].snapshot().una_psn;
        p.deliver(
            A,
            forged(PacketKind::ReadResponse(Some(ACK)), psn, &vec![1; len]),
        );
        let [sends, _] = outcome(&mut p);
        assert_eq!(sends, [(1, BadRespErr)]);
        assert_eq!(p.adapter.bytes(dst), [0; 8]);
    }
}

#[test]
fn acknowledgements_of_packets_that_were_not_sent_are_ignored() {
    let mut p = QpPair::rc(LinkMode::Local);
    p.link.loss = 100;
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    p.run_until(1);
    let una = p.qps[0].snapshot().una_psn;
    for ahead in [1, 2, 1000, (1 << 24) - 1, 1 << 23] {
        p.deliver(
            A,
            forged(
                PacketKind::Ack(ACK),
                verbena_transport::psn::add(una, ahead),
                &[],
            ),
        );
    }
    assert_eq!(p.qps[0].counters().stale_responses, 5);
    assert!(p.statuses(A).is_empty());
    in_error(&p, [false, false]);
}

#[test]
fn two_reports_of_one_loss_are_one_retry() {
    let mut setup = PairSetup {
        psns: [0, 0],
        ..PairSetup::default()
    };
    setup.attr.retry_cnt = 1;
    let mut p = QpPair::new(setup);
    p.link.loss = 100;
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    p.post(A, SendPost::read(2, &[src.sge()], dst));
    p.post(A, SendPost::write(3, &[src.sge()], dst));
    p.run_until(1);
    // The first NAK asks for a retransmission. The second shows that the READ response was lost,
    // and arrives before anything is sent again.
    let nak = PacketKind::Ack(Aeth {
        syndrome: AethSyndrome::Nak(NakCode::Sequence),
        ..ACK
    });
    for psn in [1, 2] {
        p.deliver(A, forged(nak, psn, &[]));
    }
    assert_eq!(p.statuses(A), [(1, Success)]);
    in_error(&p, [false, false]);
    assert_eq!(p.qps[0].snapshot().retry_left, 0);
}

/// Each case has valid packets, then a request to A that no correct peer sends.
#[test]
fn requests_that_break_the_order_of_a_message_are_refused() {
    let send = PacketKind::Send(SendTail::None);
    let reth = Reth {
        addr: 0,
        rkey: 0,
        length: 1000,
    };
    let write = |reth| PacketKind::Write { reth, imm: None };
    let packet = |kind, first, last, payload: &[u8]| Packet {
        first,
        last,
        ..forged(kind, 5, payload)
    };
    let cases: Vec<(Vec<Packet>, Packet)> = vec![
        (vec![], packet(send, false, false, &[0; 256])),
        (vec![], packet(send, false, true, &[0; 1])),
        (vec![], packet(write(None), false, true, &[0; 1])),
        (
            vec![packet(send, true, false, &[0; 256])],
            packet(send, true, true, &[]),
        ),
        (
            vec![packet(send, true, false, &[0; 256])],
            packet(send, false, true, &[]),
        ),
        (
            vec![packet(send, true, false, &[0; 256])],
            packet(write(None), false, true, &[0; 4]),
        ),
        (
            vec![packet(send, true, false, &[0; 256])],
            packet(PacketKind::ReadRequest(reth), true, true, &[]),
        ),
        (
            vec![],
            packet(write(Some(Reth { length: 0, ..reth })), true, true, &[0; 8]),
        ),
        (
            vec![],
            packet(
                write(Some(Reth {
                    length: u32::MAX,
                    ..reth
                })),
                true,
                false,
                &[0; 256],
            ),
        ),
        (
            vec![],
            packet(
                PacketKind::ReadRequest(Reth {
                    length: u32::MAX,
                    ..reth
                }),
                true,
                true,
                &[],
            ),
        ),
    ];
    for (i, (before, bad)) in cases.into_iter().enumerate() {
        let mut p = QpPair::rc(LinkMode::Local);
        let dst = p.zeros(A, 4096);
        p.post_recv(A, 1, &[dst.sge()]);
        let held = !before.is_empty();
        let count = before.len() as u32;
        for (n, mut packet) in before.into_iter().enumerate() {
            packet.psn = 5 + n as u32;
            p.deliver(A, packet);
        }
        p.deliver(
            A,
            Packet {
                psn: 5 + count,
                ..bad
            },
        );
        p.settle();
        in_error(&p, [true, false]);
        let cause = match i {
            4 | 7.. => Syndrome::RequestLength,
            _ => Syndrome::RequestOpcode,
        };
        assert_eq!(p.qps[0].snapshot().syndrome, Some(cause), "case {i}");
        let events = p.events(A);
        if held {
            assert_eq!(p.statuses(A)[0], (1, LocQpOpErr), "case {i}");
            assert!(events.is_empty());
        } else {
            assert_eq!(events, [EventType::QpReqErr], "case {i}");
            assert_eq!(p.statuses(A), [(1, WrFlushErr)]);
        }
    }
}

#[test]
fn random_packets_never_panic_and_never_complete_wrongly() {
    let mut rng = Rng::new(99);
    for _ in 0..300 {
        let mut p = QpPair::rc(LinkMode::Local);
        let (src, dst) = (p.buffer(A, &pattern(3000, 1)), p.zeros(B, 3000));
        let mine = p.zeros(A, 3000);
        p.post_recv(A, 1, &[mine.sge()]);
        p.post(A, SendPost::write(1, &[src.sge()], dst));
        p.post(A, SendPost::read(2, &[mine.sge()], dst));
        p.link.loss = 50;
        for _ in 0..20 {
            let until = p.now_ns + rng.below(3000);
            p.run_until(until);
            let aeth = Aeth {
                syndrome: AethSyndrome::Ack { credits: 0 },
                msn: 0,
            };
            let reth = Reth {
                addr: mine.addr + rng.below(4000),
                rkey: mine.key,
                length: rng.next() as u32 >> rng.below(32),
            };
            let kind = match rng.below(8) {
                0 => PacketKind::Ack(aeth),
                1 => PacketKind::ReadResponse(Some(aeth)),
                2 => PacketKind::AtomicResponse(aeth, 1),
                3 => PacketKind::ReadRequest(reth),
                4 => PacketKind::Write {
                    reth: rng.chance(70).then_some(reth),
                    imm: None,
                },
                5 => PacketKind::Send(SendTail::Imm([0; 4])),
                6 => PacketKind::Ack(Aeth {
                    syndrome: AethSyndrome::Rnr { timer: 1 },
                    msn: 0,
                }),
                _ => PacketKind::Send(SendTail::None),
            };
            let near = if rng.chance(50) {
                5
            } else {
                p.qps[0].snapshot().una_psn
            };
            let len = rng.below(300) as usize;
            let mut packet = forged(
                kind,
                verbena_transport::psn::add(near, rng.below(20) as u32),
                &vec![3; len],
            );
            packet.first = rng.chance(60);
            packet.last = rng.chance(60);
            p.deliver(A, packet);
        }
        p.run_until(p.now_ns + 1_000_000);
    }
}
