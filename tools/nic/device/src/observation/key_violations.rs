// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Violations of P_Keys and Q_Keys at an InfiniBand port: the packets that its queue pairs have
//! dropped because of a key. The agents of the port, which the daemon has, count the violations and
//! send traps (IBTA 10.9.4, 14.2.5.1). A RoCE port has no such agents.

use crate::objects::qp::Env;
use crate::observation::event::{DeviceEvent, QpEvent};
use crate::observation::EventContext;
use verbena_transport::host::ViolatedKey;
use verbena_transport::wire::{LocalRoute, Path};
use verbena_transport::Packet;

/// A packet that a queue pair has dropped because of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyViolation {
    /// P_Key or Q_Key of the packet.
    pub key: u32,
    /// Path of the packet from the sender's point of view. The SL of a packet of a connection is
    /// that of the receiver's path to its peer.
    pub path: Path,
    /// QPN of the sender; 0 for a packet of a connection, which does not name its sender.
    pub source_qpn: u32,
    /// QPN of the queue pair that has dropped the packet.
    pub dest_qpn: u32,
}

/// Violations of one kind of key since the daemon took the last ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyViolations {
    /// The kind of key.
    pub kind: ViolatedKey,
    /// Number of dropped packets; a super-packet counts as the packets that it stands for.
    pub count: u64,
    /// The last of the packets.
    pub last: KeyViolation,
}

/// The violations of each kind of key that the daemon has not taken.
#[derive(Debug, Default)]
pub(super) struct ViolationLog([Option<KeyViolations>; 2]);

impl ViolationLog {
    /// Adds the packet of an event that is a violation.
    #[inline(always)]
    pub(super) fn on_event(&mut self, event: &DeviceEvent<'_>, context: &EventContext<'_>) {
        if let DeviceEvent::Qp(env, QpEvent::KeyViolated { key, packet }) = event {
            if context.port.as_infiniband().is_some() {
                self.add(env, *key, packet);
            }
        }
    }

    #[cold]
    fn add(&mut self, env: &Env, kind: ViolatedKey, packet: &Packet) {
        let [p_key, q_key] = &mut self.0;
        let (violations, key) = match kind {
            ViolatedKey::PKey => (p_key, packet.pkey.into()),
            ViolatedKey::QKey => (q_key, packet.datagram.as_ref().map_or(0, |of| of.qkey)),
        };
        let last = KeyViolation {
            key,
            path: path(env, packet),
            source_qpn: packet.datagram.as_ref().map_or(0, |_| packet.src_qpn),
            dest_qpn: env.qpn(),
        };
        let before = violations.map_or(0, |violations| violations.count);
        *violations = Some(KeyViolations {
            kind,
            count: before.saturating_add(packet.psns.into()),
            last,
        });
    }

    /// Takes the violations, at most one entry for each kind of key.
    pub(super) fn take(&mut self) -> impl Iterator<Item = KeyViolations> {
        std::mem::take(&mut self.0).into_iter().flatten()
    }
}

/// Returns the path of a packet. A packet of a connection comes from the peer, so its path is the
/// reverse of the queue pair's.
fn path(env: &Env, packet: &Packet) -> Path {
    if let Some(datagram) = &packet.datagram {
        return datagram.path;
    }
    let own = env.path.as_deref().copied().unwrap_or_default();
    let reverse = |route: LocalRoute| LocalRoute {
        slid: route.dlid,
        dlid: route.slid,
        ..route
    };
    Path {
        sgid: own.dgid,
        dgid: own.sgid,
        local_route: own.local_route.map(reverse),
        ..own
    }
}
