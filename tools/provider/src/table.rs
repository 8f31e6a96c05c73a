// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The queue pairs of a CQ by QPN: a hash table with open addressing. The table is rebuilt when it
//! grows and when a queue pair is removed, so that a poll finds a queue pair with a mask and a
//! comparison. QPNs are handed out in sequence, so collisions are rare.

use crate::qp::Qp;
use std::sync::Arc;

/// Hash table of queue pairs by QPN. At most half of the places are taken, so a search always ends.
#[derive(Default)]
pub struct QpTable {
    places: Vec<Option<Arc<Qp>>>,
    count: usize,
}

impl QpTable {
    /// Returns the queue pair with this number.
    #[inline(always)]
    pub fn find(&self, qpn: u32) -> Option<&Qp> {
        let mask = self.places.len().wrapping_sub(1);
        let mut at = qpn as usize;
        loop {
            // In an empty table there is no place; otherwise the masked index is within bounds.
            let qp = self.places.get(at & mask)?.as_deref()?;
            if qp.qpn == qpn {
                return Some(qp);
            }
            at = at.wrapping_add(1);
        }
    }

    /// Returns all queue pairs, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.places.iter().flatten().map(|qp| &**qp)
    }

    /// Adds a queue pair, whose number must not be in the table.
    pub fn insert(&mut self, qp: &Arc<Qp>) {
        self.count += 1;
        let size = (self.count * 2).next_power_of_two().max(8);
        if size > self.places.len() {
            self.rebuild(size, None);
        }
        self.place(qp.clone());
    }

    /// True if the table has this very queue pair, and not another one with the same number.
    pub fn contains(&self, qp: &Qp) -> bool {
        self.find(qp.qpn)
            .is_some_and(|other| core::ptr::eq(other, qp))
    }

    /// Removes and returns the queue pair with this number.
    pub fn remove(&mut self, qpn: u32) -> Option<Arc<Qp>> {
        let removed = self
            .places
            .iter()
            .flatten()
            .find(|qp| qp.qpn == qpn)?
            .clone();
        self.count -= 1;
        self.rebuild(self.places.len(), Some(&removed));
        Some(removed)
    }

    fn rebuild(&mut self, size: usize, without: Option<&Qp>) {
        let old = core::mem::take(&mut self.places);
        self.places.resize_with(size, || None);
        for qp in old.into_iter().flatten() {
            if !without.is_some_and(|removed| core::ptr::eq(removed, &*qp)) {
                self.place(qp);
            }
        }
    }

    fn place(&mut self, qp: Arc<Qp>) {
        let mask = self.places.len() - 1;
        let mut at = qp.qpn as usize & mask;
        while self.places[at].is_some() {
            at = (at + 1) & mask;
        }
        self.places[at] = Some(qp);
    }
}
