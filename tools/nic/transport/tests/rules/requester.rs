// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The packets that a requester sends.

use super::answered::*;
use super::pattern;
use verbena_lab_transport::{LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::{WcStatus::*, WqeOpcode};
use verbena_transport::packet::{
    Aeth, AethSyndrome, NakCode, Packet, PacketKind, Reth, SendTail, Transport,
};
use verbena_transport::QpType;

/// Returns the PSN counted from the first PSN, the first and last flags, and the number of payload
/// bytes.
fn shape(packet: &Packet) -> (u32, bool, bool, u32) {
    let n = verbena_transport::psn::ahead(packet.psn, psn(0));
    (n, packet.first, packet.last, packet.payload.len())
}

#[test]
fn packets_leave_in_psn_order_message_by_message() {
    let mut p = requester(PairSetup::default());
    let (src, there) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
    let mut last = SendPost::write(1, &[src.sge()], there).imm([1, 2, 3, 4]);
    last.wqe.solicited = true;
    p.post(A, last);
    // A WRITE without immediate has no completion at the peer, so its packets are not solicited.
    let mut silent = SendPost::write(2, &[src.part(0, 512)], there);
    silent.wqe.solicited = true;
    p.post(A, silent);
    p.post(A, SendPost::write(3, &[src.part(0, 1)], there));
    p.post(A, SendPost::write(4, &[], there));
    let packets = sent(&mut p);
    assert_eq!(
        packets.iter().map(shape).collect::<Vec<_>>(),
        [
            (0, true, false, 256),
            (1, false, false, 256),
            (2, false, true, 88),
            (3, true, false, 256),
            (4, false, true, 256),
            (5, true, true, 1),
            (6, true, true, 0),
        ]
    );
    let reth = |length| {
        Some(Reth {
            addr: there.addr,
            rkey: there.key,
            length,
        })
    };
    let kinds: Vec<_> = packets.iter().map(|packet| packet.kind).collect();
    let write = |reth, imm| PacketKind::Write { reth, imm };
    assert_eq!(kinds[0], write(reth(600), None));
    assert_eq!(kinds[1], write(None, None));
    assert_eq!(kinds[2], write(None, Some([1, 2, 3, 4])));
    assert_eq!(kinds[5], write(reth(1), None));
    let solicited: Vec<_> = packets.iter().map(|packet| packet.solicited).collect();
    assert_eq!(solicited, [false, false, true, false, false, false, false]);
}

#[test]
fn a_send_has_its_tail_in_its_last_packet() {
    let mut p = requester(PairSetup::default());
    let src = p.buffer(A, &pattern(600, 1));
    p.post(A, SendPost::send(1, &[src.sge()]).imm([9; 4]));
    sent(&mut p);
    ack(&mut p, 0);
    let rest = sent(&mut p);
    let kinds: Vec<_> = rest.iter().map(|packet| packet.kind).collect();
    assert_eq!(
        kinds,
        [
            PacketKind::Send(SendTail::None),
            PacketKind::Send(SendTail::Imm([9; 4]))
        ]
    );
}

#[test]
fn a_read_takes_as_many_psns_as_responses() {
    for (bytes, psns) in [(0, 1), (1, 1), (256, 1), (257, 2), (600, 3), (1024, 4)] {
        let mut p = requester(PairSetup::default());
        let (back, there) = (p.zeros(A, bytes), p.zeros(B, bytes));
        p.post(A, SendPost::read(1, &[back.sge()], there));
        p.post(A, SendPost::write(2, &[], there));
        assert_eq!(numbers(&mut p), [0, psns], "{bytes} bytes");
    }
}

#[test]
fn work_requests_after_a_read_over_the_limit_wait_with_it() {
    let mut setup = PairSetup::default();
    setup.attr.max_rd_atomic = 1;
    let mut p = requester(setup);
    let (back, there) = (p.zeros(A, 8), p.zeros(B, 8));
    for wr_id in 1..=2 {
        p.post(A, SendPost::read(wr_id, &[back.sge()], there));
    }
    p.post(A, SendPost::write(3, &[], there));
    assert_eq!(numbers(&mut p), [0]);
    read_only(&mut p, 0, &[1; 8]);
    assert_eq!(numbers(&mut p), [1, 2]);
}

#[test]
fn each_quarter_of_a_wire_window_asks_for_an_acknowledgement() {
    let asks = |mode, window, budget, most| {
        let mut p = QpPair::new(PairSetup {
            mode,
            window,
            wire_super_packets: most,
            budget: verbena_transport::Budget::new(budget, 1 << 30),
            ..PairSetup::default()
        });
        p.link.record = true;
        p.link.loss = 100;
        let (src, there) = (p.zeros(A, 256 * 40), p.zeros(B, 256 * 40));
        p.post(A, SendPost::write(1, &[src.sge()], there));
        p.run_until(0);
        let mut end = 0;
        let mut asks = Vec::new();
        for (_, packet) in &p.link.log {
            end += packet.psns;
            if packet.ack_req {
                asks.push(end);
            }
        }
        asks
    };
    // The number of packets in a super-packet makes no difference.
    for most in [1, 3, 8, 100] {
        assert_eq!(
            asks(LinkMode::Split, 32, 100, most),
            [8, 16, 24, 32],
            "{most}"
        );
        let odd = asks(LinkMode::Split, 30, 100, most);
        assert_eq!(odd, [7, 14, 21, 28, 30], "{most}");
        assert_eq!(asks(LinkMode::Split, 2, 100, most), [1, 2], "{most}");
    }
    // The last packet of each turn asks too.
    assert_eq!(asks(LinkMode::Split, 32, 5, 1), [5, 10, 15, 20, 25, 30, 32]);
    // Each turn has five super-packets, which end at each quarter of the window: 3, 3, 2, 3 and 3
    // packets.
    assert_eq!(asks(LinkMode::Split, 32, 5, 3), [8, 14, 22, 28, 32]);
    // A local peer answers before the next packet is sent.
    assert_eq!(asks(LinkMode::Local, 32, 100, 1), [32]);
}

#[test]
fn a_window_on_the_wire_never_runs_empty() {
    // 6400 packets over a link with a delay of 1 us in each direction: a window of 64 permits 64
    // packets in each 2 us.
    let mut p = QpPair::new(PairSetup {
        mode: LinkMode::Split,
        budget: verbena_transport::Budget::new(16, 1 << 30),
        ..PairSetup::default()
    });
    let (src, there) = (p.zeros(A, 256 * 6400), p.zeros(B, 256 * 6400));
    p.post(A, SendPost::write(1, &[src.sge()], there));
    p.settle();
    assert_eq!(p.statuses(A), [(1, Success)]);
    assert!(p.now_ns <= 102 * 2_000, "{}", p.now_ns);
}

#[test]
fn unreliable_senders_take_no_acknowledgement() {
    for (qp_type, transport) in [(QpType::Uc, Transport::Uc), (QpType::Ud, Transport::Ud)] {
        let mut p = requester(PairSetup {
            qp_type,
            ..PairSetup::default()
        });
        if qp_type == QpType::Uc {
            p.post(A, SendPost::send(1, &[]));
            assert_eq!(sent(&mut p).len(), 1);
            assert_eq!(p.statuses(A), [(1, Success)]);
        }
        let before = p.qps[0].snapshot();
        for syndrome in [
            positive().syndrome,
            AethSyndrome::Nak(NakCode::RemoteAccess),
            AethSyndrome::Rnr { timer: 1 },
        ] {
            for n in 0..3 {
                let kind = PacketKind::Ack(Aeth { syndrome, msn: 1 });
                let mut packet = super::by_hand::request(kind, n, &[]);
                packet.transport = transport;
                p.deliver(A, packet);
            }
        }
        assert_eq!(p.qps[0].snapshot(), before, "{qp_type:?}");
        assert!(sent(&mut p).is_empty() && p.completions(A).is_empty());
    }
}

#[test]
fn a_producer_index_that_would_take_back_work_is_ignored() {
    let mut p = requester(PairSetup::default());
    for wr_id in 1..=3 {
        p.post(A, SendPost::new(wr_id, WqeOpcode::RdmaWrite, &[]));
    }
    assert_eq!(numbers(&mut p), [0, 1, 2]);
    p.qps[0].handle_posts(p.now_ns, 1);
    assert!(numbers(&mut p).is_empty());
    ack(&mut p, 2);
    assert_eq!(p.statuses(A).len(), 3);
    assert_eq!(p.qps[0].snapshot().sq_producer, 3);
}

#[test]
fn a_read_without_resources_of_its_own_fails() {
    for opcode in [WqeOpcode::RdmaRead, WqeOpcode::CompareSwap] {
        let mut setup = PairSetup::default();
        setup.attr.max_rd_atomic = 0;
        let mut p = requester(setup);
        let (back, there) = (p.zeros(A, 8), p.zeros(B, 8));
        p.post(A, SendPost::write(1, &[], there));
        p.post(
            A,
            SendPost::new(2, opcode, &[back.sge()]).at(there.addr, there.key),
        );
        assert_eq!(numbers(&mut p), [0]);
        ack(&mut p, 0);
        sent(&mut p);
        assert_eq!(p.statuses(A), [(1, Success), (2, LocQpOpErr)]);
    }
}
