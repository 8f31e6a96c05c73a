// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The configuration of a queue pair, which its owner chooses.

use super::QpType;
use crate::reassembly_quota::ReassemblyQuota;
use alloc::rc::Rc;

/// The properties that a queue pair has from its creation on.
#[derive(Clone, Debug)]
pub struct QpConfig {
    /// Queue pair number (QPN).
    pub qpn: u32,
    /// Transport service of the queue pair. QP0 of an InfiniBand port, the subnet management
    /// interface, has the type of QP1 and the QPN 0.
    pub qp_type: QpType,
    /// Protection domain of the queue pair.
    pub pd: u32,
    /// Identity of the queue pair at the host, for keys that belong to one queue pair
    /// ([`KeyUse::owner`](crate::host::KeyUse::owner)).
    pub owner: u64,
    /// True if the queue pair takes receives from an SRQ.
    pub has_srq: bool,
    /// Length of the longest message in bytes, at most 2^31.
    pub max_msg_size: u32,
    /// Maximum number of unacknowledged packets to a local peer.
    pub window: u32,
    /// Maximum number of unacknowledged packets to a peer over a wire. The buffers of that peer,
    /// and those on the path, are small.
    pub wire_window: u32,
    /// Maximum number of unacknowledged work requests.
    pub max_outstanding: u32,
    /// Maximum number of bytes in a super-packet to a local peer.
    pub super_bytes: u32,
    /// Maximum number of packets in a super-packet to a peer over a wire. The code that makes
    /// frames splits it. A super-packet of requests has at most a quarter of the window.
    pub wire_super_packets: u8,
    /// Lower limit of the local ACK timeout, whatever the attribute says. Hardware has such a limit
    /// too: IBTA 9.7.6 permits up to four times the attribute, and a busy host must not look like a
    /// dead one.
    pub min_timeout_ns: u64,
    /// True if end-to-end credits are used (IBTA 9.7.7.2): acknowledgements report the number of
    /// posted receives, and the requester observes the credits that the peer reports. A queue pair
    /// with an SRQ reports none.
    pub credits: bool,
    /// True if the requester recovers from loss early over a wire: after the round trip that it has
    /// measured it sends one packet again. If false, it sends everything unacknowledged again, as
    /// the specification says, at the latest after `min_timeout_ns`.
    pub recovers: bool,
    /// True if congestion control reduces the window below `wire_window` where the path has a queue
    /// (annex A17.9). It acts only over a wire and together with `recovers`.
    pub congestion_control: bool,
    /// Minimum time in nanoseconds before the requester sends the oldest packet again.
    pub min_probe_ns: u64,
    /// Maximum number of bytes that each side keeps of packets ahead of a gap. Each packet is
    /// counted as its payload and 256 bytes more. 0 keeps no packets.
    pub reassembly_bytes: u32,
    /// Account that kept packets are charged to, if there is one.
    pub reassembly_quota: Option<Rc<ReassemblyQuota>>,
}

impl QpConfig {
    /// Creates the usual configuration.
    pub fn new(qpn: u32, qp_type: QpType, pd: u32) -> Self {
        Self {
            qpn,
            qp_type,
            pd,
            owner: qpn.into(),
            has_srq: false,
            max_msg_size: 1 << 31,
            window: 2048,
            wire_window: 128,
            max_outstanding: 256,
            super_bytes: 256 << 10,
            wire_super_packets: 1,
            min_timeout_ns: 4_000_000,
            credits: true,
            recovers: true,
            congestion_control: true,
            min_probe_ns: 100_000,
            reassembly_bytes: 1 << 20,
            reassembly_quota: None,
        }
    }
}
