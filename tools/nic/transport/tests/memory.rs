// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The memory that a queue pair needs, as Documentation/transport.md states it.

use verbena_lab_transport::engine::{BenchEngine, EngineLoad};
use verbena_transport::host::WqeOpcode;
use verbena_transport::{Qp, QpConfig, QpType};

const PAIRS: u32 = 100;

/// Returns the heap bytes of each queue pair's transport after it has sent messages, `depth` of
/// them outstanding at once.
fn heap(opcode: WqeOpcode, depth: u32) -> u64 {
    let mut engine = BenchEngine::new(EngineLoad {
        pairs: PAIRS,
        both: true,
        depth,
        ..EngineLoad::new(QpType::Rc, opcode, 8)
    });
    let messages = u64::from(2 * PAIRS * depth * 4);
    let grown = allocation_counter::measure(|| engine.run(messages)).bytes_current;
    u64::try_from(grown).unwrap() / u64::from(2 * PAIRS)
}

#[test]
fn a_queue_pair_is_twelve_cache_lines() {
    assert!(size_of::<Qp>() <= 768, "{}", size_of::<Qp>());
}

#[test]
fn an_idle_queue_pair_has_at_most_32_bytes_of_heap() {
    let mut kept = None;
    let info = allocation_counter::measure(|| {
        kept = Some(Qp::new(QpConfig::new(1, QpType::Rc, 1)));
    });
    assert!(info.bytes_current <= 32, "{}", info.bytes_current);
    drop(kept);
}

#[test]
fn an_outstanding_work_request_costs_at_most_256_bytes() {
    for depth in [1, 4, 64] {
        let bytes = heap(WqeOpcode::RdmaWrite, depth);
        assert!(bytes > 0, "nothing was sent");
        assert!(bytes <= 256 * u64::from(depth), "{depth}: {bytes}");
    }
}

#[test]
fn reads_cost_the_responder_at_most_768_bytes_more() {
    let bytes = heap(WqeOpcode::RdmaRead, 1);
    assert!(bytes <= 256 + 768, "{bytes}");
}
