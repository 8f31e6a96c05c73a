// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The attributes of performance management (IBTA 16.1.3, 16.1.4), which begin at byte 64 of the MAD.

use super::field::block;
use super::MAD_LEN;

/// Number of bytes of the data of a MAD of performance management (IBTA 16.1.1).
pub const PERFORMANCE_DATA_LEN: usize = MAD_LEN - 64;

block! {
    /// ClassPortInfo (IBTA 13.4.8.1).
    ClassPortInfo[PERFORMANCE_DATA_LEN] {
        BASE_VERSION: u8 = 0, 0, 8;
        CLASS_VERSION: u8 = 1, 0, 8;
        CAPABILITY_MASK: u16 = 2, 0, 16;
        RESP_TIME_VALUE: u8 = 7, 3, 5;
    }
}

/// ClassPortInfo:CapabilityMask: PortSelect 255 selects all ports.
pub const ALL_PORT_SELECT: u16 = 1 << 8;
/// ClassPortInfo:CapabilityMask: PortCountersExtended is supported.
pub const IS_EXTENDED_WIDTH_SUPPORTED: u16 = 1 << 9;
/// ClassPortInfo:CapabilityMask: PortXmitWait is supported.
pub const IS_PORT_XMIT_WAIT_SUPPORTED: u16 = 1 << 12;

block! {
    /// PortCounters (IBTA 16.1.3.5). The counters stop at their largest value.
    PortCounters[PERFORMANCE_DATA_LEN] {
        PORT_SELECT: u8 = 1, 0, 8;
        COUNTER_SELECT: u16 = 2, 0, 16;
        SYMBOL_ERROR_COUNTER: u64 = 4, 0, 16;
        LINK_ERROR_RECOVERY_COUNTER: u64 = 6, 0, 8;
        LINK_DOWNED_COUNTER: u64 = 7, 0, 8;
        PORT_RCV_ERRORS: u64 = 8, 0, 16;
        PORT_RCV_REMOTE_PHYSICAL_ERRORS: u64 = 10, 0, 16;
        PORT_RCV_SWITCH_RELAY_ERRORS: u64 = 12, 0, 16;
        PORT_XMIT_DISCARDS: u64 = 14, 0, 16;
        PORT_XMIT_CONSTRAINT_ERRORS: u64 = 16, 0, 8;
        PORT_RCV_CONSTRAINT_ERRORS: u64 = 17, 0, 8;
        COUNTER_SELECT_2: u8 = 18, 0, 8;
        LOCAL_LINK_INTEGRITY_ERRORS: u64 = 19, 0, 4;
        EXCESSIVE_BUFFER_OVERRUN_ERRORS: u64 = 19, 4, 4;
        VL15_DROPPED: u64 = 22, 0, 16;
        PORT_XMIT_DATA: u64 = 24, 0, 32;
        PORT_RCV_DATA: u64 = 28, 0, 32;
        PORT_XMIT_PKTS: u64 = 32, 0, 32;
        PORT_RCV_PKTS: u64 = 36, 0, 32;
        PORT_XMIT_WAIT: u64 = 40, 0, 32;
    }
}

block! {
    /// PortCountersExtended (IBTA 16.1.4).
    PortCountersExtended[PERFORMANCE_DATA_LEN] {
        PORT_SELECT: u8 = 1, 0, 8;
        COUNTER_SELECT: u16 = 2, 0, 16;
        PORT_XMIT_DATA: u64 = 8, 0, 64;
        PORT_RCV_DATA: u64 = 16, 0, 64;
        PORT_XMIT_PKTS: u64 = 24, 0, 64;
        PORT_RCV_PKTS: u64 = 32, 0, 64;
        PORT_UNICAST_XMIT_PKTS: u64 = 40, 0, 64;
        PORT_UNICAST_RCV_PKTS: u64 = 48, 0, 64;
        PORT_MULTICAST_XMIT_PKTS: u64 = 56, 0, 64;
        PORT_MULTICAST_RCV_PKTS: u64 = 64, 0, 64;
    }
}
