// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine's own tests: messages complete, their bytes are copied, and a giant message does not
//! delay small ones.

use super::*;
use verbena_transport::QpType;

#[test]
fn messages_complete() {
    for (qp_type, opcode) in [
        (QpType::Rc, WqeOpcode::RdmaWrite),
        (QpType::Rc, WqeOpcode::Send),
        (QpType::Rc, WqeOpcode::RdmaRead),
        (QpType::Rc, WqeOpcode::FetchAdd),
        (QpType::Uc, WqeOpcode::RdmaWrite),
        (QpType::Uc, WqeOpcode::Send),
        (QpType::Ud, WqeOpcode::Send),
    ] {
        let atomic = opcode == WqeOpcode::FetchAdd;
        for size in if atomic { [8, 8] } else { [8, 4096] } {
            for wire in [false, true] {
                let shape = EngineLoad {
                    wire,
                    pairs: 3,
                    both: true,
                    ..EngineLoad::new(qp_type, opcode, size).pipelined()
                };
                let mut engine = BenchEngine::new(shape);
                engine.run(2000);
                assert!(engine.completed() >= 2000);
                let receives = opcode == WqeOpcode::Send;
                assert_eq!(engine.received() >= 2000 - 6 * 128, receives);
                assert_eq!(engine.nic.events, 0);
            }
        }
    }
}

#[test]
fn a_giant_message_does_not_delay_small_ones() {
    for (wire, turn) in [
        (false, sched::TURN_BYTES / 4096),
        (true, sched::TURN_PACKETS.into()),
    ] {
        let shape = EngineLoad {
            wire,
            pairs: 8,
            giant: true,
            ..EngineLoad::new(QpType::Rc, WqeOpcode::RdmaWrite, 8)
        };
        let mut engine = BenchEngine::new(shape);
        engine.run(700);
        // In turn, each queue pair sends, and gets its acknowledgement: at most two turns for each
        // of the 16 queue pairs.
        assert!(engine.longest_wait() <= 32, "{}", engine.longest_wait());
        // The giant message went on meanwhile, by one turn's budget for each message of the others,
        // and is far from its end.
        let sent = engine.packets_sent(0);
        assert!(sent >= 90 * turn, "{sent}");
        assert!(sent < u64::from(GIANT / 4096) / 2, "{sent}");
    }
}

#[test]
fn bytes_are_copied() {
    let shape = EngineLoad::new(QpType::Rc, WqeOpcode::RdmaWrite, 100_000);
    let mut engine = BenchEngine::new(shape);
    let half = EngineNic::half(&shape);
    engine.nic.arena.bytes[..100_000].fill(0x77);
    engine.run(1);
    assert!(engine.nic.arena.bytes[3 * half..][..100_000]
        .iter()
        .all(|b| *b == 0x77));
    assert_eq!(engine.nic.arena.bytes[3 * half + 100_000], 1);
}
