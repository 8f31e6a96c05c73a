// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a queue pair is made of, by its owner's choice.

use super::QpType;
use crate::allowance::Allowance;
use alloc::rc::Rc;

/// What a queue pair is from its creation on.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number.
    pub qpn: u32,
    /// Transport service.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: u32,
    /// What the host knows the queue pair by where a key belongs to one ([`KeyUse::owner`](crate::host::KeyUse::owner)).
    pub owner: u64,
    /// Takes receives from an SRQ.
    pub has_srq: bool,
    /// Longest message in bytes, at most 2^31.
    pub max_msg_size: u32,
    /// Packets to a local peer that may be unacknowledged.
    pub window: u32,
    /// The same to a peer behind a wire, whose buffers and those on the way are small.
    pub wire_window: u32,
    /// Work requests that may be unacknowledged.
    pub max_outstanding: u32,
    /// Most bytes of a super-packet to a local peer.
    pub super_bytes: u32,
    /// Most packets of a super-packet to a peer behind a wire, which whoever makes frames splits. Requests have no more than a
    /// quarter of the window.
    pub wire_super_packets: u8,
    /// The local ACK timer is not shorter than this, whatever the attribute says, as hardware has it too: IBTA 9.7.6
    /// lets it be up to four times the attribute, and a busy host must not look like a dead one.
    pub min_timeout_ns: u64,
    /// End-to-end credits (IBTA 9.7.7.2): acknowledgements tell how many receives are posted, and the requester keeps to
    /// what the peer tells. A queue pair with an SRQ tells none.
    pub credits: bool,
    /// Behind a wire, recovers from loss by itself: asks again after the round trip that it has measured, and by one packet. Else
    /// all that is not acknowledged is sent again, as the specification has it, at the latest after `min_timeout_ns`.
    pub recovers: bool,
    /// Behind a wire, if it recovers by itself: has fewer packets under way than `wire_window` where the path has a queue (annex A17.9).
    pub congestion_control: bool,
    /// It asks again after this time at the earliest.
    pub min_probe_ns: u64,
    /// Bytes of requests that are kept behind a gap, as responder; a packet costs its payload and 256 more. 0: none are.
    pub keep_bytes: u32,
    /// The account that they are taken from, if there is one.
    pub allowance: Option<Rc<Allowance>>,
}

impl Config {
    /// The usual configuration.
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
            keep_bytes: 1 << 20,
            allowance: None,
        }
    }
}
