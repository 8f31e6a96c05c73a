// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The attribute Notice, which traps carry (IBTA 13.4.8.2, 14.2.5.1).

use super::field::block;
use super::{Fields, SMP_DATA_LEN};

block! {
    /// A generic Notice with the fields of the traps that this crate sends.
    Notice[SMP_DATA_LEN] {
        IS_GENERIC: bool = 0, 0, 1;
        TYPE: u8 = 0, 1, 7;
        PRODUCER_TYPE: u32 = 1, 0, 24;
        TRAP_NUMBER: u16 = 4, 0, 16;
        ISSUER_LID: u16 = 6, 0, 16;
        /// Trap 128: the LID of the switch.
        SWITCH_LID: u16 = 10, 0, 16;
        /// Traps 144 and 256: the LID of the port.
        PORT_LID: u16 = 12, 0, 16;
        /// Trap 144: a change that CHANGE_FLAGS describes.
        OTHER_LOCAL_CHANGES: bool = 15, 7, 1;
        /// Trap 144: the mask after the change.
        CAPABILITY_MASK: u32 = 16, 0, 32;
        /// Trap 144: bit 0 is NodeDescriptionChange.
        CHANGE_FLAGS: u16 = 20, 0, 16;
        /// Traps 257 and 258: SLID of the packet.
        LIDADDR1: u16 = 12, 0, 16;
        /// Traps 257 and 258: DLID of the packet.
        LIDADDR2: u16 = 14, 0, 16;
        /// Traps 257 and 258: the Q_Key, or the P_Key in the low half.
        KEY: u32 = 16, 0, 32;
        /// Traps 257 and 258: SL of the packet.
        SL: u8 = 20, 0, 4;
        /// Traps 257 and 258: queue pair that sent the packet.
        QP1: u32 = 21, 0, 24;
        /// Traps 257 and 258: queue pair for which the packet was.
        QP2: u32 = 25, 0, 24;
        /// Trap 256: DrSLID of the SMP.
        DR_SLID: u16 = 14, 0, 16;
        /// Trap 256: method of the SMP.
        METHOD: u8 = 16, 0, 8;
        /// Trap 256: attribute of the SMP.
        ATTRIBUTE_ID: u16 = 18, 0, 16;
        /// Trap 256: attribute modifier of the SMP.
        ATTRIBUTE_MODIFIER: u32 = 20, 0, 32;
        /// Trap 256: the M_Key that was wrong.
        M_KEY: u64 = 24, 0, 64;
        /// Trap 256: the SMP had a directed route.
        IS_DIRECTED_ROUTE: bool = 33, 0, 1;
        /// Trap 256: the return path is longer than the Notice.
        IS_PATH_TRUNCATED: bool = 33, 1, 1;
        /// Trap 256: hops of the directed route.
        HOP_COUNT: u8 = 33, 2, 6;
    }
}

/// Where the return path of trap 256 begins, and its length.
pub const RETURN_PATH_AT: usize = 34;
/// Entries of the return path in trap 256.
pub const RETURN_PATH_LEN: usize = 30;

/// Where GIDADDR1 of traps 257 and 258 begins, the source GID of the packet. GIDADDR2, its
/// destination GID, follows.
pub const GIDADDR1_AT: usize = 28;

/// Types of notices (IBTA 13.4.8.2).
mod notice_type {
    pub const URGENT: u8 = 1;
    pub const SECURITY: u8 = 2;
    pub const INFORMATIONAL: u8 = 4;
}

/// Traps that agents send (IBTA 14.2.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// 128: the state of a port of the switch changed.
    LinkState,
    /// 144: the capability mask or the description changed.
    LocalChange,
    /// 256: an SMP had a wrong M_Key.
    BadMKey,
    /// 257: a packet had a P_Key that its queue pair does not accept.
    BadPKey,
    /// 258: a datagram had another Q_Key than its queue pair.
    BadQKey,
}

impl Trap {
    /// Returns the number of the trap.
    pub fn number(self) -> u16 {
        match self {
            Trap::LinkState => 128,
            Trap::LocalChange => 144,
            Trap::BadMKey => 256,
            Trap::BadPKey => 257,
            Trap::BadQKey => 258,
        }
    }

    /// Makes the Notice of a trap, without the details of the event.
    pub fn notice(self, node_type: u8, lid: u16) -> Notice {
        let urgency = match self {
            Trap::LinkState => notice_type::URGENT,
            Trap::LocalChange => notice_type::INFORMATIONAL,
            Trap::BadMKey | Trap::BadPKey | Trap::BadQKey => notice_type::SECURITY,
        };
        let notice = Notice::default()
            .with(Notice::IS_GENERIC, true)
            .with(Notice::TYPE, urgency)
            .with(Notice::PRODUCER_TYPE, u32::from(node_type))
            .with(Notice::TRAP_NUMBER, self.number())
            .with(Notice::ISSUER_LID, lid);
        match self {
            Trap::LinkState => notice.with(Notice::SWITCH_LID, lid),
            Trap::LocalChange | Trap::BadMKey => notice.with(Notice::PORT_LID, lid),
            // These have only the LIDs of the packet.
            Trap::BadPKey | Trap::BadQKey => notice,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trap_128_to_the_bit() {
        let notice = Trap::LinkState.notice(2, 0x0107);
        assert_eq!(notice.0[..12], [0x81, 0, 0, 2, 0, 128, 1, 7, 0, 0, 1, 7]);
    }
}
