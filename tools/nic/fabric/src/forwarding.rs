// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The forwarding tables of a switch (IBTA 18.2.4, 14.2.5.10, 14.2.5.12).

use crate::mad::attribute::SwitchInfo;
use crate::mad::{is_multicast, is_unicast, Fields, FIRST_MULTICAST_LID, SMP_DATA_LEN};
use crate::port::P_KEYS_PER_PORT;

/// Entries of the linear forwarding table: all unicast LIDs.
pub const LINEAR_ENTRIES: u16 = FIRST_MULTICAST_LID;
/// Entries of the multicast forwarding table.
pub const MULTICAST_ENTRIES: u16 = 1024;
/// LIDs of a block of the linear forwarding table.
const LIDS_PER_BLOCK: usize = 64;
/// LIDs of a block of the multicast forwarding table.
const MLIDS_PER_BLOCK: usize = 32;
/// Ports of a position of the multicast forwarding table.
const PORTS_PER_POSITION: usize = 16;
/// The entry of the linear forwarding table for LIDs without a port.
const NO_PORT: u8 = 255;

/// The forwarding tables of a switch, and its SwitchInfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardingTables {
    pub(crate) info: SwitchInfo,
    /// Egress port of each unicast LID.
    linear: Vec<u8>,
    /// For each multicast LID, the bits of its egress ports in positions of 16 ports.
    multicast: Vec<u16>,
    /// Positions that the ports of the switch need.
    positions: usize,
}

impl ForwardingTables {
    /// Makes the tables after power-on, in which no LID has a port. `ports` counts port 0 too.
    pub(crate) fn new(ports: usize) -> Self {
        let positions = ports.div_ceil(PORTS_PER_POSITION);
        let info = SwitchInfo::default()
            .with(SwitchInfo::LINEAR_FDB_CAP, LINEAR_ENTRIES)
            .with(SwitchInfo::MULTICAST_FDB_CAP, MULTICAST_ENTRIES)
            .with(
                SwitchInfo::PARTITION_ENFORCEMENT_CAP,
                P_KEYS_PER_PORT as u16,
            )
            .with(SwitchInfo::INBOUND_ENFORCEMENT_CAP, true)
            .with(SwitchInfo::OUTBOUND_ENFORCEMENT_CAP, true);
        Self {
            info,
            linear: vec![NO_PORT; usize::from(LINEAR_ENTRIES)],
            multicast: vec![0; usize::from(MULTICAST_ENTRIES) * positions],
            positions,
        }
    }

    /// Returns the egress port of a unicast LID. None: the packet is discarded.
    pub fn unicast(&self, lid: u16) -> Option<u8> {
        if !is_unicast(lid) || lid > self.info.get(SwitchInfo::LINEAR_FDB_TOP) {
            return None;
        }
        let port = *self.linear.get(usize::from(lid))?;
        (port != NO_PORT).then_some(port)
    }

    /// Returns true if packets for a multicast LID leave by a port.
    pub fn multicast(&self, lid: u16, port: u8) -> bool {
        if !is_multicast(lid) || lid - FIRST_MULTICAST_LID >= MULTICAST_ENTRIES {
            return false;
        }
        let (position, bit) = (
            usize::from(port) / PORTS_PER_POSITION,
            usize::from(port) % PORTS_PER_POSITION,
        );
        let at = usize::from(lid - FIRST_MULTICAST_LID) * self.positions + position;
        position < self.positions
            && self
                .multicast
                .get(at)
                .is_some_and(|ports| ports >> bit & 1 != 0)
    }

    /// Stores SwitchInfo. Returns false, and stores nothing, if a value is invalid.
    pub(crate) fn set_info(&mut self, new: &SwitchInfo) -> bool {
        if new.get(SwitchInfo::LINEAR_FDB_TOP) >= LINEAR_ENTRIES {
            return false;
        }
        self.info.copy(SwitchInfo::LINEAR_FDB_TOP, new);
        self.info.copy(SwitchInfo::DEFAULT_PORT, new);
        self.info
            .copy(SwitchInfo::DEFAULT_MULTICAST_PRIMARY_PORT, new);
        self.info
            .copy(SwitchInfo::DEFAULT_MULTICAST_NOT_PRIMARY_PORT, new);
        self.info.copy(SwitchInfo::LIFE_TIME_VALUE, new);
        // A 1 clears the bit (IBTA 14.2.5.4).
        if new.get(SwitchInfo::PORT_STATE_CHANGE) {
            self.info.set(SwitchInfo::PORT_STATE_CHANGE, false);
        }
        true
    }

    /// Returns a block of the linear forwarding table.
    pub(crate) fn linear_block(&mut self, modifier: u32) -> Option<&mut [u8]> {
        let begin = usize::try_from(modifier)
            .ok()?
            .checked_mul(LIDS_PER_BLOCK)?;
        self.linear
            .get_mut(begin..begin.checked_add(LIDS_PER_BLOCK)?)
    }

    /// Returns a block of the multicast forwarding table as an attribute.
    pub(crate) fn multicast_block(&self, modifier: u32) -> Option<[u8; SMP_DATA_LEN]> {
        let (first, position) = self.multicast_place(modifier)?;
        let mut data = [0; SMP_DATA_LEN];
        for (entry, bytes) in data.chunks_exact_mut(2).enumerate() {
            let ports = self
                .multicast
                .get((first + entry) * self.positions + position)?;
            bytes.copy_from_slice(&ports.to_be_bytes());
        }
        Some(data)
    }

    /// Stores a block of the multicast forwarding table. Returns false if the block does not exist.
    pub(crate) fn set_multicast_block(&mut self, modifier: u32, data: &[u8; SMP_DATA_LEN]) -> bool {
        let Some((first, position)) = self.multicast_place(modifier) else {
            return false;
        };
        for (entry, bytes) in data.chunks_exact(2).enumerate() {
            let at = (first + entry) * self.positions + position;
            if let (Some(ports), [high, low]) = (self.multicast.get_mut(at), bytes) {
                *ports = u16::from_be_bytes([*high, *low]);
            }
        }
        true
    }

    /// Returns the first entry and the position of a block of the multicast forwarding table: the
    /// block is in the low 9 bits of the attribute modifier, the position in the high 4 bits.
    fn multicast_place(&self, modifier: u32) -> Option<(usize, usize)> {
        let (block, position) = ((modifier & 0x1ff) as usize, (modifier >> 28) as usize);
        let exists = modifier & 0x0fff_fe00 == 0
            && block < usize::from(MULTICAST_ENTRIES) / MLIDS_PER_BLOCK
            && position < self.positions;
        exists.then_some((block * MLIDS_PER_BLOCK, position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unicast_lids_beyond_the_top_have_no_port() {
        let mut tables = ForwardingTables::new(9);
        tables.linear_block(1).unwrap()[..3].copy_from_slice(&[3, 4, 5]);
        assert!(tables.set_info(&SwitchInfo::default().with(SwitchInfo::LINEAR_FDB_TOP, 65)));
        let ports = [0, 63, 64, 65, 66, 0xc000, 0xffff].map(|lid| tables.unicast(lid));
        assert_eq!(ports, [None, None, Some(3), Some(4), None, None, None]);
        assert!(!tables.set_info(&SwitchInfo::default().with(SwitchInfo::LINEAR_FDB_TOP, 0xc000)));
        assert!(tables.linear_block(767).is_some() && tables.linear_block(768).is_none());
    }

    #[test]
    fn multicast_blocks_have_positions_of_16_ports() {
        let mut tables = ForwardingTables::new(37);
        let mut data = [0; SMP_DATA_LEN];
        data[2..4].copy_from_slice(&[0x80, 0x02]);
        assert!(tables.set_multicast_block(2 << 28 | 1, &data));
        assert_eq!(tables.multicast_block(2 << 28 | 1), Some(data));
        let lid = FIRST_MULTICAST_LID + 33;
        assert!(
            tables.multicast(lid, 33) && tables.multicast(lid, 47) && !tables.multicast(lid, 1)
        );
        assert!(
            !tables.set_multicast_block(3 << 28, &data) && !tables.set_multicast_block(32, &data)
        );
        assert!(!tables.multicast(0xffff, 33) && !tables.multicast(5, 33));
    }

    #[test]
    fn port_state_change_is_cleared_by_a_one() {
        let mut tables = ForwardingTables::new(3);
        tables.info.set(SwitchInfo::PORT_STATE_CHANGE, true);
        assert!(tables.set_info(&SwitchInfo::default()));
        assert!(tables.info.get(SwitchInfo::PORT_STATE_CHANGE));
        assert!(tables.set_info(&SwitchInfo::default().with(SwitchInfo::PORT_STATE_CHANGE, true)));
        assert!(!tables.info.get(SwitchInfo::PORT_STATE_CHANGE));
    }
}
