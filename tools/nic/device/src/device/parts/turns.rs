// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which QP runs next, and when the others have to run at the latest.

use verbena_transport::sched::{ReadyQueue, TimerWheel};

/// The turns and deadlines of QPs, by QPN.
///
/// A QP waits at most once for its turn. Each deadline here is at most that of the QP's transport:
/// a transport that moves its deadline to a later time is asked again when the earlier one passes.
#[derive(Debug)]
pub(crate) struct Turns {
    /// QPs with work, in the order of their turns, grouped by doorbell area.
    ready: ReadyQueue,
    timers: TimerWheel,
}

impl Turns {
    /// Creates the state without any turn or deadline.
    pub(crate) fn new() -> Self {
        Self {
            ready: ReadyQueue::new(),
            timers: TimerWheel::new(),
        }
    }

    /// Gives a QP a turn among the QPs of its doorbell area. A QP that waits keeps its place.
    pub(crate) fn add(&mut self, area: u32, qpn: u32) {
        self.ready.push(area, qpn);
    }

    /// Takes the QP that has the next turn.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u32> {
        self.ready.pop()
    }

    /// True if no QP waits for its turn.
    pub(crate) fn are_none(&self) -> bool {
        self.ready.is_empty()
    }

    /// True if a QP waits for its turn.
    pub(crate) fn has(&self, qpn: u32) -> bool {
        self.ready.contains(qpn)
    }

    /// Returns the QPs whose turns come next, for prefetches.
    #[inline]
    pub(crate) fn ahead<const N: usize>(&self) -> [Option<u32>; N] {
        self.ready.ahead()
    }

    /// Prefetches the deadline of a QP.
    #[inline]
    pub(crate) fn prefetch(&self, qpn: u32) {
        self.timers.prefetch(qpn);
    }

    /// Takes note of the deadline of a QP, in nanoseconds. A deadline that has moved to a later time
    /// is set again when the old one passes. Most deadlines change before they pass.
    #[inline]
    pub(crate) fn set_deadline(&mut self, qpn: u32, at: u64) {
        if self.timers.deadline(qpn).is_none_or(|set| at < set) {
            self.timers.set(qpn, at);
        }
    }

    /// Sets the deadline of a QP whose earlier one has passed.
    pub(crate) fn set_again(&mut self, qpn: u32, at: u64) {
        self.timers.set(qpn, at);
    }

    /// Drops the deadline of a QP.
    pub(crate) fn cancel_deadline(&mut self, qpn: u32) {
        self.timers.cancel(qpn);
    }

    /// Takes a QP whose deadline has passed.
    #[inline]
    pub(crate) fn next_expired(&mut self, now: u64) -> Option<u32> {
        self.timers.pop(now)
    }

    /// Returns the time at which [`Turns::next_expired`] has a QP at the earliest.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.timers.next_deadline()
    }

    /// Drops the turn and the deadline of a QP that is destroyed.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.ready.remove(qpn);
        self.timers.cancel(qpn);
    }

    /// Returns the deadline of a QP.
    #[cfg(test)]
    pub(crate) fn deadline(&self, qpn: u32) -> Option<u64> {
        self.timers.deadline(qpn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_earlier_deadline_replaces_one() {
        let mut turns = Turns::new();
        for (at, expected) in [(9_000_000, 9_000_000), (20_000_000, 9_000_000), (1, 1)] {
            turns.set_deadline(3, at);
            assert_eq!(turns.deadline(3), Some(expected));
        }
        turns.set_again(3, 20_000_000);
        assert_eq!(turns.deadline(3), Some(20_000_000));
    }

    #[test]
    fn a_qp_that_is_forgotten_has_neither() {
        let mut turns = Turns::new();
        turns.add(0, 3);
        turns.add(0, 3);
        turns.set_deadline(3, 5);
        turns.forget(3);
        assert!(turns.are_none() && !turns.has(3));
        assert_eq!((turns.next(), turns.next_deadline()), (None, None));
    }
}
