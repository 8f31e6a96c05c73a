// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Posts and polls on plain memory instead of mappings; the tests play the device.

use crate::builder::Operands;
use crate::cq::{Completion, Cq, LOG_STRIDE};
use crate::errno::Errno;
use crate::ffi::asked::{check_cq, check_operations};
use crate::ffi::memory::{Area, Memory, Ring};
use crate::ffi::mock;
use crate::ffi::object::{Ah, InDomain};
use crate::ffi::pabi::*;
use crate::qp::{Qp, Receives, Srq};
use crate::recv::{RecvConfig, RecvQueue};
use crate::send::{Producer, SendConfig, SendQueue};
use crate::users::Users;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use verbena_abi::cqe::{Cqe, Tail, WcOpcode, WcStatus, TAIL_OFFSET};
use verbena_abi::ctx::{AddressVector, QpState};
use verbena_abi::doorbell::{self, Arm, ArmMode, Words};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::{RecvWqe, SendWqe, Sge, WqeOpcode};
use verbena_abi::{Le32, Le64};
use zerocopy::{FromBytes, IntoBytes};

const LOG_SIZE: u8 = 2;
const SIZE: u32 = 1 << LOG_SIZE;
const SLOT: usize = 70;
const CQ_SLOT: usize = 3;

struct Fixture {
    log_size: u8,
    area: Arc<Area>,
    cq: Arc<Cq>,
    /// The device's index of the next CQE.
    cq_producer: u32,
    cq_memory: mock::Shared,
}

impl Fixture {
    fn new() -> Self {
        Self::sized(LOG_SIZE)
    }

    fn sized(log_size: u8) -> Self {
        let area = Arc::new(Area::mock());
        let cq_memory = mock::Shared::new(1 << (log_size + LOG_STRIDE));
        let ring = Ring::new(cq_memory.view(), log_size, LOG_STRIDE).unwrap();
        Self {
            log_size,
            cq: Arc::new(Cq::new(ring, log_size, area.clone(), CQ_SLOT)),
            area,
            cq_producer: 0,
            cq_memory,
        }
    }

    fn receive_queue(&self, slot: usize) -> RecvQueue {
        self.receives(slot, false)
    }

    fn receives(&self, slot: usize, shared: bool) -> RecvQueue {
        let ring = Ring::new(Memory::heap(64 << self.log_size), self.log_size, 6).unwrap();
        let config = RecvConfig {
            max_wr: 1 << self.log_size,
            max_sge: 3,
            slot,
            shared,
        };
        RecvQueue::new(ring, self.area.clone(), config)
    }

    fn srq(&self) -> Arc<Srq> {
        Arc::new(Srq {
            srqn: 1,
            queue: self.receives(5, true),
        })
    }

    fn qp(&self, qpn: u32, receives: Receives) -> Arc<Qp> {
        let ring = Ring::new(Memory::heap(128 << self.log_size), self.log_size, 7).unwrap();
        let config = SendConfig {
            max_wr: 1 << self.log_size,
            max_sge: 2,
            max_inline: 40,
            datagram: false,
            signal_all: false,
            slot: SLOT,
        };
        let sends = SendQueue::new(ring, self.area.clone(), config);
        let qp = Qp::new(qpn, sends, receives, self.cq.clone(), self.cq.clone());
        let qp = Arc::new(qp);
        qp.attach();
        qp
    }

    fn rts(&self, qpn: u32) -> Arc<Qp> {
        let qp = self.qp(qpn, Receives::Own(self.receive_queue(SLOT)));
        qp.set_state(QpState::Rts);
        qp
    }

    /// The device writes a CQE.
    fn complete(&mut self, qpn: u32, opcode: WcOpcode, wqe_index: u32, wr_id: u64) {
        let tail = Tail {
            status: WcStatus::Success.to_raw(),
            opcode: opcode.to_raw(),
            wc_flags: 0,
        };
        let cqe = Cqe {
            wr_id: Le64::new(wr_id),
            wqe_index: Le32::new(wqe_index),
            byte_len: Le32::new(77),
            qpn: Le32::new(qpn),
            tail: Le32::new(tail.pack(self.cq_producer, self.log_size)),
            ..Cqe::default()
        };
        let at = ((self.cq_producer % (1 << self.log_size)) as usize) << LOG_STRIDE;
        // The tail last, as the device does.
        self.cq_memory.write(at, &cqe.as_bytes()[..TAIL_OFFSET]);
        self.cq_memory.publish(at + TAIL_OFFSET, cqe.tail.to_raw());
        self.cq_producer += 1;
    }

    fn poll(&self, most: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        let count = self.cq.poll(most, |_, completion| all.push(*completion));
        assert_eq!(count, all.len());
        all
    }

    fn polled(&self, most: usize) -> Vec<u64> {
        self.poll(most).iter().map(|one| one.wr_id).collect()
    }

    fn consumer(&self) -> u32 {
        self.area.load_acquire(doorbell::cq_consumer(CQ_SLOT))
    }

    fn producer(&self) -> u32 {
        self.area.load(doorbell::sq_producer(SLOT))
    }

    fn generation(&self) -> u32 {
        self.area
            .load(doorbell::qp_generation(SLOT / doorbell::GROUP_SLOTS))
    }
}

fn sge(length: u32) -> ibv_sge {
    ibv_sge {
        addr: 0x1000,
        length,
        lkey: 0x55,
    }
}

fn send(wr_id: u64, sges: &mut [ibv_sge]) -> ibv_send_wr {
    let mut wr = mock::send_wr(sges);
    wr.wr_id = wr_id;
    wr.opcode = 2;
    wr
}

fn post(qp: &Qp, wrs: &mut [ibv_send_wr]) -> Result<(), (Errno, usize)> {
    mock::with_sends(wrs, |first| qp.post_send(first))
}

fn post_one(qp: &Qp, wr_id: u64) -> Result<(), (Errno, usize)> {
    let mut sges = [sge(8)];
    post(qp, &mut [send(wr_id, &mut sges)])
}

fn post_list(qp: &Qp, wr: ibv_send_wr) {
    post(qp, &mut [wr]).unwrap();
}

fn receive(qp: &Qp, wr_ids: &[u64]) -> Result<(), (Errno, usize)> {
    let mut sges = [sge(16)];
    let mut wrs: Vec<ibv_recv_wr> = wr_ids
        .iter()
        .map(|&wr_id| mock::recv_wr(wr_id, &mut sges))
        .collect();
    mock::with_recvs(&mut wrs, |first| qp.post_recv(first))
}

#[test]
fn a_send_is_written_and_published() {
    let f = Fixture::new();
    let qp = f.rts(9);
    let mut sges = [sge(8), sge(16)];
    let mut wr = send(0xabcd, &mut sges);
    wr.opcode = 1;
    wr.send_flags = 2;
    mock::set_rdma(&mut wr, 0x1122_3344_5566, 0x77, 0xdead_beef);
    post(&qp, &mut [wr]).unwrap();

    let bytes = qp.sends.bytes(0, 128);
    let (header, rest) = SendWqe::read_from_prefix(&bytes).unwrap();
    assert_eq!(header.opcode, WqeOpcode::RdmaWriteImm.to_raw());
    assert_eq!((header.flags, header.num_sge), (2, 2));
    assert_eq!(header.inline_length.get(), 0);
    assert_eq!(header.wr_id.get(), 0xabcd);
    assert_eq!(header.remote_addr.get(), 0x1122_3344_5566);
    assert_eq!(header.rkey.get(), 0x77);
    assert_eq!(header.imm, 0xdead_beef_u32.to_ne_bytes());
    let (second, _) = Sge::read_from_prefix(&rest[16..]).unwrap();
    assert_eq!(
        (second.addr.get(), second.length.get(), second.lkey.get()),
        (0x1000, 16, 0x55)
    );
    assert_eq!((f.producer(), f.generation()), (1, 1));
    assert!(!f.area.rung());
}

#[test]
fn inline_data_of_several_sges_is_joined() {
    let f = Fixture::new();
    let qp = f.rts(9);
    let data: Vec<u8> = (0..40).collect();
    let part = |range: core::ops::Range<usize>| ibv_sge {
        addr: data[range.clone()].as_ptr() as u64,
        length: range.len() as u32,
        lkey: 0,
    };
    let mut sges = [part(0..13), part(13..40)];
    let mut wr = send(1, &mut sges);
    wr.send_flags = 8;
    post(&qp, &mut [wr]).unwrap();
    let bytes = qp.sends.bytes(0, 128);
    let (header, rest) = SendWqe::read_from_prefix(&bytes).unwrap();
    assert_eq!((header.num_sge, header.inline_length.get()), (0, 40));
    assert_eq!(&rest[..40], &data[..]);

    let long = [0u8; 41];
    let mut sges = [ibv_sge {
        addr: long.as_ptr() as u64,
        length: 41,
        lkey: 0,
    }];
    let mut wr = send(2, &mut sges);
    wr.send_flags = 8;
    assert_eq!(post(&qp, &mut [wr]), Err((Errno::INVAL, 0)));
}

#[test]
fn a_list_is_published_once_and_stops_at_the_bad_request() {
    let f = Fixture::new();
    let qp = f.rts(9);
    let mut sges = [sge(1), sge(2), sge(3)];
    let mut bad = send(2, &mut sges);
    bad.num_sge = 3;
    let mut one = [sge(1)];
    let mut list = [send(0, &mut one), send(1, &mut one), bad, send(3, &mut one)];
    assert_eq!(post(&qp, &mut list), Err((Errno::INVAL, 2)));
    assert_eq!((f.producer(), f.generation()), (2, 1));
    list[2].num_sge = -1;
    assert_eq!(post(&qp, &mut list[2..]), Err((Errno::INVAL, 0)));
    list[2].num_sge = 1;
    list[2].opcode = 99;
    assert_eq!(post(&qp, &mut list[2..]), Err((Errno::INVAL, 0)));
    assert_eq!((f.producer(), f.generation()), (2, 1));
}

#[test]
fn sges_without_a_list_are_refused() {
    let f = Fixture::new();
    let qp = f.rts(9);
    // Older WQEs whose SGEs must not be taken for those of a later one.
    for wr_id in 0..u64::from(SIZE) {
        post_one(&qp, wr_id).unwrap();
    }
    receive(&qp, &[1, 2, 3, 4]).unwrap();
    qp.reset();
    qp.set_state(QpState::Rts);
    let mut sges = [sge(8)];
    for (opcode, flags) in [(2, 0), (0, 0), (4, 0), (5, 0), (2, 8)] {
        let mut wr = send(1, &mut sges);
        (wr.opcode, wr.send_flags) = (opcode, flags);
        wr.sg_list = core::ptr::null_mut();
        assert_eq!(post(&qp, &mut [wr]), Err((Errno::INVAL, 0)));
    }
    let mut wr = mock::recv_wr(1, &mut sges);
    wr.sg_list = core::ptr::null_mut();
    let refused = mock::with_recvs(&mut [wr], |first| qp.post_recv(first));
    assert_eq!(refused, Err((Errno::INVAL, 0)));
    assert_eq!(f.producer(), 0);
    // Without SGEs there is no need of a list.
    let mut wr = send(1, &mut sges);
    (wr.num_sge, wr.sg_list) = (0, core::ptr::null_mut());
    post(&qp, &mut [wr]).unwrap();
}

#[test]
fn a_full_queue_is_free_again_after_a_later_completion() {
    let mut f = Fixture::new();
    let qp = f.rts(9);
    for wr_id in 0..u64::from(SIZE) {
        post_one(&qp, wr_id).unwrap();
    }
    assert_eq!(post_one(&qp, 9), Err((Errno::NOMEM, 0)));
    // Unsignaled ones before it are done too.
    f.complete(9, WcOpcode::Send, 2, 2);
    assert_eq!(f.polled(8), [2]);
    for wr_id in 0..3 {
        post_one(&qp, wr_id).unwrap();
    }
    assert_eq!(post_one(&qp, 9), Err((Errno::NOMEM, 0)));
    assert_eq!(f.producer(), 7);
}

#[test]
fn states_refuse_posts() {
    let f = Fixture::new();
    let qp = f.qp(9, Receives::Own(f.receive_queue(SLOT)));
    assert_eq!(receive(&qp, &[1]), Err((Errno::INVAL, 0)));
    for state in [QpState::Reset, QpState::Init, QpState::Rtr] {
        qp.set_state(state);
        assert_eq!(post_one(&qp, 1), Err((Errno::INVAL, 0)));
    }
    receive(&qp, &[1]).unwrap();
    for state in [QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err] {
        qp.set_state(state);
        post_one(&qp, 1).unwrap();
    }
}

#[test]
fn receives_are_written_and_rung_for_only_in_err() {
    let f = Fixture::new();
    let qp = f.rts(9);
    receive(&qp, &[5, 6]).unwrap();
    assert_eq!(f.area.load(doorbell::rq_producer(SLOT)), 2);
    assert_eq!(f.generation(), 0);
    let Receives::Own(queue) = &qp.receives else {
        panic!("it has a queue of its own");
    };
    let bytes = queue.bytes(1, 64);
    let (header, rest) = RecvWqe::read_from_prefix(&bytes).unwrap();
    assert_eq!((header.wr_id.get(), header.num_sge), (6, 1));
    assert_eq!(Sge::read_from_prefix(rest).unwrap().0.length.get(), 16);

    f.area.store(doorbell::qp_error(SLOT), 1);
    receive(&qp, &[7, 8]).unwrap();
    assert_eq!(f.generation(), 1);
    assert_eq!(receive(&qp, &[9]), Err((Errno::NOMEM, 0)));
}

#[test]
fn a_sleeping_device_is_rung_once() {
    let f = Fixture::new();
    let qp = f.rts(9);
    f.area.store(doorbell::SLEEP, 7);
    post_one(&qp, 1).unwrap();
    assert!(f.area.rung());
    assert_eq!(f.area.load(doorbell::RUNG), 7);
    f.area.forget_ring();
    post_one(&qp, 2).unwrap();
    assert!(!f.area.rung());
}

#[test]
fn polls_follow_the_phase_for_many_passes() {
    let mut f = Fixture::new();
    let qp = f.rts(9);
    let mut expected = 0;
    for pass in 0..20u32 {
        let count = 1 + pass % SIZE;
        for wr_id in 0..count {
            receive(&qp, &[wr_id.into()]).unwrap();
            f.complete(
                9,
                WcOpcode::Recv,
                expected + wr_id,
                (expected + wr_id).into(),
            );
        }
        let ids: Vec<u64> = (expected..expected + count).map(u64::from).collect();
        assert_eq!(f.polled(1), ids[..1]);
        assert_eq!(f.polled(SIZE as usize), ids[1..]);
        assert_eq!(f.polled(1), []);
        expected += count;
        assert_eq!(f.consumer(), expected);
    }
    let _ = qp;
}

#[test]
fn entries_of_nobody_are_skipped() {
    let mut f = Fixture::new();
    let _qp = f.rts(9);
    f.complete(1234, WcOpcode::Send, 0, 1);
    f.complete(9, WcOpcode::Send, 0, 2);
    f.complete(1234, WcOpcode::Send, 0, 3);
    assert_eq!(f.polled(4), [2]);
    assert_eq!(f.consumer(), 3);
}

#[test]
fn reset_takes_only_the_own_completions_out() {
    let mut f = Fixture::new();
    let first = f.rts(9);
    let second = f.rts(10);
    for (qp, wr_id) in [(&first, 1), (&second, 2), (&first, 3), (&second, 4)] {
        post_one(qp, wr_id).unwrap();
    }
    f.complete(9, WcOpcode::Send, 0, 1);
    f.complete(10, WcOpcode::Send, 0, 2);
    f.complete(9, WcOpcode::Send, 1, 3);
    first.reset();
    // Its places are free again, the other's is not, and what comes later comes later.
    assert_eq!(f.consumer(), 2);
    assert_eq!(f.producer(), 0);
    assert_eq!(post_one(&first, 1), Err((Errno::INVAL, 0)));
    f.complete(10, WcOpcode::Send, 1, 4);
    // The arm stands where the program is, not where the ring is.
    f.cq.arm(false);
    let arm = Arm::unpack(f.area.load64_acquire(doorbell::cq_arm(CQ_SLOT)));
    assert_eq!((arm.index, arm.mode), (1, ArmMode::Next));
    assert_eq!(f.polled(1), [2]);
    second.detach();
    assert_eq!(f.polled(4), []);
    assert_eq!(f.consumer(), 4);
    first.set_state(QpState::Rts);
    for wr_id in 0..4 {
        post_one(&first, wr_id).unwrap();
    }
    assert_eq!(f.producer(), 4);
}

/// However often queue pairs are reset, a CQ holds no more than its entries: the device finds it full.
#[test]
fn what_is_taken_out_of_the_ring_keeps_its_place() {
    let mut f = Fixture::new();
    let qps = [9, 10, 11].map(|qpn| f.rts(qpn));
    let mut kept = 0;
    for (round, qp) in qps[..2].iter().cycle().take(8).enumerate() {
        // The device fills the CQ, by what it is told of it.
        while f.cq_producer.wrapping_sub(f.consumer()) < SIZE {
            let qpn = if f.cq_producer % 2 == 0 { 11 } else { qp.qpn };
            f.complete(qpn, WcOpcode::Send, 0, f.cq_producer.into());
            kept += u32::from(qpn == 11);
        }
        qp.reset();
        assert_eq!(f.cq_producer.wrapping_sub(f.consumer()), kept);
        if round == 5 {
            // Full of what the third one has not polled: a place is free again when one is polled.
            assert_eq!((kept, f.polled(1).len()), (SIZE, 1));
            kept -= 1;
            assert_eq!(f.cq_producer.wrapping_sub(f.consumer()), kept);
        }
    }
    assert_eq!(f.polled(100).len() as u32, kept);
    assert_eq!(f.cq_producer, f.consumer());
}

#[test]
fn a_place_is_free_before_its_work_queue_has_room() {
    // Each completion of a long poll, whoever has it: by then both the CQ and the queue have told of those before it.
    let mut f = Fixture::new();
    let qps = [9, 10].map(|qpn| f.rts(qpn));
    for qp in &qps {
        for wr_id in 0..u64::from(SIZE) {
            post_one(qp, wr_id).unwrap();
        }
    }
    for number in 0..2 {
        f.complete(9, WcOpcode::Send, number, number.into());
    }
    for number in 0..2 {
        f.complete(10, WcOpcode::Send, number, number.into());
    }
    // The first queue's run ends with the third entry: the CQ's places come with its room, or before.
    let mut seen = Vec::new();
    f.cq.poll(4, |index, _| {
        let free = qps.each_ref().map(|qp| qp.sends.window().has_room(SIZE));
        seen.push((index, f.consumer(), free));
    });
    assert_eq!(
        seen,
        [
            (0, 0, [false, false]),
            (1, 0, [false, false]),
            (2, 2, [true, false]),
            (3, 2, [true, false]),
        ]
    );
    assert_eq!(f.consumer(), 4);
    // `ibv_next_poll`: what it has shown is free at once, as the program may post again before it asks for more.
    f.complete(9, WcOpcode::Send, 2, 2);
    f.complete(9, WcOpcode::Send, 3, 3);
    let mut state = f.cq.state().lock_long();
    for number in [5, 6] {
        assert!(f.cq.next(&mut state).is_some());
        assert_eq!(f.consumer(), number);
    }
    assert!(f.cq.next(&mut state).is_none());
    drop(state);
    // Entries of nobody are free too, even where the poll finds nothing.
    f.complete(1234, WcOpcode::Send, 0, 1);
    assert!(f.cq.next(&mut f.cq.state().lock_long()).is_none());
    assert_eq!(f.consumer(), 7);
}

#[test]
fn an_srq_is_retired_by_whatever_completes_or_is_taken_out() {
    let mut f = Fixture::new();
    let srq = f.srq();
    let qp = f.qp(9, Receives::Shared(srq.clone()));
    qp.set_state(QpState::Rts);
    assert_eq!(receive(&qp, &[1]), Err((Errno::INVAL, 0)));
    let fill = |wr_ids: &[u64]| fill(&srq, wr_ids);
    fill(&[0, 1, 2, 3]).unwrap();
    assert_eq!(fill(&[4]), Err((Errno::NOMEM, 0)));
    f.complete(9, WcOpcode::Recv, 1, 1);
    f.complete(9, WcOpcode::Recv, 0, 0);
    assert_eq!(f.polled(2), [1, 0]);
    f.complete(9, WcOpcode::Recv, 2, 2);
    qp.detach();
    assert_eq!(f.polled(2), []);
    assert_eq!(fill(&[4, 5, 6, 7]), Err((Errno::NOMEM, 3)));
}

fn fill(srq: &Srq, wr_ids: &[u64]) -> Result<(), (Errno, usize)> {
    let mut sges = [sge(16)];
    let mut wrs: Vec<_> = wr_ids
        .iter()
        .map(|&wr_id| mock::recv_wr(wr_id, &mut sges))
        .collect();
    mock::with_recvs(&mut wrs, |first| srq.queue.post(first, || true))
}

#[test]
fn an_srq_takes_more_when_the_device_has_taken_what_never_completes() {
    let f = Fixture::new();
    let srq = f.srq();
    let taken = |count: u32| f.area.store(doorbell::srq_consumer(5), count);
    fill(&srq, &[0, 1, 2, 3]).unwrap();
    assert_eq!(fill(&srq, &[4]), Err((Errno::NOMEM, 0)));
    taken(3);
    assert_eq!(fill(&srq, &[4, 5, 6, 7]), Err((Errno::NOMEM, 3)));
    // A device that tells of more than was posted is not believed.
    taken(8);
    assert_eq!(fill(&srq, &[7]), Err((Errno::NOMEM, 0)));
    taken(7);
    fill(&srq, &[7, 8, 9, 10]).unwrap();
}

#[test]
fn a_dead_device_flushes_everything_once_and_in_order() {
    let mut f = Fixture::new();
    let qp = f.rts(9);
    for wr_id in [1, 2, 3] {
        post_one(&qp, wr_id).unwrap();
    }
    receive(&qp, &[11, 12]).unwrap();
    f.complete(9, WcOpcode::Send, 0, 1);
    f.area.store(doorbell::ALIVE, 0);
    f.cq_memory.clear();
    // Even if the page shows something else again.
    let all = f.poll(2);
    f.area.store(doorbell::ALIVE, 1);
    let all = [all, f.poll(100)].concat();
    let ids: Vec<u64> = all.iter().map(|one| one.wr_id).collect();
    assert_eq!(ids, [1, 2, 3, 11, 12]);
    for one in &all {
        assert_eq!(one.status(), WcStatus::WrFlushErr.to_raw());
        assert_eq!(one.vendor_err(), u32::from(Syndrome::DeviceFatal.to_raw()));
        assert_eq!(one.qpn(), 9);
    }
    assert_eq!(f.polled(1), []);
    // Posting stays accepted, and is flushed too; nothing is written any more.
    for wr_id in 20..24 {
        post_one(&qp, wr_id).unwrap();
    }
    assert_eq!(post_one(&qp, 24), Err((Errno::NOMEM, 0)));
    assert_eq!(f.producer(), 3);
    assert_eq!(f.polled(100), [20, 21, 22, 23]);
}

#[test]
fn what_was_flushed_does_not_complete_again() {
    let mut f = Fixture::new();
    let (qp, other) = (f.rts(9), f.rts(10));
    for wr_id in [1, 2, 3] {
        post_one(&qp, wr_id).unwrap();
    }
    post_one(&other, 7).unwrap();
    // True completions of before, one of them set aside, count.
    f.complete(10, WcOpcode::Send, 0, 7);
    f.rts(11).detach();
    f.complete(9, WcOpcode::Send, 0, 1);
    f.area.store(doorbell::ALIVE, 0);
    assert_eq!(f.polled(3), [7, 1, 2]);
    // The device was not dead, only slow.
    f.complete(9, WcOpcode::Send, 1, 2);
    f.complete(9, WcOpcode::Send, 2, 3);
    assert_eq!(f.polled(8), [3]);
    post_one(&qp, 4).unwrap();
    assert_eq!(f.polled(8), [4]);
}

#[test]
fn many_queue_pairs_are_told_apart() {
    let mut f = Fixture::new();
    // Numbers that collide in a small table.
    let qps: Vec<_> = (0..20).map(|n| f.rts(5 + 8 * n)).collect();
    for (n, qp) in qps.iter().enumerate() {
        post_one(qp, n as u64).unwrap();
        f.complete(qp.qpn, WcOpcode::Send, 0, n as u64);
        assert_eq!(f.poll(2)[0].qpn(), qp.qpn);
        assert!(qp.sends.flush_one().is_none());
    }
    for qp in &qps[..10] {
        qp.detach();
    }
    f.complete(qps[3].qpn, WcOpcode::Send, 0, 1);
    f.complete(qps[12].qpn, WcOpcode::Send, 0, 2);
    assert_eq!(f.polled(4), [2]);
}

#[test]
fn a_number_used_again_is_not_taken_for_its_last_owner() {
    let mut f = Fixture::new();
    let first = f.rts(9);
    post_one(&first, 1).unwrap();
    f.complete(9, WcOpcode::Send, 0, 1);
    // The kernel has destroyed it and hands out its number, before the process has forgotten it.
    let second = f.rts(9);
    assert_eq!(f.polled(2), []);
    post_one(&second, 2).unwrap();
    f.complete(9, WcOpcode::Send, 0, 2);
    first.detach();
    assert_eq!(f.polled(2), [2]);
    assert!(second.sends.flush_one().is_none());
    second.detach();
    f.complete(9, WcOpcode::Send, 1, 3);
    assert_eq!(f.polled(2), []);
}

#[test]
fn no_post_slips_in_behind_a_reset() {
    let f = Fixture::new();
    let qp = f.rts(9);
    // One that waits for the lock while the state changes: what was true before it is not any more.
    let guard = qp.sends.start(|| qp.may_send());
    std::thread::scope(|scope| {
        let post = scope.spawn(|| post_one(&qp, 1));
        let receives = scope.spawn(|| {
            qp.set_state(QpState::Reset);
            receive(&qp, &[1])
        });
        assert_eq!(receives.join().unwrap(), Err((Errno::INVAL, 0)));
        drop(guard);
        assert_eq!(post.join().unwrap(), Err((Errno::INVAL, 0)));
    });
    assert_eq!(f.producer(), 0);
}

#[test]
fn what_is_not_offered_is_refused() {
    let mut attr = mock::cq_attr();
    assert_eq!(check_cq(&attr), Ok(()));
    // A field means nothing unless the mask names it.
    attr.flags = u32::MAX;
    assert_eq!(check_cq(&attr), Ok(()));
    attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    assert_eq!(check_cq(&attr), Err(Errno::OPNOTSUPP));
    attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
    assert_eq!(check_cq(&attr), Ok(()));
    attr.comp_mask = 1 << 7;
    assert_eq!(check_cq(&attr), Err(Errno::OPNOTSUPP));
    attr.comp_mask = 0;
    attr.wc_flags = 1 << 40;
    assert_eq!(check_cq(&attr), Err(Errno::OPNOTSUPP));

    for (operation, types) in [
        (
            IBV_QP_EX_WITH_SEND,
            &[IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD][..],
        ),
        (IBV_QP_EX_WITH_RDMA_WRITE, &[IBV_QPT_RC, IBV_QPT_UC]),
        (IBV_QP_EX_WITH_RDMA_READ, &[IBV_QPT_RC]),
        (IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, &[IBV_QPT_RC]),
        (IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, &[IBV_QPT_RC]),
        (IBV_QP_EX_WITH_SEND_WITH_INV, &[IBV_QPT_RC]),
        (IBV_QP_EX_WITH_TSO, &[]),
    ] {
        for qp_type in [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD] {
            let offered = check_operations(operation.into(), qp_type).is_ok();
            assert_eq!(
                offered,
                types.contains(&qp_type),
                "{operation:#x} of {qp_type}"
            );
        }
    }
}

#[test]
fn unknown_send_flags_are_refused() {
    let f = Fixture::new();
    let qp = f.rts(9);
    let mut sges = [sge(8)];
    let mut wr = send(1, &mut sges);
    for bit in 4..32 {
        wr.send_flags = IBV_SEND_SIGNALED | 1 << bit;
        assert_eq!(post(&qp, &mut [wr]), Err((Errno::INVAL, 0)));
    }
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE | IBV_SEND_SOLICITED;
    post(&qp, &mut [wr]).unwrap();
    assert_eq!(f.producer(), 1);
}

#[test]
fn both_ways_of_posting_write_the_same() {
    let f = Fixture::new();
    let qp = f.rts(9);
    let sends = &qp.sends;
    let (rkey, addr, imm) = (0x77, 0x9000, 0x1234);
    let all = [
        (IBV_WR_RDMA_WRITE, Operands::Remote(rkey, addr)),
        (
            IBV_WR_RDMA_WRITE_WITH_IMM,
            Operands::RemoteImm(rkey, addr, imm),
        ),
        (IBV_WR_SEND, Operands::None),
        (IBV_WR_SEND_WITH_IMM, Operands::Imm(imm)),
        (IBV_WR_RDMA_READ, Operands::Remote(rkey, addr)),
        (
            IBV_WR_ATOMIC_CMP_AND_SWP,
            Operands::Atomic(rkey, addr, 5, 6),
        ),
        (
            IBV_WR_ATOMIC_FETCH_AND_ADD,
            Operands::Atomic(rkey, addr, 5, 0),
        ),
        (IBV_WR_LOCAL_INV, Operands::Imm(imm)),
        (IBV_WR_SEND_WITH_INV, Operands::Imm(imm)),
    ];
    for (opcode, operands) in all {
        let written = |post: &dyn Fn()| {
            // Over what an older one left in the words that this operation has no use for.
            qp.reset();
            qp.set_state(QpState::Rts);
            let mut sges = [sge(1), sge(2)];
            let mut older = send(1, &mut sges);
            older.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
            mock::set_rdma(&mut older, 1, 2, 3);
            post_list(&qp, older);
            qp.reset();
            qp.set_state(QpState::Rts);
            post();
            sends.bytes(0, 96)
        };
        let mut sges = [sge(8)];
        let mut wr = send(71, &mut sges);
        (wr.opcode, wr.send_flags) = (opcode, IBV_SEND_SIGNALED);
        match operands {
            Operands::Atomic(_, _, compare_add, swap) => {
                mock::set_rdma(&mut wr, 0, 0, 3);
                mock::set_atomic(&mut wr, addr, rkey, compare_add, swap);
            }
            Operands::Remote(..) => mock::set_rdma(&mut wr, addr, rkey, 3),
            Operands::RemoteImm(..) => mock::set_rdma(&mut wr, addr, rkey, imm),
            Operands::Imm(_) => mock::set_rdma(&mut wr, 0, 0, imm),
            Operands::None => mock::set_rdma(&mut wr, 0, 0, 3),
        }
        let key = opcode == IBV_WR_LOCAL_INV;
        let list = written(&|| post_list(&qp, wr));
        let pieces = written(&|| {
            let mut guard = sends.start(|| true);
            sends.begin(&mut guard, opcode, 71, IBV_SEND_SIGNALED, operands);
            if !key {
                sends.add_sge(&mut guard, 0x1000, 8, 0x55);
            }
            sends.commit(guard).unwrap();
        });
        assert_eq!(list, pieces, "opcode {opcode}");
        let (header, _) = SendWqe::read_from_prefix(&list).unwrap();
        assert_eq!(header.wr_id.get(), 71);
        assert_eq!((header.flags, header.num_sge), (2, u8::from(!key)));
    }
}

#[test]
fn a_datagram_without_an_address_is_refused() {
    let f = Fixture::new();
    let ring = Ring::new(Memory::heap(256 << LOG_SIZE), LOG_SIZE, 8).unwrap();
    let config = SendConfig {
        max_wr: SIZE,
        max_sge: 2,
        max_inline: 40,
        datagram: true,
        signal_all: false,
        slot: SLOT,
    };
    let sends = SendQueue::new(ring, f.area.clone(), config);
    let ah = Ah::new(AddressVector::default(), None);
    for addressed in [true, false] {
        let mut guard = sends.start(|| true);
        for wr_id in 0..2 {
            sends.begin(&mut guard, IBV_WR_SEND, wr_id, 0, Operands::None);
            if wr_id == 0 || addressed {
                sends.set_address(&mut guard, &ah, 7, 0x1234);
            }
        }
        let expected = if addressed { Ok(()) } else { Err(Errno::INVAL) };
        assert_eq!(sends.commit(guard), expected);
        assert_eq!(sends.posted(), 2);
    }
}

#[test]
fn a_death_during_a_reset_flushes_one_life_only() {
    let f = Fixture::new();
    for _ in 0..200 {
        let qp = f.rts(9);
        for wr_id in 0..3 {
            post_one(&qp, wr_id).unwrap();
        }
        receive(&qp, &[11, 12]).unwrap();
        let stop = AtomicBool::new(false);
        f.area.store(doorbell::ALIVE, 0);
        std::thread::scope(|scope| {
            let poller = scope.spawn(|| {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    count += f.poll(2).len();
                    assert!(count <= 5, "more was flushed than was posted");
                }
            });
            qp.reset();
            stop.store(true, Ordering::Relaxed);
            poller.join().unwrap();
        });
        assert_eq!(f.polled(10), []);
        qp.detach();
    }
}

#[test]
fn domains_are_in_use_as_long_as_what_stands_on_them() {
    let domain = Users::default();
    assert!(!domain.any());
    let (first, second) = (domain.begin(), domain.begin());
    let held = InDomain::new(7, Some(first));
    assert_eq!(*held, 7);
    drop(second);
    assert!(domain.any());
    drop(held);
    assert!(!domain.any());
    drop(InDomain::new(8, None));
}

#[test]
fn an_arm_publishes_index_and_mode() {
    let mut f = Fixture::new();
    let _qp = f.rts(9);
    f.complete(9, WcOpcode::Send, 0, 2);
    assert_eq!(f.polled(4), [2]);
    f.cq.arm(false);
    // A solicited arm does not weaken a full one that is pending.
    f.cq.arm(true);
    let word = || Arm::unpack(f.area.load64_acquire(doorbell::cq_arm(CQ_SLOT)));
    assert_eq!(
        (word().index, word().seq, word().mode),
        (1, 2, ArmMode::Next)
    );
    f.area.store(doorbell::cq_served(CQ_SLOT), 2);
    f.cq.arm(true);
    assert_eq!((word().seq, word().mode), (3, ArmMode::Solicited));
    assert_eq!(f.area.load(doorbell::cq_generation(0)), 3);
}

#[test]
fn pieces_are_posted_together_or_not_at_all() {
    let f = Fixture::new();
    let qp = f.rts(9);
    let sends = &qp.sends;
    let plain = |guard: &mut Producer, wr_id| {
        sends.begin(guard, IBV_WR_SEND, wr_id, 0, Operands::None);
    };
    // Two requests, one publication.
    let mut guard = sends.start(|| true);
    let remote = Operands::Remote(0x77, 0x9000);
    sends.begin(&mut guard, IBV_WR_RDMA_WRITE, 71, 2, remote);
    sends.add_sge(&mut guard, 0x1000, 8, 0x55);
    plain(&mut guard, 72);
    sends.commit(guard).unwrap();
    assert_eq!((f.producer(), f.generation()), (2, 1));
    let bytes = sends.bytes(0, 128);
    let (header, rest) = SendWqe::read_from_prefix(&bytes).unwrap();
    assert_eq!(header.opcode, WqeOpcode::RdmaWrite.to_raw());
    assert_eq!((header.flags, header.num_sge), (2, 1));
    assert_eq!((header.wr_id.get(), header.rkey.get()), (71, 0x77));
    assert_eq!(Sge::read_from_prefix(rest).unwrap().0.length.get(), 8);

    // Too many SGEs, a flag that nobody knows, an operation that is not offered: nothing of it, nor of what comes before
    // or after.
    for fault in 0..3 {
        let mut guard = sends.start(|| true);
        plain(&mut guard, 1);
        match fault {
            0 => {
                plain(&mut guard, 2);
                for _ in 0..3 {
                    sends.add_sge(&mut guard, 0x1000, 8, 0x55);
                }
            }
            1 => sends.begin(&mut guard, IBV_WR_SEND, 2, 1 << 4, Operands::None),
            _ => sends.refuse(&mut guard),
        }
        plain(&mut guard, 3);
        assert_eq!(sends.commit(guard), Err(Errno::INVAL));
        assert_eq!(f.producer(), 2);
    }

    // Full.
    let mut guard = sends.start(|| true);
    for wr_id in 0..3 {
        plain(&mut guard, wr_id);
    }
    assert_eq!(sends.commit(guard), Err(Errno::NOMEM));
    // A list came in between, which nothing has stopped in a process of one thread.
    let mut guard = sends.start(|| true);
    plain(&mut guard, 1);
    guard.index += 1;
    plain(&mut guard, 2);
    let index = guard.index;
    assert_eq!(sends.commit(guard), Err(Errno::INVAL));
    assert_eq!(sends.posted(), index);
    sends.start(|| true).index -= 1;
    // An abort.
    let mut guard = sends.start(|| true);
    plain(&mut guard, 1);
    drop(guard);
    assert_eq!((f.producer(), f.generation()), (2, 1));
    post_one(&qp, 5).unwrap();
    assert_eq!(f.producer(), 3);
}

#[test]
fn threads_post_and_poll_without_losing_anything() {
    const EACH: u64 = 3000;
    let f = Fixture::new();
    let qp = f.rts(9);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let qp = &qp;
            scope.spawn(move || {
                for number in 0..EACH {
                    while post_one(qp, thread * EACH + number) == Err((Errno::NOMEM, 0)) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        // The device: takes what is posted, in order, and completes it.
        let (mut f, qp) = (f, &qp);
        scope.spawn(move || {
            let mut next = 0;
            let mut seen = vec![false; 3 * EACH as usize];
            while (next as usize) < seen.len() {
                if f.producer() == next {
                    std::thread::yield_now();
                    continue;
                }
                let bytes = qp.sends.bytes(next, 128);
                let (header, _) = SendWqe::read_from_prefix(&bytes).unwrap();
                f.complete(9, WcOpcode::Send, next, header.wr_id.get());
                let polled = f.polled(2);
                assert_eq!(polled.len(), 1);
                assert!(!core::mem::replace(&mut seen[polled[0] as usize], true));
                next += 1;
            }
        });
    });
}

#[test]
fn an_entry_that_appears_during_a_poll_is_not_lost() {
    const COUNT: u64 = 100_000;
    let mut f = Fixture::new();
    let _qp = f.rts(9);
    let cq = f.cq.clone();
    std::thread::scope(|scope| {
        // The way of an extended poll.
        let poller = scope.spawn(move || {
            for wr_id in 0..COUNT {
                let completion = loop {
                    let mut state = cq.state().lock_long();
                    if let Some(completion) = cq.next(&mut state) {
                        break completion;
                    }
                };
                assert_eq!(completion.wr_id, wr_id);
            }
        });
        for wr_id in 0..COUNT {
            while f.cq_producer.wrapping_sub(f.consumer()) >= SIZE {
                assert!(!poller.is_finished(), "the poller is not done yet");
                std::hint::spin_loop();
            }
            f.complete(9, WcOpcode::Send, 0, wr_id);
        }
    });
}

/// Not a test: prints what the provider's half of a message costs. `cargo test --release -p verbena-provider -- --ignored
/// --nocapture --test-threads 1 speed`, here or in a guest.
#[test]
#[ignore = "a measurement"]
fn speed() {
    const LOG: u8 = 10;
    const ROUNDS: u32 = 1000;
    let mut f = Fixture::sized(LOG);
    let qp = f.rts(9);
    let mut sges = [sge(64)];
    let mut wrs = [send(7, &mut sges)];
    for threads in ["one thread", "several threads"] {
        let mut spent = [std::time::Duration::ZERO; 3];
        for _ in 0..ROUNDS {
            let start = std::time::Instant::now();
            for _ in 0..1 << LOG {
                mock::with_sends(&mut wrs, |first| qp.post_send(first)).unwrap();
            }
            spent[0] += start.elapsed();
            let first = qp.sends.posted().wrapping_sub(1 << LOG);
            for index in 0..1 << LOG {
                f.complete(9, WcOpcode::Send, first.wrapping_add(index), 7);
            }
            let mut words = [[0; 6]; 4];
            let start = std::time::Instant::now();
            for _ in 0..1 << LOG {
                let count = f.cq.poll(1, |index, one| words[index] = one.wc_words());
                assert_eq!(std::hint::black_box((count, &words)).0, 1);
            }
            spent[1] += start.elapsed();
            let start = std::time::Instant::now();
            for _ in 0..1 << LOG {
                let count = f.cq.poll(4, |index, one| words[index] = one.wc_words());
                assert_eq!(std::hint::black_box((count, &words)).0, 0);
            }
            spent[2] += start.elapsed();
        }
        let [post, poll, empty] = spent.map(|time| (time.as_nanos() >> LOG) / u128::from(ROUNDS));
        println!("{threads}: post {post} ns, poll {poll} ns, empty poll {empty} ns");
        std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(100)));
    }
}
