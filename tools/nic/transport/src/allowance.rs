// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Accounts of the bytes that queue pairs may keep of packets that arrived out of order. Several
//! queue pairs share an account. A part of an account has a limit of its own, so that one peer
//! cannot use up the whole account.

use alloc::rc::Rc;
use core::cell::Cell;

/// An account of bytes.
#[derive(Debug)]
pub struct Allowance {
    left: Cell<u64>,
    /// Account that this account is a part of.
    whole: Option<Rc<Allowance>>,
}

impl Allowance {
    /// Returns an account of `bytes` bytes.
    pub fn new(bytes: u64) -> Rc<Self> {
        Rc::new(Self {
            left: Cell::new(bytes),
            whole: None,
        })
    }

    /// Returns a part of another account, with a limit of `bytes` bytes.
    pub fn part_of(whole: &Rc<Self>, bytes: u64) -> Rc<Self> {
        Rc::new(Self {
            left: Cell::new(bytes),
            whole: Some(Rc::clone(whole)),
        })
    }

    /// Returns the number of bytes that are left in the account and in the accounts that it is part
    /// of.
    pub fn left(&self) -> u64 {
        let whole = self.whole.as_ref().map_or(u64::MAX, |whole| whole.left());
        self.left.get().min(whole)
    }

    /// Takes bytes from the account, or returns `None` if fewer are left. The bytes return to the
    /// account when the returned value is dropped.
    pub(crate) fn take(self: &Rc<Self>, bytes: u32) -> Option<Held> {
        if self.left() < bytes.into() {
            return None;
        }
        self.add(bytes, false);
        Some(Held {
            from: Rc::clone(self),
            bytes,
        })
    }

    fn add(&self, bytes: u32, back: bool) {
        let (left, bytes64) = (self.left.get(), u64::from(bytes));
        self.left.set(if back {
            left.saturating_add(bytes64)
        } else {
            left.saturating_sub(bytes64)
        });
        if let Some(whole) = &self.whole {
            whole.add(bytes, back);
        }
    }
}

/// Bytes that were taken from an account.
#[derive(Debug)]
pub(crate) struct Held {
    from: Rc<Allowance>,
    bytes: u32,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.from.add(self.bytes, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_bytes_return_to_the_account() {
        let whole = Allowance::new(100);
        let (a, b) = (
            Allowance::part_of(&whole, 60),
            Allowance::part_of(&whole, 60),
        );
        let first = a.take(50).unwrap();
        assert_eq!((a.left(), b.left(), whole.left()), (10, 50, 50));
        assert!(a.take(11).is_none() && b.take(51).is_none());
        let second = b.take(50).unwrap();
        assert_eq!((a.left(), whole.left()), (0, 0));
        drop(first);
        assert_eq!((a.left(), b.left()), (50, 10));
        drop(second);
        assert_eq!((a.left(), b.left(), whole.left()), (60, 60, 100));
    }
}
