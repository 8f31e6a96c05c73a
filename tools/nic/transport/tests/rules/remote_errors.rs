// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completions in error for requests that the responder refuses, and the other effects on both
//! sides.

use super::errors::{in_error, outcome};
use super::{pattern, MODES};
use verbena_abi::ctx::access;
use verbena_lab_transport::{LinkMode, PairSetup, PairSide::*, QpPair, SendPost};
use verbena_transport::host::{EventType, Syndrome, WcStatus::*, WqeOpcode};

#[test]
fn receive_too_small() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (src, dst) = (p.buffer(A, &pattern(1000, 1)), p.zeros(B, 999));
        p.post_recv(B, 1, &[dst.sge()]);
        p.post_recv(B, 2, &[dst.sge()]);
        p.post(A, SendPost::send(1, &[src.sge()]));
        p.post(A, SendPost::send(2, &[src.sge()]).unsignaled());
        let [sends, receives] = outcome(&mut p);
        assert_eq!(sends, [(1, RemInvReqErr), (2, WrFlushErr)], "{mode:?}");
        assert_eq!(receives, [(1, LocLenErr), (2, WrFlushErr)]);
        assert!(p.events(B).is_empty(), "a receive carries the error");
        in_error(&p, [true, true]);
    }
}

#[test]
fn a_read_of_memory_that_is_gone_under_a_valid_key() {
    // Over a wire, the responder finds the error when it makes a frame of the response. Between
    // local peers the reader finds it and repeats the request, and the responder then reports the
    // same error.
    for mode in [LinkMode::Local, LinkMode::Wire] {
        let mut p = QpPair::rc(mode);
        let (mine, good) = (p.zeros(A, 600), p.buffer(B, &pattern(600, 7)));
        let gone = p.buffer(B, &pattern(600, 8));
        p.adapter.absent = Some(gone.key);
        for (wr_id, theirs) in [(1, good), (2, gone), (3, good)] {
            p.post(A, SendPost::read(wr_id, &[mine.sge()], theirs));
        }
        let [sends, receives] = outcome(&mut p);
        let expected = [(1, Success), (2, RemAccessErr), (3, WrFlushErr)];
        assert_eq!(sends, expected, "{mode:?}");
        assert!(receives.is_empty());
        assert_eq!(p.events(B), [EventType::QpAccessErr]);
        in_error(&p, [true, true]);
        assert_eq!(p.adapter.bytes(mine), pattern(600, 7));
        assert_eq!(p.qps[0].counters().timeouts, 0);
    }
}

#[test]
fn remote_keys_are_checked() {
    for mode in MODES {
        for opcode in [
            WqeOpcode::RdmaWrite,
            WqeOpcode::RdmaRead,
            WqeOpcode::FetchAdd,
        ] {
            for broken in 0..4 {
                let mut p = QpPair::rc(mode);
                let (mine, theirs) = (p.zeros(A, 600), p.buffer(B, &pattern(600, 7)));
                let sge = if opcode == WqeOpcode::FetchAdd {
                    mine.part(0, 8)
                } else {
                    mine.sge()
                };
                let mut post = SendPost::new(1, opcode, &[sge]).at(theirs.addr, theirs.key);
                match broken {
                    0 => post.wqe.rkey ^= 1,
                    1 => p.adapter.region(theirs).pd ^= 1,
                    2 => post.wqe.remote_addr += 600,
                    _ => p.adapter.region(theirs).access = access::LOCAL_WRITE,
                }
                p.post(A, post);
                p.post(A, SendPost::write(2, &[mine.sge()], theirs));
                let [sends, receives] = outcome(&mut p);
                assert_eq!(
                    sends,
                    [(1, RemAccessErr), (2, WrFlushErr)],
                    "{mode:?} {opcode:?} {broken}"
                );
                assert!(receives.is_empty());
                assert_eq!(p.events(B), [EventType::QpAccessErr]);
                assert_eq!(p.adapter.bytes(theirs), pattern(600, 7));
                in_error(&p, [true, true]);
            }
        }
    }
}

#[test]
fn a_write_past_the_end_writes_no_byte() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (mine, theirs) = (p.buffer(A, &[1; 3000]), p.zeros(B, 2999));
        p.post(A, SendPost::write(1, &[mine.sge()], theirs));
        let [sends, _] = outcome(&mut p);
        assert_eq!(sends, [(1, RemAccessErr)]);
        assert!(p.adapter.bytes(theirs).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn write_with_immediate_that_fails_in_its_only_packet_takes_the_receive() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (mine, theirs) = (p.zeros(A, 100), p.zeros(B, 100));
        p.post_recv(B, 5, &[]);
        p.post(
            A,
            SendPost::write(1, &[mine.sge()], theirs)
                .at(theirs.addr + 1, theirs.key)
                .imm([0; 4]),
        );
        let [sends, receives] = outcome(&mut p);
        assert_eq!(
            (sends, receives),
            (vec![(1, RemAccessErr)], vec![(5, LocAccessErr)]),
            "{mode:?}"
        );
        assert!(p.events(B).is_empty(), "a receive carries the error");
    }
}

#[test]
fn write_with_immediate_that_fails_earlier_is_an_event() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        let (mine, theirs) = (p.zeros(A, 1000), p.zeros(B, 1000));
        p.post_recv(B, 5, &[]);
        p.post(
            A,
            SendPost::write(1, &[mine.sge()], theirs)
                .at(theirs.addr + 1, theirs.key)
                .imm([0; 4]),
        );
        let [sends, receives] = outcome(&mut p);
        assert_eq!(
            (sends, receives),
            (vec![(1, RemAccessErr)], vec![(5, WrFlushErr)]),
            "{mode:?}"
        );
        assert_eq!(p.events(B), [EventType::QpAccessErr]);
    }
}

#[test]
fn an_operation_that_is_not_enabled() {
    for mode in MODES {
        for opcode in [
            WqeOpcode::RdmaWrite,
            WqeOpcode::RdmaWriteImm,
            WqeOpcode::RdmaRead,
            WqeOpcode::CompareSwap,
        ] {
            let mut setup = PairSetup {
                mode,
                ..PairSetup::default()
            };
            setup.attr.access_flags = 0;
            let mut p = QpPair::new(setup);
            let (mine, theirs) = (p.zeros(A, 8), p.zeros(B, 8));
            p.post_recv(B, 5, &[]);
            p.post(
                A,
                SendPost::new(1, opcode, &[mine.sge()]).at(theirs.addr, theirs.key),
            );
            let [sends, receives] = outcome(&mut p);
            assert_eq!(
                (sends, receives),
                (vec![(1, RemInvReqErr)], vec![(5, WrFlushErr)]),
                "{mode:?} {opcode:?}"
            );
            assert_eq!(p.events(B), [EventType::QpReqErr]);
            in_error(&p, [true, true]);
            let causes = [Syndrome::NakInvalidRequest, Syndrome::OperationDisabled];
            assert_eq!(
                [0, 1].map(|i| p.qps[i].snapshot().syndrome),
                causes.map(Some)
            );
        }
    }
}

#[test]
fn reads_to_a_peer_that_accepts_none() {
    let mut setup = PairSetup::default();
    setup.attr.max_dest_rd_atomic = 0;
    let mut p = QpPair::new(setup);
    let (mine, theirs) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, SendPost::read(1, &[mine.sge()], theirs));
    let [sends, _] = outcome(&mut p);
    assert_eq!(sends, [(1, RemInvReqErr)]);
    assert_eq!(p.events(B), [EventType::QpReqErr]);
    assert_eq!(p.qps[1].snapshot().syndrome, Some(Syndrome::TooManyReads));
}

#[test]
fn a_misaligned_atomic() {
    let mut p = QpPair::rc(LinkMode::Local);
    let (mine, theirs) = (p.zeros(A, 8), p.zeros(B, 16));
    p.post(
        A,
        SendPost::new(1, WqeOpcode::FetchAdd, &[mine.sge()]).at(theirs.addr + 4, theirs.key),
    );
    let [sends, _] = outcome(&mut p);
    assert_eq!(sends, [(1, RemInvReqErr)]);
    assert_eq!(
        p.qps[1].snapshot().syndrome,
        Some(Syndrome::AtomicMisaligned)
    );
}

#[test]
fn a_remote_invalidate_that_fails_is_the_receivers_error_alone() {
    for mode in MODES {
        let mut p = QpPair::rc(mode);
        p.post_recv(B, 5, &[]);
        let mut post = SendPost::new(1, WqeOpcode::SendInv, &[]);
        post.wqe.imm = [1, 2, 3, 4];
        p.post(A, post);
        let [sends, receives] = outcome(&mut p);
        assert_eq!(
            (sends, receives),
            (vec![(1, Success)], vec![(5, MwBindErr)]),
            "{mode:?}"
        );
        in_error(&p, [false, true]);
    }
}
