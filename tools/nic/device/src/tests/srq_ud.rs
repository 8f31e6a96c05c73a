// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shared receive queues, and datagrams.

use super::Pair;
use crate::memory::GuestMemory;
use crate::mock::{CqHandle, Driver, QpHandle, SendWr, SrqHandle};
use verbena_abi::cmd::*;
use verbena_abi::cqe::{wc_flags, WcStatus};
use verbena_abi::ctx::{qp_mask as m, AddressVector, QpAttr, QpState};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::{self, WqeOpcode};
use zerocopy::IntoBytes;

/// A pair whose second queue pair takes its receives from an SRQ.
fn shared() -> (Pair, SrqHandle) {
    let mut p = Pair::new();
    let srq = p.share();
    p.a = p.d.create_qp(&p.cq_a.clone(), &p.cq_a.clone());
    p.d.connect(&p.a.clone(), &p.b.clone());
    (p, srq)
}

#[test]
fn receives_come_from_the_srq() {
    let (mut p, mut srq) = shared();
    let (at, key) = p.d.region(4096, 1);
    p.d.post_srq(&mut srq, 9, &[(at, 64, key)]);
    p.d.post_send(
        &mut p.a,
        &SendWr::new(WqeOpcode::Send, 1, &[(at + 64, 8, key)]),
    );
    p.d.run();
    let done = p.d.poll(&mut p.cq_b).unwrap();
    assert_eq!(
        (done.status(), done.cqe.wr_id.get()),
        (WcStatus::Success, 9)
    );
    assert_eq!(done.cqe.srqn.get(), srq.srqn);
}

#[test]
fn a_limit_fires_once() {
    let (mut p, mut srq) = shared();
    for i in 0..3 {
        p.d.post_srq(&mut srq, i, &[]);
    }
    let arm = |limit: u32| ModifySrq {
        srqn: srq.srqn.into(),
        limit: limit.into(),
        ..Default::default()
    };
    p.d.must(&arm(2));
    p.d.run();
    assert_eq!(p.d.events(0), []);
    for i in 0..3 {
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, i, &[]));
    }
    p.d.run();
    let events = p.d.events(0);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].kind, EventType::SrqLimitReached);
    // A limit above the number of posted receives fires at once.
    p.d.must(&arm(1));
    assert_eq!(p.d.events(0).len(), 1);
}

#[test]
fn a_queue_pair_of_an_srq_that_goes_to_err_reports_its_last_wqe() {
    let (mut p, _srq) = shared();
    p.d.move_to(p.b.qpn, QpState::Err).unwrap();
    p.d.run();
    let events = p.d.events(0);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].kind, EventType::QpLastWqeReached);
}

#[test]
fn a_corrupt_srq_moves_its_queue_pairs_to_err() {
    let (mut p, srq) = shared();
    doorbell::post_recv(&p.d.words(), srq.slot.into(), 1000, || {});
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 1, &[]));
    p.d.run();
    let kinds: Vec<_> = p.d.events(0).iter().map(|e| e.kind).collect();
    assert!(kinds.contains(&EventType::SrqErr), "{kinds:?}");
    let state = p.d.query_qp(p.b.qpn).attr.qp_state;
    assert_eq!(state, QpState::Err.to_raw());
    // The SRQ accepts no further queue pair.
    let mut request = p.d.qp_request(&p.cq_b.clone(), &p.cq_b.clone());
    request.flags = QP_HAS_SRQ;
    request.srqn = srq.srqn.into();
    let e = p.d.create_qp_by(&request).unwrap_err();
    assert_eq!(e.syndrome, Syndrome::SrqDied);
    // A queue pair of the SRQ can be moved to RESET, but not to INIT.
    p.d.move_to(p.b.qpn, QpState::Reset).unwrap();
    let e = p.d.to_init(p.b.qpn).unwrap_err();
    assert_eq!(
        (e.status, e.syndrome),
        (CmdStatus::Invalid, Syndrome::SrqDied)
    );
    let state = p.d.query_qp(p.b.qpn).attr.qp_state;
    assert_eq!(state, QpState::Reset.to_raw());
}

#[test]
fn a_receive_of_an_srq_has_at_most_max_srq_sge_elements() {
    for (count, state) in [(32u8, QpState::Rts), (33, QpState::Err)] {
        let mut p = Pair::new();
        let ring = p.d.alloc(4096);
        let (srqn, slot) = (p.d.number(), p.d.slot());
        p.d.must(&CreateSrq {
            srqn: srqn.into(),
            pdn: 7.into(),
            slot: slot.into(),
            log_size: 2,
            log_stride: 10,
            ring: crate::mock::flat(ring),
            ..Default::default()
        });
        let mut request = p.d.qp_request(&p.cq_b.clone(), &p.cq_b.clone());
        request.flags = QP_HAS_SRQ;
        request.srqn = srqn.into();
        p.b = p.d.create_qp_by(&request).unwrap();
        p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
        p.d.connect(&p.a, &p.b);
        let wqe = wqe::RecvWqe {
            num_sge: count,
            ..Default::default()
        };
        p.d.ram.write(ring, wqe.as_bytes()).unwrap();
        doorbell::post_recv(&p.d.words(), slot.into(), 1, || {});
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 1, &[]));
        p.d.run();
        let shown = p.d.query_qp(p.b.qpn).attr.qp_state;
        assert_eq!(shown, state.to_raw(), "{count}");
        let cause: Vec<_> =
            p.d.events(0)
                .iter()
                .filter(|e| e.kind == EventType::SrqErr)
                .map(|e| e.syndrome)
                .collect();
        let malformed = vec![u32::from(Syndrome::SrqWqeMalformed.to_raw())];
        assert_eq!(cause, if count > 32 { malformed } else { vec![] });
    }
}

/// Returns the consumer index of an SRQ, which the device stores in the doorbell area.
fn taken(p: &Pair, srq: &SrqHandle) -> u32 {
    p.d.words()
        .load_acquire(doorbell::srq_consumer(srq.slot.into()))
}

/// Returns a pair in the middle of a message: the second queue pair has taken receive 9 of the SRQ,
/// and no other receive.
fn in_the_middle_of_a_message() -> (Pair, SrqHandle) {
    let (mut p, mut srq) = shared();
    let length: u32 = 4 << 20;
    let (at, key) = p.d.region(length, 1);
    p.d.post_srq(&mut srq, 9, &[(at, length, key)]);
    p.d.post_srq(&mut srq, 10, &[]);
    let wr = SendWr::new(WqeOpcode::Send, 1, &[(at, length, key)]);
    p.d.post_send(&mut p.a, &wr);
    for _ in 0..3 {
        p.d.device.run_slice(&p.d.ram, p.d.now);
    }
    assert_eq!(taken(&p, &srq), 1);
    assert!(p.d.poll(&mut p.cq_b).is_none());
    (p, srq)
}

fn held(reply: &Quiesced) -> (u32, u32, u64) {
    (
        reply.recv_held.get(),
        reply.recv_index.get(),
        reply.recv_wr_id.get(),
    )
}

#[test]
fn a_reset_reports_the_receive_that_the_queue_pair_held() {
    let (mut p, srq) = in_the_middle_of_a_message();
    let reply = p.d.move_to(p.b.qpn, QpState::Reset).unwrap();
    assert_eq!(held(&reply), (1, 0, 9));
    // The receive is reported once.
    let reply = p.d.move_to(p.b.qpn, QpState::Reset).unwrap();
    assert_eq!(held(&reply), (0, 0, 0));
    assert_eq!(p.d.drain(&mut p.cq_b), []);
    assert_eq!(taken(&p, &srq), 1);
}

#[test]
fn a_destroy_reports_the_receive_that_the_queue_pair_held() {
    let (mut p, _srq) = in_the_middle_of_a_message();
    let destroy = DestroyQp {
        id: p.b.qpn.into(),
        ..Default::default()
    };
    assert_eq!(held(&p.d.must(&destroy)), (1, 0, 9));
    assert_eq!(p.d.drain(&mut p.cq_b), []);
}

#[test]
fn err_completes_the_held_receive_so_that_a_reset_does_not_report_it() {
    let (mut p, _srq) = in_the_middle_of_a_message();
    let reply = p.d.move_to(p.b.qpn, QpState::Err).unwrap();
    assert_eq!(held(&reply), (0, 0, 0));
    assert_eq!(p.d.drain(&mut p.cq_b), [(9, WcStatus::WrFlushErr)]);
    let reply = p.d.move_to(p.b.qpn, QpState::Reset).unwrap();
    assert_eq!(held(&reply), (0, 0, 0));
}

#[test]
fn a_reset_reports_a_receive_whose_flush_failed() {
    // The CQ cannot be written, so the flush moves the CQ to ERR and the program gets no completion
    // of the receive.
    let (mut p, _srq) = in_the_middle_of_a_message();
    p.d.ram.hide(p.cq_b.ring, 4096);
    let reply = p.d.move_to(p.b.qpn, QpState::Err).unwrap();
    assert_eq!(held(&reply), (0, 0, 0));
    p.d.run();
    p.d.ram.unhide();
    assert_eq!(p.d.drain(&mut p.cq_b), []);
    let reply = p.d.move_to(p.b.qpn, QpState::Reset).unwrap();
    assert_eq!(held(&reply), (1, 0, 9));
    let reply = p.d.move_to(p.b.qpn, QpState::Reset).unwrap();
    assert_eq!(held(&reply), (0, 0, 0));
}

#[test]
fn a_reset_reports_the_receive_whose_completion_overflowed_the_cq() {
    let (mut p, mut srq) = shared();
    let tiny = p.d.create_cq(1);
    let mut request = p.d.qp_request(&p.cq_b.clone(), &tiny);
    request.flags = QP_HAS_SRQ;
    request.srqn = srq.srqn.into();
    p.b = p.d.create_qp_by(&request).unwrap();
    p.a = p.d.create_qp(&p.cq_a.clone(), &p.cq_a.clone());
    p.d.connect(&p.a.clone(), &p.b.clone());
    for i in 0..8 {
        p.d.post_srq(&mut srq, 100 + i, &[]);
    }
    for i in 0..8 {
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, i, &[]));
    }
    p.d.run();
    assert_eq!(taken(&p, &srq), 3);
    let reply = p.d.move_to(p.b.qpn, QpState::Reset).unwrap();
    assert_eq!(held(&reply), (1, 2, 102));
}

/// Creates a datagram queue pair in RTS with Q_Key 0x1234.
pub(super) fn datagram(p: &mut Pair) -> QpHandle {
    datagram_on(&mut p.d, &p.cq_a)
}

/// Does the same as [`datagram`] for any driver and CQ.
pub(super) fn datagram_on(d: &mut Driver, cq: &CqHandle) -> QpHandle {
    let mut request = d.qp_request(cq, cq);
    request.qp_type = QpType::Ud.to_raw();
    let qp = d.create_qp_by(&request).unwrap();
    let attr = |state: QpState| QpAttr {
        qp_state: state.to_raw(),
        port_num: 1,
        qkey: 0x1234.into(),
        ..Default::default()
    };
    let init = m::STATE | m::PKEY_INDEX | m::PORT | m::QKEY;
    d.modify(qp.qpn, init, attr(QpState::Init)).unwrap();
    d.modify(qp.qpn, m::STATE, attr(QpState::Rtr)).unwrap();
    let rts = m::STATE | m::SQ_PSN;
    d.modify(qp.qpn, rts, attr(QpState::Rts)).unwrap();
    qp
}

fn datagram_wqe(wr: &SendWr, to: &QpHandle, pdn: u32) -> crate::mock::WqeBytes {
    let av = AddressVector {
        dest_qpn: to.qpn.into(),
        qkey: 0x1234.into(),
        pdn: pdn.into(),
        ..Driver::path(0, 1)
    };
    datagram_wqe_by(wr, av)
}

/// Returns the WQE that sends a datagram with this address vector.
pub(super) fn datagram_wqe_by(wr: &SendWr, av: AddressVector) -> crate::mock::WqeBytes {
    let flat = wr.encode();
    let mut out = flat;
    out[wqe::DATA_OFFSET..wqe::DATA_OFFSET_UD].copy_from_slice(av.as_bytes());
    let data = flat.len() - wqe::DATA_OFFSET_UD;
    out[wqe::DATA_OFFSET_UD..].copy_from_slice(&flat[wqe::DATA_OFFSET..wqe::DATA_OFFSET + data]);
    out
}

#[test]
fn a_datagram_arrives_with_its_grh_and_source_qpn() {
    let mut p = Pair::new();
    let (mut x, mut y) = (datagram(&mut p), datagram(&mut p));
    let (at, key) = p.d.region(4096, 1);
    p.d.post_recv(&mut y, 5, &[(at, 200, key)]);
    let wr = SendWr::new(WqeOpcode::Send, 6, &[(at + 1000, 100, key)]);
    p.d.post_raw(&mut x, &datagram_wqe(&wr, &y, 7));
    p.d.run();
    let mut done: Vec<_> = std::iter::from_fn(|| p.d.poll(&mut p.cq_a)).collect();
    done.sort_by_key(|d| d.cqe.wr_id.get());
    assert_eq!(done.len(), 2);
    let recv = &done[0];
    assert_eq!(
        (recv.status(), recv.cqe.wr_id.get()),
        (WcStatus::Success, 5)
    );
    assert_eq!(recv.cqe.byte_len.get(), 140);
    assert_eq!(recv.cqe.src_qp.get(), x.qpn);
    assert_ne!(recv.tail.wc_flags & wc_flags::GRH, 0);
    assert_eq!(p.d.bytes(at + 40, 100), p.d.bytes(at + 1000, 100));
    // The IPv4 header lies in the last 20 bytes of the GRH.
    assert_eq!(p.d.bytes(at + 32, 8), [10, 0, 0, 1, 10, 0, 0, 2]);
}

/// A queue pair of another host may have the same number as one of this device.
#[test]
fn a_datagram_to_another_host_leaves_after_a_local_one_to_the_same_qpn() {
    let mut p = Pair::new();
    let (mut x, mut y) = (datagram(&mut p), datagram(&mut p));
    let (at, key) = p.d.region(4096, 1);
    for id in 0..4 {
        p.d.post_recv(&mut y, id, &[(at, 200, key)]);
    }
    let near = datagram_wqe(&SendWr::new(WqeOpcode::Send, 10, &[]), &y, 7);
    let mut far = near;
    let av = AddressVector {
        dest_qpn: y.qpn.into(),
        qkey: 0x1234.into(),
        pdn: 7.into(),
        ..Driver::path(0, 8)
    };
    far[wqe::DATA_OFFSET..wqe::DATA_OFFSET_UD].copy_from_slice(av.as_bytes());
    for wqe in [&near, &far, &near] {
        p.d.post_raw(&mut x, wqe);
    }
    p.d.run();
    assert_eq!(std::iter::from_fn(|| p.d.device.next_frame()).count(), 1);
    let mut ids: Vec<u64> = p.d.drain(&mut p.cq_a).iter().map(|done| done.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 10, 10, 10]);
}

#[test]
fn a_datagram_queue_pair_uses_the_present_mtu_of_the_port() {
    let mut p = Pair::new();
    let x = datagram(&mut p);
    for (mtu, bytes) in [(1, 256), (3, 1024), (2, 512)] {
        p.d.must(&SetPort {
            up: 1,
            mtu,
            port: 1,
            ..Default::default()
        });
        let attr = QpAttr {
            qkey: 5.into(),
            ..Default::default()
        };
        p.d.modify(x.qpn, m::QKEY, attr).unwrap();
        let qp = p.d.device.qps.get(x.qpn).unwrap();
        assert_eq!(qp.transport.attr().path_mtu, bytes);
    }
}

#[test]
fn an_address_handle_with_an_unset_gid_is_refused() {
    let mut p = Pair::new();
    let (mut x, y) = (datagram(&mut p), datagram(&mut p));
    let mut wqe = datagram_wqe(&SendWr::new(WqeOpcode::Send, 6, &[]), &y, 7);
    // GID 9 is not set.
    wqe[wqe::DATA_OFFSET + 22] = 9;
    p.d.post_raw(&mut x, &wqe);
    p.d.run();
    let done = p.d.poll(&mut p.cq_a).unwrap();
    assert_eq!(done.status(), WcStatus::LocQpOpErr);
    let cause = Syndrome::AddressHandleGid.to_raw();
    assert_eq!(done.cqe.vendor_err.get(), u32::from(cause));
    assert_eq!(p.d.query_qp(x.qpn).attr.qp_state, QpState::Sqe.to_raw());
}

#[test]
fn an_address_handle_of_another_pd_is_refused() {
    let mut p = Pair::new();
    let (mut x, y) = (datagram(&mut p), datagram(&mut p));
    let wr = SendWr::new(WqeOpcode::Send, 6, &[]);
    p.d.post_raw(&mut x, &datagram_wqe(&wr, &y, 8));
    p.d.run();
    let done = p.d.poll(&mut p.cq_a).unwrap();
    assert_eq!(done.status(), WcStatus::LocQpOpErr);
    let cause = Syndrome::AddressHandlePd.to_raw();
    assert_eq!(done.cqe.vendor_err.get(), u32::from(cause));
    assert_eq!(p.d.query_qp(x.qpn).attr.qp_state, QpState::Sqe.to_raw());
}

#[test]
fn a_limit_fires_when_the_posted_receives_fall_below_it() {
    let (mut p, mut srq) = shared();
    for i in 0..3 {
        p.d.post_srq(&mut srq, i, &[]);
    }
    p.d.must(&ModifySrq {
        srqn: srq.srqn.into(),
        limit: 2.into(),
        ..Default::default()
    });
    for (left, events) in [(2, 0), (1, 1), (0, 0)] {
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 1, &[]));
        p.d.run();
        assert_eq!(p.d.events(0).len(), events, "{left} left");
    }
}

#[test]
fn all_queue_pairs_of_an_srq_in_error_go_to_err() {
    let (mut p, srq) = shared();
    let mut request = p.d.qp_request(&p.cq_b.clone(), &p.cq_b.clone());
    request.flags = QP_HAS_SRQ;
    request.srqn = srq.srqn.into();
    let idle = p.d.create_qp_by(&request).unwrap();
    p.d.to_init(idle.qpn).unwrap();
    doorbell::post_recv(&p.d.words(), srq.slot.into(), 1000, || {});
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 1, &[]));
    p.d.run();
    let told = p.d.events(0);
    assert!(told
        .iter()
        .any(|e| (e.kind, e.number) == (EventType::QpFatal, idle.qpn)));
    let state = p.d.query_qp(idle.qpn).attr.qp_state;
    assert_eq!(state, QpState::Err.to_raw());
}
