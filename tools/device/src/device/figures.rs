// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The port and single queue pairs, for people: plain data in bounded portions, as contexts are (`snapshot.rs`).

use crate::device::snapshot::LOOKS;
use crate::device::Device;
use crate::objects::port::Gid;
use crate::objects::qp::Qp;
use verbena_abi::stats::NUM_COUNTERS;

/// Members that are told of a multicast group.
pub const GROUP_MEMBERS: usize = 16;

/// The port.
#[derive(Clone, Debug, Default)]
pub struct PortFigures {
    /// The driver has it up.
    pub up: bool,
    /// Largest path MTU, in bytes.
    pub mtu: u32,
    /// MAC address.
    pub mac: [u8; 6],
    /// The entries of the GID table that are set, with their indexes.
    pub gids: Vec<(u16, Gid)>,
    /// The multicast groups that have members.
    pub groups: Vec<GroupFigures>,
}

/// A multicast group.
#[derive(Clone, Debug)]
pub struct GroupFigures {
    /// Its GID.
    pub gid: [u8; 16],
    /// How many queue pairs are members.
    pub members: u32,
    /// The first of them, at most [`GROUP_MEMBERS`].
    pub first: Vec<u32>,
}

/// A queue pair.
#[derive(Clone, Debug)]
pub struct QpFigures {
    /// Its number.
    pub qpn: u32,
    /// `QpType`.
    pub qp_type: u8,
    /// Number of the queue pair that it is connected to.
    pub dest_qpn: u32,
    /// Own GID and the peer's, if it has a path.
    pub gids: Option<([u8; 16], [u8; 16])>,
    /// The peer is a queue pair of this device.
    pub is_local: bool,
    /// What its transport is at.
    pub live: verbena_roce::Snapshot,
    /// Counters, by `stats::Counter`.
    pub counters: [u64; NUM_COUNTERS],
    /// What its transport has counted.
    pub transport: verbena_roce::Counters,
    /// What it has met of congestion.
    pub congestion: verbena_roce::CongestionCounters,
}

impl QpFigures {
    fn of(qp: &Qp) -> Self {
        let path = qp.env.path.as_ref();
        Self {
            qpn: qp.env.qpn(),
            qp_type: qp.env.create.qp_type,
            dest_qpn: qp.env.attr.dest_qpn.get(),
            gids: path.map(|path| (path.sgid, path.dgid)),
            is_local: path.is_some() && qp.transport.attr().local_peer,
            live: qp.transport.snapshot(),
            counters: qp.counters().all(),
            transport: *qp.transport.counters(),
            congestion: qp.transport.congestion(),
        }
    }
}

impl Device {
    /// The port: its state, addresses and groups. All are bounded by the device's limits.
    pub fn port_figures(&self) -> PortFigures {
        let port = &self.shared.port;
        PortFigures {
            up: port.up,
            mtu: 128 << port.mtu,
            mac: self.shared.config.mac,
            gids: port.gids().map(|(index, gid)| (index, *gid)).collect(),
            groups: self
                .groups
                .each()
                .map(|(gid, members)| GroupFigures {
                    gid: *gid,
                    members: members.len() as u32,
                    first: members.iter().take(GROUP_MEMBERS).copied().collect(),
                })
                .collect(),
        }
    }

    /// A queue pair, if there is one of this number.
    pub fn qp_figures(&self, qpn: u32) -> Option<QpFigures> {
        self.qps.get(qpn).map(QpFigures::of)
    }

    /// At most so many queue pairs, from a number on, and the number at which the listing goes on, if this is not the end.
    pub fn all_qp_figures(&self, from: u32, most: usize) -> (Vec<QpFigures>, Option<u32>) {
        let end = from.saturating_add(LOOKS).min(self.qps.len());
        let (mut all, mut next) = (Vec::new(), from);
        while next < end && all.len() < most {
            all.extend(self.qps.get(next).map(QpFigures::of));
            next += 1;
        }
        (all, (next < self.qps.len()).then_some(next))
    }
}
