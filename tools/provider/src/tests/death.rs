// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A device that is dead, or whose page says so: all outstanding requests are flushed once.

use super::{post_one, receive, Fixture};
use crate::builder::Operands;
use crate::cq::LOG_STRIDE;
use crate::errno::Errno;
use crate::ffi::pabi::IBV_WR_SEND;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use verbena_abi::cqe::{WcOpcode, WcStatus, TAIL_OFFSET};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::syndrome::Syndrome;

#[test]
fn a_dead_device_flushes_everything_once_and_in_order() {
    let mut f = Fixture::new();
    let qp = f.rts(9);
    for wr_id in [1, 2, 3] {
        post_one(&qp, wr_id).unwrap();
    }
    receive(&qp, &[11, 12]).unwrap();
    f.complete(9, WcOpcode::Send, 0, 1);
    f.area.store(doorbell::ALIVE, 0);
    f.cq_memory.clear();
    // The device stays dead for this process even if the page says later that it is alive.
    let all = f.poll(2);
    f.area.store(doorbell::ALIVE, 1);
    let all = [all, f.poll(100)].concat();
    let ids: Vec<u64> = all.iter().map(|one| one.wr_id).collect();
    assert_eq!(ids, [1, 2, 3, 11, 12]);
    for one in &all {
        assert_eq!(one.status(), WcStatus::WrFlushErr.to_raw());
        assert_eq!(one.vendor_err(), u32::from(Syndrome::DeviceFatal.to_raw()));
        assert_eq!(one.qpn(), 9);
    }
    assert_eq!(f.polled(1), []);
    // Later posts are accepted and flushed, but not written to the ring.
    for wr_id in 20..24 {
        post_one(&qp, wr_id).unwrap();
    }
    assert_eq!(post_one(&qp, 24), Err((Errno::NOMEM, 0)));
    assert_eq!(f.producer(), 3);
    assert_eq!(f.polled(100), [20, 21, 22, 23]);
}

/// Posts by a list, by a builder and of receives, after the device has died.
#[test]
fn every_interface_that_posts_is_flushed_once_by_a_dead_device() {
    let f = Fixture::new();
    let qp = f.rts(9);
    f.area.store(doorbell::ALIVE, 0);
    for round in 0..3 {
        let first = 10 * round;
        // The poll after each post must flush its requests, without a later post.
        let mut guard = qp.sends.start(|| qp.may_send());
        for wr_id in first..first + 2 {
            qp.sends
                .begin(&mut guard, IBV_WR_SEND, wr_id, 0, Operands::None);
        }
        qp.sends.commit(guard).unwrap();
        assert_eq!(f.polled(100), [first, first + 1]);
        post_one(&qp, first + 2).unwrap();
        assert_eq!(f.polled(100), [first + 2]);
        let mut guard = qp.sends.start(|| qp.may_send());
        // The queue has room for four requests.
        for wr_id in 95..100 {
            qp.sends
                .begin(&mut guard, IBV_WR_SEND, wr_id, 0, Operands::None);
        }
        assert_eq!(qp.sends.commit(guard), Err(Errno::NOMEM));
        // An aborted request was never posted.
        let mut guard = qp.sends.start(|| qp.may_send());
        qp.sends
            .begin(&mut guard, IBV_WR_SEND, 98, 0, Operands::None);
        drop(guard);
        assert_eq!(f.polled(100), []);
        receive(&qp, &[first + 5, first + 6]).unwrap();
        let flushed = f.poll(100);
        let ids: Vec<u64> = flushed.iter().map(|one| one.wr_id).collect();
        assert_eq!(ids, [first + 5, first + 6]);
        let status = WcStatus::WrFlushErr.to_raw();
        assert!(flushed.iter().all(|one| one.status() == status));
    }
}

#[test]
fn flushed_requests_do_not_complete_again() {
    let mut f = Fixture::new();
    let (qp, other) = (f.rts(9), f.rts(10));
    for wr_id in [1, 2, 3] {
        post_one(&qp, wr_id).unwrap();
    }
    post_one(&other, 7).unwrap();
    // Completions from before the death are returned, also the saved one.
    f.complete(10, WcOpcode::Send, 0, 7);
    f.rts(11).detach();
    f.complete(9, WcOpcode::Send, 0, 1);
    f.area.store(doorbell::ALIVE, 0);
    assert_eq!(f.polled(3), [7, 1, 2]);
    // The device was not dead, and writes the completions of flushed requests.
    f.complete(9, WcOpcode::Send, 1, 2);
    f.complete(9, WcOpcode::Send, 2, 3);
    assert_eq!(f.polled(8), [3]);
    post_one(&qp, 4).unwrap();
    assert_eq!(f.polled(8), [4]);
}

#[test]
fn a_death_during_a_reset_flushes_each_request_at_most_once() {
    let f = Fixture::new();
    for _ in 0..200 {
        let qp = f.rts(9);
        for wr_id in 0..3 {
            post_one(&qp, wr_id).unwrap();
        }
        receive(&qp, &[11, 12]).unwrap();
        let stop = AtomicBool::new(false);
        f.area.store(doorbell::ALIVE, 0);
        std::thread::scope(|scope| {
            let poller = scope.spawn(|| {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    count += f.poll(2).len();
                    assert!(count <= 5, "more was flushed than was posted");
                }
            });
            qp.reset();
            stop.store(true, Ordering::Relaxed);
            poller.join().unwrap();
        });
        assert_eq!(f.polled(10), []);
        qp.detach();
    }
}

/// The kernel replaces the page while an entry is read: the poll returns the whole entry or none.
#[test]
fn a_page_that_is_replaced_during_a_poll_gives_no_partial_entry() {
    const ROUNDS: u64 = 100_000;
    let mut f = Fixture::new();
    let (_qp, other) = (f.rts(9), f.rts(10));
    let stop = AtomicBool::new(false);
    let polls = AtomicU32::new(0);
    let (cq, stop, polls) = (f.cq.clone(), &stop, &polls);
    std::thread::scope(|scope| {
        let poller = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                // Some polls find a saved completion first.
                if polls.fetch_add(1, Ordering::Relaxed) % 8 == 0 {
                    cq.clean(&other, || {});
                }
                cq.poll(1, |_, one| {
                    let seen = (one.wr_id, one.byte_len(), one.qpn(), one.wqe_index());
                    assert_eq!(seen, (u64::MAX, 77, 9, 5));
                });
            }
        });
        for round in 0..ROUNDS {
            // The entry is at the program's position, so it may be polled before the page is
            // replaced.
            let next = f.consumer();
            f.cq_producer = next;
            let at = f.at(next);
            f.complete(9, WcOpcode::Send, 5, u64::MAX);
            // Each round replaces the page at another moment of the poll.
            for _ in 0..round % 64 {
                std::hint::spin_loop();
            }
            f.cq_memory.revoke(at, 1 << LOG_STRIDE, TAIL_OFFSET);
            // A real page does not return. So the next entry is written after the poll that may
            // still read this one.
            let before = polls.load(Ordering::Relaxed);
            while polls.load(Ordering::Relaxed).wrapping_sub(before) < 2 && !poller.is_finished() {
                std::hint::spin_loop();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
