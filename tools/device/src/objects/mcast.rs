// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Multicast groups: which queue pairs are given a datagram that is for a group (IBTA 10.5).

use crate::config::{MAX_MCAST_GRP, MAX_MCAST_QP_ATTACH};
use crate::error::{bad, CmdError, NO_OBJECT};
use std::collections::BTreeMap;
use std::rc::Rc;
use verbena_abi::cmd::CmdStatus;
use verbena_abi::syndrome::Syndrome;

/// The destination QPN of every multicast packet (IBTA 3.5.11).
pub const MULTICAST_QPN: u32 = 0xff_ffff;

/// A GID in network order.
type Gid = [u8; 16];

/// Whether a GID is a group's: IPv6 multicast, or IPv4 multicast in an IPv4-mapped GID, as RoCE v2 has it.
pub fn is_group(gid: &Gid) -> bool {
    let mapped = gid.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    gid[0] == 0xff || mapped && gid[12] >> 4 == 0xe
}

/// The MAC address that a group's frames are sent to (RFC 1112 6.4, RFC 2464 7).
pub fn mac(gid: &Gid) -> [u8; 6] {
    if gid[0] == 0xff {
        [0x33, 0x33, gid[12], gid[13], gid[14], gid[15]]
    } else {
        [0x01, 0x00, 0x5e, gid[13] & 0x7f, gid[14], gid[15]]
    }
}

/// The groups that have members, and these by number. Lists are shared with who is giving out a datagram.
#[derive(Debug, Default)]
pub struct Groups(BTreeMap<Gid, Rc<Vec<u32>>>);

impl Groups {
    /// The members of a group, if it has any, in the order in which they were attached.
    pub fn members(&self, group: &Gid) -> Option<&Rc<Vec<u32>>> {
        self.0.get(group)
    }

    /// Attaches a queue pair. Once more changes nothing.
    ///
    /// # Errors
    ///
    /// No room for another group, or for another member of this one.
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

    /// Detaches a queue pair.
    ///
    /// # Errors
    ///
    /// It is no member.
    pub fn detach(&mut self, group: &Gid, qpn: u32) -> Result<(), CmdError> {
        let members = self.0.get_mut(group).ok_or(NO_OBJECT)?;
        let at = members.iter().position(|&m| m == qpn).ok_or(NO_OBJECT)?;
        Rc::make_mut(members).remove(at);
        if members.is_empty() {
            self.0.remove(group);
        }
        Ok(())
    }

    /// A queue pair is gone. Returns whether a group is, with it.
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

    /// The groups that have members, with these.
    pub fn each(&self) -> impl Iterator<Item = (&Gid, &[u32])> {
        self.0.iter().map(|(gid, members)| (gid, &members[..]))
    }

    /// The groups that have members.
    pub fn all(&self) -> impl Iterator<Item = &Gid> {
        self.0.keys()
    }
}
