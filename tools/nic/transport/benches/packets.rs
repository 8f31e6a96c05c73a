// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Benchmarks of single frames: emit, parse, and the ICRC.

use criterion::{criterion_group, criterion_main, BenchmarkId, Criterion, Throughput};
use std::convert::Infallible;
use std::hint::black_box;
use std::rc::Rc;
use verbena_lab_transport::pair::path;
use verbena_lab_transport::PairSide;
use verbena_transport::frame;
use verbena_transport::packet::{PacketKind, Reth, Transport};
use verbena_transport::wire::icrc;
use verbena_transport::{Packet, Payload, Pool};

fn write(size: usize) -> Packet {
    Packet {
        transport: Transport::Rc,
        kind: PacketKind::Write {
            reth: Some(Reth {
                addr: 0x1000,
                rkey: 0x77,
                length: size as u32,
            }),
            imm: None,
        },
        first: true,
        last: true,
        solicited: false,
        ack_req: true,
        pkey: 0xffff,
        dst_qpn: 0x12,
        src_qpn: 0x13,
        psn: 1,
        psns: 1,
        srqn: 0,
        marked: false,
        datagram: None,
        payload: Payload::from_bytes(&vec![0x5a; size]),
    }
}

fn emit(packet: &Packet, out: &mut Vec<u8>) {
    out.clear();
    let made = frame::emit::<Infallible>(&path(PairSide::A), packet, out, |place| {
        // A NIC would copy the payload from guest memory here. The benchmark does not measure that.
        black_box(place);
        Ok(())
    });
    match made {
        Ok(()) => {}
        Err(never) => match never {},
    }
}

fn frames(c: &mut Criterion) {
    for size in [8usize, 1024, 4096] {
        let packet = write(size);
        let mut bytes = Vec::new();
        emit(&packet, &mut bytes);
        let mut group = c.benchmark_group("frame");
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("emit", size), |b| {
            b.iter(|| emit(black_box(&packet), &mut bytes));
        });
        let (buffer, mut pool) = (Rc::new(bytes), Pool::default());
        group.bench_function(BenchmarkId::new("parse", size), |b| {
            b.iter(|| frame::parse_in(black_box(&buffer), &mut pool).map(|f| f.packet.psn));
        });
        group.finish();
    }
}

fn crc(c: &mut Criterion) {
    let mut group = c.benchmark_group("icrc");
    for size in [64usize, 1024, 4096] {
        // The ICRC is computed from the IP header on.
        let mut bytes = Vec::new();
        emit(&write(size), &mut bytes);
        let packet = bytes[14..bytes.len() - icrc::LEN].to_vec();
        group.throughput(Throughput::Bytes(packet.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| icrc::compute(black_box(&packet)));
        });
    }
    group.finish();
}

criterion_group!(benches, frames, crc);
criterion_main!(benches);
