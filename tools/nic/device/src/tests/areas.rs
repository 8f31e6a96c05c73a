// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Doorbell areas: the words that the device writes, the times at which it does, and the sleep of
//! each area.

use super::watched::{Op, Watched};
use super::*;
use crate::memory::GuestMemory;
use crate::mock::{flat, GuestWords, SendWr};
use verbena_abi::cmd::*;
use verbena_abi::ctx::QpState;
use verbena_abi::doorbell::{self, ArmMode, Words, AREA_SIZE, AREA_SLOTS};
use verbena_abi::regs::NUM_UARS;
use verbena_abi::stats::Counter;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

fn create_area(d: &mut Driver, uar: u32, addr: u64) {
    d.must(&CreateUar {
        uar: uar.into(),
        addr: addr.into(),
        ..Default::default()
    });
}

/// Returns the words of an area that have changed since the last call: offset and present value.
fn changed(d: &Driver, area: u64, before: &mut Vec<u8>) -> Vec<(usize, u32)> {
    let now = d.bytes(area, AREA_SIZE);
    let words = now.chunks_exact(4).zip(before.chunks_exact(4)).enumerate();
    let all = words
        .filter(|(_, (new, old))| new != old)
        .map(|(i, (new, _))| (4 * i, u32::from_le_bytes(new.try_into().unwrap())))
        .collect();
    *before = now;
    all
}

#[test]
fn an_object_clears_its_own_words_and_no_others() {
    let mut d = Driver::new();
    let area = d.alloc(AREA_SIZE as u64);
    let ring = d.alloc(8192);
    d.ram.write(area, &[0xee; AREA_SIZE]).unwrap();
    let mut before = d.bytes(area, AREA_SIZE);
    create_area(&mut d, 3, area);
    let begins = [(doorbell::SLEEP, 0), (doorbell::ALIVE, 1)];
    assert_eq!(changed(&d, area, &mut before), begins);
    let cq = d.create_cq(4);
    for slot in [0, 63, 64, AREA_SLOTS - 1] {
        let number = 20 + slot as u32 % 60;
        d.must(&CreateCq {
            cqn: number.into(),
            eqn: 1.into(),
            uar: 3.into(),
            slot: (slot as u16).into(),
            log_size: 4,
            ring: flat(ring),
            ..Default::default()
        });
        let word = (doorbell::cq_served(slot), 0);
        assert_eq!(changed(&d, area, &mut before), [word]);
        d.must(&CreateSrq {
            srqn: number.into(),
            uar: 3.into(),
            slot: (slot as u16).into(),
            log_size: 4,
            log_stride: 6,
            ring: flat(ring),
            ..Default::default()
        });
        let words = [
            (doorbell::recv_watch(slot), 0),
            (doorbell::srq_consumer(slot), 0),
        ];
        assert_eq!(changed(&d, area, &mut before), words);
        d.must(&DestroySrq {
            id: number.into(),
            ..Default::default()
        });
        // The slot now belongs to a queue pair.
        let mut request = d.qp_request(&cq, &cq);
        (request.qpn, request.uar, request.slot) = (number.into(), 3.into(), (slot as u16).into());
        d.must(&request);
        // The word is 0 since the SRQ had the slot.
        let word = (doorbell::recv_watch(slot), 0);
        assert_eq!(changed(&d, area, &mut before), []);
        d.to_init(number).unwrap();
        assert_eq!(changed(&d, area, &mut before), []);
        d.move_to(number, QpState::Err).unwrap();
        d.run();
        assert_eq!(changed(&d, area, &mut before), [(word.0, 1)]);
        d.move_to(number, QpState::Reset).unwrap();
        assert_eq!(changed(&d, area, &mut before), [word]);
        d.to_init(number).unwrap();
        d.move_to(number, QpState::Err).unwrap();
        assert_eq!(changed(&d, area, &mut before), [(word.0, 1)]);
        d.must(&DestroyQp {
            id: number.into(),
            ..Default::default()
        });
        assert_eq!(changed(&d, area, &mut before), [word]);
        d.must(&DestroyCq {
            id: number.into(),
            ..Default::default()
        });
        assert_eq!(changed(&d, area, &mut before), []);
    }
    d.must(&DestroyUar {
        id: 3.into(),
        ..Default::default()
    });
    assert_eq!(changed(&d, area, &mut before), [(doorbell::ALIVE, 0)]);
}

/// A program whose area sleeps has to see that the device is dead when it posts again.
#[test]
fn sleeping_areas_show_a_fatal_error() {
    let mut d = Driver::new();
    d.create_cq(6);
    assert!(d.device.fall_asleep(&d.ram));
    let sleep = d.words().load(doorbell::SLEEP);
    assert_eq!((sleep % 2, d.words().load(doorbell::ALIVE)), (1, 1));
    d.device.fail(&d.ram, Syndrome::EngineFailure);
    assert_eq!(d.words().load(doorbell::ALIVE), 0);
}

#[test]
fn a_slot_works_again_for_a_new_owner() {
    let mut p = Pair::new();
    for qpn in [p.a.qpn, p.b.qpn] {
        p.d.must(&DestroyQp {
            id: qpn.into(),
            ..Default::default()
        });
    }
    let mut srq = p.share();
    p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
    p.d.connect(&p.a, &p.b);
    for round in 0..3 {
        // Entries are taken, arms are served, and a queue pair fails.
        for i in 0..5 {
            p.d.post_srq(&mut srq, i, &[]);
            p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, i, &[]));
        }
        for seq in 1..4 {
            p.d.arm(&mut p.cq_b, ArmMode::Next);
            assert_eq!(p.cq_b.arm.seq, seq);
            let numbers: Vec<_> = p.d.drain(&mut p.cq_b).iter().map(|d| d.0).collect();
            p.d.post_srq(&mut srq, 7, &[]);
            p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::Send, 7, &[]));
            p.d.run();
            assert!(!numbers.is_empty(), "round {round}");
            let events: Vec<_> = p.d.events(1).iter().map(|e| e.number).collect();
            assert_eq!(events, [p.cq_b.cqn], "round {round}, arm {seq}");
        }
        let slot = |slot: u16| usize::from(slot);
        let words = p.d.words();
        assert_eq!(words.load(doorbell::cq_served(slot(p.cq_b.slot))), 3);
        assert_eq!(words.load(doorbell::srq_consumer(slot(srq.slot))), 8);
        p.d.drain(&mut p.cq_a);
        p.d.move_to(p.b.qpn, QpState::Err).unwrap();
        p.d.run();
        for qpn in [p.a.qpn, p.b.qpn] {
            p.d.must(&DestroyQp {
                id: qpn.into(),
                ..Default::default()
            });
        }
        p.d.must(&DestroySrq {
            id: srq.srqn.into(),
            ..Default::default()
        });
        for cqn in [p.cq_a.cqn, p.cq_b.cqn] {
            p.d.must(&DestroyCq {
                id: cqn.into(),
                ..Default::default()
            });
        }
        p.d.events(0);
        for freed in [p.cq_a.slot, p.cq_b.slot, srq.slot, p.a.slot, p.b.slot] {
            p.d.free_slot(freed);
        }
        // The slots get new owners.
        (p.cq_a, p.cq_b) = (p.d.create_cq(6), p.d.create_cq(6));
        p.a = p.d.create_qp(&p.cq_a, &p.cq_a);
        srq = p.share();
        p.d.connect(&p.a, &p.b);
    }
}

#[test]
fn each_area_sleeps_and_wakes_by_itself() {
    let mut d = Driver::new();
    let second = d.alloc(AREA_SIZE as u64);
    create_area(&mut d, 1, second);
    let sleep = |d: &Driver| {
        [d.area, second].map(|base| GuestWords { ram: &d.ram, base }.load(doorbell::SLEEP))
    };
    assert_eq!(sleep(&d), [0, 0]);
    assert!(d.device.fall_asleep(&d.ram));
    assert_eq!(sleep(&d), [1, 1]);
    // Areas that are asleep stay asleep.
    assert!(d.device.fall_asleep(&d.ram));
    assert_eq!(sleep(&d), [1, 1]);
    let doorbells = |d: &Driver| d.device.stats()[Counter::Doorbells as usize];
    let slice = |d: &mut Driver| d.device.run_slice(&d.ram, d.now).busy;
    for _ in 0..1000 {
        d.device.ring(1);
    }
    assert_eq!(d.device.areas.lists().1, [1], "the area is noted once");
    assert!(slice(&mut d), "the area was rung");
    assert_eq!(sleep(&d), [1, 2]);
    assert!(!slice(&mut d));
    // Doorbells of an area that is awake and of areas that do not exist are only counted.
    for uar in [1, 2, NUM_UARS - 1, NUM_UARS, u32::MAX] {
        d.device.ring(uar);
    }
    slice(&mut d);
    assert_eq!((sleep(&d), doorbells(&d)), ([1, 2], 1005));
    d.device.ring(0);
    assert!(!d.device.fall_asleep(&d.ram), "area 0 was rung");
    assert_eq!(sleep(&d), [1, 3]);
    slice(&mut d);
    assert_eq!(sleep(&d), [2, 3]);
    // The areas sleep and wake repeatedly.
    for n in 0..3 {
        assert!(d.device.fall_asleep(&d.ram));
        assert_eq!(sleep(&d), [3 + 2 * n, 3 + 2 * n]);
        d.device.ring(1);
        d.device.ring(0);
        assert!(slice(&mut d));
        assert_eq!(sleep(&d), [4 + 2 * n, 4 + 2 * n]);
    }
}

#[test]
fn silent_areas_are_put_to_sleep_if_more_than_two_are_awake() {
    // With two areas none is put to sleep. With three, every area that was silent for more than 2
    // ms is, whatever the others do.
    for areas in [2, 3] {
        for wait in [2_000_000, 2_000_001, 5_000_000] {
            let mut d = Driver::new();
            let mut bases = vec![d.area];
            for uar in 1..areas {
                bases.push(d.alloc(AREA_SIZE as u64));
                create_area(&mut d, uar, bases[uar as usize]);
            }
            let mut cq = d.create_cq(2);
            d.run();
            let found = |uar: u32| d.device.shared.uars.get(uar).unwrap().last_found;
            d.now = found(1).max(found(areas - 1)) + wait;
            // The first area gets an arm.
            d.arm(&mut cq, ArmMode::Next);
            for _ in 0..3 {
                d.device.run_slice(&d.ram, d.now);
            }
            let asleep = |base: &u64| {
                let words = GuestWords {
                    ram: &d.ram,
                    base: *base,
                };
                words.load(doorbell::SLEEP) % 2 == 1
            };
            let silent = bases[1..].iter().filter(|base| asleep(base)).count();
            let expected = if areas == 3 && wait > 2_000_000 { 2 } else { 0 };
            assert_eq!(silent, expected, "{areas} areas, {wait} ns");
        }
    }
}

#[test]
fn the_sleep_word_is_stored_before_the_last_scan() {
    let p = &mut Pair::new();
    let area = p.d.area;
    let stored = |ops: &[Op], value: u64| {
        let word = Op::Store(area + doorbell::SLEEP as u64, 4, value);
        ops.iter().position(|op| *op == word)
    };
    let looked = |ops: &[Op]| -> Vec<usize> {
        let counters = [
            doorbell::qp_generation(0),
            doorbell::qp_generation(1),
            doorbell::cq_generation(0),
            doorbell::cq_generation(1),
        ];
        let of = |word: usize| Op::Load(area + word as u64, 4);
        let last = |word: usize| ops.iter().rposition(|op| *op == of(word));
        counters.into_iter().filter_map(last).collect()
    };
    let mem = Watched::new(&p.d.ram);
    assert!(p.d.device.fall_asleep(&mem));
    let ops = mem.ops();
    let at = stored(&ops, 1).expect("the odd word");
    assert_eq!(looked(&ops).len(), 4);
    assert!(looked(&ops).into_iter().all(|look| look > at));
    // The device does not look at a sleeping area before its doorbell is rung.
    let mem = Watched::new(&p.d.ram);
    p.d.device.run_slice(&mem, p.d.now);
    assert!(!mem.ops().iter().any(|op| op.touches(area, 0x2000)));
    p.d.device.ring(0);
    let mem = Watched::new(&p.d.ram);
    p.d.device.run_slice(&mem, p.d.now);
    let ops = mem.ops();
    let at = stored(&ops, 2).expect("the even word");
    assert_eq!(looked(&ops).len(), 4);
    assert!(looked(&ops).into_iter().all(|look| look > at));
}

#[test]
fn a_destroyed_area_is_not_accessed() {
    let mut d = Driver::new();
    for ring_before in [false, true] {
        let area = d.alloc(AREA_SIZE as u64);
        create_area(&mut d, 1, area);
        if ring_before {
            assert!(d.device.fall_asleep(&d.ram));
            d.device.ring(1);
        }
        d.must(&DestroyUar {
            id: 1.into(),
            ..Default::default()
        });
        d.ram.write(area, &[0xee; AREA_SIZE]).unwrap();
        let mem = Watched::new(&d.ram);
        for _ in 0..3 {
            d.now += 5_000_000;
            d.device.run_slice(&mem, d.now);
            d.device.ring(1);
            d.device.fall_asleep(&mem);
        }
        d.device.fail(&mem, Syndrome::EngineFailure);
        let touched = |op: &&Op| op.touches(area, AREA_SIZE as u64);
        assert_eq!(mem.ops().iter().find(touched), None);
        d.device.reset();
        d.bring_up();
    }
}

#[test]
fn a_new_area_keeps_no_state_of_the_last_one() {
    let mut d = Driver::new();
    let cq = d.create_cq(4);
    for round in 0..3 {
        let base = d.alloc(AREA_SIZE as u64);
        create_area(&mut d, 1, base);
        let mut request = d.qp_request(&cq, &cq);
        (request.uar, request.slot) = (1.into(), 127.into());
        let qp = d.create_qp_by(&request).unwrap();
        d.to_init(qp.qpn).unwrap();
        d.to_rtr(qp.qpn, 77, Driver::path(0, 8)).unwrap();
        d.to_rts(qp.qpn).unwrap();
        let write = SendWr::new(WqeOpcode::RdmaWrite, 1, &[]).encode();
        d.ram.write(qp.sq, &write).unwrap();
        // The generation counter has the same value in each round.
        doorbell::post_send(&GuestWords { ram: &d.ram, base }, 127, 1, || {});
        d.run();
        let left = std::iter::from_fn(|| d.device.next_frame()).count();
        assert_eq!(left, 1, "round {round}");
        assert_eq!(d.device.areas.lists().0, [0, 1], "each once");
        d.must(&DestroyQp {
            id: qp.qpn.into(),
            ..Default::default()
        });
        d.must(&DestroyUar {
            id: 1.into(),
            ..Default::default()
        });
        d.run();
    }
}

#[test]
fn up_to_two_areas_stay_awake_without_posts() {
    for (areas, sleeps) in [(1, false), (2, false), (3, true)] {
        let mut p = Pair::new();
        let mut bases = vec![];
        for uar in 1..areas {
            let base = p.d.alloc(AREA_SIZE as u64);
            create_area(&mut p.d, uar, base);
            bases.push(base);
        }
        for i in 0..100 {
            p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, i, &[]));
            p.d.pass(100_000);
            assert_eq!(p.d.drain(&mut p.cq_a).len(), 1);
        }
        let words = bases.iter().map(|&base| GuestWords {
            ram: &p.d.ram,
            base,
        });
        let asleep = words.filter(|w| w.load(doorbell::SLEEP) & 1 != 0).count();
        assert_eq!(asleep, if sleeps { bases.len() } else { 0 }, "{areas}");
        assert_eq!(p.d.words().load(doorbell::SLEEP), 0);
    }
}
