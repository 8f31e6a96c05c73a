// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Extended reliable connections (annex A14): the differences from reliable connections.

use super::by_hand::{self, exchange, is_nak};
use super::errors::{in_error, outcome};
use super::{pattern, MODES};
use verbena_lab_transport::{LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::{EventType, Syndrome, WcOpcode, WcStatus::*, WqeOpcode, XrcSrq};
use verbena_transport::packet::{
    AethSyndrome, NakCode, Packet, PacketKind, Reth, SendTail, Transport,
};
use verbena_transport::{QpState, QpType};

/// The SRQ that most tests use. Its protection domain differs from the target's, and decides which
/// memory a request may access.
const SRQ: XrcSrq = XrcSrq {
    srqn: 5,
    life: 50,
    pd: 777,
};

fn setup(qp_type: QpType, mode: LinkMode) -> PairSetup {
    PairSetup {
        qp_type,
        mode,
        ..PairSetup::default()
    }
}

fn furnish(mut p: QpPair) -> QpPair {
    p.adapter.xrc.insert(SRQ.srqn, Ok(SRQ));
    p
}

/// Returns a pair in which A is the initiator and B the target.
fn pair(mode: LinkMode) -> QpPair {
    furnish(QpPair::new(setup(QpType::XrcIni, mode)))
}

/// Returns a pair in which A is the target. The test makes its requests.
fn target() -> QpPair {
    furnish(by_hand::responder(setup(QpType::XrcTgt, LinkMode::Split)))
}

/// Returns a work request for an SRQ of the peer.
fn to(srqn: u32, mut post: SendPost) -> SendPost {
    post.wqe.srqn = srqn;
    post
}

fn request(srqn: u32, kind: PacketKind, n: u32, payload: &[u8]) -> Packet {
    Packet {
        transport: Transport::Xrc,
        srqn,
        ..by_hand::request(kind, n, payload)
    }
}

#[test]
fn every_operation_uses_the_srq_that_its_request_names() {
    for mode in MODES {
        let mut p = pair(mode);
        let other = XrcSrq {
            srqn: 6,
            life: 60,
            pd: 888,
        };
        p.adapter.xrc.insert(6, Ok(other));
        let src = p.buffer(A, &pattern(1000, 1));
        p.adapter.queues[1].pd = SRQ.pd;
        let (dst, there) = (p.zeros(B, 1000), p.zeros(B, 1000));
        p.adapter.queues[1].pd = other.pd;
        let theirs = p.buffer(B, &pattern(1000, 7));
        let (back, old) = (p.zeros(A, 1000), p.zeros(A, 8));
        for wr_id in 11..14 {
            p.post_recv(B, wr_id, &[dst.sge()]);
        }
        p.post(A, to(5, SendPost::send(1, &[src.sge()])));
        p.post(
            A,
            to(5, SendPost::write(2, &[src.sge()], there).imm([7; 4])),
        );
        p.post(A, to(6, SendPost::read(3, &[back.sge()], theirs)));
        let add = SendPost::new(4, WqeOpcode::FetchAdd, &[old.sge()]);
        p.post(A, to(6, add.at(theirs.addr, theirs.key)));
        p.post(A, to(6, SendPost::send(5, &[])));
        p.settle();
        let all = [1, 2, 3, 4, 5].map(|wr_id| (wr_id, Success));
        assert_eq!(p.statuses(A), all, "{mode:?}");
        let received = p.completions(B);
        let told: Vec<_> = received
            .iter()
            .map(|c| (c.wr_id, c.xrc.srqn, c.xrc.life))
            .collect();
        assert_eq!(told, [(11, 5, 50), (12, 5, 50), (13, 6, 60)], "{mode:?}");
        assert_eq!(received[1].opcode, WcOpcode::RecvRdmaWithImm);
        assert_eq!(p.adapter.bytes(dst), pattern(1000, 1));
        assert_eq!(p.adapter.bytes(there), pattern(1000, 1));
        assert_eq!(p.adapter.bytes(back)[..], pattern(1000, 7));
        assert_eq!(p.adapter.bytes(old), &pattern(1000, 7)[..8]);
    }
}

#[test]
fn memory_of_another_domain_than_the_srqs_is_not_accessed() {
    for mode in MODES {
        for opcode in [
            WqeOpcode::RdmaWrite,
            WqeOpcode::RdmaRead,
            WqeOpcode::FetchAdd,
        ] {
            let mut p = pair(mode);
            let src = p.zeros(A, 8);
            // The target's own protection domain grants no access.
            let there = p.zeros(B, 8);
            let post = SendPost::new(1, opcode, &[src.sge()]).at(there.addr, there.key);
            p.post(A, to(5, post));
            let [sends, receives] = outcome(&mut p);
            assert_eq!(sends, [(1, RemAccessErr)], "{mode:?} {opcode:?}");
            assert!(receives.is_empty());
            assert_eq!(
                p.events(B),
                [EventType::QpAccessErr, EventType::QpLastWqeReached]
            );
            in_error(&p, [true, true]);
        }
    }
}

#[test]
fn an_srq_that_does_not_exist_or_has_another_domain_is_an_invalid_request() {
    for mode in MODES {
        for (srqn, cause) in [(8, Syndrome::XrcSrq), (9, Syndrome::XrcDomain)] {
            let mut p = pair(mode);
            p.adapter.xrc.insert(9, Err(Syndrome::XrcDomain));
            let (src, dst) = (p.buffer(A, &pattern(8, 1)), p.zeros(B, 8));
            p.post_recv(B, 11, &[dst.sge()]);
            p.post(A, to(srqn, SendPost::send(1, &[src.sge()])));
            let [sends, receives] = outcome(&mut p);
            assert_eq!(sends, [(1, RemInvReqErr)], "{mode:?}");
            assert!(receives.is_empty(), "receives stay in the SRQ");
            let events = std::mem::take(&mut p.adapter.queues[1].events);
            let expected = [
                (EventType::QpReqErr, Some(cause)),
                (EventType::QpLastWqeReached, None),
            ];
            assert_eq!(events, expected);
            in_error(&p, [true, true]);
        }
    }
}

#[test]
fn an_srq_without_a_receive_is_answered_by_rnr_naks() {
    for mode in MODES {
        let mut p = pair(mode);
        let src = p.buffer(A, &pattern(8, 1));
        p.post(A, to(5, SendPost::send(1, &[src.sge()])));
        p.run_until(1_000_000);
        assert!(p.qps[1].counters().rnr_naks_sent > 0);
        p.adapter.queues[1].pd = SRQ.pd;
        let dst = p.zeros(B, 8);
        p.post_recv(B, 11, &[dst.sge()]);
        p.settle();
        assert_eq!(p.statuses(A), [(1, Success)]);
        assert_eq!(p.statuses(B), [(11, Success)]);
    }
}

#[test]
fn a_message_stays_with_its_first_srq() {
    for (srqn, again) in [(6, None), (5, Some(51))] {
        let mut p = target();
        let other = XrcSrq {
            srqn: 6,
            life: 60,
            pd: 777,
        };
        p.adapter.xrc.insert(6, Ok(other));
        p.adapter.queues[0].pd = SRQ.pd;
        let dst = p.zeros(A, 600);
        p.post_recv(A, 11, &[dst.sge()]);
        let send = PacketKind::Send(SendTail::None);
        let first = request(5, send, 0, &pattern(256, 1));
        assert!(by_hand::is_ack(
            &exchange(&mut p, by_hand::part(true, false, first)),
            0
        ));
        if let Some(life) = again {
            // The SRQ was destroyed, and another SRQ has its number.
            p.adapter.xrc.insert(5, Ok(XrcSrq { life, ..SRQ }));
        }
        let last = request(srqn, send, 1, &pattern(8, 1));
        let answers = exchange(&mut p, by_hand::part(false, true, last));
        assert!(is_nak(&answers, 1, NakCode::InvalidRequest));
        // The completion of the receive has the SRQ that it came from.
        let done = p.completions(A);
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].xrc, SRQ);
        let (events, cause) = (p.events(A), Some(Syndrome::XrcSrq));
        match again {
            None => assert_eq!((done[0].status, done[0].syndrome), (LocQpOpErr, cause)),
            // The completion of a destroyed SRQ reaches no program, so an event reports the error
            // (class C).
            Some(_) => {
                assert_eq!(done[0].status, WrFlushErr);
                assert_eq!(events[0], EventType::QpReqErr);
            }
        }
        assert_eq!(p.state(A), QpState::Err);
    }
}

#[test]
fn a_repeated_read_uses_its_first_protection_domain() {
    let mut p = target();
    let other = XrcSrq {
        srqn: 6,
        life: 60,
        pd: 888,
    };
    p.adapter.xrc.insert(6, Ok(other));
    p.adapter.queues[0].pd = SRQ.pd;
    let there = p.buffer(A, &pattern(300, 3));
    let read = PacketKind::ReadRequest(Reth {
        addr: there.addr,
        rkey: there.key,
        length: 300,
    });
    assert_eq!(exchange(&mut p, request(5, read, 0, &[])).len(), 2);
    p.adapter.queues[0].pd = other.pd;
    let dst = p.zeros(A, 8);
    p.post_recv(A, 11, &[dst.sge()]);
    let send = request(6, PacketKind::Send(SendTail::None), 2, &[1; 8]);
    exchange(&mut p, send);
    assert_eq!(p.statuses(A), [(11, Success)]);
    let again = exchange(&mut p, request(6, read, 0, &[]));
    assert_eq!(again.len(), 2);
    assert!(again
        .iter()
        .all(|packet| matches!(packet.kind, PacketKind::ReadResponse(_))));
    // A response has no SRQ number.
    assert!(again.iter().all(|packet| packet.srqn == 0));
}

#[test]
fn an_initiator_drops_requests_and_a_target_drops_responses() {
    let mut p = pair(LinkMode::Split);
    let dst = p.zeros(A, 8);
    p.post_recv(A, 1, &[dst.sge()]);
    let ini = Packet {
        dst_qpn: 0x10,
        ..request(5, PacketKind::Send(SendTail::None), 0, &[1])
    };
    p.deliver(A, ini);
    let nak = PacketKind::Ack(verbena_transport::packet::Aeth {
        syndrome: AethSyndrome::Nak(NakCode::RemoteAccess),
        msn: 0,
    });
    p.deliver(B, request(0, nak, 0, &[]));
    // A producer index of the target is ignored.
    p.qp(B).handle_posts(0, 3);
    p.settle();
    for side in [0, 1] {
        assert_eq!(p.qps[side].counters().dropped_transport, 1);
        assert_eq!(p.qps[side].state(), QpState::Rts);
    }
    assert!(p.statuses(A).is_empty() && p.statuses(B).is_empty());
    // The target drops a packet of a reliable connection too.
    p.deliver(
        B,
        by_hand::request(PacketKind::Send(SendTail::None), 0, &[1]),
    );
    assert_eq!(p.qps[1].counters().dropped_transport, 2);
}

#[test]
fn an_unknown_operation_is_refused() {
    let mut p = target();
    let answers = exchange(&mut p, request(5, PacketKind::Unknown(0x1f), 0, &[]));
    assert!(is_nak(&answers, 0, NakCode::InvalidRequest));
    assert_eq!(p.state(A), QpState::Err);
}
