// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion timestamps as times of the system clock.

use std::time::SystemTime;

/// The clocks are compared again when the last time lies further back than this, in nanoseconds: they drift apart, and somebody may
/// set the system clock.
const EVERY: u64 = 1_000_000_000;

/// Nanoseconds since 1970; 0 before.
pub fn system_clock() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

/// What both clocks showed at one moment: the device's, the system's.
#[derive(Clone, Copy, Default)]
pub struct WallClock(Option<(u64, u64)>);

impl WallClock {
    /// What the system clock showed when the device clock showed `timestamp`. `both` reads them; while it cannot, what they
    /// showed last must do.
    pub fn at(&mut self, timestamp: u64, both: impl FnOnce() -> Option<(u64, u64)>) -> u64 {
        if self
            .0
            .is_none_or(|(then, _)| timestamp > then.saturating_add(EVERY))
        {
            self.0 = both().or(self.0);
        }
        let (device, system) = self.0.unwrap_or_default();
        system.wrapping_add(timestamp.wrapping_sub(device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_the_moment_are_told() {
        let mut clock = WallClock::default();
        assert_eq!(clock.at(900, || Some((1000, 5_000))), 4_900);
        assert_eq!(clock.at(1_200, || panic!("it is not long ago")), 5_200);
    }

    #[test]
    fn the_clocks_are_compared_again_after_a_while() {
        let mut clock = WallClock::default();
        assert_eq!(clock.at(0, || Some((0, 100))), 100);
        let later = EVERY + 1;
        assert_eq!(clock.at(later, || Some((later, later + 150))), later + 150);
        // The device has gone.
        assert_eq!(clock.at(3 * EVERY, || None), 3 * EVERY + 150);
    }
}
