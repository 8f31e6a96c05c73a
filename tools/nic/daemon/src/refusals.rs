// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The GIDs that a VM's driver requested and that the host or the switch has refused: for the log
//! and `verbenactl port`, so that users find out why an address has no GID.

use crate::policy::{gid_text, mac_text};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use verbena_abi::syndrome::Syndrome;
use verbena_device::Gid as Entry;

/// Largest number of refused entries of a VM; the newest are kept.
pub const MAX_ENTRIES: usize = 64;
/// Shortest interval between two lines of the log about one VM, in nanoseconds: its guest may set
/// any number of addresses.
pub const MIN_LOG_INTERVAL_NS: u64 = 1_000_000_000;

/// An entry of the GID table that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedEntry {
    /// Entry with GID, MAC address and VLAN.
    pub entry: Entry,
    /// The rule that the entry breaks.
    pub cause: Syndrome,
    /// Number of refusals since the entry was last accepted.
    pub times: u64,
}

impl RefusedEntry {
    /// Returns a description of the refusal.
    pub fn describe(&self) -> String {
        let Entry { gid, mac, vlan } = &self.entry;
        let vlan = vlan.map_or_else(String::new, |id| format!(", VLAN {id}"));
        format!(
            "GID {} with MAC address {}{vlan}: {:?}: {}",
            gid_text(gid),
            mac_text(mac),
            self.cause,
            self.cause.explain().trim()
        )
    }
}

#[derive(Default)]
struct RefusalState {
    all: VecDeque<RefusedEntry>,
    /// Time of the last line of the log.
    last_log_ns: Option<u64>,
}

/// The refused entries of one VM. See the [module](self).
#[derive(Default)]
pub struct Refusals(Mutex<RefusalState>);

impl Refusals {
    fn with<R>(&self, f: impl FnOnce(&mut RefusalState) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that an entry was refused. Returns the text for the log: once for each entry and
    /// cause, and not within [`MIN_LOG_INTERVAL_NS`] after the last.
    pub fn record(&self, entry: Entry, cause: Syndrome, now: u64) -> Option<String> {
        self.with(|state| {
            let old = state.all.iter().position(|one| one.entry == entry);
            let old = old.and_then(|at| state.all.remove(at));
            let is_known = old.as_ref().is_some_and(|old| old.cause == cause);
            let times = old.map_or(0, |old| old.times) + 1;
            if state.all.len() >= MAX_ENTRIES {
                state.all.pop_front();
            }
            let refused = RefusedEntry {
                entry,
                cause,
                times,
            };
            let text = refused.describe();
            state.all.push_back(refused);
            let is_soon = |at: u64| now.saturating_sub(at) < MIN_LOG_INTERVAL_NS;
            if is_known || state.last_log_ns.is_some_and(is_soon) {
                return None;
            }
            state.last_log_ns = Some(now);
            Some(text)
        })
    }

    /// Removes an entry, because it was accepted.
    pub fn on_accepted(&self, entry: &Entry) {
        self.with(|state| state.all.retain(|one| one.entry != *entry));
    }

    /// Removes all entries, because the device was reset.
    pub fn clear(&self) {
        self.with(|state| state.all.clear());
    }

    /// Returns the newest entries, in the order of their last refusals.
    pub fn all(&self) -> Vec<RefusedEntry> {
        self.with(|state| state.all.iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(last: u8) -> Entry {
        Entry {
            gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last],
            mac: [2, 0, 0, 0, 0, last],
            vlan: (last == 7).then_some(5),
        }
    }

    #[test]
    fn a_refusal_is_logged_once_and_there_is_a_pause_between_two() {
        let all = Refusals::default();
        let cause = Syndrome::GidInUse;
        let text = all.record(entry(1), cause, 0).unwrap();
        assert!(text.starts_with("GID 10.0.0.1 with MAC address 02:00:00:00:00:01: GidInUse: "));
        assert_eq!(all.record(entry(1), cause, 5 * MIN_LOG_INTERVAL_NS), None);
        let with_vlan = all
            .record(entry(7), cause, 5 * MIN_LOG_INTERVAL_NS)
            .unwrap();
        assert!(with_vlan.contains("VLAN 5"), "{with_vlan}");
        // A refusal by another rule is logged again, but not within the pause.
        let other = Syndrome::GidNotAllowed;
        assert_eq!(
            all.record(entry(1), other, 6 * MIN_LOG_INTERVAL_NS - 1),
            None
        );
        assert!(all
            .record(entry(1), cause, 6 * MIN_LOG_INTERVAL_NS)
            .is_some());
        assert_eq!(all.all().last().map(|one| one.times), Some(4));
        // The entry is accepted, so the next refusal is logged again.
        all.on_accepted(&entry(1));
        assert_eq!(all.all().len(), 1);
        assert!(all
            .record(entry(1), cause, 9 * MIN_LOG_INTERVAL_NS)
            .is_some());
        all.clear();
        assert!(all.all().is_empty());
    }

    #[test]
    fn the_number_of_refusals_is_bounded() {
        let all = Refusals::default();
        for n in 0..=255 {
            all.record(entry(n), Syndrome::GidInUse, 0);
        }
        let all = all.all();
        assert_eq!(all.len(), MAX_ENTRIES);
        assert_eq!(all.last().map(|one| one.entry), Some(entry(255)));
    }
}
