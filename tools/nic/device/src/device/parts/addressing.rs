// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Multicast groups of a device, and whether the daemon knows its present addresses.

use crate::error::CmdError;
use crate::objects::mcast::Groups;
use std::rc::Rc;

/// The groups that have members in this device, and a mark for changed addresses.
///
/// Each change of the groups or of the GID table leaves the mark set until the daemon takes it.
/// After power-on the mark is set, so the daemon begins with an empty set of addresses.
#[derive(Debug)]
pub(crate) struct Addressing {
    groups: Groups,
    /// Number of packet copies made for members of groups. It wraps.
    copies: u32,
    /// True if the addresses have changed since the last [`Addressing::take_change`].
    changed: bool,
}

impl Addressing {
    /// Creates the state after power-on.
    pub(crate) fn new() -> Self {
        Self {
            groups: Groups::default(),
            copies: 0,
            changed: true,
        }
    }

    /// Returns the groups and their members.
    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Attaches a QP to a group, as [`Groups::attach`] does.
    pub(crate) fn attach(&mut self, group: [u8; 16], qpn: u32) -> Result<(), CmdError> {
        self.changed = true;
        self.groups.attach(group, qpn)
    }

    /// Detaches a QP from a group, as [`Groups::detach`] does.
    pub(crate) fn detach(&mut self, group: &[u8; 16], qpn: u32) -> Result<(), CmdError> {
        self.changed = true;
        self.groups.detach(group, qpn)
    }

    /// Removes a destroyed QP from all groups.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.changed |= self.groups.forget(qpn);
    }

    /// Takes note that the GID table has changed.
    pub(crate) fn note_gids(&mut self) {
        self.changed = true;
    }

    /// True if the addresses have changed since the last call.
    pub(crate) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Returns the members of a group for the delivery of a packet, and counts a copy for each.
    pub(crate) fn copy_to(&mut self, group: &[u8; 16]) -> Option<Rc<Vec<u32>>> {
        let members = self.groups.members(group).cloned()?;
        self.copies = self.copies.wrapping_add(members.len() as u32);
        Some(members)
    }

    /// Returns the number of copies so far, which wraps.
    pub(crate) fn copies(&self) -> u32 {
        self.copies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_marked_until_it_is_taken() {
        let group = [0xff; 16];
        let mut addressing = Addressing::new();
        let mut changed = |change: fn(&mut Addressing)| {
            change(&mut addressing);
            (addressing.take_change(), addressing.take_change())
        };
        assert_eq!(changed(|_| {}), (true, false));
        assert_eq!(changed(|a| a.attach([0xff; 16], 3).unwrap()), (true, false));
        assert_eq!(changed(|a| a.forget(4)), (false, false));
        assert_eq!(changed(|a| a.note_gids()), (true, false));
        assert_eq!(changed(|a| a.forget(3)), (true, false));
        assert!(addressing.copy_to(&group).is_none());
        addressing.attach(group, 1).unwrap();
        addressing.attach(group, 2).unwrap();
        assert_eq!(addressing.copy_to(&group).unwrap()[..], [1, 2]);
        assert_eq!(addressing.copies(), 2);
    }
}
