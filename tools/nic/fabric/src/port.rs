// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The state of one port, and the rules by which Set(PortInfo) changes it (IBTA 14.2.5.6).

mod set;

use crate::counters::Counters;
use crate::mad::attribute::{capability, physical_state, port_state, PortInfo};
use crate::mad::{Fields, SMP_DATA_LEN};
use crate::{PortId, Time};
pub use set::{LinkRequest, Stored};

/// Entries of the P_Key table of an adapter's port, of a switch's port 0, and of a switch's external
/// port. One block of the attribute P_KeyTable has as many.
pub const P_KEYS_PER_PORT: usize = 32;
/// Entries of the GUID table of an adapter's port: the GUID of the port, no alias.
pub const GUIDS_PER_PORT: u8 = 1;
/// The default subnet prefix (IBTA 4.1.1).
const DEFAULT_GID_PREFIX: u64 = 0xfe80_0000_0000_0000;
/// Link widths 1x and 4x.
const WIDTHS_SUPPORTED: u8 = 1 | 2;
/// Link speeds SDR, DDR and QDR.
const SPEEDS_SUPPORTED: u8 = 1 | 2 | 4;
/// The code of an MTU of 4096 bytes.
const MTU_4096: u8 = 5;
/// The code of VL0 to VL7.
const VL0_TO_VL7: u8 = 4;
/// The code of 1.07 s, 4.096 us times 2 to this power.
const TIMEOUT_1_S: u8 = 18;
/// The code of 0.27 s.
const RESPONSE_TIME: u8 = 16;
/// Weight of each VL in the arbitration table after power-on, in units of 64 bytes.
const ARBITRATION_WEIGHT: u8 = 4;
/// SLtoVL after power-on: SL n has VL n modulo 8.
const SL_TO_VL: [u8; 8] = [0x01, 0x23, 0x45, 0x67, 0x01, 0x23, 0x45, 0x67];

/// The kinds of ports, which differ in the fields of PortInfo that they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// A port of a channel adapter.
    Adapter,
    /// The base port 0 of a switch, which has no link.
    SwitchPort0,
    /// Another port of a switch.
    SwitchExternal,
}

/// The far end of a link to another fabric, while that end is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteEnd {
    /// Enabled widths, as in PortInfo:LinkWidthEnabled.
    pub widths: u8,
    /// Enabled speeds, as in PortInfo:LinkSpeedEnabled.
    pub speeds: u8,
}

/// A link whose far end is a port of another fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemoteLink {
    /// The far end; none while it is not there, or is disabled.
    pub(crate) end: Option<RemoteEnd>,
    /// How often a Set(PortInfo) has restarted or disabled the link at this end. The number wraps.
    pub(crate) restarts: u32,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub(crate) kind: PortKind,
    pub(crate) guid: u64,
    /// PortInfo as a Get shows it, except LocalPortNum.
    pub(crate) info: PortInfo,
    pub(crate) p_keys: [u16; P_KEYS_PER_PORT],
    /// SLtoVL, for a switch one for each ingress port.
    pub(crate) sl_to_vl: Vec<[u8; 8]>,
    /// The four blocks of the VL arbitration table.
    pub(crate) vl_arbitration: [[u8; SMP_DATA_LEN]; 4],
    pub(crate) counters: Counters,
    /// The other end of the cable.
    pub(crate) peer: Option<PortId>,
    /// The link to another fabric, if the port has one instead of a `peer`.
    pub(crate) remote: Option<RemoteLink>,
    /// True while the cable is plugged.
    pub(crate) has_cable: bool,
    /// When the M_Key lease ends (IBTA 14.2.4), while it runs.
    pub(crate) lease_end: Option<Time>,
}

impl Port {
    /// Makes a port in the state after power-on. `ingress_ports` is the number of ports of its switch
    /// with port 0, and 1 for an adapter.
    pub(crate) fn new(kind: PortKind, guid: u64, ingress_ports: usize) -> Self {
        let mut p_keys = [0; P_KEYS_PER_PORT];
        if kind != PortKind::SwitchExternal {
            p_keys[0] = 0xffff;
        }
        Self {
            kind,
            guid,
            info: power_on_info(kind),
            p_keys,
            sl_to_vl: vec![SL_TO_VL; ingress_ports],
            vl_arbitration: power_on_arbitration(),
            counters: Counters::default(),
            peer: None,
            remote: None,
            has_cable: true,
            lease_end: None,
        }
    }

    /// Returns the counters of performance management.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns true if all is equal that a subnet manager configures: all but counters, violations
    /// and the M_Key lease.
    pub(crate) fn has_configuration_of(&self, other: &Self) -> bool {
        let mut like = Self {
            counters: self.counters.clone(),
            lease_end: self.lease_end,
            ..other.clone()
        };
        for field in [
            PortInfo::M_KEY_VIOLATIONS,
            PortInfo::P_KEY_VIOLATIONS,
            PortInfo::Q_KEY_VIOLATIONS,
        ] {
            like.info.copy(field, &self.info);
        }
        like == *self
    }

    /// Returns PortInfo:PortState.
    pub fn state(&self) -> u8 {
        self.info.get(PortInfo::PORT_STATE)
    }

    /// Returns true if the port has a LID, an M_Key and traps of its own.
    pub(crate) fn is_managed(&self) -> bool {
        self.kind != PortKind::SwitchExternal
    }

    /// Returns the base LID, 0 before the subnet manager assigned one.
    pub fn lid(&self) -> u16 {
        self.info.get(PortInfo::LID)
    }

    /// Returns true if a LID is one of the 2^LMC LIDs of the port (IBTA 4.1.3).
    pub fn has_lid(&self, lid: u16) -> bool {
        let base = self.lid();
        base != 0 && lid >= base && lid - base < 1 << self.info.get(PortInfo::LMC)
    }

    /// Returns true if the subnet manager allows the port to have a link.
    pub(crate) fn is_enabled(&self) -> bool {
        self.info.get(PortInfo::PORT_PHYSICAL_STATE) != physical_state::DISABLED
    }

    /// Returns true if SMPs pass the port.
    pub(crate) fn passes_smps(&self) -> bool {
        self.state() >= port_state::INIT
    }

    /// Returns the VL of a packet that came by another port of the switch, or that the adapter sends
    /// (ingress 0). None: the packet is discarded (IBTA 7.6.6).
    pub(crate) fn vl(&self, ingress: u8, sl: u8) -> Option<u8> {
        let map = self
            .sl_to_vl
            .get(usize::from(ingress))
            .or(self.sl_to_vl.first())?;
        let pair = map.get(usize::from(sl & 15) / 2)?;
        let vl = if sl & 1 == 0 { pair >> 4 } else { pair & 15 };
        (vl < number_of_vls(self.info.get(PortInfo::OPERATIONAL_VLS))).then_some(vl)
    }

    /// Returns the largest packet that the link carries, in bytes from LRH to ICRC: the payload and
    /// up to 124 bytes of headers (IBTA 7.7.8).
    pub(crate) fn largest_packet(&self) -> u32 {
        (128 << self.info.get(PortInfo::NEIGHBOR_MTU).min(MTU_4096)) + 124
    }
}

/// Returns the number of data VLs of a code of VLCap or OperationalVLs.
fn number_of_vls(code: u8) -> u8 {
    match code {
        5.. => 15,
        code => (1 << code) / 2,
    }
}

/// Makes the VL arbitration table after power-on: in the block of low priority (1), each VL has the
/// same weight; the block of high priority (3) is not used.
fn power_on_arbitration() -> [[u8; SMP_DATA_LEN]; 4] {
    let mut low = [0; SMP_DATA_LEN];
    for (vl, entry) in (0..8).zip(low.chunks_exact_mut(2)) {
        entry.copy_from_slice(&[vl, ARBITRATION_WEIGHT]);
    }
    let unused = [0; SMP_DATA_LEN];
    [low, unused, unused, unused]
}

/// Makes PortInfo after power-on.
fn power_on_info(kind: PortKind) -> PortInfo {
    let mut info = PortInfo::default();
    if kind != PortKind::SwitchExternal {
        let mut mask = capability::IS_TRAP_SUPPORTED
            | capability::IS_SL_MAPPING_SUPPORTED
            | capability::IS_SYSTEM_IMAGE_GUID_SUPPORTED
            | capability::IS_CAPABILITY_MASK_NOTICE_SUPPORTED
            | capability::IS_OTHER_LOCAL_CHANGES_NOTICE_SUPPORTED;
        if kind == PortKind::Adapter {
            mask |= capability::IS_COMMUNICATION_MANAGEMENT_SUPPORTED
                | capability::IS_CLIENT_REREGISTRATION_SUPPORTED;
        }
        info.set(PortInfo::GID_PREFIX, DEFAULT_GID_PREFIX);
        info.set(PortInfo::CAPABILITY_MASK, mask);
        info.set(PortInfo::GUID_CAP, GUIDS_PER_PORT);
        info.set(PortInfo::SUBNET_TIMEOUT, TIMEOUT_1_S);
        info.set(PortInfo::RESP_TIME_VALUE, RESPONSE_TIME);
    }
    let (state, physical) = match kind {
        PortKind::SwitchPort0 => (port_state::ACTIVE, physical_state::LINK_UP),
        _ => (port_state::DOWN, physical_state::POLLING),
    };
    info.with(PortInfo::PORT_STATE, state)
        .with(PortInfo::PORT_PHYSICAL_STATE, physical)
        .with(PortInfo::LINK_DOWN_DEFAULT_STATE, physical_state::POLLING)
        .with(PortInfo::LINK_WIDTH_SUPPORTED, WIDTHS_SUPPORTED)
        .with(PortInfo::LINK_WIDTH_ENABLED, WIDTHS_SUPPORTED)
        .with(PortInfo::LINK_WIDTH_ACTIVE, 2)
        .with(PortInfo::LINK_SPEED_SUPPORTED, SPEEDS_SUPPORTED)
        .with(PortInfo::LINK_SPEED_ENABLED, SPEEDS_SUPPORTED)
        .with(PortInfo::LINK_SPEED_ACTIVE, 4)
        .with(PortInfo::MTU_CAP, MTU_4096)
        .with(PortInfo::NEIGHBOR_MTU, MTU_4096)
        .with(PortInfo::VL_CAP, VL0_TO_VL7)
        .with(PortInfo::OPERATIONAL_VLS, VL0_TO_VL7)
        .with(PortInfo::VL_ARBITRATION_HIGH_CAP, 8)
        .with(PortInfo::VL_ARBITRATION_LOW_CAP, 8)
        .with(PortInfo::LOCAL_PHY_ERRORS, 8)
        .with(PortInfo::OVERRUN_ERRORS, 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_two_to_the_power_of_lmc_lids() {
        let mut port = Port::new(PortKind::Adapter, 1, 1);
        assert!(!port.has_lid(0));
        port.info.set(PortInfo::LID, 8);
        port.info.set(PortInfo::LMC, 2);
        assert!(!port.has_lid(7) && port.has_lid(8) && port.has_lid(11) && !port.has_lid(12));
    }

    #[test]
    fn an_sl_without_an_operational_vl_has_no_way() {
        let mut port = Port::new(PortKind::Adapter, 1, 1);
        assert_eq!((port.vl(0, 3), port.vl(0, 9)), (Some(3), Some(1)));
        port.info.set(PortInfo::OPERATIONAL_VLS, 2);
        assert_eq!((port.vl(0, 1), port.vl(0, 3)), (Some(1), None));
        port.sl_to_vl[0][0] = 0x0f;
        assert_eq!(port.vl(0, 1), None);
    }
}
