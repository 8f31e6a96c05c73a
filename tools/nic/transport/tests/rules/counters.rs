// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The counters of both sides for a few kinds of traffic. A counter that a test does not list has
//! to be 0.

use super::pattern;
use verbena_lab_transport::{LinkMode, PairSetup, PairSide, PairSide::*, QpPair, SendPost};
use verbena_transport::host::WqeOpcode;
use verbena_transport::packet::PacketKind;
use verbena_transport::{QpState, QpType};

type NamedCounts = Vec<(&'static str, u64)>;

fn counted(p: &QpPair, side: PairSide) -> NamedCounts {
    let all = p.qps[side as usize].counters().each();
    all.filter(|(_, n)| *n != 0).collect()
}

fn pair(mode: LinkMode, qp_type: QpType) -> QpPair {
    let mut setup = PairSetup {
        mode,
        qp_type,
        ..PairSetup::default()
    };
    setup.attr.rnr_retry = 2;
    setup.attr.retry_cnt = 3;
    QpPair::new(setup)
}

#[test]
fn messages_of_all_kinds() {
    for mode in [LinkMode::Local, LinkMode::Split, LinkMode::Wire] {
        let mut p = pair(mode, QpType::Rc);
        let (near, far) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
        for post in [
            SendPost::write(1, &[near.sge()], far),
            SendPost::read(2, &[near.sge()], far),
            SendPost::write(3, &[near.part(0, 300)], far),
        ] {
            p.post(A, post);
            p.settle();
        }
        // A WRITE of three packets, a READ request with three responses, a WRITE of two packets,
        // and an acknowledgement of each WRITE.
        let a = [
            ("tx_packets", 6),
            ("tx_bytes", 900),
            ("rx_packets", 5),
            ("rx_bytes", 600),
            ("completed", 3),
        ];
        let b = [
            ("tx_packets", 5),
            ("tx_bytes", 600),
            ("rx_packets", 6),
            ("rx_bytes", 900),
            ("acks_sent", 2),
        ];
        assert_eq!(counted(&p, A), a, "{mode:?}");
        assert_eq!(counted(&p, B), b, "{mode:?}");
    }
}

#[test]
fn unsignaled_work_requests_complete_too() {
    let mut p = pair(LinkMode::Local, QpType::Rc);
    let (near, far) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
    for wr_id in 0..5 {
        p.post(A, SendPost::write(wr_id, &[near.sge()], far).unsignaled());
    }
    p.post(A, SendPost::write(5, &[near.sge()], far));
    p.settle();
    assert_eq!(p.statuses(A).len(), 1);
    assert_eq!(p.qps[0].counters().completed, 6);
}

#[test]
fn receivers_that_are_not_ready() {
    let mut p = pair(LinkMode::Wire, QpType::Rc);
    p.post(A, SendPost::send(1, &[]));
    p.settle();
    let a = [
        ("tx_packets", 3),
        ("rx_packets", 3),
        ("completed", 1),
        ("retransmitted", 2),
        ("rnr_naks_received", 3),
    ];
    assert_eq!(counted(&p, A), a);
    let b = [("tx_packets", 3), ("rx_packets", 3), ("rnr_naks_sent", 3)];
    assert_eq!(counted(&p, B), b);
}

#[test]
fn requests_and_responses_that_are_lost() {
    let mut p = pair(LinkMode::Wire, QpType::Rc);
    let (near, far) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
    p.post(A, SendPost::write(1, &[near.sge()], far));
    // The first packet is lost once.
    p.link.drop_if = Some(|packet| packet.first && matches!(packet.kind, PacketKind::Write { .. }));
    p.run_until(p.now_ns + 500);
    p.link.drop_if = None;
    p.settle();
    let a = [
        ("tx_packets", 4),
        ("tx_bytes", 856),
        ("rx_packets", 2),
        ("completed", 1),
        ("retransmitted", 1),
        ("sequence_naks_received", 1),
    ];
    assert_eq!(counted(&p, A), a);
    let b = [
        ("tx_packets", 2),
        ("rx_packets", 3),
        ("rx_bytes", 600),
        ("acks_sent", 1),
        ("sequence_naks_sent", 1),
        ("out_of_sequence", 2),
        ("kept", 2),
    ];
    assert_eq!(counted(&p, B), b);
}

#[test]
fn a_peer_that_is_gone() {
    let mut p = pair(LinkMode::Wire, QpType::Rc);
    let (near, far) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
    p.modify(B, QpState::Reset).unwrap();
    p.post(A, SendPost::write(1, &[near.part(0, 8)], far));
    p.post(A, SendPost::write(2, &[near.part(0, 8)], far));
    p.settle();
    let a = counted(&p, A);
    let of = |name| a.iter().find(|c| c.0 == name).map_or(0, |c| c.1);
    assert_eq!((of("completed"), of("flushed"), of("timeouts")), (1, 1, 4));
    assert_eq!(of("tx_packets"), 2 + of("retransmitted"));
    assert_eq!(of("tx_bytes"), 8 * of("tx_packets"));
    let b = [
        ("rx_packets", of("tx_packets")),
        ("rx_bytes", of("tx_bytes")),
        ("dropped_state", of("tx_packets")),
    ];
    assert_eq!(counted(&p, B), b);
}

#[test]
fn requests_that_are_refused() {
    let mut p = pair(LinkMode::Wire, QpType::Rc);
    let (near, far) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
    let mut wrong = SendPost::write(1, &[near.part(0, 8)], far);
    wrong.wqe.rkey ^= 0x100;
    p.post(A, wrong);
    p.settle();
    let a = [
        ("tx_packets", 1),
        ("tx_bytes", 8),
        ("rx_packets", 1),
        ("completed", 1),
        ("naks_received", 1),
    ];
    assert_eq!(counted(&p, A), a);
    let b = [
        ("tx_packets", 1),
        ("rx_packets", 1),
        ("rx_bytes", 8),
        ("naks_sent", 1),
        ("access_naks_sent", 1),
    ];
    assert_eq!(counted(&p, B), b);
}

#[test]
fn unreliable_messages() {
    let mut p = pair(LinkMode::Wire, QpType::Uc);
    let (near, far) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
    // A SEND of two packets without a receive, a WRITE of three packets, and a WRITE of three
    // packets of which the first is lost.
    p.post(A, SendPost::send(1, &[near.part(0, 300)]));
    p.post(A, SendPost::write(2, &[near.sge()], far));
    p.settle();
    p.link.drop_if = Some(|packet| packet.first);
    p.post(A, SendPost::write(3, &[near.sge()], far));
    p.settle();
    let a = [("tx_packets", 8), ("tx_bytes", 1500), ("completed", 3)];
    assert_eq!(counted(&p, A), a);
    let got = counted(&p, B);
    assert_eq!(got[..2], [("rx_packets", 7), ("rx_bytes", 1244)]);
    // One gap, one message without a receive, and the remaining packets of both messages.
    let dropped = [
        ("out_of_sequence", 1),
        ("dropped_no_receive", 1),
        ("dropped_invalid", 3),
    ];
    assert_eq!(got[2..], dropped);
}

#[test]
fn flushed_work_requests() {
    let mut p = pair(LinkMode::Wire, QpType::Rc);
    for i in 0..3 {
        p.post_recv(A, i, &[]);
    }
    p.modify(A, QpState::Err).unwrap();
    p.post(A, SendPost::new(5, WqeOpcode::Send, &[]));
    p.settle();
    assert_eq!(counted(&p, A), [("flushed", 4)]);
    assert_eq!(counted(&p, B), []);
}
