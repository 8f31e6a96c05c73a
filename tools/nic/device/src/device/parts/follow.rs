// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The search for QPs whose CQ or SRQ is in error: where it stands, and what is left of its budget.

use crate::device::sched::{FOLLOW_COST, SLICE_FOLLOWED};

/// The rounds over all QPNs that look for QPs of a CQ or an SRQ in error.
///
/// A round that has begun looks at each QPN once. It spends at most the budget of a slice and one
/// move of a QP, and goes on in the next slice.
#[derive(Debug, Default)]
pub(crate) struct FollowRounds {
    /// Number of QPNs that the present round has still to look at.
    left: u32,
    /// QPN at which the round continues.
    next: u32,
    /// Part of the present slice that is left, in units of [`SLICE_FOLLOWED`].
    budget: u32,
}

impl FollowRounds {
    /// Begins a slice with its whole budget.
    pub(crate) fn begin_slice(&mut self) {
        self.budget = SLICE_FOLLOWED;
    }

    /// Begins another full round over all QPNs below `count`, because QPs that were checked already
    /// may use the CQ or SRQ that is in error now.
    pub(crate) fn begin_round(&mut self, count: u32) {
        self.left = count;
    }

    /// True if a round has not ended.
    pub(crate) fn is_pending(&self) -> bool {
        self.left != 0
    }

    /// True if a round has not ended and the slice has budget for it.
    #[inline]
    pub(crate) fn may_go_on(&self) -> bool {
        self.left != 0 && self.budget != 0
    }

    /// Returns the QPN to look at, below `count`. The caller then calls [`FollowRounds::spend`].
    pub(crate) fn next(&mut self, count: u32) -> Option<u32> {
        if !self.may_go_on() {
            return None;
        }
        self.left -= 1;
        if self.next >= count {
            self.next = 0;
        }
        let qpn = self.next;
        self.next += 1;
        Some(qpn)
    }

    /// Takes the cost of a look off the budget. `moved` is true if the QP was moved to ERR.
    pub(crate) fn spend(&mut self, moved: bool) {
        let cost = if moved { FOLLOW_COST } else { 1 };
        self.budget = self.budget.saturating_sub(cost);
    }

    /// Sets a place in the middle of a round.
    #[cfg(test)]
    pub(crate) fn stand_at(&mut self, left: u32, next: u32) {
        (self.left, self.next) = (left, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_looks_at_each_number_once_within_the_budget() {
        let mut rounds = FollowRounds::default();
        rounds.begin_round(3);
        assert!(rounds.is_pending() && rounds.next(3).is_none(), "no budget");
        rounds.begin_slice();
        assert_eq!(rounds.next(3), Some(0));
        rounds.begin_round(3);
        let seen: Vec<u32> = std::iter::from_fn(|| rounds.next(3)).collect();
        assert_eq!(seen, [1, 2, 0]);
        assert!(!rounds.is_pending());
        rounds.begin_round(SLICE_FOLLOWED);
        (0..SLICE_FOLLOWED / FOLLOW_COST).for_each(|_| rounds.spend(true));
        assert!(rounds.is_pending() && !rounds.may_go_on());
    }
}
