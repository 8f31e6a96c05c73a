// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Commands that attach QPs to multicast groups and detach them.

use super::*;
use crate::config::NUM_PORTS;
use crate::objects::{infiniband, mcast};

impl Device {
    /// Checks the QP, group, port and LID of both commands (IBTA 11.3.1, 11.3.2).
    fn check_member(
        &self,
        qpn: u32,
        group: &[u8; 16],
        port: u8,
        mlid: u16,
    ) -> Result<(), CmdError> {
        let qp = self.qps.get(qpn).ok_or(NO_OBJECT)?;
        let has_mlid = match self.shared.port.as_infiniband() {
            None => mlid == 0,
            Some(_) => infiniband::is_multicast_lid(mlid),
        };
        let is_sound = mcast::is_group(group) && (1..=NUM_PORTS).contains(&port) && has_mlid;
        if !is_sound || qp.env.qp_type != QpType::Ud {
            return Err(ATTRIBUTE);
        }
        Ok(())
    }

    pub(super) fn attach_mcast(&mut self, request: &AttachMcast) -> Result<(), CmdError> {
        let (qpn, group) = (request.qpn.get(), request.mgid);
        self.check_member(qpn, &group, request.port, request.mlid.get())?;
        self.addressing.attach(group, qpn)
    }

    pub(super) fn detach_mcast(&mut self, request: &DetachMcast) -> Result<(), CmdError> {
        let (qpn, group) = (request.qpn.get(), request.mgid);
        self.check_member(qpn, &group, request.port, request.mlid.get())?;
        self.addressing.detach(&group, qpn)
    }
}
