// SPDX-License-Identifier: GPL-2.0 OR MIT

//! More doorbell areas than a slice scans: posts are noticed in each, and sleeping areas cost
//! nothing.

use super::watched::{Op, Watched};
use super::*;
use crate::device::sched::SLICE_AREAS;
use crate::mock::GuestWords;
use crate::Device;
use std::collections::HashSet;
use verbena_abi::cmd::*;
use verbena_abi::doorbell::{self, Words, AREA_SIZE};

/// Number of areas, which three slices can scan.
const AREAS: u32 = 2 * SLICE_AREAS as u32 + 10;

/// A device with the areas 1 to [`AREAS`], which are contiguous in memory.
struct Crowd {
    d: Driver,
    first: u64,
}

impl Crowd {
    /// Creates the device. All areas are awake, and so is area 0 of the mock driver.
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

    /// Returns the number of areas with an even sleep word.
    fn awake(&self) -> usize {
        let is_awake = |n: &u32| self.words(*n).load(doorbell::SLEEP) % 2 == 0;
        (0..AREAS).filter(is_awake).count()
    }

    /// Calls `work`. Returns the areas that the device has looked at.
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
fn a_slice_scans_a_limited_number_of_areas() {
    let mut crowd = Crowd::new();
    let mut seen = HashSet::new();
    for slice in 0..3 {
        let (some, busy) = crowd.slice();
        assert!(some.len() <= SLICE_AREAS, "{} in slice {slice}", some.len());
        assert!(busy, "more areas are left to scan");
        seen.extend(some);
    }
    assert_eq!(seen.len(), AREAS as usize);
}

#[test]
fn a_sweep_puts_a_limited_number_of_areas_to_sleep() {
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
    // The device does not look at sleeping areas.
    let (seen, busy) = crowd.slice();
    assert_eq!((seen.len(), busy), (0, false));
}

#[test]
fn fall_asleep_stops_after_a_limited_number_of_areas() {
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
fn a_slice_wakes_a_limited_number_of_areas() {
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
        // Three slices wake the areas, and three scan them.
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
