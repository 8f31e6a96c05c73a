// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues: overflow, arms, moderation, resize.

use super::Pair;
use crate::mock::{flat, CqHandle, Driver, SendWr};
use verbena_abi::cmd::{cq_flags, CmdStatus, CreateCq, DestroyCq, ModifyCq};
use verbena_abi::cqe::WcStatus;
use verbena_abi::ctx::QpState;
use verbena_abi::doorbell::{self, ArmMode, Words};
use verbena_abi::eqe::EventType;
use verbena_abi::syndrome::Syndrome;
use verbena_abi::wqe::WqeOpcode;

/// Posts signaled WRITEs without data, which only complete.
fn complete(p: &mut Pair, count: u64) {
    for i in 0..count {
        p.d.post_send(&mut p.a, &SendWr::new(WqeOpcode::RdmaWrite, i, &[]));
    }
    p.d.run();
}

fn completions(p: &mut Pair) -> usize {
    let cqn = p.cq_a.cqn;
    let events = p.d.events(1);
    assert!(events
        .iter()
        .all(|e| e.kind == EventType::Completion && e.number == cqn));
    events.len()
}

/// Returns a pair whose first queue pair has a send CQ of 4 entries.
fn small() -> (Pair, CqHandle) {
    let mut p = Pair::new();
    let tiny = p.d.create_cq(2);
    let recv = p.cq_a.clone();
    p.a = p.d.create_qp(&tiny, &recv);
    p.b = p.d.create_qp(&p.cq_b, &p.cq_b);
    p.d.connect(&p.a, &p.b);
    (p, tiny)
}

#[test]
fn every_entry_can_be_used() {
    let (mut p, mut tiny) = small();
    complete(&mut p, 4);
    assert_eq!(p.d.events(0), []);
    assert_eq!(p.d.drain(&mut tiny).len(), 4);
}

#[test]
fn reserved_room_that_is_not_used_is_left_for_the_next_entry() {
    let (mut p, mut tiny) = small();
    for _ in 0..9 {
        let cq = p.d.device.shared.cqs.get_mut(tiny.cqn).unwrap();
        drop(cq.reserve(&p.d.ram).unwrap());
    }
    complete(&mut p, 4);
    assert_eq!(p.d.events(0), []);
    assert_eq!(p.d.drain(&mut tiny).len(), 4);
}

#[test]
fn an_overflow_is_reported_once_and_keeps_the_entries() {
    let (mut p, mut tiny) = small();
    let (to, key) = p.d.region(64, 0);
    p.d.post_recv(&mut p.a, 77, &[(to, 64, key)]);
    complete(&mut p, 9);
    p.d.pass(10_000_000);
    let events = p.d.events(0);
    let of = |kind| events.iter().filter(|e| e.kind == kind).count();
    assert_eq!(of(EventType::CqErr), 1);
    assert_eq!(of(EventType::QpFatal), 1);
    assert_eq!(events.len(), 2);
    assert_eq!(events[0].number, tiny.cqn);
    assert_eq!(events[1].syndrome, Syndrome::CqDied.to_raw().into());
    let there: Vec<u64> = p.d.drain(&mut tiny).iter().map(|d| d.0).collect();
    assert_eq!(there, [0, 1, 2, 3]);
    // No entry is written after the program has made room. The receive is flushed to the other CQ,
    // which is not in error.
    assert_eq!(p.d.drain(&mut tiny), []);
    let flushed = p.d.drain(&mut p.cq_a);
    assert_eq!(flushed, [(77, WcStatus::WrFlushErr)]);
    let qpc = p.d.query_qp(p.a.qpn);
    assert_eq!(qpc.attr.qp_state, QpState::Err.to_raw());
    assert_eq!(qpc.syndrome.get(), u32::from(Syndrome::CqDied.to_raw()));
}

#[test]
fn polling_in_time_prevents_an_overflow() {
    let (mut p, mut tiny) = small();
    for _ in 0..10 {
        complete(&mut p, 3);
        assert_eq!(p.d.drain(&mut tiny).len(), 3);
    }
    assert_eq!(p.d.events(0), []);
}

/// Does the same as [`small`], with a CQ whose overrun is ignored.
fn careless() -> (Pair, CqHandle) {
    let mut p = Pair::new();
    let tiny = p.d.create_cq_with(2, cq_flags::IGNORE_OVERRUN);
    let recv = p.cq_a.clone();
    p.a = p.d.create_qp(&tiny, &recv);
    p.b = p.d.create_qp(&p.cq_b, &p.cq_b);
    p.d.connect(&p.a, &p.b);
    (p, tiny)
}

#[test]
fn an_ignored_overrun_overwrites_entries() {
    let (mut p, mut tiny) = careless();
    complete(&mut p, 4);
    let four: Vec<_> = p.d.drain(&mut tiny).iter().map(|d| d.0).collect();
    assert_eq!(four, [0, 1, 2, 3]);
    // Three rounds of the ring without a poll, after which the phase is the expected one again.
    complete(&mut p, 4 + 8);
    assert_eq!(p.d.events(0), []);
    let newest: Vec<_> = p.d.drain(&mut tiny).iter().map(|d| d.0).collect();
    assert_eq!(newest, [8, 9, 10, 11]);
    let state = p.d.query_qp(p.a.qpn).attr.qp_state;
    assert_eq!(state, QpState::Rts.to_raw());
}

#[test]
fn arms_of_a_cq_whose_overrun_is_ignored_are_served() {
    let (mut p, mut tiny) = careless();
    complete(&mut p, 12);
    p.d.arm(&mut tiny, ArmMode::Next);
    p.d.run();
    // The CQ has entries that the program has not seen.
    let events = p.d.events(1);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].number, tiny.cqn);
}

#[test]
fn unknown_flags_are_refused() {
    let mut p = Pair::new();
    let ring = p.d.alloc(64 << 2);
    let request = CreateCq {
        cqn: 77.into(),
        eqn: 1.into(),
        slot: 99.into(),
        log_size: 2,
        ring: flat(ring),
        flags: 2.into(),
        ..Default::default()
    };
    assert_eq!(p.d.cmd(&request).unwrap_err().status, CmdStatus::Invalid);
    let flags = cq_flags::IGNORE_OVERRUN.into();
    p.d.must(&CreateCq { flags, ..request });
}

#[test]
fn a_cq_in_use_is_not_destroyed() {
    let mut p = Pair::new();
    let request = DestroyCq {
        id: p.cq_a.cqn.into(),
        ..Default::default()
    };
    assert_eq!(p.d.cmd(&request).unwrap_err().status, CmdStatus::Busy);
}

#[test]
fn an_arm_before_the_entry_notifies() {
    let mut p = Pair::new();
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    complete(&mut p, 2);
    assert_eq!(completions(&mut p), 1);
    assert_eq!(p.d.interrupts.get(&1), Some(&1));
}

#[test]
fn an_arm_after_the_entry_notifies_too() {
    let mut p = Pair::new();
    complete(&mut p, 1);
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    p.d.run();
    assert_eq!(completions(&mut p), 1);
}

#[test]
fn the_usual_loop_gets_no_second_event_for_an_entry() {
    let mut p = Pair::new();
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    complete(&mut p, 1);
    assert_eq!(completions(&mut p), 1);
    // The program arms after an event, and then polls: the arm has an index before the entry that
    // was reported already.
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    assert_eq!(p.d.drain(&mut p.cq_a).len(), 1);
    assert_eq!(completions(&mut p), 0);
    complete(&mut p, 1);
    assert_eq!(completions(&mut p), 1);
}

#[test]
fn a_solicited_arm_waits_for_errors_or_solicited_receives() {
    let mut p = Pair::new();
    p.d.arm(&mut p.cq_a, ArmMode::Solicited);
    complete(&mut p, 3);
    assert_eq!(completions(&mut p), 0);
    p.d.move_to(p.a.qpn, QpState::Err).unwrap();
    complete(&mut p, 1);
    assert_eq!(completions(&mut p), 1);
}

#[test]
fn a_solicited_arm_does_not_weaken_a_full_one() {
    let mut p = Pair::new();
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    p.d.arm(&mut p.cq_a, ArmMode::Solicited);
    complete(&mut p, 1);
    assert_eq!(completions(&mut p), 1);
}

#[test]
fn events_of_a_cq_are_merged_with_one_that_was_not_taken() {
    let mut p = Pair::new();
    for _ in 0..100 {
        p.d.arm(&mut p.cq_a, ArmMode::Next);
        complete(&mut p, 1);
        p.d.drain(&mut p.cq_a);
    }
    assert_eq!(completions(&mut p), 1);
}

#[test]
fn an_arm_is_served_by_an_event_that_was_not_taken() {
    let mut p = Pair::new();
    for n in 0..3 {
        p.d.arm(&mut p.cq_a, ArmMode::Next);
        complete(&mut p, 1);
        let served = doorbell::cq_served(p.cq_a.slot.into());
        assert_eq!(p.d.words().load_acquire(served), p.cq_a.arm.seq, "arm {n}");
    }
    assert_eq!(completions(&mut p), 1);
}

#[test]
fn sequence_numbers_of_arms_wrap() {
    let mut p = Pair::new();
    p.cq_a.arm.seq = doorbell::ARM_SEQ_MASK - 3;
    let mut seqs = vec![];
    for n in 0..6 {
        p.d.arm(&mut p.cq_a, ArmMode::Next);
        seqs.push(p.cq_a.arm.seq);
        complete(&mut p, 1);
        assert_eq!(completions(&mut p), 1, "arm {n}");
    }
    let last = doorbell::ARM_SEQ_MASK;
    assert_eq!(seqs, [last - 2, last - 1, last, 1, 2, 3]);
}

#[test]
fn moderation_waits_for_the_count_or_the_period() {
    let mut p = Pair::new();
    p.d.must(&ModifyCq {
        cqn: p.cq_a.cqn.into(),
        moderation_count: 3.into(),
        moderation_period: 50.into(),
        ..Default::default()
    });
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    complete(&mut p, 2);
    assert_eq!(completions(&mut p), 0);
    complete(&mut p, 1);
    assert_eq!(completions(&mut p), 1);
    p.d.drain(&mut p.cq_a);
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    complete(&mut p, 1);
    assert_eq!(completions(&mut p), 0);
    p.d.pass(60_000);
    assert_eq!(completions(&mut p), 1);
}

#[test]
fn a_resize_keeps_unpolled_entries() {
    let mut p = Pair::new();
    complete(&mut p, 5);
    p.d.poll(&mut p.cq_a).unwrap();
    p.d.resize_cq(&mut p.cq_a, 3).unwrap();
    complete(&mut p, 3);
    let ids: Vec<u64> = p.d.drain(&mut p.cq_a).iter().map(|d| d.0).collect();
    assert_eq!(ids, [1, 2, 3, 4, 0, 1, 2]);
    // The CQ has room for eight entries, and works past the end of its ring.
    for _ in 0..5 {
        complete(&mut p, 8);
        assert_eq!(p.d.drain(&mut p.cq_a).len(), 8);
    }
    p.d.resize_cq(&mut p.cq_a, 5).unwrap();
    complete(&mut p, 15);
    assert_eq!(p.d.drain(&mut p.cq_a).len(), 15);
    assert_eq!(p.d.events(0), []);
}

#[test]
fn a_resize_keeps_arms() {
    let mut p = Pair::new();
    complete(&mut p, 5);
    p.d.drain(&mut p.cq_a);
    // The device has not seen the arm when the CQ is resized.
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    p.d.resize_cq(&mut p.cq_a, 3).unwrap();
    complete(&mut p, 1);
    assert_eq!(completions(&mut p), 1);
    p.d.drain(&mut p.cq_a);
    // The device has seen the arm when the CQ is resized.
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    p.d.run();
    p.d.resize_cq(&mut p.cq_a, 6).unwrap();
    complete(&mut p, 1);
    assert_eq!(completions(&mut p), 1);
    p.d.drain(&mut p.cq_a);
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    complete(&mut p, 1);
    assert_eq!(completions(&mut p), 1);
}

#[test]
fn a_resize_below_the_unpolled_entries_is_refused() {
    let mut p = Pair::new();
    complete(&mut p, 5);
    let e = p.d.resize_cq(&mut p.cq_a, 2).unwrap_err();
    assert_eq!(e.syndrome, Syndrome::CmdSize);
    complete(&mut p, 3);
    assert_eq!(p.d.drain(&mut p.cq_a).len(), 8);
}

#[test]
fn a_cq_in_error_is_not_resized() {
    let (mut p, mut tiny) = small();
    complete(&mut p, 5);
    let e = p.d.resize_cq(&mut tiny, 4).unwrap_err();
    assert_eq!(e.syndrome, Syndrome::CqOverflow);
    let request = p.d.qp_request(&tiny, &p.cq_b.clone());
    let e = p.d.create_qp_by(&request).unwrap_err();
    assert_eq!(e.syndrome, Syndrome::CqDied);
}

#[test]
fn each_event_raises_an_interrupt_if_the_earlier_ones_were_taken() {
    let mut p = Pair::new();
    let raised = |p: &Pair| p.d.interrupts.get(&1).copied().unwrap_or(0);
    let mut before = raised(&p);
    // The first event of one CQ and then of the other: the device has no earlier event to compare
    // with.
    for first in [true, false] {
        let cq = if first { &mut p.cq_a } else { &mut p.cq_b };
        p.d.arm(cq, ArmMode::Next);
        let (qp, wr) = if first { (&mut p.a, 1) } else { (&mut p.b, 2) };
        p.d.post_send(qp, &SendWr::new(WqeOpcode::RdmaWrite, wr, &[]));
        p.d.run();
        assert_eq!(raised(&p), before + 1);
        before += 1;
        assert_eq!(p.d.events(1).len(), 1);
    }
}

#[test]
fn new_moderation_applies_to_a_collapsed_event() {
    let mut p = Pair::new();
    let terms = |p: &Pair, count: u16| ModifyCq {
        cqn: p.cq_a.cqn.into(),
        moderation_count: count.into(),
        moderation_period: 60_000.into(),
        ..Default::default()
    };
    let request = terms(&p, 3);
    p.d.must(&request);
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    complete(&mut p, 2);
    assert_eq!(completions(&mut p), 0);
    let request = terms(&p, 2);
    p.d.must(&request);
    p.d.run();
    assert_eq!(completions(&mut p), 1);
}

#[test]
fn the_moderation_period_begins_with_the_first_unpolled_entry() {
    let mut p = Pair::new();
    p.d.must(&ModifyCq {
        cqn: p.cq_a.cqn.into(),
        moderation_count: 3.into(),
        moderation_period: 50.into(),
        ..Default::default()
    });
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    complete(&mut p, 1);
    // The program polls without waiting for the event, and arms for the next entry.
    assert_eq!(p.d.drain(&mut p.cq_a).len(), 1);
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    p.d.pass(45_000);
    complete(&mut p, 1);
    p.d.pass(45_000);
    assert_eq!(completions(&mut p), 0, "the entry is 45 us old");
    p.d.pass(10_000);
    assert_eq!(completions(&mut p), 1);
}

#[test]
fn a_new_moderation_period_counts_from_the_first_entry() {
    for (new, wait, told) in [
        (10u16, 0, 1),
        (10, 1_000, 1),
        (200, 60_000, 0),
        (200, 190_000, 1),
        (0, 0, 1),
    ] {
        let mut p = Pair::new();
        let mut request = ModifyCq {
            cqn: p.cq_a.cqn.into(),
            moderation_count: 3.into(),
            moderation_period: 50.into(),
            ..Default::default()
        };
        p.d.must(&request);
        p.d.arm(&mut p.cq_a, ArmMode::Next);
        complete(&mut p, 1);
        p.d.pass(20_000);
        request.moderation_period = new.into();
        p.d.must(&request);
        p.d.pass(wait);
        assert_eq!(completions(&mut p), told, "{new} us, {wait} ns later");
    }
}

#[test]
fn the_reply_to_destroy_cq_has_the_index_of_the_event_queue() {
    let mut p = Pair::new();
    let unused = p.d.create_cq(2);
    p.d.arm(&mut p.cq_a, ArmMode::Next);
    complete(&mut p, 1);
    let reply = p.d.must(&DestroyCq {
        id: unused.cqn.into(),
        ..Default::default()
    });
    assert_eq!(reply.comp_pi.get(), 1);
}

#[test]
fn a_polled_solicited_entry_does_not_serve_a_later_arm() {
    for resized in [false, true] {
        let mut p = Pair::new();
        complete(&mut p, 3);
        p.d.move_to(p.a.qpn, QpState::Err).unwrap();
        complete(&mut p, 1);
        assert_eq!(p.d.drain(&mut p.cq_a).len(), 4);
        if resized {
            p.d.resize_cq(&mut p.cq_a, 4).unwrap();
        }
        p.d.arm(&mut p.cq_a, ArmMode::Solicited);
        p.d.run();
        assert_eq!(completions(&mut p), 0, "resized: {resized}");
        complete(&mut p, 1);
        assert_eq!(completions(&mut p), 1);
    }
}

/// Adds 2^29 entries, an eighth of the range of an index, and one more. All are polled.
fn poll_many(p: &mut Pair) {
    let cq = p.d.device.shared.cqs.get_mut(p.cq_a.cqn).unwrap();
    cq.pass_by(1 << 29);
    p.cq_a.ci = p.cq_a.ci.wrapping_add(1 << 29);
    p.d.words()
        .store_release(doorbell::cq_consumer(p.cq_a.slot.into()), p.cq_a.ci);
    complete(p, 1);
    assert_eq!(p.d.drain(&mut p.cq_a).len(), 1);
}

#[test]
fn an_arm_works_after_more_than_half_of_the_index_range() {
    for mode in [ArmMode::Next, ArmMode::Solicited] {
        let mut p = Pair::new();
        // More entries than half of the range of an index, without an arm.
        for _ in 0..5 {
            poll_many(&mut p);
        }
        p.d.arm(&mut p.cq_a, mode);
        p.d.run();
        assert_eq!(completions(&mut p), 0, "{mode:?}");
        if mode == ArmMode::Solicited {
            p.d.move_to(p.a.qpn, QpState::Err).unwrap();
        }
        complete(&mut p, 1);
        assert_eq!(completions(&mut p), 1, "{mode:?}");
    }
}

#[test]
fn a_solicited_arm_outlasts_any_number_of_unsolicited_entries() {
    let mut p = Pair::new();
    p.d.arm(&mut p.cq_a, ArmMode::Solicited);
    for _ in 0..6 {
        poll_many(&mut p);
    }
    assert_eq!(completions(&mut p), 0);
    p.d.move_to(p.a.qpn, QpState::Err).unwrap();
    complete(&mut p, 1);
    assert_eq!(completions(&mut p), 1);
}

#[test]
fn slots_of_both_groups_are_noticed() {
    for slot in [0u16, 63, 64, 127] {
        let mut d = Driver::with(crate::Config::default());
        let ring = d.alloc(4096);
        let mut cq = d.create_cq(4);
        d.free_slot(cq.slot);
        (cq.cqn, cq.slot, cq.ring) = (90, slot, ring);
        d.must(&DestroyCq {
            id: 9.into(),
            ..Default::default()
        });
        d.must(&CreateCq {
            cqn: cq.cqn.into(),
            eqn: 1.into(),
            slot: slot.into(),
            log_size: 4,
            ring: flat(ring),
            ..Default::default()
        });
        let (mut a, mut b) = (d.qp_request(&cq, &cq), d.qp_request(&cq, &cq));
        (a.slot, b.slot) = (slot.into(), (slot ^ 1).into());
        let (mut a, b) = (d.create_qp_by(&a).unwrap(), d.create_qp_by(&b).unwrap());
        d.connect(&a, &b);
        d.run();
        assert!(d.device.fall_asleep(&d.ram));
        // The device sleeps, so the post rings the doorbell and the counter of the group shows it.
        d.post_send(&mut a, &SendWr::new(WqeOpcode::RdmaWrite, 1, &[]));
        d.run();
        // The arm comes after the entry, and is noticed by the generation counter of the CQ slots.
        d.arm(&mut cq, ArmMode::Next);
        d.run();
        assert_eq!(d.events(1).len(), 1, "slot {slot}");
        assert_eq!(d.drain(&mut cq), [(1, WcStatus::Success)]);
    }
}

#[test]
fn a_resize_refuses_a_consumer_index_that_went_back() {
    let mut p = Pair::new();
    for _ in 0..3 {
        complete(&mut p, 16);
        assert_eq!(p.d.drain(&mut p.cq_a).len(), 16);
    }
    p.d.resize_cq(&mut p.cq_a, 3).unwrap();
    complete(&mut p, 8);
    assert_eq!(p.d.drain(&mut p.cq_a).len(), 8);
    complete(&mut p, 2);
    // The ring never had as many entries as this index implies.
    let word = doorbell::cq_consumer(p.cq_a.slot.into());
    p.d.words().store_release(word, p.cq_a.ci - 7);
    let e = p.d.resize_cq(&mut p.cq_a, 6).unwrap_err();
    assert_eq!(e.syndrome, Syndrome::CmdSize);
    p.d.words().store_release(word, p.cq_a.ci);
    p.d.resize_cq(&mut p.cq_a, 1).unwrap();
    assert_eq!(p.d.drain(&mut p.cq_a).len(), 2);
}
