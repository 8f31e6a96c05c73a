// SPDX-License-Identifier: GPL-2.0

//! Multicast groups to which a queue pair is attached.
//!
//! The core counts an attachment for each GID and LID. RoCE has no LIDs, so a queue pair is in a
//! group until its last attachment to the group ends.

use super::QpData;
use crate::abi::{
    cmd::{
        AttachMcast,
        DetachMcast, //
    },
    Le32, //
};
use kernel::prelude::*;

/// A group, and the number of attachments of the queue pair to it.
pub(super) struct McastGroup {
    gid: [u8; 16],
    times: u32,
}

impl QpData {
    /// Adds an attachment to a group. Only the first one is a command to the device.
    pub(super) fn join(&self, gid: &[u8; 16]) -> Result {
        let mut groups = self.groups.lock();
        if let Some(group) = groups.iter_mut().find(|group| group.gid == *gid) {
            group.times = group.times.checked_add(1).ok_or(ENOMEM)?;
            return Ok(());
        }
        groups.reserve(1, GFP_KERNEL)?;
        self.vdev.cmdq.exec(&AttachMcast {
            qpn: Le32::new(self.qpn()),
            port: 1,
            mgid: *gid,
            ..Default::default()
        })?;
        let group = McastGroup {
            gid: *gid,
            times: 1,
        };
        Ok(groups.push_within_capacity(group)?)
    }

    /// Removes an attachment from a group. Returns `EINVAL` if there is none.
    pub(super) fn leave(&self, gid: &[u8; 16]) -> Result {
        let mut groups = self.groups.lock();
        let at = groups
            .iter()
            .position(|group| group.gid == *gid)
            .ok_or(EINVAL)?;
        if let Some(group) = groups.get_mut(at).filter(|group| group.times > 1) {
            group.times -= 1;
            return Ok(());
        }
        let left = self.vdev.exec_unless_dead(&DetachMcast {
            qpn: Le32::new(self.qpn()),
            port: 1,
            mgid: *gid,
            ..Default::default()
        });
        // The core counts the groups that a queue pair is in, and does not destroy a queue pair
        // that is in one. So the attachment ends even if the command fails. At worst the queue pair
        // receives packets of the group until it is destroyed.
        if left.is_err() {
            self.vdev
                .complain("it refused to detach a queue pair from a multicast group");
        }
        groups.remove(at).map(drop)?;
        Ok(())
    }
}
