// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Datagrams and unreliable connections.

use super::{pattern, MODES};
use verbena_lab_transport::mock_adapter::datagram;
use verbena_lab_transport::{ArenaBuffer, LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::WcStatus::*;
use verbena_transport::host::{EventType, Syndrome, WqeOpcode};
use verbena_transport::packet::Packet;
use verbena_transport::{Attr, Budget, QpState, QpType};

fn pair(qp_type: QpType, mode: LinkMode) -> QpPair {
    QpPair::new(PairSetup {
        qp_type,
        mode,
        ..PairSetup::default()
    })
}

fn to_b(wr_id: u64, src: ArenaBuffer, qkey: u32) -> SendPost {
    let mut post = SendPost::send(wr_id, &[src.sge()]);
    post.wqe.datagram = datagram(0x11, qkey);
    post
}

#[test]
fn a_datagram_arrives_after_40_bytes() {
    for mode in MODES {
        let mut p = pair(QpType::Ud, mode);
        let (src, dst) = (p.buffer(A, &pattern(100, 1)), p.zeros(B, 200));
        p.post_recv(B, 1, &[dst.part(0, 20), dst.part(20, 180)]);
        p.post(A, to_b(7, src, 0x1234).imm([9, 8, 7, 6]));
        p.settle();
        assert_eq!(p.statuses(A), [(7, Success)]);
        let got = p.completions(B);
        assert_eq!(
            (got[0].status, got[0].byte_len, got[0].imm),
            (Success, 140, Some([9, 8, 7, 6]))
        );
        let source = got[0].source.unwrap();
        assert_eq!(
            (source.qpn, source.path),
            (0x10, verbena_lab_transport::pair::path(A))
        );
        let bytes = p.adapter.bytes(dst);
        assert_eq!(bytes[40..140], pattern(100, 1));
        // The GRH of RoCEv2 over IPv4 has the IPv4 header in its last 20 bytes.
        assert_eq!(bytes[..20], [0; 20]);
        assert_eq!(
            (bytes[20], &bytes[32..40]),
            (0x45, &[10, 0, 0, 1, 10, 0, 0, 2][..])
        );
        assert_eq!(
            usize::from(bytes[23]),
            20 + 8 + 12 + 8 + 4 + 100 + 4,
            "total length"
        );
    }
}

#[test]
fn a_datagram_with_another_qkey_is_dropped() {
    for mode in MODES {
        let mut p = pair(QpType::Ud, mode);
        let (src, dst) = (p.zeros(A, 10), p.zeros(B, 200));
        p.post_recv(B, 1, &[dst.sge()]);
        p.post(A, to_b(7, src, 0x9999));
        p.settle();
        assert_eq!((p.statuses(A), p.statuses(B)), (vec![(7, Success)], vec![]));
        assert_eq!(p.qps[1].counters().dropped_qkey, 1);
    }
}

#[test]
fn the_top_bit_of_a_qkey_selects_the_queue_pairs_own() {
    let mut p = pair(QpType::Ud, LinkMode::Wire);
    let (src, dst) = (p.zeros(A, 10), p.zeros(B, 200));
    p.post_recv(B, 1, &[dst.sge()]);
    p.post(A, to_b(7, src, 0x8000_0000));
    p.settle();
    assert_eq!(p.statuses(B), [(1, Success)]);
}

#[test]
fn another_pkey_is_dropped() {
    for (pkey, taken) in [
        (0xffffu16, true),
        (0x7fff, true),
        (0x8001, false),
        (0x0001, false),
    ] {
        let mut p = pair(QpType::Ud, LinkMode::Local);
        let (src, dst) = (p.zeros(A, 10), p.zeros(B, 200));
        let attr = Attr { pkey, ..p.attr(A) };
        p.modify_attr(A, QpState::Rts, &attr).unwrap();
        p.post_recv(B, 1, &[dst.sge()]);
        p.post(A, to_b(7, src, 0x1234));
        p.settle();
        assert_eq!(p.statuses(B).len(), usize::from(taken), "{pkey:x}");
        assert_eq!(p.qps[1].counters().dropped_pkey, u64::from(!taken));
    }
}

/// IBTA 10.9.3: P_Keys match if all of their low 15 bits are equal and at least one side is a full
/// member (bit 15).
#[test]
fn each_bit_of_a_pkey_counts_and_two_limited_members_do_not_match() {
    const FULL: u16 = 1 << 15;
    let base = 0x2a55;
    let mut cases = vec![
        (base | FULL, base | FULL, true),
        (base | FULL, base, true),
        (base, base | FULL, true),
        (base, base, false),
    ];
    for bit in 0..15 {
        cases.push((base | FULL, (base | FULL) ^ 1 << bit, false));
        cases.push(((base ^ 1 << bit) | FULL, base, false));
    }
    for (a, b, taken) in cases {
        let mut p = pair(QpType::Ud, LinkMode::Local);
        let (src, dst) = (p.zeros(A, 10), p.zeros(B, 200));
        for (side, pkey) in [(A, a), (B, b)] {
            let attr = Attr {
                pkey,
                ..p.attr(side)
            };
            p.modify_attr(side, QpState::Rts, &attr).unwrap();
        }
        p.post_recv(B, 1, &[dst.sge()]);
        p.post(A, to_b(7, src, 0x1234));
        p.settle();
        let arrived = p.statuses(B).len();
        assert_eq!(arrived, usize::from(taken), "{a:x} to {b:x}");
    }
}

#[test]
fn without_a_receive_a_datagram_is_dropped() {
    let mut p = pair(QpType::Ud, LinkMode::Local);
    let (src, dst) = (p.zeros(A, 10), p.zeros(B, 200));
    p.post(A, to_b(1, src, 0x1234));
    p.settle();
    p.post_recv(B, 1, &[dst.sge()]);
    p.post(A, to_b(2, src, 0x1234));
    p.settle();
    assert_eq!(p.statuses(A), [(1, Success), (2, Success)]);
    assert_eq!(p.statuses(B), [(1, Success)]);
    assert_eq!(p.qps[1].counters().dropped_no_receive, 1);
}

#[test]
fn a_datagram_longer_than_the_receive_leaves_the_receive_for_the_next() {
    let mut p = pair(QpType::Ud, LinkMode::Local);
    let (long, short, dst) = (p.zeros(A, 101), p.zeros(A, 100), p.zeros(B, 140));
    p.post_recv(B, 1, &[dst.sge()]);
    p.post(A, to_b(1, long, 0x1234));
    p.post(A, to_b(2, short, 0x1234));
    p.settle();
    assert_eq!(p.statuses(B), [(1, Success)]);
    assert_eq!(p.qps[1].counters().dropped_too_long, 1);
    assert_eq!(p.state(B), QpState::Rts);
}

#[test]
fn a_datagram_longer_than_a_receive_of_an_srq_completes_it_in_error() {
    let mut p = QpPair::new(PairSetup {
        qp_type: QpType::Ud,
        has_srq: true,
        ..PairSetup::default()
    });
    let (long, dst) = (p.zeros(A, 101), p.zeros(B, 140));
    p.post_recv(B, 1, &[dst.sge()]);
    p.post(A, to_b(1, long, 0x1234));
    p.settle();
    assert_eq!(p.statuses(B), [(1, LocLenErr)]);
    assert_eq!(p.state(B), QpState::Rts);
}

#[test]
fn a_datagram_over_the_mtu_is_not_sent_and_completes() {
    let mut p = pair(QpType::Ud, LinkMode::Local);
    p.link.record = true;
    let src = p.zeros(A, 257);
    p.post(A, to_b(1, src, 0x1234));
    p.settle();
    assert_eq!(p.statuses(A), [(1, Success)]);
    assert!(p.link.log.is_empty());
    assert_eq!(p.qps[0].counters().over_mtu, 1);
}

#[test]
fn a_send_error_moves_only_the_send_queue_to_error() {
    for qp_type in [QpType::Ud, QpType::Uc] {
        let mut p = pair(qp_type, LinkMode::Local);
        let (src, dst, mine) = (p.zeros(A, 100), p.zeros(B, 200), p.zeros(A, 200));
        let mut bad = to_b(1, src, 0x1234);
        bad.sges[0].lkey ^= 1;
        p.post(A, bad);
        p.post(A, to_b(2, src, 0x1234));
        p.settle();
        assert_eq!(p.statuses(A), [(1, LocProtErr), (2, WrFlushErr)]);
        assert_eq!(p.state(A), QpState::Sqe);
        // Further posts are accepted and flushed.
        p.post(A, to_b(3, src, 0x1234));
        p.settle();
        assert_eq!(p.statuses(A), [(3, WrFlushErr)]);
        // Receives still work.
        p.post_recv(A, 9, &[mine.sge()]);
        let mut post = SendPost::send(8, &[dst.part(0, 5)]);
        post.wqe.datagram = datagram(0x10, 0x1234);
        p.post(B, post);
        p.settle();
        assert_eq!(p.statuses(A), [(9, Success)]);
        // The queue pair returns to RTS.
        p.modify(A, QpState::Rts).unwrap();
        p.post_recv(B, 4, &[dst.sge()]);
        p.post(A, to_b(4, src, 0x1234));
        p.settle();
        assert_eq!(
            (p.statuses(A), p.statuses(B)),
            (vec![(4, Success)], vec![(8, Success), (4, Success)])
        );
        assert!(p.events(A).is_empty());
    }
}

#[test]
fn an_operation_of_another_service() {
    let mut p = pair(QpType::Ud, LinkMode::Local);
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    p.settle();
    let got = p.completions(A);
    assert_eq!(
        (got[0].status, got[0].syndrome),
        (LocQpOpErr, Some(Syndrome::WqeOpcodeTransport))
    );
    assert_eq!(p.state(A), QpState::Sqe);
}

#[test]
fn a_bad_receive_of_a_datagram_is_an_error_of_the_queue_pair() {
    let mut p = pair(QpType::Ud, LinkMode::Local);
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 100));
    p.post_recv(B, 1, &[dst.sge()]);
    p.post_recv(B, 2, &[dst.sge()]);
    p.adapter.region(dst).valid = false;
    p.post(A, to_b(1, src, 0x1234));
    p.settle();
    assert_eq!(p.statuses(B), [(1, LocProtErr), (2, WrFlushErr)]);
    assert_eq!(p.state(B), QpState::Err);
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn packets_of_another_service_are_dropped() {
    let mut p = pair(QpType::Uc, LinkMode::Local);
    let mut rc = QpPair::rc(LinkMode::Local);
    rc.link.record = true;
    rc.post(A, SendPost::send(1, &[]));
    rc.run_until(1);
    p.deliver(B, rc.link.log[0].1.clone());
    assert_eq!(p.qps[1].counters().dropped_transport, 1);
}

#[test]
fn unreliable_connections_send_and_write() {
    for mode in MODES {
        for len in [0usize, 1, 256, 257, 5000] {
            let mut p = pair(QpType::Uc, mode);
            let (src, dst, far) = (
                p.buffer(A, &pattern(len, 1)),
                p.zeros(B, len),
                p.zeros(B, len),
            );
            p.post_recv(B, 1, &[dst.sge()]);
            p.post_recv(B, 2, &[]);
            p.post(A, SendPost::send(1, &[src.sge()]).imm([1; 4]));
            p.post(A, SendPost::write(2, &[src.sge()], far));
            p.post(A, SendPost::write(3, &[src.sge()], far).imm([2; 4]));
            p.settle();
            assert_eq!(p.statuses(A), [(1, Success), (2, Success), (3, Success)]);
            let got = p.completions(B);
            assert_eq!(
                got.iter().map(|c| c.byte_len).collect::<Vec<_>>(),
                [len as u32; 2]
            );
            assert_eq!((got[0].imm, got[1].imm), (Some([1; 4]), Some([2; 4])));
            assert_eq!(
                (p.adapter.bytes(dst), p.adapter.bytes(far)),
                (&pattern(len, 1)[..], &pattern(len, 1)[..])
            );
            assert_eq!(p.qps[0].next_deadline(), None);
        }
    }
}

#[test]
fn an_unreliable_send_is_complete_when_it_has_left() {
    let mut p = pair(QpType::Uc, LinkMode::Local);
    let (src, dst) = (p.buffer(A, &pattern(5000, 1)), p.zeros(B, 5000));
    p.link.delay_ns = 10_000;
    p.post(A, SendPost::write(1, &[src.sge()], dst));
    p.run_until(5_000);
    assert_eq!(p.statuses(A), [(1, Success)]);
    // The program reuses its buffer.
    p.adapter.bytes_mut(src).fill(0xff);
    p.settle();
    assert_eq!(p.adapter.bytes(dst), pattern(5000, 1));
}

#[test]
fn a_gap_abandons_the_message_and_its_receive_is_used_again() {
    for mode in [LinkMode::Split, LinkMode::Wire] {
        let mut p = QpPair::new(PairSetup {
            qp_type: QpType::Uc,
            mode,
            psns: [0, 0],
            ..PairSetup::default()
        });
        let (src, dst) = (p.buffer(A, &pattern(1000, 1)), p.zeros(B, 1000));
        p.post_recv(B, 1, &[dst.sge()]);
        p.link.drop_if = Some(|packet: &Packet| packet.psn == 2);
        p.post(A, SendPost::send(1, &[src.sge()]));
        p.post(A, SendPost::send(2, &[src.sge()]));
        p.settle();
        assert_eq!(p.statuses(A), [(1, Success), (2, Success)]);
        assert_eq!(p.statuses(B), [(1, Success)]);
        assert_eq!(p.adapter.bytes(dst), pattern(1000, 1));
        assert_eq!(p.qps[1].counters().aborted_messages, 1);
    }
}

#[test]
fn a_gap_with_an_srq_completes_the_receive_as_aborted() {
    let mut p = QpPair::new(PairSetup {
        qp_type: QpType::Uc,
        mode: LinkMode::Split,
        has_srq: true,
        psns: [0, 0],
        ..PairSetup::default()
    });
    let (src, dst) = (p.buffer(A, &pattern(1000, 1)), p.zeros(B, 1000));
    p.post_recv(B, 1, &[dst.sge()]);
    p.post_recv(B, 2, &[dst.sge()]);
    p.link.drop_if = Some(|packet: &Packet| packet.psn == 2);
    p.post(A, SendPost::send(1, &[src.sge()]));
    p.post(A, SendPost::send(2, &[src.sge()]));
    p.settle();
    assert_eq!(p.statuses(B), [(1, RemAbortErr), (2, Success)]);
    assert_eq!(p.state(B), QpState::Rts);
}

#[test]
fn an_invalid_unreliable_write_is_dropped() {
    for broken in 0..3 {
        let mut setup = PairSetup {
            qp_type: QpType::Uc,
            ..PairSetup::default()
        };
        if broken == 0 {
            setup.attr.access_flags = 0;
        }
        let mut p = QpPair::new(setup);
        let (src, dst) = (p.buffer(A, &pattern(1000, 1)), p.zeros(B, 1000));
        let mut post = SendPost::write(1, &[src.sge()], dst);
        match broken {
            1 => post.wqe.rkey ^= 1,
            2 => post.wqe.remote_addr += 1,
            _ => {}
        }
        p.post(A, post);
        p.settle();
        assert_eq!(p.statuses(A), [(1, Success)]);
        assert_eq!(p.adapter.bytes(dst), [0; 1000]);
        assert_eq!((p.state(A), p.state(B)), (QpState::Rts, QpState::Rts));
        assert!(p.events(B).is_empty());
        assert!(p.qps[1].counters().dropped_invalid > 0);
    }
}

#[test]
fn a_read_on_an_unreliable_connection_fails() {
    let mut p = pair(QpType::Uc, LinkMode::Local);
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(
        A,
        SendPost::new(1, WqeOpcode::RdmaRead, &[src.sge()]).at(dst.addr, dst.key),
    );
    p.settle();
    assert_eq!(p.statuses(A), [(1, LocQpOpErr)]);
}

#[test]
fn unreliable_connections_deliver_whole_messages_over_a_bad_link() {
    for seed in 0..50 {
        let mut p = QpPair::new(PairSetup {
            qp_type: QpType::Uc,
            mode: LinkMode::Wire,
            seed,
            ..PairSetup::default()
        });
        (p.link.loss, p.link.duplication, p.link.jitter_ns) = (10, 10, 3_000);
        let mut buffers = vec![];
        for i in 0..30u64 {
            let (src, dst) = (p.buffer(A, &pattern(1500, i as u8)), p.zeros(B, 1500));
            buffers.push(dst);
            p.post_recv(B, i, &[dst.sge()]);
            p.post(
                A,
                SendPost::send(i, &[src.sge()]).imm((i as u32).to_be_bytes()),
            );
        }
        p.settle();
        assert_eq!(p.completions(A).len(), 30);
        // Completed messages are whole and in order, and complete once.
        let mut before = None;
        for c in p.completions(B) {
            assert_eq!((c.status, c.byte_len), (Success, 1500));
            let sent = u32::from_be_bytes(c.imm.unwrap());
            assert!(
                before < Some(sent) || before.is_none(),
                "seed {seed}: message {sent} after {before:?}"
            );
            before = Some(sent);
            assert_eq!(
                p.adapter.bytes(buffers[c.wr_id as usize]),
                pattern(1500, sent as u8)
            );
        }
        assert!(!p.events(B).contains(&EventType::QpFatal));
    }
}

#[test]
fn the_message_after_sqe_is_sent_from_its_beginning() {
    let mut p = pair(QpType::Uc, LinkMode::Wire);
    let (src, dst) = (p.buffer(A, &pattern(1000, 1)), p.zeros(B, 1000));
    p.post_recv(B, 9, &[dst.sge()]);
    p.post(A, SendPost::send(1, &[src.sge()]));
    // The memory of the message becomes invalid after its first packet.
    let (host, now) = (&mut p.adapter.host(A), p.now_ns);
    p.qps[0].poll(host, now, &mut Budget::new(1, 1 << 20));
    p.adapter.region(src).valid = false;
    p.settle();
    assert_eq!(p.statuses(A), [(1, LocProtErr)]);
    assert_eq!(p.qps[0].snapshot().syndrome, Some(Syndrome::LkeyUnknown));
    p.adapter.region(src).valid = true;
    p.modify(A, QpState::Rts).unwrap();
    assert_eq!(p.qps[0].snapshot().syndrome, None, "RTS clears the cause");
    p.post(A, SendPost::send(2, &[src.sge()]));
    p.settle();
    assert_eq!(p.statuses(A), [(2, Success)]);
    assert_eq!(p.statuses(B), [(9, Success)]);
    assert_eq!(p.adapter.bytes(dst), pattern(1000, 1));
    // Packets that were not sent had used no PSN, so there is no gap.
    assert_eq!(p.qps[1].counters().out_of_sequence, 0);
}
