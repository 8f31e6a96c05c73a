// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Partitions (IBTA 10.9): the P_Keys of the packets that a queue pair accepts.

use super::{Core, QpType};
use crate::packet::Packet;

/// QPN of the subnet management interface.
pub(crate) const SMI_QPN: u32 = 0;

impl Core {
    /// True if the P_Key of a packet matches that of the queue pair, or if the queue pair has no
    /// P_Key of its own. Packets of other partitions are dropped.
    #[inline]
    pub(crate) fn accepts_pkey(&self, packet: &Packet) -> bool {
        pkey_matches(packet.pkey, self.attr.pkey) || self.is_management_of(packet)
    }

    /// True if the queue pair is QP0 or QP1 of an InfiniBand port, and the packet is from its link.
    /// QP0 checks no P_Key. QP1 accepts each P_Key that matches an entry of the port's table, and
    /// the NIC, which has the table, has checked that.
    #[inline(never)]
    fn is_management_of(&self, packet: &Packet) -> bool {
        let is_infiniband = || {
            let datagram = packet.datagram.as_ref();
            datagram.is_some_and(|datagram| datagram.path.local_route.is_some())
        };
        self.config.qp_type == QpType::Gsi && is_infiniband()
    }
}

/// True if the lower 15 bits are equal and at least one side is a full member (IBTA 10.9.3).
#[inline]
pub fn pkey_matches(a: u16, b: u16) -> bool {
    a & 0x7fff == b & 0x7fff && (a | b) & 0x8000 != 0
}
