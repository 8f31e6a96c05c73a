// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A completion queue, compared with a model of section 7 of the device specification: entries,
//! overflow, arms, moderation and moves to other rings, in random order.

use super::Dice;
use crate::memory::GuestMemory;
use crate::mock::{CqHandle, Driver};
use verbena_abi::cmd::{ModifyCq, QueryCq, Table};
use verbena_abi::cqe::{Cqe, Tail};
use verbena_abi::ctx::{CqContext, QueueState};
use verbena_abi::doorbell::{self, Arm, ArmMode, Words};
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;

/// Longest delay of a timer in nanoseconds, because timers count in ticks.
const TICKS: u64 = 20_000;

const TAIL: Tail = Tail {
    status: 0,
    opcode: 0,
    wc_flags: 0,
};

/// Model of a CQ, from the specification.
#[derive(Debug)]
struct Model {
    /// Entries from `first` on; true if an entry is solicited.
    entries: Vec<bool>,
    /// Index of the first entry of all, and the consumer index.
    first: u32,
    ci: u32,
    size: u32,
    dead: bool,
    arm: Arm,
    served: u32,
    /// Producer index at the last notification.
    notified: u32,
    /// Moderation: entries, nanoseconds, and the time of the first entry that an event has yet to
    /// report.
    count: u32,
    period: u64,
    since: Option<u64>,
    /// True while the driver has not taken an event of this CQ.
    waits: bool,
    /// Number of events that the driver has yet to take.
    told: u32,
}

impl Model {
    fn pi(&self) -> u32 {
        self.first.wrapping_add(self.entries.len() as u32)
    }

    fn pending(&self) -> u32 {
        self.pi().wrapping_sub(self.ci)
    }

    fn write(&mut self, solicited: bool) {
        if self.pending() == self.size {
            self.dead = true;
        }
        if !self.dead {
            self.entries.push(solicited);
        }
    }

    /// Applies the device's look at the arm.
    fn look(&mut self, now: u64) {
        let asked = self.arm.mode != ArmMode::None && self.arm.seq != self.served;
        let at = |index: u32| index.wrapping_sub(self.first);
        let from = at(self.arm.index).max(at(self.notified)) as usize;
        let wanted = |s: &bool| self.arm.mode == ArmMode::Next || *s;
        let last = self.entries.iter().rposition(wanted);
        let Some(last) = last.filter(|last| asked && *last >= from) else {
            self.since = None;
            return;
        };
        if ((last + 1 - from) as u32) < self.count {
            let since = *self.since.get_or_insert(now);
            if now < since + self.period {
                return;
            }
        }
        self.since = None;
        self.served = self.arm.seq;
        self.notified = self.pi();
        if !self.waits {
            self.waits = true;
            self.told += 1;
        }
    }
}

/// The CQ of the device, and its model.
struct Both {
    d: Driver,
    cq: CqHandle,
    model: Model,
    written: u64,
    polled: u64,
}

impl Both {
    /// Creates a CQ whose indexes wrap after `before` more entries, and whose entries are all
    /// polled. With 0 the CQ is new.
    fn new(log_size: u8, before: u32) -> Self {
        let mut d = Driver::new();
        d.watch = u32::MAX;
        let mut cq = d.create_cq(log_size);
        let size = 1 << log_size;
        for part in (0..8).filter(|_| before != 0) {
            let count = (1 << 29) - size - if part == 0 { before } else { 0 };
            let shared = &mut d.device.shared;
            shared.cqs.get_mut(cq.cqn).unwrap().pass_by(count);
            cq.ci = cq.ci.wrapping_add(count);
            let consumer = doorbell::cq_consumer(cq.slot.into());
            d.words().store_release(consumer, cq.ci);
            for _ in 0..size {
                let shared = &mut d.device.shared;
                assert!(shared.write_cqe(&d.ram, cq.cqn, &Cqe::default(), TAIL, false));
            }
            while d.poll(&mut cq).is_some() {}
        }
        d.device.shared.notify_written(&d.ram);
        let first = cq.ci;
        assert_eq!(first, 0u32.wrapping_sub(before));
        let model = Model {
            entries: vec![],
            first,
            ci: first,
            size: 1 << log_size,
            dead: false,
            arm: cq.arm,
            served: 0,
            notified: first,
            count: 0,
            period: 0,
            since: None,
            waits: false,
            told: 0,
        };
        let mut both = Self {
            d,
            cq,
            model,
            written: 0,
            polled: 0,
        };
        both.d.run();
        both
    }

    fn write(&mut self, solicited: bool) {
        let body = Cqe {
            wr_id: self.written.into(),
            ..Default::default()
        };
        let shared = &mut self.d.device.shared;
        let there = shared.write_cqe(&self.d.ram, self.cq.cqn, &body, TAIL, solicited);
        self.model.write(solicited);
        assert_eq!(there, !self.model.dead);
        self.written += u64::from(there);
    }

    fn complete(&mut self, count: u32, solicited: bool) {
        self.d.device.shared.clock.begin(self.d.now);
        let before = self.written;
        for _ in 0..count {
            self.write(solicited);
        }
        self.d.device.shared.notify_written(&self.d.ram);
        if self.written != before {
            self.model.look(self.d.now);
        }
    }

    fn poll(&mut self, count: u32) {
        for _ in 0..count {
            let done = self.d.poll(&mut self.cq);
            let id = done.map(|d| d.cqe.wr_id.get());
            let expected = (self.model.pending() != 0).then_some(self.polled);
            assert_eq!(id, expected);
            if id.is_some() {
                self.polled += 1;
                self.model.ci = self.model.ci.wrapping_add(1);
            }
        }
    }

    fn arm(&mut self, mode: ArmMode) {
        self.d.arm(&mut self.cq, mode);
        self.model.arm = self.cq.arm;
        self.d.run();
        self.model.look(self.d.now);
    }

    fn moderate(&mut self, count: u16, period: u16) {
        self.d.must(&ModifyCq {
            cqn: self.cq.cqn.into(),
            moderation_count: count.into(),
            moderation_period: period.into(),
            ..Default::default()
        });
        (self.model.count, self.model.period) = (count.into(), u64::from(period) * 1000);
        self.model.look(self.d.now);
    }

    /// Resizes the CQ, if its entries have room in the other ring.
    fn resize(&mut self, log_size: u8) {
        let moved = self.d.resize_cq(&mut self.cq, log_size);
        let dead = self.model.dead.then_some(Syndrome::CqOverflow);
        let small = (self.model.pending() > 1 << log_size).then_some(Syndrome::CmdSize);
        assert_eq!(moved.err().map(|e| e.syndrome), dead.or(small));
        if dead.or(small).is_none() {
            self.model.size = 1 << log_size;
        }
    }

    fn pass(&mut self, nanoseconds: u64) {
        let due = self.model.since.map(|since| since + self.model.period);
        let Some(due) = due.filter(|due| *due <= self.d.now + nanoseconds) else {
            self.d.pass(nanoseconds);
            return;
        };
        self.model.look(due);
        // The timer may be late by up to [`TICKS`].
        self.d.pass(nanoseconds + TICKS);
    }

    /// Takes the events as the driver does, and compares them with the model.
    fn take_events(&mut self) {
        let told = self.d.events(1);
        let cqn = self.cq.cqn;
        assert!(told
            .iter()
            .all(|e| (e.kind, e.number) == (EventType::Completion, cqn)));
        assert_eq!(told.len() as u32, self.model.told);
        (self.model.waits, self.model.told) = (false, 0);
    }

    /// Compares the published context with the model.
    fn compare(&mut self) {
        self.d.must(&QueryCq {
            id: self.cq.cqn.into(),
            ..Default::default()
        });
        let at = u64::from(self.cq.cqn) * size_of::<CqContext>() as u64;
        let context: CqContext = self
            .d
            .ram
            .read_struct(self.d.table(Table::Cqc) + at)
            .unwrap();
        let model = &self.model;
        let state = if model.dead {
            QueueState::Err
        } else {
            QueueState::Ok
        };
        assert_eq!(context.state, state.to_raw());
        assert_eq!(1 << context.log_size, model.size);
        assert_eq!(context.producer_index.get(), model.pi());
        if !model.dead {
            assert_eq!(context.consumer_index.get(), model.ci);
        }
        assert_eq!(context.served_seq.get(), model.served);
        let served = doorbell::cq_served(self.cq.slot.into());
        assert_eq!(self.d.words().load_acquire(served), model.served);
        if model.notified != model.first {
            assert_eq!(context.notified_index.get(), model.notified);
        }
    }
}

fn play(seed: u64, before: u32, moderated: bool) {
    let mut dice = Dice(seed);
    let mut both = Both::new(3, before);
    for _ in 0..400 {
        match dice.roll(if moderated { 14 } else { 12 }) {
            // Up to as many entries as there is room for, and in one of 40 cases up to four entries
            // without that limit.
            0..=2 => {
                let room = both.model.size - both.model.pending();
                let count = dice.roll(5).min(if dice.roll(40) == 0 { 9 } else { room });
                both.complete(count, dice.roll(3) == 0);
            }
            3..=4 => {
                let most = dice.roll(6);
                both.poll(most);
            }
            5..=7 => {
                let mode = if dice.roll(2) == 0 {
                    ArmMode::Next
                } else {
                    ArmMode::Solicited
                };
                both.arm(mode);
            }
            8 => both.resize(1 + dice.roll(4) as u8),
            9..=10 => both.take_events(),
            11 => both.compare(),
            12 => both.pass(u64::from(dice.roll(40)) * 1000),
            _ => {
                let (count, period) = (dice.roll(5), dice.roll(4) * 25);
                both.moderate(count as u16, period as u16);
            }
        }
    }
    both.compare();
    both.take_events();
    // The entries of a CQ can be polled even if the CQ is in error, and no further entry appears.
    both.poll(17);
}

#[test]
fn random_operations_agree_with_the_model() {
    for seed in 0..40 {
        play(seed, 0, false);
    }
}

#[test]
fn random_operations_with_moderation_agree_with_the_model() {
    for seed in 100..140 {
        play(seed, 0, true);
    }
}

#[test]
fn random_operations_with_wrapping_indexes_agree_with_the_model() {
    for seed in 200..220 {
        play(seed, 1 + seed as u32 % 40, seed % 2 == 0);
    }
}
