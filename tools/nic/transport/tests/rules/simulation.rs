// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Random traffic in both directions, by seed. Memory and completions have to be the same at the
//! end in every mode of transport and with every impairment of the link.

use super::{pattern, MODES};
use verbena_lab_transport::{
    ArenaBuffer, LinkMode, PairSetup, PairSide, PairSide::*, QpPair, Rng, SendPost,
};
use verbena_transport::host::{WcStatus, WorkCompletion, WqeOpcode};
use verbena_transport::Counters;

/// The impairments of the link.
#[derive(Clone, Copy, Debug)]
struct LinkImpairments {
    loss: u32,
    duplication: u32,
    jitter_ns: u64,
}

const FAIR: LinkImpairments = LinkImpairments {
    loss: 0,
    duplication: 0,
    jitter_ns: 0,
};

/// The results that a program can see at the end.
#[derive(Debug, PartialEq)]
struct SimulationOutcome {
    memory: Vec<u8>,
    queues: Vec<Vec<WorkCompletion>>,
}

impl SimulationOutcome {
    fn of(seed: u64, mode: LinkMode, weather: LinkImpairments) -> Self {
        run(seed, mode, weather).0
    }
}

const LONGEST: u32 = 3000;

fn random_post(
    rng: &mut Rng,
    wr_id: u64,
    src: ArenaBuffer,
    dst: ArenaBuffer,
    back: ArenaBuffer,
    word: ArenaBuffer,
) -> SendPost {
    let len = match rng.below(4) {
        0 => 0,
        1 => rng.below(16) as u32,
        2 => rng.below(600) as u32,
        _ => rng.below(u64::from(LONGEST)) as u32,
    };
    let cut = rng.below(u64::from(len) + 1) as u32;
    let sges = [src.part(0, cut), src.part(cut, len - cut)];
    let opcode = match rng.below(10) {
        0..=1 => WqeOpcode::Send,
        2 => WqeOpcode::SendImm,
        3..=5 => WqeOpcode::RdmaWrite,
        6 => WqeOpcode::RdmaWriteImm,
        7..=8 => WqeOpcode::RdmaRead,
        _ => WqeOpcode::FetchAdd,
    };
    let mut post = match opcode {
        WqeOpcode::RdmaRead => SendPost::new(
            wr_id,
            opcode,
            &[back.part(0, cut), back.part(cut, len - cut)],
        ),
        WqeOpcode::FetchAdd => {
            SendPost::new(wr_id, opcode, &[back.part(0, 8)]).at(word.addr, word.key)
        }
        _ => SendPost::new(wr_id, opcode, &sges),
    };
    match opcode {
        WqeOpcode::FetchAdd => post.wqe.compare_add = wr_id,
        WqeOpcode::RdmaRead => post = post.at(dst.addr + u64::from(LONGEST), dst.key),
        _ => post = post.at(dst.addr, dst.key),
    }
    post.wqe.imm = (wr_id as u32).to_be_bytes();
    post.wqe.signaled = rng.chance(60);
    post.wqe.fence = rng.chance(10);
    post.wqe.solicited = rng.chance(20);
    post
}

/// Runs the traffic of `seed`.
fn run(seed: u64, mode: LinkMode, weather: LinkImpairments) -> (SimulationOutcome, Counters) {
    let mut rng = Rng::new(seed);
    let mut setup = PairSetup {
        mode,
        seed,
        ..PairSetup::default()
    };
    setup.psns = [rng.below(1 << 24) as u32, 0xff_ffff - rng.below(20) as u32];
    setup.window = 4 + rng.below(60) as u32;
    setup.attr.max_rd_atomic = 1 + rng.below(4) as u8;
    setup.attr.path_mtu = if rng.chance(50) { 256 } else { 512 };
    let mut p = QpPair::new(setup);
    p.link.loss = weather.loss;
    p.link.duplication = weather.duplication;
    p.link.jitter_ns = weather.jitter_ns;
    let mut due = [0u32; 2];
    for step in 0..60u64 {
        for side in [A, B] {
            // Each operation has buffers of its own, so that the outcome does not depend on timing.
            let src = p.buffer(side, &pattern(LONGEST as usize, step as u8));
            let dst = p.buffer(side.peer(), &pattern(2 * LONGEST as usize, !step as u8));
            let back = p.zeros(side, LONGEST as usize);
            let word = p.zeros(side.peer(), 8);
            let mut post = random_post(&mut rng, step, src, dst, back, word);
            post.wqe.signaled |= step == 59;
            if matches!(
                post.wqe.opcode,
                WqeOpcode::Send | WqeOpcode::SendImm | WqeOpcode::RdmaWriteImm
            ) {
                due[side.peer() as usize] += 1;
            }
            p.post(side, post);
        }
        // Some receives are posted late, so that RNR NAKs occur.
        if rng.chance(60) {
            post_receives(&mut p, &mut due, step);
        }
        if rng.chance(50) {
            let until = p.now_ns + rng.below(20_000);
            p.run_until(until);
        }
    }
    post_receives(&mut p, &mut due, 100);
    p.settle();
    let mut queues = Vec::new();
    for side in [A, B] {
        let all = p.completions(side);
        assert!(
            all.iter().all(|c| c.status == WcStatus::Success),
            "seed {seed}: {all:?}"
        );
        assert!(p.events(side).is_empty());
        let (receives, sends): (Vec<_>, Vec<_>) =
            all.into_iter().partition(WorkCompletion::is_recv);
        assert_eq!(
            p.qps[side as usize].snapshot().sq_consumer,
            60,
            "seed {seed} {mode:?}"
        );
        queues.push(sends);
        queues.push(receives);
    }
    let mut counters = *p.qps[0].counters();
    counters.add(p.qps[1].counters());
    (
        SimulationOutcome {
            memory: p.adapter.arena.bytes.clone(),
            queues,
        },
        counters,
    )
}

fn post_receives(p: &mut QpPair, due: &mut [u32; 2], step: u64) {
    for side in [A, B] {
        for i in 0..std::mem::take(&mut due[side as usize]) {
            // Memory regions are numbered in the order of registration, so the buffers are
            // registered at fixed points of the run.
            let buffer = receive_buffer(p, side);
            p.post_recv(
                side,
                step << 8 | u64::from(i),
                &[buffer.part(0, 100), buffer.part(100, LONGEST - 100)],
            );
        }
    }
}

fn receive_buffer(p: &mut QpPair, side: PairSide) -> ArenaBuffer {
    p.zeros(side, LONGEST as usize)
}

#[test]
fn all_modes_have_the_same_outcome() {
    for seed in 0..30 {
        let reference = SimulationOutcome::of(seed, LinkMode::Local, FAIR);
        for mode in MODES {
            assert!(
                SimulationOutcome::of(seed, mode, FAIR) == reference,
                "seed {seed}, {mode:?}"
            );
        }
    }
}

#[test]
fn loss_does_not_change_the_outcome() {
    for seed in 0..30 {
        let reference = SimulationOutcome::of(seed, LinkMode::Local, FAIR);
        for mode in MODES {
            for loss in [1, 5, 15] {
                let weather = LinkImpairments { loss, ..FAIR };
                assert!(
                    SimulationOutcome::of(seed, mode, weather) == reference,
                    "seed {seed}, {mode:?}, {weather:?}"
                );
            }
        }
    }
}

#[test]
fn duplication_does_not_change_the_outcome() {
    for seed in 100..120 {
        let reference = SimulationOutcome::of(seed, LinkMode::Local, FAIR);
        for mode in MODES {
            let weather = LinkImpairments {
                duplication: 30,
                ..FAIR
            };
            assert!(
                SimulationOutcome::of(seed, mode, weather) == reference,
                "seed {seed}, {mode:?}, {weather:?}"
            );
        }
    }
}

#[test]
fn reordering_does_not_change_the_outcome() {
    for seed in 200..220 {
        let reference = SimulationOutcome::of(seed, LinkMode::Local, FAIR);
        for mode in MODES {
            let weather = LinkImpairments {
                jitter_ns: 3_000,
                ..FAIR
            };
            assert!(
                SimulationOutcome::of(seed, mode, weather) == reference,
                "seed {seed}, {mode:?}, {weather:?}"
            );
        }
    }
}

#[test]
fn all_impairments_together_do_not_change_the_outcome() {
    for seed in 300..340 {
        let reference = SimulationOutcome::of(seed, LinkMode::Local, FAIR);
        for mode in MODES {
            let weather = LinkImpairments {
                loss: 5,
                duplication: 5,
                jitter_ns: 1_500,
            };
            assert!(
                SimulationOutcome::of(seed, mode, weather) == reference,
                "seed {seed}, {mode:?}, {weather:?}"
            );
        }
    }
}

#[test]
fn impairments_reach_every_kind_of_recovery() {
    let mut all = Counters::default();
    let weather = LinkImpairments {
        loss: 5,
        duplication: 5,
        jitter_ns: 1_500,
    };
    for seed in 0..20 {
        for mode in [LinkMode::Local, LinkMode::Wire] {
            all.add(&run(seed, mode, weather).1);
        }
    }
    let seen = [
        all.retransmitted,
        all.timeouts,
        all.probes,
        all.sequence_naks_sent,
        all.sequence_naks_received,
        all.rnr_naks_sent,
        all.rnr_naks_received,
        all.implied_naks,
        all.duplicates,
        all.out_of_sequence,
        all.stale_responses,
    ];
    assert!(seen.iter().all(|count| *count > 0), "{all:?}");
    assert_eq!((all.naks_sent, all.flushed), (0, 0), "{all:?}");
}
