// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory that can be reached when an object is created and not when it is used: each use has its
//! own effect, and no other object is affected.

use super::*;
use crate::memory::GuestMemory;
use crate::mock::SendWr;
use verbena_abi::cmd::*;
use verbena_abi::cqe::{WcStatus, CQE_SIZE};
use verbena_abi::ctx::{CqContext, QpState, QueueState, SrqContext};
use verbena_abi::doorbell::{self, AREA_SIZE};
use verbena_abi::eqe::EventType;
use verbena_abi::regs;
use verbena_abi::stats::Counter;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

/// Returns the events of EQ 0: kind, object, syndrome.
fn told(p: &mut Pair) -> Vec<(EventType, u32, u32)> {
    let events = p.d.events(0);
    events
        .iter()
        .map(|e| (e.kind, e.number, e.syndrome))
        .collect()
}

fn raw(cause: Syndrome) -> u32 {
    cause.to_raw().into()
}

/// Returns the state and the syndrome of a queue pair.
fn shown(d: &mut Driver, qpn: u32) -> (u8, u32) {
    let context = d.query_qp(qpn);
    (context.attr.qp_state, context.syndrome.get())
}

const ERR: u8 = QpState::Err as u8;
const RTS: u8 = QpState::Rts as u8;

fn write(id: u64) -> SendWr {
    SendWr::new(WqeOpcode::RdmaWrite, id, &[])
}

#[test]
fn a_send_ring() {
    let mut p = Pair::new();
    p.d.post_send(&mut p.a, &write(1));
    p.d.post_send(&mut p.a, &write(2));
    p.d.ram.hide(p.a.sq, 4096);
    p.d.pass(1_000_000_000);
    // The `wr_id` can no longer be read.
    let first = p.d.poll(&mut p.cq_a).unwrap();
    assert_eq!(first.status(), WcStatus::LocQpOpErr);
    assert_eq!(first.cqe.vendor_err.get(), raw(Syndrome::RingUnreadable));
    assert_eq!(first.cqe.wqe_index.get(), 0);
    assert_eq!(p.d.drain(&mut p.cq_a), [(0, WcStatus::WrFlushErr)]);
    assert_eq!(
        shown(&mut p.d, p.a.qpn),
        (ERR, raw(Syndrome::RingUnreadable))
    );
    assert_eq!(shown(&mut p.d, p.b.qpn), (RTS, 0));
    assert_eq!(p.d.drain(&mut p.cq_b), []);
    assert_eq!(told(&mut p), []);
}

#[test]
fn a_receive_ring() {
    let mut p = Pair::new();
    p.d.post_recv(&mut p.b, 1, &[]);
    p.d.ram.hide(p.b.rq, 1024);
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 2, &[]));
    p.d.pass(1_000_000_000);
    assert_eq!(p.d.drain(&mut p.cq_a), [(2, WcStatus::RemOpErr)]);
    assert_eq!(p.d.drain(&mut p.cq_b), []);
    let cause = raw(Syndrome::RingUnreadable);
    assert_eq!(told(&mut p), [(EventType::QpFatal, p.b.qpn, cause)]);
    assert_eq!(shown(&mut p.d, p.b.qpn), (ERR, cause));
}

#[test]
fn a_shared_receive_ring() {
    let mut p = Pair::new();
    let mut srq = p.share();
    p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
    p.d.connect(&p.a, &p.b);
    p.d.post_srq(&mut srq, 1, &[]);
    p.d.ram.hide(srq.ring, 1024);
    p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 2, &[]));
    p.d.pass(1_000_000_000);
    assert_eq!(p.d.drain(&mut p.cq_a), [(2, WcStatus::RemOpErr)]);
    let events = told(&mut p);
    let cause = raw(Syndrome::SrqUnreadable);
    assert_eq!(events[0], (EventType::SrqErr, srq.srqn, cause));
    let of = |kind| events.iter().filter(|e| e.0 == kind).count();
    assert_eq!((of(EventType::SrqErr), of(EventType::QpFatal)), (1, 1));
    assert_eq!(shown(&mut p.d, p.b.qpn).0, ERR);
    let at = p.d.table(Table::Srqc) + u64::from(srq.srqn) * size_of::<SrqContext>() as u64;
    let context: SrqContext = p.d.ram.read_struct(at).unwrap();
    assert_eq!(
        (
            context.state,
            context.syndrome.get(),
            context.consumer_index.get()
        ),
        (QueueState::Err.to_raw(), cause, 0)
    );
    // The SRQ stays in error, and can be destroyed.
    p.d.ram.unhide();
    let modify = ModifySrq {
        srqn: srq.srqn.into(),
        ..Default::default()
    };
    assert_eq!(p.d.cmd(&modify).unwrap_err().syndrome, Syndrome::SrqDied);
    p.d.must(&DestroyQp {
        id: p.b.qpn.into(),
        ..Default::default()
    });
    p.d.must(&DestroySrq {
        id: srq.srqn.into(),
        ..Default::default()
    });
}

#[test]
fn a_completion_ring() {
    let mut p = Pair::new();
    // Only the second entry becomes unreachable.
    p.d.post_send(&mut p.a, &write(1));
    p.d.run();
    p.d.ram.hide(p.cq_a.ring + CQE_SIZE as u64, CQE_SIZE as u64);
    p.d.post_send(&mut p.a, &write(2));
    p.d.post_send(&mut p.a, &write(3));
    p.d.pass(1_000_000_000);
    p.d.ram.unhide();
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::Success)]);
    assert_eq!(
        told(&mut p),
        [
            (EventType::CqErr, p.cq_a.cqn, raw(Syndrome::CqUnwritable)),
            (EventType::QpFatal, p.a.qpn, raw(Syndrome::CqDied)),
        ]
    );
    assert_eq!(shown(&mut p.d, p.a.qpn), (ERR, raw(Syndrome::CqDied)));
    assert_eq!(shown(&mut p.d, p.b.qpn), (RTS, 0));
    assert_eq!(p.d.device.stats()[Counter::CqOverflow as usize], 0);
    let at = p.d.table(Table::Cqc) + u64::from(p.cq_a.cqn) * size_of::<CqContext>() as u64;
    let context: CqContext = p.d.ram.read_struct(at).unwrap();
    assert_eq!(
        (
            context.state,
            context.syndrome.get(),
            context.producer_index.get()
        ),
        (QueueState::Err.to_raw(), raw(Syndrome::CqUnwritable), 1)
    );
    // No queue pair can be created with a CQ in error.
    let qp = p.d.qp_request(&p.cq_a.clone(), &p.cq_b.clone());
    assert_eq!(
        p.d.create_qp_by(&qp).unwrap_err().syndrome,
        Syndrome::CqDied
    );
}

#[test]
fn a_completion_ring_of_a_queue_pair_on_its_way_up() {
    // The CQ of the send queue or of the receive queue fails because of another queue pair. A queue
    // pair in INIT follows, and one in RESET does not.
    for send in [true, false] {
        let mut p = Pair::new();
        let (dying, other) = (p.cq_a.clone(), p.cq_b.clone());
        let (s, r) = if send {
            (&dying, &other)
        } else {
            (&other, &dying)
        };
        let (new, rising) = (p.d.create_qp(s, r), p.d.create_qp(s, r));
        p.d.to_init(rising.qpn).unwrap();
        p.d.ram.hide(dying.ring, 4096);
        p.d.post_send(&mut p.a, &write(1));
        p.d.run();
        let mut events = told(&mut p);
        events.sort_by_key(|e| (e.0 as u8, e.1));
        let mut expected = [
            (EventType::CqErr, dying.cqn, raw(Syndrome::CqUnwritable)),
            (EventType::QpFatal, p.a.qpn, raw(Syndrome::CqDied)),
            (EventType::QpFatal, rising.qpn, raw(Syndrome::CqDied)),
        ];
        expected.sort_by_key(|e| (e.0 as u8, e.1));
        assert_eq!(events, expected, "sends: {send}");
        assert_eq!(shown(&mut p.d, rising.qpn).0, ERR);
        assert_eq!(shown(&mut p.d, new.qpn), (QpState::Reset as u8, 0));
        // Moves to ERR and RESET are allowed, and a move to INIT is not.
        p.d.move_to(rising.qpn, QpState::Err).unwrap();
        for qpn in [new.qpn, rising.qpn] {
            p.d.move_to(qpn, QpState::Reset).unwrap();
            assert_eq!(p.d.to_init(qpn).unwrap_err().syndrome, Syndrome::CqDied);
        }
    }
}

#[test]
fn a_doorbell_area() {
    let mut p = Pair::new();
    let second = p.d.alloc(AREA_SIZE as u64);
    p.d.must(&CreateUar {
        uar: 1.into(),
        addr: second.into(),
        ..Default::default()
    });
    let mut request = p.d.qp_request(&p.cq_a.clone(), &p.cq_a.clone());
    (request.uar, request.slot) = (1.into(), 70.into());
    let far = p.d.create_qp_by(&request).unwrap();
    let peer = p.d.create_qp(&p.cq_b, &p.cq_b);
    p.d.connect(&far, &peer);
    p.d.run();
    // The end of the area becomes unreachable. The device finds that when it notices the post.
    doorbell::post_send(
        &crate::mock::GuestWords {
            ram: &p.d.ram,
            base: second,
        },
        70,
        1,
        || {},
    );
    p.d.ram.hide(second + AREA_SIZE as u64 - 64, 64);
    p.d.run();
    let cause = raw(Syndrome::DoorbellUnreachable);
    assert_eq!(told(&mut p), [(EventType::QpFatal, far.qpn, cause)]);
    assert_eq!(shown(&mut p.d, far.qpn), (ERR, cause));
    assert_eq!(shown(&mut p.d, p.a.qpn), (RTS, 0));
}

/// Checks that a device is in the fatal state, and that it only answers commands.
fn dead(p: &mut Pair, cause: Syndrome) {
    let status = regs::STATUS_READY | regs::STATUS_FATAL;
    assert_eq!(p.d.regs.read(regs::STATUS), status);
    assert_eq!(p.d.regs.read(regs::FATAL_SYNDROME), raw(cause));
    let next = p.d.device.run_slice(&p.d.ram, p.d.now);
    assert_eq!((next.busy, next.deadline), (false, None));
    p.d.ram.unhide();
    let reply = p.d.cmd(&QueryDevice::default()).unwrap_err();
    assert_eq!(
        (reply.status, reply.syndrome),
        (CmdStatus::Fatal, Syndrome::DeviceFatal)
    );
}

#[test]
fn an_event_ring() {
    for word in [false, true] {
        let mut p = Pair::new();
        let at = p.d.eq_memory(1);
        p.d.arm(&mut p.cq_a, doorbell::ArmMode::Next);
        p.d.ram.hide(if word { at.1 } else { at.0 }, 4);
        p.d.post_send(&mut p.a, &write(1));
        p.d.run();
        let cause = raw(Syndrome::EqUnwritable);
        assert_eq!(told(&mut p), [(EventType::DeviceFatal, 0, cause)]);
        dead(&mut p, Syndrome::EqUnwritable);
    }
}

#[test]
fn the_command_queue() {
    for (offset, len) in [
        (0, 4),
        (REQUEST_SIZE as u64, 4),
        (REQUEST_SIZE as u64 + 64, 4),
    ] {
        let mut p = Pair::new();
        let slot = p.d.cmdq_memory();
        p.d.begin_cmd(0, &QueryDevice::default());
        p.d.ram.hide(slot + offset, len);
        p.d.run();
        let cause = raw(Syndrome::CmdQueueUnreachable);
        assert_eq!(told(&mut p), [(EventType::DeviceFatal, 0, cause)]);
        dead(&mut p, Syndrome::CmdQueueUnreachable);
    }
}

#[test]
fn data_on_every_path() {
    // By reference and through frames: the source of a WRITE, the target of a READ, both at the
    // peer, and a receive.
    for wire_local in [false, true] {
        let config = || crate::Config {
            wire_local,
            ..Default::default()
        };
        let local = |mut p: Pair, wr: SendWr, cause| {
            p.d.post_send(&mut p.a, &wr);
            p.d.pass(3_000_000_000);
            let done = p.d.poll(&mut p.cq_a).unwrap();
            assert_eq!(
                (done.status(), done.cqe.vendor_err.get()),
                (WcStatus::LocProtErr, raw(cause)),
                "{wr:?}"
            );
            assert_eq!(told(&mut p), []);
        };
        let remote = |mut p: Pair, wr: SendWr| {
            p.d.post_send(&mut p.a, &wr);
            p.d.pass(3_000_000_000);
            assert_eq!(
                p.d.drain(&mut p.cq_a),
                [(1, WcStatus::RemAccessErr)],
                "{wire_local} {wr:?}"
            );
            let events = told(&mut p);
            assert_eq!(events[0].0, EventType::QpAccessErr);
            assert_eq!(events[0].2, raw(Syndrome::RkeyUnreachable));
            assert_eq!(events.len(), 1);
        };
        let fresh = || {
            let mut p = Pair::on(Driver::with(config()));
            let (gone, good) = (p.d.region(8192, 1), p.d.region(8192, 2));
            // The second page becomes unreachable. The accesses begin on the first page and reach
            // into the second one.
            p.d.ram.hide(gone.0 + 4096, 4096);
            (p, gone, good)
        };
        let (p, (at, key), (to, rkey)) = fresh();
        let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(at + 4000, 200, key)]).to(to, rkey);
        local(p, wr, Syndrome::LkeyUnreachable);
        let (p, (at, key), (to, rkey)) = fresh();
        let wr = SendWr::new(WqeOpcode::RdmaRead, 1, &[(at + 4000, 200, key)]).to(to, rkey);
        local(p, wr, Syndrome::LkeyUnreachable);
        let (p, (at, key), (to, lkey)) = fresh();
        let wr = SendWr::new(WqeOpcode::RdmaWrite, 1, &[(to, 200, lkey)]).to(at + 4000, key);
        remote(p, wr);
        let (p, (at, key), (to, lkey)) = fresh();
        let wr = SendWr::new(WqeOpcode::RdmaRead, 1, &[(to, 200, lkey)]).to(at + 4000, key);
        remote(p, wr);
        let (mut p, (at, key), (from, lkey)) = fresh();
        p.d.post_recv(&mut p.b, 5, &[(at + 4000, 200, key)]);
        let wr = SendWr::new(WqeOpcode::Send, 1, &[(from, 200, lkey)]);
        p.d.post_send(&mut p.a, &wr);
        p.d.pass(3_000_000_000);
        assert_eq!(p.d.drain(&mut p.cq_a), [(1, WcStatus::RemOpErr)]);
        let done = p.d.poll(&mut p.cq_b).unwrap();
        assert_eq!(
            (done.status(), done.cqe.vendor_err.get()),
            (WcStatus::LocProtErr, raw(Syndrome::LkeyUnreachable))
        );
    }
}

#[test]
fn the_ring_that_a_cq_moves_from() {
    let mut p = Pair::new();
    p.d.post_send(&mut p.a, &write(1));
    p.d.run();
    p.d.ram.hide(p.cq_a.ring, 64);
    let e = p.d.resize_cq(&mut p.cq_a, 3).unwrap_err();
    assert_eq!(
        (e.status, e.syndrome),
        (CmdStatus::BadAddress, Syndrome::CmdTranslation)
    );
    p.d.ram.unhide();
    p.d.post_send(&mut p.a, &write(2));
    let ok = WcStatus::Success;
    assert_eq!(p.d.drain(&mut p.cq_a), [(1, ok), (2, ok)]);
}
