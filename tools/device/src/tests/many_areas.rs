// SPDX-License-Identifier: GPL-2.0 OR MIT

//! More doorbell areas than a slice looks at: each is noticed in time, and those that are asleep cost nothing.

use super::watched::{Op, Watched};
use super::*;
use crate::device::sched::SLICE_AREAS;
use crate::mock::GuestWords;
use crate::Device;
use std::collections::HashSet;
use verbena_abi::cmd::*;
use verbena_abi::doorbell::{self, Words, AREA_SIZE};

/// So many that a slice is done with them at the third time.
const AREAS: u32 = 2 * SLICE_AREAS as u32 + 10;

/// A device with areas of its own numbers, from 1 on, that lie one behind the other.
struct Crowd {
    d: Driver,
    first: u64,
}

impl Crowd {
    /// All of them are awake, and the first area, the driver's, too.
    fn new() -> Self {
        let mut d = Driver::new();
        let size = AREA_SIZE as u64;
        let first = d.alloc(u64::from(AREAS) * size);
        for n in 0..AREAS {
            d.must(&CreateUar {
                uar: (1 + n).into(),
                addr: (first + u64::from(n) * size).into(),
                ..Default::default()
            });
        }
        Self { d, first }
    }

    fn words(&self, n: u32) -> GuestWords<'_> {
        GuestWords {
            ram: &self.d.ram,
            base: self.first + u64::from(n) * AREA_SIZE as u64,
        }
    }

    /// How many areas have an even sleep word, by the guest's view.
    fn awake(&self) -> usize {
        let is_awake = |n: &u32| self.words(*n).load(doorbell::SLEEP) % 2 == 0;
        (0..AREAS).filter(is_awake).count()
    }

    /// The areas that `work` looked at.
    fn looked_at(&mut self, work: impl FnOnce(&mut Device, &Watched<'_>, u64)) -> HashSet<u32> {
        let mem = Watched::new(&self.d.ram);
        work(&mut self.d.device, &mem, self.d.now);
        let area_of = |op: Op| match op {
            Op::Load(addr, _) => Some((addr.checked_sub(self.first)? / AREA_SIZE as u64) as u32),
            _ => None,
        };
        let all = mem.ops().into_iter().filter_map(area_of);
        all.filter(|n| *n < AREAS).collect()
    }

    fn slice(&mut self) -> (HashSet<u32>, bool) {
        let mut busy = false;
        let seen = self.looked_at(|device, mem, now| busy = device.run_slice(mem, now).busy);
        (seen, busy)
    }
}

#[test]
fn a_slice_looks_at_so_many_areas_and_the_next_at_others() {
    let mut crowd = Crowd::new();
    let mut seen = HashSet::new();
    for slice in 0..3 {
        let (some, busy) = crowd.slice();
        assert!(some.len() <= SLICE_AREAS, "{} in slice {slice}", some.len());
        assert!(busy, "there are more than it has looked at");
        seen.extend(some);
    }
    assert_eq!(seen.len(), AREAS as usize);
}

#[test]
fn silent_areas_fall_asleep_some_in_each_sweep() {
    let mut crowd = Crowd::new();
    crowd.slice();
    let mut before = crowd.awake();
    for _ in 0..4 {
        crowd.d.now += 3_000_000;
        let (_, busy) = crowd.slice();
        let now = crowd.awake();
        assert!(before - now <= SLICE_AREAS, "{} at once", before - now);
        assert!(busy || now == 0 || before <= SLICE_AREAS);
        before = now;
    }
    assert_eq!(before, 0);
    // Not one of them costs anything any more.
    let (seen, busy) = crowd.slice();
    assert_eq!((seen.len(), busy), (0, false));
}

#[test]
fn falling_asleep_ends_after_so_many_areas() {
    let mut crowd = Crowd::new();
    let mut before = crowd.awake();
    let mut done = false;
    for time in 0..3 {
        assert!(!done, "before time {time}");
        let seen = crowd.looked_at(|device, mem, _| done = device.fall_asleep(mem));
        assert!(seen.len() <= SLICE_AREAS, "{} at once", seen.len());
        assert!(before - crowd.awake() <= SLICE_AREAS);
        before = crowd.awake();
    }
    assert!(done && before == 0);
}

#[test]
fn so_many_areas_are_woken_at_once() {
    let mut crowd = Crowd::new();
    while !crowd.d.device.fall_asleep(&crowd.d.ram) {}
    for n in 0..AREAS {
        crowd.d.device.ring(1 + n);
    }
    for times in 1..=3 {
        let expected = (times * SLICE_AREAS).min(AREAS as usize);
        let (_, busy) = crowd.slice();
        assert!(busy);
        assert_eq!(crowd.awake(), expected);
    }
}

#[test]
fn a_post_is_noticed_in_each_of_many_areas_awake_or_asleep() {
    let mut crowd = Crowd::new();
    for asleep in [false, true] {
        while asleep && !crowd.d.device.fall_asleep(&crowd.d.ram) {}
        for n in 0..AREAS {
            let mut rings = false;
            doorbell::post_send(&crowd.words(n), 5, 1, || rings = true);
            if rings {
                crowd.d.device.ring(1 + n);
            }
        }
        // Three to wake them, and as many to scan them.
        for _ in 0..6 {
            crowd.slice();
        }
        let uar = |n: u32| crowd.d.device.shared.uars.get(1 + n).unwrap();
        let expected = 1 + u32::from(asleep);
        let missed: Vec<u32> = (0..AREAS)
            .filter(|n| uar(*n).qp_seen[0] != expected)
            .collect();
        assert_eq!(missed, [0; 0], "asleep: {asleep}");
    }
}
