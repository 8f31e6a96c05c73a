// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests of the queue and of the timer wheel. Two of them compare each with a simple model.

use super::timer_wheel::GRANULARITY_NS;
use super::*;
use alloc::collections::{BTreeMap, VecDeque};
use std::vec::Vec;
use verbena_lab_transport::Rng;

/// Model of [`ReadyQueue`]: a ring of groups, and a list of slots for each group.
#[derive(Default)]
struct ReadyQueueModel {
    ring: VecDeque<u32>,
    lists: BTreeMap<u32, VecDeque<u32>>,
}

impl ReadyQueueModel {
    fn contains(&self, slot: u32) -> bool {
        self.lists.values().any(|list| list.contains(&slot))
    }

    fn push(&mut self, group: u32, slot: u32) -> bool {
        if self.contains(slot) {
            return false;
        }
        self.lists.entry(group).or_default().push_back(slot);
        if !self.ring.contains(&group) {
            self.ring.push_back(group);
        }
        true
    }

    fn remove(&mut self, slot: u32) -> bool {
        let was = self.contains(slot);
        for list in self.lists.values_mut() {
            list.retain(|s| *s != slot);
        }
        was
    }

    fn pop(&mut self) -> Option<u32> {
        loop {
            let group = self.ring.pop_front()?;
            let list = self.lists.get_mut(&group).unwrap();
            let slot = list.pop_front();
            if !list.is_empty() {
                self.ring.push_back(group);
            }
            if slot.is_some() {
                return slot;
            }
        }
    }
}

#[test]
fn the_queue_behaves_like_its_model() {
    for seed in 0..50 {
        let mut rng = Rng::new(seed);
        let (mut queue, mut model) = (ReadyQueue::new(), ReadyQueueModel::default());
        for _ in 0..400 {
            let slot = rng.below(20) as u32;
            // A slot belongs to one group.
            let group = slot % 5;
            match rng.below(8) {
                0..=3 => assert_eq!(queue.push(group, slot), model.push(group, slot)),
                4 => assert_eq!(queue.remove(slot), model.remove(slot)),
                _ => {
                    let [next] = queue.ahead();
                    let popped = queue.pop();
                    assert_eq!(popped, model.pop());
                    assert!(next.is_none() || next == popped);
                }
            }
            assert_eq!(queue.contains(slot), model.contains(slot));
            assert_eq!(
                queue.len() as usize,
                model.lists.values().map(VecDeque::len).sum::<usize>()
            );
        }
    }
}

#[test]
fn the_next_turns_are_known() {
    for groups in [1, 4, 9] {
        let mut queue = ReadyQueue::new();
        for slot in 0..9 {
            queue.push(slot % groups, slot);
        }
        let ahead = queue.ahead::<4>();
        let turns = [(); 4].map(|()| queue.pop());
        assert_eq!(ahead, turns, "{groups} groups");
    }
    assert_eq!(ReadyQueue::new().ahead(), [None; 3]);
}

#[test]
fn a_group_with_many_slots_gets_no_more_turns() {
    let mut queue = ReadyQueue::new();
    for slot in 0..100 {
        queue.push(0, slot);
    }
    queue.push(1, 100);
    let mut turns = 0;
    for _ in 0..20 {
        let slot = queue.pop().unwrap();
        turns += usize::from(slot == 100);
        queue.push(u32::from(slot == 100), slot);
    }
    assert_eq!(turns, 10);
}

#[test]
fn every_slot_has_its_turn_before_one_has_two() {
    let mut queue = ReadyQueue::new();
    for slot in 0..10 {
        queue.push(0, slot);
    }
    let mut turns = [0; 10];
    for turn in 0..100 {
        let slot = queue.pop().unwrap();
        turns[slot as usize] += 1;
        queue.push(0, slot);
        assert_eq!(turns[slot as usize], turn / 10 + 1);
    }
}

/// Returns the slots whose deadlines have passed, by a search of all slots.
fn passed(model: &BTreeMap<u32, u64>, now: u64) -> Vec<u32> {
    let tick = |at: u64| at.div_ceil(GRANULARITY_NS);
    model
        .iter()
        .filter(|(_, at)| tick(**at) <= now / GRANULARITY_NS)
        .map(|(slot, _)| *slot)
        .collect()
}

#[test]
fn the_wheel_behaves_like_its_model() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let (mut wheel, mut model) = (TimerWheel::new(), BTreeMap::new());
        // A quarter of the seeds begins shortly before high bits of the clock change.
        let mut now = match seed % 4 {
            0 => 0,
            1 => (1 << 36) - 3 * GRANULARITY_NS,
            2 => rng.next(),
            _ => rng.next() >> 20,
        };
        for _ in 0..300 {
            let slot = rng.below(30) as u32;
            match rng.below(6) {
                0..=2 => {
                    let distance = rng.next() >> (8 + rng.below(54));
                    let at = now.saturating_add(distance);
                    wheel.set(slot, at);
                    model.insert(slot, at);
                }
                3 => {
                    wheel.cancel(slot);
                    model.remove(&slot);
                }
                _ => {
                    let step = rng.next() >> (8 + rng.below(54));
                    now = now.saturating_add(step);
                    let due = passed(&model, now);
                    let mut popped: Vec<u32> = core::iter::from_fn(|| wheel.pop(now)).collect();
                    popped.sort_unstable();
                    assert_eq!(popped, due, "seed {seed}");
                    model.retain(|slot, _| !due.contains(slot));
                }
            }
            assert_eq!(wheel.deadline(slot), model.get(&slot).copied());
            let first = model.values().min().copied();
            let next = wheel.next_deadline();
            assert_eq!(next.is_some(), first.is_some());
            if let (Some(next), Some(first)) = (next, first) {
                assert!(next < first.saturating_add(GRANULARITY_NS), "late");
            }
        }
    }
}

#[test]
fn a_deadline_needs_few_wakeups_and_is_not_late() {
    let mut wheel = TimerWheel::new();
    for at in [
        1,
        10_000,
        4_096 << 14,
        4_096 << 31,
        u64::MAX - GRANULARITY_NS,
    ] {
        let mut wheel_at = 0;
        wheel.set(7, at);
        let mut wakes = 0;
        loop {
            let now = wheel.next_deadline().unwrap();
            assert!(now >= wheel_at);
            wheel_at = now;
            wakes += 1;
            if wheel.pop(now) == Some(7) {
                assert!(now >= at && now - at < GRANULARITY_NS, "{at}: {now}");
                break;
            }
        }
        assert!(wakes <= 9, "{wakes}");
        wheel = TimerWheel::new();
    }
}

#[test]
fn a_deadline_in_the_last_nanosecond_is_accepted() {
    let mut wheel = TimerWheel::new();
    wheel.set(0, u64::MAX);
    assert_eq!(wheel.pop(u64::MAX - 2 * GRANULARITY_NS), None);
    assert!(wheel.next_deadline().is_some());
}
