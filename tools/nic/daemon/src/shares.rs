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
pub(crate) const LEAST: usize = 4096;

/// The room that each of `N` senders has taken.
pub(crate) struct Shares<const N: usize> {
    room: usize,
    used: usize,
    of: [usize; N],
}

impl<const N: usize> Shares<N> {
    /// Returns a room of which one sender alone can have `alone` bytes, which is half of it.
    pub(crate) const fn new(alone: usize) -> Self {
        Self {
            room: 2 * alone,
            used: 0,
            of: [0; N],
        }
    }

    /// Takes room for `bytes` bytes. Returns false if the sender has its share.
    #[inline]
    pub(crate) fn take(&mut self, sender: usize, bytes: usize) -> bool {
        let bytes = bytes.max(LEAST);
        let own = &mut self.of[sender % N];
        let fits = *own + bytes <= self.room.saturating_sub(self.used);
        if fits {
            self.used += bytes;
            *own += bytes;
        }
        fits
    }

    /// Gives back the room for `bytes` bytes.
    #[inline]
    pub(crate) fn give_back(&mut self, sender: usize, bytes: usize) {
        let bytes = bytes.max(LEAST);
        self.used = self.used.saturating_sub(bytes);
        let own = &mut self.of[sender % N];
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
        let mut shares = Shares::<4>::new(64 * LEAST);
        // Two senders flood, the second with frames twice as long as those of the first. Each gets
        // between a quarter and a half of the room.
        while shares.take(1, 100) | shares.take(2, 2 * LEAST) {}
        let taken = |shares: &Shares<4>, who: usize| shares.of[who] / LEAST;
        let (one, two) = (taken(&shares, 1), taken(&shares, 2));
        assert!(
            (32..=64).contains(&one) && (32..=64).contains(&two),
            "{one} {two}"
        );
        // A third sender gets half of the room that is left, which is at least an eighth of all.
        let third = (0..).take_while(|_| shares.take(3, LEAST)).count();
        assert_eq!(third, (128 - one - two) / 2);
        assert!(third >= 16, "{third}");
        (0..third).for_each(|_| shares.give_back(3, LEAST));
        (0..one).for_each(|_| shares.give_back(1, 100));
        (0..two / 2).for_each(|_| shares.give_back(2, 2 * LEAST));
        assert_eq!((shares.of, shares.used()), ([0; 4], 0));
        // A sender alone gets half of the room.
        assert!((0..64).all(|_| shares.take(0, 1)) && !shares.take(0, 1));
    }
}
