// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Replies about peers: queue pairs are added up by the GID that they are connected to, while the
//! engine lists them. The guest determines their number, so at most [`MAX_PEERS`] are kept.

use super::{port, protocol, request};
use crate::policy::RawGid;
use crate::vm_state::{EngineRequest, VmState};
use std::collections::BTreeMap;
use verbena_device::QpFigures;
use verbena_protocol::MAX_PEERS;
use verbena_transport::QpState;

/// PeerSums of one peer, while its queue pairs are added up.
#[derive(Default)]
struct PeerSum {
    peer: protocol::PeerSummary,
    /// Sum of the measured round trips in nanoseconds, and their number.
    round_trips_ns: (u64, u64),
}

impl PeerSum {
    fn add(&mut self, qp: &QpFigures) {
        let peer = &mut self.peer;
        peer.is_local |= qp.is_local;
        peer.qps += 1;
        peer.in_error += u32::from(matches!(qp.live.state, QpState::Err | QpState::Sqe));
        peer.in_flight += u64::from(qp.live.in_flight);
        if let Some((trip, _)) = qp.live.round_trip_ns {
            self.round_trips_ns.0 = self.round_trips_ns.0.saturating_add(trip);
            self.round_trips_ns.1 += 1;
            peer.round_trip_max_ns = peer.round_trip_max_ns.max(Some(trip));
        }
        for (name, value) in port::counters(qp) {
            let sum = peer.counters.entry(name).or_default();
            *sum = sum.wrapping_add(value);
        }
    }

    fn into_summary(mut self, gid: Option<RawGid>) -> protocol::PeerSummary {
        self.peer.gid = gid.map(port::gid);
        self.peer.round_trip_ns = self.round_trips_ns.0.checked_div(self.round_trips_ns.1);
        self.peer
    }
}

/// Sums of all peers.
#[derive(Default)]
struct PeerSums {
    peers: BTreeMap<Option<RawGid>, PeerSum>,
    left_out: u32,
}

impl PeerSums {
    fn add(&mut self, qp: &QpFigures) {
        let gid = qp.gids.map(|(_, peer)| peer);
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&gid) {
            self.left_out += 1;
        } else {
            self.peers.entry(gid).or_default().add(qp);
        }
    }

    fn into_reply(self) -> protocol::PeersReply {
        protocol::PeersReply {
            peers: self
                .peers
                .into_iter()
                .map(|(g, sum)| sum.into_summary(g))
                .collect(),
            left_out: self.left_out,
        }
    }
}

/// Returns all peers. The engine lists the queue pairs in portions, so the sums are not of one
/// instant.
pub(super) fn peers(shared: &VmState) -> Result<protocol::PeersReply, String> {
    let (mut sums, mut next) = (PeerSums::default(), Some(0));
    while let Some(from) = next {
        let (portion, following) = request(shared, |to| EngineRequest::QpPortion(from, to))?;
        portion.iter().for_each(|qp| sums.add(qp));
        next = following;
    }
    Ok(sums.into_reply())
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbena_abi::stats::{Counter, NUM_COUNTERS};

    /// A queue pair that has sent `sent` packets to `peer`.
    fn qp(peer: Option<u16>, sent: u64, trip: Option<u64>) -> QpFigures {
        let transport = verbena_transport::Qp::new(verbena_transport::QpConfig::new(
            16,
            verbena_transport::QpType::Rc,
            1,
        ));
        let mut counters = [0; NUM_COUNTERS];
        counters[Counter::TxPackets as usize] = sent;
        let mut live = transport.snapshot();
        live.round_trip_ns = trip.map(|trip| (trip, 1));
        live.in_flight = 2;
        let gid = |peer: u16| {
            std::array::from_fn(|n| {
                if n < 14 {
                    1
                } else {
                    peer.to_be_bytes()[n - 14]
                }
            })
        };
        QpFigures {
            qpn: 16,
            qp_type: 0,
            dest_qpn: 17,
            gids: peer.map(|peer| ([0; 16], gid(peer))),
            is_local: false,
            live,
            counters,
            transport: verbena_transport::Counters::default(),
            congestion: verbena_transport::CongestionCounters::default(),
        }
    }

    #[test]
    fn queue_pairs_are_added_up_by_peer() {
        let mut sums = PeerSums::default();
        for (peer, sent, trip) in [
            (Some(1), 3, Some(10)),
            (Some(2), 5, None),
            (Some(1), 4, Some(20)),
            (None, 1, None),
            (Some(1), 0, None),
        ] {
            sums.add(&qp(peer, sent, trip));
        }
        let reply = sums.into_reply();
        let [none, one, two] = &reply.peers[..] else {
            panic!("{reply:?}");
        };
        assert_eq!((none.gid.as_deref(), none.qps), (None, 1));
        assert_eq!(one.gid.as_deref(), Some("101:101:101:101:101:101:101:1"));
        assert_eq!(
            (one.qps, one.in_flight, one.counters["tx_packets"]),
            (3, 6, 7)
        );
        assert_eq!(
            (one.round_trip_ns, one.round_trip_max_ns),
            (Some(15), Some(20))
        );
        assert_eq!((two.round_trip_ns, two.counters["tx_packets"]), (None, 5));
        assert_eq!(two.counters["probes"], 0);
        assert!(!two.counters.contains_key("doorbells"));
    }

    #[test]
    fn peers_beyond_the_limit_are_left_out_and_counted() {
        let mut sums = PeerSums::default();
        for peer in 0..MAX_PEERS as u16 + 10 {
            sums.add(&qp(Some(peer), 1, None));
        }
        sums.add(&qp(Some(3), 1, None));
        let reply = sums.into_reply();
        assert_eq!((reply.peers.len(), reply.left_out), (MAX_PEERS, 10));
        assert_eq!(reply.peers[3].qps, 2);
    }
}
