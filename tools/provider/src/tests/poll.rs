// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Polls: the queue to which a completion belongs, and the time when its place in the CQ is free
//! again.

use super::{post_one, receive, Fixture, CQ_SLOT, SIZE};
use crate::cq::LOG_STRIDE;
use crate::errno::Errno;
use crate::ffi::memory::MappedRing;
use crate::ffi::mock;
use verbena_abi::cqe::{wc_flags, Cqe, WcOpcode};
use verbena_abi::ctx::QpState;
use verbena_abi::doorbell::{self, Arm, ArmMode, Words};
use verbena_abi::{Le16, Le32};

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

/// A program answers a datagram with these values.
#[test]
fn a_completion_has_the_addresses_of_the_sender_on_infiniband() {
    let mut f = Fixture::new();
    let qp = f.rts(9);
    receive(&qp, &[1]).unwrap();
    let cqe = Cqe {
        qpn: Le32::new(9),
        src_qp: Le32::new(0x1_2345),
        pkey_index: Le16::new(2),
        slid: Le16::new(0xbeef),
        dlid_path_bits: 0x55,
        port: 0xff,
        sl: 7,
        ..Cqe::default()
    };
    f.write_cqe(WcOpcode::Recv, wc_flags::GRH, cqe);
    let [one] = f.poll(1)[..] else {
        panic!("one completion");
    };
    assert_eq!((one.src_qp(), one.wc_flags()), (0x1_2345, 1));
    assert_eq!(
        (one.slid(), one.dlid_path_bits(), one.sl()),
        (0xbeef, 0x55, 7)
    );
    let [.., addresses, path] = one.wc_words();
    assert_eq!(addresses, 1 << 32 | 0x1_2345);
    assert_eq!(path, 0x5507_beef_0002);
}

/// The CQ is resized to larger and smaller rings, with the consumer at any place and any number of
/// polled entries, and with completions that a clean has saved.
#[test]
fn a_cq_that_is_resized_keeps_the_entries_that_were_not_polled() {
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
            // The completions of `a` are discarded, and those of `b` are saved.
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
    let memory = mock::MockMemory::new(1 << (5 + LOG_STRIDE));
    let ring = || Ok((MappedRing::new(memory.view(), 5, LOG_STRIDE).unwrap(), 5));
    let unmappable =
        f.cq.resize(|| Err(Errno::NOMEM), || panic!("there is no ring"));
    assert_eq!(unmappable, Err(Errno::NOMEM));
    assert_eq!(f.cq.resize(ring, || Err(Errno::INVAL)), Err(Errno::INVAL));
    assert_eq!(f.polled(4), [5]);
}

#[test]
fn entries_of_unknown_queue_pairs_are_skipped() {
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
    // When a poll returns a completion, the CQ's consumer index and the queue's window already
    // cover the run of completions before it.
    let mut f = Fixture::new();
    let qps = [9, 10].map(|qpn| f.rts(qpn));
    // The clean registers both queue pairs. Otherwise the first completion of each would take the
    // slow path.
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
    // The third entry ends the run of the first queue: the places in the CQ are free at the latest
    // when the queue has room.
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
    // With `ibv_next_poll`, the place of a returned completion is free at once, because the program
    // may post again before it polls for the next one.
    f.complete(9, WcOpcode::Send, 2, 2);
    f.complete(9, WcOpcode::Send, 3, 3);
    let mut state = f.cq.state().lock_long();
    for number in [5, 6] {
        assert!(f.cq.next(&mut state).is_some());
        assert_eq!(f.consumer(), number);
    }
    assert!(f.cq.next(&mut state).is_none());
    drop(state);
    // Places of entries of unknown queue pairs are free too, even if the poll returns nothing.
    f.complete(1234, WcOpcode::Send, 0, 1);
    assert!(f.cq.next(&mut f.cq.state().lock_long()).is_none());
    assert_eq!(f.consumer(), 7);
}

#[test]
fn each_of_many_queue_pairs_gets_its_own_completions() {
    let mut f = Fixture::new();
    // These numbers collide in a small table.
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
    // The kernel has destroyed the first queue pair and reuses its number before the process has
    // detached it.
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
    // A solicited arm does not replace a pending arm for any completion.
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
fn a_reset_discards_only_the_completions_of_its_queue_pair() {
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
    // The places of its completions are free again, but not that of the other queue pair's
    // completion, which later completions follow.
    assert_eq!(f.consumer(), 2);
    assert_eq!(f.producer(), 0);
    assert_eq!(post_one(&first, 1), Err((Errno::INVAL, 0)));
    f.complete(10, WcOpcode::Send, 1, 4);
    // The index of the arm is that of the saved completion, which the program has not seen.
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

/// After any number of resets, saved completions still occupy entries, so the device finds the CQ
/// full at its size.
#[test]
fn saved_completions_still_occupy_entries_of_the_cq() {
    let mut f = Fixture::new();
    let qps = [9, 10, 11].map(|qpn| f.rts(qpn));
    let mut kept = 0;
    for (round, qp) in qps[..2].iter().cycle().take(8).enumerate() {
        // The device fills the CQ, as far as the consumer index allows.
        while f.cq_producer.wrapping_sub(f.consumer()) < SIZE {
            let qpn = if f.cq_producer % 2 == 0 { 11 } else { qp.qpn };
            f.complete(qpn, WcOpcode::Send, 0, f.cq_producer.into());
            kept += u32::from(qpn == 11);
        }
        qp.reset();
        assert_eq!(f.cq_producer.wrapping_sub(f.consumer()), kept);
        if round == 5 {
            // The CQ is full of unpolled completions of the third queue pair. A poll of one frees
            // one place.
            assert_eq!((kept, f.polled(1).len()), (SIZE, 1));
            kept -= 1;
            assert_eq!(f.cq_producer.wrapping_sub(f.consumer()), kept);
        }
    }
    assert_eq!(f.polled(100).len() as u32, kept);
    assert_eq!(f.cq_producer, f.consumer());
}
