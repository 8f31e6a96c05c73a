// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Random combinations of errors over good and bad links: bad keys, memory that goes away, receives
//! that are too small or too late, and queue pairs that move to ERR, SQD or RESET in the middle of
//! their work.
//!
//! The outcome is not known, so the tests check only invariants. The simulated world checks most of
//! them: each work request completes at most once and in order, and no buffer is accessed after its
//! work request is complete.

use super::{pattern, MODES};
use verbena_lab_transport::{LinkMode, PairSetup, PairSide, PairSide::*, QpPair, Rng, SendPost};
use verbena_transport::host::{EventType, Syndrome, WcStatus, WqeError, WqeOpcode};
use verbena_transport::{QpState, QpType};

/// Returns a random work request, which may have an error.
fn random_post(p: &mut QpPair, rng: &mut Rng, side: PairSide, wr_id: u64) -> SendPost {
    let len = rng.below(1500) as usize;
    let (src, dst) = (p.buffer(side, &pattern(len, 1)), p.zeros(side.peer(), len));
    let opcode = match rng.below(9) {
        0 => WqeOpcode::Send,
        1 => WqeOpcode::SendImm,
        2 => WqeOpcode::RdmaWrite,
        3 => WqeOpcode::RdmaWriteImm,
        4 | 5 => WqeOpcode::RdmaRead,
        6 => WqeOpcode::CompareSwap,
        7 => WqeOpcode::SendInv,
        _ => WqeOpcode::LocalInv,
    };
    let sge = if opcode == WqeOpcode::CompareSwap {
        p.zeros(side, 8).sge()
    } else {
        src.sge()
    };
    let word = p.zeros(side.peer(), 8);
    let target = if opcode == WqeOpcode::CompareSwap {
        word
    } else {
        dst
    };
    let mut post = SendPost::new(wr_id, opcode, &[sge]).at(target.addr, target.key);
    post.wqe.signaled = rng.chance(50);
    post.wqe.fence = rng.chance(10);
    if matches!(opcode, WqeOpcode::SendInv | WqeOpcode::LocalInv) {
        let key = p.zeros(side, 8).key;
        post.wqe.imm = key.to_le_bytes();
        post.sges.clear();
    }
    if rng.chance(4) {
        match rng.below(7) {
            0 => post.wqe.rkey ^= 1,
            1 => post.wqe.remote_addr += 8,
            2 => post.sges.iter_mut().for_each(|sge| sge.lkey ^= 1),
            3 => invalidate(p, post.sges.first().map_or(src.key, |sge| sge.lkey)),
            4 => invalidate(p, post.wqe.rkey),
            5 => post.malformed = Some(WqeError::new(WcStatus::LocQpOpErr, Syndrome::WqeFlags)),
            _ => post.wqe.remote_addr += 4,
        }
    }
    post
}

/// Makes a key invalid.
fn invalidate(p: &mut QpPair, key: u32) {
    if let Some(region) = p.adapter.arena.regions.get_mut(key) {
        region.valid = false;
    }
}

/// Checks the invariants of a queue pair in ERR that has nothing left to do.
fn check_at_rest(p: &mut QpPair, side: PairSide, seed: u64) {
    let end = &p.adapter.queues[side as usize];
    let sent = p.qps[side as usize].snapshot().sq_consumer as usize;
    assert_eq!(sent, end.sq.len(), "seed {seed}: a send was not flushed");
    let silent = end.sq[end.sends_done..]
        .iter()
        .all(|post| !post.wqe.signaled);
    assert!(silent, "seed {seed}: a signaled send has no completion");
    assert_eq!(
        end.recvs_done,
        end.rq.len(),
        "seed {seed}: a receive was not flushed"
    );
    let sends: Vec<_> = end.completions.iter().filter(|c| !c.is_recv()).collect();
    let failed = sends
        .iter()
        .filter(|c| !matches!(c.status, WcStatus::Success | WcStatus::WrFlushErr))
        .count();
    assert!(failed <= 1, "seed {seed}: more than one send failed");
    // After the first error, all completions are flushes.
    for recv in [false, true] {
        let mut in_error = false;
        for c in end.completions.iter().filter(|c| c.is_recv() == recv) {
            assert!(
                !in_error || c.status == WcStatus::WrFlushErr,
                "seed {seed}: {c:?}"
            );
            in_error |= c.status != WcStatus::Success;
        }
    }
    let errors = end
        .events
        .iter()
        .filter(|(event, _)| *event != EventType::CommEst)
        .count();
    assert!(errors <= 1, "seed {seed}: {:?}", end.events);
}

fn chaos(seed: u64, mode: LinkMode, qp_type: QpType) {
    let mut rng = Rng::new(seed);
    let mut setup = PairSetup {
        mode,
        seed,
        qp_type,
        ..PairSetup::default()
    };
    setup.attr.rnr_retry = 5;
    setup.attr.retry_cnt = 3;
    setup.window = 1 + rng.below(40) as u32;
    let mut p = QpPair::new(setup);
    if rng.chance(50) {
        (p.link.loss, p.link.duplication, p.link.jitter_ns) = (10, 10, 2_000);
    }
    for _ in 0..4 {
        for step in 0..rng.below(60) {
            let side = if rng.chance(50) { A } else { B };
            let post = random_post(&mut p, &mut rng, side, step);
            p.post(side, post);
            if rng.chance(70) {
                let len = if rng.chance(5) { 10 } else { 1500 };
                let buffer = p.zeros(side.peer(), len);
                if rng.chance(2) {
                    invalidate(&mut p, buffer.key);
                }
                p.post_recv(side.peer(), step, &[buffer.sge()]);
            }
            let until = p.now_ns + rng.below(8_000);
            p.run_until(until);
            if rng.chance(2) && p.state(side) == QpState::Rts {
                p.modify(side, QpState::Sqd).unwrap();
                let until = p.now_ns + rng.below(8_000);
                p.run_until(until);
                if p.state(side) == QpState::Sqd {
                    p.modify(side, QpState::Rts).unwrap();
                }
            }
            if rng.chance(1) && p.state(side) != QpState::Reset {
                p.modify(side, QpState::Err).unwrap();
            }
            if p.state(side) == QpState::Sqe {
                p.modify(side, QpState::Rts).unwrap();
            }
        }
        if rng.chance(50) {
            // Both ends move to ERR, as when programs end, and every work request has to be
            // flushed.
            for side in [A, B] {
                p.modify(side, QpState::Err).unwrap();
            }
            p.settle();
            for side in [A, B] {
                if qp_type == QpType::Rc {
                    check_at_rest(&mut p, side, seed);
                }
            }
        }
        // All old packets arrive before the next connection begins. Its PSNs begin elsewhere.
        for side in [A, B] {
            p.reset(side);
        }
        let arrived = p.now_ns + 1_000_000;
        p.run_until(arrived);
        p.restart([rng.below(1 << 24) as u32, rng.below(1 << 24) as u32]);
    }
}

#[test]
fn reliable_connections_survive_chaos() {
    for seed in 0..150 {
        for mode in MODES {
            chaos(seed, mode, QpType::Rc);
        }
    }
}

#[test]
fn unreliable_connections_survive_chaos() {
    for seed in 0..60 {
        for mode in MODES {
            chaos(seed, mode, QpType::Uc);
        }
    }
}
