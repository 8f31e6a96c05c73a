// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completions in error for faults of the own side: work requests, receives and memory, by status.

use super::{pattern, MODES};
use verbena_lab_transport::{LinkMode, PairSetup, PairSide, PairSide::*, QpPair, SendPost};
use verbena_transport::host::{EventType, Syndrome, WcStatus, WcStatus::*, WqeError, WqeOpcode};
use verbena_transport::{Budget, QpState};

/// Returns the statuses of A's sends and of B's receives, after all work is done.
pub fn outcome(p: &mut QpPair) -> [Vec<(u64, WcStatus)>; 2] {
    p.settle();
    [p.statuses(A), p.statuses(B)]
}

/// Checks which of the two sides, A and B, are in ERR. The others are in RTS.
pub fn in_error(p: &QpPair, sides: [bool; 2]) {
    let state = |bad| if bad { QpState::Err } else { QpState::Rts };
    assert_eq!([p.state(A), p.state(B)], sides.map(state));
}

fn syndromes(p: &mut QpPair, side: PairSide) -> Vec<Option<Syndrome>> {
    p.settle();
    p.completions(side).iter().map(|c| c.syndrome).collect()
}

#[test]
fn message_over_the_longest() {
    let mut p = QpPair::rc(LinkMode::Local);
    let src = p.zeros(A, 16);
    let sges: Vec<_> = (0..3)
        .map(|_| verbena_transport::host::Sge {
            length: 1 << 30,
            ..src.sge()
        })
        .collect();
    p.post(A, SendPost::send(1, &sges));
    let [sends, _] = outcome(&mut p);
    assert_eq!(sends, [(1, LocLenErr)]);
    in_error(&p, [true, false]);
    assert_eq!(p.qps[0].snapshot().syndrome, Some(Syndrome::MessageTooLong));
}

#[test]
fn atomic_needs_8_bytes() {
    let mut p = QpPair::rc(LinkMode::Local);
    let (word, back) = (p.zeros(B, 8), p.zeros(A, 8));
    p.post(
        A,
        SendPost::new(1, WqeOpcode::FetchAdd, &[back.part(0, 4)]).at(word.addr, word.key),
    );
    p.settle();
    assert_eq!(p.completions(A)[0].syndrome, Some(Syndrome::AtomicLength));
}

#[test]
fn malformed_wqe() {
    let mut p = QpPair::rc(LinkMode::Local);
    let src = p.zeros(A, 16);
    let mut post = SendPost::send(1, &[src.sge()]);
    post.malformed = Some(WqeError::new(LocQpOpErr, Syndrome::WqeFlags));
    p.post(A, post);
    p.settle();
    let got = p.completions(A);
    assert_eq!(
        (got[0].status, got[0].syndrome),
        (LocQpOpErr, Some(Syndrome::WqeFlags))
    );
    in_error(&p, [true, false]);
}

#[test]
fn a_local_key_that_cannot_be_used() {
    for mode in MODES {
        for (break_it, cause) in [
            (0, Syndrome::LkeyUnknown),
            (1, Syndrome::LkeyPd),
            (2, Syndrome::LkeyBounds),
        ] {
            let mut p = QpPair::rc(mode);
            let (good, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
            let bad = p.zeros(A, 600);
            let mut sge = bad.sge();
            match break_it {
                0 => sge.lkey ^= 1,
                1 => p.adapter.region(bad).pd ^= 1,
                _ => sge.addr += 1,
            }
            // Sends before the bad one complete, whether they are signaled or not.
            p.post(A, SendPost::write(1, &[good.sge()], dst));
            p.post(A, SendPost::write(2, &[good.sge()], dst).unsignaled());
            p.post(A, SendPost::write(3, &[sge], dst).unsignaled());
            p.post(A, SendPost::write(4, &[good.sge()], dst));
            p.settle();
            let got = p.completions(A);
            let statuses: Vec<_> = got.iter().map(|c| (c.wr_id, c.status)).collect();
            assert_eq!(statuses, [(1, Success), (3, LocProtErr), (4, WrFlushErr)]);
            assert_eq!(got[1].syndrome, Some(cause));
            in_error(&p, [true, false]);
        }
    }
}

#[test]
fn an_atomic_whose_result_cannot_be_stored_is_executed() {
    for mode in MODES {
        for (off, status, after) in [(0, LocProtErr, 5), (1, RemInvReqErr, 0)] {
            let mut p = QpPair::rc(mode);
            let (word, own) = (p.zeros(B, 16), p.zeros(A, 8));
            let mut sge = own.sge();
            sge.lkey ^= 1;
            let mut add =
                SendPost::new(1, WqeOpcode::FetchAdd, &[sge]).at(word.addr + off, word.key);
            add.wqe.compare_add = 5;
            p.post(A, add);
            let [sends, _] = outcome(&mut p);
            assert_eq!(sends, [(1, status)], "{mode:?}");
            assert_eq!(p.adapter.bytes(word)[0], after, "{mode:?}");
            assert_eq!(p.adapter.bytes(own), [0; 8]);
            in_error(&p, [true, off > 0]);
        }
    }
}

#[test]
fn read_into_memory_without_local_write() {
    let mut p = QpPair::rc(LinkMode::Local);
    let (src, dst) = (p.zeros(B, 8), p.adapter.register(A, 0, vec![0; 8]));
    p.post(A, SendPost::read(1, &[dst.sge()], src));
    assert_eq!(syndromes(&mut p, A), [Some(Syndrome::LkeyAccess)]);
}

#[test]
fn sender_memory_that_goes_away_in_flight() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (src, dst) = (p.buffer(A, &pattern(5000, 1)), p.zeros(B, 5000));
        p.post(A, SendPost::write(1, &[src.sge()], dst));
        // The work request is checked and sent before the region becomes invalid.
        p.link.delay_ns = 10_000;
        if mode != LinkMode::Wire {
            p.run_until(5_000);
        }
        let before = p.statuses(A);
        assert!(before.is_empty());
        p.adapter.region(src).valid = mode == LinkMode::Wire;
        p.settle();
        if mode == LinkMode::Wire {
            assert_eq!(p.statuses(A), [(1, Success)]);
        } else {
            assert_eq!(p.statuses(A), [(1, LocProtErr)], "{mode:?}");
            in_error(&p, [true, false]);
        }
    }
}

#[test]
fn sender_memory_that_goes_away_after_a_read_is_the_reported_cause() {
    let mut setup = PairSetup::default();
    setup.attr.retry_cnt = 0;
    let mut p = QpPair::new(setup);
    let (back, from) = (p.zeros(A, 600), p.buffer(B, &pattern(600, 1)));
    let (bad, good, dst) = (p.zeros(A, 600), p.zeros(A, 600), p.zeros(B, 600));
    p.post(A, SendPost::read(1, &[back.sge()], from));
    p.post(A, SendPost::write(2, &[bad.sge()], dst));
    p.post(A, SendPost::write(3, &[good.sge()], dst));
    let mut budget = Budget::new(16, 64 << 10);
    p.qps[0].poll(&mut p.adapter.host(A), p.now_ns, &mut budget);
    p.adapter.region(bad).valid = false;
    // All requests arrive before B's turn. B's answer to the bad WRITE waits for the READ response,
    // and the last WRITE is out of sequence meanwhile.
    for packet in std::mem::take(&mut p.adapter.queues(A).out) {
        p.deliver(B, packet);
    }
    p.settle();
    assert_eq!(
        p.statuses(A),
        [(1, Success), (2, LocProtErr), (3, WrFlushErr)]
    );
}

#[test]
fn responder_memory_that_goes_away_in_flight() {
    let mut p = QpPair::rc(LinkMode::Local);
    let (back, src) = (p.zeros(A, 9000), p.buffer(B, &pattern(9000, 1)));
    p.link.delay_ns = 10_000;
    p.post(A, SendPost::read(1, &[back.sge()], src));
    // The responses are in flight, and refer to the memory of B.
    p.run_until(15_000);
    p.adapter.region(src).valid = false;
    let [sends, _] = outcome(&mut p);
    assert_eq!(sends, [(1, RemAccessErr)]);
    assert_eq!(p.events(B), [EventType::QpAccessErr]);
}

#[test]
fn receive_sge_that_cannot_be_used() {
    for mode in MODES {
        for cause in [Syndrome::LkeyUnknown, Syndrome::LkeyAccess] {
            let mut p = QpPair::rc(mode);
            let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
            match cause {
                Syndrome::LkeyUnknown => p.adapter.region(dst).valid = false,
                _ => p.adapter.region(dst).access = 0,
            }
            p.post_recv(B, 1, &[dst.sge()]);
            p.post_recv(B, 2, &[dst.sge()]);
            p.post(A, SendPost::send(1, &[src.sge()]));
            p.settle();
            assert_eq!(p.statuses(A), [(1, RemOpErr)], "{mode:?}");
            let got = p.completions(B);
            assert_eq!((got[0].status, got[0].syndrome), (LocProtErr, Some(cause)));
            assert_eq!(got[1].status, WrFlushErr);
            assert!(p.events(B).is_empty(), "a receive carries the error");
            in_error(&p, [true, true]);
        }
    }
}

#[test]
fn malformed_receive_wqe() {
    let mut p = QpPair::rc(LinkMode::Local);
    let src = p.zeros(A, 8);
    p.post_recv(B, 1, &[]);
    p.adapter.queues(B).rq[0].malformed = Some(Syndrome::RecvWqeMalformed);
    p.post(A, SendPost::send(1, &[src.sge()]));
    let [sends, receives] = outcome(&mut p);
    assert_eq!(
        (sends, receives),
        (vec![(1, RemOpErr)], vec![(1, LocQpOpErr)])
    );
    assert!(p.events(B).is_empty());
}

#[test]
fn a_failed_local_invalidate() {
    let mut p = QpPair::rc(LinkMode::Local);
    p.post(A, SendPost::new(1, WqeOpcode::LocalInv, &[]));
    let [sends, _] = outcome(&mut p);
    assert_eq!(sends, [(1, MwBindErr)]);
}
