// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The ring of entries that a device writes.

use crate::entry::{EntryKind, FlightEntry, ENTRY_WORDS};

/// Least number of entries in a ring.
pub const MIN_ENTRIES: usize = 1 << 10;
/// Largest number of entries in a ring, which take 12 MiB.
pub const MAX_ENTRIES: usize = 1 << 18;
/// Default number of entries in a ring. They fit into the cache of a core and leave room there for
/// payload.
pub const DEFAULT_ENTRIES: usize = 1 << 14;

/// The last entries, and the number of all entries so far.
#[derive(Clone, Debug)]
pub struct EntryRing {
    /// The entries, whose number is a power of two.
    entries: Vec<[u64; ENTRY_WORDS]>,
    next: u64,
}

impl EntryRing {
    /// Creates an empty ring for at least `entries` entries, within the limits.
    pub fn new(entries: usize) -> Self {
        let entries = entries.clamp(MIN_ENTRIES, MAX_ENTRIES).next_power_of_two();
        Self {
            entries: vec![[0; ENTRY_WORDS]; entries],
            next: 0,
        }
    }

    /// Returns the number of entries that the ring has room for.
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of entries so far, including the overwritten ones.
    pub fn total(&self) -> u64 {
        self.next
    }

    /// Writes an entry over the oldest one.
    #[inline]
    pub fn push(&mut self, time_ns: u64, kind: EntryKind) {
        let at = self.next as usize & (self.entries.len() - 1);
        if let Some(slot) = self.entries.get_mut(at) {
            *slot = FlightEntry { time_ns, kind }.pack();
        }
        self.next += 1;
    }

    /// Returns up to `most` entries, beginning with number `from` or with the oldest entry that is
    /// left, and the number of the first of them.
    pub fn portion(&self, from: u64, most: usize) -> (u64, Vec<[u64; ENTRY_WORDS]>) {
        let room = self.entries.len() as u64;
        let first = from.max(self.next.saturating_sub(room)).min(self.next);
        let count = (self.next - first).min(most as u64);
        let mask = self.entries.len() - 1;
        let places = (first..first + count).filter_map(|n| self.entries.get(n as usize & mask));
        (first, places.copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(count: u32) -> EntryRing {
        let mut ring = EntryRing::new(0);
        for n in 0..count {
            ring.push(n.into(), EntryKind::Destroyed { qpn: n, owner: 0 });
        }
        ring
    }

    fn numbers(ring: &EntryRing, from: u64, most: usize) -> (u64, Vec<u64>) {
        let (first, words) = ring.portion(from, most);
        let times = words
            .iter()
            .filter_map(|w| Some(FlightEntry::unpack(w)?.time_ns));
        (first, times.collect())
    }

    #[test]
    fn the_last_entries_are_returned_in_order() {
        assert_eq!(numbers(&pushed(0), 0, 9), (0, vec![]));
        assert_eq!(numbers(&pushed(3), 0, 9), (0, vec![0, 1, 2]));
        assert_eq!(numbers(&pushed(3), 1, 1), (1, vec![1]));
        assert_eq!(numbers(&pushed(3), 99, 9), (3, vec![]));
        let ring = pushed(MIN_ENTRIES as u32 + 5);
        assert_eq!(numbers(&ring, 0, 2), (5, vec![5, 6]));
        let (first, all) = numbers(&ring, 0, usize::MAX);
        assert_eq!((first, all.len()), (5, MIN_ENTRIES));
        assert_eq!(ring.total(), MIN_ENTRIES as u64 + 5);
    }

    #[test]
    fn its_size_is_within_limits() {
        let sizes = [0, 5000, usize::MAX].map(|n| EntryRing::new(n).capacity());
        assert_eq!(sizes, [MIN_ENTRIES, 8192, MAX_ENTRIES]);
    }
}
