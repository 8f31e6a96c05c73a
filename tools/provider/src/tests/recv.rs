// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Receives, of a queue pair's own queue and of a shared one.

use super::{post, post_one, receive, send, sge, Fixture, SIZE, SLOT};
use crate::errno::Errno;
use crate::ffi::mock;
use crate::qp::{ReceiveSource, Srq};
use verbena_abi::cqe::WcOpcode;
use verbena_abi::ctx::QpState;
use verbena_abi::doorbell::{self, Words};
use verbena_abi::wqe::{RecvWqe, Sge};
use zerocopy::FromBytes;

#[test]
fn receives_are_written_and_the_device_is_notified_only_in_err() {
    let f = Fixture::new();
    let qp = f.rts(9);
    receive(&qp, &[5, 6]).unwrap();
    assert_eq!(f.area.load(doorbell::rq_producer(SLOT)), 2);
    assert_eq!(f.generation(), 0);
    let ReceiveSource::Own(queue) = &qp.receives else {
        panic!("no receive queue");
    };
    let bytes = queue.bytes(1, 64);
    let (header, rest) = RecvWqe::read_from_prefix(&bytes).unwrap();
    assert_eq!((header.wr_id.get(), header.num_sge), (6, 1));
    assert_eq!(Sge::read_from_prefix(rest).unwrap().0.length.get(), 16);

    f.area.store(doorbell::recv_watch(SLOT), 1);
    receive(&qp, &[7, 8]).unwrap();
    assert_eq!(f.generation(), 1);
    assert_eq!(receive(&qp, &[9]), Err((Errno::NOMEM, 0)));
}

#[test]
fn sges_without_a_list_are_refused() {
    let f = Fixture::new();
    let qp = f.rts(9);
    // The SGEs of these older WQEs must not become those of a later WQE.
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
    // A request without SGEs needs no list.
    let mut wr = send(1, &mut sges);
    (wr.num_sge, wr.sg_list) = (0, core::ptr::null_mut());
    post(&qp, &mut [wr]).unwrap();
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
fn completions_that_are_polled_or_discarded_make_room_in_an_srq() {
    let mut f = Fixture::new();
    let srq = f.srq();
    let qp = f.qp(9, ReceiveSource::Shared(srq.clone()));
    qp.set_state(QpState::Rts);
    assert_eq!(receive(&qp, &[1]), Err((Errno::INVAL, 0)));
    let fill = |wr_ids: &[u64]| fill(&srq, wr_ids);
    fill(&[0, 1, 2, 3]).unwrap();
    assert_eq!(fill(&[4]), Err((Errno::NOMEM, 0)));
    f.complete_of(9, srq.srqn, WcOpcode::Recv, 1, 1);
    f.complete_of(9, srq.srqn, WcOpcode::Recv, 0, 0);
    assert_eq!(f.polled(2), [1, 0]);
    f.complete_of(9, srq.srqn, WcOpcode::Recv, 2, 2);
    qp.detach();
    assert_eq!(f.polled(2), []);
    assert_eq!(fill(&[4, 5, 6, 7]), Err((Errno::NOMEM, 3)));
}

#[test]
fn an_srq_has_room_for_receives_that_the_device_has_taken_and_that_never_complete() {
    let f = Fixture::new();
    let srq = f.srq();
    let taken = |count: u32| f.area.store(doorbell::srq_consumer(5), count);
    fill(&srq, &[0, 1, 2, 3]).unwrap();
    assert_eq!(fill(&srq, &[4]), Err((Errno::NOMEM, 0)));
    taken(3);
    assert_eq!(fill(&srq, &[4, 5, 6, 7]), Err((Errno::NOMEM, 3)));
    // An index beyond the posted receives is ignored.
    taken(8);
    assert_eq!(fill(&srq, &[7]), Err((Errno::NOMEM, 0)));
    taken(7);
    fill(&srq, &[7, 8, 9, 10]).unwrap();
}
