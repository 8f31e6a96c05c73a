// SPDX-License-Identifier: GPL-2.0 OR MIT

//! End-to-end credits at the responder (IBTA 9.7.7.2).

use super::by_hand::*;
use super::pattern;
use verbena_lab_transport::{ArenaBuffer, LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::WcStatus::*;
use verbena_transport::packet::{AethSyndrome, Packet};
use verbena_transport::qp::credits::{decode, INVALID};
use verbena_transport::{Qp, QpConfig, QpState, QpType};

/// Returns the credit codes of the positive acknowledgements among packets.
fn codes(packets: &[Packet]) -> Vec<u8> {
    let code = |packet| match aeth(packet)?.syndrome {
        AethSyndrome::Ack { credits } => Some(credits),
        _ => None,
    };
    packets.iter().filter_map(code).collect()
}

fn posted(p: &mut QpPair, count: u64) {
    for i in 0..count {
        p.post_recv(A, i, &[]);
    }
}

fn notify_receives_posted(p: &mut QpPair) -> Vec<Packet> {
    p.qps[0].handle_receives_posted(&mut p.adapter.host(A), p.now_ns);
    answers(p)
}

#[test]
fn every_acknowledgement_has_the_number_of_receives() {
    let mut p = rc();
    let far = p.zeros(A, 600);
    let word = ArenaBuffer { len: 8, ..far };
    posted(&mut p, 5);
    // 5 receives have no code, so the count is rounded down.
    assert_eq!(
        codes(&exchange(&mut p, request(write(word), 0, &[1; 8]))),
        [4]
    );
    assert_eq!(codes(&exchange(&mut p, request(SEND, 1, &[]))), [4]);
    assert_eq!(codes(&exchange(&mut p, request(SEND, 2, &[]))), [3]);
    posted(&mut p, 100);
    let got = codes(&exchange(&mut p, request(read(far), 3, &[])));
    assert_eq!(got.len(), 2, "at both ends of a READ response");
    assert!(got.iter().all(|code| decode(*code) == Some(96)));
    let got = codes(&exchange(&mut p, request(fetch_add(word, 1), 6, &[])));
    assert_eq!(decode(got[0]), Some(96));
    let got = codes(&exchange(&mut p, request(SEND, 0, &[])));
    assert_eq!(
        decode(got[0]),
        Some(96),
        "the acknowledgement of a duplicate"
    );
}

#[test]
fn the_receive_of_the_message_in_progress_is_a_credit() {
    let mut p = rc();
    let far = p.zeros(A, 1000);
    p.post_recv(A, 1, &[far.sge()]);
    p.post_recv(A, 2, &[]);
    let first = part(true, false, request(SEND, 0, &[1; 256]));
    // MSN 0 and 2 credits: the receive of the message in progress, and one more.
    assert_eq!(codes(&exchange(&mut p, first)), [2]);
    let last = part(false, true, request(SEND, 1, &[1; 8]));
    let got = exchange(&mut p, last);
    assert_eq!((codes(&got), aeth(&got[0]).unwrap().msn), (vec![1], 1));
}

#[test]
fn the_receive_of_a_refused_message_is_no_credit() {
    let mut p = rc();
    let (word, near) = (p.zeros(A, 8), p.zeros(A, 300));
    p.post_recv(A, 1, &[near.sge()]);
    // The refusal and the acknowledgement of the first packet wait for the response to the atomic.
    put(&mut p, request(fetch_add(word, 1), 0, &[]));
    put(&mut p, part(true, false, request(SEND, 1, &[1; 256])));
    put(&mut p, part(false, true, request(SEND, 2, &[1; 256])));
    assert_eq!(codes(&answers(&mut p)), [0, 0]);
    assert_eq!(p.statuses(A), [(1, LocLenErr)]);
}

#[test]
fn an_srq_has_no_credits() {
    let mut p = responder(PairSetup {
        has_srq: true,
        ..PairSetup::default()
    });
    let word = p.zeros(A, 8);
    posted(&mut p, 3);
    let got = exchange(&mut p, request(write(word), 0, &[1; 8]));
    assert_eq!(codes(&got), [INVALID]);
    assert!(notify_receives_posted(&mut p).is_empty());
}

#[test]
fn receives_posted_after_zero_credits_are_reported_unasked() {
    let mut p = rc();
    let far = p.buffer(A, &pattern(600, 1));
    let word = ArenaBuffer { len: 8, ..far };
    assert!(
        notify_receives_posted(&mut p).is_empty(),
        "no credits were reported before"
    );
    posted(&mut p, 1);
    assert!(notify_receives_posted(&mut p).is_empty());
    assert_eq!(codes(&exchange(&mut p, request(SEND, 0, &[]))), [0]);
    assert!(
        notify_receives_posted(&mut p).is_empty(),
        "no receive was posted"
    );
    posted(&mut p, 2);
    let got = notify_receives_posted(&mut p);
    assert!(is_ack(&got, 0));
    assert_eq!((codes(&got), aeth(&got[0]).unwrap().msn), (vec![2], 1));
    posted(&mut p, 1);
    assert!(
        notify_receives_posted(&mut p).is_empty(),
        "the peer has credits"
    );
    // The report waits for the READ responses before it.
    for n in 1..4 {
        exchange(&mut p, request(SEND, n, &[]));
    }
    put(&mut p, request(read(far), 4, &[]));
    posted(&mut p, 1);
    let got = notify_receives_posted(&mut p);
    assert_eq!(psns(&got), [psn(4), psn(5), psn(6), psn(6)]);
    assert_eq!(codes(&got), [1, 1, 1]);
    // In ERR nothing is reported.
    exchange(&mut p, request(SEND, 7, &[]));
    p.modify(A, QpState::Err).unwrap();
    posted(&mut p, 1);
    assert!(notify_receives_posted(&mut p).is_empty());
    assert_eq!(p.adapter.bytes(word).len(), 600);
}

#[test]
fn a_lost_credit_does_not_stop_the_requester() {
    // B gets no call for the posted receives, and its answers are lost for a third of the time. So
    // A has to send messages without a credit.
    let mut p = QpPair::rc(LinkMode::Split);
    for i in 0..20 {
        p.post(A, SendPost::send(i, &[]));
    }
    for i in 0..20 {
        p.post_recv(B, i, &[]);
        p.link.drop_if = (i % 3 == 0).then_some(|packet: &Packet| !packet.kind.is_request());
        p.run_until(p.now_ns + 200_000);
    }
    p.link.drop_if = None;
    p.settle();
    assert_eq!(p.completions(B).len(), 20);
    let done: Vec<_> = (0..20).map(|i| (i, Success)).collect();
    assert_eq!(p.statuses(A), done);
}

#[test]
fn credits_can_be_switched_off() {
    let mut p = rc();
    let word = p.zeros(A, 8);
    let mut config = QpConfig::new(0x10, QpType::Rc, 100);
    config.credits = false;
    p.qps[0] = Qp::new(config);
    p.connect(A);
    posted(&mut p, 1);
    let got = exchange(&mut p, request(write(word), 0, &[1; 8]));
    assert_eq!(codes(&got), [INVALID]);
    assert_eq!(codes(&exchange(&mut p, request(SEND, 1, &[]))), [INVALID]);
    posted(&mut p, 1);
    assert!(notify_receives_posted(&mut p).is_empty());
}
