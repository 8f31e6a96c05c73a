// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Events for the driver of an adapter: changes that the subnet manager makes at its port
//! (IBTA 11.6.3).

use super::{Fabric, Output};
use crate::mad::attribute::{port_state, PortInfo};
use crate::mad::Fields;
use crate::port::{Port, P_KEYS_PER_PORT};
use crate::PortId;

/// A change of an adapter's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent {
    /// The P_Key table differs.
    PKeyChange,
    /// The subnet prefix differs, and with it all GIDs.
    GidChange,
    /// The base LID or the LMC differs.
    LidChange,
    /// The LID or the SL of the subnet manager differs.
    SmChange,
    /// The port is active.
    PortActive,
    /// The port was active, and is not any more.
    PortErr,
    /// The subnet manager asks clients to register again with the subnet administration.
    ClientReregister,
}

/// The state of a port whose changes are events.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Watched {
    p_keys: [u16; P_KEYS_PER_PORT],
    gid_prefix: u64,
    lid: (u16, u8),
    sm: (u16, u8),
    is_active: bool,
}

impl Watched {
    fn of(port: &Port) -> Self {
        let info = &port.info;
        Self {
            p_keys: port.p_keys,
            gid_prefix: info.get(PortInfo::GID_PREFIX),
            lid: (info.get(PortInfo::LID), info.get(PortInfo::LMC)),
            sm: (
                info.get(PortInfo::MASTER_SM_LID),
                info.get(PortInfo::MASTER_SM_SL),
            ),
            is_active: port.state() == port_state::ACTIVE,
        }
    }
}

impl Fabric {
    /// Returns the state of a port before a request.
    pub(super) fn watch(&self, id: PortId) -> Option<Watched> {
        self.port(id).map(Watched::of)
    }

    /// Reports the differences to the state before a request. Changes of the link are reported where
    /// they happen.
    pub(super) fn report_changes(&mut self, id: PortId, before: Option<Watched>) {
        let (Some(before), Some(after)) = (before, self.watch(id)) else {
            return;
        };
        let changes = [
            (before.p_keys != after.p_keys, PortEvent::PKeyChange),
            (before.gid_prefix != after.gid_prefix, PortEvent::GidChange),
            (before.lid != after.lid, PortEvent::LidChange),
            (before.sm != after.sm, PortEvent::SmChange),
            (!before.is_active && after.is_active, PortEvent::PortActive),
        ];
        for (_, event) in changes.into_iter().filter(|(has_changed, _)| *has_changed) {
            self.report_event(id, event);
        }
    }

    /// Reports an event to the driver of an adapter with a guest.
    pub(super) fn report_event(&mut self, id: PortId, event: PortEvent) {
        if self.nodes.get(id.node).is_some_and(|node| node.has_guest) {
            self.outputs.push_back(Output::Event(id, event));
        }
    }
}
