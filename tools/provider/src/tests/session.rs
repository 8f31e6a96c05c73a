// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Calls during an extended poll, which holds the CQ's lock: the polling thread, or a thread for
//! which it waits, creates queue pairs and arms the CQ.

use super::{post_one, Fixture, CQ_SLOT};
use crate::qp::Srq;
use std::sync::Arc;
use verbena_abi::cqe::{WcOpcode, WcStatus};
use verbena_abi::doorbell::{self, Arm, Words};

fn armed_at(f: &Fixture) -> (u32, u32) {
    let arm = Arm::unpack(f.area.load64_acquire(doorbell::cq_arm(CQ_SLOT)));
    (arm.index, arm.seq)
}

#[test]
fn completions_of_a_queue_pair_that_is_created_during_a_poll_are_returned_in_it() {
    let mut f = Fixture::new();
    let cq = f.cq.clone();
    let first = f.rts(9);
    post_one(&first, 1).unwrap();
    f.complete(9, WcOpcode::Send, 0, 1);
    let mut state = cq.state().lock_long();
    assert_eq!(cq.next(&mut state).map(|one| one.wr_id), Some(1));
    let second = f.rts(10);
    post_one(&second, 2).unwrap();
    f.complete(10, WcOpcode::Send, 0, 2);
    f.complete(1234, WcOpcode::Send, 0, 3);
    assert_eq!(cq.next(&mut state).map(|one| one.wr_id), Some(2));
    // The completion has made room in the queue pair too.
    assert!(second.sends.flush_one().is_none());
    // The entry of an unknown queue pair is still skipped.
    assert!(cq.next(&mut state).is_none());
    assert_eq!(f.consumer(), 3);
    drop(state);
    second.detach();
    first.detach();
}

#[test]
fn completions_of_an_srq_that_is_created_during_a_poll_are_returned_in_it() {
    let mut f = Fixture::new();
    let cq = f.cq.clone();
    let mut state = cq.state().lock_long();
    let srq = Arc::new(Srq {
        srqn: 7,
        queue: f.receives(5, true),
        cq: Some(f.cq.clone()),
    });
    f.cq.attach_srq(&srq);
    f.complete_of(77, 7, WcOpcode::Recv, 0, 4);
    assert_eq!(cq.next(&mut state).map(|one| one.wr_id), Some(4));
    drop(state);
    f.cq.detach_srq(&srq);
    f.complete_of(77, 7, WcOpcode::Recv, 1, 5);
    assert_eq!(f.polled(1), []);
}

#[test]
fn an_arm_during_a_poll_has_the_position_of_the_program() {
    let mut f = Fixture::new();
    let cq = f.cq.clone();
    let (first, second) = (f.rts(9), f.rts(10));
    for wr_id in [1, 2] {
        f.complete(9, WcOpcode::Send, wr_id as u32 - 1, wr_id);
    }
    let mut state = cq.state().lock_long();
    assert!(cq.next(&mut state).is_some());
    f.cq.arm(false);
    assert_eq!(armed_at(&f), (1, 1));
    assert!(cq.next(&mut state).is_some());
    f.cq.arm(true);
    assert_eq!(armed_at(&f), (2, 2));
    drop(state);
    // The saved completion comes before the entries of the ring.
    f.complete(9, WcOpcode::Send, 2, 3);
    f.complete(10, WcOpcode::Send, 0, 4);
    second.detach();
    f.cq.arm(false);
    assert_eq!((f.consumer(), armed_at(&f)), (3, (2, 3)));
    assert_eq!(f.polled(4), [3]);
    f.cq.arm(false);
    assert_eq!(armed_at(&f), (4, 4));
    let _ = first;
}

/// Queue pairs that are created during a poll wait for the next poll of the CQ. Each function that
/// looks for the queue pairs of the CQ must find them before that.
#[test]
fn a_queue_pair_that_is_created_during_a_poll_can_be_flushed_and_destroyed() {
    let mut f = Fixture::new();
    let cq = f.cq.clone();
    let state = cq.state().lock_long();
    let [one, two, three] = [9, 10, 11].map(|qpn| f.qp_in_rts_without_receives(qpn));
    drop(state);
    f.complete(9, WcOpcode::Send, 0, 1);
    one.detach();
    assert_eq!(f.polled(1), []);
    // The reset of `two` saves the completion of `three`, before any poll has registered `three`.
    post_one(&three, 3).unwrap();
    f.complete(11, WcOpcode::Send, 0, 3);
    two.reset();
    two.set_state(verbena_abi::ctx::QpState::Rts);
    assert_eq!(f.polled(1), [3]);
    let state = cq.state().lock_long();
    let four = f.qp_in_rts_without_receives(12);
    drop(state);
    for (qp, wr_id) in [(&two, 20), (&four, 40)] {
        post_one(qp, wr_id).unwrap();
    }
    f.area.store(doorbell::ALIVE, 0);
    let mut flushed = f.poll(8);
    flushed.sort_by_key(|one| one.wr_id);
    let ids: Vec<_> = flushed.iter().map(|one| (one.qpn(), one.wr_id)).collect();
    assert_eq!(ids, [(10, 20), (12, 40)]);
    let status = WcStatus::WrFlushErr.to_raw();
    assert!(flushed.iter().all(|one| one.status() == status));
}

/// The number belongs to a queue pair that is not detached yet, and so do the entries in the CQ.
#[test]
fn a_queue_pair_with_a_reused_number_waits_for_the_end_of_the_poll() {
    let mut f = Fixture::new();
    let cq = f.cq.clone();
    let mut state = cq.state().lock_long();
    let old = f.qp_in_rts_without_receives(9);
    f.complete(9, WcOpcode::Send, 0, 1);
    let f = &f;
    std::thread::scope(|scope| {
        let new = scope.spawn(|| f.qp_in_rts_without_receives(9));
        assert_eq!(cq.next(&mut state).map(|one| one.wr_id), Some(1));
        drop(state);
        let new = new.join().unwrap();
        old.detach();
        new.detach();
    });
    // Both queue pairs are detached, so another one with the number does not wait.
    let state = cq.state().lock_long();
    f.qp_in_rts_without_receives(9);
    drop(state);
}
