// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The time that the device has during a slice.

/// The time at which the present slice or call began, in nanoseconds of the device clock. All work
/// of a slice sees the same time.
#[derive(Debug, Default)]
pub struct SliceClock(u64);

impl SliceClock {
    /// Returns the time at the beginning of the slice.
    #[inline]
    pub fn now(&self) -> u64 {
        self.0
    }

    /// Begins a slice or a call at this time.
    #[inline]
    pub fn begin(&mut self, now: u64) {
        self.0 = now;
    }
}
