// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Links: the changes at both ends if a cable, a state or a physical state changes (IBTA 7.2.7).

use super::{Fabric, PortEvent};
use crate::agent::sma;
use crate::counters::PortError;
use crate::mad::attribute::{physical_state, port_state, PortInfo, SwitchInfo};
use crate::mad::notice::Trap;
use crate::mad::Fields;
use crate::port::{LinkRequest, Port, RemoteEnd};
use crate::{PortId, Time};

impl Fabric {
    /// Links two ports of a topology.
    pub(super) fn join(&mut self, one: PortId, other: PortId) {
        for (end, peer) in [(one, other), (other, one)] {
            if let Some(port) = self.port_mut(end) {
                port.peer = Some(peer);
            }
        }
        self.train(one, Time::ZERO);
    }

    /// Pulls or plugs the cable of a port.
    pub fn set_cable(&mut self, port: PortId, has_cable: bool, now: Time) {
        let Some(end) = self.port_mut(port) else {
            return;
        };
        if end.has_cable == has_cable {
            return;
        }
        end.has_cable = has_cable;
        self.train(port, now);
        self.poll(now);
    }

    /// Makes the change of a link that a Set(PortInfo) requests.
    pub(super) fn request_link(&mut self, id: PortId, request: LinkRequest, now: Time) {
        let Some(port) = self.port_mut(id) else {
            return;
        };
        if let Some(link) = &mut port.remote {
            link.restarts = link.restarts.wrapping_add(1);
        }
        match request {
            LinkRequest::Restart => {}
            LinkRequest::Enable => port
                .info
                .set(PortInfo::PORT_PHYSICAL_STATE, physical_state::POLLING),
            LinkRequest::Disable => port
                .info
                .set(PortInfo::PORT_PHYSICAL_STATE, physical_state::DISABLED),
        }
        self.train(id, now);
    }

    /// Trains the link of a port: both ends are in INIT afterwards, or Down if there is no link. A
    /// switch reports the change, also after a Set of Down: the link returns to INIT without a Set
    /// (IBTA 14.2.5.4, PortStateChange).
    pub(super) fn train(&mut self, id: PortId, now: Time) {
        let peer = self.port(id).and_then(|port| port.peer);
        let ends: Vec<PortId> = [Some(id), peer].into_iter().flatten().collect();
        let remote = self.port(id).and_then(|port| port.remote?.end);
        let has_link = (peer.is_some() || remote.is_some())
            && ends.iter().all(|end| {
                self.port(*end)
                    .is_some_and(|port| port.has_cable && port.is_enabled())
            });
        let rate = has_link.then(|| self.common_rate(&ends, remote)).flatten();
        for end in ends {
            let Some(port) = self.port_mut(end) else {
                continue;
            };
            let before = port.state();
            set_link_state(port, rate);
            let after = port.state();
            if before >= port_state::INIT {
                port.counters.count_error(PortError::LinkDowned);
            }
            // A port without a link stays Down, whatever is asked of it.
            if before == after && after == port_state::DOWN {
                continue;
            }
            self.report_state(end, before, now);
        }
    }

    /// Reports a changed state of a port to the subnet manager, and to the driver of an adapter.
    fn report_state(&mut self, id: PortId, before: u8, now: Time) {
        let Some(node) = self.nodes.get_mut(id.node) else {
            return;
        };
        if let Some(tables) = node.tables.as_mut() {
            tables.info.set(SwitchInfo::PORT_STATE_CHANGE, true);
            sma::raise_trap(node, 0, Trap::LinkState, now, |_| {});
        }
        if before == port_state::ACTIVE {
            self.report_event(id, PortEvent::PortErr);
        }
    }

    /// Returns the largest width and speed that all ends have enabled, with an end in another fabric.
    fn common_rate(&self, ends: &[PortId], remote: Option<RemoteEnd>) -> Option<(u8, u8)> {
        let common = |field, remote: Option<u8>| {
            let enabled = ends
                .iter()
                .filter_map(|end| self.port(*end))
                .map(|port| port.info.get(field));
            enabled.fold(remote.unwrap_or(u8::MAX), |all, one: u8| all & one)
        };
        let (widths, speeds) = (
            common(PortInfo::LINK_WIDTH_ENABLED, remote.map(|end| end.widths)),
            common(PortInfo::LINK_SPEED_ENABLED, remote.map(|end| end.speeds)),
        );
        let largest = |bits: u8| 1 << bits.checked_ilog2().unwrap_or(0);
        (widths != 0 && speeds != 0).then(|| (largest(widths), largest(speeds)))
    }
}

/// Sets the states of a port after training. `rate` is the width and speed of the link, None without
/// a link.
fn set_link_state(port: &mut Port, rate: Option<(u8, u8)>) {
    match rate {
        Some((width, speed)) => {
            port.info.set(PortInfo::PORT_STATE, port_state::INIT);
            port.info
                .set(PortInfo::PORT_PHYSICAL_STATE, physical_state::LINK_UP);
            port.info.set(PortInfo::LINK_WIDTH_ACTIVE, width);
            port.info.set(PortInfo::LINK_SPEED_ACTIVE, speed);
        }
        None => {
            port.info.set(PortInfo::PORT_STATE, port_state::DOWN);
            if port.is_enabled() {
                let default = port.info.get(PortInfo::LINK_DOWN_DEFAULT_STATE);
                port.info.set(PortInfo::PORT_PHYSICAL_STATE, default);
            }
        }
    }
}
