// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion timestamps as times of the system clock.
//!
//! A read of the device clock crosses the bus, which can take any time. A comparison of the clocks
//! therefore shows only between which two times of the system clock the device clock was read. Of a
//! few comparisons the closest counts. Times continue from the previous comparison where the new
//! one does not contradict them, so that two completions on either side of a comparison keep their
//! order.

use std::time::SystemTime;

/// The clocks are compared again for a timestamp that is more than this interval after the last
/// comparison, in nanoseconds: the clocks drift apart, and the system clock may be set.
const INTERVAL_NS: u64 = 1_000_000_000;
/// Number of comparisons of which the closest counts.
const TRIES: usize = 3;

/// Reading of the device clock, and of the system clock before and after it, in nanoseconds.
#[derive(Clone, Copy)]
pub struct ClockComparison {
    pub before_ns: u64,
    pub device_ns: u64,
    pub after_ns: u64,
}

impl ClockComparison {
    /// Compares the clocks; `read_device` reads the device clock. Returns `None` if that fails.
    pub fn make(read_device: impl FnOnce() -> Option<u64>) -> Option<Self> {
        let before_ns = system_clock();
        let device_ns = read_device()?;
        let after_ns = system_clock().max(before_ns);
        Some(Self {
            before_ns,
            device_ns,
            after_ns,
        })
    }

    fn gap(&self) -> u64 {
        self.after_ns - self.before_ns
    }

    fn middle(&self) -> u64 {
        self.before_ns + self.gap() / 2
    }
}

/// Returns nanoseconds since 1970, or 0 for a time before 1970.
fn system_clock() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

/// Readings of both clocks at one moment. All CQs of a context share them, so that their times can
/// be compared.
#[derive(Clone, Copy, Default)]
pub struct WallClock {
    moment: Option<(u64, u64)>,
}

impl WallClock {
    /// Returns the time that the system clock showed when the device clock showed `timestamp`.
    /// `compare` compares the clocks; if it cannot, the last comparison is used.
    pub fn at(&mut self, timestamp: u64, compare: impl FnMut() -> Option<ClockComparison>) -> u64 {
        let is_recent = |(then, _)| timestamp <= u64::saturating_add(then, INTERVAL_NS);
        if !self.moment.is_some_and(is_recent) {
            let tries = std::iter::repeat_with(compare).take(TRIES).flatten();
            if let Some(closest) = tries.min_by_key(ClockComparison::gap) {
                let expected = self
                    .moment
                    .map(|moment| extrapolate(moment, closest.device_ns));
                let system = expected.map_or(closest.middle(), |time| {
                    time.clamp(closest.before_ns, closest.after_ns)
                });
                self.moment = Some((closest.device_ns, system));
            }
        }
        extrapolate(self.moment.unwrap_or_default(), timestamp)
    }
}

/// Returns the system time of `timestamp`, given that both clocks have run at the same rate since
/// the moment of these two readings.
fn extrapolate((device, system): (u64, u64), timestamp: u64) -> u64 {
    system.wrapping_add(timestamp.wrapping_sub(device))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(before_ns: u64, device_ns: u64, after_ns: u64) -> Option<ClockComparison> {
        Some(ClockComparison {
            before_ns,
            device_ns,
            after_ns,
        })
    }

    #[test]
    fn times_before_and_after_the_comparison_are_converted() {
        let mut clock = WallClock::default();
        assert_eq!(clock.at(900, || comparison(5_000, 1000, 5_000)), 4_900);
        assert_eq!(clock.at(1_200, || panic!("compared too early")), 5_200);
    }

    #[test]
    fn the_comparison_with_the_smallest_gap_is_used() {
        let mut clock = WallClock::default();
        let mut tries = [
            comparison(6_000, 1_000, 9_006_000),
            comparison(6_990, 2_000, 7_010),
            comparison(7_600, 3_000, 8_000),
        ]
        .into_iter();
        assert_eq!(clock.at(1_500, || tries.next()?), 6_500);
    }

    #[test]
    fn the_clocks_are_compared_again_after_a_while() {
        let mut clock = WallClock::default();
        assert_eq!(clock.at(0, || comparison(100, 0, 100)), 100);
        let later = INTERVAL_NS + 1;
        // The clocks have drifted apart.
        let compare = || comparison(later + 150, later, later + 160);
        assert_eq!(clock.at(later, compare), later + 150);
        // The device has been removed, so there is no comparison.
        assert_eq!(clock.at(3 * INTERVAL_NS, || None), 3 * INTERVAL_NS + 150);
    }

    #[test]
    fn a_comparison_with_a_large_gap_does_not_set_the_clock_back() {
        let mut clock = WallClock::default();
        let at =
            |device: u64, gap| move || comparison(device + 5_000, device, device + 5_000 + gap);
        clock.at(1000, at(1000, 3_000_000));
        let last = clock.at(INTERVAL_NS + 1000, || panic!("compared too early"));
        let next = clock.at(INTERVAL_NS + 1001, at(INTERVAL_NS + 1100, 4_000_000));
        assert_eq!(next, last + 1);
        // A comparison without a gap proves the time wrong, and corrects it.
        let mended = clock.at(3 * INTERVAL_NS, at(3 * INTERVAL_NS, 0));
        assert_eq!(mended, 3 * INTERVAL_NS + 5_000);
    }
}
