// SPDX-License-Identifier: GPL-2.0 OR MIT

//! State of the port and of single QPs for display: plain data in bounded portions, like the
//! contexts in `snapshot.rs`.

use crate::device::snapshot::LOOKS;
use crate::device::Device;
use crate::objects::port::Gid;
use crate::objects::qp::Qp;
use verbena_abi::stats::NUM_COUNTERS;

/// Most members that are listed for a multicast group.
pub const GROUP_MEMBERS: usize = 16;

/// State of the port.
#[derive(Clone, Debug, Default)]
pub struct PortFigures {
    /// True if the driver has set the port up.
    pub up: bool,
    /// Largest path MTU of the port, in bytes.
    pub mtu: u32,
    /// MAC address of the port.
    pub mac: [u8; 6],
    /// True if the link layer of the port is InfiniBand.
    pub is_infiniband: bool,
    /// Entries of the GID table that are set, with their indexes.
    pub gids: Vec<(u16, Gid)>,
    /// Multicast groups that have members in this device.
    pub groups: Vec<GroupFigures>,
}

/// State of a multicast group.
#[derive(Clone, Debug)]
pub struct GroupFigures {
    /// Multicast GID of the group.
    pub gid: [u8; 16],
    /// Number of member QPs in this device.
    pub members: u32,
    /// QPNs of the first members, up to [`GROUP_MEMBERS`].
    pub first: Vec<u32>,
}

/// State of a QP.
#[derive(Clone, Debug)]
pub struct QpFigures {
    /// Number of the QP (QPN).
    pub qpn: u32,
    /// Type of the QP, as in `QpType`.
    pub qp_type: u8,
    /// Number of the peer QP, if the QP is connected.
    pub dest_qpn: u32,
    /// GIDs of the QP and of its peer, if the QP has a path.
    pub gids: Option<([u8; 16], [u8; 16])>,
    /// True if the peer is a QP of this device.
    pub is_local: bool,
    /// State of the transport at the time of the call.
    pub live: verbena_transport::QpSnapshot,
    /// Counters of the QP, indexed by `stats::Counter`.
    pub counters: [u64; NUM_COUNTERS],
    /// Counters of the transport of the QP.
    pub transport: verbena_transport::Counters,
    /// Congestion counters of the QP.
    pub congestion: verbena_transport::CongestionCounters,
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
    /// Returns the state, addresses and groups of the port. The limits of the device bound their
    /// size.
    pub fn port_figures(&self) -> PortFigures {
        let port = &self.shared.port;
        PortFigures {
            up: port.up,
            mtu: 128 << port.mtu,
            mac: self.shared.config().mac,
            is_infiniband: port.as_infiniband().is_some(),
            gids: port.gids().map(|(index, gid)| (index, *gid)).collect(),
            groups: self
                .addressing
                .groups()
                .each()
                .map(|(gid, members)| GroupFigures {
                    gid: *gid,
                    members: members.len() as u32,
                    first: members.iter().take(GROUP_MEMBERS).copied().collect(),
                })
                .collect(),
        }
    }

    /// Returns the state of a QP, if there is a QP of this number.
    pub fn qp_figures(&self, qpn: u32) -> Option<QpFigures> {
        self.qps.get(qpn).map(QpFigures::of)
    }

    /// Returns the state of up to `most` QPs, beginning with number `from`. The second value is the
    /// number at which the listing continues, or None at its end.
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
