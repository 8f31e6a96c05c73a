// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An InfiniBand port, as the subnet manager has configured it.

use verbena_abi::cmd::PortAttr;
use verbena_abi::ctx::{AddressVector, AV_GRH};
use verbena_transport::host::pkeys_match;
use verbena_transport::wire::lrh::PERMISSIVE_LID;
use verbena_transport::wire::{LocalRoute, Path};

/// First LID of multicast groups (IBTA 4.1.1). The largest is the one before the permissive LID.
const FIRST_MULTICAST_LID: u16 = 0xc000;

/// `enum ib_port_state`.
const INIT: u8 = 2;
const ARMED: u8 = 3;
const ACTIVE: u8 = 4;

/// The configuration of an InfiniBand port. The agents of the port give it to the device with each
/// change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InfiniBandPort {
    /// Attributes that QUERY_PORT returns.
    pub attributes: PortAttr,
    /// The GID table, each GID in network order.
    pub gids: Vec<[u8; 16]>,
    /// The P_Key table. An entry of 0 is not valid.
    pub pkeys: Vec<u16>,
}

impl InfiniBandPort {
    /// True if packets of a queue pair leave the port in its present state. Subnet management (QPN
    /// 0) needs a link, and all other packets an active port (IBTA 7.2.7).
    pub fn sends(&self, qpn: u32) -> bool {
        self.attributes.state >= if qpn == 0 { INIT } else { ACTIVE }
    }

    /// True if packets for a queue pair enter the port in its present state (IBTA 7.2.7).
    pub fn receives(&self, qpn: u32) -> bool {
        self.attributes.state >= if qpn == 0 { INIT } else { ARMED }
    }

    /// Returns the lowest LID of the port; 0 before the subnet manager has assigned one.
    pub fn lid(&self) -> u16 {
        self.attributes.lid.get() as u16
    }

    /// True if a unicast LID is one of the 2^LMC LIDs of the port.
    pub fn has_lid(&self, lid: u16) -> bool {
        let mask = !self.path_bits_mask();
        self.lid() != 0 && lid & mask == self.lid() & mask
    }

    /// Returns the mask of the bits of a LID that select one of the port's LIDs.
    fn path_bits_mask(&self) -> u16 {
        (1 << self.attributes.lmc.min(7)) - 1
    }

    /// Returns the bits of a destination LID that select one of the port's LIDs, as a completion
    /// reports them.
    pub fn path_bits(&self, dlid: u16) -> u8 {
        match is_multicast_lid(dlid) {
            true => 0,
            false => (dlid & self.path_bits_mask()) as u8,
        }
    }

    /// Returns an entry of the P_Key table, if it is valid.
    pub fn pkey(&self, index: u16) -> Option<u16> {
        let pkey = *self.pkeys.get(usize::from(index))?;
        (pkey & 0x7fff != 0).then_some(pkey)
    }

    /// Returns the index of the entry of the P_Key table that matches a P_Key.
    pub fn index_of_pkey(&self, pkey: u16) -> Option<u16> {
        let matches = |entry: &u16| entry & 0x7fff != 0 && pkeys_match(pkey, *entry);
        let index = self.pkeys.iter().position(matches)?;
        u16::try_from(index).ok()
    }

    /// Returns the path that an address vector describes, for a packet to a QPN. None if the source
    /// GID does not exist, or if the destination LID cannot be one.
    pub fn path(&self, av: &AddressVector, dest_qpn: u32) -> Option<Path> {
        let has_grh = av.path_bits & AV_GRH != 0;
        let dlid = av.dlid.get();
        if dlid == 0 || is_multicast_lid(dlid) && !has_grh {
            return None;
        }
        let sgid = match has_grh {
            true => *self.gids.get(usize::from(av.sgid_index.get()))?,
            false => [0; 16],
        };
        let bits = u16::from(av.path_bits & !AV_GRH) & self.path_bits_mask();
        // A port without a LID sends from the permissive LID, and only subnet management.
        let slid = match dest_qpn == 0 && dlid == PERMISSIVE_LID {
            true => PERMISSIVE_LID,
            false => self.lid() | bits,
        };
        Some(Path {
            sgid,
            dgid: if has_grh { av.dgid } else { [0; 16] },
            flow_label: av.flow_label.get() & 0xf_ffff,
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
            sl: av.sl & 0xf,
            local_route: Some(LocalRoute {
                slid,
                dlid,
                has_grh,
            }),
            ..Path::default()
        })
    }

    /// True if a packet with this path arrives at the port from the port itself. Packets of subnet
    /// management do not: the agents of the port take them from the link.
    pub fn is_local(&self, path: &Path, dest_qpn: u32) -> bool {
        let route = path.local_route;
        dest_qpn != 0 && route.is_some_and(|route| self.has_lid(route.dlid))
    }

    /// True if a packet that arrives is for the port: it has one of the port's LIDs or the permissive
    /// LID, or is for a multicast group.
    pub fn is_for(&self, route: &LocalRoute) -> bool {
        let dlid = route.dlid;
        dlid == PERMISSIVE_LID || is_multicast_lid(dlid) || self.has_lid(dlid)
    }
}

/// True if a LID is that of a multicast group.
pub fn is_multicast_lid(lid: u16) -> bool {
    (FIRST_MULTICAST_LID..PERMISSIVE_LID).contains(&lid)
}

/// True if a packet comes from the peer of a connected queue pair: its LIDs are those of the queue
/// pair's path, and so are its GIDs if both have a GRH (IBTA 9.6.1.5).
pub fn is_from_peer(own: &Path, packet: &Path) -> bool {
    let (Some(ours), Some(theirs)) = (own.local_route, packet.local_route) else {
        return false;
    };
    let has_lids = ours.dlid == theirs.slid && ours.slid == theirs.dlid;
    let has_gids = own.dgid == packet.sgid && own.sgid == packet.dgid;
    has_lids && ours.has_grh == theirs.has_grh && (has_gids || !ours.has_grh)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(lid: u32, lmc: u8) -> InfiniBandPort {
        InfiniBandPort {
            attributes: PortAttr {
                state: ACTIVE,
                lid: lid.into(),
                lmc,
                ..PortAttr::default()
            },
            gids: vec![[0xfe; 16]],
            pkeys: vec![0xffff, 0x8001, 0, 0x0002],
        }
    }

    #[test]
    fn a_port_has_two_to_the_lmc_lids() {
        let port = port(8, 2);
        let own: Vec<u16> = (0..32).filter(|lid| port.has_lid(*lid)).collect();
        assert_eq!(own, [8, 9, 10, 11]);
        assert_eq!((port.path_bits(10), port.path_bits(0xc002)), (2, 0));
    }

    #[test]
    fn a_port_without_a_lid_has_none() {
        assert!(!port(0, 0).has_lid(0));
    }

    #[test]
    fn pkeys_of_two_limited_members_do_not_match() {
        let port = port(1, 0);
        let found = [0xffff, 0x7fff, 0x0001, 0x0002, 0x8002, 0x0000].map(|p| port.index_of_pkey(p));
        assert_eq!(found, [Some(0), Some(0), Some(1), None, Some(3), None]);
        assert_eq!((port.pkey(1), port.pkey(2)), (Some(0x8001), None));
    }

    #[test]
    fn packets_come_from_the_lids_of_the_path() {
        let route = |slid, dlid, has_grh| Path {
            local_route: Some(LocalRoute {
                slid,
                dlid,
                has_grh,
            }),
            ..Path::default()
        };
        let own = route(8, 5, false);
        assert!(is_from_peer(&own, &route(5, 8, false)));
        for other in [route(6, 8, false), route(5, 9, false), route(5, 8, true)] {
            assert!(!is_from_peer(&own, &other), "{other:?}");
        }
        assert!(!is_from_peer(&own, &Path::default()));
    }

    #[test]
    fn only_subnet_management_passes_an_inactive_port() {
        let mut port = port(1, 0);
        let passes = [0, 1, INIT, ARMED, ACTIVE].map(|state| {
            port.attributes.state = state;
            [
                port.sends(0),
                port.sends(9),
                port.receives(0),
                port.receives(9),
            ]
        });
        let (no, yes) = (false, true);
        assert_eq!(
            passes,
            [
                [no; 4],
                [no; 4],
                [yes, no, yes, no],
                [yes, no, yes, yes],
                [yes; 4]
            ]
        );
    }

    #[test]
    fn a_path_has_a_grh_if_its_address_vector_has_one() {
        let port = port(8, 1);
        let av = |dlid: u16, path_bits, sgid_index: u16| AddressVector {
            dlid: dlid.into(),
            path_bits,
            sgid_index: sgid_index.into(),
            dgid: [7; 16],
            ..AddressVector::default()
        };
        let path = port.path(&av(5, 1, 0), 9).unwrap();
        let route = LocalRoute {
            slid: 9,
            dlid: 5,
            has_grh: false,
        };
        assert_eq!((path.local_route, path.dgid), (Some(route), [0; 16]));
        let path = port.path(&av(5, AV_GRH, 0), 9).unwrap();
        assert_eq!((path.sgid, path.dgid), ([0xfe; 16], [7; 16]));
        // No such GID; no LID; a group without a GRH.
        for av in [av(5, AV_GRH, 1), av(0, 0, 0), av(0xc000, 0, 0)] {
            assert_eq!(port.path(&av, 9), None);
        }
        let smp = port.path(&av(PERMISSIVE_LID, 0, 0), 0).unwrap();
        assert_eq!(smp.local_route.unwrap().slid, PERMISSIVE_LID);
    }
}
