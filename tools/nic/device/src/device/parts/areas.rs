// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The order in which a device scans, sweeps and wakes its doorbell areas.

use crate::device::sched::SLICE_AREAS;

/// Time without a post or an arm after which an area is put to sleep although other areas are busy,
/// so that a scan costs only as much as there are areas in use.
const AREA_AWAKE_NS: u64 = 2_000_000;
/// Number of awake areas up to which silence puts none to sleep: a scan of so few costs little.
const FEW_AREAS: usize = 2;

/// The numbers of the doorbell areas that are awake or were rung.
///
/// * Each method that takes areas for a slice takes at most [`SLICE_AREAS`] of them.
/// * The caller adds an area to a list only if the area is not in that list. The flags `awake` and
///   `rung` of the area say so.
#[derive(Debug, Default)]
pub(crate) struct AreaLists {
    /// Areas that each slice scans.
    awake: Vec<u32>,
    /// Index in `awake` at which the scan of the next slice begins.
    next_scan: usize,
    /// Time of the next search for silent areas in `awake`.
    next_sweep: u64,
    /// Areas that were rung since the last slice.
    rung: Vec<u32>,
}

impl AreaLists {
    /// Adds an area that was rung.
    pub(crate) fn ring(&mut self, area: u32) {
        self.rung.push(area);
    }

    /// Takes areas that were rung, the first ones first.
    pub(crate) fn take_rung(&mut self) -> Vec<u32> {
        let later = self.rung.split_off(self.rung.len().min(SLICE_AREAS));
        std::mem::replace(&mut self.rung, later)
    }

    /// Adds an area that is awake.
    pub(crate) fn wake(&mut self, area: u32) {
        self.awake.push(area);
    }

    /// Removes an awake area that is destroyed.
    pub(crate) fn remove(&mut self, area: u32) {
        self.awake.retain(|&a| a != area);
    }

    /// True if no area is awake or was rung.
    pub(crate) fn are_empty(&self) -> bool {
        self.awake.is_empty() && self.rung.is_empty()
    }

    /// Takes all awake areas. The next scan begins with the first area that is added.
    pub(crate) fn take_awake(&mut self) -> Vec<u32> {
        self.next_scan = 0;
        std::mem::take(&mut self.awake)
    }

    /// Puts back areas that were taken and that stay awake.
    pub(crate) fn keep_awake(&mut self, mut areas: Vec<u32>) {
        self.awake.append(&mut areas);
    }

    /// Takes the areas that are silent, as seen by `last_found`: the time of the last post or arm
    /// of an area, if there is such an area. None are taken between two sweeps, or while only few
    /// areas are awake: then only the daemon decides about their sleep.
    pub(crate) fn sweep(&mut self, now: u64, last_found: impl Fn(u32) -> Option<u64>) -> Vec<u32> {
        if self.awake.len() <= FEW_AREAS || now < self.next_sweep {
            return Vec::new();
        }
        self.next_sweep = now + AREA_AWAKE_NS / 2;
        let all = self.awake.len();
        let count = all.min(SLICE_AREAS);
        let (silent, busy): (Vec<u32>, Vec<u32>) = self.awake.drain(..count).partition(|&area| {
            last_found(area).is_none_or(|found| now.saturating_sub(found) > AREA_AWAKE_NS)
        });
        // Areas that were checked go to the end of the list, so that the next sweep begins with the
        // others. The place of the next scan moves with them.
        self.awake.extend(busy);
        self.next_scan = (self.next_scan + all - count) % all;
        silent
    }

    /// Returns the number of areas that the scan of a slice looks at.
    pub(crate) fn scanned(&self) -> usize {
        self.awake.len().min(SLICE_AREAS)
    }

    /// True if more areas are awake than one slice scans.
    pub(crate) fn are_many(&self) -> bool {
        self.awake.len() > SLICE_AREAS
    }

    /// Returns the next area of the scan. After the last area comes the first.
    pub(crate) fn next_to_scan(&mut self) -> Option<u32> {
        if self.next_scan >= self.awake.len() {
            self.next_scan = 0;
        }
        let area = self.awake.get(self.next_scan).copied();
        self.next_scan += 1;
        area
    }

    /// Lets the next scan begin with the first area, because this scan has looked at all areas.
    pub(crate) fn restart_scan(&mut self) {
        self.next_scan = 0;
    }

    /// Returns the areas that are awake, and those that were rung.
    #[cfg(test)]
    pub(crate) fn lists(&self) -> (&[u32], &[u32]) {
        (&self.awake, &self.rung)
    }

    /// Moves the scan and the sweep on.
    #[cfg(test)]
    pub(crate) fn go_on(&mut self) {
        self.next_scan += 1;
        self.next_sweep += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(count: u32) -> AreaLists {
        let mut areas = AreaLists::default();
        (0..count).for_each(|area| areas.wake(area));
        areas
    }

    #[test]
    fn a_scan_goes_round() {
        let mut areas = with(3);
        let seen: Vec<_> = (0..4).map(|_| areas.next_to_scan()).collect();
        assert_eq!(seen, [Some(0), Some(1), Some(2), Some(0)]);
        areas.restart_scan();
        assert_eq!(areas.next_to_scan(), Some(0));
        areas.remove(1);
        assert_eq!(areas.next_to_scan(), Some(2));
        assert_eq!(with(0).next_to_scan(), None);
    }

    #[test]
    fn a_sweep_takes_silent_areas_only() {
        let now = 10 * AREA_AWAKE_NS;
        let found = |area: u32| [Some(now), Some(0), None].get(area as usize).copied()?;
        let mut areas = with(3);
        assert_eq!(areas.sweep(now, found), [1, 2]);
        areas.keep_awake(vec![1, 2]);
        assert!(areas.sweep(now, found).is_empty(), "it is too soon");
        assert_eq!(with(2).sweep(now, |_| None), [0; 0], "they are few");
    }

    #[test]
    fn a_slice_takes_a_bounded_number_of_areas() {
        let mut areas = AreaLists::default();
        (0..SLICE_AREAS as u32 + 1).for_each(|area| areas.ring(area));
        assert_eq!(areas.take_rung().len(), SLICE_AREAS);
        assert_eq!(areas.take_rung(), [SLICE_AREAS as u32]);
        let areas = with(SLICE_AREAS as u32 + 1);
        assert!(areas.are_many() && areas.scanned() == SLICE_AREAS);
    }
}
