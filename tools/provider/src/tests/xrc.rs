// SPDX-License-Identifier: GPL-2.0 OR MIT

//! SRQs for XRC, whose completions may name a queue pair of another process; and the resize of
//! SRQs.

use super::{sge, Fixture, LOG_SIZE, SIZE};
use crate::builder::Operands;
use crate::errno::Errno;
use crate::ffi::lock::Sharing;
use crate::ffi::memory::{MappedMemory, MappedRing};
use crate::ffi::mock;
use crate::ffi::pabi::{IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, IBV_WR_SEND};
use crate::ffi::wr::WindowBind;
use crate::qp::{ReceiveSource, Srq};
use crate::send::{SendConfig, SendQueue};
use std::sync::Arc;
use verbena_abi::cqe::WcOpcode;
use verbena_abi::doorbell::{self, Words};
use verbena_abi::wqe::{RecvWqe, SendWqe};
use zerocopy::FromBytes;

/// Number of the XRC target of all completions, which is no queue pair of this process.
const TARGET: u32 = 77;
/// Doorbell slot of the SRQs.
const SRQ_SLOT: usize = 5;

fn xrc_srq(f: &Fixture, srqn: u32) -> Arc<Srq> {
    let srq = Arc::new(Srq {
        srqn,
        queue: f.receives(SRQ_SLOT, true),
        cq: Some(f.cq.clone()),
    });
    f.cq.attach_srq(&srq);
    srq
}

fn post(srq: &Srq, wr_id: u64) -> Result<(), Errno> {
    let mut sges = [sge(16)];
    let mut wrs = [mock::recv_wr(wr_id, &mut sges)];
    let posted = mock::with_recvs(&mut wrs, |first| srq.queue.post(first, || true));
    posted.map_err(|(errno, _)| errno)
}

/// Writes the completion of a receive of an SRQ, as the device does.
fn complete(f: &mut Fixture, srqn: u32, index: u32, wr_id: u64) {
    f.complete_of(TARGET, srqn, WcOpcode::Recv, index, wr_id);
}

#[test]
fn a_receive_belongs_to_its_srq_whatever_the_target_is() {
    let mut f = Fixture::new();
    let (one, two) = (xrc_srq(&f, 1), xrc_srq(&f, 2));
    let qp = f.rts(9);
    for round in 0..10 {
        let wr_id = u64::from(round);
        post(&one, wr_id).unwrap();
        super::post_one(&qp, 100 + wr_id).unwrap();
        complete(&mut f, 1, round, wr_id);
        f.complete(9, WcOpcode::Send, round, 100 + wr_id);
        // Completions of an SRQ that does not exist, and of the second SRQ.
        complete(&mut f, 3, round, 999);
        complete(&mut f, 2, round, 200 + wr_id);
        let done = f.poll(4);
        let ids: Vec<_> = done.iter().map(|one| (one.wr_id, one.qpn())).collect();
        let expected = [(wr_id, TARGET), (100 + wr_id, 9), (200 + wr_id, TARGET)];
        assert_eq!(ids, expected);
        assert_eq!(f.consumer(), 4 * (round + 1));
    }
    // The polled completions have made room.
    for wr_id in 0..u64::from(SIZE) {
        post(&one, wr_id).unwrap();
    }
    assert_eq!(post(&one, 9), Err(Errno::NOMEM));
    let _ = two;
}

#[test]
fn saved_completions_make_room_when_they_are_polled() {
    let mut f = Fixture::new();
    let srq = xrc_srq(&f, 1);
    let qp = f.rts(9);
    for wr_id in 0..u64::from(SIZE) {
        post(&srq, wr_id).unwrap();
    }
    complete(&mut f, 1, 0, 0);
    complete(&mut f, 1, 1, 1);
    qp.reset();
    assert_eq!(f.polled(1), [0]);
    assert_eq!(post(&srq, 4), Ok(()));
    assert_eq!(post(&srq, 5), Err(Errno::NOMEM));
    assert_eq!(f.polled(4), [1]);
    assert_eq!(post(&srq, 5), Ok(()));
}

#[test]
fn the_completions_of_a_destroyed_srq_are_discarded() {
    let mut f = Fixture::new();
    let (one, two) = (xrc_srq(&f, 1), xrc_srq(&f, 2));
    complete(&mut f, 1, 0, 10);
    complete(&mut f, 2, 0, 20);
    f.cq.detach_srq(&one);
    assert_eq!(f.polled(4), [20]);
    assert_eq!(f.consumer(), 2);
    let _ = two;
}

#[test]
fn a_number_used_again_is_not_taken_for_its_last_owner() {
    let mut f = Fixture::new();
    let first = xrc_srq(&f, 1);
    complete(&mut f, 1, 0, 10);
    // The kernel has destroyed the first SRQ and reuses its number before the process has detached
    // it.
    let second = xrc_srq(&f, 1);
    assert_eq!(f.polled(4), []);
    post(&second, 20).unwrap();
    complete(&mut f, 1, 0, 20);
    f.cq.detach_srq(&first);
    assert_eq!(f.polled(4), [20]);
    f.cq.detach_srq(&second);
}

#[test]
fn a_receive_of_a_target_does_not_belong_to_a_queue_pair_that_gets_the_targets_number() {
    for at_once in [true, false] {
        let mut f = Fixture::new();
        let srq = xrc_srq(&f, 1);
        post(&srq, 10).unwrap();
        complete(&mut f, 1, 0, 10);
        // The target has been destroyed, and a queue pair of this process gets its number.
        let qp = f.rts(TARGET);
        let other = f.rts(9);
        if !at_once {
            // The reset saves the completions.
            other.reset();
        }
        assert_eq!(f.polled(4), [10], "{at_once}");
        assert_eq!(super::receive(&qp, &[1]), Ok(()));
        f.complete(TARGET, WcOpcode::Recv, 0, 1);
        assert_eq!(f.polled(4), [1], "{at_once}");
    }
}

/// Returns the send queue of an XRC initiator.
fn initiator(f: &Fixture) -> SendQueue {
    let ring = MappedRing::new(MappedMemory::heap(128 << LOG_SIZE), LOG_SIZE, 7).unwrap();
    let config = SendConfig {
        max_wr: SIZE,
        max_sge: 2,
        max_inline: 40,
        datagram: false,
        xrc: true,
        signal_all: false,
        sharing: Sharing::THREADS,
        slot: super::SLOT,
    };
    SendQueue::new(ring, f.area.clone(), config)
}

#[test]
fn the_sends_of_an_initiator_name_an_srq() {
    let f = Fixture::new();
    let sends = initiator(&f);
    let mut sges = [sge(8)];
    let mut wr = super::send(1, &mut sges);
    wr.qp_type.xrc.remote_srqn = 0x12_3456;
    wr.__bindgen_anon_1.imm_data = 0x0102_0304;
    mock::with_sends(&mut [wr], |first| sends.post(first, || true)).unwrap();
    let header = |index| {
        SendWqe::read_from_prefix(&sends.bytes(index, 64))
            .unwrap()
            .0
    };
    assert_eq!(header(0).remote_srqn.get(), 0x12_3456);
    assert_eq!(u32::from_le_bytes(header(0).imm), 0x0102_0304);
    // With a builder: a request without an SRQ is refused. It would use the SRQ of an older WQE.
    let mut guard = sends.start(|| true);
    sends.begin(&mut guard, IBV_WR_SEND, 2, 0, Operands::None);
    assert_eq!(sends.commit(guard), Err(Errno::INVAL));
    let mut guard = sends.start(|| true);
    sends.begin(&mut guard, IBV_WR_SEND, 3, 0, Operands::None);
    sends.set_srqn(&mut guard, 7);
    sends.commit(guard).unwrap();
    assert_eq!((header(1).remote_srqn.get(), header(1).wr_id.get()), (7, 3));
}

#[test]
fn requests_of_an_initiator_that_only_change_keys_need_no_srq() {
    let f = Fixture::new();
    let sends = initiator(&f);
    let bind = WindowBind {
        key: 0x502,
        addr: 0x1000,
        length: 64,
        region: 0x601,
        access: 0,
    };
    let local = [
        (IBV_WR_BIND_MW, Operands::Bind(Some(bind))),
        (IBV_WR_LOCAL_INV, Operands::Imm(0x502)),
    ];
    for (index, (opcode, operands)) in (0..).zip(local) {
        let mut guard = sends.start(|| true);
        sends.begin(&mut guard, opcode, 1, 0, operands);
        assert_eq!(sends.commit(guard), Ok(()), "{opcode}");
        assert_eq!(sends.posted(), index + 1);
    }
}

/// The kernel reuses numbers before the process has detached the objects that had them.
#[test]
fn a_target_with_the_number_of_a_queue_pair_keeps_its_completions() {
    let mut f = Fixture::new();
    let srq = xrc_srq(&f, 1);
    let gone = f.rts(TARGET);
    f.complete(TARGET, WcOpcode::Send, 0, 5);
    complete(&mut f, 1, 0, 10);
    gone.detach();
    assert_eq!(f.polled(4), [10]);
    // The same for SRQs: a queue pair uses a basic SRQ whose number is that of a destroyed XRC SRQ.
    let basic = f.srq();
    assert_eq!(basic.srqn, srq.srqn);
    let qp = f.qp(9, ReceiveSource::Shared(basic));
    f.complete_of(9, 1, WcOpcode::Recv, 0, 20);
    complete(&mut f, 1, 1, 30);
    f.cq.detach_srq(&srq);
    assert_eq!(f.polled(4), [20]);
    let _ = qp;
}

#[test]
fn a_resized_srq_keeps_the_receives_that_the_device_has_not_taken() {
    for log_size in [1, 2, 5] {
        let f = Fixture::new();
        let srq = f.srq();
        let consumer = doorbell::srq_consumer(SRQ_SLOT);
        // The indices pass the end of the first ring.
        for wr_id in 0..6 {
            f.area.store(consumer, wr_id as u32);
            post(&srq, wr_id).unwrap();
        }
        f.area.store(consumer, 4);
        let make = || {
            Ok((
                MappedRing::new(MappedMemory::heap(64 << log_size), log_size, 6).unwrap(),
                1 << log_size,
            ))
        };
        // A resize that fails changes nothing. The device is moved only after the new ring has all
        // entries.
        let other = || {
            Ok((
                MappedRing::new(MappedMemory::heap(128 << log_size), log_size, 7).unwrap(),
                2,
            ))
        };
        let moved = || panic!("the device is moved to a ring without the entries");
        assert_eq!(srq.queue.resize(other, moved), Err(Errno::IO));
        let refused = srq.queue.resize(make, || Err(Errno::IO));
        assert_eq!(refused, Err(Errno::IO));
        assert_eq!(srq.queue.log_stride(), 6);
        srq.queue.resize(make, || Ok(())).unwrap();
        for index in 4..6 {
            let bytes = srq.queue.bytes(index, 64);
            let header = RecvWqe::read_from_prefix(&bytes).unwrap().0;
            assert_eq!(header.wr_id.get(), u64::from(index));
        }
        // All entries of the new ring can be used.
        for wr_id in 6..4 + (1 << log_size) {
            post(&srq, wr_id).unwrap();
        }
        assert_eq!(post(&srq, 99), Err(Errno::NOMEM), "{log_size}");
        let make = || Ok((MappedRing::new(MappedMemory::heap(64), 0, 6).unwrap(), 1));
        assert_eq!(srq.queue.resize(make, || Ok(())), Err(Errno::INVAL));
    }
}
