// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Multicast groups: the queue pairs that get the datagrams of each group (IBTA 10.5).

use crate::config::{MAX_MCAST_GRP, MAX_MCAST_QP_ATTACH};
use crate::error::{bad, CmdError, NO_OBJECT};
use std::collections::BTreeMap;
use std::rc::Rc;
use verbena_abi::cmd::CmdStatus;
use verbena_abi::syndrome::Syndrome;

/// A GID in network order.
type Gid = [u8; 16];

/// True if a GID is that of a group: IPv6 multicast, or IPv4 multicast in an IPv4-mapped GID, as in
/// RoCE v2.
pub fn is_group(gid: &Gid) -> bool {
    let mapped = gid.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    gid[0] == 0xff || mapped && gid[12] >> 4 == 0xe
}

/// Returns the destination MAC address of frames to a group (RFC 1112 6.4, RFC 2464 7).
pub fn mac(gid: &Gid) -> [u8; 6] {
    if gid[0] == 0xff {
        [0x33, 0x33, gid[12], gid[13], gid[14], gid[15]]
    } else {
        [0x01, 0x00, 0x5e, gid[13] & 0x7f, gid[14], gid[15]]
    }
}

/// The groups that have members, each with the QPNs of its members. The delivery of a datagram
/// shares the list of its group.
#[derive(Debug, Default)]
pub struct Groups(BTreeMap<Gid, Rc<Vec<u32>>>);

impl Groups {
    /// Returns the members of a group in the order in which they were attached; none if the group
    /// has no members.
    pub fn members(&self, group: &Gid) -> Option<&Rc<Vec<u32>>> {
        self.0.get(group)
    }

    /// Attaches a queue pair to a group. If the queue pair is already a member, nothing changes.
    ///
    /// # Errors
    ///
    /// Fails if there is no room for another group, or for another member of this group.
    pub fn attach(&mut self, group: Gid, qpn: u32) -> Result<(), CmdError> {
        const FULL: CmdError = bad(CmdStatus::NoResources, Syndrome::CmdNumber);
        if self.0.len() >= MAX_MCAST_GRP as usize && !self.0.contains_key(&group) {
            return Err(FULL);
        }
        let members = self.0.entry(group).or_default();
        if members.contains(&qpn) {
            return Ok(());
        }
        if members.len() >= MAX_MCAST_QP_ATTACH as usize {
            return Err(FULL);
        }
        Rc::make_mut(members).push(qpn);
        Ok(())
    }

    /// Detaches a queue pair from a group.
    ///
    /// # Errors
    ///
    /// Fails if the queue pair is not a member.
    pub fn detach(&mut self, group: &Gid, qpn: u32) -> Result<(), CmdError> {
        let members = self.0.get_mut(group).ok_or(NO_OBJECT)?;
        let at = members.iter().position(|&m| m == qpn).ok_or(NO_OBJECT)?;
        Rc::make_mut(members).remove(at);
        if members.is_empty() {
            self.0.remove(group);
        }
        Ok(())
    }

    /// Removes a destroyed queue pair from all groups. Returns true if a group has lost its last
    /// member.
    pub fn forget(&mut self, qpn: u32) -> bool {
        let before = self.0.len();
        self.0.retain(|_, members| {
            if members.contains(&qpn) {
                Rc::make_mut(members).retain(|&m| m != qpn);
            }
            !members.is_empty()
        });
        self.0.len() != before
    }

    /// Returns the groups that have members, with the members.
    pub fn each(&self) -> impl Iterator<Item = (&Gid, &[u32])> {
        self.0.iter().map(|(gid, members)| (gid, &members[..]))
    }

    /// Returns the GIDs of the groups that have members.
    pub fn all(&self) -> impl Iterator<Item = &Gid> {
        self.0.keys()
    }
}
