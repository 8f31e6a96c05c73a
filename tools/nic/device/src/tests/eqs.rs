// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Event queues that are too small for the events that are due.

use crate::memory::GuestMemory;
use crate::mock::{flat, Driver, GuestWords, SendWr};
use crate::Config;
use verbena_abi::cmd::{CreateCq, CreateUar, DestroyCq, DestroyQp, Table};
use verbena_abi::cqe::{Cqe, Tail, CQE_SIZE};
use verbena_abi::ctx::{CqContext, EqContext, QueueState};
use verbena_abi::doorbell::{self, Arm, ArmMode, Words, AREA_SIZE, AREA_SLOTS};
use verbena_abi::eqe::EventType;
use verbena_abi::regs;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

const CQS: u32 = 2000;

/// Many CQs on event queue 1 of the mock driver, which has 16 entries. The CQNs begin with 0.
pub(super) struct Many {
    pub(super) d: Driver,
    /// DMA address of the first of consecutive areas.
    areas: u64,
    arms: Vec<Arm>,
    /// Number of entries written to each CQ.
    written: Vec<u32>,
}

impl Many {
    pub(super) fn new(cqs: u32) -> Self {
        let mut d = Driver::new();
        d.room_for::<CqContext>(Table::Cqc, cqs);
        let count = cqs.div_ceil(AREA_SLOTS as u32);
        let areas = d.alloc(u64::from(count) * AREA_SIZE as u64);
        for n in 0..count {
            d.must(&CreateUar {
                uar: (1 + n).into(),
                addr: (areas + u64::from(n) * AREA_SIZE as u64).into(),
                ..Default::default()
            });
        }
        let mut many = Self {
            d,
            areas,
            arms: Vec::new(),
            written: vec![0; cqs as usize],
        };
        for cqn in 0..cqs {
            many.create(cqn);
        }
        many
    }

    /// Creates a CQ, for the first time or again.
    fn create(&mut self, cqn: u32) {
        let ring = self.d.alloc(CQE_SIZE as u64 * 8);
        let (uar, slot) = Self::place(cqn);
        self.d.must(&CreateCq {
            cqn: cqn.into(),
            eqn: 1.into(),
            uar: (1 + uar).into(),
            slot: slot.into(),
            log_size: 3,
            ring: flat(ring),
            ..Default::default()
        });
        self.arms.truncate(cqn as usize);
        self.arms.push(Arm {
            index: 0,
            seq: 0,
            mode: ArmMode::None,
        });
        self.written[cqn as usize] = 0;
    }

    /// Does the same as [`Many::new`], and arms all CQs after the device has finished all other
    /// work.
    pub(super) fn armed(cqs: u32) -> Self {
        let mut many = Self::new(cqs);
        many.d.run();
        for cqn in 0..cqs {
            many.arm(cqn);
        }
        many
    }

    /// Returns the number of areas in which the device has seen an arm of the first group of slots.
    pub(super) fn seen(&self) -> u32 {
        let uars = self.d.device.shared.uars.iter();
        uars.filter(|(_, uar)| uar.cq_seen[0] != 0).count() as u32
    }

    fn place(cqn: u32) -> (u32, u16) {
        (cqn / AREA_SLOTS as u32, (cqn as usize % AREA_SLOTS) as u16)
    }

    /// Polls all of a CQ and arms it again.
    pub(super) fn arm(&mut self, cqn: u32) {
        let (uar, slot) = Self::place(cqn);
        let words = GuestWords {
            ram: &self.d.ram,
            base: self.areas + u64::from(uar) * AREA_SIZE as u64,
        };
        let index = self.written[cqn as usize];
        words.store_release(doorbell::cq_consumer(slot.into()), index);
        let arm = &mut self.arms[cqn as usize];
        doorbell::arm_cq(&words, slot.into(), arm, index, ArmMode::Next, || {});
    }

    pub(super) fn complete(&mut self, cqn: u32) {
        let tail = Tail {
            status: 0,
            opcode: 0,
            wc_flags: 0,
        };
        let shared = &mut self.d.device.shared;
        shared.write_cqe(&self.d.ram, cqn, &Cqe::default(), tail, false);
        shared.notify_written(&self.d.ram);
        self.written[cqn as usize] += 1;
    }

    /// Takes the events one by one. Arms the CQ of each event again and writes an entry to it, for
    /// `rounds` events of each CQ. Returns the number of events of each CQ.
    fn serve(&mut self, rounds: u32) -> Vec<u32> {
        let mut told = vec![0; CQS as usize];
        self.d.run();
        while let Some(event) = self.d.event(1) {
            assert_eq!(event.kind, EventType::Completion);
            let cqn = event.number;
            told[cqn as usize] += 1;
            if told[cqn as usize] < rounds {
                self.arm(cqn);
                self.complete(cqn);
            }
            self.d.run();
        }
        told
    }
}

#[test]
fn every_armed_cq_gets_its_event_with_a_small_event_queue() {
    let mut many = Many::new(CQS);
    for cqn in 0..CQS {
        many.arm(cqn);
        many.complete(cqn);
    }
    // Some are polled and armed again while their event waits for room.
    for cqn in (0..CQS).step_by(3) {
        many.arm(cqn);
        many.complete(cqn);
    }
    let told = many.serve(4);
    let missed: Vec<_> = (0..CQS).filter(|&c| told[c as usize] < 4).collect();
    assert_eq!(missed, []);
}

#[test]
fn an_event_does_not_overtake_those_that_wait_for_room() {
    let mut many = Many::new(CQS);
    for cqn in 0..CQS {
        many.arm(cqn);
        many.complete(cqn);
    }
    many.d.run();
    let mut told = vec![];
    while let Some(event) = many.d.event(1) {
        told.push(event.number);
        // The next event of the CQ is due before the device has filled the free entry.
        if told.len() == 1 {
            many.arm(event.number);
            many.complete(event.number);
        }
        many.d.run();
    }
    let in_order: Vec<u32> = (0..CQS).chain([0]).collect();
    assert_eq!(told, in_order);
}

#[test]
fn a_destroyed_cq_drops_no_other_event() {
    let mut many = Many::new(CQS);
    for cqn in 0..CQS {
        many.arm(cqn);
        many.complete(cqn);
    }
    // The events that wait after theirs move up.
    let gone = [20, 21, 1000];
    for cqn in gone {
        many.d.must(&DestroyCq {
            id: cqn.into(),
            ..Default::default()
        });
    }
    let told = many.serve(4);
    for cqn in 0..CQS {
        let due = if gone.contains(&cqn) { 0 } else { 4 };
        assert_eq!(told[cqn as usize], due, "CQ {cqn}");
    }
}

#[test]
fn events_of_a_cq_are_merged_with_the_one_that_waited() {
    let mut many = Many::new(CQS);
    for cqn in 0..20 {
        many.arm(cqn);
        many.complete(cqn);
    }
    assert_eq!(many.d.events(1).len(), 16);
    // Now the last four are in the ring.
    many.d.pass(1_000_000);
    for _ in 0..5 {
        many.arm(19);
        many.complete(19);
    }
    let events = many.d.events(1);
    assert_eq!(events.iter().filter(|e| e.number == 19).count(), 1);
}

#[test]
fn the_device_looks_for_room_with_a_backoff() {
    let mut many = Many::new(20);
    for cqn in 0..20 {
        many.arm(cqn);
        many.complete(cqn);
    }
    let (mut slices, end) = (0, many.d.now + 1_000_000_000);
    while many.d.now < end {
        many.d.run();
        let next = many.d.device.run_slice(&many.d.ram, many.d.now);
        many.d.now = many.d.now.max(next.deadline.unwrap());
        slices += 1;
    }
    assert!((50..300).contains(&slices), "{slices} slices in a second");
    // When the driver takes events again, it gets all of them.
    assert_eq!(many.d.events(1).len(), 16);
    many.d.pass(10_000_000);
    assert_eq!(many.d.events(1).len(), 4);
}

#[test]
fn a_new_cq_gets_its_event_after_that_of_its_number_was_dropped() {
    let mut many = Many::new(20);
    for cqn in 0..20 {
        many.arm(cqn);
        many.complete(cqn);
    }
    // The event of CQ 19 waits for room, and is dropped with the CQ.
    many.d.must(&DestroyCq {
        id: 19.into(),
        ..Default::default()
    });
    let words = GuestWords {
        ram: &many.d.ram,
        base: many.areas,
    };
    words.store(doorbell::cq_consumer(19), 0);
    words.store64_release(doorbell::cq_arm(19), 0);
    many.create(19);
    many.arm(19);
    many.complete(19);
    assert_eq!(many.d.events(1).len(), 16);
    many.d.pass(10_000_000);
    let told: Vec<_> = many.d.events(1).iter().map(|e| e.number).collect();
    assert_eq!(told, [16, 17, 18, 19]);
}

#[test]
fn a_destroyed_object_drops_no_event_of_another_kind() {
    let mut d = Driver::cold(Config::default());
    d.log_eq = 1;
    d.bring_up();
    let others = d.create_cq(6);
    // A CQ of one entry and a queue pair have the same number.
    let ring = d.alloc(4096);
    let number = 40;
    let mut small = d.create_cq(0);
    small.cqn = number;
    small.ring = ring;
    small.slot = d.slot();
    d.must(&CreateCq {
        cqn: number.into(),
        eqn: 1.into(),
        slot: small.slot.into(),
        ring: flat(ring),
        ..Default::default()
    });
    let mut request = d.qp_request(&others, &others);
    request.qpn = number.into();
    let same = d.create_qp_by(&request).unwrap();
    let mut filler = d.create_qp(&small, &others);
    let peer = d.create_qp(&others, &others);
    let more = [(); 2].map(|()| (d.create_qp(&others, &others), d.create_qp(&others, &others)));
    d.connect(&filler, &peer);
    d.to_init(same.qpn).unwrap();
    d.to_rtr(same.qpn, peer.qpn, Driver::path(0, 1)).unwrap();
    d.to_rts(same.qpn).unwrap();
    // Two events fill the queue.
    for (a, b) in &more {
        d.connect(a, b);
        doorbell::post_send(&d.words(), a.slot.into(), 1000, || {});
    }
    d.run();
    // Three events wait: the CQ overflows, its queue pair follows, and the queue pair with the
    // number of the CQ fails.
    for i in 0..2 {
        d.post_send(&mut filler, &SendWr::new(WqeOpcode::RdmaWrite, i, &[]));
    }
    doorbell::post_send(&d.words(), same.slot.into(), 1000, || {});
    d.run();
    d.must(&DestroyQp {
        id: number.into(),
        ..Default::default()
    });
    let mut all = vec![];
    for _ in 0..10 {
        all.extend(d.events(0).iter().map(|e| (e.kind, e.number)));
        d.pass(20_000_000);
    }
    let expected = [
        (EventType::QpFatal, more[0].0.qpn),
        (EventType::QpFatal, more[1].0.qpn),
        (EventType::CqErr, number),
        (EventType::QpFatal, filler.qpn),
    ];
    assert_eq!(all, expected);
}

#[test]
fn an_event_queue_that_cannot_be_reached_is_a_fatal_error() {
    // The device finds the error when it looks for room, when an interrupt is due, and when the
    // driver leaves entries.
    for (events, told) in [(17, false), (1, false), (1, true)] {
        let mut d = Driver::new();
        d.run();
        let tell = |d: &mut Driver| {
            for number in 0..events {
                let (shared, ram) = (&mut d.device.shared, &d.ram);
                shared.async_event(ram, EventType::CommEst, number, None);
            }
        };
        if told {
            tell(&mut d);
            d.run();
        }
        // The address is below all memory.
        d.device.shared.eqs.get_mut(0).unwrap().ci_addr = 0;
        if !told {
            tell(&mut d);
        }
        let before = d.interrupts.get(&0).copied().unwrap_or(0);
        d.pass(1_000_000_000);
        assert!(d.regs.is_fatal(), "{events} {told}");
        let cause = Syndrome::EqUnwritable.to_raw();
        assert_eq!(d.regs.read(regs::FATAL_SYNDROME), cause.into());
        assert!(d.interrupts.get(&0) > Some(&before));
        let context: EqContext = d.ram.read_struct(d.table(Table::Eqc)).unwrap();
        assert_eq!(context.state, QueueState::Err.to_raw());
    }
}
