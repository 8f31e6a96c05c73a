// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The addresses in frames that this process looks at before the device does: those of Ethernet
//! frames, and of the packets of an InfiniBand port.

use verbena_device::objects::infiniband::is_multicast_lid;
use verbena_transport::wire::{grh, lrh};

/// Place of the link next header (LNH) in a packet, its bits, and its value before a GRH.
const LNH_AT: usize = 1;
const LNH: u8 = 0x03;
const LNH_GRH: u8 = lrh::NextHeader::Grh as u8;
/// Place of the SLID in a packet.
const SLID_AT: usize = 6;
/// Place of the SGID in a GRH.
const SGID_AT: usize = 8;

/// Link layer of a port, as far as the addresses of its frames depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortLink {
    Ethernet,
    InfiniBand,
}

impl PortLink {
    /// Returns the bytes that distinguish the sender of a frame from others: the source MAC address;
    /// or the SLID, and the SGID if the packet has a GRH.
    pub(crate) fn sender(self, frame: &[u8]) -> [Option<&[u8]>; 2] {
        if self == Self::Ethernet {
            return [frame.get(6..12), None];
        }
        let slid = frame.get(SLID_AT..lrh::LEN);
        let has_grh = frame.get(LNH_AT).is_some_and(|byte| byte & LNH == LNH_GRH);
        let grh = frame.get(lrh::LEN..lrh::LEN + grh::LEN);
        let sgid = grh
            .filter(|_| has_grh)
            .and_then(|grh| grh.get(SGID_AT..SGID_AT + 16));
        [slid, sgid]
    }

    /// True if a frame is for a group, so that the device copies it to each member.
    pub(crate) fn is_to_group(self, frame: &[u8]) -> bool {
        match (self, frame) {
            // The first bit that is sent (IEEE 802, 8.2).
            (Self::Ethernet, frame) => frame.first().is_some_and(|first| first & 1 != 0),
            (Self::InfiniBand, [_, _, high, low, ..]) => {
                is_multicast_lid(u16::from_be_bytes([*high, *low]))
            }
            (Self::InfiniBand, _) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(next_header: u8, dlid: [u8; 2], slid: u8, sgid: u8) -> Vec<u8> {
        let mut packet = vec![0xee; 60];
        packet[..8].copy_from_slice(&[0, next_header, dlid[0], dlid[1], 0, 15, 0, slid]);
        packet[16..32].fill(sgid);
        packet
    }

    #[test]
    fn the_sender_of_a_packet_is_its_slid_and_the_sgid_of_its_grh() {
        let sender = |packet: &[u8]| {
            let parts = PortLink::InfiniBand.sender(packet);
            parts.map(|part| part.map(<[u8]>::to_vec))
        };
        let local = |slid, sgid| sender(&packet(2, [0, 9], slid, sgid));
        let global = |slid, sgid| sender(&packet(3, [0, 9], slid, sgid));
        assert_eq!(local(1, 1), local(1, 2));
        assert_ne!(local(1, 1), local(2, 1));
        assert_eq!(global(1, 1), global(1, 1));
        assert_ne!(global(1, 1), global(1, 2));
        assert_ne!(global(1, 1), global(2, 1));
        for length in 0..packet(3, [0, 9], 1, 1).len() {
            let cut = packet(3, [0, 9], 1, 1);
            let [slid, sgid] = sender(&cut[..length]);
            assert_eq!(
                (slid.is_some(), sgid.is_some()),
                (length >= 8, length >= 48)
            );
        }
    }

    #[test]
    fn a_group_has_a_multicast_address_of_its_link_layer() {
        let is_to_group = |dlid| PortLink::InfiniBand.is_to_group(&packet(2, dlid, 1, 1));
        let lids = [[0, 9], [0xbf, 0xff], [0xc0, 0], [0xff, 0xfe], [0xff, 0xff]];
        assert_eq!(lids.map(is_to_group), [false, false, true, true, false]);
        assert!(!PortLink::InfiniBand.is_to_group(&[0xf1, 2, 0xc0]));
        assert!(PortLink::Ethernet.is_to_group(&[1]) && !PortLink::Ethernet.is_to_group(&[2]));
    }
}
