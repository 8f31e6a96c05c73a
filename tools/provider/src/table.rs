// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The queue pairs of a CQ by QPN: a hash table with open addressing, rebuilt when a queue pair comes or goes, so that
//! a poll finds one with a mask and a comparison. QPNs are handed out in sequence, so collisions are rare.

use crate::qp::Qp;
use std::sync::Arc;

/// See above. At most half of the places are taken, so a search always ends.
#[derive(Default)]
pub struct QpTable {
    places: Vec<Option<Arc<Qp>>>,
    count: usize,
}

impl QpTable {
    /// The queue pair with this number.
    #[inline(always)]
    pub fn find(&self, qpn: u32) -> Option<&Qp> {
        let mask = self.places.len().wrapping_sub(1);
        let mut at = qpn as usize;
        loop {
            // Nothing in an empty table; within bounds otherwise.
            let qp = self.places.get(at & mask)?.as_deref()?;
            if qp.qpn == qpn {
                return Some(qp);
            }
            at = at.wrapping_add(1);
        }
    }

    /// All queue pairs, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.places.iter().flatten().map(|qp| &**qp)
    }

    /// Adds one.
    pub fn insert(&mut self, qp: &Arc<Qp>) {
        self.count += 1;
        let size = (self.count * 2).next_power_of_two().max(8);
        if size > self.places.len() {
            self.rebuild(size, None);
        }
        self.place(qp.clone());
    }

    /// Whether this one is here, and not another of the same number.
    pub fn has(&self, qp: &Qp) -> bool {
        self.find(qp.qpn)
            .is_some_and(|other| core::ptr::eq(other, qp))
    }

    /// Removes the one with this number.
    pub fn remove(&mut self, qpn: u32) -> Option<Arc<Qp>> {
        let gone = self
            .places
            .iter()
            .flatten()
            .find(|qp| qp.qpn == qpn)?
            .clone();
        self.count -= 1;
        self.rebuild(self.places.len(), Some(&gone));
        Some(gone)
    }

    fn rebuild(&mut self, size: usize, without: Option<&Qp>) {
        let old = core::mem::take(&mut self.places);
        self.places.resize_with(size, || None);
        for qp in old.into_iter().flatten() {
            if !without.is_some_and(|gone| core::ptr::eq(gone, &*qp)) {
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
