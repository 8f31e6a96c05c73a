// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands: the contents of their replies, and limits that belong to no other file.

use super::*;
use crate::memory::GuestMemory;
use crate::mock::{flat, SendWr, BASE};
use verbena_abi::cmd::*;
use verbena_abi::ctx::QpState;
use verbena_abi::doorbell::ArmMode;
use verbena_abi::eqe::{EventType, LOG_EQE_SIZE};
use verbena_abi::stats::{Counter, NUM_COUNTERS};
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

#[test]
fn replies_to_destroy_and_reset_have_the_indexes_of_the_event_queues() {
    let mut p = Pair::new();
    let srq = p.d.create_srq();
    p.d.create_eq(2).unwrap();
    let (ring, slot) = (p.d.alloc(4096), p.d.slot());
    // A CQ on another event queue.
    let other = CreateCq {
        cqn: 60.into(),
        eqn: 2.into(),
        slot: slot.into(),
        log_size: 4,
        ring: flat(ring),
        ..Default::default()
    };
    p.d.must(&other);
    let events = |d: &mut Driver, count: u32| {
        for number in 0..count {
            let shared = &mut d.device.shared;
            shared.async_event(&d.ram, EventType::CommEst, 200 + number, None);
        }
        d.run();
    };
    for _ in 0..3 {
        p.d.arm(&mut p.cq_a, ArmMode::Next);
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
        assert_eq!(p.d.drain(&mut p.cq_a).len(), 1);
        assert_eq!(p.d.events(1).len(), 1);
    }
    let told = |reply: Quiesced| {
        (
            reply.async_pi.get(),
            reply.comp_pi.get(),
            reply.recv_held.get(),
        )
    };
    events(&mut p.d, 2);
    let reply = p.d.move_to(p.a.qpn, QpState::Reset).unwrap();
    assert_eq!(told(reply), (2, 0, 0));
    events(&mut p.d, 1);
    let reply = p.d.must(&DestroyQp {
        id: p.a.qpn.into(),
        ..Default::default()
    });
    assert_eq!(told(reply), (3, 0, 0));
    events(&mut p.d, 1);
    let reply = p.d.must(&DestroySrq {
        id: srq.srqn.into(),
        ..Default::default()
    });
    assert_eq!(told(reply), (4, 0, 0));
    events(&mut p.d, 1);
    for (cqn, comp) in [(p.cq_a.cqn, 3), (60, 0)] {
        let reply = p.d.must(&DestroyCq {
            id: cqn.into(),
            ..Default::default()
        });
        assert_eq!(told(reply), (5, comp, 0));
    }
    // The index does not count events that wait for room.
    events(&mut p.d, 30);
    let reply = p.d.move_to(p.b.qpn, QpState::Reset).unwrap();
    assert_eq!(told(reply), (16, 0, 0));
}

#[test]
fn each_event_queue_raises_its_own_vector() {
    let mut d = Driver::new();
    d.run();
    for (eqn, vector) in [(5u32, 31u16), (6, 1), (7, 0), (63, 16)] {
        let (ring, ci_addr) = (d.alloc(4096), d.alloc(4));
        d.must(&CreateEq {
            eqn: eqn.into(),
            vector: vector.into(),
            log_size: 4,
            log_entry_size: LOG_EQE_SIZE,
            ring: flat(ring),
            ci_addr: ci_addr.into(),
            ..Default::default()
        });
        let (mut cq, entries) = (d.create_cq(4), d.alloc(4096));
        d.must(&DestroyCq {
            id: cq.cqn.into(),
            ..Default::default()
        });
        d.must(&CreateCq {
            cqn: cq.cqn.into(),
            eqn: eqn.into(),
            slot: cq.slot.into(),
            log_size: 4,
            ring: flat(entries),
            ..Default::default()
        });
        d.device.take_interrupts();
        d.arm(&mut cq, ArmMode::Next);
        let tail = verbena_abi::cqe::Tail {
            status: 0,
            opcode: 0,
            wc_flags: 0,
        };
        let before = d.device.stats()[Counter::Interrupts as usize];
        let shared = &mut d.device.shared;
        shared.write_cqe(&d.ram, cq.cqn, &Default::default(), tail, false);
        d.device.run_slice(&d.ram, d.now);
        assert_eq!(d.device.take_interrupts(), 1 << vector);
        assert_eq!(d.device.take_interrupts(), 0);
        let count = d.device.stats()[Counter::Interrupts as usize] - before;
        assert_eq!(count, 1);
    }
}

#[test]
fn query_stats_needs_room_for_the_counters_that_it_writes() {
    let mut p = Pair::new();
    let mut end = BASE;
    while p.d.ram.contains(end, 4096) {
        end += 4096;
    }
    let all = NUM_COUNTERS as u32;
    for (kind, id) in [(StatsKind::Port, 0), (StatsKind::Qp, p.a.qpn)] {
        for (addr, count, told) in [
            (end - 8 * u64::from(all), all, Ok(all)),
            // The device has no more counters.
            (end - 8 * u64::from(all), all + 1, Ok(all)),
            (end - 8 * u64::from(all), u32::MAX, Ok(all)),
            (
                end - 8 * u64::from(all - 1),
                all,
                Err(CmdStatus::BadAddress),
            ),
            (end - 8 * u64::from(all - 1), all - 1, Ok(all - 1)),
            (end - 8, 1, Ok(1)),
            (end - 8, 2, Err(CmdStatus::BadAddress)),
            (end, 1, Err(CmdStatus::BadAddress)),
            (end - 4, 0, Err(CmdStatus::Invalid)),
            (end - 8, 0, Ok(0)),
        ] {
            let got = p.d.cmd(&QueryStats {
                kind: kind.to_raw(),
                port: 1,
                id: id.into(),
                addr: addr.into(),
                count: count.into(),
                ..Default::default()
            });
            let got = got.map(|r| r.count.get()).map_err(|e| e.status);
            assert_eq!(got, told, "{kind:?} {count}");
        }
    }
}

#[test]
fn query_stats_fails_if_its_memory_cannot_be_reached_any_more() {
    let mut d = Driver::new();
    d.room_for::<verbena_abi::ctx::QpContext>(Table::Qpc, 1300);
    let cq = d.create_cq(4);
    let mut request = d.qp_request(&cq, &cq);
    request.qpn = 1200.into();
    d.must(&request);
    let addr = d.alloc(4096);
    let query = QueryStats {
        port: 1,
        addr: addr.into(),
        count: (NUM_COUNTERS as u32).into(),
        ..Default::default()
    };
    d.begin_cmd(2, &query);
    d.device.run_slice(&d.ram, d.now);
    assert!(!d.is_answered(2));
    d.ram.hide(addr + 64, 8);
    d.run();
    let unreachable = Syndrome::CmdTranslation.to_raw();
    assert_eq!(d.answer(2), (CmdStatus::BadAddress, unreachable));
    assert!(!d.regs.is_fatal());
}

#[test]
fn the_gsi_queue_pair_has_number_1() {
    let mut d = Driver::new();
    let cq = d.create_cq(4);
    let request = d.qp_request(&cq, &cq);
    for qpn in [0, 2, 7, 8, 9, 100] {
        let gsi = CreateQp {
            qpn: qpn.into(),
            qp_type: QpType::Gsi.to_raw(),
            port: 1,
            ..request
        };
        let e = d.cmd(&gsi).unwrap_err();
        let expected = (CmdStatus::Invalid, Syndrome::CmdNumber);
        assert_eq!((e.status, e.syndrome), expected, "{qpn}");
    }
    for (qpn, kind) in [(1, QpType::Gsi), (8, QpType::Rc), (9, QpType::Ud)] {
        let slot = d.slot();
        d.must(&CreateQp {
            qpn: qpn.into(),
            qp_type: kind.to_raw(),
            port: u8::from(qpn == 1),
            slot: slot.into(),
            ..request
        });
    }
}

#[test]
fn a_region_keeps_nothing_of_an_earlier_one_of_its_number() {
    // A region has the tag and the rights of its own creation, whatever an earlier region of its
    // number had.
    let mut p = Pair::new();
    let (at, key) = p.d.region(4096, 1);
    for (round, rights) in [(1u64, 0), (2, 0xf), (3, 0)] {
        let tag = key & !0xff | round as u32;
        p.d.must(&DestroyMr {
            id: key.into(),
            ..Default::default()
        });
        p.d.create_mr(tag, at, 4096, rights).unwrap();
        p.b = p.d.create_qp(&p.cq_b, &p.cq_b);
        p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
        p.d.connect(&p.a, &p.b);
        let mut wr = SendWr::new(WqeOpcode::RdmaWrite, round, &[]).to(at, tag);
        wr.inline = vec![round as u8; 8];
        p.d.post_send(&mut p.a, &wr);
        let done = p.d.drain(&mut p.cq_a);
        assert_eq!(done[0].1.to_raw() == 0, rights != 0, "round {round}");
        let landed = p.d.bytes(at, 8) == [round as u8; 8];
        assert_eq!(landed, rights != 0);
    }
}

#[test]
fn a_destroyed_object_drops_its_own_waiting_events() {
    use EventType::*;
    let of_qps = [
        QpFatal,
        QpReqErr,
        QpAccessErr,
        CommEst,
        SqDrained,
        QpLastWqeReached,
    ];
    let all: Vec<EventType> = of_qps
        .into_iter()
        .chain([CqErr, SrqLimitReached, SrqErr])
        .collect();
    type Go = fn(&mut Driver);
    let goings: [(&[EventType], Go); 4] = [
        (&[CqErr], |d| {
            d.must(&DestroyCq {
                id: 40.into(),
                ..Default::default()
            });
        }),
        (&[SrqLimitReached, SrqErr], |d| {
            d.must(&DestroySrq {
                id: 40.into(),
                ..Default::default()
            });
        }),
        (&of_qps, |d| {
            d.must(&DestroyQp {
                id: 40.into(),
                ..Default::default()
            });
        }),
        (&of_qps, |d| {
            d.move_to(40, QpState::Reset).unwrap();
        }),
    ];
    for (own, go) in goings {
        let mut d = Driver::new();
        let cq = d.create_cq(4);
        let ring = flat(d.alloc(4096));
        let slots = [d.slot(), d.slot()];
        // A CQ, an SRQ and a queue pair with the same number.
        d.must(&CreateCq {
            cqn: 40.into(),
            eqn: 1.into(),
            slot: slots[0].into(),
            log_size: 4,
            ring,
            ..Default::default()
        });
        d.must(&CreateSrq {
            srqn: 40.into(),
            slot: slots[1].into(),
            log_size: 4,
            log_stride: 6,
            ring,
            ..Default::default()
        });
        let mut request = d.qp_request(&cq, &cq);
        request.qpn = 40.into();
        d.must(&request);
        let shared = &mut d.device.shared;
        for number in 1000..1016 {
            shared.async_event(&d.ram, CommEst, number, None);
        }
        for kind in &all {
            shared.async_event(&d.ram, *kind, 40, None);
            shared.async_event(&d.ram, *kind, 41, None);
        }
        go(&mut d);
        let mut told = vec![];
        for _ in 0..5 {
            told.extend(d.events(0));
            d.pass(20_000_000);
        }
        let told: Vec<_> = told[16..].iter().map(|e| (e.kind, e.number)).collect();
        let stays = |kind: &&EventType| !own.contains(kind);
        let mut expected: Vec<_> = all.iter().filter(stays).map(|k| (*k, 40)).collect();
        expected.extend(all.iter().map(|k| (*k, 41)));
        let sorted = |mut list: Vec<(EventType, u32)>| {
            list.sort_by_key(|e| (e.0 as u32, e.1));
            list
        };
        assert_eq!(sorted(told), sorted(expected), "{own:?}");
    }
}
