// SPDX-License-Identifier: GPL-2.0 OR MIT

//! MODIFY_QP from RTS to ERR does not overtake doorbells: what was posted before it is sent, if one turn suffices for that.

use super::ends::far;
use super::*;
use crate::mock::SendWr;
use verbena_abi::cqe::WcStatus::{Success, WrFlushErr};
use verbena_abi::ctx::QpState;
use verbena_abi::wqe::WqeOpcode;

/// A pair of which the second has a receive, and the first a message of so many bytes for it that nobody has looked at.
fn posted(bytes: u32) -> Pair {
    let mut p = Pair::new();
    let (from, lkey) = p.d.region(bytes, 7);
    let (to, key) = p.d.region(bytes, 0);
    p.d.post_recv(&mut p.b, 2, &[(to, bytes, key)]);
    p.d.run();
    let wr = SendWr::new(WqeOpcode::Send, 1, &[(from, bytes, lkey)]);
    p.d.post_send(&mut p.a, &wr);
    p
}

/// The first is stopped: its message has arrived before the command is answered, and to a peer in the device so has its acknowledgement.
fn stop(mut p: Pair) {
    p.d.move_to(p.a.qpn, QpState::Err).unwrap();
    assert_eq!(p.d.drain(&mut p.cq_b), [(2, Success)]);
    p.d.run();
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, Success)]);
    assert_eq!(p.d.drain(&mut p.cq_b), []);
}

#[test]
fn a_message_that_was_not_looked_at_is_sent_before_its_queue_pair_stops() {
    for bytes in [1, 1024, 4097, 60_000] {
        stop(posted(bytes));
    }
}

#[test]
fn so_is_one_that_waits_for_its_turn() {
    let mut p = posted(100);
    let qpn = p.a.qpn;
    p.d.device.look_at_posts(&p.d.ram, qpn);
    assert!(p.d.device.ready.contains(qpn));
    stop(p);
}

#[test]
fn to_another_machine_its_frames_leave() {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let mut qp = far(&mut d, &cq, 77);
    d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    d.move_to(qp.qpn, QpState::Err).unwrap();
    assert!(d.device.next_frame().is_some());
    assert!(d.device.next_frame().is_none());
}

#[test]
fn what_a_drained_queue_pair_was_given_is_not_sent() {
    let mut p = posted(100);
    p.d.run();
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, Success)]);
    assert_eq!(p.d.drain(&mut p.cq_b), [(2, Success)]);
    p.d.move_to(p.a.qpn, QpState::Sqd).unwrap();
    let wr = SendWr::new(WqeOpcode::RdmaWrite, 3, &[]);
    p.d.post_send(&mut p.a, &wr);
    p.d.move_to(p.a.qpn, QpState::Err).unwrap();
    p.d.run();
    assert_eq!(p.d.drain(&mut p.cq_a), [(3, WrFlushErr)]);
}

#[test]
fn one_without_posts_stops_in_one_slice() {
    let mut p = Pair::new();
    p.d.run();
    p.d.move_to(p.a.qpn, QpState::Err).unwrap();
    assert_eq!(p.d.slices, 1);
}
