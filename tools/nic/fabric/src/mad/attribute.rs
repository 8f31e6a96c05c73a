// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The attributes of subnet management with fields (IBTA 14.2.5). GUIDInfo, P_KeyTable and the other
//! tables are arrays of numbers, which `Mad::data` contains as they are.

use super::field::block;
use super::SMP_DATA_LEN;

block! {
    /// NodeInfo (IBTA 14.2.5.3).
    NodeInfo[SMP_DATA_LEN] {
        BASE_VERSION: u8 = 0, 0, 8;
        CLASS_VERSION: u8 = 1, 0, 8;
        NODE_TYPE: u8 = 2, 0, 8;
        NUM_PORTS: u8 = 3, 0, 8;
        SYSTEM_IMAGE_GUID: u64 = 4, 0, 64;
        NODE_GUID: u64 = 12, 0, 64;
        PORT_GUID: u64 = 20, 0, 64;
        PARTITION_CAP: u16 = 28, 0, 16;
        DEVICE_ID: u16 = 30, 0, 16;
        REVISION: u32 = 32, 0, 32;
        LOCAL_PORT_NUM: u8 = 36, 0, 8;
        VENDOR_ID: u32 = 37, 0, 24;
    }
}

/// NodeInfo:NodeType of a channel adapter.
pub const NODE_TYPE_CHANNEL_ADAPTER: u8 = 1;
/// NodeInfo:NodeType of a switch.
pub const NODE_TYPE_SWITCH: u8 = 2;

block! {
    /// SwitchInfo (IBTA 14.2.5.4).
    SwitchInfo[SMP_DATA_LEN] {
        LINEAR_FDB_CAP: u16 = 0, 0, 16;
        MULTICAST_FDB_CAP: u16 = 4, 0, 16;
        LINEAR_FDB_TOP: u16 = 6, 0, 16;
        DEFAULT_PORT: u8 = 8, 0, 8;
        DEFAULT_MULTICAST_PRIMARY_PORT: u8 = 9, 0, 8;
        DEFAULT_MULTICAST_NOT_PRIMARY_PORT: u8 = 10, 0, 8;
        LIFE_TIME_VALUE: u8 = 11, 0, 5;
        PORT_STATE_CHANGE: bool = 11, 5, 1;
        LIDS_PER_PORT: u16 = 12, 0, 16;
        PARTITION_ENFORCEMENT_CAP: u16 = 14, 0, 16;
        INBOUND_ENFORCEMENT_CAP: bool = 16, 0, 1;
        OUTBOUND_ENFORCEMENT_CAP: bool = 16, 1, 1;
        ENHANCED_PORT_0: bool = 16, 4, 1;
    }
}

block! {
    /// PortInfo (IBTA 14.2.5.6).
    PortInfo[SMP_DATA_LEN] {
        M_KEY: u64 = 0, 0, 64;
        GID_PREFIX: u64 = 8, 0, 64;
        LID: u16 = 16, 0, 16;
        MASTER_SM_LID: u16 = 18, 0, 16;
        CAPABILITY_MASK: u32 = 20, 0, 32;
        M_KEY_LEASE_PERIOD: u16 = 26, 0, 16;
        LOCAL_PORT_NUM: u8 = 28, 0, 8;
        LINK_WIDTH_ENABLED: u8 = 29, 0, 8;
        LINK_WIDTH_SUPPORTED: u8 = 30, 0, 8;
        LINK_WIDTH_ACTIVE: u8 = 31, 0, 8;
        LINK_SPEED_SUPPORTED: u8 = 32, 0, 4;
        PORT_STATE: u8 = 32, 4, 4;
        PORT_PHYSICAL_STATE: u8 = 33, 0, 4;
        LINK_DOWN_DEFAULT_STATE: u8 = 33, 4, 4;
        M_KEY_PROTECT_BITS: u8 = 34, 0, 2;
        LMC: u8 = 34, 5, 3;
        LINK_SPEED_ACTIVE: u8 = 35, 0, 4;
        LINK_SPEED_ENABLED: u8 = 35, 4, 4;
        NEIGHBOR_MTU: u8 = 36, 0, 4;
        MASTER_SM_SL: u8 = 36, 4, 4;
        VL_CAP: u8 = 37, 0, 4;
        INIT_TYPE: u8 = 37, 4, 4;
        VL_HIGH_LIMIT: u8 = 38, 0, 8;
        VL_ARBITRATION_HIGH_CAP: u8 = 39, 0, 8;
        VL_ARBITRATION_LOW_CAP: u8 = 40, 0, 8;
        MTU_CAP: u8 = 41, 4, 4;
        VL_STALL_COUNT: u8 = 42, 0, 3;
        HOQ_LIFE: u8 = 42, 3, 5;
        OPERATIONAL_VLS: u8 = 43, 0, 4;
        PARTITION_ENFORCEMENT_INBOUND: bool = 43, 4, 1;
        PARTITION_ENFORCEMENT_OUTBOUND: bool = 43, 5, 1;
        M_KEY_VIOLATIONS: u16 = 44, 0, 16;
        P_KEY_VIOLATIONS: u16 = 46, 0, 16;
        Q_KEY_VIOLATIONS: u16 = 48, 0, 16;
        GUID_CAP: u8 = 50, 0, 8;
        CLIENT_REREGISTER: bool = 51, 0, 1;
        SUBNET_TIMEOUT: u8 = 51, 3, 5;
        RESP_TIME_VALUE: u8 = 52, 3, 5;
        LOCAL_PHY_ERRORS: u8 = 53, 0, 4;
        OVERRUN_ERRORS: u8 = 53, 4, 4;
        LINK_SPEED_EXT_ACTIVE: u8 = 62, 0, 4;
        LINK_SPEED_EXT_SUPPORTED: u8 = 62, 4, 4;
        LINK_SPEED_EXT_ENABLED: u8 = 63, 3, 5;
    }
}

/// Bits of PortInfo:CapabilityMask (IBTA 14.2.5.6).
pub mod capability {
    /// The port belongs to a subnet manager.
    pub const IS_SM: u32 = 1 << 1;
    /// The port sends traps.
    pub const IS_TRAP_SUPPORTED: u32 = 1 << 3;
    /// The port has a map from SL to VL.
    pub const IS_SL_MAPPING_SUPPORTED: u32 = 1 << 6;
    /// The port has a SystemImageGUID.
    pub const IS_SYSTEM_IMAGE_GUID_SUPPORTED: u32 = 1 << 11;
    /// Communication management.
    pub const IS_COMMUNICATION_MANAGEMENT_SUPPORTED: u32 = 1 << 16;
    /// The port has an agent of device management.
    pub const IS_DEVICE_MANAGEMENT_SUPPORTED: u32 = 1 << 19;
    /// Trap 144 reports a change of the mask.
    pub const IS_CAPABILITY_MASK_NOTICE_SUPPORTED: u32 = 1 << 22;
    /// The port reports ClientReregister to its clients.
    pub const IS_CLIENT_REREGISTRATION_SUPPORTED: u32 = 1 << 25;
    /// Trap 144 reports more than the mask.
    pub const IS_OTHER_LOCAL_CHANGES_NOTICE_SUPPORTED: u32 = 1 << 26;
}

/// PortInfo:PortState (IBTA 14.2.5.6).
pub mod port_state {
    /// In a Set: the state stays.
    pub const NO_CHANGE: u8 = 0;
    /// No packet passes.
    pub const DOWN: u8 = 1;
    /// Only SMPs pass.
    pub const INIT: u8 = 2;
    /// SMPs pass, and data is received.
    pub const ARMED: u8 = 3;
    /// All packets pass.
    pub const ACTIVE: u8 = 4;
}

/// PortInfo:PortPhysicalState (IBTA 14.2.5.6).
pub mod physical_state {
    /// In a Set: the state stays.
    pub const NO_CHANGE: u8 = 0;
    /// The port sleeps until its peer wakes it up.
    pub const SLEEP: u8 = 1;
    /// The port looks for a peer.
    pub const POLLING: u8 = 2;
    /// The subnet manager disabled the port.
    pub const DISABLED: u8 = 3;
    /// The link works.
    pub const LINK_UP: u8 = 5;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::Fields;

    #[test]
    fn port_info_to_the_bit() {
        let info = PortInfo::default()
            .with(PortInfo::LID, 0x1234)
            .with(PortInfo::PORT_STATE, port_state::ARMED)
            .with(PortInfo::PORT_PHYSICAL_STATE, physical_state::LINK_UP)
            .with(PortInfo::LMC, 7)
            .with(PortInfo::OPERATIONAL_VLS, 4)
            .with(PortInfo::PARTITION_ENFORCEMENT_OUTBOUND, true)
            .with(PortInfo::SUBNET_TIMEOUT, 18)
            .with(PortInfo::CLIENT_REREGISTER, true);
        assert_eq!(info.0[16..18], [0x12, 0x34]);
        assert_eq!(info.0[32..35], [0x03, 0x50, 0x07]);
        assert_eq!(info.0[43], 0x44);
        assert_eq!(info.0[51], 0x92);
    }

    #[test]
    fn node_info_to_the_bit() {
        let info = NodeInfo::default()
            .with(NodeInfo::PARTITION_CAP, 32)
            .with(NodeInfo::LOCAL_PORT_NUM, 3)
            .with(NodeInfo::VENDOR_ID, 0x0002_c903);
        assert_eq!(info.0[28..30], [0, 32]);
        assert_eq!(info.0[36..40], [3, 0x02, 0xc9, 0x03]);
    }
}
