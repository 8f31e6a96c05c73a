// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What may happen while an extended poll is open: the CQ's lock is held then, and its thread, or one that it waits for,
//! creates queue pairs and arms the CQ.

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
fn a_queue_pair_that_comes_during_a_poll_completes_in_it() {
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
    // It was given back to the queue pair too.
    assert!(second.sends.flush_one().is_none());
    // Of nobody, still.
    assert!(cq.next(&mut state).is_none());
    assert_eq!(f.consumer(), 3);
    drop(state);
    second.detach();
    first.detach();
}

#[test]
fn an_srq_that_comes_during_a_poll_completes_in_it() {
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
fn an_arm_during_a_poll_stands_where_the_program_is() {
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
    // What was set aside lies before the ring's entries.
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

/// It was never polled for, but it is this CQ's.
#[test]
fn a_queue_pair_that_came_during_a_poll_is_flushed_and_goes() {
    let mut f = Fixture::new();
    let cq = f.cq.clone();
    let state = cq.state().lock_long();
    let [one, two, three] = [9, 10, 11].map(|qpn| f.qp_in_rts_without_receives(qpn));
    drop(state);
    f.complete(9, WcOpcode::Send, 0, 1);
    one.detach();
    assert_eq!(f.polled(1), []);
    // Set aside before its queue pair was asked for.
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

/// The number of one that is not forgotten yet: what is in the CQ belongs to that one.
#[test]
fn a_number_used_again_waits_for_the_poll() {
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
    // Both are forgotten, and so is the number: it comes without waiting.
    let state = cq.state().lock_long();
    f.qp_in_rts_without_receives(9);
    drop(state);
}
