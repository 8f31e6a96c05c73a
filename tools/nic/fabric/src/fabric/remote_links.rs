// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Links whose far end is in another fabric: the caller moves the packets, and says whether the far
//! end is there.

use super::Fabric;
use crate::counters::PortError;
use crate::mad::attribute::PortInfo;
use crate::mad::Fields;
use crate::port::{PortKind, RemoteEnd, RemoteLink};
use crate::{PortId, Time};

/// The near end of a link to another fabric, as the far end has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalEnd {
    /// The enabled widths and speeds; none while the subnet manager has disabled the port.
    pub rates: Option<RemoteEnd>,
    /// How often the link was restarted or disabled at this end. A new number means that the far end
    /// has to train the link again.
    pub restarts: u32,
}

impl Fabric {
    /// Gives a port of a switch a link to another fabric. The link is down until
    /// [`Fabric::set_remote_end`]. Returns false if the port is not an external port of a switch, or
    /// has a link.
    pub fn open_remote_link(&mut self, port: PortId) -> bool {
        let is_free =
            |kind, peer: Option<PortId>| kind == PortKind::SwitchExternal && peer.is_none();
        match self.port_mut(port) {
            Some(port) if is_free(port.kind, port.peer) && port.remote.is_none() => {
                port.remote = Some(RemoteLink::default());
                true
            }
            _ => false,
        }
    }

    /// Sets the far end of a link to another fabric; none if it is not there any more, or is
    /// disabled. The link trains if the far end comes or goes, and if it `has_restarted`.
    pub fn set_remote_end(
        &mut self,
        id: PortId,
        end: Option<RemoteEnd>,
        has_restarted: bool,
        now: Time,
    ) {
        let Some(link) = self.port_mut(id).and_then(|port| port.remote.as_mut()) else {
            return;
        };
        let before = std::mem::replace(&mut link.end, end);
        if before.is_some() != end.is_some() || has_restarted && end.is_some() {
            self.train(id, now);
        }
        self.poll(now);
    }

    /// Returns the near end of a link to another fabric.
    pub fn local_end(&self, id: PortId) -> Option<LocalEnd> {
        let port = self.port(id)?;
        let link = port.remote?;
        let rates = RemoteEnd {
            widths: port.info.get(PortInfo::LINK_WIDTH_ENABLED),
            speeds: port.info.get(PortInfo::LINK_SPEED_ENABLED),
        };
        Some(LocalEnd {
            rates: (port.is_enabled() && port.has_cable).then_some(rates),
            restarts: link.restarts,
        })
    }

    /// Counts a packet of a link to another fabric that is malformed, or has a wrong VCRC.
    pub fn count_malformed(&mut self, id: PortId) {
        self.count_error(id, PortError::Rcv);
    }

    /// Returns true if the link of a port goes to another fabric.
    pub(super) fn is_remote(&self, id: PortId) -> bool {
        self.port(id).is_some_and(|port| port.remote.is_some())
    }
}
