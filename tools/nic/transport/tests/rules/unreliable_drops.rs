// SPDX-License-Identifier: GPL-2.0 OR MIT

//! UC and UD: dropped packets, abandoned messages, and errors.

use super::by_hand::*;
use super::pattern;
use std::rc::Rc;
use verbena_lab_transport::{ArenaBuffer, PairSetup, PairSide::*, QpPair};
use verbena_transport::host::{EventType, Syndrome, WcStatus::*};
use verbena_transport::packet::{DatagramHeaders, Packet, PacketKind, Reth, SendTail, Transport};
use verbena_transport::{QpState, QpType};

/// Returns the first packet of a message. The functions below return other packets of a message.
fn first(kind: PacketKind, n: u32) -> Packet {
    uc(part(true, false, request(kind, n, &[1; 256])))
}

fn middle(kind: PacketKind, n: u32) -> Packet {
    uc(part(false, false, request(kind, n, &[2; 256])))
}

fn last(kind: PacketKind, n: u32, bytes: usize) -> Packet {
    uc(part(false, true, request(kind, n, &vec![3; bytes])))
}

fn only(kind: PacketKind, n: u32, bytes: usize) -> Packet {
    uc(request(kind, n, &vec![4; bytes]))
}

fn expected(p: &QpPair) -> u32 {
    p.qps[0].snapshot().expected_psn
}

/// True if there is no answer and no event, and the queue pair is in RTS.
fn is_calm(p: &mut QpPair) -> bool {
    answers(p).is_empty() && p.events(A).is_empty() && p.state(A) == QpState::Rts
}

#[test]
fn unreliable_responders_never_answer() {
    let mut p = uc_pair(false);
    let far = p.zeros(A, 600);
    p.post_recv(A, 1, &[far.sge()]);
    for packet in [
        only(SEND, 0, 8),
        only(SEND, 1, 8),
        only(write(ArenaBuffer { len: 8, ..far }), 2, 8),
        only(write(far), 3, 8),
        only(SEND, 900, 8),
        only(PacketKind::ReadRequest(reth(far)), 901, 0),
        only(fetch_add(far, 1), 902, 0),
        only(PacketKind::Send(SendTail::Invalidate(far.key)), 903, 8),
    ] {
        put(&mut p, packet);
    }
    assert!(is_calm(&mut p));
    assert_eq!(p.statuses(A), [(1, Success)]);
    assert!(p.adapter.region(far).valid);
}

#[test]
fn a_late_packet_begins_a_new_sequence() {
    let mut p = uc_pair(false);
    let word = p.zeros(A, 8);
    for n in [5, 3, 1000] {
        put(&mut p, only(write(word), n, 8));
        assert_eq!(expected(&p), psn(n + 1));
        assert_eq!(p.adapter.bytes(word), [4; 8], "executed");
        p.adapter.bytes_mut(word).fill(0);
    }
    // A packet that is dropped begins a new sequence too.
    put(&mut p, only(write(word), 7, 9));
    assert_eq!(expected(&p), psn(8));
    assert_eq!(p.qps[0].counters().out_of_sequence, 4);
    assert!(is_calm(&mut p));
}

#[test]
fn a_packet_that_does_not_continue_a_message_abandons_it() {
    let imm = Some([0; 4]);
    for has_srq in [false, true] {
        for case in 0..7 {
            let mut p = uc_pair(has_srq);
            let (far, word) = (p.zeros(A, 1000), p.zeros(A, 8));
            p.post_recv(A, 1, &[far.sge()]);
            p.post_recv(A, 2, &[far.sge()]);
            put(&mut p, first(SEND, 0));
            put(
                &mut p,
                match case {
                    0 => middle(WRITE_ON, 1),
                    1 => last(PacketKind::Write { reth: None, imm }, 1, 8),
                    2 => middle(SEND, 2),
                    3 => last(SEND, 1, 0),
                    4 => uc(part(false, false, request(SEND, 1, &[1; 255]))),
                    // A new valid message.
                    5 => only(write(word), 1, 8),
                    _ => only(SEND, 1, 8),
                },
            );
            // The rest of the abandoned message has no effect.
            put(&mut p, last(SEND, 3, 8));
            assert!(is_calm(&mut p), "case {case}");
            assert_eq!(p.qps[0].counters().aborted_messages, 1, "case {case}");
            let sent = case == 6;
            let got = p.statuses(A);
            // The receive of an RQ is used again. A receive of an SRQ completes as aborted, and the
            // new message takes the next.
            match (has_srq, sent) {
                (false, false) => assert_eq!(got, []),
                (false, true) => assert_eq!(got, [(1, Success)]),
                (true, false) => assert_eq!(got, [(1, RemAbortErr)]),
                (true, true) => assert_eq!(got, [(1, RemAbortErr), (2, Success)]),
            }
            // The next message is received.
            put(&mut p, only(SEND, 4, 8));
            let next = 1 + u64::from(sent) + u64::from(has_srq);
            if next < 3 {
                assert_eq!(p.statuses(A), [(next, Success)], "case {case}");
            }
        }
    }
}

#[test]
fn without_a_receive_the_whole_message_is_dropped() {
    let mut p = uc_pair(false);
    let far = p.zeros(A, 1000);
    put(&mut p, first(SEND, 0));
    p.post_recv(A, 1, &[far.sge()]);
    // This receive comes too late for the message.
    put(&mut p, middle(SEND, 1));
    put(&mut p, last(SEND, 2, 8));
    assert!(p.completions(A).is_empty());
    assert_eq!(p.qps[0].counters().dropped_no_receive, 1);
    put(&mut p, only(SEND, 3, 8));
    assert_eq!(p.statuses(A), [(1, Success)]);
    assert!(is_calm(&mut p));
}

#[test]
fn payloads_of_the_wrong_size_are_dropped() {
    for is_write in [false, true] {
        let mut p = uc_pair(false);
        let far = p.zeros(A, 1000);
        p.post_recv(A, 1, &[far.sge()]);
        let kind = |length| match is_write {
            true => write(ArenaBuffer { len: length, ..far }),
            false => SEND,
        };
        let on = if is_write { WRITE_ON } else { SEND };
        let part = |first, last, kind, n, bytes: usize| {
            uc(part(first, last, request(kind, n, &vec![9; bytes])))
        };
        put(&mut p, part(true, false, kind(300), 0, 255));
        put(&mut p, part(true, true, kind(257), 1, 257));
        assert_eq!(p.adapter.bytes(far), [0; 1000]);
        for (n, bytes) in [(2, 0), (4, 257)] {
            put(&mut p, part(true, false, kind(256 + bytes), n, 256));
            put(&mut p, part(false, true, on, n + 1, bytes as usize));
        }
        // A FIRST with all bytes of its DMA length is invalid, and so is the packet after it.
        let dropped = p.qps[0].counters().dropped_invalid;
        assert_eq!(dropped, 4 + u64::from(is_write));
        assert!(p.completions(A).is_empty());
        assert!(is_calm(&mut p));
    }
}

#[test]
fn a_write_over_the_longest_is_dropped() {
    for length in [(1 << 31) + 1, u32::MAX] {
        let mut p = uc_pair(false);
        let far = p.zeros(A, 1000);
        p.adapter.region(far).addr = 0;
        let kind = PacketKind::Write {
            reth: Some(Reth {
                addr: 0,
                rkey: far.key,
                length,
            }),
            imm: None,
        };
        put(&mut p, first(kind, 0));
        put(&mut p, middle(WRITE_ON, 1));
        assert_eq!(p.adapter.bytes(far), [0; 1000]);
        assert_eq!(p.qps[0].counters().dropped_invalid, 2);
        assert!(is_calm(&mut p));
    }
}

#[test]
fn a_refused_write_with_immediate_takes_no_receive() {
    for has_srq in [false, true] {
        let mut p = uc_pair(has_srq);
        let far = p.zeros(A, 8);
        p.post_recv(A, 1, &[]);
        let mut bad = reth(far);
        bad.rkey ^= 1;
        let kind = PacketKind::Write {
            reth: Some(bad),
            imm: Some([0; 4]),
        };
        put(&mut p, only(kind, 0, 8));
        assert_eq!(p.adapter.queues(A).taken, 0);
        assert!(p.completions(A).is_empty());
        assert!(is_calm(&mut p));
    }
}

#[test]
fn a_message_too_long_leaves_the_receive_for_the_next() {
    let mut p = uc_pair(false);
    let far = p.zeros(A, 300);
    p.post_recv(A, 1, &[far.sge()]);
    put(&mut p, first(SEND, 0));
    put(&mut p, middle(SEND, 1));
    put(&mut p, last(SEND, 2, 8));
    assert!(p.completions(A).is_empty());
    put(&mut p, only(SEND, 3, 256));
    let got = p.completions(A);
    assert_eq!((got[0].status, got[0].byte_len), (Success, 256));
    assert_eq!(p.qps[0].counters().dropped_too_long, 1);
    assert!(is_calm(&mut p));
}

#[test]
fn a_message_too_long_for_a_receive_of_an_srq_completes_it_in_error() {
    let mut p = uc_pair(true);
    let far = p.zeros(A, 300);
    p.post_recv(A, 1, &[far.sge()]);
    p.post_recv(A, 2, &[far.sge()]);
    put(&mut p, first(SEND, 0));
    put(&mut p, middle(SEND, 1));
    put(&mut p, last(SEND, 2, 8));
    let got = p.completions(A);
    assert_eq!(got.len(), 1);
    assert_eq!(
        (got[0].status, got[0].syndrome),
        (LocLenErr, Some(Syndrome::RecvTooSmall))
    );
    put(&mut p, only(SEND, 3, 256));
    assert_eq!(p.statuses(A), [(2, Success)]);
    assert!(is_calm(&mut p));
}

#[test]
fn a_super_packet_too_long_is_copied_as_far_as_its_packets() {
    for as_one in [false, true] {
        let mut p = uc_pair(false);
        let far = p.zeros(A, 600);
        p.post_recv(A, 1, &[far.sge()]);
        let mut packet = uc(request(SEND, 0, &pattern(1000, 3)));
        packet.psns = 4;
        if as_one {
            put(&mut p, packet);
        } else {
            packet.split(256).for_each(|packet| put(&mut p, packet));
        }
        assert_eq!(p.adapter.bytes(far)[..512], pattern(1000, 3)[..512]);
        assert_eq!(p.adapter.bytes(far)[512..], [0; 88]);
        assert_eq!(expected(&p), psn(4));
    }
}

#[test]
fn a_bad_receive_ends_an_unreliable_connection() {
    for malformed in [false, true] {
        let mut p = uc_pair(false);
        let far = p.zeros(A, 300);
        p.post_recv(A, 1, &[far.sge()]);
        p.post_recv(A, 2, &[far.sge()]);
        if malformed {
            p.adapter.queues(A).rq[0].malformed = Some(Syndrome::RecvWqeMalformed);
        } else {
            p.adapter.region(far).valid = false;
        }
        put(&mut p, only(SEND, 0, 8));
        assert!(answers(&mut p).is_empty());
        let status = if malformed { LocQpOpErr } else { LocProtErr };
        assert_eq!(p.statuses(A), [(1, status), (2, WrFlushErr)]);
        assert!(p.events(A).is_empty(), "the receive carries the error");
        assert_eq!(p.state(A), QpState::Err);
    }
}

#[test]
fn an_unreadable_receive_queue_is_fatal_on_every_service() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let mut p = responder(PairSetup {
            qp_type,
            ..PairSetup::default()
        });
        p.adapter.queues(A).queue_error = Some(Syndrome::RingUnreadable);
        let packet = match qp_type {
            QpType::Ud => datagram(0x1234, &[1; 8]),
            QpType::Uc => only(SEND, 0, 8),
            _ => request(SEND, 0, &[1; 8]),
        };
        let got = exchange(&mut p, packet);
        if qp_type == QpType::Rc {
            assert!(is_nak(
                &got,
                0,
                verbena_transport::packet::NakCode::RemoteOperational
            ));
        } else {
            assert!(got.is_empty());
        }
        assert_eq!(p.events(A), [EventType::QpFatal], "{qp_type:?}");
        assert_eq!(p.state(A), QpState::Err);
        let cause = p.qps[0].snapshot().syndrome;
        assert_eq!(cause, Some(Syndrome::RingUnreadable));
    }
}

/// Returns a datagram from B to A.
fn datagram(qkey: u32, payload: &[u8]) -> Packet {
    Packet {
        transport: Transport::Ud,
        datagram: Some(Rc::new(DatagramHeaders {
            qkey,
            ..DatagramHeaders::default()
        })),
        ..request(SEND, 0, payload)
    }
}

fn ud(qp_type: QpType) -> QpPair {
    responder(PairSetup {
        qp_type,
        ..PairSetup::default()
    })
}

#[test]
fn a_datagram_is_a_send_of_one_packet() {
    let mut p = ud(QpType::Ud);
    let far = p.zeros(A, 600);
    p.post_recv(A, 1, &[far.sge()]);
    let good = datagram(0x1234, &[7; 8]);
    for bad in [
        part(true, false, good.clone()),
        part(false, true, good.clone()),
        part(false, false, good.clone()),
        Packet {
            psns: 2,
            ..good.clone()
        },
        Packet {
            datagram: None,
            ..good.clone()
        },
        Packet {
            kind: write(far),
            ..good.clone()
        },
        Packet {
            kind: read(far),
            ..good.clone()
        },
        Packet {
            kind: PacketKind::Send(SendTail::Invalidate(far.key)),
            ..good.clone()
        },
    ] {
        put(&mut p, bad);
    }
    assert_eq!(p.qps[0].counters().dropped_invalid, 8);
    assert!(is_calm(&mut p));
    assert!(p.completions(A).is_empty());
    put(&mut p, good);
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn the_gsi_has_its_well_known_qkey() {
    let mut p = ud(QpType::Gsi);
    let far = p.zeros(A, 600);
    p.post_recv(A, 1, &[far.sge()]);
    put(&mut p, datagram(0x1234, &[7; 8]));
    assert_eq!(p.qps[0].counters().dropped_qkey, 1);
    put(&mut p, datagram(0x8001_0000, &[7; 8]));
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn datagrams_are_taken_in_the_states_that_receive() {
    use QpState::*;
    for (path, takes) in [
        (&[][..], false),
        (&[Init], false),
        (&[Init, Rtr], true),
        (&[Init, Rtr, Rts], true),
        (&[Init, Rtr, Rts, Sqd], true),
        (&[Init, Rtr, Rts, Err], false),
    ] {
        let mut p = QpPair::in_reset(PairSetup {
            qp_type: QpType::Ud,
            ..PairSetup::default()
        });
        let far = p.zeros(A, 600);
        for to in path {
            p.modify(A, *to).unwrap();
        }
        p.post_recv(A, 1, &[far.sge()]);
        put(&mut p, datagram(0x1234, &[7; 8]));
        let events = p.events(A);
        let count = p.qps[0].counters().dropped_state;
        assert_eq!(count, u64::from(!takes), "{path:?}");
        assert_eq!(p.statuses(A).len(), usize::from(takes), "{path:?}");
        // A datagram does not establish a communication, so COMM_EST is not reported.
        assert_eq!(events, [], "{path:?}");
    }
}
