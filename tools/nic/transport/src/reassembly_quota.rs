// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Accounts of the bytes that queue pairs may keep of packets that arrived out of order. Several
//! queue pairs share an account. A part of an account has a limit of its own, so that one peer
//! cannot use up the whole account.

use alloc::rc::Rc;
use core::cell::Cell;

/// An account of bytes.
#[derive(Debug)]
pub struct ReassemblyQuota {
    left: Cell<u64>,
    /// Account that this account is a part of.
    parent: Option<Rc<ReassemblyQuota>>,
}

impl ReassemblyQuota {
    /// Returns an account of `bytes` bytes.
    pub fn new(bytes: u64) -> Rc<Self> {
        Rc::new(Self {
            left: Cell::new(bytes),
            parent: None,
        })
    }

    /// Returns a part of another account, with a limit of `bytes` bytes.
    pub fn child_of(whole: &Rc<Self>, bytes: u64) -> Rc<Self> {
        Rc::new(Self {
            left: Cell::new(bytes),
            parent: Some(Rc::clone(whole)),
        })
    }

    /// Returns the number of bytes that are left in the account and in the accounts that it is part
    /// of.
    pub fn available(&self) -> u64 {
        let whole = self
            .parent
            .as_ref()
            .map_or(u64::MAX, |whole| whole.available());
        self.left.get().min(whole)
    }

    /// Takes bytes from the account, or returns `None` if fewer are left. The bytes return to the
    /// account when the returned value is dropped.
    pub(crate) fn reserve(self: &Rc<Self>, bytes: u32) -> Option<QuotaReservation> {
        if self.available() < bytes.into() {
            return None;
        }
        self.add(bytes, false);
        Some(QuotaReservation {
            quota: Rc::clone(self),
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
        if let Some(whole) = &self.parent {
            whole.add(bytes, back);
        }
    }
}

/// Bytes that were taken from an account.
#[derive(Debug)]
pub(crate) struct QuotaReservation {
    quota: Rc<ReassemblyQuota>,
    bytes: u32,
}

impl Drop for QuotaReservation {
    fn drop(&mut self) {
        self.quota.add(self.bytes, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_bytes_return_to_the_account() {
        let whole = ReassemblyQuota::new(100);
        let (a, b) = (
            ReassemblyQuota::child_of(&whole, 60),
            ReassemblyQuota::child_of(&whole, 60),
        );
        let first = a.reserve(50).unwrap();
        assert_eq!(
            (a.available(), b.available(), whole.available()),
            (10, 50, 50)
        );
        assert!(a.reserve(11).is_none() && b.reserve(51).is_none());
        let second = b.reserve(50).unwrap();
        assert_eq!((a.available(), whole.available()), (0, 0));
        drop(first);
        assert_eq!((a.available(), b.available()), (50, 10));
        drop(second);
        assert_eq!(
            (a.available(), b.available(), whole.available()),
            (60, 60, 100)
        );
    }
}
