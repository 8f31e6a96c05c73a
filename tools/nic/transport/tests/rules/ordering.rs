// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The table of ordering: the effects of one work request that precede those of the next, with and
//! without a fence.

use super::answered::*;
use super::placement::RANGE;
use super::MODES;
use verbena_lab_transport::{ArenaBuffer, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::{WcStatus::*, WqeOpcode};
use verbena_transport::packet::PacketKind;
use verbena_transport::Budget;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrderedOp {
    Send,
    Write,
    Read,
    Atomic,
    AtomicWrite,
    Flush,
}
use OrderedOp::*;

const OPS: [OrderedOp; 6] = [Send, Write, Read, Atomic, AtomicWrite, Flush];

impl OrderedOp {
    fn responds(self) -> bool {
        !matches!(self, Send | Write)
    }

    fn post(self, wr_id: u64, here: ArenaBuffer, there: ArenaBuffer) -> SendPost {
        match self {
            Send => SendPost::send(wr_id, &[here.sge()]),
            Write => SendPost::write(wr_id, &[here.sge()], there),
            Read => SendPost::read(wr_id, &[here.sge()], there),
            Atomic => {
                let mut post = SendPost::new(wr_id, WqeOpcode::FetchAdd, &[here.sge()])
                    .at(there.addr, there.key);
                post.wqe.compare_add = 1;
                post
            }
            AtomicWrite => SendPost::atomic_write(wr_id, &[here.sge()], there),
            Flush => SendPost::flush(wr_id, RANGE, there),
        }
    }
}

/// Posts two work requests of 8 bytes, and returns the PSNs that are sent at once.
fn pair_of(first: OrderedOp, second: OrderedOp, fence: bool) -> (QpPair, Vec<u32>) {
    let mut p = requester(PairSetup::default());
    let (a, b, there) = (p.zeros(A, 8), p.zeros(A, 8), p.zeros(B, 8));
    // The acknowledgement of this WRITE lifts the limit of the credits.
    p.post(A, SendPost::new(0, WqeOpcode::RdmaWrite, &[]));
    sent(&mut p);
    ack(&mut p, 0);
    p.completions(A);
    p.post(A, first.post(1, a, there));
    let mut post = second.post(2, b, there);
    post.wqe.fence = fence;
    p.post(A, post);
    let sent = numbers(&mut p);
    (p, sent)
}

#[test]
fn without_a_fence_nothing_waits() {
    for first in OPS {
        for second in OPS {
            let (_, sent) = pair_of(first, second, false);
            assert_eq!(sent, [1, 2], "{first:?}, {second:?}");
        }
    }
}

#[test]
fn a_fence_does_not_wait_for_writes() {
    for first in [Send, Write] {
        for second in OPS {
            let (_, sent) = pair_of(first, second, true);
            assert_eq!(sent, [1, 2], "{first:?}, {second:?}");
        }
    }
}

#[test]
fn a_fence_waits_for_reads_and_atomics() {
    for first in [Read, Atomic, AtomicWrite, Flush] {
        for second in OPS {
            let (mut p, sent) = pair_of(first, second, true);
            assert_eq!(sent, [1], "{first:?}, {second:?}");
            // A timeout does not release the fence, but the response does.
            p.run_until(p.now_ns + 200_000);
            assert!(numbers(&mut p).iter().all(|n| *n == 1));
            match first {
                Read => read_only(&mut p, 1, &[1; 8]),
                AtomicWrite | Flush => read_only(&mut p, 1, &[]),
                _ => answer(&mut p, PacketKind::AtomicResponse(positive(), 1), 1, &[]),
            }
            assert_eq!(p.statuses(A), [(1, Success)]);
            assert_eq!(numbers(&mut p), [2]);
        }
    }
}

#[test]
fn a_fence_waits_for_all_outstanding_reads() {
    let mut p = requester(PairSetup::default());
    let (back, there) = (p.zeros(A, 8), p.zeros(B, 8));
    for wr_id in 1..=3 {
        p.post(A, SendPost::read(wr_id, &[back.sge()], there));
    }
    p.post(A, SendPost::write(4, &[], there).fence());
    p.post(A, SendPost::write(5, &[], there));
    assert_eq!(numbers(&mut p), [0, 1, 2]);
    for n in 0..3 {
        read_only(&mut p, n, &[1; 8]);
        let sent = numbers(&mut p);
        assert_eq!(sent, if n < 2 { [].to_vec() } else { [3, 4].to_vec() });
    }
}

/// Returns a pair that sends one packet in each turn, so that other packets may come between them.
fn slow(mode: verbena_lab_transport::LinkMode) -> QpPair {
    QpPair::new(PairSetup {
        mode,
        budget: Budget::new(1, 1 << 20),
        ..PairSetup::default()
    })
}

#[test]
fn writes_and_sends_are_visible_to_all_later_operations() {
    for mode in MODES {
        for second in OPS {
            let mut p = slow(mode);
            let (new, there) = (p.buffer(A, &7u64.to_ne_bytes()), p.zeros(B, 8));
            let back = p.buffer(A, &9u64.to_ne_bytes());
            p.post_recv(B, 1, &[there.sge()]);
            p.post_recv(B, 2, &[there.sge()]);
            // The SEND writes to the same buffer as the WRITE.
            for first in [Write, Send] {
                p.post(A, first.post(1, new, there));
                p.post(A, second.post(2, back, there));
                p.settle();
                let (seen, left) = (
                    p.adapter.bytes(back).to_vec(),
                    p.adapter.bytes(there).to_vec(),
                );
                let (seven, nine) = (7u64.to_ne_bytes(), 9u64.to_ne_bytes());
                match second {
                    Send | Write | AtomicWrite => {
                        assert_eq!(left, nine, "{mode:?} {first:?} {second:?}")
                    }
                    Flush => assert_eq!(left, seven, "{mode:?} {first:?} {second:?}"),
                    Read | Atomic => assert_eq!(seen, seven, "{mode:?} {first:?} {second:?}"),
                }
                assert_eq!(p.completions(A).len(), 2);
                if second == Send {
                    break;
                }
            }
        }
    }
}

#[test]
fn reads_and_atomics_are_executed_in_order() {
    for mode in MODES {
        for (first, second) in [(Read, Read), (Atomic, Read), (Atomic, Atomic)] {
            let mut p = slow(mode);
            let (a, b) = (p.zeros(A, 8), p.zeros(A, 8));
            let there = p.buffer(B, &40u64.to_ne_bytes());
            p.post(A, first.post(1, a, there));
            p.post(A, second.post(2, b, there));
            p.settle();
            let word = |buffer| u64::from_ne_bytes(p.adapter.bytes(buffer).try_into().unwrap());
            let added = u64::from(first == Atomic);
            assert_eq!((word(a), word(b)), (40, 40 + added), "{mode:?} {first:?}");
            assert_eq!(p.statuses(A), [(1, Success), (2, Success)]);
        }
    }
}

#[test]
fn work_requests_complete_in_the_order_of_the_posts() {
    for first in OPS {
        for second in OPS {
            for mode in MODES {
                let mut p = slow(mode);
                let (a, b, there) = (p.zeros(A, 8), p.zeros(A, 8), p.zeros(B, 8));
                p.post_recv(B, 1, &[there.sge()]);
                p.post_recv(B, 2, &[there.sge()]);
                p.post(A, first.post(1, a, there));
                p.post(A, second.post(2, b, there));
                p.settle();
                assert_eq!(
                    p.statuses(A),
                    [(1, Success), (2, Success)],
                    "{mode:?} {first:?} {second:?} {}",
                    first.responds()
                );
            }
        }
    }
}

#[test]
fn keys_are_checked_after_earlier_changes() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (src, there) = (p.zeros(A, 8), p.zeros(B, 8));
        p.post(A, SendPost::write(1, &[src.sge()], there));
        let mut invalidate = SendPost::new(2, WqeOpcode::LocalInv, &[]);
        invalidate.wqe.imm = src.key.to_le_bytes();
        p.post(A, invalidate);
        p.post(A, SendPost::write(3, &[src.sge()], there));
        p.settle();
        assert_eq!(
            p.statuses(A),
            [(1, Success), (2, Success), (3, LocProtErr)],
            "{mode:?}"
        );
    }
}
