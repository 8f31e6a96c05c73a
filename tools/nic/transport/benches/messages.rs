// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Benchmarks of whole messages through the engine: rates of small messages, the bandwidth of large
//! ones compared with memcpy of the same buffers, and the cost of many queue pairs.

use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use verbena_lab_transport::engine::{BenchEngine, EngineLoad};
use verbena_transport::host::WqeOpcode;
use verbena_transport::QpType;

const BATCH: u64 = 1024;

fn rates(c: &mut Criterion) {
    let mut group = c.benchmark_group("rate");
    group.throughput(Throughput::Elements(BATCH));
    let rc = |opcode, size| EngineLoad::new(QpType::Rc, opcode, size).pipelined();
    for (name, shape) in [
        ("write-8", rc(WqeOpcode::RdmaWrite, 8)),
        (
            "write-8-inline",
            EngineLoad {
                inline: true,
                ..rc(WqeOpcode::RdmaWrite, 8)
            },
        ),
        ("send-8", rc(WqeOpcode::Send, 8)),
        ("read-8", rc(WqeOpcode::RdmaRead, 8)),
        ("fetch-add", rc(WqeOpcode::FetchAdd, 8)),
        (
            "uc-write-8",
            EngineLoad::new(QpType::Uc, WqeOpcode::RdmaWrite, 8).pipelined(),
        ),
        (
            "ud-send-8",
            EngineLoad::new(QpType::Ud, WqeOpcode::Send, 8).pipelined(),
        ),
        (
            "write-8-wire",
            EngineLoad {
                wire: true,
                ..rc(WqeOpcode::RdmaWrite, 8)
            },
        ),
    ] {
        let mut engine = BenchEngine::new(shape);
        group.bench_function(name, |b| b.iter(|| engine.run(BATCH)));
    }
    group.finish();
}

fn bandwidth(c: &mut Criterion) {
    for (size, name) in [(64 << 10, "64k"), (8 << 20, "8m")] {
        let mut group = c.benchmark_group(format!("bandwidth-{name}"));
        group.throughput(Throughput::Bytes(size.into()));
        for (name, opcode, wire) in [
            ("write", WqeOpcode::RdmaWrite, false),
            ("read", WqeOpcode::RdmaRead, false),
            ("send", WqeOpcode::Send, false),
            ("write-wire", WqeOpcode::RdmaWrite, true),
        ] {
            let shape = EngineLoad {
                wire,
                depth: 16,
                signal_every: 1,
                ..EngineLoad::new(QpType::Rc, opcode, size)
            };
            let mut engine = BenchEngine::new(shape);
            group.bench_function(name, |b| b.iter(|| engine.run(1)));
            if name == "write" {
                group.bench_function("memcpy", |b| b.iter(|| engine.memcpy(1)));
            }
        }
        group.finish();
    }
}

fn many(c: &mut Criterion) {
    let mut group = c.benchmark_group("queue-pairs");
    group.throughput(Throughput::Elements(BATCH));
    for (name, pairs, both, depth) in [
        ("one-pair", 1, false, 1),
        ("10000", 5_000, true, 1),
        ("20000", 10_000, true, 1),
        ("one-pair-pipelined", 1, false, 16),
        ("10000-pipelined", 5_000, true, 16),
    ] {
        let shape = EngineLoad {
            pairs,
            both,
            depth,
            signal_every: depth,
            ..EngineLoad::new(QpType::Rc, WqeOpcode::RdmaWrite, 8)
        };
        let mut engine = BenchEngine::new(shape);
        // Every ring and slot is used once before the measurement.
        engine.run(u64::from(2 * pairs * depth));
        group.bench_function(name, |b| b.iter(|| engine.run(BATCH)));
    }
    group.finish();
}

criterion_group!(benches, rates, bandwidth, many);
criterion_main!(benches);
