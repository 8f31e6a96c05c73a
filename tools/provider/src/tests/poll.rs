// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Polls: whose completion it is, and when its place in the CQ is free again.

use super::{post_one, receive, Fixture, CQ_SLOT, SIZE};
use crate::cq::LOG_STRIDE;
use crate::errno::Errno;
use crate::ffi::memory::Ring;
use crate::ffi::mock;
use verbena_abi::cqe::WcOpcode;
use verbena_abi::ctx::QpState;
use verbena_abi::doorbell::{self, Arm, ArmMode, Words};

#[test]
fn polls_follow_the_phase_for_many_passes() {
    let mut f = Fixture::new();
    let qp = f.rts(9);
    let mut expected = 0;
    for pass in 0..20u32 {
        let count = 1 + pass % SIZE;
        for wr_id in 0..count {
            receive(&qp, &[wr_id.into()]).unwrap();
            f.complete(
                9,
                WcOpcode::Recv,
                expected + wr_id,
                (expected + wr_id).into(),
            );
        }
        let ids: Vec<u64> = (expected..expected + count).map(u64::from).collect();
        assert_eq!(f.polled(1), ids[..1]);
        assert_eq!(f.polled(SIZE as usize), ids[1..]);
        assert_eq!(f.polled(1), []);
        expected += count;
        assert_eq!(f.consumer(), expected);
    }
    let _ = qp;
}

/// Wherever the consumer is, whatever was polled, to larger and to smaller rings; a clean before it leaves entries aside.
#[test]
fn a_cq_that_is_resized_keeps_what_was_not_polled() {
    let mut f = Fixture::sized(3);
    let (a, b) = (f.rts(9), f.rts(10));
    let mut next = [0u32; 2];
    for round in 0..200u32 {
        let log_size = 3 + (round * 7 % 4) as u8;
        let mut expected = Vec::new();
        for i in 0..round % 6 {
            let which = (i % 2) as usize;
            let qp = [&a, &b][which];
            let wr_id = u64::from(round * 10 + i);
            receive(qp, &[wr_id]).unwrap();
            f.complete([9, 10][which], WcOpcode::Recv, next[which], wr_id);
            next[which] += 1;
            expected.push(wr_id);
        }
        let first = f.polled((round % 3) as usize);
        assert_eq!(first, expected[..first.len()]);
        if round % 5 == 4 {
            // The device writes none of A's any more; B's are saved.
            f.cq.clean(&a, || {});
            expected = expected.split_off(first.len());
            expected.retain(|wr_id| (wr_id % 10) % 2 == 1);
            f.resize(log_size);
            assert_eq!(f.polled(64), expected, "round {round}");
        } else {
            f.resize(log_size);
            assert_eq!(f.polled(64), expected[first.len()..], "round {round}");
        }
        assert_eq!(f.consumer(), f.cq_producer, "round {round}");
    }
}

#[test]
fn a_resize_that_fails_changes_nothing() {
    let mut f = Fixture::new();
    let qp = f.rts(9);
    receive(&qp, &[5]).unwrap();
    f.complete(9, WcOpcode::Recv, 0, 5);
    let memory = mock::Shared::new(1 << (5 + LOG_STRIDE));
    let ring = || Ok((Ring::new(memory.view(), 5, LOG_STRIDE).unwrap(), 5));
    let unmappable =
        f.cq.resize(|| Err(Errno::NOMEM), || panic!("the ring is not there"));
    assert_eq!(unmappable, Err(Errno::NOMEM));
    assert_eq!(f.cq.resize(ring, || Err(Errno::INVAL)), Err(Errno::INVAL));
    assert_eq!(f.polled(4), [5]);
}

#[test]
fn entries_of_nobody_are_skipped() {
    let mut f = Fixture::new();
    let _qp = f.rts(9);
    f.complete(1234, WcOpcode::Send, 0, 1);
    f.complete(9, WcOpcode::Send, 0, 2);
    f.complete(1234, WcOpcode::Send, 0, 3);
    assert_eq!(f.polled(4), [2]);
    assert_eq!(f.consumer(), 3);
}

#[test]
fn a_place_is_free_before_its_work_queue_has_room() {
    // Each completion of a long poll, whoever has it: by then both the CQ and the queue have told of those before it.
    let mut f = Fixture::new();
    let qps = [9, 10].map(|qpn| f.rts(qpn));
    // The first completion of one that the CQ does not know yet goes by itself.
    f.cq.clean(&qps[0], || {});
    for qp in &qps {
        for wr_id in 0..u64::from(SIZE) {
            post_one(qp, wr_id).unwrap();
        }
    }
    for number in 0..2 {
        f.complete(9, WcOpcode::Send, number, number.into());
    }
    for number in 0..2 {
        f.complete(10, WcOpcode::Send, number, number.into());
    }
    // The first queue's run ends with the third entry: the CQ's places come with its room, or before.
    let mut seen = Vec::new();
    f.cq.poll(4, |index, _| {
        let free = qps.each_ref().map(|qp| qp.sends.window().has_room(SIZE));
        seen.push((index, f.consumer(), free));
    });
    assert_eq!(
        seen,
        [
            (0, 0, [false, false]),
            (1, 0, [false, false]),
            (2, 2, [true, false]),
            (3, 2, [true, false]),
        ]
    );
    assert_eq!(f.consumer(), 4);
    // `ibv_next_poll`: what it has shown is free at once, as the program may post again before it asks for more.
    f.complete(9, WcOpcode::Send, 2, 2);
    f.complete(9, WcOpcode::Send, 3, 3);
    let mut state = f.cq.state().lock_long();
    for number in [5, 6] {
        assert!(f.cq.next(&mut state).is_some());
        assert_eq!(f.consumer(), number);
    }
    assert!(f.cq.next(&mut state).is_none());
    drop(state);
    // Entries of nobody are free too, even where the poll finds nothing.
    f.complete(1234, WcOpcode::Send, 0, 1);
    assert!(f.cq.next(&mut f.cq.state().lock_long()).is_none());
    assert_eq!(f.consumer(), 7);
}

#[test]
fn many_queue_pairs_are_told_apart() {
    let mut f = Fixture::new();
    // Numbers that collide in a small table.
    let qps: Vec<_> = (0..20).map(|n| f.rts(5 + 8 * n)).collect();
    for (n, qp) in qps.iter().enumerate() {
        post_one(qp, n as u64).unwrap();
        f.complete(qp.qpn, WcOpcode::Send, 0, n as u64);
        assert_eq!(f.poll(2)[0].qpn(), qp.qpn);
        assert!(qp.sends.flush_one().is_none());
    }
    for qp in &qps[..10] {
        qp.detach();
    }
    f.complete(qps[3].qpn, WcOpcode::Send, 0, 1);
    f.complete(qps[12].qpn, WcOpcode::Send, 0, 2);
    assert_eq!(f.polled(4), [2]);
}

#[test]
fn a_number_used_again_is_not_taken_for_its_last_owner() {
    let mut f = Fixture::new();
    let first = f.rts(9);
    post_one(&first, 1).unwrap();
    f.complete(9, WcOpcode::Send, 0, 1);
    // The kernel has destroyed it and hands out its number, before the process has forgotten it.
    let second = f.rts(9);
    assert_eq!(f.polled(2), []);
    post_one(&second, 2).unwrap();
    f.complete(9, WcOpcode::Send, 0, 2);
    first.detach();
    assert_eq!(f.polled(2), [2]);
    assert!(second.sends.flush_one().is_none());
    second.detach();
    f.complete(9, WcOpcode::Send, 1, 3);
    assert_eq!(f.polled(2), []);
}

#[test]
fn an_arm_publishes_index_and_mode() {
    let mut f = Fixture::new();
    let _qp = f.rts(9);
    f.complete(9, WcOpcode::Send, 0, 2);
    assert_eq!(f.polled(4), [2]);
    f.cq.arm(false);
    // A solicited arm does not weaken a full one that is pending.
    f.cq.arm(true);
    let word = || Arm::unpack(f.area.load64_acquire(doorbell::cq_arm(CQ_SLOT)));
    assert_eq!(
        (word().index, word().seq, word().mode),
        (1, 2, ArmMode::Next)
    );
    f.area.store(doorbell::cq_served(CQ_SLOT), 2);
    f.cq.arm(true);
    assert_eq!((word().seq, word().mode), (3, ArmMode::Solicited));
    assert_eq!(f.area.load(doorbell::cq_generation(0)), 3);
}

#[test]
fn reset_takes_only_the_own_completions_out() {
    let mut f = Fixture::new();
    let first = f.rts(9);
    let second = f.rts(10);
    for (qp, wr_id) in [(&first, 1), (&second, 2), (&first, 3), (&second, 4)] {
        post_one(qp, wr_id).unwrap();
    }
    f.complete(9, WcOpcode::Send, 0, 1);
    f.complete(10, WcOpcode::Send, 0, 2);
    f.complete(9, WcOpcode::Send, 1, 3);
    first.reset();
    // Its places are free again, the other's is not, and what comes later comes later.
    assert_eq!(f.consumer(), 2);
    assert_eq!(f.producer(), 0);
    assert_eq!(post_one(&first, 1), Err((Errno::INVAL, 0)));
    f.complete(10, WcOpcode::Send, 1, 4);
    // The arm stands where the program is, not where the ring is.
    f.cq.arm(false);
    let arm = Arm::unpack(f.area.load64_acquire(doorbell::cq_arm(CQ_SLOT)));
    assert_eq!((arm.index, arm.mode), (1, ArmMode::Next));
    assert_eq!(f.polled(1), [2]);
    second.detach();
    assert_eq!(f.polled(4), []);
    assert_eq!(f.consumer(), 4);
    first.set_state(QpState::Rts);
    for wr_id in 0..4 {
        post_one(&first, wr_id).unwrap();
    }
    assert_eq!(f.producer(), 4);
}

/// However often queue pairs are reset, a CQ holds no more than its entries: the device finds it full.
#[test]
fn what_is_taken_out_of_the_ring_keeps_its_place() {
    let mut f = Fixture::new();
    let qps = [9, 10, 11].map(|qpn| f.rts(qpn));
    let mut kept = 0;
    for (round, qp) in qps[..2].iter().cycle().take(8).enumerate() {
        // The device fills the CQ, by what it is told of it.
        while f.cq_producer.wrapping_sub(f.consumer()) < SIZE {
            let qpn = if f.cq_producer % 2 == 0 { 11 } else { qp.qpn };
            f.complete(qpn, WcOpcode::Send, 0, f.cq_producer.into());
            kept += u32::from(qpn == 11);
        }
        qp.reset();
        assert_eq!(f.cq_producer.wrapping_sub(f.consumer()), kept);
        if round == 5 {
            // Full of what the third one has not polled: a place is free again when one is polled.
            assert_eq!((kept, f.polled(1).len()), (SIZE, 1));
            kept -= 1;
            assert_eq!(f.cq_producer.wrapping_sub(f.consumer()), kept);
        }
    }
    assert_eq!(f.polled(100).len() as u32, kept);
    assert_eq!(f.cq_producer, f.consumer());
}
