// SPDX-License-Identifier: GPL-2.0 OR MIT

//! MODIFY_QP from RTS to ERR does not overtake doorbells: requests that were posted before the
//! command are sent, as far as one turn suffices.

use super::ends::far;
use super::*;
use crate::capture::capture_tap;
use crate::device::parts::egress::MAX_FRAMES;
use crate::mock::SendWr;
use verbena_abi::cqe::WcStatus::{Success, WrFlushErr};
use verbena_abi::ctx::QpState;
use verbena_abi::wqe::WqeOpcode;

/// Returns a pair whose first queue pair has posted a SEND of `bytes` bytes that the device has not
/// noticed yet. The second queue pair has a receive for it.
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

/// Moves the first queue pair to ERR. Checks that its message has arrived, and that the send and
/// the receive complete with success.
fn stop(mut p: Pair) {
    p.d.move_to(p.a.qpn, QpState::Err).unwrap();
    assert_eq!(p.d.drain(&mut p.cq_b), [(2, Success)]);
    p.d.run();
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, Success)]);
    assert_eq!(p.d.drain(&mut p.cq_b), []);
}

#[test]
fn a_posted_message_is_sent_before_its_queue_pair_stops() {
    for bytes in [1, 1024, 4097, 60_000] {
        stop(posted(bytes));
    }
}

#[test]
fn a_message_that_waits_for_a_turn_is_sent_before_its_queue_pair_stops() {
    let mut p = posted(100);
    let qpn = p.a.qpn;
    p.d.device.look_at_posts(&p.d.ram, qpn);
    assert!(p.d.device.turns.has(qpn));
    stop(p);
}

#[test]
fn frames_to_another_machine_leave_before_the_queue_pair_stops() {
    let mut d = Driver::new();
    let cq = d.create_cq(6);
    let mut qp = far(&mut d, &cq, 77);
    let (at, lkey) = d.region(4096, 1);
    // The waiting frames of other queue pairs leave room for a turn.
    let waiting = MAX_FRAMES / 4;
    d.device.egress.fill(waiting);
    let write = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at, 4096, lkey)]);
    d.post_send(&mut qp, &write);
    d.move_to(qp.qpn, QpState::Err).unwrap();
    assert_eq!(
        d.device.egress.len(),
        waiting + 4,
        "4096 bytes at a path MTU of 1024"
    );
}

#[test]
fn a_queue_pair_stops_without_a_turn_if_too_many_frames_wait() {
    let mut d = Driver::new();
    let mut cq = d.create_cq(6);
    let mut qp = far(&mut d, &cq, 77);
    d.device.egress.fill(MAX_FRAMES / 2);
    d.post_send(&mut qp, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
    d.move_to(qp.qpn, QpState::Err).unwrap();
    assert_eq!(d.device.egress.len(), MAX_FRAMES / 2);
    d.device.egress.fill(0);
    d.run();
    assert!(d.device.next_frame().is_none());
    assert_eq!(d.drain(&mut cq), [(1, WrFlushErr)]);
}

#[test]
fn messages_that_take_several_slices_are_delivered() {
    const BYTES: u32 = 65_536;
    let mut p = Pair::new();
    let (to, _watch) = capture_tap(1000, 1 << 20);
    // The frames for the tap count as payload of the slice, in addition to the delivered bytes.
    assert!(p.d.device.attach_capture(to));
    let (at, key) = p.d.region(BYTES, 7);
    for n in 0..4 {
        p.d.post_recv(&mut p.b, n, &[(at, BYTES, key)]);
    }
    p.d.run();
    for n in 0..4 {
        let send = SendWr::new(WqeOpcode::Send, n, &[(at, BYTES, key)]);
        p.d.post_send(&mut p.a, &send);
    }
    p.d.move_to(p.a.qpn, QpState::Err).unwrap();
    let arrived = [0, 1, 2, 3].map(|n| (n, Success));
    assert_eq!(p.d.drain(&mut p.cq_b), arrived);
}

#[test]
fn packets_that_are_never_delivered_do_not_hold_up_the_command() {
    let mut p = posted(100);
    let (qpn, write) = (p.a.qpn, SendWr::new(WqeOpcode::RdmaWrite, 3, &[]));
    p.d.begin_cmd(4, &Driver::move_request(qpn, QpState::Err));
    let mut slices = 0;
    while !p.d.is_answered(4) {
        // No slice delivers packets here, as if none had time for that.
        p.d.post_send(&mut p.a, &write);
        p.d.device.run_commands(&p.d.ram);
        p.d.device.give_turn(&p.d.ram, qpn);
        slices += 1;
        assert!(slices < 30);
    }
}

#[test]
fn requests_posted_in_sqd_are_not_sent() {
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
fn a_queue_pair_without_posts_stops_in_one_slice() {
    let mut p = Pair::new();
    p.d.run();
    p.d.move_to(p.a.qpn, QpState::Err).unwrap();
    assert_eq!(p.d.slices, 1);
}
