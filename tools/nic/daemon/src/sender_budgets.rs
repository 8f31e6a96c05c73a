// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The room of a queue, shared by its senders: a flood of one sender displaces only its own
//! messages.
//!
//! A sender may take as much room as is still free, and no more than that. So one sender alone gets
//! half of the room. Each further sender that floods gets at least half of the room that is left,
//! at any rate of the others: two senders that flood get between a quarter and a half each. No
//! waiting message is thrown away.

/// Smallest number of bytes that a frame or a packet takes, because many empty ones make a long
/// queue too.
pub(crate) const MIN_CHARGE_BYTES: usize = 4096;

/// The room that each of `N` senders has taken.
pub(crate) struct SenderBudgets<const N: usize> {
    limit: usize,
    used: usize,
    used_by: [usize; N],
}

impl<const N: usize> SenderBudgets<N> {
    /// Returns a room of which one sender alone can have `alone` bytes, which is half of it.
    pub(crate) const fn new(alone: usize) -> Self {
        Self {
            limit: 2 * alone,
            used: 0,
            used_by: [0; N],
        }
    }

    /// Takes room for `bytes` bytes. Returns false if the sender has its share.
    #[inline]
    pub(crate) fn reserve(&mut self, sender: usize, bytes: usize) -> bool {
        let bytes = bytes.max(MIN_CHARGE_BYTES);
        let own = &mut self.used_by[sender % N];
        let fits = *own + bytes <= self.limit.saturating_sub(self.used);
        if fits {
            self.used += bytes;
            *own += bytes;
        }
        fits
    }

    /// Gives back the room for `bytes` bytes.
    #[inline]
    pub(crate) fn release(&mut self, sender: usize, bytes: usize) {
        let bytes = bytes.max(MIN_CHARGE_BYTES);
        self.used = self.used.saturating_sub(bytes);
        let own = &mut self.used_by[sender % N];
        *own = own.saturating_sub(bytes);
    }

    /// Returns the number of bytes that are taken.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floods_leave_a_share_to_others_and_room_that_is_given_back_is_free() {
        let mut budgets = SenderBudgets::<4>::new(64 * MIN_CHARGE_BYTES);
        // Two senders flood, the second with frames twice as long as those of the first. Each gets
        // between a quarter and a half of the room.
        while budgets.reserve(1, 100) | budgets.reserve(2, 2 * MIN_CHARGE_BYTES) {}
        let taken =
            |budgets: &SenderBudgets<4>, sender: usize| budgets.used_by[sender] / MIN_CHARGE_BYTES;
        let (one, two) = (taken(&budgets, 1), taken(&budgets, 2));
        assert!(
            (32..=64).contains(&one) && (32..=64).contains(&two),
            "{one} {two}"
        );
        // A third sender gets half of the room that is left, which is at least an eighth of all.
        let third = (0..)
            .take_while(|_| budgets.reserve(3, MIN_CHARGE_BYTES))
            .count();
        assert_eq!(third, (128 - one - two) / 2);
        assert!(third >= 16, "{third}");
        (0..third).for_each(|_| budgets.release(3, MIN_CHARGE_BYTES));
        (0..one).for_each(|_| budgets.release(1, 100));
        (0..two / 2).for_each(|_| budgets.release(2, 2 * MIN_CHARGE_BYTES));
        assert_eq!((budgets.used_by, budgets.used()), ([0; 4], 0));
        // A sender alone gets half of the room.
        assert!((0..64).all(|_| budgets.reserve(0, 1)) && !budgets.reserve(0, 1));
    }
}
