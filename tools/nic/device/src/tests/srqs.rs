// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shared receive queues: limits, protection domains, errors, receives that end with their queue
//! pair, and RESIZE_SRQ.

use super::Pair;
use crate::config::LOCAL_DMA_LKEY;
use crate::memory::GuestMemory;
use crate::mock::{CqHandle, QpHandle, SendWr, SrqHandle};
use verbena_abi::cmd::*;
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::{QpState, SrqContext};
use verbena_abi::doorbell::{self, Words};
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

/// Replaces the second queue pair by one of the SRQ with these CQs, and the first one by a new peer
/// of it.
fn join(p: &mut Pair, srq: &SrqHandle, send: &CqHandle, recv: &CqHandle, pdn: u32, flags: u8) {
    let mut request = p.d.qp_request(send, recv);
    request.flags = QP_HAS_SRQ | flags;
    request.pdn = pdn.into();
    request.srqn = srq.srqn.into();
    p.b = p.d.create_qp_by(&request).unwrap();
    p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
    p.d.connect(&p.a, &p.b);
}

/// Returns a pair whose second queue pair takes its receives from an SRQ.
pub(super) fn shared() -> (Pair, SrqHandle) {
    let mut p = Pair::new();
    let srq = p.d.create_srq();
    let cq = p.cq_b.clone();
    join(&mut p, &srq, &cq, &cq, 7, 0);
    (p, srq)
}

fn send(p: &mut Pair) {
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 1, &[]));
    p.d.run();
}

fn taken(p: &Pair, srq: &SrqHandle) -> u32 {
    p.d.words()
        .load_acquire(doorbell::srq_consumer(srq.slot.into()))
}

/// Returns the context of an SRQ as it was published, without a query.
pub(super) fn context(p: &Pair, srq: &SrqHandle) -> SrqContext {
    let at = u64::from(srq.srqn) * size_of::<SrqContext>() as u64;
    p.d.ram.read_struct(p.d.table(Table::Srqc) + at).unwrap()
}

fn set_limit(p: &mut Pair, srq: &SrqHandle, limit: u32) -> Result<(), Syndrome> {
    let request = ModifySrq {
        srqn: srq.srqn.into(),
        limit: limit.into(),
        ..Default::default()
    };
    p.d.cmd(&request).map(|_| ()).map_err(|e| e.syndrome)
}

#[test]
fn a_limit_fires_once_each_time_it_is_armed() {
    for posted in 0..4u32 {
        for limit in 0..5u32 {
            let (mut p, mut srq) = shared();
            for i in 0..posted {
                p.d.post_srq(&mut srq, i.into(), &[]);
            }
            set_limit(&mut p, &srq, limit).unwrap();
            let mut armed = limit;
            for left in (0..=posted).rev() {
                if left != posted {
                    send(&mut p);
                }
                let fires = left < armed;
                if fires {
                    armed = 0;
                }
                let told: Vec<_> = p.d.events(0).iter().map(|e| (e.kind, e.number)).collect();
                let event = (EventType::SrqLimitReached, srq.srqn);
                assert_eq!(
                    told,
                    vec![event; fires.into()],
                    "{limit} of {posted}, {left}"
                );
                assert_eq!(context(&p, &srq).limit.get(), armed);
            }
            // The limit does not fire again before it is armed again.
            for i in 0..2 {
                p.d.post_srq(&mut srq, i, &[]);
                send(&mut p);
            }
            assert_eq!(p.d.events(0).len(), usize::from(armed != 0));
            p.d.post_srq(&mut srq, 9, &[]);
            set_limit(&mut p, &srq, 1).unwrap();
            assert_eq!(p.d.events(0), []);
            send(&mut p);
            assert_eq!(p.d.events(0).len(), 1);
        }
    }
}

#[test]
fn a_limit_is_at_most_the_size_of_the_srq() {
    let (mut p, srq) = shared();
    assert_eq!(set_limit(&mut p, &srq, 17), Err(Syndrome::CmdSize));
    set_limit(&mut p, &srq, 16).unwrap();
    let ring = p.d.alloc(4096);
    for (limit, good) in [(0, true), (4, true), (5, false)] {
        let request = CreateSrq {
            srqn: p.d.number().into(),
            slot: p.d.slot().into(),
            log_size: 2,
            log_stride: 6,
            limit: limit.into(),
            ring: crate::mock::flat(ring),
            ..Default::default()
        };
        assert_eq!(p.d.cmd(&request).is_ok(), good, "{limit}");
    }
}

#[test]
fn all_entries_of_an_srq_can_be_used_and_no_more() {
    let (mut p, mut srq) = shared();
    for round in 0..3 {
        for i in 0..16 {
            p.d.post_srq(&mut srq, i, &[]);
        }
        for _ in 0..16 {
            send(&mut p);
        }
        let all: Vec<_> = (0..16).map(|i| (i, WcStatus::Success)).collect();
        assert_eq!(p.d.drain(&mut p.cq_b), all);
        assert_eq!(taken(&p, &srq), 16 * (round + 1));
        p.d.drain(&mut p.cq_a);
    }
    doorbell::post_recv(&p.d.words(), srq.slot.into(), srq.pi + 17, || {});
    send(&mut p);
    let cause = u32::from(Syndrome::ProducerIndex.to_raw());
    let event = p.d.event(0).unwrap();
    assert_eq!(
        (event.kind, event.number, event.syndrome),
        (EventType::SrqErr, srq.srqn, cause)
    );
    assert_eq!(taken(&p, &srq), 48);
}

#[test]
fn receives_use_the_domain_of_the_srq_and_the_privilege_of_the_queue_pair() {
    for flags in [0, QP_PRIVILEGED] {
        let receive = |key: Option<u32>, status: WcStatus, cause: Option<Syndrome>| {
            let mut p = Pair::new();
            let mut srq = p.d.create_srq();
            let cq = p.cq_b.clone();
            join(&mut p, &srq, &cq, &cq, 8, flags);
            let (at, good) = p.d.region(64, 1);
            let foreign = 0x6601;
            p.d.must(&CreateMr {
                key: foreign.into(),
                pdn: 8.into(),
                access: 1.into(),
                iova: at.into(),
                length: 64.into(),
                pages: crate::mock::flat(at),
                ..Default::default()
            });
            let key = match key {
                Some(0) => foreign,
                Some(key) => key,
                None => good,
            };
            p.d.post_srq(&mut srq, 3, &[(at, 8, key)]);
            let wr = SendWr::new(WqeOpcode::Send, 1, &[(at + 32, 8, good)]);
            p.d.post_send(&mut p.a, &wr);
            p.d.run();
            let done = p.d.poll(&mut p.cq_b).unwrap();
            let cause = cause.map_or(0, |c| u32::from(c.to_raw()));
            assert_eq!((done.status(), done.cqe.vendor_err.get()), (status, cause));
        };
        receive(None, WcStatus::Success, None);
        receive(Some(0), WcStatus::LocProtErr, Some(Syndrome::LkeyPd));
        if flags == 0 {
            let unknown = Some(Syndrome::LkeyUnknown);
            receive(Some(LOCAL_DMA_LKEY), WcStatus::LocProtErr, unknown);
        } else {
            receive(Some(LOCAL_DMA_LKEY), WcStatus::Success, None);
        }
    }
}

#[test]
fn a_malformed_entry_is_not_taken() {
    let (mut p, mut srq) = shared();
    p.d.post_srq(&mut srq, 1, &[]);
    p.d.post_srq(&mut srq, 2, &[]);
    send(&mut p);
    // The entry has no room for four elements.
    p.d.ram.write(srq.ring + 64 + 8, &[4]).unwrap();
    send(&mut p);
    let cause = u32::from(Syndrome::SrqWqeMalformed.to_raw());
    let shown = context(&p, &srq);
    assert_eq!(
        (shown.syndrome.get(), shown.consumer_index.get()),
        (cause, 1)
    );
    assert_eq!(taken(&p, &srq), 1);
    let state = p.d.query_qp(p.b.qpn).attr.qp_state;
    assert_eq!(state, QpState::Err.to_raw());
    assert_eq!(set_limit(&mut p, &srq, 1), Err(Syndrome::SrqDied));
}

/// Puts a CQ or an SRQ in error as another of its queue pairs would. The queue pair of the test has
/// not followed yet.
fn kill(p: &mut Pair, cq: Option<&CqHandle>, srq: Option<&SrqHandle>) {
    let shared = &mut p.d.device.shared;
    if let Some(cq) = cq {
        shared.cqs.get_mut(cq.cqn).unwrap().error = Some(Syndrome::CqOverflow);
    }
    if let Some(srq) = srq {
        shared.srqs.get_mut(srq.srqn).unwrap().error = Some(Syndrome::SrqUnreadable);
    }
}

#[test]
fn no_receive_is_taken_if_the_srq_or_the_receive_cq_is_in_error() {
    for (what, cause) in [
        (0, None),
        (1, Some(Syndrome::CqDied)),
        (2, Some(Syndrome::SrqDied)),
    ] {
        let mut p = Pair::new();
        let mut srq = p.d.create_srq();
        let (sends, recvs) = (p.d.create_cq(4), p.d.create_cq(4));
        join(&mut p, &srq, &sends, &recvs, 7, 0);
        p.d.post_srq(&mut srq, 1, &[]);
        match what {
            // A queue pair whose sends cannot complete still takes receives until it follows.
            0 => kill(&mut p, Some(&sends), None),
            1 => kill(&mut p, Some(&recvs), None),
            _ => kill(&mut p, None, Some(&srq)),
        }
        send(&mut p);
        assert_eq!(taken(&p, &srq), u32::from(cause.is_none()), "{what}");
        let Some(cause) = cause else {
            continue;
        };
        assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::RemOpErr)]);
        let shown = p.d.query_qp(p.b.qpn);
        assert_eq!(shown.attr.qp_state, QpState::Err.to_raw());
        assert_eq!(shown.syndrome.get(), u32::from(cause.to_raw()));
        let told = p.d.events(0);
        let of = |kind| told.iter().filter(|e| e.kind == kind).count();
        assert_eq!(
            (of(EventType::SrqErr), of(EventType::QpFatal)),
            (0, 1),
            "{what}"
        );
    }
}

/// Destroys or resets a queue pair. Returns the index and the `wr_id` of the receive that the reply
/// reports.
fn end(p: &mut Pair, qp: &QpHandle, destroy: bool) -> Option<(u32, u64)> {
    let reply = if destroy {
        p.d.must(&DestroyQp {
            id: qp.qpn.into(),
            ..Default::default()
        })
    } else {
        p.d.move_to(qp.qpn, QpState::Reset).unwrap()
    };
    let told = (reply.recv_index.get(), reply.recv_wr_id.get());
    if reply.recv_held.get() == 0 {
        assert_eq!(told, (0, 0));
        return None;
    }
    Some(told)
}

/// Brings the second queue pair to the middle of a message, after two messages that have used a
/// receive each. Its receives are posted to the SRQ, if there is one.
fn in_a_message(p: &mut Pair, srq: Option<&mut SrqHandle>) {
    let length: u32 = 4 << 20;
    let (at, key) = p.d.region(length, 1);
    let big = [(at, length, key)];
    if let Some(srq) = srq {
        for (id, sges) in [(7, &[][..]), (8, &[]), (9, &big), (10, &[])] {
            p.d.post_srq(srq, id, sges);
        }
    } else {
        for (id, sges) in [(7, &[][..]), (8, &[]), (9, &big), (10, &[])] {
            p.d.post_recv(&mut p.b, id, sges);
        }
    }
    send(p);
    send(p);
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 1, &big));
    for _ in 0..3 {
        p.d.device.run_slice(&p.d.ram, p.d.now);
    }
}

#[test]
fn a_receive_held_when_its_cq_fails_is_reported_once() {
    for destroy in [true, false] {
        for flushed in [true, false] {
            let mut p = Pair::new();
            let mut srq = p.d.create_srq();
            let (sends, mut recvs) = (p.d.create_cq(4), p.d.create_cq(4));
            join(&mut p, &srq, &sends, &recvs, 7, 0);
            in_a_message(&mut p, Some(&mut srq));
            assert_eq!(taken(&p, &srq), 3);
            kill(&mut p, Some(&recvs), None);
            if flushed {
                // The flush of the receive cannot complete.
                p.d.move_to(p.b.qpn, QpState::Err).unwrap();
                p.d.run();
            }
            let qp = p.b.clone();
            assert_eq!(
                end(&mut p, &qp, destroy),
                Some((2, 9)),
                "{destroy} {flushed}"
            );
            if !destroy {
                assert_eq!(end(&mut p, &qp, true), None);
            }
            assert_eq!(p.d.drain(&mut recvs).len(), 2);
            assert_eq!(taken(&p, &srq), 3);
        }
    }
}

#[test]
fn the_receive_of_a_message_that_ends_after_its_cq_failed_is_reported() {
    for destroy in [true, false] {
        let mut p = Pair::new();
        let mut srq = p.d.create_srq();
        let (sends, recvs) = (p.d.create_cq(4), p.d.create_cq(4));
        join(&mut p, &srq, &sends, &recvs, 7, 0);
        in_a_message(&mut p, Some(&mut srq));
        kill(&mut p, Some(&recvs), None);
        send(&mut p);
        assert_eq!(taken(&p, &srq), 3);
        let qp = p.b.clone();
        assert_eq!(end(&mut p, &qp, destroy), Some((2, 9)));
        if !destroy {
            assert_eq!(end(&mut p, &qp, false), None);
            assert_eq!(end(&mut p, &qp, true), None);
        }
    }
}

#[test]
fn only_receives_of_an_srq_are_reported() {
    for destroy in [true, false] {
        // A receive of the queue pair's own ring.
        let mut p = Pair::new();
        in_a_message(&mut p, None);
        let qp = p.b.clone();
        assert_eq!(end(&mut p, &qp, destroy), None);
        // A receive of the queue pair's own ring, with a CQ in error.
        let mut p = Pair::new();
        in_a_message(&mut p, None);
        let cq = p.cq_b.clone();
        kill(&mut p, Some(&cq), None);
        p.d.move_to(p.b.qpn, QpState::Err).unwrap();
        p.d.run();
        let qp = p.b.clone();
        assert_eq!(end(&mut p, &qp, destroy), None);
        // A send that could not complete.
        let mut p = Pair::new();
        let srq = p.d.create_srq();
        let (sends, recvs) = (p.d.create_cq(4), p.d.create_cq(4));
        join(&mut p, &srq, &sends, &recvs, 7, 0);
        kill(&mut p, Some(&sends), None);
        p.d.post_send(&mut p.b, &SendWr::new(WqeOpcode::RdmaWrite, 5, &[]));
        p.d.run();
        let qp = p.b.clone();
        assert_eq!(end(&mut p, &qp, destroy), None);
    }
}

#[test]
fn words_of_a_slot_begin_at_0() {
    let mut p = Pair::new();
    let (qp, srq, cq) = (p.d.slot(), p.d.slot(), p.d.slot());
    let words = [
        doorbell::recv_watch(qp.into()),
        doorbell::srq_consumer(srq.into()),
        doorbell::cq_served(cq.into()),
    ];
    for offset in words {
        p.d.words().store(offset, 77);
    }
    for slot in [cq, srq, qp] {
        p.d.free_slot(slot);
    }
    let mut request = p.d.qp_request(&p.cq_b.clone(), &p.cq_b.clone());
    assert_eq!(request.slot.get(), qp);
    request.flags = QP_HAS_SRQ;
    request.srqn = p.d.create_srq().srqn.into();
    let of_qp = p.d.create_qp_by(&request).unwrap();
    p.d.create_cq(2);
    for offset in words {
        assert_eq!(p.d.words().load_acquire(offset), 0, "{offset:#x}");
    }
    // The watch word is 1 in ERR, and 0 after the queue pair was reset or destroyed.
    let error = |p: &Pair| p.d.words().load_acquire(words[0]);
    p.d.to_init(of_qp.qpn).unwrap();
    p.d.move_to(of_qp.qpn, QpState::Err).unwrap();
    assert_eq!(error(&p), 1);
    p.d.move_to(of_qp.qpn, QpState::Reset).unwrap();
    assert_eq!(error(&p), 0);
    p.d.to_init(of_qp.qpn).unwrap();
    p.d.move_to(of_qp.qpn, QpState::Err).unwrap();
    assert_eq!(end(&mut p, &of_qp, true), None);
    assert_eq!(error(&p), 0);
}

/// Copies the receives that are not taken to a ring of another size, and resizes the SRQ to that
/// ring.
fn resize(p: &mut Pair, srq: &mut SrqHandle, log_size: u8) -> Result<(), Syndrome> {
    let ring = p.d.alloc(64 << log_size);
    for index in taken(p, srq)..srq.pi {
        let at = |ring: u64, log_size: u8| ring + (u64::from(index % (1 << log_size)) << 6);
        let entry = p.d.bytes(at(srq.ring, LOG_SRQ), 64);
        p.d.ram.write(at(ring, log_size), &entry).unwrap();
    }
    let request = ResizeSrq {
        srqn: srq.srqn.into(),
        log_size,
        ring: crate::mock::flat(ring),
        ..Default::default()
    };
    p.d.cmd(&request).map_err(|e| e.syndrome)?;
    srq.ring = ring;
    Ok(())
}

/// Logarithm of the number of entries of the mock driver's SRQs.
const LOG_SRQ: u8 = 4;

#[test]
fn a_resized_srq_keeps_its_receives() {
    for log_size in [2, 3, 6] {
        let (mut p, mut srq) = shared();
        // The indexes go past the end of the first ring, so that the entries have other places in
        // the new one.
        for id in 0..14 {
            p.d.post_srq(&mut srq, id, &[]);
            send(&mut p);
        }
        p.d.drain(&mut p.cq_b.clone());
        let mut cq_b = p.cq_b.clone();
        while p.d.poll(&mut cq_b).is_some() {}
        p.cq_b = cq_b;
        for id in 100..104 {
            p.d.post_srq(&mut srq, id, &[]);
        }
        let shown = context(&p, &srq).log_size;
        assert_eq!(shown, LOG_SRQ);
        resize(&mut p, &mut srq, log_size).unwrap();
        assert_eq!(context(&p, &srq).log_size, log_size);
        for _ in 0..4 {
            send(&mut p);
        }
        let ids: Vec<_> = p.d.drain(&mut p.cq_b).iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [100, 101, 102, 103], "{log_size}");
    }
}

#[test]
fn an_srq_is_not_resized_without_room_for_its_receives() {
    let (mut p, mut srq) = shared();
    for id in 0..5 {
        p.d.post_srq(&mut srq, id, &[]);
    }
    for log_size in [0, 2, 15, 255] {
        let ring = p.d.alloc(1 << 12);
        let request = ResizeSrq {
            srqn: srq.srqn.into(),
            log_size,
            ring: crate::mock::flat(ring),
            ..Default::default()
        };
        assert_eq!(p.d.cmd(&request).unwrap_err().syndrome, Syndrome::CmdSize);
    }
    // An armed limit has to fit too.
    send(&mut p);
    send(&mut p);
    set_limit(&mut p, &srq, 3).unwrap();
    let e = resize(&mut p, &mut srq, 1).unwrap_err();
    assert_eq!(e, Syndrome::CmdSize);
    resize(&mut p, &mut srq, 2).unwrap();
    let gone = ResizeSrq {
        srqn: 9999.into(),
        ..Default::default()
    };
    assert_eq!(p.d.cmd(&gone).unwrap_err().status, CmdStatus::NotFound);
}

#[test]
fn an_srq_in_error_is_not_resized() {
    let (mut p, mut srq) = shared();
    doorbell::post_recv(&p.d.words(), srq.slot.into(), 1000, || {});
    send(&mut p);
    srq.pi = taken(&p, &srq);
    assert_eq!(resize(&mut p, &mut srq, 4).unwrap_err(), Syndrome::SrqDied);
}
