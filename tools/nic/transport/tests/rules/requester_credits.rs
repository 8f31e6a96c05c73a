// SPDX-License-Identifier: GPL-2.0 OR MIT

//! End-to-end credits at the requester (IBTA 9.7.7.2): the messages that it sends before it knows
//! of a receive.

use super::answered::*;
use verbena_lab_transport::{LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::WcStatus::*;
use verbena_transport::host::WqeOpcode;
use verbena_transport::{Qp, QpConfig, QpType};

/// Returns a requester with this number of posted SENDs of no bytes.
fn sends(count: u64) -> QpPair {
    let mut p = requester(PairSetup::default());
    for wr_id in 1..=count {
        p.post(A, SendPost::send(wr_id, &[]));
    }
    p
}

#[test]
fn without_a_credit_one_message_is_sent() {
    let mut p = sends(3);
    let first = sent(&mut p);
    assert_eq!(first.len(), 1);
    assert!(first[0].ack_req);
    // There is still no credit, so one more message is sent.
    ack_credits(&mut p, 0, 1, 0);
    let second = sent(&mut p);
    assert_eq!((second.len(), second[0].psn), (1, psn(1)));
    assert!(second[0].ack_req);
}

#[test]
fn sends_keep_to_the_credits() {
    let mut p = sends(10);
    assert_eq!(numbers(&mut p), [0]);
    // 1 is executed and 3 receives are left: 2 to 4 are sent, and 5 without a credit.
    ack_credits(&mut p, 0, 1, 3);
    assert_eq!(numbers(&mut p), [1, 2, 3, 4]);
    // 3 are executed and 1 receive is left, so the limit stays.
    ack_credits(&mut p, 2, 3, 1);
    assert!(numbers(&mut p).is_empty());
    ack_credits(&mut p, 4, 5, 2);
    assert_eq!(numbers(&mut p), [5, 6, 7]);
}

#[test]
fn writes_and_reads_need_no_credit() {
    let mut p = requester(PairSetup::default());
    let (here, there) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, SendPost::send(1, &[]));
    for wr_id in 2..=4 {
        p.post(A, SendPost::write(wr_id, &[here.sge()], there));
    }
    p.post(A, SendPost::read(5, &[here.sge()], there));
    p.post(
        A,
        SendPost::new(6, WqeOpcode::FetchAdd, &[here.sge()]).at(there.addr, there.key),
    );
    p.post(A, SendPost::write(7, &[here.sge()], there).imm([0; 4]));
    p.post(A, SendPost::write(8, &[here.sge()], there));
    // The WRITE with immediate takes a receive, and the WRITE after it keeps its place.
    assert_eq!(numbers(&mut p), [0, 1, 2, 3, 4, 5]);
    ack_credits(&mut p, 3, 4, 1);
    assert_eq!(numbers(&mut p), [6, 7]);
}

#[test]
fn a_long_send_without_a_credit_sends_one_packet() {
    let mut p = requester(PairSetup::default());
    let src = p.zeros(A, 1000);
    p.post(A, SendPost::send(1, &[src.sge()]));
    p.post(A, SendPost::send(2, &[src.sge()]));
    let first = sent(&mut p);
    assert_eq!(first.len(), 1);
    assert!(first[0].first && !first[0].last && first[0].ack_req);
    // The SEND has a receive, but the next one has none.
    ack_credits(&mut p, 0, 0, 1);
    assert_eq!(
        numbers(&mut p),
        [1, 2, 3, 4],
        "the rest, and the first packet of the next SEND"
    );
    // The peer does not count the receive of the message in progress. The acknowledgement of its
    // first packet suffices.
    ack_credits(&mut p, 4, 1, 0);
    assert_eq!(numbers(&mut p), [5, 6, 7]);
    ack_credits(&mut p, 7, 2, 0);
    assert_eq!(p.statuses(A), [(1, Success), (2, Success)]);
}

#[test]
fn invalid_credits_lift_the_limit() {
    let mut p = sends(10);
    assert_eq!(numbers(&mut p), [0]);
    ack(&mut p, 0);
    assert_eq!(numbers(&mut p), (1..10).collect::<Vec<_>>());
    // The limit never returns.
    ack_credits(&mut p, 9, 10, 0);
    for wr_id in 11..20 {
        p.post(A, SendPost::send(wr_id, &[]));
    }
    assert_eq!(numbers(&mut p).len(), 9);
}

#[test]
fn without_credits_in_the_configuration_there_is_no_limit() {
    let mut p = requester(PairSetup::default());
    let mut config = QpConfig::new(0x10, QpType::Rc, 100);
    config.credits = false;
    p.qps[0] = Qp::new(config);
    p.connect(A);
    for wr_id in 0..5 {
        p.post(A, SendPost::send(wr_id, &[]));
    }
    assert_eq!(numbers(&mut p), [0, 1, 2, 3, 4]);
    ack_credits(&mut p, 4, 5, 0);
    p.post(A, SendPost::send(6, &[]));
    p.post(A, SendPost::send(7, &[]));
    assert_eq!(numbers(&mut p), [5, 6]);
}

#[test]
fn an_unsolicited_ack_brings_credits() {
    let mut p = sends(5);
    assert_eq!(numbers(&mut p), [0]);
    ack_credits(&mut p, 0, 1, 0);
    assert_eq!(numbers(&mut p), [1]);
    // The peer reports receives that were posted meanwhile, with the PSN of the last request
    // executed.
    ack_credits(&mut p, 0, 1, 4);
    assert_eq!(numbers(&mut p), [2, 3, 4]);
    assert_eq!(p.statuses(A), [(1, Success)]);
}

#[test]
fn an_older_unsolicited_ack_brings_no_credits() {
    let mut p = sends(5);
    sent(&mut p);
    ack_credits(&mut p, 0, 1, 1);
    sent(&mut p);
    ack_credits(&mut p, 1, 2, 0);
    sent(&mut p);
    ack_credits(&mut p, 0, 1, 64);
    assert!(numbers(&mut p).is_empty());
}

#[test]
fn a_retransmission_needs_no_credit() {
    let mut p = sends(6);
    sent(&mut p);
    ack_credits(&mut p, 0, 1, 2);
    assert_eq!(numbers(&mut p), [1, 2, 3]);
    rnr(&mut p, 1);
    p.run_until(p.now_ns + 10_000);
    assert_eq!(numbers(&mut p), [1, 2, 3]);
    p.run_until(p.now_ns + (4_096 << 8));
    sent(&mut p);
    ack_credits(&mut p, 3, 4, 1);
    assert_eq!(numbers(&mut p), [4, 5]);
    assert_eq!(p.statuses(A).len(), 4);
}

#[test]
fn a_peer_that_never_reports_credits_gets_one_message_at_a_time() {
    // The MSN of this peer does not change either, which is an error of the peer.
    let mut p = sends(20);
    for n in 0..20 {
        assert_eq!(numbers(&mut p), [n]);
        ack_credits(&mut p, n, 0, 0);
    }
    assert_eq!(p.statuses(A).len(), 20);
}

#[test]
fn messages_beyond_the_receives_wait_and_arrive() {
    for mode in super::MODES {
        let mut p = QpPair::new(PairSetup {
            mode,
            ..PairSetup::default()
        });
        let (src, dst) = (p.buffer(A, &super::pattern(700, 1)), p.zeros(B, 700));
        for wr_id in 0..40 {
            let post = if wr_id % 3 == 0 {
                SendPost::write(wr_id, &[src.sge()], dst).imm([0; 4])
            } else {
                SendPost::send(wr_id, &[src.sge()])
            };
            p.post(A, post);
        }
        for wr_id in 0..40 {
            p.post_recv(B, wr_id, &[dst.sge()]);
            if wr_id % 4 == 0 {
                p.run_until(p.now_ns + 100_000);
            }
        }
        p.settle();
        assert_eq!(p.statuses(A).len(), 40, "{mode:?}");
        assert_eq!(p.statuses(B).len(), 40);
    }
}

#[test]
fn with_enough_receives_there_is_no_rnr_nak() {
    for mode in super::MODES {
        let mut p = QpPair::rc(mode);
        for wr_id in 0..100 {
            p.post_recv(B, wr_id, &[]);
            p.post(A, SendPost::send(wr_id, &[]));
        }
        p.settle();
        assert_eq!(p.statuses(A).len(), 100);
        assert_eq!(p.qps[1].counters().rnr_naks_sent, 0);
    }
    // The receives run out after 50 messages. One message is refused, and no later one is sent.
    let mut p = QpPair::rc(LinkMode::Wire);
    for wr_id in 0..100 {
        p.post(A, SendPost::send(wr_id, &[]));
    }
    for wr_id in 0..50 {
        p.post_recv(B, wr_id, &[]);
    }
    p.run_until(200_000);
    assert_eq!(p.statuses(A).len(), 50);
    assert_eq!(
        p.qps[1].counters().out_of_sequence,
        0,
        "a message after the refused one was sent"
    );
}
