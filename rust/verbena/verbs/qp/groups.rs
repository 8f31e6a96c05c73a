// SPDX-License-Identifier: GPL-2.0

//! Multicast groups to which a queue pair is attached.
//!
//! The core counts an attachment for each GID and LID. RoCE has no LIDs, so a queue pair is in a
//! group until its last attachment to the group ends. On InfiniBand a group has both.

use super::QpData;
use crate::abi::{
    cmd::{
        AttachMcast,
        DetachMcast, //
    },
    Le16,
    Le32, //
};
use kernel::prelude::*;

/// A group, and the number of attachments of the queue pair to it.
pub(super) struct McastGroup {
    gid: [u8; 16],
    /// LID of the group on InfiniBand, else 0.
    mlid: u16,
    times: u32,
}

impl McastGroup {
    fn is(&self, gid: &[u8; 16], mlid: u16) -> bool {
        self.gid == *gid && self.mlid == mlid
    }
}

impl QpData {
    /// Returns the LID of a group, which counts only on InfiniBand.
    fn mlid(&self, lid: u16) -> u16 {
        if self.vdev.is_infiniband() {
            lid
        } else {
            0
        }
    }

    /// Adds an attachment to a group. Only the first one is a command to the device.
    pub(super) fn join(&self, gid: &[u8; 16], lid: u16) -> Result {
        let mlid = self.mlid(lid);
        let mut groups = self.groups.lock();
        if let Some(group) = groups.iter_mut().find(|group| group.is(gid, mlid)) {
            group.times = group.times.checked_add(1).ok_or(ENOMEM)?;
            return Ok(());
        }
        groups.reserve(1, GFP_KERNEL)?;
        self.vdev.cmdq.exec(&AttachMcast {
            qpn: Le32::new(self.qpn()),
            mlid: Le16::new(mlid),
            port: 1,
            mgid: *gid,
            ..Default::default()
        })?;
        let group = McastGroup {
            gid: *gid,
            mlid,
            times: 1,
        };
        Ok(groups.push_within_capacity(group)?)
    }

    /// Removes an attachment from a group. Returns `EINVAL` if there is none.
    pub(super) fn leave(&self, gid: &[u8; 16], lid: u16) -> Result {
        let mlid = self.mlid(lid);
        let mut groups = self.groups.lock();
        let at = groups
            .iter()
            .position(|group| group.is(gid, mlid))
            .ok_or(EINVAL)?;
        if let Some(group) = groups.get_mut(at).filter(|group| group.times > 1) {
            group.times -= 1;
            return Ok(());
        }
        let left = self.vdev.exec_unless_dead(&DetachMcast {
            qpn: Le32::new(self.qpn()),
            mlid: Le16::new(mlid),
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
