// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work queue entries are read once, and the words that report them are stored afterwards.

use super::watched::{Op, Watched};
use super::*;
use crate::mock::SendWr;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::QpState;
use verbena_abi::doorbell;
use verbena_abi::wqe::WqeOpcode;

/// Runs the device until it has no work. Returns its accesses to memory.
fn watch(p: &mut Pair) -> Vec<Op> {
    let mem = Watched::new(&p.d.ram);
    for _ in 0..100 {
        if !p.d.device.run_slice(&mem, p.d.now).busy {
            return mem.ops();
        }
    }
    panic!("the device does not come to rest");
}

/// Returns the positions of the accesses to a range.
fn places(ops: &[Op], addr: u64, len: u64) -> Vec<usize> {
    let all = ops.iter().enumerate();
    all.filter(|(_, op)| op.touches(addr, len))
        .map(|(i, _)| i)
        .collect()
}

fn store(area: u64, word: usize, value: u64) -> Op {
    Op::Store(area + word as u64, 4, value)
}

#[test]
fn an_entry_is_copied_once_and_never_written() {
    for shared in [false, true] {
        let mut p = Pair::new();
        let mut srq = p.share();
        if !shared {
            p.b = p.d.create_qp(&p.cq_b, &p.cq_b);
        }
        p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
        p.d.connect(&p.a, &p.b);
        let (at, key) = p.d.region(8192, 1);
        let data = [(at + 4096, 3000, key)];
        let (ring, slot) = if shared {
            p.d.post_srq(&mut srq, 5, &data);
            p.d.post_srq(&mut srq, 6, &data);
            (srq.ring, srq.slot)
        } else {
            p.d.post_recv(&mut p.b, 5, &data);
            p.d.post_recv(&mut p.b, 6, &data);
            (p.b.rq, p.b.slot)
        };
        // Three packets, and the entry is needed for each.
        let wr = SendWr::new(WqeOpcode::Send, 1, &[(at, 3000, key)]);
        p.d.post_send(&mut p.a, &wr);
        let ops = watch(&mut p);
        let of_send = places(&ops, p.a.sq, 256);
        let of_recv = places(&ops, ring, 64);
        assert_eq!((of_send.len(), of_recv.len()), (1, 1), "{shared}");
        assert_eq!(ops[of_send[0]], Op::Read(p.a.sq, 256));
        assert_eq!(ops[of_recv[0]], Op::Read(ring, 64));
        // The next entries of both rings are not read.
        assert!(places(&ops, p.a.sq + 256, 256).is_empty());
        assert!(places(&ops, ring + 64, 64).is_empty());
        // The index is read before the entry, and the entry of an SRQ is released after it was
        // copied.
        let index = Op::Load(p.d.area + doorbell::rq_producer(slot.into()) as u64, 4);
        let read = ops.iter().position(|op| *op == index).expect("the index");
        assert!(read < of_recv[0]);
        let taken = store(p.d.area, doorbell::srq_consumer(slot.into()), 1);
        let taken = ops.iter().position(|op| *op == taken);
        assert_eq!(taken.is_some(), shared);
        assert!(taken.is_none_or(|at| at > of_recv[0]));
        assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)]);
        assert_eq!(p.d.drain(&mut p.cq_b), [(5, WcStatus::Success)]);
    }
}

#[test]
fn a_receive_index_is_read_when_a_packet_needs_a_receive() {
    let mut p = Pair::new();
    p.d.run();
    p.d.post_recv(&mut p.b, 1, &[]);
    assert_eq!(p.d.rings.get(), 0);
    let word = p.d.area + doorbell::rq_producer(p.b.slot.into()) as u64;
    let ops = watch(&mut p);
    assert_eq!(places(&ops, word, 4), []);
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 1, &[]));
    let ops = watch(&mut p);
    assert!(!places(&ops, word, 4).is_empty());
    assert_eq!(p.d.drain(&mut p.cq_b), [(1, WcStatus::Success)]);
}

#[test]
fn the_watch_word_is_stored_before_the_flush_looks_for_receives() {
    let mut p = Pair::new();
    p.d.post_recv(&mut p.b, 1, &[]);
    p.d.run();
    let fail = Driver::move_request(p.b.qpn, QpState::Err);
    p.d.begin_cmd(3, &fail);
    let ops = watch(&mut p);
    let slot = p.b.slot.into();
    let told = store(p.d.area, doorbell::recv_watch(slot), 1);
    let at = ops.iter().position(|op| *op == told).expect("the word");
    let word = p.d.area + doorbell::rq_producer(slot) as u64;
    let last = places(&ops, word, 4).into_iter().max();
    assert!(
        last > Some(at),
        "receives looked for at {last:?}, watch word stored at {at}"
    );
    assert_eq!(p.d.drain(&mut p.cq_b), [(1, WcStatus::WrFlushErr)]);
}
