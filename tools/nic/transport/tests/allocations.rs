// SPDX-License-Identifier: GPL-2.0 OR MIT

//! In steady state no message of any kind needs an allocation, in either mode of transport.

use verbena_lab_transport::engine::{BenchEngine, EngineLoad};
use verbena_transport::host::WqeOpcode;
use verbena_transport::QpType;

/// Returns the number of allocations during 2000 messages, after 2000 others.
fn allocations(shape: EngineLoad) -> u64 {
    let mut engine = BenchEngine::new(shape);
    engine.run(2000);
    allocation_counter::measure(|| engine.run(2000)).count_total
}

fn check(qp_type: QpType, opcode: WqeOpcode, sizes: &[u32]) {
    for &size in sizes {
        for wire in [false, true] {
            for pipelined in [false, true] {
                let shape = EngineLoad {
                    wire,
                    pairs: 3,
                    both: true,
                    path_mtu: 1024,
                    ..EngineLoad::new(qp_type, opcode, size)
                };
                let shape = if pipelined { shape.pipelined() } else { shape };
                assert_eq!(allocations(shape), 0, "{shape:?}");
            }
        }
    }
}

#[test]
fn the_counter_counts() {
    let info = allocation_counter::measure(|| drop(std::hint::black_box(vec![1u8; 100])));
    assert_eq!(info.count_total, 1);
}

#[test]
fn rc_send() {
    check(QpType::Rc, WqeOpcode::Send, &[0, 8, 5000]);
}

#[test]
fn rc_write() {
    check(QpType::Rc, WqeOpcode::RdmaWrite, &[0, 8, 5000]);
}

#[test]
fn rc_inline() {
    for wire in [false, true] {
        let shape = EngineLoad {
            inline: true,
            wire,
            ..EngineLoad::new(QpType::Rc, WqeOpcode::RdmaWrite, 64).pipelined()
        };
        assert_eq!(allocations(shape), 0, "{shape:?}");
    }
}

#[test]
fn rc_read() {
    check(QpType::Rc, WqeOpcode::RdmaRead, &[0, 8, 5000]);
}

#[test]
fn rc_atomics() {
    check(QpType::Rc, WqeOpcode::FetchAdd, &[8]);
    check(QpType::Rc, WqeOpcode::CompareSwap, &[8]);
}

#[test]
fn uc() {
    check(QpType::Uc, WqeOpcode::Send, &[0, 8, 5000]);
    check(QpType::Uc, WqeOpcode::RdmaWrite, &[0, 8, 5000]);
}

#[test]
fn ud() {
    check(QpType::Ud, WqeOpcode::Send, &[0, 8, 1000]);
}
