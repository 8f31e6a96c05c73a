// SPDX-License-Identifier: GPL-2.0

//! The multicast groups that a queue pair is in.
//!
//! The core counts an attachment for each GID and LID. RoCE knows no LIDs, so a queue pair is in a group
//! as long as one of its attachments there is left.

use super::QpData;
use crate::abi::{
    cmd::{
        AttachMcast,
        DetachMcast, //
    },
    Le32, //
};
use kernel::prelude::*;

/// A group, and how often the queue pair is attached to it.
pub(super) struct Group {
    gid: [u8; 16],
    times: u32,
}

impl QpData {
    /// One more attachment.
    pub(super) fn join(&self, gid: &[u8; 16]) -> Result {
        let mut groups = self.groups.lock();
        if let Some(group) = groups.iter_mut().find(|group| group.gid == *gid) {
            group.times = group.times.checked_add(1).ok_or(ENOMEM)?;
            return Ok(());
        }
        groups.reserve(1, GFP_KERNEL)?;
        self.live.cmdq.exec(&AttachMcast {
            qpn: Le32::new(self.qpn()),
            port: 1,
            mgid: *gid,
            ..Default::default()
        })?;
        let group = Group {
            gid: *gid,
            times: 1,
        };
        Ok(groups.push_within_capacity(group)?)
    }

    /// One less. `EINVAL`: there is none.
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
        let left = self.live.exec_unless_dead(&DetachMcast {
            qpn: Le32::new(self.qpn()),
            port: 1,
            mgid: *gid,
            ..Default::default()
        });
        // The core counts the groups that a queue pair is in, and destroys none that is in one. At worst
        // the queue pair hears the group until then.
        if left.is_err() {
            self.live
                .complain("it lets no queue pair out of a multicast group");
        }
        groups.remove(at).map(drop)?;
        Ok(())
    }
}
