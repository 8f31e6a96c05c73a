// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Scatter/gather elements (SGEs), and lists of them that need no allocation while they are short.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// A decoded scatter/gather element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Virtual or zero-based address.
    pub addr: u64,
    /// Number of bytes; 0 means 0.
    pub length: u32,
    /// Local key (L_Key) of the memory region.
    pub lkey: u32,
}

/// A vector that most of its owners never use. It takes one word before its first use, and keeps
/// its allocation for the next use.
#[derive(Clone, Debug)]
#[allow(clippy::box_collection, reason = "an empty vector has three words")]
pub struct LazyVec<T>(Option<Box<Vec<T>>>);

impl<T> Default for LazyVec<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Copy> LazyVec<T> {
    /// Appends one value to the vector.
    pub fn push(&mut self, value: T) {
        self.0.get_or_insert_default().push(value);
    }

    /// Appends several values to the vector.
    pub fn extend_from_slice(&mut self, values: &[T]) {
        if !values.is_empty() {
            self.0.get_or_insert_default().extend_from_slice(values);
        }
    }

    /// Empties the vector for reuse.
    #[inline]
    pub fn clear(&mut self) {
        if let Some(values) = &mut self.0 {
            values.clear();
        }
    }
}

impl<T> core::ops::Deref for LazyVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.0 {
            Some(values) => values,
            None => &[],
        }
    }
}

/// A list of SGEs. Most work requests have a single SGE, which is stored in the list itself, so
/// that no further memory has to be allocated or fetched for it.
#[derive(Clone, Debug, Default)]
pub struct SgeList {
    one: [Sge; 1],
    count: u32,
    /// All SGEs, if there are at least two.
    many: LazyVec<Sge>,
}

impl SgeList {
    /// Appends one SGE to the list.
    #[inline]
    pub fn push(&mut self, sge: Sge) {
        match self.count {
            0 => self.one = [sge],
            1 => {
                self.many.clear();
                self.many.extend_from_slice(&self.one);
                self.many.push(sge);
            }
            _ => self.many.push(sge),
        }
        self.count = self.count.saturating_add(1);
    }

    /// Appends several SGEs to the list.
    pub fn extend_from_slice(&mut self, sges: &[Sge]) {
        sges.iter().for_each(|sge| self.push(*sge));
    }

    /// Empties the list for reuse, and keeps its allocation.
    #[inline]
    pub fn clear(&mut self) {
        self.count = 0;
    }
}

impl core::ops::Deref for SgeList {
    type Target = [Sge];

    #[inline]
    fn deref(&self) -> &[Sge] {
        match self.count {
            0 => &[],
            1 => &self.one,
            _ => &self.many,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_list_has_only_the_new_sges() {
        let sge = |n: u32| Sge {
            addr: n.into(),
            length: n,
            lkey: n,
        };
        let mut list = SgeList::default();
        for count in [0, 1, 5, 1, 2, 0, 3] {
            list.clear();
            let all: Vec<Sge> = (0..count).map(sge).collect();
            list.extend_from_slice(&all);
            assert_eq!(list[..], all[..]);
        }
    }
}
