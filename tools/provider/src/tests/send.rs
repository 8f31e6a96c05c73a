// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Sends: the WQEs of lists of requests and of builders, their publication, and refusals.

use super::{post, post_one, receive, send, sge, Fixture, LOG_SIZE, SIZE, SLOT};
use crate::builder::Operands;
use crate::errno::Errno;
use crate::ffi::lock::Sharing;
use crate::ffi::memory::{MappedMemory, MappedRing};
use crate::ffi::mock;
use crate::ffi::object::Ah;
use crate::ffi::pabi::*;
use crate::ffi::wr::WindowBind;
use crate::qp::{Qp, ReceiveSource};
use crate::send::{SendConfig, SendProducer, SendQueue, WqeForm, OPCODES};
use verbena_abi::cqe::WcOpcode;
use verbena_abi::ctx::{AddressVector, QpState};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::wqe::{send_flags, BindSegment, FlushSegment, SendWqe, Sge, WqeOpcode};
use zerocopy::FromBytes;

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
    assert!(!f.area.is_rung());
}

#[test]
fn inline_data_of_several_sges_is_concatenated() {
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
fn unknown_opcodes_are_refused() {
    let f = Fixture::new();
    let qp = f.rts(9);
    let mut sges = [sge(8)];
    let mut wr = send(1, &mut sges);
    let known = |opcode: u32| {
        OPCODES
            .get(opcode as usize)
            .is_some_and(|o| o.1 != WqeForm::Invalid)
    };
    assert_eq!((0..32).filter(|&opcode| known(opcode)).count(), 12);
    for opcode in (0..32).filter(|&opcode| !known(opcode)) {
        wr.opcode = opcode;
        assert_eq!(post(&qp, &mut [wr]), Err((Errno::INVAL, 0)), "{opcode}");
    }
    assert_eq!(f.producer(), 0);
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
fn the_doorbell_of_a_sleeping_device_is_rung_once() {
    let f = Fixture::new();
    let qp = f.rts(9);
    f.area.store(doorbell::SLEEP, 7);
    post_one(&qp, 1).unwrap();
    assert!(f.area.is_rung());
    assert_eq!(f.area.load(doorbell::RUNG), 7);
    f.area.clear_ring();
    post_one(&qp, 2).unwrap();
    assert!(!f.area.is_rung());
}

#[test]
fn a_full_queue_is_free_again_after_a_later_completion() {
    let mut f = Fixture::new();
    let qp = f.rts(9);
    for wr_id in 0..u64::from(SIZE) {
        post_one(&qp, wr_id).unwrap();
    }
    assert_eq!(post_one(&qp, 9), Err((Errno::NOMEM, 0)));
    // The completion covers the unsignaled requests before it.
    f.complete(9, WcOpcode::Send, 2, 2);
    assert_eq!(f.polled(8), [2]);
    for wr_id in 0..3 {
        post_one(&qp, wr_id).unwrap();
    }
    assert_eq!(post_one(&qp, 9), Err((Errno::NOMEM, 0)));
    assert_eq!(f.producer(), 7);
}

#[test]
fn sends_are_refused_before_rts_and_receives_in_reset() {
    let f = Fixture::new();
    let qp = f.qp(9, ReceiveSource::Own(f.receive_queue(SLOT)));
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
fn a_post_that_waits_for_the_lock_during_a_reset_is_refused() {
    let f = Fixture::new();
    let qp = f.rts(9);
    // The post waits for the lock while the state changes, and must check the state under the lock.
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

fn post_list(qp: &Qp, wr: ibv_send_wr) {
    post(qp, &mut [wr]).unwrap();
}

#[test]
fn lists_and_builders_write_the_same_wqes() {
    let f = Fixture::new();
    let qp = f.rts(9);
    let sends = &qp.sends;
    let (rkey, addr, imm) = (0x77, 0x9000, 0x1234);
    let bind = WindowBind {
        key: rkey,
        addr,
        length: 1 << 33,
        region: 0x99,
        access: IBV_ACCESS_REMOTE_READ,
    };
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
        (IBV_WR_BIND_MW, Operands::Bind(Some(bind))),
    ];
    for (opcode, operands) in all {
        let written = |post: &dyn Fn()| {
            // An older WQE has set words that this operation does not use.
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
            Operands::Bind(_) => mock::set_bind(&mut wr, bind, IBV_MW_TYPE_2, 3),
            Operands::Value(..) | Operands::Flush(..) => unreachable!("not in this test"),
        }
        let key = matches!(opcode, IBV_WR_LOCAL_INV | IBV_WR_BIND_MW);
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

/// `max_inline_data` limits the sum of the lengths (ibv_wr_post(3)).
#[test]
fn the_parts_of_inline_data_are_limited_together() {
    let f = Fixture::new();
    let qp = f.rts(9);
    let sends = &qp.sends;
    let of_parts = |lengths: &[usize]| {
        let mut guard = sends.start(|| true);
        sends.begin(&mut guard, IBV_WR_SEND, 71, 0, Operands::None);
        for &length in lengths {
            sends.add_inline(&mut guard, length, |_, _| true);
        }
        sends.commit(guard)
    };
    assert_eq!(of_parts(&[30, 10]), Ok(()));
    let bytes = sends.bytes(0, 128);
    let header = SendWqe::read_from_prefix(&bytes).unwrap().0;
    assert_eq!(header.inline_length.get(), 40);
    for too_long in [&[30, 11][..], &[40, 1], &[1, 40], &[20, 20, 1]] {
        assert_eq!(of_parts(too_long), Err(Errno::INVAL), "{too_long:?}");
    }
}

#[test]
fn an_atomic_write_may_always_be_inline() {
    let f = Fixture::new();
    let qp = f.rts(9);
    let sends = &qp.sends;
    let (rkey, addr, value) = (0x77, 0x1_2345_6788u64, *b"8 bytes!");
    let mut guard = sends.start(|| true);
    let operands = Operands::Value(rkey, addr, value);
    sends.begin(&mut guard, IBV_WR_ATOMIC_WRITE, 71, 0, operands);
    sends.commit(guard).unwrap();
    let pieces = sends.bytes(0, 64);
    let (header, rest) = SendWqe::read_from_prefix(&pieces).unwrap();
    assert_eq!(header.opcode, WqeOpcode::AtomicWrite.to_raw());
    assert_eq!((header.num_sge, header.inline_length.get()), (0, 8));
    assert_eq!(header.flags & send_flags::INLINE, send_flags::INLINE);
    assert_eq!((header.remote_addr.get(), header.rkey.get()), (addr, rkey));
    assert_eq!(rest[..8], value);
    // In a list, the value may be inline or in memory with an L_Key.
    let mut sges = [ibv_sge {
        addr: value.as_ptr() as u64,
        length: 8,
        lkey: 0x55,
    }];
    let mut wr = send(72, &mut sges);
    (wr.opcode, wr.send_flags) = (IBV_WR_ATOMIC_WRITE, IBV_SEND_INLINE);
    mock::set_rdma(&mut wr, addr, rkey, 0);
    post(&qp, &mut [wr]).unwrap();
    wr.send_flags = 0;
    post(&qp, &mut [wr]).unwrap();
    // A builder cannot add data to the value.
    let mut guard = sends.start(|| true);
    sends.begin(&mut guard, IBV_WR_ATOMIC_WRITE, 73, 0, operands);
    sends.add_inline(&mut guard, 1, |_, _| true);
    assert_eq!(sends.commit(guard), Err(Errno::INVAL));
}

#[test]
fn a_flush_is_posted_by_its_own_function() {
    let f = Fixture::new();
    let qp = f.rts(9);
    let sends = &qp.sends;
    let flush = |length| {
        let mut guard = sends.start(|| true);
        let operands = Operands::Flush(0x77, 0x1_2345, length, 1, 1);
        sends.begin(&mut guard, IBV_WR_FLUSH, 71, 0, operands);
        sends.commit(guard)
    };
    assert_eq!(flush(1 << 32), Err(Errno::INVAL));
    assert_eq!(flush(0xffff_ffff), Ok(()));
    let bytes = sends.bytes(0, 64);
    let (header, rest) = SendWqe::read_from_prefix(&bytes).unwrap();
    assert_eq!(header.opcode, WqeOpcode::Flush.to_raw());
    assert_eq!((header.num_sge, header.flags), (0, 0));
    let segment = FlushSegment::read_from_prefix(rest).unwrap().0;
    assert_eq!(segment.length.get(), 0xffff_ffff);
    assert_eq!((segment.placement, segment.level), (1, 1));
    // `ibv_send_wr` has no fields for the operands of a flush.
    let mut wr = send(72, &mut []);
    wr.opcode = IBV_WR_FLUSH;
    assert_eq!(post(&qp, &mut [wr]), Err((Errno::INVAL, 0)));
}

#[test]
fn an_sge_does_not_overwrite_the_operands_of_a_request() {
    let f = Fixture::new();
    let qp = f.rts(9);
    let sends = &qp.sends;
    let with_sge = |opcode, operands| {
        let mut guard = sends.start(|| true);
        sends.begin(&mut guard, opcode, 71, 0, operands);
        sends.add_sge(&mut guard, 0x7f12_3456_7000, 8, 0x55);
        sends.commit(guard)
    };
    let bind = Operands::Bind(Some(bind_of(1).0));
    let value = Operands::Value(0x77, 0x1_2340, [1; 8]);
    let key = Operands::Imm(0x77);
    assert_eq!(with_sge(IBV_WR_BIND_MW, bind), Err(Errno::INVAL));
    assert_eq!(with_sge(IBV_WR_ATOMIC_WRITE, value), Err(Errno::INVAL));
    assert_eq!(with_sge(IBV_WR_LOCAL_INV, key), Err(Errno::INVAL));
    // The manual page lists the setter for a flush, so the setter succeeds and changes nothing.
    let flush = Operands::Flush(0x77, 0x1_2345, 16, 1, 1);
    assert_eq!(with_sge(IBV_WR_FLUSH, flush), Ok(()));
    let bytes = sends.bytes(0, 64);
    let (header, rest) = SendWqe::read_from_prefix(&bytes).unwrap();
    assert_eq!((header.num_sge, header.flags), (0, 0));
    let segment = FlushSegment::read_from_prefix(rest).unwrap().0;
    assert_eq!((segment.length.get(), segment.placement), (16, 1));
}

/// Returns a bind with this key, and a request with the opcode of a bind.
fn bind_of(key: u32) -> (WindowBind, ibv_send_wr) {
    let bind = WindowBind {
        key,
        addr: 2,
        length: 3,
        region: 4,
        access: 0,
    };
    let mut wr = send(71, &mut []);
    wr.opcode = IBV_WR_BIND_MW;
    (bind, wr)
}

#[test]
fn only_windows_of_type_2_are_bound_by_work_requests() {
    let f = Fixture::new();
    let qp = f.rts(9);
    let (bind, mut wr) = bind_of(1);
    mock::set_bind(&mut wr, bind, IBV_MW_TYPE_1, 0);
    assert_eq!(post(&qp, &mut [wr]), Err((Errno::INVAL, 0)));
    let mut guard = qp.sends.start(|| true);
    let operands = Operands::Bind(None);
    qp.sends.begin(&mut guard, IBV_WR_BIND_MW, 71, 0, operands);
    assert_eq!(qp.sends.commit(guard), Err(Errno::INVAL));
    mock::set_bind(&mut wr, bind, IBV_MW_TYPE_2, 0);
    post(&qp, &mut [wr]).unwrap();
    let bytes = qp.sends.bytes(0, 64);
    let (header, rest) = SendWqe::read_from_prefix(&bytes).unwrap();
    assert_eq!((header.opcode, header.num_sge), (10, 0));
    assert_eq!((header.remote_addr.get(), header.rkey.get()), (2, 1));
    let segment = BindSegment::read_from_prefix(rest).unwrap().0;
    assert_eq!((segment.length.get(), segment.region.get()), (3, 4));
}

#[test]
fn the_program_chooses_only_the_tag_of_the_key_of_a_bind() {
    let f = Fixture::new();
    let qp = f.rts(9);
    let (bind, mut wr) = bind_of(0x1234_5600);
    mock::set_bind(&mut wr, bind, IBV_MW_TYPE_2, 0);
    for (number, key) in [0xffff_ff07, 0x08].into_iter().enumerate() {
        mock::set_bind_key(&mut wr, key);
        // The window keeps its key until the bind is posted.
        let (begun, kept) = mock::begin_bind(&wr);
        assert_eq!(begun.map(|bind| bind.key & 0xff), Some(key & 0xff));
        assert_ne!(kept & 0xff, key & 0xff);
        post(&qp, &mut [wr]).unwrap();
        assert_eq!(mock::begin_bind(&wr).1 & 0xff, key & 0xff);
        let bytes = qp.sends.bytes(number as u32, 64);
        let (header, _) = SendWqe::read_from_prefix(&bytes).unwrap();
        assert_eq!(header.rkey.get(), 0x1234_5600 | (key & 0xff));
    }
}

#[test]
fn the_requests_of_a_builder_are_posted_together_or_not_at_all() {
    let f = Fixture::new();
    let qp = f.rts(9);
    let sends = &qp.sends;
    let plain = |guard: &mut SendProducer, wr_id| {
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

    // With too many SGEs, an unknown flag or an unsupported operation in one request, none of the
    // requests is posted.
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

    // The queue is full.
    let mut guard = sends.start(|| true);
    for wr_id in 0..3 {
        plain(&mut guard, wr_id);
    }
    assert_eq!(sends.commit(guard), Err(Errno::NOMEM));
    // A list was posted between two requests. In a process with one thread, the lock does not
    // prevent this.
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

/// Returns the send queue of a UD queue pair.
fn datagrams(f: &Fixture) -> SendQueue {
    let ring = MappedRing::new(MappedMemory::heap(256 << LOG_SIZE), LOG_SIZE, 8).unwrap();
    let config = SendConfig {
        max_wr: SIZE,
        max_sge: 2,
        max_inline: 40,
        datagram: true,
        xrc: false,
        signal_all: false,
        sharing: Sharing::THREADS,
        slot: SLOT,
    };
    SendQueue::new(ring, f.area.clone(), config)
}

/// For these opcodes a C program has set another member of the union, and no address handle. The
/// device refuses the operations.
#[test]
fn operations_that_ud_does_not_have_carry_no_address() {
    let f = Fixture::new();
    let sends = datagrams(&f);
    for (index, opcode) in (0..).zip([
        IBV_WR_RDMA_WRITE,
        IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_FETCH_AND_ADD,
        IBV_WR_SEND_WITH_INV,
    ]) {
        let mut sges = [sge(8)];
        let mut wr = send(1, &mut sges);
        wr.opcode = opcode;
        mock::set_rdma(&mut wr, 8, 0x77, 0);
        mock::with_sends(&mut [wr], |first| sends.post(first, || true)).unwrap();
        let bytes = sends.bytes(index, 64);
        let (header, _) = SendWqe::read_from_prefix(&bytes).unwrap();
        assert_eq!(header.opcode, OPCODES[opcode as usize].0.to_raw());
        let remote = header.remote_addr.get();
        assert_eq!(remote == 8, opcode != IBV_WR_SEND_WITH_INV);
    }
    assert_eq!(sends.posted(), 4);
}

#[test]
fn a_datagram_without_an_address_is_refused() {
    let f = Fixture::new();
    let sends = datagrams(&f);
    for opcode in [IBV_WR_SEND, IBV_WR_SEND_WITH_IMM] {
        let mut wr = send(1, &mut []);
        wr.opcode = opcode;
        let refused = mock::with_sends(&mut [wr], |first| sends.post(first, || true));
        assert_eq!(refused, Err((Errno::INVAL, 0)));
    }
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
