// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completions in error, and what happens beside them: status by status.

use super::{pattern, MODES};
use verbena_abi::ctx::access;
use verbena_roce::host::{EventType, Syndrome, WcStatus, WqeError, WqeOpcode};
use verbena_roce::packet::{
    Aeth, AethSyndrome, Kind, NakCode, Packet, Payload, Reth, SendTail, Transport,
};
use verbena_roce::QpState;
use verbena_roce_lab::{Mode, Pair, Post, Setup, Side, Side::*};
use WcStatus::*;

/// Statuses of A's sends and B's receives, both ends' events and states.
fn outcome(p: &mut Pair) -> [Vec<(u64, WcStatus)>; 2] {
    p.settle();
    [p.statuses(A), p.statuses(B)]
}

fn syndromes(p: &mut Pair, side: Side) -> Vec<Option<Syndrome>> {
    p.settle();
    p.completions(side).iter().map(|c| c.syndrome).collect()
}

fn in_error(p: &Pair, sides: [bool; 2]) {
    let state = |bad| if bad { QpState::Err } else { QpState::Rts };
    assert_eq!([p.state(A), p.state(B)], sides.map(state));
}

#[test]
fn receive_too_small() {
    for mode in MODES {
        let mut p = Pair::rc(mode);
        let (src, dst) = (p.buffer(A, &pattern(1000, 1)), p.zeros(B, 999));
        p.post_recv(B, 1, &[dst.sge()]);
        p.post_recv(B, 2, &[dst.sge()]);
        p.post(A, Post::send(1, &[src.sge()]));
        p.post(A, Post::send(2, &[src.sge()]).unsignaled());
        let [sends, receives] = outcome(&mut p);
        assert_eq!(sends, [(1, RemInvReqErr), (2, WrFlushErr)], "{mode:?}");
        assert_eq!(receives, [(1, LocLenErr), (2, WrFlushErr)]);
        assert!(p.events(B).is_empty(), "a receive carries the error");
        in_error(&p, [true, true]);
    }
}

#[test]
fn message_over_the_longest() {
    let mut p = Pair::rc(Mode::Local);
    let src = p.zeros(A, 16);
    let sges: Vec<_> = (0..3)
        .map(|_| verbena_roce::host::Sge {
            length: 1 << 30,
            ..src.sge()
        })
        .collect();
    p.post(A, Post::send(1, &sges));
    let [sends, _] = outcome(&mut p);
    assert_eq!(sends, [(1, LocLenErr)]);
    in_error(&p, [true, false]);
}

#[test]
fn atomic_needs_8_bytes() {
    let mut p = Pair::rc(Mode::Local);
    let (word, back) = (p.zeros(B, 8), p.zeros(A, 8));
    p.post(
        A,
        Post::new(1, WqeOpcode::FetchAdd, &[back.part(0, 4)]).at(word.addr, word.key),
    );
    p.settle();
    assert_eq!(p.completions(A)[0].syndrome, Some(Syndrome::AtomicLength));
}

#[test]
fn malformed_wqe() {
    let mut p = Pair::rc(Mode::Local);
    let src = p.zeros(A, 16);
    let mut post = Post::send(1, &[src.sge()]);
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
            let mut p = Pair::rc(mode);
            let (good, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
            let bad = p.zeros(A, 600);
            let mut sge = bad.sge();
            match break_it {
                0 => sge.lkey ^= 1,
                1 => p.world.region(bad).pd ^= 1,
                _ => sge.addr += 1,
            }
            // Sends before the bad one complete first, whether they are signaled or not.
            p.post(A, Post::write(1, &[good.sge()], dst));
            p.post(A, Post::write(2, &[good.sge()], dst).unsignaled());
            p.post(A, Post::write(3, &[sge], dst).unsignaled());
            p.post(A, Post::write(4, &[good.sge()], dst));
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
fn read_into_memory_without_local_write() {
    let mut p = Pair::rc(Mode::Local);
    let (src, dst) = (p.zeros(B, 8), p.world.register(A, 0, vec![0; 8]));
    p.post(A, Post::read(1, &[dst.sge()], src));
    assert_eq!(syndromes(&mut p, A), [Some(Syndrome::LkeyAccess)]);
}

#[test]
fn sender_memory_that_goes_away_under_way() {
    for mode in MODES {
        let mut p = Pair::rc(mode);
        let (src, dst) = (p.buffer(A, &pattern(5000, 1)), p.zeros(B, 5000));
        p.post(A, Post::write(1, &[src.sge()], dst));
        // Everything is posted, checked and sent; then the region is gone.
        p.link.delay_ns = 10_000;
        if mode != Mode::Wire {
            p.run_until(5_000);
        }
        let before = p.statuses(A);
        assert!(before.is_empty());
        p.world.region(src).valid = mode == Mode::Wire;
        p.settle();
        if mode == Mode::Wire {
            assert_eq!(p.statuses(A), [(1, Success)]);
        } else {
            assert_eq!(p.statuses(A), [(1, LocProtErr)], "{mode:?}");
            in_error(&p, [true, false]);
        }
    }
}

#[test]
fn responder_memory_that_goes_away_under_way() {
    let mut p = Pair::rc(Mode::Local);
    let (back, src) = (p.zeros(A, 9000), p.buffer(B, &pattern(9000, 1)));
    p.link.delay_ns = 10_000;
    p.post(A, Post::read(1, &[back.sge()], src));
    // The responses are under way, by reference.
    p.run_until(15_000);
    p.world.region(src).valid = false;
    let [sends, _] = outcome(&mut p);
    assert_eq!(sends, [(1, RemAccessErr)]);
    assert_eq!(p.events(B), [EventType::QpAccessErr]);
}

#[test]
fn receive_sge_that_cannot_be_used() {
    for mode in MODES {
        for cause in [Syndrome::LkeyUnknown, Syndrome::LkeyAccess] {
            let mut p = Pair::rc(mode);
            let (src, dst) = (p.buffer(A, &pattern(600, 1)), p.zeros(B, 600));
            match cause {
                Syndrome::LkeyUnknown => p.world.region(dst).valid = false,
                _ => p.world.region(dst).access = 0,
            }
            p.post_recv(B, 1, &[dst.sge()]);
            p.post_recv(B, 2, &[dst.sge()]);
            p.post(A, Post::send(1, &[src.sge()]));
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
    let mut p = Pair::rc(Mode::Local);
    let src = p.zeros(A, 8);
    p.post_recv(B, 1, &[]);
    p.world.end(B).rq[0].malformed = Some(Syndrome::RecvWqeMalformed);
    p.post(A, Post::send(1, &[src.sge()]));
    let [sends, receives] = outcome(&mut p);
    assert_eq!(
        (sends, receives),
        (vec![(1, RemOpErr)], vec![(1, LocQpOpErr)])
    );
    assert!(p.events(B).is_empty());
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
                let mut p = Pair::rc(mode);
                let (mine, theirs) = (p.zeros(A, 600), p.buffer(B, &pattern(600, 7)));
                let sge = if opcode == WqeOpcode::FetchAdd {
                    mine.part(0, 8)
                } else {
                    mine.sge()
                };
                let mut post = Post::new(1, opcode, &[sge]).at(theirs.addr, theirs.key);
                match broken {
                    0 => post.wqe.rkey ^= 1,
                    1 => p.world.region(theirs).pd ^= 1,
                    2 => post.wqe.remote_addr += 600,
                    _ => p.world.region(theirs).access = access::LOCAL_WRITE,
                }
                p.post(A, post);
                p.post(A, Post::write(2, &[mine.sge()], theirs));
                let [sends, receives] = outcome(&mut p);
                assert_eq!(
                    sends,
                    [(1, RemAccessErr), (2, WrFlushErr)],
                    "{mode:?} {opcode:?} {broken}"
                );
                assert!(receives.is_empty());
                assert_eq!(p.events(B), [EventType::QpAccessErr]);
                assert_eq!(p.world.bytes(theirs), pattern(600, 7));
                in_error(&p, [true, true]);
            }
        }
    }
}

#[test]
fn no_byte_is_written_by_a_write_that_goes_over_the_end() {
    for mode in MODES {
        let mut p = Pair::rc(mode);
        let (mine, theirs) = (p.buffer(A, &[1; 3000]), p.zeros(B, 2999));
        p.post(A, Post::write(1, &[mine.sge()], theirs));
        let [sends, _] = outcome(&mut p);
        assert_eq!(sends, [(1, RemAccessErr)]);
        assert!(p.world.bytes(theirs).iter().all(|byte| *byte == 0));
    }
}

#[test]
fn write_with_immediate_that_fails_in_its_only_packet_takes_the_receive() {
    for mode in MODES {
        let mut p = Pair::rc(mode);
        let (mine, theirs) = (p.zeros(A, 100), p.zeros(B, 100));
        p.post_recv(B, 5, &[]);
        p.post(
            A,
            Post::write(1, &[mine.sge()], theirs)
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
        let mut p = Pair::rc(mode);
        let (mine, theirs) = (p.zeros(A, 1000), p.zeros(B, 1000));
        p.post_recv(B, 5, &[]);
        p.post(
            A,
            Post::write(1, &[mine.sge()], theirs)
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
            let mut setup = Setup {
                mode,
                ..Setup::default()
            };
            setup.attr.access_flags = 0;
            let mut p = Pair::new(setup);
            let (mine, theirs) = (p.zeros(A, 8), p.zeros(B, 8));
            p.post_recv(B, 5, &[]);
            p.post(
                A,
                Post::new(1, opcode, &[mine.sge()]).at(theirs.addr, theirs.key),
            );
            let [sends, receives] = outcome(&mut p);
            assert_eq!(
                (sends, receives),
                (vec![(1, RemInvReqErr)], vec![(5, WrFlushErr)]),
                "{mode:?} {opcode:?}"
            );
            assert_eq!(p.events(B), [EventType::QpReqErr]);
            in_error(&p, [true, true]);
        }
    }
}

#[test]
fn reads_to_a_peer_that_accepts_none() {
    let mut setup = Setup::default();
    setup.attr.max_dest_rd_atomic = 0;
    let mut p = Pair::new(setup);
    let (mine, theirs) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, Post::read(1, &[mine.sge()], theirs));
    let [sends, _] = outcome(&mut p);
    assert_eq!(sends, [(1, RemInvReqErr)]);
    assert_eq!(p.events(B), [EventType::QpReqErr]);
    assert_eq!(p.qps[1].snapshot().syndrome, Some(Syndrome::TooManyReads));
}

#[test]
fn a_misaligned_atomic() {
    let mut p = Pair::rc(Mode::Local);
    let (mine, theirs) = (p.zeros(A, 8), p.zeros(B, 16));
    p.post(
        A,
        Post::new(1, WqeOpcode::FetchAdd, &[mine.sge()]).at(theirs.addr + 4, theirs.key),
    );
    let [sends, _] = outcome(&mut p);
    assert_eq!(sends, [(1, RemInvReqErr)]);
}

#[test]
fn a_remote_invalidate_that_fails_is_the_receivers_error_alone() {
    for mode in MODES {
        let mut p = Pair::rc(mode);
        p.post_recv(B, 5, &[]);
        let mut post = Post::new(1, WqeOpcode::SendInv, &[]);
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

#[test]
fn a_failed_local_invalidate() {
    let mut p = Pair::rc(Mode::Local);
    p.post(A, Post::new(1, WqeOpcode::LocalInv, &[]));
    let [sends, _] = outcome(&mut p);
    assert_eq!(sends, [(1, MwBindErr)]);
}

/// A packet to A as if B had sent it.
fn forged(kind: Kind, psn: u32, payload: &[u8]) -> Packet {
    Packet {
        transport: Transport::Rc,
        kind,
        first: true,
        last: true,
        solicited: false,
        ack_req: true,
        pkey: 0xffff,
        dst_qpn: 0x10,
        src_qpn: 0x11,
        psn,
        psns: 1,
        datagram: None,
        payload: Payload::from_bytes(payload),
    }
}

const ACK: Aeth = Aeth {
    syndrome: AethSyndrome::Ack { credits: 31 },
    msn: 1,
};

#[test]
fn a_response_that_cannot_answer_the_request() {
    for kind in [Kind::ReadResponse(Some(ACK)), Kind::AtomicResponse(ACK, 1)] {
        let mut p = Pair::rc(Mode::Local);
        p.link.loss = 100;
        let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
        p.post(A, Post::write(1, &[src.sge()], dst));
        p.run_until(1);
        let psn = p.qps[0].snapshot().una_psn;
        p.deliver(A, forged(kind, psn, &[]));
        let [sends, _] = outcome(&mut p);
        assert_eq!(sends, [(1, BadRespErr)]);
        in_error(&p, [true, false]);
    }
}

#[test]
fn a_read_response_of_the_wrong_length() {
    for len in [0usize, 7, 9, 4096] {
        let mut p = Pair::rc(Mode::Local);
        p.link.loss = 100;
        let (dst, src) = (p.zeros(A, 8), p.zeros(B, 8));
        p.post(A, Post::read(1, &[dst.sge()], src));
        p.run_until(1);
        let psn = p.qps[0].snapshot().una_psn;
        p.deliver(A, forged(Kind::ReadResponse(Some(ACK)), psn, &vec![1; len]));
        let [sends, _] = outcome(&mut p);
        assert_eq!(sends, [(1, BadRespErr)]);
        assert_eq!(p.world.bytes(dst), [0; 8]);
    }
}

#[test]
fn acknowledgements_of_what_was_not_sent_are_ignored() {
    let mut p = Pair::rc(Mode::Local);
    p.link.loss = 100;
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, Post::write(1, &[src.sge()], dst));
    p.run_until(1);
    let una = p.qps[0].snapshot().una_psn;
    for ahead in [1, 2, 1000, (1 << 24) - 1, 1 << 23] {
        p.deliver(
            A,
            forged(Kind::Ack(ACK), verbena_roce::psn::add(una, ahead), &[]),
        );
    }
    assert_eq!(p.qps[0].counters().stale_responses, 5);
    assert!(p.statuses(A).is_empty());
    in_error(&p, [false, false]);
}

#[test]
fn two_signs_of_one_loss_are_one_retry() {
    let mut setup = Setup {
        psns: [0, 0],
        ..Setup::default()
    };
    setup.attr.retry_cnt = 1;
    let mut p = Pair::new(setup);
    p.link.loss = 100;
    let (src, dst) = (p.zeros(A, 8), p.zeros(B, 8));
    p.post(A, Post::write(1, &[src.sge()], dst));
    p.post(A, Post::read(2, &[src.sge()], dst));
    p.post(A, Post::write(3, &[src.sge()], dst));
    p.run_until(1);
    // A NAK, and before anything is sent again, another that says that a response was lost.
    let nak = Kind::Ack(Aeth {
        syndrome: AethSyndrome::Nak(NakCode::Sequence),
        ..ACK
    });
    for psn in [1, 2] {
        p.deliver(A, forged(nak, psn, &[]));
    }
    assert_eq!(p.statuses(A), [(1, Success)]);
    in_error(&p, [false, false]);
    assert_eq!(p.qps[0].snapshot().retry_left, 0);
}

/// Requests to A that no correct peer sends. `prepare` packets go before and are good.
#[test]
fn requests_out_of_order_of_their_message_are_refused() {
    let send = Kind::Send(SendTail::None);
    let reth = Reth {
        addr: 0,
        rkey: 0,
        length: 1000,
    };
    let write = |reth| Kind::Write { reth, imm: None };
    let packet = |kind, first, last, payload: &[u8]| Packet {
        first,
        last,
        ..forged(kind, 5, payload)
    };
    let cases: Vec<(Vec<Packet>, Packet)> = vec![
        (vec![], packet(send, false, false, &[0; 256])),
        (vec![], packet(send, false, true, &[0; 1])),
        (vec![], packet(write(None), false, true, &[0; 1])),
        (
            vec![packet(send, true, false, &[0; 256])],
            packet(send, true, true, &[]),
        ),
        (
            vec![packet(send, true, false, &[0; 256])],
            packet(send, false, true, &[]),
        ),
        (
            vec![packet(send, true, false, &[0; 256])],
            packet(write(None), false, true, &[0; 4]),
        ),
        (
            vec![packet(send, true, false, &[0; 256])],
            packet(Kind::ReadRequest(reth), true, true, &[]),
        ),
        (
            vec![],
            packet(write(Some(Reth { length: 0, ..reth })), true, true, &[0; 8]),
        ),
        (
            vec![],
            packet(
                write(Some(Reth {
                    length: u32::MAX,
                    ..reth
                })),
                true,
                false,
                &[0; 256],
            ),
        ),
        (
            vec![],
            packet(
                Kind::ReadRequest(Reth {
                    length: u32::MAX,
                    ..reth
                }),
                true,
                true,
                &[],
            ),
        ),
    ];
    for (i, (before, bad)) in cases.into_iter().enumerate() {
        let mut p = Pair::rc(Mode::Local);
        let dst = p.zeros(A, 4096);
        p.post_recv(A, 1, &[dst.sge()]);
        let held = !before.is_empty();
        let count = before.len() as u32;
        for (n, mut packet) in before.into_iter().enumerate() {
            packet.psn = 5 + n as u32;
            p.deliver(A, packet);
        }
        p.deliver(
            A,
            Packet {
                psn: 5 + count,
                ..bad
            },
        );
        p.settle();
        in_error(&p, [true, false]);
        let events = p.events(A);
        if held {
            assert_eq!(p.statuses(A)[0], (1, LocQpOpErr), "case {i}");
            assert!(events.is_empty());
        } else {
            assert_eq!(events, [EventType::QpReqErr], "case {i}");
            assert_eq!(p.statuses(A), [(1, WrFlushErr)]);
        }
    }
}

#[test]
fn random_packets_never_panic_and_never_complete_wrongly() {
    let mut rng = verbena_roce_lab::Rng::new(99);
    for _ in 0..300 {
        let mut p = Pair::rc(Mode::Local);
        let (src, dst) = (p.buffer(A, &pattern(3000, 1)), p.zeros(B, 3000));
        let mine = p.zeros(A, 3000);
        p.post_recv(A, 1, &[mine.sge()]);
        p.post(A, Post::write(1, &[src.sge()], dst));
        p.post(A, Post::read(2, &[mine.sge()], dst));
        p.link.loss = 50;
        for _ in 0..20 {
            let until = p.now + rng.below(3000);
            p.run_until(until);
            let aeth = Aeth {
                syndrome: AethSyndrome::Ack { credits: 0 },
                msn: 0,
            };
            let reth = Reth {
                addr: mine.addr + rng.below(4000),
                rkey: mine.key,
                length: rng.next() as u32 >> rng.below(32),
            };
            let kind = match rng.below(8) {
                0 => Kind::Ack(aeth),
                1 => Kind::ReadResponse(Some(aeth)),
                2 => Kind::AtomicResponse(aeth, 1),
                3 => Kind::ReadRequest(reth),
                4 => Kind::Write {
                    reth: rng.chance(70).then_some(reth),
                    imm: None,
                },
                5 => Kind::Send(SendTail::Imm([0; 4])),
                6 => Kind::Ack(Aeth {
                    syndrome: AethSyndrome::Rnr { timer: 1 },
                    msn: 0,
                }),
                _ => Kind::Send(SendTail::None),
            };
            let near = if rng.chance(50) {
                5
            } else {
                p.qps[0].snapshot().una_psn
            };
            let len = rng.below(300) as usize;
            let mut packet = forged(
                kind,
                verbena_roce::psn::add(near, rng.below(20) as u32),
                &vec![3; len],
            );
            packet.first = rng.chance(60);
            packet.last = rng.chance(60);
            p.deliver(A, packet);
        }
        p.run_until(p.now + 1_000_000);
    }
}
