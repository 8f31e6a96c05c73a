// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Violations of P_Keys and Q_Keys: packets that a queue pair, or an agent, drops because of a key.
//! Their port counts them in PortInfo, and sends traps 257 and 258 (IBTA 10.9.4, 14.2.5.1).

use super::{Datagram, Fabric};
use crate::agent::sma::raise_trap;
use crate::mad::attribute::PortInfo;
use crate::mad::notice::{Notice, Trap, GIDADDR1_AT};
use crate::mad::Fields;
use crate::{PortId, Time};

/// A kind of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViolatedKey {
    PKey,
    QKey,
}

/// A packet that was dropped because of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyViolation {
    /// P_Key or Q_Key of the packet.
    pub key: u32,
    pub source_lid: u16,
    pub destination_lid: u16,
    pub sl: u8,
    /// Queue pair that sent the packet; 0 if the packet does not name it.
    pub source_qp: u32,
    pub destination_qp: u32,
    /// Source and destination GID, if the packet has a GRH.
    pub gids: Option<[[u8; 16]; 2]>,
}

/// Packets that were dropped because of one kind of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyViolations {
    pub kind: ViolatedKey,
    /// Number of packets.
    pub count: u64,
    /// The last of the packets, which the trap describes.
    pub last: KeyViolation,
}

impl KeyViolations {
    /// Returns the violation by one datagram.
    pub(super) fn by(datagram: &Datagram, kind: ViolatedKey) -> Self {
        let gids = datagram.grh.map(|grh| {
            let mut gids = [[0; 16]; 2];
            gids.as_flattened_mut().copy_from_slice(&grh[8..]);
            gids
        });
        Self {
            kind,
            count: 1,
            last: KeyViolation {
                key: match kind {
                    ViolatedKey::PKey => datagram.p_key.into(),
                    ViolatedKey::QKey => datagram.q_key,
                },
                source_lid: datagram.source_lid,
                destination_lid: datagram.destination_lid,
                sl: datagram.sl,
                source_qp: datagram.source_qp,
                destination_qp: datagram.destination_qp,
                gids,
            },
        }
    }
}

impl Fabric {
    /// Counts packets that the queue pairs of a guest's adapter have dropped because of a key, and
    /// sends the trap.
    pub fn report_key_violations(&mut self, port: PortId, violations: &KeyViolations, now: Time) {
        self.count_key_violations(port, violations, now);
        self.poll(now);
    }

    /// Counts violations at a port with a LID, and raises the trap.
    pub(super) fn count_key_violations(
        &mut self,
        port: PortId,
        violations: &KeyViolations,
        now: Time,
    ) {
        let Some(node) = self.nodes.get_mut(port.node) else {
            return;
        };
        let managed = node.port_mut(port.port).filter(|port| port.is_managed());
        let Some(info) = managed.map(|port| &mut port.info) else {
            return;
        };
        let (field, trap) = match violations.kind {
            ViolatedKey::PKey => (PortInfo::P_KEY_VIOLATIONS, Trap::BadPKey),
            ViolatedKey::QKey => (PortInfo::Q_KEY_VIOLATIONS, Trap::BadQKey),
        };
        let more = u16::try_from(violations.count).unwrap_or(u16::MAX);
        info.set(field, info.get(field).saturating_add(more));
        raise_trap(node, port.port, trap, now, |notice| {
            describe(notice, &violations.last)
        });
    }
}

/// Adds the details of a packet with a bad key (IBTA 14.2.5.1, traps 257 and 258).
fn describe(notice: &mut Notice, packet: &KeyViolation) {
    notice.set(Notice::LIDADDR1, packet.source_lid);
    notice.set(Notice::LIDADDR2, packet.destination_lid);
    notice.set(Notice::KEY, packet.key);
    notice.set(Notice::SL, packet.sl);
    notice.set(Notice::QP1, packet.source_qp);
    notice.set(Notice::QP2, packet.destination_qp);
    let gids = packet.gids.unwrap_or_default();
    let place = notice.0.iter_mut().skip(GIDADDR1_AT);
    for (to, from) in place.zip(gids.as_flattened()) {
        *to = *from;
    }
}
