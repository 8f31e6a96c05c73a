// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Threads that post and poll at the same time, and the cost of a post and of a poll.

use super::{post_one, send, sge, Fixture, SIZE};
use crate::errno::Errno;
use crate::ffi::mock;
use verbena_abi::cqe::WcOpcode;
use verbena_abi::wqe::SendWqe;
use zerocopy::FromBytes;

#[test]
fn no_request_is_lost_while_threads_post_and_poll() {
    const EACH: u64 = 3000;
    let f = Fixture::new();
    let qp = f.rts(9);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let qp = &qp;
            scope.spawn(move || {
                for number in 0..EACH {
                    while post_one(qp, thread * EACH + number) == Err((Errno::NOMEM, 0)) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        // This thread acts as the device: it takes the posted requests in order and completes them.
        let (mut f, qp) = (f, &qp);
        scope.spawn(move || {
            let mut next = 0;
            let mut seen = vec![false; 3 * EACH as usize];
            while (next as usize) < seen.len() {
                if f.producer() == next {
                    std::thread::yield_now();
                    continue;
                }
                let bytes = qp.sends.bytes(next, 128);
                let (header, _) = SendWqe::read_from_prefix(&bytes).unwrap();
                f.complete(9, WcOpcode::Send, next, header.wr_id.get());
                let polled = f.polled(2);
                assert_eq!(polled.len(), 1);
                assert!(!core::mem::replace(&mut seen[polled[0] as usize], true));
                next += 1;
            }
        });
    });
}

#[test]
fn an_entry_that_appears_during_a_poll_is_not_lost() {
    const COUNT: u64 = 100_000;
    let mut f = Fixture::new();
    let _qp = f.rts(9);
    let cq = f.cq.clone();
    std::thread::scope(|scope| {
        // This thread polls as `ibv_start_poll` does.
        let poller = scope.spawn(move || {
            for wr_id in 0..COUNT {
                let completion = loop {
                    let mut state = cq.state().lock_long();
                    if let Some(completion) = cq.next(&mut state) {
                        break completion;
                    }
                };
                assert_eq!(completion.wr_id, wr_id);
            }
        });
        for wr_id in 0..COUNT {
            while f.cq_producer.wrapping_sub(f.consumer()) >= SIZE {
                assert!(!poller.is_finished(), "the poller has ended early");
                std::hint::spin_loop();
            }
            f.complete(9, WcOpcode::Send, 0, wr_id);
        }
    });
}

/// This measurement is no test: it prints the time that the provider needs for a message. Run
/// `cargo test --release -p verbena-provider -- --ignored --nocapture --test-threads 1 speed`, on
/// the host or in a guest.
#[test]
#[ignore = "a measurement"]
fn speed() {
    const LOG: u8 = 10;
    const ROUNDS: u32 = 1000;
    let mut f = Fixture::sized(LOG);
    let qp = f.rts(9);
    let mut sges = [sge(64)];
    let mut wrs = [send(7, &mut sges)];
    for threads in ["one thread", "several threads"] {
        let mut spent = [std::time::Duration::ZERO; 3];
        for _ in 0..ROUNDS {
            let start = std::time::Instant::now();
            for _ in 0..1 << LOG {
                mock::with_sends(&mut wrs, |first| qp.post_send(first)).unwrap();
            }
            spent[0] += start.elapsed();
            let first = qp.sends.posted().wrapping_sub(1 << LOG);
            for index in 0..1 << LOG {
                f.complete(9, WcOpcode::Send, first.wrapping_add(index), 7);
            }
            let mut words = [[0; 6]; 4];
            let start = std::time::Instant::now();
            for _ in 0..1 << LOG {
                let count = f.cq.poll(1, |index, one| words[index] = one.wc_words());
                assert_eq!(std::hint::black_box((count, &words)).0, 1);
            }
            spent[1] += start.elapsed();
            let start = std::time::Instant::now();
            for _ in 0..1 << LOG {
                let count = f.cq.poll(4, |index, one| words[index] = one.wc_words());
                assert_eq!(std::hint::black_box((count, &words)).0, 0);
            }
            spent[2] += start.elapsed();
        }
        let [post, poll, empty] = spent.map(|time| (time.as_nanos() >> LOG) / u128::from(ROUNDS));
        println!("{threads}: post {post} ns, poll {poll} ns, empty poll {empty} ns");
        std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(100)));
    }
}
