// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Set(PortInfo): which values a port refuses, and which values it stores.

use super::{number_of_vls, Port, PortKind};
use crate::mad::attribute::{physical_state, port_state, PortInfo};
use crate::mad::{Fields, FIRST_MULTICAST_LID};

/// A change of the link that a Set requests. The subnet makes it, because both ends change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkRequest {
    /// PortState Down: the link trains again.
    Restart,
    /// PortPhysicalState Polling: the port may have a link, which trains again.
    Enable,
    /// PortPhysicalState Disabled: the port has no link.
    Disable,
}

/// The result of a Set that was accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The requested change of the link.
    pub link: Option<LinkRequest>,
    /// The clients of the port have to register with the subnet administration again.
    pub reregister: bool,
}

/// The Set has an invalid value, and nothing was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidValue;

impl Port {
    /// Checks all values of a Set, and stores them if all are valid.
    pub(crate) fn set_info(&mut self, new: &PortInfo) -> Result<Stored, InvalidValue> {
        let has_link = self.kind != PortKind::SwitchPort0;
        if self.is_managed() && !self.accepts_addresses(new) || has_link && !self.accepts_link(new)
        {
            return Err(InvalidValue);
        }
        let mut stored = Stored::default();
        if self.is_managed() {
            self.store_addresses(new);
            stored.reregister = new.get(PortInfo::CLIENT_REREGISTER);
        }
        if has_link {
            self.store_link(new);
            stored.link = link_request(new);
        }
        Ok(stored)
    }

    fn accepts_addresses(&self, new: &PortInfo) -> bool {
        let (lid, lmc) = (new.get(PortInfo::LID), new.get(PortInfo::LMC));
        let last = u32::from(lid) + (1 << lmc) - 1;
        let is_lmc_possible = lmc == 0 || self.kind == PortKind::Adapter;
        last < u32::from(FIRST_MULTICAST_LID)
            && lid & ((1 << lmc) - 1) == 0
            && is_lmc_possible
            && new.get(PortInfo::MASTER_SM_LID) < FIRST_MULTICAST_LID
    }

    fn accepts_link(&self, new: &PortInfo) -> bool {
        let mtu = new.get(PortInfo::NEIGHBOR_MTU);
        let vls = number_of_vls(new.get(PortInfo::OPERATIONAL_VLS));
        (1..=self.info.get(PortInfo::MTU_CAP)).contains(&mtu)
            && vls <= number_of_vls(self.info.get(PortInfo::VL_CAP))
            && new.get(PortInfo::OPERATIONAL_VLS) <= 5
            && self.width(new).is_some()
            && self.speed(new).is_some()
            && new.get(PortInfo::LINK_DOWN_DEFAULT_STATE) <= physical_state::POLLING
            && self.accepts_states(new)
    }

    /// Returns true if the port may change to the requested states (IBTA 14.2.5.6, 7.2.7).
    fn accepts_states(&self, new: &PortInfo) -> bool {
        let physical = new.get(PortInfo::PORT_PHYSICAL_STATE);
        let state = match new.get(PortInfo::PORT_STATE) {
            port_state::NO_CHANGE | port_state::DOWN => true,
            port_state::ARMED => self.state() == port_state::INIT,
            port_state::ACTIVE => self.state() == port_state::ARMED,
            _ => false,
        };
        // A port whose physical state changes has no link to arm or to activate.
        let both = physical == physical_state::NO_CHANGE
            || new.get(PortInfo::PORT_STATE) <= port_state::DOWN;
        state && physical <= physical_state::DISABLED && both
    }

    /// Returns LinkWidthEnabled after the Set: 0 keeps the value, 255 enables all supported widths.
    fn width(&self, new: &PortInfo) -> Option<u8> {
        let supported = self.info.get(PortInfo::LINK_WIDTH_SUPPORTED);
        match new.get(PortInfo::LINK_WIDTH_ENABLED) {
            0 => Some(self.info.get(PortInfo::LINK_WIDTH_ENABLED)),
            255 => Some(supported),
            width => (width & !supported == 0).then_some(width),
        }
    }

    /// Returns LinkSpeedEnabled after the Set: 0 keeps the value, 15 enables all supported speeds.
    fn speed(&self, new: &PortInfo) -> Option<u8> {
        let supported = self.info.get(PortInfo::LINK_SPEED_SUPPORTED);
        match new.get(PortInfo::LINK_SPEED_ENABLED) {
            0 => Some(self.info.get(PortInfo::LINK_SPEED_ENABLED)),
            15 => Some(supported),
            speed => (speed & !supported == 0).then_some(speed),
        }
    }

    /// Stores the fields that only a port with a LID has.
    fn store_addresses(&mut self, new: &PortInfo) {
        self.info.copy(PortInfo::M_KEY, new);
        self.info.copy(PortInfo::GID_PREFIX, new);
        self.info.copy(PortInfo::LID, new);
        self.info.copy(PortInfo::LMC, new);
        self.info.copy(PortInfo::MASTER_SM_LID, new);
        self.info.copy(PortInfo::MASTER_SM_SL, new);
        self.info.copy(PortInfo::M_KEY_LEASE_PERIOD, new);
        self.info.copy(PortInfo::M_KEY_PROTECT_BITS, new);
        self.info.copy(PortInfo::SUBNET_TIMEOUT, new);
        self.info.copy(PortInfo::INIT_TYPE, new);
        self.clear_violations(new);
    }

    /// Clears the counters of violations that the Set has as 0. Other values change nothing: a
    /// subnet manager that sets all of PortInfo as it has read it must not lose violations since
    /// then.
    fn clear_violations(&mut self, new: &PortInfo) {
        for field in [
            PortInfo::M_KEY_VIOLATIONS,
            PortInfo::P_KEY_VIOLATIONS,
            PortInfo::Q_KEY_VIOLATIONS,
        ] {
            if new.get(field) == 0 {
                self.info.set(field, 0);
            }
        }
    }

    /// Stores the fields that only a port with a link has.
    fn store_link(&mut self, new: &PortInfo) {
        if let Some(width) = self.width(new) {
            self.info.set(PortInfo::LINK_WIDTH_ENABLED, width);
        }
        if let Some(speed) = self.speed(new) {
            self.info.set(PortInfo::LINK_SPEED_ENABLED, speed);
        }
        if new.get(PortInfo::OPERATIONAL_VLS) != 0 {
            self.info.copy(PortInfo::OPERATIONAL_VLS, new);
        }
        if new.get(PortInfo::LINK_DOWN_DEFAULT_STATE) != physical_state::NO_CHANGE {
            self.info.copy(PortInfo::LINK_DOWN_DEFAULT_STATE, new);
        }
        self.info.copy(PortInfo::NEIGHBOR_MTU, new);
        self.info.copy(PortInfo::VL_HIGH_LIMIT, new);
        self.info.copy(PortInfo::VL_STALL_COUNT, new);
        self.info.copy(PortInfo::HOQ_LIFE, new);
        self.info.copy(PortInfo::LOCAL_PHY_ERRORS, new);
        self.info.copy(PortInfo::OVERRUN_ERRORS, new);
        if self.kind == PortKind::SwitchExternal {
            self.info.copy(PortInfo::PARTITION_ENFORCEMENT_INBOUND, new);
            self.info
                .copy(PortInfo::PARTITION_ENFORCEMENT_OUTBOUND, new);
        }
        if new.get(PortInfo::PORT_STATE) >= port_state::ARMED {
            self.info.copy(PortInfo::PORT_STATE, new);
        }
    }
}

/// Returns the change of the link that a valid Set requests. A physical state has precedence over PortState Down. A
/// port that sleeps wakes up at once, because its peer polls.
fn link_request(new: &PortInfo) -> Option<LinkRequest> {
    match new.get(PortInfo::PORT_PHYSICAL_STATE) {
        physical_state::NO_CHANGE => {
            (new.get(PortInfo::PORT_STATE) == port_state::DOWN).then_some(LinkRequest::Restart)
        }
        physical_state::SLEEP => Some(LinkRequest::Restart),
        physical_state::POLLING => Some(LinkRequest::Enable),
        _ => Some(LinkRequest::Disable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port in INIT, and the Set that changes nothing.
    fn port(kind: PortKind) -> (Port, PortInfo) {
        let mut port = Port::new(kind, 1, 1);
        port.info.set(PortInfo::PORT_STATE, port_state::INIT);
        let keep = port
            .info
            .with(PortInfo::PORT_STATE, port_state::NO_CHANGE)
            .with(PortInfo::PORT_PHYSICAL_STATE, physical_state::NO_CHANGE);
        (port, keep)
    }

    #[test]
    fn a_set_without_a_change_stores_what_was_there() {
        for kind in [
            PortKind::Adapter,
            PortKind::SwitchPort0,
            PortKind::SwitchExternal,
        ] {
            let (mut port, keep) = port(kind);
            let before = port.info;
            assert_eq!(port.set_info(&keep), Ok(Stored::default()));
            assert_eq!(port.info, before);
        }
    }

    #[test]
    fn states_follow_each_other() {
        let (mut port, keep) = port(PortKind::Adapter);
        let set = |port: &mut Port, state| port.set_info(&keep.with(PortInfo::PORT_STATE, state));
        assert_eq!(set(&mut port, port_state::ACTIVE), Err(InvalidValue));
        assert_eq!(set(&mut port, port_state::INIT), Err(InvalidValue));
        assert!(set(&mut port, port_state::ARMED).is_ok());
        assert_eq!(set(&mut port, port_state::ARMED), Err(InvalidValue));
        assert!(set(&mut port, port_state::ACTIVE).is_ok());
        assert_eq!(port.state(), port_state::ACTIVE);
        assert_eq!(set(&mut port, port_state::ACTIVE), Err(InvalidValue));
        assert_eq!(
            set(&mut port, port_state::DOWN).map(|s| s.link),
            Ok(Some(LinkRequest::Restart))
        );
        assert_eq!(set(&mut port, 5), Err(InvalidValue));
    }

    #[test]
    fn invalid_values_store_nothing() {
        let (port, keep) = port(PortKind::Adapter);
        let invalid = [
            keep.with(PortInfo::NEIGHBOR_MTU, 6),
            keep.with(PortInfo::NEIGHBOR_MTU, 0),
            keep.with(PortInfo::OPERATIONAL_VLS, 5),
            keep.with(PortInfo::OPERATIONAL_VLS, 9),
            keep.with(PortInfo::LID, 0xc000),
            keep.with(PortInfo::MASTER_SM_LID, 0xffff),
            keep.with(PortInfo::LID, 5).with(PortInfo::LMC, 1),
            keep.with(PortInfo::LINK_WIDTH_ENABLED, 8),
            keep.with(PortInfo::LINK_SPEED_ENABLED, 8),
            keep.with(PortInfo::PORT_PHYSICAL_STATE, physical_state::LINK_UP),
            keep.with(PortInfo::PORT_PHYSICAL_STATE, physical_state::POLLING)
                .with(PortInfo::PORT_STATE, port_state::ARMED),
            keep.with(PortInfo::LINK_DOWN_DEFAULT_STATE, 3),
        ];
        for new in invalid {
            let mut port = port.clone();
            assert_eq!(
                port.set_info(&new.with(PortInfo::SUBNET_TIMEOUT, 1)),
                Err(InvalidValue),
                "{new:?}"
            );
            assert_eq!(port.info.get(PortInfo::SUBNET_TIMEOUT), 18);
        }
    }

    #[test]
    fn special_values_enable_all_that_is_supported() {
        let (mut port, keep) = port(PortKind::Adapter);
        let some = keep
            .with(PortInfo::LINK_WIDTH_ENABLED, 1)
            .with(PortInfo::LINK_SPEED_ENABLED, 1);
        assert!(port.set_info(&some).is_ok());
        let all = keep
            .with(PortInfo::LINK_WIDTH_ENABLED, 255)
            .with(PortInfo::LINK_SPEED_ENABLED, 15);
        assert!(port
            .set_info(&all.with(PortInfo::LINK_SPEED_EXT_ENABLED, 31))
            .is_ok());
        assert_eq!(port.info.get(PortInfo::LINK_WIDTH_ENABLED), 3);
        assert_eq!(port.info.get(PortInfo::LINK_SPEED_ENABLED), 7);
        assert_eq!(port.info.get(PortInfo::LINK_SPEED_EXT_ENABLED), 0);
    }

    #[test]
    fn only_zero_is_stored_in_a_counter_of_violations() {
        let (mut port, keep) = port(PortKind::Adapter);
        let fields = [
            PortInfo::M_KEY_VIOLATIONS,
            PortInfo::P_KEY_VIOLATIONS,
            PortInfo::Q_KEY_VIOLATIONS,
        ];
        for field in fields {
            port.info.set(field, 9);
        }
        let new = keep
            .with(PortInfo::M_KEY_VIOLATIONS, 8)
            .with(PortInfo::P_KEY_VIOLATIONS, 0)
            .with(PortInfo::Q_KEY_VIOLATIONS, 0xffff);
        assert!(port.set_info(&new).is_ok());
        assert_eq!(fields.map(|field| port.info.get(field)), [9, 0, 9]);
    }

    #[test]
    fn reregister_is_reported_and_not_stored() {
        let (mut port, keep) = port(PortKind::Adapter);
        let stored = port.set_info(&keep.with(PortInfo::CLIENT_REREGISTER, true));
        assert_eq!(stored.map(|s| s.reregister), Ok(true));
        assert!(!port.info.get(PortInfo::CLIENT_REREGISTER));
    }

    #[test]
    fn port_0_of_a_switch_ignores_states() {
        let (mut port, keep) = port(PortKind::SwitchPort0);
        let stored = port.set_info(&keep.with(PortInfo::PORT_STATE, port_state::DOWN));
        assert_eq!(stored, Ok(Stored::default()));
    }
}
