// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Paths: the port's GIDs, address vectors, and the source information of received datagrams.

use crate::objects::{ObservedCqe, PostedSend};
use crate::simulation::DeviceSimulation;
use verbena_abi::cmd::{SetGid, GID_TYPE_ROCE_V2, NO_VLAN};
use verbena_abi::cqe::network_type;
use verbena_abi::ctx::AddressVector;
use verbena_abi::wqe::WqeOpcode;
use verbena_device::mock::gid;

/// An entry of the GID table: index, VLAN, last byte of the MAC address, and true for IPv6.
type GidTableEntry = (u16, u16, u8, bool);

/// Entries of the GID table that are set.
const ENTRIES: [GidTableEntry; 6] = [
    (0, NO_VLAN, 1, false),
    (1, NO_VLAN, 1, false),
    (7, 5, 3, false),
    (64, NO_VLAN, 4, true),
    (200, 4094, 5, true),
    (255, NO_VLAN, 1, true),
];

fn address((index, _, _, v6): GidTableEntry) -> [u8; 16] {
    if v6 {
        let mut gid = [0xfd; 16];
        (gid[7], gid[15]) = (index as u8, !index as u8);
        gid
    } else {
        gid([10, 0, 0, 1 + index as u8])
    }
}

fn mac((_, _, last, _): GidTableEntry) -> [u8; 6] {
    [2, 0, 0, 0, 0, last]
}

fn entry(index: u16) -> GidTableEntry {
    *ENTRIES
        .iter()
        .find(|e| e.0 == index)
        .expect("an entry that is set")
}

impl DeviceSimulation {
    /// Sets the entries of the GID table.
    pub fn set_gids(&mut self) {
        for entry in ENTRIES {
            let (index, vlan, ..) = entry;
            self.driver.must(&SetGid {
                index: index.into(),
                valid: 1,
                vlan: vlan.into(),
                mac: mac(entry),
                gid: address(entry),
                port: 1,
                gid_type: GID_TYPE_ROCE_V2,
                ..Default::default()
            });
        }
    }

    /// Draws the GID indexes of both QPs of a pair. The GIDs have the same IP version and VLAN,
    /// because otherwise the QPs cannot reach each other.
    pub fn draw_ends(&mut self) -> [u16; 2] {
        let (from, vlan, _, v6) = ENTRIES[self.rng.below(ENTRIES.len() as u64) as usize];
        let near = ENTRIES.iter().filter(|e| (e.1, e.3) == (vlan, v6));
        let near: Vec<u16> = near.map(|e| e.0).collect();
        [from, near[self.rng.below(near.len() as u64) as usize]]
    }

    /// Draws a path from one GID to another.
    pub fn draw_path(&mut self, [from, to]: [u16; 2]) -> AddressVector {
        let to = entry(to);
        AddressVector {
            dgid: address(to),
            dmac: mac(to),
            sgid_index: from.into(),
            flow_label: (self.rng.next() as u32).into(),
            hop_limit: [0, 1, 64, 255][self.rng.below(4) as usize],
            traffic_class: self.rng.next() as u8,
            sl: self.rng.below(8) as u8,
            port_num: 1,
            ..Default::default()
        }
    }

    /// Checks the source information in the completion of a datagram, and the header before its
    /// payload.
    pub fn check_source(&self, at: usize, wr: &PostedSend, seen: &ObservedCqe, grh: &[u8]) {
        let from = entry(wr.path.sgid_index.get());
        let (_, vlan, _, v6) = from;
        let cqe = &seen.cqe;
        // The service level is the priority in the VLAN tag, within the device as on a wire.
        let sl = match vlan == NO_VLAN {
            true => 0,
            false => wr.path.sl,
        };
        let network = match v6 {
            true => network_type::IPV6,
            false => network_type::IPV4,
        };
        let found = (
            cqe.src_qp.get(),
            cqe.smac,
            cqe.vlan.get(),
            cqe.sl,
            cqe.network_type,
        );
        let expected = (self.qps[at].qpn, mac(from), vlan, sl, network);
        let header = self.header(wr, v6);
        let same = |(found, expected): (&u8, &Option<u8>)| expected.is_none_or(|e| e == *found);
        if found != expected || !grh.iter().zip(&header).all(same) {
            self.fail_rule(&format!(
                "QP {}: {wr:x?} brings {found:x?} and {grh:x?}, not {expected:x?} and {header:x?}",
                self.qps[at].qpn
            ));
        }
    }

    /// Returns the 40 bytes before the payload of a datagram, with `None` for bytes that are not
    /// specified.
    fn header(&self, wr: &PostedSend, v6: bool) -> Vec<Option<u8>> {
        let path = &wr.path;
        let hop_limit = match path.hop_limit {
            0 => 64,
            limit => limit,
        };
        let class = path.traffic_class & !3;
        let imm = if wr.opcode == WqeOpcode::SendImm {
            4
        } else {
            0
        };
        // UDP, BTH, DETH, immediate data, payload and padding, ICRC.
        let udp = (8 + 12 + 8 + imm + wr.length().next_multiple_of(4) + 4) as u16;
        let from = address(entry(path.sgid_index.get()));
        let known = |bytes: &[u8]| bytes.iter().map(|b| Some(*b)).collect::<Vec<_>>();
        let mut out = Vec::new();
        if v6 {
            let word = 6 << 28 | u32::from(class) << 20 | path.flow_label.get() & 0xf_ffff;
            out.extend(known(&word.to_be_bytes()));
            out.extend(known(&udp.to_be_bytes()));
            out.extend(known(&[17, hop_limit]));
            out.extend(known(&from));
            out.extend(known(&path.dgid));
        } else {
            out.extend([None; 20]);
            out.extend(known(&[0x45, class]));
            out.extend(known(&(20 + udp).to_be_bytes()));
            out.extend([None; 4]);
            out.extend(known(&[hop_limit, 17]));
            out.extend([None; 2]);
            out.extend(known(&from[12..]));
            out.extend(known(&path.dgid[12..]));
        }
        out
    }
}
