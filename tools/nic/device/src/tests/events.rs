// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Event queues, compared with a model of section 8 of the device specification, and the events of
//! destroyed objects.

use super::Dice;
use crate::mock::Driver;
use crate::objects::eq::Event;
use crate::Config;
use std::collections::VecDeque;
use verbena_abi::cmd::*;
use verbena_abi::cqe::{Cqe, Tail};
use verbena_abi::ctx::{EqContext, QpState};
use verbena_abi::doorbell::ArmMode;
use verbena_abi::eqe::EventType;
use verbena_abi::regs;
use verbena_abi::syndrome::Syndrome;

const KINDS: [EventType; 4] = [
    EventType::QpFatal,
    EventType::CommEst,
    EventType::SqDrained,
    EventType::SrqLimitReached,
];

/// Model of an event queue of 4 entries, from the specification.
#[derive(Default)]
struct Model {
    ring: VecDeque<Event>,
    waiting: VecDeque<Event>,
    /// Number of entries written so far, taken so far, and written at the last flush.
    written: u32,
    taken: u32,
    told: u32,
    interrupts: u32,
}

impl Model {
    const SIZE: usize = 4;

    fn push(&mut self, event: Event) {
        if self.waiting.is_empty() && self.ring.len() < Self::SIZE {
            self.put(event);
            return;
        }
        let same = |e: &Event| (e.kind, e.number) == (event.kind, event.number);
        if !self.waiting.iter().any(same) {
            self.waiting.push_back(event);
        }
    }

    fn put(&mut self, event: Event) {
        self.ring.push_back(event);
        self.written += 1;
    }

    /// Applies the end of a slice: waiting events are written as far as there is room, and the
    /// interrupt is raised if the driver had taken all earlier entries.
    fn flush(&mut self) {
        while self.ring.len() < Self::SIZE {
            let Some(event) = self.waiting.pop_front() else {
                break;
            };
            self.put(event);
        }
        if self.written != self.told {
            let at_work = self.taken != self.told && self.taken < self.told;
            self.told = self.written;
            self.interrupts += u32::from(!at_work && !self.ring.is_empty());
        }
    }
}

#[test]
fn random_operations_agree_with_the_model() {
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let mut d = Driver::cold(Config::default());
        (d.log_eq, d.watch) = (2, u32::MAX);
        d.bring_up();
        d.run();
        let before = d.interrupts.get(&0).copied().unwrap_or(0);
        let mut model = Model::default();
        let mut cause = 0;
        for _ in 0..300 {
            match dice.roll(10) {
                0..=4 => {
                    let (kind, number) = (KINDS[dice.roll(4) as usize], dice.roll(3));
                    cause = (cause + 1) % 40;
                    let syndrome = Syndrome::from_raw(cause);
                    let (shared, ram) = (&mut d.device.shared, &d.ram);
                    shared.async_event(ram, kind, number, syndrome);
                    let syndrome = syndrome.map_or(0, |s| s.to_raw().into());
                    model.push(Event {
                        kind,
                        number,
                        syndrome,
                    });
                }
                5..=6 => {
                    for _ in 0..dice.roll(4) {
                        let event = d.event(0);
                        assert_eq!(event, model.ring.pop_front(), "seed {seed}");
                        model.taken += u32::from(event.is_some());
                    }
                }
                7 => {
                    let number = dice.roll(3);
                    let kinds = &KINDS[dice.roll(3) as usize..][..2];
                    d.device.shared.forget_events(ASYNC_EQN, number, kinds);
                    let gone = |e: &Event| e.number == number && kinds.contains(&e.kind);
                    model.waiting.retain(|e| !gone(e));
                }
                _ => {
                    d.run();
                    model.flush();
                    let told = d.interrupts.get(&0).copied().unwrap_or(0) - before;
                    assert_eq!(told, model.interrupts, "seed {seed}");
                    let context = d.device.shared.eqs.get(0).unwrap().context();
                    let shown: (u32, u32) = (context.producer_index.get(), context.waiting.get());
                    assert_eq!(shown, (model.written, model.waiting.len() as u32));
                }
            }
        }
    }
}

/// Reports an event of each kind, for objects with this number.
fn tell(d: &mut Driver, kinds: &[EventType], number: u32) {
    for &kind in kinds {
        let (shared, ram) = (&mut d.device.shared, &d.ram);
        shared.async_event(ram, kind, number, None);
    }
}

#[test]
fn a_destroyed_object_drops_its_waiting_events_and_no_others() {
    use EventType::*;
    let of_qps = [
        QpFatal,
        QpReqErr,
        QpAccessErr,
        CommEst,
        SqDrained,
        QpLastWqeReached,
    ];
    let of_srqs = [SrqErr, SrqLimitReached];
    let of_cqs = [CqErr];
    let all = [&of_cqs[..], &of_srqs, &of_qps].concat();
    for what in 0..4 {
        let mut d = Driver::cold(Config::default());
        d.log_eq = 1;
        d.bring_up();
        let cq = d.create_cq(2);
        let spare = d.create_cq(2);
        let qp = d.create_qp(&cq, &cq);
        let srq = d.create_srq();
        let (number, mine) = match what {
            0 | 1 => (qp.qpn, &of_qps[..]),
            2 => (srq.srqn, &of_srqs[..]),
            _ => (spare.cqn, &of_cqs[..]),
        };
        // Two events fill the queue.
        tell(&mut d, &[CommEst, SqDrained], 5000);
        tell(&mut d, &all, number);
        tell(&mut d, &all, number + 1);
        match what {
            0 => {
                d.move_to(qp.qpn, QpState::Reset).unwrap();
            }
            1 => {
                d.must(&DestroyQp {
                    id: number.into(),
                    ..Default::default()
                });
            }
            2 => {
                d.must(&DestroySrq {
                    id: number.into(),
                    ..Default::default()
                });
            }
            _ => {
                d.must(&DestroyCq {
                    id: number.into(),
                    ..Default::default()
                });
            }
        }
        // The next object with that number reports an event of its own.
        tell(&mut d, &mine[..1], number);
        let stays: Vec<_> = all.iter().filter(|k| !mine.contains(k)).copied().collect();
        let expected = [&stays[..], &mine[..1]].concat();
        let mut events = vec![];
        for _ in 0..20 {
            events.extend(d.events(0));
            d.pass(20_000_000);
        }
        let of = |n: u32| -> Vec<_> {
            let of = events.iter().filter(|e| e.number == n);
            of.map(|e| e.kind).collect()
        };
        assert_eq!(of(number), expected, "{what}");
        assert_eq!(of(number + 1), all, "{what}");
    }
}

/// Writes an entry to a CQ.
fn complete(d: &mut Driver, cqn: u32) {
    let tail = Tail {
        status: 0,
        opcode: 0,
        wc_flags: 0,
    };
    let shared = &mut d.device.shared;
    assert!(shared.write_cqe(&d.ram, cqn, &Cqe::default(), tail, false));
    shared.notify_written(&d.ram);
}

#[test]
fn a_waiting_event_of_another_kind_of_object_does_not_replace_a_cqs_event() {
    let mut d = Driver::cold(Config::default());
    d.log_eq = 2;
    d.bring_up();
    let (mut cq, mut other) = (d.create_cq(3), d.create_cq(3));
    // The fifth event of queue 0 waits for room. Its object has the number of a CQ.
    tell(&mut d, &KINDS, 5000);
    tell(&mut d, &[EventType::QpFatal], cq.cqn);
    // The fifth event of queue 1 is in the ring, for another CQ.
    for i in 0..5 {
        d.arm(&mut other, ArmMode::Next);
        complete(&mut d, other.cqn);
        d.run();
        d.poll(&mut other).unwrap();
        if i != 4 {
            assert_eq!(d.events(1).len(), 1);
        }
    }
    assert_eq!(d.events(0).len(), 4);
    d.pass(20_000_000);
    d.arm(&mut cq, ArmMode::Next);
    complete(&mut d, cq.cqn);
    d.run();
    let told: Vec<_> = d.events(1).iter().map(|e| e.number).collect();
    assert_eq!(told, [other.cqn, cq.cqn]);
}

#[test]
fn the_interrupt_is_not_repeated_while_the_driver_takes_events() {
    const NAG: u64 = 50_000_000;
    let told = |d: &Driver| d.interrupts.get(&0).copied().unwrap_or(0);
    let mut d = Driver::new();
    d.run();
    for number in 0..10 {
        tell(&mut d, &[EventType::CommEst], number);
    }
    d.run();
    let mut before = told(&d);
    // The driver takes an event from time to time, which shows that it is at work.
    for _ in 0..9 {
        d.pass(NAG - 1_000_000);
        assert_eq!(told(&d), before);
        d.event(0).unwrap();
        d.pass(1_000_000);
        assert_eq!(told(&d), before);
    }
    // The driver stops taking events.
    for _ in 0..3 {
        d.pass(NAG);
        before += 1;
        assert_eq!(told(&d), before);
    }
    // The driver takes the last event, so no interrupt follows until the next event, which raises
    // it at once.
    d.event(0).unwrap();
    d.pass(10 * NAG);
    assert_eq!(told(&d), before);
    tell(&mut d, &[EventType::CommEst], 1);
    d.run();
    assert_eq!(told(&d), before + 1);
    let next = d.device.run_slice(&d.ram, d.now);
    assert_eq!(next.deadline, Some(d.now + NAG));
}

#[test]
fn the_backoff_of_waiting_events_restarts_when_there_is_room() {
    let mut d = Driver::cold(Config::default());
    d.log_eq = 1;
    d.bring_up();
    for number in 0..6 {
        tell(&mut d, &[EventType::CommEst], number);
    }
    let next = |d: &mut Driver| {
        let next = d.device.run_slice(&d.ram, d.now);
        next.deadline.unwrap() - d.now
    };
    d.run();
    assert_eq!(next(&mut d), 100_000);
    // The backoff grows while the driver takes no events, and starts again after the driver has
    // taken some.
    d.pass(1_000_000_000);
    for left in [2, 0] {
        assert_eq!(d.events(0).len(), 2);
        d.run();
        assert_eq!(
            d.device.shared.eqs.get(0).unwrap().context().waiting.get(),
            left
        );
        let soon = if left == 0 { 50_000_000 } else { 100_000 };
        assert!(next(&mut d) <= soon, "{left}");
    }
    assert_eq!(d.events(0).len(), 2);
}

#[test]
fn the_interrupt_is_repeated_although_further_events_are_reported() {
    let told = |d: &Driver| d.interrupts.get(&0).copied().unwrap_or(0);
    let mut d = Driver::new();
    d.run();
    let before = told(&d);
    for number in 0..10 {
        tell(&mut d, &[EventType::CommEst], number);
        d.pass(30_000_000);
    }
    // One interrupt for the first event, and then one every 50 ms.
    assert_eq!(told(&d), before + 1 + 6);
}

#[test]
fn the_first_fatal_cause_stays_and_no_event_follows_it() {
    let mut d = Driver::new();
    d.run();
    tell(&mut d, &[EventType::CommEst], 1);
    let shared = &mut d.device.shared;
    shared.fatal(&d.ram, Syndrome::DeviceFatal);
    shared.fatal(&d.ram, Syndrome::EqUnwritable);
    let cause = Syndrome::DeviceFatal.to_raw();
    assert_eq!(d.regs.read(regs::FATAL_SYNDROME), cause.into());
    let told: Vec<_> = d.events(0).iter().map(|e| (e.kind, e.syndrome)).collect();
    let dead = (EventType::DeviceFatal, cause.into());
    assert_eq!(told, [(EventType::CommEst, 0), dead]);
    // An event queue in error gets no entries, even if its memory can be reached.
    let mut d = Driver::new();
    let before = d.device.shared.eqs.get(0).unwrap().context();
    d.device.shared.eqs.get_mut(0).unwrap().fail(&d.ram);
    tell(&mut d, &[EventType::CommEst], 1);
    let after: EqContext = d.device.shared.eqs.get(0).unwrap().context();
    assert_eq!(after.producer_index, before.producer_index);
    assert_eq!(d.events(0), []);
}
